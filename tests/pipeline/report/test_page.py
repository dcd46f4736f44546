"""The report page holds everything, needs nothing else, and cannot be taken over by the corpus."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import report
from pipeline.report import page
from pipeline.report.page.drawings import ticks
from pipeline.report.page.evidence import EXCERPT, clip, marked
from pipeline.report.page.markup import Html, el, text, visible
from tests.pipeline.report.report_records import STAGES, records

HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(2)></style>\u202e\u2066evil\u0000 https://example.org \ud800\" '"
)
HISTOGRAMS = {"quality.score": {"edges": [0.0, 0.5, 1.0], "counts": [3, 4], "threshold": 0.62, "unit": "score"}}
VOID = {"meta", "input", "link", "br"}


def example(**more):
    return {
        "stage": "minhash",
        "reason": "near_duplicate",
        "shard": "a.parquet",
        "row": 7,
        "text_excerpt": "one two three",
        **more,
    }


class Page(HTMLParser):
    """Collects elements, attributes and text, and insists that every element is closed where it should be."""

    def __init__(self, source):
        super().__init__()
        self.open, self.tags, self.attributes, self.words = [], [], [], []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


@pytest.fixture(scope="module")
def built():
    return report.build(**records(guards=report.guards(records()["counts"], records()["config"])))


@pytest.fixture(scope="module")
def rendered(built):
    return page.render(
        built, [example(charged_excerpt="one two four", similarity=0.9, similarity_kind="jaccard")], HISTOGRAMS
    )


def test_the_page_is_whole_and_needs_nothing_else(rendered):
    """Every element is closed; no script, link, image or address of another place is in the page."""
    parsed = Page(rendered)
    assert {"script", "link", "img", "iframe", "object", "base", "form"}.isdisjoint(parsed.tags)
    assert not {name for name, _ in parsed.attributes if name.startswith("on") or name in {"src", "srcset", "action"}}
    assert all(value.startswith("#") for name, value in parsed.attributes if name == "href")
    assert "http" not in re.sub("http-equiv", "", rendered)
    assert "url(" not in rendered
    assert "@import" not in rendered
    assert "default-src 'none'" in rendered.replace("&#x27;", "'")


def test_every_section_and_every_name_is_there(rendered):
    """Stages, sources, datasets, phases, reasons, scores, thresholds and edges can all be found."""
    words = " ".join(Page(rendered).words)
    for name in (*STAGES, "crawl-2026-10", "(none)", "train-b4-de", "warm-up", "near_duplicate", "undecodable"):
        assert name in words
    for phrase in ("quality.score", "threshold 0.62", "a.parquet:7", "jaccard similarity 0.9", "28 bands of 9 rows"):
        assert phrase in words


def test_every_figure_of_the_report_is_shown_with_its_provenance(built, rendered):
    """Each figure's path, kind, formula and inputs are on the page, whatever part of the report it is in."""
    found = dict(page.figures(built))
    assert {"money.net.fixed_epoch", "tiers.hot.month", "compute.local.cost"} <= found.keys()
    for path, shown in found.items():
        row = rendered.split(f"<summary><code>{path}</code>", 1)[1].split("</details>", 1)[0]
        assert f">{shown['kind']}</span>" in row
        for line in (shown["formula"], *shown["inputs"]):
            assert text(line) in row


def test_a_figure_anywhere_is_found(built):
    """Predictions and recalls bring figures of their own, and none is missed."""
    guess = {"value": 1, "unit": "docs", "kind": "estimated", "low": 0, "high": 2, "formula": "f", "inputs": []}
    more = {**built, "predictions": [{"name": "kept", "predicted": guess, "actual": None, "how": "estimated"}]}
    assert dict(page.figures(more))["predictions.kept.predicted"] == guess
    assert "0 to 2" in page.render(more, [], {})


def test_a_loss_reads_as_a_loss(rendered):
    """The net of the fixed budget is negative and marked so."""
    assert re.search(r'class="value loss">\u22120\.1\d+</span>', rendered)


def test_unknown_figures_say_what_to_add():
    """Without a model and prices the page says unknown and names the config lines."""
    bare = records()
    bare["config"]["training"] = {}
    words = page.render(report.build(**bare), [], {})
    assert "unknown" in words
    assert "training.gpu: H100-SXM" in words


def test_hostile_text_stays_text(built):
    """Whatever a document, its place or its source is called, the page has no element and no address more for it."""
    plain = page.render(built, [example(charged_excerpt="x", charged_shard="s", charged_row=1)], {})
    odd = example(
        text_excerpt=HOSTILE, charged_excerpt=HOSTILE[::-1], charged_shard=HOSTILE, charged_row=1, shard=HOSTILE
    )
    hostile = page.render(built, [odd], {})
    assert sorted(set(Page(hostile).tags) - {"mark"}) == sorted(set(Page(plain).tags) - {"mark"})
    assert not [tag for tag in Page(hostile).tags if tag in {"script", "img"}]
    for character in "\u202e\u2066\u0000\ud800":
        assert character not in hostile
    assert "[U+202E]" in hostile
    hostile.encode()


