"""A run from config to report: the table of contents of the engine."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline import account, binding, ingest, listing, page, plan, publish, report, results, storage
from pipeline.config import Config, check_files
from pipeline.corpus import Corpus, open_corpus
from pipeline.driver import Driver, Notify, cores, sidecars_of
from pipeline.errors import AlreadyExists, ConfigError, ContractError
from pipeline.executors import local
from pipeline.executors.local import Run
from pipeline.job import Job, StageRef
from pipeline.keys import canonical, hash_bytes
from pipeline.ledger import Ledger
from pipeline.storage import Store
from pipeline.types import CellResult


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """A config brought together with its corpus: all that is checked before any work."""

    config: Config
    corpus: Corpus
    hashes: Mapping[str, Mapping[str, str]]
    work: Store
    chain: Sequence[plan.Phase]


def silent(kind: str, facts: Mapping[str, Any]) -> None:
    """The Notify of nobody."""


def work_store(config: Config) -> Store:
    """work/<name>/, where everything internal to the run lies."""
    return Store(config.tiers.work.url, config.tiers.work.options).child(config.name)


def prepare(config: Config) -> Opened:
    """Check everything that can be checked without working: files, footers, schema, columns. Raises ConfigError."""
    check_files(config)
    corpus = open_corpus(config)
    _check_columns(config, corpus)
    hashes = {
        entry.label: {name: _file_hash(url) for name, url in entry.stage.files(entry.settings).items()} for entry in config.stages
    }
    ids = [part.input_id for part in corpus.slices]
    chain = plan.phases(config, ids, corpus.names, hashes)
    return Opened(config=config, corpus=corpus, hashes=hashes, work=work_store(config), chain=chain)


def _file_hash(url: str) -> str:
    return hash_bytes(storage.fetch(url, binding.model_folder()).read_bytes())


def _check_columns(config: Config, corpus: Corpus) -> None:
    known = set(corpus.schema.names)
    missing = sorted(config.input_columns_used() - known)
    if missing and corpus.slices:
        raise ConfigError(f"columns {', '.join(missing)}: no stage before writes them and no shard has them; the input has {', '.join(sorted(known))}")
    if config.publish.columns is not None:
        absent = sorted(set(config.publish.columns) - known)
        if absent and corpus.slices:
            raise ConfigError(f"publish.columns: no shard has {', '.join(absent)}; the input has {', '.join(sorted(known))}")


def run(config: Config, notify: Notify = silent, *, dry_run: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Start or resume a run, publish it, and return its report. `run.exit_code` is 0, or 5 with quarantined input.

    Raises ConfigError before any work, ContractError (a guard, an identity, changed input), StorageError, BusyError,
    and WorkError where tasks failed after their retries: the same call again resumes.
    """
    started = now()
    opened = prepare(config)
    run_json = claim(opened)
    with Ledger.open(opened.work, _driver_facts(config)) as ledger, executor(config) as execute:
        driver = _driver(opened, ledger, execute, notify)
        driver.run()
        return _finish(opened, driver, run_json, started, dry_run)


def claim(opened: Opened) -> dict[str, Any]:
    """Make work/<name>/run.json, or read it: a folder belongs to one run. Keeps every config that ever ran here."""
    work, config = opened.work, opened.config
    fresh = {"schema": "corpusmill.run/1", "name": config.name, "run_id": uuid.uuid4().hex, "created": now()}
    if not work.exists("run.json"):
        work.probe_exclusive()
        try:
            work.create("run.json", canonical(fresh) + b"\n")
        except AlreadyExists:
            pass  # another driver was quicker: the ledger decides which of the two goes on
    found: dict[str, Any] = json.loads(work.read_bytes("run.json"))
    if found["name"] != config.name:
        raise ConfigError(f"name: got {config.name!r}, but {work.where()} belongs to run {found['name']!r}; use another name or folder")
    path = f"configs/{config.fingerprint}.yaml"
    if not work.exists(path):
        work.write_bytes(path, config.dump().encode())
    return found


def _driver_facts(config: Config) -> dict[str, Any]:
    from pipeline import __version__

    return {"version": __version__, "config_fingerprint": config.fingerprint}


def executor(config: Config) -> AbstractContextManager[Run]:
    """The executor that run.executor names."""
    workers = cores(config.run.workers)
    if config.run.executor == "ray":
        from pipeline.executors import ray

        return ray.start(config.run.address, workers, config.run.ray.pythonpath)
    return local.start(workers)


def _driver(opened: Opened, ledger: Ledger, execute: Run, notify: Notify) -> Driver:
    config, corpus, work = opened.config, opened.corpus, opened.work
    training = config.training
    job = Job(
        work=work,
        hot=Store(config.tiers.hot.url, config.tiers.hot.options),
        cold=Store(config.tiers.cold.url, config.tiers.cold.options),
        schema=corpus.schema, names=corpus.names,
        policy={"invalid_utf8": config.input.invalid_utf8, "max_document_bytes": config.input.max_document_bytes},
        token_ratio=ingest.token_ratio(training.bytes_per_token if training else None),
        seed=config.run.seed,
        sources={name: item.model_dump(mode="json") for name, item in config.sources.items()},
        stages=stage_refs(config),
        slices=len(corpus.slices), listing=listing.put(work, corpus.slices),
    )  # fmt: skip
    return Driver(
        config=config, corpus=corpus, chain=opened.chain, job=job, ledger=ledger, execute=execute, notify=notify,
        files=stored(work), workers=max(1, cores(config.run.workers)),
    )  # fmt: skip


