"""Sidecars: what a row's state means, and that a sidecar is read only as the one it is."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from pipeline import columns
from pipeline.errors import ContractError
from pipeline.storage import Store
from pipeline.types import FAILED, GONE, SCORED, STATES, UNSCORABLE

NAMES = {"shard": "a.parquet", "first_row": "40", "key": "k" * 32}


def sidecar(codes, reasons):
    return {"state": columns.states(np.array(codes, np.int8)), "reason": pa.array(reasons, pa.large_string())}


@pytest.mark.parametrize(("code", "reason", "expected"), [
    (SCORED, None, True), (UNSCORABLE, None, True), (GONE, None, False), (FAILED, None, False),
    (SCORED, "short", False), (UNSCORABLE, "unscorable", False), (GONE, "short", False), (FAILED, "stage_error", False),
])  # fmt: skip
def test_a_row_is_alive_if_it_was_reached_and_passed(code, reason, expected):
    """Scored or unscorable without a reason is alive; dead before, failed or removed is not."""
    assert columns.alive(pa.table(sidecar([code], [reason]))).tolist() == [expected]


def test_states_are_told_by_name():
    """Codes come back right from a dictionary in any order, with values missing, and from several chunks."""
    codes = np.array([FAILED, SCORED, GONE, GONE, UNSCORABLE], np.int8)
    names = [STATES[code] for code in codes]
    turned = pa.array(names).dictionary_encode()
    assert turned.dictionary.to_pylist() != list(STATES)
    assert columns.state_codes(turned).tolist() == codes.tolist()
    chunked = pa.chunked_array([turned.slice(0, 2), pa.array(names[2:]).dictionary_encode()])
    assert columns.state_codes(chunked.unify_dictionaries()).tolist() == codes.tolist()
    assert columns.state_codes(columns.states(np.array([], np.int8))).tolist() == []


def test_spread_undoes_a_selection():
    """Values of chosen rows go back to their rows, nulls elsewhere, in one array even of chunks."""
    chosen = np.array([4, 0, 2])
    values = pa.chunked_array([["e"], ["a", "c"]])
    assert columns.spread(values, columns.place(chosen, 6)).to_pylist() == ["a", None, "c", None, "e", None]
    assert columns.spread(pa.array([], pa.int32()), columns.place(np.array([], int), 2)).to_pylist() == [None, None]


def test_the_cut_into_batches_leaves_no_trace(tmp_path):
    """A sidecar written in one batch or in many has the same rows and reads the same."""
    store, rows = Store(str(tmp_path)), 100
    codes, reasons = [i % 4 for i in range(rows)], [None if i % 3 else f"r{i % 7}" for i in range(rows)]
    written = []
    for name, cut in (("one", rows), ("many", 9)):
        pieces = [sidecar(codes[at : at + cut], reasons[at : at + cut]) for at in range(0, rows, cut)]
        assert columns.write(store, name, pieces, NAMES).rows == rows
        written.append(columns.read(store, name, rows, NAMES))
    assert written[0].to_pylist() == written[1].to_pylist()
    assert written[0]["reason"].to_pylist() == reasons
    assert columns.state_codes(written[1]["state"]).tolist() == codes


@pytest.mark.parametrize(
    ("wrong", "rows"), [({"key": "other"}, 3), ({"shard": "b.parquet"}, 3), ({"first_row": "41"}, 3), ({}, 4)]
)
def test_a_sidecar_of_something_else_is_refused(tmp_path, wrong, rows):
    """Another key, shard, first row or number of rows than recorded is a broken promise that names file and field."""
    store = Store(str(tmp_path))
    columns.write(store, "own.parquet", [sidecar([0, 0, 0], [None] * 3)], NAMES)
    with pytest.raises(ContractError, match=rf"own\.parquet: {next(iter(wrong), 'rows')} differ"):
        columns.read(store, "own.parquet", rows, NAMES | wrong)
