"""What was published or measured comes out in other forms, complete, and says what it was made of."""

from __future__ import annotations

import datetime as dt
import gzip
import json
import struct

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import run
from pipeline.commands import export as exporting
from pipeline.commands.export import export
from pipeline.commands.target import published
from pipeline.commands.tiering import verify
from pipeline.errors import ConfigError
from pipeline.handoff import manifest
from tests.pipeline.small_runs import YAML, configured, corpus

BUCKETS = YAML.replace("publish:", '  - {{stage: "stages.curriculum:STAGE", by: words.words, buckets: 2}}\npublish:')


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    root = tmp_path_factory.mktemp("run")
    corpus(root)
    config = configured(root, BUCKETS)
    report = run.run(config)
    return config, report


def test_text(finished, tmp_path):
    """Every dataset is there as JSON lines, row for row as in its Parquet files, under a manifest that verifies."""
    config, report = finished
    found = export(config, "text", str(tmp_path / "out"))
    folder, document = published(config)
    copy = manifest.read(tmp_path / "out" / "manifest.json")
    assert (copy["exported_from"], copy["totals"]) == (document["id"], document["totals"])
    assert (found["rows"], found["manifest"]) == (report["totals"]["kept"]["docs"], str(tmp_path / "out/manifest.json"))
    for old, new in zip(document["datasets"], copy["datasets"], strict=True):
        assert old["id"] == new["id"]
        for before, after in zip(old["files"], new["files"], strict=True):
            rows = pq.read_table(f"{folder.url}/{before['path']}").to_pylist()
            text = gzip.decompress((tmp_path / "out" / after["path"]).read_bytes()).decode()
            assert [json.loads(line) for line in text.splitlines()] == rows
            assert after["path"].startswith(f"data/{old['id']}/part-")
    checked = verify(found["manifest"])
    assert (checked["problems"], checked["leftovers"], checked["checked"]) == ([], [], found["files"])
    assert manifest.read(tmp_path / "out" / "control.json")["datasets"] == copy["datasets"]


def test_equal_bytes(finished, tmp_path):
    """Two exports are the same bytes, and every file's comment is the id of what it was made of."""
    config, _ = finished
    for name in ("one", "two"):
        export(config, "text", str(tmp_path / name))
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*.gz"))
    assert files
    for file in files:
        data = (tmp_path / "one" / file).read_bytes()
        assert data == (tmp_path / "two" / file).read_bytes()
        assert data[10 : data.index(b"\0", 10)].decode() == published(config)[1]["id"]


def test_a_lost_line_is_found(finished, tmp_path):
    """An exported file that is changed afterwards does not verify."""
    config, _ = finished
    export(config, "text", str(tmp_path / "out"))
    file = min((tmp_path / "out").rglob("*.jsonl.gz"))
    lines = gzip.decompress(file.read_bytes()).splitlines(keepends=True)
    file.write_bytes(gzip.compress(b"".join(lines[1:])))
    problems = verify(str(tmp_path / "out" / "manifest.json"))["problems"]
    assert [problem["file"] for problem in problems] == [str(file)]


def test_values(tmp_path):
    """Times, binary values and fractions that JSON cannot say come out in one documented form."""
    corpus(tmp_path, shards=1)
    table = pq.read_table(tmp_path / "in" / "0.parquet")
    more = {
        "when": pa.array([dt.datetime(2024, 5, 6, 7, 8, tzinfo=dt.UTC)] * len(table)),
        "raw": pa.array([b"\xff"] * len(table)),
        "share": pa.array([float("nan")] * len(table)), "meta": pa.array([{"x": [float("inf"), 1.5]}] * len(table)),
    }  # fmt: skip
    for name, column in more.items():
        table = table.append_column(name, column)
    pq.write_table(table, tmp_path / "in" / "0.parquet")
    config = configured(tmp_path)
    run.run(config)
    export(config, "text", str(tmp_path / "out"))
    line = gzip.decompress(min((tmp_path / "out").rglob("*.gz")).read_bytes()).splitlines()[0]
    row = json.loads(line)
    assert (row["when"], row["raw"], row["share"]) == ("2024-05-06T07:08:00+00:00", "/w==", None)
    assert row["meta"] == {"x": [None, 1.5]}


