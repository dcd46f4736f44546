"""Between Arrow's large_string arrays and the numpy buffers that kernels read."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Offsets = NDArray[np.int64]
Bytes = NDArray[np.uint8]


def whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """One array of a column, without a copy where it is one already."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.array([], column.type)])


def text_buffers(column: pa.Array | pa.ChunkedArray) -> tuple[Offsets, Bytes]:
    """Offsets (int64, one more than rows) and bytes (uint8) of a string column; a slice keeps its own offsets.

    Text i is bytes[offsets[i]:offsets[i + 1]]; a null reads as an empty text. Nothing is copied from a large_string.
    Both arrays are read-only, even empty ones, so that kernels are compiled for one kind of array.
    """
    array = whole(column)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if not (pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)):
        array = array.cast(pa.large_binary() if pa.types.is_binary(array.type) else pa.large_string())
    _, offsets, data = array.buffers()
    count = len(array) + 1
    if offsets is None or offsets.size == 0:
        return np.frombuffer(bytes(8 * count), np.int64), np.frombuffer(b"", np.uint8)
    view = np.frombuffer(offsets, np.int64, count, 8 * array.offset)
    return view, np.frombuffer(data if data is not None and data.size else b"", np.uint8)


def large_strings(offsets: Offsets, data: Bytes) -> pa.Array:
    """The large_string array over these buffers, which it shares."""
    return pa.LargeStringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(data))
