import random
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import fasttext
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import ConfigError
from pipeline.stage import Context
from stages import quality
from stages.quality import STAGE, FitSettings, Quality, auc, fit
from stages.text.classifier import load
from stages.text.flatten import flatten

GOOD_WORDS = [f"theorem{i}" for i in range(40)]
BAD_WORDS = [f"casino{i}" for i in range(40)]
SHARED_WORDS = [f"the{i}" for i in range(40)]
SMALL = FitSettings(min_count=1, buckets=2000, dim=8)
BREAKS = ["\n", "\r\n", "\r", "\v", "\f", "\x85", "\u2028", "\u2029", "\0"]


def documents(words, count, seed, shortest=10, longest=60):
    rng = random.Random(seed)
    vocabulary = words + SHARED_WORDS
    return [" ".join(rng.choices(vocabulary, k=rng.randint(shortest, longest))) for _ in range(count)]


GOOD, BAD = documents(GOOD_WORDS, 300, 1), documents(BAD_WORDS, 300, 2)


@pytest.fixture(scope="module")
def fitted():
    return fit(GOOD, BAD, settings=SMALL)


@pytest.fixture(scope="module")
def model(fitted, tmp_path_factory):
    path = tmp_path_factory.mktemp("quality") / "model.bin"
    path.write_bytes(fitted[0])
    return path


def trained(path, kinds, **changes):
    """A model with one label for each of `kinds` (label -> words), trained on this binding directly."""
    source = path.with_suffix(".txt")
    lines = [f"__label__{kind} {text}" for kind, words in kinds.items() for text in documents(words, 60, kind)]
    source.write_text("\n".join(random.Random(0).sample(lines, len(lines))) + "\n")
    options = {"dim": 8, "minCount": 1, "thread": 1, "epoch": 10, "lr": 0.5, "bucket": 2000, "verbose": 0, "seed": 0}
    binding = fasttext.train_supervised(input=str(source), **options | changes)
    binding.save_model(str(path))
    return path


def bound(model, **config):
    return STAGE.bind(Quality(model="model.bin", **config), Context(files={"model": model}))


def batch(texts):
    return pa.record_batch({"text": pa.array(texts, pa.large_string())})


def reference(model, text, label="good"):
    """The probability that the binding itself gives to one line, and nothing else."""
    answers = fasttext.load_model(str(model)).f.predict(text + "\n", -1, 0.0, "strict")
    return next(probability for probability, name in answers if name == f"__label__{label}")


def flat(text):
    for mark in BREAKS:
        text = text.replace(mark, " ")
    return text


AWKWARD = [
    *(f"theorem1{mark}casino2 the3" for mark in BREAKS), "theorem1 \x00\x00 theorem2\n", "\ntheorem1", "theorem1\n\n\n",
    "theorem1 \ufffd\ufffd the1", "café theorem1 naïve \u2028 the2", "__label__good theorem1 __label__bad the4",
    "__label__good\n__label__bad casino1", "a\tb theorem5", "theorem1  the2 ", "\u2028theorem1\u2029",
]  # fmt: skip
UNSCORABLE = [
    "", " ", "\n", "\r\n \t \0", "\u2028\x85", "zzz qqq never seen", "\U0001f600 \U0001f680\U0001f680", "__label__good",
    "</s>", "\ufffd", "Theorem1", "theorem1casino1",
]  # fmt: skip


def test_awkward_texts_get_one_score_each_in_order_and_it_is_the_bindings_own(model):
    """Every text has its row, and the score is the binding's answer to the text on one line, clipped to [0, 1]."""
    out = bound(model)(batch(AWKWARD))
    assert out.schema == STAGE.writes
    assert out.column("score").to_pylist() == [min(1.0, reference(model, flat(text))) for text in AWKWARD]


@pytest.mark.parametrize("mark", BREAKS)
def test_a_line_break_scores_as_a_blank(model, mark):
    """A break of any kind and a blank are the same to the score, while the words on both sides count."""
    broken, blank, head = bound(model)(batch([f"theorem1{mark}casino2", "theorem1 casino2", "theorem1"])).to_pylist()
    assert broken == blank
    assert broken != head


