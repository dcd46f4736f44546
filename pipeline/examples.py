"""Texts of a few removed documents beside what they were charged to, for the page. Read from the input, row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline import utf8
from pipeline.corpus import Corpus
from pipeline.reading import read_rows
from pipeline.storage import Store
from pipeline.types import Output, Slice

PER_REASON, PER_STAGE = 2, 12
EXCERPT = 1200
"""Characters of a text that are kept."""
FIELDS = (
    "stage",
    "reason",
    "shard",
    "row",
    "id",
    "score",
    "threshold",
    "charged_shard",
    "charged_row",
    "similarity",
    "similarity_kind",
)


def of(corpus: Corpus, work: Store, tables: Sequence[Output]) -> list[dict[str, Any]]:
    """A few documents for each stage and reason, the first by (shard, row) that the first part has."""
    rows = _chosen(work, tables)
    wanted = [(row["shard"], row["row"]) for row in rows]
    wanted += [(row["charged_shard"], row["charged_row"]) for row in rows if row["charged_shard"] is not None]
    found = texts(corpus, wanted)
    for row in rows:
        row["text_excerpt"] = found.get((row["shard"], row["row"]), "")
        if row["charged_shard"] is not None:
            row["charged_excerpt"] = found.get((row["charged_shard"], row["charged_row"]), "")
    return rows


def _chosen(work: Store, tables: Sequence[Output]) -> list[dict[str, Any]]:
    if not tables:
        return []
    with work.open(tables[0].path) as handle:
        table = pq.read_table(handle, columns=list(FIELDS))
    table = table.filter(pc.not_equal(table["reason"], "null_text"))  # there is nothing to show
    if not table.num_rows:
        return []
    pair = pc.binary_join_element_wise(table["stage"], table["reason"], pa.scalar("/", pa.large_string()))
    codes = pair.combine_chunks().dictionary_encode()
    code, pairs = codes.indices.to_numpy(), codes.dictionary.to_pylist()
    rows, taken = list[int](), dict[str, int]()
    for value, name in enumerate(pairs):
        stage = name.partition("/")[0]
        chosen = np.flatnonzero(code == value)[: min(PER_REASON, PER_STAGE - taken.get(stage, 0))].tolist()
        taken[stage] = taken.get(stage, 0) + len(chosen)
        rows += chosen
    found: list[dict[str, Any]] = table.take(pa.array(rows, pa.int64())).to_pylist()
    return found


def texts(corpus: Corpus, wanted: Sequence[tuple[str, int]]) -> dict[tuple[str, int], str]:
    """(shard, row) -> the beginning of its text under the byte policy."""
    by_slice: dict[int, list[int]] = {}
    for shard, row in wanted:
        for ordinal, part in enumerate(corpus.slices):
            if part.shard_id == shard and part.first_row <= row < part.first_row + part.rows:
                by_slice.setdefault(ordinal, []).append(row - part.first_row)
    found = {}
    for ordinal, rows in by_slice.items():
        part = corpus.slices[ordinal]
        for row, text in _texts(part, corpus.schema, corpus.names, rows).items():
            found[part.shard_id, part.first_row + row] = text
    return found


def _texts(part: Slice, schema: pa.Schema, names: Mapping[str, str], rows: Sequence[int]) -> dict[int, str]:
    mask = np.zeros(part.rows, bool)
    mask[list(rows)] = True
    found = {}
    for raw in read_rows(part, schema, [names["text"]], mask, text=names["text"]):
        here = [row for row in rows if raw.first <= row < raw.first + raw.rows]
        if here and raw.columns is not None:
            excerpts = pc.utf8_slice_codeunits(utf8.decoded(raw.columns[names["text"]])[0], 0, EXCERPT)
            found.update({row: excerpts[row - raw.first].as_py() or "" for row in here})
    return found
