import itertools
import unicodedata

from stages.text.codepoints import (
    BLANKS,
    COMPOSES,
    EXPANDS,
    KIND,
    LETTER,
    MARK,
    SPELLED,
    SYMBOL,
    UNIFORM,
    VARIED,
    tables,
)  # fmt: skip

TABLES = tables()


def kind(char):
    return int(TABLES.properties[ord(char)]) & KIND


def test_every_assigned_character_is_in_a_range():
    """Nothing that the interpreter's Unicode calls a letter, mark or digit lies outside the ranges."""
    known = set(itertools.chain(*UNIFORM, *VARIED))
    outside = {code for code in range(0x110000) if code not in known and unicodedata.category(chr(code))[0] in "LMN"}
    assert outside == set()


def test_uniform_ranges_are_uniform():
    """Every character of them is a letter without case that NFC leaves alone."""
    for code in itertools.chain(*UNIFORM):
        char = chr(code)
        assert unicodedata.category(char) in {"Lo", "Cn"}
        assert char.casefold() == char
        assert unicodedata.normalize("NFC", char) == char


def test_folding_is_pythons():
    """What the tables say about case is what str.casefold does, for every character."""
    for code in itertools.chain(range(0xD800), range(0xE000, 0x110000)):
        if TABLES.properties[code] & EXPANDS:
            folded = "".join(chr(part) for part in TABLES.expansions[TABLES.folds[code]] if part)
        else:
            folded = chr(code + TABLES.folds[code])
        assert folded == chr(code).casefold(), hex(code)


def test_kinds_of_well_known_characters():
    """Letters and digits of any script are words, scripts without blanks are spelled, the rest are symbols."""
    assert {kind(char) for char in "aZ5é½ßжا한Ⅷ"} == {LETTER}
    assert {kind(char) for char in "漢かカไทลາကខ𠀀ｱ"} == {SPELLED}
    assert {kind(char) for char in ".,_-$€😀、。\u0000\U000f0000"} == {SYMBOL}
    assert {kind(char) for char in "\u0301\ufe0f"} == {MARK}
    assert all(chr(code).isspace() for code in BLANKS)
    assert {code for code in range(0x110000) if chr(code).isspace()} == set(BLANKS)


def test_a_pair_that_composes_has_a_character_that_says_so():
    """Whatever NFC changes holds a code point marked COMPOSES: so it is for every composition and replacement."""
    for code in itertools.chain(range(0xD800), range(0xE000, 0x30000)):
        char = chr(code)
        if unicodedata.normalize("NFC", char) != char:
            assert TABLES.properties[code] & COMPOSES, hex(code)
        apart = unicodedata.normalize("NFD", char)
        if apart != char and unicodedata.normalize("NFC", apart) != apart:
            assert any(TABLES.properties[ord(part)] & COMPOSES for part in apart), hex(code)
