"""Local processes: kept from call to call, replaced when they die, charged for what they lose."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from threading import Thread

import pytest

from pipeline.executors import local
from pipeline.types import Cell, Task


def tasks(count):
    """Tasks that no worker can do: they come back at once with an error, which is enough of an answer here."""
    cells = [Cell(label="none", phase="map", unit=str(number), key="k") for number in range(count)]
    return [Task(id=f"t{number}", attempt=0, cells=(cell,), work=None) for number, cell in enumerate(cells)]


def workers():
    return {process.pid for process in multiprocessing.active_children()}


@pytest.fixture
def run():
    """Two processes."""
    before = workers()
    with local.start(2) as execute:
        yield execute
    assert workers() <= before


def test_no_more_processes_than_tasks(run):
    """One task starts one process; more start as there is more to do, and stay for the next call."""
    before = workers()
    counts = []
    for count in (0, 1, 5, 5):
        assert sorted(outcome.task for outcome in run(None, tasks(count))) == [f"t{number}" for number in range(count)]
        counts.append(workers() - before)
    assert [len(found) for found in counts] == [0, 1, 2, 2]
    assert counts[1] < counts[2] == counts[3]


def test_a_worker_that_dies_between_tasks_is_replaced(run):
    """A process killed while idle costs one attempt at most, which is lost and may be tried again."""
    before = workers()
    list(run(None, tasks(4)))
    victim = min(workers() - before)
    os.kill(victim, signal.SIGKILL)
    while victim in workers():
        time.sleep(0.01)
    found = list(run(None, tasks(6)))
    assert sorted(outcome.task for outcome in found) == [f"t{number}" for number in range(6)]
    gone = [outcome for outcome in found if outcome.lost]
    assert [(outcome.error, outcome.transient) for outcome in gone] == [("WorkerLost", True)] * len(gone)
    assert len(gone) == 1
    assert len(workers() - before) == 2


def test_a_lost_attempt_costs_the_time_it_ran(run):
    """A worker killed in a task is told with its pid, exit code and the seconds since the task was sent."""
    before = workers()
    found = run(None, tasks(1))
    [first] = list(found)
    assert not first.lost
    [pid] = workers() - before
    os.kill(pid, signal.SIGSTOP)
    frozen = run(None, tasks(1))
    begun = time.monotonic()

    def kill():
        time.sleep(0.3)
        os.kill(pid, signal.SIGKILL)

    Thread(target=kill).start()
    [outcome] = list(frozen)
    assert outcome.lost
    assert f"{pid} died (exit code -9)" in outcome.message
    assert 0.25 < outcome.wall <= time.monotonic() - begun


def test_none_means_here():
    """Without workers tasks are done in this process, one after the other, as they are asked for."""
    before = workers()
    with local.start(0) as execute:
        found = execute(None, iter(tasks(3)))
        assert next(found).task == "t0"
        assert [outcome.task for outcome in found] == ["t1", "t2"]
    assert workers() == before
