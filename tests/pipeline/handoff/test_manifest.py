from __future__ import annotations

import copy
import json
import math
import re
import subprocess
import sys

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.handoff import manifest
from pipeline.handoff.phases import Plan, phases

LIMITS = {"epochs": 4.0, "floor": 0.1, "remainder": "drop", "remainder_docs": 0}
HASH = "0123456789abcdef" * 2


def dataset(split, kind, bucket, tokens, group=None):
    name = {"bucket": f"{split}-b{bucket}", "unscorable": f"{split}-unscorable", "plain": split}[kind]
    files = [
        {
            "path": f"../data/{name}-{i}/part-00000.parquet",
            "format": "text",
            "rows": tokens // 20,
            "tokens": tokens // 2,
            "bytes": 999,
            "xxh128": HASH,
            "role": "data",
        }
        for i in range(2 if tokens else 0)
    ]
    return {
        "id": name,
        "split": split,
        "kind": kind,
        "bucket": bucket,
        "group": group or {},
        "docs": tokens // 20 * 2,
        "tokens": tokens,
        "bytes": 4 * tokens,
        "files": files,
    }


def fields():
    datasets = [
        dataset("validation", "plain", None, 40),
        *(dataset("train", "bucket", k, tokens) for k, tokens in enumerate([400, 200, 0, 600, 800])),
        dataset("train", "unscorable", None, 60),
    ]
    return {
        "name": "web",
        "version": 1,
        "parent": None,
        "created": "2026-11-30T00:00:00Z",
        "software": "corpusmill 0.1.0",
        "corpus_id": HASH,
        "config_fingerprint": HASH,
        "publish_fingerprint": HASH,
        "tokenizer": None,
        "token_counts": "estimated",
        "scores": [{"name": "difficulty.bits_per_byte", "direction": "higher_is_harder", "unit": "bits per byte"}],
        "buckets": {"score": "difficulty.bits_per_byte", "by": [], "edges_file": "meta/edges.parquet"},
        "datasets": datasets,
        "phases": phases(datasets, None, Plan(), LIMITS).phases,
        "limits": LIMITS,
        "control": "control.json",
        "exclusions": [],
        "positions": None,
        "archive": {"path": "../../../cold/web/archive.json", "xxh128": HASH},
    }


def changed(path, value):
    """The finished document with the value at a path such as ("datasets", 0, "tokens") replaced."""
    document = manifest.build(copy.deepcopy(fields()))
    place = document
    for step in path[:-1]:
        place = place[step]
    if value is KeyError:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return document


def test_build():
    """A built document has its datasets sorted, its totals summed and an id of its content; it reads back equal."""
    document = manifest.build(fields())
    ids = [d["id"] for d in document["datasets"]]
    assert ids == ["train-b0", "train-b1", "train-b2", "train-b3", "train-b4", "train-unscorable", "validation"]
    assert document["totals"] == {"docs": 210, "tokens": 2100, "bytes": 8400}
    data = manifest.to_bytes(document)
    assert data.endswith(b"\n")
    assert b"\n" not in data[:-1]
    assert manifest.load(data) == document


