"""How fast is the whole chain, by stage, and does memory stay flat? Runs configs/demo.yaml's stages on given corpora.

    python tools/bench/chain.py CORPUS [CORPUS ...] --model runs/demo/quality.bin --out tools/bench/results/chain.json

Each corpus gets a run of its own in a fresh folder, on spawned workers. Speed is UTF-8 bytes of the input by CPU second
of a stage's own work (reading counts for the stage that reads first). Peak memory is the largest resident set of any
worker process, as the operating system counts it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from pipeline import config as configs
from pipeline import ledger, run
from pipeline.opened import work_store
from stages import STAGES

ROOT = Path(__file__).parents[2]


def measure(corpus: Path, model: Path, workers: int) -> dict[str, Any]:
    """One run on one corpus."""
    folder = Path(tempfile.mkdtemp(prefix="chain-", dir=ROOT / "runs"))
    try:
        sets = [
            f"input.paths=['{corpus}/*.parquet']",
            f"quality.model={model}",
            f"run.workers={workers}",
            "guards.max_source_loss=1.0",
        ]
        sets += [f"tiers.{tier}.url={folder}/{tier}" for tier in ("work", "hot", "cold")]
        config = configs.load(ROOT / "configs/demo.yaml", STAGES, sets)
        begun = time.perf_counter()
        report = run.run(config)
        wall = time.perf_counter() - begun
        state = ledger.read(work_store(config))
        size = report["totals"]["in"]["bytes"]
        stages = {stage["label"]: stage["seconds"]["cpu"] for stage in report["stages"]}
        cpu = state.spent.cpu
        stages["publish"] = round(state.by_label["publish"].cpu, 3)
        by_stage = {name: round(size / 1e6 / seconds, 1) for name, seconds in stages.items() if seconds}
        return {
            "corpus": corpus.name, "bytes": size, "docs": report["totals"]["in"]["docs"], "workers": workers,
            "kept": report["totals"]["kept"], "wall_s": round(wall, 2), "cpu_s": round(cpu, 2),
            "mb_per_s_per_core": round(size / 1e6 / cpu, 2), "mb_per_cpu_s_by_stage": by_stage,
            "cpu_s_by_stage": stages, "worker_memory_limit": config.run.worker_memory,
            "peak_rss_worker": state.peak_rss,
            "peak_rss_driver": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }  # fmt: skip
    finally:
        shutil.rmtree(folder)


def machine() -> dict[str, Any]:
    names = ("numpy", "numba", "pyarrow", "ray", "fasttext-community", "zstandard")
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    return {
        "cpu": processor(), "cores": os.cpu_count(), "python": platform.python_version(),
        "commit": head.stdout.strip(), "load": os.getloadavg()[0],
        "versions": {name: metadata.version(name) for name in names if _has(name)},
    }  # fmt: skip


def processor() -> str:
    info = Path("/proc/cpuinfo")
    names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _has(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("corpus", type=Path, nargs="+")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    found = {"command": "python " + " ".join(sys.argv), "machine": machine(), "runs": []}
    for corpus in given.corpus:
        found["runs"].append(measure(corpus.resolve(), given.model.resolve(), given.workers))
        print(json.dumps(found["runs"][-1]), flush=True)
    given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
