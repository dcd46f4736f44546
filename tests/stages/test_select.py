from __future__ import annotations

from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pipeline import grid, settle
from pipeline.errors import ConfigError
from pipeline.keys import canonical
from pipeline.stage import Context, names
from stages.select import STAGE, SelectConfig

SHARES = st.sampled_from([0.05, 0.1, 0.3, 0.4, 0.5, 0.75, 0.9, 1.0])


def rows(scores, tokens=None, language=None, source=None, by="difficulty.bits_per_byte"):
    size = len(scores)
    return pa.record_batch(
        {
            by: pa.array(scores, pa.float32()),
            "tokens": pa.array(tokens or [1] * size, pa.int64()),
            "bytes": pa.array([4 * t for t in tokens or [1] * size], pa.int64()),
            "language": pa.array(language or ["en"] * size, pa.string()),
            "source": pa.array(source or [None] * size, pa.string()),
        }
    )


def config(**settings):
    return SelectConfig(**{"by": "difficulty.bits_per_byte", "min_group": 1, **settings})


def run(settings, batch, pieces=1, sources=None):
    """Measure the batch in pieces, settle, decide in pieces: (facts, decisions)."""
    context = Context(sources=sources or {})
    count = STAGE.measure(settings, context)
    cut = [
        batch.slice(i * len(batch) // pieces, (i + 1) * len(batch) // pieces - i * len(batch) // pieces)
        for i in range(pieces)
    ]
    only = [piece.select(names(STAGE.measure_reads, settings)) for piece in cut]
    facts = STAGE.settle(settings, context, settle.add([count(piece) for piece in only], STAGE.count_keys))
    context = Context(sources=sources or {}, facts=facts)
    reads = names(STAGE.decide_reads, settings)
    decided = [STAGE.decide(settings, context, piece.select(reads)) for piece in cut]
    return facts, pa.Table.from_batches(decided).combine_chunks()


def kept(decisions):
    return [reason is None for reason in decisions["reason"].to_pylist()]


@given(
    st.lists(st.tuples(st.sampled_from([0.5, 1, 2, 2.5, 3, 4.75, 8]), st.integers(1, 9)), min_size=1, max_size=30),
    SHARES,
)
def test_keep_top_is_its_definition(documents, share):
    """What stays is all from the largest value on at which the tokens reach the share, and facts say how much it is."""
    scores, tokens = (list(column) for column in zip(*documents, strict=True))
    facts, decisions = run(config(keep_top=share), rows(scores, tokens))
    need = Fraction(str(share)) * sum(tokens)
    cut = max(v for v in scores if sum(t for s, t in documents if s >= v) >= need)
    if share == 1:
        cut = min(scores)
    assert kept(decisions) == [score >= cut for score in scores]
    (fact,) = facts["groups"].values()
    assert fact["asked"] == share
    assert fact["got"] == sum(t for s, t in documents if s >= cut) / sum(tokens)
    assert fact["got"] >= share
    assert fact["docs"] == len(documents)


@given(
    st.lists(st.tuples(st.sampled_from([0.5, 1, 2, 2.5, 3, 4.75, 8]), st.integers(1, 9)), min_size=1, max_size=30),
    SHARES,
)
def test_keep_bottom_mirrors_keep_top(documents, share):
    """keep_bottom keeps what keep_top keeps of the negated scores."""
    scores, tokens = (list(column) for column in zip(*documents, strict=True))
    _, bottom = run(config(keep_bottom=share), rows(scores, tokens))
    _, top = run(config(keep_top=share), rows([-score for score in scores], tokens))
    assert kept(bottom) == kept(top)


@given(st.lists(st.none() | st.floats(-10, 10, width=32), min_size=1, max_size=40), st.integers(1, 8), SHARES)
def test_batches_do_not_matter(scores, pieces, share):
    """Facts and decisions are the same however the rows are cut into batches."""
    settings = config(keep_top=share, within=["language"])
    batch = rows(scores, language=["en" if i % 3 else None for i in range(len(scores))])
    facts, decisions = run(settings, batch)
    facts_cut, decisions_cut = run(settings, batch, pieces)
    assert canonical(facts) == canonical(facts_cut)
    assert decisions.equals(decisions_cut)


def test_evidence():
    """A removed row carries its score and the threshold that it misses; a kept row carries neither."""
    facts, decisions = run(config(keep_top=0.5), rows([1.0, 2.0, 3.0, 4.0]))
    assert decisions.to_pylist() == [
        {"reason": "below_cut", "score": 1.0, "threshold": 3.0},
        {"reason": "below_cut", "score": 2.0, "threshold": 3.0},
        {"reason": None, "score": None, "threshold": None},
        {"reason": None, "score": None, "threshold": None},
    ]
    assert facts["groups"]["[]"]["low"] == 3.0
    _, decisions = run(config(keep_bottom=0.5), rows([1.0, 2.0, 3.0, 4.0]))
    assert decisions["reason"].to_pylist() == [None, None, "above_cut", "above_cut"]
    assert all(row["score"] >= row["threshold"] for row in decisions.to_pylist()[2:])


def test_one_value_for_all_keeps_everything():
    """Equal scores share one fate, which is to stay."""
    for settings in (config(keep_top=0.1), config(keep_bottom=0.1), config(band={"low": 0.4, "high": 0.6})):
        facts, decisions = run(settings, rows([7.25] * 1000))
        assert all(kept(decisions))
        assert facts["groups"]["[]"]["got"] == 1.0


def test_everything():
    """A share of 1 keeps every row, whatever it weighs."""
    _, decisions = run(config(keep_top=1.0), rows([1.0, 2.0, 3.0], tokens=[0, 5, 1]))
    assert all(kept(decisions))
    _, decisions = run(config(keep_top=0.5), rows([1.0, 2.0, 3.0], tokens=[0, 0, 0]))
    assert all(kept(decisions))


def test_weights():
    """The same share by tokens, documents and bytes keeps what that weight says."""
    batch = rows([1.0, 2.0, 3.0, 4.0], tokens=[100, 1, 1, 10])
    assert kept(run(config(keep_top=0.5), batch)[1]) == [True] * 4
    assert kept(run(config(keep_top=0.5, weight="bytes"), batch)[1]) == [True] * 4
    assert kept(run(config(keep_top=0.5, weight="documents"), batch)[1]) == [False, False, True, True]
    assert "tokens" not in names(STAGE.measure_reads, config(keep_top=0.5, weight="documents"))


def test_groups_have_cuts_of_their_own():
    """Each group keeps its share by its own cut, null is a group, and a small one uses its parent's cut and says so."""
    language = ["en"] * 10 + [None] * 10 + ["de"] * 2
    scores = [*range(10), *range(100, 110), 5, 200]
    settings = config(keep_top=0.5, within=["language"], min_group=3)
    facts, decisions = run(settings, rows(scores, language=language))
    assert kept(decisions)[:20] == [False] * 5 + [True] * 5 + [False] * 5 + [True] * 5
    small = facts["groups"]['["de"]']
    assert small["from"] == {}
    assert small["low"] == facts["groups"]['["de"]']["low"] == 100.0
    assert kept(decisions)[20:] == [False, True]
    assert small["got"] == 0.5
    assert facts["groups"]["[null]"]["from"] is None
    assert facts["groups"]["[null]"]["group"] == {"language": None}


def test_rows_without_a_score():
    """Null and NaN are removed as unscorable, or kept where asked; they neither move the cut nor count in the share."""
    scores = [None, float("nan"), 1.0, 2.0, 3.0, 4.0]
    facts, decisions = run(config(keep_top=0.5), rows(scores))
    assert decisions["reason"].to_pylist() == ["unscorable", "unscorable", "below_cut", "below_cut", None, None]
    assert decisions["score"].to_pylist()[:2] == decisions["threshold"].to_pylist()[:2] == [None, None]
    assert facts["groups"]["[]"]["unscorable_docs"] == 2
    assert facts["groups"]["[]"]["got"] == 0.5
    _, decisions = run(config(keep_top=0.5, unscorable="keep"), rows(scores))
    assert kept(decisions) == [True, True, False, False, True, True]
    facts, decisions = run(config(keep_top=0.5), rows([None, None]))
    assert kept(decisions) == [False, False]
    assert facts["groups"]["[]"]["got"] is None


def test_protected_sources_stay():
    """Rows of a protected source are never removed, count in the share that was got, and null is named (none)."""
    batch = rows([1.0, None, 2.0, 3.0, 4.0], source=["mine", "mine", "web", "web", "web"])
    facts, decisions = run(config(keep_top=0.5), batch, sources={"mine": {"protect": True}, "web": {"priority": 1}})
    assert kept(decisions) == [True, True, False, True, True]
    assert facts["groups"]["[]"]["protected_docs"] == 2
    assert facts["groups"]["[]"]["got"] == 0.75
    _, decisions = run(config(keep_top=0.5), rows([1.0, 2.0]), sources={"(none)": {"protect": True}})
    assert all(kept(decisions))


def test_band():
    """A band takes at most its shares off either end and names the two ends."""
    facts, decisions = run(config(band={"low": 0.25, "high": 0.9}), rows([float(i) for i in range(10)]))
    assert decisions["reason"].to_pylist() == ["too_easy"] * 2 + [None] * 7 + ["too_hard"]
    assert facts["groups"]["[]"]["asked"] == 0.65
    assert facts["groups"]["[]"]["got"] == 0.7


def test_fixed_bounds():
    """min and max keep what lies between them, both included, without any facts about the corpus."""
    facts, decisions = run(config(min=1.0, max=2.0), rows([0.5, 1.0, 2.0, 2.5]))
    assert decisions["reason"].to_pylist() == ["below_min", None, None, "above_max"]
    assert decisions["threshold"].to_pylist() == [1.0, None, None, 2.0]
    assert facts["groups"]["[]"]["asked"] is None
    assert kept(run(config(max=2.0), rows([0.5, 3.0]))[1]) == [True, False]


def test_quality_is_cut_at_its_logit():
    """Shares of quality.score are cut where scores do not crowd; fixed bounds hold for the score itself."""
    assert names(STAGE.decide_reads, config(by="quality.score", keep_top=0.4))[0] == "quality.logit"
    assert names(STAGE.decide_reads, config(by="quality.score", min=0.4))[0] == "quality.score"
    assert names(STAGE.decide_reads, config(by="mine.score", keep_top=0.4))[0] == "mine.score"


def test_reasons_are_documented():
    """Every reason that can be given is in the stage's vocabulary."""
    batch = rows([None, 1.0, 2.0, 3.0])
    found = set()
    for rule in ({"keep_top": 0.3}, {"keep_bottom": 0.3}, {"band": {"low": 0.4, "high": 0.6}}, {"min": 2, "max": 2}):
        found |= set(run(config(**rule), batch)[1]["reason"].to_pylist())
    assert found - {None} == set(STAGE.reasons)


def test_threshold_is_exact_for_float64():
    """A float64 column is cut exactly at the threshold that is reported."""
    values = [1.0, float(np.nextafter(1.0, 0)), 0.5]
    batch = rows([0.0, 0.0, 0.0]).set_column(0, "difficulty.bits_per_byte", pa.array(values, pa.float64()))
    _, decisions = run(config(keep_top=0.3), batch)
    assert kept(decisions) == [True, False, False]
    assert decisions["threshold"].to_pylist()[1] == 1.0
    assert grid.cells_of(np.array(values[:1])) != grid.cells_of(np.array(values[1:2]))


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({}, ConfigError, "exactly one of keep_top, keep_bottom, band"),
        ({"keep_top": 0.4, "min": 1.0}, ConfigError, "exactly one of"),
        ({"keep_top": 0.0}, ValidationError, "keep_top"),
        ({"keep_top": 1.5}, ValidationError, "keep_top"),
        ({"min": 2.0, "max": 1.0}, ConfigError, "must not exceed max"),
        ({"min": float("nan")}, ValidationError, "min"),
        ({"band": {"low": 0.5, "high": 0.5}}, ConfigError, "low must lie below high"),
        ({"keep_top": 0.4, "ties": "hash"}, ConfigError, "ties: got 'hash', but splitting .* is not built yet"),
        ({"keep_top": 0.4, "within": ["a", "a"]}, ConfigError, "each column may stand once"),
        ({"keep_top": 0.4, "top": 1}, ValidationError, "top"),
    ],
)
def test_settings_that_cannot_work(settings, error, message):
    """A setting that cannot work, or is not built, is an error that names it."""
    with pytest.raises(error, match=message):
        config(**settings)
