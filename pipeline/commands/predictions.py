"""What rows drawn from a corpus say about all of it: what every stage will keep, and what will be left."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

from pipeline import ingest
from pipeline.commands.sampling import Drawn
from pipeline.commands.target import labels, numbers
from pipeline.driver import Driver
from pipeline.figures import Figure, figure
from pipeline.stage import GlobalStage

LATER = "a full run tells"
Z = 1.959964
"""Standard deviations that 95 % of a normal distribution lie within."""
HOW = {"unknown": "cannot_be_said"}
"""The report's word for how something is known, where it is not that of the figure's kind."""


def predictions(driver: Driver, drawn: Drawn, readable: np.ndarray) -> list[dict[str, Any]]:
    """The report's `predictions` for a finished dry run on the `drawn` rows that are `readable` (bool, in order).

    For every stage that can remove: the share of the documents that reach it which it keeps, and the tokens (or bytes)
    that are left behind it. Where rows meet (duplicates), a sample cannot say the share, and from there on what is left
    has an upper bound only. If every row of the corpus was drawn, all is counted. Each entry names its `stage`.
    """
    alive, tokens = _fates(driver, readable)
    unit = "tokens" if driver.config.training.bytes_per_token is not None else "bytes"
    entered, bounded, found = np.ones(len(drawn.row), bool), False, list[dict[str, Any]]()
    removing = {entry.label: entry.stage for entry in driver.config.stages if entry.stage.reasons}
    for label, kept in alive.items():
        if label == ingest.LABEL or label in removing:
            meet = isinstance(removing.get(label), GlobalStage) and not drawn.everything
            bounded = bounded or meet
            figures = {
                "documents kept": _unsayable(entered, kept) if meet else _kept(drawn, entered, kept),
                "text left": _left(drawn, np.where(kept, tokens, 0), unit, bounded=bounded),
            }
            found += [_prediction(label, name, predicted) for name, predicted in figures.items()]
        entered = kept
    return found


def _prediction(label: str, name: str, predicted: Figure) -> dict[str, Any]:
    actual = figure(None, predicted["unit"], "unknown", LATER)
    how = HOW.get(predicted["kind"], predicted["kind"])
    return {"name": f"{label}: {name}", "stage": label, "predicted": predicted, "actual": actual, "how": how}


def _fates(driver: Driver, readable: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Which drawn rows are alive after every stage, and their tokens; one that cannot be read never was."""
    frames = [numbers(driver, ordinal) for ordinal in range(len(driver.corpus.slices))]
    alive = {label: np.zeros(len(readable), bool) for label in labels(driver)[:-1]}
    for label, rows in alive.items():
        rows[readable] = np.concatenate([frame.alive(label) for frame in frames])
    tokens = np.zeros(len(readable), np.int64)
    tokens[readable] = np.concatenate([frame.column("tokens").to_numpy() for frame in frames])
    return alive, tokens


def _kept(drawn: Drawn, entered: np.ndarray, kept: np.ndarray) -> Figure:
    found = share(drawn, entered, kept)
    if found is None:
        return figure(None, "%", "unknown", "none of the drawn documents reached it", [LATER])
    value, low, high = (100 * part for part in found)
    if drawn.everything:
        return figure(value, "%", "counted", "kept / reached it, all documents")
    formula = f"kept / reached it, of {int(entered.sum()):,} drawn documents; Wilson's 95 % interval"
    return figure(value, "%", "estimated", formula, low=low, high=high)


def _unsayable(entered: np.ndarray, kept: np.ndarray) -> Figure:
    """A copy is seen only where both are drawn, so that a sample shows hardly any of the corpus's duplicates."""
    reached = int(entered.sum())
    lost = 1 - int((kept & entered).sum()) / reached if reached else 0.0
    remark = f"the sample itself lost {lost:.1%}, which does not scale: a copy shows only where both are drawn"
    return figure(None, "%", "unknown", remark, [LATER])


def _left(drawn: Drawn, tokens: np.ndarray, unit: str, *, bounded: bool) -> Figure:
    value, low, high = total(drawn, tokens)
    if drawn.everything:
        return figure(int(tokens.sum()), unit, "counted", "sum over all documents")
    if bounded:
        formula = "upper end for what is left of the sample: the corpus has copies that a sample does not show"
        return figure(None, unit, "bounded", formula, low=0, high=round(high))
    formula = f"mean of {len(tokens):,} drawn documents x {drawn.rows:,}, by source; normal 95 % interval"
    return figure(round(value), unit, "estimated", formula, low=min(round(low), round(value)), high=round(high))


# -- estimates -------------------------------------------------------------------------------------------------------


def share(drawn: Drawn, entered: np.ndarray, kept: np.ndarray) -> tuple[float, float, float] | None:
    """(share, low, high) of `kept` among `entered` in the corpus, with Wilson's 95 % interval; None if none entered.

    Masks are over the drawn rows. Rows count by what they stand for, and the interval is that of as many rows as carry
    the same information (Kish), with the correction for having drawn a part of a finite whole.
    """
    weights = np.where(entered, drawn.weights, 0.0)
    total = float(weights.sum())
    if not total:
        return None
    found = float(np.where(kept, weights, 0.0).sum()) / total
    number = total**2 / float((weights**2).sum())
    left = 1 - number / total
    if left <= 0:
        return found, found, found
    number /= left
    centre = (found + Z**2 / (2 * number)) / (1 + Z**2 / number)
    half = Z * sqrt(found * (1 - found) / number + Z**2 / (4 * number**2)) / (1 + Z**2 / number)
    return found, min(found, max(0.0, centre - half)), max(found, min(1.0, centre + half))


def total(drawn: Drawn, values: np.ndarray) -> tuple[float, float, float]:
    """(sum, low, high) over the corpus of a value that every drawn row has, with a normal 95 % interval by stratum."""
    found = variance = 0.0
    for index, size in enumerate(drawn.sizes.tolist()):
        own = values[drawn.stratum == index].astype(np.float64)
        if len(own):
            found += size * float(own.mean())
        if len(own) > 1:
            variance += size**2 * (1 - len(own) / size) * float(own.var(ddof=1)) / len(own)
    half = Z * sqrt(variance)
    return found, min(found, max(float(values.sum()), found - half)), found + half
