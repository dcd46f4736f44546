"""Partitioned files between the phases of a global stage.

One file per cell and phase, or several where records are many: an Arrow stream of record batches sorted by `key` over
the whole file, batch i holding the keys of range i of equal ranges of the key space, empty ones too. Readers ask for a
range of keys, so they need not know into how many batches a writer cut, and nothing depends on that number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from pipeline.storage import Store
from pipeline.types import SLICE_BITS, Output

KEY_SPACE = 1 << 64
"""Hashed keys fill this space evenly; row addresses fill `slices << SLICE_BITS`."""
BATCHES = 64


def row_space(slices: int) -> int:
    """The key space of records addressed to rows of a corpus of so many slices."""
    return max(1, slices) << SLICE_BITS


def bounds(part: int, parts: int, space: int) -> tuple[int, int]:
    """The key range [low, high) of one of `parts` equal ranges of `space`."""
    return part * space // parts, (part + 1) * space // parts


def write(store: Store, path: str, records: list[pa.RecordBatch], space: int) -> tuple[Output, int]:
    """Sort the records by key (ties by row where there is one), publish them, say how many bytes they were.

    `records` is emptied: each batch is sorted by itself and let go, so that texts are held once.
    """
    schema = (records[0].schema if records else pa.schema([("key", pa.uint64())])).with_metadata({"space": str(space)})
    rows, raw = sum(batch.num_rows for batch in records), sum(batch.nbytes for batch in records)
    held = []
    while records:
        batch = records.pop()
        keys = batch["key"].to_numpy()
        ordered = bool((keys[1:] >= keys[:-1]).all())
        held.append(batch if ordered else batch.take(pa.array(np.argsort(keys, kind="stable"))))
    starts = [np.uint64(bounds(index, BATCHES, space)[0]) for index in range(1, BATCHES)]
    cuts = [[0, *np.searchsorted(batch["key"].to_numpy(), starts).tolist(), batch.num_rows] for batch in held]
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with store.writer(path) as handle, pa.ipc.new_file(handle, schema, options=options) as out:
        for index in range(BATCHES):
            pieces = [
                batch.slice(cut[index], cut[index + 1] - cut[index]) for batch, cut in zip(held, cuts, strict=True)
            ]
            out.write_batch(_sorted([piece for piece in pieces if piece.num_rows], schema))
    return store.output(path, rows=rows), raw


def _sorted(pieces: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """The pieces as one batch in the order of (key, row)."""
    if not pieces:
        return pa.RecordBatch.from_pylist([], schema=schema)
    if len(pieces) == 1 and pieces[0].num_rows == 1:  # it may be a large text, and is not copied
        return pieces[0].cast(schema)
    table = pa.Table.from_batches(pieces).combine_chunks()
    by = [table[name].to_numpy() for name in ("row", "key") if name in table.column_names]
    return table.take(pa.array(np.lexsort(by))).combine_chunks().to_batches()[0].cast(schema)


def read(store: Store, path: str, low: int, high: int) -> pa.Table | None:
    """The records of one file with low <= key < high, or None if there are none."""
    with store.open(path) as handle:
        reader = pa.ipc.open_file(handle)
        space = int(reader.schema.metadata[b"space"])
        found = []
        for index in range(reader.num_record_batches):
            first, last = bounds(index, reader.num_record_batches, space)
            if last <= low or first >= high:
                continue
            batch = reader.get_batch(index)
            if batch.num_rows and (first < low or last > high):
                keys = batch.column("key").to_numpy()
                start = 0 if low <= first else int(np.searchsorted(keys, np.uint64(low)))
                stop = len(keys) if high >= last else int(np.searchsorted(keys, np.uint64(high)))
                batch = batch.slice(start, stop - start)
            if batch.num_rows:
                found.append(batch)
    return pa.Table.from_batches(found).replace_schema_metadata(None) if found else None


def gather(store: Store, sources: Iterable[tuple[str, int | None]], low: int, high: int) -> pa.Table | None:
    """The records of many files in a key range. A file of slice `ordinal` gets its rows made into corpus addresses."""
    tables = []
    for path, ordinal in sources:
        table = read(store, path, low, high)
        if table is not None:
            tables.append(_addressed(table, ordinal) if ordinal is not None else table)
    return pa.concat_tables(tables) if tables else None


def _addressed(table: pa.Table, ordinal: int) -> pa.Table:
    rows = table["row"].to_numpy().astype(np.uint64) | np.uint64(ordinal << SLICE_BITS)
    return table.set_column(table.column_names.index("row"), "row", pa.array(rows))


# -- counts of settle stages -----------------------------------------------------------------------------------------


def write_counts(store: Store, path: str, table: pa.Table) -> Output:
    """Publish the counts of one slice."""
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with store.writer(path) as handle, pa.ipc.new_file(handle, table.schema, options=options) as out:
        out.write_table(table)
    return store.output(path, rows=table.num_rows)


def read_counts(store: Store, path: str) -> pa.Table:
    with store.open(path) as handle:
        return pa.ipc.open_file(handle).read_all()
