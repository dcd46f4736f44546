import re
import unicodedata

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.text import normalise
from stages.text.arrow import text_buffers
from stages.text.codepoints import BLANKS, INVISIBLE
from stages.text.normalise import composed, text_1, text_1_pieces

ALPHABET = (
    "ab Z\t\n\r\x00\x07\x1f.é\u0301\u0327\u0323\u00ad\u200b\u200d\ufeff\u00a0\u3000\u2028e"
    "漢각\u1100\u1161\u11a8😀Å\u212b"
)
TEXTS = st.lists(st.text(st.sampled_from(ALPHABET), max_size=40), max_size=6)


def oracle(text):
    text = "".join(char for char in text if ord(char) not in INVISIBLE)
    text = unicodedata.normalize("NFC", text)
    return re.sub("[" + re.escape("".join(map(chr, BLANKS))) + "]+", " ", text).strip(" ")


@settings(deadline=None, derandomize=True)
@given(TEXTS)
def test_text_1_is_its_definition(texts):
    """Drop what is invisible, compose, make every run of blanks one, trim: as Python would do it, for any text."""
    assert text_1(pa.array(texts, pa.large_string())).to_pylist() == [oracle(text) for text in texts]


@settings(deadline=None, derandomize=True)
@given(st.text(st.sampled_from(ALPHABET), max_size=200), st.integers(1, 30))
def test_a_long_text_may_be_normalised_in_pieces(text, size):
    """Pieces of any size join to what the whole text gives, and composing in pieces is composing."""
    column = pa.array([text, "e\u0301"], pa.large_string())
    offsets, data = text_buffers(column)
    whole, nfc = text_1(column)[0].as_py(), composed(column)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(normalise, "PIECE", size)
        assert b"".join(map(bytes, text_1_pieces(data[: offsets[1]]))).decode() == whole
        assert composed(column).equals(nfc)


@settings(deadline=None, derandomize=True)
@given(st.text())
def test_text_1_of_arbitrary_text_is_idempotent(text):
    """Normalising twice is normalising once, for any text of any characters."""
    once = text_1(pa.array([text.encode("utf8", "ignore").decode()], pa.large_string()))
    assert text_1(once) == once


def test_case_digits_punctuation_and_accents_are_kept():
    """Only the way a text is written is normalised, not what it says."""
    kept = "Été 2024: 3,5 %! «Ja» – naïve\u0304 ẞ"
    assert text_1(pa.array([kept])).to_pylist() == [unicodedata.normalize("NFC", kept)]


def test_composing_leaves_nfc_as_it_is():
    """Texts that are NFC keep their bytes, and the others keep their places among them."""
    texts = ["plain", "caf\u00e9 \u200b", "cafe\u0301", "", None, "a\u200b\u0301", "漢字"]
    assert composed(pa.array(texts)).to_pylist() == ["plain", "caf\u00e9 \u200b", "caf\u00e9", "", "", "á", "漢字"]


def test_marks_out_of_order_are_put_in_order():
    """Two marks in either order are the same text, with an invisible character between them as well."""
    texts = ["q\u0307\u0323", "q\u0323\u0307", "q\u0307\u200b\u0323"]
    assert set(text_1(pa.array(texts)).to_pylist()) == {"q\u0323\u0307"}
