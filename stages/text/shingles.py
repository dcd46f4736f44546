"""Shingles: 64-bit hashes of the windows of n words of a document. A text of fewer words is one shingle."""

from __future__ import annotations

import numba as nb
import numpy as np

from stages.text.bits import P3, U32, U64, mix
from stages.text.words import block_end, fold, hash_words

TOKENS = 4096
"""Word hashes held at a time."""
ROOM = 1 << 14
"""Shingles that a document starts with room for; beyond, repeated ones are dropped before more room is made."""
EMPTY, LARGEST = U32(0xFFFFFFFF), U32(0xFFFFFFFE)
"""A bin without a value, and the largest value."""


@nb.njit(nogil=True, cache=True)
def shingles_of(text, ngram, tables, low, out, least):
    """The shingles of a text in out[:count], in no order and perhaps repeated: (count, out, low), the arrays grown.

    Memory follows the longest run without a blank and the number of distinct shingles, not the size of the text. With
    bins in `least` it does not follow that number either: shingles for which there is no room go into those.
    """
    tokens = np.empty(TOKENS + ngram, np.uint64)
    lead = U64(1)
    for _ in range(ngram - 1):
        lead *= P3
    count = have = at = 0
    while at < text.size:
        end = block_end(text, at)
        if low.size < 3 * (end - at) + 32:
            low = np.empty(3 * (end - at) + 32, np.uint8)
        size, source = fold(text[at:end], tables, low)
        state = (0, 0, 0, False)
        at = end
        while True:
            have, state = hash_words(low, source, size, state, tokens, have)
            full = have == tokens.size
            if have >= ngram:
                if count + have > out.size:
                    count, out = _make_room(count, out, have, least)
                count = _windows(tokens, have, ngram, lead, out, count)
                tokens[: ngram - 1] = tokens[have - ngram + 1 : have]
                have = ngram - 1
            if not full:
                break
    if count == 0 and have > 0:
        h = U64(0)
        for i in range(have):
            h = h * P3 + _spread(tokens[i])
        out[0] = mix(h)
        count = 1
    return count, out, low


@nb.njit(inline="always")
def _spread(token):
    return token ^ (token >> U64(31))


@nb.njit(nogil=True, cache=True)
def _windows(tokens, have, ngram, lead, out, count):
    """Append the windows over tokens[:have], as a rolling polynomial that a bijection then mixes."""
    h = U64(0)
    for i in range(ngram - 1):
        h = h * P3 + _spread(tokens[i])
    for i in range(ngram - 1, have):
        h = h * P3 + _spread(tokens[i])
        out[count] = mix(h)
        count += 1
        h -= _spread(tokens[i - ngram + 1]) * lead
    return count


@nb.njit(nogil=True, cache=True)
def _make_room(count, out, need, least):
    count = sort_unique(out, count)
    if count + need > out.size // 2:
        if least.size:
            lower(least, out[:count])
            return 0, out
        bigger = np.empty(2 * (out.size + need), np.uint64)
        bigger[:count] = out[:count]
        out = bigger
    return count, out


@nb.njit(nogil=True, cache=True)
def lower(least, shingles):
    """Throw each shingle into one of the bins, which keep the least value: `EMPTY` until there is one."""
    k = U64(least.size)
    for s in shingles:
        bin_ = np.int64(((s >> U64(32)) * k) >> U64(32))
        least[bin_] = min(least[bin_], LARGEST, U32(s))


@nb.njit(nogil=True, cache=True)
def sort_unique(x, count):
    """Sort x[:count], drop repeats, return how many are left. The numbers are hashes: top bits spread them out."""
    bits = 1
    while (1 << bits) < count and bits < 20:
        bits += 1
    shift = U64(64 - bits)
    starts = np.zeros((1 << bits) + 1, np.int64)
    for i in range(count):
        starts[np.int64(x[i] >> shift) + 1] += 1
    for i in range(1 << bits):
        starts[i + 1] += starts[i]
    near = np.empty(count, np.uint64)
    for i in range(count):
        slot = np.int64(x[i] >> shift)
        near[starts[slot]] = x[i]
        starts[slot] += 1
    for i in range(1, count):
        value, j = near[i], i - 1
        while j >= 0 and near[j] > value:
            near[j + 1] = near[j]
            j -= 1
        near[j + 1] = value
    kept = 0
    for i in range(count):
        if kept == 0 or near[i] != x[kept - 1]:
            x[kept] = near[i]
            kept += 1
    return kept


@nb.njit(nogil=True, cache=True)
def shingle_sets(offsets, data, rows, ngram, tables):
    """The sorted distinct shingles of the texts `rows`, one set after the other: (ends after a 0, shingles)."""
    ends = np.zeros(rows.size + 1, np.int64)
    sets = np.empty(1 << 16, np.uint64)
    low = np.empty(0, np.uint8)
    out, no_bins = np.empty(ROOM, np.uint64), np.empty(0, np.uint32)
    at = 0
    for i in range(rows.size):
        text = data[offsets[rows[i]] : offsets[rows[i] + 1]]
        count, out, low = shingles_of(text, ngram, tables, low, out, no_bins)
        count = sort_unique(out, count)
        if at + count > sets.size:
            bigger = np.empty(2 * (at + count), np.uint64)
            bigger[:at] = sets[:at]
            sets = bigger
        sets[at : at + count] = out[:count]
        at += count
        ends[i + 1] = at
    return ends, sets[:at].copy()