def test_id_is_of_the_content():
    """What may differ between equal publications is outside the id; a field more, or another value, changes it."""
    one = manifest.build(fields())
    outside = {"version": 9, "parent": HASH, "created": "2027-01-01T00:00:00Z", "software": "corpusmill 9"}
    assert manifest.build(fields() | outside)["id"] == one["id"]
    assert manifest.build(dict(reversed(fields().items())))["id"] == one["id"]
    assert manifest.build(fields() | {"name": "other"})["id"] != one["id"]
    assert manifest.build(fields() | {"later_field": 1})["id"] != one["id"]


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        (("schema",), "corpusmill.manifest/2", "schema"),
        (("schema",), "corpusmill.report/1", "schema"),
        (("schema",), None, "schema"),
        (("id",), "ABC", "id"),
        (("version",), 1.0, "version"),
        (("version",), True, "version"),
        (("corpus_id",), KeyError, "corpus_id"),
        (("parent",), "none", "parent"),
        (("tokenizer",), "gpt2", "tokenizer"),
        (("token_counts",), "guessed", "token_counts"),
        (("scores", 0, "direction"), "up", "scores[0].direction"),
        (("datasets",), {}, "datasets"),
        (("datasets", 0, "id"), "Train", "datasets[0].id"),
        (("datasets", 1, "id"), "train-b0", "datasets"),
        (("datasets", 0, "split"), "test", "datasets[0].split"),
        (("datasets", 0, "kind"), "plain", "datasets[0].bucket"),
        (("datasets", 0, "bucket"), None, "datasets[0].bucket"),
        (("datasets", 5, "bucket"), 5, "datasets[5].bucket"),
        (("datasets", 0, "docs"), -1, "datasets[0].docs"),
        (("datasets", 0, "docs"), 41, "datasets[0].docs"),
        (("datasets", 0, "tokens"), 401, "datasets[0].tokens"),
        (("datasets", 0, "bytes"), 1601, "totals.bytes"),
        (("datasets", 0, "files", 0, "rows"), 21, "datasets[0].docs"),
        (("datasets", 0, "files", 0, "path"), "/data/x.parquet", "datasets[0].files[0].path"),
        (("datasets", 0, "files", 0, "path"), "s3://b/x.parquet", "datasets[0].files[0].path"),
        (("datasets", 0, "files", 1, "xxh128"), "", "datasets[0].files[1].xxh128"),
        (("datasets", 0, "files", 1, "format"), "csv", "datasets[0].files[1].format"),
        (("totals", "docs"), 0, "totals.docs"),
        (("phases", 1, "start"), 0, "phases[1].start"),
        (("phases", 0, "start"), 1, "phases[0].start"),
        (("phases", 2, "end"), 2059, "phases[2].weights"),
        (("phases", 0, "end"), 0, "phases[0].end"),
        (("phases", 0, "lr_stage"), "cosine", "phases[0].lr_stage"),
        (("phases", 0, "weights", 0, "weight"), 0.9, "phases[0].weights[0].weight"),
        (("phases", 0, "weights", 0, "weight"), math.nan, "phases[0].weights[0].weight"),
        (("phases", 0, "weights", 0, "tokens"), 1, "phases[0].weights[0].weight"),
        (("phases", 1, "weights", 0, "epochs"), 0.5, "phases[1].weights[0].epochs"),
        (("phases", 0, "weights", 0, "dataset"), "validation", "phases[0].weights[0].dataset"),
        (("phases", 0, "weights", 0, "dataset"), "train-b2", "phases[0].weights[0].dataset"),
        (("phases", 0, "weights", 0, "dataset"), "train-b1", "phases[0].weights"),
        (("phases", 0, "weights"), [], "phases[0].weights"),
        (("limits", "epochs"), 0.5, "phases"),
        (("limits", "remainder"), "pad", "limits.remainder"),
        (("control",), "/control.json", "control"),
        (
            ("exclusions",),
            [{"dataset": "x", "file": "f", "first_row": 0, "rows": 1, "reason": "r"}],
            "exclusions[0].dataset",
        ),
        (("exclusions",), [{"dataset": "train-b0"}], "exclusions[0].file"),
    ],
)
def test_broken_promises(path, value, field):
    """A document that breaks a promise is refused with the field that breaks it."""
    with pytest.raises(ValueError, match=rf"^{re.escape(field)}"):
        manifest.check(changed(path, value))


def test_damage(tmp_path):
    """A file that was cut off, is not a manifest, or whose content is not that of its id is refused."""
    document = manifest.build(fields())
    path = tmp_path / "manifest.json"
    path.write_bytes(manifest.to_bytes(document))
    assert manifest.read(path) == document
    for data, message in [
        (manifest.to_bytes(document)[:-20], "damaged or cut off"),
        (b"[]\n", "schema"),
        (b"\xff\xfe", "damaged or cut off"),
        (manifest.to_bytes(document | {"name": "other"}), "^id: got .* the file was changed"),
    ]:
        with pytest.raises(ValueError, match=message):
            manifest.load(data)


def test_later_formats():
    """Fields that are not known are kept and ignored, a minor revision is read, another major is not."""
    document = manifest.build(fields())
    later = document | {"schema": "corpusmill.manifest/1.3", "shuffle": {"kind": "new"}}
    later["id"] = manifest.manifest_id(later)
    assert manifest.load(manifest.to_bytes(later)) == later
    with pytest.raises(ValueError, match=r"schema: got 'corpusmill\.manifest/10'"):
        manifest.load(manifest.to_bytes(document | {"schema": "corpusmill.manifest/10"}))


def record(split="train", kind="plain", bucket=None, **group):
    return {"split": split, "kind": kind, "bucket": bucket, "group": group}


