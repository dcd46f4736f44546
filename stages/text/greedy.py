"""The kernels that decide which documents of a component go: the greedy solution by exact Jaccard, in keep order.

Documents come as sets of shingles, best first. Each is charged to the best earlier document that is kept and similar to
it; if there is none it is kept. By induction on rank there is exactly one such outcome, however the similar document is
found: by comparison with every kept one (`_plain`, for few) or through an index over the kept ones (`_indexed`).

Similarity is decided by integers: J >= t means |x & y| >= ceil(T (|x| + |y|) / (UNITS + T)) with T = t * UNITS.
"""

from __future__ import annotations

import numba as nb
import numpy as np

from stages.text.bits import P1, P2, U32, U64

UNITS = 10_000
NONE = np.int64(-1)
ORDINARY, FIXED, PROBE = 0, 1, 2
"""A document that takes part; one known to be kept; one that is only asked whether a kept one is similar."""
SMALL = 24
"""Kept documents of a component up to which each is compared; beyond, the index costs less."""
COMPARISONS, POSTINGS = 0, 1


@nb.njit(nogil=True, cache=True)
def settle(starts, roles, ends, sets, T, small, limit, charge, inter, over, counts):
    """Decide the components starts[c]:starts[c + 1] of documents; set i is sets[ends[i]:ends[i + 1]], sorted.

    Fills charge (the kept document's position or NONE) and inter (size of the intersection with it), marks in `over`
    those kept because deciding them costs more than `limit` (a posting read is 1, a comparison (|x| + |y|) / 4), and
    adds to counts[COMPARISONS] and counts[POSTINGS]. The limit holds where the index is used.
    """
    for c in range(starts.size - 1):
        low, high = starts[c], starts[c + 1]
        own, role, charged, shared = ends[low : high + 1], roles[low:high], charge[low:high], inter[low:high]
        if not _plain(role, own, sets, T, small, charged, shared, counts):
            charged[:] = NONE
            _indexed(role, own, sets, T, limit, charged, shared, over[low:high], counts)
        for i in range(low, high):
            if charge[i] != NONE:
                charge[i] += low


@nb.njit(inline="always")
def _need(a, b, T):
    """The smallest intersection of sets of a and b members that makes them similar."""
    return (T * (a + b) + UNITS + T - 1) // (UNITS + T)


@nb.njit(nogil=True, cache=True)
def overlap(x, y, need):
    """Size of the intersection of two sorted sets, or -1 as soon as `need` is out of reach."""
    i = j = both = 0
    spare_x, spare_y = x.size - need, y.size - need
    while i < x.size and j < y.size:
        stop_x, stop_y = min(x.size, i + 16), min(y.size, j + 16)
        while i < stop_x and j < stop_y:
            a, b = x[i], y[j]
            both += a == b
            i += a <= b
            j += b <= a
        if i - both > spare_x or j - both > spare_y:
            return -1
    return both if both >= need else -1


@nb.njit(nogil=True, cache=True)
def _plain(roles, ends, sets, T, small, charge, inter, counts):
    """Compare with every kept document, best first. False as soon as more than `small` are kept."""
    kept = np.empty(min(small, roles.size) + 1, np.int64)
    held = 0
    for x in range(roles.size):
        charge[x] = NONE
        a = ends[x + 1] - ends[x]
        if roles[x] != FIXED and a > 0:
            for y in kept[:held]:
                b = ends[y + 1] - ends[y]
                if min(a, b) * UNITS < T * max(a, b):
                    continue
                counts[COMPARISONS] += 1
                both = overlap(sets[ends[x] : ends[x + 1]], sets[ends[y] : ends[y + 1]], _need(a, b, T))
                if both >= 0:
                    charge[x], inter[x] = y, both
                    break
        if charge[x] == NONE and roles[x] != PROBE:
            if held >= small:
                return False
            kept[held] = x
            held += 1
    return True


@nb.njit(nogil=True, cache=True)
def _indexed(roles, ends, sets, T, limit, charge, inter, over, counts):
    """The same through a prefix-filter index over the kept documents.

    Put all shingles in one order. Two similar documents share one among the first |x| - need + 1 of each, so the larger
    of a pair is found by its LONG prefix, |x| - ceil(t |x|) + 1, and the smaller by its TIGHT one,
    |x| - ceil(2 t |x| / (1 + t)) + 1. The order is rarest first, so that prefixes meet few others.
    """
    n = roles.size
    begins, tokens, singles = _prefixes(ends, sets, T)
    size = 64
    while size < 2 * begins[n]:
        size *= 2
    table, heads = np.zeros(size, np.uint64), np.full((2, size), -1, np.int32)
    postings = np.empty((2 * begins[n] + 1, 4), np.int32)  # place in `kept`, place in its order, size, next posting
    posted = held = 0
    kept, found, seen = np.empty(n, np.int64), np.empty(n, np.int64), np.full(n, -1, np.int64)
    for x in range(n):
        a = ends[x + 1] - ends[x]
        tight = a - (2 * T * a + UNITS + T - 1) // (UNITS + T) + 1
        prefix = tokens[begins[x] : begins[x + 1]]
        if roles[x] != FIXED:
            count, left = _meet(x, a, tight, prefix, singles[x], T, limit, table, heads, postings, seen, found)
            counts[POSTINGS] += limit - left
            found[:count].sort()
            for y in kept[found[:count]]:
                b = ends[y + 1] - ends[y]
                left -= (a + b) // 4
                if left < 0:
                    break
                counts[COMPARISONS] += 1
                both = overlap(sets[ends[x] : ends[x + 1]], sets[ends[y] : ends[y + 1]], _need(a, b, T))
                if both >= 0:
                    charge[x], inter[x] = y, both
                    break
            over[x] |= left < 0
        if charge[x] == NONE and roles[x] != PROBE:
            for i in range(prefix.size):
                slot = _slot(table, prefix[i])
                table[slot] = prefix[i]
                for side in range(2 if singles[x] + i < tight else 1):
                    entry = postings[posted]
                    entry[0], entry[1], entry[2], entry[3] = held, singles[x] + i, a, heads[side, slot]
                    heads[side, slot] = posted
                    posted += 1
            kept[held] = x
            held += 1


