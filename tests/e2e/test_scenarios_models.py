"""Awkward texts on their way to a classifier: every row gets the score of its text on one line, or none."""

from __future__ import annotations

import random
from pathlib import Path

import fasttext
import harness
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stages import quality

BREAKS = ("\n", "\r\n", "\r", "\v", "\f", "\x85", "\u2028", "\u2029", "\0")
VOCABULARIES = {
    "english": (["theorem", "proof", "lemma", "measure"], ["casino", "bonus", "click", "cheap"], ["the", "of", "and"]),
    "russian": (["теорема", "лемма", "мера", "вывод"], ["казино", "бонус", "скидка", "купить"], ["и", "в", "на"]),
}


def fitted(path: Path, good: list[str], bad: list[str], shared: list[str]) -> Path:
    """A small classifier of texts in these words, fitted as `corpusmill fit quality` does."""

    def texts(words: list[str], seed: int) -> list[str]:
        draw = random.Random(seed)
        return [" ".join(draw.choices(words + shared, k=draw.randint(8, 40))) for _ in range(300)]

    settings = quality.FitSettings(min_count=1, buckets=2000, dim=8)
    path.write_bytes(quality.fit(texts(good, 1), texts(bad, 2), settings=settings)[0])
    return path


def flat(text: str) -> str:
    for mark in BREAKS:
        text = text.replace(mark, " ")
    return text


def reference(model: Path, text: str, label: str = "good") -> float:
    """What the binding itself says of one line."""
    answers = fasttext.load_model(str(model)).f.predict(flat(text) + "\n", -1, 0.0, "strict")
    return min(1.0, next(probability for probability, name in answers if name == f"__label__{label}"))


def awkward(good: str, bad: str, shared: str) -> tuple[list[bytes], list[bool]]:
    """Texts as bytes, and which of them hold nothing that can be scored."""
    scorable = [f"{good}{mark}{bad} {shared}" for mark in BREAKS]
    scorable += [f"{good}\n\n{good}\r\n", f"{shared} " * 1000, f"__label__good {bad}", f"\ufeff {good} \u200b"]
    unscorable = ["unseen wordsonly", "\U0001f600\U0001f680", "!!! ???", "</s>", f"{good}{bad}"]
    rows = [(text.encode(), False) for text in scorable] + [(text.encode(), True) for text in unscorable]
    rows += [(b"x " + good.encode() + b" \xed\xa0\x80 " + bad.encode(), False), (b"\xff\xfe " + good.encode(), False)]
    rows += [((f"{good}\n{shared} " * 1_000_000).encode(), False)]
    random.Random(6).shuffle(rows)
    return [text for text, _ in rows], [lost for _, lost in rows]


@pytest.mark.parametrize("language", VOCABULARIES)
@pytest.mark.parametrize("kind", [pa.binary(), pa.large_string()], ids=str)
def test_awkward_texts_have_one_score_each(tmp_path, language, kind):
    """Scores stand row for row, equal to the reference; what cannot be scored is marked and not kept as good."""
    good, bad, shared = VOCABULARIES[language]
    model = fitted(tmp_path / "model.bin", good, bad, shared)
    texts, lost = awkward(good[0], bad[0], shared[0])
    column = pa.array([*texts, b"", b" \n\t ", None], pa.large_binary())
    if kind == pa.large_string():  # invalid UTF-8 in a string column, as careless writers leave it
        column = pa.Array.from_buffers(kind, len(column), column.buffers(), column.null_count)
    (tmp_path / "in").mkdir()
    ids = [f"d{i}" for i in range(len(column))]
    pq.write_table(pa.table({"text": column, "id": ids}), tmp_path / "in" / "a.parquet", row_group_size=7)
    config = harness.configure(
        tmp_path, f"{{stage: quality, model: '{model}'}}", "{stage: select, by: quality.score, min: 0.0}"
    )
    report = harness.run(config)
    (sidecar,) = (tmp_path / "work" / "test" / "sidecars").glob("quality-*/*/*.parquet")
    found = pq.read_table(sidecar)
    shown = [text.decode(errors="replace") for text in texts]
    expected = [None if none else reference(model, text) for text, none in zip(shown, lost, strict=True)]
    assert found["score"].to_pylist() == [*(None if e is None else np.float32(e) for e in expected), None, None, None]
    assert found["state"].to_pylist()[:-3] == ["unscorable" if none else "scored" for none in lost]
    gone = {row["id"]: row["reason"] for row in harness.removed(report)}
    assert {own for own, reason in gone.items() if reason == "unscorable"} == {
        f"d{i}" for i, none in enumerate(lost) if none
    }
    assert [gone[own] for own in ids[-3:]] == ["blank_text", "blank_text", "null_text"]
    stage = next(stage for stage in report["stages"] if stage["label"] == "quality")
    assert stage["unscorable_docs"] == sum(lost)
    kept = {row["id"]: row["text"] for row in harness.hot_rows(config)}
    assert kept == {f"d{i}": text for i, (text, none) in enumerate(zip(shown, lost, strict=True)) if not none}


def test_invalid_bytes_can_be_refused(tmp_path):
    """Under `invalid_utf8: quarantine` such rows are listed with their raw length, and the rest is scored."""
    good, bad, shared = VOCABULARIES["english"]
    model = fitted(tmp_path / "model.bin", good, bad, shared)
    texts = [b"theorem proof", b"theorem \xed\xa0\x80", b"casino", b"\xc3", b"caf\xc3\xa9 lemma"]
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"text": pa.array(texts, pa.binary())}), tmp_path / "in" / "a.parquet")
    config = harness.configure(
        tmp_path, f"{{stage: quality, model: '{model}'}}", sets=["input.invalid_utf8=quarantine"]
    )
    report = harness.run(config)
    rows = harness.table(report, "quarantined").to_pylist()
    assert [(row["row"], row["reason"], row["bytes"]) for row in rows] == [
        (1, "invalid_utf8", len(texts[1])), (3, "invalid_utf8", 1),
    ]  # fmt: skip
    assert sorted(row["text"] for row in harness.hot_rows(config)) == ["café lemma", "casino", "theorem proof"]


def test_unscorable_texts_are_kept_where_that_is_asked_for(tmp_path):
    """`unscorable: keep` lets them pass the cut; a curriculum gives them a dataset of their own, in no bucket."""
    good, bad, shared = VOCABULARIES["english"]
    model = fitted(tmp_path / "model.bin", good, bad, shared)
    texts = [" ".join(random.Random(i).choices(good + bad + shared, k=20)) for i in range(60)] + [
        "zzz",
        "\U0001f600 ...",
    ]
    harness.write_shards(tmp_path / "in", [harness.rows_of(texts)])
    config = harness.configure(
        tmp_path, f"{{stage: quality, model: '{model}'}}",
        "{stage: select, by: quality.score, keep_top: 0.5, unscorable: keep}",
        "{stage: curriculum, by: quality.score, buckets: 3}",
    )  # fmt: skip
    harness.run(config)
    manifest = harness.newest_manifest(config)
    (apart,) = [dataset for dataset in manifest["datasets"] if dataset["kind"] == "unscorable"]
    assert (apart["docs"], apart["bucket"]) == (2, None)
    assert sum(dataset["docs"] for dataset in manifest["datasets"] if dataset["kind"] == "bucket") >= 30
