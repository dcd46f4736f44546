"""The driver: what it tries again, what it gives up, and which results it takes for done."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from pipeline import driver, listing, worker
from pipeline import run as runs
from pipeline.errors import ContractError, WorkError
from pipeline.executors.local import lost
from pipeline.job import SliceWork
from pipeline.opened import prepare
from pipeline.types import CellResult, Outcome, Output
from tests.pipeline import small_runs


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(driver, "BACK_OFF_S", 0)


def driven(root, fate, *overrides):
    """A driver on a small corpus whose tasks meet `fate(task)`, an outcome or None for the real one; and its log."""
    opened = prepare(small_runs.configured(root, overrides=overrides))
    log = []

    def execute(job, tasks):
        for task in tasks:
            log.append(task)
            yield fate(task) or worker.run(job, task)

    made = runs.look(opened)
    made.job = replace(made.job, listing=listing.put(opened.work, opened.corpus.slices))
    made.execute = execute
    return made, log


def unharmed(task):
    return None


def slices_of(task):
    return [unit.part.shard_id for unit in task.work.units] if isinstance(task.work, SliceWork) else []


@pytest.fixture
def root(tmp_path):
    small_runs.corpus(tmp_path)
    return tmp_path


def test_a_passing_failure_is_tried_again(root):
    """Each task lost once is done at its second attempt, under another number, and the run goes on."""
    seen = Counter()

    def once(task):
        seen[task.cells] += 1
        return lost(task, "gone", 1.5) if seen[task.cells] == 1 else None

    made, log = driven(root, once)
    made.run()
    attempts = {}
    for task in log:
        attempts.setdefault(task.cells, []).append(task.attempt)
    assert all(second == first + 1 for first, second in attempts.values())
    assert made.ledger.state.spent.lost == len(attempts)
    assert made.ledger.state.spent.wasted == 1.5 * len(attempts)


def test_what_is_lost_again_and_again_is_found_and_named(root):
    """A slice on which workers die to the end fails alone, by name; what shared its task is done, and stays done."""
    made, log = driven(
        root, lambda task: lost(task, "killed", 0) if "1.parquet" in slices_of(task) else None, "run.max_attempts=4"
    )
    with pytest.raises(WorkError, match=r"1 task\(s\) failed.*ingest.map.*WorkerLost: killed") as error:
        made.run()
    bad = made.corpus.slices[1]
    assert bad.shard_id == "1.parquet"
    assert bad.unit in error.value.message
    assert [len(slices_of(task)) for task in log if "1.parquet" in slices_of(task)] == [3, 3, 1, 1]
    alive = made.chain[0]
    assert [made.done(alive.cell(part)) is not None for part in made.corpus.slices] == [True, False, True]
    again, log = driven(root, unharmed)
    again.run()
    assert slices_of(log[0]) == ["1.parquet"]


@pytest.mark.parametrize("message", ["no use", "Traceback (most recent call last):\n  x\nTypeError: no use\n"])
def test_a_final_failure_is_not_tried_again(root, message):
    """What a retry cannot help is tried once, and told once; tasks beside it are done before the run ends."""

    def useless(task):
        if (task.cells[0].label, task.cells[0].phase) != ("copies", "reduce"):
            return None
        return replace(lost(task, message, 0), error="TypeError", transient=False, lost=False)

    made, log = driven(root, useless)
    with pytest.raises(WorkError, match=r"[^:]: TypeError: no use; finished"):
        made.run()
    assert Counter(task.cells[0].phase for task in log)["reduce"] == 1


def test_a_broken_promise_ends_the_run_at_once(root):
    """A ContractError in a worker is raised as what it is, and no further task is taken."""

    def broken(task):
        return Outcome(
            task=task.id, attempt=task.attempt, cells=task.cells, error="ContractError", message="changed input"
        )

    made, log = driven(root, broken)
    with pytest.raises(ContractError, match="changed input"):
        made.run()
    assert len(log) == 1


def test_attempts_of_two_runs_have_different_numbers(root):
    """A run that starts later numbers its attempts above all of those before, so no file is written twice."""
    first, log = driven(root, unharmed)
    first.run()
    first.ledger.state.runs += 1
    again = [replace(task, attempt=0) for task in log]
    first.do(again)
    assert {task.attempt for task in log[len(again) :]}.isdisjoint(task.attempt for task in log[: len(again)])


# -- what is done ----------------------------------------------------------------------------------------------------


def test_done_is_what_the_ledger_says_and_the_files_are(root):
    """A cell is done if its file has the recorded size: gone is undone, another size is damage that is told."""
    runs.run(small_runs.configured(root))
    made, _ = driven(root, unharmed)
    ingest = made.chain[0]
    cells = [ingest.cell(part) for part in made.corpus.slices]
    [first, second, third] = [made.done(cell).outputs[0].path for cell in cells]
    files = dict(made.files)
    del files[first]
    files[second] += 1
    made.files = files
    assert [made.done(cell) is None for cell in cells] == [True, True, False]
    assert [made.done(cell, whole=False) is None for cell in cells] == [False] * 3
    assert [third in warning or second in warning for warning in made.warnings()] == [True]


def test_partitions_count_as_a_whole(root):
    """Results of a reduce phase are those of a number of partitions of which none is missing."""
    made, _ = driven(root, unharmed)
    phase = made.phase("copies", "reduce")

    def finish(part, parts):
        cell = phase.whole(f"{part:04d}of{parts:04d}")
        made._fresh[cell.id] = CellResult(cell=cell, outputs=(Output(path=cell.unit, bytes=1, rows=0, xxh128=""),))

    finish(0, 2)
    assert made.partition_results(phase) == []
    for part in (3, 0, 2, 1):
        finish(part, 4)
    assert [result.cell.unit for result in made.partition_results(phase)] == [f"{part:04d}of0004" for part in range(4)]
    finish(1, 2)
    assert [result.cell.unit for result in made.partition_results(phase)] == ["0000of0002", "0001of0002"]


def test_sums_and_seconds_outlive_the_exchange(root):
    """What reduce phases counted and took is known from the ledger when their files are long gone."""
    config = small_runs.configured(root, overrides=["run.keep_exchange=false"])
    runs.run(config)
    made = runs.look(prepare(config))
    assert not [path for path in made.files if path.startswith("exchange/copies")]
    assert made.sums("copies") == {"gone": 2}
    assert made.partition_results(made.phase("copies", "reduce")) == []
    assert made.seconds("copies") > 0
