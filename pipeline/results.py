"""From a finished chain to the report: gather what the ledger, the counts and publication say, and write it down."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline import __version__, account, binding, examples, grid, ingest, report
from pipeline.driver import Driver
from pipeline.errors import ContractError
from pipeline.handoff import manifest
from pipeline.keys import canonical, fingerprint
from pipeline.opened import Opened
from pipeline.plan import curriculum_of
from pipeline.publish import Published
from pipeline.report import page
from pipeline.stage import GlobalStage, SettleStage

HISTOGRAM_BINS = 48
SHOWN = 5
"""Files that a warning names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """What makes a run a dry one: it reads rows drawn from a corpus, publishes nothing, and no guard stops it."""

    facts: Mapping[str, Any]
    """The report's `run.sample`."""
    told: Callable[[Driver, dict[str, Any]], dict[str, Any]]
    """The report on the drawn rows as one on the corpus."""
    rows: Mapping[str, np.ndarray]
    """Shard -> the row in the corpus of every row that was drawn."""

    def original(self, example: Mapping[str, Any]) -> dict[str, Any]:
        """An example with the rows of the corpus in place of those of the sample."""
        found = {"row": int(self.rows[example["shard"]][example["row"]])}
        if example["charged_shard"] is not None:
            found["charged_row"] = int(self.rows[example["charged_shard"]][example["charged_row"]])
        return {**example, **found}


@dataclass(frozen=True, kw_only=True, slots=True)
class Records:
    """What the report is made from."""

    opened: Opened
    driver: Driver
    counts: pa.Table
    guards: Sequence[Mapping[str, Any]]
    run_json: Mapping[str, Any]
    started: str
    ended: str
    folder: str
    sample: Sample | None = None
    """For a dry run."""


def counts(driver: Driver) -> pa.Table:
    """The account of the run: pipeline.account.SCHEMA."""
    found = json.loads(driver.job.work.read_bytes(driver.counts_path()))
    return pa.table([pa.array(found[item.name], item.type) for item in account.SCHEMA], schema=account.SCHEMA)


def document(records: Records, published: Published | None = None, *, complete: bool = True) -> dict[str, Any]:
    """The report document, `corpusmill.report/1`."""
    opened, driver, config = records.opened, records.driver, records.opened.config
    bad = opened.corpus.bad
    undecodable = _docs(records.counts, "quarantined", "undecodable")
    schedule = published.schedule if published else None
    built = report.build(
        run=_run(records, published, complete=complete),
        token_basis=_token_basis(records),
        counts=records.counts,
        stages=_stages(records),
        config=config.model_dump(mode="json", by_alias=True, exclude={"stages"}) | {"stages": _stage_settings(records)},
        datasets=published.datasets if published else (),
        phases=schedule.phases if schedule else (),
        buckets=_buckets(records) if published else None,
        tiers=_tiers(published) if published else (),
        compute=[_compute(records)],
        guards=records.guards,
        duplicates=_duplicates(records),
        failures=_failures(records),
        warnings=[
            *driver.warnings(),
            *_ignored(opened.corpus.ignored),
            *(schedule.warnings if schedule else ()),
        ],
        unknown_bytes_docs=undecodable,
        quarantined_shards={"count": len(bad), "bytes": sum(shard.size for shard in bad)},
    )
    return records.sample.told(driver, built) if records.sample else built


def _ignored(urls: Sequence[str]) -> Iterator[str]:
    """Warnings about files under input.paths that are no shards: hidden Parquet files, and whatever is no Parquet."""
    hidden = [url for url in urls if url.lower().endswith(".parquet")]
    others = [url for url in urls if url not in hidden]
    for files, why in (
        (hidden, "a name that begins with '.' or '_'"),
        (others, "a name that does not end in .parquet"),
    ):
        if files:
            named = ", ".join(files[:SHOWN]) + (", ..." if len(files) > SHOWN else "")
            yield f"{len(files)} file(s) under input.paths were ignored for {why}: {named}"


def _docs(counts: pa.Table, kind: str, reason: str | None = None, stage: str | None = None) -> int:
    """Documents of one kind in the account, of one reason or stage where given."""
    rows = counts.filter(pc.equal(counts["kind"], kind))
    for name, value in (("reason", reason), ("stage", stage)):
        if value is not None:
            rows = rows.filter(pc.equal(rows[name], value))
    return int(pc.sum(rows["docs"]).as_py() or 0)


