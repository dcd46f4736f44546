"""Any history of edits on one work folder ends where a clean run of its last state ends, and scores no row twice."""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter

import drivers
import harness
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import watch

ORDERS = (
    ("heuristics", "exact", "weigh", "minhash", "select", "difficulty", "band", "curriculum"),
    ("exact", "heuristics", "weigh", "minhash", "select", "difficulty", "band", "curriculum"),
    ("weigh", "exact", "minhash", "heuristics", "select", "difficulty", "band", "curriculum"),
    ("heuristics", "weigh", "difficulty", "band", "select", "exact", "minhash", "curriculum"),
)
KEEPS = ("[weigh.weight desc, bytes desc]", "[bytes desc, weigh.weight desc]", "[source.priority desc, bytes asc]")

CHOICES = {
    "order": (0, 1, 2, 3), "keep": (0, 1, 2), "least": (0.0, 0.5, 0.8), "min_words": (20, 10, 30, 40),
    "threshold": (0.8, 0.7, 0.9), "keep_top": (0.7, 0.4, 0.9, 1.0), "high": (0.9, 0.6, 0.8), "buckets": (3, 1, 2, 5),
    "mix_by": ("[source]", "[language]", "[]"), "priority": (0, 3), "ngram": (5, 3),
}  # fmt: skip
"""Settings and their values, the first one to begin with."""


class History:
    """A corpus and a config that change; `words` says what the last edit was."""

    def __init__(self, root, seed):
        self.root, self.draw = root, random.Random(seed)
        self.shards = 0
        self.settings = {name: choices[0] for name, choices in CHOICES.items()}
        self.write_model()
        for _ in range(3):
            self.add_a_shard()

    # -- edits -------------------------------------------------------------------------------------------------------

    def edit(self):
        """Do one edit drawn by the seed; returns its name."""
        name = self.draw.choice([*CHOICES, *(edit.__name__ for edit in FILE_EDITS)])
        if name in CHOICES:
            self.settings[name] = self.draw.choice([value for value in CHOICES[name] if value != self.settings[name]])
        else:
            getattr(self, name)()
        return name

    def write_model(self):
        """Other bytes under the same name."""
        weights = {letter: round(self.draw.random(), 3) for letter in "thean0123456789"}
        (self.root / "model.json").write_text(json.dumps(weights))

    def files(self):
        return sorted((self.root / "in").glob("*.parquet"))

    def add_a_shard(self):
        self.shards += 1
        name = f"{self.draw.randrange(100):02d}-{self.shards}"
        (self.root / "in").mkdir(exist_ok=True)
        # Plain, so that a text can be changed where it lies.
        table = pa.Table.from_pylist(rows(self.draw, self.shards))
        pq.write_table(table, self.root / "in" / f"{name}.parquet", 15, compression="none", use_dictionary=["source"])

    def remove_a_shard(self):
        if len(self.files()) > 2:
            self.draw.choice(self.files()).unlink()

    def change_in_place(self):
        """Another text of the same length, in a file of the same name and size."""
        path = self.draw.choice(self.files())
        size, table = path.stat().st_size, pq.read_table(path)
        column = table["text"].to_pylist()
        row = self.draw.choice([i for i, text in enumerate(column) if text and len(text) > 100])
        data = path.read_bytes()
        old = column[row].encode()[-40:]
        at = data.find(old)
        assert at > 0
        new = bytes(self.draw.choice(b"abcdefgh") for _ in old)
        time.sleep(0.002)  # the clock of file times ticks slower than we edit
        path.write_bytes(data[:at] + new + data[at + len(old) :])
        assert path.stat().st_size == size

    def touch(self):
        os.utime(self.draw.choice(self.files()))

    # -- runs --------------------------------------------------------------------------------------------------------

    def config(self, tier, *sets):
        s = self.settings
        stages = {
            "heuristics": f"{{stage: heuristics, min_words: {s['min_words']}, rules: [gopher_quality]}}",
            "exact": harness.EXACT,
            "weigh": f"{{stage: 'trial_stages:WEIGH', model: '{self.root}/model.json', least: {s['least']}}}",
            "minhash": f"{{stage: minhash, threshold: {s['threshold']}, bands: 28, rows: 6, ngram: {s['ngram']}, "
            f"keep: {KEEPS[s['keep']]}}}",
            "select": f"{{stage: select, by: weigh.weight, keep_top: {s['keep_top']}, unscorable: keep}}",
            "difficulty": "{stage: difficulty, sample: 1MB}",
            "band": "{stage: select, as: band, by: difficulty.bits_per_byte, "
            f"band: {{low: 0.05, high: {s['high']}}}}}",
            "curriculum": f"{{stage: curriculum, by: difficulty.bits_per_byte, buckets: {s['buckets']}}}",
        }
        more = (
            f"publish: {{part_bytes: 20kB, mix_by: {s['mix_by']}, validation: {{tokens: 400}}}}\n"
            f"sources: {{s1: {{priority: {s['priority']}}}}}\nguards: {{max_source_loss: 1.0}}"
        )
        tiers = [f"tiers.{name}.url='{self.root}/{tier}/{name}'" for name in ("work", "hot", "cold")]
        order = [stages[name] for name in ORDERS[s["order"]]]
        return harness.configure(self.root, *order, more=more, sets=["input.slice_bytes=10kB", *tiers, *sets])


