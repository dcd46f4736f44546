"""All that a stage author imports: the three stage forms, their config base and `require`.

A stage is a frozen config plus functions; there is no class to inherit from but the config's. The engine calls the
functions with record batches of the columns that the stage `reads` and gets record batches back.

Names a stage may read
    text              large_string, after the byte policy; never null for a live row
    bytes, tokens     int64; UTF-8 length and estimated tokens of the text
    source, language, id   string, null where the input has none
    content_hash      fixed_size_binary(16): xxh3-128 of the text and every other input column
    text_hash         uint64: xxh3-64 of the text's bytes
    source.priority   int64 from the `sources` table (0 where absent)
    label.column      what an earlier stage wrote
    anything else     the input column of that name

Decision columns (any subset may be returned by `decide` and by scatter)
    reason            string, null = the row passes; the vocabulary is the stage's `reasons`
    score, threshold  float64, both set when a number decided
    similarity        float64; similarity_kind string; inter, union int32; group_size int32
    charged           uint64 row address of the kept row a duplicate is charged to; charged_id string

Only live rows reach a stage: rows that an earlier stage removed or could not read are never in a batch. Functions must
not depend on how rows are cut into batches. Raising on a row quarantines that row: authors write no try/except.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from pipeline.errors import setting_error

Transform = Callable[[pa.RecordBatch], pa.RecordBatch]
Reads = tuple[str, ...] | Callable[[Any], tuple[str, ...]]
NOTHING = pa.schema([])


class StageConfig(BaseModel):
    """Base of every stage's config: frozen, keyword-only, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=False)

    def check_columns(self, types: Mapping[str, pa.DataType]) -> None:
        """Raise the config error for a setting that names a column of a type that the stage has no use for.

        `types` are those of every column that the stage may read. Asked before any work.
        """


def require(condition: bool, name: str, got: object, rule: str) -> None:
    """Raise the config error for setting `name` unless `condition` holds. For validators of stage configs."""
    if not condition:
        raise setting_error(name, got, rule)


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """What the engine hands to a stage's functions beside its config."""

    files: Mapping[str, Path] = field(default_factory=dict)
    """Local, checksummed copies of the files that `files(config)` named."""
    facts: Any = None
    """What the stage's own `settle` returned: bytes for a stage with `bind`, a JSON value for one without. None before
    that and for other forms."""
    seed: int = 0
    """`run.seed`."""
    sources: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The `sources` table of the config: name -> its settings that were given."""
    corpus_bytes: int = 0
    """UTF-8 bytes of all rows that ingest passed; known from the first global or settle phase on, before that 0."""


def no_files(config: StageConfig) -> Mapping[str, str]:
    """The `files` of a stage that needs none."""
    return {}


def no_warnings(config: StageConfig) -> list[str]:
    """The `warnings` of a stage whose settings are all fine."""
    return []


@dataclass(frozen=True, kw_only=True, slots=True)
class MapStage:
    """The value for a row depends on that row alone.

    `bind(config, context)` runs once per worker and gives `transform(batch of reads) -> batch of writes`, row for row.
    `decide(config, context, batch of decide_reads + writes) -> decision columns` is cheap and sees numbers only; a
    change of `decide_settings` runs it again without scoring again. A null in column `score` marks a row unscorable.
    """

    name: str
    version: int
    config: type[StageConfig]
    reads: Reads = ()
    writes: pa.Schema = NOTHING
    bind: Callable[[Any, Context], Transform] | None = None
    decide: Callable[[Any, Context, pa.RecordBatch], pa.RecordBatch] | None = None
    decide_reads: Reads = ()
    decide_settings: tuple[str, ...] = ()
    score: str | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)
    files: Callable[[Any], Mapping[str, str]] = no_files


@dataclass(frozen=True, kw_only=True, slots=True)
class SettleStage:
    """A stage that needs an exact number about the whole corpus.

    `measure(config, context)` returns `count(batch of measure_reads) -> table`: `count_keys` columns, then int64 count
    columns. The engine adds the tables up (any order, exactly). `settle(config, context, table) -> facts` runs once on
    the sum, sorted by `count_keys`. From there on the stage is a map stage whose context carries `facts`: bytes if it
    has a `bind`, else a JSON value.
    With `basis="global"` the rows measured are those alive after the last global stage before this one (after ingest if
    none): what other stages remove in between neither enters the counts nor invalidates them.
    `measure_settings` are the config fields that measure and settle depend on (None = all but `decide_settings`).
    """

    name: str
    version: int
    config: type[StageConfig]
    measure: Callable[[Any, Context], Callable[[pa.RecordBatch], pa.Table]]
    measure_reads: Reads
    count_keys: tuple[str, ...]
    settle: Callable[[Any, Context, pa.Table], Any]
    basis: Literal["previous", "global"] = "previous"
    measure_settings: tuple[str, ...] | None = None
    reads: Reads = ()
    writes: pa.Schema = NOTHING
    bind: Callable[[Any, Context], Transform] | None = None
    decide: Callable[[Any, Context, pa.RecordBatch], pa.RecordBatch] | None = None
    decide_reads: Reads = ()
    decide_settings: tuple[str, ...] = ()
    decide_writes: pa.Schema = NOTHING
    """Columns beside the decision columns that `decide` returns (a curriculum's bucket)."""
    score: str | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)
    files: Callable[[Any], Mapping[str, str]] = no_files


