"""Drive a global stage through its phases the way `pipeline.stage` promises it, in memory and as unkindly as allowed.

Slices are cut into batches of any size, records reach a reduce in any order and in any number of key ranges, and a
range without records is not reduced.
"""

from collections import Counter

import numpy as np
import pyarrow as pa
import xxhash

from pipeline.stage import Context, Emit, GlobalStage, names
from pipeline.types import SLICE_BITS


def corpus(texts, **columns):
    """A table with the columns that the engine derives from texts."""
    rows = len(texts)
    digests = [xxhash.xxh3_128_digest(text.encode()) for text in texts]
    own = {
        "text": pa.array(texts, pa.large_string()),
        "bytes": pa.array([len(text.encode()) for text in texts], pa.int64()),
        "id": pa.array([f"id-{digest.hex()[:8]}" for digest in digests], pa.string()),
        "content_hash": pa.array(digests, pa.binary(16)),
        "source": pa.nulls(rows, pa.string()),
    }
    return pa.table(own | columns)


def drive(stage: GlobalStage, config, slices, *, partitions=1, batch=1 << 20, seed=None):
    """(decisions: {row address: record}, facts: Counter) of a run over slices, tables of what the stage may read."""
    context, facts, records, addressed = Context(), Counter(), None, None
    for phase in stage.phases:
        if isinstance(phase, Emit):
            records = _emit(phase, config, context, slices, addressed, batch)
            continue
        if records is None:
            continue
        parts = _partitions(records, 1 if phase.single else partitions, seed)
        results = [phase.reduce(config, context, part) for part in parts]
        for _, found in results:
            facts.update(found)
        records = addressed = _filled([made for made, _ in results])
    rows = addressed.to_pylist() if addressed is not None else []
    assert len({row["key"] for row in rows}) == len(rows), "a row was addressed twice"
    return {row.pop("key"): row for row in rows}, facts


def address(ordinal, row):
    return ordinal << SLICE_BITS | row


def _emit(phase, config, context, slices, addressed, size):
    emit = phase.bind(config, context)
    out = []
    for ordinal, columns in enumerate(slices):
        table = columns.select(list(dict.fromkeys(names(phase.reads, config))))
        table = table.append_column("row", pa.array(range(table.num_rows), pa.uint32()))
        if phase.selected and addressed is None:
            continue
        table = _selected(table, ordinal, addressed) if phase.selected else table
        for start in range(0, table.num_rows, size):
            for batch in table.slice(start, size).combine_chunks().to_batches():
                made = emit(batch)
                assert made.schema.names[0] == "key"
                rows = made.column("row").to_numpy().astype(np.uint64) | np.uint64(ordinal << SLICE_BITS)
                place = made.schema.get_field_index("row")
                out.append(made.set_column(place, "row", pa.array(rows)))
    return _filled(out)


def _filled(batches):
    """One table of record batches, None if there are no records."""
    return pa.Table.from_batches(batches) if any(batch.num_rows for batch in batches) else None


def _selected(table, ordinal, addressed):
    keys = addressed["key"].to_numpy()
    mine = np.flatnonzero(keys >> np.uint64(SLICE_BITS) == ordinal)
    table = table.take(pa.array(keys[mine] & np.uint64((1 << SLICE_BITS) - 1)))
    for name in addressed.column_names[1:]:
        table = table.append_column(name, addressed[name].take(pa.array(mine)))
    return table


def _partitions(records, count, seed):
    keys = records["key"].to_numpy()
    for part in range(count):
        low, high = part * (1 << 64) // count, (part + 1) * (1 << 64) // count - 1
        rows = np.flatnonzero((keys >= np.uint64(low)) & (keys <= np.uint64(high)))
        if not len(rows):
            continue
        if seed is None:
            yield records.take(pa.array(rows))
        else:
            rows = np.random.default_rng(seed).permutation(rows)
            yield pa.concat_tables([records.take(pa.array(rows[::2])), records.take(pa.array(rows[1::2]))])
