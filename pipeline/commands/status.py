"""`status`: how far a run is and who has it, from its ledger alone: neither its input nor its models need be there."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow.parquet as pq
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pipeline import ledger
from pipeline.commands.progress import cause, duration
from pipeline.commands.target import is_config, run_folder
from pipeline.config import load
from pipeline.figures import short
from pipeline.opened import results_folder, work_store
from pipeline.run import read_run
from pipeline.stage import Stage
from pipeline.state import State
from pipeline.storage import Store
from pipeline.types import unit_of
from pipeline.units import format_time

SCHEMA = "corpusmill.status/1"
FAILURES = 8
"""Failures that are shown on a terminal."""


def folder_of(target: str, registry: tuple[Stage, ...], overrides: Sequence[str] = ()) -> Store:
    """work/<name>/ of a run that is named by its config file or by that folder itself, on any store."""
    return work_store(load(target, registry, overrides)) if is_config(target) else run_folder(target)


def status(work: Store) -> dict[str, Any]:
    """What the ledger under `work` says.

    name, run_id, created, work, runs, last_activity (RFC 3339, null before the first start)
    driver      state: none, stopped, alive, dead or silent (another host's, without a sign of life for PATIENCE s);
                host, pid, since
    phases      label, phase, over, done, total: cells under the settings of the newest start; total null where it is
                not known yet
    failures    tasks that failed and have not been done since
    report      where the report of the newest start's config is, if it has been written
    """
    state = ledger.read(work)
    started = state.started
    named = read_run(work) if work.exists("run.json") else {}
    seen = last_activity(work)
    path = f"{results_folder(started['config_fingerprint'])}/report.json" if started else ""
    return {
        "schema": SCHEMA, "name": named.get("name"), "run_id": named.get("run_id"), "created": named.get("created"),
        "work": work.where(), "runs": state.runs, "last_activity": format_time(seen) if seen else None,
        "driver": _driver(state, seen),
        "config_fingerprint": started["config_fingerprint"] if started else None, "phases": phases(work, state),
        "cpu_seconds": round(state.spent.cpu, 3), "wasted_seconds": round(state.spent.wasted, 3),
        "attempts_lost": state.spent.lost, "failures": list(state.failures), "warnings": list(state.warnings),
        "report": work.url_of(path) if path and work.exists(path) else None,
    }  # fmt: skip


def phases(work: Store, state: State) -> list[dict[str, Any]]:
    """Cells done and in all of every phase of the newest start. Slices count by name: one that was read with another
    content counts as done until the run comes to it.
    """
    if state.started is None:
        return []
    slices = _units(work, state.started["listing"])
    listed = [(label, name, over, folder.split("/")[1]) for label, name, over, folder in state.started["phases"]]
    current = {(label, name, place) for label, name, _, place in listed}
    units: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for result in state.done.values():
        cell = result.cell
        places = {file.path.split("/")[1].partition(".")[0] for file in result.outputs}
        ours = "-" not in cell.unit or cell.unit in slices
        if ours and any((cell.label, cell.phase, place) in current for place in places):
            units[cell.label, cell.phase].add(cell.unit)
    return [
        {"label": label, "phase": name, "over": over, "done": len(units[label, name]),
         "total": _total(over, units[label, name], len(slices))}
        for label, name, over, _ in listed
    ]  # fmt: skip


def _units(work: Store, listing: str) -> set[str]:
    """Names of the slices that a start found."""
    with work.open(listing) as handle:
        table = pq.read_table(handle)
    return {unit_of(*row) for row in zip(table["shard"].to_pylist(), table["first_row"].to_pylist(), strict=True)}


def _total(over: str, units: set[str], slices: int) -> int | None:
    if over == "slices":
        return slices
    if over == "once":
        return 1
    return max((int(unit.partition("of")[2]) for unit in units), default=None)


def last_activity(work: Store) -> datetime | None:
    """When the ledger was last written: the newest record's time, or later where a local file says so."""
    files = [entry for entry in work.list(ledger.FOLDER) if entry.path.endswith(".jsonl")]
    times = []
    if files and work.is_local:  # an empty file is a sign of life without a time of its own
        times.append(datetime.fromtimestamp(int(files[-1].stamp) // 10**9, UTC))
    for entry in reversed(files):
        lines = work.read_bytes(entry.path).splitlines() if entry.size else []
        if lines:
            times.append(datetime.fromisoformat(json.loads(lines[-1])["time"]))
            break
    return max(times, default=None)


def _driver(state: State, seen: datetime | None) -> dict[str, Any]:
    if state.started is None:
        return {"state": "none", "host": None, "pid": None, "since": None}
    told = {"host": state.started["host"], "pid": state.started["pid"], "since": state.started["time"]}
    if state.driver is None:
        return {"state": "stopped", **told}
    if ledger.is_dead(state.driver):
        return {"state": "dead", **told}
    quiet = (datetime.now(UTC) - seen).total_seconds() if seen else 0.0
    return {"state": "silent" if quiet > ledger.PATIENCE else "alive", **told}


# -- on a terminal ---------------------------------------------------------------------------------------------------

DRIVERS = {
    "none": "nobody has started it",
    "stopped": "no driver; the last one ended in order",
    "alive": "driver {pid} on {host} is at work",
    "dead": "driver {pid} on {host} is dead: run again to resume",
    "silent": "driver {pid} on {host} gives no sign of life: running again waits 90 s for one, then resumes",
}


def table(found: Mapping[str, Any]) -> RenderableType:
    """The status for a console of 80 columns or more."""
    head = Text(str(found["name"]), "bold")
    head.append(f"  {found['work']}\n", "dim")
    head.append(f"{DRIVERS[found['driver']['state']].format(**found['driver'])}\n")
    if found["last_activity"]:
        ago = datetime.now(UTC) - datetime.fromisoformat(found["last_activity"])
        head.append(f"driver starts {found['runs']:,}, last activity {found['last_activity']} ")
        head.append(f"({duration(ago.total_seconds())} ago)\n", "dim")
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for name in ("stage", "phase"):
        grid.add_column(name, no_wrap=True)
    for name in ("done", "of"):
        grid.add_column(name, justify="right", no_wrap=True)
    for phase in found["phases"]:
        total = "?" if phase["total"] is None else short(phase["total"])
        whole = phase["done"] == phase["total"]
        row = (phase["label"], phase["phase"], short(phase["done"]), total)
        grid.add_row(*map(Text, row), style="dim" if whole else "")
    return Group(head, *([grid] if found["phases"] else []), *_notes(found))


def _notes(found: Mapping[str, Any]) -> Sequence[Text]:
    notes = []
    for failure in found["failures"][:FAILURES]:
        why = cause(failure["error"], failure["message"])
        where = f"{failure['stage']}.{failure['phase']} {failure['unit']}"
        notes.append(Text(f"failed {failure['attempts']} times: {where}: {why}", "red"))
    if len(found["failures"]) > FAILURES:
        notes.append(Text(f"and {len(found['failures']) - FAILURES:,} more failures", "red"))
    notes += [Text(f"warning: {warning}", "yellow") for warning in found["warnings"]]
    return [*notes, *([Text(f"report   {found['report']}")] if found["report"] else [])]