@nb.njit(nogil=True, cache=True)
def _meet(x, a, tight, prefix, single, T, limit, table, heads, postings, seen, found):
    """Places in `kept` of what may be similar to x: (how many, what is left of the limit, negative if over)."""
    count, left = 0, limit
    for i in range(prefix.size):
        slot, place = _slot(table, prefix[i]), single + i
        if table[slot] == 0:
            continue
        # Side 0: x's tight prefix meets the long ones of larger sets; side 1: its long one the tight ones of smaller.
        for side in range(2):
            if side == 0 and place >= tight:
                continue
            posting = heads[side, slot]
            while posting >= 0:
                left -= 1
                if left < 0:
                    return 0, left
                entry = postings[posting]
                y, other, b, posting = entry[0], entry[1], np.int64(entry[2]), entry[3]
                fits = (b >= a and T * b <= UNITS * a) if side == 0 else (b < a and T * a <= UNITS * b)
                if fits and seen[y] != x:
                    need = _need(a, b, T)
                    if place <= a - need and other <= b - need:
                        seen[y] = x
                        found[count] = y
                        count += 1
    return count, left


@nb.njit(inline="always")
def _slot(table, token):
    """Where a token is in the hash table, or the empty place where it belongs."""
    mask = U64(table.size - 1)
    slot = (token * P1) >> U64(20) & mask
    while table[slot] != 0 and table[slot] != token:
        slot = (slot + U64(1)) & mask
    return slot


@nb.njit(nogil=True, cache=True)
def _prefixes(ends, sets, T):
    """The long prefix of each document: (where each begins, tokens, how many shingles occur nowhere else).

    Those stand before the prefix, left out: they meet nobody. A token is (count, hash) in one number. Counts are kept
    by a hash of the shingle, so two may share one: that changes the order and so the cost, never the outcome.
    """
    n, total = ends.size - 1, ends[-1] - ends[0]
    bits = 12
    while (1 << bits) < 2 * total and bits < 25:
        bits += 1
    shift = U64(64 - bits)
    counts = np.zeros(1 << bits, np.uint32)
    for i in range(ends[0], ends[n]):
        counts[np.int64((sets[i] * P2) >> shift)] += U32(1)
    begins, singles = np.zeros(n + 1, np.int64), np.empty(n, np.int64)
    tokens = np.empty(total * (UNITS - T) // UNITS + 2 * n + 16, np.uint64)
    keys = np.empty(np.max(np.diff(ends)), np.uint64)
    for x in range(n):
        a, several = ends[x + 1] - ends[x], 0
        for i in range(ends[x], ends[x + 1]):
            count = counts[np.int64((sets[i] * P2) >> shift)]
            if count > 1:
                keys[several] = U64(min(count, U32(0xFFFFF))) << U64(44) | sets[i] >> U64(20)
                several += 1
        singles[x] = a - several
        wanted = a - (T * a + UNITS - 1) // UNITS + 1 - singles[x] if a > 0 else 0
        wanted = min(max(wanted, 0), several)
        if wanted > 0:
            _smallest(keys[:several], wanted)
        tokens[begins[x] : begins[x] + wanted] = keys[:wanted]
        begins[x + 1] = begins[x] + wanted
    return begins, tokens, singles


@nb.njit(nogil=True, cache=True)
def _smallest(keys, wanted):
    """Bring the `wanted` smallest keys to the front, in order: quickselect, then a sort of that part."""
    low, high = 0, keys.size - 1
    while low < high:
        pivot, i, j = keys[(low + high) >> 1], low, high
        while i <= j:
            while keys[i] < pivot:
                i += 1
            while keys[j] > pivot:
                j -= 1
            if i <= j:
                keys[i], keys[j] = keys[j], keys[i]
                i += 1
                j -= 1
        if wanted - 1 <= j:
            high = j
        elif wanted - 1 >= i:
            low = i
        else:
            break
    keys[:wanted].sort()
