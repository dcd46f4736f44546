"""Heuristics: the rule sets gopher_quality, gopher_repetition and fineweb, in datatrove's dialect.

All measures of all sets are written for every row, whichever sets decide, because most of the cost is in cutting text
into words, which they share: so rules and thresholds can change later without reading a text again.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from pipeline.stage import Context, MapStage, StageConfig, Transform, require
from stages.text.arrow import text_buffers

RuleSet = Literal["gopher_quality", "gopher_repetition", "fineweb"]
Count = Annotated[int, Field(ge=0)] | None
Limit = Annotated[float, Field(ge=0, allow_inf_nan=False)] | None

GOPHER_STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")


class Heuristics(StageConfig):
    """A document goes when a measure is on the wrong side of its limit (at the limit it stays); null: no such limit.

    Defaults are those of datatrove 0.10.1. Lengths are code points, shares are parts of 1. Words, lines, paragraphs and
    copies (second and later occurrences) are defined in `stages.text.rules_words` and `stages.text.rules_lines`. The
    limits are made for English: in a script without blanks every letter is a word, and `min_mean_word_length` fails.
    """

    rules: tuple[RuleSet, ...] = ("gopher_quality", "gopher_repetition", "fineweb")
    """Which sets decide, in this order: the first rule that fails gives the reason."""

    min_words: Count = 50
    max_words: Count = 100_000
    min_mean_word_length: Limit = 3.0
    max_mean_word_length: Limit = 10.0
    max_hashes_per_word: Limit = 0.1
    max_ellipses_per_word: Limit = 0.1
    max_bullet_lines: Limit = 0.9
    max_ellipsis_lines: Limit = 0.3
    min_alphabetic_words: Limit = 0.8
    min_stop_words: Count = 2
    stop_words: tuple[str, ...] = GOPHER_STOP_WORDS
    """Written as in the text, case included. English; other languages need their own, or `min_stop_words: null`."""

    max_duplicate_lines: Limit = 0.3
    max_duplicate_line_chars: Limit = 0.2
    max_duplicate_paragraphs: Limit = 0.3
    max_duplicate_paragraph_chars: Limit = 0.2
    max_top_2_gram_chars: Limit = 0.2
    max_top_3_gram_chars: Limit = 0.18
    max_top_4_gram_chars: Limit = 0.16
    max_duplicate_5_gram_chars: Limit = 0.15
    max_duplicate_6_gram_chars: Limit = 0.14
    max_duplicate_7_gram_chars: Limit = 0.13
    max_duplicate_8_gram_chars: Limit = 0.12
    max_duplicate_9_gram_chars: Limit = 0.11
    max_duplicate_10_gram_chars: Limit = 0.1

    min_terminal_lines: Limit = 0.12
    max_short_lines: Limit = 0.67
    short_line_chars: int = Field(default=30, ge=0)
    """A line of up to so many code points is short."""
    max_repeated_line_chars: Limit = 0.01
    max_newlines_per_word: Limit = 0.3

    @model_validator(mode="after")
    def _sound(self) -> Heuristics:
        once = len(set(self.rules)) == len(self.rules) > 0
        require(once, "rules", list(self.rules), "it names one or more rule sets, each once")
        clean = all(word and not any(map(str.isspace, word)) for word in self.stop_words)
        require(clean, "stop_words", list(self.stop_words), "each is one word without blanks")
        return self


class Rule(NamedTuple):
    """A document whose `measure` is under a `min_` or over a `max_` setting named `limit` goes for `reason`."""

    rules: RuleSet
    reason: str
    measure: str
    limit: str

    @property
    def is_minimum(self) -> bool:
        return self.limit.startswith("min_")


def _rules(rules: RuleSet, *rows: tuple[str, str, str]) -> tuple[Rule, ...]:
    return tuple(Rule(rules, f"{rules}.{reason}", measure, f"{side}_{measure}") for reason, side, measure in rows)


RULES = (
    *_rules(
        "gopher_quality",
        ("too_few_words", "min", "words"),
        ("too_many_words", "max", "words"),
        ("words_too_short", "min", "mean_word_length"),
        ("words_too_long", "max", "mean_word_length"),
        ("too_many_hashes", "max", "hashes_per_word"),
        ("too_many_ellipses", "max", "ellipses_per_word"),
        ("too_many_bullet_lines", "max", "bullet_lines"),
        ("too_many_ellipsis_lines", "max", "ellipsis_lines"),
        ("too_few_alphabetic_words", "min", "alphabetic_words"),
        ("too_few_stop_words", "min", "stop_words"),
    ),
    *_rules(
        "gopher_repetition",
        *((name, "max", name) for name in ("duplicate_paragraphs", "duplicate_paragraph_chars")),
        *((name, "max", name) for name in ("duplicate_lines", "duplicate_line_chars")),
        *((f"top_{n}_gram", "max", f"top_{n}_gram_chars") for n in (2, 3, 4)),
        *((f"duplicate_{n}_grams", "max", f"duplicate_{n}_gram_chars") for n in (5, 6, 7, 8, 9, 10)),
    ),
    *_rules(
        "fineweb",
        ("too_few_terminal_lines", "min", "terminal_lines"),
        ("too_many_short_lines", "max", "short_lines"),
        ("repeated_line_chars", "max", "repeated_line_chars"),
        ("too_many_newlines", "max", "newlines_per_word"),
    ),
)
"""Inside a set in the order in which datatrove looks: only the first failure is a document's reason."""

