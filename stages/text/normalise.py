"""Normalisation `text-1`: texts that read the same become the same bytes.

Soft hyphens, byte order marks and format characters without width are dropped, the rest is brought to NFC, each run of
Unicode blanks (line breaks and no-break spaces too) becomes one blank, and blanks at both ends go. Case, digits,
punctuation and accents are kept.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

import numba as nb
import numpy as np
import pyarrow as pa

from stages.text.arrow import Bytes, Offsets, large_strings, text_buffers
from stages.text.bits import HIGH, ONES, U64, load64, store64, trailing_zeros
from stages.text.codepoints import BLANK, CLASS_SHIFT, COMPOSES, DROPPED, INVISIBLE, KIND, tables
from stages.text.utf8 import ascii_until, decode, is_ascii

PIECE = 1 << 22
"""Bytes of a long text that are normalised at a time: as Python text they may take four times as much."""
VISIBLE_ONLY = re.compile("[" + "".join(f"\\U{code:08x}" for code in INVISIBLE) + "]+")


def text_1(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The texts under `text-1`, as large_string; a null becomes an empty text."""
    offsets, data = text_buffers(composed(column))
    out = np.empty(offsets[-1] - offsets[0], np.uint8)
    ends = np.zeros(offsets.size, np.int64)
    _collapse(offsets, data, tables().properties, out, ends)
    return large_strings(ends, out[: ends[-1]])


def text_1_pieces(text: Bytes) -> Iterator[Bytes]:
    """One long text under `text-1`, piece by piece."""
    for start, end in _pieces(text):
        # Something visible behind a piece keeps the blank that its end may be.
        piece = text[start:end] if end == text.size else np.append(text[start:end], np.uint8(ord("x")))
        done = text_buffers(text_1(large_strings(np.array([0, piece.size]), piece)))[1]
        yield done if end == text.size else done[:-1]


def composed(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The texts in NFC.

    A text that is NFC already, as nearly all are, keeps its bytes, invisible characters included; one that is not loses
    those, since a mark may compose across them.
    """
    offsets, data = text_buffers(column)
    if is_ascii(data[offsets[0] : offsets[-1]]):
        return large_strings(offsets, data)
    rows = np.flatnonzero(_may_compose(offsets, data, tables().properties))
    return _replaced(offsets, data, rows) if rows.size else large_strings(offsets, data)


def _replaced(offsets: Offsets, data: Bytes, rows: np.ndarray) -> pa.Array:
    """The texts with those of `rows` composed: the only place where a text becomes a Python string."""
    out, done = bytearray(), 0
    sizes = np.diff(offsets)
    for row in rows:
        out += data[offsets[done] : offsets[row]].data
        begin, text = len(out), data[offsets[row] : offsets[row + 1]]
        for start, end in _pieces(text):
            visible = VISIBLE_ONLY.sub("", text[start:end].tobytes().decode())
            out += unicodedata.normalize("NFC", visible).encode()
        sizes[row], done = len(out) - begin, row + 1
    out += data[offsets[done] : offsets[-1]].data
    return large_strings(np.concatenate([[0], np.cumsum(sizes)]), np.frombuffer(out, np.uint8))


def _pieces(text: Bytes) -> Iterator[tuple[int, int]]:
    """(start, end) of the pieces of a text that can be normalised one by one."""
    start = 0
    while start < text.size:
        end = int(_may_be_cut(text, start + PIECE, tables().properties)) if text.size - start > PIECE else text.size
        yield start, end
        start = end


@nb.njit(nogil=True, cache=True)
def _may_be_cut(text, at, properties):
    """The first position from `at` on where what follows is visible and joins to nothing before; or the end."""
    while at < text.size and text[at] & 0xC0 == 0x80:
        at += 1
    while at < text.size:
        code, after = decode(text, at)
        p = np.int64(properties[code])
        if p & KIND not in (BLANK, DROPPED) and p & COMPOSES == 0 and p >> CLASS_SHIFT == 0:
            break
        at = after
    return at


@nb.njit(nogil=True, cache=True)
def _may_compose(offsets, data, properties):
    """Which texts fail the quick check for NFC: with a code point that composes, or marks out of canonical order."""
    found = np.zeros(offsets.size - 1, np.bool_)
    for row in range(offsets.size - 1):
        text = data[offsets[row] : offsets[row + 1]]
        at, last = 0, np.int64(0)
        while at < text.size:
            if text[at] < 0x80:
                at, last = ascii_until(text, at + 1), np.int64(0)
                continue
            code, at = decode(text, at)
            p = np.int64(properties[code])
            if p & KIND == DROPPED:
                continue
            rank = p >> CLASS_SHIFT
            if p & COMPOSES or (rank != 0 and rank < last):
                found[row] = True
                break
            last = rank
    return found


@nb.njit(nogil=True, cache=True)
def _collapse(offsets, data, properties, out, ends):
    """Write the texts without invisible characters and superfluous blanks to `out`, their ends to ends[1:]."""
    at = 0
    for row in range(offsets.size - 1):
        text = data[offsets[row] : offsets[row + 1]]
        start, blank, i = at, True, 0
        while i < text.size:
            plain = _plain(text, i, blank, out, at)
            at += plain
            i += plain
            blank = out[at - 1] == 0x20 if plain else blank
            if i == text.size:
                break
            code, after = decode(text, i)
            kind = properties[code] & KIND
            if kind == BLANK:
                out[at] = 0x20
                at += not blank
                blank = True
                while after < text.size and (text[after] == 0x20 or np.uint8(text[after] - 0x09) < 5):
                    after += 1
            elif kind != DROPPED:
                while i < after:
                    out[at] = text[i]
                    at += 1
                    i += 1
                blank = False
            i = after
        if blank and at > start:
            at -= 1
        ends[row + 1] = at


@nb.njit(inline="always")
def _plain(text, i, blank, out, at):
    """Copy ASCII, 8 bytes at a time, up to a control character or a second blank in a row; how many bytes that was."""
    base, to, first = text.ctypes.data, out.ctypes.data, i
    before = U64(0x80) if blank else U64(0)
    while i + 8 <= text.size:
        x = load64(base + nb.uintp(i))
        store64(to + nb.uintp(at + i - first), x)
        spaces = ~((x ^ (ONES * U64(0x20))) + (HIGH - ONES)) & HIGH  # exact up to the first byte that is not ASCII
        controls = (x - ONES * U64(0x20)) & ~x & HIGH  # exact up to the first control character
        stop = (x & HIGH) | controls | (spaces & (spaces << U64(8) | before))
        if stop:
            return i - first + np.int64(trailing_zeros(stop) >> U64(3))
        before = spaces >> U64(56)
        i += 8
    return i - first
