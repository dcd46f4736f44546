import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import utf8

BROKEN = [0x41, 0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x98, 0x80, 0xED, 0xA0, 0xFF, 0xC0]
VALUES = st.one_of(st.none(), st.text(max_size=20).map(str.encode), st.lists(st.sampled_from(BROKEN)).map(bytes))


def is_valid(value):
    return value is None or value == value.decode(errors="replace").encode()


@settings(deadline=None)
@given(values=st.lists(VALUES, max_size=12), cut=st.integers(0, 12), size=st.integers(1, 9))
@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view()], ids=str)
def test_values_are_what_python_makes_of_them(kind, values, cut, size):
    """Any bytes, from any row on and decoded in pieces of any size, come out as Python's own replacement has them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utf8, "PIECE_BYTES", size)
        text, valid = utf8.decoded(pa.array(values, kind).slice(cut))
    text.validate(full=True)
    assert text.type == pa.large_string()
    assert text.to_pylist() == [value if value is None else value.decode(errors="replace") for value in values[cut:]]
    assert valid.tolist() == [is_valid(value) for value in values[cut:]]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view(), pa.null()], ids=str)
def test_any_textual_type_is_taken(kind):
    """Strings of all physical types, and nulls, become large_string."""
    values = [None, None] if kind == pa.null() else ["é", None]
    text, valid = utf8.decoded(pa.array(values, kind))
    assert (text.type, text.to_pylist(), valid.tolist()) == (pa.large_string(), values, [True, True])


def test_valid_text_is_not_copied():
    """One text may be much of a worker's memory: bytes are shared with the column they came in."""
    column = pa.array([b"x" * 1000, b"y"], pa.large_binary())
    assert utf8.decoded(column)[0].buffers()[2].address == column.buffers()[2].address
