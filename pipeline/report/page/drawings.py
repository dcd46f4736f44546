"""The drawings of the report page: inline SVG with a title and a description, coloured by the page's stylesheet."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10

from pipeline.figures import number, percent, short
from pipeline.report.page.markup import Html, el, join
from pipeline.report.page.parts import Record, Show, colour


def _svg(width: float, height: float, title: str, description: str, *content: object, class_: str = "") -> Html:
    head = (el("title", title), el("desc", description))
    return el("svg", *head, *content, viewBox=f"0 0 {width:g} {height:g}", role="img", class_=class_ or None)


def _label(x: float, y: float, content: object, class_: str = "", anchor: str = "start") -> Html:
    return el("text", content, x=float(x), y=float(y), class_=class_ or None, text_anchor=anchor)


def _story(stages: Sequence[Record], measure: str, show: Show) -> str:
    """The flow in words, for those who hear the page."""
    steps = [
        f"{stage['label']} takes out {show(stage['in'][measure] - stage['kept'][measure])}"
        for stage in stages
        if stage["in"][measure] > stage["kept"][measure]
    ]
    first, last = stages[0]["in"][measure], stages[-1]["kept"][measure]
    return f"{show(first)} {measure} enter. {'; '.join(steps) or 'Nothing is taken out'}. {show(last)} are kept."


def flow_wide(stages: Sequence[Record], measure: str, show: Show) -> Html:
    """A band from left to right, as wide as what is left; what a stage takes out turns down under its name."""
    width, top, full, floor_ = 1040.0, 48.0, 176.0, 280.0
    entered = max(stages[0]["in"][measure], 1)
    lead, right = 64.0, 150.0
    step = (width - lead - right) / len(stages)
    parts: list[Html] = [
        _label(0, top - 28, "in", "name"),
        _label(0, top - 10, show(stages[0]["in"][measure]), "soft"),
        el("rect", x=0, y=top, width=lead, height=full, class_="left"),
    ]
    for i, stage in enumerate(stages):
        x = lead + step * i
        before, after = (stage[side][measure] / entered * full for side in ("in", "kept"))
        parts.append(el("rect", x=x, y=top, width=step, height=max(after, 0.5), class_="left"))
        parts.append(el("rect", x=x, y=top - 38, width=1.5, height=before + 38, class_="gate"))
        parts.append(_label(x + 8, top - 28, stage["label"], "name"))
        parts.append(_label(x + 8, top - 10, show(stage["kept"][measure]), "soft"))
        if before > after:
            parts.append(_fall(x, top + after, before - after, min(step * 0.62, 92), floor_, colour(i)))
            taken = stage["in"][measure] - stage["kept"][measure]
            parts.append(_label(x + 8, floor_ + 20, f"\u2212{show(taken)}", "strong"))
            parts.append(_label(x + 8, floor_ + 37, percent(taken, stage["in"][measure]), "soft"))
    kept = stages[-1]["kept"][measure]
    parts.append(el("rect", x=width - right, y=top, width=5.0, height=max(kept / entered * full, 0.5), class_="kept"))
    middle = top + min(kept / entered * full / 2, full) + 4
    parts.append(_label(width - right + 12, middle, show(kept), "big"))
    parts.append(_label(width - right + 12, middle + 20, f"kept, {percent(kept, entered)}", "soft"))
    title = f"Flow of {measure} through the stages"
    return _svg(width, floor_ + 46, title, _story(stages, measure, show), *parts, class_="wide")


def _fall(x: float, y: float, thick: float, reach: float, bottom: float, colour: str) -> Html:
    """A strip that leaves the band at (x, y) going right and ends going down; no wider than its reach allows."""
    end = x + 8 + min(max(thick, 1.0), reach)
    inner = x + 8
    bend = min(y + thick + 26, bottom)
    path = (
        f"M{x:.1f} {y:.1f} C{end:.1f} {y:.1f} {end:.1f} {y:.1f} {end:.1f} {bend:.1f} L{end:.1f} {bottom:.1f} "
        f"L{inner:.1f} {bottom:.1f} L{inner:.1f} {bend:.1f} "
        f"C{inner:.1f} {y + thick:.1f} {inner:.1f} {y + thick:.1f} {x:.1f} {y + thick:.1f} Z"
    )
    return el("path", d=path, class_=f"gone {colour}")


def flow_narrow(stages: Sequence[Record], measure: str, show: Show) -> Html:
    """The same for phones: the band runs down, what is taken out turns right to its stage's name."""
    width, top, full, step = 358.0, 50.0, 150.0, 58.0
    entered = max(stages[0]["in"][measure], 1)
    parts: list[Html] = [
        _label(0, 14, f"{show(stages[0]['in'][measure])} in", "strong"),
        el("rect", x=0, y=24, width=full, height=top - 24, class_="left"),
    ]
    for i, stage in enumerate(stages):
        y = top + step * i
        before, after = (stage[side][measure] / entered * full for side in ("in", "kept"))
        parts.append(el("rect", x=0, y=y, width=max(after, 0.5), height=step, class_="left"))
        parts.append(el("rect", x=0, y=y, width=before, height=1.5, class_="gate"))
        parts.append(_label(8, y + 52, show(stage["kept"][measure]), "inside"))
        parts.append(_label(206, y + 18, stage["label"], "name"))
        taken = stage["in"][measure] - stage["kept"][measure]
        if before > after:
            into, out = y + 6, y + 6 + min(max(before - after, 1.0), step * 0.62)
            path = (
                f"M{before:.1f} {y:.1f} C{before:.1f} {into:.1f} {before:.1f} {into:.1f} {before + 12:.1f} {into:.1f} "
                f"L198 {into:.1f} L198 {out:.1f} L{before:.1f} {out:.1f} "
                f"C{after:.1f} {out:.1f} {after:.1f} {out:.1f} {after:.1f} {y:.1f} Z"
            )
            parts.append(el("path", d=path, class_=f"gone {colour(i)}"))
            parts.append(_label(206, y + 35, f"\u2212{show(taken)}, {percent(taken, stage['in'][measure])}", "soft"))
    kept, bottom = stages[-1]["kept"][measure], top + step * len(stages)
    parts.append(el("rect", x=0, y=bottom, width=max(kept / entered * full, 0.5), height=5.0, class_="kept"))
    parts.append(_label(0, bottom + 26, f"{show(kept)} kept, {percent(kept, entered)}", "strong"))
    title = f"Flow of {measure} through the stages"
    return _svg(width, bottom + 36, title, _story(stages, measure, show), *parts, class_="narrow")


