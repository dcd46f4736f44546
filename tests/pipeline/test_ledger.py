from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from pipeline import ledger as ledger_module
from pipeline.errors import BusyError, ContractError, StorageError
from pipeline.ledger import Ledger, read
from pipeline.storage import Store
from pipeline.types import Cell, CellResult, Outcome, Output

FACTS = {"version": "0.0", "config_fingerprint": "f" * 32}
ELSEWHERE = FACTS | {"host": "another-host"}
NEVER = 1e9
"""Seconds: a test that waits for them hangs, so what it shows happens at once."""


@pytest.fixture
def store(tmp_path):
    return Store(str(tmp_path / "run"))


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(ledger_module, "POLL", 0.01)


def cell(name):
    return Cell(label="exact", phase="map", unit=f"unit-{name}", key=f"key-{name}")


def done(one, attempt=1):
    output = Output(path=f"sidecars/{one.unit}.{attempt}", bytes=10, rows=3, xxh128="0" * 32)
    result = CellResult(cell=one, outputs=(output,), facts={"cpu": 0.5})
    return Outcome(task=one.unit, attempt=attempt, results=(result,), cells=(one,), wall=2.0, cpu=1.0)


def failed(one):
    return Outcome(task=one.unit, attempt=1, cells=(one,), error="OSError", message="broken", wall=2.0)


def abandon(ledger):
    """Let the driver die: what it has not flushed is lost and it says nothing more."""
    ledger._closing.set()
    ledger._thread.join()


def names(store):
    """Published files: a driver at work may have an unfinished one beside them."""
    return [entry.path for entry in store.list("ledger") if entry.path.endswith(".jsonl")]


# -- files -----------------------------------------------------------------------------------------------------------


def test_a_ledger_is_read_as_it_was_written(store):
    """Files are numbered without gaps, hold start, outcomes and stop as JSON lines, and fold to the writer's state."""
    outcomes = [done(cell(i)) for i in range(5)] + [failed(cell(9))]
    with Ledger.open(store, FACTS) as ledger:
        for outcome in outcomes[:3]:
            ledger.add(outcome)
        ledger.flush()
        ledger.flush()
        for outcome in outcomes[3:]:
            ledger.add(outcome)
    assert names(store) == [f"ledger/{number:012d}.jsonl" for number in (1, 2, 3)]
    lines = [json.loads(line) for name in names(store) for line in store.read_bytes(name).splitlines()]
    assert [line["kind"] for line in lines] == ["start"] + ["done"] * 5 + ["failed", "stop"]
    assert all(line["time"].endswith("Z") for line in lines)
    assert (lines[0]["schema"], lines[0]["pid"], lines[0]["version"]) == ("corpusmill.ledger/1", os.getpid(), "0.0")
    state = read(store)
    assert (state.done, state.spent, state.failures) == (ledger.state.done, ledger.state.spent, ledger.state.failures)
    assert (state.runs, state.number, state.driver, state.warnings) == (1, 3, None, [])


def test_a_run_without_a_ledger_is_new(store):
    """Where there is nothing yet, the state is empty."""
    state = read(store)
    assert (state.done, state.runs, state.number, state.driver, state.warnings) == ({}, 0, 0, None, [])


def test_runs_are_counted(store):
    """Every driver that took the run over is one start, and sees what those before it had done."""
    for number in range(3):
        with Ledger.open(store, FACTS) as ledger:
            assert ledger.state.runs == number + 1
            assert len(ledger.state.done) == number
            ledger.add(done(cell(number)))


def _cut(data):
    return data[:-9]


def _cut_inside_a_character(data):
    return data.replace(b"task", "täsk".encode())[: data.index(b"task") + 2]


def _garbage(data):
    return os.urandom(200) + b"\n"


def _other_json(data):
    return b'[1, 2]\n"done"\n'


def _unknown_kind(data):
    return data + b'{"kind":"postponed"}\n'


def _without_fields(data):
    return data.replace(b'"key"', b'"kee"')


@pytest.mark.parametrize(
    "damage", [_cut, _cut_inside_a_character, _garbage, _other_json, _unknown_kind, _without_fields]
)
def test_a_damaged_file_is_named_and_its_cells_redone(store, damage):
    """A file that cannot be read as a whole is a warning with its URL, none of it counts, and all others do."""
    with Ledger.open(store, FACTS) as ledger:
        for number in range(3):
            ledger.add(done(cell(2 * number)))
            ledger.add(done(cell(2 * number + 1)))
            ledger.flush()
    victim = "ledger/000000000003.jsonl"
    store.write_bytes(victim, damage(store.read_bytes(victim)))
    state = read(store)
    assert sorted(state.done) == sorted(cell(i).id for i in (0, 1, 4, 5))
    assert len(state.warnings) == 1
    assert store.url_of(victim) in state.warnings[0]
    with Ledger.open(store, FACTS) as ledger:
        ledger.add(done(cell(2)))
        ledger.add(done(cell(3)))
    assert len(read(store).done) == 6


