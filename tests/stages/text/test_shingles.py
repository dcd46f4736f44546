import itertools

import numpy as np
import pyarrow as pa
import pytest

from stages.text.arrow import text_buffers
from stages.text.codepoints import tables
from stages.text.shingles import ROOM, shingle_sets, shingles_of, sort_unique


def sets(texts, ngram=5):
    offsets, data = text_buffers(pa.array(texts, pa.large_string()))
    ends, found = shingle_sets(offsets, data, np.arange(len(texts)), ngram, tables())
    return [set(found[a:b].tolist()) for a, b in itertools.pairwise(ends)]


@pytest.mark.parametrize("ngram", [1, 2, 5, 13])
def test_shingles_stand_for_windows_of_words(ngram):
    """Two texts share as many shingles as they share windows of n words, in blocks and out of them."""
    rng = np.random.default_rng(ngram)
    texts = [[f"w{i}" for i in rng.integers(0, 12, size)] for size in (0, 1, 4, 5, 12, 13, 14, 40, 300, 3000)]
    windows = [{tuple(t[i : i + ngram]) for i in range(max(1, len(t) - ngram + 1))} - {()} for t in texts]
    found = sets([" ".join(text) for text in texts], ngram)
    for i in range(len(texts)):
        for j in range(len(texts)):
            assert len(found[i] & found[j]) == len(windows[i] & windows[j])


def test_rows_may_be_chosen_and_sets_are_sorted():
    """Sets come for the rows asked for, in that order, sorted and without repeats."""
    offsets, data = text_buffers(pa.array(["a b", "", "c " * 100], pa.large_string()))
    ends, found = shingle_sets(offsets, data, np.array([2, 1, 0, 2]), 5, tables())
    assert np.diff(ends).tolist() == [1, 0, 1, 1]
    assert found[0] == found[2] != found[1]


def test_a_document_of_a_million_shingles():
    """All distinct shingles of a long document are found, while one that repeats itself needs little room."""
    text = " ".join(f"w{i}" for i in range(1_000_004))
    (found,) = sets([text])
    assert len(found) == 1_000_000
    data = np.frombuffer(("word " * 1_000_000).encode(), np.uint8)
    room, no_bins = np.empty(ROOM, np.uint64), np.empty(0, np.uint32)
    count, out, low = shingles_of(data, 5, tables(), np.empty(0, np.uint8), room, no_bins)
    assert len(set(out[:count].tolist())) == 1
    assert out.size == ROOM
    assert low.size < 10_000


@pytest.mark.parametrize("size", [0, 1, 2, 100, 5000])
def test_sort_unique_is_numpys(size):
    """Hashes with and without repeats come out sorted, each once."""
    rng = np.random.default_rng(size)
    for few in (3, 1 << 62):
        values = rng.integers(0, few, size).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        expected = np.unique(values)
        assert values[: sort_unique(values, size)].tolist() == expected.tolist()
