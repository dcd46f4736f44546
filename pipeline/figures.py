"""Figures: numbers that say how they are known, and arithmetic that does not let them forget it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import product
from math import isfinite
from typing import Literal, TypedDict, get_args

Kind = Literal["counted", "measured", "estimated", "assumed", "bounded", "unknown"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""From the surest to the least sure; a derived figure is as sure as its least sure input."""

_NO_VALUE = {"bounded", "unknown"}
_SET = "set "
"""An input of an unknown figure that starts so is a config line that would make it known."""


class Figure(TypedDict):
    """A number that says how it is known. `value` is None for kind bounded (see low, high) and unknown."""

    value: float | None
    unit: str
    kind: Kind
    low: float | None
    high: float | None
    formula: str
    inputs: list[str]


def figure(
    value: float | None,
    unit: str,
    kind: Kind,
    formula: str,
    inputs: Iterable[str] = (),
    *,
    low: float | None = None,
    high: float | None = None,
) -> Figure:
    """A checked Figure. ValueError where kind, value and interval do not go together."""
    numbers = [number for number in (low, value, high) if number is not None]
    rules = {
        f"there is no kind {kind!r}": kind in KINDS,
        f"the value of a figure of this kind ({kind}) cannot be {value!r}": (value is None) == (kind in _NO_VALUE),
        "an interval has both ends": (low is None) == (high is None),
        f"an interval cannot go with kind {kind}": (low is not None, kind)
        not in {(False, "bounded"), (True, "unknown")},
        f"{low!r} <= {value!r} <= {high!r} must hold": all(map(isfinite, numbers)) and numbers == sorted(numbers),
    }
    broken = [rule for rule, holds in rules.items() if not holds]
    if broken:
        raise ValueError(f"figure {formula!r}: {'; '.join(broken)}")
    return Figure(value=value, unit=unit, kind=kind, low=low, high=high, formula=formula, inputs=list(inputs))


def derive(operation: Callable[..., float], unit: str, formula: str, operands: Mapping[str, Figure]) -> Figure:
    """`operation(*values)` as a figure that is as sure as its least sure operand.

    The interval is exact for operations that are monotone in each operand (sums, products, quotients of positive
    numbers): the extremes then lie at ends of the operands' intervals. An unknown operand makes an unknown figure.
    """
    figures = operands.values()
    kind = max((f["kind"] for f in figures), key=KINDS.index)
    inputs = [f"{name} = {show(f)}: {f['formula']}" for name, f in operands.items()]
    if kind == "unknown":
        wanted = (line for f in figures for line in f["inputs"] if line.startswith(_SET))
        return figure(None, unit, kind, formula, dict.fromkeys([*inputs, *wanted]))
    low = high = None
    if any(f["low"] is not None for f in figures):
        corners = [operation(*ends) for ends in product(*(_ends(f) for f in figures))]
        low, high = min(corners), max(corners)
    value = None if kind == "bounded" else operation(*(f["value"] for f in figures))
    return figure(value, unit, kind, formula, inputs, low=low, high=high)


def _ends(given: Figure) -> tuple[float | None, ...]:
    return (given["value"],) if given["low"] is None else (given["low"], given["high"])


def needs(given: Figure) -> list[str]:
    """The config lines, as `key: example`, that would make an unknown figure known."""
    return [line.removeprefix(_SET) for line in given["inputs"] if line.startswith(_SET)]


def show(given: Figure) -> str:
    """A figure as a reader takes it in: `1,234 USD [1,100 to 1,400] (estimated)`."""
    if given["kind"] == "unknown":
        return "unknown"
    value = "" if given["value"] is None else f"{number(given['value'])} {given['unit']}"
    interval = "" if given["low"] is None else f"[{number(given['low'])} to {number(given['high'])}]"
    return " ".join(filter(None, [value or (interval and given["unit"]), interval, f"({given['kind']})"]))


def number(value: float | None) -> str:
    """Four significant digits; integers under a quadrillion in full."""
    if value is None:
        return "unknown"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.4g}" if abs(value) < 1e4 or abs(value) >= 1e15 else f"{value:,.0f}"


def setting(name: str, value: float | None, unit: str, example: str = "...") -> Figure:
    """What the config says: assumed, since nobody measured it here; unknown, with the line to add, where it is not."""
    if value is None:
        return figure(None, unit, "unknown", f"{name} is not set", [f"{_SET}{name}: {example}"])
    return figure(value, unit, "assumed", f"{name} in the config")


def short(count: float) -> str:
    """A count in at most six characters: `9,876`, `12.3k`, `4.56M`, `789B`."""
    if abs(count) < 9_999.5:
        return number(count)
    scaled = float(count)
    for unit in ("k", "M", "B", "T", "Q"):
        scaled /= 1000
        if abs(scaled) < 999.5 or unit == "Q":
            break
    digits = 2 if abs(scaled) < 9.995 else 1 if abs(scaled) < 99.95 else 0
    return f"{scaled:,.{digits}f}{unit}"


def size(count: float) -> str:
    """Bytes in decimal units: `812 B`, `3.21 GB`."""
    scaled = float(count)
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if abs(scaled) < 999.5 or unit == "PB":
            break
        scaled /= 1000
    digits = 0 if unit == "B" else 2 if abs(scaled) < 9.995 else 1 if abs(scaled) < 99.95 else 0
    return f"{scaled:,.{digits}f} {unit}"


def percent(part: float, whole: float) -> str:
    """A share with one decimal that never rounds something to nothing or almost all to all."""
    if not whole:
        return "-"
    share = part / whole
    if 0 < share < 0.001:
        return "<0.1%"
    if 0.999 < share < 1:
        return ">99.9%"
    return f"{share:.1%}" if share not in {0, 1} else f"{share:.0%}"
