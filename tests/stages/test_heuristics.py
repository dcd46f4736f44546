import hashlib
import json
import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from pipeline.errors import ConfigError
from pipeline.stage import Context
from stages.heuristics import MEANINGS, REASONS, RULES, STAGE, WRITES, Heuristics
from stages.text import rules, rules_words
from stages.text.rules_chars import SYMBOL, TERMINAL, kinds
from tests.stages import heuristics_reference as reference

GOLDEN = json.loads((Path(__file__).parent / "heuristics_golden.json").read_text("utf-8"))["texts"]
RULE_SETS = ("gopher_quality", "gopher_repetition", "fineweb")

TERMINAL_MARKS = {chr(code) for code in np.flatnonzero(kinds() & TERMINAL)}
SYMBOLS = {chr(code) for code in np.flatnonzero(kinds() & SYMBOL)}

# Few enough characters that all rules about neighbours, and many copies, come up.
TRICKY = st.text("aaBCtsndvelr12. .,'’-–/:<=+*#_(…•\n\n\r\t水あ。😀\u0301\u200d\u3000\u2028\x00\ufffd", max_size=60)
ANYTHING = st.text(max_size=80)
REPETITIVE = st.lists(st.sampled_from(["a", "b", "ab", "c.", "\n", "\n\n", " "]), min_size=1, max_size=60).map(" ".join)


def batch_of(texts):
    return pa.record_batch({"text": pa.array(texts, pa.large_string())})


def measured(texts, **config):
    return STAGE.bind(Heuristics(**config), Context())(batch_of(texts))


def decided(texts, **config):
    return STAGE.decide(Heuristics(**config), Context(), measured(texts))


def kernel_words(text):
    """The words that the kernel cuts, read back from the code points that it counts before each."""
    data = np.frombuffer(text.encode(), np.uint8)
    room = len(data) + 2
    slots, keys = np.empty(1 << (2 * room + 512).bit_length(), np.int32), np.empty(room + 256, np.uint64)
    ids, reach, ends = (np.empty(room, np.int32) for _ in range(3))
    tally = np.empty(rules_words.TALLIES, np.int64)
    rules_words.segment(data, kinds(), 0, len(data), slots, keys, ids, reach, ends, tally)
    letters, count = "".join(text.split()), tally[rules_words.WORDS]
    return [letters[reach[i] : reach[i + 1]] for i in range(count)]


@pytest.mark.parametrize("golden", GOLDEN, ids=[golden["name"] for golden in GOLDEN])
def test_measures_and_reasons_are_those_of_datatroves_filters(golden):
    """Every measure is the very number at which datatrove's filter flips, and each rule set gives its reason."""
    row = measured([golden["text"]]).to_pylist()[0]
    assert row == {name: golden["measures"].get(name, 0) for name in MEANINGS}
    reasons = [decided([golden["text"]], rules=(rule_set,)).column("reason")[0].as_py() for rule_set in RULE_SETS]
    assert [reason for reason in reasons if reason] == golden["reasons"]


@pytest.mark.parametrize("golden", [row for row in GOLDEN if "words" in row], ids=lambda golden: golden["name"])
def test_words_are_the_committed_ones(golden):
    """The kernel and the reference cut a text into the words written down beside it."""
    assert " ".join(kernel_words(golden["text"])) == golden["words"]
    assert " ".join(reference.words(golden["text"])) == golden["words"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("He said: \"It's J. R. Mill's.\"", "He said : \" It 's J. R. Mill 's . \""),
        ("isn't well-known (e.g. 3.14, 1,000)...", "is n't well - known ( e.g . 3.14 , 1,000 ) ..."),
        ("see https://example.org/a,b-c.", "see https://example.org/a,b-c ."),
        ("J. MM. mM. ⒶJ.", "J. MM . mM. Ⓐ J."),
        ("and/or a:b x=y this,that", "and / or a : b x = y this , that"),
        ("水車は、回る。ok", "水 車 は 、 回 る 。 ok"),
        ("nice😀work 👍🏽!", "nice 😀 work 👍🏽 !"),
        ("5$ $5 50% +5 #tag _x_", "5$ $ 5 50 % + 5 # tag _ x _"),
    ],
)
def test_words_follow_the_rules_that_are_documented(text, words):
    """Marks, contractions, addresses, scripts without blanks and pictographs are cut as the rules say."""
    assert kernel_words(text) == words.split(" ")


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.one_of(TRICKY, ANYTHING, REPETITIVE).filter(str.strip))
def test_measures_are_those_of_the_definitions(text):
    """On any text that is not blank the kernel's words and measures equal those of the plain definitions."""
    assert kernel_words(text) == reference.words(text)
    assert measured([text]).to_pylist()[0] == reference.measures(text, TERMINAL_MARKS, SYMBOLS)


