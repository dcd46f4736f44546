"""What a change after a run redoes, and that the end is the one of a clean run."""

from __future__ import annotations

import random
import shutil
from collections import Counter

import harness
import pytest
import watch

from pipeline.errors import ContractError
from pipeline.opened import prepare

STAGES = (
    "{stage: heuristics, min_words: 20, rules: [gopher_quality]}", harness.EXACT,
    "{stage: minhash, threshold: 0.8, bands: 28, rows: 9}",
    "{stage: select, by: heuristics.words, keep_top: 0.7, weight: documents}", "{stage: difficulty, sample: 1MB}",
    "{stage: curriculum, by: difficulty.bits_per_byte, buckets: 3}",
)  # fmt: skip
FROM_SELECT_ON = ("select.measure", "select.settle", "select.map", "difficulty.map", "curriculum.measure",
                  "curriculum.settle", "curriculum.map", "split.measure", "split.settle", "split.map",
                  "account.measure", "account.settle")  # fmt: skip


def shard(number):
    """50 texts of their own in several lengths, two too short ones, copies and near copies of common texts."""
    draw = random.Random(number)
    own = [harness.words(1000 * number + i, 26 + i % 9) for i in range(50)]
    common = [harness.words(seed, 40) for seed in range(5)]
    near = [text.replace(text.split()[number], f"changed{number}", 1) for text in common]
    texts = [" the and of ".join(text.split()) for text in [*own, *common, *near]] + ["too short", "so short"]
    draw.shuffle(texts)
    return harness.rows_of(texts, f"s{number % 2}", 100 * number)


