"""select: remove what scores outside a share, a band or fixed bounds, group by group.

Cuts are quantiles of this corpus on the grid of `pipeline.grid`, exact and without sampling: `keep_top: 0.4` finds the
largest grid value v at which the rows with value >= v hold at least 0.4 of the group's weight. Equal values stay
together, so the share got is the smallest one reachable that is not below the share asked: never nothing, and
everything where all values are equal. Scores are read, never made; text is not read.

`by: quality.score` is cut at `quality.logit`: scores crowd near 1, where neither float32 nor a grid tells them apart.
Fixed bounds (`min`, `max`) compare the column that was named.

Facts, as JSON: `{column, weight, groups: {key: {group, docs, unscorable_docs, protected_docs, weight, asked, got, low,
high, from}}}`. A row passes when low <= value < high (null: no bound); `got` is the share of `weight` that passes,
protected rows among it; `from` is the parent group whose bounds are used because the group is under `min_group`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from pipeline import grid
from pipeline.errors import setting_error
from pipeline.stage import Context, SettleStage, StageConfig, require

RULES = ("keep_top", "keep_bottom", "band", "min", "max")
REASONS = {
    "below_cut": "score < threshold, the lowest value that keep_top keeps in this group",
    "above_cut": "score >= threshold, the first value above what keep_bottom keeps in this group",
    "below_min": "score < threshold, the setting min",
    "above_max": "score > threshold, the setting max",
    "too_easy": "score < threshold, the lowest value inside the band of this group",
    "too_hard": "score >= threshold, the first value above the band of this group",
    "unscorable": "there is no finite score to judge by",
}


class Band(StageConfig):
    """The part between two quantiles. At most `low` of the weight goes below it, at most 1 - `high` above it."""

    low: float = Field(default=0.0, ge=0, lt=1)
    high: float = Field(default=1.0, gt=0, le=1)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        require(self.low < self.high, "band", {"low": self.low, "high": self.high}, "low must lie below high")
        return self


class SelectConfig(StageConfig):
    by: str
    """Column of numbers to judge by."""
    keep_top: float | None = Field(default=None, gt=0, le=1)
    """Share of each group's weight to keep, highest values first."""
    keep_bottom: float | None = Field(default=None, gt=0, le=1)
    """Share of each group's weight to keep, lowest values first."""
    band: Band | None = None
    """Two quantiles between which rows are kept; for a difficulty, what lies outside is too easy or too hard."""
    min: float | None = Field(default=None, allow_inf_nan=False)
    """Lowest value kept."""
    max: float | None = Field(default=None, allow_inf_nan=False)
    """Highest value kept."""
    weight: Literal["tokens", "documents", "bytes"] = "tokens"
    """What shares are counted in."""
    within: tuple[str, ...] = ()
    """Columns whose values make groups, each with its own cut; null is a value."""
    min_group: int = Field(default=1000, ge=1)
    """Documents with a score below which a group uses the cut of its parent: the group without its last column."""
    unscorable: Literal["remove", "keep"] = "remove"
    """What happens to rows without a score."""
    ties: Literal["together", "hash"] = "together"
    """Equal values share one fate."""

    @model_validator(mode="after")
    def _one_rule(self) -> Self:
        given = [name for name in RULES if getattr(self, name) is not None]
        rule = "exactly one of keep_top, keep_bottom, band, or min and max must be given"
        require(len(given) == 1 or given == ["min", "max"], "select", given, rule)
        if self.min is not None and self.max is not None:
            require(self.min <= self.max, "min", self.min, f"it must not exceed max ({self.max})")
        require(len(set(self.within)) == len(self.within), "within", list(self.within), "each column may stand once")
        if self.ties == "hash":
            raise setting_error(
                "ties", "hash", "splitting tied values by content hash is not built yet", "leave it out"
            )
        return self

    def check_columns(self, types: Mapping[str, pa.DataType]) -> None:
        grid.check_columns(self.by, self.within, types)

    @property
    def column(self) -> str:
        """The column that is compared: `by`, or its finer twin where cuts are quantiles."""
        return self.by if self.fixed else grid.CUT_AT.get(self.by, self.by)

    @property
    def fixed(self) -> bool:
        return self.min is not None or self.max is not None


def measure(config: SelectConfig, context: Context) -> Callable[[pa.RecordBatch], pa.Table]:
    def count(batch: pa.RecordBatch) -> pa.Table:
        docs = grid.amounts(batch, "documents")
        weight = grid.amounts(batch, config.weight)
        exempt = _protected(batch, context)
        counts = {"docs": docs, "weight": weight, "protected_docs": docs * exempt, "protected_weight": weight * exempt}
        return grid.count(batch, config.column, config.within, counts)

    return count


