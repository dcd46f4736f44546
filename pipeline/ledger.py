"""The log of finished work: the only commit point of a run, written by its driver alone.

`ledger/000000000001.jsonl` and so on: JSON lines, each file published whole by one exclusive create, an empty one as a
sign of life. Kinds of record, with a `time` each:

    start    schema, driver, host, pid, pid_started, and the facts of `pipeline.run.start_facts`: a driver took over
    done     task, attempt, cells with their outputs and facts, seconds, peak_rss, io, pool, host, device
    failed   task, attempt, cells, error, message, transient, lost, seconds, pool, host
    stop     driver: it ended in order

The state of a run is the fold of its records in order; the first `done` of a cell wins. A number that is taken when it
is to be written means another driver: this one stops, and what it had not written is done again.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pipeline.errors import AlreadyExistsError, BusyError, ContractError, CorpusmillError
from pipeline.keys import canonical
from pipeline.state import State, from_record, to_record
from pipeline.storage import Store
from pipeline.types import Outcome
from pipeline.units import now

SCHEMA = "corpusmill.ledger/1"
FOLDER = "ledger"
INTERVAL = 10.0
"""Seconds between a driver's files."""
PATIENCE = 90.0
"""Seconds without a file after which a driver that did not say stop counts as dead."""
POLL = 1.0
"""Seconds between two looks for a driver's next file."""
READERS = 16
"""Files read at once: object stores answer slowly but many at a time."""


# -- reading ---------------------------------------------------------------------------------------------------------


def read(store: Store) -> State:
    """Fold the ledger under `store`, the folder of one run. A file that is damaged is a warning: its cells are redone.

    Raises StorageError where the store does not answer, ContractError where a later version wrote the ledger.
    """
    state = State()
    files = [entry for entry in store.list(FOLDER) if _number(entry.path)]
    with ThreadPoolExecutor(READERS) as pool, _no_collection():
        for start in range(0, len(files), 16 * READERS):
            some = files[start : start + 16 * READERS]
            contents = pool.map(lambda entry: store.read_bytes(entry.path) if entry.size else b"", some)
            for entry, data in zip(some, contents, strict=True):
                _fold_file(state, store, entry.path, data)
    return state


@contextmanager
def _no_collection() -> Iterator[None]:
    """Without the garbage collector: it would look through a million new records again and again, and find none."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _fold_file(state: State, store: Store, path: str, data: bytes) -> None:
    number = _number(path)
    if number > state.number + 1:
        missing = f"{state.number + 1:012d}" + (f" to {number - 1:012d}" if number > state.number + 2 else "")
        state.warnings.append(f"{store.where(FOLDER)}: {missing} is missing; what it recorded is done again")
    state.number = number
    try:
        records = _parse(data)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        text = f"{type(error).__name__}: {error}"
        state.warnings.append(f"{store.where(path)}: damaged ({text}); what it recorded is done again")
        return
    for record in records:
        if isinstance(record, Outcome):
            state.fold(record)
        elif record["kind"] == "start":
            if record["schema"] != SCHEMA:
                raise ContractError(
                    f"{store.where(path)}: schema {record['schema']}, but this version reads {SCHEMA}; "
                    "use the version that wrote it, or another run name"
                )
            state.runs += 1
            state.driver = state.started = record
        else:
            state.driver = None


def _parse(data: bytes) -> Sequence[Outcome | Mapping[str, Any]]:
    """All records of a file, or an error for the first that is none: a file counts as a whole."""
    if data and not data.endswith(b"\n"):
        raise ValueError("cut off")
    records = list[Outcome | Mapping[str, Any]]()
    for line in data.splitlines():
        record = json.loads(line)
        kind = record["kind"]
        if kind in ("done", "failed"):
            records.append(from_record(record))
        elif (kind, "schema" in record) in (("start", True), ("stop", False)):
            records.append(record)
        else:
            raise ValueError(f"unknown kind {kind!r}")
    return records


def _path(number: int) -> str:
    return f"{FOLDER}/{number:012d}.jsonl"


def _number(path: str) -> int:
    """The number in a ledger file's name; 0 for any other file."""
    name = path.rpartition("/")[2].removesuffix(".jsonl")
    return int(name) if name.isdigit() and path == _path(int(name)) else 0


# -- writing ---------------------------------------------------------------------------------------------------------


