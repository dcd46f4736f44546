"""The built-in first stage: byte policy, hashes, and the columns that every later stage may read.

Removed here: `null_text`, `blank_text`. Quarantined here: `oversize`, `invalid_utf8` (by that policy),
`undecodable`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from pipeline import columns, utf8
from pipeline.corpus import is_textual
from pipeline.reading import RawBatch
from pipeline.types import FAILED, SCORED

VERSION = 2
LABEL = "ingest"
REASONS = {
    "null_text": "the text is null",
    "blank_text": "the text is empty or only blanks and marks without width",
    "oversize": "the text has more bytes than input.max_document_bytes",
    "invalid_utf8": "the text is not UTF-8 and input.invalid_utf8 is quarantine",
    "undecodable": "the row group cannot be decoded",
    "stage_error": "a stage raised on this row",
}
BLANKS = "".join(
    map(chr, [*range(9, 14), *range(28, 33), 0x85, 0xA0, 0xAD, 0x61C, 0x1680, 0x180E, *range(0x2000, 0x2010),
              *range(0x2028, 0x2030), *range(0x205F, 0x2070), 0x3000, 0xFEFF])
)  # fmt: skip
"""Unicode blanks, and the marks without width that text-1 drops: nothing else in a text makes it blank."""
PARTS = ("source", "language", "id")
UNIT = pa.scalar("\x1f", pa.large_string())
EMPTY = pa.scalar("", pa.large_string())
HEAD = 64
"""Code points by which most texts are seen not to be blank."""


def ingest(
    raw: RawBatch, names: Mapping[str, str], policy: Mapping[str, Any]
) -> tuple[dict[str, pa.Array], pa.Array | None]:
    """The sidecar columns of one batch, and its text (large_string, null where the row does not pass).

    `policy` holds invalid_utf8 and max_document_bytes.
    """
    if raw.columns is None:
        return _undecodable(raw), None
    given = raw.columns[names["text"]]
    text, valid = utf8.decoded(given)
    size, raw_size = _sizes(text), _sizes(given)
    reason = np.full(raw.rows, "", object)
    reason[_blank(text, size)] = "blank_text"
    reason[pc.is_null(text).to_numpy(zero_copy_only=False)] = "null_text"
    broken = ~valid if policy["invalid_utf8"] == "quarantine" else np.zeros(raw.rows, bool)
    reason[broken] = "invalid_utf8"
    large = size > policy["max_document_bytes"]
    reason[large] = "oversize"
    failed, passes = broken | large, reason == ""
    rest = rest_of_row(raw.columns, names["text"])
    whole, content = hashes(text, rest)
    out = {
        "state": columns.states(np.where(failed, FAILED, SCORED).astype(np.int8)),
        "measured": pa.array(np.ones(raw.rows, bool)),
        "reason": pa.array(reason, pa.large_string(), mask=passes),
        "message": _messages(reason, size, policy),
        "bytes": pa.array(np.where(failed, raw_size, size)),
        "other_bytes": pa.array(_sizes(rest)),
        "text_hash": pa.array(whole),
        "content_hash": content,
    }
    for part in PARTS:
        column = raw.columns.get(names.get(part, ""))
        out[part] = shown(column) if column is not None else pa.nulls(raw.rows, pa.large_string())
    return out, _only(text, passes)


def _sizes(column: pa.Array) -> np.ndarray:
    if pa.types.is_null(column.type):
        return np.zeros(len(column), np.int64)
    sizes: np.ndarray = pc.fill_null(pc.binary_length(column), 0).cast(pa.int64()).to_numpy()
    return sizes


def _blank(text: pa.Array, size: np.ndarray) -> np.ndarray:
    """Which texts are blank: by their beginnings, and whole only where those are blank but not all there is."""
    head = pc.utf8_slice_codeunits(text, 0, HEAD)
    blank: np.ndarray = _sizes(pc.utf8_trim(head, characters=BLANKS)) == 0
    unsure = np.flatnonzero(blank & (size > _sizes(head)))
    if len(unsure):
        blank[unsure] = _sizes(pc.utf8_trim(text.take(pa.array(unsure)), characters=BLANKS)) == 0
    return blank


def _only(text: pa.Array, passes: np.ndarray) -> pa.Array:
    """The texts with nulls where the row does not pass. Bytes are shared: one text may be much of a worker's memory."""
    if passes.all():
        return text
    _, offsets, data = text.buffers()
    valid = pa.array(passes).buffers()[1]
    return pa.Array.from_buffers(text.type, len(text), [valid, offsets.slice(8 * text.offset), data])


def shown(column: pa.Array) -> pa.Array:
    """A column of any type as text to be read: bytes that are no text in hexadecimal, nested values as JSON."""
    if pa.types.is_nested(column.type):
        return _as_strings(column)
    if not (pa.types.is_large_binary(column.type) or pa.types.is_fixed_size_binary(column.type)):
        return column.cast(pa.large_string())
    text, valid = utf8.decoded(column)
    found = [value.as_py() if good else raw.as_py().hex() for value, raw, good in zip(text, column, valid, strict=True)]
    return pa.array(found, pa.large_string())