def configure(root, *sets):
    tier = "run" if not sets or not sets[0].startswith("clean") else "clean"
    tiers = [f"tiers.{name}.url='{root}/{tier}/{name}'" for name in ("work", "hot", "cold")]
    return harness.configure(root, *STAGES, more="publish: {part_bytes: 20kB, mix_by: [source]}",
                             sets=["input.slice_bytes=15kB", *tiers, *sets[tier == "clean":]])  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run, and a copy of it that stays as it is."""
    root = tmp_path_factory.mktemp("reuse")
    harness.write_shards(root / "in", [shard(number) for number in range(3)], row_group_size=20)
    harness.run(configure(root))
    shutil.copytree(root, root / "kept")
    return root


@pytest.fixture
def root(finished):
    """The finished run as it was: at its own place, since a corpus is another one elsewhere."""
    for name in ("in", "run", "clean"):
        shutil.rmtree(finished / name, ignore_errors=True)
    shutil.copytree(finished / "kept", finished, dirs_exist_ok=True)
    return finished


def clean(root, *sets):
    """The outcome of the same config in fresh folders."""
    config = configure(root, "clean", *sets)
    return harness.outcome(config, harness.run(config))


def again(root, *sets):
    """Run with the changes; returns the cells it computed, what it read, the rows it scored. Ends like a clean run."""
    config = configure(root, *sets)
    with watch.computing(config) as computed, watch.reading() as read, watch.scoring() as scored:
        report = harness.run(config)
    assert harness.differing(harness.outcome(config, report), clean(root, *sets)) == []
    return computed, read, scored


def slices(root):
    config = configure(root)
    return list(prepare(config).corpus.slices)


def test_nothing_changed_nothing_done(root):
    """A second run computes no cell, reads no text, and leaves the manifest and every published file as they were."""
    config = configure(root)
    before = {path: path.stat().st_mtime_ns for path in (root / "run").glob("[hc]*/**/*") if path.is_file()}
    with watch.computing(config) as computed, watch.reading() as read:
        report = harness.run(config)
    assert computed == {}
    assert read == {"stages": [], "publish": []}
    assert {stage["cells_computed"] for stage in report["stages"]} == {0}
    after = {path: path.stat().st_mtime_ns for path in (root / "run").glob("[hc]*/**/*") if path.is_file()}
    assert after == before
    assert any(path.name == "manifest.json" for path in after)


def test_keeping_less_reads_no_text(root):
    """A lower select.keep_top decides anew on numbers; text is read to publish only, and nothing is scored."""
    computed, read, scored = again(root, "select.keep_top=0.5")
    count = len(slices(root))
    assert computed == {name: 1 if name.endswith("settle") else count for name in FROM_SELECT_ON}
    assert read["stages"] == []
    assert read["publish"]
    assert scored == {}


def test_keeping_more_scores_what_is_new(root):
    """A higher select.keep_top scores the rows that come alive again, and no other."""
    alive = docs(root, "difficulty")
    computed, _read, scored = again(root, "select.keep_top=0.9")
    assert {label for label, *_ in scored} == {"difficulty"}
    assert set(scored.values()) == {1}
    assert len(scored) == docs(root, "difficulty", "select.keep_top=0.9") - alive > 0
    assert "difficulty.measure" not in computed


def docs(root, label, *sets):
    """Documents that enter a stage in a run that is done already."""
    report = harness.run(configure(root, *sets))
    return next(stage["in"]["docs"] for stage in report["stages"] if stage["label"] == label)


def test_a_threshold_of_a_rule_scores_nothing_it_has(root):
    """A heuristics threshold decides anew on the measures of every row."""
    computed, _, scored = again(root, "heuristics.min_words=30")
    assert computed["heuristics.map"] == len(slices(root))
    assert computed["ingest.map"] == 0
    assert {label for label, *_ in scored} <= {"difficulty"}


@pytest.mark.parametrize(
    ("change", "phases"),
    [
        ("minhash.threshold=0.9", {"resolve", "scatter"}),
        ("minhash.keep=[bytes asc]", {"payload", "resolve", "scatter"}),
        ("minhash.ngram=6", {"emit", "join", "merge", "payload", "resolve", "scatter"}),
    ],
)
def test_duplicates_redo_from_the_phase_that_changed(root, change, phases):
    """With bands and rows set by hand a threshold redoes resolution and scatter, a keep rule the payload as well."""
    computed, _, _ = again(root, change)
    assert {name.partition(".")[2] for name in computed if name.startswith("minhash.")} == phases
    assert not {"ingest.map", "heuristics.map", "exact.scatter"} & set(computed)


def test_without_the_exchange_the_end_is_the_same(root):
    """Exchange files that were not kept are made again where they are needed, and the report misses nothing."""
    for sets in (["minhash.threshold=0.9"], ["minhash.threshold=0.9", "select.keep_top=0.8"], []):
        again(root, "run.keep_exchange=false", *sets)
        assert not list((root / "run" / "work" / "test" / "exchange").glob("minhash-*/emit/*"))
        shutil.rmtree(root / "clean")


def test_a_new_shard_emits_alone(root):
    """A shard that is added, first in order, is alone in being ingested, scored by rules and emitted."""
    before = len(slices(root))
    harness.write_shards(root / "more", [shard(8)], row_group_size=20)
    (root / "more" / "00.parquet").rename(root / "in" / "0-first.parquet")
    computed, read, _ = again(root)
    new = len(slices(root)) - before
    alone = ("ingest.map", "heuristics.map", "exact.emit")
    assert Counter({name: computed[name] for name in alone}) == dict.fromkeys(alone, new)
    assert new > 1
    whole_rows = {shard for shard, columns in read["stages"] if {"id", "source"} <= set(columns)}
    assert whole_rows == {"0-first.parquet"}


def test_a_shard_that_goes_takes_its_rows(root):
    """Without a shard nothing is ingested or scored by rules again, and no row of it is left."""
    (root / "in" / "00.parquet").unlink()
    computed, _, scored = again(root)
    assert not {"ingest.map", "heuristics.map", "exact.emit"} & set(computed)
    assert {label for label, *_ in scored} == {"difficulty"}
    config = configure(root)
    assert min(int(row["id"][1:]) for row in harness.hot_rows(config)) >= 100


def test_coming_back_finds_everything(root):
    """A change that is taken back computes nothing, and the manifest of before becomes the newest again."""
    first = harness.newest_manifest(configure(root))
    harness.run(configure(root, "select.keep_top=0.5"))
    computed, read, _ = again(root)
    assert computed == {}
    assert read["stages"] == []
    newest = harness.newest_manifest(configure(root))
    assert newest["id"] == first["id"]
    assert newest["version"] == first["version"] + 2


def test_a_guard_is_accepted_without_new_work(root):
    """A guard stops before anything is published; accepted by the name it told, the run goes on from what is done."""
    before = harness.newest_manifest(configure(root))
    strict = ("guards.max_source_loss=0.01", "guards.min_docs=10")
    with watch.computing(configure(root)) as computed, pytest.raises(ContractError, match=r"guards\.accept") as stopped:
        harness.run(configure(root, *strict))
    assert computed == {}
    assert all(name in stopped.value.message for name in ("s0", "s1"))
    assert harness.newest_manifest(configure(root)) == before
    computed, _, _ = again(root, *strict, "guards.accept=[s0, s1]")
    assert computed == {}


def test_a_new_hot_tier_is_filled_without_new_work(root):
    """Another place to publish to gets the same corpus under the same id, and no cell is computed."""
    first = harness.newest_manifest(configure(root))
    config = configure(root, f"tiers.hot.url='{root}/run/other'")
    with watch.computing(config) as computed:
        harness.run(config)
    assert computed == {}
    assert harness.newest_manifest(config)["id"] == first["id"]
