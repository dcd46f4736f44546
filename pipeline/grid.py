"""Exact, order-free statistics of a score: the quantile grid, and integer counts of it by group. Pure.

A grid value ("cell") is the upper 20 bits of a float32 read as an order-preserving integer: 2048 steps an octave, so a
step is at most 1/2048 of the value. Counts by cell add up as integers, and what is derived from them cannot depend on
the order, the batches or the workers. Equal values share a cell: ties are never split.

A cell holds lower_edge <= value < upper_edge, exactly, for float64 too (values are rounded down to float32). A cut made
on cells is therefore the same as a comparison of the value with an edge, and only edges are ever stored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import setting_error

Ints = npt.NDArray[np.integer[Any]]
Floats = npt.NDArray[np.float64]
Name = tuple[str | int | bool | None, ...]
"""A group: the values of its `within` columns. () is the group of all."""

DROPPED_BITS = 12
CELL_BITS = 32 - DROPPED_BITS
SIGN = np.uint32(1 << 31)
COUNT_KEYS = ("group", "cell")
CUT_AT = {"quality.score": "quality.logit"}
"""Columns whose quantiles are taken of a finer twin: probabilities crowd near 1, where no float32 tells them apart."""


def scores(column: pa.Array) -> Floats:
    """The column as float64, with NaN for what cannot be ranked: null, NaN, and what float32 cannot hold.

    Raises TypeError for a column that does not hold numbers.
    """
    if not _holds_numbers(column.type):
        raise TypeError(f"a score must be a column of numbers, not of {column.type}")
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    values: Floats = np.array(pc.fill_null(column.cast(pa.float64(), safe=False), np.nan), dtype=np.float64)
    with np.errstate(over="ignore"):
        values[~np.isfinite(values.astype(np.float32))] = np.nan
    return values


def _holds_numbers(kind: pa.DataType) -> bool:
    kinds = pa.types
    return any(test(kind) for test in (kinds.is_integer, kinds.is_floating, kinds.is_boolean, kinds.is_null))


def check_columns(by: str, within: Sequence[str], types: Mapping[str, pa.DataType]) -> None:
    """Raise the config error for a score that does not hold numbers, or groups that are not made of single values."""
    if by in types and not _holds_numbers(types[by]):
        raise setting_error("by", by, f"a score is a column of numbers, and this one holds {types[by]}")
    for name in within:
        if name in types and pa.types.is_nested(types[name]):
            raise setting_error("within", name, f"groups are made of single values, and this one holds {types[name]}")


def cells_of(values: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.int32]:
    """Grid values, 0 <= cell < 2**20, of scores that float32 can hold (see `scores`; NaN is not allowed)."""
    rounded = values.astype(np.float32)
    above = rounded > values
    rounded[above] = np.nextafter(rounded[above], np.float32(-np.inf))
    bits = (rounded + np.float32(0)).view(np.uint32)  # the sum turns -0.0 into 0.0: equal values, one cell
    ordered = np.where(bits & SIGN, ~bits, bits | SIGN)
    return (ordered >> DROPPED_BITS).astype(np.int32)


def lower_edge(cells: npt.ArrayLike) -> Floats:
    """The smallest value of each cell, float64."""
    ordered = np.asarray(cells).astype(np.uint32) << np.uint32(DROPPED_BITS)
    bits = np.where(ordered & SIGN, ordered & ~SIGN, ~ordered)
    return bits.astype(np.uint32).view(np.float32).astype(np.float64)


def upper_edge(cells: npt.ArrayLike) -> Floats:
    """The first value above each cell, float64: the lower edge of the next one, 2**128 for the last."""
    edges = lower_edge(np.asarray(cells) + 1)
    return np.where(np.isinf(edges), 2.0**128, edges)


def share_of(share: float | Fraction, total: int) -> int:
    """The smallest integer >= share * total. 0.1 means one tenth, not the float64 nearest to it."""
    exact = Fraction(str(share)) * total
    return -(-exact.numerator // exact.denominator)


def quantile(cells: Ints, weights: Ints, q: float | Fraction) -> int:
    """The smallest cell whose cumulative weight >= q * total. `cells` ascend; not empty."""
    reached = np.cumsum(weights, dtype=np.int64)
    return int(cells[np.searchsorted(reached, share_of(q, int(reached[-1])), side="left")])


def keep_top(cells: Ints, weights: Ints, share: float | Fraction) -> int:
    """The largest cell v with weight(cell >= v) >= share * total. `cells` ascend; not empty."""
    reached = np.cumsum(weights[::-1], dtype=np.int64)
    return int(cells[::-1][np.searchsorted(reached, share_of(share, int(reached[-1])), side="left")])


def groups(batch: pa.RecordBatch, within: Sequence[str]) -> tuple[list[str], npt.NDArray[np.int64]]:
    """The distinct groups of a batch, each as a JSON array of its values, and the index of each row's group."""
    codes = np.zeros(batch.num_rows, dtype=np.int64)
    first = codes[:1]
    for name in within:
        encoded = _plain(batch.column(name)).dictionary_encode(null_encoding="encode")
        joint = codes * (len(encoded.dictionary) + 1) + np.asarray(encoded.indices, dtype=np.int64)
        _, first, codes = np.unique(joint, return_index=True, return_inverse=True)
    columns = [batch.column(name) for name in within]
    return [_name([column[int(row)].as_py() for column in columns]) for row in first], codes


