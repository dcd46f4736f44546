"""Publication: versions that never change, nothing written twice, nothing left of drivers that were killed."""

from __future__ import annotations

import json
import os

import pytest

from pipeline import publish
from pipeline import run as runs
from pipeline.storage import Store
from pipeline.types import Slice
from tests.pipeline import small_runs


@pytest.fixture
def root(tmp_path):
    small_runs.corpus(tmp_path)
    return tmp_path


def run(root, *overrides):
    return runs.run(small_runs.configured(root, overrides=overrides))


def versions(root):
    return {
        path.parent.name: json.loads(path.read_text()) for path in (root / "hot" / "small").glob("v*/manifest.json")
    }


def state(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_a_change_is_a_new_version_and_its_undoing_another(root):
    """Each corpus is published once under its id; versions count up, name their parent, and are never touched again."""
    run(root)
    before = state(root / "hot" / "small" / "v1")
    for change in ((), ("words.limit=5",), ()):
        run(root, *change)
    found = versions(root)
    assert [found[f"v{n}"]["version"] for n in (1, 2, 3)] == [1, 2, 3]
    assert [found[f"v{n}"]["parent"] for n in (1, 2, 3)] == [None, found["v1"]["id"], found["v2"]["id"]]
    assert found["v3"]["id"] == found["v1"]["id"] != found["v2"]["id"]
    assert state(root / "hot" / "small" / "v1") == before
    assert publish.newest(Store(str(root / "hot" / "small"))) == 3


def test_what_a_killed_driver_left_of_a_version_is_not_part_of_it(root):
    """Files of a version whose manifest was never written, and unfinished files, are gone after the next run."""
    run(root)
    places = (
        "hot/small/v1",
        "hot/small/data",
        "cold/small",
        f"work/small/results/{results(root).name}/removed",
        "work",
    )
    unfinished = [root / place / ".0123456789abcdef.tmp" for place in places]
    for path in unfinished:
        path.write_bytes(b"half")
    left = root / "hot" / "small" / "v2"
    left.mkdir()
    for name in ("placement-1.json", "control.json"):
        (left / name).write_text('{"manifest_id": "of other settings"}')
    run(root, "words.limit=5")
    assert sorted(path.name for path in left.iterdir()) == ["manifest.json", "placement-1.json"]
    assert json.loads((left / "placement-1.json").read_text())["manifest_id"] == versions(root)["v2"]["id"]
    assert [path.exists() for path in unfinished] == [False, False, False, False, True]


def results(root):
    """The folder of the first config's results."""
    return min((root / "work" / "small" / "results").iterdir(), key=lambda path: path.stat().st_ctime_ns)


def test_a_table_is_told_by_its_content(root):
    """A table with another content of the same size, and a part too many, are not taken for what was recorded."""
    run(root)
    [table] = (results(root) / "removed").iterdir()
    good = table.read_bytes()
    table.write_bytes(good[:50] + bytes([good[50] ^ 255]) + good[51:])
    (table.parent / "part-00001.parquet").write_bytes(good)
    run(root)
    assert table.read_bytes() == good
    assert list(table.parent.iterdir()) == [table]


@pytest.mark.parametrize("harm", [os.remove, lambda path: os.truncate(path, 10)])
def test_a_published_file_that_is_gone_is_made_again(root, harm):
    """A part or archive that is missing or cut short is written again as it was, and the version stays."""
    run(root)
    files = [next((root / place).rglob("part-00000.parquet")) for place in ("hot", "cold")]
    before = [path.read_bytes() for path in files]
    for path in files:
        harm(path)
    run(root)
    assert [path.read_bytes() for path in files] == before
    assert list(versions(root)) == ["v1"]


def test_the_corpus_is_its_content():
    """The id of a corpus follows shards, rows and contents, not times, sizes or the order they are told in."""

    def part(shard, stamp="1", rows=5):
        return Slice(
            shard_id=shard, url=stamp, size=len(stamp), stamp=stamp, first_row=0, rows=rows, first_group=0, groups=1,
            bytes=1, input_id=stamp,
        )  # fmt: skip

    first = publish.corpus_id([part("a"), part("b")], ["x", "y"])
    assert publish.corpus_id([part("b", "22"), part("a", "33")], ["y", "x"]) == first
    others = [([part("a"), part("b")], ["y", "x"]), ([part("a"), part("c")], ["x", "y"]), ([part("a")], ["x"]),
              ([part("a"), part("b", rows=6)], ["x", "y"])]  # fmt: skip
    assert len({first, *(publish.corpus_id(*other) for other in others)}) == 5
