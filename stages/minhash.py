"""Remove near duplicates: LSH says who may meet, the exact Jaccard similarity with a kept document says who goes.

Documents whose sketches share a band are joined to components. In each, documents are taken in keep order, and one is
removed only if a document that is already kept has a Jaccard similarity of at least `threshold` with it: no chain of
likenesses removes anything, and every removal names its evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field, field_validator, model_validator

from pipeline.stage import Context, Emit, GlobalStage, Reduce, StageConfig, require
from stages.text import keep
from stages.text.arrow import text_buffers, whole
from stages.text.bands import TOLERATED, derived_bands, derived_rows, expected_miss
from stages.text.charges import charged_records, histogram, size_facts

REASON = "near_duplicate"
DECIMALS = 4
"""Of the threshold: decisions are made by integers of this resolution."""


class MinHash(StageConfig):
    ngram: int = Field(5, ge=1)
    """Words in a shingle."""
    threshold: float = Field(0.8, gt=0, le=1)
    """Jaccard similarity of shingle sets from which a document is a duplicate of a kept one; up to four decimals."""
    bands: int = 0
    """LSH bands: two documents may meet if they agree in one. 0 or null: what fits into 256 values beside `rows`."""
    rows: int = 0
    """Sketch values in a band. 0 or null: the most that still find 98 % of pairs exactly at the threshold."""
    keep: tuple[str, ...] = ("bytes desc",)
    """Which document of a group stays: columns with asc or desc, the first decides; content hash and row break ties."""
    within: tuple[str, ...] = ()
    """Only documents with equal values in these columns are compared."""
    normalisation: Literal["word-1"] = "word-1"
    """What words are."""
    verify: Literal["exact"] = "exact"
    """How a pair is judged: by its sets of shingles, never by sketches alone."""
    work_limit: int = Field(1_000_000, ge=0)
    """Units of work (postings read, a quarter of the shingles compared) after which a document is kept as undecided."""
    chunk: int = Field(20_000, ge=1)
    """Documents of one component that are resolved at a time."""

    @model_validator(mode="before")
    @classmethod
    def _derive_bands(cls, given: Any) -> Any:
        """Put numbers for bands and rows, so that what depends on them is redone when the threshold changes them."""
        if not isinstance(given, Mapping):
            return given
        threshold = given.get("threshold", cls.model_fields["threshold"].default)
        if not isinstance(threshold, int | float) or not 0 < threshold <= 1:
            return given
        rows = given.get("rows") or derived_rows(threshold)
        bands = given.get("bands") or (derived_bands(rows) if isinstance(rows, int) else 0)
        return {**given, "rows": rows, "bands": bands}

    def check_columns(self, types: Mapping[str, pa.DataType]) -> None:
        keep.check_columns(self.keep, self.within, types)

    @field_validator("keep")
    @classmethod
    def _readable(cls, rules: tuple[str, ...]) -> tuple[str, ...]:
        return keep.checked(rules)

    @model_validator(mode="after")
    def _sensible(self) -> MinHash:
        exact = round(self.threshold, DECIMALS) == self.threshold
        require(exact, "threshold", self.threshold, f"it has at most {DECIMALS} decimals")
        require(self.bands >= 1 and self.rows >= 1, "bands", self.bands, "bands and rows are whole numbers from 1")
        require(self.bands * self.rows <= 1 << 14, "bands", self.bands, "bands times rows is at most 16384")
        return self


def warnings(config: MinHash) -> list[str]:
    """What a careful person would want to know about these settings."""
    miss = expected_miss(config.threshold, config.bands, config.rows)
    if miss <= TOLERATED:
        return []
    rows = derived_rows(config.threshold)
    share = f"{config.bands} bands of {config.rows} rows miss {miss:.0%} of the pairs at threshold {config.threshold:g}"
    return [f"{share}; leave bands and rows out for {derived_bands(rows)} of {rows}"]


def bind_emit(config: MinHash, context: Context) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """One record per document and band."""
    from stages.text.codepoints import tables
    from stages.text.normalise import composed
    from stages.text.sketch import band_keys

    def emit(batch: pa.RecordBatch) -> pa.RecordBatch:
        offsets, data = text_buffers(composed(batch.column("text")))
        keys = np.empty(batch.num_rows * config.bands, np.uint64)
        owners = np.empty(batch.num_rows * config.bands, np.int64)
        scopes = keep.scopes(config.within, batch)
        count = band_keys(offsets, data, scopes, config.ngram, config.bands, config.rows, tables(), keys, owners)
        rows = batch.column("row").to_numpy()[owners[:count]]
        return pa.record_batch({"key": keys[:count], "row": rows})

    return emit


def join(config: MinHash, context: Context, records: pa.Table) -> tuple[pa.RecordBatch, dict[str, int]]:
    """What shares a key is one component, as far as these keys say."""
    from stages.text.bits import mixed
    from stages.text.components import joined

    rows, least = joined(records["key"].to_numpy(), records["row"].to_numpy())
    return pa.record_batch({"key": mixed(least), "row": rows, "least": least}), {}


def merge(config: MinHash, context: Context, records: pa.Table) -> tuple[pa.RecordBatch, dict[str, int]]:
    """The component of every row that has company, named by its least row."""
    from stages.text.components import merged

    rows, least = merged(np.stack([records["row"].to_numpy(), records["least"].to_numpy()], axis=1))
    heads, others = np.unique(least, return_counts=True)
    rows, component = np.concatenate([rows, heads]), np.concatenate([least, heads])
    order = np.argsort(rows)
    facts = size_facts(others + 1) | {"largest_component": int(others.max(initial=-1)) + 1}
    return pa.record_batch({"key": rows[order], "component": component[order]}), facts


def payload_reads(config: MinHash) -> tuple[str, ...]:
    return tuple(dict.fromkeys(["text", "id", *config.within, *keep.columns(config.keep)]))


def bind_payload(config: MinHash, context: Context) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """The text of a candidate and what ranks it, to where its component meets."""
    from stages.text.bits import mixed
    from stages.text.normalise import composed

    def payload(batch: pa.RecordBatch) -> pa.RecordBatch:
        component = batch.column("component").to_numpy()
        columns = {
            "key": pa.array(mixed(component)), "row": batch.column("row"), "component": pa.array(component),
            "scope": pa.array(keep.scopes(config.within, batch)), "id": batch.column("id").cast(pa.large_string()),
            "text": composed(batch.column("text")),
        }  # fmt: skip
        return pa.record_batch(columns | keep.carried(config.keep, batch))

    return payload


def resolve(config: MinHash, context: Context, records: pa.Table) -> tuple[pa.RecordBatch, dict[str, int]]:
    """Who goes, and because of whom."""
    from stages.text.codepoints import tables
    from stages.text.greedy import UNITS
    from stages.text.resolve import Rules, resolve, units
    from stages.text.shingles import shingle_sets

    # Two keys may collide and join what `within` separates: the scope itself is compared as well.
    groups = [records["component"].to_numpy(), records["scope"].to_numpy()]
    order = keep.best_first(config.keep, groups, records)
    new = np.append(True, np.any([group[order][1:] != group[order][:-1] for group in groups], axis=0))[: len(order)]
    offsets, data = text_buffers(records["text"])
    verdicts = resolve(
        np.append(np.flatnonzero(new), len(order)), np.diff(offsets)[order],
        lambda documents: shingle_sets(offsets, data, order[documents], config.ngram, tables()),
        Rules(units(config.threshold), config.work_limit, config.chunk),
    )  # fmt: skip
    unions = verdicts.unions()
    similarity = pa.array(verdicts.inter / np.maximum(unions, 1))
    evidence = {
        "score": similarity,
        "threshold": pa.array(np.full(len(order), units(config.threshold) / UNITS)),
        "similarity": similarity,
        "inter": pa.array(verdicts.inter.astype(np.int32)),
        "union": pa.array(unions.astype(np.int32)),
    }
    rows, ids = records["row"].to_numpy()[order], whole(records["id"]).take(pa.array(order))
    facts = {"comparisons": verdicts.comparisons, "undecided": int(verdicts.undecided.sum())}
    return charged_records(rows, ids, verdicts.charge, reason=REASON, kind="jaccard", evidence=evidence), facts


def report(config: MinHash, facts: Mapping[str, int]) -> dict[str, Any]:
    """The entry of the report's `duplicates`. Recall and precision are not measured."""
    counted = ("candidates", "components", "largest_component", "comparisons", "undecided")
    return {name: facts.get(name, 0) for name in counted} | {
        "size_histogram": histogram(facts),
        "expected_miss": round(expected_miss(config.threshold, config.bands, config.rows), 6),
        "recall": None,
        "precision": None,
        "normalisation": config.normalisation,
        "shingle": f"{config.ngram} words",
        "bands": config.bands,
        "rows": config.rows,
    }


STAGE = GlobalStage(
    name="minhash",
    version=1,
    config=MinHash,
    phases=(
        Emit(
            name="emit",
            bind=bind_emit,
            reads=lambda config: ("text", *config.within),
            settings=("normalisation", "ngram", "bands", "rows", "within"),
        ),
        Reduce(name="join", reduce=join),
        Reduce(name="merge", reduce=merge, to="rows", single=True),
        Emit(name="payload", bind=bind_payload, reads=payload_reads, settings=("keep",), selected=True),
        Reduce(name="resolve", reduce=resolve, to="rows", settings=("threshold", "verify", "work_limit", "chunk")),
    ),
    warnings=warnings,
    reasons={REASON: "score, the Jaccard similarity (inter / union) with the kept row charged, is at least threshold"},
    report=report,
)
