"""Sizes, durations, counts, dates and times as people write them: "256MiB", "14d", 7e9, 2026-01-31.

MB is 10^6 bytes and MiB is 2^20. Types for settings: `Size` (bytes), `Duration` (seconds), `Count`, `Date`.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer

SIZES: Mapping[str, int] = {
    "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50,
}  # fmt: skip
DURATIONS: Mapping[str, int] = {"s": 1, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}

_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]+)")


def parse_size(value: object) -> int:
    """Bytes of "1.2GB", "256MiB" or a plain number of bytes. ValueError names the valid units."""
    return _quantity(value, SIZES, "a size such as 256MiB")


def parse_duration(value: object) -> int:
    """Seconds of "14d", "90min" or a plain number of seconds. ValueError names the valid units."""
    return _quantity(value, DURATIONS, "a duration such as 14d")


def parse_count(value: object) -> int:
    """A whole number, also where it is written as a float: 7e9. ValueError for anything else."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    raise ValueError("it must be a whole number, without quotes")


def parse_date(value: object) -> dt.date:
    """The day "2026-01-31". ValueError for anything else."""
    if isinstance(value, dt.date):
        return value
    try:
        return dt.date.fromisoformat(str(value))
    except ValueError:
        raise ValueError("it must be a date such as 2026-01-31") from None


def format_size(size: int) -> str:
    """The shortest text that `parse_size` reads back as `size`: 268435456 is "256MiB"."""
    if size == 0:
        return "0B"
    unit = max((unit for unit, factor in SIZES.items() if size % factor == 0), key=SIZES.__getitem__)
    return f"{size // SIZES[unit]}{unit}"


def format_time(moment: dt.datetime) -> str:
    """RFC 3339, to the second: "2026-01-31T09:30:00Z". `moment` is in UTC."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def now() -> str:
    """The time, by `format_time`."""
    return format_time(dt.datetime.now(dt.UTC))


def _quantity(value: object, units: Mapping[str, int], what: str) -> int:
    if not isinstance(value, str):
        return parse_count(value)
    match = _QUANTITY.fullmatch(value)
    if match is None or match[2] not in units:
        raise ValueError(f"it must be {what}; units: {', '.join(units)}")
    total = Fraction(match[1]) * units[match[2]]
    if total.denominator != 1:
        raise ValueError(f"it must come to a whole number of {next(iter(units))}")
    return int(total)


Size = Annotated[int, BeforeValidator(parse_size), PlainSerializer(format_size, return_type=str, when_used="json")]
Duration = Annotated[int, BeforeValidator(parse_duration)]
Count = Annotated[int, BeforeValidator(parse_count)]
Date = Annotated[dt.date, BeforeValidator(parse_date)]
