"""Progress of a run: a moving line on a terminal, a plain line every few seconds elsewhere, never 30 s of silence."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from pipeline.figures import short, size

if TYPE_CHECKING:
    from pipeline.driver import Notify

EVERY = 5.0
"""Seconds between two plain lines of a group."""
SILENCE = 25.0
"""Seconds without a plain line after which one is written although nothing has ended: looked at often enough for 30."""
BAR = 24
FILES = {"convert": "{file}: reading {step}, {rows:,} rows", "export": "wrote {path}, {rows:,} rows"}
"""What is told of commands that go from file to file."""
Clock = Callable[[], float]


def duration(seconds: float) -> str:
    """`4.1 s`, `41 s`, `3 min 20 s`, `2 h 05 min`, `3 d 04 h`."""
    if seconds < 9.5:
        return f"{max(0.0, seconds):.1f} s"
    whole = round(seconds)
    for unit, small, name, part in ((86400, 3600, "d", "h"), (3600, 60, "h", "min"), (60, 1, "min", "s")):
        if whole >= unit:
            return f"{whole // unit} {name} {whole % unit // small:02d} {part}"
    return f"{whole} s"


@dataclass(slots=True)
class Group:
    """The tasks of one group of stages: how many there are and how many have ended."""

    name: str
    began: float
    tasks: int = 0
    rows: int = 0
    bytes: int = 0
    ended: int = 0
    ended_rows: int = 0
    ended_bytes: int = 0
    failed: int = 0

    @property
    def share(self) -> float:
        """Of the work that has ended, by bytes; by tasks where they do not say how heavy they are."""
        if self.bytes:
            return self.ended_bytes / self.bytes
        return self.ended / self.tasks if self.tasks else 1.0

    @property
    def complete(self) -> bool:
        return self.ended >= self.tasks

    def end(self, rows: int, count: int, failed: bool = False) -> None:
        self.ended += 1
        self.failed += failed
        self.ended_rows += rows
        self.ended_bytes += count

    def line(self, now: float) -> str:
        """Rows, bytes, rate and time left; of a complete group what it came to."""
        spent = now - self.began
        tasks = f"{self.tasks:,} task{'s' if self.tasks > 1 else ''}"
        told = [tasks if self.complete else f"{self.ended:,} of {tasks}"]
        if self.failed:
            told.append(f"{self.failed:,} failed")
        for ended, total, show, unit in (
            (self.ended_rows, self.rows, short, " rows"), (self.ended_bytes, self.bytes, size, "")
        ):  # fmt: skip
            if total:
                told.append(f"{show(total)}{unit}" if self.complete else f"{show(ended)} of {show(total)}{unit}")
        if self.ended_bytes and spent > 0:
            told.append(f"{size(self.ended_bytes / spent)}/s")
        if self.complete:
            told.append(f"{'ended after' if self.failed else 'done in'} {duration(spent)}")
        elif self.share > 0:
            told.append(f"{duration(spent * (1 - self.share) / self.share)} left")
        elif spent >= 1:
            told.append(f"{duration(spent)} so far")
        return f"{self.name}: {', '.join(told)}"


@dataclass(slots=True)
class Board:
    """What is going on, as the driver's notes tell it. `take` returns the lines that are worth keeping."""

    clock: Clock
    doing: str = "opening the run"
    """What to say between groups."""
    since: float = field(init=False)
    group: Group | None = None
    _name: str = ""
    _reused: str = ""

    def __post_init__(self) -> None:
        self.since = self.clock()

    def take(self, kind: str, facts: Mapping[str, Any]) -> Sequence[Text]:
        if kind == "stage":
            self._name = ", ".join(map(_named, facts["labels"], facts["phases"]))
            self._between(f"{self._name}: looking for what is missing")
        elif kind == "start":
            return self._start(facts)
        elif kind == "task":
            return self._task(facts)
        elif kind == "published":
            self._between("writing the report")
            return [Text(f"manifest: {facts['path']}{'' if facts['new'] else ' (nothing has changed)'}")]
        elif kind in FILES:
            self.doing = FILES[kind].format(**facts)
        elif kind == "note":
            return [Text(str(facts["text"]), "yellow")]
        return []

    def line(self) -> str:
        now = self.clock()
        return self.group.line(now) if self.group else f"{self.doing} ({duration(now - self.since)} so far)"

    def _between(self, doing: str) -> None:
        self.doing, self.since, self.group = doing, self.clock(), None

    def _start(self, facts: Mapping[str, Any]) -> Sequence[Text]:
        if facts["tasks"]:
            counts = {name: int(facts[name]) for name in ("tasks", "rows", "bytes")}
            self.group = Group(self._name, self.clock(), **counts)
            return []
        known, self._reused = self._reused, self._name
        return [Text(f"{self._name}: done before", "dim")] if self._name != known else []

    def _task(self, facts: Mapping[str, Any]) -> Sequence[Text]:
        outcome, task, told = facts["outcome"], facts["task"], list[Text]()
        if outcome.error:
            told.append(_failure(facts))
        if self.group is not None and not facts["again"]:
            self.group.end(task.rows, task.bytes, bool(outcome.error))
            if self.group.complete:
                told.append(Text(self.group.line(self.clock())))
                self._between(f"after {self.group.name}")
        return told


