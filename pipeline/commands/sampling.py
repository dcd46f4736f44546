"""Rows drawn one by one over a whole corpus, and written as shards of the same names.

A row is drawn by a seeded hash of its shard and number: the same rows for the same seed, from all shards alike, however
the rows are sorted. Shares of drawn rows then hold for the corpus, with an interval that depends on how many there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from pipeline.corpus import Corpus
from pipeline.reading import read_rows
from pipeline.storage import Store
from pipeline.types import Slice

ROWS = 5000
"""Rows that are drawn: a share of them is right to 1.4 percentage points, however large the corpus."""
PER_SOURCE = 200
"""Rows of every source that has so many: a share of them is right to 7 percentage points."""
MOST_ROWS = 20_000
"""Rows that are drawn at most: beyond them the smallest sources are not filled up."""
MOST_SOURCES = 100_000
"""With more values than these a source column names documents, not sources, and is left out of the drawing."""
Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawn:
    """The rows that were drawn, in corpus order.

    `stratum` says which part of the corpus a row stands for (an index into `sizes`, which holds the rows of each part),
    or is -1 for a row that was added so that its shard is seen and that no estimate may use.
    """

    ordinal: Ints
    row: Ints
    """In the slice."""
    stratum: Ints
    sizes: Ints
    rows: int
    """Of the corpus."""

    @property
    def everything(self) -> bool:
        return len(self.row) == self.rows

    @property
    def weights(self) -> np.ndarray:
        """How many rows of the corpus each drawn row stands for."""
        drawn = np.bincount(self.stratum[self.stratum >= 0], minlength=len(self.sizes))
        each = self.sizes / np.maximum(drawn, 1)
        return np.where(self.stratum >= 0, each[self.stratum], 0.0)

    def where(self, rows: np.ndarray) -> Drawn:
        """Without the rows that are not set; the others keep their strata."""
        return Drawn(
            ordinal=self.ordinal[rows], row=self.row[rows], stratum=self.stratum[rows], sizes=self.sizes, rows=self.rows
        )


# -- drawing ---------------------------------------------------------------------------------------------------------


def draw(corpus: Corpus, seed: int, *, rows: int = ROWS, per_source: int = PER_SOURCE) -> Drawn:
    """Draw `rows` rows, all if there are no more; beside them `per_source` of every source where there are sources, and
    one of every shard. Of the input it reads the source column, and nothing else.
    """
    if corpus.rows <= rows:
        ordinal = np.repeat(np.arange(len(corpus.slices)), [part.rows for part in corpus.slices])
        row = np.concatenate([np.arange(part.rows) for part in corpus.slices])
        zeros = np.zeros(len(row), np.int64)
        return Drawn(ordinal=ordinal, row=row, stratum=zeros, sizes=np.array([len(row)]), rows=len(row))
    lowest = _Lowest(corpus, seed, rows)
    for index, part in enumerate(corpus.slices):
        lowest.add(index, np.arange(part.rows))
    ordinal, row = lowest.rows()
    stratum, sizes = np.zeros(rows, np.int64), [corpus.rows]
    if "source" in corpus.names:
        ordinal, row, stratum, sizes = _by_source(corpus, seed, ordinal, row, per_source)
    if len({part.shard_id for part in corpus.slices}) <= rows:
        more = _other_shards(corpus, seed, ordinal)
        ordinal, row = np.concatenate([ordinal, more[0]]), np.concatenate([row, more[1]])
        stratum = np.concatenate([stratum, np.full(len(more[0]), -1)])
    order = np.lexsort((row, ordinal))
    return Drawn(
        ordinal=ordinal[order], row=row[order], stratum=stratum[order], sizes=np.array(sizes), rows=corpus.rows
    )


def hashes(part: Slice, seed: int) -> np.ndarray:
    """A number below 2^64 for every row of a slice: a function of seed, shard and row, whatever the slices are."""
    shard = xxhash.xxh3_64_intdigest(part.shard_id.encode(), seed=seed)
    rows = np.arange(part.first_row, part.first_row + part.rows, dtype=np.uint64)
    with np.errstate(over="ignore"):  # splitmix64
        mixed = np.uint64(shard) + (rows + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        found: np.ndarray = mixed ^ (mixed >> np.uint64(31))
    return found


class _Lowest:
    """The `count` rows with the lowest hashes among all that are added; it holds no more than these."""

    def __init__(self, corpus: Corpus, seed: int, count: int) -> None:
        self._corpus, self._seed, self._count = corpus, seed, count
        self._best = np.empty((3, 0), np.uint64)
        """Hash, ordinal, row."""

    def add(self, ordinal: int, rows: Ints) -> None:
        if not len(rows):
            return
        found = hashes(self._corpus.slices[ordinal], self._seed)[rows]
        low = found <= self._best[0, -1] if self._best.shape[1] == self._count else np.ones(len(rows), bool)
        here = np.stack([found[low], np.full(low.sum(), ordinal, np.uint64), rows[low].astype(np.uint64)])
        best = np.concatenate([self._best, here], axis=1)
        self._best = best[:, np.lexsort(best[::-1])[: self._count]]

    def rows(self) -> tuple[Ints, Ints]:
        """(ordinals, rows in the slice), sorted."""
        _, ordinal, row = self._best[:, np.lexsort((self._best[2], self._best[1]))].astype(np.int64)
        return ordinal, row


def _other_shards(corpus: Corpus, seed: int, drawn: Ints) -> tuple[Ints, Ints]:
    """(ordinals, rows) of the lowest hash in every shard of which no row was drawn."""
    seen = {corpus.slices[ordinal].shard_id for ordinal in np.unique(drawn).tolist()}
    best: dict[str, tuple[int, int, int]] = {}
    for ordinal, part in enumerate(corpus.slices):
        if part.shard_id not in seen and part.rows:
            found = hashes(part, seed)
            row = int(found.argmin())
            candidate = (int(found[row]), ordinal, row)
            best[part.shard_id] = min(best.get(part.shard_id, candidate), candidate)
    _, ordinals, rows = np.array(list(best.values()), object).reshape(-1, 3).T
    return ordinals.astype(np.int64), rows.astype(np.int64)


# -- sources ---------------------------------------------------------------------------------------------------------


def _by_source(
    corpus: Corpus, seed: int, ordinal: Ints, row: Ints, per_source: int
) -> tuple[Ints, Ints, Ints, list[int]]:
    """The drawn rows with small sources filled up: ordinals, rows, strata and the strata's sizes.

    Stratum 0 is what belongs to no source of its own. A source that is filled up has its rows with the lowest hashes,
    and those that were drawn before are the first of them: so the rows of each stratum are drawn from it alike.
    """
    counts, own = Counter[str | None](), list[str | None]()
    for index, sources in _sources(corpus):
        counts.update({entry["values"]: entry["counts"] for entry in sources.value_counts().to_pylist()})
        own += sources.take(pa.array(row[ordinal == index])).to_pylist()
        if len(counts) > MOST_SOURCES:
            return ordinal, row, np.zeros(len(row), np.int64), [corpus.rows]
    chosen = _chosen(counts, Counter(own), per_source)
    number = {name: index for index, name in enumerate(chosen, 1)}
    stratum = np.array([number.get(name, 0) for name in own], np.int64)
    sizes = [corpus.rows - sum(counts[name] for name in chosen), *(counts[name] for name in chosen)]
    filled = [name for name in chosen if chosen[name]]
    kept = ~np.isin(stratum, [number[name] for name in filled])
    columns = [(ordinal[kept], row[kept], stratum[kept])]
    if filled:
        lowest = {name: _Lowest(corpus, seed, per_source) for name in filled}
        for index, sources in _sources(corpus):
            for name, best in lowest.items():
                best.add(index, np.flatnonzero(_equals(sources, name)))
        more = [(*best.rows(), number[name]) for name, best in lowest.items()]
        columns += [(ordinals, rows, np.full(len(rows), stratum_of)) for ordinals, rows, stratum_of in more]
    ordinals, rows, strata = (np.concatenate(column) for column in zip(*columns, strict=True))
    return ordinals, rows, strata, sizes


def _chosen(counts: Counter[str | None], drawn: Counter[str | None], per_source: int) -> dict[str | None, bool]:
    """The sources that get a stratum, the largest first, and whether they have to be filled up for it."""
    total, found = drawn.total(), dict[str | None, bool]()
    for name in sorted(counts, key=lambda name: (-counts[name], name is None, name or "")):
        wanted = min(per_source, counts[name])
        if drawn[name] >= wanted or total + wanted - drawn[name] <= MOST_ROWS:
            found[name] = drawn[name] < wanted
            total += max(0, wanted - drawn[name])
    return found


def _sources(corpus: Corpus) -> Iterator[tuple[int, pa.Array]]:
    """The source of every row, slice by slice; null where it cannot be read."""
    column = corpus.names["source"]
    for ordinal, part in enumerate(corpus.slices):
        pieces = [
            pa.nulls(raw.rows, pa.large_string())
            if raw.columns is None
            else raw.columns[column].cast(pa.large_string())
            for raw in read_rows(part, corpus.schema, [column])
        ]
        yield ordinal, pa.concat_arrays(pieces) if pieces else pa.array([], pa.large_string())


def _equals(sources: pa.Array, name: str | None) -> np.ndarray:
    found: np.ndarray = (
        pc.is_null(sources) if name is None else pc.fill_null(pc.equal(sources, name), False)
    ).to_numpy(zero_copy_only=False)
    return found


# -- writing ---------------------------------------------------------------------------------------------------------


def write(corpus: Corpus, drawn: Drawn, store: Store, folder: str) -> tuple[np.ndarray, dict[str, Ints]]:
    """Write the drawn rows as `folder`/<shard>, with every column of the corpus.

    Returns which of them could be read (bool, in order), and for each shard the row in the corpus of each row written.
    """
    readable = np.ones(len(drawn.row), bool)
    rows: dict[str, Ints] = {}
    starts = np.searchsorted(drawn.ordinal, np.arange(len(corpus.slices) + 1))
    for shard, ordinals in groupby(range(len(corpus.slices)), lambda ordinal: corpus.slices[ordinal].shard_id):
        spans = [(corpus.slices[ordinal], slice(starts[ordinal], starts[ordinal + 1])) for ordinal in ordinals]
        pieces = (
            (rows_of + part.first_row, table)
            for part, span in spans for rows_of, table in _read(corpus, part, drawn.row[span], readable[span])
        )  # fmt: skip
        first = next(pieces, None)
        if first is None and not drawn.rows:
            first = np.empty(0, np.int64), corpus.schema.empty_table()
        if first is not None:
            rows[shard] = _put(store, f"{folder}/{shard}", chain([first], pieces), first[1].schema)
    return readable, rows


def _put(store: Store, path: str, pieces: Iterable[tuple[Ints, pa.Table]], schema: pa.Schema) -> Ints:
    found = list[Ints]()
    with (
        store.writer(path) as handle,
        pq.ParquetWriter(handle, schema, compression="zstd", compression_level=1) as file,
    ):
        for rows, table in pieces:
            file.write_table(table)
            found.append(rows)
    return np.concatenate(found)


def _read(corpus: Corpus, part: Slice, rows: Ints, readable: np.ndarray) -> Iterator[tuple[Ints, pa.Table]]:
    """(rows in the slice, table) of the wanted rows; clears `readable` for those that cannot be decoded."""
    if not len(rows):
        return
    wanted = np.zeros(part.rows, bool)
    wanted[rows] = True
    for raw in read_rows(part, corpus.schema, corpus.schema.names, wanted, text=corpus.names["text"]):
        low, high = np.searchsorted(rows, [raw.first, raw.first + raw.rows])
        here = rows[low:high]
        if raw.columns is None:
            readable[low:high] = False
        elif len(here):
            yield here, pa.table(dict(raw.columns)).take(pa.array(here - raw.first))
