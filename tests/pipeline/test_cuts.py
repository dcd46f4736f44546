"""Where parts are cut: every kept and every removed row into one file, by content alone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import cuts
from pipeline.config import loads
from pipeline.corpus import BadShard
from pipeline.types import Slice

SIZES = st.lists(st.integers(0, 300), max_size=25)


def config(part_bytes=100, **run):
    given = "".join(f", {key}: {value}" for key, value in run.items())
    tiers = "{work: {url: /w}, hot: {url: /h}, cold: {url: /c}}"
    own = f"publish: {{part_bytes: {part_bytes}}}\nrun: {{seed: 1{given}}}"
    return loads(f"name: t\ninput: {{paths: [/in]}}\ntiers: {tiers}\nstages: []\n{own}\n", ())


def sources(kept, removed=(), quarantined=()):
    """One slice for each entry: bytes kept in dataset `train` (10 bytes a row), rows removed, rows quarantined."""
    parts, totals = [], []
    for number, size in enumerate(kept):
        parts.append(Slice(
            shard_id=f"s{number}", url="", size=1, stamp="", first_row=0, rows=100, first_group=0, groups=1, bytes=size,
            input_id=str(number),
        ))  # fmt: skip
        gone, bad = dict(enumerate(removed)).get(number, 0), dict(enumerate(quarantined)).get(number, 0)
        totals.append({
            "datasets": {"train": [size // 10, size]} if size else {},
            "cold": {"rules": [gone, 10 * gone]} if gone else {},
            "quarantined": {"ingest": [bad, 0]} if bad else {},
        })  # fmt: skip
    return cuts.Sources(slices=parts, sidecars=[{} for _ in parts], totals=totals)


@settings(deadline=None)
@given(kept=SIZES)
def test_every_slice_is_in_the_parts_of_one_run(kept):
    """A slice with kept text is in one part, or alone in several that share it; no part of several is too large."""
    tasks = cuts.hot_tasks(config(), "k" * 32, sources(kept), ["text"])
    seen, names = {}, []
    for task in tasks:
        held = [source.ordinal for source in task.work.sources]
        for file in task.work.files:
            names.append(file.path)
            assert file.of == 1 or len(held) == 1
            assert len(held) == 1 or sum(kept[i] for i in held) <= 100
            for i in held:
                seen.setdefault(i, []).append((file.index, file.of))
    for i, size in enumerate(kept):
        count = -(-size // 100) if size > 100 else min(1, size)
        assert sorted(seen.get(i, [])) == [(index, count) for index in range(count)]
    assert sorted(names) == [f"t/data/train-{'k' * 12}/part-{number:05d}.parquet" for number in range(len(names))]


@settings(deadline=None)
@given(kept=SIZES)
def test_parts_do_not_hang_on_workers(kept):
    """Other workers or memory may bundle the files otherwise, and make the same files of the same slices."""

    def files(**run):
        return {
            (file, tuple(source.ordinal for source in task.work.sources))
            for task in cuts.hot_tasks(config(**run), "k" * 32, sources(kept), ["text"]) for file in task.work.files
        }  # fmt: skip

    assert files() == files(workers=9, worker_memory="80B")


@settings(deadline=None)
@given(removed=st.lists(st.integers(0, 30), max_size=12))
def test_removed_rows_are_found_in_the_archive(removed):
    """The archive is in corpus order, and every slice's rows begin where those of the slices before it end."""
    kept = [0] * len(removed)
    tasks, begins = cuts.cold_tasks(config(), "k" * 32, sources(kept, removed), ["text"])
    assert [source.ordinal for task in tasks for source in task.work.sources] == [i for i, n in enumerate(removed) if n]
    for task in tasks:
        at = 0
        for source in task.work.sources:
            assert begins[source.ordinal] == (task.work.files[0].path, at)
            at += removed[source.ordinal]


@pytest.mark.parametrize("kind", ["removed", "quarantined"])
@settings(deadline=None)
@given(rows=st.lists(st.integers(0, 30), max_size=12), most=st.integers(1, 40))
def test_tables_hold_every_row_once(kind, rows, most):
    """Parts of a table are full but the last one, and take every row of every slice once, in order."""
    given = sources([0] * len(rows), **{kind: rows})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuts, "TABLE_ROWS", most)
        tasks = cuts.table_tasks(kind, "results", "k" * 32, given, {}, [])
    taken = []
    for number, task in enumerate(tasks):
        left = task.work.rows
        assert task.work.files[0].path == f"results/{kind}/part-{number:05d}.parquet"
        for source in task.work.sources:
            count = min(left, rows[source.ordinal] - source.skip)
            taken += [(source.ordinal, source.skip + row) for row in range(count)]
            left -= count
        assert left == 0
    assert taken == [(i, row) for i, count in enumerate(rows) for row in range(count)]
    assert [task.work.rows for task in tasks[:-1]] == [most] * (len(tasks) - 1)
    assert tasks


def test_unreadable_shards_are_in_the_key_of_their_table():
    """The table of quarantined rows is another one with another unreadable shard, that of removed rows is not."""
    bad = [BadShard(shard_id="b", url="/b", size=3, message="no footer")]

    def key(kind, shards):
        [task] = cuts.table_tasks(kind, "results", "k" * 32, sources([]), {}, shards)
        return task.cells[0].key

    assert key("quarantined", bad) != key("quarantined", [])
    assert key("removed", bad) == key("removed", [])
