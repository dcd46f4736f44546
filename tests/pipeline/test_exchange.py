"""The exchange: every record once, whoever wrote it in how many batches and into however many partitions it is read."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline import exchange
from pipeline.storage import Store
from pipeline.types import SLICE_BITS

EDGES = st.sampled_from([0, 1, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1])
KEYS = st.lists(st.one_of(EDGES, st.integers(0, 2**64 - 1)), max_size=60)


def batches(keys, cut=7, seed=0):
    """Records of unique rows in shuffled batches of at most `cut`."""
    rows = list(range(len(keys)))
    random.Random(seed).shuffle(rows)
    return [
        pa.record_batch({
            "key": pa.array([keys[row] for row in rows[at : at + cut]], pa.uint64()),
            "row": pa.array(rows[at : at + cut], pa.uint32()), "text": [f"t{row}" for row in rows[at : at + cut]],
        })
        for at in range(0, len(rows), cut)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return Store(str(tmp_path_factory.mktemp("exchange")))


@given(keys=KEYS, parts=st.sampled_from([1, 2, 8, 64, 256]))
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_partitions_hold_every_record_once(store, keys, parts):
    """Partitions of any number hold each record of two files once, equal keys in the same one."""
    first, second = keys[: len(keys) // 2], keys[len(keys) // 2 :]
    for name, own in (("a", first), ("b", second)):
        output, _ = exchange.write(store, name, batches(own), exchange.KEY_SPACE)
        assert output.rows == len(own)
    found, seen = [], set()
    for part in range(parts):
        low, high = exchange.bounds(part, parts, exchange.KEY_SPACE)
        table = exchange.gather(store, [("a", 0), ("b", 1)], low, high)
        own = table["key"].to_pylist() if table is not None else []
        assert not seen & set(own)
        assert all(low <= key < high for key in own)
        seen |= set(own)
        found += (
            [] if table is None else list(zip(own, table["row"].to_pylist(), table["text"].to_pylist(), strict=True))
        )
    wanted = [(key, row, f"t{row}") for row, key in enumerate(first)]
    wanted += [(key, 1 << SLICE_BITS | row, f"t{row}") for row, key in enumerate(second)]
    assert sorted(found) == sorted(wanted)


@given(keys=KEYS, cut=st.integers(1, 20), seed=st.integers(0, 9))
@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_batches_of_a_writer_leave_no_trace(store, keys, cut, seed):
    """Records that come in other batches and another order make the same file."""
    whole, _ = exchange.write(store, "whole", batches(keys, max(1, len(keys))), exchange.KEY_SPACE)
    cut_up, _ = exchange.write(store, "cut", batches(keys, cut, seed), exchange.KEY_SPACE)
    assert (cut_up.xxh128, cut_up.bytes) == (whole.xxh128, whole.bytes)


def test_records_to_rows_reach_their_slice(store):
    """Records addressed to rows are found slice by slice in a space of as many slices as there are."""
    addresses = [ordinal << SLICE_BITS | row for ordinal in range(5) for row in (0, 3, 2**32 - 1)]
    records = [pa.record_batch({"key": pa.array(addresses[::-1], pa.uint64())})]
    exchange.write(store, "rows", records, exchange.row_space(5))
    for ordinal in range(5):
        table = exchange.read(store, "rows", ordinal << SLICE_BITS, (ordinal + 1) << SLICE_BITS)
        assert table["key"].to_pylist() == addresses[3 * ordinal : 3 * ordinal + 3]


def test_no_records_are_a_file_without_any(store):
    """A cell that made nothing leaves a file that says so, and reading it finds nothing."""
    output, raw = exchange.write(store, "nothing", [], exchange.KEY_SPACE)
    assert (output.rows, raw) == (0, 0)
    assert exchange.read(store, "nothing", 0, exchange.KEY_SPACE) is None
    assert exchange.gather(store, [("nothing", 3)], 0, exchange.KEY_SPACE) is None


@pytest.mark.parametrize("parts", [1, 2, 3, 64, 4096])
def test_ranges_are_the_whole_space(parts):
    """Ranges follow each other without a gap, from nothing to the end of the space."""
    ranges = [exchange.bounds(part, parts, exchange.KEY_SPACE) for part in range(parts)]
    assert ranges[0][0] == 0
    assert ranges[-1][1] == exchange.KEY_SPACE
    assert [high for _, high in ranges[:-1]] == [low for low, _ in ranges[1:]]


def test_counts_come_back_as_they_were(store):
    """A count table is read as it was written, keys with nulls and an empty table among them."""
    table = pa.table({"group": ["a", None], "docs": pa.array(np.array([2**40, 0]))})
    for name, own in (("counts", table), ("none", table.slice(0, 0))):
        assert exchange.write_counts(store, name, own).rows == own.num_rows
        assert exchange.read_counts(store, name).equals(own)
