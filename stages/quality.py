"""Quality: the probability that a fastText classifier gives to one of its labels, and the fit of such a classifier.

A scorer: it removes nothing. Cut with `select` on `quality.logit`, since scores crowd near 1 and logits do not.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray
from pydantic import Field

from pipeline.errors import ConfigError, setting_error
from pipeline.stage import Context, MapStage, StageConfig, Transform
from stages.text.sample import Sample, sample

if TYPE_CHECKING:
    from stages.text.classifier import Classifier

GOOD_LABELS = ("hq", "good", "high", "high_quality", "positive", "pos")
LOGIT_STEPS, LOGIT_LIMIT = 1024, 16.0
"""Logits are multiples of 2^-10 in [-16, 16]: further out fastText's float32 does not tell neighbouring steps apart."""


class Quality(StageConfig):
    """Writes `score`, the probability of the label in [0, 1], and `logit`, its log-odds in steps of 2^-10.

    A text without a word that the model knows (empty, blank, symbols only) is unscorable: both are null.
    """

    model: str
    """Path or URL of a supervised fastText model (.bin or .ftz)."""
    label: str | None = None
    """The label whose probability is the score, with or without `__label__`. Default: the one label of the model that
    is called hq, good, high, high_quality, positive or pos (in any case)."""
    max_bytes: int | None = Field(default=None, ge=1)
    """Score only the head of a document, this many bytes of UTF-8 cut to whole characters. Default: the whole text."""


