"""Remove texts that are the same under a named normalisation: of each group the best by the keep order stays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray
from pydantic import field_validator

from pipeline.stage import Context, Emit, GlobalStage, Reduce, StageConfig
from stages.text import keep
from stages.text.arrow import text_buffers, whole
from stages.text.charges import charged_records, histogram, size_facts

REASON = "exact_duplicate"


class Exact(StageConfig):
    keep: tuple[str, ...] = ("bytes desc",)
    """Which copy stays: columns with asc or desc, the first decides; content hash and row address break ties."""
    within: tuple[str, ...] = ()
    """Only texts with equal values in these columns are compared."""
    normalisation: Literal["text-1", "none"] = "text-1"
    """What counts as the same text; what is stored stays as it is."""

    def check_columns(self, types: Mapping[str, pa.DataType]) -> None:
        keep.check_columns(self.keep, self.within, types)

    @field_validator("keep")
    @classmethod
    def _readable(cls, rules: tuple[str, ...]) -> tuple[str, ...]:
        return keep.checked(rules)


def reads(config: Exact) -> tuple[str, ...]:
    return tuple(dict.fromkeys(["text", "id", *config.within, *keep.columns(config.keep)]))


def bind_emit(config: Exact, context: Context) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    digest = hashed if config.normalisation == "none" else hashed_text_1

    def emit(batch: pa.RecordBatch) -> pa.RecordBatch:
        digests = digest(batch.column("text"), keep.scopes(config.within, batch))
        first = {"key": pa.array(digests[:, 0]), "key2": pa.array(digests[:, 1]), "row": batch.column("row")}
        ids = batch.column("id").cast(pa.large_string())
        return pa.record_batch(first | {"id": ids} | keep.carried(config.keep, batch))

    return emit


def hashed(texts: pa.Array, scopes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """xxh3-128 of each text, seeded with its scope, as two numbers: shape (rows, 2)."""
    offsets, data = text_buffers(texts)
    view, ends, digests = data.data, offsets.tolist(), bytearray(16 * len(scopes))
    for i, scope in enumerate(scopes.tolist()):
        digests[16 * i : 16 * i + 16] = xxhash.xxh3_128_digest(view[ends[i] : ends[i + 1]], scope)
    return np.frombuffer(digests, ">u8").astype(np.uint64).reshape(-1, 2)


def hashed_text_1(texts: pa.Array, scopes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """`hashed` of the texts under text-1. A long one is never held normalised: it goes into its hash by pieces."""
    from stages.text.normalise import PIECE, text_1, text_1_pieces

    offsets, data = text_buffers(texts)
    long = np.diff(offsets) > PIECE
    if not long.any():
        return hashed(text_1(texts), scopes)
    digests = np.empty((len(texts), 2), np.uint64)
    digests[~long] = hashed(text_1(texts.filter(pa.array(~long))), scopes[~long])
    for row in np.flatnonzero(long):
        state = xxhash.xxh3_128(seed=int(scopes[row]))
        for piece in text_1_pieces(data[offsets[row] : offsets[row + 1]]):
            state.update(piece.data)
        digests[row] = np.frombuffer(state.digest(), ">u8")
    return digests


def reduce(config: Exact, context: Context, records: pa.Table) -> tuple[pa.RecordBatch, dict[str, int]]:
    repeated = records.take(pa.array(_repeated(records["key"].to_numpy())))
    key, key2 = repeated["key"].to_numpy(), repeated["key2"].to_numpy()
    order = keep.best_first(config.keep, [key, key2], repeated)
    key, key2 = key[order], key2[order]
    new = np.append(True, (key[1:] != key[:-1]) | (key2[1:] != key2[:-1]))[: len(order)]
    starts = np.flatnonzero(new)
    keeper = starts[np.cumsum(new) - 1]
    charge = np.where(new, -1, keeper)
    sizes = np.diff(np.append(starts, len(order)))
    ids = whole(repeated["id"]).take(pa.array(order))
    evidence = {"similarity": pa.array(np.ones(len(order)))}
    rows = repeated["row"].to_numpy()[order]
    found = charged_records(rows, ids, charge, reason=REASON, kind="exact", evidence=evidence)
    return found, size_facts(sizes[sizes > 1])


def _repeated(keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Positions of the keys that occur more than once."""
    order: NDArray[np.int64] = np.argsort(keys)
    ordered = keys[order]
    repeated = np.zeros(len(keys), np.bool_)
    repeated[1:] = ordered[1:] == ordered[:-1]
    repeated[:-1] |= repeated[1:]
    return order[repeated]


def report(config: Exact, facts: Mapping[str, int]) -> dict[str, Any]:
    """Groups of equal texts. Every copy is found, so nothing is missed; the largest group is not known (sizes are)."""
    return {
        "candidates": facts.get("candidates", 0), "components": facts.get("components", 0), "largest_component": None,
        "size_histogram": histogram(facts), "comparisons": 0, "undecided": 0, "expected_miss": 0.0, "recall": None,
        "precision": None, "normalisation": config.normalisation, "shingle": None, "bands": None, "rows": None,
    }  # fmt: skip


STAGE = GlobalStage(
    name="exact",
    version=1,
    config=Exact,
    phases=(
        Emit(name="emit", bind=bind_emit, reads=reads, settings=("normalisation", "within", "keep")),
        Reduce(name="reduce", reduce=reduce, to="rows"),
    ),
    reasons={REASON: "the text is, under the normalisation, that of the kept row it is charged to; similarity is 1"},
    report=report,
)
