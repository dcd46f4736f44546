"""What the records of a ledger come to: which cells are done, what it took, what failed; and records as JSON."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from sys import intern
from typing import Any

from pipeline.types import Cell, CellResult, Outcome, Output

_NO_FACTS: dict[str, Any] = {}


@dataclass(slots=True)
class Spent:
    """What attempts took. `wall` and `cpu`: seconds of those whose result counts; `wasted`: wall seconds of the others.

    A process has one core, so wall seconds are what its place costs; the CPU time of one that died is not known.
    """

    wall: float = 0.0
    cpu: float = 0.0
    wasted: float = 0.0
    attempts: int = 0
    lost: int = 0

    def add(self, outcome: Outcome, share: float, useful: float) -> None:
        """Charge `share` of an attempt, of which `useful` left a result that counts."""
        self.wall += outcome.wall * useful
        self.cpu += outcome.cpu * useful
        self.wasted += outcome.wall * (share - useful)
        self.attempts += 1
        self.lost += outcome.lost


@dataclass(slots=True)
class State:
    """What the records come to."""

    done: dict[str, CellResult] = field(default_factory=dict)
    """By cell id."""
    again: dict[str, CellResult] = field(default_factory=dict)
    """The last repeated result of a cell: what counts where the files of its first one are gone or damaged."""
    latest_by_score: dict[tuple[str, str], CellResult] = field(default_factory=dict)
    """The last cell done for a (score key, unit): the one to carry measures over from."""
    spent: Spent = field(default_factory=Spent)
    by_label: defaultdict[str, Spent] = field(default_factory=lambda: defaultdict(Spent))
    """An attempt's seconds are parted among its cells as their `cpu` facts are, equally where they have none."""
    by_pool: defaultdict[str, Spent] = field(default_factory=lambda: defaultdict(Spent))
    peak_rss: int = 0
    """Largest resident set of any worker, bytes."""
    runs: int = 0
    """Start records."""
    number: int = 0
    """Of the last file."""
    driver: Mapping[str, Any] | None = None
    """Start record of the driver that has the run, if it has not said stop."""
    started: Mapping[str, Any] | None = None
    """The newest start record."""
    warnings: list[str] = field(default_factory=list)
    _failed: dict[str, tuple[Cell, Outcome, int]] = field(default_factory=dict)

    @property
    def failures(self) -> Sequence[dict[str, Any]]:
        """The last error of every task with a cell that has failed and not been done since."""
        found: dict[str, dict[str, Any]] = {}
        for cell, outcome, attempts in self._failed.values():
            entry = {"stage": cell.label, "phase": cell.phase, "unit": cell.unit, "attempts": attempts}
            found.setdefault(outcome.task, {**entry, "error": outcome.error, "message": outcome.message})
        return list(found.values())

    def fold(self, outcome: Outcome) -> None:
        """Take in how an attempt ended."""
        useful = 0.0
        self.peak_rss = max(self.peak_rss, outcome.peak_rss)
        for cell, result, share in _shares(outcome):
            first = cell.id not in self.done
            if result is None and first:
                attempts = self._failed[cell.id][2] if cell.id in self._failed else 0
                self._failed[cell.id] = (cell, outcome, attempts + 1)
            elif result is not None and first:
                self._failed.pop(cell.id, None)
                self.done[cell.id] = result
                if cell.score_key:
                    self.latest_by_score[cell.score_key, cell.unit] = result
                useful += share
            elif result is not None:
                self.again[cell.id] = result
            self.by_label[cell.label].add(outcome, share, share if result is not None and first else 0.0)
        for spent in (self.spent, self.by_pool[outcome.pool]):
            spent.add(outcome, 1.0, useful)


def _shares(outcome: Outcome) -> Iterator[tuple[Cell, CellResult | None, float]]:
    """Every cell of the attempt with its result and its share of the attempt's seconds."""
    if outcome.error:
        yield from ((cell, None, 1 / len(outcome.cells)) for cell in outcome.cells)
        return
    weights = [float(result.facts.get("cpu", 0.0)) for result in outcome.results]
    total = sum(weights)
    for result, weight in zip(outcome.results, weights, strict=True):
        yield result.cell, result, weight / total if total else 1 / len(weights)


def to_record(outcome: Outcome) -> dict[str, Any]:
    """The `done` or `failed` record of an attempt, but for its time."""
    record = {
        "task": outcome.task, "attempt": outcome.attempt, "pool": outcome.pool, "host": outcome.host,
        "seconds": {"wall": round(outcome.wall, 4), "cpu": round(outcome.cpu, 4), "gpu": 0.0},
    }  # fmt: skip
    if outcome.error:
        return record | {
            "kind": "failed", "cells": [_cell(cell) for cell in outcome.cells], "error": outcome.error,
            "message": outcome.message, "transient": outcome.transient, "lost": outcome.lost,
        }  # fmt: skip
    cells = [
        _cell(result.cell)
        | {
            "outputs": [
                {"path": output.path, "bytes": output.bytes, "rows": output.rows, "xxh128": output.xxh128}
                for output in result.outputs
            ],
            "facts": dict(result.facts),
        }
        for result in outcome.results
    ]
    return record | {
        "kind": "done", "cells": cells, "peak_rss": outcome.peak_rss, "io": dict(outcome.io), "device": "cpu"
    }  # fmt: skip


def _cell(cell: Cell) -> dict[str, Any]:
    return {
        "label": cell.label, "phase": cell.phase, "unit": cell.unit, "key": cell.key, "score_key": cell.score_key
    }  # fmt: skip


def from_record(record: Mapping[str, Any]) -> Outcome:
    """The attempt that a `done` or `failed` record tells of."""
    seconds = record["seconds"]
    common: dict[str, Any] = {
        "task": record["task"], "attempt": record["attempt"], "pool": intern(record["pool"]),
        "host": intern(record["host"]), "wall": float(seconds["wall"]), "cpu": float(seconds["cpu"]),
    }  # fmt: skip
    # A unit is in the name of every stage's cell, and a label in all of a stage's: one string each, not a million.
    cells = tuple(
        Cell(
            label=intern(cell["label"]), phase=intern(cell["phase"]), unit=intern(cell["unit"]), key=cell["key"],
            score_key=cell["score_key"],
        )
        for cell in record["cells"]
    )  # fmt: skip
    if record["kind"] == "failed":
        return Outcome(
            cells=cells, error=record["error"], message=record["message"], transient=record["transient"],
            lost=record["lost"], **common,
        )  # fmt: skip
    results = tuple(
        CellResult(
            cell=cell, outputs=tuple(_output(output) for output in told["outputs"]), facts=told["facts"] or _NO_FACTS
        )
        for cell, told in zip(cells, record["cells"], strict=True)
    )
    return Outcome(results=results, cells=cells, peak_rss=record["peak_rss"], io=record["io"] or _NO_FACTS, **common)


def _output(told: Mapping[str, Any]) -> Output:
    return Output(path=told["path"], bytes=told["bytes"], rows=told["rows"], xxh128=told["xxh128"])
