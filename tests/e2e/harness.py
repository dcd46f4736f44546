"""What end-to-end tests share: make a corpus, run a config on it, and tell what came out so that it can be compared."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from pipeline import config as configs
from pipeline import report as reports
from pipeline import run as runs
from pipeline.config import Config
from pipeline.handoff import manifest as manifests
from stages import STAGES

EXACT = "{stage: exact}"
NEAR = "{stage: minhash, threshold: 0.8}"


def write_shards(folder: Path, shards: Sequence[Sequence[Mapping[str, Any]]], row_group_size: int = 40) -> None:
    """One Parquet file a list of rows, named 00.parquet and so on."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, rows in enumerate(shards):
        pq.write_table(
            pa.Table.from_pylist(list(rows)), folder / f"{number:02d}.parquet", row_group_size=row_group_size
        )


def words(seed: int, count: int, vocabulary: int = 5000) -> str:
    """A text of seeded random words, unlike any other seed's."""
    draw = random.Random(seed)
    return " ".join(f"w{draw.randrange(vocabulary)}x{seed % 97}" for _ in range(count))


def configure(
    root: Path, *stages: str, paths: str = "in/*.parquet", more: str = "", sets: Sequence[str] = ()
) -> Config:
    """A config on root/in with tiers under root; `more` is YAML of further sections, `sets` are --set overrides."""
    listed = "\n".join(f"  - {stage}" for stage in stages)
    text = (
        f"name: test\ninput: {{paths: ['{root}/{paths}']}}\n"
        f"tiers: {{work: {{url: '{root}/work'}}, hot: {{url: '{root}/hot'}}, cold: {{url: '{root}/cold'}}}}\n"
        f"stages: {'' if stages else '[]'}\n{listed}\n"
    )
    return configs.loads(f"{text}{more}\n", STAGES, overrides=["run.workers=0", *sets])


def run(config: Config) -> dict[str, Any]:
    """Run it and check what must hold after every run; returns the report."""
    report = runs.run(config)
    sound(config, report)
    return report


def sound(config: Config, report: Mapping[str, Any]) -> None:
    """The identities, one row a document in hot and removed/, and no file that no manifest names."""
    reports.identities(report)
    manifest = newest_manifest(config)
    assert manifest["totals"] == report["totals"]["kept"]
    hot = Path(config.tiers.hot.url, config.name)
    named = {
        (hot / f"v{version}" / file["path"]).resolve()
        for version in range(1, manifest["version"] + 1)
        for dataset in manifests.read(hot / f"v{version}" / "manifest.json")["datasets"]
        for file in dataset["files"]
    }
    assert {path.resolve() for path in hot.glob("data/**/*") if path.is_file()} == named
    assert sum(pq.read_metadata(path).num_rows for path in current_files(config)) == report["totals"]["kept"]["docs"]
    removed = table(report, "removed")
    assert removed.num_rows == report["totals"]["removed"]["docs"]
    keys = list(zip(removed["shard"].to_pylist(), removed["row"].to_pylist(), strict=True))
    assert keys == sorted(set(keys))
    whole = [row for row in table(report, "quarantined").to_pylist() if row["row"] is not None]
    assert len(whole) == report["totals"]["quarantined"]["docs"]


def stored_report(config: Config) -> dict[str, Any]:
    """What report.json says: of a run that was stopped there is nothing else."""
    found: dict[str, Any] = json.loads(
        Path(config.tiers.work.url, config.name, "results", config.fingerprint[:12], "report.json").read_text()
    )
    return found


def newest_manifest(config: Config) -> dict[str, Any]:
    hot = Path(config.tiers.hot.url, config.name)
    newest = max(hot.glob("v*/manifest.json"), key=lambda path: int(path.parent.name[1:]))
    return manifests.read(newest)


def current_files(config: Config) -> list[Path]:
    """Every data file of the newest manifest."""
    folder = Path(config.tiers.hot.url, config.name, "v1")
    return [folder / file["path"] for dataset in newest_manifest(config)["datasets"] for file in dataset["files"]]


def hot_rows(config: Config) -> list[dict[str, Any]]:
    """All rows of the published datasets, in the order of the manifest."""
    return [row for path in current_files(config) for row in pq.read_table(path).to_pylist()]


def table(report: Mapping[str, Any], name: str) -> pa.Table:
    """removed/ or quarantined/ as one table."""
    return pq.read_table(report["run"]["paths"][name])


def removed(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table(report, "removed").to_pylist()
    return rows


def outcome(config: Config, report: Mapping[str, Any]) -> dict[str, str]:
    """Digests of all that must be equal between executors, worker counts and histories of kills.

    That is: the data files and archive parts of the newest manifest, removed/, quarantined/, and the manifest and the
    report without times and places.
    """
    found = {f"hot/{path.parent.name}/{path.name}": digest(path.read_bytes()) for path in current_files(config)}
    manifest = newest_manifest(config)
    archive = Path(config.tiers.cold.url, manifest["archive"]["path"])
    for path in sorted(archive.parent.iterdir()):
        found[f"cold/{path.name}"] = digest(path.read_bytes())
    for kind in ("removed", "quarantined"):
        for path in sorted(Path(report["run"]["paths"][kind]).iterdir()):
            found[f"{kind}/{path.name}"] = digest(path.read_bytes())
    times = ("created", "version", "parent")
    found["manifest"] = digest(manifests.canonical({k: v for k, v in manifest.items() if k not in times}))
    found["report"] = digest(json.dumps(reports.comparable(report), sort_keys=True).encode())
    return found


def digest(data: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(data)


def differing(first: Mapping[str, str], second: Mapping[str, str]) -> list[str]:
    """Names under which two outcomes differ: empty when they are the same."""
    return sorted(name for name in {*first, *second} if first.get(name) != second.get(name))


def rows_of(texts: Iterable[str | None], source: str | None = None, first: int = 0) -> list[dict[str, Any]]:
    """Rows with an id, a text and a source."""
    return [{"id": f"d{first + i}", "text": text, "source": source} for i, text in enumerate(texts)]
