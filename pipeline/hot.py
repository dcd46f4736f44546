"""Hot parts: the kept rows of some slices, each in the part of its dataset, and there in seeded order.

A part may be more than a worker can hold. Numbers alone say which rows are in which row group, so as many row groups as
fit are read, put in order and written at a time; the bytes do not depend on how many those are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline import ingest, rowgroups
from pipeline.job import Job, PartSource, PublishWork
from pipeline.rowgroups import GROUP_BYTES, GROUP_ROWS
from pipeline.types import CellResult

HELD_OF_MEMORY = 4
"""Rows that are held are up to a quarter of a worker's memory: beside them stand the runtime and what is written."""
LEVEL = 1
"""Of zstd: hot files are read again and again."""
Ints = np.ndarray


class Rows(NamedTuple):
    """Rows of one part or row group in published order."""

    source: Ints
    """Index of the slice among the task's sources."""
    row: Ints
    """Row in the slice."""
    size: Ints
    """Bytes of the text and all other columns."""

    def cut(self, start: int, stop: int) -> Rows:
        return Rows(self.source[start:stop], self.row[start:stop], self.size[start:stop])


def write(job: Job, work: PublishWork) -> CellResult:
    """Write the parts of a task."""
    parts, tokens = _parts(job, work)
    groups = [[part.cut(*ends) for ends in _groups(part.size)] for part in parts]
    schema = pa.schema([job.schema.field(name) for name in work.columns])
    tables = _tables(job, work, [group for of_part in groups for group in of_part])
    written = [
        rowgroups.write(job.hot, file.path, islice(tables, len(of_part)), schema, LEVEL)
        for file, of_part in zip(work.files, groups, strict=True)
    ]
    named = {file.path: [file.dataset, count] for file, count in zip(work.files, tokens, strict=True)}
    return CellResult(cell=work.cell, outputs=tuple(written), facts={"files": named})


def seeded(content: pa.Array, seed: int) -> np.ndarray:
    """A 64-bit mix of the seed and each content hash: the published order. Rows of equal content keep corpus order."""
    words = np.frombuffer(content.buffers()[1], np.uint64)[2 * content.offset : 2 * (content.offset + len(content))]
    low, high = words[0::2], words[1::2]
    with np.errstate(over="ignore"):
        mixed = (low ^ np.uint64((seed * 0x9E3779B97F4A7C15) & (2**64 - 1))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(31)) ^ high) * np.uint64(0x94D049BB133111EB)
        result: np.ndarray = mixed ^ (mixed >> np.uint64(29))
    return result


def _parts(job: Job, work: PublishWork) -> tuple[list[Rows], list[int]]:
    """The rows of every part, and their tokens."""
    found: list[list[tuple[Ints, Ints, Ints, Ints]]] = [[] for _ in work.files]
    tokens = [0] * len(work.files)
    for number, source in enumerate(work.sources):
        frame = rowgroups.frame_of(job, source)
        live, dataset = frame.alive("split"), frame.of("split", "dataset")
        order = seeded(frame.of(ingest.LABEL, "content_hash"), job.seed)
        share = (order >> np.uint64(40)).astype(np.int64)
        size = frame.of(ingest.LABEL, "bytes").to_numpy() + frame.of(ingest.LABEL, "other_bytes").to_numpy()
        count = frame.column("tokens").to_numpy()
        for index, file in enumerate(work.files):
            own = pc.fill_null(pc.equal(dataset, file.dataset), False).to_numpy(zero_copy_only=False)
            rows = np.flatnonzero(live & own & (share * file.of >> 24 == file.index))
            found[index].append((np.full(len(rows), number), rows, size[rows], order[rows]))
            tokens[index] += int(count[rows].sum())
    parts = []
    for pieces in found:
        numbers, row, size, order = (np.concatenate(column) for column in zip(*pieces, strict=True))
        ranks = np.lexsort((row, numbers, order))
        parts.append(Rows(numbers[ranks], row[ranks], size[ranks]))
    return parts, tokens


def _groups(size: Ints) -> Iterator[tuple[int, int]]:
    """(start, stop) of runs of rows of at most GROUP_BYTES and GROUP_ROWS, or of one row."""
    ends, start = np.cumsum(size), 0
    while start < len(size):
        limit = GROUP_BYTES + (ends[start - 1] if start else 0)
        stop = min(max(start + 1, int(np.searchsorted(ends, limit, side="right"))), start + GROUP_ROWS)
        yield start, stop
        start = stop


def _tables(job: Job, work: PublishWork, groups: Sequence[Rows]) -> Iterator[pa.Table]:
    """The row groups as tables, read as many at a time as fit."""
    held, size = list[Rows](), 0
    for group in groups:
        more = int(group.size.sum())
        if held and size + more > job.memory // HELD_OF_MEMORY:
            yield from _read(job, work, held)
            held, size = [], 0
        held.append(group)
        size += more
    if held:
        yield from _read(job, work, held)


def _read(job: Job, work: PublishWork, groups: Sequence[Rows]) -> Iterator[pa.Table]:
    """The tables of some row groups, in one reading of the slices."""
    source, row, _ = (np.concatenate(column) for column in zip(*groups, strict=True))
    as_read = np.lexsort((row, source))
    place = np.empty(len(row), np.int64)
    place[as_read] = np.arange(len(row))
    pieces = [
        piece
        for number, part in enumerate(work.sources)
        for piece in _chosen(job, part, work.columns, row[source == number])
    ]
    pa.default_memory_pool().release_unused()  # what reading held is not to stand beside what writing will hold
    begins = np.cumsum([0, *(piece.num_rows for piece in pieces)])
    ends = np.cumsum([0, *(len(group.row) for group in groups)])
    for start, stop in pairwise(ends.tolist()):
        yield _gathered(pieces, begins, place[start:stop])


def _chosen(job: Job, source: PartSource, names: Sequence[str], rows: Ints) -> Iterator[pa.Table]:
    """These rows of a slice, in its order, in tables."""
    wanted = np.zeros(source.part.rows, bool)
    wanted[rows] = True
    for first, piece in rowgroups.rows_of(job, source, names, wanted) if len(rows) else ():
        here = wanted[first : first + piece.num_rows]
        yield piece if here.all() else piece.filter(pa.array(here))


def _gathered(pieces: Sequence[pa.Table], begins: Ints, places: Ints) -> pa.Table:
    """The rows at these places of the pieces, numbered through, in this order.

    They are taken piece by piece: joining the pieces first would hold them twice. A row alone is not copied at all.
    """
    where = np.searchsorted(begins, places, side="right") - 1
    if len(places) == 1:
        return pieces[where[0]].slice(int(places[0] - begins[where[0]]), 1)
    by_piece = np.argsort(where, kind="stable")
    cuts = np.searchsorted(where[by_piece], np.arange(len(pieces) + 1))
    taken = [
        pieces[index].take(pa.array(places[by_piece[low:high]] - begins[index]))
        for index, (low, high) in enumerate(pairwise(cuts.tolist()))
        if high > low
    ]
    table = pa.concat_tables(taken).combine_chunks()
    return table.take(pa.array(np.argsort(by_piece)))
