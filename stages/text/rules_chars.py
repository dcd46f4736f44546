"""Code points as the rules see them: read from UTF-8, and one flat table of what each one is, as a set of bits.

Letters, digits, marks and blanks come from the interpreter's own Unicode database (`unicodedata.unidata_version`), so
all workers of a run must share a Python, which a cluster checks at its start.
"""

from __future__ import annotations

import functools
import sys
import unicodedata

import numpy as np
from numba import njit
from numpy.typing import NDArray

BLANK, BREAK, LETTER, CAPITAL, DIGIT = 1, 2, 4, 8, 16
"""BLANK is `str.isspace`, BREAK what `str.splitlines` cuts at, LETTER `str.isalpha`, CAPITAL `str.isupper`."""
OPENS, CLOSES, ALONE, JOINS, INNER = 32, 64, 128, 256, 512
"""How words are cut, see `rules_words`: a mark at the front of a run, at its end, a word by itself, part of the word
before, a mark that cuts inside a run where its neighbours say so."""
SYMBOL, TERMINAL = 1024, 2048
"""datatrove's two sets: a word of SYMBOLs only is no word, a line that ends in a TERMINAL ends like a sentence."""

LINE_BREAKS = "a-d 1c-1e 85 2028-2029"
DEGREE, ELLIPSIS = 0xB0, 0x2026
CLOSING_MARKS = (
    "21-23 25-2a 2c 3a-3c 3e-3f 5b 5d 5f-60 7b 7d a1 ab b4 b7 bb bf 60c 61b 61f 66a 6d4 964 2013-2014 2018-201a "
    "201c-201e 27e6-27e7 3001-3002 3008-3011 3014-3015 ff01 ff08-ff09 ff0c ff1a-ff1b ff1f ff5e"
)
"""Quotes, brackets, dashes and ! ? , : ; # % & * _ ` in several scripts. Code points, because many look alike."""
OPENING_MARKS = f"{CLOSING_MARKS} 2b 3d a7"
INNER_MARKS = "2a-2f 3a 3c-3e 5e 7e 2013-2014"
EMOJI_MODIFIERS = range(0x1F3FB, 0x1F400)
PLANES, TAGS = 0x40000, range(0xE0000, 0xE1000)
"""Where Unicode has put characters so far; none of the rest, private use and unassigned, has a bit."""

SCRIPTS_WITHOUT_BLANKS = (
    (0x3005, 0x3008), (0x3400, 0x4DC0), (0x4E00, 0xA4D0), (0xF900, 0xFB00), (0x20000, 0x40000),      # Han, Yi
    (0x3041, 0x3130), (0x31A0, 0x31C0), (0x31F0, 0x3200), (0xFF66, 0xFFA0), (0x1B000, 0x1B170),      # kana, Bopomofo
    (0x0E00, 0x0F00), (0x1000, 0x10A0), (0x1780, 0x1800),                                 # Thai, Lao, Burmese, Khmer
)  # fmt: skip
"""To the rules. Those of word-1 are in `stages.text.codepoints`: other ones, and to change either changes results."""
EAST_ASIAN_MARKS = ((0x3001, 0x3040), (0xFF01, 0xFFF0))

SENTENCE_ENDS = (
    "21 2e 3f 589 61d-61f 6d4 700-702 7f9 837 839 83d-83e 964-965 104a-104b 1362 1367-1368 166e 1735-1736 17d4-17d6 "
    "17d9-17da 1803 1809 1944-1945 1aa8-1aab 1b5a-1b5b 1b5e-1b5f 1b7d-1b7e 1c3b-1c3c 1c7e-1c7f 203c-203d 2047-2049 "
    "2e2e 2e3c 2e53-2e54 3002 a4ff a60e-a60f a6f3 a6f7 a876-a877 a8ce-a8cf a92f a9c8-a9c9 aa5d-aa5f aaf0-aaf1 abeb "
    "fe52 fe56-fe57 ff01 ff0e ff1f ff61 10a56-10a57 10f55-10f59 10f86-10f89 11047-11048 110be-110c1 11141-11143 "
    "111c5-111c6 111cd 111de-111df 11238-11239 1123b-1123c 112a9 1144b-1144c 115c2-115c3 115c9-115d7 11641-11642 "
    "1173c-1173e 11944 11946 11a42-11a43 11a9b-11a9c 11c41-11c42 11ef7-11ef8 11f43-11f44 16a6e-16a6f 16af5 "
    "16b37-16b38 16b44 16e98 1bc9f 1da88"
)
"""The 159 marks that datatrove 0.10.1 takes for the end of a line: nearly Unicode's Sentence_Terminal."""
FURTHER_SYMBOLS = (
    "0-8 b-1f 21-2f 3a-40 5b-60 7b-9f ab b4 bb 2013-2014 2019 201c-201e 2026 2236 2501 25ba 3001 3008-300d 3010-3011 "
    "ff05 ff08-ff09 ff0c ff11 ff1a-ff1b ff5e"
)
"""What is punctuation to datatrove 0.10.1 beside those: ASCII's, its controls but for tab and newline, and these."""


