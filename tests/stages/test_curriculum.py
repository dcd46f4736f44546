from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pipeline import settle
from pipeline.errors import ConfigError
from pipeline.keys import canonical
from pipeline.stage import Context, names
from stages.curriculum import STAGE, CurriculumConfig

SCORES = st.sampled_from([-2.0, 0.0, 0.5, 1.0, 1.5, 3.0, 7.25]) | st.floats(-100, 100, width=32)


def rows(scores, tokens=None, language=None):
    size = len(scores)
    return pa.record_batch(
        {
            "difficulty.bits_per_byte": pa.array(scores, pa.float32()),
            "tokens": pa.array(tokens or [1] * size, pa.int64()),
            "bytes": pa.array([4] * size, pa.int64()),
            "language": pa.array(language or ["en"] * size, pa.string()),
        }
    )


def config(**settings):
    return CurriculumConfig(**{"by": "difficulty.bits_per_byte", "min_group": 1, **settings})


def run(settings, batch, pieces=1):
    """Measure the batch in pieces, settle, decide in pieces: (facts, buckets)."""
    starts = [i * len(batch) // pieces for i in range(pieces + 1)]
    cut = [batch.slice(start, end - start) for start, end in pairwise(starts)]
    count = STAGE.measure(settings, Context())
    tables = [count(piece.select(names(STAGE.measure_reads, settings))) for piece in cut]
    facts = STAGE.settle(settings, Context(), settle.add(tables, STAGE.count_keys))
    reads = names(STAGE.decide_reads, settings)
    decided = [STAGE.decide(settings, Context(facts=facts), piece.select(reads)) for piece in cut]
    table = pa.Table.from_batches(decided)
    assert table.schema.equals(STAGE.decide_writes)
    return facts, table["bucket"].to_pylist()


@given(st.lists(st.tuples(SCORES, st.integers(1, 9)), min_size=1, max_size=40), st.integers(1, 12), st.integers(1, 6))
def test_buckets_are_quantiles(documents, number, pieces):
    """Buckets follow the scores, ties stay together, and the first k buckets hold k shares of the tokens and no more
    than the value at which they are reached."""
    scores, tokens = (list(column) for column in zip(*documents, strict=True))
    facts, buckets = run(config(buckets=number), rows(scores, tokens), pieces)
    by_score = sorted(zip(scores, buckets, tokens, strict=True))
    assert [bucket for _, bucket, _ in by_score] == sorted(buckets)
    assert len({(score, bucket) for score, bucket, _ in by_score}) == len(set(scores))
    total = sum(tokens)
    for k in range(1, number):
        below = [(score, t) for score, bucket, t in by_score if bucket < k]
        assert sum(t for _, t in below) * number >= k * total
        edge = facts["groups"]["[]"]["edges"][k - 1]
        assert all(score < edge for score, _ in below)
        assert all(score >= edge for score, bucket, _ in by_score if bucket >= k)
    assert 0 <= min(buckets) <= max(buckets) < number


@given(st.lists(st.none() | SCORES, min_size=1, max_size=40), st.integers(1, 8))
def test_batches_do_not_matter(scores, pieces):
    """Facts and buckets are the same however the rows are cut into batches."""
    batch = rows(scores, language=[("en", "de", None)[i % 3] for i in range(len(scores))])
    settings = config(within=["language"], min_group=5)
    facts, buckets = run(settings, batch)
    assert run(settings, batch, pieces) == (facts, buckets)
    canonical(facts)


@given(st.lists(st.none() | SCORES, min_size=1, max_size=40), st.integers(1, 12))
def test_facts_count_what_decide_does(scores, number):
    """Documents and tokens by bucket in the facts are those of the rows that got the bucket."""
    tokens = [i + 1 for i in range(len(scores))]
    facts, buckets = run(config(buckets=number), rows(scores, tokens))
    (fact,) = facts["groups"].values()
    placed = [bucket for bucket in buckets if bucket >= 0]
    assert fact["docs"] == np.bincount(placed, minlength=number).tolist()
    assert fact["tokens"] == [sum(t for t, b in zip(tokens, buckets, strict=True) if b == k) for k in range(number)]
    assert fact["unscorable_docs"] == buckets.count(-1)
    assert sum(fact["tokens"]) + fact["unscorable_tokens"] == sum(tokens)


def test_one_score_for_all():
    """1000 rows of the same score are one bucket; the others are empty and valid."""
    facts, buckets = run(config(), rows([2.5] * 1000))
    assert buckets == [0] * 1000
    assert facts["groups"]["[]"]["docs"] == [1000, 0, 0, 0, 0]


def test_fewer_scores_than_buckets():
    """Three distinct scores in ten buckets are three buckets, spread by their weight."""
    facts, buckets = run(config(buckets=10), rows([1.0, 2.0, 3.0] * 100))
    assert buckets == [0, 3, 6] * 100
    edges = facts["groups"]["[]"]["edges"]
    assert len(edges) == 9
    assert edges == sorted(edges)


def test_even_weights_make_even_buckets():
    """Ten distinct scores of one weight make five buckets of two, by tokens or by documents."""
    scores = [float(i) for i in range(10)]
    assert run(config(), rows(scores))[1] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    heavy = rows(scores, tokens=[91, 1, 1, 1, 1, 1, 1, 1, 1, 1])
    assert run(config(buckets=2), heavy)[1] == [0] + [1] * 9
    assert run(config(buckets=2, weight="documents"), heavy)[1] == [0] * 5 + [1] * 5


def test_no_score_is_no_bucket():
    """Null, NaN and infinity get bucket -1, and a group without any score has no edges."""
    facts, buckets = run(config(), rows([None, float("nan"), float("inf"), 1.0]))
    assert buckets == [-1, -1, -1, 0]
    facts, buckets = run(config(), rows([None, None]))
    assert buckets == [-1, -1]
    assert facts["groups"]["[]"]["edges"] == []


def test_groups_have_edges_of_their_own():
    """Each group is cut by its own edges; a small one borrows its parent's and says so."""
    scores = [*range(10), *range(100, 110), 5]
    language = ["en"] * 10 + ["de"] * 10 + ["fr"]
    facts, buckets = run(config(buckets=2, within=["language"], min_group=5), rows(scores, language=language))
    assert buckets == ([0] * 5 + [1] * 5) * 2 + [0]
    assert facts["groups"]['["fr"]']["from"] == {}
    assert facts["groups"]['["en"]']["from"] is None


def test_plan_settings_touch_no_row():
    """The settings for phases enter neither what is counted nor the buckets."""
    batch = rows([float(i) for i in range(10)])
    planned = config(warmup=0.3, anneal=0.2, warmup_buckets=[0], anneal_buckets=[2, 3])
    assert run(planned, batch) == run(config(), batch)
    changed = {name for name in CurriculumConfig.model_fields if getattr(planned, name) != getattr(config(), name)}
    assert changed == set(STAGE.decide_settings)


def test_quality_is_cut_at_its_logit():
    """Buckets of quality.score are cut where scores do not crowd."""
    assert names(STAGE.decide_reads, config(by="quality.score")) == ("quality.logit",)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"buckets": 0}, ValidationError, "buckets"),
        ({"warmup": 0.6, "anneal": 0.4}, ConfigError, "warmup: got 0.6, but it must leave room"),
        ({"warmup_buckets": []}, ConfigError, "warmup_buckets"),
        ({"anneal_buckets": [5]}, ConfigError, "anneal_buckets: got .* from 0 to 4"),
        ({"within": ["a", "a"]}, ConfigError, "each column may stand once"),
        ({"bucket": 3}, ValidationError, "bucket"),
    ],
)
def test_settings_that_cannot_work(settings, error, message):
    """A setting that cannot work is an error that names it."""
    with pytest.raises(error, match=message):
        config(**settings)
