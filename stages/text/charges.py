"""What duplicate stages write to the rows of a group, and the figures about groups that they report."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

HISTOGRAM = "size_histogram_"


def charged_records(
    rows: NDArray[np.uint64],
    ids: pa.Array,
    charge: NDArray[np.int64],
    *,
    reason: str,
    kind: str,
    evidence: Mapping[str, pa.Array],
) -> pa.RecordBatch:
    """Records for the rows of every group of two or more, by row address.

    charge[i] is the position of the kept row that row i is charged to, or negative for a kept row. A removed row gets
    its reason, what it is charged to and its `evidence` (arrays as long as `rows`); keepers the size of their group.
    """
    removed = charge >= 0
    keeper = np.where(removed, charge, np.arange(len(charge)))
    size = np.bincount(keeper, minlength=len(charge))[keeper]
    order = np.flatnonzero(size > 1)
    order = order[np.argsort(rows[order])]
    kept = ~removed[order]
    to = keeper[order]
    columns = {
        "key": pa.array(rows[order]),
        "reason": pc.if_else(pa.array(kept), None, pa.scalar(reason, pa.large_string())),
        "similarity_kind": pc.if_else(pa.array(kept), None, pa.scalar(kind)),
        "charged": pa.array(rows[to], mask=kept),
        "charged_id": ids.take(pa.array(to, mask=kept)),
        "group_size": pa.array(size[order].astype(np.int32)),
    }
    where = pa.array(order, mask=kept)
    return pa.record_batch(columns | {name: values.take(where) for name, values in evidence.items()})


def size_facts(sizes: NDArray[np.int64]) -> dict[str, int]:
    """Counts over groups that add up over partitions: rows in groups, groups, and groups by the log2 of their size."""
    counts = np.bincount(np.frexp(sizes)[1] - 1)
    histogram = {f"{HISTOGRAM}{log2}": int(count) for log2, count in enumerate(counts) if count}
    return {"candidates": int(sizes.sum()), "components": len(sizes)} | histogram


def histogram(facts: Mapping[str, int]) -> list[list[int]]:
    """[[log2 of the size, groups], ...] from what `size_facts` counted."""
    return sorted([int(name.removeprefix(HISTOGRAM)), n] for name, n in facts.items() if name.startswith(HISTOGRAM))
