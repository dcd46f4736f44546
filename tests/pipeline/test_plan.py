"""The one key rule, and how missing cells become tasks."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import plan
from pipeline.config import loads
from pipeline.job import Step, UnitWork
from pipeline.types import Cell, CellResult, Output, Slice
from stages import STAGES

TIERS = "tiers: {work: {url: /w}, hot: {url: /h}, cold: {url: /c}}"
CHAIN = (
    "{stage: heuristics}", "{stage: exact}", "{stage: quality, model: /m.bin}",
    "{stage: minhash, bands: 28, rows: 9, keep: [quality.score desc, bytes desc]}",
    "{stage: select, by: quality.score, keep_top: 0.5, weight: documents}", "{stage: difficulty}",
    "{stage: curriculum, by: difficulty.bits_per_byte}",
)  # fmt: skip
NAMES = {"text": "text"}


def phases(*sets, stages=CHAIN, ids=("one", "two"), model="model bytes", names=NAMES):
    text = f"name: t\ninput: {{paths: [/in]}}\n{TIERS}\nstages:\n" + "\n".join(f"  - {stage}" for stage in stages)
    config = loads(text, STAGES, overrides=sets)
    return plan.phases(config, ids, names, {"quality": {"model": model}})


def named(chain):
    return [f"{phase.label}.{phase.name}" for phase in chain]


def changed(other, first=None):
    """Names of the phases that have another key, in order."""
    pairs = zip(first or phases(), other, strict=True)
    return [name for name, (a, b) in zip(named(other), pairs, strict=True) if a.key != b.key]


FROM = {
    "input.max_document_bytes=1MB": "ingest.map", "input.invalid_utf8=quarantine": "ingest.map",
    "heuristics.min_words=30": "heuristics.map", "exact.keep=[bytes asc]": "exact.emit",
    "minhash.ngram=6": "minhash.emit", "minhash.bands=20": "minhash.emit", "minhash.within=[language]": "minhash.emit",
    "minhash.keep=[bytes asc]": "minhash.payload", "minhash.threshold=0.9": "minhash.resolve",
    "minhash.work_limit=9000": "minhash.resolve", "select.keep_top=0.4": "select.measure",
    "difficulty.sample=1MB": "difficulty.measure", "curriculum.buckets=3": "curriculum.measure",
    "publish.mix_by=[source]": "split.measure", "publish.validation={tokens: 100}": "split.measure",
}  # fmt: skip


@pytest.mark.parametrize("change", FROM)
def test_a_setting_changes_the_keys_from_its_phase_on(change):
    """All keys from the first phase that knows of a setting on are others, and none before it.

    But counts of what a global stage left alive do not follow what stages after that one remove.
    """
    other = phases(change)
    spared = {"difficulty.measure", "difficulty.settle"} if change.startswith("select") else set()
    rest = named(other)[named(other).index(FROM[change]) :]
    assert changed(other) == [name for name in rest if name not in spared]


@pytest.mark.parametrize("change", [
    "run.workers=7", "run.partitions=8", "run.worker_memory=9GB", "currency=EUR", "guards.min_docs=1", "name=other",
    "tiers.work.url=/elsewhere", "publish.part_bytes=1MB", "training.price_per_gpu_hour=9",
    "sources={a: {max_epochs: 2}}",
])  # fmt: skip
def test_how_and_for_how_much_changes_no_key_of_a_row(change):
    """Workers, prices, names, places, guards and parts change no key; a source's settings those of counts at most."""
    assert not {"ingest.map", "heuristics.map", "exact.emit", "minhash.resolve"} & set(changed(phases(change)))
    if not change.startswith("sources"):
        assert changed(phases(change)) == []


def test_a_ratio_of_tokens_concerns_what_counts_them():
    """Bytes a token change the keys of phases that read tokens, and what follows those."""
    other = phases("training.bytes_per_token=3.0")
    assert changed(other) == named(other)[named(other).index("curriculum.measure") :]


def test_model_bytes_concern_their_stage():
    """Other bytes of a model file change the keys from its stage on, the file's name alone changes none."""
    other = phases(model="other bytes")
    assert changed(other) == named(other)[named(other).index("quality.map") :]
    assert changed(phases("quality.model=/elsewhere.bin")) == []


def test_other_shards_concern_what_follows_a_meeting():
    """With a shard more, phases before the first in which rows meet keep their keys; the order of ids is nothing."""
    other = phases(ids=("one", "two", "three"))
    assert named(other)[:3] == ["ingest.map", "heuristics.map", "exact.emit"]
    assert changed(other) == named(other)[3:]
    assert changed(phases(ids=("two", "one"))) == []


def scores(*sets, **more):
    return {phase.label: phase.score for phase in phases(*sets, **more) if phase.kind == "map"}


SCORED = {"heuristics", "quality", "difficulty"}


@pytest.mark.parametrize(("change", "rescored"), [
    ("heuristics.min_words=30", {"difficulty"}), ("heuristics.rules=[fineweb]", {"difficulty"}),
    ("minhash.threshold=0.9", {"difficulty"}), ("select.keep_top=0.4", set()), ("curriculum.buckets=3", set()),
    ("difficulty.folds=3", {"difficulty"}), ("input.max_document_bytes=1MB", SCORED),
])  # fmt: skip
def test_a_decision_is_not_a_score(change, rescored):
    """Settings that only decide leave scores alone, but for a model fitted on what a global stage left alive."""
    before, after = scores(), scores(change)
    assert {label for label in SCORED if before[label] != after[label]} == rescored