def _run(records: Records, published: Published | None, *, complete: bool) -> dict[str, Any]:
    config, driver = records.opened.config, records.driver
    where = records.opened.work.child(records.folder)
    paths = {"report": "report.json", "html": "report.html", "removed": "removed", "quarantined": "quarantined"}
    return {
        "name": config.name, "run_id": records.run_json["run_id"],
        "corpus_id": published.corpus_id if published else None,
        "config_fingerprint": config.fingerprint, "version": __version__, "executor": config.run.executor,
        "complete": complete, "dry_run": records.sample is not None,
        "sample": dict(records.sample.facts) if records.sample else None,
        "attempts_of_run": driver.ledger.state.runs, "started": records.started, "ended": records.ended,
        "devices": [f"{platform.node()}: {os.cpu_count()} x {platform.machine()}"],
        "paths": {name: where.url_of(path) for name, path in paths.items()} | {"manifest": None},
    }  # fmt: skip


def _token_basis(records: Records) -> dict[str, Any]:
    training = records.opened.config.training
    known = training is not None and training.bytes_per_token is not None
    return {
        "unit": "tokens" if known else "bytes", "method": "estimated" if known else "none", "tokenizer": None,
        "revision": None, "sha256": None, "relative_interval": None, "sample_docs": 0,
    }  # fmt: skip


def _stage_settings(records: Records) -> list[dict[str, Any]]:
    return [
        {"stage": entry.ref, "as": entry.label, **entry.settings.model_dump(mode="json")}
        for entry in records.opened.config.stages
    ]


def _stages(records: Records) -> list[dict[str, Any]]:
    driver, config = records.driver, records.opened.config
    found = [_stage(records, ingest.LABEL, ingest.LABEL, dict(driver.job.policy), {}, [])]
    for entry in config.stages:
        facts: dict[str, Any] = {}
        if isinstance(entry.stage, GlobalStage):
            facts = dict(driver.sums(entry.label))
        elif isinstance(entry.stage, SettleStage):
            path = driver.phase(entry.label, "map").facts
            facts = binding.read_facts(driver.job.work, path) if path.endswith(".json") else {}
        warnings = entry.stage.warnings(entry.settings) if isinstance(entry.stage, GlobalStage) else []
        found.append(
            _stage(records, entry.label, entry.stage.name, entry.settings.model_dump(mode="json"), facts, warnings)
        )
    return found


def _stage(
    records: Records,
    label: str,
    name: str,
    settings: Mapping[str, Any],
    facts: Mapping[str, Any],
    warnings: Sequence[str],
) -> dict[str, Any]:
    driver = records.driver
    cpu = driver.seconds(label)
    last = [phase for phase in driver.chain if phase.label == label][-1]
    return {
        "label": label, "stage": name, "fingerprint": last.key, "settings": settings, "facts": facts,
        "warnings": warnings,
        "seconds": {"wall": cpu, "cpu": cpu, "gpu": 0.0, "wasted": 0.0, "idle": 0.0},
        "cells_computed": driver.redone.get(label, 0), "cells_reused": driver.reused.get(label, 0),
        "unscorable_docs": _docs(records.counts, "unscorable", stage=label),
    }  # fmt: skip


def _buckets(records: Records) -> dict[str, Any] | None:
    entry = curriculum_of(records.opened.config)
    if entry is None:
        return None
    facts = binding.read_facts(records.driver.job.work, records.driver.phase(entry.label, "map").facts)
    edges = []
    for group in facts["groups"].values():
        bounds = [None, *group["edges"], None]
        for bucket, (docs, tokens) in enumerate(zip(group["docs"], group["tokens"], strict=True)):
            if group["edges"] or facts["buckets"] == 1:
                pair = {"lower": bounds[bucket], "upper": bounds[bucket + 1]}
                edges.append({"group": group["group"], "bucket": bucket, **pair, "docs": docs, "tokens": tokens})
    return {"score": facts["column"], "by": list(getattr(entry.settings, "within", ())), "edges": edges}


def edges_table(records: Records) -> pa.Table | None:
    """The manifest's edges file, where a curriculum assigned buckets."""
    entry = curriculum_of(records.opened.config)
    if entry is None:
        return None
    facts = binding.read_facts(records.driver.job.work, records.driver.phase(entry.label, "map").facts)
    return manifest.edges_table(list(getattr(entry.settings, "within", ())), list(facts["groups"].values()))


