"""What invalidates what: each change alone redoes the cells that depend on it and no other, and `plan` says so."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import Counter

import harness
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import watch

from pipeline.commands.outlook import outlook
from pipeline.opened import prepare

STAGES = (
    "{stage: heuristics, min_words: 20, rules: [gopher_quality], min_stop_words: null}", harness.EXACT,
    "{stage: 'trial_stages:WEIGH', model: 'MODEL', least: 0.01}",
    "{stage: minhash, threshold: 0.8, bands: 28, rows: 9, keep: [weigh.weight desc, bytes desc]}",
    "{stage: select, by: weigh.weight, keep_top: 0.8, weight: documents}",
    "{stage: curriculum, by: weigh.weight, buckets: 3}",
)  # fmt: skip
OWN = ("ingest.map", "heuristics.map", "exact.emit")
"""What the cells of a shard are until rows of other shards meet them."""


def texts(number):
    common = [harness.words(seed, 45) for seed in range(4)]
    return [harness.words(100 * number + i, 24 + i) for i in range(20)] + common + ["short", None]


def write(path, number):
    """A shard of two slices, plain, so that a text can be changed where it lies."""
    table = pa.Table.from_pylist(harness.rows_of(texts(number), f"s{number}", 100 * number))
    pq.write_table(table, path, 13, compression="none", use_dictionary=["source"])


def configure(root, *sets, tier="run", work="work"):
    stages = [stage.replace("MODEL", f"{root}/model.json") for stage in STAGES]
    tiers = [f"tiers.{name}.url='{root}/{tier}/{name}'" for name in ("hot", "cold")]
    return harness.configure(root, *stages, sets=["input.slice_bytes=2kB", f"tiers.work.url='{root}/{tier}/{work}'",
                                                  *tiers, *sets])  # fmt: skip


def write_model(root, weight):
    (root / "model.json").write_text(json.dumps({"w": weight, "x": 0.5, "0": 1.0}))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run of three shards, each of several slices, and a copy of it that stays as it is."""
    root = tmp_path_factory.mktemp("invalidation")
    (root / "in").mkdir()
    for number in range(3):
        write(root / "in" / f"{number:02d}.parquet", number)
    write_model(root, 0.25)
    harness.run(configure(root))
    shutil.copytree(root, root / "kept")
    return root


@pytest.fixture
def root(finished):
    """The finished run as it was, at its own place."""
    for name in ("in", "run", "clean"):
        shutil.rmtree(finished / name, ignore_errors=True)
    shutil.copytree(finished / "kept", finished, dirs_exist_ok=True)
    return finished


def redone(config, why):
    """Run; returns the cells that it computed, after `plan` has foretold their numbers and given `why` as a reason."""
    told = {stage["label"]: stage for stage in outlook(config)["stages"]}
    with watch.computing(config) as computed:
        report = harness.run(config)
    assert {stage["label"]: stage["cells_computed"] for stage in report["stages"]} == {
        label: total for label, total in by_label(computed).items() if label not in ("split", "account")
    }
    known = {label: stage["redo"] for label, stage in told.items() if stage["redo"] is not None and label != "publish"}
    assert known == {label: by_label(computed)[label] for label in known}
    reasons = [stage["why"] for label, stage in told.items() if stage["why"] != "nothing to do" and label != "publish"]
    assert not reasons if why is None else why in reasons[0], reasons
    return computed, report


def by_label(computed):
    labels = ("ingest", "heuristics", "exact", "weigh", "minhash", "select", "curriculum", "split", "account")
    return {label: sum(n for name, n in computed.items() if name.partition(".")[0] == label) for label in labels}


def everything_from(config, first):
    """How many cells there are of `first` and of all phases after it."""
    opened = prepare(config)
    names = [f"{phase.label}.{phase.name}" for phase in opened.chain]
    count = {"slices": len(opened.corpus.slices)}
    return Counter({
        name: count.get(phase.over, 1) for name, phase in zip(names, opened.chain, strict=True)
        if names.index(name) >= names.index(first)
    })  # fmt: skip


def slices_of(config, shard):
    return sum(part.shard_id == shard for part in prepare(config).corpus.slices)


def ends_clean(root, config, report, *sets):
    clean = configure(root, *sets, tier="clean")
    assert harness.differing(harness.outcome(config, report), harness.outcome(clean, harness.run(clean))) == []


NOT_AT_ALL = ["run.workers=2", "currency=EUR", "tiers.hot.prices={price_per_gb_month: 0.1}", "run.keep_exchange=false",
              "run.partitions=4"]  # fmt: skip


@pytest.mark.parametrize("change", [None, *NOT_AT_ALL])
def test_what_changes_no_result_redoes_nothing(root, change):
    """The same again, with other workers, partitions or prices: no cell, no file, no version."""
    before = harness.newest_manifest(configure(root))
    computed, _ = redone(configure(root, *filter(None, [change])), None)
    assert computed == {}
    assert harness.newest_manifest(configure(root)) == before


def test_a_work_folder_can_move(root):
    """Moved with its content, a work folder is as good as before."""
    (root / "run" / "work").rename(root / "run" / "elsewhere")
    config = configure(root, work="elsewhere")
    computed, report = redone(config, None)
    assert computed == {}
    ends_clean(root, config, report)


