"""Sidecars: the columns one stage wrote for one slice, row for row with its input.

A sidecar holds the stage's columns without the label, and beside them
    state     scored | unscorable | gone (dead before this stage) | failed (quarantined here)
    measured  whether the row's measures are known: carried measures of gone rows are kept, never shown or counted
    reason    null for a row that passes; for a failed row the reason of its quarantine, explained in `message`
A row is alive after a stage when its state is scored or unscorable and its reason is null.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import ContractError
from pipeline.storage import Store
from pipeline.types import FAILED, GONE, STATES, Output

STATE_TYPE = pa.dictionary(pa.int8(), pa.string())
NUMBERS_ONLY = {"reason": pa.large_string(), "score": pa.float64(), "threshold": pa.float64()}
DECISIONS = NUMBERS_ONLY | {
    "charged_shard": pa.large_string(), "charged_row": pa.int64(), "charged_id": pa.large_string(),
    "similarity": pa.float64(), "similarity_kind": pa.string(), "inter": pa.int32(), "union": pa.int32(),
    "group_size": pa.int32(),
}  # fmt: skip


def states(codes: np.ndarray) -> pa.Array:
    """The `state` column of int8 codes, in the order of pipeline.types.STATES."""
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int8()), pa.array(STATES))


def state_codes(column: pa.ChunkedArray | pa.Array) -> np.ndarray:
    """The codes of a `state` column, whatever order its dictionary came back in."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], STATE_TYPE)
    lookup = np.array([STATES.index(name) for name in array.dictionary.to_pylist()] or [0], np.int8)
    codes: np.ndarray = lookup[array.indices.to_numpy(zero_copy_only=False)]
    return codes


def alive(sidecar: pa.Table) -> np.ndarray:
    """Which rows are alive after the stage of this sidecar: bool, one per row."""
    passes = pc.is_null(sidecar["reason"]).to_numpy()
    live: np.ndarray = (state_codes(sidecar["state"]) < GONE) & passes
    return live


def failed(sidecar: pa.Table) -> np.ndarray:
    broken: np.ndarray = state_codes(sidecar["state"]) == FAILED
    return broken


def spread(values: pa.Array | pa.ChunkedArray, index: np.ndarray) -> pa.Array:
    """values[index[i]] at i, null where index[i] is negative."""
    missing = index < 0
    taken = values.take(pa.array(np.where(missing, 0, index), mask=missing))
    return taken.combine_chunks() if isinstance(taken, pa.ChunkedArray) else taken


def fixed_bytes(column: pa.Array) -> memoryview:
    """The values of a fixed_size_binary column without nulls, back to back."""
    width, data = column.type.byte_width, column.buffers()[1]
    whole = memoryview(data if data is not None else b"")
    return whole[width * column.offset : width * (column.offset + len(column))]


def place(positions: np.ndarray, rows: int) -> np.ndarray:
    """The index for `spread` that puts value j at row positions[j] and null elsewhere."""
    index = np.full(rows, -1, np.int64)
    index[positions] = np.arange(len(positions))
    return index


def write(store: Store, path: str, batches: Sequence[Mapping[str, pa.Array]], names: Mapping[str, str]) -> Output:
    """Publish a sidecar; `names` (shard, first_row, key) go into its metadata and are checked when it is read."""
    parts = [pa.table(dict(batch)) for batch in batches]
    table = pa.concat_tables(parts, promote_options="permissive").unify_dictionaries()
    table = table.replace_schema_metadata({"corpusmill": "sidecar/1", **names})
    with store.writer(path) as handle:
        pq.write_table(table, handle, compression="zstd", compression_level=1, row_group_size=1 << 20)
    return store.output(path, rows=table.num_rows)


def read(
    store: Store, path: str, rows: int, names: Mapping[str, str], columns: Sequence[str] | None = None
) -> pa.Table:
    """Read a sidecar. Raises ContractError (exit 3) if it is not the one of these rows, shard and key."""
    with store.open(path) as handle:
        reader = pq.ParquetFile(handle)
        own = reader.schema_arrow.metadata or {}
        wrong = [name for name, value in names.items() if own.get(name.encode()) != value.encode()]
        if reader.metadata.num_rows != rows:
            wrong.append("rows")
        if wrong:
            raise ContractError(
                f"{store.url}/{path}: {', '.join(wrong)} differ from the ledger's record; "
                "the work folder was changed from outside: delete this file and run again"
            )
        return reader.read(columns=list(columns) if columns is not None else None, use_threads=False)


def write_plain(store: Store, path: str, table: pa.Table) -> Output:
    """Publish a small Parquet table that is no sidecar."""
    with store.writer(path) as handle:
        pq.write_table(table, handle, compression="zstd")
    return store.output(path, rows=table.num_rows)
