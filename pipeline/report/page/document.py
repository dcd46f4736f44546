"""The report as one HTML page that needs nothing else: no network, no script, readable on a phone and in the dark."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources

from pipeline.cost import REGIMES
from pipeline.figures import Figure, needs, percent, short
from pipeline.report import breach
from pipeline.report.page import drawings, evidence, tables
from pipeline.report.page.markup import Html, el, join
from pipeline.report.page.parts import Record, Show, colour, figure_row, figure_value, how, split_bar, stage_keys
from pipeline.report.table import basis, state, volume

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""Nothing is fetched and nothing runs, whatever the corpus holds."""

_REGIMES = {
    "fixed_epoch": (
        "Same number of epochs",
        "As many passes over less text. Assumes that every removed token would have been trained on exactly once.",
    ),
    "fixed_budget": (
        "Same token budget",
        "As many tokens, over what was kept. Nothing is saved: the gain, if there is one, is a better model.",
    ),
    "fixed_target": (
        "Same loss",
        "Training ends when the model is as good as on the raw corpus. Only matched training runs can measure that.",
    ),
}


def render(report: Record, examples: Sequence[Record], histograms: Mapping[str, Record]) -> str:
    """The page of a document of `pipeline.report.build`.

    `examples` are removed documents, `{stage, reason, text_excerpt, shard, row}` and where they apply score, threshold,
    charged_excerpt, charged_shard, charged_row, similarity and similarity_kind. `histograms` are by score name
    `{edges, counts, threshold, unit}` with one more edge than counts; the threshold may be None.
    """
    sections = [
        ("worth", "What removing is worth", worth(report)),
        ("flow", "Through the stages", flow(report)),
        ("removed", "What each stage removed", removed(report, examples)),
        ("scores", "Scores", scores(histograms)),
        ("duplicates", "Duplicates", evidence.duplicates(report["duplicates"])),
        ("sources", "Sources and languages", tables.origins(report)),
        ("datasets", "Datasets and curriculum", tables.curriculum(report)),
        ("predictions", "Predicted for a full run", tables.predictions(report["predictions"])),
        ("run", "The run", tables.run(report)),
        ("provenance", "Where every figure comes from", provenance(report)),
        ("config", "Config", config(report["config"])),
    ]
    shown = [(anchor, title, body) for anchor, title, body in sections if body]
    name = report["run"]["name"]
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        el("meta", name="color-scheme", content="light dark"),
        el("title", f"{name} \u00b7 corpusmill"),
        el("style", Html(resources.files("pipeline.report.page").joinpath("style.css").read_text("utf-8"))),
    )
    links = [el("a", title, href=f"#{anchor}") for anchor, title, _ in shown]
    body = el(
        "body",
        el("nav", el("b", name), *links, aria_label="Sections"),
        el("main", headline(report), *(section(*entry) for entry in shown)),
    )
    return f"<!doctype html>\n{el('html', head, body, lang='en')}\n"


def section(anchor: str, title: str, body: Html) -> Html:
    return el("section", el("h2", title), body, id=anchor)


def headline(report: Record) -> Html:
    """What was kept, in one sentence and one bar."""
    measure, shown = volume(report)
    run, totals = report["run"], report["totals"]
    entered, kept = totals["in"], totals["kept"]
    unit = " tokens" if measure == "tokens" else ""
    stopped = breach(report["guards"])
    sentence = el(
        "p",
        "Kept ",
        el("strong", f"{shown(kept[measure])} of {shown(entered[measure])}{unit}"),
        f" ({percent(kept[measure], entered[measure])}) in {kept['docs']:,} of {entered['docs']:,} documents.",
        class_="lead",
    )
    tone = "good" if run["complete"] and not stopped else "bad"
    return el(
        "header",
        el("p", "corpusmill report", class_="eyebrow"),
        el("h1", run["name"]),
        el("p", el("span", state(run), class_=f"badge {tone}"), f" {run['ended'][:10]}, version {run['version']}"),
        el("p", stopped, class_="notice") if stopped else None,
        sentence,
        el("p", _taken(totals, measure, shown), " ", basis(report), class_="soft"),
        split_bar(totals, report["stages"], measure, shown),
        drawings.legend([("kept", "kept"), *stage_keys(report["stages"])]),
    )


def _taken(totals: Record, measure: str, shown: Show) -> str:
    unit = " tokens" if measure == "tokens" else ""
    words = f"Removed {shown(totals['removed'][measure])}{unit} in {totals['removed']['docs']:,} documents"
    quarantined = totals["quarantined"]["docs"]
    return f"{words}; {quarantined:,} documents are quarantined." if quarantined else f"{words}."


