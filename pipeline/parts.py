"""What a worker does to publish: hot parts (in `hot`), archive parts, and tables of removed and quarantined rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline import account, columns, hot, rowgroups
from pipeline.binding import release
from pipeline.frame import Frame
from pipeline.job import Job, PartSource, PublishWork
from pipeline.rowgroups import GROUP_BYTES, frame_of
from pipeline.types import CellResult, Output

COLD_LEVEL, TABLE_LEVEL = 6, 3
"""Of zstd: cold files are paid for by the month."""
LARGE_OF_MEMORY = 16
"""While a row larger than a sixteenth of a worker's memory is written, the file that it comes from is closed: reading
it holds more than three times the row."""
EVIDENCE = pa.schema([
    ("shard", pa.large_string()), ("row", pa.int64()), ("id", pa.large_string()), ("source", pa.large_string()),
    ("language", pa.large_string()), ("stage", pa.large_string()), ("reason", pa.large_string()),
    ("score", pa.float64()), ("threshold", pa.float64()), ("charged_shard", pa.large_string()),
    ("charged_row", pa.int64()), ("charged_id", pa.large_string()), ("charged_corpus", pa.large_string()),
    ("similarity", pa.float64()), ("similarity_kind", pa.string()), ("inter", pa.int32()), ("union", pa.int32()),
    ("group_size", pa.int32()), ("bytes", pa.int64()), ("tokens", pa.int64()), ("archive_file", pa.large_string()),
    ("archive_row", pa.int64()),
])  # fmt: skip
QUARANTINE = pa.schema([
    ("shard", pa.large_string()), ("row", pa.int64()), ("rows", pa.int64()), ("id", pa.large_string()),
    ("source", pa.large_string()), ("stage", pa.large_string()), ("reason", pa.large_string()),
    ("message", pa.large_string()), ("bytes", pa.int64()), ("attempts", pa.int32()),
])  # fmt: skip


def run(job: Job, work: PublishWork) -> CellResult:
    """Publish the files of one task."""
    release()  # models and facts of stages that are over would stand beside the text
    if work.kind in ("removed", "quarantined"):
        output = _table(job, work)
        return CellResult(cell=work.cell, outputs=(output,))
    if work.kind == "cold":
        return _archive(job, work)
    return hot.write(job, work)


# -- cold ------------------------------------------------------------------------------------------------------------


def _archive(job: Job, work: PublishWork) -> CellResult:
    file = work.files[0]
    reasons: dict[str, int] = {}
    kept = pa.schema([job.schema.field(name) for name in work.columns])
    for name in ("stage", "reason", "shard"):
        kept = kept.append(pa.field(_free(kept, name), pa.large_string()))
    kept = kept.append(pa.field(_free(kept, "row"), pa.int64()))

    def tables() -> Iterator[pa.Table]:
        for source in work.sources:
            frame = frame_of(job, source)
            kind, stage, reason = account.fates(frame, list(source.sidecars))
            gone = kind == account.KINDS.index("removed")
            for name, count in zip(
                *np.unique(np.array(reason.to_pylist(), object)[gone].astype(str), return_counts=True), strict=True
            ):
                reasons[str(name)] = reasons.get(str(name), 0) + int(count)
            for rows, chosen in _texts_of(job, source, work.columns, gone):
                own = pa.array(stage[rows], pa.large_string()), reason.take(pa.array(rows))
                shard = pa.array([source.part.shard_id] * len(rows), pa.large_string())
                arrays = [*chosen.columns, *own, shard, pa.array(rows + source.part.first_row)]
                yield pa.table(dict(zip(kept.names, arrays, strict=True))).cast(kept)

    output = rowgroups.write(job.cold, file.path, _gathered(tables()), kept, COLD_LEVEL)
    return CellResult(cell=work.cell, outputs=(output,), facts={"reasons": dict(sorted(reasons.items()))})


def _texts_of(
    job: Job, source: PartSource, names: Sequence[str], wanted: np.ndarray
) -> Iterator[tuple[np.ndarray, pa.Table]]:
    """(rows in the slice, table of input columns) for the wanted rows, in order."""
    left = wanted.copy()
    while left.any():
        reading = rowgroups.rows_of(job, source, names, left)
        for first, piece in reading:
            here = np.flatnonzero(left[first : first + piece.num_rows])
            left[first + here] = False
            if piece.nbytes > job.memory // LARGE_OF_MEMORY:
                reading.close()
                pa.default_memory_pool().release_unused()
            yield first + here, piece if len(here) == piece.num_rows else piece.take(pa.array(here))


def _free(schema: pa.Schema, name: str) -> str:
    """`name`, or with a prefix where the input has a column of that name."""
    return name if name not in schema.names else f"corpusmill_{name}"


def _gathered(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Small tables joined to row groups of about GROUP_BYTES."""
    held, size = list[pa.Table](), 0
    for table in tables:
        if held and size + table.nbytes > GROUP_BYTES:
            yield pa.concat_tables(held)
            held, size = [], 0
        held.append(table)
        size += table.nbytes
    if held:
        yield pa.concat_tables(held)