def scores(records: Records) -> list[dict[str, Any]]:
    """The manifest's `scores`: every score a stage wrote, what it means and where it comes from."""
    found = []
    for entry in records.opened.config.stages:
        score = None if isinstance(entry.stage, GlobalStage) else entry.stage.score
        if score is None:
            continue
        files = records.opened.hashes.get(entry.label, {})
        harder = entry.stage.name == "difficulty"
        found.append({
            "name": f"{entry.label}.{score}", "unit": "bits per byte" if harder else "probability",
            "direction": "higher_is_harder" if harder else "higher_is_better", "model": entry.stage.name,
            "model_sha256": None, "model_xxh128": next(iter(files.values()), None), "context": None, "precision": None,
            "fingerprint": fingerprint("score", entry.stage.name, entry.stage.version, files),
        })  # fmt: skip
    return found


def _tiers(published: Published) -> list[dict[str, Any]]:
    return [
        {"tier": tier, "scope": "shared", "files": len(files), "bytes": sum(file.bytes for file in files),
         "copied_bytes": sum(file.bytes for file in files), "retrieved_bytes": 0, "deleted_bytes": 0}
        for tier, files in (("hot", published.hot), ("cold", published.cold))
    ]  # fmt: skip


def _compute(records: Records) -> dict[str, Any]:
    pool = records.opened.config.run.pool
    spent = records.driver.ledger.state.spent
    return {
        "pool": pool.name, "kind": pool.kind, "cpu_seconds": round(spent.cpu, 3), "gpu_seconds": 0.0,
        "wasted_seconds": round(spent.wasted, 3), "attempts": spent.attempts, "attempts_lost": spent.lost,
    }  # fmt: skip


def _duplicates(records: Records) -> dict[str, Any]:
    found = {}
    for entry in records.opened.config.stages:
        if isinstance(entry.stage, GlobalStage) and entry.stage.report is not None:
            found[entry.label] = entry.stage.report(entry.settings, records.driver.sums(entry.label))
    return found


def _failures(records: Records) -> list[dict[str, Any]]:
    bad = [
        {"stage": "ingest", "shard": shard.shard_id, "first_row": 0, "rows": None, "error": "UnreadableShard",
         "message": shard.message, "attempts": 1}
        for shard in records.opened.corpus.bad
    ]  # fmt: skip
    return bad + [dict(failure) for failure in records.driver.ledger.state.failures]


# -- written down ----------------------------------------------------------------------------------------------------


def check_tables(found: Mapping[str, Any], published: Published) -> None:
    """Identity vi of `report.identities`: the removed table has one row a removed document."""
    rows = sum(output.rows for output in published.tables["removed"])
    if rows != found["totals"]["removed"]["docs"]:
        raise ContractError(
            f"identity vi: removed/ has {rows} rows, the counts say {found['totals']['removed']['docs']}"
        )


def write(records: Records, found: dict[str, Any], published: Published | None = None) -> None:
    """Write report.json and report.html under work/<name>/<folder>/."""
    work = records.opened.work
    shown = examples.of(records.opened.corpus, work, published.tables["removed"]) if published else []
    if records.sample:
        shown = [records.sample.original(example) for example in shown]
    html = page.render(found, shown, histograms(records))
    work.write_bytes(f"{records.folder}/report.html", html.encode())
    work.write_bytes(f"{records.folder}/report.json", canonical(found) + b"\n")


def histograms(records: Records) -> dict[str, dict[str, Any]]:
    """Score name -> {edges, counts, threshold, unit} from the grid counts of account."""
    rows = records.counts.filter(pc.equal(records.counts["kind"], "histogram"))
    cuts = _cuts(records)
    found = {}
    for name in sorted(set(rows["stage"].to_pylist())):
        own = rows.filter(pc.equal(rows["stage"], name))
        values, docs = grid.lower_edge(own["cell"].to_numpy()), own["docs"].to_numpy()
        low, high = values.min(), values.max()
        edges = np.linspace(low, high if high > low else low + 1, HISTOGRAM_BINS + 1)
        binned, _ = np.histogram(values, edges, weights=docs)
        unit = "bits per byte" if name.endswith("bits_per_byte") else "probability" if name.endswith(".score") else ""
        found[name] = {
            "edges": edges.tolist(),
            "counts": binned.astype(int).tolist(),
            "threshold": cuts.get(name),
            "unit": unit,
        }
    return found


def _cuts(records: Records) -> dict[str, float]:
    """Score name -> the one threshold that a selection put on it, where it has the same unit."""
    found = {}
    for entry in records.opened.config.stages:
        by = getattr(entry.settings, "by", None)
        cut = getattr(entry.settings, "min", None)
        if entry.stage.name == "select" and by is not None and cut is not None:
            found[by] = float(cut)
    return found
