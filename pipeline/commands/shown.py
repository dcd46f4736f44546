"""Results of commands as lines and tables for a console of 80 columns or more; the report has pipeline.report.table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pipeline.figures import number

Record = Mapping[str, Any]
STYLES = {"kept": "green", "removed": "red", "quarantined": "yellow"}
EXCERPT = 400
"""Characters of a document that are shown."""


def pairs(found: Mapping[str, object]) -> Table:
    """Names and values, one pair a line; paths are not broken, so that they can be copied."""
    grid = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for name, value in found.items():
        grid.add_row(Text(name), Text(_value(value)))
    return grid


def _value(value: object) -> str:
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return "-" if value is None else str(value)
    return number(value) if isinstance(value, int | float) else str(value)


# -- run -------------------------------------------------------------------------------------------------------------


PLACES = {"page": "html", "report": "report", "manifest": "manifest"}


def outcome(report: Record) -> Group:
    """What stands below a report's table: where everything lies, and what was quarantined."""
    paths = report["run"]["paths"]
    lines = [_place(name, paths[key]) for name, key in PLACES.items() if paths[key]]
    if is_quarantined(report):
        totals = report["totals"]
        counts = {"documents": totals["quarantined"]["docs"], "whole shards": totals["quarantined_shards"]["count"]}
        told = " and ".join(f"{count:,} {name}" for name, count in counts.items() if count)
        lines.append(_place("quarantined", f"{told}: {paths['quarantined']}", "yellow"))
    return Group(Text(""), *lines)


def _place(name: str, value: str, style: str = "") -> Text:
    return _line(f"{name:12}{value}", style)


def _line(text: str, style: str = "") -> Text:
    """A line that no console breaks, so that a path in it can be copied."""
    return Text(text, style, no_wrap=True, overflow="ignore")


def is_quarantined(report: Record) -> bool:
    """Whether the run met input that it had to leave out."""
    totals = report["totals"]
    return bool(totals["quarantined"]["docs"] or totals["quarantined_shards"]["count"])


# -- explain ---------------------------------------------------------------------------------------------------------


def story(told: Record) -> Group:
    """What happened to one document: see `explain.explain`."""
    head = Text(f"{told['shard']}:{told['row']}", "bold")
    about = {name: told.get(name) for name in ("id", "source", "language", "bytes", "tokens")}
    head.append("".join(f"  {name} {_value(value)}" for name, value in about.items() if value is not None), "dim")
    parts: list[RenderableType] = [head, _fate(told["outcome"])]
    if told["text_excerpt"]:
        parts.append(Text(f"\n{_shortened(told['text_excerpt'])}\n", "italic"))
    if told["stages"]:
        parts.append(_steps(told["stages"]))
    for keeper in told["chain"]:
        parts.append(Text(f"\ncharged by {keeper['by']} to {keeper['shard']}:{keeper['row']}", "bold"))
        parts += [_fate(keeper["outcome"]), Text(_shortened(keeper["text_excerpt"]), "italic")]
    return Group(*parts)


def _shortened(text: str) -> str:
    return text if len(text) <= EXCERPT else f"{text[:EXCERPT]}..."


def _fate(found: Record) -> Text:
    fate = found["fate"]
    line = Text(fate, STYLES.get(fate, "dim"))
    line.append(f" by {found['stage']}" if found.get("stage") and fate != "pending" else "")
    line.append(f": it has not been through {found['stage']} yet" if fate == "pending" else "")
    if found.get("reason"):
        line.append(f": {found['reason']}")
        line.append(f" ({found['meaning']})" if found.get("meaning") else "", "dim")
    if found.get("dataset"):
        line.append(f": dataset {found['dataset']}{'' if found['manifest'] else ', not published'}")
    for place in (found.get("manifest"), found.get("archive") and "{file} row {row}".format(**found["archive"])):
        line.append(f"\n{place}" if place else "", "dim")
    return line


def _steps(stages: Sequence[Record]) -> Table:
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for name in ("stage", "state"):
        grid.add_column(name, no_wrap=True)
    grid.add_column("what it saw", overflow="fold")
    for stage in stages:
        row = (stage["label"], stage["state"], "\n".join(_seen(stage)))
        grid.add_row(*map(Text, row), style="" if stage.get("reason") is not None else "dim")
    return grid


def _seen(stage: Record) -> Iterator[str]:
    if stage["measures"]:
        yield ", ".join(f"{name} {_value(value)}" for name, value in stage["measures"].items())
    if stage.get("reason"):
        limit = f": score {_value(stage['score'])}, threshold {_value(stage['threshold'])}" if "score" in stage else ""
        yield f"{stage['reason']}{limit}"
    if stage.get("message"):
        yield str(stage["message"])
    if "charged" in stage:
        charged = stage["charged"]
        alike = f", {charged.get('similarity_kind') or 'similarity'} {_value(charged.get('similarity'))}"
        yield f"charged to {charged['shard']}:{charged['row']}{alike}"


# -- tier verify -----------------------------------------------------------------------------------------------------


def verified(found: Record) -> Group:
    """What `tiering.verify` found."""
    head = pairs({name: found[name] for name in ("manifest", "manifest_id", "checked", "bytes")})
    lines = [_line("{problem}: {file}: {message}".format(**problem), "red") for problem in found["problems"]]
    lines += [_line(f"named by no manifest: {path}", "yellow") for path in found["leftovers"]]
    lines += [Text(f"not checked: {text}", "yellow") for text in found["unchecked"]]
    return Group(head, *(lines or [Text("everything is as it was published", "green")]))


# -- fit -------------------------------------------------------------------------------------------------------------


def fitted(card: Record, out: str) -> Group:
    """What `fit quality` made: where it lies, and how well it tells held-out documents apart."""
    held_out = {name: value for name, value in card["held_out"].items() if isinstance(value, int | float)}
    told: dict[str, object] = {"model": out, "card": f"{out}.card.json", **held_out}
    return Group(pairs(told), *(Text(f"warning: {text}", "yellow") for text in card["warnings"]))


# -- convert ---------------------------------------------------------------------------------------------------------


def converted(found: Record) -> Group:
    """What `convert` made, and what it left out."""
    told = {"files": len(found["files"]), **{name: found[name] for name in ("rows", "rejected", "blank", "repaired")}}
    told["columns"] = ", ".join(f"{name} {kind}" for name, kind in found["columns"].items())
    lines = [_line(f"left out, with reasons: {found['rejects']}", "yellow")] if found["rejects"] else []
    lines += [_line(f"no JSON lines: {path}", "dim") for path in found["ignored"]]
    return Group(pairs(told), *lines)
