"""The one adapter to fastText (distribution fasttext-community, module fasttext): load, check, predict, train.

Several distributions install a module of that name, and some answer wrongly or not at all, so `load` asks questions of
known answer first and refuses a binding that fails them. Text reaches the binding only through `flatten`.
"""

from __future__ import annotations

import functools
import importlib.metadata
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numba import njit
from numpy.typing import NDArray

from pipeline.errors import ConfigError, setting_error
from stages.text.arrow import Bytes, Offsets, text_buffers
from stages.text.flatten import flatten

DISTRIBUTION = "fasttext-community"
PREFIX = "__label__"
END_MARK = "</s>"
FLOOR = 1e-5
"""fastText reports p + 1e-5 for a probability p: it takes exp(log(p + 1e-5))."""
PROBE = "abcdefghijklmnopqrstuvwxyz0123456789"
"""A word of which no pruned model keeps all character n-grams."""
CALL_BYTES = 1 << 20
"""Text handed to the binding in one call: it stays in the cache, and few Python strings are alive at a time."""


class Classifier:
    """A supervised fastText model that has passed the questions of `load`."""

    def __init__(self, model: Any) -> None:
        args, names = model.f.getArgs(), model.get_labels()
        self.model = model
        self.labels = tuple(name.removeprefix(PREFIX) for name in names)
        """In the order of the columns of `predict`, without the prefix."""
        self.loss: str = args.loss.name
        self.words = _words(model)
        self._columns: Mapping[str, int] = {name: column for column, name in enumerate(names)}
        self._dictionary = _dictionary(self.words)
        self._subword_rows = len(self.words) + 1 + args.bucket if args.maxn > 0 else 0

    def predict(self, texts: pa.Array, max_bytes: int | None = None) -> NDArray[np.float32]:
        """What fastText reports for each label: float32, one row per text in order, one column per label.

        The row is NaN where a text holds nothing that was seen in training: no word of the dictionary and, for models
        with character n-grams, no character n-gram of a word of the dictionary either. fastText's answer would be that
        to an empty text, or to the noise of vectors that no training ever moved.
        """
        result = np.empty((len(texts), len(self.labels)), np.float32)
        for first, last in _runs(text_buffers(texts)[0], CALL_BYTES):
            lines = flatten(texts[first:last], max_bytes)
            result[first:last] = np.where(self._seen(lines)[:, None], self._answers(lines.to_pylist()), np.nan)
        return result

    def log_odds(self, reported: NDArray[np.float32], label: str) -> NDArray[np.float64]:
        """ln(p / (1 - p)) of `label` for rows of `predict`; infinite where p is 0 or 1, NaN where the row is.

        Scores crowd near 1, where float32 has steps of 6e-8. Where labels share one probability, 1 - p is therefore
        taken from what is left to the other labels, which is known to about 1e-11.
        """
        column = self.labels.index(label)
        exact = np.clip(reported.astype(np.float64) - FLOOR, 0.0, 1.0)
        rest = 1 - exact[:, column] if self.loss in ("ova", "ns") else np.delete(exact, column, axis=1).sum(axis=1)
        with np.errstate(divide="ignore"):
            return np.log(exact[:, column]) - np.log(rest)

    def _answers(self, lines: list[str]) -> NDArray[np.float32]:
        labels, probabilities = self.model.predict(lines, k=-1)
        if not len(labels) == len(probabilities) == len(lines):
            raise ValueError(f"{len(labels)} results for {len(lines)} lines")
        # A row lists its labels best first; hierarchical softmax leaves out those of next to no probability.
        counts = np.fromiter(map(len, labels), np.int64, len(lines))
        columns = np.fromiter(map(self._columns.__getitem__, chain.from_iterable(labels)), np.int64, int(counts.sum()))
        result = np.zeros((len(lines), len(self.labels)), np.float32)
        result[np.repeat(np.arange(len(lines)), counts), columns] = np.concatenate(probabilities)
        return result

    def _seen(self, lines: pa.Array) -> NDArray[np.bool_]:
        seen = np.zeros(len(lines), np.bool_)
        _any_word(*text_buffers(lines), *self._dictionary, seen)
        if self._subword_rows:
            for row in np.flatnonzero(~seen):
                words = lines[int(row)].as_py().split(" ")
                seen[row] = any(self._subwords[_subword_ids(self.model, word)].any() for word in words if word)
        return seen

    @functools.cached_property
    def _subwords(self) -> NDArray[np.bool_]:
        """Which rows of the input matrix training moved, as far as can be told: words, and character n-grams of words.

        In a pruned model each row that is left was picked for its weight, so all count.
        """
        names, ids = self.model.get_subwords(PROBE)
        if len(ids) < len(names):
            return np.ones(self._subword_rows, np.bool_)
        rows = np.zeros(self._subword_rows, np.bool_)
        for word in self.words:
            rows[_subword_ids(self.model, word)] = True
        return rows