def test_the_order_of_stages_is_not_a_score():
    """Stages that change places are done again, on the measures that they have."""
    swapped = (CHAIN[1], CHAIN[0], *CHAIN[2:])
    before, after = scores(), scores(stages=swapped)
    assert [before[label] == after[label] for label in ("heuristics", "quality")] == [True, True]
    keys = {phase.label: phase.key for phase in phases() if phase.kind == "map"}
    assert keys["heuristics"] != {p.label: p.key for p in phases(stages=swapped) if p.kind == "map"}["heuristics"]


def test_keys_are_all_different():
    """No two phases of a run share a key, so a cell belongs to one."""
    keys = [phase.key for phase in phases()]
    assert len(set(keys)) == len(keys)


def test_one_reading_serves_neighbours():
    """Groups are the chain in order: phases over slices together, counts never with ingest, partitions alone."""
    chain = phases()
    groups = plan.fuse(chain)
    assert [phase for group in groups for phase in group] == chain
    assert named(groups[0]) == ["ingest.map", "heuristics.map", "exact.emit"]
    for group in groups:
        assert len(group) == 1 or {phase.over for phase in group} == {"slices"}
        assert group[0].kind != "ingest" or not {phase.kind for phase in group} & {"measure", "account"}
    neighbours = [(one, two) for one, two in pairwise(groups) if one[-1].over == two[0].over == "slices"]
    assert all(one[0].kind == "ingest" for one, _ in neighbours)


# -- units and tasks -------------------------------------------------------------------------------------------------

PART = Slice(
    shard_id="a", url="/a", size=9, stamp="1", first_row=0, rows=10, first_group=0, groups=1, bytes=1000, input_id="i"
)  # fmt: skip


def known(done=(), carried=()):
    """A ledger in which these phases are done for PART, and these labels have older measures."""
    results = {phase.cell(PART).id: result(phase, f"of {phase.label}.{phase.name}") for phase in done}
    old = {phase.cell(PART).score_key: result(phase, "old") for phase in phases() if phase.label in carried}
    return plan.Known(done=lambda cell: results.get(cell.id), latest=lambda score, _: old.get(score))


def result(phase, path):
    return CellResult(cell=phase.cell(PART), outputs=(Output(path=path, bytes=1, rows=10, xxh128=""),))


def test_a_unit_is_what_is_missing_of_a_slice():
    """Steps are the missing cells in order, with the sidecars of what is done before them and measures to carry."""
    chain = phases()
    [first, *_] = plan.fuse(chain)
    [(unit, weight)] = plan.slice_units(first, chain, [PART], known(), {})
    assert [step.cell.label for step in unit.steps] == ["ingest", "heuristics", "exact"]
    assert (unit.sidecars, weight) == ({}, PART.bytes)
    [(unit, _)] = plan.slice_units(first, chain, [PART], known(done=first[:1], carried=["heuristics"]), {})
    assert [step.cell.label for step in unit.steps] == ["heuristics", "exact"]
    assert {label: ref.path for label, ref in unit.sidecars.items()} == {"ingest": "of ingest.map"}
    assert unit.steps[0].carry.path == "old"
    assert list(plan.slice_units(first, chain, [PART], known(done=first), {})) == []


def test_numbers_weigh_next_to_nothing():
    """A unit of which all measures are carried reads no text, and is weighed by its rows."""
    chain = phases()
    group = [phase for phase in chain if (phase.label, phase.name) == ("heuristics", "map")]
    [(_, reads)] = plan.slice_units(group, chain, [PART], known(done=chain[:1]), {})
    [(_, decides)] = plan.slice_units(group, chain, [PART], known(done=chain[:1], carried=["heuristics"]), {})
    assert (reads, decides) == (PART.bytes, PART.rows * plan.NUMBER_ROW_BYTES)


@given(weights=st.lists(st.integers(0, 40_000_000), max_size=30), workers=st.integers(0, 9), most=st.integers(1, 10**8))
def test_tasks_hold_every_unit_once(weights, workers, most):
    """Tasks are the units in order, none heavier than allowed but those of one unit."""

    def unit(number):
        cell = Cell(label="rules", phase="map", unit=str(number), key="k")
        return UnitWork(part=PART, ordinal=number, steps=(Step(cell=cell, kind="map"),), sidecars={})

    units = [(unit(number), weight) for number, weight in enumerate(weights)]
    tasks = plan.slice_tasks(units, workers, most)
    assert [unit for task in tasks for unit in task.work.units] == [unit for unit, _ in units]
    assert len({task.id for task in tasks}) == len(tasks)
    limit = min(most, max(2_000_000, sum(weights) // max(1, 4 * workers)))
    assert all(task.bytes <= limit or len(task.work.units) == 1 for task in tasks)
    assert sum(task.bytes for task in tasks) == sum(weights)


@pytest.mark.parametrize(
    ("raw", "asked", "expected"), [(0, None, 1), (100, None, 1), (101, None, 2), (10**9, None, 4096), (10**9, 8, 8)]
)
def test_partitions_fit_or_are_as_asked(raw, asked, expected):
    """The least power of two of which one fits in 100 bytes, at most 4,096; or what was asked for."""
    assert plan.partitions(raw, 100, asked) == expected