def stage_refs(config: Config) -> dict[str, StageRef]:
    return {
        entry.label: StageRef(ref=entry.ref, settings=entry.settings.model_dump(mode="json"), files=entry.stage.files(entry.settings))
        for entry in (*config.stages, plan.split_entry(config))
    }


def stored(work: Store) -> dict[str, int]:
    """Sizes of everything under the folders that results lie in: one listing a run."""
    return {entry.path: entry.size for folder in ("sidecars", "exchange", "facts") for entry in work.list(folder)}


# -- after the last count --------------------------------------------------------------------------------------------


def _finish(opened: Opened, driver: Driver, run_json: Mapping[str, Any], started: str, dry_run: Mapping[str, Any] | None) -> dict[str, Any]:
    """Judge the guards, publish, check the identities, write the manifest, then the report."""
    config, work = opened.config, opened.work
    counts = results.counts(driver)
    judged = report.guards(counts, config.model_dump(mode="json", exclude={"stages"}))
    stopped = report.breach(judged) if dry_run is None else ""
    folder = "dry-run" if dry_run is not None else f"results/{config.fingerprint[:12]}"
    records = results.Records(
        opened=opened, driver=driver, counts=counts, guards=judged, run_json=run_json, started=started, folder=folder, dry_run=dry_run
    )
    if stopped:
        results.write(records, results.document(records, complete=False))
        raise ContractError(stopped)
    published = publication(opened, driver, folder, dry_run=dry_run is not None)
    document = results.document(records, published=published)
    report.identities(document)
    results.check_tables(document, published)
    if published.manifest is not None:
        path, fresh = publish.put_manifest(driver.job.hot, config, published.manifest, published.control, published.edges)
        document["run"]["paths"]["manifest"] = driver.job.hot.url_of(path)
        driver.notify("published", {"path": path, "new": fresh})
    results.write(records, document, published)
    return document


def publication(opened: Opened, driver: Driver, folder: str, *, dry_run: bool) -> publish.Published:
    """Write datasets, archive and tables; returns what the manifest and the report say of them."""
    config, corpus = opened.config, opened.corpus
    contents = [str(result.facts["content"]) for result in driver.results(driver.chain[0])]
    corpus_id = publish.corpus_id(corpus.slices, contents)
    key = publish.publish_fingerprint(config, corpus_id, opened.hashes)
    totals = [result.facts for result in driver.results(driver.phase(account.LABEL, "measure"))]
    sources = publish.Sources(slices=corpus.slices, sidecars=list(sidecars_of(driver)), totals=totals)
    columns = list(config.publish.columns or corpus.schema.names)
    hot: list[CellResult] = []
    cold: list[CellResult] = []
    begins: dict[int, tuple[str, int]] = {}
    if not dry_run:
        hot = _published(driver, publish.hot_tasks(config, key, sources, columns), driver.job.hot)
        tasks, begins = publish.cold_tasks(config, key, sources, list(corpus.schema.names))
        cold = _published(driver, tasks, driver.job.cold)
    tables = {}
    for kind in ("removed", "quarantined"):
        table_tasks = publish.table_tasks(kind, folder, key, sources, begins, dry_run=dry_run)
        tables[kind] = _published(driver, table_tasks, opened.work)
    return publish.assemble(opened, driver, corpus_id, key, hot, cold, tables, dry_run=dry_run)


def _published(driver: Driver, tasks: Sequence[Any], store: Store) -> list[CellResult]:
    """Do the publish tasks whose files are not there as recorded; returns all their results."""
    folders = sorted({file.path.rsplit("/", 1)[0] for task in tasks for file in task.work.files})
    there = {entry.path: entry.size for folder in folders for entry in store.list(folder)}

    def whole(task: Any) -> bool:
        result = driver.done(task.cells[0])
        return result is not None and all(there.get(output.path) == output.bytes for output in result.outputs)

    driver.notify("stage", {"labels": ["publish"], "over": "files"})
    driver.do([task for task in tasks if not whole(task)])
    found = [driver.done(task.cells[0]) for task in tasks]
    return [result for result in found if result is not None]


def now() -> str:
    """RFC 3339 UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@contextmanager
def nothing() -> Iterator[None]:
    yield


def example_texts(opened: Opened, wanted: Sequence[tuple[str, int]]) -> dict[tuple[str, int], str]:
    """The texts of a few rows (shard, row), for the page."""
    return results.texts(opened.corpus, wanted)


__all__ = ["Opened", "Path", "pa", "page", "prepare", "run"]
