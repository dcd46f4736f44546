"""Fast similarity sketching (Dahlgaard, Knudsen and Thorup, 2017), and LSH band keys made of the sketch.

Two sets agree in each value of their sketches with probability J, their Jaccard similarity, as with k independent
permutations, but the error is lower and the cost is O(n + k log k) instead of O(n k).
"""

from __future__ import annotations

import numba as nb
import numpy as np

from stages.text.bits import P1, P2, U32, U64, mix
from stages.text.shingles import ROOM, shingles_of

EMPTY = U32(0xFFFFFFFF)
LARGEST = U32(0xFFFFFFFE)


@nb.njit(nogil=True, cache=True)
def sketch(shingles, out):
    """Fill the k values of `out` from one or more 64-bit shingle hashes; order and repeats do not matter.

    Round 0 throws each shingle into one of k bins and keeps the least value of each. Bins still empty are filled by
    further throws of all shingles; the last k rounds throw everything into one given bin, so that none stays empty.
    """
    k = U64(out.size)
    out[:] = EMPTY
    done = np.zeros(out.size, np.bool_)
    fresh = np.empty(out.size, np.int64)
    left, turn = out.size, 0
    while left > 0:
        found = 0
        for s in shingles:
            h = mix(s + U64(turn) * P1) if turn else s
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
        count, shingles, low = shingles_of(data[offsets[row] : offsets[row + 1]], ngram, tables, low, shingles)
        if count == 0:
            continue
        sketch(shingles[:count], values)
        for band in range(bands):
            h = mix(scopes[row] + U64(band + 1) * P1)
            for value in values[band * rows : (band + 1) * rows]:
                h = mix(h ^ U64(value)) + P2
            keys[at] = h | U64(1)
            owners[at] = row
            at += 1
    return at
