"""What publication reads and writes: the numbers of a slice, its input rows, and Parquet files in row groups."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline import columns, utf8
from pipeline.errors import ContractError
from pipeline.frame import Frame
from pipeline.job import Job, PartSource
from pipeline.reading import read_rows
from pipeline.storage import Store
from pipeline.types import Output

GROUP_BYTES = 16_000_000
"""Bytes of a row group of what we write. A larger row has one of its own."""
GROUP_ROWS = 131_072


def frame_of(job: Job, source: PartSource) -> Frame:
    """All numbers of a slice, no text."""
    known = {}
    for label, ref in source.sidecars.items():
        names = {"shard": source.part.shard_id, "first_row": str(source.part.first_row), "key": ref.key}
        known[label] = columns.read(job.work, ref.path, source.part.rows, names)
    return Frame(0, source.part.rows, {}, None, known, token_ratio=job.token_ratio, sources=job.sources)


def rows_of(
    job: Job, source: PartSource, names: Sequence[str], wanted: np.ndarray
) -> Generator[tuple[int, pa.Table], None, None]:
    """(first row, table of input columns) for batches that hold a wanted row, text under the byte policy."""
    text = job.names["text"]
    for raw in read_rows(source.part, job.schema, list(dict.fromkeys([*names, text])), wanted, text=text):
        mask = wanted[raw.first : raw.first + raw.rows]
        if raw.columns is None:
            if raw.error and mask.any():
                raise ContractError(f"{source.part.url}: rows that could be read before cannot be now: {raw.error}")
            continue
        if mask.any():
            found = dict(raw.columns)
            found[text] = utf8.decoded(found[text])[0]
            yield raw.first, pa.table({name: found[name] for name in names})


def write(store: Store, path: str, tables: Iterator[pa.Table], schema: pa.Schema, level: int) -> Output:
    """Publish a Parquet file with one row group a table, compressed with zstd at `level`."""
    rows = 0
    # The least and the greatest of some texts serve nobody, and a writer copies them: six times a text, measured.
    no_text = [item.name for item in schema if not pa.types.is_large_string(item.type)]
    options = {"use_dictionary": no_text, "write_statistics": no_text, "store_schema": True}
    with (
        store.writer(path) as handle,
        pq.ParquetWriter(handle, schema, compression="zstd", compression_level=level, **options) as out,
    ):
        for table in tables:
            rows += table.num_rows
            out.write_table(table, row_group_size=max(1, table.num_rows))
    return store.output(path, rows=rows)