FILE_EDITS = (
    History.write_model, History.add_a_shard, History.remove_a_shard, History.change_in_place, History.touch,
)  # fmt: skip


def rows(draw, number):
    """Texts of their own, copies and near copies of common ones, texts for rules, a null, one that raises."""
    own = [harness.words(draw.randrange(10**6), draw.randrange(12, 40)) for _ in range(25)]
    common = [harness.words(draw.randrange(12), 40) for _ in range(8)]
    near = [text.replace(text.split()[3], f"other{draw.randrange(9)}", 1) for text in common]
    texts = [" the and of ".join(text.split()) for text in [*own, *common, *near]]
    texts += ["too short", None, " the and of ".join(["RAISE", *harness.words(number, 20).split()]), "ZZZ " * 30]
    draw.shuffle(texts)
    made = harness.rows_of(texts, None, 1000 * number)
    return [row | {"source": f"s{i % 3}", "language": draw.choice(["en", "de", None])} for i, row in enumerate(made)]


def follow(root, seed, edits):
    """Run after every edit; the last state must equal a clean run's. No row is scored twice under one score key."""
    history = History(root, seed)
    told = Counter()
    with watch.scoring() as scored:
        report = harness.run(history.config("lived"))
        for _ in range(edits):
            told[history.edit()] += 1
            report = harness.run(history.config("lived"))
    assert set(scored.values()) == {1}
    assert len({label for label, *_ in scored}) == 3
    lived, clean = history.config("lived"), history.config("clean")
    assert harness.differing(harness.outcome(lived, report), harness.outcome(clean, harness.run(clean))) == [], told


def test_a_short_history_leaves_no_trace(tmp_path):
    """Four edits end in the bytes of a clean run."""
    follow(tmp_path, 1, 4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_long_history_leaves_no_trace(tmp_path, seed):
    """Twenty edits end in the bytes of a clean run."""
    follow(tmp_path, 10 + seed, 20)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_edits_between_kills_leave_no_trace(tmp_path, seed):
    """Six drivers killed -9 at random moments with an edit after each: the last state ends like a clean run's."""
    history = History(tmp_path, 30 + seed)
    orphans = []
    for _ in range(6):
        process = drivers.drive(history.config("lived", "run.workers=2"), tmp_path)
        drivers.wait_for(process, tmp_path, len(drivers.files(tmp_path)) + history.draw.randrange(3, 150))
        orphans += psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.kill()
        process.wait()
        history.edit()
    lived, clean = history.config("lived"), history.config("clean")
    report = harness.runs.run(lived)
    drivers.wait_for_end(orphans)
    assert harness.differing(harness.outcome(lived, report), harness.outcome(clean, harness.run(clean))) == []
    assert drivers.clean(lived)
    done = [watch.name_of(cell) for cell in watch.cells(lived)]
    assert len(done) == len(set(done))