def bind(config: Quality, context: Context) -> Transform:
    from stages.text.classifier import load

    classifier = load(context.files["model"])
    label = choose_label(classifier.labels, config.label)

    def transform(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch(_scores(classifier, label, batch.column("text"), config.max_bytes), schema=WRITES)

    return transform


def choose_label(labels: tuple[str, ...], wanted: str | None) -> str:
    """The label of a model (names without prefix) that `quality.label` means. Raises ConfigError listing the labels."""
    if wanted is None:
        likely = [label for label in labels if label.lower() in GOOD_LABELS]
        if len(likely) != 1:
            raise setting_error("quality.label", wanted, f"it must say which label is the good one of {sorted(labels)}")
        return likely[0]
    name = wanted.removeprefix("__label__")
    if name not in labels:
        raise setting_error("quality.label", wanted, f"it must be a label of the model: one of {sorted(labels)}")
    return name


WRITES = pa.schema([("score", pa.float32()), ("logit", pa.float32())])

STAGE = MapStage(
    name="quality",
    version=1,
    config=Quality,
    reads=("text",),
    writes=WRITES,
    bind=bind,
    score="score",
    files=lambda config: {"model": config.model},
)


def _scores(classifier: Classifier, label: str, texts: pa.Array, max_bytes: int | None) -> list[pa.Array]:
    reported = classifier.predict(texts, max_bytes)
    score = np.clip(reported[:, classifier.labels.index(label)], 0, 1)
    logit = np.clip(classifier.log_odds(reported, label), -LOGIT_LIMIT, LOGIT_LIMIT)
    steps = (np.rint(logit * LOGIT_STEPS) / LOGIT_STEPS).astype(np.float32)
    return [pa.array(values, pa.float32(), from_pandas=True) for values in (score, steps)]  # NaN becomes null


# ---------------------------------------------------------------------------------------------------------------- fit

MIN_DOCUMENTS = 50
"""Distinct documents of each kind below which a fit is refused: a fifth of them has to tell good from bad."""
FEW_HELD_OUT = 100
LINES = 1000


class FitSettings(StageConfig):
    """What `fit` may be told. The training settings are fastText's, under names that say what they are."""

    max_bytes: int | None = Field(default=None, ge=1)
    """Fit on the head of a document only. Score with the same `max_bytes`."""
    sample_bytes: int = Field(default=100_000_000, ge=1)
    """Text kept of each kind: the documents lowest by content hash, so that the order of reading does not matter."""
    held_out: float = Field(default=0.2, ge=0.05, le=0.5)
    """Share of documents, chosen by content hash, that the model is judged on and never sees."""
    dim: int = Field(default=16, ge=1)
    epochs: int = Field(default=5, ge=1)
    learning_rate: float = Field(default=0.5, gt=0)
    word_ngrams: int = Field(default=2, ge=1)
    min_count: int = Field(default=3, ge=1)
    """Words rarer than this in the training text are left out of the dictionary."""
    buckets: int = Field(default=1 << 16, ge=1)
    """Vectors that word n-grams share by hash. Each takes 4 x dim bytes of the model file, as each word does."""


DEFAULTS = FitSettings()


def fit(
    good: Iterable[Any], bad: Iterable[Any], *, seed: int = 0, settings: FitSettings = DEFAULTS
) -> tuple[bytes, dict[str, Any]]:
    """A classifier that tells `good` from `bad` (labels good and bad): its .bin file and a card of what it was made of.

    `good` and `bad` yield strings or Arrow string arrays, in any order: the same documents give the same bytes. Exact
    copies count once, documents in both are left out of both, and both give equally many, so a score of 0.5 means as
    likely good as bad at even odds. What is held out is chosen by content hash; near copies may lie on both sides.

    The card (JSON): label, labels, settings, binding, data, model, held_out (AUC, the AUC of document length alone,
    reliability in ten bins of the score), warnings. Raises ConfigError with the numbers when there is too little text.
    """
    from stages.text.classifier import DISTRIBUTION, installed, train

    samples = {kind: _sampled(source, seed, settings) for kind, source in (("good", good), ("bad", bad))}
    both = np.intersect1d(samples["good"].rank, samples["bad"].rank)
    size = min(len(part) for part in samples.values()) - len(both)
    used = {kind: _first(part.where(~np.isin(part.rank, both)), size) for kind, part in samples.items()}
    edge = np.uint64(settings.held_out * 2.0**64)
    held_out = {kind: part.where(part.split < edge) for kind, part in used.items()}
    data = {"in_both": len(both)} | {kind: _account(samples[kind], used[kind]) for kind in samples}
    if size < MIN_DOCUMENTS or not all(len(part) for part in held_out.values()):
        raise ConfigError(
            f"fit quality: got {size} distinct documents of each kind, but at least {MIN_DOCUMENTS} are needed, some "
            f"of them held out; give more documents (counts: {json.dumps(data)})"
        )
    model, classifier = train(
        _lines({kind: part.where(part.split >= edge) for kind, part in used.items()}),
        seed=seed & 0x7FFFFFFF, dim=settings.dim, epoch=settings.epochs, lr=settings.learning_rate,
        wordNgrams=settings.word_ngrams, minCount=settings.min_count, bucket=settings.buckets,
    )  # fmt: skip
    judged = _judge(classifier, held_out)
    return model, {
        "schema": "corpusmill.quality_model/1",
        "label": "good",
        "labels": sorted(classifier.labels),
        "settings": settings.model_dump() | {"seed": seed},
        "binding": f"{DISTRIBUTION} {installed().get(DISTRIBUTION, '')}".strip(),
        "data": data,
        "model": {"bytes": len(model), "xxh128": xxhash.xxh3_128_hexdigest(model), "words": len(classifier.words)},
        "held_out": judged,
        "warnings": _warnings(judged),
    }


def auc(good: NDArray[Any], bad: NDArray[Any]) -> float | None:
    """The share of (good, bad) pairs in which the good value is the higher one, ties half; None without a pair."""
    if not good.size or not bad.size:
        return None
    ordered = np.sort(bad)
    below = int(np.searchsorted(ordered, good, "left").sum()) + int(np.searchsorted(ordered, good, "right").sum())
    return below / (2 * good.size * bad.size)


def _sampled(source: Iterable[Any], seed: int, settings: FitSettings) -> Sample:
    from stages.text.classifier import PREFIX
    from stages.text.flatten import flatten

    def prepare(texts: pa.Array) -> pa.Array:
        # Training would take a word that starts like a label for one; prediction skips such words.
        return pc.replace_substring_regex(flatten(texts, settings.max_bytes), f"(^| ){PREFIX}[^ ]*", " ")

    return sample(source, settings.sample_bytes, seed=seed, prepare=prepare)


def _first(documents: Sample, size: int) -> Sample:
    return documents.where(np.arange(len(documents)) < size)


def _account(sampled: Sample, used: Sample) -> dict[str, Any]:
    return {
        "read": sampled.read,
        "distinct": len(sampled),
        "copies": int(sampled.copies.sum()) - len(sampled),
        "used": len(used),
        "used_bytes": int(used.lengths.sum()),
        "xxh128": used.xxh128,
    }


def _lines(documents: Mapping[str, Sample]) -> Iterator[str]:
    """Training lines of all kinds in the order of their hashes, which has nothing to do with the kind."""
    from stages.text.classifier import PREFIX

    texts = pa.chunked_array([part.texts for part in documents.values()])
    labels = np.repeat(list(documents), [len(part) for part in documents.values()])
    order = np.argsort(np.concatenate([part.split for part in documents.values()]), kind="stable")
    for rows in np.array_split(order, len(order) // LINES + 1):
        for label, text in zip(labels[rows], texts.take(pa.array(rows)).to_pylist(), strict=True):
            yield f"{PREFIX}{label} {text}\n"


def _judge(classifier: Classifier, held_out: Mapping[str, Sample]) -> dict[str, Any]:
    scored = {kind: _scores(classifier, "good", part.texts, None) for kind, part in held_out.items()}
    logits = {kind: logit.drop_null().to_numpy() for kind, (_, logit) in scored.items()}
    tenths = {kind: np.floor(score.drop_null().to_numpy() * 10).clip(0, 9) for kind, (score, _) in scored.items()}
    by_length = auc(held_out["good"].lengths, held_out["bad"].lengths) or 0.0
    return {
        "documents": {kind: len(part) for kind, part in held_out.items()},
        "unscorable": {kind: score.null_count for kind, (score, _) in scored.items()},
        "auc": auc(logits["good"], logits["bad"]),
        "auc_of_length": max(by_length, 1 - by_length),  # a rule on length may point either way
        "reliability": [
            {"lower": i / 10, "upper": (i + 1) / 10} | {kind: int((tenths[kind] == i).sum()) for kind in scored}
            for i in range(10)
        ],
    }


def _warnings(judged: Mapping[str, Any]) -> list[str]:
    measured, by_length, documents = judged["auc"], judged["auc_of_length"], judged["documents"]
    found = []
    if measured is None:
        found.append("no held-out document of one kind has a word of the dictionary: nothing is known about this model")
    elif measured <= by_length:
        found.append(f"no better than document length alone: AUC {measured:.3f} against {by_length:.3f} of length")
    if min(documents.values()) < FEW_HELD_OUT:
        found.append(f"few held-out documents ({documents['good']} good, {documents['bad']} bad): the AUC is rough")
    return found
