"""The report adds up, says so when it does not, and reads well on a terminal."""

from __future__ import annotations

import copy
import io
import json

import pyarrow as pa
import pytest
from rich.console import Console

from pipeline import report
from pipeline.errors import ContractError
from pipeline.report.table import REASONS, table
from tests.pipeline.report.report_records import STAGES, config, counts, records


@pytest.fixture(scope="module")
def built():
    return report.build(**records())


def test_a_report_adds_up(built):
    """A report made of whole records keeps every identity and is plain JSON."""
    report.identities(built)
    assert json.loads(json.dumps(built, allow_nan=False)) == built


def test_counts_become_totals_stages_sources_and_languages(built):
    """Totals are the sums of the counts, stages come in order, and documents without a name come last as null."""
    table_ = counts()
    assert built["totals"]["in"]["docs"] == sum(table_["docs"].to_pylist())
    assert [stage["label"] for stage in built["stages"]] == list(STAGES)
    assert [source["name"] for source in built["sources"]] == [
        "crawl-2026-10",
        "docs",
        "forum",
        "licences",
        "wiki",
        None,
    ]
    assert [language["name"] for language in built["languages"]] == ["de", "en", None]


def test_reasons_stand_apart_by_fate(built):
    """Ingest removes blank text and quarantines what cannot be decoded, each under its own list of reasons."""
    ingest = built["stages"][0]
    assert [reason["reason"] for reason in ingest["reasons"]] == ["blank_text"]
    assert [reason["reason"] for reason in ingest["quarantine_reasons"]] == ["undecodable"]
    assert ingest["quarantined"]["docs"] == sum(reason["docs"] for reason in ingest["quarantine_reasons"])


def test_the_order_of_counts_does_not_matter(built):
    """Counts in any order and cut into any chunks give the same document."""
    table_ = counts()
    shuffled = table_.take(pa.array(list(range(0, table_.num_rows, 2)) + list(range(1, table_.num_rows, 2))))
    assert report.build(**records(counts=shuffled)) == built


def test_other_kinds_of_counts_are_left_alone(built):
    """Histogram and unscorable rows of the same settle change nothing."""
    row = dict.fromkeys(counts().column_names) | {"kind": "histogram", "docs": 5, "bytes": 0, "tokens": 0}
    extra = pa.Table.from_pylist([row], schema=counts().schema)
    assert report.build(**records(counts=pa.concat_tables([counts(), extra]))) == built


def test_an_empty_corpus_adds_up():
    """A run over no documents has a report whose every count is zero and whose identities hold."""
    empty = report.build(**records(counts=counts().slice(0, 0), datasets=[], phases=[]))
    report.identities(empty)
    assert empty["totals"]["in"] == {"docs": 0, "bytes": 0, "tokens": 0}


def test_documents_counted_in_are_held_against_what_became_of_them():
    """Where `in` was counted apart, a document that nobody accounts for breaks identity (i)."""
    table_ = counts()
    entered = dict.fromkeys(table_.column_names)
    sums = {m: sum(table_[m].to_pylist()) for m in report.document.MEASURES}
    lost = pa.Table.from_pylist([entered | sums | {"kind": "in", "docs": sums["docs"] + 1}], schema=table_.schema)
    with pytest.raises(ContractError, match=r"identity \(i\).*totals: docs"):
        report.identities(report.build(**records(counts=pa.concat_tables([table_, lost]))))


def test_counts_of_a_stage_that_did_not_run_are_a_breach():
    """A removal charged to a label outside the run stops the report."""
    with pytest.raises(ContractError, match="select"):
        report.build(**records(stages=[s for s in records()["stages"] if s["label"] != "select"]))


