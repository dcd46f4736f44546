"""Read the rows of a slice in batches that are bounded by decoded bytes, in the corpus's one schema."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline import storage, utf8
from pipeline.corpus import plain
from pipeline.errors import ContractError
from pipeline.types import Slice

BATCH_BYTES = 4_000_000
"""Decoded bytes that a batch is filled up to. One row may be more: then it is a batch of its own."""
DECODED_BYTES = 64_000
"""What is decoded in one go, as far as the footer and the rows before tell: large rows are then decoded one by one, and
the calls for small ones cost little."""
FIRST_ROWS, FEW_ROWS, MANY_ROWS = 4, 64, 1024
"""Rows decoded in one go: at first, at most, and at most in a row group that is small whatever its rows are."""
SMALL_GROUP = 64_000_000


@dataclass(frozen=True, slots=True)
class RawBatch:
    """Rows first .. first + rows of a slice; `columns` is None where nothing was asked for or nothing could be read."""

    first: int
    rows: int
    columns: Mapping[str, pa.Array] | None
    error: str = ""


def read_rows(
    part: Slice, schema: pa.Schema, columns: Sequence[str], wanted: np.ndarray | None = None, *, text: str = ""
) -> Iterator[RawBatch]:
    """All rows of the slice in order, with `columns` in the corpus's types.

    Strings are valid UTF-8, with U+FFFD for what was not, but for those of the column `text`: that comes as it is, for
    the policy to decide. Values of one batch may share memory with those of the next.

    Row groups without a wanted row are passed over. From the first rows of a group that cannot be decoded on, its rows
    come as one batch with the error. Which rows those are depends on the columns alone, and asking for fewer columns
    never makes it more. Raises ContractError (exit 3) if the file is no longer the one that was listed.
    """
    check_unchanged(part)
    with storage.open_url(part.url) as handle:
        reader = pq.ParquetFile(handle, pre_buffer=False, buffer_size=1 << 20, page_checksum_verification=True)
        present = [name for name in columns if name in reader.schema_arrow.names]
        settled = functools.partial(_settled, schema=schema, columns=columns, text=text)
        first = 0
        for group in range(part.first_group, part.first_group + part.groups):
            rows = reader.metadata.row_group(group).num_rows
            if not columns or (wanted is not None and not wanted[first : first + rows].any()):
                yield RawBatch(first, rows, None)
            else:
                yield from _group(reader, group, first, rows, present, settled)
            first += rows


def check_unchanged(part: Slice) -> None:
    entry = storage.entry_of(part.url)
    if (entry.size, entry.stamp) != (part.size, part.stamp):
        raise ContractError(
            f"{part.url}: changed while the run was reading it (listed with {part.size} bytes, stamp {part.stamp}; now "
            f"{entry.size} bytes, stamp {entry.stamp}); run again to take it as it is now"
        )


def _group(
    reader: pq.ParquetFile, group: int, first: int, rows: int, present: Sequence[str],
    settle: Callable[[Sequence[pa.RecordBatch]], Mapping[str, pa.Array]],
) -> Iterator[RawBatch]:  # fmt: skip
    done, held, size, error = 0, list[pa.RecordBatch](), 0, ""
    pieces = _pieces(reader, group, list(present))
    while True:
        try:
            piece = next(pieces, None)
        except (pa.ArrowException, OSError) as failure:
            piece, error = None, f"undecodable row group: {failure}"
        if held and (piece is None or size + piece.nbytes > BATCH_BYTES):
            count = sum(batch.num_rows for batch in held)
            yield RawBatch(first + done, count, settle(held))
            done, held, size = done + count, [], 0
        if piece is None:
            break
        held.append(piece)
        size += piece.nbytes
    if error:
        yield RawBatch(first + done, rows - done, None, error)


def _pieces(reader: pq.ParquetFile, group: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """The rows of a group in record batches of at most BATCH_BYTES, or of one row.

    How many rows are decoded in one go follows from how large the rows before were: footers do not tell, since one
    entry of a dictionary may be every row. Raises at the first row that cannot be decoded, never before it.
    """
    most, done = _most_rows(reader, group), 0
    try:
        for batch in reader.iter_batches(min(FIRST_ROWS, most), [group], columns, use_threads=False):
            yield from _halved(batch)
            done += batch.num_rows
            fitting = DECODED_BYTES * batch.num_rows // max(1, batch.nbytes)
            reader.reader.set_batch_size(max(1, min(most, 4 * batch.num_rows, fitting)))
    except (pa.ArrowException, OSError):
        batches = reader.iter_batches(1, [group], columns, use_threads=False)
        yield from islice(batches, done, None)


def _most_rows(reader: pq.ParquetFile, group: int) -> int:
    info = reader.metadata.row_group(group)
    chunks = [info.column(index) for index in range(info.num_columns)]
    size = sum(chunk.total_uncompressed_size for chunk in chunks)
    small = size <= SMALL_GROUP and not any(chunk.has_dictionary_page for chunk in chunks)
    fitting = int(DECODED_BYTES * info.num_rows // max(1, size))
    return max(1, min(MANY_ROWS if small else FEW_ROWS, fitting))


def _halved(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if batch.num_rows <= 1 or batch.nbytes <= BATCH_BYTES:
        yield batch
        return
    half = batch.num_rows // 2
    yield from _halved(batch.slice(0, half))
    yield from _halved(batch.slice(half))


def _settled(
    held: Sequence[pa.RecordBatch], schema: pa.Schema, columns: Sequence[str], text: str
) -> dict[str, pa.Array]:
    rows = sum(piece.num_rows for piece in held)
    table = pa.Table.from_batches(held)
    absent = {name: pa.nulls(rows, schema.field(name).type) for name in columns if name not in table.column_names}
    present = {name: as_type(table[name], schema.field(name).type, raw=name == text) for name in table.column_names}
    return present | absent


def as_type(column: pa.ChunkedArray, kind: pa.DataType, *, raw: bool = False) -> pa.Array:
    """One array of the corpus's type. A `raw` one of strings keeps its bytes, and stays binary if it came as that."""
    own = plain(column.type)
    if column.type != own:
        column = column.cast(own)
    array = column.combine_chunks()
    array = array if isinstance(array, pa.Array) else pa.concat_arrays(array.chunks)
    return array if raw and not pa.types.is_null(own) else _cast(array, kind)


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast to a type that `corpus.unify` made of this one and others: a struct's field that is not there is null."""
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), kind)
    if pa.types.is_large_string(array.type) or (
        pa.types.is_large_binary(array.type) and pa.types.is_large_string(kind)
    ):
        array = utf8.decoded(array)[0]
    if pa.types.is_struct(kind):
        fields = {item.name: array.field(index) for index, item in enumerate(array.type)}
        children = [_cast(fields.get(item.name, pa.nulls(len(array))), item.type) for item in kind]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=pc.is_null(array))
    if pa.types.is_large_list(kind) and pa.types.is_fixed_size_list(array.type):
        array = array.cast(pa.large_list(array.type.value_type))
    if pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _with_values(array, kind, _cast(array.values, kind.value_type))
    if pa.types.is_map(kind):
        pairs = [_cast(array.keys, kind.key_type), _cast(array.items, kind.item_type)]
        return _with_values(array, kind, pa.StructArray.from_arrays(pairs, fields=[kind.key_field, kind.item_field]))
    return array if array.type == kind else array.cast(kind, safe=not pa.types.is_floating(kind))


def _with_values(array: pa.Array, kind: pa.DataType, values: pa.Array) -> pa.Array:
    """A list or map array with the same shape and other values."""
    own = array.buffers()[: 1 if pa.types.is_fixed_size_list(kind) else 2]
    return pa.Array.from_buffers(kind, len(array), own, array.null_count, array.offset, [values])
