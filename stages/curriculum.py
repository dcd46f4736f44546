"""curriculum: give every row a bucket, 0 the lowest scores, by weighted quantiles within groups.

Bucket k holds edge[k] <= score < edge[k + 1]. Inner edge k is the first value above the quantile k / buckets on the
grid of `pipeline.grid`, so equal scores share a bucket and every bucket ends at or above its share. Fewer distinct
scores than buckets leave some empty; one score for all puts all in bucket 0. A row without a score gets bucket -1 and
is published as a dataset of its own: unscorable text is never easiest or hardest. Nothing is removed.

`by: quality.score` is cut at `quality.logit`: scores crowd near 1, where neither float32 nor a grid tells them apart.

Facts, as JSON: `{column, buckets, groups: {key: {group, edges, docs, tokens, unscorable_docs, unscorable_tokens,
from}}}` with one number a bucket in `docs` and `tokens`, and the buckets - 1 inner edges (the outer ones are infinite,
which JSON cannot say; none at all where nothing has a score). `from` is the parent group whose edges are used because
the group is under `min_group`.

A curriculum is phases times weights of datasets, since trainers shuffle what is in a dataset. The settings from
`warmup` on are for the phases of the manifest (`pipeline.handoff.phases`) and touch no row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Literal, Self

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from pipeline import grid
from pipeline.stage import Context, SettleStage, StageConfig, require

UNSCORABLE = -1
WRITES = pa.schema([("bucket", pa.int16())])
PLAN = ("warmup", "anneal", "warmup_buckets", "anneal_buckets")


class CurriculumConfig(StageConfig):
    by: str
    """Column of numbers to order by; bucket 0 holds the lowest."""
    buckets: int = Field(default=5, ge=1, le=1000)
    """How many buckets each group is cut into."""
    within: tuple[str, ...] = ()
    """Columns whose values make groups, each with its own edges; null is a value."""
    weight: Literal["tokens", "documents", "bytes"] = "tokens"
    """What makes buckets equal."""
    min_group: int = Field(default=1000, ge=1)
    """Documents with a score below which a group uses the edges of its parent: the group without its last column."""
    warmup: float = Field(default=0.1, ge=0, lt=1)
    """Share of the training tokens in the first phase, on easy buckets."""
    anneal: float = Field(default=0.1, ge=0, lt=1)
    """Share of the training tokens in the last phase, on the best buckets, while the learning rate decays."""
    warmup_buckets: tuple[int, ...] | None = None
    """Buckets of the first phase; by default the lowest two fifths."""
    anneal_buckets: tuple[int, ...] | None = None
    """Buckets of the last phase; by default the fifth below the hardest one, which gathers noise with what is hard."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        require(len(set(self.within)) == len(self.within), "within", list(self.within), "each column may stand once")
        require(
            self.warmup + self.anneal < 1, "warmup", self.warmup, f"it must leave room beside anneal ({self.anneal})"
        )
        for name in ("warmup_buckets", "anneal_buckets"):
            chosen = getattr(self, name)
            rule = f"it must name buckets from 0 to {self.buckets - 1}, at least one"
            require(chosen is None or (chosen and all(0 <= k < self.buckets for k in chosen)), name, chosen, rule)
        return self

    def check_columns(self, types: Mapping[str, pa.DataType]) -> None:
        grid.check_columns(self.by, self.within, types)

    @property
    def column(self) -> str:
        """The column that is compared: `by`, or its finer twin."""
        return grid.CUT_AT.get(self.by, self.by)


def measure(config: CurriculumConfig, context: Context) -> Callable[[pa.RecordBatch], pa.Table]:
    def count(batch: pa.RecordBatch) -> pa.Table:
        counts = {
            "docs": grid.amounts(batch, "documents"),
            "tokens": grid.amounts(batch, "tokens"),
            "weight": grid.amounts(batch, config.weight),
        }
        return grid.count(batch, config.column, config.within, counts)

    return count


def settle(config: CurriculumConfig, context: Context, table: pa.Table) -> dict[str, Any]:
    groups = {}
    edges: dict[grid.Name, list[float]] = {}
    for group in grid.grouped(table, config.min_group):
        if group.basis_name not in edges:
            edges[group.basis_name] = _edges(group.basis, config.buckets)
        buckets = np.searchsorted(edges[group.basis_name], grid.lower_edge(group.own.cells), side="right")
        groups[group.key] = {
            "group": dict(zip(config.within, group.name, strict=True)),
            "edges": edges[group.basis_name],
            "docs": _by_bucket(buckets, group.own.counts["docs"], config.buckets),
            "tokens": _by_bucket(buckets, group.own.counts["tokens"], config.buckets),
            "unscorable_docs": group.unranked["docs"],
            "unscorable_tokens": group.unranked["tokens"],
            "from": None
            if group.basis_name == group.name
            else dict(zip(config.within, group.basis_name, strict=False)),
        }
    return {"column": config.column, "buckets": config.buckets, "groups": groups}


def decide(config: CurriculumConfig, context: Context, batch: pa.RecordBatch) -> pa.RecordBatch:
    values = grid.scores(batch.column(config.column))
    keys, codes = grid.groups(batch, config.within)
    edges = np.full((len(keys), config.buckets - 1), np.inf)
    for row, key in enumerate(keys):
        if found := context.facts["groups"][key]["edges"]:
            edges[row] = found
    buckets = np.where(np.isnan(values), UNSCORABLE, 0).astype(np.int16)
    for k in range(config.buckets - 1):
        buckets += values >= edges[codes, k]
    return pa.record_batch({"bucket": buckets}, schema=WRITES)


def _edges(histogram: grid.Histogram, buckets: int) -> list[float]:
    """The inner edges; none where nothing has a score."""
    cells, weights = histogram.cells, histogram.counts["weight"]
    if not len(cells):
        return []
    shares = [Fraction(k, buckets) for k in range(1, buckets)]
    return [float(edge) for edge in grid.upper_edge([grid.quantile(cells, weights, share) for share in shares])]


def _by_bucket(buckets: grid.Ints, amounts: grid.Ints, number: int) -> list[int]:
    sums = np.zeros(number, dtype=np.int64)
    np.add.at(sums, buckets, amounts)
    return [int(total) for total in sums]


def _measure_reads(config: CurriculumConfig) -> tuple[str, ...]:
    weight = () if config.weight == "documents" else (config.weight,)
    return tuple(dict.fromkeys((config.column, "tokens", *weight, *config.within)))


def _decide_reads(config: CurriculumConfig) -> tuple[str, ...]:
    return tuple(dict.fromkeys((config.column, *config.within)))


STAGE = SettleStage(
    name="curriculum",
    version=1,
    config=CurriculumConfig,
    measure=measure,
    measure_reads=_measure_reads,
    count_keys=grid.COUNT_KEYS,
    settle=settle,
    decide=decide,
    decide_reads=_decide_reads,
    decide_settings=PLAN,
    decide_writes=WRITES,
)
