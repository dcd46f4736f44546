"""YAML is read by the core schema of 1.2, with the line of every key, and written so that it reads back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config.yamltext import dump, parse
from pipeline.errors import ConfigError


def value(text):
    return parse(text, "f").value


@pytest.mark.parametrize(
    "text", ["no", "yes", "on", "off", "1_000", "2026-01-31", "12:30:45", "0b11", "1e", "<<", "NO", "'5'", '"~"']
)
def test_strings(text):
    """What only other versions of YAML take for a truth value, number or date is a string."""
    assert value(f"key: {text}") == {"key": text.strip("'\"")}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("7e9", 7e9), ("1.0e12", 1e12), ("1.", 1.0), (".5", 0.5), ("-3", -3), ("+3", 3), ("010", 10),
        ("0x1F", 31), ("0o17", 15),
    ],
)  # fmt: skip
def test_numbers(text, number):
    """Numbers of the core schema are numbers of the type that they are written as."""
    assert value(f"[{text}]") == [number]
    assert type(value(f"[{text}]")[0]) is type(number)


@pytest.mark.parametrize(
    ("text", "constant"), [("null", None), ("~", None), ("", None), ("true", True), ("FALSE", False)]
)
def test_constants(text, constant):
    """Null and the truth values have the spellings of the core schema."""
    assert value(f"key: {text}") == {"key": constant}


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("a: 1\nb: 2\na: 3", 3, "a: this key is given twice, first at f:1"),
        ("a:\n  b: {c: 1, c: 2}", 2, "a.b.c: this key is given twice, first at f:2"),
        ("5: 1\n'5': 2", 2, "5: this key is given twice"),
        ("a: .inf", 1, ".inf is not a finite number"),
        ("a: [1,\n .nan]", 2, ".nan is not a finite number"),
        ("a: 1e999", 1, "1e999 is not a finite number"),
        ("a: !!str 5", 1, "tags such as"),
        ("a: !thing [1]", 1, "tags such as !thing"),
        ("a: 1\n---\nb: 2", 2, "a second document"),
        ("a: *x", 1, "names no anchor"),
        ("a: &x [*x]", 1, "names no anchor"),
        ("? [1]\n: 2", 1, "a key must be a string"),
        ("true: 2", 1, "a key must be a string"),
        ("a: [1", 1, "not YAML"),
        ("a: b: c", 1, "not YAML"),
        ('a: "\\ud800"', 1, "surrogate"),
    ],
)
def test_refused(text, line, problem):
    """Text that is not plain core-schema YAML is refused with its line."""
    with pytest.raises(ConfigError) as caught:
        parse(text, "f")
    assert caught.value.message.startswith(f"f:{line}: ")
    assert problem in caught.value.message


def test_control_character():
    """A character that YAML does not allow is an error of the config, not of the parser."""
    with pytest.raises(ConfigError, match="f: not YAML"):
        parse("a: \x00", "f")


def test_empty():
    """A text without a document is null."""
    assert value("") is None
    assert value("# nothing here\n") is None


def test_alias_is_a_copy():
    """Two uses of an anchor do not share one mapping: changing one leaves the other alone."""
    document = value("a: &x {n: 1}\nb: *x\n")
    document["a"]["n"] = 2
    assert document == {"a": {"n": 2}, "b": {"n": 1}}


def test_place():
    """A part is found at its own line, and a part that is absent at the line of what would hold it."""
    document = parse("a:\n  - b: 1\n    c: 2\n", "f")
    assert document.place(("a", 0, "c")) == "f:3"
    assert document.place(("a", 0, "d")) == "f:2"
    assert document.place(("z",)) == "f:1"
    document.mark(("a", 0), "elsewhere")
    assert document.place(("a", 0, "c")) == "elsewhere"
    assert document.place(("a",)) == "f:1"


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.from_regex(r"[.0-9+_eExo:~ #-]{1,6}", fullmatch=True)
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
)


@given(VALUES)
@settings(max_examples=300, deadline=None)
def test_round_trip(tree):
    """Whatever is dumped reads back as the same value of the same types."""
    assert repr(parse(dump(tree), "f").value) == repr(tree)


def test_dump_is_plain():
    """Ordinary values are written without quotes, in the order they were given."""
    tree = {
        "name": "web",
        "b": ["s3://x/*.parquet", "quality.score desc", "64MiB"],
        "a": {"n": 0.1, "none": None},
        "date": "2026-01-31",
    }
    lines = [
        "name: web",
        "b:",
        "- s3://x/*.parquet",
        "- quality.score desc",
        "- 64MiB",
        "a:",
        "  n: 0.1",
        "  none: null",
        'date: "2026-01-31"',
    ]
    assert dump(tree).splitlines() == lines
