"""Rows are drawn from the whole corpus alike, the same ones every time, with enough of every source and shard."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.commands import sampling
from pipeline.commands.sampling import draw, hashes, write
from pipeline.config import loads
from pipeline.corpus import open_corpus
from pipeline.storage import Store


def corpus_of(root, tables, *, group=1000, slice_bytes="256MiB"):
    """The corpus of tables written as 00.parquet, 01.parquet ..."""
    (root / "in").mkdir(exist_ok=True)
    for number, table in enumerate(tables):
        pq.write_table(table, root / "in" / f"{number:02d}.parquet", row_group_size=group)
    places = ", ".join(f"{tier}: {{url: '{root}/{tier}'}}" for tier in ("work", "hot", "cold"))
    head = f"input: {{paths: ['{root}/in'], slice_bytes: {slice_bytes}}}"
    return open_corpus(loads(f"name: x\n{head}\ntiers: {{{places}}}\nstages: []\n", ()))


def texts(shard, rows):
    return pa.table({"text": [f"s{shard}r{row}" for row in range(rows)]})


def keys(corpus, drawn):
    pairs = zip(drawn.ordinal.tolist(), drawn.row.tolist(), strict=True)
    return [(corpus.slices[o].shard_id, corpus.slices[o].first_row + r) for o, r in pairs]


def test_everything(tmp_path):
    """A corpus of no more rows than are asked for is drawn whole."""
    corpus = corpus_of(tmp_path, [texts(0, 30), texts(1, 20)], group=7, slice_bytes="1B")
    drawn = draw(corpus, 0, rows=50)
    assert drawn.everything
    assert keys(corpus, drawn) == [("00.parquet", r) for r in range(30)] + [("01.parquet", r) for r in range(20)]
    assert drawn.weights.tolist() == [1.0] * 50
    assert not draw(corpus, 0, rows=49).everything


def test_the_same_rows(tmp_path):
    """The rows depend on the seed, the shards' names and nothing else: not on how shards are cut into slices."""
    tables = [texts(shard, 700) for shard in range(5)]
    one = corpus_of(tmp_path, tables)
    many = corpus_of(tmp_path, tables, group=30, slice_bytes="1B")
    assert len(many.slices) > len(one.slices)
    found = keys(one, draw(one, 3, rows=100))
    assert found == keys(many, draw(many, 3, rows=100)) == sorted(found)
    assert len(set(found)) == 100
    assert found != keys(one, draw(one, 4, rows=100))


