"""What every stage promises, as checks that can be run on a stage of your own.

    from stage_contract import check
    check(my_rules.STAGE, my_rules.Config())

The engine bisects batches, carries measures over, re-cuts corpora and repeats work after a kill. All of that is right
only because these checks hold: what a stage says of a row depends on nothing that the engine is free to change. Each
check takes a `Case` and raises AssertionError with what is wrong; `check` runs all that apply.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
from pydantic import ValidationError

from pipeline import columns, ingest, settle
from pipeline.keys import canonical
from pipeline.stage import Emit, GlobalStage, Reduce, SettleStage, Stage, StageConfig, names

from .case import WORDS, Case
from .driving import ALL, Way, addressed, answer, batches, counts, digest, golden, only, records, settled

__all__ = ["WORDS", "Case", "addressed", "answer", "check", "golden", "promises"]

CUTS = (1, 2, 7, ALL)
"""Rows of a batch in the checks that a cut changes nothing."""
ENGINE_COLUMNS = {"state", "measured", "message", "reason"}
"""Columns of every sidecar that are not the stage's to write."""
EVIDENCE = {*columns.DECISIONS} - {"charged_shard", "charged_row"} | {"charged"}
"""What records to rows may hold beside the stage's own columns."""


def check(stage: Stage, config: StageConfig, extra: Mapping[str, pa.Array] | None = None) -> None:
    """Run every check that applies to the stage. Raises AssertionError with the first broken promise.

    `extra` are columns that the stage reads and for which made-up float32 numbers will not do, 200 values each.
    """
    case = Case(stage=stage, config=config, extra=extra or {})
    for promise in promises(stage):
        promise(case)


def promises(stage: Stage) -> Sequence[Callable[[Case], None]]:
    """The checks that apply to a stage of this form."""
    common = [named, documented, config_round_trip, settings_named, empty, same_answer_twice]
    if isinstance(stage, GlobalStage):
        return [*common, phases_alternate, records_are_declared, keys_are_uniform, cut_of_slices, order_of_records]
    own = [declared_schema, reasons_are_declared, cut_of_batches, order_of_rows]
    return [*common, *own, counts_add_up] if isinstance(stage, SettleStage) else [*common, *own]


# -- every stage -----------------------------------------------------------------------------------------------------


def named(case: Case) -> None:
    """The stage has a name, a version and a place to be imported from, by which it travels to workers."""
    stage = case.stage
    assert re.fullmatch(r"[a-z][a-z0-9_-]*", stage.name), f"{stage.name!r} is no name for columns and files"
    assert stage.version >= 1, "versions count from 1"
    module = importlib.import_module(stage.config.__module__)
    assert any(value is stage for value in vars(module).values()), f"{module.__name__} has no attribute for the stage"


def documented(case: Case) -> None:
    """The module, every setting and every reason say what they are.

    A setting is explained below its field, or by its name in backticks in the config's docstring or in a reason.
    """
    stage = case.stage
    module = importlib.import_module(stage.config.__module__)
    assert (module.__doc__ or "").strip(), f"{module.__name__} has no docstring"
    for reason, meaning in stage.reasons.items():
        assert meaning.strip(), f"reason {reason!r} is not explained"
        assert reason not in ingest.REASONS, f"reason {reason!r} is the engine's own"
    around = " ".join([inspect.getdoc(stage.config) or "", *stage.reasons.values()])
    told = _field_docstrings(stage.config)
    silent = [name for name in stage.config.model_fields if name not in told and f"`{name}`" not in around]
    assert not silent, f"settings without a sentence: {', '.join(silent)}"


def _field_docstrings(config: type[StageConfig]) -> set[str]:
    """The fields with a string below them, which Python does not keep."""
    found = set()
    for kind in config.__mro__:
        if kind in StageConfig.__mro__:
            continue
        tree = ast.parse(inspect.getsource(importlib.import_module(kind.__module__)))
        bodies = [node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == kind.__name__]
        for item, after in (pair for body in bodies for pair in pairwise(body)):
            if (
                isinstance(item, ast.AnnAssign)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
            ):
                found.add(ast.unparse(item.target))
    return found


