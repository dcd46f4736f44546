"""A worker returns an outcome, whatever happens."""

from __future__ import annotations

import os
import socket

import pyarrow as pa
import pytest

from pipeline import worker
from pipeline.errors import ContractError, StorageError
from pipeline.types import Cell, CellResult, Task

CELL = Cell(label="rules", phase="map", unit="u", key="k")
TASK = Task(id="t", attempt=3, cells=(CELL,), work=None)


def run(monkeypatch, does):
    monkeypatch.setattr(worker, "_results", lambda *_: does())
    return worker.run(None, TASK)


def raising(error):
    def does():
        raise error

    return does


@pytest.mark.parametrize(("error", "told", "transient"), [
    (ContractError("broken promise"), "broken promise", False), (StorageError("no answer"), "no answer", False),
    (OSError(5, "io"), "io", True), (MemoryError("no more"), "no more", True),
    (ValueError("bad value"), "bad value", False), (SystemExit(2), "SystemExit: 2", False),
])  # fmt: skip
def test_an_error_is_an_outcome(monkeypatch, error, told, transient):
    """What is raised comes back by name and message, and only what may pass is worth a retry."""
    outcome = run(monkeypatch, raising(error))
    assert (outcome.error, outcome.transient) == (type(error).__name__, transient)
    assert (outcome.lost, outcome.results) == (False, ())
    assert told in outcome.message
    assert (outcome.task, outcome.attempt, outcome.cells) == ("t", 3, (CELL,))


def test_an_unforeseen_error_says_where(monkeypatch):
    """A fault of ours or of a stage comes with the end of its traceback."""
    outcome = run(monkeypatch, raising(ValueError("bad value")))
    assert "test_worker.py" in outcome.message


def test_a_request_to_stop_is_no_outcome(monkeypatch):
    """Ctrl-C ends the worker's loop instead of becoming a failure."""
    with pytest.raises(KeyboardInterrupt):
        run(monkeypatch, raising(KeyboardInterrupt()))


def test_an_outcome_says_what_it_took(monkeypatch):
    """Results come with seconds, memory and host."""
    outcome = run(monkeypatch, lambda: [CellResult(cell=CELL)])
    assert (outcome.error, outcome.results) == ("", (CellResult(cell=CELL),))
    assert outcome.wall >= 0
    assert outcome.cpu >= 0
    assert outcome.peak_rss > 10_000_000
    assert outcome.host == socket.gethostname()


def test_pools_of_threads_are_quiet(monkeypatch):
    """A worker has one thread for each library, but where the environment says otherwise."""
    before = pa.cpu_count()
    for name in worker.THREADS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    try:
        worker.quiet_threads()
        assert [os.environ[name] for name in worker.THREADS] == ["3", "1", "1", "1"]
        assert pa.cpu_count() == 1
    finally:
        pa.set_cpu_count(before)