def count(
    batch: pa.RecordBatch, by: str, within: Sequence[str], counts: Mapping[str, npt.NDArray[np.int64]]
) -> pa.Table:
    """Sums of the int64 arrays in `counts` by group (large_string, JSON) and cell (int32; null = cannot be ranked)."""
    names, codes = groups(batch, within)
    values = scores(batch.column(by))
    ranked = ~np.isnan(values)
    place = np.zeros(len(values), dtype=np.int64)
    place[ranked] = cells_of(values[ranked]) + 1
    keys, rows = np.unique((codes << (CELL_BITS + 1)) | place, return_inverse=True)
    cells = (keys & ((1 << (CELL_BITS + 1)) - 1)).astype(np.int32) - 1
    columns = {
        "group": pa.array(names, pa.large_string()).take(pa.array(keys >> (CELL_BITS + 1))),
        "cell": pa.array(cells, pa.int32(), mask=cells < 0),
    }
    for name, amounts in counts.items():
        sums = np.zeros(len(keys), dtype=np.int64)
        np.add.at(sums, rows, amounts)
        columns[name] = pa.array(sums)
    return pa.table(columns)


def amounts(batch: pa.RecordBatch, weight: str) -> npt.NDArray[np.int64]:
    """What each row weighs: 1 for "documents", else the column of that name, which holds no nulls."""
    if weight == "documents":
        return np.ones(batch.num_rows, dtype=np.int64)
    return np.asarray(batch.column(weight).cast(pa.int64()))


class Histogram(NamedTuple):
    """Counts by cell: `cells` ascend and are distinct; every array in `counts` is as long."""

    cells: npt.NDArray[np.int32]
    counts: Mapping[str, npt.NDArray[np.int64]]

    def total(self, name: str) -> int:
        return int(self.counts[name].sum())


class Group(NamedTuple):
    """What was counted of one group, and whose counts its facts are to be taken from."""

    key: str
    name: Name
    own: Histogram
    unranked: Mapping[str, int]
    basis_name: Name
    basis: Histogram


def grouped(table: pa.Table, min_group: int) -> Iterator[Group]:
    """The groups of a summed `count` table (sorted by group, cell), in its order.

    A group with fewer than `min_group` ranked documents (count "docs") takes its facts from its parent: the group
    without the last `within` column. () has no parent and is used whatever its size.
    """
    own, members = _histograms(table)
    pooled: dict[Name, Histogram] = {}

    def pool(name: Name) -> Histogram:
        if name not in pooled:
            parts = [own[key][1] for key in members[name]]
            pooled[name] = parts[0] if len(parts) == 1 else _merge(parts)
        return pooled[name]

    for key, (unranked, histogram) in own.items():
        name = basis = tuple(json.loads(key))
        while basis and pool(basis).total("docs") < min_group:
            basis = basis[:-1]
        yield Group(key, name, histogram, unranked, basis, pool(basis))


def _histograms(
    table: pa.Table,
) -> tuple[dict[str, tuple[dict[str, int], Histogram]], dict[Name, list[str]]]:
    """By group key, in order: counts of what is not ranked, and the histogram. And by group or parent: its keys."""
    column = table.column("group").combine_chunks().dictionary_encode()
    codes = np.asarray(column.indices)
    ends = np.flatnonzero(np.diff(codes, append=-1)) + 1
    cells = np.asarray(pc.fill_null(table.column("cell"), -1))
    counts = {name: np.asarray(table.column(name)) for name in table.column_names if name not in COUNT_KEYS}
    own: dict[str, tuple[dict[str, int], Histogram]] = {}
    members: dict[Name, list[str]] = {}
    start = 0
    for key, end in zip(column.dictionary.to_pylist(), ends.tolist(), strict=True):
        ranked = np.arange(start, end)[cells[start:end] >= 0]
        histogram = Histogram(cells[ranked], {name: array[ranked] for name, array in counts.items()})
        unranked = {name: int(array[start:end].sum()) - histogram.total(name) for name, array in counts.items()}
        own[key] = unranked, histogram
        name = tuple(json.loads(key))
        for depth in range(len(name) + 1):
            members.setdefault(name[:depth], []).append(key)
        start = end
    return own, members


def _merge(parts: Sequence[Histogram]) -> Histogram:
    cells, rows = np.unique(np.concatenate([part.cells for part in parts]), return_inverse=True)
    counts = {}
    for name in parts[0].counts:
        counts[name] = np.zeros(len(cells), dtype=np.int64)
        np.add.at(counts[name], rows, np.concatenate([part.counts[name] for part in parts]))
    return Histogram(cells, counts)


def _name(values: Sequence[Any]) -> str:
    plain = [value if value is None or isinstance(value, str | int) else str(value) for value in values]
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":"))


def _plain(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
