from __future__ import annotations

import ast
import random
import sysconfig
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from pipeline.errors import ConfigError
from pipeline.settle import add
from pipeline.stage import Context
from stages.difficulty import STAGE, Difficulty

CONFIG = Difficulty(bits=16)
VOCABULARY = "the of shard row and model to text is score byte with window a table for count level in document"
WORDS = VOCABULARY.split()


def sentences(seed: int, documents: int, words: int = 40) -> list[str]:
    """Documents of a fixed generator, the same in every version of Python and numpy."""
    state, texts = seed, []
    for _ in range(documents):
        picked = []
        for _ in range(words):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            picked.append(WORDS[(state >> 33) % 20 * ((state >> 45) % 20) // 20])
        texts.append(" ".join(picked) + ".\n")
    return texts


def batch(texts: list[str]) -> pa.RecordBatch:
    hashes = [xxhash.xxh3_64_intdigest(text.encode()) for text in texts]
    return pa.record_batch({"text": pa.array(texts, pa.large_string()), "text_hash": pa.array(hashes, pa.uint64())})


def learn(batches: list[pa.RecordBatch], config: Difficulty = CONFIG, corpus_bytes: int = 0) -> Context:
    context = Context(corpus_bytes=corpus_bytes)
    count = STAGE.measure(config, context)
    total = add([count(part) for part in batches], STAGE.count_keys)
    return Context(corpus_bytes=corpus_bytes, facts=STAGE.settle(config, context, total))


def scores(context: Context, texts: list[str], config: Difficulty = CONFIG) -> pa.RecordBatch:
    return STAGE.bind(config, context)(batch(texts))


def losses(context: Context, texts: list[str]) -> np.ndarray:
    return scores(context, texts).column("bits_per_byte").to_numpy(zero_copy_only=False)


def fold_of(text: str, folds: int = 2) -> int:
    return xxhash.xxh3_64_intdigest(text.encode()) % folds


def auc(low: np.ndarray, high: np.ndarray) -> float:
    return float((low[:, None] < high).mean() + (low[:, None] == high).mean() / 2)


@pytest.fixture(scope="module")
def prose() -> list[str]:
    """Pieces of 900 characters of the standard library's docstrings, in seeded order."""
    names = """argparse asyncio/base_events collections/__init__ configparser csv datetime difflib email/message
        fractions functools http/cookiejar imaplib inspect logging/__init__ optparse os pathlib pickle platform shutil
        smtplib statistics string subprocess tarfile tempfile textwrap threading turtle typing unittest/mock
        urllib/request uuid xml/dom/minidom zipfile"""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    found = []
    for path in (Path(sysconfig.get_path("stdlib"), f"{name}.py") for name in names.split()):
        if path.exists():  # modules move between versions of Python
            nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            found.append(
                "\n".join(filter(None, (ast.get_docstring(node) for node in nodes if isinstance(node, kinds))))
            )
    pieces = [text[at : at + 900] for text in found for at in range(0, len(text) - 900, 900)]
    random.Random(1).shuffle(pieces)
    return pieces


def test_columns_say_what_the_loss_is_made_of():
    """Every row has bits per byte in steps of 2^-10, and nats, tokens, fold and compressibility that fit them."""
    texts = sentences(1, 200)
    context = learn([batch(texts)])
    written = scores(context, texts)
    assert written.schema == STAGE.writes
    columns = {name: written.column(name).to_numpy() for name in written.schema.names}
    sizes = np.array([len(text.encode()) for text in texts])
    assert (columns["bits_per_byte"] > 0.5).all()
    assert (columns["bits_per_byte"] < 4).all()
    assert (columns["bits_per_byte"] * 1024 % 1 == 0).all()
    np.testing.assert_allclose(columns["sum_nll"], columns["bits_per_byte"] * sizes * np.log(2), rtol=1e-12)
    assert (columns["tokens"] == sizes).all()
    assert columns["fold"].tolist() == [fold_of(text) for text in texts]
    assert (columns["zstd_ratio"] < 1).all()


@pytest.mark.parametrize("size", [1, 7, 64, 300])
def test_batches_and_order_change_nothing(size):
    """Counts, model and scores are the same bytes for any cut of the corpus into batches and for its reverse."""
    texts = sentences(2, 300)
    texts += texts[:40]  # copies, so that a cut can fall between them
    whole = batch(texts)
    context = learn([whole])
    cut = [whole.slice(at, size) for at in range(0, len(texts), size)]
    assert learn(cut).facts == context.facts
    assert learn([batch(texts[::-1])]).facts == context.facts
    transform = STAGE.bind(CONFIG, context)
    expected = transform(whole)
    assert pa.Table.from_batches([transform(part) for part in cut]).combine_chunks().to_batches()[0].equals(expected)
    assert transform(batch(texts[::-1])).to_pylist() == expected.to_pylist()[::-1]


def test_no_document_is_scored_by_a_model_that_saw_it():
    """A document has the same score whether or not it was in the sample; other folds' documents learn from it."""
    texts = sentences(3, 200)
    unique = "quizzical jackdaws vexed my big sphinx of quartz by zephyr hymn " * 3
    echo = next(text for n in range(99) if fold_of(text := f"{unique[:60]} {n}") != fold_of(unique))
    with_it, without = learn([batch([*texts, unique])]), learn([batch(texts)])
    assert losses(with_it, [unique])[0] == losses(without, [unique])[0]
    assert losses(with_it, [echo])[0] < np.nan_to_num(losses(without, [echo])[0], nan=8) - 1


@pytest.mark.parametrize("folds", [2, 3, 5])
def test_every_fold_has_its_own_model(folds):
    """With any number of folds a document is scored by the model of all the others."""
    config = Difficulty(bits=16, folds=folds)
    texts = sentences(4, 100)
    context = learn([batch(texts)], config)
    together = scores(context, texts, config)
    assert together.column("fold").to_pylist() == [fold_of(text, folds) for text in texts]
    for fold in range(folds):
        mine = [n for n, text in enumerate(texts) if fold_of(text, folds) == fold]
        others = learn([batch([text for text in texts if fold_of(text, folds) != fold])], config)
        expected = [texts[n] for n in mine]
        assert scores(others, expected, config).equals(together.take(pa.array(mine)))


def test_copies_share_fold_and_score():
    """Exact copies of a text have equal columns wherever they stand."""
    texts = sentences(5, 60)
    rows = scores(learn([batch(texts)]), [*texts, *texts[::-1]]).to_pylist()
    assert rows[:60] == rows[60:][::-1]


def test_unseen_script_is_unscorable():
    """A text in a script that the sample lacks has no score, and is not the hardest."""
    context = learn([batch(sentences(6, 200))])
    row = scores(context, ["ภาษาไทยเป็นภาษาที่มีระดับเสียงของคำแน่นอนหรือวรรณยุกต์เช่นเดียวกับภาษาจีน"]).to_pylist()[0]
    assert row["bits_per_byte"] is row["sum_nll"] is row["tokens"] is None
    assert row["zstd_ratio"] > 0


def test_repetition_is_easy():
    """A repeated line of words the sample lacks has a lower loss than any ordinary text."""
    texts = sentences(7, 200)
    context = learn([batch(texts)])
    assert losses(context, ["jumpy zebras, quick foxes\n" * 100])[0] < min(losses(context, texts))


def test_damaged_prose_scores_higher(prose):
    """Shuffled words and shuffled letters of real docstrings have higher loss than the docstrings themselves."""
    config = Difficulty(bits=20)
    half = len(prose) // 2
    context = learn([batch(prose[:half])], config)
    rng, clean = random.Random(2), prose[half:][:300]
    words = [" ".join(rng.sample(text.split(), len(text.split()))) for text in clean]
    letters = ["".join(rng.sample(text, len(text))) for text in clean]
    low = losses(context, clean)
    hard = losses(context, words)
    assert auc(low, hard) > 0.75
    assert auc(low, np.nan_to_num(losses(context, letters), nan=8)) > 0.99
    assert np.mean(hard > low) > 0.95  # text by text, without the differences between texts


def test_sample_is_drawn_by_text():
    """Of a corpus ten times the sample a tenth of the bytes is counted, the same documents in any company."""
    texts = sentences(8, 2000)
    size = sum(len(text.encode()) for text in texts)
    config = Difficulty(bits=16, sample=size // 10)
    count = STAGE.measure(config, Context(corpus_bytes=size))
    table = count(batch(texts))
    assert 0.8 < sum(table["count"].to_pylist()) / (size / 10) < 1.2
    drawn = [text for text in texts if count(batch([text])).num_rows]
    assert add([count(batch(drawn))], STAGE.count_keys) == add([table], STAGE.count_keys)


def test_large_document_is_scored_and_bounded_in_the_sample():
    """A document of 5 MB has a score; 1 MiB of it enters the counts."""
    text = "".join(sentences(9, 30_000))
    assert len(text) > 5_000_000
    table = STAGE.measure(CONFIG, Context())(batch([text]))
    assert sum(table["count"].to_pylist()) == 1 << 20
    context = learn([batch(sentences(10, 400))])
    assert losses(context, [text])[0] == pytest.approx(losses(context, sentences(9, 400)).mean(), abs=0.3)


def test_empty_corpus():
    """No rows make facts without a model, which score nothing and fail on nothing."""
    context = learn([batch([])])
    assert len(context.facts) == 4096
    assert scores(context, []).num_rows == 0
    assert losses(context, ["some text"]).tolist() == pytest.approx([np.nan], nan_ok=True)


def test_lone_document_is_unscorable():
    """A document whose other folds are empty has no score rather than one from a model of nothing."""
    (text,) = sentences(11, 1)
    context = learn([batch([text])])
    assert scores(context, [text]).to_pylist()[0]["bits_per_byte"] is None
    other = next(sentence for sentence in sentences(12, 20) if fold_of(sentence) != fold_of(text))
    assert 0 < losses(context, [other])[0] < 8


def test_empty_text_is_unscorable():
    """A text without bytes has neither loss nor compressibility."""
    row = scores(learn([batch(["", *sentences(13, 20)])]), [""]).to_pylist()[0]
    assert row == {"bits_per_byte": None, "sum_nll": None, "tokens": None, "fold": fold_of(""), "zstd_ratio": None}


def test_small_sample_has_small_tables():
    """The facts of a few documents are a few MB, not two full tables."""
    few = learn([batch(sentences(14, 10))], Difficulty())
    assert len(few.facts) == 4096 + 2 * (8 * 2**16 + 8 * 2**16)


def test_scores_of_this_version():
    """A fixed corpus has the model bytes and the scores of version 1; when they change, `version` must."""
    texts = [*sentences(15, 40), "Ünïcödé tëxt, the shard of the model.\n", "row " * 50]
    context = learn([batch(texts)])
    assert STAGE.version == 1
    assert xxhash.xxh3_128_hexdigest(context.facts) == "0bbb8c0e39cf2b5004a29f548a315802"
    steps = losses(context, [*texts[:4], *texts[-2:]]) * 1024
    assert steps.tolist() == [1121, 1110, 1058, 1020, 4809, 161]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "HuggingFaceTB/SmolLM2-135M"}, "difficulty.model.*not built yet"),
        ({"model": ["ngram", "ngram"]}, "difficulty.model.*not built yet"),
        ({"order": 5}, "order"),
        ({"bits": 25}, "bits"),
        ({"folds": 1}, "folds"),
        ({"sample": "20 elephants"}, "sample"),
        ({"least": {7: 2}}, "least"),
        ({"least": {5: 0}}, "least"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    """What the embedded scorer cannot do is an error at once."""
    with pytest.raises((ConfigError, ValueError), match=message):
        Difficulty(**settings)


def test_settings_survive_json():
    """A config written as JSON reads back equal, with sizes in units and null for the default model."""
    config = Difficulty.model_validate({"model": None, "sample": "5MB", "least": {"6": 3}})
    assert (config.model, config.sample, config.least) == ("ngram", 5_000_000, {6: 3})
    assert Difficulty.model_validate_json(config.model_dump_json()) == config