def test_hostile_names_stay_text():
    """A source, a reason, a label and a warning with markup in them are shown, not obeyed."""
    given_ = records(
        warnings=[HOSTILE], failures=[{"stage": HOSTILE, "shard": HOSTILE, "error": HOSTILE, "message": HOSTILE}]
    )
    given_["run"] = {**given_["run"], "name": HOSTILE}
    odd = report.build(**given_)
    odd["sources"][0]["name"] = HOSTILE
    odd["stages"][1]["reasons"][0]["reason"] = HOSTILE
    odd["stages"][1]["label"] = HOSTILE
    odd["datasets"][0]["group"] = {HOSTILE: HOSTILE}
    parsed = Page(page.render(odd, [], {HOSTILE: HISTOGRAMS["quality.score"]}))
    assert {"script", "img"}.isdisjoint(parsed.tags)
    assert not [name for name, _ in parsed.attributes if name.startswith("on")]


@given(st.text(st.characters(codec=None, exclude_categories=()), max_size=40))
def test_escaped_text_is_encodable_and_has_no_markup(value):
    """Any string at all becomes UTF-8 text without a character that opens markup or turns the reading direction."""
    shown = text(value)
    shown.encode()
    assert not set(shown) & set("<>\"'\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
    assert el("b", Html(shown)) == el("b", value)


def test_joiners_of_scripts_and_emoji_stay():
    """Zero-width joiners are not written out: words of Persian and families of emoji need them."""
    assert visible("\u200c\u200d") == "\u200c\u200d"


def test_attributes_are_escaped_and_optional():
    """Quotes cannot leave an attribute; None and False leave no trace; True stands alone."""
    assert el("p", "x", title='"<', id=None, hidden=False, draggable=True) == '<p title="&quot;&lt;" draggable>x</p>'


def test_what_differs_is_marked_on_both_sides():
    """Only words that the other text does not have in their place are marked."""
    assert marked("a b c", "a x c") == "a <mark>b</mark> c"
    assert marked("a x c", "a b c") == "a <mark>x</mark> c"
    assert marked("same", "same") == "same"


def test_long_excerpts_are_cut_and_blank_ones_say_so():
    """An excerpt has a bounded length, and a blank text is not an empty box."""
    assert len(clip("word " * 1000)) <= EXCERPT + 2
    assert clip(" \n ") == "(blank)"
    assert clip(None) == ""


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6), st.integers(1, 8))
def test_axis_ticks_are_inside_and_few(low, span, wanted):
    """Ticks lie on the axis, in order, and never crowd it."""
    high = low + span
    found = ticks(low, high, wanted)
    slack = 1e-6 * span + 4 * math.ulp(max(abs(low), abs(high)))  # an axis may be as short as a few floats
    assert all(low - slack <= tick <= high + slack for tick in found)
    assert found == sorted(found)
    assert len(found) <= wanted + 1


def test_extreme_reports_still_make_a_page():
    """A run over nothing, one that kept nothing, and one with a single-valued score all render."""
    nothing = records(counts=records()["counts"].slice(0, 0), datasets=[], phases=[], buckets=None, duplicates=None)
    Page(page.render(report.build(**nothing), [], {}))
    table = records()["counts"]
    gone = table.filter([kind != "kept" for kind in table["kind"].to_pylist()])
    flat = {"s": {"edges": [1.0, 1.0], "counts": [0], "threshold": None, "unit": ""}}
    Page(page.render(report.build(**records(counts=gone, datasets=[], phases=[], buckets=None)), [], flat))


def test_many_sources_are_summed_up(built):
    """Beyond a screenful of sources the page says how many more there are."""
    many = {**built, "sources": [{**built["sources"][0], "name": f"source-{n:04d}"} for n in range(500)]}
    shown = page.render(many, [], {})
    assert "and 440 more" in shown
    assert shown.count("source-0") == 60


def test_a_stopped_run_says_so_first(built):
    """Under a broken guard the page opens with the message and how to accept it."""
    guard = {"scope": "source", "name": "forum", "stage": "select", "limit": 0.5, "value": 0.9, "state": "stopped"}
    stopped = {**built, "guards": [guard], "run": {**built["run"], "complete": False}}
    header = page.render(stopped, [], {}).split("<header>")[1].split("</header>")[0]
    assert "guards.accept" in header
    assert "not complete" in header


def contrast(one, other):
    def light(colour):
        channels = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


def test_text_can_be_read_in_the_light_and_in_the_dark(rendered):
    """Every colour that text is set in has a contrast of at least 4.5 to every ground it stands on, in both schemes."""
    blocks = re.findall(r":root \{(.*?)\}", rendered, re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        colours = dict(re.findall(r"--([a-z0-9]+): (#[0-9a-f]{6})", block))
        for ink in ("ink", "soft", "kept", "bad", "note"):
            for ground in ("paper", "card", "wash"):
                assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)
        for n in range(8):
            assert contrast(colours[f"c{n}"], colours["paper"]) >= 2.7, n
