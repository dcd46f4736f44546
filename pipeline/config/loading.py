"""A config file as one frozen object. Every error comes before any work, and all errors of a file come at once."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import ConfigDict, Field, InstanceOf, ValidationError

from pipeline.config import overrides as sets
from pipeline.config import stagelist, yamltext
from pipeline.config.problems import Problems, dotted, show
from pipeline.config.settings import Settings
from pipeline.config.stagelist import CORE_COLUMNS, StageEntry, columns_read, columns_written, naming
from pipeline.config.yamltext import Document
from pipeline.errors import ConfigError, nearest, setting_error
from pipeline.keys import fingerprint
from pipeline.stage import Stage


class Config(Settings):
    """Settings and stages of one run. Made by `load` or `loads`."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    stages: tuple[InstanceOf[StageEntry], ...]
    origin: str = Field(default="<config>", exclude=True)
    """The file, for messages."""

    @cached_property
    def fingerprint(self) -> str:
        """32 hex digits of all that can change a result: not tiers, prices, budget, nor of `run` anything but seed."""
        prices = {"price_per_gpu_hour", "price_source", "price_date"}
        ignored = {"stages", "tiers", "budget", "currency", "run"}
        # Without nulls, a key added later leaves the fingerprints of the configs that do not use it as they are.
        settings = self.model_dump(exclude_none=True, exclude=dict.fromkeys(ignored, True) | {"training": prices})
        stages = [[entry.label, entry.ref, entry.stage.version, entry.tree()] for entry in self.stages]
        return fingerprint("config/1", settings, self.run.seed, stages)

    def dump(self) -> str:
        """YAML of every setting that has a value, defaults included, that `loads` reads back as the same config."""
        tree: dict[str, Any] = {}
        for key, value in self.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"stages"}).items():
            tree[key] = value
            if key == "tiers":
                tree["stages"] = [entry.tree() for entry in self.stages]
        return yamltext.dump(tree)

    def input_columns_used(self) -> set[str]:
        """Input columns that stages read or `publish.columns` names: the footers must have them."""
        read = {name for entry in self.stages for name in columns_read(entry.stage, entry.settings)}
        return {name for name in read if "." not in name} - CORE_COLUMNS | set(self.publish.columns or ())

    def absent_column(self, column: str, present: Iterable[str]) -> ConfigError:
        """The error for one of `input_columns_used()` that is not among the columns `present` in the input."""
        readers = [
            naming(entry, column, ("stages", index))[0]
            for index, entry in enumerate(self.stages)
            if column in columns_read(entry.stage, entry.settings)
        ]
        where = readers[0] if readers else ("publish", "columns")
        written = [f"{entry.label}.{name}" for entry in self.stages for name in columns_written(entry.stage)]
        meant = [name for name in written if name.endswith(f".{column}")]
        step = f"did you mean {meant[0]!r}?" if meant else nearest(column, [*present, *sorted(CORE_COLUMNS)])
        return setting_error(f"{self.origin}: {dotted(where)}", column, "the input has no such column", step)


def load(source: str | os.PathLike[str], registry: tuple[Stage, ...], overrides: Sequence[str] = ()) -> Config:
    """Read the config file `source`; see `loads`."""
    path = Path(source)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source}: not UTF-8 at byte {error.start}; save the file as UTF-8") from error
    except OSError as error:
        step = nearest(str(path), [str(file) for file in sorted(path.parent.glob("*.y*ml"))])
        raise setting_error("config file", str(source), f"reading it failed: {error.strerror}", step) from error
    return loads(text, registry, name=str(source), overrides=overrides)


