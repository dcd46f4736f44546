"""A config brought together with its corpus: everything that is checked before any work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from pipeline import binding, cost, plan, storage
from pipeline.config import Config, check_files
from pipeline.config.stagelist import written
from pipeline.corpus import Corpus, open_corpus
from pipeline.errors import ConfigError
from pipeline.keys import hash_bytes
from pipeline.stage import Context, GlobalStage
from pipeline.storage import Store

_STRING, _INT = pa.large_string(), pa.int64()
CORE_TYPES = {
    "text": _STRING, "bytes": _INT, "tokens": _INT, "source": _STRING, "language": _STRING, "id": _STRING,
    "content_hash": pa.binary(16), "text_hash": pa.uint64(), "source.priority": _INT,
}  # fmt: skip
"""Types of the columns that every stage may read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """A config that can be run, and what it will be run on."""

    config: Config
    corpus: Corpus
    hashes: Mapping[str, Mapping[str, str]]
    work: Store
    chain: Sequence[plan.Phase]


def work_store(config: Config) -> Store:
    """work/<name>/, where everything internal to the run lies."""
    return Store(config.tiers.work.url, config.tiers.work.options).child(config.name)


def hot_store(config: Config) -> Store:
    """The root of the hot tier."""
    return Store(config.tiers.hot.url, config.tiers.hot.options)


def cold_store(config: Config) -> Store:
    """The root of the cold tier."""
    return Store(config.tiers.cold.url, config.tiers.cold.options)


def results_folder(fingerprint: str) -> str:
    """Where the report and the tables of the config of this fingerprint lie, under work/<name>/."""
    return f"results/{fingerprint[:12]}"


def prepare(config: Config) -> Opened:
    """Check everything that can be checked without working: files, footers, schema, columns. Raises ConfigError."""
    check_files(config)
    corpus = open_corpus(config)
    _check_inputs(config, corpus)
    _check_models(config)
    hashes = {
        entry.label: {name: _file_hash(url) for name, url in entry.stage.files(entry.settings).items()}
        for entry in config.stages
    }
    ids = [part.input_id for part in corpus.slices]
    chain = plan.phases(config, ids, corpus.names, hashes)
    return Opened(config=config, corpus=corpus, hashes=hashes, work=work_store(config), chain=chain)


def _file_hash(url: str) -> str:
    return hash_bytes(storage.fetch(url, binding.model_folder()).read_bytes())


def _check_models(config: Config) -> None:
    """Bind every stage that has model files once: a wrong label or a broken model is an error before any work."""
    for index, entry in enumerate(config.stages):
        files = entry.stage.files(entry.settings)
        if files and not isinstance(entry.stage, GlobalStage) and entry.stage.bind is not None:
            local = {name: storage.fetch(url, binding.model_folder()) for name, url in files.items()}
            try:
                entry.stage.bind(entry.settings, Context(files=local))
            except ConfigError as error:
                raise ConfigError(f"{config.origin}: stages.{index}: {error.message}") from error


def _check_inputs(config: Config, corpus: Corpus) -> None:
    """Columns that are read or published must be in the input and of a use; the GPU one whose peak is known."""
    present = corpus.schema.names
    wanted = [*sorted(config.input_columns_used()), *(config.publish.columns or ())]
    for name in wanted:
        if name not in present:
            raise config.absent_column(name, present)
    types = {item.name: item.type for item in corpus.schema} | CORE_TYPES
    for index, entry in enumerate(config.stages):
        try:
            entry.settings.check_columns(types)
        except ConfigError as error:
            raise ConfigError(f"{config.origin}: stages.{index}.{error.message}") from None
        types |= {f"{entry.label}.{item.name}": item.type for item in written(entry.stage)}
    cost.peak(config.training.gpu if config.training else None)