def test_mark_sets_are_datatroves():
    """Terminal punctuation and punctuation are datatrove's 159 and 281 marks."""
    digests = [hashlib.sha256("".join(sorted(marks)).encode()).hexdigest()[:16] for marks in (TERMINAL_MARKS, SYMBOLS)]
    assert digests == ["223fdebf0f768738", "add6d54a8847e51e"]


@pytest.mark.parametrize("seed", range(3))
def test_rows_do_not_depend_on_batches(seed):
    """Any cut and order of the same texts, sliced arrays included, gives every text the same bytes of measures."""
    rng = random.Random(seed)
    texts = [golden["text"] for golden in GOLDEN] + ["x" * 100_000, "twice " * 3000]
    whole = measured(texts)
    order = rng.sample(range(len(texts)), len(texts))
    shuffled = batch_of([texts[i] for i in order])
    cuts = sorted({0, len(texts), *(rng.randrange(len(texts)) for _ in range(6))})
    transform = STAGE.bind(Heuristics(), Context())
    parts = [transform(shuffled.slice(start, stop - start)) for start, stop in pairwise(cuts)]
    assert pa.Table.from_batches(parts).to_pylist() == whole.take(pa.array(order)).to_pylist()


def test_an_empty_batch_has_the_schema():
    """No rows in, no rows out, in the columns that the stage declares."""
    assert measured([]).equals(pa.RecordBatch.from_pylist([], WRITES))
    assert decided([]).num_rows == 0


@pytest.mark.parametrize(
    ("text", "words", "duplicate"),
    [
        ("x" * 3_000_000, 1, 0.0),
        ("水" * 500_000, 500_000, 1.0),
        ("😀" * 300_000, 300_000, 1.0),
        ("." * 2_000_000, 1, 0.0),
        ("-a" * 500_000, 999_999, 1.0),
        ("\0" * 1_000_000, 1, 0.0),
        ("a\n" * 500_000, 500_000, 0.5),
        ("to be " * 300_000, 600_000, 2 / 3),
        (" ".join(map(str, range(200_000))), 200_000, 0.0),
    ],
    ids=["letters", "han", "pictographs", "dots", "hyphens", "nul", "lines", "two words", "no word twice"],
)
def test_huge_texts_of_one_kind_are_measured(text, words, duplicate):
    """A text of megabytes without a blank, or of one word over and over, gets its words and its repetition."""
    assert len(kernel_words(text)) == words
    assert measured([text]).to_pylist()[0]["duplicate_10_gram_chars"] == pytest.approx(duplicate, abs=1e-3)


