from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from pipeline.errors import ContractError
from stages.text import ngram
from stages.text.bits import mixed
from stages.text.ngram_model import Model, add, build, count, dump, load, score

LEAST = {5: 2, 6: 2}
VOCABULARY = "the of shard row and model to text is score byte with window a table for count level in document"
WORDS = VOCABULARY.split()


def sentences(seed: int, documents: int, words: int) -> list[bytes]:
    rng = np.random.default_rng(seed)
    picked = rng.zipf(1.3, (documents, words)) % len(WORDS)
    return [" ".join(WORDS[i] for i in row).encode() + b".\n" for row in picked]


def buffers(texts: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    joined = np.frombuffer(b"".join(texts), np.uint8)
    return joined, np.cumsum([0, *map(len, texts)], dtype=np.int64)


def counted(texts: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    data, offsets = buffers(texts)
    return count(data, offsets[:-1], offsets[1:])


def bits(model: Model, texts: list[bytes]) -> np.ndarray:
    data, offsets = buffers(texts)
    out = np.full(len(texts), np.nan)
    score(model, data, offsets, np.arange(len(texts)), out)
    return out


def padded(text: bytes) -> bytes:
    return b"\xff" * 6 + text


class Oracle:
    """The formulas of `stages.text.ngram` over dictionaries, in float64, with nothing lost to slots or 16 bits."""

    def __init__(self, texts: list[bytes]) -> None:
        self.grams = [Counter[bytes]() for _ in range(7)]
        for text in texts:
            for end in range(7, len(text) + 7):
                for k in range(1, 7):
                    self.grams[k][padded(text)[end - k : end]] += 1
        self.kept = [set(), set(self.grams[1]), set(self.grams[2])]
        for k in range(3, 7):
            self.kept.append({
                gram for gram, n in self.grams[k].items()
                if n >= LEAST.get(k, 1) and (k == 3 or gram[:-1] in self.kept[k - 1])
            })  # fmt: skip
        self.mass, self.held = Counter[bytes](), Counter[bytes]()
        for k in range(1, 7):
            for gram, n in self.grams[k].items():
                self.mass[gram[:-1]] += n + 1
        for k in range(3, 7):
            for gram in self.kept[k]:
                self.held[gram[:-1]] += self.grams[k][gram] / self.mass[gram[:-1]]

    def probability(self, gram: bytes) -> float:
        k, context = len(gram), gram[:-1]
        if k == 0:
            return 1 / 256
        lower = self.probability(gram[1:])
        if k <= 2:
            kinds = max(1, sum(context == other[:-1] for other in self.grams[k]))
            seen = self.mass[context] - kinds if context in self.mass else 0
            return (self.grams[k][gram] + kinds * lower) / (seen + kinds)
        term = self.grams[k][gram] / self.mass[context] if gram in self.kept[k] else 0.0
        return term + (1 - self.held[context]) * lower

    def bits(self, text: bytes) -> float:
        memory: dict[int, tuple[int, int]] = {}
        total = 0.0
        for end in range(7, len(text) + 7):
            gram, six = padded(text)[end - 6 : end], int.from_bytes(padded(text)[end - 7 : end - 1], "little")
            slot = (six * 0x9E3779B97F4A7C15 % 2**64) >> 50
            byte, run = memory.get(slot, (-1, -1))
            hit = byte == gram[-1]
            w = float(ngram.REPEAT_WEIGHTS[min(run, 15) + 1])
            total -= np.log2((w * hit + (1 - w) * self.probability(gram)) * 63 / 64 + 1 / 64 / 256)
            memory[slot] = (gram[-1], min(run + 1, 15) if hit else 0)
        return total


def test_model_agrees_with_its_formulas():
    """Bits of unseen documents equal those of the formulas evaluated over dictionaries, but for 16-bit storage."""
    train, test = sentences(1, 12, 25), [*sentences(2, 5, 25), "naïve façade, 東京\n".encode(), b"the row " * 40]
    oracle, model = Oracle(train), build(*counted(train), 22, LEAST)
    assert np.count_nonzero(model.table) == sum(map(len, oracle.kept[3:]))  # no two n-grams wanted one slot
    expected = np.array([oracle.bits(text) for text in test])
    np.testing.assert_allclose(bits(model, test), expected, rtol=5e-5)


@pytest.mark.parametrize("table_bits", [10, 20])
def test_next_byte_probabilities_sum_to_one(table_bits):
    """After any of 200 contexts the 256 next bytes have probability 1 together, also where most n-grams were pruned."""
    model = build(*counted(sentences(3, 200, 60)), table_bits, LEAST)
    rng = np.random.default_rng(4)
    contexts = [text[: rng.integers(0, len(text))] for text in sentences(5, 190, 80)]
    contexts += [rng.integers(0, 255, 50).astype(np.uint8).tobytes() for _ in range(10)]
    for context in contexts:
        with_next = bits(model, [context + bytes([byte]) for byte in range(256)])
        alone = bits(model, [context])[0] if context else 0.0
        assert np.exp2(alone - with_next).sum() == pytest.approx(1, abs=2e-4)


def test_counts_add_up_in_any_cut_and_order():
    """Counts of parts, added in reverse, are the counts of the whole, whatever is sorted at a time."""
    texts = sentences(6, 100, 40)
    windows, number = counted(texts)
    parts = [counted(texts[at : at + 7]) for at in range(0, 100, 7)][::-1]
    merged = add([part[0] for part in parts], [part[1] for part in parts])
    assert np.array_equal(merged[0], windows)
    assert np.array_equal(merged[1], number)
    assert number.sum() == sum(map(len, texts))
    assert (np.diff(windows.astype(object)) > 0).all()


def test_chunks_of_a_count_add_up(monkeypatch):
    """Sorting 1,000 windows at a time gives the same counts as sorting all at once."""
    texts = sentences(7, 60, 50)
    whole = counted(texts)
    monkeypatch.setattr("stages.text.ngram_model.SORTED_AT_ONCE", 1000)
    cut = counted(texts)
    assert np.array_equal(cut[0], whole[0])
    assert np.array_equal(cut[1], whole[1])


def test_larger_tables_predict_better():
    """The more n-grams have a slot, the lower the loss of unseen text."""
    train, test = counted(sentences(8, 300, 60)), sentences(9, 50, 60)
    losses = [bits(build(*train, size, LEAST), test).sum() for size in (6, 9, 16)]
    assert losses[0] > losses[1] > losses[2]


def test_most_frequent_ngram_has_the_slot():
    """Where trigrams share a slot, it holds the most frequent, of equals the smallest, and nothing longer."""
    windows, number = counted(sentences(8, 300, 60))
    keys, where = np.unique(windows >> np.uint64(40), return_inverse=True)
    hashes = mixed(keys + ngram.TAGS[3])
    rank = np.lexsort((keys, -np.bincount(where, number)))
    slots, first = np.unique(hashes[rank] >> np.uint64(60), return_index=True)
    assert len(slots) == 16
    table = build(windows, number, 4, LEAST).table
    assert (table >> np.uint64(32) == hashes[rank][first] & np.uint64(0xFFFFFFFF)).all()


def test_documents_do_not_see_each_other():
    """A document has the same bits alone, after a copy of itself, and in the 65,536th place after many others."""
    model = build(*counted(sentences(10, 50, 40)), 16, LEAST)
    text = b"the window of the shard and the window of the shard"
    alone = bits(model, [text])[0]
    assert bits(model, [text, text]).tolist() == [alone, alone]
    assert bits(model, [text, *[b"a row"] * 65_534, text])[-1] == alone


def test_probabilities_survive_sixteen_bits():
    """A packed probability comes back within 2^-13 of itself, and powers of two come back exactly."""
    for p in np.geomspace(2**-14.9, 1, 1000):
        assert ngram.unpack(ngram.pack(p)) == pytest.approx(p, rel=2**-13)
    assert [float(ngram.unpack(ngram.pack(2.0**-k))) for k in range(15)] == [2.0**-k for k in range(15)]


def test_stored_models_come_back():
    """A dump loads as the same models, absent ones included, without a copy."""
    model = build(*counted(sentences(11, 20, 20)), 16, LEAST)
    stored = dump([model, None])
    first, second = load(stored)
    assert second is None
    assert np.array_equal(first.table, model.table)
    assert np.array_equal(first.pairs, model.pairs)
    assert not first.table.flags.owndata
    assert stored == dump([model, None])


def test_damaged_models_are_refused():
    """Facts of another kind or length are a contract error, not a wrong score."""
    stored = dump([build(*counted(sentences(12, 5, 20)), 16, LEAST)])
    with pytest.raises(ContractError, match="not a model of this version"):
        load(b"{}")
    with pytest.raises(ContractError, match="header says"):
        load(stored[:-8])
