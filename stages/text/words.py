"""Words under `word-1`: what `text-1` leaves, case-folded, as runs of letters, marks and digits.

Digits are words and are never split from letters. Three kinds of text give one token per code point instead: a word of
more than 64 code points (a line without blanks, encoded data), letters of a script that puts no blanks between words,
and a run between blanks that holds symbols only (emoji, rules, operators); other symbols only separate. A mark that
follows no word, as emoji have them, counts as a symbol.

A text is first folded: lower-case bytes of words, and bytes that separate them. Folding has a fast way for ASCII and a
full one, which give the same tokens; then one kernel hashes words of either.
"""

from __future__ import annotations

import numba as nb
import numpy as np

from stages.text.bits import HIGH, P1, P2, U64, load64, trailing_zeros
from stages.text.codepoints import BLANK, DROPPED, EXPANDS, KIND, LETTER, MARK, SPELLED
from stages.text.utf8 import decode, encode, is_ascii, length

LONGEST = 64
"""Code points of a word beyond which it is spelled."""
BLOCK = 512
"""Bytes folded at a time, up to the next blank: short, so that a document with some accents is still mostly ASCII."""
TWOS = U64(0x0202020202020202)


@nb.njit(nogil=True, cache=True)
def block_end(text, at):
    """The end of the block that starts at `at`: the first ASCII blank after BLOCK bytes, or the end of the text."""
    at = min(at + BLOCK, text.size)
    while at < text.size and not (text[at] == 0x20 or np.uint8(text[at] - 0x09) < 5):
        at += 1
    return at


@nb.njit(nogil=True, cache=True)
def fold(text, tables, low):
    """Fold a block into `low`, which must have room for 3 bytes a byte and 16 more.

    Returns its size and the text that symbols are spelled from; 16 zero bytes follow.
    """
    if is_ascii(text):
        size, source = fold_ascii(text, low), text
    else:
        size, source = fold_unicode(text, tables, low), low
    low[size : size + 16] = 0
    return size, source


@nb.njit(nogil=True, cache=True)
def fold_ascii(text, low):
    """low[i] = the folded letter or digit text[i], 0 for a blank, 1 for a symbol. Without a branch: it vectorises."""
    for i in range(text.size):
        c = text[i]
        u = np.uint8(c | np.uint8(0x20))
        letter = np.uint8(u - np.uint8(0x61)) < np.uint8(26)
        digit = np.uint8(c - np.uint8(0x30)) < np.uint8(10)
        edge = np.uint8(c - np.uint8(0x09)) < np.uint8(5) or np.uint8(c - np.uint8(0x1C)) < np.uint8(5)
        gap = np.uint8(0) if edge or c == np.uint8(0) else np.uint8(1)
        low[i] = u if letter else (c if digit else gap)
    return text.size


@nb.njit(nogil=True, cache=True)
def fold_unicode(text, tables, low):
    """Words of any script with zero bytes between them. Runs of symbols come out spelled, other symbols not at all."""
    i = at = run = run_at = 0
    in_word = has_word = has_symbol = False
    while i <= text.size:
        code, after, p = 0, i + 1, np.int64(BLANK)
        if i < text.size and text[i] != 0:
            code, after = decode(text, i)
            p = np.int64(tables.properties[code])
        kind = p & KIND
        if kind == LETTER or (kind == MARK and in_word):
            at = put(code, p, tables, low, at)
            in_word = has_word = True
        elif kind != DROPPED:
            low[at] = 0
            at += in_word
            in_word = False
            if kind == SPELLED:
                at = put(code, p, tables, low, at)
                low[at] = 0
                at += 1
                has_word = True
            elif kind != BLANK:
                has_symbol = True
            else:
                if has_symbol and not has_word:
                    at = spell(text[run:i], tables, low, run_at)
                run, run_at = after, at
                has_word = has_symbol = False
        i = after
    return at


@nb.njit(nogil=True, cache=True)
def spell(text, tables, low, at):
    """Write each code point of a run of symbols as a word of its own."""
    i = 0
    while i < text.size:
        code, i = decode(text, i)
        p = np.int64(tables.properties[code])
        if p & KIND != DROPPED:
            at = put(code, p, tables, low, at)
            low[at] = 0
            at += 1
    return at


@nb.njit(nogil=True, cache=True)
def put(code, p, tables, low, at):
    """Write the case folding of a code point."""
    if p & EXPANDS == 0:
        return encode(code + tables.folds[code], low, at)
    for part in tables.expansions[tables.folds[code]]:
        if part != 0:
            at = encode(part, low, at)
    return at


@nb.njit(nogil=True, cache=True)
def hash_words(low, source, size, state, tokens, have):
    """Append one 64-bit hash per token of a folded block to tokens[have:], until they are full or the block ends.

    `state` = (position, end of the stretch being spelled, start of the run, whether the run needs no spelling); start
    a block with (0, 0, 0, False), and pass on what comes back with the new count. Words are hashed 8 bytes at a time.
    """
    at, spelled, run, settled = state
    base = low.ctypes.data
    while have < tokens.size:
        if at < spelled:
            lead = low[at] if low[at] > 1 else source[at]
            x = U64(lead)
            for j in range(1, length(lead)):
                x |= U64(low[at + j]) << U64(8 * j)
            tokens[have] = (P1 ^ x) * P2
            have += 1
            at += length(lead)
        elif low[at] > 1:
            begin, h = at, P1
            x = load64(base + nb.uintp(at))
            gaps = (x - TWOS) & ~x & HIGH
            while gaps == 0:
                h = (h ^ x) * P2
                h ^= h >> U64(29)
                at += 8
                x = load64(base + nb.uintp(at))
                gaps = (x - TWOS) & ~x & HIGH
            bits = trailing_zeros(gaps) & U64(56)
            at += np.int64(bits >> U64(3))
            settled = True
            if at - begin > LONGEST and code_points(low[begin:at]) > LONGEST:
                at, spelled = begin, at
            else:
                tokens[have] = (h ^ (x & ((U64(1) << bits) - U64(1)))) * P2
                have += 1
        elif low[at] == 1:
            at += 1
        elif at > run and not settled:
            at, spelled, settled = run, at, True
        elif at < size:
            at += 1
            run, settled = at, False
        else:
            break
    return have, (at, spelled, run, settled)


@nb.njit(inline="always")
def code_points(text):
    count = 0
    for c in text:
        count += c & 0xC0 != 0x80
    return count
