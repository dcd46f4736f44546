"""The pieces that all blocks of the report page are made of: figures, tables, bars."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pipeline.figures import Figure, number, percent
from pipeline.report.page.markup import Html, el, join

Record = Mapping[str, Any]
Show = Callable[[float], str]

COLOURS = 8
"""Stage colours in the stylesheet; later stages start over."""


def colour(n: int) -> str:
    """The class of the n-th stage's colour."""
    return f"c{n % COLOURS}"


def kind_badge(given: Figure) -> Html:
    return el("span", given["kind"], class_=f"kind {given['kind']}")


def figure_value(given: Figure) -> Html:
    """Value, unit and kind; an interval where there is one; the word unknown where nothing is known."""
    if given["kind"] == "unknown":
        return join(el("span", "unknown", class_="value none"), " ", kind_badge(given))
    interval = "" if given["low"] is None else f"{signed(given['low'])} to {signed(given['high'])}"
    value = interval if given["value"] is None else signed(given["value"])
    beside = el("span", interval, class_="interval") if interval and given["value"] is not None else None
    tone = "value loss" if (given["value"] or 0) < 0 else "value"
    return join(
        el("span", value, class_=tone),
        " ",
        el("span", given["unit"], class_="unit"),
        " ",
        beside,
        " ",
        kind_badge(given),
    )


def signed(value: float | None) -> str:
    return number(value).replace("-", "\u2212")


def how(title: str, given: Figure) -> Html:
    """Formula, interval and inputs of a figure."""
    rows = [("formula", el("code", given["formula"]))]
    if given["low"] is not None:
        rows.append(("interval", join(f"{signed(given['low'])} to {signed(given['high'])} {given['unit']}")))
    if given["inputs"]:
        rows.append(("inputs", el("ul", *(el("li", line) for line in given["inputs"]))))
    head = el("h4", title) if title else None
    return join(head, el("dl", *(join(el("dt", name), el("dd", content)) for name, content in rows), class_="how"))


def figure_row(name: Html, given: Figure) -> Html:
    """A named figure that opens into where it comes from."""
    return el("details", el("summary", name, " ", figure_value(given)), how("", given), class_="figure")


def scroll(name: str, content: Html) -> Html:
    """A table that scrolls inside itself where the screen is narrow, reachable by keyboard."""
    return el("div", content, class_="scroll", tabindex=0, role="region", aria_label=name)


def grid(
    name: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, words: int = 1, class_: str | None = None
) -> Html:
    """A table: the first cell of a row is its head, the first `words` columns are text, the others numbers."""

    def cell(n: int, tag: str, content: object, scope: str | None) -> Html:
        return el(tag, content, scope=scope, class_="word" if n < words else None)

    head = el("tr", *(cell(n, "th", column, "col") for n, column in enumerate(columns)))
    body = [
        el("tr", *(cell(n, "td" if n else "th", content, None if n else "row") for n, content in enumerate(row)))
        for row in rows
    ]
    return scroll(name, el("table", el("thead", head), el("tbody", *body), class_=class_))


def stage_keys(stages: Sequence[Record]) -> list[tuple[str, str]]:
    """(colour class, label) of the stages that took something out."""
    return [
        (colour(n), stage["label"])
        for n, stage in enumerate(stages)
        if stage["removed"]["docs"] or stage["quarantined"]["docs"]
    ]


def split_bar(part: Record, stages: Sequence[Record], measure: str, shown: Show) -> Html:
    """One bar: what was kept, then what each stage took out, in the stages' colours."""
    whole = part["in"][measure] or 1
    taken = part.get("by_stage") or {stage["label"]: stage["removed"] for stage in stages}
    pieces = [("kept", "kept", part["kept"][measure])]
    pieces += [
        (colour(n), stage["label"], taken[stage["label"]][measure])
        for n, stage in enumerate(stages)
        if stage["label"] in taken
    ]
    spans = [
        el("i", class_=colour, style=f"width:{100 * amount / whole:.3f}%", title=f"{label}: {shown(amount)}")
        for colour, label, amount in pieces
        if amount
    ]
    words = ", ".join(f"{label} {percent(amount, whole)}" for _, label, amount in pieces if amount)
    return el("div", *spans, class_="bar", role="img", aria_label=words or "nothing")