BREACHES = {
    "totals do not add up": (("totals", "in", "docs"), 1, "i"),
    "a stage loses bytes": (("stages", 3, "kept", "bytes"), -1, "i"),
    "a source gains tokens": (("sources", 0, "in", "tokens"), 1, "i"),
    "a language loses documents": (("languages", 1, "removed", "docs"), -1, "i"),
    "a reason is missing": (("stages", 1, "reasons", 0, "docs"), -1, "iii"),
    "a budget regime saves": (("money", "gpu_hours", "fixed_budget", "value"), 1, "vii"),
    "net is not gross minus costs": (("money", "net", "fixed_epoch", "value"), 0.001, "viii"),
    "a cost was forgotten": (("money", "curation", "value"), 0.5, "viii"),
}


@pytest.mark.parametrize("planted", BREACHES)
def test_a_planted_breach_is_named(built, planted):
    """Each number that is changed alone breaks the identity that guards it."""
    path, change, name = BREACHES[planted]
    broken = copy.deepcopy(built)
    *way, last = path
    place = broken
    for step in way:
        place = place[step]
    place[last] += change
    with pytest.raises(ContractError, match=rf"identity \({name}\)"):
        report.identities(broken)


def test_breaches_across_entries_are_named(built):
    """Entries that are whole in themselves but do not fit each other break (ii), (iv) or (v)."""
    stages = copy.deepcopy(built)
    del stages["stages"][2]
    with pytest.raises(ContractError, match=r"identity \(ii\).*quality"):
        report.identities(stages)
    fates = copy.deepcopy(built)
    for place in (fates["totals"], *fates["sources"][:1], *fates["languages"][:1]):
        place["removed"]["docs"] += 1
        place["kept"]["docs"] -= 1
    fates["stages"][-1]["kept"] = fates["totals"]["kept"]
    fates["stages"][-1]["quarantined"]["docs"] += 1
    with pytest.raises(ContractError, match=r"identity \(iv\)"):
        report.identities(fates)
    sources = copy.deepcopy(built)
    del sources["sources"][0]
    with pytest.raises(ContractError, match=r"identity \(v\)"):
        report.identities(sources)


def test_net_out_of_unknown_parts_is_a_breach(built):
    """A net figure cannot be known where a cost is not."""
    broken = copy.deepcopy(built)
    broken["money"]["storage"]["value"] = None
    with pytest.raises(ContractError, match=r"identity \(viii\)"):
        report.identities(broken)


def test_what_may_differ_is_left_out_of_comparison(built):
    """Two runs that differ in place, time and price only are equal where it counts, and a lost document is not."""
    other = records(failures=[{"stage": "exact"}], warnings=["slow"])
    other["run"] = {**other["run"], "executor": "ray", "started": "2027-01-01T00:00:00Z", "run_id": "other"}
    other["compute"][0]["cpu_seconds"] = 1.0
    other["config"] = {**config(price_per_gpu_hour=9.0)}
    other["config"]["run"] = {**other["config"]["run"], "workers": 64}
    for stage in other["stages"]:
        stage.update(seconds={}, cells_reused=64, warnings=["redone"])
    second = report.build(**other)
    assert second != built
    assert report.comparable(second) == report.comparable(built)
    second["totals"]["kept"]["docs"] -= 1
    assert report.comparable(second) != report.comparable(built)


def account(*rows):
    names = ("source", "kind", "stage", "reason", "docs")
    full = [
        dict(zip(names, row, strict=True)) | {"language": None, "dataset": None, "bytes": 0, "tokens": 0}
        for row in rows
    ]
    return pa.Table.from_pylist(full, schema=counts().schema)


def limits(**given):
    return {"guards": {"max_source_loss": 0.9, "min_docs": 100, "accept": [], **given}}


def test_a_source_that_loses_too_much_stops_the_run():
    """Over the limit a source is stopped at the stage that took most, and the message has the key that accepts it."""
    table_ = account(
        ("a", "removed", "minhash", "near_duplicate", 150),
        ("a", "removed", "select", "below_cut", 40),
        ("a", "kept", None, None, 10),
        ("b", "kept", None, None, 100),
    )
    judged = report.guards(table_, limits())
    assert [(g["name"], g["state"], g["value"]) for g in judged] == [("a", "stopped", 0.95), ("b", "ok", 0.0)]
    assert judged[0]["stage"] == "minhash"
    message = report.breach(judged)
    assert "'a' would lose 95.0% of its documents (limit 90.0%)" in message
    assert "guards.accept: ['a']" in message
    accepted = report.guards(table_, limits(accept=["a"]))
    assert accepted[0]["state"] == "accepted"
    assert report.breach(accepted) == ""


