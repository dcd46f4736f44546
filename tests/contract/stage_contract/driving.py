"""Run a stage on a case the way the engine does, with the freedoms that the engine takes."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from pipeline import columns, exchange, settle
from pipeline.keys import canonical, fingerprint
from pipeline.stage import Context, Emit, GlobalStage, Reduce, SettleStage, Stage, names
from pipeline.storage import Store
from pipeline.types import SLICE_BITS

from .case import Case

ALL = 1 << 20
"""Rows of a batch: more than a case has."""
ROW_MASK = np.uint64((1 << SLICE_BITS) - 1)


def batches(table: pa.Table, size: int = ALL) -> list[pa.RecordBatch]:
    """The table in batches of `size` rows, slices of one buffer as the engine makes them; of no rows, an empty one."""
    found = table.combine_chunks().to_batches()
    whole = found[0] if found else pa.RecordBatch.from_pylist([], schema=table.schema)
    return [whole.slice(start, size) for start in range(0, max(1, whole.num_rows), size)]


def only(table: pa.Table, asked: Iterable[str]) -> pa.Table:
    """The columns that were asked for: a stage is given no other."""
    return table.select(list(dict.fromkeys(asked)))


# -- map and settle stages -------------------------------------------------------------------------------------------


def counts(case: Case, size: int = ALL) -> list[pa.Table]:
    """What a settle stage counts in batches of `size` rows, and in one without rows, as the engine asks first."""
    stage = case.stage
    assert isinstance(stage, SettleStage)
    count = stage.measure(case.config, case.context)
    asked = only(case.table, names(stage.measure_reads, case.config))
    return [count(batch) for batch in (batches(asked.slice(0, 0))[0], *batches(asked, size))]


def settled(case: Case, size: int = ALL, cut: Callable[[list[pa.Table]], list[pa.Table]] = list) -> Context:
    """The context after `settle`, its facts stored and read again as the engine does; `cut` rearranges the counts."""
    stage = case.stage
    if not isinstance(stage, SettleStage):
        return case.context
    total = settle.add(cut(counts(case, size)), stage.count_keys)
    facts = stage.settle(case.config, case.context, total)
    binary = stage.bind is not None
    assert isinstance(facts, bytes) == binary, "facts are bytes where a stage has bind, and JSON where it has none"
    return replace(case.context, facts=facts if binary else json.loads(canonical(facts)))


def answer(case: Case, size: int = ALL, context: Context | None = None) -> pa.Table:
    """Measures and decisions of a map or settle stage for every row, made in batches of `size` rows."""
    stage, config = case.stage, case.config
    assert not isinstance(stage, GlobalStage)
    context = context or settled(case, size)
    measures = pa.table({})
    if stage.bind is not None:
        transform, asked = stage.bind(config, context), only(case.table, names(stage.reads, config))
        made = [_measured(transform(batch), batch, stage.writes) for batch in batches(asked, size)]
        measures = pa.Table.from_batches(made).combine_chunks()
    if stage.decide is None:
        return measures
    asked = only(case.table, names(stage.decide_reads, config))
    made = [decided(stage, stage.decide(config, context, batch)) for batch in batches(_beside(asked, measures), size)]
    decisions = pa.Table.from_batches(made).combine_chunks()
    assert len(decisions) == len(asked), f"{len(decisions)} decisions came back for {len(asked)} rows"
    return _beside(measures, decisions)


def _beside(table: pa.Table, more: pa.Table) -> pa.Table:
    """Both tables' columns; where both have one of a name, the second's."""
    return pa.table({name: part[name] for part in (table, more) for name in part.column_names})


def _measured(out: pa.RecordBatch, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    assert out.num_rows == batch.num_rows, f"{out.num_rows} rows came back for {batch.num_rows}"
    assert out.schema.equals(schema), f"promised {schema}, came back with {out.schema}"
    return out


def decided(stage: Stage, out: pa.RecordBatch) -> pa.RecordBatch:
    """Decisions in the types of a sidecar, as the engine casts them."""
    extra = {item.name: item.type for item in stage.decide_writes} if isinstance(stage, SettleStage) else {}
    kinds, given = columns.NUMBERS_ONLY | extra, set(out.schema.names)
    assert given <= set(kinds), f"decide returns {sorted(given - set(kinds))}, which nothing declares"
    assert set(extra) <= given, f"decide leaves out {sorted(set(extra) - given)}"
    return pa.record_batch({name: out[name].cast(kinds[name]) for name in out.schema.names})


# -- global stages ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Way:
    """How the engine happens to run a global stage; nothing of it may show in the answer."""

    slices: int = 1
    batch: int = ALL
    partitions: int = 1
    shuffled: bool = False


Said = dict[int, dict[str, Any]]
"""By row number of the case's table: what the last phase addressed to it."""