def test_a_missing_number_is_named(store):
    """A file that somebody removed is a warning, and what it recorded is not done."""
    with Ledger.open(store, FACTS) as ledger:
        for number in range(4):
            ledger.add(done(cell(number)))
            ledger.flush()
    for number in (2, 4, 5):
        store.delete(f"ledger/{number:012d}.jsonl")
    state = read(store)
    assert sorted(state.done) == [cell(1).id]
    assert "000000000002 is missing" in state.warnings[0]
    assert "000000000004 to 000000000005 is missing" in state.warnings[1]


def test_other_files_are_no_part_of_the_ledger(store):
    """Names that are no ledger number are passed over: copies, temporary files, notes."""
    with Ledger.open(store, FACTS) as ledger:
        ledger.add(done(cell(1)))
    for name in ("000000000001.jsonl.bak", "1.jsonl", "notes.txt", ".abc.tmp", "sub/000000000009.jsonl"):
        store.write_bytes(f"ledger/{name}", b"garbage")
    state = read(store)
    assert (len(state.done), state.number, state.warnings) == (1, 2, [])


def test_a_ledger_of_a_later_version_is_refused(store):
    """A start record with an unknown schema stops the run with exit 3 before anything is redone."""
    store.create("ledger/000000000001.jsonl", b'{"kind":"start","schema":"corpusmill.ledger/2"}\n')
    with pytest.raises(ContractError, match=r"ledger/2.*reads corpusmill\.ledger/1"):
        read(store)


def test_a_store_that_does_not_answer_is_not_an_empty_ledger(store, monkeypatch):
    """An error of the store while reading stops: it must not pass for work that was never done."""
    with Ledger.open(store, FACTS) as ledger:
        ledger.add(done(cell(1)))

    def refuse(self, path):
        raise StorageError("no answer")

    monkeypatch.setattr(Store, "read_bytes", refuse)
    with pytest.raises(StorageError, match="no answer"):
        read(store)


# -- drivers ---------------------------------------------------------------------------------------------------------


def test_what_a_killed_driver_had_not_written_is_done_again(store):
    """Records between two files die with their driver; the next one starts at once from the last file."""
    ledger = Ledger.open(store, FACTS | {"pid_started": "not this process"}, interval=NEVER)
    ledger.add(done(cell(1)))
    ledger.flush()
    ledger.add(done(cell(2)))
    abandon(ledger)
    with Ledger.open(store, FACTS, patience=NEVER) as after:
        assert list(after.state.done) == [cell(1).id]
        assert after.state.runs == 2


DRIVER = """
import sys, time
from pipeline.ledger import Ledger
from pipeline.storage import Store
ledger = Ledger.open(Store(sys.argv[1]), {})
print("open", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("reaped", [True, False])
def test_a_killed_process_is_known_to_be_dead(store, reaped):
    """After kill -9 of a driver on this host the next one takes over without waiting, even before it is reaped."""
    with subprocess.Popen([sys.executable, "-c", DRIVER, store.url], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"open\n"
        process.send_signal(signal.SIGKILL)
        if reaped:
            process.wait()
        else:
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with Ledger.open(store, FACTS, patience=NEVER) as ledger:
            assert ledger.state.runs == 2


def test_a_number_that_is_another_processs_by_now_is_a_dead_driver(store):
    """A process with the driver's number that began at another time is not the driver."""
    abandon(Ledger.open(store, FACTS | {"pid": os.getppid(), "pid_started": "1"}, interval=NEVER))
    with Ledger.open(store, FACTS, patience=NEVER) as ledger:
        assert ledger.state.runs == 2


@pytest.mark.parametrize("facts", [ELSEWHERE, FACTS])
def test_a_silent_driver_is_waited_for_and_then_replaced(store, facts):
    """Without stop and without proof of death a driver gets its time; then the run is another's, and it learns so."""
    old = Ledger.open(store, facts, interval=NEVER)
    old.add(done(cell(1)))
    told = []
    with Ledger.open(store, FACTS, patience=0.1, tell=told.append) as new:
        assert len(told) == 1
        assert "has not said stop" in told[0]
        assert str(os.getpid()) in told[0]
        with pytest.raises(BusyError, match="another driver has taken this run over"):
            old.flush()
        with pytest.raises(BusyError):
            old.add(done(cell(2)))
        with pytest.raises(BusyError):
            old.close()
        new.add(done(cell(1), attempt=2))
    assert names(store) == ["ledger/000000000001.jsonl", "ledger/000000000002.jsonl", "ledger/000000000003.jsonl"]
    assert read(store).done[cell(1).id].outputs[0].path == "sidecars/unit-1.2"


