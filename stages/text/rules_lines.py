"""What the rules ask of lines and paragraphs: copies among them, how lines end, how short they are."""

from __future__ import annotations

import numpy as np
from numba import njit

from stages.text.bits import P1
from stages.text.rules_chars import BLANK, TERMINAL, before, code_at, kind_at
from stages.text.rules_numbering import cleared, grown, intern

NEWLINE = np.uint8(10)
FEW = 1 << 16
"""Lines that a table has room for at first: of many most may be the same."""

(
    CHARS, NEWLINES, HASHES, ELLIPSES, PIECES, COPIES, COPY_CHARS, PARAGRAPHS, PARAGRAPH_COPIES, PARAGRAPH_COPY_CHARS,
    NONBLANK, TERMINAL_LINES, SHORT_LINES, NONBLANK_COPY_CHARS, LINE_TALLIES,
) = range(15)  # fmt: skip
"""What `lines_and_paragraphs` counts. Lengths are code points, a copy is a second or later occurrence. Pieces are what
runs of newlines separate (empty ones at the ends of the text included), paragraphs what two or more newlines separate
in the stripped text, nonblank the lines between single newlines that are more than blanks."""


@njit(cache=True, nogil=True)
def _eight(data, at):
    """Bytes at to at + 7 as one number; compiles to one load."""
    low = np.uint64(data[at]) | np.uint64(data[at + 1]) << np.uint64(8)
    low |= np.uint64(data[at + 2]) << np.uint64(16) | np.uint64(data[at + 3]) << np.uint64(24)
    high = np.uint64(data[at + 4]) << np.uint64(32) | np.uint64(data[at + 5]) << np.uint64(40)
    return low | high | np.uint64(data[at + 6]) << np.uint64(48) | np.uint64(data[at + 7]) << np.uint64(56)


@njit(cache=True, nogil=True)
def bytes_key(data, at, stop):
    """A 64-bit hash of bytes: of any two strings the same with a chance of about 2^-64."""
    key = np.uint64(stop - at) * P1
    while at + 8 <= stop:
        key = (key ^ _eight(data, at)) * P1
        key ^= key >> np.uint64(32)
        at += 8
    rest = np.uint64(0)
    while at < stop:
        rest = rest << np.uint64(8) | np.uint64(data[at])
        at += 1
    key = (key ^ rest) * P1
    return key ^ key >> np.uint64(32)


@njit(cache=True, nogil=True)
def code_points(data, at, stop):
    """Code points in data[at:stop): the bytes that continue none."""
    count = 0
    for i in range(at, stop):
        count += data[i] & 0xC0 != 0x80
    return count


@njit(cache=True, nogil=True)
def _symbols(data, start, stop):
    """Newlines, `#` and ellipses (three dots, counted without overlap, or U+2026) in data[start:stop)."""
    newlines, hashes, ellipses = 0, 0, 0
    for i in range(start, stop):
        newlines += data[i] == NEWLINE
        hashes += data[i] == ord("#")
    dots = 0
    for i in range(start, stop):
        dots = dots + 1 if data[i] == ord(".") else 0
        if dots == 3:
            ellipses, dots = ellipses + 1, 0
        elif data[i] == 0xA6 and i - 2 >= start and data[i - 1] == 0x80 and data[i - 2] == 0xE2:
            ellipses += 1
    return newlines, hashes, ellipses


@njit(cache=True, nogil=True)
def _is_blank(data, kinds, at, stop):
    while at < stop:
        code, at = code_at(data, at)
        if not kinds[code] & BLANK:
            return False
    return True


@njit(cache=True, nogil=True)
def _stripped(data, kinds, start, stop):
    """What is left of [start, stop) without the blanks at both ends."""
    while start < stop:
        code, after = code_at(data, start)
        if not kinds[code] & BLANK:
            break
        start = after
    while start < stop:
        last = before(data, stop)
        if not kind_at(data, kinds, last) & BLANK:
            break
        stop = last
    return start, stop


@njit(cache=True, nogil=True)
def _line_end(data, at, stop):
    while at < stop and data[at] != NEWLINE:
        at += 1
    return at


@njit(cache=True, nogil=True)
def _lines(data, kinds, start, stop, short, slots, keys, tally):
    shift, distinct = cleared(slots, min(tally[NEWLINES] + 1, FEW)), 1
    pieces, copies, copy_chars, nonblank, terminal, shorts, nonblank_copy_chars = 0, 0, 0, 0, 0, 0, 0
    if data[start] == NEWLINE:
        pieces += 1
    if data[stop - 1] == NEWLINE:
        copies += pieces  # an empty piece at either end: the second one is a copy of the first
        pieces += 1
    at = start
    while at < stop:
        line = at
        at = _line_end(data, at, stop)
        if at > line:
            pieces += 1
            number = intern(bytes_key(data, line, at), slots, shift, keys, distinct)
            chars = code_points(data, line, at)
            again = number != distinct
            if not again:
                distinct += 1
                shift = grown(slots, shift, keys, distinct)
            copies += again
            copy_chars += chars * again
            if not _is_blank(data, kinds, line, at):
                nonblank += 1
                terminal += kind_at(data, kinds, before(data, at)) & TERMINAL != 0
                shorts += chars <= short
                nonblank_copy_chars += chars * again
        at += 1
    tally[PIECES], tally[COPIES], tally[COPY_CHARS] = pieces, copies, copy_chars
    tally[NONBLANK], tally[TERMINAL_LINES], tally[SHORT_LINES] = nonblank, terminal, shorts
    tally[NONBLANK_COPY_CHARS] = nonblank_copy_chars


@njit(cache=True, nogil=True)
def _paragraphs(data, start, stop, slots, keys, tally):
    shift, distinct = cleared(slots, min(tally[NEWLINES] // 2 + 1, FEW)), 1
    paragraphs, copies, copy_chars = 0, 0, 0
    at = start
    while at < stop:
        paragraph = at
        at = _line_end(data, at, stop)
        while at + 1 < stop and data[at + 1] != NEWLINE:
            at = _line_end(data, at + 1, stop)
        paragraphs += 1
        number = intern(bytes_key(data, paragraph, at), slots, shift, keys, distinct)
        if number == distinct:
            distinct += 1
            shift = grown(slots, shift, keys, distinct)
        else:
            copies += 1
            copy_chars += code_points(data, paragraph, at)
        while at < stop and data[at] == NEWLINE:
            at += 1
    tally[PARAGRAPHS], tally[PARAGRAPH_COPIES], tally[PARAGRAPH_COPY_CHARS] = paragraphs, copies, copy_chars


@njit(cache=True, nogil=True)
def lines_and_paragraphs(data, kinds, start, stop, short, slots, keys, tally):
    """Fills `tally` for the text data[start:stop), which is not empty; lines of up to `short` code points are short.

    Scratch for a text of n bytes: `slots` 2^k >= 2n + 2, `keys` n + 2.
    """
    tally[:] = 0
    tally[CHARS] = code_points(data, start, stop)
    tally[NEWLINES], tally[HASHES], tally[ELLIPSES] = _symbols(data, start, stop)
    _lines(data, kinds, start, stop, short, slots, keys, tally)
    start, stop = _stripped(data, kinds, start, stop)
    _paragraphs(data, start, stop, slots, keys, tally)
