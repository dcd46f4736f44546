"""Components of documents to verdicts: blocks that fit into memory, and one component that does not, in chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stages.text.greedy import COMPARISONS, FIXED, NONE, ORDINARY, POSTINGS, PROBE, SMALL, UNITS, settle

Ints = NDArray[np.int64]
Sets = tuple[Ints, NDArray[np.uint64]]
"""Ends of the sets after a 0, and the sorted shingles, one set after the other."""
BLOCK_BYTES = 32 << 20
"""Text whose shingles are held at a time. Outcomes depend on it only through the work limit, in larger components."""
UNLIMITED = 1 << 40


class Verdicts(NamedTuple):
    """One entry per document, in the order they were given."""

    charge: Ints
    """The kept document it is charged to, or -1 for a kept one."""
    inter: Ints
    """Shingles it shares with that one."""
    sizes: Ints
    """Its distinct shingles."""
    undecided: NDArray[np.bool_]
    """Kept because deciding it would have passed the work limit."""
    comparisons: int
    postings: int

    def unions(self) -> Ints:
        """Size of the union with the document charged to; meaningless for kept ones."""
        return self.sizes + self.sizes[self.charge] - self.inter


class Rules(NamedTuple):
    threshold: int
    """In UNITS."""
    work_limit: int = UNLIMITED
    chunk: int = 1 << 40
    """Documents of a giant component resolved at a time."""
    small: int = SMALL


def resolve(starts: Ints, sizes: Ints, load: Callable[[Ints], Sets], rules: Rules) -> Verdicts:
    """The verdicts on documents that stand component by component, best first in each.

    Component c is starts[c]:starts[c + 1]; `sizes` are bytes of text; `load` makes the shingle sets of documents.
    """
    total = int(starts[-1])
    verdicts = _Draft(total, load, rules)
    ends = _ends(sizes)
    for first, last in _blocks(starts, ends, rules.chunk):
        documents = np.arange(starts[first], starts[last])
        if last > first + 1 or _fits(ends, documents, rules.chunk):
            verdicts.decide(documents, starts[first : last + 1] - starts[first])
        else:
            verdicts.decide_giant(list(_chunks(ends, documents, rules.chunk)))
    return verdicts.done()


def units(threshold: float) -> int:
    return round(threshold * UNITS)


def _fits(ends: Ints, documents: Ints, chunk: int) -> bool:
    return len(documents) <= chunk and ends[documents[-1] + 1] - ends[documents[0]] <= BLOCK_BYTES


def _blocks(starts: Ints, ends: Ints, chunk: int) -> Iterator[tuple[int, int]]:
    """Runs of whole components [first, last) that fit, or a single one that does not."""
    first, count = 0, len(starts) - 1
    while first < count:
        by_number = np.searchsorted(starts, starts[first] + chunk, "right") - 1
        by_bytes = np.searchsorted(ends[starts], ends[starts[first]] + BLOCK_BYTES, "right") - 1
        last = max(first + 1, min(int(by_number), int(by_bytes)))
        yield first, last
        first = last


def _chunks(ends: Ints, documents: Ints, chunk: int) -> Iterator[Ints]:
    """Runs of documents within the limits, or a single one that is beyond them."""
    at, stop = int(documents[0]), int(documents[-1]) + 1
    while at < stop:
        by_bytes = np.searchsorted(ends, ends[at] + BLOCK_BYTES, "right") - 1
        end = min(max(at + 1, min(at + chunk, int(by_bytes))), stop)
        yield np.arange(at, end)
        at = end


class _Draft:
    """Verdicts in the making."""

    def __init__(self, total: int, load: Callable[[Ints], Sets], rules: Rules) -> None:
        self.charge, self.inter, self.sizes = np.full(total, NONE), np.zeros(total, np.int64), np.zeros(total, np.int64)
        self.over, self.counts = np.zeros(total, np.bool_), np.zeros(2, np.int64)
        self.load, self.rules = load, rules

    def decide(self, documents: Ints, starts: Ints) -> Sets:
        """Decide whole components of documents; their shingle sets come back."""
        sets = self._loaded(documents)
        self._settle(documents, starts, np.full(len(documents), ORDINARY, np.int8), sets)
        return sets

    def decide_giant(self, chunks: list[Ints]) -> None:
        """Decide one component in chunks, best first: each by itself, then what it keeps is asked about all later ones.

        Two chunks are in memory at a time, and the outcome is that of one block.
        """
        for step, chunk in enumerate(chunks):
            here = self._open(chunk)
            sets = self.decide(here, np.array([0, len(here)]))
            kept = np.flatnonzero(self.charge[here] == NONE)
            sets = _subset(sets, kept)
            for later in chunks[step + 1 :]:
                asked = self._open(later)
                both = np.concatenate([here[kept], asked])
                roles = np.repeat(np.array([FIXED, PROBE], np.int8), [len(kept), len(asked)])
                self._settle(both, np.array([0, len(both)]), roles, _joined(sets, self._loaded(asked)))

    def done(self) -> Verdicts:
        undecided = self.over & (self.charge == NONE)
        comparisons, postings = int(self.counts[COMPARISONS]), int(self.counts[POSTINGS])
        return Verdicts(self.charge, self.inter, self.sizes, undecided, comparisons, postings)

    def _open(self, documents: Ints) -> Ints:
        still: Ints = documents[self.charge[documents] == NONE]
        return still

    def _loaded(self, documents: Ints) -> Sets:
        sets = self.load(documents)
        self.sizes[documents] = np.diff(sets[0])
        return sets

    def _settle(self, documents: Ints, starts: Ints, roles: NDArray[np.int8], sets: Sets) -> None:
        charge, inter = np.full(len(documents), NONE), np.zeros(len(documents), np.int64)
        over = np.zeros(len(documents), np.bool_)
        settle(
            starts, roles, *sets, self.rules.threshold, self.rules.small, self.rules.work_limit, charge, inter, over,
            self.counts,
        )  # fmt: skip
        charged = charge != NONE
        self.charge[documents[charged]] = documents[charge[charged]]
        self.inter[documents[charged]] = inter[charged]
        self.over[documents] |= over


def _subset(sets: Sets, chosen: Ints) -> Sets:
    ends, shingles = sets
    sizes: Ints = np.diff(ends)
    mask = np.zeros(len(sizes), np.bool_)
    mask[chosen] = True
    return _ends(sizes[chosen]), shingles[np.repeat(mask, sizes)]


def _ends(sizes: Ints) -> Ints:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])


def _joined(a: Sets, b: Sets) -> Sets:
    return np.concatenate([a[0], a[0][-1] + b[0][1:]]), np.concatenate([a[1], b[1]])
