"""Rows on which a stage raises are found and set apart; what is not a row's fault ends the task."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ConfigError, ContractError
from pipeline.steps import guarded

DOUBLED = pa.schema([("n", pa.int64())])


def doubling(bad=(), error=ValueError):
    """A transform that raises on a batch with one of the rows `bad`; and the sizes of the batches it was given."""
    sizes = []

    def transform(batch):
        values = batch["n"].to_pylist()
        sizes.append(len(values))
        if set(bad) & set(values):
            raise error(f"not {min(set(bad) & set(values))}")
        return pa.record_batch([pa.array([2 * value for value in values], pa.int64())], schema=DOUBLED)

    return transform, sizes


@given(rows=st.integers(0, 60), bad=st.sets(st.integers(0, 59), max_size=8))
def test_rows_at_fault_are_found_and_no_other(rows, bad):
    """Each row is either done or told with its error, and n rows at fault cost about n log(rows) more calls."""
    bad = {row for row in bad if row < rows}
    transform, sizes = doubling(bad)
    good, told = guarded(transform, pa.record_batch({"n": pa.array(range(rows), pa.int64())}), DOUBLED)
    done = [(int(row), value) for rows_, out in good for row, value in zip(rows_, out["n"].to_pylist(), strict=True)]
    assert sorted(done) == [(row, 2 * row) for row in range(rows) if row not in bad]
    assert sorted(told) == [(row, f"ValueError: not {row}") for row in sorted(bad)]
    assert len(sizes) <= 1 + 2 * len(bad) * max(1, (rows - 1).bit_length())


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt, SystemExit, ContractError, ConfigError])
def test_what_is_no_rows_fault_is_raised(error):
    """Memory, requests to stop and errors of ours are not blamed on a row."""
    transform, sizes = doubling([3], error)
    with pytest.raises(error):
        guarded(transform, pa.record_batch({"n": pa.array(range(10))}), None)
    assert sizes == [10]


@pytest.mark.parametrize("wrong", [
    lambda batch: batch.slice(1), lambda batch: pa.record_batch({"n": pa.array([1.0] * batch.num_rows)}),
    lambda batch: pa.record_batch({"m": batch["n"]}),
])  # fmt: skip
def test_a_stage_that_breaks_its_word_is_told(wrong):
    """Another number of rows, type or name than promised is a broken contract that says both."""
    with pytest.raises(ContractError, match=r"it promised n: int64"):
        guarded(wrong, pa.record_batch({"n": pa.array([1, 2, 3])}), DOUBLED)
