"""Why work is to be done again, in words: what differs between a run as it is asked for and as it was started last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.plan import Phase
from pipeline.types import Slice

NAMES = 3
"""Shards and settings that are named in a reason."""
NOTHING = "nothing to do"
INPUT = "input changed"
UNDONE = "not done yet"

_OWN = {"ingest": ("input",), "split": ("publish",), "account": ("training.bytes_per_token",)}
"""Parts of a config that the built-in stages depend on; any other stage has its own under `stages`."""
_BESIDE = ("sources", "training.bytes_per_token", "run.seed")
"""What a stage may depend on beside its own settings."""
_PUBLISHED = ("input", "sources", "stages", "publish", "training", "guards", "run.seed")
"""What published data are named by."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """A phase that the run comes to, and what of it is to be done: `missing` slices, or so many partitions."""

    phase: Phase
    total: int
    redo: int
    missing: Sequence[Slice] = ()
    recorded: int = 0
    """Of `redo`, how many the ledger has, so that only their files are missing or damaged."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shards:
    """How the input differs from the last start's, by shard id."""

    new: Sequence[str] = ()
    changed: Sequence[str] = ()
    gone: Sequence[str] = ()

    def __bool__(self) -> bool:
        return bool(self.new or self.changed or self.gone)

    def __str__(self) -> str:
        parts = {"new": self.new, "changed": self.changed, "gone": self.gone}
        return ", ".join(f"{_count(names)} {word} ({_some(names)})" for word, names in parts.items() if names)


@dataclass(frozen=True, kw_only=True, slots=True)
class Before:
    """A run as its last driver started it."""

    version: str
    folders: Mapping[tuple[str, str], str]
    """(label, phase) -> where its results go, which holds the key."""
    order: Sequence[str]
    """Labels of the stages, as they ran."""
    settings: Mapping[str, Any]
    """`flat` of its config."""


@dataclass(slots=True)
class _Told:
    """Reasons so far, and the stages whose own change makes what follows them be done again."""

    reasons: dict[str, str] = field(default_factory=dict)
    moved: list[str] = field(default_factory=list)
    of_input: bool = False
    """Whether the shards have been named."""


def flat(tree: Mapping[str, Any], labels: Sequence[str]) -> dict[str, Any]:
    """A config as key paths and values; its stages, whose labels are given in order, as `stages.LABEL.setting`."""
    return dict(_leaves({**tree, "stages": dict(zip(labels, tree["stages"], strict=True))}, ""))


def _leaves(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def differences(old: Mapping[str, Any], new: Mapping[str, Any], under: Sequence[str]) -> list[str]:
    """`key: old -> new` for all that differs under the key paths, the paths themselves without their stage."""
    found = []
    for key in dict.fromkeys([*old, *new]):
        if any(key == path or key.startswith(f"{path}.") for path in under) and old.get(key) != new.get(key):
            short = key.split(".", 2)[2] if key.startswith("stages.") else key
            found.append(f"{short}: {_shown(old.get(key))} -> {_shown(new.get(key))}")
    return found


def reasons(
    needs: Mapping[str, Sequence[Need]], before: Before | None, now: Before, shards: Shards, files: Sequence[str]
) -> dict[str, str]:
    """Label -> why its work is to be done. `files`: labels of stages with model files. `needs` in stage order."""
    told = _Told()
    for label, own in needs.items():
        if not any(need.redo for need in own):
            told.reasons[label] = NOTHING
        elif before is None or label not in before.order:
            told.reasons[label] = "new"
            told.moved.append(label)
        else:
            told.reasons[label] = _reason(label, own, before, now, shards, told, with_files=label in files)
    return told.reasons


def publication(redo: int | None, why: Mapping[str, str], before: Before | None, now: Before) -> str:
    """Why so many cells of publication are to be done, after stages with the reasons `why`; None: not known yet."""
    if redo is None:
        return f"follows from {next(label for label, reason in why.items() if reason != NOTHING)}"
    changed = differences(before.settings, now.settings, _PUBLISHED) if before else []
    return NOTHING if not redo else f"settings changed: {_some(changed)}" if changed else UNDONE


def _reason(
    label: str, own: Sequence[Need], before: Before, now: Before, shards: Shards, told: _Told, *, with_files: bool
) -> str:
    settings = differences(before.settings, now.settings, _OWN.get(label, (f"stages.{label}",)))
    found = []
    if settings:
        found.append(f"settings changed: {_some(settings)}")
    elif told.moved:
        found.append(f"follows from {told.moved[-1]}")
    if shards and (not found or _only_of(own, shards)):
        found = [INPUT if told.of_input else f"{INPUT}: {shards}"]
        told.of_input = True
    elif settings or not found:
        found = found or [_other(label, own, before, now, with_files=with_files)]
        told.moved.append(label)
    return "; ".join(found)


def _only_of(own: Sequence[Need], shards: Shards) -> bool:
    """Whether all missing slices are of shards that are new or changed."""
    known, missing = {*shards.new, *shards.changed}, [part.shard_id for need in own for part in need.missing]
    return bool(missing) and known.issuperset(missing)


def _other(label: str, own: Sequence[Need], before: Before, now: Before, *, with_files: bool) -> str:
    """The reason where neither the stage's settings, nor the input, nor a stage above it says one."""
    todo = [need for need in own if need.redo]
    if all(before.folders.get((label, need.phase.name)) == need.phase.folder for need in todo):
        damaged = sum(need.recorded for need in todo)
        return f"missing or damaged files: {damaged:,}" if damaged else UNDONE
    if _above(label, before.order) != _above(label, now.order):
        return f"order changed: runs after {_above(label, now.order)}, ran after {_above(label, before.order)}"
    beside = differences(before.settings, now.settings, _BESIDE)
    if beside:
        return f"settings changed: {_some(beside)}"
    if with_files:
        return "model changed"
    return f"corpusmill changed: {before.version} -> {now.version}"


def _above(label: str, order: Sequence[str]) -> str:
    place = order.index(label)
    return order[place - 1] if place else "nothing"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMES:,} more" if len(names) > NAMES else ""
    return ", ".join(names[:NAMES]) + more


def _count(names: Sequence[str]) -> str:
    return f"{len(names):,} shard{'s' if len(names) > 1 else ''}"


def _shown(value: Any) -> str:
    return "unset" if value is None else str(value)
