"""The report on a terminal: what each stage took, what is left, and what that is worth."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pipeline.cost import REGIMES
from pipeline.figures import Figure, needs, number, percent, short, size
from pipeline.report import NO_SOURCE, breach

ROWS = 16
"""Sources and datasets shown; the HTML page has more."""
REASONS = 6
"""Reasons shown, of all stages together."""
REGIME_NAMES = {"fixed_epoch": "same epochs", "fixed_budget": "same token budget", "fixed_target": "same loss"}

Record = Mapping[str, Any]


def table(report: Record) -> Group:
    """The report as one renderable for a console of 80 columns or more."""
    measure, show = volume(report)
    parts: list[RenderableType] = [
        _title(report, measure, show),
        _stages(report["stages"], measure, show),
        *_reasons(report["stages"], measure, show),
        _groups(report["sources"], "source", measure, show),
    ]
    if report["datasets"]:
        parts.append(_datasets(report["datasets"], measure, show))
    if report["predictions"]:
        parts.append(_predictions(report["predictions"]))
    return Group(*parts, _money(report["money"]), *_notes(report))


def volume(report: Record) -> tuple[str, Callable[[float], str]]:
    """(measure, how it is shown) that the report counts text in: tokens, or bytes where no tokens are known."""
    return ("tokens", short) if report["token_basis"]["unit"] == "tokens" else ("bytes", size)


def basis(report: Record) -> str:
    """One sentence on how tokens were counted."""
    given = report["token_basis"]
    if given["unit"] != "tokens":
        return "No tokenizer and no training.bytes_per_token: text is counted in bytes."
    if given["method"] == "exact":
        return f"Tokens are counted with {given['tokenizer']}."
    if given["tokenizer"] is None:
        return "Tokens are assumed from training.bytes_per_token."
    return f"Tokens are estimated for {given['tokenizer']} from {given['sample_docs']:,} sampled documents."


def state(run: Record) -> str:
    """What kind of run this was, in a few words."""
    if run["dry_run"]:
        return "dry run" + (f" on {run['sample']['docs']:,} sampled documents" if run["sample"] else "")
    return "complete" if run["complete"] else "not complete: nothing was published"


def _title(report: Record, measure: str, show: Callable[[float], str]) -> Text:
    run, totals = report["run"], report["totals"]
    kept, entered = totals["kept"], totals["in"]
    title = Text()
    title.append(run["name"], "bold").append(f"  {state(run)}\n", "dim" if run["complete"] else "bold red")
    title.append(f"kept {kept['docs']:,} of {entered['docs']:,} documents, ")
    title.append(f"{show(kept[measure])} of {show(entered[measure])}{' tokens' if measure == 'tokens' else ''}")
    return title.append(f" ({percent(kept[measure], entered[measure])})\n")


def _grid(*columns: str) -> Table:
    """A table whose first column takes the room that is left and whose others are numbers."""
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    grid.add_column(columns[0], overflow="fold", min_width=12)
    for column in columns[1:]:
        grid.add_column(column, justify="right", no_wrap=True)
    return grid


def _stages(stages: Iterable[Record], measure: str, show: Callable[[float], str]) -> Table:
    grid = _grid("stage", "docs in", "removed", f"{measure} in", "removed", "", "kept")
    for stage in stages:
        entered, removed = stage["in"], stage["removed"]
        cells = [
            short(entered["docs"]), short(removed["docs"]), show(entered[measure]), show(removed[measure]),
            percent(removed[measure], entered[measure]), show(stage["kept"][measure]),
        ]  # fmt: skip
        grid.add_row(Text(stage["label"]), *cells, style="" if removed["docs"] else "dim")
        if stage["quarantined"]["docs"]:
            grid.add_row(Text("  quarantined", "yellow"), "", short(stage["quarantined"]["docs"]), "",
                         show(stage["quarantined"][measure]))  # fmt: skip
    return grid


def _reasons(stages: Iterable[Record], measure: str, show: Callable[[float], str]) -> Iterable[Table]:
    """The reasons that took the most documents; none where nothing was removed."""
    found = [(stage["label"], reason) for stage in stages for reason in stage["reasons"]]
    if not found:
        return
    grid = _grid("\nmost removed for", "\nby stage", "\ndocs", f"\n{measure}")
    for label, reason in sorted(found, key=lambda pair: -pair[1]["docs"])[:REASONS]:
        grid.add_row(Text(reason["reason"]), Text(label, "dim"), short(reason["docs"]), show(reason[measure]))
    if len(found) > REASONS:
        grid.add_row(Text(f"and {len(found) - REASONS:,} more reasons", "dim"))
    yield grid


def _groups(groups: list[Record], name: str, measure: str, show: Callable[[float], str]) -> Table:
    grid = _grid(f"\n{name}", "\ndocs in", "\ndocs kept", f"\n{measure} in", f"\n{measure} kept", "\nkept")
    shown = sorted(groups, key=lambda group: -group["in"][measure])
    for group in shown[:ROWS]:
        entered, kept = group["in"], group["kept"]
        label = Text(NO_SOURCE, "dim") if group["name"] is None else Text(group["name"])
        counts = [short(entered["docs"]), short(kept["docs"]), show(entered[measure]), show(kept[measure])]
        grid.add_row(label, *counts, percent(kept[measure], entered[measure]))
    return _more(grid, len(shown))


def _datasets(datasets: list[Record], measure: str, show: Callable[[float], str]) -> Table:
    grid = _grid("\ndataset", "\ndocs", f"\n{measure}")
    for dataset in datasets[:ROWS]:
        grid.add_row(Text(dataset["id"]), short(dataset["docs"]), show(dataset[measure]))
    return _more(grid, len(datasets))


def _more(grid: Table, rows: int) -> Table:
    if rows > ROWS:
        grid.add_row(Text(f"and {rows - ROWS:,} more", "dim"))
    return grid


def _predictions(predictions: Iterable[Record]) -> Table:
    grid = _grid("\npredicted for a full run", "\n", "\nwithin", "\nhow known")
    for prediction in predictions:
        predicted = prediction["predicted"]
        ends = "" if predicted["low"] is None else f"{number(predicted['low'])} to {number(predicted['high'])}"
        value = "" if predicted["value"] is None else number(predicted["value"])
        how = Text(prediction["how"].replace("_", " "), "dim")
        grid.add_row(Text(f"{prediction['name']}, {predicted['unit']}"), value, ends, how)
    return grid


def _money(money: Record) -> Table:
    currency = money["currency"]
    grid = _grid("\ntraining with the", "\nGPU-hours saved", "\nhow known", f"\nnet {currency}", "\nhow known")
    for regime in REGIMES:
        hours, net = money["gpu_hours"][regime], money["net"][regime]
        grid.add_row(REGIME_NAMES[regime], *_figure(hours), *_figure(net))
    grid.add_section()
    for name in ("curation", "storage", "transfer"):
        grid.add_row(Text(f"cost of {name}", "dim"), "", "", *_figure(money[name]))
    return grid


def _figure(given: Figure) -> tuple[Text, Text]:
    value = number(given["value"])
    if given["kind"] == "bounded":
        value = f"{number(given['low'])} to {number(given['high'])}"
    style = "red" if (given["value"] or 0) < 0 else "dim" if given["kind"] == "unknown" else ""
    return Text(value, style), Text(given["kind"], "dim")


def _notes(report: Record) -> Iterable[Text]:
    money = report["money"]
    yield Text(f"\n{basis(report)}", "dim")
    wanted = dict.fromkeys(line for regime in REGIMES for line in needs(money["net"][regime]))
    if wanted:
        yield Text("To know what is unknown, add to the config:")
        yield from (Text(f"  {line}") for line in wanted)
    stopped = breach(report["guards"])
    if stopped and stopped not in report["warnings"]:
        yield Text(stopped, "bold red")
    for warning in report["warnings"]:
        yield Text(f"warning: {warning}", "yellow")
    if report["failures"]:
        yield Text(f"{len(report['failures']):,} pieces of work failed; run again to resume", "red")
