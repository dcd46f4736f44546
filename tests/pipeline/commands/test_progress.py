"""Progress is told in rows, bytes, rate and time left, seldom enough to read and often enough to trust."""

from __future__ import annotations

import io
import threading

import pytest
from rich.console import Console

from pipeline.commands.progress import Board, Group, duration, progress
from pipeline.types import Cell, Outcome, Task

CELLS = (Cell(label="rule", phase="map", unit="ab-000000000000", key="k"),)


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Shown(io.StringIO):
    """Text that another thread can wait for."""

    def __init__(self):
        super().__init__()
        self.written = threading.Event()

    def write(self, text):
        count = super().write(text)
        self.written.set()
        return count


def stage(notify, labels=("rule",), phases=("map",), **start):
    notify("stage", {"labels": labels, "phases": phases, "over": "slices"})
    notify("start", {"tasks": 4, "rows": 400, "bytes": 4_000_000} | start)


def task(rows=100, size=1_000_000, **outcome):
    made = Task(id="t", attempt=0, cells=CELLS, work=None, rows=rows, bytes=size)
    return {"task": made, "outcome": Outcome(task="t", attempt=0, cells=CELLS, **outcome), "again": False}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0.0 s"), (4.12, "4.1 s"), (9.7, "10 s"), (59.6, "1 min 00 s"), (200, "3 min 20 s"), (7500, "2 h 05 min"),
     (100_000, "1 d 03 h")],
)  # fmt: skip
def test_durations(seconds, text):
    """A time is told in the two units that matter."""
    assert duration(seconds) == text


def test_a_group_half_way():
    """A group says what has ended of what there is, how fast, and by that how long the rest takes."""
    group = Group("rule", began=0.0, tasks=4, rows=400, bytes=4_000_000)
    group.end(200, 1_000_000)
    assert group.line(10.0) == "rule: 1 of 4 tasks, 200 of 400 rows, 1.00 MB of 4.00 MB, 100 kB/s, 30 s left"


def test_a_group_without_bytes():
    """Where tasks do not say how heavy they are, the time left goes by their number."""
    group = Group("same.resolve", began=0.0, tasks=4)
    group.end(0, 0)
    assert group.line(2.0) == "same.resolve: 1 of 4 tasks, 6.0 s left"


def test_phases_that_decide_nothing_are_named():
    """A phase that writes no sidecar is told with its name, the one that decides with its stage's alone."""
    board = Board(Clock())
    board.take("stage", {"labels": ["ingest", "same", "same"], "phases": ["map", "emit", "scatter"], "over": "slices"})
    assert board.take("start", {"tasks": 0, "rows": 0, "bytes": 0})[0].plain == "ingest, same.emit, same: done before"


def test_plain_lines_are_seldom():
    """Hundreds of tasks in a few seconds make a line at the start, one every few seconds, and one at the end."""
    clock, shown = Clock(), io.StringIO()
    with progress(Console(file=shown, width=200), clock=clock, every=5.0) as notify:
        stage(notify, tasks=300, rows=0, bytes=0)
        for _ in range(300):
            clock.now += 0.0625
            notify("task", task(0, 0))
    lines = shown.getvalue().splitlines()
    assert lines[0] == "rule: 0 of 300 tasks"
    assert [line.split()[1] for line in lines[1:-1]] == ["80", "160", "240"]
    assert lines[-1] == "rule: 300 tasks, done in 19 s"


def test_silence_is_broken():
    """Where nothing ends for too long, a line says what is going on all the same."""
    shown = Shown()
    clock = Clock()
    with progress(Console(file=shown, width=200), clock=clock, silence=0.01):
        clock.now += 1
        assert shown.written.wait(timeout=60)
    assert shown.getvalue().startswith("opening the run (1.0 s so far)")


def test_no_line_while_others_are_written():
    """The line against silence comes only after silence: as long as the clock stands still there is none."""
    shown = Shown()
    with progress(Console(file=shown, width=200), clock=Clock(), silence=0.01):
        assert not shown.written.wait(timeout=0.2)
    assert shown.getvalue() == ""


def test_an_attempt_that_failed():
    """A failed attempt is told at once, with its cell, its cause and what comes next; it counts when it is given up."""
    shown = io.StringIO()
    with progress(Console(file=shown, width=200), clock=Clock()) as notify:
        stage(notify, tasks=2, rows=0, bytes=0)
        failed = task(0, 0, error="WorkerLost", message="Traceback\nworker process 7 died", transient=True)
        notify("task", failed | {"again": True})
        notify("task", failed)
        notify("task", task(0, 0))
    told = "rule.map ab-000000000000: attempt failed: WorkerLost: worker process 7 died"
    first, second, last = shown.getvalue().splitlines()[1:]
    assert (first, second) == (f"{told}; trying again", f"{told}; given up")
    assert last == "rule: 2 tasks, 1 failed, ended after 0.0 s"


def test_text_is_not_markup():
    """What comes from outside is shown as it is, brackets included, and never broken into lines."""
    shown = io.StringIO()
    with progress(Console(file=shown, width=30), clock=Clock()) as notify:
        notify("note", {"text": "waiting for [red]driver 7[/red] on a host whose name is long"})
        notify("published", {"path": "small/v1/manifest.json", "new": False})
    assert shown.getvalue().splitlines() == [
        "waiting for [red]driver 7[/red] on a host whose name is long",
        "manifest: small/v1/manifest.json (nothing has changed)",
    ]


def test_on_a_terminal():
    """On a terminal the bar moves in place, what is worth keeping stays above it, and the cursor comes back."""
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=120, color_system=None)
    with progress(console, clock=Clock()) as notify:
        stage(notify, tasks=1, rows=400, bytes=4_000_000)
        notify("task", task(400, 4_000_000))
    assert "rule: 1 task, 400 rows, 4.00 MB, done in 0.0 s" in shown.getvalue()
    assert shown.getvalue().rindex("\x1b[?25h") > shown.getvalue().rindex("\x1b[?25l")
