"""The words and measures of the rules in plain Python: slow, and short enough to be read against their definitions.

Needs nothing but the standard library, so that it can hand its words to another project's filters.
"""

import itertools
import re
import unicodedata
from collections import Counter

SCRIPTS_WITHOUT_BLANKS = (
    (0x3005, 0x3007), (0x3400, 0x4DBF), (0x4E00, 0xA4CF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF), (0x3041, 0x312F),
    (0x31A0, 0x31BF), (0x31F0, 0x31FF), (0xFF66, 0xFF9F), (0x1B000, 0x1B16F), (0x0E00, 0x0EFF), (0x1000, 0x109F),
    (0x1780, 0x17FF),
)  # fmt: skip
CLOSING = set("'\"“”„‘’‚`´«»()[]{}<>「」『』（）〔〕【】《》〈〉⟦⟧,:;!?¿؟¡_#*&%–—，、。：；！？～·।،۔؛٪")
CLITIC = re.compile(r"(?:['’](?:s|S|m|d|re|ve|ll)|n['’]t)$")
STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")


def category(char):
    return unicodedata.category(char)


def is_alone(char):
    code = ord(char)
    if char == "…" or (category(char) == "So" and char != "°"):
        return True
    if any(low <= code <= high for low, high in SCRIPTS_WITHOUT_BLANKS) and char.isalpha():
        return True
    return char in CLOSING and (0x3001 <= code <= 0x303F or 0xFF01 <= code <= 0xFFEF)


def joins(char):
    return category(char) in ("Mn", "Mc", "Me", "Cf") or 0x1F3FB <= ord(char) <= 0x1F3FF


def opens(char):
    return char in CLOSING or char in "=+§" or category(char) == "Sc"


def cuts(mark, length, left, right):
    """Whether `length` times `mark` is a word between the characters `left` and `right` (empty at an end)."""
    if mark == ".":
        return length > 1 or (left.isalpha() and not left.isupper() and right.isupper())
    if mark == ",":
        return length == 1 and left.isalpha() and right.isalpha()
    if length == 1 and left.isdecimal() and right.isdecimal():
        return mark in "+-*^"
    if not (left.isalpha() or left.isdecimal()) or not right.isalpha():
        return False
    return (mark in "-–—~" and length <= 3) or (mark in ":<>=/" and length == 1)


def core_words(core):
    if core[:1].isalpha() and core.lstrip("".join(filter(str.isalpha, core))).startswith("://"):
        return [core]
    clitic = CLITIC.search(core)
    core, tail = (core[: clitic.start()], clitic[0]) if clitic and core[: clitic.start()][-1:].isalpha() else (core, "")
    pieces, left, at = [""], "", 0
    for mark, group in itertools.groupby(core):
        same = "".join(group)
        at += len(same)
        if mark in "*+,-./:<=>^~–—" and cuts(mark, len(same), left, core[at : at + 1]):
            pieces += [same, ""]
        else:
            pieces[-1] += same
        left = mark
    return [piece for piece in [*pieces, tail] if piece]


def marks(text):
    return re.findall(r"\.+|.", text, re.DOTALL)


def run_words(run):
    start = 0
    while start < len(run):
        dots = re.compile(r"\.{2,}").match(run, start)
        if not dots and not opens(run[start]):
            break
        start = dots.end() if dots else start + 1
    stop = len(run)
    while stop > start:
        lone_capital = run[stop - 2 : stop - 1].isupper() and not (stop - 3 >= start and run[stop - 3].isupper())
        closing_dot = run[stop - 1] == "." and stop - 1 > start and not lone_capital
        if not closing_dot and run[stop - 1] not in CLOSING:
            break
        stop -= 1
    core = run[start:stop]
    return marks(run[:start]) + (core_words(core) if core else []) + marks(run[stop:])


def words(text):
    """The words of a text, as `stages.text.rules_words` defines them."""
    found = []
    for chunk in text.split():
        run, at = "", 0
        while at < len(chunk):
            if not is_alone(chunk[at]):
                run, at = run + chunk[at], at + 1
                continue
            stop = at + 1
            while stop < len(chunk) and joins(chunk[stop]):
                stop += 1
            found += run_words(run) if run else []
            found.append(chunk[at:stop])
            run, at = "", stop
        found += run_words(run) if run else []
    return found


def copies(parts):
    """How many of `parts` are copies of earlier ones, and the characters in these."""
    again = [part for at, part in enumerate(parts) if part in parts[:at]]
    return len(again), sum(map(len, again))


def top_chars(words, n):
    grams = [" ".join(words[at : at + n]) for at in range(len(words) - n + 1)]
    return max((len(gram) * count for gram, count in Counter(grams).most_common(1)), default=0)


def copied_chars(words, n):
    seen, chars, at = set(), 0, 0
    while at + n <= len(words):
        gram = tuple(words[at : at + n])
        chars += sum(map(len, gram)) if gram in seen else 0
        at += n if gram in seen else 1
        seen.add(gram)
    return chars


def measures(text, terminal, symbols, short=30, stop_words=STOP_WORDS):
    """All measures of a text that is not blank. `terminal` and `symbols` are datatrove's two sets of marks."""
    found = words(text)
    real = [word for word in found if not set(word) <= symbols]
    breaks = text.splitlines()
    paragraphs, lines = re.split(r"\n{2,}", text.strip()), re.split(r"\n+", text)
    nonblank = [line for line in text.split("\n") if line.strip()]
    (line_copies, line_chars), (paragraph_copies, paragraph_chars) = copies(lines), copies(paragraphs)
    return {
        "words": len(real),
        "mean_word_length": sum(map(len, real)) / len(real) if real else None,
        "hashes_per_word": text.count("#") / len(found),
        "ellipses_per_word": (text.count("...") + text.count("…")) / len(found),
        "bullet_lines": sum(line.lstrip().startswith(("-", "•")) for line in breaks) / len(breaks),
        "ellipsis_lines": sum(line.rstrip().endswith(("...", "…")) for line in breaks) / len(breaks),
        "alphabetic_words": sum(any(map(str.isalpha, word)) for word in found) / len(found),
        "stop_words": len({*stop_words} & {*found}),
        "duplicate_lines": line_copies / len(lines),
        "duplicate_line_chars": line_chars / len(text),
        "duplicate_paragraphs": paragraph_copies / len(paragraphs),
        "duplicate_paragraph_chars": paragraph_chars / len(text),
        **{f"top_{n}_gram_chars": top_chars(found, n) / len(text) for n in (2, 3, 4)},
        **{f"duplicate_{n}_gram_chars": copied_chars(found, n) / len(text) for n in (5, 6, 7, 8, 9, 10)},
        "terminal_lines": sum(line[-1] in terminal for line in nonblank) / len(nonblank),
        "short_lines": sum(len(line) <= short for line in nonblank) / len(nonblank),
        "repeated_line_chars": copies(nonblank)[1] / len(text.replace("\n", "")),
        "newlines_per_word": text.count("\n") / len(found),
    }
