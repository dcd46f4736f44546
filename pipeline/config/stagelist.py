"""The `stages` of a config: which stage each entry means, its settings, and whether what it reads exists by then."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pydantic import ValidationError

from pipeline.config.problems import NOTHING, Problems, dotted, of_python, show
from pipeline.config.settings import Settings, fields
from pipeline.config.yamltext import Path
from pipeline.errors import ConfigError, nearest
from pipeline.stage import Emit, GlobalStage, SettleStage, Stage, StageConfig, names

CORE_COLUMNS = frozenset(
    {"text", "bytes", "tokens", "source", "language", "id", "content_hash", "text_hash", "source.priority"}
)
"""What a stage may read without an earlier stage or an input column behind it (see pipeline.stage)."""

RESERVED_LABELS = frozenset(
    {"ingest", "split", "account", "text", "bytes", "tokens", "source", "id", "content_hash", "text_hash", "date"}
    | {"shard", "row", "state", "message", "reason", "stages", *fields(Settings)}
)
"""No stage may be called so: the engine's own steps, core columns, and what `--set` takes for a section."""

_LABEL = re.compile(r"[a-z][a-z0-9_-]*")
_NOT_BUILT = {
    "annotate": "leave it out: a stage that can remove removes",
    "resources": "leave it out: every task takes one CPU and run.worker_memory",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class StageEntry:
    """One configured stage."""

    label: str
    """`as:`, or else the stage's name; prefix of its columns and part of its files' names."""
    ref: str
    """`module:ATTR`, where a worker imports the stage from."""
    stage: Stage
    settings: StageConfig

    def tree(self) -> dict[str, Any]:
        """The entry as a config file spells it, with every setting."""
        stage = self.stage.name if self.ref == registry_ref(self.stage) else self.ref
        label = {} if self.label == self.stage.name else {"as": self.label}
        return {"stage": stage, **label, **self.settings.model_dump(mode="json", by_alias=True)}


def registry_ref(stage: Stage) -> str:
    """Where a stage that corpusmill ships is imported from: its module is called as it is."""
    return f"stages.{stage.name}:STAGE"


def columns_read(stage: Stage, settings: StageConfig) -> tuple[str, ...]:
    """Every column that some function of the stage is given, in order of first mention."""
    if isinstance(stage, GlobalStage):
        reads = [phase.reads for phase in stage.phases if isinstance(phase, Emit)]
    else:
        reads = [stage.reads, stage.decide_reads]
        if isinstance(stage, SettleStage):
            reads.insert(0, stage.measure_reads)
    return tuple(dict.fromkeys(name for read in reads for name in names(read, settings)))


def written(stage: Stage) -> tuple[pa.Field, ...]:
    """The columns that later stages can read as `label.column`, with their types."""
    return (*stage.writes, *(stage.decide_writes if isinstance(stage, SettleStage) else ()))


def columns_written(stage: Stage) -> tuple[str, ...]:
    """The names of those columns."""
    return tuple(item.name for item in written(stage))


def naming(entry: StageEntry, name: str, path: Path) -> tuple[Path, str]:
    """(path, text) of the setting of the entry at `path` that brings in the column or file `name`.

    That is a string `name`, or one that goes on after it ("quality.score desc"), or else one that names another column
    of the same stage; (path, name) where the stage names it by itself.
    """
    settings = list(_strings(entry.settings.model_dump(mode="json", by_alias=True), path))
    owner = name.rpartition(".")[0] or name
    exact = [found for found in settings if found[1].split(" ")[0] == name]
    akin = [found for found in settings if found[1].startswith(f"{owner}.")]
    return next(iter([*exact, *akin, (path, name)]))


def _strings(tree: Any, path: Path) -> Iterator[tuple[Path, str]]:
    if isinstance(tree, str):
        yield path, tree
    parts = tree.items() if isinstance(tree, Mapping) else enumerate(tree) if isinstance(tree, list) else ()
    for key, part in parts:
        yield from _strings(part, (*path, key))


@dataclass(frozen=True, kw_only=True, slots=True)
class Draft:
    """An entry whose stage is known and whose settings are not read yet. `label` is a guess where `stage` is None."""

    path: Path
    label: str
    ref: str = ""
    stage: Stage | None = None


def drafts(listed: Any, registry: Sequence[Stage], pythonpath: Sequence[str], problems: Problems) -> list[Draft]:
    """What each entry of the config's `stages` means."""
    if not isinstance(listed, list):
        got = NOTHING if listed is None else show(listed)
        problems.add(("stages",), got, "a list of stages is required", "write - {stage: NAME} for each, or []")
        return []
    found: list[Draft] = []
    for index, entry in enumerate(listed):
        path = ("stages", index)
        if not isinstance(entry, dict) or not isinstance(entry.get("stage"), str):
            name = entry if isinstance(entry, str) else "NAME"
            problems.add(path, show(entry), "an entry is a mapping with the key stage", f"write {{stage: {name}}}")
            continue
        found.append(_draft(entry, path, registry, pythonpath, problems))
        _check_label(found, entry, problems)
    return found


def _draft(
    entry: Mapping[str, Any], path: Path, registry: Sequence[Stage], pythonpath: Sequence[str], problems: Problems
) -> Draft:
    ref = entry["stage"]
    try:
        if ":" in ref:
            stage = _imported(ref, pythonpath)
        else:
            stage = _registered(ref, registry)
            ref = registry_ref(stage)
    except LookupError as error:
        rule, _, step = str(error.args[0]).partition("; ")
        problems.add((*path, "stage"), repr(ref), rule, step)
        return Draft(path=path, label=str(entry.get("as") or ref))
    return Draft(path=path, label=str(entry.get("as") or stage.name), ref=ref, stage=stage)


def _registered(name: str, registry: Sequence[Stage]) -> Stage:
    for stage in registry:
        if stage.name == name:
            return stage
    hint = nearest(name, [stage.name for stage in registry])
    raise LookupError(f"there is no such stage; {hint} (your own stage is written module:ATTR)")


def _imported(ref: str, pythonpath: Sequence[str]) -> Stage:
    """A user's stage. LookupError, "rule; next step", whatever way the import goes wrong: the code is not ours."""
    module_name, _, attribute = ref.partition(":")
    sys.path[:0] = [folder for folder in pythonpath if folder not in sys.path]
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise LookupError(
            f"importing {module_name!r} raised {type(error).__name__}: {error}; "
            "put the folder that holds it on PYTHONPATH, or in run.ray.pythonpath if every node has it"
        ) from error
    stages = {name: value for name, value in vars(module).items() if isinstance(value, Stage)}
    if attribute not in stages:
        raise LookupError(f"{attribute!r} is no stage of {module_name!r}; {nearest(attribute, stages)}")
    return stages[attribute]


def _check_label(found: Sequence[Draft], entry: Mapping[str, Any], problems: Problems) -> None:
    draft = found[-1]
    path = (*draft.path, "as" if "as" in entry else "stage")
    got = show(entry.get("as", draft.label))
    if not isinstance(entry.get("as", ""), str) or not _LABEL.fullmatch(draft.label):
        if "as" in entry or draft.stage:
            problems.add(path, got, "a label is made of a-z, 0-9, _ and -, and starts with a letter")
    elif draft.label in RESERVED_LABELS:
        problems.add(path, got, "this label is reserved", "give the stage another name with as: LABEL")
    for other in found[:-1]:
        if other.label == draft.label:
            problems.add(
                path, got, f"{dotted(other.path)} has this label already", "give one of them another with as: LABEL"
            )
            return


def entry(draft: Draft, raw: Mapping[str, Any], problems: Problems) -> StageEntry | None:
    """Read the settings of a stage; None where something was wrong."""
    if draft.stage is None:
        return None
    model = draft.stage.config
    values = {key: value for key, value in raw.items() if key not in ("stage", "as")}
    absent = [key for key in values if key in _NOT_BUILT and key not in fields(model)]
    for key in absent:
        problems.add((*draft.path, key), show(values.pop(key)), "this is not built yet", _NOT_BUILT[key])
    try:
        settings = _validated(model, json.dumps(values))
    except ValidationError as error:
        problems.add_invalid(error, model, draft.path, f"stage {draft.stage.name}")
    except ConfigError as error:
        problems.add_raised(error, draft.stage, draft.path)
    else:
        return StageEntry(label=draft.label, ref=draft.ref, stage=draft.stage, settings=settings)
    return None


def _validated(model: type[StageConfig], settings: str) -> StageConfig:
    """Strict, from JSON: only there does strictness still take a list for a tuple and a string for a path."""
    try:
        return model.model_validate_json(settings, strict=True)
    except ValidationError as error:
        # What a validator with mode="before" returns counts as Python, where strictness refuses lists for tuples.
        if all(of_python(detail) for detail in error.errors(include_url=False)):
            return model.model_validate_json(settings)
        raise


def check_reads(drafts: Sequence[Draft], entries: Sequence[StageEntry | None], problems: Problems) -> None:
    """Every `label.column` that a stage reads must have been written by an earlier stage."""
    written: dict[str, None] = {}
    unknown = {draft.label for draft in drafts if draft.stage is None}
    for index, (draft, entry) in enumerate(zip(drafts, entries, strict=True)):
        for column, path, got in _reads(entry, draft, problems) if entry else ():
            owner = column.rpartition(".")[0]
            if owner and owner not in unknown and column not in CORE_COLUMNS and column not in written:
                late = any(owner == later.label for later in drafts[index + 1 :])
                step = f"move {owner} before {draft.label}" if late else nearest(column, written)
                problems.add(path, repr(got), f"no earlier stage writes {column!r}", step)
        if draft.stage is not None:
            written |= {f"{draft.label}.{name}": None for name in columns_written(draft.stage)}


def _reads(entry: StageEntry, draft: Draft, problems: Problems) -> list[tuple[str, Path, str]]:
    """(column, path and text of the setting that brings it in) for all that the stage reads."""
    try:
        return [(column, *naming(entry, column, draft.path)) for column in columns_read(entry.stage, entry.settings)]
    except ConfigError as error:
        problems.add_raised(error, entry.stage, draft.path)
        return []