def test_a_living_driver_keeps_its_run(store):
    """A second driver is refused, with the first one's name, as soon as a new file of the first one appears."""
    with Ledger.open(store, ELSEWHERE, interval=0.05) as ledger:
        with pytest.raises(BusyError, match=r"another-host .* is at work on this run"):
            Ledger.open(store, FACTS, patience=NEVER)
        ledger.add(done(cell(1)))
    assert len(read(store).done) == 1
    assert read(store).runs == 1


def test_an_idle_driver_gives_signs_of_life(store):
    """With nothing to record, empty files are published at the interval."""
    with Ledger.open(store, FACTS, interval=0.02) as ledger:
        while len(names(store)) < 4:
            time.sleep(0.01)
    assert ledger.state.number == read(store).number >= 5
    assert {entry.size for entry in store.list("ledger")[1:4]} == {0}
    assert read(store).warnings == []


def test_records_are_committed_without_being_asked(store):
    """What was added is published at the interval while the driver does something else."""
    with Ledger.open(store, FACTS, interval=0.02) as ledger:
        ledger.add(done(cell(1)))
        while not read(store).done:
            time.sleep(0.01)


def test_a_stop_lets_the_next_one_start_at_once(store):
    """After an orderly end, and after one by an exception, nobody waits."""
    with pytest.raises(KeyError), Ledger.open(store, ELSEWHERE) as ledger:  # noqa: PT012 - the body is the point
        ledger.add(done(cell(1)))
        raise KeyError
    assert read(store).driver is None
    with Ledger.open(store, FACTS, patience=NEVER) as ledger:
        assert list(ledger.state.done) == [cell(1).id]


def test_a_store_that_fails_stops_the_driver(store, monkeypatch):
    """When a file cannot be published, the next call raises the error in the thread that drives, as do all after it."""
    ledger = Ledger.open(store, FACTS, interval=0.02)
    broken = threading.Event()

    def refuse(self, path, data):
        broken.set()
        raise StorageError("no space left")

    monkeypatch.setattr(Store, "create", refuse)
    assert broken.wait(30)
    ledger._thread.join()
    for call in (lambda: ledger.add(done(cell(1))), ledger.flush, ledger.close):
        with pytest.raises(StorageError, match="no space left"):
            call()


def test_an_error_of_the_body_is_not_hidden_by_one_of_the_ledger(store, monkeypatch):
    """When the body and then the ledger fail, the body's error is the one that is seen."""

    def refuse(self, path, data):
        raise StorageError("no space left")

    with pytest.raises(KeyError), Ledger.open(store, FACTS) as ledger:  # noqa: PT012 - the body is the point
        ledger.add(done(cell(1)))
        monkeypatch.setattr(Store, "create", refuse)
        raise KeyError


def test_of_drivers_that_start_together_one_gets_the_run(store):
    """Of twelve threads that open one run at the same moment one has it, the others are refused; three times over."""
    gate = threading.Barrier(12)

    def attempt(_):
        gate.wait()
        try:
            return Ledger.open(store, FACTS, patience=60, interval=0.02)
        except BusyError:
            return None

    for round_ in range(3):
        with ThreadPoolExecutor(12) as pool:
            opened = [ledger for ledger in pool.map(attempt, range(12)) if ledger is not None]
        assert len(opened) == 1
        opened[0].add(done(cell(round_)))
        opened[0].close()
    state = read(store)
    assert (state.runs, len(state.done), state.driver) == (3, 3, None)


RACER = """
import sys
from pipeline.errors import BusyError
from pipeline.ledger import Ledger
from pipeline.storage import Store
print("ready", flush=True)
sys.stdin.readline()
try:
    ledger = Ledger.open(Store(sys.argv[1]), {}, patience=60, interval=0.05)
except BusyError:
    print("busy", flush=True)
else:
    print("open", flush=True)
    sys.stdin.readline()
    ledger.close()
"""


def test_of_processes_that_start_together_one_gets_the_run(store):
    """Four processes open one run at the same moment: one has it until it stops, the others end with BusyError."""
    command = [sys.executable, "-c", RACER, store.url]
    racers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    try:
        assert [racer.stdout.readline() for racer in racers] == ["ready\n"] * 4
        for racer in racers:
            racer.stdin.write("\n")
            racer.stdin.flush()
        assert sorted(racer.stdout.readline() for racer in racers) == ["busy\n"] * 3 + ["open\n"]
    finally:
        for racer in racers:
            racer.communicate("\n", timeout=60)
    assert [racer.returncode for racer in racers] == [0] * 4
    state = read(store)
    assert (state.runs, state.driver, state.warnings) == (1, None, [])
