"""One type for every key of many JSON objects, found by looking at all of them.

Null gives way to anything. Whole numbers are int64, and become float64 beside fractions as long as that loses no digit;
beyond 64 bits they are text, as they were written. Objects merge key by key, lists by their values. An `id` of numbers
and texts becomes text. NaN and infinities, which some writers put into JSON, are fractions. Nothing else is bent: other
kinds under one key are an error that names both and where they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from pipeline.errors import ConfigError

ID = "id"
"""The key whose values may be numbers in one place and texts in another: an id is a name, whatever it is made of."""
DEPTH = 32
"""Levels of lists and objects in one line."""
KEYS = 2000
"""Different keys of objects in one place: more are data, not columns."""

LONG, WIDE = "integer over 2^53", "integer over 64 bits"
_NAMES = {bool: "boolean", float: "fraction", str: "text", list: "list", dict: "object"}
_JOINED = {
    frozenset(pair): name
    for *pair, name in (
        ("integer", LONG, LONG), ("integer", WIDE, WIDE), (LONG, WIDE, WIDE),
        ("integer", "fraction", "fraction"),
    )
}  # fmt: skip
_EXACT = 1 << 53
"""Whole numbers up to this are exact as float64."""
_TYPES: Mapping[str, pa.DataType] = {
    "null": pa.null(), "boolean": pa.bool_(), "integer": pa.int64(), LONG: pa.int64(), WIDE: pa.large_string(),
    "fraction": pa.float64(), "text": pa.large_string(),
}  # fmt: skip


@dataclass(slots=True)
class Kind:
    """What was seen under one key, and where it was first seen so.

    `name` is null, boolean, integer, LONG (not exact as a float), WIDE, fraction, text, list or object.
    """

    path: str = ""
    name: str = "null"
    where: str = ""
    mixed: bool = False
    """Whether values of other kinds are to be written as text."""
    keys: dict[str, Kind] = field(default_factory=dict)
    items: Kind | None = None

    def see(self, value: Any, where: str) -> None:
        """Take in a value. Raises ConfigError where it does not go with what was seen before."""
        if value is None:
            return
        name = name_of(value)
        if name != self.name:
            self._widen(name, where)
        if name == "object":
            for key, inner in value.items():
                if key not in self.keys:
                    self.keys[key] = Kind(f"{self.path}.{key}" if self.path else key)
                self.keys[key].see(inner, where)
            if len(self.keys) > KEYS:
                raise ConfigError(
                    f"column {self.path or '(top)'!r}: {where} brings the number of its different keys over {KEYS}, so "
                    "they are data and not columns; write them as a list of {key, value}, or as text"
                )
        elif name == "list":
            if self.items is None:
                self.items = Kind(f"{self.path}[]")
            for inner in value:
                self.items.see(inner, where)

    def _widen(self, name: str, where: str) -> None:
        joined = name if self.name == "null" else _JOINED.get(frozenset((name, self.name)))
        if joined is None and self.path == ID and {name, self.name} <= {"integer", LONG, WIDE, "text"}:
            joined = "text"
            self.mixed = True
        if joined is None:
            raise ConfigError(
                f"column {self.path!r}: {self.name} in {self.where} but {name} in {where}; one column has one type; "
                "write one of them like the other, or leave the file out"
            )
        if joined != self.name:
            self.name, self.where = joined, where

    @property
    def type(self) -> pa.DataType:
        """The Arrow type; an object without any key is null, since Parquet has no such thing."""
        if self.name == "list":
            return pa.large_list(self.items.type if self.items else pa.null())
        if self.name == "object":
            return pa.struct([(key, kind.type) for key, kind in self.keys.items()]) if self.keys else pa.null()
        return _TYPES[self.name]

    @property
    def fits(self) -> bool:
        """Whether Arrow takes the values as they come."""
        if self.name == "object":
            return bool(self.keys) and all(kind.fits for kind in self.keys.values())
        return not self.mixed and self.name != WIDE and (self.items is None or self.items.fits)

    def fit(self, value: Any) -> Any:
        """The value in a form that goes into `type`."""
        if value is None or self.fits:
            return value
        if self.name == "object":
            return {key: self.keys[key].fit(inner) for key, inner in value.items()} if self.keys else None
        if self.name == "list" and self.items is not None:
            return [self.items.fit(inner) for inner in value]
        return str(value)


def name_of(value: Any) -> str:
    """The kind of one value."""
    if type(value) is int:
        return "integer" if abs(value) <= _EXACT else LONG if -(1 << 63) <= value < 1 << 63 else WIDE
    return _NAMES[type(value)]


def depth(value: Any) -> int:
    """Levels of lists and objects, 0 for a plain value. Raises RecursionError far beyond DEPTH."""
    if type(value) is dict:
        return 1 + max(map(depth, value.values()), default=0)
    return 1 + max(map(depth, value), default=0) if type(value) is list else 0
