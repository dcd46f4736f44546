"""Fast similarity sketching (Dahlgaard, Knudsen and Thorup, 2017), and LSH band keys made of the sketch.

Two sets agree in each value of their sketches with probability J, their Jaccard similarity, as with k independent
permutations, but the error is lower and the cost is O(n + k log k) instead of O(n k).
"""

from __future__ import annotations

import numba as nb
import numpy as np

from stages.text.bits import P1, P2, U32, U64, mix
from stages.text.shingles import EMPTY, LARGEST, ROOM, lower, shingles_of


@nb.njit(nogil=True, cache=True)
def sketch(shingles, out):
    """Fill the k values of `out` from one or more 64-bit shingle hashes; order and repeats do not matter.

    Round 0 throws each shingle into one of k bins and keeps the least value of each. Bins still empty are filled by
    further throws of all shingles; the last k rounds throw everything into one given bin, so that none stays empty.
    """
    out[:] = EMPTY
    lower(out, shingles)
    _fill(shingles, out)


@nb.njit(nogil=True, cache=True)
def _fill(shingles, out):
    """The rounds after the first, for bins that are still empty."""
    k = U64(out.size)
    done = out != EMPTY
    fresh = np.empty(out.size, np.int64)
    left, turn = out.size - np.count_nonzero(done), 1
    while left > 0:
        found = 0
        for s in shingles:
            h = mix(s + U64(turn) * P1)
            bin_ = np.int64(((h >> U64(32)) * k) >> U64(32)) if turn < out.size else turn - out.size
            if not done[bin_]:
                if out[bin_] == EMPTY:
                    fresh[found] = bin_
                    found += 1
                out[bin_] = min(out[bin_], LARGEST, U32(h))
        done[fresh[:found]] = True
        left -= found
        turn += 1


@nb.njit(nogil=True, cache=True)
def band_keys(offsets, data, scopes, ngram, bands, rows, tables, keys, owners):
    """One key per band and text, with the text's scope mixed in: how many there are, and in `owners` whose each is.

    A text without words has no keys.
    """
    low = np.empty(0, np.uint8)
    shingles = np.empty(ROOM, np.uint64)
    values = np.empty(bands * rows, np.uint32)
    at = 0
    for row in range(offsets.size - 1):
        text = data[offsets[row] : offsets[row + 1]]
        values[:] = EMPTY
        count, shingles, low = shingles_of(text, ngram, tables, low, shingles, values)
        at_hand = np.all(values == EMPTY)
        if at_hand and count == 0:
            continue
        lower(values, shingles[:count])
        if np.any(values == EMPTY):
            if not at_hand:  # hardly ever: shingles for which there was no room are many times the bins
                count, shingles, low = shingles_of(text, ngram, tables, low, shingles, values[:0])
            _fill(shingles[:count], values)
        for band in range(bands):
            h = mix(scopes[row] + U64(band + 1) * P1)
            for value in values[band * rows : (band + 1) * rows]:
                h = mix(h ^ U64(value)) + P2
            keys[at] = h | U64(1)
            owners[at] = row
            at += 1
    return at
