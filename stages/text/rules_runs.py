"""Cuts a run, which is text without blanks, pictographs or letters of scripts without blanks, into words."""

from __future__ import annotations

import numpy as np
from numba import njit

from stages.text.rules_chars import CAPITAL, CLOSES, DIGIT, INNER, LETTER, OPENS, before, code_at, kind_at


@njit(cache=True, nogil=True)
def _open_end(data, kinds, at, stop):
    """Where the marks at the front of the run [at, stop) end."""
    while at < stop:
        code, after = code_at(data, at)
        if kinds[code] & OPENS:
            at = after
        elif code == ord(".") and after < stop and data[after] == ord("."):
            while at < stop and data[at] == ord("."):
                at += 1
        else:
            break
    return at


@njit(cache=True, nogil=True)
def _close_start(data, kinds, at, stop):
    """Where the marks at the end of the run [at, stop) start."""
    while stop > at:
        last = before(data, stop)
        if data[last] == ord("."):
            if last == at:
                break
            left = before(data, last)
            capital = kind_at(data, kinds, left) & CAPITAL
            if capital and (left == at or not kind_at(data, kinds, before(data, left)) & CAPITAL):
                break
        elif not kind_at(data, kinds, last) & CLOSES:
            break
        stop = last
    return stop


@njit(cache=True, nogil=True)
def _apostrophe(data, at, stop):
    """Where the apostrophe that ends at byte `stop` starts, or -1."""
    if stop - 1 > at and data[stop - 1] == ord("'"):
        return stop - 1
    if stop - 3 > at and data[stop - 3] == 0xE2 and data[stop - 2] == 0x80 and data[stop - 1] == 0x99:  # U+2019
        return stop - 3
    return -1


@njit(cache=True, nogil=True)
def _clitic_start(data, kinds, at, stop):
    """Where the contraction at the end of the run [at, stop) starts; `stop` without one."""
    last = data[stop - 1]
    start = -1
    if last in (ord("s"), ord("S"), ord("m"), ord("d")):
        start = _apostrophe(data, at, stop - 1)
    elif last == ord("t"):
        start = _apostrophe(data, at, stop - 1)
        if start >= 0:
            start = start - 1 if start - 1 > at and data[start - 1] == ord("n") else -1
    elif stop - 2 > at:
        first = data[stop - 2]
        if (last == ord("e") and (first == ord("r") or first == ord("v"))) or (last == ord("l") and first == ord("l")):
            start = _apostrophe(data, at, stop - 2)
    if start > at and kind_at(data, kinds, before(data, start)) & LETTER:
        return start
    return stop


@njit(cache=True, nogil=True)
def _is_address(data, kinds, at, stop):
    """Whether the run [at, stop) starts with letters and `://`."""
    start = at
    while at < stop:
        code, after = code_at(data, at)
        if not kinds[code] & LETTER:
            break
        at = after
    return at > start and at + 3 <= stop and data[at] == ord(":") and data[at + 1] == data[at + 2] == ord("/")


@njit(cache=True, nogil=True)
def _cuts(code, length, left, right):
    """Whether `length` times the inner mark `code` is a word between characters of kinds `left` and `right`."""
    if code == ord("."):
        return length > 1 or (left & (LETTER | CAPITAL) == LETTER and right & CAPITAL != 0)
    if code == ord(","):
        return length == 1 and left & LETTER != 0 and right & LETTER != 0
    if length == 1 and left & DIGIT and right & DIGIT:
        return code in (ord("-"), ord("+"), ord("*"), ord("^"))
    if not (left & (LETTER | DIGIT) and right & LETTER):
        return False
    if code in (ord("-"), ord("~"), 0x2013, 0x2014):
        return length <= 3
    return length == 1 and code not in (ord("+"), ord("*"), ord("^"))


@njit(cache=True, nogil=True)
def _split_core(data, kinds, at, stop, ends, count):
    """Rules 4 and 5 on [at, stop): writes the end of each word from ends[count] on, returns the new count."""
    if _is_address(data, kinds, at, stop):
        ends[count] = stop
        return count + 1
    clitic = _clitic_start(data, kinds, at, stop)
    word, left = at, np.int64(0)
    while at < clitic:
        code, after = code_at(data, at)
        kind = np.int64(kinds[code])
        if kind & INNER:
            length, width = 1, after - at
            while after < clitic and code_at(data, after)[0] == code:
                after += width
                length += 1
            right = kind_at(data, kinds, after) if after < clitic else np.int64(0)
            if _cuts(code, length, left, right):
                if at > word:
                    ends[count] = at
                    count += 1
                ends[count] = after
                count += 1
                word = after
        at, left = after, kind
    if clitic > word:
        ends[count] = clitic
        count += 1
    if stop > clitic:
        ends[count] = stop
        count += 1
    return count


@njit(cache=True, nogil=True)
def _split_marks(data, at, stop, ends, count):
    """Every mark in [at, stop) is a word, a row of dots one."""
    while at < stop:
        dot = data[at] == ord(".")
        at = code_at(data, at)[1]
        while dot and at < stop and data[at] == ord("."):
            at += 1
        ends[count] = at
        count += 1
    return count


@njit(cache=True, nogil=True)
def split_run(data, kinds, at, stop, ends):
    """Rules 3 to 5: the ends (bytes) of the words of the run [at, stop) in `ends`; returns how many."""
    core = _open_end(data, kinds, at, stop)
    count = _split_marks(data, at, core, ends, 0)
    if core < stop:
        tail = _close_start(data, kinds, core, stop)
        if tail > core:
            count = _split_core(data, kinds, core, tail, ends, count)
        count = _split_marks(data, tail, stop, ends, count)
    return count