def settle(config: SelectConfig, context: Context, table: pa.Table) -> dict[str, Any]:
    groups = {}
    bounds: dict[grid.Name, tuple[float | None, float | None]] = {}
    for group in grid.grouped(table, config.min_group):
        if group.basis_name not in bounds:
            bounds[group.basis_name] = _bounds(config, group.basis)
        low, high = bounds[group.basis_name]
        groups[group.key] = {
            "group": dict(zip(config.within, group.name, strict=True)),
            "docs": group.own.total("docs"),
            "unscorable_docs": group.unranked["docs"],
            "protected_docs": group.own.total("protected_docs") + group.unranked["protected_docs"],
            "weight": group.own.total("weight"),
            "asked": _asked(config),
            "got": None if config.fixed else _got(group.own, low, high),
            "low": low,
            "high": high,
            "from": None
            if group.basis_name == group.name
            else dict(zip(config.within, group.basis_name, strict=False)),
        }
    return {"column": config.column, "weight": config.weight, "groups": groups}


def decide(config: SelectConfig, context: Context, batch: pa.RecordBatch) -> pa.RecordBatch:
    values = grid.scores(batch.column(config.column))
    low, high, names = _limits(config, context, batch)
    below = values < low
    above = values > high if config.fixed else values >= high
    removed = np.select([below, above, np.isnan(values) & (config.unscorable == "remove")], [0, 1, 2], default=-1)
    removed[_protected(batch, context)] = -1
    passes = removed < 0
    unjudged = passes | (removed == 2)
    reasons = pa.DictionaryArray.from_arrays(pa.array(removed, pa.int32(), mask=passes), [*names, "unscorable"])
    return pa.record_batch(
        {
            "reason": reasons.dictionary_decode(),
            "score": pa.array(values, mask=unjudged),
            "threshold": pa.array(np.where(below, low, high), mask=unjudged),
        }
    )


def _limits(
    config: SelectConfig, context: Context, batch: pa.RecordBatch
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], tuple[str, str]]:
    """Each row's lower and upper bound, and the reasons for what lies beyond them."""
    if config.fixed:
        bounds, codes = [(config.min, config.max)], np.zeros(batch.num_rows, dtype=np.int64)
        names = "below_min", "above_max"
    else:
        keys, codes = grid.groups(batch, config.within)
        facts = [context.facts["groups"][key] for key in keys]
        bounds = [(fact["low"], fact["high"]) for fact in facts]
        names = ("too_easy", "too_hard") if config.band else ("below_cut", "above_cut")
    low = np.array([-np.inf if low is None else low for low, _ in bounds])
    high = np.array([np.inf if high is None else high for _, high in bounds])
    return low[codes], high[codes], names


def _bounds(config: SelectConfig, histogram: grid.Histogram) -> tuple[float | None, float | None]:
    """(low, high) of the values to keep; None where a share of 1, or nothing to weigh, leaves that side open."""
    cells, weights = histogram.cells, histogram.counts["weight"]
    if config.fixed or not weights.any():
        return None, None
    top, bottom = config.keep_top, config.keep_bottom
    low_share = 1 - Fraction(str(config.band.low)) if config.band else Fraction(str(top or 1))
    high_share = config.band.high if config.band else bottom or 1
    low = float(grid.lower_edge(grid.keep_top(cells, weights, low_share))) if low_share < 1 else None
    high = float(grid.upper_edge(grid.quantile(cells, weights, high_share))) if high_share < 1 else None
    return low, high


def _asked(config: SelectConfig) -> float | None:
    if config.band:
        return float(Fraction(str(config.band.high)) - Fraction(str(config.band.low)))
    return config.keep_top or config.keep_bottom


def _got(histogram: grid.Histogram, low: float | None, high: float | None) -> float | None:
    """The share of the weight that passes: inside the bounds, or protected."""
    total = histogram.total("weight")
    if not total:
        return None
    edges = grid.lower_edge(histogram.cells)
    inside = np.ones(len(edges), dtype=bool)
    if low is not None:
        inside &= edges >= low
    if high is not None:
        inside &= edges < high
    kept = np.where(inside, histogram.counts["weight"], histogram.counts["protected_weight"])
    return int(kept.sum()) / total


def _protected(batch: pa.RecordBatch, context: Context) -> npt.NDArray[np.bool_]:
    """Rows of the sources that the `sources` table protects; "(none)" there names rows without a source."""
    names = [name for name, settings in context.sources.items() if settings.get("protect")]
    if not names:
        return np.zeros(batch.num_rows, dtype=bool)
    source = batch.column("source").cast(pa.large_string())
    return np.asarray(pc.is_in(pc.fill_null(source, "(none)"), value_set=pa.array(names, pa.large_string())))


def _measure_reads(config: SelectConfig) -> tuple[str, ...]:
    weight = () if config.weight == "documents" else (config.weight,)
    return tuple(dict.fromkeys((config.column, *weight, "source", *config.within)))


def _decide_reads(config: SelectConfig) -> tuple[str, ...]:
    return tuple(dict.fromkeys((config.column, "source", *config.within)))


STAGE = SettleStage(
    name="select",
    version=1,
    config=SelectConfig,
    measure=measure,
    measure_reads=_measure_reads,
    count_keys=grid.COUNT_KEYS,
    settle=settle,
    decide=decide,
    decide_reads=_decide_reads,
    decide_settings=("min", "max", "unscorable"),
    reasons=REASONS,
)