def load(path: Path) -> Classifier:
    """The classifier in the .bin or .ftz file at `path`.

    Raises ConfigError when the file is no supervised fastText model, and with the command to run when the installed
    module `fasttext` is missing, is another distribution's, or gives wrong answers.
    """
    fasttext = _binding()
    try:
        model = fasttext.load_model(str(path))
    except (ValueError, MemoryError) as error:
        raise setting_error("model", str(path), f"it must be a whole fastText model ({error})") from error
    try:
        if model.f.getArgs().model.name != "supervised":
            raise setting_error("model", str(path), "it must be a supervised model: this one holds word vectors")
        classifier = Classifier(model)
        if len(classifier.labels) < 2:
            raise setting_error("model", str(path), f"it must know two labels or more: it has {classifier.labels}")
        fault = _fault(classifier)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise _broken(path, f"it cannot be asked for all labels of several lines ({error})") from error
    if fault:
        raise _broken(path, fault)
    return classifier


def train(lines: Iterable[str], **settings: float) -> tuple[bytes, Classifier]:
    """The .bin file of a supervised model of `lines`, and the classifier loaded from it.

    A line is "__label__x word word ..." with its line break; settings have fastText's names. One thread, so equal lines
    and settings give equal bytes. The binding trains from files and saves to files only: they live in a temporary
    folder for as long as this call.
    """
    fasttext = _binding()
    with tempfile.TemporaryDirectory(prefix="corpusmill-") as folder:
        source, target = Path(folder, "lines.txt"), Path(folder, "model.bin")
        with source.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(lines)
        try:
            model = fasttext.train_supervised(input=str(source), label=PREFIX, thread=1, verbose=0, **settings)
        except RuntimeError as error:
            raise setting_error("learning_rate", settings["lr"], f"training ends in: {error}", "lower it") from error
        model.save_model(str(target))
        return target.read_bytes(), load(target)


def _binding() -> Any:
    try:
        import fasttext
    except ImportError as error:
        raise ConfigError(f"module fasttext cannot be imported ({error}); run: pip install {DISTRIBUTION}") from error
    return fasttext


def installed() -> dict[str, str]:
    """The distributions that provide the module `fasttext`, with their versions: more than one is a clash."""
    providers = importlib.metadata.packages_distributions().get("fasttext", ())
    return {name: importlib.metadata.version(name) for name in sorted(set(providers))}


def _broken(path: Path, fault: str) -> ConfigError:
    found = installed()
    others = " ".join(name for name in found if name != DISTRIBUTION)
    remedy = f"pip uninstall -y {others} && " if others else ""
    return ConfigError(
        f"module fasttext (from {' '.join(found) or 'no distribution'}) with model {path}: {fault}; if that file is "
        f"whole, the module is broken; run: {remedy}pip install --force-reinstall {DISTRIBUTION}"
    )


