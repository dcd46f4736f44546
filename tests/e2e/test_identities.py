"""The books of a run: every document is counted once, where its planted fate says; here, on Ray and under kills."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass, replace

import harness
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import watch

from pipeline.report import comparable

RULES = "{stage: heuristics, rules: [gopher_quality, gopher_repetition, fineweb]}"
SOURCES, LANGUAGES = ("books", "forum", "news", None), ("de", "en", None)


@dataclass(frozen=True)
class Planted:
    """A document and its fate: kept, or the stage and reason that end it."""

    text: bytes | None
    source: str | None
    language: str | None
    fate: tuple[str, str] = ("", "kept")


def words(draw, count, mark):
    return ["".join(draw.choices("bcdfghjklmnpqrstvwxz", k=draw.randrange(3, 6))) + mark for _ in range(count)]


def prose(draw, count=60, mark="9"):
    """A text that passes every rule; `mark` ends its words, and the weights are those of digits."""
    made = words(draw, count, mark)
    made[3], made[10] = "the", "of"
    return " ".join(made) + "."


def bulleted(draw):
    return " ".join(word if i % 4 else f"# {word}" for i, word in enumerate(prose(draw).split()))


def repeated(draw):
    return "\n".join([prose(draw, 20)] * 3)


def numbers(draw):
    return " ".join(str(draw.randrange(1000, 9999)) if i % 3 else word for i, word in enumerate(prose(draw).split()))


def endless(draw):
    return " ".join(["the", "of", *("".join(draw.choices("bcdfgh", k=14)) for _ in range(60))]) + "."


FATES = {
    ("ingest", "null_text"): (40, lambda _: None),
    ("ingest", "blank_text"): (30, lambda _: " \t\u200b\u3000\n"),
    ("ingest", "oversize"): (20, lambda draw: prose(draw, 2500)),
    ("ingest", "invalid_utf8"): (50, lambda draw: prose(draw).encode().replace(b"the", b"th\xff\xfe")),
    ("heuristics", "gopher_quality.too_few_words"): (120, lambda draw: prose(draw, 20)),
    ("heuristics", "gopher_quality.words_too_long"): (70, endless),
    ("heuristics", "gopher_quality.too_many_hashes"): (60, bulleted),
    ("heuristics", "gopher_quality.too_few_alphabetic_words"): (50, numbers),
    ("heuristics", "gopher_quality.too_few_stop_words"): (80, lambda draw: " ".join(words(draw, 60, "9")) + "."),
    ("heuristics", "gopher_repetition.duplicate_lines"): (45, repeated),
    ("heuristics", "fineweb.too_few_terminal_lines"): (55, lambda draw: prose(draw)[:-1]),
    ("weigh", "light"): (65, lambda draw: prose(draw, mark="0")),
    ("weigh", "stage_error"): (15, lambda draw: prose(draw) + " RAISE."),
    ("select", "unscorable"): (35, lambda draw: prose(draw, mark="")),
    ("select", "below_cut"): (2125, lambda draw: prose(draw, mark="1")),
}
OUTCOMES = ("kept", "removed", "quarantined")
QUARANTINED = {"oversize", "invalid_utf8", "stage_error"}
DOCUMENTS, COPIES, NEAR, LIMIT = 10_000, 500, 265, 12_000
KEPT = DOCUMENTS - COPIES - NEAR - sum(count for count, _ in FATES.values())
"""Of what select judges, these and 2,125, they are three quarters: keep_top is 0.75, without a rounding."""


def corpus(draw):
    """10,000 documents, shuffled."""
    found = [planted(draw, make(draw), fate) for fate, (count, make) in FATES.items() for _ in range(count)]
    kept = [planted(draw, prose(draw, 150 if i < NEAR else 60), ("", "kept")) for i in range(KEPT)]
    # Which of equal texts stays hangs on their hashes, so copies share source and language. Near copies are shorter.
    copies = [replace(one, fate=("exact", "exact_duplicate")) for one in kept[-COPIES:]]
    found += [planted(draw, shorter(one.text), ("minhash", "near_duplicate")) for one in kept[:NEAR]]
    found += kept + copies
    draw.shuffle(found)
    return found


def shorter(text):
    """One word of 150 is another one."""
    return text.replace(text.split()[70], b"a9", 1)


def planted(draw, text, fate):
    data = text.encode() if isinstance(text, str) else text
    return Planted(data, draw.choice(SOURCES), draw.choice(LANGUAGES), fate)


def write(folder, documents, shards=8):
    """Shards of equal size, text as bytes since some of it is not UTF-8, row groups of 250."""
    folder.mkdir()
    size = -(-len(documents) // shards)
    for number in range(shards):
        own = documents[number * size : (number + 1) * size]
        table = pa.table({
            "id": [f"{number}-{row}" for row in range(len(own))],
            "text": pa.array([one.text for one in own], pa.binary()),
            "source": [one.source for one in own], "language": [one.language for one in own],
        })  # fmt: skip
        pq.write_table(table, folder / f"{number}.parquet", 250)


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """The planted documents, and the report and config of a run on them."""
    root = tmp_path_factory.mktemp("identities")
    documents = corpus(random.Random(2026))
    assert len(documents) == DOCUMENTS
    write(root / "in", documents)
    (root / "model.json").write_text(json.dumps({"9": 1.0, "1": 0.5, "0": 0.0}))
    config = harness.configure(
        root, RULES, harness.EXACT, f"{{stage: 'trial_stages:WEIGH', model: '{root}/model.json', least: 0.01}}",
        harness.NEAR, "{stage: select, by: weigh.weight, keep_top: 0.75, weight: documents}",
        more="publish: {mix_by: [source]}\nguards: {max_source_loss: 1.0}\ntraining: {bytes_per_token: 4.0}",
        sets=["input.invalid_utf8=quarantine", f"input.max_document_bytes={LIMIT}", "input.slice_bytes=200kB"],
    )  # fmt: skip
    return documents, harness.run(config), config


def test_every_document_meets_its_planted_fate(ended):
    """Removed and quarantined rows are the planted ones by stage, reason, source, language; the rest is published."""
    documents, report, config = ended
    lost = [one for one in documents if one.fate[0]]
    found = harness.table(report, "removed").to_pylist() + harness.table(report, "quarantined").to_pylist()
    assert Counter(((row["stage"], row["reason"]), row["source"]) for row in found) == Counter(
        (one.fate, one.source) for one in lost
    )
    removed = [one for one in lost if one.fate[1] not in QUARANTINED]
    assert Counter((row["reason"], row["language"]) for row in harness.removed(report)) == Counter(
        (one.fate[1], one.language) for one in removed
    )
    kept = Counter((row["text"].encode(), row["source"], row["language"]) for row in harness.hot_rows(config))
    assert kept == Counter((one.text, one.source, one.language) for one in documents if not one.fate[0])


def amounts(documents):
    """Documents, bytes and tokens, four bytes each: what a report must say of them."""
    sizes = [len(one.text or b"") for one in documents]
    return {"docs": len(sizes), "bytes": sum(sizes), "tokens": sum(-(-size // 4) for size in sizes)}


def where(one):
    """kept, removed or quarantined."""
    return "kept" if not one.fate[0] else "quarantined" if one.fate[1] in QUARANTINED else "removed"


def check(found, documents):
    """The books of one report entry are those of these documents."""
    told = {name: {unit: found[name][unit] for unit in ("docs", "bytes", "tokens")} for name in ("in", *OUTCOMES)}
    own = {name: amounts([one for one in documents if where(one) == name]) for name in OUTCOMES}
    assert told == {"in": amounts(documents), **own}


def test_the_books_are_the_planted_ones(ended):
    """Totals, every source, language, stage and reason have the planted documents, bytes and tokens."""
    documents, report, _ = ended
    check(report["totals"], documents)
    for field, values in (("source", SOURCES), ("language", LANGUAGES)):
        assert [entry["name"] for entry in report[f"{field}s"]] == sorted(values, key=lambda name: (name is None, name))
        for entry in report[f"{field}s"]:
            check(entry, [one for one in documents if getattr(one, field) == entry["name"]])
    assert {(stage["label"], entry["reason"]) for stage in report["stages"] for entry in stage["reasons"]} == {
        fate for fate in FATES if fate[1] not in QUARANTINED
    } | {("exact", "exact_duplicate"), ("minhash", "near_duplicate")}
    for stage in report["stages"]:
        for entry in stage["reasons"]:
            own = amounts([one for one in documents if one.fate == (stage["label"], entry["reason"])])
            assert {unit: entry[unit] for unit in own} == own
        gone = [one for one in documents if one.fate[0] == stage["label"]]
        assert stage["quarantined"] == amounts([one for one in gone if one.fate[1] in QUARANTINED])
    assert [stage["unscorable_docs"] for stage in report["stages"] if stage["label"] == "weigh"] == [35]


# -- S19: the books under kills, here and on a cluster ---------------------------------------------------------------


def ledger_corpus(draw):
    """10,000 rows: 300 break two rules, 50 lie where a shard is damaged, two kill the worker that reads them."""
    two = ("heuristics", "gopher_quality.too_few_words")
    found = [planted(draw, " ".join(words(draw, 20, "9")), two) for _ in range(300)]
    found += [planted(draw, prose(draw), ("", "kept")) for _ in range(9648)]
    draw.shuffle(found)
    for number, at in ((1, 2000), (2, 8000)):
        found.insert(at, planted(draw, f"{prose(draw)} DEADLY {number}.", ("", "kept")))
    return found + [planted(draw, prose(draw), ("ingest", "undecodable")) for _ in range(50)]


def damage(path, group):
    """Overwrite the pages of the text of one row group; the footer stays readable."""
    chunk = pq.read_metadata(path).row_group(group).column(1)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    data = bytearray(path.read_bytes())
    data[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    path.write_bytes(data)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    """The documents of S19 on disk, and configs by the name of their tiers."""
    root = tmp_path_factory.mktemp("ledger")
    documents = ledger_corpus(random.Random(19))
    assert len(documents) == DOCUMENTS
    write(root / "in", documents)
    last = root / "in" / "7.parquet"
    pq.write_table(pq.read_table(last), last, 50)
    damage(last, 24)

    def configured(name, *sets):
        for mark in root.glob("marks/*"):
            mark.unlink()
        (root / "marks").mkdir(exist_ok=True)
        tiers = [f"tiers.{tier}.url='{root}/{name}/{tier}'" for tier in ("work", "hot", "cold")]
        stages = RULES, f"{{stage: 'trial_stages:DEADLY', folder: '{root}/marks'}}", harness.EXACT
        more = "training: {bytes_per_token: 4.0}"
        return harness.configure(root, *stages, more=more, sets=["input.slice_bytes=100kB", *tiers, *sets])

    return documents, configured


def check_ledger(documents, report, config):
    """The books of S19: first reasons, unreadable rows, and what two dead workers cost."""
    readable = [one for one in documents if one.fate[1] != "undecodable"]
    totals = report["totals"]
    assert totals["in"] == amounts(readable) | {"docs": DOCUMENTS}
    assert totals["quarantined"] == {"docs": 50, "bytes": 0, "tokens": 0}
    assert totals["unknown_bytes_docs"] == 50
    assert totals["kept"] == amounts([one for one in readable if not one.fate[0]])
    [rules] = [stage for stage in report["stages"] if stage["label"] == "heuristics"]
    assert rules["reasons"] == [
        {"reason": "gopher_quality.too_few_words", **amounts([one for one in readable if one.fate[0]])}
    ]
    failed = [record for record in watch.records(config) if record["kind"] == "failed"]
    assert [record["lost"] for record in failed] == [True, True]
    [compute] = report["compute"]
    assert compute["attempts_lost"] == 2
    assert compute["wasted_seconds"] == pytest.approx(sum(record["seconds"]["wall"] for record in failed), abs=0.01)
    assert compute["wasted_seconds"] > 0


@pytest.fixture(scope="module")
def local(damaged):
    """S19 in two processes."""
    _documents, configured = damaged
    config = configured("local", "run.workers=2")
    return config, harness.run(config)


def test_two_dead_workers_leave_the_books_exact(damaged, local):
    """Two killed tasks are waste, no more: rows, bytes and tokens are exact, the first rule gives the reason."""
    config, report = local
    check_ledger(damaged[0], report, config)


@pytest.mark.slow
@pytest.mark.ray
def test_a_cluster_keeps_the_same_books(damaged, local, ray_session):
    """On Ray, with two killed tasks as well, the report differs in place and time alone."""
    documents, configured = damaged
    config = configured("ray", "run.executor=ray")
    report = harness.run(config)
    check_ledger(documents, report, config)
    assert comparable(report) == comparable(local[1])
