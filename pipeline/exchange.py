"""Partitioned files between the phases of a global stage.

One file per cell and phase: an Arrow stream of record batches sorted by `key` over the whole file, batch i holding the
keys of range i of equal ranges of the key space, empty ones too. Readers ask for a range of keys, so they need not know
into how many batches a writer cut, and nothing depends on that number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

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


def write(store: Store, path: str, records: Sequence[pa.RecordBatch], space: int) -> tuple[Output, int]:
    """Sort the records by key (ties keep row order where there is one), publish them, say how many bytes they were."""
    table = pa.Table.from_batches(records).combine_chunks() if records else None
    keys = table["key"].to_numpy() if table is not None else np.empty(0, np.uint64)
    order = _order(table, keys)
    cuts = np.searchsorted(keys[order], [np.uint64(bounds(i, BATCHES, space)[0]) for i in range(BATCHES)])
    edges = [*cuts.tolist(), len(order)]
    schema = (table.schema if table is not None else pa.schema([("key", pa.uint64())])).with_metadata(
        {"space": str(space)}
    )
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with store.writer(path) as handle, pa.ipc.new_file(handle, schema, options=options) as out:
        for low, high in pairwise(edges):
            out.write_batch(_take(table, order[low:high], schema))
    raw = table.nbytes if table is not None else 0
    return store.output(path, rows=len(order)), raw


def _order(table: pa.Table | None, keys: np.ndarray) -> np.ndarray:
    if table is None:
        return np.empty(0, np.int64)
    if "row" in table.column_names:
        return np.lexsort((table["row"].to_numpy(), keys))
    return np.argsort(keys, kind="stable")


def _take(table: pa.Table | None, rows: np.ndarray, schema: pa.Schema) -> pa.RecordBatch:
    if table is None or not len(rows):
        return pa.RecordBatch.from_pylist([], schema=schema)
    batches = table.take(pa.array(rows)).combine_chunks().to_batches()
    return batches[0].cast(schema)


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
