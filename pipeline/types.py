"""The engine's records: frozen, without IO, and plain enough to travel as JSON or a pickle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import xxhash

# States of a row in a sidecar. The order is the code in the column's dictionary.
STATES = ("scored", "unscorable", "gone", "failed")
SCORED, UNSCORABLE, GONE, FAILED = range(4)

SLICE_BITS = 32
"""A row address is (ordinal of the slice << SLICE_BITS) | row in the slice; ordinals follow (shard_id, first_row)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Slice:
    """A run of whole row groups of one shard: the unit of text work. A pure function of the footer and slice_bytes."""

    shard_id: str
    url: str
    size: int
    """Bytes of the shard's file, compared at every open."""
    stamp: str
    """etag, or mtime_ns where the store has none; compared at every open."""
    first_row: int
    rows: int
    first_group: int
    groups: int
    bytes: int
    """Uncompressed bytes of the text column according to the footer: a hint for scheduling, never for memory."""
    input_id: str

    @property
    def unit(self) -> str:
        """`unit_of` this slice: its name in files and in the ledger."""
        return unit_of(self.shard_id, self.first_row)


def unit_of(shard_id: str, first_row: int) -> str:
    """`<16 hex of xxh3-64(shard_id)>-<first_row in 12 digits>`."""
    return f"{xxhash.xxh3_64_hexdigest(shard_id.encode())}-{first_row:012d}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """A file that a task published, path relative to the tier that holds it."""

    path: str
    bytes: int
    rows: int
    xxh128: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """The unit of completion: one phase of one stage over one slice or partition."""

    label: str
    phase: str
    unit: str
    key: str
    score_key: str = ""

    @property
    def id(self) -> str:
        return f"{self.key}/{self.phase}/{self.unit}"


@dataclass(frozen=True, kw_only=True, slots=True)
class CellResult:
    """What finishing a cell left behind."""

    cell: Cell
    outputs: tuple[Output, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """The cells that one worker does in one go. `work` is one of the records of pipeline.job."""

    id: str
    attempt: int
    cells: tuple[Cell, ...]
    work: Any
    bytes: int = 0
    rows: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How one attempt at a task ended. `error` is empty for success; `transient` says a retry may help."""

    task: str
    attempt: int
    results: tuple[CellResult, ...] = ()
    cells: tuple[Cell, ...] = ()
    error: str = ""
    message: str = ""
    transient: bool = False
    lost: bool = False
    wall: float = 0.0
    cpu: float = 0.0
    peak_rss: int = 0
    host: str = ""
    pool: str = "local"
    io: Mapping[str, int] = field(default_factory=dict)
