"""Read the rows of a slice in batches that are bounded by decoded bytes, in the corpus's one schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline import storage
from pipeline.corpus import plain
from pipeline.errors import ContractError
from pipeline.types import Slice

BATCH_BYTES = 4_000_000
"""Decoded bytes that a batch is filled up to. One row may be more: then it is a batch of its own size."""
ROWS_AT_ONCE = 64
"""Rows decoded in one go. Footers do not bound what a row decodes to (one dictionary entry may be every row)."""
MANY_ROWS = 1024


@dataclass(frozen=True, slots=True)
class RawBatch:
    """Rows first .. first + rows of a slice; `columns` is None where nothing was asked for or nothing could be read."""

    first: int
    rows: int
    columns: Mapping[str, pa.Array] | None
    error: str = ""


def read_rows(
    part: Slice, schema: pa.Schema, columns: Sequence[str], wanted: np.ndarray | None = None
) -> Iterator[RawBatch]:
    """All rows of the slice in order, with `columns` in the corpus's types.

    Row groups without a wanted row are passed over. From the first rows of a group that cannot be decoded on, its rows
    come as one batch with the error. Which rows those are depends on the columns alone, and asking for fewer columns
    never makes it more. Raises ContractError (exit 3) if the file is no longer the one that was listed.
    """
    check_unchanged(part)
    with storage.open_url(part.url) as handle:
        reader = pq.ParquetFile(handle, pre_buffer=False, buffer_size=1 << 20, page_checksum_verification=True)
        present = [name for name in columns if name in reader.schema_arrow.names]
        first = 0
        for group in range(part.first_group, part.first_group + part.groups):
            rows = reader.metadata.row_group(group).num_rows
            if not columns or (wanted is not None and not wanted[first : first + rows].any()):
                yield RawBatch(first, rows, None)
            else:
                yield from _group(reader, group, first, rows, schema, columns, present)
            first += rows


def check_unchanged(part: Slice) -> None:
    entry = storage.entry_of(part.url)
    if (entry.size, entry.stamp) != (part.size, part.stamp):
        raise ContractError(
            f"{part.url}: changed while the run was reading it (listed with {part.size} bytes, stamp {part.stamp}; now "
            f"{entry.size} bytes, stamp {entry.stamp}); run again to take it as it is now"
        )


def _group(
    reader: pq.ParquetFile, group: int, first: int, rows: int,
    schema: pa.Schema, columns: Sequence[str], present: Sequence[str],
) -> Iterator[RawBatch]:  # fmt: skip
    done, held, size, broken = 0, list[pa.RecordBatch](), 0, ""
    batches = reader.iter_batches(_rows_at_once(reader, group), [group], list(present), use_threads=False)
    while True:
        try:
            batch = next(batches, None)
        except (pa.ArrowException, OSError) as error:
            batch, broken = None, f"undecodable row group: {error}"
        if batch is not None:
            held.append(batch)
            size += batch.nbytes
        if held and (batch is None or size >= BATCH_BYTES):
            yield _settled(first + done, held, schema, columns)
            done += sum(piece.num_rows for piece in held)
            held, size = [], 0
        if batch is None:
            break
    if broken:
        yield RawBatch(first + done, rows - done, None, broken)


def _rows_at_once(reader: pq.ParquetFile, group: int) -> int:
    """Few rows where a dictionary may hide how large they are, more where the footer tells."""
    info = reader.metadata.row_group(group)
    chunks = [info.column(index) for index in range(info.num_columns)]
    if any(chunk.has_dictionary_page for chunk in chunks):
        return ROWS_AT_ONCE
    mean = sum(chunk.total_uncompressed_size for chunk in chunks) / max(1, info.num_rows)
    return int(min(MANY_ROWS, max(ROWS_AT_ONCE, 262_144 / max(1.0, mean))))


def _settled(first: int, held: Sequence[pa.RecordBatch], schema: pa.Schema, columns: Sequence[str]) -> RawBatch:
    rows = sum(piece.num_rows for piece in held)
    table = pa.Table.from_batches(held)
    settled = {}
    for name in columns:
        kind = schema.field(name).type
        settled[name] = as_type(table[name], kind) if name in table.column_names else pa.nulls(rows, kind)
    return RawBatch(first, rows, settled)


def as_type(column: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    """One array of the corpus's type. Text that came as binary stays binary: the byte policy decides about it."""
    own = plain(column.type)
    if column.type != own:
        column = column.cast(own)
    array = column.combine_chunks()
    array = array if isinstance(array, pa.Array) else pa.concat_arrays(array.chunks)
    return array if pa.types.is_large_binary(own) else _cast(array, kind)


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast to a type that `corpus.unify` made of this one and others: a struct's field that is not there is null."""
    if array.type == kind:
        return array
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), kind)
    if pa.types.is_struct(kind):
        fields = {item.name: array.field(index) for index, item in enumerate(array.type)}
        children = [_cast(fields.get(item.name, pa.nulls(len(array))), item.type) for item in kind]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=pc.is_null(array))
    if pa.types.is_large_list(kind):
        values, own = _cast(array.values, kind.value_type), array.buffers()[:2]
        return pa.Array.from_buffers(kind, len(array), own, array.null_count, array.offset, [values])
    return array.cast(kind, safe=not pa.types.is_floating(kind))
