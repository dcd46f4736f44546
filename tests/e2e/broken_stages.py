"""A stage that raises on rows of its choice, as a model does on an input that nobody thought of."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.stage import Context, MapStage, StageConfig

WRITES = pa.schema([("length", pa.int64())])


class Broken(StageConfig):
    marker: str
    """A text that holds this cannot be scored."""


def bind(config: Broken, context: Context) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    def transform(batch: pa.RecordBatch) -> pa.RecordBatch:
        texts = batch.column("text")
        if pc.any(pc.match_substring(texts, config.marker)).as_py():
            raise RuntimeError(f"boom: {config.marker}")
        return pa.record_batch([pc.binary_length(texts)], schema=WRITES)

    return transform


RAISES = MapStage(name="broken", version=1, config=Broken, reads=("text",), writes=WRITES, bind=bind, score="length")
