"""What a run would do, tried on rows drawn over the whole input by the ordinary engine, in process and in one place."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline import report, run
from pipeline.commands import sampling, starter
from pipeline.commands.predictions import predictions
from pipeline.commands.sampling import Drawn
from pipeline.commands.target import changed
from pipeline.config import Config, load
from pipeline.config.settings import PathConfig, TierConfig
from pipeline.corpus import Corpus, open_corpus
from pipeline.driver import Driver, Notify
from pipeline.errors import nearest, setting_error
from pipeline.opened import results_folder, work_store
from pipeline.results import Sample
from pipeline.stage import Stage
from pipeline.storage import Store, expand

PAGES = ("report.json", "report.html")
TABLES = ("removed", "quarantined")
PAIRS = (("shard", "row"), ("charged_shard", "charged_row"))
"""Columns of the tables that name a row."""
SAMPLE = "sample"
SCRATCH = "scratch-"


def dry_run(
    target: str,
    registry: tuple[Stage, ...],
    *,
    until: str | None = None,
    overrides: Sequence[str] = (),
    out: str | None = None,
    notify: Notify = run.silent,
) -> dict[str, Any]:
    """Try a run on a sample and return its report, whose `predictions` are about the whole.

    `target` is a config file (.yaml), or a Parquet file, folder or pattern without one: then the config that is used is
    kept as config.yaml, and `run` takes it. `until` is the label of the last stage to try. Rows are drawn as
    `pipeline.commands.sampling` says; up to sampling.ROWS all are. Nothing is published and no cluster is touched.

    It writes report.json, report.html, removed/, quarantined/ and sample/ (the drawn rows, in shards of the same names)
    into work/<name>/dry-run/, or without a config into ./corpusmill-<stem>/ (sample/ into its dry-run/), or into `out`.
    Rows in the report and its tables are those of the input. Raises ConfigError for a target, stage or folder that
    cannot be meant; else as `run.run` does.
    """
    if target.endswith((".yaml", ".yml")):
        config = load(target, registry, overrides)
        place = inner = _place(out) or work_store(config).child("dry-run")
    else:
        place = _place(out) or Store(f"corpusmill-{starter.stem(target)}")
        inner = place.child("dry-run")
        config = starter.write(target, registry, place, overrides)
        notify("note", {"text": f"the config that is used, to go on from: {place.where(starter.NAME)}"})
    config = _cut(config, until)
    corpus = open_corpus(config)
    drawn = sampling.draw(corpus, config.run.seed)
    with _scratch(inner) as scratch:
        readable, rows = sampling.write(corpus, drawn, scratch, SAMPLE)
        tried = _tried(config, scratch, rows)
        document = run.run(tried, notify, sample=_sample(config, corpus, drawn, readable, rows, place))
        made = work_store(tried).child(results_folder(tried.fingerprint))
        _keep(made, place, rows)
        _copy(scratch, inner, SAMPLE)
    return document


# -- what is tried ---------------------------------------------------------------------------------------------------


def _place(out: str | None) -> Store | None:
    """The folder that the user named. ConfigError if it holds what no dry run has left there: that would be mixed."""
    if out is None:
        return None
    place = Store(out)
    folders, files = place.children()
    found = json.loads(place.read_bytes(PAGES[0])) if place.exists(PAGES[0]) else {"run": {"dry_run": False}}
    if (folders or files) and not found["run"]["dry_run"]:
        raise setting_error("--out", out, "it is in use, and not by a dry run", "name a new folder")
    return place


def _cut(config: Config, until: str | None) -> Config:
    """The config without the stages after the one labelled `until`, and without what they would make groups of."""
    labels = [entry.label for entry in config.stages]
    if until is None:
        return config
    if until not in labels:
        raise setting_error("--until", until, "no stage of the config has this label", nearest(until, labels))
    kept = labels[: labels.index(until) + 1]
    mix_by = tuple(name for name in config.publish.mix_by if "." not in name or name.partition(".")[0] in kept)
    publish = config.publish.model_copy(update={"mix_by": mix_by})
    return changed(config, stages=config.stages[: len(kept)], publish=publish)


def _tried(config: Config, scratch: Store, rows: Mapping[str, np.ndarray]) -> Config:
    """The config that runs on the sample: read from there, everything written there, in this process."""
    folder = scratch.child(SAMPLE)
    listed = {file.path for file in expand(folder.url).files}
    paths = [PathConfig(url=folder.url)] if listed else []
    for shard in sorted(set(rows) - listed):  # called like no shard, but named as one by its full name
        parent, _, _ = shard.rpartition("/")
        paths.append(PathConfig.model_validate({"url": folder.url_of(shard), "as": parent or None}))
    tiers = {name: TierConfig(url=scratch.url_of(name)) for name in ("work", "hot", "cold")}
    here = {"executor": "local", "address": None, "workers": 0}
    return changed(
        config,
        input=config.input.model_copy(update={"paths": tuple(paths)}),
        tiers=config.tiers.model_copy(update=tiers),
        run=config.run.model_copy(update=here),
    )


# -- what is told ----------------------------------------------------------------------------------------------------


def _sample(
    config: Config, corpus: Corpus, drawn: Drawn, readable: np.ndarray, rows: Mapping[str, np.ndarray], place: Store
) -> Sample:
    docs = int(readable.sum())
    facts = {
        "seed": config.run.seed, "docs": docs, "shards": len(rows),
        "fraction": docs / corpus.rows if corpus.rows else 1.0,
    }  # fmt: skip
    paths = {"report": PAGES[0], "html": PAGES[1], "removed": TABLES[0], "quarantined": TABLES[1]}

    def told(driver: Driver, document: dict[str, Any]) -> dict[str, Any]:
        about = {
            "config_fingerprint": config.fingerprint, "corpus_id": None,
            "paths": {name: place.url_of(path) for name, path in paths.items()} | {"manifest": None},
        }  # fmt: skip
        settings = {**document["config"], "input": config.input.model_dump(mode="json", by_alias=True)}
        warnings = [*_warnings(corpus, readable), *filter(None, [report.breach(document["guards"])])]
        return document | {
            "run": document["run"] | about, "config": settings, "predictions": predictions(driver, drawn, readable),
            "warnings": [*warnings, *document["warnings"]],
        }  # fmt: skip

    return Sample(facts=facts, told=told, rows=rows)


def _warnings(corpus: Corpus, readable: np.ndarray) -> Iterator[str]:
    """What a run would quarantine and the sample does not hold."""
    if corpus.bad:
        first = corpus.bad[0]
        yield f"{len(corpus.bad)} shard(s) cannot be read and would be quarantined: {first.url}: {first.message}"
    if not readable.all():
        yield f"{int((~readable).sum())} of {len(readable)} drawn documents cannot be decoded and would be quarantined"


# -- what stays ------------------------------------------------------------------------------------------------------


@contextmanager
def _scratch(inner: Store) -> Iterator[Store]:
    """A new folder on this machine, below `inner` if that is local; it goes in the end, and so do those of kills."""
    for folder in inner.children()[0]:
        if folder.startswith(SCRATCH):
            inner.delete_tree(folder)
    if inner.is_local:
        Path(inner.url).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=inner.url if inner.is_local else None) as folder:
        yield Store(folder)


def _keep(made: Store, place: Store, rows: Mapping[str, np.ndarray]) -> None:
    """Take over report and tables in place of those of an earlier dry run; rows become those of the corpus."""
    for kind in TABLES:
        place.delete_tree(kind)
        for entry in made.list(kind):
            with made.open(entry.path) as handle:
                table = pq.read_table(handle)
            for shard, row in PAIRS:
                if row in table.column_names:
                    table = table.set_column(table.column_names.index(row), row, _original(table, shard, row, rows))
            with place.writer(entry.path) as handle:
                pq.write_table(table, handle, compression="zstd")
    for name in PAGES:
        place.write_bytes(name, made.read_bytes(name))


def _original(table: pa.Table, shard: str, row: str, rows: Mapping[str, np.ndarray]) -> pa.Array:
    pairs = zip(table[shard].to_pylist(), table[row].to_pylist(), strict=True)
    return pa.array([None if number is None else int(rows[name][number]) for name, number in pairs], pa.int64())


def _copy(source: Store, target: Store, folder: str) -> None:
    target.delete_tree(folder)
    for entry in source.list(folder):
        target.write_bytes(entry.path, source.read_bytes(entry.path))
