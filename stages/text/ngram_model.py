"""Train, store and run the byte n-gram model of `ngram`: counts that add up exactly, one table a model, plain bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ContractError
from stages.text import ngram
from stages.text.arrow import Bytes, Offsets

Windows = NDArray[np.uint64]
Counts = NDArray[np.int64]
Indices = NDArray[np.int64]

SORTED_AT_ONCE = 1 << 22
"""Windows that `count` sorts at a time: 32 MiB."""
MAGIC, HEADER = b"ngrams/1", 4096


class Model(NamedTuple):
    """A trained model: `table` uint64[2^bits] of levels 3 to 6, `pairs` float32[65536, 2] of levels 1 and 2."""

    table: NDArray[np.uint64]
    pairs: NDArray[np.float32]


def count(data: Bytes, starts: Offsets, ends: Offsets) -> tuple[Windows, Counts]:
    """Distinct six-byte windows of the documents data[start:end], ascending, with how often each occurs.

    The sum of the counts over any cut of the documents is the count of all. Beside the distinct windows it needs memory
    for SORTED_AT_ONCE of them, or for those of the longest document.
    """
    if not len(starts):
        return np.empty(0, np.uint64), np.empty(0, np.int64)
    turns = np.cumsum(ends - starts) // SORTED_AT_ONCE
    parts = []
    for documents in np.split(np.arange(len(starts)), np.flatnonzero(np.diff(turns)) + 1):
        windows = np.empty(int((ends[documents] - starts[documents]).sum()), np.uint64)
        ngram.fill_windows(data, starts[documents], ends[documents], windows)
        windows.sort()
        first = _firsts(windows)
        parts.append((windows[first], np.diff(first, append=len(windows))))
    return parts[0] if len(parts) == 1 else add([part[0] for part in parts], [part[1] for part in parts])


def add(windows: Sequence[Windows], counts: Sequence[Counts]) -> tuple[Windows, Counts]:
    """The sum of several counts: distinct windows, ascending, and what each was counted in all of them."""
    every, number = np.concatenate(windows), np.concatenate(counts)
    order = np.argsort(every, kind="stable")
    every = every[order]
    first = _firsts(every)
    return every[first], _sums(number[order], first)


def build(windows: Windows, counts: Counts, bits: int, least: Mapping[int, int]) -> Model:
    """The model of distinct ascending windows and their counts (at least one window), in a table of 2^bits entries.

    `least` is the count under which an n-gram of a level (3 to 6) is dropped. The bytes depend on the counts alone.
    """
    shift = np.uint64(64 - bits)
    table, levels = np.zeros(1 << bits, np.uint64), np.zeros(1 << bits, np.uint8)
    owners = np.zeros(1 << bits, np.int64)
    pairs = np.ones((1 << 16, 2), np.float32)
    pairs[:, 0] = _pair_probabilities(*_level(windows, counts, 1), *_level(windows, counts, 2))
    for level in range(3, ngram.ORDER + 1):
        keys, number = _level(windows, counts, level)
        ngram.place(keys, number, level, least.get(level, 1), shift, table, levels, owners)
        contexts = 1 << 16 if level == 3 else 1 << bits
        mass, held = np.zeros(contexts, np.int64), np.zeros(contexts)
        ngram.weigh(keys, number, level, shift, table, levels, mass, held)
        if level == 3:
            pairs[:, 1] = np.where(mass > 0, np.maximum(1 - held, 2.0**-15), 1)
        else:
            ngram.set_escapes(level - 1, table, levels, mass, held)
    return Model(table, pairs)


def score(model: Model, data: Bytes, offsets: Offsets, documents: Indices, bits: NDArray[np.float64]) -> None:
    """Set bits[d] to -log2 of the probability of each of the documents d; other elements stay as they are."""
    shift = np.uint64(65 - len(model.table).bit_length())
    ngram.set_bits(data, offsets, documents, model.table, model.pairs, shift, ngram.REPEAT_WEIGHTS, bits)


def dump(models: Sequence[Model | None]) -> bytes:
    """All models in one file, little-endian.

    HEADER bytes hold MAGIC, the number of models and the entries of each one's table (int64, 0 for None). Then come,
    for each model that is there, its pairs and its table.
    """
    entries = [0 if model is None else len(model.table) for model in models]
    header = MAGIC + np.array([len(models), *entries], "<i8").tobytes()
    parts: list[bytes | memoryview] = [header.ljust(HEADER, b"\0")]
    for model in models:
        if model is not None:
            parts += [model.pairs.astype("<f4", copy=False).data, model.table.astype("<u8", copy=False).data]
    return b"".join(parts)


def load(stored: bytes) -> tuple[Model | None, ...]:
    """The models of `dump`, as views of `stored`. Raises ContractError where that is something else or cut short."""
    if not bytes(stored[:HEADER]).startswith(MAGIC):
        raise ContractError("n-gram model: the stored facts are not a model of this version; run again without them")
    number = int(np.frombuffer(stored, "<i8", 1, len(MAGIC))[0])
    entries = np.frombuffer(stored, "<i8", number, len(MAGIC) + 8).tolist()
    pair_bytes = 2 * 4 << 16
    wanted = HEADER + sum(pair_bytes + 8 * size for size in entries if size)
    if len(stored) != wanted:
        raise ContractError(f"n-gram model: the stored facts have {len(stored)} bytes where their header says {wanted}")
    models: list[Model | None] = []
    at = HEADER
    for size in entries:
        if not size:
            models.append(None)
            continue
        pairs = np.frombuffer(stored, "<f4", 2 << 16, at).reshape(-1, 2)
        models.append(Model(np.frombuffer(stored, "<u8", size, at + pair_bytes), pairs))
        at += pair_bytes + 8 * size
    return tuple(models)


def _firsts(ascending: Windows) -> Indices:
    """Where a new value starts."""
    new = np.ones(len(ascending), bool)
    np.not_equal(ascending[1:], ascending[:-1], out=new[1:])
    return np.flatnonzero(new)


def _sums(counts: Counts, first: Indices) -> Counts:
    return np.add.reduceat(counts, first) if len(first) else np.empty(0, np.int64)


def _level(windows: Windows, counts: Counts, level: int) -> tuple[Windows, Counts]:
    """The n-grams of a level and their counts: the upper bytes of the windows, so equal ones are neighbours."""
    keys = windows >> np.uint64(64 - 8 * level)
    first = _firsts(keys)
    return keys[first], _sums(counts, first)


def _pair_probabilities(keys1: Windows, counts1: Counts, keys2: Windows, counts2: Counts) -> NDArray[np.float64]:
    """P_2 of newer given older, at [older + 256 newer]."""
    ones, twos = np.zeros(256), np.zeros((256, 256))
    ones[keys1.astype(np.int64)] = counts1
    twos.reshape(-1)[keys2.astype(np.int64)] = counts2
    kinds1, kinds2 = (ones > 0).sum(), np.maximum((twos > 0).sum(0), 1)
    p1 = (ones + kinds1 / 256) / (ones.sum() + kinds1)
    smoothed: NDArray[np.float64] = (twos + kinds2 * p1[:, None]) / (twos.sum(0) + kinds2)
    return smoothed.reshape(-1)
