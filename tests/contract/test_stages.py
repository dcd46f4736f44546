"""Every stage that corpusmill ships keeps the promises of stage_contract, and its output changes with its version.

That each is described in configs/README.md is checked in tests/test_configs.py.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pipeline.stage import Emit, GlobalStage, MapStage, Reduce, SettleStage, StageConfig
from stages import STAGES, exact, minhash, quality
from tests.contract import stage_contract
from tests.contract.stage_contract import Case, addressed, answer, check, golden, promises

SETTINGS = {
    "heuristics": {"min_words": 30, "stop_words": ["the", "of", "and"]},
    "exact": {"keep": ["source.priority desc", "bytes desc"]},
    "quality": {"model": "(trained by the fixture)"},
    "minhash": {"threshold": 0.7, "keep": ["quality.score desc", "bytes desc"], "within": ["language"]},
    "select": {"by": "quality.score", "keep_top": 0.6, "within": ["source", "language"], "min_group": 30},
    "difficulty": {"bits": 16},
    "curriculum": {"by": "difficulty.bits_per_byte", "buckets": 4, "within": ["source"], "min_group": 50},
}
"""A small config of every stage, under which it has something to say about the suite's corpus."""

GOLDEN = {
    "heuristics": (1, "ea9c7b954e848be93384aee7362a31d1"),
    "exact": (1, "f685a4e0a0d3c1803b0d7cb3d7b5fc32"),
    "quality": (1, "65ea12f3c61511d596fbe0fb16399e62"),
    "minhash": (1, "4a416c65f6ed83f5dc77afca394625c8"),
    "select": (1, "cf70ef7e9de6997f8134c26ccc8697a4"),
    "difficulty": (1, "6c8df4d6b172caa85c9ac38ad6f79975"),
    "curriculum": (1, "4f9cd40beb03346c57078672cc9af7ab"),
}
"""Stage -> (version, stage_contract.golden). Results are reused by version: another output needs another number."""


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A fastText model that tells the suite's words from the same in capitals, trained on the spot."""
    words = stage_contract.WORDS
    made = [" ".join(words[(i * k) % len(words)] for k in range(1, 30)) for i in range(1, 160)]
    settings = quality.FitSettings(dim=4, buckets=64)
    data, _ = quality.fit(made[::2], [text.upper() for text in made[1::2]], settings=settings)
    path = tmp_path_factory.mktemp("model") / "quality.bin"
    path.write_bytes(data)
    return str(path)


def case_of(stage, model):
    settings = SETTINGS[stage.name] | ({"model": model} if stage.name == "quality" else {})
    return Case(stage=stage, config=stage.config.model_validate(settings))


PAIRS = [(stage, promise) for stage in STAGES for promise in promises(stage)]


@pytest.mark.parametrize(("stage", "promise"), PAIRS, ids=[f"{s.name}-{p.__name__}" for s, p in PAIRS])
def test_promise_is_kept(stage, promise, model):
    """The stage keeps the promise that the check is named after."""
    promise(case_of(stage, model))


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_output_changes_with_the_version(stage, model):
    """What a version of a stage says about the suite's corpus is what it said when that version was made."""
    assert GOLDEN[stage.name] == (stage.version, golden(case_of(stage, model)))


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_case_is_not_vacuous(stage, model):
    """Under its config here a stage says different things about different rows, so that the checks have a subject."""
    case = case_of(stage, model)
    if isinstance(stage, GlobalStage):
        said = {record["reason"] for record in addressed(case)[0].values()}
    else:
        found = answer(case)
        said = set(found["reason" if stage.reasons else stage.score or stage.decide_writes.names[0]].to_pylist())
    assert len(said) > 1
    assert not stage.reasons or said - {None}


# -- the suite itself ------------------------------------------------------------------------------------------------


class Config(StageConfig):
    """`most` is how many bytes a text may have."""

    most: int = 300


class Silent(StageConfig):
    least: int = 3


def _share_of_batch(config, context):
    """The mistake of all mistakes: a value that depends on the neighbours."""
    return lambda batch: pa.record_batch([pc.divide(batch["bytes"], float(batch.num_rows or 1))], schema=ONE)


def _remembers(config, context):
    seen = []

    def transform(batch):
        seen.append(batch.num_rows)
        return pa.record_batch([pa.array([float(len(seen) > 1)] * batch.num_rows)], schema=ONE)

    return transform


def _drops(config, context):
    return lambda batch: pa.record_batch([batch["bytes"].cast(pa.float64()).slice(0, 1)], schema=ONE)


