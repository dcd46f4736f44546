"""The same bytes whatever runs the work and in whatever order."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import harness
import pytest

from pipeline import run as runs
from pipeline.executors import local

STAGES = (
    "{stage: heuristics, min_words: 20, rules: [gopher_quality]}", harness.EXACT, harness.NEAR,
    "{stage: difficulty, sample: 1MB}", "{stage: select, by: difficulty.bits_per_byte, keep_bottom: 0.9}",
    "{stage: curriculum, by: difficulty.bits_per_byte, buckets: 3}",
)  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    root = tmp_path_factory.mktemp("executors")
    draw = random.Random(7)
    texts = [" the and of ".join(harness.words(seed, 30).split()) for seed in range(240)]
    rows = [texts[draw.randrange(len(texts))] for _ in range(400)]
    near = [text.replace(" the ", " a ", 1) for text in rows[:60]]
    shards = [harness.rows_of(part, f"s{i % 2}", 100 * i) for i, part in enumerate([rows[:150], rows[150:], near])]
    harness.write_shards(root / "in", shards, row_group_size=25)
    return root


def outcome_of(corpus, tmp_path, *sets):
    """Run the corpus with tiers of its own."""
    tiers = [f"tiers.{tier}.url='{tmp_path}/{tier}'" for tier in ("work", "hot", "cold")]
    config = harness.configure(corpus, *STAGES, more="publish: {part_bytes: 20kB, validation: {tokens: 500}}",
                               sets=["input.slice_bytes=20kB", *tiers, *sets])  # fmt: skip
    return harness.outcome(config, harness.run(config))


@pytest.fixture(scope="module")
def expected(corpus, tmp_path_factory):
    return outcome_of(corpus, tmp_path_factory.mktemp("expected"))


@pytest.mark.parametrize(
    "sets",
    [("run.workers=1",), ("run.workers=4",), ("run.partitions=64",), ("run.partitions=8", "run.keep_exchange=false")],
)
def test_workers_and_partitions_leave_no_trace(corpus, expected, tmp_path, sets):
    """Any number of processes and partitions gives the bytes of one process."""
    assert harness.differing(outcome_of(corpus, tmp_path, *sets), expected) == []


def test_the_order_of_work_leaves_no_trace(corpus, expected, tmp_path, monkeypatch):
    """Tasks done backwards or shuffled give the same bytes."""
    for seed in (None, 3):
        monkeypatch.setattr(runs, "executor", lambda _, seed=seed: _reordered(seed))
        assert harness.differing(outcome_of(corpus, tmp_path / str(seed)), expected) == []


@contextmanager
def _reordered(seed: int | None) -> Iterator[local.Run]:
    with local.start(0) as run:

        def shuffled(job: object, tasks: Iterable[object]) -> Iterator[object]:
            order = list(tasks)[::-1]
            if seed is not None:
                random.Random(seed).shuffle(order)
            return run(job, order)

        yield shuffled


@pytest.mark.ray
def test_ray_leaves_no_trace(corpus, expected, tmp_path, ray_session):
    """A Ray cluster gives the bytes of one process."""
    assert harness.differing(outcome_of(corpus, tmp_path, "run.executor=ray"), expected) == []