def test_text_without_a_known_word_is_unscorable_wherever_it_stands(model):
    """Rows with nothing the model knows have null score and logit, and their neighbours keep their own values."""
    mixed = [text for pair in zip(AWKWARD, UNSCORABLE, strict=False) for text in pair]
    out = bound(model)(batch(mixed))
    assert out.column("score").is_null().to_pylist() == [text in UNSCORABLE for text in mixed]
    assert out.column("logit").is_null().to_pylist() == [text in UNSCORABLE for text in mixed]
    assert out.take(pa.array(range(0, len(mixed), 2))).equals(bound(model)(batch(AWKWARD[: len(UNSCORABLE)])))


def test_two_million_words_are_one_row(model):
    """A text of two million words gets one score, equal to the binding's, and one of unseen words is unscorable."""
    known, unseen = "theorem1\nthe2 " * 1_000_000, "unseen\n" * 2_000_000
    out = bound(model)(batch(["theorem1", known, unseen, "casino1"]))
    assert out.column("score").to_pylist()[1:3] == [reference(model, flat(known)), None]
    assert out.column("score").to_pylist()[0] > 0.5 > out.column("score").to_pylist()[3]


def test_an_end_mark_in_the_text_does_not_hide_the_rest(model):
    """The word </s> is how fastText spells a line break: what follows counts, and glued to a word it is left alone."""
    marked, plain, glued = bound(model)(batch(["the1 </s> casino1", "the1 casino1", "the1 x</s> casino1"])).to_pylist()
    assert marked == plain
    assert glued["score"] == min(1.0, reference(model, "the1 x</s> casino1"))
    assert reference(model, "the1 </s> casino1") != reference(model, "the1 casino1")


@settings(max_examples=30, deadline=None)
@given(cuts=st.lists(st.integers(0, 40), max_size=5), order=st.randoms(use_true_random=False))
def test_scores_do_not_depend_on_the_cut_or_the_order_of_batches(model, cuts, order):
    """A row has the same bits in any batch, as a slice of a larger one, and in any company."""
    texts = [*AWKWARD, *UNSCORABLE, *GOOD[:4], *BAD[:4]]
    whole, score = batch(texts), bound(model)
    expected = score(whole)
    edges = [0, *sorted(min(cut, len(texts)) for cut in cuts), len(texts)]
    pieces = [score(whole.slice(start, stop - start)) for start, stop in pairwise(edges)]
    assert pa.Table.from_batches(pieces).combine_chunks().equals(pa.Table.from_batches([expected]))
    shuffled = order.sample(range(len(texts)), len(texts))
    assert score(whole.take(pa.array(shuffled))).equals(expected.take(pa.array(shuffled)))


def test_calls_to_the_binding_are_cut_without_a_trace(model, monkeypatch):
    """Handing the binding a few bytes at a time changes nothing."""
    expected = bound(model)(batch(AWKWARD + UNSCORABLE))
    monkeypatch.setattr("stages.text.classifier.CALL_BYTES", 10)
    assert bound(model)(batch(AWKWARD + UNSCORABLE)).equals(expected)


def test_an_empty_batch_has_the_declared_schema(model):
    """No rows in, no rows out, same columns."""
    assert bound(model)(batch([])).equals(pa.RecordBatch.from_pylist([], schema=STAGE.writes))


def test_only_the_head_is_scored_under_max_bytes(model):
    """max_bytes cuts to whole characters, and the score is that of the head."""
    out = bound(model, max_bytes=10)(batch(["theorem1 é casino1 casino2", "the1 casino1", "é theorem1"])).to_pylist()
    heads = bound(model)(batch(["theorem1 ", "the1 casin", "é theorem"])).to_pylist()
    assert out == heads
    assert out[2]["score"] is None


def test_logits_are_finite_steps_that_order_what_scores_cannot(tmp_path):
    """Logits are multiples of 2^-10 inside [-16, 16], agree with the score and still differ where scores round to 1."""
    path = trained(tmp_path / "sharp.bin", {"good": GOOD_WORDS, "bad": BAD_WORDS}, epoch=400, lr=1.0)
    texts = ["theorem1 " * n + "casino1 " * (40 - n) for n in range(41)]
    texts += ["theorem1 " * n + "the1 " * (10 - n) for n in range(11)]
    out = bound(path)(batch(texts))
    score, logit = (out.column(name).to_numpy().astype(np.float64) for name in ("score", "logit"))
    assert np.array_equal(logit * 1024, np.rint(logit * 1024))
    assert np.abs(logit).max() <= 16
    assert score.min() >= 0
    assert score.max() == 1
    inside = (score > 0.01) & (score < 0.99)
    assert inside.sum() >= 3
    assert np.allclose(logit[inside], np.log(score[inside] / (1 - score[inside])), atol=0.003)
    assert len(set(logit[score > 1 - 1e-6])) > len(set(score[score > 1 - 1e-6]))


