"""What a worker is told: the job all tasks share, and the work of single tasks. Plain, picklable, without IO."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from pipeline.corpus import BadShard
from pipeline.stage import Stage, StageConfig
from pipeline.storage import Store
from pipeline.types import Cell, Output, Slice

StepKind = Literal["ingest", "map", "measure", "emit", "scatter", "account"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StageRef:
    """A stage as it travels: where to import it, and its settings as JSON."""

    ref: str
    settings: Mapping[str, Any]
    files: Mapping[str, str] = field(default_factory=dict)
    hashes: Mapping[str, str] = field(default_factory=dict)
    """xxh128 of the bytes that each file had when the run was planned."""

    def load(self) -> tuple[Stage, StageConfig]:
        """Import the stage and validate its settings again in this process."""
        module, _, attribute = self.ref.partition(":")
        stage: Stage = getattr(importlib.import_module(module), attribute)
        return stage, stage.config.model_validate(dict(self.settings))


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """The part that every task of a run has in common."""

    work: Store
    hot: Store
    cold: Store
    schema: pa.Schema
    names: Mapping[str, str]
    policy: Mapping[str, Any]
    token_ratio: int
    seed: int
    sources: Mapping[str, Mapping[str, Any]]
    stages: Mapping[str, StageRef]
    slices: int
    memory: int
    """Bytes that a worker may hold: what decides how much is done at a time, and no result."""
    listing: str = ""
    """Path in the work tier of the table of slices (pipeline.listing)."""
    corpus_bytes: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class SidecarRef:
    path: str
    key: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One cell of a slice task."""

    cell: Cell
    kind: StepKind
    after: str = ""
    """Label whose sidecar says which rows are alive; empty for ingest."""
    folder: str = ""
    """Where the output goes, relative to the work tier."""
    index: int = 0
    """Phase of a global stage."""
    facts: str = ""
    """Path of the stage's facts."""
    carry: SidecarRef | None = None
    """An earlier sidecar of the same score key: its measures are taken over."""
    records: tuple[str, ...] = ()
    """Exchange files addressed to rows, for scatter and selected emits."""
    failed: tuple[tuple[int, str], ...] = ()
    """Rows on which an earlier phase of this stage raised, with their messages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitWork:
    """The missing cells of one slice, in stage order, and the sidecars that exist already."""

    part: Slice
    ordinal: int
    steps: tuple[Step, ...]
    sidecars: Mapping[str, SidecarRef]


@dataclass(frozen=True, kw_only=True, slots=True)
class SliceWork:
    units: tuple[UnitWork, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReduceWork:
    """One partition of one reduce phase. `sources`: (path, ordinal of the slice that wrote it or None)."""

    cell: Cell
    index: int
    sources: tuple[tuple[str, int | None], ...]
    low: int
    high: int
    folder: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SettleWork:
    """Add up the counts of a settle stage and turn them into facts."""

    cell: Cell
    sources: tuple[str, ...]
    path: str
    builtin: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckWork:
    """Compare files that an earlier run left with what the ledger recorded of them."""

    cell: Cell
    outputs: tuple[Output, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PartSource:
    """A slice that a published part takes rows from, with every stage's sidecar in order."""

    part: Slice
    ordinal: int
    sidecars: Mapping[str, SidecarRef]
    skip: int = 0
    """For tables of removed rows: how many of the slice's rows of that kind belong to parts before."""
    archive: tuple[str, int] = ("", 0)
    """Where the slice's removed rows begin: archive file, first row in it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PartFile:
    """One file to publish: rows of `dataset` whose seeded hash falls into share `index` of `of`."""

    path: str
    dataset: str = ""
    index: int = 0
    of: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishWork:
    """Files made from the same slices in one reading."""

    cell: Cell
    kind: Literal["hot", "cold", "removed", "quarantined"]
    files: tuple[PartFile, ...]
    sources: tuple[PartSource, ...]
    columns: tuple[str, ...]
    """Input columns to publish."""
    rows: int = 0
    """For tables: the most rows of the part."""
    dry_run: bool = False
    bad: tuple[BadShard, ...] = ()
    """For the table of quarantined rows: shards that are quarantined whole."""
