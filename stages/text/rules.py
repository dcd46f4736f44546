"""The measures of the rule sets gopher_quality, gopher_repetition and fineweb, for a batch of texts in one kernel.

They are datatrove's (0.10.1) in every definition but three: words are those of `rules_words`; an n-gram is its words
one by one, where datatrove's duplicate n-grams compare the letters run together; and of a text of more than
2,097,152 words, stop words and n-grams are looked for in the first so many.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stages.text import rules_lines as lines
from stages.text import rules_words as words
from stages.text.rules_chars import kinds as kinds_of_code_points
from stages.text.rules_ngrams import DUPLICATE_SIZES, TOP_SIZES, repeated
from stages.text.rules_numbering import is_known

MEASURES = (
    "words", "mean_word_length", "hashes_per_word", "ellipses_per_word", "bullet_lines", "ellipsis_lines",
    "alphabetic_words", "stop_words",
    "duplicate_lines", "duplicate_line_chars", "duplicate_paragraphs", "duplicate_paragraph_chars",
    *(f"top_{n}_gram_chars" for n in TOP_SIZES), *(f"duplicate_{n}_gram_chars" for n in DUPLICATE_SIZES),
    "terminal_lines", "short_lines", "repeated_line_chars", "newlines_per_word",
)  # fmt: skip
"""Rows of what `measure` returns. `stages.heuristics` says what each one is."""


@njit(cache=True, nogil=True)
def _share(part, whole):
    return part / whole if whole else 0.0


@njit(cache=True, nogil=True)
def _measure(offsets, data, kinds, short, stop_keys, out):
    longest = np.int64(0)
    for row in range(len(offsets) - 1):
        longest = max(longest, offsets[row + 1] - offsets[row])
    room = 1
    while room < 2 * longest + 512:
        room *= 2
    held = min(int(longest), words.WINDOW)
    # No page of these is touched beyond what a text needs, so one huge text does not make the others pay.
    slots, keys = np.empty(room, np.int32), np.empty(longest + 256, np.uint64)
    ids, reach = np.empty(held + 2, np.int32), np.empty(held + 2, np.int32)
    places, counts = np.empty(longest + 2, np.int32), np.empty(held + 256, np.int32)
    word, line = np.empty(words.TALLIES, np.int64), np.empty(lines.LINE_TALLIES, np.int64)
    top, duplicate = np.empty(len(TOP_SIZES), np.int64), np.empty(len(DUPLICATE_SIZES), np.int64)
    for row in range(len(offsets) - 1):
        start, stop = offsets[row], offsets[row + 1]
        if start == stop:
            continue
        lines.lines_and_paragraphs(data, kinds, start, stop, short, slots, keys, line)
        shift, distinct = words.segment(data, kinds, start, stop, slots, keys, ids, reach, places, word)
        stops = 0
        for key in stop_keys:
            stops += is_known(key, slots, shift, keys)
        window = min(word[words.WORDS], words.WINDOW)
        ends = word[words.WINDOW_END]
        chars = line[lines.CHARS] if ends == stop else lines.code_points(data, start, ends)
        repeated(ids, window, distinct, reach, slots, keys, places, counts, top, duplicate)
        out[0, row] = word[words.REAL]
        out[1, row] = word[words.REAL_CHARS] / word[words.REAL] if word[words.REAL] else np.nan
        out[2, row] = _share(line[lines.HASHES], word[words.WORDS])
        out[3, row] = _share(line[lines.ELLIPSES], word[words.WORDS])
        out[4, row] = _share(word[words.BULLET_LINES], word[words.LINES])
        out[5, row] = _share(word[words.ELLIPSIS_LINES], word[words.LINES])
        out[6, row] = _share(word[words.ALPHABETIC], word[words.WORDS])
        out[7, row] = stops
        out[8, row] = _share(line[lines.COPIES], line[lines.PIECES])
        out[9, row] = _share(line[lines.COPY_CHARS], line[lines.CHARS])
        out[10, row] = _share(line[lines.PARAGRAPH_COPIES], line[lines.PARAGRAPHS])
        out[11, row] = _share(line[lines.PARAGRAPH_COPY_CHARS], line[lines.CHARS])
        for i in range(len(top)):
            out[12 + i, row] = top[i] / chars
        for i in range(len(duplicate)):
            out[15 + i, row] = duplicate[i] / chars
        out[21, row] = _share(line[lines.TERMINAL_LINES], line[lines.NONBLANK])
        out[22, row] = _share(line[lines.SHORT_LINES], line[lines.NONBLANK])
        out[23, row] = _share(line[lines.NONBLANK_COPY_CHARS], line[lines.CHARS] - line[lines.NEWLINES])
        out[24, row] = _share(line[lines.NEWLINES], word[words.WORDS])


def measure(
    offsets: NDArray[np.int64], data: NDArray[np.uint8], stop_words: tuple[str, ...], short_line_chars: int
) -> NDArray[np.float64]:
    """The MEASURES (rows) of the texts data[offsets[i]:offsets[i + 1]] (columns), each valid UTF-8 under 2 GiB.

    Zeros for an empty text; `mean_word_length` is NaN where all words are symbols only.
    """
    kinds = kinds_of_code_points()
    encoded = [np.frombuffer(word.encode(), np.uint8) for word in sorted(set(stop_words))]
    stop_keys = np.array([words.about(word, kinds, 0, len(word))[0] for word in encoded], np.uint64)
    out = np.zeros((len(MEASURES), len(offsets) - 1))
    _measure(offsets, data, kinds, short_line_chars, stop_keys, out)
    return out
