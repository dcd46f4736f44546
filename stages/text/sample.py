"""A sample of distinct documents that no order of reading changes: the ones lowest by content hash."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from stages.text.arrow import text_buffers, whole

READ_STRINGS = 1000
"""Strings gathered to an array where a source yields strings."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """Distinct documents, lowest content hash first."""

    texts: pa.Array
    rank: NDArray[np.uint64]
    """Upper half of the seeded content hash (xxh3-128): a document's identity, and what decides which are sampled."""
    split: NDArray[np.uint64]
    """Lower half, which sampling leaves uniform: for splits and shuffles."""
    copies: NDArray[np.int64]
    """How often the document was read."""
    read: dict[str, int] = field(default_factory=dict)
    """All documents and bytes that were read, and the documents of blanks only, which are never sampled."""

    def __len__(self) -> int:
        return len(self.rank)

    def where(self, rows: NDArray[np.bool_]) -> Sample:
        return replace(
            self, texts=self.texts.filter(pa.array(rows)), rank=self.rank[rows], split=self.split[rows],
            copies=self.copies[rows],
        )  # fmt: skip

    @property
    def lengths(self) -> NDArray[np.int64]:
        """UTF-8 bytes of each text."""
        return np.diff(text_buffers(self.texts)[0])

    @property
    def xxh128(self) -> str:
        """Names the documents of the sample."""
        return xxhash.xxh3_128_hexdigest(np.column_stack([self.rank, self.split]).astype("<u8").tobytes())


def sample(source: Iterable[Any], limit: int, *, seed: int, prepare: Callable[[pa.Array], pa.Array]) -> Sample:
    """The documents of `source` (strings, or Arrow arrays of them) lowest by hash that fit `limit` bytes.

    They are hashed, compared and returned as `prepare` leaves them, an array at a time. Holds about 3 x `limit` bytes
    and one array of the source.
    """
    parts = [_hashed(pa.array([], pa.large_string()), seed)]
    read = {"documents": 0, "bytes": 0, "blank": 0}
    for texts in _arrays(source):
        prepared = prepare(texts)
        blank = pc.equal(pc.binary_length(pc.utf8_ltrim_whitespace(prepared)), 0)
        read["documents"] += len(texts)
        read["bytes"] += int(np.diff(text_buffers(texts)[0]).sum())
        read["blank"] += pc.sum(blank).as_py() or 0
        parts.append(_hashed(prepared.filter(pc.invert(blank)), seed))
        if sum(part.texts.nbytes for part in parts) > 2 * limit:
            parts = [_lowest(parts, limit)]
    return replace(_lowest(parts, limit), read=read)


def _arrays(source: Iterable[Any]) -> Iterator[pa.Array]:
    """The texts of `source` as large_string arrays without nulls."""
    strings: list[str] = []
    for item in [source] if isinstance(source, pa.Array | pa.ChunkedArray) else source:
        if not isinstance(item, str):
            yield whole(item).cast(pa.large_string()).drop_null()
            continue
        strings.append(item)
        if len(strings) == READ_STRINGS:
            yield pa.array(strings, pa.large_string())
            strings = []
    yield pa.array(strings, pa.large_string())


def _hashed(texts: pa.Array, seed: int) -> Sample:
    offsets, data = text_buffers(texts)
    view, seed = data.data, seed & 0xFFFFFFFFFFFFFFFF
    digests = b"".join(xxhash.xxh3_128_digest(view[start:end], seed) for start, end in pairwise(offsets.tolist()))
    halves = np.frombuffer(digests, ">u8").astype(np.uint64).reshape(-1, 2)
    return Sample(texts=texts, rank=halves[:, 0], split=halves[:, 1], copies=np.ones(len(texts), np.int64))


def _lowest(parts: list[Sample], limit: int) -> Sample:
    """The distinct documents lowest by rank that fit `limit` bytes.

    What is dropped here lies behind a full `limit` of lower ranks and would be dropped from any larger set too, so it
    does not matter how often, or over which parts, this is called before the end.
    """
    rank, first, number = np.unique(
        np.concatenate([part.rank for part in parts]), return_index=True, return_inverse=True
    )
    together = Sample(
        texts=pa.chunked_array([part.texts for part in parts]).take(pa.array(first)).combine_chunks(),
        rank=rank,
        split=np.concatenate([part.split for part in parts])[first],
        copies=np.bincount(number, np.concatenate([part.copies for part in parts]), len(first)).astype(np.int64),
    )
    return together.where(np.cumsum(together.lengths) <= limit)
