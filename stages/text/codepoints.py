"""What text-1 and word-1 need to know about each code point, as flat tables that kernels index.

Letters, marks, digits, canonical composition and case folding come from the interpreter's own Unicode database
(`unicodedata.unidata_version`), so all workers of a run must share a Python, which a cluster checks at its start.
"""

from __future__ import annotations

import functools
import itertools
import sys
import unicodedata
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SYMBOL, LETTER, MARK, SPELLED, BLANK, DROPPED = range(6)
"""Kinds, in the lowest 3 bits of a property: LETTER holds digits too, SPELLED is every letter, mark and digit of a
script that puts no blanks between words, and SYMBOL is all the rest, unassigned code points included."""
KIND, COMPOSES, EXPANDS, CLASS_SHIFT = 7, 8, 16, 8
"""COMPOSES: a text with it may not be NFC. EXPANDS: folds to several code points. From CLASS_SHIFT: combining class."""

BLANKS = (
    *range(0x09, 0x0E), *range(0x1C, 0x21), 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F,
    0x3000,
)  # fmt: skip
"""Unicode's White_Space, and the four ASCII separators that Python counts among blanks as well."""

INVISIBLE = (
    0xAD, 0x61C, 0x180E, *range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2065), *range(0x2066, 0x2070),
    0xFEFF,
)  # fmt: skip
"""Soft hyphen, byte order mark and the format characters without width: what text-1 drops."""

SCRIPTS_WITHOUT_BLANKS = (
    (0x2E80, 0x2FE0), (0x3005, 0x3008), (0x3021, 0x302A), (0x3038, 0x303C), (0x3400, 0x4DC0), (0x4E00, 0xA000),
    (0xF900, 0xFB00), (0x20000, 0x32400),                                        # Han
    (0x3040, 0x3100), (0x31F0, 0x3200), (0xFF66, 0xFFA0), (0x1AFF0, 0x1B170),    # Hiragana, Katakana
    (0x0E00, 0x0E80), (0x0E80, 0x0F00),                                          # Thai, Lao
    (0x1780, 0x1800), (0x1000, 0x10A0), (0xA9E0, 0xAA00), (0xAA60, 0xAA80),      # Khmer, Burmese
)  # fmt: skip
UNIFORM = (
    range(0x3400, 0x4DC0), range(0x4E00, 0xA000), range(0xAC00, 0xD7A4), range(0x20000, 0x2F800),
    range(0x30000, 0x323B0),
)  # fmt: skip
"""Ideographs and Hangul syllables: letters without case that NFC leaves alone, three quarters of all characters."""
VARIED = (
    range(0x3400), range(0x4DC0, 0x4E00), range(0xA000, 0xAC00), range(0xD7A4, 0xD800), range(0xF900, 0x20000),
    range(0x2F800, 0x2FA20), range(0xE0000, 0xE0200),
)  # fmt: skip
"""Where all other characters lie so far. Whatever is in neither is a SYMBOL that folds to itself."""


class Tables(NamedTuple):
    """Indexed by code point; `expansions` by what `folds` holds for an EXPANDS code point."""

    properties: NDArray[np.uint16]
    folds: NDArray[np.int32]
    """Case folding: what to add to the code point."""
    expansions: NDArray[np.int32]
    """Up to three code points, 0 for none."""


@functools.cache
def tables() -> Tables:
    """The tables of all code points; about 0.1 s to make, 5 MB, once a process and only if a text is not ASCII."""
    properties = np.zeros(sys.maxunicode + 1, np.uint16)
    folds = np.zeros(sys.maxunicode + 1, np.int32)
    expansions: list[tuple[int, ...]] = []
    for run in UNIFORM:
        properties[run.start : run.stop] = LETTER
    for code in itertools.chain(*VARIED):
        char = chr(code)
        properties[code] = _kind(char) | unicodedata.combining(char) << CLASS_SHIFT
        folded = char.casefold()
        if len(folded) > 1:
            properties[code] |= EXPANDS
            folds[code] = len(expansions)
            expansions.append((*map(ord, folded), 0, 0)[:3])
        elif folded != char:
            folds[code] = ord(folded) - code
    for low, high in SCRIPTS_WITHOUT_BLANKS:
        script = properties[low:high]
        script[:] = np.where(np.isin(script & KIND, (LETTER, MARK)), script - (script & KIND) + SPELLED, script)
    properties[list(BLANKS)] = BLANK
    properties[list(INVISIBLE)] = DROPPED
    properties[sorted(_composing())] |= COMPOSES
    return Tables(properties, folds, np.array(expansions, np.int32))


def _kind(char: str) -> int:
    major = unicodedata.category(char)[0]
    return MARK if major == "M" else LETTER if major in "LN" else SYMBOL


def _composing() -> set[int]:
    """Code points whose presence leaves open whether a text is NFC: those that NFC replaces, and every second half."""
    found = {*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)}  # vowels and finals that join to Hangul syllables
    for code in itertools.chain(*VARIED):
        parts = unicodedata.decomposition(chr(code)).split()
        if parts and not parts[0].startswith("<"):
            if len(parts) == 2:
                found.add(int(parts[1], 16))
            if unicodedata.normalize("NFC", chr(code)) != chr(code):
                found.add(code)
    return found
