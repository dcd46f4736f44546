"""Reading: the rows of a slice in order, in batches of bounded size, in the corpus's types."""

from __future__ import annotations

import os
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import reading
from pipeline.config import loads
from pipeline.corpus import open_corpus
from pipeline.errors import ContractError


def opened(root, slice_bytes=10**9):
    tiers = ", ".join(f"{tier}: {{url: '{root}/{tier}'}}" for tier in ("work", "hot", "cold"))
    paths = f"input: {{paths: ['{root}/*.parquet'], slice_bytes: {slice_bytes}}}"
    return open_corpus(loads(f"name: t\n{paths}\ntiers: {{{tiers}}}\nstages: []\n", ()))


def texts(rows, seed=1):
    """A few nulls, empty ones, and lengths over four orders of magnitude."""
    draw = random.Random(seed)
    return [None if draw.random() < 0.1 else "x" * int(10 ** (4 * draw.random()) - 1) for _ in range(rows)]


@pytest.mark.parametrize("limit", [1, 5_000, 4_000_000])
@pytest.mark.parametrize("slice_bytes", [1, 20_000, 10**9])
def test_batches_hold_every_row_in_order(tmp_path, monkeypatch, limit, slice_bytes):
    """Slices and batches of any size give all rows once, in order, a batch no larger than the limit but for one row."""
    monkeypatch.setattr(reading, "BATCH_BYTES", limit)
    column = texts(300)
    table = pa.table({"text": column, "n": range(300)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=37, use_dictionary=False)
    corpus, found, numbers = opened(tmp_path, slice_bytes), [], []
    for part in corpus.slices:
        at = 0
        for batch in reading.read_rows(part, corpus.schema, ["text", "n"], text="text"):
            assert batch.first == at
            at += batch.rows
            found += batch.columns["text"].to_pylist()
            numbers += batch.columns["n"].to_pylist()
            own = found[-batch.rows :]
            assert batch.rows == 1 or sum(len(text or "") for text in own) <= limit
        assert at == part.rows
    assert found == column
    assert numbers == list(range(300))


def test_groups_without_a_wanted_row_are_passed_over(tmp_path):
    """A row group is read if one of its rows is wanted; the others are counted, not read."""
    pq.write_table(pa.table({"text": [f"t{row}" for row in range(100)]}), tmp_path / "a.parquet", row_group_size=10)
    corpus = opened(tmp_path)
    wanted = np.zeros(100, bool)
    wanted[[15, 99]] = True
    found = [
        (b.first, b.rows, b.columns is not None)
        for b in reading.read_rows(corpus.slices[0], corpus.schema, ["text"], wanted)
    ]
    assert found == [(at, 10, at in (10, 90)) for at in range(0, 100, 10)]


def test_a_dictionary_does_not_hide_large_rows(tmp_path, monkeypatch):
    """One entry that is every row decodes to far more than the footer says, and still comes in bounded batches."""
    monkeypatch.setattr(reading, "BATCH_BYTES", 100_000)
    pq.write_table(pa.table({"text": ["y" * 10_000] * 500}), tmp_path / "a.parquet")
    corpus = opened(tmp_path)
    assert corpus.bytes < 100_000
    batches = list(reading.read_rows(corpus.slices[0], corpus.schema, ["text"], text="text"))
    assert sum(batch.rows for batch in batches) == 500
    assert max(batch.columns["text"].nbytes for batch in batches) <= 110_000


def test_columns_come_in_the_types_of_the_corpus(tmp_path):
    """Absent columns are null, integers widen, structs are told by their fields, whatever the shard has."""
    pq.write_table(pa.table({"text": ["a", "b"], "n": pa.array([1, None], pa.int8()),
                             "meta": [{"x": 1}, None]}), tmp_path / "a.parquet")  # fmt: skip
    pq.write_table(pa.table({"text": pa.array(["c"], pa.dictionary(pa.int8(), pa.string())), "n": [0.5],
                             "meta": [{"y": "z", "x": None}], "url": ["u"]}), tmp_path / "b.parquet")  # fmt: skip
    corpus = opened(tmp_path)
    rows = []
    for part in corpus.slices:
        for batch in reading.read_rows(part, corpus.schema, corpus.schema.names):
            rows += pa.table(dict(batch.columns), schema=corpus.schema).to_pylist()
    assert rows == [
        {"meta": {"x": 1, "y": None}, "n": 1.0, "text": "a", "url": None},
        {"meta": None, "n": None, "text": "b", "url": None},
        {"meta": {"x": None, "y": "z"}, "n": 0.5, "text": "c", "url": "u"},
    ]


def test_a_file_that_changed_since_it_was_listed_is_refused(tmp_path):
    """Another time or size than listed is a broken promise that names the file and says how to go on."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a"]}), path)
    corpus = opened(tmp_path)
    os.utime(path, ns=(1, 1))
    with pytest.raises(ContractError, match=r"a\.parquet: changed while the run was reading it.*run again"):
        list(reading.read_rows(corpus.slices[0], corpus.schema, ["text"]))


def test_damage_ends_a_group_and_no_other(tmp_path):
    """Rows of a group from the first one that cannot be decoded on come as one batch with the error."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [f"{row:05d}" * 50 for row in range(90)]}), path, 30, use_dictionary=False)
    corpus = opened(tmp_path)
    chunk = pq.read_metadata(path).row_group(1).column(0)
    data = bytearray(path.read_bytes())
    data[chunk.data_page_offset : chunk.data_page_offset + chunk.total_compressed_size] = (
        b"\xff" * chunk.total_compressed_size
    )
    stamp = path.stat().st_mtime_ns
    path.write_bytes(data)
    os.utime(path, ns=(stamp, stamp))
    batches = list(reading.read_rows(corpus.slices[0], corpus.schema, ["text"]))
    assert [(b.first, b.rows, bool(b.error)) for b in batches] == [(0, 30, False), (30, 30, True), (60, 30, False)]
    assert batches[1].columns is None
