"""The ledger alone says how far a run is and who has it."""

from __future__ import annotations

import io
import json
import os
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from rich.console import Console

from pipeline import ledger, run
from pipeline.commands import status
from pipeline.errors import ConfigError
from pipeline.keys import canonical
from pipeline.storage import Store
from pipeline.types import Cell, Outcome
from tests.pipeline import small_runs
from tests.pipeline.small_runs import configured, corpus


@pytest.fixture
def finished(tmp_path):
    corpus(tmp_path)
    run.run(configured(tmp_path))
    return tmp_path


def shown(found):
    console = Console(width=100, file=io.StringIO())
    console.print(status.table(found))
    return console.file.getvalue()


def start(work, **facts):
    """A driver that took the run over and said nothing since."""
    there = sorted(path.name for path in (work / "ledger").iterdir())
    record = {**ledger.read(Store(str(work))).started, **facts}
    (work / "ledger" / f"{int(there[-1][:12]) + 1:012d}.jsonl").write_bytes(canonical(record) + b"\n")


def test_after_a_run(finished):
    """After a run every phase is done, nobody has it, and the report is where it says."""
    found = status.status(status.folder_of(str(finished / "work" / "small"), ()))
    assert json.loads(json.dumps(found)) == found
    assert (found["name"], found["runs"], found["driver"]["state"]) == ("small", 1, "stopped")
    assert [phase["done"] for phase in found["phases"]] == [phase["total"] for phase in found["phases"]]
    assert found["phases"][0] == {"label": "ingest", "phase": "map", "over": "slices", "done": 3, "total": 3}
    assert json.loads(Path(found["report"]).read_text())["run"]["complete"]
    assert found["failures"] == []
    assert found["last_activity"] >= found["driver"]["since"]


def test_only_the_ledger_is_needed(finished):
    """Input, tiers and the stages' code may be gone: the folder is enough."""
    for gone in ("in", "hot", "cold", "work/small/sidecars", "work/small/configs"):
        shutil.rmtree(finished / gone)
    assert status.status(status.folder_of(str(finished / "work" / "small"), ()))["phases"][-1]["done"] == 1


def test_a_config_names_the_same(finished):
    """A config file and the folder of its run mean the same run."""
    path = finished / "small.yaml"
    path.write_text(small_runs.YAML.format(root=finished, module=small_runs.__name__))
    assert status.folder_of(str(path), ()) == status.folder_of(str(finished / "work" / "small"), ())


def test_what_is_no_run(tmp_path):
    """A folder without a run is a config error that says what was expected."""
    with pytest.raises(ConfigError, match=r"no run\.json in it"):
        status.folder_of(str(tmp_path), ())


def test_before_the_first_start(tmp_path):
    """Where nothing was started, nothing is done and nobody has the run."""
    found = status.status(Store(str(tmp_path / "none")))
    assert (found["runs"], found["driver"]["state"], found["phases"], found["report"]) == (0, "none", [], None)
    assert "nobody has started it" in shown(found)


def test_other_settings_and_other_input(finished, monkeypatch):
    """Cells under other settings, and those of shards that are gone, do not count for the newest start."""
    (finished / "in" / "2.parquet").unlink()
    config = configured(finished, overrides=["words.limit=4"])
    monkeypatch.setattr(run.Driver, "run", _interrupt)
    with pytest.raises(KeyboardInterrupt):
        run.run(config)
    found = status.status(Store(str(finished / "work" / "small")))
    assert [(phase["label"], phase["done"], phase["total"]) for phase in found["phases"]][:4] == [
        ("ingest", 2, 2), ("words", 0, 2), ("copies", 0, 2), ("copies", 0, None),
    ]  # fmt: skip
    assert found["report"] is None
    assert found["driver"]["state"] == "stopped"


def _interrupt(self):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("facts", "state"),
    [({}, "alive"), ({"pid": 2**22 + 1}, "dead"), ({"pid_started": "another"}, "dead"), ({"host": "other"}, "alive")],
)
def test_who_has_it(finished, facts, state):
    """A driver that did not say stop is alive, unless it was of this machine and its process is gone."""
    work = finished / "work" / "small"
    start(work, **facts)
    found = status.status(Store(str(work)))
    assert (found["runs"], found["driver"]["state"]) == (2, state)
    assert str(found["driver"]["pid"]) in shown(found)


def test_a_driver_that_fell_silent(finished):
    """Another machine's driver without a sign of life for long is not called alive, and what to do is said."""
    work = finished / "work" / "small"
    start(work, host="other", time="2020-01-01T00:00:00Z")
    for path in (work / "ledger").iterdir():
        os.utime(path, (1.6e9, 1.6e9))
    found = status.status(Store(str(work)))
    assert found["driver"]["state"] == "silent"
    assert "running again waits" in shown(found)


def test_an_empty_file_is_a_sign_of_life(finished):
    """A ledger file without records moves the last activity on: its driver only had nothing to record."""
    work = finished / "work" / "small"
    start(work, host="other", time="2020-01-01T00:00:00Z")
    number = len(list((work / "ledger").iterdir())) + 1
    (work / "ledger" / f"{number:012d}.jsonl").write_bytes(b"")
    assert status.status(Store(str(work)))["driver"]["state"] == "alive"


def test_failures(finished):
    """A task that failed and was not done since is told with its cell and cause."""
    work = Store(str(finished / "work" / "small"))
    cell = Cell(label="words", phase="map", unit="ab-000000000000", key="other")
    with ledger.Ledger.open(work, ledger.read(work).started, patience=0) as log:
        log.add(Outcome(task="t", attempt=0, cells=(cell,), error="MemoryError", message="no room\nfor this"))
    found = status.status(work)
    assert [(failure["stage"], failure["error"]) for failure in found["failures"]] == [("words", "MemoryError")]
    assert "words.map ab-000000000000: MemoryError: for this" in shown(found)


def test_a_shard_whose_name_holds_anything(tmp_path):
    """Slices are known by hashes, so a shard may be called as it likes."""
    corpus(tmp_path, shards=1)
    table = pq.read_table(tmp_path / "in" / "0.parquet")
    pq.write_table(table, tmp_path / "in" / "a of b-1 [é].parquet")
    run.run(configured(tmp_path))
    found = status.status(Store(str(tmp_path / "work" / "small")))
    assert found["phases"][0]["done"] == 2