def loads(text: str, registry: tuple[Stage, ...], name: str = "<config>", overrides: Sequence[str] = ()) -> Config:
    """The config in `text`, called `name` in messages. Raises one ConfigError that lists everything wrong.

    `stage: NAME` means the stage of that name in `registry`; `stage: module:ATTR` is imported. An override is
    `key.path=VALUE`, VALUE in YAML, or `label.setting=VALUE` for a stage. Relative paths in a config start at the
    current directory. No store is touched, and no file but the modules of users' stages is read.
    """
    document = yamltext.parse(text, name)
    if not isinstance(document.value, dict):
        raise ConfigError(
            f"{name}: got {show(document.value)}, but a config is a mapping; configs/README.md has its keys"
        )
    problems = Problems(document, registry)
    changes = [sets.parse(override) for override in overrides]
    for change in changes:
        if change.of_section:
            change.apply(document, {})
    settings = _settings(document, problems)
    pythonpath = settings.run.ray.pythonpath if settings else ()
    drafts = stagelist.drafts(document.value.get("stages"), registry, pythonpath, problems)
    for change in changes:
        if not change.of_section:
            change.apply(document, {draft.label: int(draft.path[1]) for draft in reversed(drafts)})
    entries = [stagelist.entry(draft, document.value["stages"][draft.path[1]], problems) for draft in drafts]
    stagelist.check_reads(drafts, entries, problems)
    if settings is not None:
        _check_tiers(settings, problems)
        _check_publish(settings, drafts, problems)
    problems.check()
    assert settings is not None  # or there was a problem
    return Config(**dict(settings), stages=tuple(filter(None, entries)), origin=name)


def check_files(config: Config) -> None:
    """Raise a ConfigError for local files that stages name and that do not exist; remote ones fail when fetched."""
    problems = Problems(Document(config.origin), ())
    for index, entry in enumerate(config.stages):
        for file in entry.stage.files(entry.settings).values():
            path = file.removeprefix("file://")
            if "://" in path or os.path.isfile(path):
                continue
            where = naming(entry, file, ("stages", index))[0]
            beside = [str(name) for name in Path(path).parent.glob("*")]
            close = "".join(f"did you mean {name!r}? " for name in get_close_matches(path, beside, n=1))
            problems.add(where, repr(file), "there is no such file", f"{close}relative paths start at {os.getcwd()}")
    problems.check()


def _settings(document: Document, problems: Problems) -> Settings | None:
    # A section of which every line is commented out is null in YAML and means its defaults.
    given = {key: value for key, value in document.value.items() if key != "stages" and value is not None}
    try:
        return Settings.model_validate_json(json.dumps(given))
    except ValidationError as error:
        problems.add_invalid(error, Settings)
        return None


def _check_tiers(settings: Settings, problems: Problems) -> None:
    seen: dict[str, str] = {}
    for name in ("work", "hot", "cold"):
        url = getattr(settings.tiers, name).url
        other = seen.setdefault(url.rstrip("/"), name)
        if other != name:
            problems.add(
                ("tiers", name, "url"), show(url), f"tiers.{other} is the same place", "give each tier its own"
            )


def _check_publish(settings: Settings, drafts: Sequence[stagelist.Draft], problems: Problems) -> None:
    text = settings.input.columns.text
    if settings.publish.columns is not None and text not in settings.publish.columns:
        got = show(list(settings.publish.columns))
        problems.add(
            ("publish", "columns"), got, f"without the text column {text!r} nothing can be trained on", "add it"
        )
    groups: dict[str, pa.DataType] = {"source": pa.string(), "language": pa.string()}
    for draft in drafts:
        if draft.stage is None:
            return
        schemas = [draft.stage.writes, getattr(draft.stage, "decide_writes", pa.schema([]))]
        groups |= {f"{draft.label}.{field.name}": field.type for schema in schemas for field in schema}
    for index, column in enumerate(settings.publish.mix_by):
        path = ("publish", "mix_by", index)
        if column not in groups:
            problems.add(path, show(column), "no stage writes such a column", nearest(column, groups))
        elif pa.types.is_floating(groups[column]):
            problems.add(path, show(column), "a column of fractions makes no groups", "use its bucket, or a label")
