"""How much of a text is in word n-grams that it repeats: the repetition rules' measures, each n from the one below.

An n-gram can only be repeated where both of its (n - 1)-grams are, so every step looks at the few places that the step
before left, and numbers its n-grams by pairs of numbers: exact, without a hash of more than a word.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from stages.text.rules_numbering import cleared, intern

TOP_SIZES = (2, 3, 4)
DUPLICATE_SIZES = (5, 6, 7, 8, 9, 10)
LONGEST = DUPLICATE_SIZES[-1]


@njit(cache=True, nogil=True)
def _keep_repeated(places, numbers, found, counts):
    """Drops the places whose number counts 1; returns how many are left."""
    kept = 0
    for i in range(found):
        place, number = places[i], numbers[i]
        places[kept], numbers[kept] = place, number
        kept += counts[number] > 1
    return kept


@njit(cache=True, nogil=True)
def _lengthen(places, numbers, found, slots, keys, counts, distinct):
    """Numbers the n-grams at neighbouring places, in place, and counts them; returns (places, highest number + 1)."""
    expected = min(found, distinct * distinct)
    shift = cleared(slots, expected + 1)
    counts[: expected + 2] = 0
    kept, numbered = 0, 1
    for i in range(found - 1):
        if places[i + 1] == places[i] + 1:
            key = np.uint64(numbers[i]) << np.uint64(32) | np.uint64(numbers[i + 1])
            number = intern(key, slots, shift, keys, numbered)
            numbered += number == numbered
            counts[number] += 1
            places[kept], numbers[kept] = places[i], number
            kept += 1
    return kept, numbered


@njit(cache=True, nogil=True)
def _top(places, numbers, found, counts, distinct, reach, n):
    """Code points, blanks between words included, in all copies of the most frequent n-gram; among equals the first.

    `places` holds all that may be repeated: where none is, it is the text's first n-gram, once.
    """
    best, most = 0, 1
    for number in range(1, distinct):
        if counts[number] > most:
            best, most = number, counts[number]
    place = 0
    if best:
        i = 0
        while numbers[i] != best:
            i += 1
        place = places[i]
    return most * (reach[place + n] - reach[place] + n - 1)


@njit(cache=True, nogil=True)
def _duplicate(places, numbers, found, counts, reach, n):
    """Code points in n-grams that came before, read from the left: no n-gram starts inside a copy.

    Consumes `counts`: a number that has been read counts 0.
    """
    chars, resume = 0, 0
    for i in range(found):
        place, number = places[i], numbers[i]
        if place < resume:
            continue
        if counts[number] == 0:
            chars += reach[place + n] - reach[place]
            resume = place + n
        counts[number] = 0
    return chars


@njit(cache=True, nogil=True)
def repeated(ids, words, distinct, reach, slots, keys, places, counts, top, duplicate):
    """Fills `top` (sizes 2 to 4) and `duplicate` (5 to 10) with code points. Overwrites `ids` and `keys`."""
    top[:] = 0
    duplicate[:] = 0
    counts[:distinct] = 0
    for i in range(words):
        places[i] = i
        counts[ids[i]] += 1
    found = _keep_repeated(places, ids, words, counts)
    for n in range(2, LONGEST + 1):
        if words < n:
            break
        found, distinct = _lengthen(places, ids, found, slots, keys, counts, distinct)
        if n <= TOP_SIZES[-1]:
            top[n - TOP_SIZES[0]] = _top(places, ids, found, counts, distinct, reach, n)
        found = _keep_repeated(places, ids, found, counts)
        if n >= DUPLICATE_SIZES[0]:
            # counts stays non-zero for what is skipped, and the next size only asks whether a number is repeated
            duplicate[n - DUPLICATE_SIZES[0]] = _duplicate(places, ids, found, counts, reach, n)
