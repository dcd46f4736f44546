"""`plan`: what a run would do and why, as a document and as a table. Looks, and writes nothing anywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow.parquet as pq
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pipeline import __version__, account, cost, ingest, run, split
from pipeline.commands import estimate
from pipeline.commands.changes import Before, Need, Shards, flat, publication, reasons
from pipeline.commands.estimate import PUBLISH, Takes
from pipeline.commands.progress import duration
from pipeline.config import Config, yamltext
from pipeline.driver import Driver
from pipeline.figures import Figure, derive, figure, needs, number, short, size
from pipeline.opened import Opened, prepare
from pipeline.plan import Phase
from pipeline.storage import Store
from pipeline.types import Slice

SCHEMA = "corpusmill.plan/1"
BUILT_IN = (ingest.LABEL, split.STAGE.name, account.LABEL)
"""Labels of what every run has beside the stages of its config."""

# -- now and before --------------------------------------------------------------------------------------------------


def before(work: Store, started: Mapping[str, Any] | None) -> Before | None:
    """The run as its newest start record tells of it; None where there is none, or its config is gone."""
    path = f"configs/{started['config_fingerprint']}.yaml" if started else ""
    if not started or not work.exists(path):
        return None
    tree = yamltext.parse(work.read_bytes(path).decode(), work.where(path)).value
    folders = {(label, name): folder for label, name, _, folder in started["phases"]}
    return _before(started["version"], folders, tree)


def now(config: Config, chain: Sequence[Phase]) -> Before:
    """The run as it would start."""
    folders = {(phase.label, phase.name): phase.folder for phase in chain}
    return _before(__version__, folders, yamltext.parse(config.dump(), config.origin).value)


def _before(version: str, folders: Mapping[tuple[str, str], str], tree: Mapping[str, Any]) -> Before:
    order = list(dict.fromkeys(label for label, _ in folders))
    stages = [label for label in order if label not in BUILT_IN]
    return Before(version=version, folders=folders, order=order, settings=flat(tree, stages))


def shards(driver: Driver, started: Mapping[str, Any] | None) -> Shards:
    """How the input differs from what the newest start found: shards by name, and slices that were read as others."""
    work = driver.job.work
    if started is None or not work.exists(started["listing"]):
        return Shards()
    with work.open(started["listing"]) as handle:
        known = set(pq.read_table(handle, columns=["shard"])["shard"].to_pylist())
    here = {part.shard_id for part in driver.corpus.slices}
    changed = {part.shard_id for part in _read_as_another(driver)} & known
    return Shards(new=sorted(here - known), changed=sorted(changed), gone=sorted(known - here))


def _read_as_another(driver: Driver) -> list[Slice]:
    """Slices that ingest has not read while the ledger has it read a slice of that name: the content is another."""
    phase, state = driver.chain[0], driver.ledger.state
    read = {
        result.cell.unit for result in state.done.values()
        if result.cell.label == phase.label and any(file.path.startswith(f"{phase.folder}/") for file in result.outputs)
    }  # fmt: skip
    return [part for part in driver.corpus.slices if part.unit in read and phase.cell(part).id not in state.done]


# -- the document ----------------------------------------------------------------------------------------------------


def outlook(config: Config) -> dict[str, Any]:
    """The plan of a run. Raises what `opened.prepare` raises.

    `stages`: label, cells, reused, redo (null where not known yet), why, and Figures cpu (s) and written (bytes).
    `compute`, `storage` and `network` add them up; a Figure says its unit and how it is known.
    """
    opened = prepare(config)
    driver = run.look(opened)
    started = driver.ledger.state.started
    differs = shards(driver, started)
    left = estimate.left(driver)
    files = [entry.label for entry in config.stages if entry.stage.files(entry.settings)]
    old, new = before(opened.work, started), now(config, opened.chain)
    why = reasons(left, old, new, differs, files)
    known = estimate.past(driver.ledger.state, opened.chain, opened.corpus.slices)
    stages = [_stage(label, own, why[label], estimate.takes(own, known)) for label, own in left.items()]
    total, redo = estimate.publication(driver, opened, left)
    stages.append(
        _record(PUBLISH, total, redo, publication(redo, why, old, new), estimate.publication_takes(redo, known))
    )
    return {
        "schema": SCHEMA, "name": config.name, "config_fingerprint": config.fingerprint,
        "input": _input(opened, differs), "stages": stages, "warnings": driver.warnings(),
        **_blocks(opened, driver, stages, estimate.reading(driver, left)),
    }  # fmt: skip


def _input(opened: Opened, differs: Shards) -> dict[str, Any]:
    corpus = opened.corpus
    return {
        "shards": len({part.shard_id for part in corpus.slices}), "slices": len(corpus.slices), "rows": corpus.rows,
        "text_bytes": corpus.bytes, "new": list(differs.new), "changed": list(differs.changed),
        "gone": list(differs.gone),
        "unreadable": [{"shard": bad.shard_id, "message": bad.message} for bad in corpus.bad],
    }  # fmt: skip


def _stage(label: str, own: Sequence[Need], why: str, takes: Takes) -> dict[str, Any]:
    return _record(label, sum(need.total for need in own), sum(need.redo for need in own), why, takes)


def _record(label: str, total: int | None, redo: int | None, why: str, takes: Takes) -> dict[str, Any]:
    reused = None if total is None or redo is None else total - redo
    return {
        "label": label, "cells": total, "reused": reused, "redo": redo, "why": why, "cpu": takes.cpu,
        "written": takes.written,
    }  # fmt: skip


def _blocks(opened: Opened, driver: Driver, stages: Sequence[Mapping[str, Any]], reading: int) -> dict[str, Any]:
    settings = opened.config.model_dump(mode="json", exclude={"stages"})
    currency, text, publishes = opened.config.currency, opened.corpus.bytes, stages[-1]["redo"] != 0
    cpu = cost.total("s", "sum over stages", {stage["label"]: stage["cpu"] for stage in stages})
    work = cost.total("bytes", "sum over stages", {stage["label"]: stage["written"] for stage in stages[:-1]})
    data = stages[-1]["written"]
    if data["value"] is None:
        data = figure(None, "bytes", "bounded", "each row once, hot or cold", low=0, high=text)
    price = cost.pool_price(settings)
    return {
        "compute": {
            "executor": opened.config.run.executor, "workers": driver.workers, "cpu": cpu,
            "wall": derive(lambda cpu: cpu / driver.workers, "s", "CPU seconds / run.workers, all busy", {"cpu": cpu}),
            "cost": derive(_product(3600), currency, "CPU seconds / 3600 x price", {"cpu": cpu, "price": price}),
        },
        "storage": {
            "work": work, "hot_and_cold": data,
            "month_at_most": {tier: _month(tier, data, settings) for tier in ("hot", "cold")},
        },
        "network": {
            "read": figure(reading, "bytes", "estimated", "text by the footers, uncompressed; numbers 64 bytes a row"),
            "read_to_publish": _bounds(text, publishes),
            "write": derive(lambda a, b: a + b, "bytes", "work + hot and cold", {"work": work, "hot and cold": data}),
        },
        "prices": {"run.pool": price} | {f"tiers.{tier}": cost.tier_price(tier, settings) for tier in ("hot", "cold")},
    }  # fmt: skip


def _product(unit: float) -> Any:
    return lambda amount, price: amount / unit * price


def _month(tier: str, data: Figure, settings: Mapping[str, Any]) -> Figure:
    price = cost.tier_price(tier, settings)
    formula = "bytes / 1e9 x price per GB-month, if all of it lay there"
    return derive(_product(1e9), settings["currency"], formula, {"bytes": data, "price": price})


def _bounds(text: int, publishes: bool) -> Figure:
    if not publishes:
        return figure(0, "bytes", "counted", "nothing to publish")
    return figure(
        None, "bytes", "bounded", "the text once for hot, at most once more for cold", low=text, high=2 * text
    )


# -- on a terminal ---------------------------------------------------------------------------------------------------


def table(plan: Mapping[str, Any]) -> RenderableType:
    """The plan for a console of 80 columns or more."""
    given = plan["input"]
    head = Text(plan["name"], "bold")
    told = f"  plan: {given['shards']:,} shards, {short(given['rows'])} rows, {size(given['text_bytes'])} of text\n"
    head.append(told, "dim")
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    grid.add_column("stage", no_wrap=True)
    for name in ("cells", "reused", "redo", "CPU"):
        grid.add_column(name, justify="right", no_wrap=True)
    grid.add_column("why", overflow="fold")
    for stage in plan["stages"]:
        cells = [_cells(stage[name]) for name in ("cells", "reused", "redo")]
        row = [stage["label"], *cells, _amount(stage["cpu"], duration), stage["why"]]
        grid.add_row(*map(Text, row), style="dim" if stage["redo"] == 0 else "")
    notes = [Text(f"quarantined as a whole: {bad['shard']}: {bad['message']}", "yellow") for bad in given["unreadable"]]
    notes += [Text(f"warning: {warning}", "yellow") for warning in plan["warnings"]]
    return Group(head, grid, _totals(plan), *notes)


def _totals(plan: Mapping[str, Any]) -> Text:
    compute, storage, network = plan["compute"], plan["storage"], plan["network"]
    cost, workers = compute["cost"], f"{compute['workers']:,} {compute['executor']} worker(s)"
    paid = "unknown" if cost["value"] is None else f"{number(cost['value'])} {cost['unit']} ({cost['kind']})"
    lines = {
        "compute": f"CPU {_amount(compute['cpu'], duration)}, {_amount(compute['wall'], duration)} on {workers}",
        "cost": paid,
        "storage": f"work {_amount(storage['work'], size)}, hot and cold {_amount(storage['hot_and_cold'], size)}",
        "read": f"{_amount(network['read'], size)}, to publish {_amount(network['read_to_publish'], size)}",
        "write": _amount(network["write"], size),
    }
    if missing := needs(cost):
        lines["cost"] += f"; to know it, add to the config: {', '.join(missing)}"
    return Text("".join(f"\n{name:9}{line}" for name, line in lines.items()))


def _cells(count: int | None) -> str:
    return "?" if count is None else short(count)


def _amount(given: Figure, show: Any) -> str:
    if given["kind"] == "bounded":
        return f"{show(given['low'])} to {show(given['high'])}"
    return "unknown" if given["value"] is None else str(show(given["value"]))
