"""What duplicate stages may and may not remove: chains, short texts, templates, order, faces of one text."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import unicodedata
from collections import Counter
from itertools import chain, pairwise
from pathlib import Path

import harness
import pytest

from pipeline.errors import ContractError

UNRELATED = [harness.words(1000 + seed, 100) for seed in range(50)]


def jaccard(a: str, b: str, ngram: int = 5) -> float:
    """Of the sets of word n-grams; the texts here hold plain words only."""
    sets = []
    for text in (a, b):
        words = text.split()
        sets.append({tuple(words[i : i + ngram]) for i in range(max(1, len(words) - ngram + 1))})
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


def kept_ids(config):
    return sorted(row["id"] for row in harness.hot_rows(config))


def check_evidence(rows, removed, kept, threshold):
    """Every near duplicate is charged to a kept row, with the Jaccard similarity that the two texts have."""
    texts = {row["id"]: row["text"] for row in rows}
    for row in removed:
        assert row["charged_id"] in kept
        measured = jaccard(texts[row["id"]], texts[row["charged_id"]])
        assert row["similarity"] == pytest.approx(measured, abs=1e-9)
        assert measured >= threshold
        assert (row["score"], row["threshold"]) == (row["similarity"], threshold)
        assert row["inter"] / row["union"] == row["similarity"]


# -- S01: chains -----------------------------------------------------------------------------------------------------

WORDS = [f"w{i}" for i in range(2000)]
ENGLISH_LIKE = [f"{a}{b}" for a in ("ka", "lo", "mi", "re", "su", "ta", "vo", "ne", "pi", "do") for b in range(300)]
CHAINS = {
    "of the scenario": (0.8, [" ".join(WORDS[8 * i : 8 * i + 104]) for i in range(20)]),
    "steps of 3 of 60 words": (0.85, [" ".join(ENGLISH_LIKE[3 * i : 3 * i + 60]) for i in range(30)]),
    "steps of 40 of 300 words at 0.7": (0.7, [" ".join(ENGLISH_LIKE[40 * i : 40 * i + 300]) for i in range(25)]),
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_removes_nothing_by_itself(tmp_path, name):
    """Of a sliding chain whoever goes is similar to one that stays; unrelated texts stay; order does not matter."""
    threshold, texts = CHAINS[name]
    rows = harness.rows_of(texts, "chain") + harness.rows_of(UNRELATED, "other", 500)
    survivors = []
    for order in (rows, rows[::-1], random.Random(11).sample(rows, len(rows))):
        root = tmp_path / str(len(survivors))
        harness.write_shards(root / "in", [order[:31], order[31:]])
        config = harness.configure(root, f"{{stage: minhash, threshold: {threshold}}}")
        report = harness.run(config)
        survivors.append(kept_ids(config))
        check_evidence(rows, harness.removed(report), survivors[-1], threshold)
    assert survivors[1:] == [survivors[0], survivors[0]]
    assert set(survivors[0]) >= {f"d{500 + i}" for i in range(50)}
    stay = [i for i in range(len(texts)) if f"d{i}" in survivors[0]]
    assert not any(jaccard(texts[a], texts[b]) >= threshold for a, b in pairwise(stay)), "two that stay are similar"
    assert len(stay) < len(texts)
    if name == "of the scenario":
        assert 7 <= len(stay) <= 10


# -- S02: short and blank --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ngram", [1, 2, 3, 5, 13])
def test_short_texts_are_not_duplicates_of_each_other(tmp_path, ngram):
    """One copy of each distinct text stays, however short; blank and null have reasons of their own."""
    draw = random.Random(5)
    lengths = {"four": 4, "n": ngram, "more": ngram + 1}
    made = {name: " ".join(f"{name}{draw.randrange(10**6)}" for _ in range(count)) for name, count in lengths.items()}
    repeated = [text for text in made.values() for _ in range(2)]
    texts = ["cat", "dog", "the dog barked", "cat", "", "   ", None, *repeated, "\u200b\u00ad", "\u3000\u00a0\n", "дом"]
    texts += ["дом", "猫", "狗", "!", "?", "😀", "😃", "😀"]
    harness.write_shards(tmp_path / "in", [harness.rows_of(texts[:9]), harness.rows_of(texts[9:], first=9)])
    for stages in ((harness.EXACT, f"{{stage: minhash, ngram: {ngram}}}"), (f"{{stage: minhash, ngram: {ngram}}}",)):
        config = harness.configure(tmp_path, *stages, sets=[f"name=test-{len(stages)}"])
        report = harness.run(config)
        expected = Counter({text for text in texts if text and text.strip(" \u200b\u00ad\u3000\u00a0\n")})
        assert Counter(row["text"] for row in harness.hot_rows(config)) == expected
        reasons = Counter(row["reason"] for row in harness.removed(report))
        assert (reasons["blank_text"], reasons["null_text"]) == (4, 1)
        assert reasons.total() == len(texts) - len(expected)


def test_case_and_punctuation_of_a_short_text_are_near_and_not_exact(tmp_path):
    """`Cat` and `cat!` are one shingle under word-1, so near duplicates; under text-1 they are different texts."""
    harness.write_shards(tmp_path / "in", [harness.rows_of(["Cat", "cat!", "cat", "cats"])])
    exact = harness.configure(tmp_path, harness.EXACT)
    assert harness.run(exact)["totals"]["kept"]["docs"] == 4
    near = harness.configure(tmp_path, harness.NEAR, sets=["name=near"])
    harness.run(near)
    assert sorted(row["text"] for row in harness.hot_rows(near)) == ["cat!", "cats"]


# -- S03: templates --------------------------------------------------------------------------------------------------

TEMPLATE = harness.words(77, 400).split()


def template_source(scattered: bool, count: int, own: int = 40) -> list[str]:
    """Texts of the shared words of TEMPLATE and `own` words of their own, in one run or between them."""
    texts = []
    for i in range(count):
        words = [f"own{i}x{k}" for k in range(own)]
        step = len(TEMPLATE) // own
        if scattered:
            mixed = [w for k in range(own) for w in (*TEMPLATE[step * k : step * (k + 1)], words[k])]
            texts.append(" ".join(mixed))
        else:
            texts.append(" ".join([*TEMPLATE, *words]))
    return texts


def with_ordinary(template: list[str], ordinary: int, copies: int) -> list[dict[str, object]]:
    texts = [harness.words(2000 + i, 90 + i % 40) for i in range(ordinary)]
    rows = harness.rows_of(template, "A") + harness.rows_of(texts + texts[:copies], "B", len(template))
    random.Random(3).shuffle(rows)
    return rows


@pytest.mark.parametrize(("count", "ordinary", "copies"), [(300, 300, 30), (170, 120, 50)])
def test_a_template_with_scattered_words_of_its_own_stays(tmp_path, count, ordinary, copies):
    """Texts whose shingles mostly differ stay whatever they share; true copies in another source go."""
    rows = with_ordinary(template_source(True, count), ordinary, copies)
    harness.write_shards(tmp_path / "in", [rows[::2], rows[1::2]])
    report = harness.run(harness.configure(tmp_path, harness.EXACT, harness.NEAR))
    lost = {source["name"]: source["removed"]["docs"] for source in report["sources"]}
    assert lost == {"A": 0, "B": copies}
    assert all(guard["state"] == "ok" for guard in report["guards"])


def test_a_template_source_that_would_vanish_stops_the_run(tmp_path):
    """Near duplicates, but nearly a whole source: nothing is published, and the message has the way out."""
    rows = with_ordinary(template_source(False, 300), 300, 30)
    harness.write_shards(tmp_path / "in", [rows[:250], rows[250:]])
    config = harness.configure(tmp_path, harness.EXACT, harness.NEAR)
    with pytest.raises(ContractError, match=r"A.*99\.7.*95.*guards\.accept"):
        harness.run(config)
    assert not [path for tier in ("hot", "cold") for path in (tmp_path / tier).rglob("*") if path.is_file()]
    report = harness.stored_report(config)
    assert report["run"]["complete"] is False
    guard = next(guard for guard in report["guards"] if guard["name"] == "A")
    assert (guard["state"], guard["limit"]) == ("stopped", 0.95)
    assert guard["value"] == pytest.approx(299 / 300)

    accepted = harness.configure(tmp_path, harness.EXACT, harness.NEAR, more="guards: {accept: [A]}")
    report = harness.run(accepted)
    assert {s["name"]: s["removed"]["docs"] for s in report["sources"]} == {"A": 299, "B": 30}
    assert next(guard for guard in report["guards"] if guard["name"] == "A")["state"] == "accepted"

    loose = harness.configure(tmp_path, harness.EXACT, harness.NEAR, more="guards: {max_source_loss: 0.999}")
    report = harness.run(loose)
    assert next(guard for guard in report["guards"] if guard["name"] == "A")["limit"] == 0.999


def test_the_null_source_is_guarded_under_its_name(tmp_path):
    """Rows without a source are a source called (none): they stop the run like any other."""
    rows = [row | {"source": None} for row in harness.rows_of(template_source(False, 150))]
    harness.write_shards(tmp_path / "in", [rows])
    with pytest.raises(ContractError, match=r"\(none\)"):
        harness.run(harness.configure(tmp_path, harness.NEAR))
    harness.run(harness.configure(tmp_path, harness.NEAR, more="guards: {accept: ['(none)']}"))


def test_exact_copies_do_not_trip_a_guard(tmp_path):
    """A source of one text a thousand times is rightly one text: copies do not count as loss."""
    rows = harness.rows_of([harness.words(1, 60)] * 400, "mirror") + harness.rows_of(UNRELATED, "web", 400)
    harness.write_shards(tmp_path / "in", [rows])
    report = harness.run(harness.configure(tmp_path, harness.EXACT, harness.NEAR))
    assert report["totals"]["kept"]["docs"] == 51


# -- S04: the same survivors everywhere ------------------------------------------------------------------------------


def drawn_shards(shards: int = 64, rows: int = 50) -> list[list[dict[str, object]]]:
    """Rows drawn from 100 texts, 20 of which have a near copy one word longer or shorter."""
    draw = random.Random(21)
    texts = [harness.words(3000 + i, 60 + i % 30) for i in range(80)]
    near = [f"{text} one more word" if i % 2 else text.rpartition(" ")[0] for i, text in enumerate(texts[:20])]
    pool = texts + near
    picked = [pool[draw.randrange(len(pool))] for _ in range(shards * rows)]
    made = [{"id": f"d{i}", "text": text, "source": f"s{i % 3}"} for i, text in enumerate(picked)]
    return [made[rows * k : rows * (k + 1)] for k in range(shards)]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    root = tmp_path_factory.mktemp("drawn")
    harness.write_shards(root / "in", drawn_shards())
    config = harness.configure(root, harness.EXACT, harness.NEAR)
    report = harness.run(config)
    return root, harness.outcome(config, report), config


def placed(root: Path, tmp_path: Path, *sets: str):
    """A run on the corpus at `root` with tiers of its own: what came out."""
    tiers = [f"tiers.{tier}.url='{tmp_path}/{tier}'" for tier in ("work", "hot", "cold")]
    config = harness.configure(root, harness.EXACT, harness.NEAR, sets=[*tiers, *sets])
    return harness.outcome(config, harness.run(config))


def test_one_survivor_of_each_true_group(drawn):
    """Of every group of copies and near copies one row stays, the longest by the default rule."""
    _, _, config = drawn
    texts = [row["text"] for row in harness.hot_rows(config)]
    assert len(set(texts)) == len(texts)
    every = {row["text"] for shard in drawn_shards() for row in shard}
    groups = [{other for other in every if jaccard(text, other) >= 0.8} for text in every]
    assert sorted(texts) == sorted({max(group, key=lambda text: len(text.encode())) for group in groups})


EVERYWHERE = [(workers, partitions, seed) for workers in (1, 2, 4) for partitions in (1, 8, 64) for seed in (0, 1, 2)]


@pytest.mark.parametrize(
    ("workers", "partitions", "seed"),
    [(2, 8, 2), *(pytest.param(*case, marks=pytest.mark.slow) for case in EVERYWHERE if case != (2, 8, 2))],
)
def test_no_setting_of_the_work_changes_a_byte(drawn, tmp_path, workers, partitions, seed):
    """Another process with other workers, partitions and PYTHONHASHSEED comes to the same bytes."""
    root, expected, _ = drawn
    sets = f"run.workers={workers}", f"run.partitions={partitions}"
    code = (
        "import json, pathlib, test_scenarios_duplicates as scenarios; "
        f"print(json.dumps(scenarios.placed(pathlib.Path({str(root)!r}), pathlib.Path({str(tmp_path)!r}), *{sets!r})))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": os.pathsep.join([".", "tests/e2e"])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert harness.differing(json.loads(done.stdout), expected) == []


@pytest.mark.parametrize("cut", [pytest.param("reversed", marks=pytest.mark.slow), "shuffled", "in slices"])
def test_the_order_of_shards_changes_no_text(drawn, tmp_path, cut):
    """Shards under other names, so read in another order, or cut into other slices: the same rows stay."""
    _, _, config = drawn
    shards = drawn_shards()
    if cut == "reversed":
        shards.reverse()
    elif cut == "shuffled":
        random.Random(8).shuffle(shards)
    harness.write_shards(tmp_path / "in", shards if cut != "in slices" else [[*chain(*shards)]])
    other = harness.configure(tmp_path, harness.EXACT, harness.NEAR, sets=["input.slice_bytes=20kB"])
    harness.run(other)
    same = [sorted((row["text"], row["id"]) for row in harness.hot_rows(c)) for c in (config, other)]
    assert same[0] == same[1]


@pytest.mark.parametrize("count", [0, 1, 200])
def test_nothing_to_find_is_a_result(tmp_path, count):
    """No duplicates, one text and no text at all are runs like any other."""
    rows = harness.rows_of([harness.words(6000 + i, 50) for i in range(count)])
    harness.write_shards(tmp_path / "in", [rows or [{"id": "x", "text": None, "source": None}]])
    report = harness.run(harness.configure(tmp_path, harness.EXACT, harness.NEAR))
    assert report["totals"]["kept"]["docs"] == count
    assert report["duplicates"]["minhash"]["components"] == 0


# -- S10: faces of one text ------------------------------------------------------------------------------------------


def faces(paragraph: str) -> list[str]:
    """The eight spellings that read the same: composed, decomposed, with marks and blanks of all kinds."""
    words = paragraph.split()
    half = len(words) // 2
    hidden = [word[:1] + "\u200b" + word[1:] for word in words]
    soft = [word[: len(word) // 2] + "\u00ad" + word[len(word) // 2 :] for word in words]
    return [
        unicodedata.normalize("NFC", paragraph), unicodedata.normalize("NFD", paragraph), " ".join(hidden),
        " ".join(soft), "\ufeff" + paragraph, "\u00a0".join(words),
        " ".join(words[:half]) + "\r\n" + " ".join(words[half:]), paragraph + "   ",
    ]  # fmt: skip


PARAGRAPHS = {
    "French": ("Où l'été était passé, le pêcheur rêvait déjà d'une forêt près du château; " * 5, "pêcheur", "pécheur"),
    "Vietnamese": ("Trường mở cửa đón những người trẻ đến từ khắp miền quê để học tiếng mẹ đẻ. " * 4, "mẹ", "mé"),
    "Hangul": ("한글은 소리를 적는 글자로서 누구나 쉽게 배울 수 있고 말을 적을 수 있다고 한다. " * 5, "소리", "수리"),
}  # fmt: skip


@pytest.mark.parametrize("language", PARAGRAPHS)
def test_eight_faces_of_a_paragraph_are_one_text(tmp_path, language):
    """Spellings that read the same are one text, an accent that means something is another; bytes stay as they were."""
    text, word, other = PARAGRAPHS[language]
    paragraph = unicodedata.normalize("NFC", text.strip())
    different = paragraph.replace(word, unicodedata.normalize("NFC", other), 1)
    rows = harness.rows_of([*faces(paragraph), different])
    harness.write_shards(tmp_path / "in", [rows[:5], rows[5:]])
    config = harness.configure(tmp_path, harness.EXACT)
    report = harness.run(config)
    kept = harness.hot_rows(config)
    assert len(kept) == 2
    assert different in [row["text"] for row in kept]
    assert all(row["text"] == rows[int(row["id"][1:])]["text"] for row in kept)
    assert len(harness.removed(report)) == 7
    assert report["duplicates"]["exact"]["normalisation"] == "text-1"
