import itertools

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

from pipeline.errors import ConfigError
from stages.minhash import STAGE, MinHash, report, warnings
from tests.stages.text.one_block import one_block
from tests.stages.text.phases import address, corpus, drive


def run(texts, config=None, **columns):
    """(removed rows, decisions) of one slice of texts."""
    decisions, _ = drive(STAGE, config or MinHash(), [corpus(texts, **columns)])
    return {row for row, record in decisions.items() if record["reason"]}, decisions


def shingles(text, n=5):
    words = text.split()
    return {tuple(words[i : i + n]) for i in range(max(1, len(words) - n + 1))}


def words(rng, count, prefix="w"):
    return [f"{prefix}{i}" for i in rng.integers(0, 10**6, count)]


@pytest.mark.parametrize("order", ["forward", "reversed", "shuffled"])
def test_a_chain_of_neighbours_is_not_one_duplicate(order):
    """Every removed text is similar to the kept text it is charged to; no two similar texts stay; others all stay."""
    rng = np.random.default_rng(2)
    chain = [" ".join(f"w{j}" for j in range(8 * i, 8 * i + 104)) for i in range(20)]
    texts = chain + [" ".join(words(rng, 90, "u")) for _ in range(50)]
    place = {"forward": range(70), "reversed": range(69, -1, -1), "shuffled": rng.permutation(70).tolist()}[order]
    removed, decisions = run([texts[i] for i in place])
    kept = [i for row, i in enumerate(place) if row not in removed]
    of_chain = sorted(i for i in kept if i < 20)
    assert len(kept) - len(of_chain) == 50
    assert 7 <= len(of_chain) <= 10
    assert all(b - a > 1 for a, b in itertools.pairwise(of_chain))
    for row in removed:
        record = decisions[row]
        a, b = shingles(texts[place[row]]), shingles(texts[place[record["charged"]]])
        assert record["charged"] not in removed
        assert (record["inter"], record["union"]) == (len(a & b), len(a | b))
        assert record["similarity"] == record["score"] == record["inter"] / record["union"]
        assert record["similarity"] >= record["threshold"] == 0.8


@pytest.mark.parametrize("n", [3, 5, 13])
def test_short_texts_are_duplicates_only_of_themselves(n):
    """A text of fewer than n words is one shingle: one copy of each distinct text stays."""
    around = [" ".join(f"word{i}" for i in range(length)) for length in {4, n, n + 1}]
    texts = ["cat", "dog", "the dog barked", "cat", *around, *around]
    removed, decisions = run(texts, MinHash(ngram=n))
    assert sorted(texts[row] for row in removed) == sorted(["cat", *around])
    assert {texts[row] for row in range(len(texts)) if row not in removed} == set(texts)
    assert {decisions[row]["similarity"] for row in removed} == {1.0}


def test_a_template_with_scattered_own_words_is_no_duplicate():
    """400 shared words and 40 own ones in one run are duplicates at 0.8 (J = 0.83); scattered, they are not."""
    rng = np.random.default_rng(4)
    shared = words(rng, 400)
    in_a_run = [" ".join([*shared, *words(rng, 40, f"a{i}x")]) for i in range(60)]
    scattered = []
    for i in range(60):
        own = list(shared)
        for place, word in zip(range(10, 400, 10), words(rng, 40, f"b{i}x"), strict=False):
            own[place] = word
        scattered.append(" ".join(own))
    assert len(run(in_a_run)[0]) == 59
    assert run(scattered)[0] == set()


def near_copies(rng, count):
    """Texts in families of near copies around the threshold, and singles."""
    heads = [words(rng, int(rng.integers(20, 200))) for _ in range(12)]
    texts = []
    for _ in range(count):
        text = list(heads[rng.integers(12)])
        for _ in range(rng.integers(0, 6)):
            text[rng.integers(len(text))] = f"own{rng.integers(10**6)}"
        texts.append(" ".join(text))
    return texts