@pytest.mark.parametrize("loss", ["softmax", "ova", "hs", "ns"])
def test_a_model_of_three_labels_scores_the_one_asked_for(tmp_path, loss):
    """With any loss the score is the probability of the named label, whether or not it is the likeliest."""
    path = trained(tmp_path / "three.bin", {"hq": GOOD_WORDS, "cc": BAD_WORDS, "spam": SHARED_WORDS}, loss=loss)
    texts = ["theorem1 theorem2", "casino1 casino3", "the1 the2 the3", "theorem1 casino1", "nothing known"]
    for label in ("hq", "__label__cc", "spam"):
        out = bound(path, label=label)(batch(texts)).column("score").to_pylist()
        wanted = [min(1.0, reference(path, text, label.removeprefix("__label__"))) for text in texts[:4]]
        assert out == [*(np.float32(value) for value in wanted), None]
    assert bound(path)(batch(texts)).equals(bound(path, label="hq")(batch(texts)))


@pytest.mark.parametrize(
    ("kinds", "label", "says"),
    [
        (("hq", "cc"), "wiki", "one of ['cc', 'hq']"),
        (("hq", "good"), None, "['good', 'hq']"),
        (("1", "0"), None, "['0', '1']"),
    ],
)
def test_a_label_that_cannot_be_meant_is_refused_with_the_labels(tmp_path, kinds, label, says):
    """A wrong label, and a default that is not clear, name the setting and list what the model has."""
    path = trained(tmp_path / "labels.bin", {kind: [f"{kind}word{i}" for i in range(9)] for kind in kinds})
    with pytest.raises(ConfigError) as error:
        bound(path, label=label)
    assert "quality.label" in error.value.message
    assert says in error.value.message


@pytest.mark.parametrize("quantize", [False, True])
def test_a_model_with_character_ngrams_knows_words_by_their_parts(tmp_path, quantize):
    """An unseen word made of seen parts is scored; emoji, which share no part with a known word, are not."""
    path = trained(tmp_path / "parts.bin", {"good": GOOD_WORDS, "bad": BAD_WORDS}, minn=3, maxn=5, bucket=200_000)
    if quantize:
        binding = fasttext.load_model(str(path))
        binding.quantize(input=str(path.with_suffix(".txt")), cutoff=400, retrain=False, dsub=2, verbose=0)
        binding.save_model(str(path))
    texts = ["theoremlike", "\U0001f600\U0001f680 \U0001f600", "theorem1", "", "ξένος"]
    out = bound(path)(batch(texts)).column("score").to_pylist()
    assert [score is None for score in out] == [False, True, False, True, True]
    assert [score for score in out if score is not None] == [
        np.float32(min(1.0, reference(path, text))) for text in ("theoremlike", "theorem1")
    ]


def test_files_that_are_no_classifier_are_refused(model, tmp_path):
    """Noise, a model cut short and a model of word vectors are config errors that say what is wrong with the file."""
    noise, vectors, source = tmp_path / "noise.bin", tmp_path / "vectors.bin", tmp_path / "source.txt"
    noise.write_bytes(b"not a model" * 100)
    cut = tmp_path / "cut.bin"
    cut.write_bytes(model.read_bytes()[:40_000])
    source.write_text("\n".join(GOOD))
    fasttext.train_unsupervised(
        str(source), dim=4, minCount=1, bucket=100, epoch=1, thread=1, verbose=0
    ).save_model(str(vectors))  # fmt: skip
    for path, says in ((noise, "fastText model"), (vectors, "word vectors"), (cut, "if that file is whole")):
        with pytest.raises(ConfigError, match=says):
            bound(path)


class Stub:
    """A binding that answers lists wrongly in one way, around a real model."""

    def __init__(self, model, fault):
        self.model, self.f, self.fault = model, model.f, fault

    def __getattr__(self, name):
        return getattr(self.model, name)

    def predict(self, lines, k):
        labels, probabilities = self.model.predict(lines, k=k)
        return self.fault(labels, probabilities)


