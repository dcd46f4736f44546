"""Which of several duplicates stays, and what may be a duplicate of what: the keep order and the scope.

A keep order is a list of `"column desc"` or `"column asc"` (desc may be left out): the first column decides, further
ones break its ties, null and NaN come last in either direction. Content hash and row address end it, so that it is
total. Columns travel to where rows meet as `keep_0`, `keep_1`, ... beside `content_hash`, and are compared there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.errors import ConfigError, setting_error
from stages.text.arrow import whole

Ranks = NDArray[np.uint64]
SIGN = np.uint64(1 << 63)
TIE_BREAKERS = ("content_hash",)
ORDERED = "a column that ranks documents holds numbers, text, dates or true/false"


def parse(rule: str) -> tuple[str, bool]:
    """`"column [asc|desc]"` -> (column, whether the largest value is best). Raises ConfigError."""
    column, _, direction = rule.strip().rpartition(" ")
    if direction not in ("asc", "desc"):
        column, direction = rule.strip(), "desc"
    if not column.strip():
        raise setting_error("keep", rule, "each entry is a column and asc or desc", 'write it like "bytes desc"')
    return column.strip(), direction == "desc"


def checked(keep: tuple[str, ...]) -> tuple[str, ...]:
    """The rules as they are, once each of them can be read. For validators of stage configs."""
    for rule in keep:
        parse(rule)
    return keep


def check_columns(keep: Sequence[str], within: Sequence[str], types: Mapping[str, pa.DataType]) -> None:
    """Raise the config error for a column without an order in `keep`, or one of nested values in `within`."""
    for rule in keep:
        kind = types.get(parse(rule)[0], pa.null())
        try:
            comparable(pa.array([], kind))
        except ConfigError:
            raise setting_error("keep", rule, f"{ORDERED}, and this one {kind}") from None
    for name in within:
        if name in types:
            _text(name, pa.array([], types[name]))


def columns(keep: Sequence[str]) -> tuple[str, ...]:
    """What a keep order reads, its tie-breakers included, each name once."""
    return tuple(dict.fromkeys([*(parse(rule)[0] for rule in keep), *TIE_BREAKERS]))


def carried(keep: Sequence[str], batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """The columns that `best_first` needs, from a batch that holds `columns(keep)`."""
    ranks = {f"keep_{i}": comparable(batch.column(parse(rule)[0])) for i, rule in enumerate(keep)}
    return ranks | {"content_hash": batch.column("content_hash")}


def comparable(column: pa.Array) -> pa.Array:
    """A column as uint64 of the same order, or, for text and binary, as large_binary; NaN becomes null.

    Raises ConfigError for a type without an order.
    """
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if pa.types.is_null(kind):
        return pa.nulls(len(column), pa.uint64())
    if pa.types.is_floating(kind):
        values = column.cast(pa.float64())
        bits = pc.fill_null(values, 0.0).to_numpy() + 0.0  # -0.0 becomes 0.0
        bits = bits.view(np.uint64)
        bits = np.where(bits & SIGN, ~bits, bits | SIGN)
        return pa.array(bits, mask=_mask(pc.is_null(values, nan_is_null=True)))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return column.cast(pa.large_string()).cast(pa.large_binary())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return column.cast(pa.large_binary())
    if pa.types.is_boolean(kind) or pa.types.is_unsigned_integer(kind):
        return column.cast(pa.uint64())
    if pa.types.is_signed_integer(kind) or pa.types.is_temporal(kind):
        numbers = _numbers(column)
        return pa.array(numbers.view(np.uint64) ^ SIGN, mask=_mask(pc.is_null(column)))
    raise setting_error("keep", str(kind), ORDERED)


def _numbers(column: pa.Array) -> NDArray[np.int64]:
    if pa.types.is_temporal(column.type):
        column = column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64())
    numbers: NDArray[np.int64] = pc.fill_null(column.cast(pa.int64()), 0).to_numpy()
    return numbers


def _mask(array: pa.Array) -> NDArray[np.bool_]:
    mask: NDArray[np.bool_] = array.to_numpy(zero_copy_only=False)
    return mask


def best_first(keep: Sequence[str], groups: Iterable[Ranks], records: pa.Table) -> NDArray[np.int64]:
    """The order of records by `groups` (the first is the outermost), and in a group best first: a permutation.

    `records` holds what `carried` made, and `row`.
    """
    ordered: list[NDArray[np.uint64]] = list(groups)
    for i, rule in enumerate(keep):
        values, missing = _values(whole(records[f"keep_{i}"]))
        ordered += [missing, ~values if parse(rule)[1] else values]
    digests = whole(records["content_hash"])
    halves = np.frombuffer(digests.buffers()[1], ">u8", 2 * len(digests), 16 * digests.offset)
    ordered += [halves[0::2], halves[1::2], records["row"].to_numpy()]
    return np.lexsort(ordered[::-1])


def _values(column: pa.Array) -> tuple[Ranks, Ranks]:
    """What to compare, and whether it is missing. Text is ranked among the records at hand: only its order counts."""
    missing = _mask(pc.is_null(column)).astype(np.uint64)
    if not pa.types.is_uint64(column.type):
        column = pc.rank(column, sort_keys="ascending", tiebreaker="dense")
        return np.where(missing, 0, column.to_numpy()).astype(np.uint64), missing
    return pc.fill_null(column, 0).to_numpy(), missing


def scopes(within: Sequence[str], batch: pa.RecordBatch) -> Ranks:
    """One number per row that is equal where the `within` columns are equal (null equals null), 0 without any."""
    import xxhash

    total = np.zeros(batch.num_rows, np.uint64)
    for name in within:
        encoded = _text(name, batch.column(name)).dictionary_encode(null_encoding="encode")
        names = encoded.dictionary.to_pylist()
        codes = [xxhash.xxh3_64_intdigest(b"" if value is None else b"=" + value, seed=1) for value in names]
        total = _combine(total, np.array(codes, np.uint64)[encoded.indices.to_numpy()])
    return total


def _combine(total: Ranks, codes: Ranks) -> Ranks:
    """An odd multiplier keeps (a, b) and (b, a) apart."""
    return (total ^ codes) * np.uint64(0x9E3779B97F4A7C15)


def _text(name: str, column: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_nested(column.type):
        raise setting_error("within", name, "a column that separates documents holds single values")
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), pa.large_binary())
    return column.cast(pa.large_string()).cast(pa.large_binary())
