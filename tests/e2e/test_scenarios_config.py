"""Configs that cannot work are refused before a file is written; a dry run stays in its place and off the cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import harness
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import cli

GOOD = """\
name: bad
input: {{paths: ['{root}/in/*.parquet']}}
tiers: {{work: {{url: '{root}/work'}}, hot: {{url: '{root}/hot'}}, cold: {{url: '{root}/cold'}}}}
stages:
  - {{stage: exact}}
  - {{stage: minhash, threshold: 0.8}}
run: {{workers: 0}}
"""
NEAR = "{{stage: minhash, threshold: 0.8}}"
BAD = {
    "misspelt section": ("run:", "guard: {{}}\nrun:", ["guard", "did you mean 'guards'?"]),
    "misspelt stage key": (NEAR, "{{stage: minhash, treshold: 0.8}}", ["stages.1", "treshold", "'threshold'"]),
    "section of another tool": ("run:", "dedupe: {{treshold: 0.8}}\nrun:", ["dedupe", "treshold", "'threshold'"]),
    "key in the wrong section": ("workers: 0", "seed: 1, part_bytes: 5MB", ["run.part_bytes", "publish.part_bytes"]),
    "key of a stage at the top": ("run:", "threshold: 0.8\nrun:", ["threshold", "minhash"]),
    "misspelt deep key": ("run:", "publish: {{limits: {{epoch: 2}}}}\nrun:", ["publish.limits.epoch", "'epochs'"]),
    "string for a number": (NEAR, "{{stage: minhash, threshold: high}}", ["stages.1.threshold", "'high'"]),
    "quoted number": (NEAR, "{{stage: minhash, ngram: '5'}}", ["stages.1.ngram", "'5'"]),
    "number for a string": ("name: bad", "name: 7", ["name", "7"]),
    "unknown unit": ("workers: 0", "worker_memory: 5 parsecs", ["run.worker_memory", "5 parsecs"]),
    "bands times rows": (NEAR, "{{stage: minhash, bands: 900, rows: 90}}", ["stages.1.bands", "16384"]),
    "threshold of 0": (NEAR, "{{stage: minhash, threshold: 0}}", ["stages.1.threshold", "0"]),
    "threshold above 1": (NEAR, "{{stage: minhash, threshold: 1.5}}", ["stages.1.threshold", "1.5"]),
    "unknown stage": ("stage: exact", "stage: exakt", ["stages.0.stage", "'exakt'", "'exact'"]),
    "unknown column": (NEAR, "{{stage: minhash, within: [langauge]}}", ["stages.1.within", "'langauge'", "'language'"]),
    "column of a later stage": (
        NEAR,
        "{{stage: select, by: quality.score, keep_top: 0.5}}",
        ["stages.1.by", "quality"],
    ),
    "label twice": (NEAR, "{{stage: exact}}", ["stages.1", "exact"]),
    "missing model": (NEAR, "{{stage: quality, model: '{root}/none.bin'}}", ["stages.1.model", "none.bin"]),
    "no input": ("in/*.parquet", "inn/*.parquet", ["input.paths.0", "inn/*.parquet"]),
    "two tiers in one place": ("{root}/cold", "{root}/hot", ["tiers.cold.url", "tiers.hot"]),
    "feature that is not built": ("run:", "budget: {{limit: 5}}\nrun:", ["budget.limit", "not built"]),
    "no name": ("name: bad\n", "", ["name", "it is required"]),
}


def texts(root, shards=2):
    harness.write_shards(
        root / "in", [harness.rows_of([harness.words(100 * k + i, 30) for i in range(20)]) for k in range(shards)]
    )


def files(root):
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("command", ["run", "dry-run", "plan"])
@pytest.mark.parametrize("fault", BAD)
def test_a_config_that_cannot_work_is_refused_before_any_work(tmp_path, capfd, fault, command):
    """Exit 2 with the key path and what was meant, on stderr alone, and not a file more than before."""
    old, new, said = BAD[fault]
    assert old.format(root=tmp_path) in GOOD.format(root=tmp_path)
    texts(tmp_path)
    path = tmp_path / "bad.yaml"
    path.write_text(GOOD.replace(old, new, 1).format(root=tmp_path))
    before = files(tmp_path)
    assert cli.main([command, str(path)]) == 2
    out, err = capfd.readouterr()
    shown = " ".join(err.split())
    assert out == ""
    assert "Traceback" not in err
    for part in said:
        assert part in shown
    assert files(tmp_path) == before


def test_all_mistakes_of_a_config_are_told_at_once(tmp_path, capfd):
    """Five mistakes in five sections are one message."""
    yaml = GOOD.replace("threshold: 0.8", "treshold: 0.8").replace("name: bad", "name: 7").replace("workers", "worker")
    (tmp_path / "bad.yaml").write_text((yaml + "guard: {{}}\ncurrency: euro\n").format(root=tmp_path))
    assert cli.main(["run", str(tmp_path / "bad.yaml")]) == 2
    err = capfd.readouterr().err
    for part in ("treshold", "name", "worker", "guard", "currency"):
        assert part in err


def test_json_says_what_is_wrong(tmp_path, capfd):
    """With --json stdout holds one document with the error and its exit code."""
    texts(tmp_path)
    (tmp_path / "bad.yaml").write_text(GOOD.replace("name: bad", "name: 7").format(root=tmp_path))
    assert cli.main(["run", str(tmp_path / "bad.yaml"), "--json"]) == 2
    assert "name" in json.dumps(json.loads(capfd.readouterr().out))


SCRIPTS = {
    "the first English, the rest Thai": ["the words of an english text", *["ประโยค ภาษา ไทย นี้ ยาว พอ"] * 19],
    "the last Russian, the rest Chinese": [*["今天 天气 很好 我们 去 公园"] * 11, "слова русского текста о погоде"],
}


@pytest.mark.parametrize("case", SCRIPTS)
def test_a_dry_run_sees_all_shards_and_writes_to_its_own_place(tmp_path, capfd, case):
    """The sample holds every script, only the folder of the dry run is new, and what does not scale is marked."""
    (tmp_path / "in").mkdir()
    for number, text in enumerate(SCRIPTS[case]):
        rows = [f"{text} {number} {row} {harness.words(1000 * number + row, 12)}" for row in range(300)]
        pq.write_table(pa.table({"text": rows}), tmp_path / "in" / f"{number:02d}.parquet")
    (tmp_path / "good.yaml").write_text(GOOD.replace("name: bad", "name: good").format(root=tmp_path))
    before = files(tmp_path)
    assert cli.main(["dry-run", str(tmp_path / "good.yaml"), "--json"]) == 0
    report = json.loads(capfd.readouterr().out)
    place = tmp_path / "work" / "good" / "dry-run"
    new = {path: data for path, data in files(tmp_path).items() if before.get(path) != data}
    assert new
    assert all(place in path.parents for path in new)
    sampled = [
        text
        for path in sorted((place / "sample").rglob("*.parquet"))
        for text in pq.read_table(path)["text"].to_pylist()
    ]
    assert {text for text in SCRIPTS[case] if any(row.startswith(text) for row in sampled)} == set(SCRIPTS[case])
    assert report["run"]["dry_run"]
    duplicates = [entry for entry in report["predictions"] if "exact" in entry["name"] or "minhash" in entry["name"]]
    assert duplicates
    assert {entry["how"] for entry in duplicates} <= {"counted", "bounded", "cannot_be_said"}


@pytest.mark.ray
def test_a_running_cluster_sees_nothing_of_a_dry_run(tmp_path, ray_session):
    """With a cluster in the environment and Ray in the config, the cluster has no driver more than before."""
    import ray
    from ray._private.state import jobs

    texts(tmp_path)
    yaml = GOOD.replace("{{workers: 0}}", "{{executor: ray, workers: 2}}")
    (tmp_path / "good.yaml").write_text(yaml.format(root=tmp_path))
    environment = {**os.environ, "RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    before = len(jobs())
    command = [sys.executable, "-c", "import sys; from pipeline.cli import main; sys.exit(main())", "dry-run"]
    done = subprocess.run([*command, str(tmp_path / "good.yaml")], env=environment, capture_output=True, check=False)
    assert done.returncode == 0
    assert len(jobs()) == before