def _fault(classifier: Classifier) -> str:
    """What is wrong with the answers to lines whose answers are known; empty when nothing is."""
    first, last, *_ = [*(word.decode("utf-8", "replace") for word in classifier.words[:2]), "a", "b"]
    texts = [f"{first}\n{last}", f"{first} {last}", "", last, f"{first} {PREFIX}none", first]
    lines = flatten(pa.array(texts, pa.large_string())).to_pylist()
    answers, reverse = classifier._answers(lines), classifier._answers(lines[::-1])  # noqa: SLF001
    if not ((answers >= 0) & (answers <= 1 + 2 * FLOOR)).all():
        return f"probabilities run from {answers.min()} to {answers.max()}"
    if not np.array_equal(answers, reverse[::-1]):
        return "answers depend on the order of the lines"
    if not np.array_equal(answers[0], answers[1]) or not np.array_equal(answers[4], answers[5]):
        return "a line break or a label inside a text changes its answer"
    floor = len(classifier.labels) * FLOOR
    # Within half of what FLOOR adds, so that a binding without it would be noticed.
    if classifier.loss == "softmax" and (np.abs(answers.sum(axis=1) - 1 - floor) > floor / 2).any():
        return f"probabilities of all labels add up to {answers.sum(axis=1).tolist()}"
    return ""


def _words(model: Any) -> list[bytes]:
    """The dictionary without the end mark, which every text has."""
    words = model.get_words(on_unicode_error="surrogateescape")
    return [word.encode("utf-8", "surrogateescape") for word in words if word != END_MARK]


def _subword_ids(model: Any, word: str | bytes) -> NDArray[np.int64]:
    return np.asarray(model.get_subwords(word, on_unicode_error="replace")[1], np.int64)


def _runs(offsets: Offsets, limit: int) -> Iterator[tuple[int, int]]:
    """Runs of rows of at most `limit` bytes, or of one row."""
    first, rows = 0, offsets.size - 1
    while first < rows:
        last = max(first + 1, int(np.searchsorted(offsets, offsets[first] + limit, "right")) - 1)
        yield first, last
        first = last


def _dictionary(words: list[bytes]) -> tuple[Offsets, Bytes, NDArray[np.int32]]:
    """Offsets and bytes of the words, and an open-addressing table of their numbers, at most half full."""
    offsets, data = text_buffers(pa.array(words, pa.large_binary()))
    slots = np.full(1 << (2 * len(words)).bit_length(), -1, np.int32)
    _fill(offsets, data, slots)
    return offsets, data, slots


@njit(cache=True, nogil=True)
def _fill(word_offsets, word_data, slots):
    for number in range(word_offsets.size - 1):
        word = word_data[word_offsets[number] : word_offsets[number + 1]]
        slots[_slot(word, word_offsets, word_data, slots)] = number


@njit(cache=True, nogil=True)
def _slot(word, word_offsets, word_data, slots):
    """Where `word` lies in the table, or the free slot where it belongs."""
    h = np.uint64(0xCBF29CE484222325)
    for byte in word:
        h = (h ^ np.uint64(byte)) * np.uint64(0x100000001B3)
    mask = np.uint64(slots.size - 1)
    at = (h ^ (h >> np.uint64(32))) & mask
    while slots[at] >= 0:
        number = slots[at]
        known = word_data[word_offsets[number] : word_offsets[number + 1]]
        if known.size == word.size and (known == word).all():
            break
        at = (at + np.uint64(1)) & mask
    return at


@njit(cache=True, nogil=True)
def _any_word(offsets, data, word_offsets, word_data, slots, seen):
    """For each flattened text, whether one of its words is in the dictionary; reading stops at the first."""
    for row in range(offsets.size - 1):
        begin, end = offsets[row], offsets[row + 1]
        while begin < end and not seen[row]:
            stop = begin
            while stop < end and data[stop] != 32:
                stop += 1
            if stop > begin:
                seen[row] = slots[_slot(data[begin:stop], word_offsets, word_data, slots)] >= 0
            begin = stop + 1