def _undecodable(raw: RawBatch) -> dict[str, pa.Array]:
    rows = raw.rows
    strings = pa.nulls(rows, pa.large_string())
    return {
        "state": columns.states(np.full(rows, FAILED, np.int8)),
        "measured": pa.array(np.zeros(rows, bool)),
        "reason": pa.array(["undecodable"] * rows, pa.large_string()),
        "message": pa.array([raw.error] * rows, pa.large_string()),
        "bytes": pa.array(np.zeros(rows, np.int64)),
        "other_bytes": pa.array(np.zeros(rows, np.int64)),
        "text_hash": pa.array(np.zeros(rows, np.uint64)),
        "content_hash": pa.array([bytes(16)] * rows, pa.binary(16)),
        "source": strings, "language": strings, "id": strings,
    }  # fmt: skip


def undecodable(made: Mapping[str, pa.Array]) -> str:
    """Why the rows of a batch could not be decoded; empty where they could."""
    broken = len(made["reason"]) and made["reason"][0].as_py() == "undecodable"
    return str(made["message"][0]) if broken else ""


def _messages(reason: np.ndarray, size: np.ndarray, policy: Mapping[str, Any]) -> pa.Array:
    found: list[str | None] = [None] * len(reason)
    for row in np.flatnonzero((reason == "oversize") | (reason == "invalid_utf8")).tolist():
        limit = policy["max_document_bytes"]
        found[row] = f"{size[row]} bytes, limit {limit}" if reason[row] == "oversize" else "invalid UTF-8"
    return pa.array(found, pa.large_string())


def hashes(text: pa.Array, rest: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """(xxh3-64 of each text, xxh3-128 of each text and the rest of its row). Null hashes as empty."""
    count = len(text)
    offsets, data = _buffers(text)
    more, other = _buffers(rest)
    whole = np.empty(count, np.uint64)
    content = bytearray(16 * count)
    begin = offsets[:-1].tolist()
    ends = offsets[1:].tolist()
    for row, (start, end) in enumerate(zip(begin, ends, strict=True)):
        piece = data[start:end]
        whole[row] = xxhash.xxh3_64_intdigest(piece)
        state = xxhash.xxh3_128(piece)
        if more[row + 1] > more[row]:
            state.update(other[more[row] : more[row + 1]])
        content[16 * row : 16 * row + 16] = state.digest()
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), count, [None, pa.py_buffer(bytes(content))])
    return whole, fixed


def _buffers(array: pa.Array) -> tuple[np.ndarray, memoryview]:
    _, offsets, data = array.buffers()
    if not len(array) or offsets is None:
        return np.zeros(len(array) + 1, np.int64), memoryview(b"")
    found = np.frombuffer(offsets, np.int64, count=len(array) + 1, offset=8 * array.offset)
    return found, memoryview(data) if data is not None else memoryview(b"")


def rest_of_row(raw: Mapping[str, pa.Array], text: str) -> pa.Array:
    """Every other input column of each row as bytes: name, unit separator, value; an absent value leaves no trace.

    So a shard that lacks a column hashes like one in which it is null.
    """
    parts: list[pa.Array] = []
    for name in sorted(raw):
        if name == text or raw[name].null_count == len(raw[name]):
            continue
        label = pa.scalar(f"\x1e{name}", pa.large_string())
        parts.append(pc.binary_join_element_wise(label, _as_strings(raw[name]), UNIT))
    rows = len(raw[text])
    if not parts:
        return pa.array([""] * rows, pa.large_string())
    joined: pa.Array = pc.binary_join_element_wise(*[pc.fill_null(part, EMPTY) for part in parts], EMPTY)
    return joined


def _as_strings(column: pa.Array) -> pa.Array:
    kind = column.type
    if is_textual(kind):
        return column.cast(pa.large_string())
    if pa.types.is_nested(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.array([_canonical(value.as_py()) for value in column], pa.large_string())
    return column.cast(pa.large_string())


def _canonical(value: Any) -> str | None:
    if value is None:
        return None
    return json.dumps(value, sort_keys=True, ensure_ascii=True, default=_plain)


def _plain(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def count_tokens(size: np.ndarray, ratio: int) -> np.ndarray:
    """Integer tokens of documents of so many bytes: ceil(bytes x ratio / 2^20)."""
    return -((-size * ratio) >> RATIO_BITS)


RATIO_BITS = 20


def token_ratio(bytes_per_token: float | None) -> int:
    """Tokens per byte as a fixed-point number; one token a byte without a basis."""
    return 1 << RATIO_BITS if bytes_per_token is None else round((1 << RATIO_BITS) / bytes_per_token)
