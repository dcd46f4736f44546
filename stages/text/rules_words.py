"""Words as the rules count them: what spaCy's English tokenizer does to ordinary text, as a few rules of our own.

1. Blanks (`str.isspace`) separate words.
2. A pictograph, an ellipsis character, an East Asian mark, and each letter of a script without blanks is a word by
   itself, together with the combining marks after it.
3. What is left are runs. Marks (quotes, brackets, `, : ; ! ? _ # * & %`, dashes; at the front also `= + §` and
   currency signs) come off both ends of a run, each a word; two or more dots are one. A single dot comes off the end
   but for one after a lone capital ("J.").
4. `'s 're 've 'll 'm 'd` and `n't` come off the end of what remains.
5. Inside, a word ends before and after: dots in a row; a dot between a small letter and a capital; a comma between
   letters; one of `: < > = /`, or up to three equal hyphens, dashes or tildes, between a letter or digit and a letter;
   one of `+ - * ^` between digits. A run that starts like `https://` is one word.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from stages.text.bits import P1
from stages.text.rules_chars import ALONE, BLANK, BREAK, CLOSES, INNER, JOINS, LETTER, OPENS, SYMBOL, code_at
from stages.text.rules_numbering import cleared, intern
from stages.text.rules_runs import split_run

WINDOW = 1 << 21
"""Words that are numbered: twenty times the most that gopher_quality lets pass. Each takes 32 bytes of memory."""
PLAIN_STOPS = BLANK | OPENS | CLOSES | ALONE | INNER

WORDS, REAL, REAL_CHARS, ALPHABETIC, LINES, BULLET_LINES, ELLIPSIS_LINES, WINDOW_END, TALLIES = range(9)
"""What `segment` counts: all words; those that are not symbols only, and their code points; those with a letter;
lines as `str.splitlines` cuts them, those that start with a bullet, those that end in an ellipsis; and the byte at
which the first WINDOW words end."""


@njit(cache=True, nogil=True)
def about(data, kinds, at, stop):
    """Of the word [at, stop): a 64-bit hash of its code points, their number, the bits that any has and that all have.

    Two words have the same hash with a chance of about 2^-64.
    """
    key, chars, some, every = np.uint64(0), np.int64(0), np.int64(0), np.int64(-1)
    while at < stop:
        code, at = code_at(data, at)
        key = (key ^ np.uint64(code)) * P1
        chars, some, every = chars + 1, some | kinds[code], every & kinds[code]
    return key, chars, some, every


@njit(cache=True, nogil=True)
def joined_end(data, kinds, at, stop):
    """Where the combining marks from byte `at` on end."""
    while at < stop:
        code, after = code_at(data, at)
        if not kinds[code] & JOINS:
            break
        at = after
    return at


@njit(cache=True, nogil=True)
def _run_end(data, kinds, at, stop):
    """Where the run that goes on at byte `at` ends: at a blank or at a word by itself."""
    while at < stop:
        code, after = code_at(data, at)
        if kinds[code] & (BLANK | ALONE):
            break
        at = after
    return at


@njit(cache=True, nogil=True)
def _is_bullet(data, at, stop):
    return data[at] == ord("-") or (
        at + 3 <= stop and data[at] == 0xE2 and data[at + 1] == 0x80 and data[at + 2] == 0xA2  # U+2022
    )


@njit(cache=True, nogil=True)
def _is_ellipsis(data, at, stop):
    """Whether [at, stop) ends in three dots or U+2026."""
    if stop - 3 < at:
        return False
    first, second, third = data[stop - 3], data[stop - 2], data[stop - 1]
    return (first == second == third == ord(".")) or (first == 0xE2 and second == 0x80 and third == 0xA6)


@njit(cache=True, nogil=True)
def segment(data, kinds, start, stop, slots, keys, ids, reach, ends, tally):
    """Cuts data[start:stop) into words: `ids` numbers them (equal words, equal numbers, from 1 in order of their first
    use), `reach[i]` is the code points in the words before word i, `keys[number]` the hash of a word: all three for the
    first WINDOW words. Fills `tally`. Returns the shift of the table in `slots` and one more than the highest number.

    Scratch for a text of n bytes: `slots` 2^k >= n + 512, `ends` n + 2, all others that or WINDOW + 2.
    """
    shift = cleared(slots, min((stop - start) // 4 + 128, WINDOW))
    tally[:] = 0
    words, distinct, reached = 0, 1, np.int64(0)
    real, real_chars, alphabetic = 0, np.int64(0), 0
    at, line, edge, window_end, fresh = start, start, start, start, True
    reach[0] = 0
    while at < stop:
        word, after, kind = at, at, np.int64(0)
        key, chars, some, every = np.uint64(0), np.int64(0), np.int64(0), np.int64(-1)
        while at < stop:
            code, after = code_at(data, at)
            kind = np.int64(kinds[code])
            if kind & PLAIN_STOPS:
                break
            key = (key ^ np.uint64(code)) * P1
            chars, some, every, at = chars + 1, some | kind, every & kind, after
        if at == word and kind & BLANK:
            at = after
            if kind & BREAK:
                at += data[word] == ord("\r") and at < stop and data[at] == ord("\n")
                tally[LINES] += 1
                tally[ELLIPSIS_LINES] += _is_ellipsis(data, line, edge)
                line, fresh = at, True
            continue
        plain = at == stop or kind & BLANK or (at > word and kind & ALONE)
        found = 1
        if not plain and at == word and kind & ALONE:
            at = joined_end(data, kinds, after, stop)
            ends[0] = at
        elif not plain:
            at = _run_end(data, kinds, at, stop)
            found = split_run(data, kinds, word, at, ends)
        if fresh:
            tally[BULLET_LINES] += _is_bullet(data, word, stop)
            fresh = False
        edge = at
        for i in range(found):
            if not plain:
                key, chars, some, every = about(data, kinds, word, ends[i])
                word = ends[i]
            if words < WINDOW:
                number = intern(key, slots, shift, keys, distinct)
                distinct += number == distinct
                reached += chars
                ids[words], reach[words + 1], window_end = number, reached, ends[i] if not plain else at
            words += 1
            if not every & SYMBOL:
                real, real_chars = real + 1, real_chars + chars
            alphabetic += some & LETTER != 0
    if line < stop:
        tally[LINES] += 1
        tally[ELLIPSIS_LINES] += _is_ellipsis(data, line, edge)
    tally[WORDS], tally[REAL], tally[REAL_CHARS], tally[ALPHABETIC] = words, real, real_chars, alphabetic
    tally[WINDOW_END] = stop if words <= WINDOW else window_end
    return shift, distinct
