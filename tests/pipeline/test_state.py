from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pipeline.state import State, from_record, to_record
from pipeline.types import Cell, CellResult, Outcome, Output


def cell(name, label="exact", score_key=""):
    return Cell(label=label, phase="map", unit=f"unit-{name}", key=f"key-{label}-{name}", score_key=score_key)


def done(*cells, attempt=1, wall=2.0, cpu=1.0, facts=None, **rest):
    results = tuple(
        CellResult(
            cell=one,
            outputs=(Output(path=f"sidecars/{one.unit}.{attempt}", bytes=10, rows=3, xxh128="0" * 32),),
            facts=(facts or {}).get(one.label, {}),
        )
        for one in cells
    )
    task = "-".join(one.unit for one in cells)
    return Outcome(task=task, attempt=attempt, results=results, cells=cells, wall=wall, cpu=cpu, **rest)


def failed(*cells, attempt=1, wall=2.0, **rest):
    task = "-".join(one.unit for one in cells)
    told = {"error": "OSError", "message": "broken"} | rest
    return Outcome(task=task, attempt=attempt, cells=cells, wall=wall, **told)


def folded(*outcomes):
    state = State()
    for outcome in outcomes:
        state.fold(outcome)
    return state


# -- records ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "outcome",
    [
        done(cell(1), cell(1, "quality", "s"), facts={"quality": {"cpu": 0.5, "n": {"ä": [1, 2]}}}, io={"retries": 2}),
        done(cell(1), wall=1.23456789, peak_rss=2**33, host="h", pool="spot"),
        failed(cell(1), cell(2), transient=True, lost=True, message='a\nb "c" \u2028 é', host="h"),
    ],
)
def test_an_outcome_survives_as_json(outcome):
    """A record is one line of JSON with all that the outcome says, seconds to a tenth of a millisecond."""
    line = json.dumps(to_record(outcome))
    assert from_record(json.loads(line)) == replace(outcome, wall=round(outcome.wall, 4))


def test_fields_of_later_versions_are_passed_over():
    """A record with fields that this version does not know is read without them."""
    record = to_record(done(cell(1)))
    record["new"] = record["cells"][0]["new"] = record["cells"][0]["outputs"][0]["new"] = 1
    assert from_record(record) == done(cell(1))


# -- the fold --------------------------------------------------------------------------------------------------------


def test_the_first_done_of_a_cell_wins():
    """A late attempt changes no result; its seconds are waste."""
    first, late = done(cell(1), attempt=1, wall=2.0), done(cell(1), attempt=2, wall=5.0)
    state = folded(first, late)
    assert state.done == {cell(1).id: first.results[0]}
    spent = state.spent
    assert (spent.wall, spent.cpu, spent.wasted, spent.attempts, spent.lost) == (2.0, 1.0, 5.0, 2, 0)


def test_an_attempt_that_is_late_for_one_cell_counts_for_the_other():
    """Of a fused attempt only the cells that nobody had done count, with their share of the seconds."""
    state = folded(done(cell(1), wall=1.0, cpu=1.0), done(cell(1), cell(2), wall=4.0, cpu=2.0))
    assert state.done[cell(1).id].outputs[0].path == "sidecars/unit-1.1"
    assert state.done[cell(2).id].outputs[0].path == "sidecars/unit-2.1"
    assert (state.spent.wall, state.spent.cpu, state.spent.wasted) == (3.0, 2.0, 2.0)


def test_seconds_are_parted_by_what_the_cells_took():
    """A fused attempt is charged to its stages as their own CPU seconds are, or equally where none are told."""
    state = folded(
        done(cell(1), cell(1, "quality"), wall=8.0, cpu=4.0, facts={"exact": {"cpu": 1.0}, "quality": {"cpu": 3.0}})
    )
    assert (state.by_label["exact"].wall, state.by_label["exact"].cpu) == (2.0, 1.0)
    assert (state.by_label["quality"].wall, state.by_label["quality"].cpu) == (6.0, 3.0)
    state = folded(done(cell(1), cell(1, "quality"), wall=8.0, cpu=4.0))
    assert (state.by_label["exact"].wall, state.by_label["quality"].wall) == (4.0, 4.0)


def test_failed_attempts_are_waste_in_their_pool():
    """Seconds of failed and lost attempts are wasted, counted by pool, and no part of the useful ones."""
    state = folded(
        failed(cell(1), cell(2), cell(3), wall=3.0, lost=True, pool="spot"), done(cell(1), pool="reserved"),
        failed(wall=1.0, pool="spot"),
    )  # fmt: skip
    spot, reserved = state.by_pool["spot"], state.by_pool["reserved"]
    assert (spot.wall, spot.wasted, spot.attempts, spot.lost) == (0.0, 4.0, 2, 1)
    assert (reserved.wall, reserved.wasted, reserved.attempts) == (2.0, 0.0, 1)
    assert (state.spent.wall, state.spent.wasted) == (2.0, 4.0)


def test_a_failure_is_told_until_its_cell_is_done():
    """Failures name the last error and the number of attempts; a cell that was done in the end has none."""
    state = folded(
        failed(cell(1)), failed(cell(1), attempt=2, message="again"), failed(cell(2), cell(2, "quality")),
        failed(cell(3)), done(cell(3)), failed(cell(3), attempt=9),
    )  # fmt: skip
    assert list(state.failures) == [
        {"stage": "exact", "phase": "map", "unit": "unit-1", "attempts": 2, "error": "OSError", "message": "again"},
        {"stage": "exact", "phase": "map", "unit": "unit-2", "attempts": 1, "error": "OSError", "message": "broken"},
    ]


def test_measures_are_carried_from_the_last_cell_of_their_score():
    """For a score key and unit the newest cell counts, a late attempt at an old one does not, and none has no entry."""
    old, new = cell(1, "quality", "score"), replace(cell(1, "quality", "score"), key="another key")
    state = folded(done(old), done(new), done(old, attempt=2), done(cell(2)))
    assert {key: result.cell for key, result in state.latest_by_score.items()} == {("score", "unit-1"): new}