def _double(config, context):
    return lambda batch: pa.record_batch([pc.multiply(batch["bytes"].cast(pa.float64()), 2.0)], schema=ONE)


def _too_long(config, context, batch):
    long = pc.greater(batch["bytes"], config.most)
    return pa.record_batch({"reason": pc.if_else(long, "too_long", None)})


def _counts(rounded):
    def measure(config, context):
        def count(batch):
            mean = pc.mean(batch["bytes"].cast(pa.float64())).as_py() or 0
            return pa.table({"all": pa.array([1], pa.int8()), "sum": pa.array([rounded(mean)], pa.int64())})

        return count

    return measure


def _sums(config, context, table):
    return {"sum": table["sum"].to_pylist()}


ONE = pa.schema([("value", pa.float64())])
MAP = MapStage(name="own", version=1, config=Config, reads=("bytes",), writes=ONE, bind=_double, decide=_too_long,
               decide_reads=("bytes",), decide_settings=("most",), reasons={"too_long": "over `most`"})  # fmt: skip
SETTLE = SettleStage(
    name="sum", version=1, config=Config, measure=_counts(round), measure_reads=("bytes",), count_keys=("all",),
    settle=_sums,
)  # fmt: skip


def _first_of_each(config, context, records):
    """Removes what comes after the first record of a key, in the order in which records happen to arrive."""
    seen, rows = set(), []
    for key, row in zip(records["key"].to_pylist(), records["row"].to_pylist(), strict=True):
        rows += [row] if key in seen else []
        seen.add(key)
    reason = pa.array(["copy"] * len(rows), pa.large_string())
    return pa.record_batch({"key": pa.array(rows, pa.uint64()), "reason": reason}), {"ranges": 1}


def _small_keys(config, context):
    return lambda batch: pa.record_batch({"key": batch["bytes"].cast(pa.uint64()), "row": batch["row"]})


def _own_global(bind, **changes):
    phases = (
        Emit(name="emit", bind=bind, reads=("text", "bytes"), settings=("most",)),
        Reduce(name="reduce", reduce=_first_of_each, to="rows"),
    )
    own = GlobalStage(name="own-global", version=1, config=Config, phases=phases, reasons={"copy": "a copy"})
    return replace(own, **changes)


def _hashed(config, context):
    def emit(batch):
        digests = exact.hashed(batch["text"], np.zeros(batch.num_rows, np.uint64))
        return pa.record_batch({"key": digests[:, 0], "row": batch["row"]})

    return emit


def test_suite_accepts_a_stage_from_outside():
    """A sound stage that corpusmill does not know passes all checks in one call."""
    check(MAP, Config(most=200))


BROKEN = [
    ("cut_of_batches", replace(MAP, bind=_share_of_batch), "batches of 1 rows give"),
    ("same_answer_twice", replace(MAP, bind=_remembers), "remembers"),
    ("declared_schema", replace(MAP, bind=_drops), "rows came back"),
    ("declared_schema", replace(MAP, writes=pa.schema([("value", pa.float32())])), "promised value: float"),
    ("declared_schema", replace(MAP, bind=None), "no bind"),
    ("reasons_are_declared", replace(MAP, reasons={}), "undocumented: {'too_long'}"),
    ("settings_named", replace(MAP, decide_settings=("least",)), "unknown: {'least'}"),
    ("documented", replace(MAP, config=Silent), "settings without a sentence: least"),
    ("documented", replace(MAP, reasons={"oversize": "too large"}), "the engine's own"),
    ("named", replace(MAP, version=0), "count from 1"),
    ("named", replace(MAP), "no attribute"),
    ("counts_add_up", SETTLE, "add up to something else"),
    ("keys_are_uniform", _own_global(_small_keys), "quarters of the key space"),
    ("order_of_records", _own_global(_hashed), "gives another answer"),
    ("settings_named", _own_global(_hashed, phases=exact.STAGE.phases), "unknown"),
    ("phases_alternate", _own_global(_hashed, phases=minhash.STAGE.phases[:2]), "addresses rows"),
]


@pytest.mark.parametrize(("name", "stage", "message"), BROKEN, ids=[f"{n}-{i}" for i, (n, _, _) in enumerate(BROKEN)])
def test_broken_promise_is_noticed(name, stage, message):
    """A stage that breaks a promise fails the check of it, with what is wrong."""
    promise = next(promise for promise in promises(stage) if promise.__name__ == name)
    with pytest.raises(AssertionError, match=message):
        promise(Case(stage=stage, config=stage.config()))
