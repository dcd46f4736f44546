"""The byte policy: textual columns as valid UTF-8, whatever careless writers have put into them."""

from __future__ import annotations

import codecs
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

PIECE_BYTES = 1 << 20
"""Bytes of a broken value that are decoded at a time: as Python text they may take four times as much."""


def decoded(column: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """A string, binary or null column as valid large_string, and which rows were valid as they came.

    Others get U+FFFD for each bad part. Nothing is copied where all are valid, as nearly always.
    """
    raw = column.cast(pa.large_binary())
    text = pa.Array.from_buffers(pa.large_string(), len(raw), raw.buffers(), raw.null_count, raw.offset)
    valid = np.ones(len(text), bool)
    pieces = []
    for first, piece, fine in _runs(text, 0):
        pieces.append(piece if fine else _replaced(raw[first]))
        if not fine:
            valid[first] = False
    return pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces), valid


def _runs(text: pa.Array, first: int) -> Iterator[tuple[int, pa.Array, bool]]:
    """Runs of valid rows and single broken ones, found by halving: (first row, rows, whether they are valid)."""
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        if len(text) == 1:
            yield first, text, False
            return
        half = len(text) // 2
        yield from _runs(text.slice(0, half), first)
        yield from _runs(text.slice(half), first + half)
    else:
        yield first, text, True


def _replaced(value: pa.Scalar) -> pa.Array:
    data = memoryview(value.as_buffer())
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    fixed = bytearray()
    for start in range(0, len(data), PIECE_BYTES):
        fixed += decoder.decode(data[start : start + PIECE_BYTES]).encode()
    fixed += decoder.decode(b"", final=True).encode()
    ends = pa.py_buffer(np.array([0, len(fixed)]))
    return pa.LargeStringArray.from_buffers(1, ends, pa.py_buffer(fixed))