class Ledger:
    """The ledger in the hands of the one driver of a run: `with Ledger.open(...) as ledger`.

    A thread publishes what was added every `interval` seconds, so that a driver that computes for long is not taken
    for dead. Its errors are raised by the next call.
    """

    def __init__(self, store: Store, state: State, interval: float = INTERVAL) -> None:
        self.state = state
        self._store, self._interval = store, interval
        self._driver = uuid.uuid4().hex
        self._lines = list[bytes]()
        self._written = time.monotonic()
        self._error: CorpusmillError | None = None
        self._lock, self._closing = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._keep_alive, name="ledger", daemon=True)

    @classmethod
    def open(
        cls, store: Store, facts: Mapping[str, Any], *, patience: float = PATIENCE, interval: float = INTERVAL,
        tell: Callable[[str], None] | None = None,
    ) -> Ledger:  # fmt: skip
        """Take the run over: at once if its last driver said stop or is a dead process of this host; else wait.

        `facts` go into the start record. Raises BusyError (exit 4) when a new file shows
        within `patience` seconds that the last driver lives, or when another one takes over at the same time.
        """
        state = read(store)
        if state.driver is not None and not is_dead(state.driver):
            if tell is not None:
                tell(f"{_named(state.driver)} has not said stop; waiting up to {patience:.0f} s for a sign of it")
            _wait(store, state.driver, _path(state.number + 1), patience)
        ledger = cls(store, state, interval)
        start = {
            "kind": "start", "schema": SCHEMA, "driver": ledger._driver, "host": socket.gethostname(),
            "pid": os.getpid(), "pid_started": _started(os.getpid()), "time": now(), **facts,
        }  # fmt: skip
        ledger._add(start)
        ledger.flush()
        state.runs += 1
        state.driver = state.started = start
        ledger._thread.start()
        return ledger

    def add(self, outcome: Outcome) -> None:
        """Record how an attempt ended, and fold it into `state`. It is committed by the next flush."""
        self._add(to_record(outcome))
        self.state.fold(outcome)

    def flush(self) -> None:
        """Commit what was added. Raises BusyError if another driver has the run, StorageError if it cannot."""
        with self._lock:
            if self._error is not None:
                raise self._error
            if self._lines:
                self._publish()

    def close(self) -> None:
        """Commit the rest and say stop."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._error is None:
            self._add({"kind": "stop", "driver": self._driver})
        self.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            with suppress(CorpusmillError):  # the first error is the one to tell
                self.close()

    def _add(self, record: Mapping[str, Any]) -> None:
        line = canonical({"time": now(), **record}) + b"\n"
        with self._lock:
            if self._error is not None:
                raise self._error
            self._lines.append(line)

    def _publish(self) -> None:
        number = self.state.number + 1
        try:
            self._store.create(_path(number), b"".join(self._lines))
        except AlreadyExistsError:
            self._error = BusyError(
                f"{self._store.where(_path(number))}: another driver has taken this run over; this one stops, and what "
                "it had not recorded is done again; wait for the other one, or stop it and run again"
            )
            raise self._error from None
        except CorpusmillError as error:
            self._error = error
            raise
        self.state.number = number
        self._lines.clear()
        self._written = time.monotonic()

    def _keep_alive(self) -> None:
        while self._error is None and not self._closing.wait(min(self._interval, 1.0)):
            with self._lock, suppress(CorpusmillError):  # kept in _error for the next call
                if self._error is None and time.monotonic() - self._written >= self._interval:
                    self._publish()


def _wait(store: Store, driver: Mapping[str, Any], path: str, patience: float) -> None:
    deadline = time.monotonic() + patience
    while (left := deadline - time.monotonic()) > 0:
        if store.exists(path):
            raise BusyError(
                f"{store.where()}: {_named(driver)} is at work on this run; "
                "wait until it has ended, or stop it and run again"
            )
        time.sleep(min(POLL, left))


def _named(driver: Mapping[str, Any]) -> str:
    return f"driver {driver.get('pid')} on {driver.get('host')} (since {driver.get('time')})"


def is_dead(driver: Mapping[str, Any]) -> bool:
    """Whether the driver was a process of this host that is gone, even if its number is another's by now."""
    pid = driver.get("pid")
    if driver.get("host") != socket.gethostname() or not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)  # signal 0 only asks
    except ProcessLookupError:
        return True
    except PermissionError:
        return False  # another user's: it lives, and what it is cannot be seen
    return _started(pid) not in ("", driver.get("pid_started"))


def _started(pid: int) -> str:
    """When the process began, in the kernel's ticks, or `ended` if it is only not yet reaped; empty where unknown."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "ended" if state in "ZX" else fields[18]