@dataclass(frozen=True, kw_only=True, slots=True)
class Emit:
    """A phase over slices: `bind(config, context) -> emit(batch of reads + row) -> records`.

    `row` is uint32, the row inside its slice, and must be handed on in the records. Records start with `key`, uint64,
    uniform over its range: equal keys meet in one partition of the next reduce. With `selected=True` the batch holds
    only the rows that the phase before addressed, with that phase's columns beside the ones read.
    """

    name: str
    bind: Callable[[Any, Context], Callable[[pa.RecordBatch], pa.RecordBatch]]
    reads: Reads
    settings: tuple[str, ...] = ()
    selected: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Reduce:
    """A phase over partitions: `reduce(config, context, records) -> (records, facts)`.

    In: every record of a range of keys, in no promised order; `row` is uint64, an address unique in the corpus whose
    order is (shard, row). Out: records whose `key` is again a hash (`to="keys"`) or a row address (`to="rows"`), and
    a flat dict of integers that the engine adds up over partitions. With `single=True` there is one partition.
    """

    name: str
    reduce: Callable[[Any, Context, pa.Table], tuple[pa.RecordBatch, dict[str, int]]]
    settings: tuple[str, ...] = ()
    to: Literal["keys", "rows"] = "keys"
    single: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class GlobalStage:
    """A stage in which rows meet. `phases` alternate between slices (Emit) and partitions (Reduce), start with an Emit
    and end with a Reduce to rows; what that one addressed to a row (a `writes` or decision column each, `key` the row
    address) is scattered back to the row's slice. Rows that nothing addressed pass, with nulls in `writes`.

    `settings` of a phase are the config fields that its records depend on beside those of the phases before it: a
    change redoes that phase and the ones after it. Every config field must be named by some phase. `report(config,
    facts)` turns the sum of all phases' facts into the stage's entry in the report's `duplicates`.
    """

    name: str
    version: int
    config: type[StageConfig]
    phases: tuple[Emit | Reduce, ...]
    writes: pa.Schema = NOTHING
    reasons: Mapping[str, str] = field(default_factory=dict)
    report: Callable[[Any, Mapping[str, int]], dict[str, Any]] | None = None
    warnings: Callable[[Any], list[str]] = no_warnings
    """What a user should know of settings that work but should not be chosen: shown by plan and in the report."""
    files: Callable[[Any], Mapping[str, str]] = no_files


Stage = MapStage | SettleStage | GlobalStage


def names(reads: Reads, config: StageConfig) -> tuple[str, ...]:
    """The column names that `reads` comes to under `config`."""
    return reads(config) if callable(reads) else reads
