"""The phases of a manifest: how many tokens of each dataset are drawn when.

Every plan first settles how much of each dataset is read in all, in proportion to its tokens and within its epochs, and
only then when. A curriculum and its control therefore read the same amounts and differ in order alone.

The default shape (a short warm-up on easy buckets, a stable mix, a last phase on the best buckets while the learning
rate decays) is where published results agree; its shares are a choice of ours, not a published optimum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

Dataset = Mapping[str, Any]
PHASES = 3
"""Of a curriculum. A dataset gets at least one token for each, in the control too: the amounts are to be the same."""

TINY = Fraction(1, 10**9)
"""Weight of the datasets that a phase did not choose, where the floor is 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Shares of the tokens for the first and last phase, and the buckets each is drawn from (None: the default)."""

    warmup: float = 0.1
    anneal: float = 0.1
    warmup_buckets: Sequence[int] | None = None
    anneal_buckets: Sequence[int] | None = None


class Schedule(NamedTuple):
    phases: list[dict[str, Any]]
    """As in the manifest. Empty when there is nothing to train on."""
    tokens: int
    """Where the last phase ends."""
    shortfall: int
    """Tokens asked for that the epoch limits do not allow."""
    warnings: tuple[str, ...]


class _Phase(NamedTuple):
    name: str
    lr_stage: str | None
    length: int
    buckets: frozenset[int]


def phases(
    datasets: Sequence[Dataset],
    total_tokens: int | None,
    plan: Plan | None,
    limits: Mapping[str, Any],
    *,
    max_epochs: Mapping[str, float] | None = None,
    seed: int = 0,
) -> Schedule:
    """Phases over the train datasets (the manifest's records) that hold tokens.

    `total_tokens` None is one epoch of what is kept; `plan` None is one phase with weights by size: the control, and
    the only phase of a corpus without buckets. `limits` are the manifest's: `epochs` caps every dataset, and
    `max_epochs` (by dataset id) may cap some lower. In every phase each dataset has at least `limits.floor` times its
    share of all tokens, to within a token a dataset. Phase i shuffles with seed + i.
    """
    train = sorted((d for d in datasets if d["split"] == "train" and d["tokens"] > 0), key=lambda d: str(d["id"]))
    sizes = [int(d["tokens"]) for d in train]
    own = max_epochs or {}
    epochs = [min(limits["epochs"], own.get(d["id"], limits["epochs"])) for d in train]
    most = [int(Fraction(str(cap)) * size) for cap, size in zip(epochs, sizes, strict=True)]
    asked = sum(sizes) if total_tokens is None else total_tokens
    total = min(asked, sum(most))
    buckets = 1 + max((d["bucket"] for d in datasets if d["bucket"] is not None), default=-1)
    timeline = [phase for phase in _timeline(plan, total, buckets) if phase.length]
    lowest = _if_enough([PHASES if tokens >= PHASES else 0 for tokens in most], total)
    targets = apportion(total, sizes, lowest, most)
    drawn = _draw(timeline, targets, train, Fraction(str(limits["floor"])))
    warning = (
        f"the phases end at {total:,} of {asked:,} tokens, {asked - total:,} short: more would read a dataset "
        f"over {limits['epochs']} times or over its own max_epochs"
    )
    records = _records(timeline, drawn, train, seed)
    return Schedule(records, total, asked - total, (warning,) if total < asked else ())


def apportion(
    amount: int, weights: Sequence[int | Fraction], lowest: Sequence[int], highest: Sequence[int]
) -> list[int]:
    """`amount` in integer parts, proportional to `weights` as far as the bounds allow; the parts add up exactly.

    Needs sum(lowest) <= amount <= sum(highest) and weights above 0. What rounding leaves goes to the largest
    remainders, the first of equal ones.
    """
    parts = [Fraction(0)] * len(weights)
    free = list(range(len(weights)))
    left = Fraction(amount)
    while free:
        scale = left / sum(weights[i] for i in free)
        wanted = {i: scale * weights[i] for i in free}
        bounded = {i: min(max(wanted[i], Fraction(lowest[i])), Fraction(highest[i])) for i in free}
        excess = sum(bounded.values()) - left
        # Bounds that ask too much in sum are settled by those held up first, and the other way round: what is left
        # then moves every other part further the same way, so a settled part never has to be taken back.
        settled = {i for i in free if excess == 0 or (bounded[i] - wanted[i]) * excess > 0}
        for i in settled:
            parts[i] = bounded[i]
            left -= bounded[i]
        free = [i for i in free if i not in settled]
    whole = [int(part) for part in parts]
    by_remainder = sorted(range(len(parts)), key=lambda i: (whole[i] - parts[i], i))
    for i in by_remainder[: amount - sum(whole)]:
        whole[i] += 1
    return whole


def _timeline(plan: Plan | None, total: int, buckets: int) -> list[_Phase]:
    if plan is None:
        return [_Phase("all", None, total, frozenset())]
    easy = range(-(-2 * buckets // 5))
    # The hardest bucket gathers noise with what is hard, so the best data are looked for below it.
    below = buckets - 1 if buckets > 2 else buckets
    best = range(below - max(1, buckets // 5), below)
    warmup, anneal = (int(Fraction(str(share)) * total) for share in (plan.warmup, plan.anneal))
    return [
        _Phase("warmup", "warmup", warmup, frozenset(easy if plan.warmup_buckets is None else plan.warmup_buckets)),
        _Phase("stable", "stable", total - warmup - anneal, frozenset()),
        _Phase("anneal", "decay", anneal, frozenset(best if plan.anneal_buckets is None else plan.anneal_buckets)),
    ]


def _draw(
    timeline: Sequence[_Phase], targets: Sequence[int], train: Sequence[Dataset], floor: Fraction
) -> list[list[int]]:
    """Tokens by phase and dataset. Phases with buckets choose; the one without takes what they leave."""
    total = sum(targets)
    left = list(targets)
    drawn: dict[str, list[int]] = {}
    waiting = total
    ordered = sorted(timeline, key=lambda phase: not phase.buckets)
    for later, phase in zip(reversed(range(len(ordered))), ordered, strict=True):
        waiting -= phase.length
        chosen = [size if d["bucket"] in phase.buckets else 0 for size, d in zip(targets, train, strict=True)]
        share = (1 - floor) / sum(chosen) if any(chosen) else Fraction(0)
        # Even without a floor all have a weight: others give what the chosen ones do not hold.
        least = max(floor, TINY)
        mix = [least * size / total + share * size_chosen for size, size_chosen in zip(targets, chosen, strict=True)]
        kept = [max(int(floor * waiting * size / total), later) for size in targets]
        lowest = _if_enough([1 if have > later else 0 for have in left], phase.length)
        highest = [max(have - keep, low) for have, keep, low in zip(left, kept, lowest, strict=True)]
        if sum(highest) < phase.length:
            highest = left
        drawn[phase.name] = apportion(phase.length, mix, lowest, highest)
        left = [have - part for have, part in zip(left, drawn[phase.name], strict=True)]
    return [drawn[phase.name] for phase in timeline]


def _if_enough(lowest: list[int], amount: int) -> list[int]:
    return lowest if sum(lowest) <= amount else [0] * len(lowest)


def _records(
    timeline: Sequence[_Phase], drawn: Sequence[Sequence[int]], train: Sequence[Dataset], seed: int
) -> list[dict[str, Any]]:
    records, start, read = [], 0, [0] * len(train)
    for number, (phase, parts) in enumerate(zip(timeline, drawn, strict=True)):
        read = [before + part for before, part in zip(read, parts, strict=True)]
        weights = [
            {"dataset": d["id"], "weight": part / phase.length, "tokens": part, "epochs": so_far / d["tokens"]}
            for d, part, so_far in zip(train, parts, read, strict=True)
            if part
        ]
        records.append(
            {
                "name": phase.name,
                "start": start,
                "end": start + phase.length,
                "lr_stage": phase.lr_stage,
                "weights": weights,
                "shuffle_seed": seed + number,
            }
        )
        start += phase.length
    return records