def _named(label: str, phase: str) -> str:
    """A stage by its label where the phase is the one that decides about rows, else with the phase."""
    return label if phase in ("map", "scatter") else f"{label}.{phase}"


def cause(error: str, message: str) -> str:
    """An error and the last line of its message, which for a traceback begins with the error itself."""
    last = (message.strip().splitlines() or ["no message"])[-1]
    return f"{error}: {last.removeprefix(f'{error}: ')}"


def _failure(facts: Mapping[str, Any]) -> Text:
    outcome = facts["outcome"]
    first = outcome.cells[0]
    more = f" and {len(outcome.cells) - 1:,} more" if len(outcome.cells) > 1 else ""
    then = "trying again" if facts["again"] else "given up"
    where = f"{first.label}.{first.phase} {first.unit}{more}"
    return Text(
        f"{where}: attempt failed: {cause(outcome.error, outcome.message)}; {then}",
        "yellow" if facts["again"] else "red",
    )


@contextmanager
def progress(
    console: Console, *, clock: Clock = time.monotonic, every: float = EVERY, silence: float = SILENCE
) -> Iterator[Notify]:
    """A Notify that shows on `console` how a run gets on, for as long as the context lasts."""
    board = Board(clock)
    if console.is_terminal:
        mark = Spinner("dots")
        with Live(console=console, get_renderable=lambda: _moving(board, mark), transient=True) as live:

            def notify(kind: str, facts: Mapping[str, Any]) -> None:
                told = board.take(kind, facts)
                if told:
                    live.refresh()  # or the lines would be printed above what was moving before
                    _keep(console, told)

            yield notify
        return
    lines = _Lines(console, board, every)
    closing = threading.Event()
    heart = threading.Thread(target=lines.beat, args=(closing, silence), name="progress", daemon=True)
    heart.start()
    try:
        yield lines.notify
    finally:
        closing.set()
        heart.join()


def _keep(console: Console, told: Sequence[Text]) -> None:
    for text in told:
        console.print(text, soft_wrap=True)


def _moving(board: Board, mark: Spinner) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    if board.group is None:
        grid.add_row(mark, Text(board.line(), "dim"))
    else:
        told = Text(board.line(), no_wrap=True, overflow="ellipsis")
        grid.add_row(mark, ProgressBar(total=1.0, completed=board.group.share, width=BAR), told)
    return grid


class _Lines:
    """Plain lines: what is worth keeping at once, how a group gets on every so often."""

    def __init__(self, console: Console, board: Board, every: float) -> None:
        self._console, self._board, self._every = console, board, every
        self._last = board.clock()
        self._lock = threading.Lock()

    def notify(self, kind: str, facts: Mapping[str, Any]) -> None:
        with self._lock:
            told = list(self._board.take(kind, facts))
            due = self._board.clock() - self._last >= self._every
            group = self._board.group
            begins = kind == "start" and group is not None and group.tasks > 1
            if begins or (due and not told and (group is not None or kind in FILES)):
                told.append(Text(self._board.line()))
            self._write(told)

    def beat(self, closing: threading.Event, silence: float) -> None:
        """Write a line whenever none was written for `silence` seconds, until `closing` is set."""
        while not closing.wait(silence / 8):
            with self._lock:
                if self._board.clock() - self._last >= silence:
                    self._write([Text(self._board.line())])

    def _write(self, told: Sequence[Text]) -> None:
        if told:
            _keep(self._console, told)
            self._last = self._board.clock()