FAULTS = {
    "fewer rows": lambda labels, found: (labels[1:], found[1:]),
    "one label": lambda labels, found: ([row[:1] for row in labels], [row[:1] for row in found]),
    "above one": lambda labels, found: (labels, [row + 1 for row in found]),
    "NaN": lambda labels, found: (labels, [row * np.nan for row in found]),
    "sorted rows": lambda labels, found: (sorted(labels), sorted(found, key=list)),
    "nested as by fasttext-predict": lambda labels, found: tuple(zip(labels, found, strict=True)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_binding_with_wrong_answers_is_refused_with_the_command(model, monkeypatch, fault):
    """Whatever is wrong with the binding, loading ends in an error that says what to install."""
    real = fasttext.load_model
    broken = SimpleNamespace(load_model=lambda path: Stub(real(path), FAULTS[fault]))
    monkeypatch.setitem(sys.modules, "fasttext", broken)
    with pytest.raises(ConfigError, match="pip install --force-reinstall fasttext-community"):
        load(model)


def test_a_binding_that_can_only_predict_is_named(model, monkeypatch):
    """The module of fasttext-predict, which lacks most of the interface, is refused and its distribution named."""
    only_predicts = SimpleNamespace(load_model=lambda _: SimpleNamespace(predict=str.split))
    monkeypatch.setitem(sys.modules, "fasttext", only_predicts)
    monkeypatch.setattr(
        "importlib.metadata.packages_distributions", lambda: {"fasttext": ["fasttext-predict", "fasttext-community"]}
    )
    monkeypatch.setattr("importlib.metadata.version", lambda _: "0.9")
    with pytest.raises(
        ConfigError, match=r"from fasttext-community fasttext-predict.*pip uninstall -y fasttext-predict"
    ):
        load(model)


def test_a_missing_binding_is_named(model, monkeypatch):
    """Without the module the error is the command that installs it."""
    monkeypatch.setitem(sys.modules, "fasttext", None)
    with pytest.raises(ConfigError, match="pip install fasttext-community"):
        load(model)


def test_flattening_keeps_every_other_byte():
    """Line breaks, tab and NUL become blanks of the same width; everything else, and every length, stays."""
    texts = [
        "a\r\nb\0c\td\ve\ff",
        "\x85\u2028\u2029",
        "\u2027\u202a\x84Â\u2026é\x1c<s></s><",
        "",
        None,
        "</s> x</s> </s>\n</s>",
    ]
    array = pa.array(["cut away", *texts], pa.large_string())[1:]
    out = flatten(array)
    out.validate(full=True)
    assert out.to_pylist() == ["a  b c d e f", " " * 8, texts[2], "", "", "     x</s>          "]


@settings(deadline=None)
@given(
    st.lists(st.text(alphabet=st.sampled_from(["a", "é", "€", "\U0001f600", "\n", "\u2028", " "])), max_size=6),
    st.integers(1, 9),
)
def test_a_cut_never_splits_a_character(texts, limit):
    """Every head is the longest run of whole characters within the limit."""
    heads = flatten(pa.array(texts, pa.large_string()), limit).to_pylist()
    wanted = [text.encode()[:limit].decode(errors="ignore") for text in texts]
    assert [len(head.encode()) for head in heads] == [len(text.encode()) for text in wanted]


def test_fit_makes_the_same_bytes_of_the_same_documents(fitted):
    """Neither the order of reading, nor its cut, nor the type of the arrays, nor copies change the model's bytes."""
    shuffled = random.Random(3).sample(GOOD, len(GOOD))
    arrays = [
        pa.array(shuffled[:100], pa.large_string()),
        pa.chunked_array([shuffled[100:], shuffled[:5]], pa.string()),
    ]
    again, card = fit(iter(arrays), reversed(BAD), settings=SMALL)
    assert again == fitted[0]
    assert card["data"]["good"] | {"read": None, "copies": 0} == fitted[1]["data"]["good"] | {"read": None}
    assert card["data"]["good"]["copies"] == 5
    assert fit(GOOD, BAD, seed=1, settings=SMALL)[0] != fitted[0]


def test_the_card_tells_what_the_model_is_made_of(fitted):
    """The card counts its data, judges only what was held out, and the classes it sees are equally large."""
    _, card = fitted
    judged = card["held_out"]
    assert card["label"] == "good"
    assert card["data"]["good"]["used"] == card["data"]["bad"]["used"] == 300
    assert card["data"]["good"]["read"] == {"documents": 300, "bytes": sum(map(len, GOOD)), "blank": 0}
    assert 30 < judged["documents"]["good"] < 90
    assert judged["auc"] > 0.99
    assert judged["auc_of_length"] < 0.7
    assert len(judged["reliability"]) == 10
    for kind in ("good", "bad"):
        binned = sum(step[kind] for step in judged["reliability"])
        assert binned == judged["documents"][kind] - judged["unscorable"][kind]


def test_what_is_held_out_is_not_trained_on(monkeypatch):
    """Copies of a document are all held out or all trained on, and no line of training is a held-out document."""
    lines, judged = [], []
    train, judge = quality._lines, quality._judge
    monkeypatch.setattr(quality, "_lines", lambda kinds: lines.extend(train(kinds)) or iter(lines))
    monkeypatch.setattr(quality, "_judge", lambda classifier, kinds: judged.append(kinds) or judge(classifier, kinds))
    fit(GOOD + GOOD, BAD + BAD[:50], settings=SMALL)
    trained_on = [line.split(" ", 1)[1].rstrip("\n") for line in lines]
    held_out = [text for part in judged[0].values() for text in part.texts.to_pylist()]
    assert len(set(trained_on)) == len(trained_on)
    assert set(trained_on) | set(held_out) == set(GOOD + BAD)
    assert not set(trained_on) & set(held_out)


def test_fit_levels_the_classes_and_drops_what_contradicts(fitted):
    """The larger kind is cut to the smaller, and documents given as both good and bad are used as neither."""
    _, card = fit([*GOOD[:80], *BAD[:10]], BAD, settings=SMALL)
    assert card["data"]["in_both"] == 10
    assert card["data"]["good"]["used"] == card["data"]["bad"]["used"] == 80


def test_a_bounded_sample_does_not_depend_on_the_order_of_reading():
    """With less room than text the same documents are drawn however the source is cut, and fit the room."""
    small = SMALL.model_copy(update={"sample_bytes": 30_000})
    forward, card = fit((pa.array(GOOD[i : i + 7]) for i in range(0, 300, 7)), BAD, settings=small)
    backward, _ = fit(pa.array(GOOD[::-1]), iter(BAD), settings=small)
    assert forward == backward
    assert 50 <= card["data"]["good"]["used"] < 300
    assert card["data"]["good"]["used_bytes"] <= 30_000


def test_labels_inside_training_text_are_not_labels():
    """A document that speaks of labels adds none to the model and counts by its other words."""
    model, card = fit(
        [f"__label__bad {text}\n__label__x" for text in GOOD],
        [f"{text} </s> __label__good" for text in BAD],
        settings=SMALL,
    )
    assert card["labels"] == ["bad", "good"]
    assert card["held_out"]["auc"] > 0.99
    assert b"__label__x" not in model


@pytest.mark.parametrize(
    ("good", "bad"), [([], []), (GOOD[:49], BAD), (GOOD, ["", " \n"] * 100), (GOOD[:20] * 10, BAD), (GOOD, GOOD)]
)
def test_too_little_text_is_refused_with_the_counts(good, bad):
    """Fewer than 50 distinct documents of a kind, whatever the reason, is an error that counts them."""
    with pytest.raises(ConfigError, match=r"at least 50 are needed.*\"distinct\": \d+"):
        fit(good, bad, settings=SMALL)


def test_a_classifier_no_better_than_length_warns():
    """Where length tells all and words tell nothing, the card says so."""
    short, long = documents([], 200, 5, 3, 9), documents([], 200, 6, 10, 40)
    _, card = fit(short, long, settings=SMALL)
    assert card["held_out"]["auc_of_length"] == 1
    assert "no better than document length" in card["warnings"][0]


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=20), st.lists(st.integers(0, 5), min_size=1, max_size=20))
def test_auc_is_the_share_of_pairs_in_order(good, bad):
    """The rank formula equals counting every pair, ties half."""
    pairs = [(g > b) + (g == b) / 2 for g in good for b in bad]
    assert auc(np.array(good), np.array(bad)) == pytest.approx(sum(pairs) / len(pairs), abs=1e-12)
    assert auc(np.array([]), np.array(bad)) is None


def test_the_config_names_its_model_file():
    """The engine is told to bring the model, and unknown keys are refused."""
    assert STAGE.files(Quality(model="s3://bucket/model.bin")) == {"model": "s3://bucket/model.bin"}
    with pytest.raises(ValueError, match="max_bytes"):
        Quality(model="m", max_bytes=0)
    with pytest.raises(ValueError, match="lable"):
        Quality(model="m", lable="hq")
    assert Path(quality.__file__).name == "quality.py"
