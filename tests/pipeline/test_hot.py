"""Hot parts: seeded order, and row groups that depend on rows alone, however few of them fit at a time."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import hot
from pipeline import run as runs
from tests.pipeline import small_runs


def test_the_order_is_of_content_and_seed():
    """The published order mixes seed and content hash: the same for the same, whatever array the hash lies in."""
    hashes = pa.array([bytes([i] * 16) for i in range(50)], pa.binary(16))
    order = hot.seeded(hashes, 1)
    assert hot.seeded(hashes.slice(7, 9), 1).tolist() == order[7:16].tolist()
    assert not set(order.tolist()) & set(hot.seeded(hashes, 2).tolist())
    spread = np.bincount((hot.seeded(random_hashes(20_000), 3) >> np.uint64(61)).astype(int), minlength=8)
    assert spread.min() > 2300


def random_hashes(count):
    data = np.random.default_rng(4).bytes(16 * count)
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), count, [None, pa.py_buffer(data)])


def test_memory_decides_how_often_is_read_and_nothing_else(tmp_path, monkeypatch):
    """Parts written row group by row group, each with a reading of its own, are those that were written at once."""
    monkeypatch.setattr(hot, "GROUP_BYTES", 800)
    small_runs.corpus(tmp_path, shards=3, ordinary=60)
    found = []
    for memory in ("1GB", "10kB", "1B"):
        root = tmp_path / memory
        tiers = [f"tiers.{tier}.url='{root}/{tier}'" for tier in ("work", "hot", "cold")]
        runs.run(
            small_runs.configured(tmp_path, overrides=["publish.part_bytes=9kB", f"run.worker_memory={memory}", *tiers])
        )
        files = sorted(path for path in root.rglob("*.parquet") if path.parts[len(root.parts)] in ("hot", "cold"))
        found.append({path.relative_to(root): path.read_bytes() for path in files})
    assert found[1:] == [found[0], found[0]]
    data = (tmp_path / "1B").glob("hot/*/data/*/*.parquet")
    assert max(pq.read_metadata(path).num_row_groups for path in data) > 4


@pytest.mark.parametrize("cut", [1, 7, 300])
def test_rows_are_gathered_from_pieces(cut):
    """Any rows in any order come out of pieces of any size."""
    table = pa.table({"text": pa.array([str(i) * (i % 40) for i in range(300)], pa.large_string()), "n": range(300)})
    pieces = [table.slice(at, cut) for at in range(0, 300, cut)]
    begins = np.cumsum([0, *(piece.num_rows for piece in pieces)])
    for places in ([5], [299, 0], np.random.default_rng(1).permutation(300)[:200]):
        assert hot._gathered(pieces, begins, np.array(places)).to_pylist() == table.take(pa.array(places)).to_pylist()


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([5], [1]),
        ([50], [1]),
        ([4, 4, 4, 4], [2, 2]),
        ([1, 99, 1, 1], [1, 1, 2]),
        ([9, 1, 0, 0, 3], [4, 1]),
    ],
)
def test_row_groups_are_full_and_a_large_row_has_its_own(sizes, expected, monkeypatch):
    """A row group takes rows up to its limit; a row beyond the limit shares it with nobody."""
    monkeypatch.setattr(hot, "GROUP_BYTES", 10)
    assert [stop - start for start, stop in hot._groups(np.array(sizes, np.int64))] == expected
    monkeypatch.setattr(hot, "GROUP_ROWS", 1)
    assert [stop - start for start, stop in hot._groups(np.array(sizes, np.int64))] == [1] * len(sizes)