def test_order_batches_and_partitions_do_not_matter():
    """One set of kept texts and one of evidence for any slices, batches, partitions, orders of records and rows."""
    rng = np.random.default_rng(5)
    whole = corpus(near_copies(rng, 300), rank=pa.array(rng.integers(0, 5, 300)))
    seen, counted = set(), set()
    for trial, parts in enumerate((1, 1, 3, 8, 64)):
        table = whole.take(pa.array(rng.permutation(300))) if trial else whole
        slices = [table.slice(i, 300 // parts + 1) for i in range(0, 300, 300 // parts + 1)]
        config = MinHash(keep=("rank desc", "bytes asc"), chunk=(20_000, 7, 20_000, 50, 1)[trial])
        decisions, facts = drive(STAGE, config, slices, partitions=parts, batch=23, seed=trial)
        text = {address(o, i): t.as_py() for o, part in enumerate(slices) for i, t in enumerate(part["text"])}
        gone = {row: record for row, record in decisions.items() if record["reason"]}
        evidence = [(text[row], text[r["charged"]], r["inter"], r["union"]) for row, r in gone.items()]
        kept = sorted(value for row, value in text.items() if row not in gone)
        seen.add((tuple(kept), tuple(sorted(evidence))))
        counted.add((facts["candidates"], facts["components"], facts["largest_component"], facts["undecided"]))
    assert len(seen) == 1
    assert len(counted) == 1


def test_blocking_loses_next_to_nothing_of_the_exact_answer():
    """On families of near copies the stage removes what the same rule removes without LSH."""
    rng = np.random.default_rng(6)
    texts = near_copies(rng, 400)
    table = corpus(texts)
    best = sorted(range(400), key=lambda i: (-table["bytes"][i].as_py(), table["content_hash"][i].as_py(), i))
    ideal = one_block(pa.array([texts[i] for i in best], pa.large_string()), 5, 0.8)
    removed, decisions = run(texts)
    expected = {best[i]: best[c] for i, c in enumerate(ideal.charge) if c >= 0}
    assert {row: decisions[row]["charged"] for row in removed} == expected
    assert len(expected) > 100


def test_the_threshold_itself_is_a_duplicate_and_one_shingle_less_is_not():
    """J exactly 0.8 goes, decided by integers; with one shingle less in common it stays."""
    base = [f"w{i}" for i in range(94)]  # 90 shingles
    for own, similar in ((10, True), (11, False)):  # 80 shared of 100 or 79 of 101, all lost at the end
        other = base[: 94 - own] + [f"x{i}" for i in range(own)]
        removed, decisions = run([" ".join(base) + " ", " ".join(other)], MinHash(bands=256, rows=1))
        assert bool(removed) == similar
        assert all(record["similarity"] == 0.8 for row, record in decisions.items() if row in removed)


def test_scopes_never_meet():
    """within: copies in different sources both stay, and null is a source like another."""
    text = " ".join(f"w{i}" for i in range(60))
    source = pa.array(["a", "b", None, "a", None], pa.string())
    removed, decisions = run([text + " x" * i for i in range(5)], MinHash(within=("source",)), source=source)
    assert removed == {0, 2}
    assert {row: decisions[row]["charged"] for row in removed} == {0: 3, 2: 4}


def test_the_keep_order_decides_who_stays():
    """Each rule keeps the row it names, and reversing it keeps another one."""
    text = " ".join(f"w{i}" for i in range(80))
    texts = [text + " tail" * i for i in range(5)]
    rank = pa.array([3.0, 1.0, None, 9.0, 4.0])
    for rule, kept in (("bytes desc", 4), ("bytes asc", 0), ("rank desc", 3), ("rank asc", 1)):
        removed, decisions = run(texts, MinHash(keep=(rule,)), rank=rank)
        assert removed == set(range(5)) - {kept}
        assert {record["group_size"] for record in decisions.values()} == {5}


def test_unicode_texts_are_compared_by_their_characters():
    """Scripts without blanks have near copies as well: one token per character."""
    rng = np.random.default_rng(8)
    page = "".join(map(chr, rng.integers(0x4E00, 0x9000, 400)))
    other = "".join(map(chr, rng.integers(0x4E00, 0x9000, 400)))
    removed, decisions = run([page, page[:200] + "变" + page[200:], other, "\u200b".join(page)])
    assert len(removed) == 2
    assert {decisions[row]["charged"] for row in removed} == {3}
    assert 2 not in decisions


def test_a_text_without_words_is_never_a_candidate():
    """A text of invisible characters only has no shingle, and so meets nobody."""
    removed, decisions = run(["\u200b", "\u200b\u200b", "a b c"])
    assert removed == set()
    assert decisions == {}


def test_the_work_limit_errs_to_keeping_and_is_counted():
    """Documents beyond the limit stay and are counted as undecided; without a limit they go."""
    rng = np.random.default_rng(9)
    shared = words(rng, 400)
    texts = [" ".join([*shared, *words(rng, 100, f"a{i}x")]) for i in range(60)]
    copies = [text + " end" for text in texts]
    removed, undecided = [], []
    for limit in (0, 1_000_000):
        decisions, facts = drive(STAGE, MinHash(work_limit=limit, bands=64, rows=4), [corpus(texts + copies)])
        removed.append({row for row, record in decisions.items() if record["reason"]})
        undecided.append(facts["undecided"])
    assert removed[0] < removed[1]
    assert len(removed[1]) == 60
    assert undecided[1] == 0
    assert undecided[0] >= 60 - len(removed[0])


def test_every_setting_belongs_to_a_phase_and_bands_are_numbers():
    """A threshold redoes resolve only when bands and rows are set by hand; else it changes what emit depends on."""
    named = {name for phase in STAGE.phases for name in phase.settings}
    assert named == set(MinHash.model_fields)
    emit = STAGE.phases[0].settings
    by_hand = [MinHash(threshold=t, bands=20, rows=5).model_dump(include=set(emit)) for t in (0.7, 0.8)]
    derived = [MinHash(threshold=t).model_dump(include=set(emit)) for t in (0.7, 0.8)]
    assert by_hand[0] == by_hand[1]
    assert derived[0] != derived[1]
    assert (derived[1]["bands"], derived[1]["rows"]) == (28, 9)
    again = MinHash(**MinHash(threshold=0.7).model_dump())
    assert again == MinHash(threshold=0.7, bands=None, rows=None)


def test_settings_that_cannot_work_are_errors():
    """Out-of-range thresholds, too fine ones, negative bands and unknown keys are refused."""
    for bad in ({"threshold": 0.0}, {"threshold": 1.1}, {"ngram": 0}, {"treshold": 0.8}, {"verify": "signature"}):
        with pytest.raises(ValidationError):
            MinHash(**bad)
    for bad in ({"threshold": 0.12345}, {"bands": -1, "rows": 4}, {"bands": 10_000, "rows": 10}, {"keep": (" asc",)}):
        with pytest.raises(ConfigError):
            MinHash(**bad)


def test_a_pair_of_numbers_that_misses_much_is_a_warning():
    """Bands set by hand that miss more than 10 % at the threshold are warned about with the number."""
    assert warnings(MinHash()) == []
    assert warnings(MinHash(threshold=0.8, bands=14, rows=8)) == []
    (message,) = warnings(MinHash(threshold=0.7, bands=28, rows=9))
    assert "32%" in message
    assert "42 of 6" in message


def test_the_report_entry_adds_up():
    """The facts of all phases make the entry of `duplicates` that the report promises."""
    rng = np.random.default_rng(10)
    config = MinHash()
    _, facts = drive(STAGE, config, [corpus(near_copies(rng, 200))], partitions=4)
    entry = report(config, facts)
    assert entry["candidates"] >= entry["largest_component"] >= 2
    assert sum(count for _, count in entry["size_histogram"]) == entry["components"]
    assert entry["comparisons"] > 0
    assert entry["expected_miss"] == 0.017678
    assert (entry["bands"], entry["rows"], entry["normalisation"]) == (28, 9, "word-1")
    assert report(config, {})["components"] == 0
