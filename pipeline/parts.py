"""What a worker does to publish: hot dataset parts, archive parts, and the tables of removed and quarantined rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline import account, columns, ingest, utf8
from pipeline.binding import release
from pipeline.errors import ContractError
from pipeline.frame import Frame
from pipeline.job import Job, PartSource, PublishWork
from pipeline.reading import read_rows
from pipeline.storage import Store
from pipeline.types import CellResult, Output

GROUP_BYTES = 16_000_000
"""Text bytes of a row group of what we write."""
GROUP_ROWS = 131_072
HOT_LEVEL, COLD_LEVEL = 1, 6
"""zstd levels: hot is read again and again, cold is paid for by the month."""
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
    return _hot(job, work)


def frame_of(job: Job, source: PartSource) -> Frame:
    """All numbers of a slice, no text."""
    known = {}
    for label, ref in source.sidecars.items():
        names = {"shard": source.part.shard_id, "first_row": str(source.part.first_row), "key": ref.key}
        known[label] = columns.read(job.work, ref.path, source.part.rows, names)
    return Frame(0, source.part.rows, {}, None, known, token_ratio=job.token_ratio, sources=job.sources)


# -- hot -------------------------------------------------------------------------------------------------------------


def _hot(job: Job, work: PublishWork) -> CellResult:
    held: dict[int, list[pa.Table]] = {index: [] for index in range(len(work.files))}
    tokens = dict.fromkeys(held, 0)
    for source in work.sources:
        frame = frame_of(job, source)
        live = frame.alive("split")
        dataset = np.array(frame.of("split", "dataset").to_pylist(), object)
        order = seeded(frame.of(ingest.LABEL, "content_hash"), job.seed)
        chosen = np.full(frame.rows, -1, np.int64)
        for index, file in enumerate(work.files):
            rows = live & (dataset == file.dataset)
            if file.of > 1:
                rows &= (order >> np.uint64(40)).astype(np.int64) * file.of >> 24 == file.index
            chosen[rows] = index
            tokens[index] += int(frame.column("tokens").to_numpy()[rows].sum())
        for first, piece in _rows(job, source, work.columns, chosen >= 0):
            here = chosen[first : first + piece.num_rows]
            extra = piece.append_column("order", pa.array(order[first : first + piece.num_rows]))
            for index in np.unique(here[here >= 0]).tolist():
                held[index].append(extra.filter(pa.array(here == index)))
    written = [
        _write_shuffled(job.hot, file.path, held.pop(index), job.schema, work.columns)
        for index, file in enumerate(work.files)
    ]
    named = {file.path: [file.dataset, tokens[index]] for index, file in enumerate(work.files)}
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


def _rows(job: Job, source: PartSource, names: Sequence[str], wanted: np.ndarray) -> Iterator[tuple[int, pa.Table]]:
    """(first row, table of input columns) for batches that hold a wanted row, text under the byte policy."""
    text = job.names["text"]
    for raw in read_rows(source.part, job.schema, list(dict.fromkeys([*names, text])), wanted, text=text):
        mask = wanted[raw.first : raw.first + raw.rows]
        if raw.columns is None:
            if raw.error and mask.any():
                raise ContractError(f"{source.part.url}: rows that could be read before cannot be now: {raw.error}")
            continue
        found = dict(raw.columns)
        found[text] = utf8.decoded(found[text])[0]
        yield raw.first, pa.table({name: found[name] for name in names})


def _write_shuffled(store: Store, path: str, pieces: list[pa.Table], schema: pa.Schema, names: Sequence[str]) -> Output:
    kept = pa.schema([schema.field(name) for name in names])
    if not pieces:
        return _write(store, path, iter(()), kept, HOT_LEVEL)
    order = np.concatenate([piece["order"].to_numpy() for piece in pieces])
    pieces[:] = [piece.drop_columns(["order"]).combine_chunks() for piece in pieces]
    return _write(store, path, _shuffled(pieces, np.argsort(order, kind="stable"), kept), kept, HOT_LEVEL)


def _shuffled(pieces: Sequence[pa.Table], rows: np.ndarray, schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of all pieces, numbered through, in the given order, in tables of about GROUP_BYTES.

    Rows are taken piece by piece: joining the pieces first would hold the whole part twice.
    """
    begins = np.cumsum([0, *(piece.num_rows for piece in pieces)])
    step = max(1, min(GROUP_ROWS, GROUP_BYTES * len(rows) // max(1, sum(map(_content_bytes, pieces)))))
    for start in range(0, len(rows), step):
        group = rows[start : start + step]
        where = np.searchsorted(begins, group, side="right") - 1
        by_piece = np.argsort(where, kind="stable")
        cuts = np.searchsorted(where[by_piece], np.arange(len(pieces) + 1))
        taken = [
            pieces[index].take(pa.array(group[by_piece[low:high]] - begins[index]))
            for index, (low, high) in enumerate(pairwise(cuts.tolist()))
            if high > low
        ]
        table = pa.concat_tables(taken).combine_chunks()
        yield table.take(pa.array(np.argsort(by_piece))).cast(schema)


def _content_bytes(piece: pa.Table) -> int:
    """Bytes of a piece's values, however it was cut: the size of row groups must not depend on that."""
    textual = [column for column in piece.columns if pa.types.is_large_string(column.type)]
    lengths = [int(pc.sum(pc.binary_length(column)).as_py() or 0) for column in textual]
    return int(8 * piece.num_rows * piece.num_columns + sum(lengths))


def _write(store: Store, path: str, tables: Iterator[pa.Table], schema: pa.Schema, level: int) -> Output:
    rows = 0
    strings = [item.name for item in schema if not pa.types.is_large_string(item.type)]
    with (
        store.writer(path) as handle,
        pq.ParquetWriter(
            handle, schema, compression="zstd", compression_level=level, use_dictionary=strings, store_schema=True
        ) as out,
    ):
        for table in tables:
            rows += table.num_rows
            out.write_table(table, row_group_size=max(1, table.num_rows))
    return store.output(path, rows=rows)


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
            for first, piece in _rows(job, source, work.columns, gone):
                here = np.flatnonzero(gone[first : first + piece.num_rows])
                if not len(here):
                    continue
                chosen = piece.take(pa.array(here))
                own = pa.array(stage[first + here], pa.large_string()), reason.take(pa.array(first + here))
                shard = pa.array([source.part.shard_id] * len(here), pa.large_string())
                rows = pa.array(first + here + source.part.first_row)
                arrays = [*(chosen[name] for name in work.columns), *own, shard, rows]
                yield pa.table(dict(zip(kept.names, arrays, strict=True))).cast(kept)

    output = _write(job.cold, file.path, _gathered(tables()), kept, COLD_LEVEL)
    return CellResult(cell=work.cell, outputs=(output,), facts={"reasons": dict(sorted(reasons.items()))})


def _free(schema: pa.Schema, name: str) -> str:
    """`name`, or with a prefix where the input has a column of that name."""
    return name if name not in schema.names else f"corpusmill_{name}"


def _gathered(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Small tables joined to row groups of about GROUP_BYTES."""
    held, size = list[pa.Table](), 0
    for table in tables:
        held.append(table)
        size += table.nbytes
        if size >= GROUP_BYTES:
            yield pa.concat_tables(held)
            held, size = [], 0
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
    return _write(job.work, work.files[0].path, iter(tables), schema, 3)


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