def addressed(case: Case, way: Way | None = None) -> tuple[Said, Counter[str]]:
    """What a global stage says of rows, and the sum of its facts, through the engine's own exchange files."""
    way = way or Way()
    assert isinstance(case.stage, GlobalStage)
    ends = [case.table.num_rows * part // way.slices for part in range(way.slices + 1)]
    slices = [case.table.slice(start, end - start) for start, end in pairwise(ends)]
    facts, rows = Counter[str](), None
    with tempfile.TemporaryDirectory() as folder:
        run = _Run(case, way, slices, Store(folder))
        sources: list[tuple[str, int | None]] = []
        for phase in case.stage.phases:
            if isinstance(phase, Emit):
                sources = run.emit(phase, rows)
                continue
            sources, found = run.reduce(phase, sources)
            facts.update(found)
            rows = exchange.gather(run.store, sources, 0, exchange.row_space(len(slices)))
    numbers = {(i << SLICE_BITS) | row: ends[i] + row for i, part in enumerate(slices) for row in range(len(part))}
    return _by_number(rows, numbers), facts


@dataclass(frozen=True)
class _Run:
    case: Case
    way: Way
    slices: Sequence[pa.Table]
    store: Store

    def emit(self, phase: Emit, rows: pa.Table | None) -> list[tuple[str, int | None]]:
        function = phase.bind(self.case.config, self.case.context)
        sources: list[tuple[str, int | None]] = []
        for ordinal, part in enumerate(self.slices):
            asked = only(part, names(phase.reads, self.case.config))
            asked = asked.append_column("row", pa.array(np.arange(len(part), dtype=np.uint32)))
            if phase.selected:
                asked = _selected(asked, rows, ordinal)
            made = [records(function(batch), pa.uint32()) for batch in batches(asked, self.way.batch) if len(asked)]
            sources.append((f"{phase.name}/{ordinal}.arrow", ordinal))
            exchange.write(self.store, sources[-1][0], [piece for piece in made if len(piece)], exchange.KEY_SPACE)
        return sources

    def reduce(self, phase: Reduce, sources: Sequence[tuple[str, int | None]]) -> tuple[list[Any], Counter[str]]:
        parts = 1 if phase.single else self.way.partitions
        space = exchange.row_space(len(self.slices)) if phase.to == "rows" else exchange.KEY_SPACE
        facts, made = Counter[str](), []
        for part in range(parts):
            found = exchange.gather(self.store, sources, *exchange.bounds(part, parts, exchange.KEY_SPACE))
            if found is None:
                continue
            shuffled = _shuffled(found) if self.way.shuffled else found
            out, own = phase.reduce(self.case.config, self.case.context, shuffled)
            assert all(type(value) is int for value in own.values()), f"facts are integers that add up, not {own}"
            facts.update(own)
            made.append((f"{phase.name}/{part}.arrow", None))
            exchange.write(self.store, made[-1][0], [records(out)] if len(out) else [], space)
        return made, facts


def records(made: pa.RecordBatch, row: pa.DataType | None = None) -> pa.RecordBatch:
    """The records of a phase, checked: `row` is the type that their row must have."""
    assert made.schema.names[0] == "key", f"records start with key, not with {made.schema.names[0]}"
    assert made.schema.field("key").type == pa.uint64(), f"key must be uint64, not {made.schema.field('key').type}"
    assert made["key"].null_count == 0, "a key must not be null"
    assert row is None or made.schema.field("row").type == row, f"row must be handed on as {row}"
    return made


def _selected(asked: pa.Table, rows: pa.Table | None, ordinal: int) -> pa.Table:
    """The rows that the phase before addressed, with its columns beside them."""
    if rows is None:
        return asked.slice(0, 0)
    keys = rows["key"].to_numpy()
    mine = pa.array(np.flatnonzero(keys >> np.uint64(SLICE_BITS) == ordinal))
    chosen = asked.take(pa.array(keys[mine] & ROW_MASK))
    return _beside(chosen, rows.drop_columns(["key"]).take(mine))


def _shuffled(made: pa.Table) -> pa.Table:
    """The records in a seeded order and in uneven chunks."""
    order = np.random.default_rng(7).permutation(len(made))
    third = len(order) // 3
    return pa.concat_tables([made.take(pa.array(order[:third])), made.take(pa.array(order[third:]))])


def _by_number(rows: pa.Table | None, numbers: Mapping[int, int]) -> Said:
    found: Said = {}
    for record in rows.to_pylist() if rows is not None else ():
        key = record.pop("key")
        assert key in numbers, f"address {key} is no row of the corpus"
        assert numbers[key] not in found, f"row {numbers[key]} was addressed twice"
        if record.get("charged") is not None:
            record["charged"] = numbers[record["charged"]]
        found[numbers[key]] = record
    return found


# -- what was said, in one number ------------------------------------------------------------------------------------


def digest(found: Any) -> str:
    """32 hex digits of a table, or of facts: every bit of every number counts."""
    if isinstance(found, pa.Table | pa.RecordBatch):
        values = {name: [_plain(value) for value in found[name].to_pylist()] for name in found.schema.names}
        return fingerprint(str(found.schema.remove_metadata()), values)
    return fingerprint(xxhash.xxh3_128_hexdigest(found) if isinstance(found, bytes) else found)


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes | float) else value


def golden(case: Case) -> str:
    """32 hex digits of all that the stage says about the case's corpus."""
    if isinstance(case.stage, GlobalStage):
        found, facts = addressed(case)
        rows = [[number, {name: _plain(value) for name, value in found[number].items()}] for number in sorted(found)]
        return fingerprint(rows, facts)
    return fingerprint(digest(settled(case).facts), digest(answer(case)))
