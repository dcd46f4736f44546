import unicodedata

import numpy as np
import pyarrow as pa
import pytest

from pipeline.errors import ConfigError
from stages import exact
from stages.exact import STAGE, Exact, report
from stages.text.normalise import text_1
from tests.stages.text.phases import address, corpus, drive

PARAGRAPH = "La ville de Genève, à l'extrémité du Léman, compte près de deux cent mille âmes. " * 3
FACES = [
    PARAGRAPH,
    unicodedata.normalize("NFD", PARAGRAPH),
    PARAGRAPH.replace("ville", "vi\u200blle"),
    PARAGRAPH.replace("compte", "comp\u00adte"),
    "\ufeff" + PARAGRAPH,
    PARAGRAPH.replace(" ", "\u00a0"),
    PARAGRAPH.replace(". ", ".\r\n"),
    PARAGRAPH + "   ",
]


def run(texts, config=None, **columns):
    decisions, facts = drive(STAGE, config or Exact(), [corpus(texts, **columns)])
    return {row for row, record in decisions.items() if record["reason"]}, decisions, facts


def test_eight_faces_of_one_paragraph_are_one_text():
    """Ways to write the same visible text count as one; an accent that changes the meaning makes another text."""
    removed, decisions, facts = run([*FACES, PARAGRAPH.replace("âmes", "armes")])
    keeper = max(range(8), key=lambda i: len(FACES[i].encode()))
    assert removed == set(range(8)) - {keeper}
    assert {decisions[i]["charged"] for i in removed} == {keeper}
    assert {record["group_size"] for record in decisions.values()} == {8}
    assert facts == {"candidates": 8, "components": 1, "size_histogram_3": 1}


def test_without_normalisation_only_equal_bytes_are_equal():
    """normalisation: none compares the bytes of the texts."""
    removed, _, _ = run([*FACES, FACES[0]], Exact(normalisation="none"))
    assert len(removed) == 1


def test_the_evidence_of_a_removal_is_complete():
    """A removed row names reason, similarity, and address and id of its keeper; a keeper only the size of its group."""
    table = corpus(["two", "one", "two"])
    decisions, _ = drive(STAGE, Exact(), [table.slice(0, 2), table.slice(2)])
    second = address(1, 0)
    assert set(decisions) == {0, second}
    assert decisions[second] == {
        "reason": "exact_duplicate", "similarity": 1.0, "similarity_kind": "exact", "charged": 0,
        "charged_id": table["id"][0].as_py(), "group_size": 2,
    }  # fmt: skip
    assert decisions[0] == dict.fromkeys(decisions[second]) | {"group_size": 2}


@pytest.mark.parametrize(
    ("rule", "kept"),
    [("rank desc", 3), ("rank asc", 1), ("name asc", 2), ("name desc", 4), ("note desc", 0), ("note asc", 0)],
)
def test_the_keep_order_decides_and_null_and_nan_come_last(rule, kept):
    """Whatever the direction, a row without a value never wins over one with a value."""
    removed, _, _ = run(
        ["same"] * 5,
        Exact(keep=(rule,)),
        rank=pa.array([float("nan"), -2.5, 0.0, 7.0, None]),
        name=pa.array([None, "b", "a", "ab", "c"]),
        note=pa.array([1, None, None, None, None]),
    )
    assert removed == set(range(5)) - {kept}


def test_within_keeps_copies_of_different_groups_apart():
    """Texts are compared only within equal values; null is a value like another."""
    source = pa.array(["a", "b", "a", None, None], pa.string())
    removed, decisions, _ = run(["same"] * 5, Exact(within=("source",)), source=source)
    assert {decisions[row]["charged"] for row in removed} == {0, 3}
    assert len(removed) == 2


def test_nothing_found_is_a_normal_outcome():
    """Distinct texts, one text and no text all pass, with zeros in the report."""
    for texts in ([f"text {i}" for i in range(200)], ["one"]):
        _, decisions, facts = run(texts)
        assert not decisions
        assert report(Exact(), facts)["components"] == 0
    one = corpus(["x"]).append_column("row", pa.array([0], pa.uint32())).to_batches()[0]
    empty = STAGE.phases[0].bind(Exact(), None)(one)
    made, facts = STAGE.phases[1].reduce(Exact(), None, pa.Table.from_batches([empty.slice(0, 0)]))
    assert made.num_rows == 0
    assert facts == {"candidates": 0, "components": 0}


def test_order_batches_and_partitions_do_not_matter():
    """The same texts stay for any cut into slices, batches and partitions and any order of records and rows."""
    rng = np.random.default_rng(7)
    texts = [f"text {i % 40} {'x' * (i % 3)}" for i in rng.permutation(400)]
    whole = corpus(texts, rank=pa.array(rng.integers(0, 4, 400)))
    seen = set()
    for trial in range(6):
        table = whole.take(pa.array(rng.permutation(400))) if trial else whole
        parts = (1, 1, 3, 8, 64, 5)[trial]
        slices = [table.slice(i, 400 // parts + 1) for i in range(0, 400, 400 // parts + 1)]
        decisions, _ = drive(STAGE, Exact(keep=("rank desc",)), slices, partitions=parts, batch=17, seed=trial)
        removed = {row for row, record in decisions.items() if record["reason"]}
        kept = [
            (row["text"], row["rank"])
            for ordinal, part in enumerate(slices)
            for at, row in enumerate(part.to_pylist())
            if address(ordinal, at) not in removed
        ]
        seen.add(tuple(sorted(kept)))
    assert len(seen) == 1
    assert len({text for text, _ in seen.pop()}) == len(set(texts))


def test_an_unreadable_keep_rule_is_a_config_error():
    """A keep rule without a column says what is wrong before any work."""
    with pytest.raises(ConfigError, match="keep"):
        Exact(keep=(" desc",))


def test_a_long_text_has_the_hash_of_its_normalised_form(monkeypatch):
    """Texts hashed by pieces and at once have one hash, whatever their scope and their company."""
    monkeypatch.setattr("stages.text.normalise.PIECE", 50)
    texts = pa.array(["  a\u00a0b ", "Cafe\u0301 \u200b" * 40, None, "x" * 70, " \n" * 60, "\ufeffe" + "\u0301" * 99])
    scopes = np.arange(len(texts), dtype=np.uint64)
    expected = exact.hashed(text_1(texts), scopes)
    assert (exact.hashed_text_1(texts.cast(pa.large_string()), scopes) == expected).all()
