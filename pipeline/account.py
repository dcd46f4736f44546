"""The built-in last count of every run: what happened to each row, by source, language, stage, reason and dataset."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline import columns, grid, ingest
from pipeline.frame import Frame
from pipeline.types import FAILED, GONE, SCORED, UNSCORABLE

LABEL = "account"
VERSION = 1
KEYS = ("kind", "stage", "reason", "source", "language", "dataset", "cell")
COUNTS = ("docs", "bytes", "tokens")
KINDS = ("kept", "removed", "quarantined")
"""What became of a row. Beside these, `in` counts every row apart, so that the sums can be checked against it,
`unscorable` counts states and `histogram` the grid cells of scores."""
SCHEMA = pa.schema([
    *((name, pa.large_string()) for name in KEYS[:-1]), ("cell", pa.int32()), *((name, pa.int64()) for name in COUNTS),
])  # fmt: skip


def measure(frame: Frame, order: Sequence[str], scores: Sequence[tuple[str, str]] = ()) -> pa.Table:
    """Counts of one batch. `order`: labels from ingest on. `scores`: (label, column) of which histograms are drawn."""
    size = frame.of(ingest.LABEL, "bytes").to_numpy()
    tokens = ingest.count_tokens(size, frame.token_ratio)
    kind, stage, reason = fates(frame, order)
    dataset = frame.of("split", "dataset") if "split" in order else pa.nulls(frame.rows, pa.large_string())
    rows = pa.table({
        "kind": pa.array(np.array(KINDS, object)[kind], pa.large_string()),
        "stage": pa.array(stage, pa.large_string()),
        "reason": reason,
        "source": frame.of(ingest.LABEL, "source"), "language": frame.of(ingest.LABEL, "language"),
        "dataset": dataset, "cell": pa.nulls(frame.rows, pa.int32()),
        "docs": pa.array(np.ones(frame.rows, np.int64)), "bytes": pa.array(size), "tokens": pa.array(tokens),
    })  # fmt: skip
    entered = rows.set_column(0, "kind", pa.array(["in"] * frame.rows, pa.large_string()))
    for name in ("stage", "reason", "dataset"):
        entered = entered.set_column(entered.column_names.index(name), name, pa.nulls(frame.rows, pa.large_string()))
    extras = [_unscorable(frame, label, size, tokens) for label in order if label not in (ingest.LABEL, "split")]
    extras += [_histogram(frame, label, column) for label, column in scores]
    return pa.concat_tables([_summed(rows), _summed(entered), *extras])


def _summed(rows: pa.Table) -> pa.Table:
    summed = rows.group_by(list(KEYS), use_threads=False).aggregate([(name, "sum") for name in COUNTS])
    return summed.rename_columns([*KEYS, *COUNTS]).cast(SCHEMA)


def fates(frame: Frame, order: Sequence[str]) -> tuple[np.ndarray, np.ndarray, pa.Array]:
    """(index into KINDS, label that decided or None, reason or null) of every row; a row ends at one label at most."""
    kind = np.zeros(frame.rows, np.int8)
    stage = np.full(frame.rows, None, object)
    reason = pa.nulls(frame.rows, pa.large_string())
    for label in order:
        own = frame.of(label, "reason")
        code = columns.state_codes(frame.of(label, "state"))
        broken = code == FAILED
        removed = (code < GONE) & ~pc.is_null(own).to_numpy(zero_copy_only=False)
        ended = broken | removed
        if ended.any():
            kind[removed], kind[broken] = 1, 2
            stage[ended] = label
            reason = pc.if_else(pa.array(ended), own.cast(pa.large_string()), reason)
    return kind, stage, reason


def _unscorable(frame: Frame, label: str, size: np.ndarray, tokens: np.ndarray) -> pa.Table:
    rows = columns.state_codes(frame.of(label, "state")) == UNSCORABLE
    if not rows.any():
        return SCHEMA.empty_table()
    return _by_stage(
        "unscorable", [label], [None], [int(rows.sum())], [int(size[rows].sum())], [int(tokens[rows].sum())]
    )


def _histogram(frame: Frame, label: str, column: str) -> pa.Table:
    scored = columns.state_codes(frame.of(label, "state")) == SCORED
    values = pc.fill_null(frame.of(label, column), 0).cast(pa.float32()).to_numpy(zero_copy_only=False)[scored]
    cells, counts = np.unique(grid.cells_of(values), return_counts=True)
    zeros = [0] * len(cells)
    return _by_stage("histogram", [f"{label}.{column}"] * len(cells), cells.tolist(), counts.tolist(), zeros, zeros)


def _by_stage(
    kind: str, stage: list[str], cell: list[int | None], docs: list[int], size: list[int], tokens: list[int]
) -> pa.Table:
    """Records of stages alone: no reason, source, language or dataset."""
    missing = [None] * len(stage)
    arrays = [[kind] * len(stage), stage, missing, missing, missing, missing, cell, docs, size, tokens]
    return pa.table([pa.array(values, item.type) for values, item in zip(arrays, SCHEMA, strict=True)], schema=SCHEMA)


def totals(table: pa.Table) -> dict[str, dict[str, list[int]]]:
    """What publication needs of one slice: {"datasets": {id: [docs, bytes]}, "cold": {"": [docs, bytes]}, ...}."""
    found: dict[str, dict[str, list[int]]] = {"datasets": {}, "cold": {}, "quarantined": {}}
    for row in table.select(["kind", "stage", "dataset", "docs", "bytes"]).to_pylist():
        where = {"kept": "datasets", "removed": "cold", "quarantined": "quarantined"}.get(row["kind"])
        if where:
            name = (row["dataset"] or "") if where == "datasets" else (row["stage"] or "")
            entry = found[where].setdefault(name, [0, 0])
            entry[0] += row["docs"]
            entry[1] += row["bytes"]
    return found