# -- tables ----------------------------------------------------------------------------------------------------------


def _table(job: Job, work: PublishWork) -> Output:
    make, schema = (_removed_rows, EVIDENCE) if work.kind == "removed" else (_quarantined_rows, QUARANTINE)
    tables, left = [_shard_rows(work)] if work.bad else list[pa.Table](), work.rows
    for source in work.sources:
        table = make(job, source, dry_run=work.dry_run).slice(source.skip, left)
        tables.append(table.cast(schema))
        left -= table.num_rows
    return rowgroups.write(job.work, work.files[0].path, iter(tables), schema, TABLE_LEVEL)


def _removed_rows(job: Job, source: PartSource, *, dry_run: bool) -> pa.Table:
    frame = frame_of(job, source)
    labels = list(source.sidecars)
    kind, stage, reason = account.fates(frame, labels)
    gone = np.flatnonzero(kind == account.KINDS.index("removed"))
    index = pa.array(gone)
    made: dict[str, pa.Array] = {
        "shard": pa.array([source.part.shard_id] * len(gone), pa.large_string()),
        "row": pa.array(gone + source.part.first_row),
        "stage": pa.array(stage[gone], pa.large_string()), "reason": reason.take(index),
        "bytes": frame.column("bytes").take(index), "tokens": frame.column("tokens").take(index),
    } | {name: frame.column(name).take(index) for name in ("id", "source", "language")}  # fmt: skip
    for name, type_ in columns.DECISIONS.items():
        if name != "reason":
            made[name] = _of_deciding_stage(frame, labels, stage, name, type_).take(index)
    file, base = source.archive
    archived = pa.array(np.arange(len(gone)) + base)
    made["archive_file"] = (
        pa.nulls(len(gone), pa.large_string()) if dry_run else pa.array([file] * len(gone), pa.large_string())
    )
    made["archive_row"] = pa.nulls(len(gone), pa.int64()) if dry_run else archived
    made["charged_corpus"] = pa.nulls(len(gone), pa.large_string())
    return pa.table({name: made[name] for name in EVIDENCE.names})


def _of_deciding_stage(
    frame: Frame, labels: Sequence[str], stage: np.ndarray, name: str, kind: pa.DataType
) -> pa.Array:
    """Column `name` of the stage that removed each row, null where that stage has none."""
    out = pa.nulls(frame.rows, kind)
    for label in labels:
        if name not in frame.known[label].column_names:
            continue
        rows = np.flatnonzero(stage == label)
        if len(rows):
            own = columns.spread(frame.of(label, name).take(pa.array(rows)), columns.place(rows, frame.rows))
            out = pc.coalesce(own.cast(kind), out)
    return out


def _quarantined_rows(job: Job, source: PartSource, *, dry_run: bool) -> pa.Table:
    frame = frame_of(job, source)
    labels = list(source.sidecars)
    kind, stage, reason = account.fates(frame, labels)
    rows = np.flatnonzero(kind == account.KINDS.index("quarantined"))
    index = pa.array(rows)
    count = len(rows)
    return pa.table({
        "shard": pa.array([source.part.shard_id] * count, pa.large_string()),
        "row": pa.array(rows + source.part.first_row), "rows": pa.array([1] * count, pa.int64()),
        "id": frame.column("id").take(index), "source": frame.column("source").take(index),
        "stage": pa.array(stage[rows], pa.large_string()), "reason": reason.take(index),
        "message": _of_deciding_stage(frame, labels, stage, "message", pa.large_string()).take(index),
        "bytes": frame.column("bytes").take(index), "attempts": pa.array([1] * count, pa.int32()),
    })  # fmt: skip


def _shard_rows(work: PublishWork) -> pa.Table:
    """One record a shard that is quarantined whole: its row and rows are not known."""
    empty = {name: [None] * len(work.bad) for name in QUARANTINE.names}
    known = {
        "shard": [shard.shard_id for shard in work.bad], "stage": ["ingest"] * len(work.bad),
        "reason": ["unreadable_shard"] * len(work.bad), "message": [shard.message for shard in work.bad],
        "bytes": [shard.size for shard in work.bad], "attempts": [1] * len(work.bad),
    }  # fmt: skip
    return pa.table(empty | known, schema=QUARANTINE)