def test_all_alike(tmp_path):
    """Every part of every shard is drawn from alike, the head no more than the tail, and a tiny shard is seen."""
    corpus = corpus_of(tmp_path, [*(texts(shard, 5000) for shard in range(20)), texts(20, 3)])
    drawn = draw(corpus, 0)
    rows = [(int(shard[:2]), row) for shard, row in keys(corpus, drawn)]
    estimated = [key for key, stratum in zip(rows, drawn.stratum, strict=True) if stratum >= 0]
    assert len(estimated) == sampling.ROWS
    by_part = np.zeros((20, 10))
    for shard, row in estimated:
        if shard < 20:
            by_part[shard, row // 500] += 1
    assert by_part.sum() >= 4990
    assert (by_part.min(), by_part.max()) >= (8, 25)
    assert by_part.max() <= 50
    assert {shard for shard, _ in rows} == set(range(21))
    assert drawn.weights.sum() == pytest.approx(corpus.rows)


def test_hashes_are_even(tmp_path):
    """The hashes of neighbouring rows and shards fill their range evenly."""
    corpus = corpus_of(tmp_path, [texts(shard, 4096) for shard in range(4)])
    found = np.concatenate([hashes(part, 0) for part in corpus.slices])
    assert len(np.unique(found)) == len(found)
    counts = np.bincount((found >> np.uint64(60)).astype(int), minlength=16)
    assert counts.min() > 900
    assert counts.max() < 1150


def sourced(shard, *parts):
    names = [name for name, rows in parts for _ in range(rows)]
    return pa.table({"text": [f"s{shard}r{row}" for row in range(len(names))], "source": pa.array(names, pa.string())})


def test_sources(tmp_path):
    """Small sources are filled up to 200 rows or all they have, the null source too, and weights say so."""
    tables = [sourced(0, ("big", 30_000), ("small", 300)), sourced(1, ("big", 9_000), ("tiny", 40), (None, 500))]
    corpus = corpus_of(tmp_path, tables)
    drawn = draw(corpus, 0)
    names = np.array(["null"] * len(drawn.row), object)
    for ordinal in range(2):
        own = drawn.ordinal == ordinal
        column = pq.read_table(tmp_path / "in" / f"{ordinal:02d}.parquet")["source"].fill_null("null").to_pylist()
        names[own] = np.array(column, object)[drawn.row[own]]
    counts = {name: int((names == name).sum()) for name in ("big", "small", "tiny", "null")}
    assert (counts["small"], counts["tiny"], counts["null"]) == (200, 40, 200)
    assert sampling.ROWS * 0.95 < counts["big"] <= sampling.ROWS
    for name, size in (("big", 39_000), ("small", 300), ("tiny", 40), ("null", 500)):
        assert drawn.weights[names == name].sum() == pytest.approx(size)
    assert len(set(keys(corpus, drawn))) == len(drawn.row)


def test_too_many_small_sources(tmp_path, monkeypatch):
    """Sources are filled up, the largest first, to a bound; what is left over stands together in one stratum."""
    parts = [(f"s{number:03d}", 30) for number in range(200)]
    corpus = corpus_of(tmp_path, [sourced(0, ("big", 9_000), *parts)])
    monkeypatch.setattr(sampling, "MOST_ROWS", 700)
    drawn = draw(corpus, 0, rows=500, per_source=20)
    assert 650 < len(drawn.row) <= 700
    assert drawn.weights.sum() == pytest.approx(corpus.rows)
    assert 3 < len(drawn.sizes) < 40
    monkeypatch.setattr(sampling, "MOST_SOURCES", 100)
    assert len(draw(corpus, 0, rows=500, per_source=20).row) == 500


def test_written(tmp_path):
    """The drawn rows are written with every column as it is, under the names of their shards."""
    tables = [
        pa.table({"text": pa.array([b"\xffx", b"b"] * 50), "n": range(100), "meta": [{"a": 1}] * 100}),
        pa.table({"text": [f"t{row}" for row in range(100)]}),
    ]
    corpus = corpus_of(tmp_path, tables, group=9)
    drawn = draw(corpus, 0, rows=40)
    readable, rows = write(corpus, drawn, Store(str(tmp_path)), "sample")
    assert readable.all()
    found = keys(corpus, drawn)
    assert found == [(shard, row) for shard in sorted(rows) for row in rows[shard].tolist()]
    for number, table in enumerate(tables):
        shard = f"{number:02d}.parquet"
        copy = pq.read_table(tmp_path / "sample" / shard)
        wanted = table.take(pa.array(rows[shard]))
        for name in table.column_names:
            assert copy[name].to_pylist() == wanted[name].to_pylist()
    assert pq.read_table(tmp_path / "sample" / "01.parquet")["n"].null_count == len(rows["01.parquet"])


def test_damaged_rows(tmp_path):
    """Drawn rows that cannot be decoded are told, and the others of their shard are there."""
    corpus = corpus_of(tmp_path, [pa.table({"text": [f"{row * 7919 % 10007}" * 9 for row in range(400)]})], group=100)
    file = tmp_path / "in" / "00.parquet"
    group = pq.read_metadata(file).row_group(2).column(0)
    data = bytearray(file.read_bytes())
    start = group.dictionary_page_offset or group.data_page_offset
    data[start : start + group.total_compressed_size] = bytes(group.total_compressed_size)
    file.write_bytes(data)
    corpus = open_corpus_again(tmp_path)
    drawn = draw(corpus, 0, rows=80)
    readable, rows = write(corpus, drawn, Store(str(tmp_path)), "sample")
    damaged = (drawn.row >= 200) & (drawn.row < 300)
    assert damaged.any()
    assert (readable == ~damaged).all()
    assert rows["00.parquet"].tolist() == drawn.row[readable].tolist()


def open_corpus_again(root):
    places = ", ".join(f"{tier}: {{url: '{root}/{tier}'}}" for tier in ("work", "hot", "cold"))
    return open_corpus(loads(f"name: x\ninput: {{paths: ['{root}/in']}}\ntiers: {{{places}}}\nstages: []\n", ()))


def test_no_rows(tmp_path):
    """Of a corpus without rows a shard without rows is written, so that its columns are known."""
    corpus = corpus_of(tmp_path, [texts(0, 0)])
    drawn = draw(corpus, 0)
    readable, rows = write(corpus, drawn, Store(str(tmp_path)), "sample")
    assert (len(readable), {shard: len(found) for shard, found in rows.items()}) == (0, {"00.parquet": 0})
    assert pq.read_table(tmp_path / "sample" / "00.parquet").column_names == ["text"]