def config_round_trip(case: Case) -> None:
    """A config survives JSON unchanged, cannot be changed, and refuses a key that it does not know."""
    config, kind = case.config, case.stage.config
    plain = json.loads(canonical(config.model_dump(mode="json")))
    again = kind.model_validate(plain)
    assert again == config, f"{config!r} came back from JSON as {again!r}"
    assert canonical(again.model_dump(mode="json")) == canonical(plain), "a second round changes the config"
    assert kind.model_config.get("frozen"), "the config is not frozen"
    try:
        kind.model_validate(plain | {"no_such_setting": 1})
    except ValidationError:
        return
    raise AssertionError("an unknown setting is accepted")


def settings_named(case: Case) -> None:
    """What the stage says about its settings names settings that exist; a global stage names all of them."""
    stage, known = case.stage, set(case.stage.config.model_fields)
    if isinstance(stage, GlobalStage):
        used = [name for phase in stage.phases for name in phase.settings]
        assert set(used) <= known, f"unknown: {set(used) - known}"
        assert set(used) == known, f"no phase depends on {known - set(used)}"
        return
    used = [*stage.decide_settings, *((stage.measure_settings or ()) if isinstance(stage, SettleStage) else ())]
    assert set(used) <= known, f"unknown: {set(used) - known}"
    assert stage.score is None or stage.score in stage.writes.names, f"score {stage.score!r} is not written"


def empty(case: Case) -> None:
    """No rows give no rows, of the same columns; a corpus without rows can be settled."""
    none = replace(case, made=(), extra={name: column.slice(0, 0) for name, column in case.extra.items()})
    if isinstance(case.stage, GlobalStage):
        assert addressed(none) == ({}, {}), "without rows there is nothing to say"
        return
    found = answer(none)
    assert found.num_rows == 0, f"{found.num_rows} rows came back for none"
    assert found.schema.equals(answer(case).schema), "an empty batch has other columns than a full one"


def same_answer_twice(case: Case) -> None:
    """Nothing that a stage has seen before changes what it says: neither bound anew nor bound once."""
    stage = case.stage
    if isinstance(stage, GlobalStage):
        assert addressed(case) == addressed(case), "a second run gives another answer"
        return
    assert _same(answer(case), answer(case)), "a second run gives another answer"
    if stage.bind is not None:
        transform = stage.bind(case.config, settled(case))
        whole = batches(only(case.table, names(stage.reads, case.config)))[0]
        first, _, third = transform(whole), transform(whole.slice(3, 5)), transform(whole)
        assert _same(first, third), "a bound transform remembers what it has seen"


def _same(a: pa.Table | pa.RecordBatch, b: pa.Table | pa.RecordBatch) -> bool:
    return digest(a) == digest(b)


# -- map and settle stages -------------------------------------------------------------------------------------------


def declared_schema(case: Case) -> None:
    """Measures have the promised columns and types, row for row; decisions are decision columns or declared ones."""
    stage = case.stage
    assert not isinstance(stage, GlobalStage)
    assert stage.bind is not None or not stage.writes.names, "writes is declared, but there is no bind"
    taken = ENGINE_COLUMNS | set(columns.NUMBERS_ONLY if stage.decide else ())
    clash = taken & set(stage.writes.names)
    assert not clash, f"{clash} are the engine's own columns"
    found = answer(case)
    assert stage.bind is None or found.num_rows == case.table.num_rows, "measures have other rows than what was read"


def reasons_are_declared(case: Case) -> None:
    """Only documented reasons are given, and a number that decided comes with its threshold."""
    stage, found = case.stage, answer(case)
    assert not isinstance(stage, GlobalStage)
    if stage.decide is None:
        return
    decisions = {name: found[name].to_pylist() for name in columns.NUMBERS_ONLY if name in found.column_names}
    given = set(decisions.get("reason", ())) - {None}
    assert given <= set(stage.reasons), f"undocumented: {given - set(stage.reasons)}"
    assert ("score" in decisions) == ("threshold" in decisions), "score and threshold go together"
    for score, threshold in zip(decisions.get("score", ()), decisions.get("threshold", ()), strict=True):
        assert (score is None) == (threshold is None), f"score {score} stands beside threshold {threshold}"


def cut_of_batches(case: Case) -> None:
    """The answer is the same in batches of 1, 2 or 7 rows and in one."""
    context = settled(case)
    wanted = answer(case, context=context)
    for size in CUTS:
        assert _same(answer(case, size, context), wanted), f"batches of {size} rows give another answer"


