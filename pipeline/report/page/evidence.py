"""What each stage took out and why: reasons, examples beside what they were charged to, and groups of duplicates."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence

from pipeline.figures import number
from pipeline.report.page import drawings
from pipeline.report.page.markup import Html, el, join, visible
from pipeline.report.page.parts import Record, Show, colour, figure_value, signed

SHOWN, FOLDED = 2, 10
"""Examples of a stage in sight, and at most that many more behind a fold."""
EXCERPT = 480
"""Characters of an example."""


def reasons(stage: Record, measure: str, shown: Show, n: int) -> Html:
    """A stage's reasons as bars, the commonest first; what it quarantined after what it removed."""
    found = [(reason, "") for reason in stage["reasons"]]
    found += [(reason, "quarantined") for reason in stage["quarantine_reasons"]]
    most = max([reason["docs"] for reason, _ in found], default=1) or 1
    rows = [
        el(
            "li",
            el("span", el("code", reason["reason"]), f" {note}" if note else None),
            el("i", class_=colour(n), style=f"width:{100 * reason['docs'] / most:.2f}%"),
            el("span", f"{reason['docs']:,} documents, {shown(reason[measure])}{' tokens' * (measure == 'tokens')}"),
        )
        for reason, note in found
    ]
    return el("ul", *rows, class_="reasons")


def examples(found: Sequence[Record]) -> Html | None:
    """Examples of one stage: two in sight, the rest behind a fold."""
    if not found:
        return None
    rest = found[SHOWN : SHOWN + FOLDED]
    count = f"{len(rest)} more example{'s' * (len(rest) > 1)}"
    fold = el("details", el("summary", count), *map(example, rest)) if rest else None
    return el("div", *map(example, found[:SHOWN]), fold, class_="examples")


def example(given: Record) -> Html:
    """One removed document, beside the kept one it is charged to where there is one; what differs is marked."""
    notes = [el("code", given["reason"])]
    alike, score = given.get("similarity"), given.get("score")
    cut = "" if given.get("threshold") is None else f", threshold {signed(given['threshold'])}"
    if given.get("similarity_kind") == "exact":
        notes.append(join("exact copy"))
    elif alike is not None:
        kind = given.get("similarity_kind") or "measured"
        notes.append(join(f"{kind} similarity {number(alike)}{cut if score == alike else ''}"))
    if score is not None and score != alike:
        notes.append(join(f"score {signed(score)}{cut}"))
    left, right = clip(given["text_excerpt"]), clip(given.get("charged_excerpt"))
    place = f"{given['shard']}:{given['row']}"
    sides = [_excerpt("removed", place, marked(left, right) if right else left)]
    if right:
        shard = given.get("charged_shard")
        where = f"{shard}:{given.get('charged_row')}" if shard is not None else ""
        sides.append(_excerpt("charged to, kept", where, marked(right, left)))
    head = el("p", join(*(join(note, " ") for note in notes)), class_="notes")
    return el("article", head, el("div", *sides, class_="pair" if right else "single"), class_="example")


def _excerpt(title: str, where: str, content: object) -> Html:
    caption = el("figcaption", el("b", title), " ", el("code", where) if where else None)
    return el("figure", caption, el("blockquote", content, dir="auto"))


def clip(excerpt: str | None) -> str:
    shown = visible(excerpt or "")
    if excerpt is not None and not shown.strip():
        return "(blank)"
    return shown if len(shown) <= EXCERPT else shown[:EXCERPT].rsplit(" ", 1)[0] + " \u2026"


def marked(own: str, other: str) -> Html:
    """`own` with the words that `other` does not have in their place marked."""
    words, others = (re.findall(r"\s+|\S+", side) for side in (own, other))
    parts = []
    for code, start, end, _, _ in difflib.SequenceMatcher(None, words, others, autojunk=False).get_opcodes():
        run = "".join(words[start:end])
        parts.append(el("mark", run) if code in {"replace", "delete"} and run.strip() else join(run))
    return join(*parts)


def duplicates(found: Mapping[str, Record]) -> Html:
    """Per duplicate stage: how many met, what was compared, the policy in words, and the sizes of groups."""
    parts = []
    for label, given in found.items():
        counts = {
            "candidate documents": given.get("candidates"),
            "groups that met": given.get("components"),
            "largest group": given.get("largest_component"),
            "texts compared": given.get("comparisons"),
            "left undecided (kept)": given.get("undecided"),
        }
        cells = [(name, f"{count:,}") for name, count in counts.items() if count is not None]
        if given.get("expected_miss") is not None:
            cells.append(("expected to be missed at the threshold", f"{given['expected_miss']:.1%}"))
        policy = [str(given[key]) for key in ("normalisation", "shingle") if given.get(key)]
        if given.get("bands"):
            policy.append(f"{given['bands']} bands of {given['rows']} rows")
        cells += [(name, figure_value(given[name])) for name in ("recall", "precision") if given.get(name)]
        parts.append(
            el(
                "article",
                el("h3", label),
                el("p", ", ".join(policy), class_="soft") if policy else None,
                el("dl", *(el("div", el("dt", name), el("dd", value)) for name, value in cells), class_="facts"),
                _sizes(given.get("size_histogram")),
                class_="stage",
            )
        )
    return join(*parts)


def _sizes(histogram: Sequence[Sequence[int]] | None) -> Html | None:
    if not histogram:
        return None
    return el("figure", el("figcaption", "Groups by size, bars on a logarithmic scale"), drawings.sizes(histogram))