def test_frame(finished, tmp_path):
    """The frame has every document of the input once, with its fate and what was measured, and no text."""
    config, report = finished
    found = export(config, "frame", str(tmp_path / "out"))
    table = pq.read_table(tmp_path / "out" / "frame-00000.parquet")
    rows = table.to_pylist()
    assert (found["files"], found["rows"], len(rows)) == (1, len(rows), report["totals"]["in"]["docs"])
    assert [(row["shard"], row["row"]) for row in rows] == sorted((row["shard"], row["row"]) for row in rows)
    for fate in ("kept", "removed", "quarantined"):
        assert sum(row["fate"] == fate for row in rows) == report["totals"][fate]["docs"] > 0
    by_id = {row["id"]: row for row in rows}
    kept, few, copy = by_id["1-4"], by_id["1-20"], by_id["2-24"]
    assert (kept["words.words"], kept["words.state"], kept["stage"], kept["source"]) == (5, "scored", None, "s0")
    assert kept["dataset"] == f"train-b{kept['curriculum.bucket']}-s0"
    assert (few["fate"], few["stage"], few["reason"], few["words.words"]) == ("removed", "words", "few", 2)
    assert (few["copies.state"], few["curriculum.bucket"], few["dataset"]) == ("gone", None, None)
    assert (copy["stage"], copy["reason"]) == ("copies", "exact_duplicate")
    assert "text" not in table.column_names
    assert table.schema.metadata[b"manifest_id"].decode() == published(config)[1]["id"]


def test_carried_measures_are_not_shown(tmp_path):
    """A measure that a document has from an earlier config, in which it got that far, is null in the frame."""
    corpus(tmp_path)
    reordered = YAML.replace("COPIES", "X").replace("WORDS", "COPIES").replace("X", "WORDS").replace(", limit: 3", "")
    run.run(configured(tmp_path))
    later = configured(tmp_path, reordered)
    run.run(later)
    export(later, "frame", str(tmp_path / "out"))
    rows = pq.read_table(tmp_path / "out" / "frame-00000.parquet").to_pylist()
    copy = next(row for row in rows if row["id"] == "2-24")
    assert (copy["stage"], copy["words.state"], copy["words.words"]) == ("copies", "gone", None)


def test_frame_in_files(finished, tmp_path, monkeypatch):
    """A large frame is cut into files between slices, and reads as one table."""
    config, _ = finished
    export(config, "frame", str(tmp_path / "one"))
    monkeypatch.setattr(exporting, "FRAME_BYTES", 1)
    found = export(config, "frame", str(tmp_path / "many"))
    assert found["files"] == 3
    one, many = (pq.read_table(tmp_path / name) for name in ("one", "many"))
    assert one.equals(many)


def test_refused(finished, tmp_path):
    """Unknown formats, folders in use and runs that are not finished are errors, and leave nothing."""
    config, _ = finished
    with pytest.raises(ConfigError, match=r"'txt', but there is no such format; did you mean 'text'\?"):
        export(config, "txt", str(tmp_path / "out"))
    with pytest.raises(ConfigError, match="'megatron', but this is not built yet"):
        export(config, "megatron", str(tmp_path / "out"))
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "x").touch()
    for kind in exporting.FORMATS:
        with pytest.raises(ConfigError, match=r"--out: .*not empty \(it holds x\)"):
            export(config, kind, str(tmp_path / "used"))
    later = configured(tmp_path.parent / "nowhere", overrides=[f"input.paths=['{config.input.paths[0].url}']"])
    with pytest.raises(ConfigError, match="nothing is published under this config"):
        export(later, "text", str(tmp_path / "out"))
    with pytest.raises(ConfigError, match="has not been through ingest, words"):
        export(later, "frame", str(tmp_path / "out"))
    assert not list((tmp_path / "out").rglob("*.parquet"))


def test_a_writer_that_fails_leaves_nothing(finished, tmp_path, monkeypatch):
    """When an export breaks off, no file of it stays."""
    config, _ = finished
    lines, calls = exporting._lines, []

    def breaking(store, path):
        calls.append(path)
        yield from lines(store, path)
        if len(calls) == 3:
            raise OSError("no more")

    monkeypatch.setattr(exporting, "_lines", breaking)
    with pytest.raises(OSError, match="no more"):
        export(config, "text", str(tmp_path / "out"))
    assert [path for path in (tmp_path / "out").rglob("*") if path.is_file()] == []


def test_gzip_length(tmp_path):
    """The member ends in the checksum and length that readers check."""
    with (tmp_path / "a.gz").open("wb") as handle:
        exporting.gzipped(handle, [b"ab", b"", b"c" * 100_000], "id")
    data = (tmp_path / "a.gz").read_bytes()
    assert gzip.decompress(data) == b"ab" + b"c" * 100_000
    assert struct.unpack("<I", data[-4:]) == (100_002,)
