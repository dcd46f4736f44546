"""Sizes, durations and counts become whole numbers, or an error that names the valid units."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.units import format_size, parse_count, parse_date, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0B", 0), ("64MiB", 67_108_864), ("256 MiB", 268_435_456), ("1.2GB", 1_200_000_000), ("20TB", 20 * 10**12),
        ("20TiB", 20 * 2**40), ("1kB", 1000), ("0.5KiB", 512), (123, 123), (5e6, 5_000_000),
    ],
)  # fmt: skip
def test_size(text, size):
    """Decimal and binary units differ, fractions are exact, and a plain number is bytes."""
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["12", "12MX", "12mb", "12Mb", "-1MB", "MB", "1e3MB", "1,5GB", "", "1 2MB", True, None]
)
def test_no_size(text):
    """What is no size is refused, and where a unit is wrong the valid ones are named."""
    with pytest.raises(ValueError, match="MiB" if isinstance(text, str) else "whole number"):
        parse_size(text)


def test_part_of_a_byte():
    """A size that comes to a fraction of a byte is refused, not rounded."""
    with pytest.raises(ValueError, match="whole number of B"):
        parse_size("0.3B")


@given(st.integers(min_value=0, max_value=2**70))
def test_size_round_trip(size):
    """Every size reads back from its text as the same number."""
    assert parse_size(format_size(size)) == size


def test_format_size():
    """A size is written in the largest unit that leaves a whole number."""
    assert [format_size(n) for n in (268_435_456, 1_200_000_000, 1500, 0)] == ["256MiB", "1200MB", "1500B", "0B"]


def test_duration():
    """Durations are seconds, and `m` is refused because it could be minutes or months."""
    assert [parse_duration(text) for text in ("14d", "90min", "1.5h", "2w", 7)] == [1_209_600, 5400, 5400, 1_209_600, 7]
    with pytest.raises(ValueError, match="s, min, h, d, w"):
        parse_duration("5m")


@pytest.mark.parametrize(("value", "count"), [(7e9, 7 * 10**9), (3, 3), (-1, -1), (1e22, 10**22)])
def test_count(value, count):
    """A count may be written as a float as long as it is whole."""
    result = parse_count(value)
    assert result == count
    assert isinstance(result, int)


@pytest.mark.parametrize("value", [1.5, "3", True, None, float("inf"), float("nan"), [1]])
def test_no_count(value):
    """Fractions, texts and truth values are no counts."""
    with pytest.raises(ValueError, match="whole number"):
        parse_count(value)


def test_date():
    """A date is a day of the calendar in ISO form, without a time."""
    assert parse_date("2026-01-31") == dt.date(2026, 1, 31)
    for value in ("2026-02-30", "31.1.2026", "2026-01-31T00:00", 2026, None, ""):
        with pytest.raises(ValueError, match="2026-01-31"):
            parse_date(value)
