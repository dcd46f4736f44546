import itertools

import pyarrow as pa
import pytest

from stages.text.arrow import large_strings, text_buffers, whole

TEXTS = ["", "a", None, "日本", "last"]
COLUMNS = [pa.array(TEXTS, kind) for kind in (pa.string(), pa.large_string(), pa.string_view())]


def read(column):
    offsets, data = text_buffers(column)
    return [bytes(data[a:b]).decode() for a, b in itertools.pairwise(offsets)]


@pytest.mark.parametrize("column", [*COLUMNS, COLUMNS[0].dictionary_encode()])
def test_buffers_hold_the_texts_of_any_string_column(column):
    """Whatever the column's type, its buffers spell its texts, a null as an empty one."""
    expected = ["" if text is None else text for text in TEXTS]
    assert read(column) == expected
    assert read(column.slice(1, 3)) == expected[1:4]
    assert read(pa.chunked_array([column, column.slice(3)])) == expected + expected[3:]
    assert read(column.slice(0, 0)) == []


def test_large_strings_are_not_copied():
    """The buffers of a large_string slice are those of the array, and make the same array again."""
    column = pa.array(["one", "two", "three"], pa.large_string())
    offsets, data = text_buffers(column.slice(1))
    assert data.ctypes.data == column.buffers()[2].address
    assert large_strings(offsets, data).to_pylist() == ["two", "three"]


def test_an_empty_column_is_one_empty_array():
    """A chunked column without chunks, of one chunk and of many becomes one array of its type."""
    assert whole(pa.chunked_array([], pa.large_string())).to_pylist() == []
    one = pa.array(["x"])
    assert whole(pa.chunked_array([one])).to_pylist() == ["x"]
    assert whole(pa.chunked_array([one, one])).to_pylist() == ["x", "x"]