MEANINGS = {
    "words": "words that are not symbols only",
    "mean_word_length": "code points in a word that is not symbols only, on average (null without such words)",
    "hashes_per_word": "`#` signs by all words, symbols included",
    "ellipses_per_word": "ellipses (three dots or U+2026) by all words",
    "bullet_lines": "share of lines that start with a hyphen or U+2022, blanks aside",
    "ellipsis_lines": "share of lines that end in an ellipsis, blanks aside",
    "alphabetic_words": "share of all words that have a letter",
    "stop_words": "how many of the `stop_words` occur",
    "duplicate_lines": "share of lines that are copies of earlier ones, empty lines aside",
    "duplicate_line_chars": "share of the text in copies of lines",
    "duplicate_paragraphs": "share of paragraphs (empty lines separate them) that are copies of earlier ones",
    "duplicate_paragraph_chars": "share of the text in copies of paragraphs",
    **{f"top_{n}_gram_chars": f"all copies of the most frequent {n} words in a row, by the text" for n in (2, 3, 4)},
    **{f"duplicate_{n}_gram_chars": f"share of the text in copies of {n} words in a row" for n in (5, 6, 7, 8, 9, 10)},
    "terminal_lines": "share of lines whose very last character is terminal punctuation, blank lines aside",
    "short_lines": "share of lines of up to `short_line_chars` code points, blank lines aside",
    "repeated_line_chars": "share of the text, newlines aside, in copies of lines that are not blank",
    "newlines_per_word": "newlines by all words",
}
"""The measures, which are the columns this stage writes."""

WRITES = pa.schema([(name, pa.int32() if name in ("words", "stop_words") else pa.float64()) for name in MEANINGS])


def bind(config: Heuristics, context: Context) -> Transform:
    from stages.text import rules

    def transform(batch: pa.RecordBatch) -> pa.RecordBatch:
        offsets, data = text_buffers(batch.column("text"))
        measures = rules.measure(offsets, data, config.stop_words, config.short_line_chars)
        columns = dict(zip(rules.MEASURES, measures, strict=True))
        arrays = [pa.array(columns[field.name], from_pandas=True).cast(field.type) for field in WRITES]
        return pa.RecordBatch.from_arrays(arrays, schema=WRITES)

    return transform


def _deciding(config: Heuristics) -> list[tuple[int, Rule]]:
    """The rules that have a say, numbered as in RULES, in the order in which they have it."""
    chosen = ((number, rule) for number, rule in enumerate(RULES) if rule.rules in config.rules)
    limited = (entry for entry in chosen if getattr(config, entry[1].limit) is not None)
    return sorted(limited, key=lambda entry: config.rules.index(entry[1].rules))


def decide(config: Heuristics, context: Context, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Reason, score (the measure) and threshold (its limit) of the first rule that fails; a null fails none."""
    first = np.full(batch.num_rows, -1, np.int32)
    score, threshold = np.zeros(batch.num_rows), np.zeros(batch.num_rows)
    for number, rule in _deciding(config):
        limit = getattr(config, rule.limit)
        measure = batch.column(rule.measure).cast(pa.float64()).to_numpy(zero_copy_only=False)
        fails = (first < 0) & (measure < limit if rule.is_minimum else measure > limit)
        first[fails], score[fails], threshold[fails] = number, measure[fails], limit
    passes = first < 0
    reasons = pa.DictionaryArray.from_arrays(pa.array(first, mask=passes), list(REASONS))
    return pa.record_batch(
        {
            "reason": reasons.cast(pa.string()),
            "score": pa.array(score, mask=passes),
            "threshold": pa.array(threshold, mask=passes),
        }
    )


REASONS = {
    rule.reason: f"{MEANINGS[rule.measure]}: {'under' if rule.is_minimum else 'over'} `{rule.limit}`" for rule in RULES
}

STAGE = MapStage(
    name="heuristics",
    version=1,
    config=Heuristics,
    reads=("text",),
    writes=WRITES,
    bind=bind,
    decide=decide,
    decide_settings=("rules", *(rule.limit for rule in RULES)),
    reasons=REASONS,
)
