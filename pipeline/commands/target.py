"""What a command is pointed at: a config file or the folder of a run, and what that run has finished and published."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline import columns, ledger, publish, run
from pipeline.config import Config, load, loads
from pipeline.config.settings import TierConfig
from pipeline.driver import Driver
from pipeline.errors import ConfigError, setting_error
from pipeline.frame import Frame
from pipeline.job import PartSource, SidecarRef
from pipeline.opened import hot_store, prepare
from pipeline.rowgroups import frame_of
from pipeline.stage import Stage
from pipeline.storage import Store, locate
from pipeline.types import Output, Slice


def is_config(target: str) -> bool:
    """Whether the argument names a config file, be it there or not."""
    return os.path.isfile(target) or Path(target).suffix in (".yaml", ".yml")


def run_folder(target: str) -> Store:
    """The folder work/<name> of a run, on any store. ConfigError for any other place."""
    folder = Store(target)
    if not folder.exists("run.json"):
        rule = "it is neither a config file nor the folder work/<name> of a run (there is no run.json in it)"
        raise setting_error("RUN", target, rule, "give the YAML file that the run was started with")
    return folder


def config_of(target: str, registry: tuple[Stage, ...], overrides: Sequence[str] = ()) -> Config:
    """The config that RUN means: a config file, or the folder work/<name> of a run, on any store.

    Of a folder it is the config that the ledger's newest start record names, with `tiers.work` where the folder is
    now: it may have been moved. Raises ConfigError for anything else, and for whatever is wrong in the config.
    """
    if is_config(target):
        return load(target, registry, overrides)
    folder = run_folder(target)
    started = ledger.read(folder).started
    if started is None:
        rule = "no run was started there, so its ledger names no config"
        raise setting_error("RUN", target, rule, "give the YAML file of the run")
    path = f"configs/{started['config_fingerprint']}.yaml"
    found = loads(folder.read_bytes(path).decode(), registry, name=folder.where(path), overrides=overrides)
    root, name = locate(folder.url)
    if name != found.name:
        rule = f"it holds run {found.name!r}, and a run's folder is called as the run"
        raise setting_error("RUN", target, rule, f"rename the folder to {found.name}")
    work = TierConfig(url=root.url, options=found.tiers.work.options, prices=found.tiers.work.prices)
    return changed(found, tiers=found.tiers.model_copy(update={"work": work}))


def changed(config: Config, **fields: Any) -> Config:
    """The config with other values in some fields, fingerprinted anew."""
    return Config(**{name: getattr(config, name) for name in Config.model_fields} | fields)


# -- what is finished ------------------------------------------------------------------------------------------------


def look(config: Config) -> Driver:
    """A driver that only says what is done under `config`. Lists and opens the input, writes nothing."""
    return run.look(prepare(config))


def labels(driver: Driver) -> list[str]:
    """Of everything that writes a sidecar, in order: ingest first, split last."""
    return [phase.label for phase in driver.chain if phase.sidecar]


def sidecar(driver: Driver, label: str, part: Slice) -> SidecarRef | None:
    """The sidecar that a label wrote for a slice; None where that is still to come."""
    phase = next(phase for phase in driver.chain if phase.label == label and phase.sidecar)
    result = driver.done(phase.cell(part))
    return SidecarRef(path=result.outputs[0].path, key=result.cell.key) if result else None


def read_sidecar(driver: Driver, label: str, part: Slice, names: Sequence[str] | None = None) -> pa.Table | None:
    """Columns of that sidecar, all of them by default."""
    ref = sidecar(driver, label, part)
    if ref is None:
        return None
    own = {"shard": part.shard_id, "first_row": str(part.first_row), "key": ref.key}
    return columns.read(driver.job.work, ref.path, part.rows, own, names)


def numbers(driver: Driver, ordinal: int) -> Frame:
    """Every number of the slice, no text. Raises ConfigError where some stage is still to come."""
    part = driver.corpus.slices[ordinal]
    found = {label: ref for label in labels(driver) if (ref := sidecar(driver, label, part))}
    missing = [label for label in labels(driver) if label not in found]
    if missing:
        raise ConfigError(
            f"run {driver.config.name!r}: {part.shard_id} from row {part.first_row} on has not been through "
            f"{', '.join(missing)} under this config; run it to the end first"
        )
    return frame_of(driver.job, PartSource(part=part, ordinal=ordinal, sidecars=found))


# -- what is published -----------------------------------------------------------------------------------------------


def newest(folder: Store) -> Store | None:
    """The folder v<n>/ of the newest manifest below hot/<name>; None where there is none."""
    version = publish.newest(folder)
    return folder.child(f"v{version}") if version else None


def resolve(folder: Store, path: str) -> tuple[Store, str]:
    """The store and the path in it of a manifest's path, which is relative to its folder and may lead out of it."""
    while path.startswith("../"):
        folder, path = locate(folder.url, folder.options)[0], path[3:]
    return folder, path


def published(config: Config) -> tuple[Store, Mapping[str, Any]] | None:
    """The folder v<n>/ of the newest manifest and the manifest, if it was made under this config."""
    folder = newest(hot_store(config).child(config.name))
    if folder is None:
        return None
    found = publish.read_manifest(folder)
    return (folder, found) if found["config_fingerprint"] == config.fingerprint else None


# -- where results go ------------------------------------------------------------------------------------------------


def empty_folder(where: str, url: str) -> Store:
    """The store of a folder to write to. Raises ConfigError, which names `where`, if anything is in it."""
    folder = Store(url)
    folders, files = folder.children()
    if folders or files:
        rule = f"it is not empty (it holds {min([*folders, *(entry.path for entry in files)])})"
        raise setting_error(where, url, rule, "name a new folder, or empty this one")
    return folder


@contextmanager
def whole(folder: Store) -> Iterator[list[Output]]:
    """A list for the files written to the folder: they go again if the body raises."""
    written: list[Output] = []
    try:
        yield written
    except BaseException:
        for output in written:
            folder.delete(output.path)
        raise
