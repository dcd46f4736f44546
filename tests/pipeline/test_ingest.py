"""Ingest: the byte policy, the reasons it gives, and hashes that tell contents and nothing else."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import columns, ingest
from pipeline.corpus import plain
from pipeline.reading import RawBatch

NAMES = {"text": "text", "id": "id"}
BROKEN = b"ab\xff\xfecd"
ROWS = [
    (None, "null_text", False), ("", "blank_text", False), (" \t\u3000\u200b\ufeff\n", "blank_text", False),
    ("plain", None, False), ("x" * 21, "oversize", True), ("é" * 10, None, False), ("é" * 11, "oversize", True),
]  # fmt: skip
"""Text, reason at a limit of 20 bytes, and whether that is a quarantine."""


def made(texts, policy="replace", limit=20, kind=None, **more):
    raw = {"text": pa.array(texts, kind or pa.large_string())} | more
    return ingest.ingest(RawBatch(0, len(texts), raw), NAMES, {"invalid_utf8": policy, "max_document_bytes": limit})


def test_every_row_has_its_reason():
    """Null, blank and oversize are told apart; what is too large is quarantined, the others are removed."""
    out, text = made([text for text, *_ in ROWS])
    assert out["reason"].to_pylist() == [reason for _, reason, _ in ROWS]
    assert columns.failed(pa.table({"state": out["state"]})).tolist() == [bad for *_, bad in ROWS]
    assert text.to_pylist() == [text if reason is None else None for text, reason, _ in ROWS]
    assert out["bytes"].to_pylist() == [len((text or "").encode()) for text, *_ in ROWS]


@pytest.mark.parametrize(("policy", "reason", "size"), [("replace", None, 10), ("quarantine", "invalid_utf8", 6)])
def test_invalid_bytes_follow_the_policy(policy, reason, size):
    """Replaced bytes count as the text that they became, a quarantined text as it came."""
    out, text = made([BROKEN, b"fine"], policy, kind=pa.large_binary())
    assert out["reason"].to_pylist() == [reason, None]
    assert out["bytes"].to_pylist() == [size, 4]
    assert text.to_pylist() == ["ab\ufffd\ufffdcd" if policy == "replace" else None, "fine"]


def test_undecodable_rows_have_no_size():
    """Rows that could not be read are quarantined with the cause, of no known bytes, source or id."""
    out, text = ingest.ingest(RawBatch(5, 2, None, "broken page"), NAMES, {})
    assert text is None
    assert out["reason"].to_pylist() == ["undecodable"] * 2
    assert out["message"].to_pylist() == ["broken page"] * 2
    assert out["bytes"].to_pylist() == [0, 0]
    assert ingest.undecodable(out) == "broken page"


def hashes(texts, **more):
    out, _ = made(texts, limit=10**6, **more)
    return out["content_hash"].to_pylist(), out["text_hash"].to_pylist()


@given(texts=st.lists(st.one_of(st.none(), st.text(max_size=8)), min_size=1, max_size=12), cut=st.integers(1, 11))
def test_hashes_do_not_know_their_batch(texts, cut):
    """The hashes of a row are the same in any batch."""
    urls = pa.array([None if len(text or "") % 2 else text for text in texts], pa.large_string())
    whole = hashes(texts, url=urls)
    first, second = (
        hashes(texts[:cut], url=urls[:cut]),
        hashes(texts[cut:], url=urls[cut:]) if texts[cut:] else ([], []),
    )
    assert whole == (first[0] + second[0], first[1] + second[1])


def test_the_content_hash_is_of_all_columns():
    """Another value, or the same one in another column, is another content; a null is as good as no column."""

    def one(**more):
        return hashes(["text"], **{name: pa.array([value], pa.large_string()) for name, value in more.items()})[0][0]

    assert len({one(), one(url="a"), one(url="b"), one(id="a"), one(id="a", url="a"), one(id="aurl", url=None)}) == 6
    assert one(url=None) == one()
    assert hashes(["text"])[1] == hashes(["text"], url=pa.array(["a"]))[1]
    assert hashes(["text"])[1] != hashes(["texts"])[1]


@pytest.mark.parametrize("value", [{"b": 1, "a": None}, [1, 2], b"\xff\x00", 2**60, 0.1, True])
def test_any_type_is_hashed_by_value(value):
    """Nested values, bytes and numbers are told apart from null and are the same twice."""
    column = pa.array([value, None])
    column = column.cast(plain(column.type))
    first, second = hashes(["t", "t"], url=column)[0]
    assert first != second
    assert hashes(["t"], url=column[:1])[0] == [first]


def test_tokens_are_integers_rounded_up():
    """Four bytes a token: 0, 1, 4 and 5 bytes are 0, 1, 1 and 2 tokens; without a ratio a byte is a token."""
    sizes = np.array([0, 1, 4, 5, 2**40])
    assert ingest.count_tokens(sizes, ingest.token_ratio(4.0)).tolist() == [0, 1, 1, 2, 2**38]
    assert ingest.count_tokens(sizes, ingest.token_ratio(None)).tolist() == sizes.tolist()
