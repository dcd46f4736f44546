"""A run from config to report: the table of contents of the engine."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import Any

from pipeline import __version__, account, binding, cuts, ingest, ledger, listing, plan, publish, report, results
from pipeline.config import Config
from pipeline.damage import DamagedError
from pipeline.driver import Driver, Notify, cores
from pipeline.errors import AlreadyExistsError, ConfigError, ContractError
from pipeline.executors import local
from pipeline.executors.local import Run
from pipeline.job import Job, StageRef
from pipeline.keys import canonical
from pipeline.ledger import Ledger
from pipeline.opened import Opened, cold_store, hot_store, prepare, results_folder
from pipeline.storage import Store
from pipeline.types import CellResult, Outcome, Output, Task
from pipeline.units import now


def silent(kind: str, facts: Mapping[str, Any]) -> None:
    """The Notify of nobody."""


def run(config: Config, notify: Notify = silent, *, sample: results.Sample | None = None) -> dict[str, Any]:
    """Start or resume a run, publish it, and return its report. With a `sample` it is a dry run: it only reports.

    Raises ConfigError before any work, ContractError (a guard, an identity, changed input), StorageError, BusyError,
    and WorkError where tasks failed after their retries: the same call again resumes.
    """
    started = now()
    opened = prepare(config)
    run_json = claim(opened)
    listed = listing.put(opened.work, opened.corpus.slices)
    facts = start_facts(opened, listed)

    def tell(text: str) -> None:
        notify("note", {"text": text})

    with Ledger.open(opened.work, facts, tell=tell) as log, executor(config) as execute:
        driver = _driver(opened, log, execute, notify, listed)
        while True:
            try:
                driver.run()
                return _finish(opened, driver, run_json, started, sample)
            except DamagedError:  # its cell is missing now; every file can be found damaged once
                continue


def claim(opened: Opened) -> dict[str, Any]:
    """Make work/<name>/run.json, or read it: a folder belongs to one run. Keeps every config that ever ran here."""
    work, config = opened.work, opened.config
    fresh = {"schema": "corpusmill.run/1", "name": config.name, "run_id": uuid.uuid4().hex, "created": now()}
    if not work.exists("run.json"):
        work.probe_exclusive()
        hot_store(config).probe_writable("tiers.hot")  # or it would be noticed after all the work
        cold_store(config).probe_writable("tiers.cold")
        with suppress(AlreadyExistsError):  # another driver was quicker: the ledger decides which of the two goes on
            work.create("run.json", canonical(fresh) + b"\n")
    found = read_run(work)
    if found["name"] != config.name:
        raise ConfigError(
            f"name: got {config.name!r}, but {work.where()} belongs to run {found['name']!r}; "
            "use another name or folder"
        )
    path = f"configs/{config.fingerprint}.yaml"
    if not work.exists(path):
        work.write_bytes(path, config.dump().encode())
    return found


def read_run(work: Store) -> dict[str, Any]:
    """What run.json says. Raises ContractError (exit 3) where it is damaged."""
    try:
        found: dict[str, Any] = json.loads(work.read_bytes("run.json"))
        return {name: found[name] for name in ("schema", "name", "run_id", "created")}
    except (ValueError, KeyError, TypeError) as error:
        raise ContractError(
            f"{work.where('run.json')}: damaged ({type(error).__name__}: {error}); delete this file and run again"
        ) from error


def start_facts(opened: Opened, listed: str) -> dict[str, Any]:
    """What a start record says of its run, so that `status` and `plan` need neither its input nor its models."""
    phases = [[phase.label, phase.name, phase.over, phase.folder] for phase in opened.chain]
    slices = len(opened.corpus.slices)
    return {
        "version": __version__, "config_fingerprint": opened.config.fingerprint, "slices": slices, "listing": listed,
        "phases": phases,
    }  # fmt: skip


def look(opened: Opened) -> Driver:
    """A driver that says what is done and does nothing: it takes no run over and writes nothing."""
    return _driver(opened, Ledger(opened.work, ledger.read(opened.work)), _idle, silent, "")


def _idle(job: Job, tasks: Iterable[Task]) -> Iterator[Outcome]:
    raise AssertionError("a driver that only looks was asked to work")


def executor(config: Config) -> AbstractContextManager[Run]:
    """The executor that run.executor names."""
    workers = cores(config.run.workers)
    if config.run.executor == "ray":
        from pipeline.executors import ray

        return ray.start(config.run.address, workers, config.run.ray.pythonpath)
    return local.start(workers)


def _driver(opened: Opened, log: Ledger, execute: Run, notify: Notify, listed: str) -> Driver:
    config, corpus, work = opened.config, opened.corpus, opened.work
    training = config.training
    job = Job(
        work=work,
        hot=hot_store(config),
        cold=cold_store(config),
        schema=corpus.schema, names=corpus.names,
        policy={"invalid_utf8": config.input.invalid_utf8, "max_document_bytes": config.input.max_document_bytes},
        token_ratio=ingest.token_ratio(training.bytes_per_token if training else None),
        seed=config.run.seed,
        sources={name: item.model_dump(mode="json") for name, item in config.sources.items()},
        stages=stage_refs(config, opened.hashes),
        slices=len(corpus.slices), memory=config.run.worker_memory, listing=listed,
    )  # fmt: skip
    return Driver(
        config=config, corpus=corpus, chain=opened.chain, job=job, ledger=log, execute=execute, notify=notify,
        files=stored(work), workers=max(1, cores(config.run.workers)),
    )  # fmt: skip


def stage_refs(config: Config, hashes: Mapping[str, Mapping[str, str]]) -> dict[str, StageRef]:
    """The stages as they travel. `hashes`: label -> name of a model file -> xxh128 of its bytes."""
    return {
        entry.label: StageRef(
            ref=entry.ref,
            settings=entry.settings.model_dump(mode="json"),
            files=entry.stage.files(entry.settings),
            hashes=hashes.get(entry.label, {}),
        )
        for entry in (*config.stages, plan.split_entry(config))
    }


def stored(work: Store) -> dict[str, int]:
    """Sizes of everything under the folders that results lie in: one listing a run."""
    return {entry.path: entry.size for folder in ("sidecars", "exchange", "facts") for entry in work.list(folder)}


# -- after the last count --------------------------------------------------------------------------------------------


def _finish(
    opened: Opened, driver: Driver, run_json: Mapping[str, Any], started: str, sample: results.Sample | None
) -> dict[str, Any]:
    """Judge the guards, publish, check the identities, write the manifest, then the report."""
    config = opened.config
    counts = results.counts(driver)
    judged = report.guards(counts, config.model_dump(mode="json", exclude={"stages"}))
    stopped = report.breach(judged)
    records = results.Records(
        opened=opened, driver=driver, counts=counts, guards=judged, run_json=run_json, started=started, ended=now(),
        folder=results_folder(config.fingerprint), sample=sample,
    )  # fmt: skip
    if stopped and sample is None:
        document = results.document(records, complete=False)
        results.write(records, document)
        raise ContractError(f"{stopped}; what would go: {document['run']['paths']['html']}")
    published = publication(records)
    document = results.document(replace(records, ended=now()), published)
    report.identities(document)
    results.check_tables(document, published)
    # All results, not only those of this config: the driver that was killed may have had another one.
    for store, folder in ((driver.job.hot, config.name), (driver.job.cold, config.name), (opened.work, "results")):
        publish.sweep(store, folder)
    if sample is None:
        fields = publish.manifest_fields(config, published, results.scores(records), f"corpusmill {__version__}", now())
        path, fresh = publish.put_manifest(driver.job.hot, fields, published)
        document["run"]["paths"]["manifest"] = driver.job.hot.url_of(path)
        driver.notify("published", {"path": path, "new": fresh})
    results.write(records, document, published)
    return document


def publication(records: results.Records) -> publish.Published:
    """Write datasets, archive and tables; of a dry run only the tables."""
    opened, driver, dry = records.opened, records.driver, records.sample is not None
    config, corpus = opened.config, opened.corpus
    contents = [str(result.facts["content"]) for result in driver.results(driver.chain[0])]
    corpus_id = publish.corpus_id(corpus.slices, contents)
    key = publish.publish_fingerprint(config, corpus_id, opened.hashes)
    totals = [result.facts for result in driver.results(driver.phase(account.LABEL, "measure"), whole=False)]
    sources = cuts.Sources(slices=corpus.slices, sidecars=list(driver.sidecars()), totals=totals)
    hot: list[CellResult] = []
    cold: list[CellResult] = []
    begins: dict[int, tuple[str, int]] = {}
    if not dry:
        columns = list(config.publish.columns or corpus.schema.names)
        hot = _published(driver, cuts.hot_tasks(config, key, sources, columns), driver.job.hot)
        tasks, begins = cuts.cold_tasks(config, key, sources, list(corpus.schema.names))
        cold = _published(driver, tasks, driver.job.cold)
    tables = {}
    for kind in ("removed", "quarantined"):
        wanted = cuts.table_tasks(kind, records.folder, key, sources, begins, corpus.bad, dry_run=dry)
        tables[kind] = _outputs(_published(driver, wanted, opened.work))
        publish.keep_only(opened.work, f"{records.folder}/{kind}", tables[kind])
    facts = binding.read_facts(opened.work, driver.phase("split", "map").facts)
    datasets = publish.datasets(facts, records.counts, publish.files_of(config.name, hot))
    schedule, control = publish.schedules(config, datasets)
    return publish.Published(
        corpus_id=corpus_id, key=key, datasets=datasets, schedule=schedule, control=control,
        edges=results.edges_table(records), hot=_outputs(hot), cold=_outputs(cold), tables=tables,
        archive=None if dry else publish.put_archive(driver.job.cold, config, key, cold),
    )  # fmt: skip


def _outputs(found: Sequence[CellResult]) -> list[Output]:
    return [output for result in found for output in result.outputs]


def _published(driver: Driver, tasks: Sequence[Task], store: Store) -> list[CellResult]:
    """Do the publish tasks whose files are not there as recorded; returns all their results."""
    folders = sorted({file.path.rsplit("/", 1)[0] for task in tasks for file in task.work.files})
    there = {entry.path: entry.size for folder in folders for entry in store.list(folder)}

    def whole(task: Task) -> bool:
        result = driver.done(task.cells[0])
        if result is None or any(there.get(output.path) != output.bytes for output in result.outputs):
            return False
        # A table's name says nothing of its content: it may be that of the input before the last change.
        named_by_key = task.work.kind in ("hot", "cold")
        return named_by_key or all(store.output(o.path, o.rows) == o for o in result.outputs)

    kinds = sorted({task.cells[0].phase for task in tasks})
    driver.notify("stage", {"labels": ["publish"] * len(kinds), "phases": kinds, "over": "files"})
    driver.do([task for task in tasks if not whole(task)])
    found = [driver.done(task.cells[0]) for task in tasks]
    return [result for result in found if result is not None]
