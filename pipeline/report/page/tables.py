"""The report page's tables: stages, sources and languages, datasets and phases, the run and its prices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pipeline.figures import number, percent, short, size
from pipeline.report import NO_SOURCE
from pipeline.report.page.markup import Html, el, join
from pipeline.report.page.parts import Record, figure_value, grid, split_bar
from pipeline.report.table import volume

ROWS = 60
"""Rows of a table of sources, languages or datasets; the rest is summed up. The JSON has them all."""


def stage_table(report: Record) -> Html:
    measure, shown = volume(report)
    columns = [
        "stage",
        "docs in",
        "docs removed",
        f"{measure} in",
        f"{measure} removed",
        "share",
        "quarantined",
        "no score",
    ]
    rows = []
    for stage in report["stages"]:
        entered, gone = stage["in"], stage["removed"]
        counts = (f"{entered['docs']:,}", f"{gone['docs']:,}", shown(entered[measure]), shown(gone[measure]))
        share = percent(gone[measure], entered[measure])
        apart = (f"{docs:,}" if docs else "" for docs in (stage["quarantined"]["docs"], stage["unscorable_docs"]))
        rows.append([stage["label"], *counts, share, *apart])
    return grid("Stages", columns, rows)


def origins(report: Record) -> Html:
    return join(_groups(report, "source"), _groups(report, "language"))


def _groups(report: Record, name: str) -> Html:
    """Sources or languages, the largest first: what each lost, and to which stage."""
    measure, shown = volume(report)
    stages = report["stages"]
    guards = {guard["name"]: guard["state"] for guard in report["guards"] if guard["scope"] == name}
    found = sorted(report[f"{name}s"], key=lambda group: -group["in"][measure])
    rows = []
    for group in found[:ROWS]:
        label = NO_SOURCE if group["name"] is None else group["name"]
        judged = guards.get(label, "ok")
        flag = (
            join(" ", el("span", judged, class_="badge bad" if judged == "stopped" else "badge"))
            if judged != "ok"
            else None
        )
        rows.append(
            [
                join(label, flag),
                f"{group['in']['docs']:,}",
                shown(group["in"][measure]),
                shown(group["kept"][measure]),
                percent(group["kept"][measure], group["in"][measure]),
                split_bar(group, stages, measure, shown),
            ]
        )
    if len(found) > ROWS:
        rows.append([f"and {len(found) - ROWS:,} more", "", "", "", "", ""])
    columns = [name, "docs in", f"{measure} in", f"{measure} kept", "kept", "kept and removed by stage"]
    return grid(f"By {name}", columns, rows, class_="origins")


def curriculum(report: Record) -> Html:
    """The datasets, the buckets' edges, and the phases with the epochs they ask of each dataset."""
    if not report["datasets"]:
        return Html("")
    return join(_datasets(report), _phases(report), _edges(report["buckets"]))


def _datasets(report: Record) -> Html:
    measure, shown = volume(report)
    found = report["datasets"]
    rows = [
        [
            el("code", dataset["id"]),
            dataset["split"],
            "" if dataset["bucket"] is None else join(_swatch(dataset, _buckets(found)), f" {dataset['bucket']}"),
            ", ".join(f"{key}: {value or NO_SOURCE}" for key, value in dataset["group"].items()),
            f"{dataset['docs']:,}",
            shown(dataset[measure]),
            size(dataset["bytes"]),
        ]
        for dataset in found[:ROWS]
    ]
    if len(found) > ROWS:
        rows.append([f"and {len(found) - ROWS:,} more", "", "", "", "", "", ""])
    return grid("Datasets", ["dataset", "split", "bucket", "group", "docs", measure, "bytes"], rows, words=4)


def _buckets(datasets: Sequence[Record]) -> int:
    return max((dataset["bucket"] for dataset in datasets if dataset["bucket"] is not None), default=0)


def _shade(dataset: Record, last: int) -> str:
    """From easy to hard on one ramp; what has no bucket is grey."""
    if dataset["bucket"] is None:
        return "background:var(--soft)"
    return f"background:color-mix(in oklab, var(--hard) {100 * dataset['bucket'] / max(last, 1):.0f}%, var(--easy))"


def _swatch(dataset: Record, last: int) -> Html:
    return el("i", class_="swatch", style=_shade(dataset, last))


def _phases(report: Record) -> Html | None:
    phases, datasets = report["phases"], {dataset["id"]: dataset for dataset in report["datasets"]}
    if not phases:
        return None
    last, whole = _buckets(report["datasets"]), max(phases[-1]["end"], 1)
    bars = []
    for phase in phases:
        weights = sorted(phase["weights"], key=lambda weight: (_order(datasets[weight["dataset"]]), weight["dataset"]))
        spans = [
            el(
                "i",
                style=f"width:{100 * weight['weight']:.3f}%;{_shade(datasets[weight['dataset']], last)}",
                title=f"{weight['dataset']}: {percent(weight['weight'], 1)}",
            )
            for weight in weights
            if weight["weight"]
        ]
        length = f"{short(phase['end'] - phase['start'])} tokens, {percent(phase['end'] - phase['start'], whole)}"
        words = ", ".join(f"{weight['dataset']} {percent(weight['weight'], 1)}" for weight in weights)
        note = f", learning rate in {phase['lr_stage']}" if phase.get("lr_stage") else ""
        label = el("span", el("b", phase["name"]), f" {length}{note}")
        bars.append(el("li", label, el("div", *spans, class_="bar", role="img", aria_label=words)))
    keys = el("p", el("span", "easy"), el("i", class_="ramp"), el("span", "hard"), class_="legend") if last else None
    asked = [
        [
            el("code", name),
            *(_epochs(phase["weights"], name) for phase in phases),
        ]
        for name in list(datasets)[:ROWS]
        if any(weight["dataset"] == name for phase in phases for weight in phase["weights"])
    ]
    columns = ["epochs asked by the end of", *(phase["name"] for phase in phases)]
    return join(
        el("h3", "Phases"), el("ul", *bars, class_="phases"), keys, grid("Epochs by dataset and phase", columns, asked)
    )