def order_of_rows(case: Case) -> None:
    """A row's answer does not depend on its neighbours: rows in another order have the same answers."""
    context = settled(case)
    order = pa.array(np.random.default_rng(5).permutation(len(case.table)))
    other = replace(case)
    other.__dict__["table"] = case.table.take(order)  # where cached_property keeps it
    wanted = answer(case, context=context).take(order)
    assert _same(answer(other, 7, context), wanted), "rows in another order have other answers"


def counts_add_up(case: Case) -> None:
    """Counts are integers whose sum, and so the facts, are the same in any order and cut."""
    stage = case.stage
    assert isinstance(stage, SettleStage)
    wanted = settle.add(counts(case), stage.count_keys)
    facts = digest(settled(case).facts)
    for size in CUTS:
        made = counts(case, size)
        halves = [settle.add(half, stage.count_keys) for half in (made[::2], made[1::2])]
        for tables in (made[::-1], halves):
            total = settle.add(tables, stage.count_keys)
            assert _same(total, wanted), f"counts of {size} rows add up to something else"
        again = digest(settled(case, size, lambda tables: tables[::-1]).facts)
        assert again == facts, f"facts from counts of {size} rows differ"


# -- global stages ---------------------------------------------------------------------------------------------------


def phases_alternate(case: Case) -> None:
    """Phases start over slices, end with records to rows, and have names of their own."""
    stage = case.stage
    assert isinstance(stage, GlobalStage)
    first, last = stage.phases[0], stage.phases[-1]
    assert not getattr(first, "selected", True), "the first phase is an Emit of all rows"
    assert getattr(last, "to", "") == "rows", "the last phase is a Reduce that addresses rows"
    taken = {"scatter", *(phase.name for phase in stage.phases)}
    assert len(taken) == len(stage.phases) + 1, "two phases have one name, or one is called scatter"
    for before, phase in pairwise(stage.phases):
        meets = getattr(before, "to", "") == "rows"
        assert isinstance(phase, Reduce) or meets, f"{phase.name}: an Emit follows a Reduce that addresses rows"


def records_are_declared(case: Case) -> None:
    """What is said of a row is a declared column or a decision; a duplicate is charged to a row that is kept."""
    stage = case.stage
    assert isinstance(stage, GlobalStage)
    clash = (ENGINE_COLUMNS | set(columns.DECISIONS)) & set(stage.writes.names)
    assert not clash, f"{clash} are the engine's own columns"
    found, facts = addressed(case)
    for number, record in found.items():
        unknown = set(record) - {*stage.writes.names, *EVIDENCE}
        assert not unknown, f"undeclared: {unknown}"
        reason, charged = record.get("reason"), record.get("charged")
        assert reason is None or reason in stage.reasons, f"undocumented: {reason!r}"
        assert charged is None or reason is not None, f"row {number} is kept, but charged to {charged}"
        kept = charged is None or found.get(charged, {}).get("reason") is None
        assert kept, f"row {number} is charged to row {charged}, which is removed itself"
    if stage.report is not None:
        canonical(stage.report(case.config, facts))


def keys_are_uniform(case: Case) -> None:
    """Keys of the first phase fill their 64 bits evenly, so that equal ranges of keys are equal work."""
    stage = case.stage
    assert isinstance(stage, GlobalStage)
    first = stage.phases[0]
    assert isinstance(first, Emit)
    asked = only(case.table, names(first.reads, case.config))
    asked = asked.append_column("row", pa.array(np.arange(len(asked), dtype=np.uint32)))
    made = records(first.bind(case.config, case.context)(batches(asked)[0]), pa.uint32())
    keys = np.unique(made["key"].to_numpy())
    spread = np.bincount((keys >> np.uint64(62)).astype(np.int64), minlength=4) / max(1, len(keys))
    assert ((spread > 0.125) & (spread < 0.5)).all(), f"quarters of the key space hold {spread.round(3).tolist()}"


def cut_of_slices(case: Case) -> None:
    """The same rows in other slices and batches get the same answers."""
    wanted = addressed(case)
    for slices, batch in ((1, 7), (3, ALL), (13, 2)):
        assert addressed(case, Way(slices=slices, batch=batch)) == wanted, f"{slices} slices give another answer"


def order_of_records(case: Case) -> None:
    """Neither the number of partitions nor the order of records changes the answer or the facts."""
    wanted = addressed(case)
    for partitions, shuffled in ((1, True), (4, False), (32, True)):
        way = Way(slices=3, partitions=partitions, shuffled=shuffled)
        assert addressed(case, way) == wanted, f"{way} gives another answer"
