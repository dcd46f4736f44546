"""The table of slices that workers look row addresses up in: written once a run, read where it is needed."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline import columns
from pipeline.job import Job
from pipeline.keys import fingerprint
from pipeline.storage import Store
from pipeline.types import SLICE_BITS, Slice


def put(store: Store, slices: Sequence[Slice]) -> str:
    """Write (shard, first_row) by ordinal; returns the path, which is a function of the content."""
    path = f"listing/{fingerprint([[part.shard_id, part.first_row] for part in slices])[:16]}.parquet"
    if not store.exists(path):
        shards = pa.array([part.shard_id for part in slices], pa.large_string())
        firsts = pa.array([part.first_row for part in slices], pa.int64())
        columns.write_plain(store, path, pa.table({"shard": shards, "first_row": firsts}))
    return path


@functools.lru_cache(maxsize=4)
def _table(store: Store, path: str) -> pa.Table:
    with store.open(path) as handle:
        return pq.read_table(handle).combine_chunks()


def keys_of(job: Job, addresses: pa.Array) -> tuple[pa.Array, pa.Array]:
    """(shard, row in the shard) of row addresses; null for null."""
    table = _table(job.work, job.listing)
    present = ~pc.is_null(addresses).to_numpy(zero_copy_only=False)
    address = pc.fill_null(addresses, 0).to_numpy(zero_copy_only=False).astype(np.uint64)
    ordinal = (address >> np.uint64(SLICE_BITS)).astype(np.int64)
    row = (address & np.uint64((1 << SLICE_BITS) - 1)).astype(np.int64)
    if not table.num_rows:
        return pa.nulls(len(addresses), pa.large_string()), pa.nulls(len(addresses), pa.int64())
    index = pa.array(ordinal, mask=~present)
    first_row = table["first_row"].chunk(0).take(index)
    return table["shard"].chunk(0).take(index), pc.add(first_row, pa.array(row))
