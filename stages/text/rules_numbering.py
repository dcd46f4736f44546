"""Hash tables in scratch memory that number 64-bit keys in the order in which they first come, from 1."""

from __future__ import annotations

import numpy as np
from numba import njit

from stages.text.bits import P1


@njit(cache=True, nogil=True)
def cleared(slots, expected):
    """Empties the front of `slots` to hold `expected` keys at most half full; returns the shift for `intern`."""
    bits = 4
    while 1 << bits < 2 * expected:
        bits += 1
    slots[: 1 << bits] = 0
    return np.uint64(64 - bits)


@njit(cache=True, nogil=True)
def _first_slot(key, shift):
    key = key * P1
    return (key ^ key >> np.uint64(32)) * P1 >> shift


@njit(cache=True, nogil=True)
def intern(key, slots, shift, keys, fresh):
    """The number that `key` got when it first came; if that is now, `fresh`."""
    mask = (np.uint64(1) << (np.uint64(64) - shift)) - np.uint64(1)
    slot = _first_slot(key, shift)
    while True:
        number = slots[slot]
        if number == 0:
            slots[slot] = fresh
            keys[fresh] = key
            return fresh
        if keys[number] == key:
            return np.int64(number)
        slot = (slot + np.uint64(1)) & mask


@njit(cache=True, nogil=True)
def grown(slots, shift, keys, fresh):
    """Doubles a table that the numbers under `fresh` fill by more than half; returns the shift for `intern`."""
    bits = np.uint64(64) - shift
    if np.uint64(2 * fresh) <= np.uint64(1) << bits:
        return shift
    slots[: np.int64(2) << bits] = 0
    shift -= np.uint64(1)
    for number in range(1, fresh):
        intern(keys[number], slots, shift, keys, number)
    return shift


@njit(cache=True, nogil=True)
def is_known(key, slots, shift, keys):
    mask = (np.uint64(1) << (np.uint64(64) - shift)) - np.uint64(1)
    slot = _first_slot(key, shift)
    while slots[slot] != 0:
        if keys[slots[slot]] == key:
            return True
        slot = (slot + np.uint64(1)) & mask
    return False