def _points(ranges: str) -> NDArray[np.int64]:
    """The code points in ranges of hexadecimal numbers, ends included."""
    ends = [part.split("-") for part in ranges.split()]
    return np.concatenate([np.arange(int(low[0], 16), int(low[-1], 16) + 1) for low in ends])


def _in(category: NDArray[np.bytes_], *names: str) -> NDArray[np.bool_]:
    return np.isin(category, [name.encode() for name in names])


@functools.cache
def kinds() -> NDArray[np.uint16]:
    """The bits of every code point; made once a process, in about a tenth of a second."""
    points = list(map(chr, (*range(PLANES), *TAGS)))
    category = np.frombuffer("".join(map(unicodedata.category, points)).encode(), "S2")
    table = np.zeros(len(points), np.uint16)
    table[_in(category, "Lu", "Ll", "Lt", "Lm", "Lo")] = LETTER
    table[np.fromiter(map(str.isspace, points), bool)] |= BLANK
    table[np.fromiter(map(str.isupper, points), bool)] |= CAPITAL
    table[_in(category, "Nd")] |= DIGIT
    table[_points(LINE_BREAKS)] |= BREAK
    table[_in(category, "Mn", "Mc", "Me", "Cf")] |= JOINS
    table[EMOJI_MODIFIERS.start : EMOJI_MODIFIERS.stop] |= JOINS
    table[_in(category, "Sc")] |= OPENS
    table[_points(OPENING_MARKS)] |= OPENS
    table[_points(CLOSING_MARKS)] |= CLOSES
    table[_points(INNER_MARKS)] |= INNER
    table[_in(category, "So")] |= ALONE
    table[DEGREE] &= ~np.uint16(ALONE)
    table[ELLIPSIS] |= ALONE
    for low, high in SCRIPTS_WITHOUT_BLANKS:
        table[low:high] |= np.where(table[low:high] & LETTER, np.uint16(ALONE), np.uint16(0))
    for low, high in EAST_ASIAN_MARKS:
        table[low:high] |= np.where(table[low:high] & CLOSES, np.uint16(ALONE), np.uint16(0))
    table[_points(SENTENCE_ENDS)] |= SYMBOL | TERMINAL
    table[_points(FURTHER_SYMBOLS)] |= SYMBOL
    everything = np.zeros(sys.maxunicode + 1, np.uint16)
    everything[:PLANES], everything[TAGS.start : TAGS.stop] = table[:PLANES], table[PLANES:]
    return everything


@njit(cache=True, nogil=True)
def code_at(data, at):
    """The code point at byte `at` and the byte after it."""
    lead = np.int64(data[at])
    if lead < 0x80:
        return lead, at + 1
    if lead < 0xE0:
        return (lead & 0x1F) << 6 | (data[at + 1] & 0x3F), at + 2
    if lead < 0xF0:
        return (lead & 0x0F) << 12 | np.int64(data[at + 1] & 0x3F) << 6 | (data[at + 2] & 0x3F), at + 3
    high = (lead & 0x07) << 18 | np.int64(data[at + 1] & 0x3F) << 12
    return high | np.int64(data[at + 2] & 0x3F) << 6 | (data[at + 3] & 0x3F), at + 4


@njit(cache=True, nogil=True)
def before(data, at):
    """The byte at which the code point before byte `at` starts."""
    at -= 1
    while data[at] & 0xC0 == 0x80:
        at -= 1
    return at


@njit(cache=True, nogil=True)
def kind_at(data, kinds, at):
    return np.int64(kinds[code_at(data, at)[0]])
