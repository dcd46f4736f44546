"""UTF-8 inside kernels. Texts are valid UTF-8 by the byte policy; reads stay inside their text whatever the bytes."""

from __future__ import annotations

import numba as nb
import numpy as np

from stages.text.bits import HIGH, load64


@nb.njit(inline="always")
def length(lead):
    """Bytes of the character that starts with this byte; 1 for a byte that starts none."""
    return 1 + (lead >= 0xC0) + (lead >= 0xE0) + (lead >= 0xF0)


@nb.njit(inline="always")
def decode(text, at):
    """The code point at `at`, and the position after it. A character that the text cuts short reads as one byte."""
    lead = np.int64(text[at])
    size = length(lead)
    if lead < 0x80 or at + size > text.size:
        return lead, at + 1
    code = lead & (0xFF >> (size + 1))
    for i in range(at + 1, at + size):
        code = code << 6 | np.int64(text[i]) & 0x3F
    return min(code, 0x10FFFF), at + size


@nb.njit(inline="always")
def encode(code, out, at):
    """Write a code point to out[at:], return the position after it."""
    if code < 0x80:
        out[at] = code
        return at + 1
    if code < 0x800:
        out[at] = 0xC0 | code >> 6
        out[at + 1] = 0x80 | code & 0x3F
        return at + 2
    if code < 0x10000:
        out[at] = 0xE0 | code >> 12
        out[at + 1] = 0x80 | code >> 6 & 0x3F
        out[at + 2] = 0x80 | code & 0x3F
        return at + 3
    out[at] = 0xF0 | code >> 18
    out[at + 1] = 0x80 | code >> 12 & 0x3F
    out[at + 2] = 0x80 | code >> 6 & 0x3F
    out[at + 3] = 0x80 | code & 0x3F
    return at + 4


@nb.njit(nogil=True, cache=True)
def ascii_until(text, at):
    """The first position from `at` on that may hold a byte of a non-ASCII character: everything before it is ASCII."""
    base, last = text.ctypes.data, text.size - 8
    while at <= last and load64(base + nb.uintp(at)) & HIGH == 0:
        at += 8
    while at < text.size and at > last and text[at] < 0x80:
        at += 1
    return at


@nb.njit(nogil=True, cache=True)
def is_ascii(text):
    return ascii_until(text, 0) == text.size