def test_exactly_the_limit_is_no_breach():
    """A source that loses just its allowed share passes."""
    table_ = account(("a", "removed", "select", "below_cut", 90), ("a", "kept", None, None, 10))
    assert report.guards(table_, limits())[0]["state"] == "ok"


def test_exact_copies_and_unreadable_documents_are_no_loss():
    """Neither counts as lost or as there: what is left is judged by itself."""
    table_ = account(
        ("a", "removed", "exact", "exact_duplicate", 5000),
        ("a", "quarantined", "ingest", "undecodable", 5000),
        ("a", "removed", "minhash", "near_duplicate", 99),
        ("a", "kept", None, None, 1),
    )
    assert [(g["value"], g["state"]) for g in report.guards(table_, limits())] == [(0.99, "stopped")]


def test_small_sources_are_not_judged_and_the_null_source_has_a_name():
    """Under min_docs a source is left alone; documents without a source are judged together as (none)."""
    table_ = account(("small", "removed", "select", "below_cut", 99), (None, "removed", "select", "below_cut", 100))
    assert [(g["name"], g["state"]) for g in report.guards(table_, limits())] == [("(none)", "stopped")]
    assert report.guards(table_, limits(accept=["(none)"]))[0]["state"] == "accepted"


def printed(document, width=80, **console):
    out = io.StringIO()
    Console(file=out, width=width, **console).print(table(document))
    return out.getvalue()


def test_the_table_fits_a_terminal_without_colour(built):
    """Eighty columns are enough, no escape codes reach a file, and every stage, source and dataset is there."""
    text = printed(built)
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    for name in (*STAGES, "crawl-2026-10", "(none)", "train-b4-de"):
        assert name in text
    assert "\x1b[" in printed(built, force_terminal=True, color_system="truecolor")


def test_the_table_says_why(built):
    """The commonest reasons of all stages are there, the commonest first, and how many more there are."""
    reasons = [reason for stage in built["stages"] for reason in stage["reasons"]]
    reasons.sort(key=lambda reason: -reason["docs"])
    text = printed(built).partition("most removed for")[2].partition("docs kept")[0]
    places = [text.find(reason["reason"]) for reason in reasons[:REASONS]]
    assert -1 not in places
    assert places == sorted(places)
    assert (f"and {len(reasons) - REASONS} more reasons" in text) == (len(reasons) > REASONS)


def test_the_table_says_what_is_unknown_and_how_to_know_it():
    """Without prices and a model the figures read unknown, above the config lines that would make them known."""
    bare = records()
    bare["config"]["training"] = {}
    text = printed(report.build(**bare))
    assert "unknown" in text
    assert "training.parameters: 7e9" in text
    assert "training.gpu: H100-SXM" in text


def test_the_table_shows_a_loss_as_a_loss(built):
    """Where the token budget is fixed, what curation and a month of storage cost is a negative net."""
    spent = sum(built["money"][name]["value"] for name in ("curation", "storage", "transfer"))
    assert f"-{spent:.4f}" in printed(built)


def test_the_table_does_not_read_names_as_markup():
    """A source named like a style tag is printed as it is."""
    odd = records()
    names = pa.array(["[red]x[/red]" if name == "forum" else name for name in odd["counts"]["source"].to_pylist()])
    odd["counts"] = odd["counts"].set_column(odd["counts"].schema.get_field_index("source"), "source", names)
    assert "[red]x[/red]" in printed(report.build(**odd), width=100)


def test_bytes_stand_in_where_tokens_are_not_known():
    """Without a tokenizer the table counts bytes and says so."""
    basis = {**records()["token_basis"], "unit": "bytes", "method": "none"}
    text = printed(report.build(**records(token_basis=basis)))
    assert "GB" in text
    assert "training.bytes_per_token" in text
