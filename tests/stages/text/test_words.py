import re
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.text.codepoints import BLANKS, INVISIBLE, tables
from stages.text.words import BLOCK, block_end, fold, fold_unicode, hash_words

P1, P2, MASK = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, (1 << 64) - 1
SPELLED = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "IDEOGRAPHIC")
ALPHABET = "abcXYZ019 .,-_!\n\t\x00\x01\x7féßŐİ\u0301\u00ad\u200b\u200d\ufe0f\u00a0漢字かナกິ😀→½ǅﬃжΣς"


def hashed(word):
    """The hash of a word, written once more: 8 bytes at a time, the last ones with zeros."""
    h, data = P1, word.encode()
    while len(data) >= 8:
        h = (h ^ int.from_bytes(data[:8], "little")) * P2 & MASK
        h, data = h ^ h >> 29, data[8:]
    return (h ^ int.from_bytes(data, "little")) * P2 & MASK


def words(text):
    """word-1 as its definition reads, for texts in NFC."""
    found = []
    for run in re.split("[\x00" + re.escape("".join(map(chr, BLANKS))) + "]+", text):
        visible, tokens, word = "".join(char for char in run if ord(char) not in INVISIBLE), [], ""
        for char in visible + " ":
            major = unicodedata.category(char)[0]
            spelled = major in "LMN" and unicodedata.name(char, "").startswith(SPELLED)
            if not spelled and (major in "LN" or (major == "M" and word)):
                word += char.casefold()
                continue
            tokens += list(word) if len(word) > 64 else [word] if word else []
            tokens += [char.casefold()] if spelled else []
            word = ""
        found += tokens or [char.casefold() for char in visible]
    return found


def tokens(text, folding=fold, room=4096):
    """The token hashes of a text, block by block, `room` at a time."""
    data = np.frombuffer(text.encode(), np.uint8)
    out, at = [], 0
    while at < data.size:
        end = block_end(data, at)
        low = np.empty(3 * (end - at) + 32, np.uint8)
        size, source = folding(data[at:end], tables(), low)
        state, at = (0, 0, 0, False), end
        while True:
            held = np.empty(room, np.uint64)
            have, state = hash_words(low, source, size, state, held, 0)
            out += held[:have].tolist()
            if have < room:
                break
    return out


def full(text, table, low):
    """Fold by the way for any script, ASCII or not."""
    size = fold_unicode(text, table, low)
    low[size : size + 16] = 0
    return size, low


@settings(deadline=None, derandomize=True)
@given(st.text(st.sampled_from(ALPHABET), max_size=200).map(lambda text: unicodedata.normalize("NFC", text)))
def test_tokens_are_those_of_the_definition(text):
    """Every text of many scripts gives the hashes of the words that its definition names."""
    assert tokens(text) == [hashed(word) for word in words(text)]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.text(st.characters(max_codepoint=127), max_size=300), st.integers(1, 9))
def test_ascii_gives_the_same_tokens_by_both_ways(text, room):
    """The fast way for ASCII and the full one agree, however few tokens fit at a time."""
    assert tokens(text) == tokens(text, full) == tokens(text, room=room)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello, World! don't 3.5 x2", ["hello", "world", "don", "t", "3", "5", "x2"]),
        ("Straße ǅ İ", ["strasse", "ǆ", "i̇"]),
        ("Tokyo東京tower", ["tokyo", "東", "京", "tower"]),
        ("a | b -- c", ["a", "|", "b", "-", "-", "c"]),
        ("😀😀 ok 😀!", ["😀", "😀", "ok", "😀", "!"]),
        ("soft\u00adly zero\u200bwidth", ["softly", "zerowidth"]),
        ("x" * 64, ["x" * 64]),
        ("x" * 65, ["x"] * 65),
        ("é" * 64, ["é" * 64]),
        ("é" * 65, ["é"] * 65),
        ("\u200b \u00a0", []),
    ],
)
def test_words_of_well_known_texts(text, expected):
    """Words, letters of scripts without blanks, lone symbols and very long words become the tokens one expects."""
    assert tokens(text) == [hashed(word) for word in expected]


def test_blocks_do_not_show():
    """A text of many blocks, with and without accents, gives the tokens of its words."""
    rng = np.random.default_rng(1)
    long = " ".join("".join(rng.choice(list("abcé"), rng.integers(1, 12))) for _ in range(5 * BLOCK))
    assert tokens(long) == [hashed(word) for word in long.split()]


def test_a_megabyte_without_a_blank_is_spelled():
    """A line without blanks costs one token per code point, and no more room than its bytes ask for."""
    assert tokens("ab" * 500_000, room=1 << 20) == [hashed("a"), hashed("b")] * 500_000