def _order(dataset: Record) -> int:
    return 1_000_000 if dataset["bucket"] is None else dataset["bucket"]


def _epochs(weights: Iterable[Record], name: str) -> Html:
    """Cumulative passes over a dataset, shaded up to the customary cap of four."""
    epochs = next((weight["epochs"] for weight in weights if weight["dataset"] == name), None)
    if epochs is None:
        return Html("")
    return el("span", f"{epochs:.2f}", class_="heat", style=f"--heat:{min(100 * epochs / 4, 100):.0f}%")


def _edges(buckets: Record | None) -> Html | None:
    if not buckets or not buckets.get("edges"):
        return None

    def edge(value: float | None) -> str:
        return "open" if value is None else number(value)

    rows = [
        [
            ", ".join(f"{key}: {value or NO_SOURCE}" for key, value in entry["group"].items()) or "all",
            str(entry["bucket"]),
            edge(entry["lower"]),
            edge(entry["upper"]),
            f"{entry['docs']:,}",
            short(entry["tokens"]),
        ]
        for entry in buckets["edges"][: 4 * ROWS]
    ]
    columns = ["group", "bucket", f"from {buckets['score']}", "to under", "docs", "tokens"]
    return el("details", el("summary", f"Edges of the buckets by {buckets['score']}"), grid("Edges", columns, rows))


def run(report: Record) -> Html:
    """Guards, warnings and failures first, then time, machines, prices and storage."""
    return join(
        _list("Warnings", [join(line) for line in report["warnings"]]),
        _list("Failures", [
            join(el("code", f"{failure['stage']} {failure['shard']}"), f" {failure['error']}: {failure['message']}")
            for failure in report["failures"]
        ]),
        _identity(report["run"]),
        grid(
            "Time by stage",
            ["stage", "wall s", "CPU s", "lost s", "cells computed", "reused"],
            [
                [
                    stage["label"],
                    *(number(round(stage["seconds"][key], 1)) for key in ("wall", "cpu", "wasted")),
                    f"{stage['cells_computed']:,}",
                    f"{stage['cells_reused']:,}",
                ]
                for stage in report["stages"]
            ],
        ),
        _machines(report),
    )  # fmt: skip


def _list(title: str, entries: Sequence[Html]) -> Html | None:
    return join(el("h3", title), el("ul", *(el("li", entry) for entry in entries))) if entries else None


def _identity(given: Record) -> Html:
    names = ("run_id", "corpus_id", "config_fingerprint", "version", "executor", "attempts_of_run", "started", "ended")
    facts = [(name.replace("_", " "), "none yet" if given[name] is None else given[name]) for name in names]
    return el("dl", *(el("div", el("dt", name), el("dd", el("code", fact))) for name, fact in facts), class_="facts")


def predictions(found: Sequence[Record]) -> Html:
    """What a dry run says about a full one, beside what a full one found."""
    if not found:
        return Html("")
    rows = [
        [entry["name"], figure_value(entry["predicted"]), figure_value(entry["actual"]) if entry.get("actual") else ""]
        for entry in found
    ]
    return grid("Predictions", ["", "predicted", "actual"], rows)


def _machines(report: Record) -> Html:
    pools = []
    for pool in report["compute"]:
        lost = f"{pool['attempts_lost']:,} of {pool['attempts']:,}"
        figures = (figure_value(pool["cost"]), figure_value(pool["effective_price"]))
        pools.append([pool["pool"], pool["kind"], number(round(pool["cpu_seconds"])), lost, *figures])
    tiers = [
        [tier["tier"], f"{tier['files']:,}", size(tier["bytes"]), figure_value(tier["month"])]
        for tier in report["tiers"]
    ]
    prices = [
        [el("code", price["name"]), price["kind"], price["source"] or "no source",
         "no date" if price["date"] is None else f"{price['date']}, {price['age_days']} days old",
         f"{number(price['value'])} {price['unit']}"]
        for price in report["money"]["prices"]
    ]  # fmt: skip
    blocks = [
        (pools, ["pool", "kind", "CPU s", "attempts lost", "cost", "effective price"], "Compute pools", 2),
        (tiers, ["tier", "files", "bytes", "a month"], "Storage", 1),
        (prices, ["price", "kind", "source", "date", "value"], "Prices", 4),
    ]
    return join(*(grid(name, columns, rows, words=words) for rows, columns, name, words in blocks if rows))
