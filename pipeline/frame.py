"""The columns of one batch of rows while it passes through the steps of a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline import columns, ingest
from pipeline.errors import ConfigError

INGESTED = ("bytes", "source", "language", "id", "content_hash", "text_hash")


class Frame:
    """Rows first .. first + rows of a slice: input columns, what earlier stages wrote, what this task has made so far.

    `known` are whole-slice sidecars by label. Columns are full length: one value a row, dead rows included.
    """

    def __init__(
        self, first: int, rows: int, raw: Mapping[str, pa.Array], text: pa.Array | None,
        known: Mapping[str, pa.Table], *, token_ratio: int, sources: Mapping[str, Mapping[str, Any]],
    ) -> None:  # fmt: skip
        self.first, self.rows = first, rows
        self.raw, self.text = raw, text
        self.known = known
        self.made: dict[str, Mapping[str, pa.Array]] = {}
        self.token_ratio, self.sources = token_ratio, sources

    def of(self, label: str, name: str) -> pa.Array:
        """Column `name` of the sidecar of `label`."""
        if label in self.made:
            return self.made[label][name]
        piece = self.known[label][name].slice(self.first, self.rows)
        return piece.combine_chunks() if piece.num_chunks != 1 else piece.chunk(0)

    def alive(self, label: str) -> np.ndarray:
        """Which rows are alive after the stage `label`."""
        pair = pa.table({"state": self.of(label, "state"), "reason": self.of(label, "reason")})
        return columns.alive(pair)

    def column(self, name: str) -> pa.Array:
        """A column by the names of pipeline.stage."""
        if name == "text":
            if self.text is None:
                raise AssertionError("text was not read for a step that needs it")
            return self.text
        if name in INGESTED:
            return self.of(ingest.LABEL, name)
        if name == "tokens":
            return pa.array(ingest.count_tokens(self.of(ingest.LABEL, "bytes").to_numpy(), self.token_ratio))
        if name == "source.priority":
            return self._priority()
        label, dot, column = name.partition(".")
        if dot and (label in self.made or label in self.known):
            return self.of(label, column)
        if name in self.raw:
            return self.raw[name]
        raise ConfigError(f"column {name!r}: no stage before this one writes it and the input has no such column")

    def _priority(self) -> pa.Array:
        source = self.of(ingest.LABEL, "source").dictionary_encode()
        by_code = [int(self.sources.get(name, {}).get("priority", 0)) for name in source.dictionary.to_pylist()]
        codes = source.indices.fill_null(len(by_code)).to_numpy(zero_copy_only=False)
        return pa.array(np.array([*by_code, 0], np.int64)[codes])

    def batch(self, names: Sequence[str], rows: np.ndarray, **extra: pa.Array) -> pa.RecordBatch:
        """The named columns (and full-length extras) of the rows where the mask is set."""
        unread = {} if rows.any() else {"text": pa.nulls(self.rows, pa.large_string())}
        arrays = {name: unread[name] if name in unread else self.column(name) for name in names} | extra
        if not arrays:
            arrays = {"row": pa.array(np.arange(self.rows, dtype=np.uint32))}
        if rows.all():
            return pa.RecordBatch.from_arrays(list(arrays.values()), list(arrays))
        index = pa.array(np.flatnonzero(rows))
        return pa.RecordBatch.from_arrays([array.take(index) for array in arrays.values()], list(arrays))