def histogram(name: str, given: Record) -> Html:
    """Documents by score: `{edges, counts, threshold, unit}`, one more edge than counts; a threshold is a line."""
    edges: Sequence[float] = given["edges"]
    counts: Sequence[int] = given["counts"]
    threshold: float | None = given["threshold"]
    width, height, left, bottom, top = 440.0, 210.0, 46.0, 34.0, 26.0
    low, high, most = edges[0], edges[-1], max([*counts, 1])
    plot = width - left - 8

    def across(value: float) -> float:
        return left + (value - low) / ((high - low) or 1) * plot

    def up(count: float) -> float:
        return height - bottom - count / most * (height - bottom - top)

    parts: list[Html] = []
    for tick in ticks(0, most, 3):
        parts.append(el("line", x1=left, x2=width - 8, y1=up(tick), y2=up(tick), class_="grid"))
        parts.append(_label(left - 6, up(tick) + 4, short(tick), "axis", "end"))
    for start, end, count in zip(edges, edges[1:], counts, strict=False):
        bar = max(across(end) - across(start) - 0.6, 0.4)
        parts.append(
            el("rect", x=across(start), y=up(count), width=bar, height=height - bottom - up(count), class_="count")
        )
    parts.append(el("line", x1=left, x2=width - 8, y1=height - bottom, y2=height - bottom, class_="rule"))
    parts += [_label(across(tick), height - 16, number(tick), "axis", "middle") for tick in ticks(low, high, 5)]
    parts.append(_label(width - 8, height - 2, given["unit"], "axis", "end"))
    if threshold is not None and low <= threshold <= high:
        x = across(threshold)
        anchor, shift = ("start", 5) if x < width * 0.7 else ("end", -5)
        parts.append(el("line", x1=x, x2=x, y1=8.0, y2=height - bottom, class_="threshold"))
        parts.append(_label(x + shift, 17, f"threshold {number(threshold)}", "mark", anchor))
    words = f"{short(sum(counts))} documents from {number(low)} to {number(high)} {given['unit']}"
    cut = "no threshold" if threshold is None else f"threshold at {number(threshold)}"
    return _svg(width, height, f"Histogram of {name}", f"{words}, {cut}.", *parts, class_="chart")


def ticks(low: float, high: float, wanted: int) -> list[float]:
    """Round values inside [low, high], about as many as wanted: multiples of 1, 2 or 5 times a power of ten."""
    if high <= low:
        return [low]
    rough = (high - low) / wanted
    power = 10.0 ** floor(log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    first = -floor(-low / step)
    return [n * step for n in range(first, floor(high / step) + 1)]


def sizes(histogram_: Sequence[Sequence[int]]) -> Html:
    """Duplicate groups by size: bars over [log2 of the size, groups], counts on a logarithmic height."""
    width, height, bottom, top = 440.0, 150.0, 34.0, 18.0
    most = log10(max([groups for _, groups in histogram_], default=1) + 1)
    step = (width - 8) / max(len(histogram_), 1)
    parts: list[Html] = []
    for i, (power, groups) in enumerate(histogram_):
        tall = log10(groups + 1) / most * (height - bottom - top)
        x, y = 4 + i * step, height - bottom - tall
        parts.append(el("rect", x=x + 1, y=y, width=min(step - 2, 48), height=tall, class_="count"))
        middle = x + 1 + min(step - 2, 48) / 2
        parts.append(_label(middle, y - 5, short(groups), "axis", "middle"))
        parts.append(_label(middle, height - 18, short(2**power), "axis", "middle"))
    parts.append(_label(4, height - 2, "documents in a group, at least", "axis"))
    words = "; ".join(f"{groups:,} of {2**power:,} or more" for power, groups in histogram_)
    return _svg(width, height, "Duplicate groups by size", words or "no groups", *parts, class_="chart")


def legend(entries: Sequence[tuple[str, str]]) -> Html:
    """(class of the swatch, label) as a line of keys."""
    return el("p", join(*(el("span", el("i", class_=colour), label) for colour, label in entries)), class_="legend")