def test_stop_words_and_copies_are_looked_for_in_the_first_words_of_a_giant():
    """Behind 2,097,152 words only totals are counted, so that one text cannot take a worker's memory."""
    window = "to be or not to be " * (rules_words.WINDOW // 6) + "question here"
    assert len(window.split()) == rules_words.WINDOW
    first, whole, plain = measured([window, f"{window} {'the of 7 ' * 50_000}", "to be or not"]).to_pylist()
    limited = {name for name in first if name.startswith(("top_", "duplicate_")) and "gram" in name} | {"stop_words"}
    assert {name for name in limited if first[name] != whole[name]} == set()
    assert first["stop_words"] == 2
    assert (first["words"], whole["words"]) == (rules_words.WINDOW, rules_words.WINDOW + 150_000)
    assert whole["alphabetic_words"] < first["alphabetic_words"] == 1
    assert plain == measured(["to be or not"]).to_pylist()[0]


@pytest.mark.parametrize("distinct", [10, 70_000, 300_000])
def test_lines_are_numbered_however_many_there_are(distinct):
    """Copies of lines and paragraphs are counted exactly also where their tables have to grow."""
    lines = [f"line {i % distinct}" for i in range(distinct + 40_000)]
    (row,) = measured(["\n\n".join(lines)]).to_pylist()
    assert row["duplicate_lines"] == row["duplicate_paragraphs"] == pytest.approx(40_000 / len(lines))


def good_text():
    return next(golden["text"] for golden in GOLDEN if golden["name"] == "prose")


def test_a_good_text_passes_all_sets():
    """Ordinary prose has no reason, score or threshold."""
    assert decided([good_text()]).to_pylist() == [{"reason": None, "score": None, "threshold": None}]


def test_the_first_failing_rule_in_the_order_of_the_sets_gives_the_reason():
    """A text that fails several rules goes for the first one of the first set named, with its measure and limit."""
    text = "go on\ngo on\ngo on"
    first = decided([text]).to_pylist()[0]
    assert first == {"reason": "gopher_quality.too_few_words", "score": 6.0, "threshold": 50.0}
    other = decided([text], rules=("fineweb", "gopher_quality")).to_pylist()[0]
    assert other == {"reason": "fineweb.too_few_terminal_lines", "score": 0.0, "threshold": 0.12}
    repetition = decided([text], rules=("gopher_repetition",)).to_pylist()[0]
    assert repetition == {"reason": "gopher_repetition.duplicate_lines", "score": 2 / 3, "threshold": 0.3}


@pytest.mark.parametrize("rule", RULES, ids=[rule.reason for rule in RULES])
def test_every_rule_removes_on_its_side_of_the_limit_only(rule):
    """At the limit a document stays, one step past it it goes with this reason, without the limit it stays."""
    texts = [golden["text"] for golden in GOLDEN]
    measures = measured(texts)
    values = [value for value in measures.column(rule.measure).to_pylist() if value is not None]
    others = {other.limit: None for other in RULES if other.limit != rule.limit}
    value = max(values)
    past = np.nextafter(value, np.inf if rule.is_minimum else -np.inf)
    if rule.measure in ("words", "stop_words"):
        past = value + 1 if rule.is_minimum else value - 1

    def reasons(limit):
        config = Heuristics(**others, **{rule.limit: limit})
        return STAGE.decide(config, Context(), measures)

    assert reasons(None).column("reason").null_count == len(texts)
    at, beyond = reasons(value), reasons(past)
    row = measures.column(rule.measure).to_pylist().index(value)
    assert at.column("reason")[row].as_py() is None
    assert beyond.slice(row, 1).to_pylist() == [{"reason": rule.reason, "score": value, "threshold": past}]


def test_decide_settings_are_all_settings_that_no_measure_needs():
    """Only the stop words and the length of a short line make texts be read again."""
    assert set(Heuristics.model_fields) - set(STAGE.decide_settings) == {"stop_words", "short_line_chars"}
    assert set(STAGE.reasons) == {rule.reason for rule in RULES}
    assert len(REASONS) == 27
    assert tuple(WRITES.names) == rules.MEASURES


def test_stop_words_and_short_lines_are_settings():
    """Other stop words and another length of short lines change their measures, and nothing else."""
    text = "Der Müller mahlt das Korn und die Mühle steht.\nEin kurzer Satz."
    plain = measured([text]).to_pylist()[0]
    german = measured([text], stop_words=("der", "und", "die", "und"), short_line_chars=16).to_pylist()[0]
    assert (plain["stop_words"], german["stop_words"]) == (0, 2)
    assert (plain["short_lines"], german["short_lines"]) == (0.5, 0.5)
    assert measured([text], short_line_chars=15).to_pylist()[0]["short_lines"] == 0
    assert {name for name in plain if plain[name] != german[name]} == {"stop_words"}


def test_a_measure_without_a_value_fails_no_rule():
    """A text of marks alone has no mean word length; it goes for its words, and stays where these are not asked for."""
    assert measured(["!?"]).column("mean_word_length").null_count == 1
    limits = {"min_words": None, "min_alphabetic_words": None, "min_stop_words": None}
    assert decided(["!?"], rules=("gopher_quality",), **limits).column("reason")[0].as_py() is None


@pytest.mark.parametrize(
    ("settings_", "words"),
    [
        ({"rules": ()}, "each once"),
        ({"rules": ("fineweb", "fineweb")}, "each once"),
        ({"rules": ("c4",)}, "gopher_quality"),
        ({"stop_words": ("of the",)}, "without blanks"),
        ({"stop_words": ("",)}, "without blanks"),
        ({"max_short_lines": float("nan")}, "finite"),
        ({"min_words": -1}, "greater"),
        ({"max_shortlines": 0.5}, "Extra"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings_, words):
    """A wrong set, stop word, limit or key is an error that says what is expected."""
    with pytest.raises((ConfigError, ValidationError), match=words):
        Heuristics(**settings_)