SETTINGS = {
    "heuristics.min_words=30": ("heuristics.map", "min_words: 20 -> 30"),
    "exact.keep=[bytes asc]": ("exact.emit", "keep:"),
    "weigh.least=0.3": ("weigh.map", "least: 0.01 -> 0.3"),
    "minhash.threshold=0.9": ("minhash.resolve", "threshold: 0.8 -> 0.9"),
    "minhash.ngram=4": ("minhash.emit", "ngram: 5 -> 4"),
    "minhash.keep=[bytes asc]": ("minhash.payload", "keep:"),
    "select.keep_top=0.5": ("select.measure", "keep_top: 0.8 -> 0.5"),
    "curriculum.buckets=2": ("curriculum.measure", "buckets: 3 -> 2"),
    "publish.mix_by=[source]": ("split.measure", "mix_by:"),
}


@pytest.mark.parametrize("change", SETTINGS)
def test_a_setting_redoes_from_its_phase_on(root, change):
    """A threshold, n, a keep rule, a cut, buckets: all cells from the first phase that knows of it, and none before."""
    first, why = SETTINGS[change]
    config = configure(root, change)
    computed, report = redone(config, why)
    assert computed == everything_from(config, first)
    ends_clean(root, config, report, change)


def test_a_ratio_of_tokens_redoes_what_counts_tokens(root):
    """Bytes a token, in place of a tokenizer's revision: buckets and what follows, not the cut by documents."""
    change = "training.bytes_per_token=3.0"
    config = configure(root, change)
    computed, report = redone(config, "bytes_per_token")
    assert computed == everything_from(config, "curriculum.measure")
    ends_clean(root, config, report, change)


def test_other_model_bytes_redo_their_stage(root):
    """Other bytes under the same name score everything anew from that stage on."""
    write_model(root, 0.75)
    config = configure(root)
    with watch.scoring() as scored:
        computed, report = redone(config, "model changed")
    assert computed == everything_from(config, "weigh.map")
    assert {label for label, *_ in scored} == {"weigh"}
    ends_clean(root, config, report)
    write_model(root, 0.25)


def from_the_meeting_on(config, shard=""):
    """All cells from the first meeting of rows on, and before it those of one shard."""
    own = dict.fromkeys(OWN, slices_of(config, shard))
    return +Counter({**everything_from(config, "ingest.map"), **own})


def test_bytes_changed_in_place_redo_their_shard(root):
    """Other bytes of the same size under the same name: that shard, and what follows the first meeting of rows."""
    path = root / "in" / "01.parquet"
    data, old = path.read_bytes(), texts(1)[3].encode()
    assert data.count(old) == 1
    time.sleep(0.002)  # the clock of file times ticks slower than we write
    path.write_bytes(data.replace(old, old[:-6] + b"w9999x"))
    assert path.stat().st_size == len(data)
    config = configure(root)
    computed, report = redone(config, "1 shard changed (01.parquet)")
    assert computed == from_the_meeting_on(config, "01.parquet")
    ends_clean(root, config, report)


def test_an_added_shard_redoes_only_its_own(root):
    """A new shard: its own cells, and what follows the first meeting of rows."""
    write(root / "in" / "00-b.parquet", 9)
    config = configure(root)
    computed, report = redone(config, "1 shard new (00-b.parquet)")
    assert computed == from_the_meeting_on(config, "00-b.parquet")
    ends_clean(root, config, report)


def test_a_removed_shard_redoes_none_of_the_others(root):
    """One shard less: nothing before the first meeting of rows."""
    (root / "in" / "01.parquet").unlink()
    config = configure(root)
    computed, report = redone(config, "1 shard gone (01.parquet)")
    assert computed == from_the_meeting_on(config)
    ends_clean(root, config, report)


def test_a_touched_shard_is_read_again_and_published_as_before(root):
    """A new modification time redoes the shard's cells; with the same bytes nothing new is published."""
    os.utime(root / "in" / "02.parquet")
    before = harness.newest_manifest(configure(root))
    computed, _ = redone(configure(root), "1 shard changed (02.parquet)")
    assert computed == from_the_meeting_on(configure(root), "02.parquet")
    assert harness.newest_manifest(configure(root)) == before


def test_damaged_work_is_done_again_alone(root):
    """A sidecar cut short, one lost, exchange files nobody needs lost: two cells, a warning, the same end."""
    work = root / "run" / "work" / "test"
    config = configure(root)
    sidecars = sorted(work.glob("sidecars/heuristics-*/*/*.parquet"))
    sidecars[0].write_bytes(sidecars[0].read_bytes()[:-9])
    sidecars[1].unlink()
    for unneeded in ("exact-*/emit", "account-*/measure", "curriculum-*/measure"):
        min(work.glob(f"exchange/{unneeded}/*/*")).unlink()
    computed, report = redone(config, "missing or damaged files: 2")
    assert computed == {"heuristics.map": 2}
    assert [warning for warning in report["warnings"] if sidecars[0].name in warning]
    ends_clean(root, config, report)