@pytest.mark.parametrize(
    ("given_record", "expected"),
    [
        (record(), "train"),
        (record("validation", language="de"), "validation-de"),
        (record(kind="bucket", bucket=3, source="My Forum!", language="zh_CN"), "train-b3-zh_cn-my-forum"),
        (record(kind="unscorable", language=None), "train-unscorable-none"),
        (record(source="Größe/Café"), "train-grosse-cafe"),
        (record(source="维基"), "train-x"),
        (record(source="a" * 100, year=2024), "train-" + "a" * 40 + "-2024"),
    ],
)
def test_dataset_id(given_record, expected):
    """An id is the split, the bucket or unscorable, and the group's values by column name as plain letters."""
    assert manifest.dataset_ids([given_record]) == [expected]


def test_colliding_ids():
    """Groups that come to one id are told apart by their content, the same in any order and beside any others."""
    records = [
        record(source="a b"),
        record(source="a-b"),
        record(source=None),
        record(source="none"),
        record(source="c"),
    ]
    ids = manifest.dataset_ids(records)
    assert len(set(ids)) == 5
    assert all(re.fullmatch(r"train-a-b-[0-9a-f]{6}", name) for name in ids[:2])
    assert all(re.fullmatch(r"train-none-[0-9a-f]{6}", name) for name in ids[2:4])
    assert ids[4] == "train-c"
    assert manifest.dataset_ids(records[::-1]) == ids[::-1]


@given(st.lists(st.text(max_size=60), min_size=1, max_size=12, unique=True))
def test_ids_are_valid_and_distinct(sources):
    """Whatever sources are called, every dataset id matches the pattern and no two are equal."""
    ids = manifest.dataset_ids([record(source=source) for source in sources])
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[a-z][a-z0-9_-]*", name) for name in ids)


def test_edges_table():
    """The edges file has a row a bucket and group, from -inf to +inf; a group without scores has none."""
    groups = [
        {"group": {"language": "en", "level": 1}, "edges": [1.5, 2.0], "docs": [4, 0, 6], "tokens": [40, 0, 60]},
        {"group": {"language": None, "level": 2}, "edges": [], "docs": [0, 0, 0], "tokens": [0, 0, 0]},
        {"group": {"language": None, "level": 3}, "edges": [1.0, 1.0], "docs": [0, 0, 1], "tokens": [0, 0, 5]},
    ]
    table = manifest.edges_table(["language", "level"], groups)
    assert table.column_names == ["language", "level", "bucket", "lower", "upper", "docs", "tokens"]
    assert table.schema.field("bucket").type == pa.int16()
    assert table["language"].to_pylist() == ["en"] * 3 + [None] * 3
    assert table["lower"].to_pylist() == [-math.inf, 1.5, 2.0, -math.inf, 1.0, 1.0]
    assert table["upper"].to_pylist() == [1.5, 2.0, math.inf, 1.0, 1.0, math.inf]
    assert table["docs"].to_pylist() == [4, 0, 6, 0, 0, 1]
    nothing = manifest.edges_table(
        ["language"], [{"group": {"language": None}, "edges": [], "docs": [0], "tokens": [0]}]
    )
    assert nothing.num_rows == 0


def test_imports_nothing_of_the_rest():
    """A training image can load the manifest without the engine and without xxhash until an id is asked for."""
    code = "import sys, pipeline.handoff.manifest, pipeline.handoff.phases; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    ours = {name for name in loaded if name.startswith(("pipeline", "stages"))}
    assert ours == {"pipeline", "pipeline.handoff", "pipeline.handoff.manifest", "pipeline.handoff.phases"}
    assert not {"xxhash", "pydantic", "fsspec", "ray"} & set(loaded)


def test_json_types_survive():
    """64-bit counts stay integers through the file."""
    document = fields()
    big = dataset("train", "plain", None, 0) | {"docs": 2**33, "tokens": 2**60, "bytes": 2**62}
    document |= {"datasets": [big], "phases": phases([big], None, None, LIMITS).phases}
    found = manifest.load(manifest.to_bytes(manifest.build(document)))
    assert found["totals"] == {"docs": 2**33, "tokens": 2**60, "bytes": 2**62}
    assert found["phases"][0]["weights"][0]["tokens"] == 2**60
    assert json.loads(manifest.to_bytes(found))["phases"][0]["end"] == 2**60