def worth(report: Record) -> Html:
    """The regimes side by side, then what curation itself cost."""
    money = report["money"]
    cards = [_regime(regime, money) for regime in REGIMES]
    costs = [figure_row(el("b", name.capitalize()), money[name]) for name in ("curation", "storage", "transfer")]
    wanted = dict.fromkeys(line for regime in REGIMES for line in needs(money["net"][regime]))
    lines = el("ul", *(el("li", el("code", line)) for line in wanted))
    return join(
        el(
            "p",
            "A removed token is not a saved token. How many GPU-hours removal saves depends on how a model is then "
            "trained; net is their price less what getting there cost.",
        ),
        el("div", *cards, class_="cards"),
        el("div", "To know what is unknown, add to the config:", lines, class_="notice") if wanted else None,
        el("h3", "What getting there cost"),
        *costs,
    )


def _regime(regime: str, money: Record) -> Html:
    title, words = _REGIMES[regime]
    hours, net = money["gpu_hours"][regime], money["net"][regime]
    return el(
        "article",
        el("h3", title),
        el("p", figure_value(hours), class_="big"),
        el("p", words, class_="soft"),
        el("p", "net of costs ", figure_value(net), class_="net"),
        el("details", el("summary", "How this is known"), how("GPU-hours", hours), how("Net", net)),
        class_="card",
    )


def flow(report: Record) -> Html:
    """The flow in tokens and in documents, one shown at a time, and the same as a table."""
    measure, shown = volume(report)
    stages = report["stages"]
    counts = {measure: shown, "docs": short}
    names = {"tokens": "Tokens", "bytes": "Bytes", "docs": "Documents"}
    switches, views = [], []
    for n, (counted, show) in enumerate(counts.items()):
        switches.append(el("input", type="radio", name="flow", id=f"flow-{n}", class_=f"pick-{n}", checked=n == 0))
        switches.append(el("label", names[counted], for_=f"flow-{n}"))
        wide, narrow = drawings.flow_wide(stages, counted, show), drawings.flow_narrow(stages, counted, show)
        views.append(el("figure", wide, narrow, class_=f"view-{n}"))
    switch = el("div", *switches, *views, class_="switch", role="group", aria_label="What to count")
    return join(switch, tables.stage_table(report))


def removed(report: Record, examples: Sequence[Record]) -> Html:
    """Stage by stage: the reasons with their counts, and examples beside what they were charged to."""
    measure, shown = volume(report)
    parts = []
    for n, stage in enumerate(report["stages"]):
        if not stage["removed"]["docs"] and not stage["quarantined"]["docs"]:
            continue
        own = [example for example in examples if example["stage"] == stage["label"]]
        parts.append(
            el(
                "article",
                el("h3", el("i", class_=f"swatch {colour(n)}"), stage["label"]),
                evidence.reasons(stage, measure, shown, n),
                evidence.examples(own),
                class_="stage",
            )
        )
    return join(*parts) if parts else el("p", "Nothing was removed.")


def scores(histograms: Mapping[str, Record]) -> Html:
    drawn = [
        el("figure", el("figcaption", el("code", name)), drawings.histogram(name, histograms[name]))
        for name in sorted(histograms)
    ]
    return el("div", *drawn, class_="charts") if drawn else Html("")


def provenance(report: Record) -> Html:
    """Every figure of the report with its kind, formula and inputs."""
    rows = [figure_row(el("code", path), given) for path, given in figures(report)]
    return join(
        el("p", f"Documents and bytes are counted by the run's last step, row by row. {basis(report)} "
                "Every other figure says how it is known: counted exactly, measured in this run, estimated with an "
                "interval, assumed from the config or a source, bounded by an interval, or unknown."),
        *rows,
    )  # fmt: skip


def figures(value: object, path: str = "") -> Iterator[tuple[str, Figure]]:
    """(path, figure) for every Figure inside a report, in the order of the document."""
    if isinstance(value, Mapping):
        if value.keys() >= Figure.__required_keys__:
            yield path, value  # type: ignore[misc]
            return
        for key, inner in value.items():
            yield from figures(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for n, inner in enumerate(value):
            named = isinstance(inner, Mapping) and (inner.get("tier") or inner.get("pool") or inner.get("name"))
            yield from figures(inner, f"{path}.{named or n}")


def config(given: Record) -> Html:
    """What the results depend on, as YAML."""
    from ruamel.yaml import YAML

    out = io.StringIO()
    YAML().dump(dict(given), out)
    return el("details", el("summary", "What the results of this run depend on"), el("pre", out.getvalue()))
