"""Fit a small model on published text: stream two collections to a stage's `fit` and write what it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from pipeline import storage
from pipeline.commands.target import newest, resolve
from pipeline.corpus import is_textual, plain
from pipeline.errors import ConfigError, nearest, setting_error
from pipeline.handoff import manifest
from pipeline.keys import canonical
from pipeline.reading import as_type
from pipeline.storage import Store

Fit = Callable[..., tuple[bytes, dict[str, Any]]]
"""`fit(good, bad, seed=0)`: two iterables of Arrow string arrays in, the model's bytes and its card out."""
ROWS_AT_ONCE = 64
ARRAY_BYTES = 4_000_000
"""Text gathered into one array."""


def fit_quality(
    good: str | Sequence[str],
    bad: str | Sequence[str],
    out: str,
    fit: Fit,
    *,
    text_column: str = "text",
    limit_bytes: int | None = None,
) -> dict[str, Any]:
    """Fit a classifier of good and bad texts; writes `out` and `<out>.card.json`, and returns the card.

    `good` and `bad` are one or several of: a Parquet file, folder or pattern; a manifest.json, or the folder hot/<name>
    whose newest manifest is meant: its train datasets are read, its validation set is not. `limit_bytes` bounds the
    text read of each, taken from all files alike. Equal inputs give equal bytes. The card is that of `fit` with
    `sources`: what was read, by kind. Raises ConfigError for what cannot be read, before anything is.
    """
    inputs = {kind: _inputs(kind, given, text_column, limit_bytes) for kind, given in (("good", good), ("bad", bad))}
    folder, name = storage.locate(out)
    if not name:
        raise setting_error("--out", out, "it must name a file", "for instance models/quality.bin")
    model, card = fit(inputs["good"].texts(), inputs["bad"].texts(), seed=0)
    card = card | {"sources": {kind: found.told() for kind, found in inputs.items()}}
    folder.write_bytes(name, model)
    folder.write_bytes(f"{name}.card.json", canonical(card) + b"\n")
    return card


@dataclass(slots=True)
class _Inputs:
    """The files of one kind, and how much of them was read."""

    given: Sequence[str]
    urls: Sequence[str]
    column: str
    limit: int | None
    read: dict[str, int] = field(default_factory=lambda: {"documents": 0, "bytes": 0})

    def told(self) -> dict[str, Any]:
        return {"given": list(self.given), "files": len(self.urls), **self.read}

    def texts(self) -> Iterator[pa.Array]:
        """The texts that are not null, as large_string arrays of about ARRAY_BYTES."""
        return _gathered(self._counted(array) for url in self.urls for array in self._file(url))

    def _counted(self, texts: pa.Array) -> pa.Array:
        self.read["documents"] += len(texts)
        self.read["bytes"] += _bytes(texts)
        return texts

    def _file(self, url: str) -> Iterator[pa.Array]:
        """The texts of one file; under a limit its share of them, from row groups drawn by the hash of their number."""
        left = None if self.limit is None else -(-self.limit // len(self.urls))
        with storage.open_url(url) as handle:
            reader = pq.ParquetFile(handle, memory_map=True, pre_buffer=False, buffer_size=1 << 20)
            groups = range(reader.metadata.num_row_groups)
            order = (
                groups
                if left is None
                else sorted(groups, key=lambda group: xxhash.xxh3_64_intdigest(str(group).encode()))
            )
            for group in order:
                for batch in reader.iter_batches(ROWS_AT_ONCE, [group], [self.column], use_threads=False):
                    if left is not None and left <= 0:
                        return
                    texts = as_type(pa.chunked_array([batch.column(0)]), pa.large_string()).drop_null()
                    if left is not None:
                        left -= _bytes(texts)
                    yield texts


def _bytes(texts: pa.Array) -> int:
    offsets = texts.buffers()[1]
    if offsets is None or not len(texts):
        return 0
    ends = memoryview(offsets).cast("q")
    return int(ends[texts.offset + len(texts)] - ends[texts.offset])


def _gathered(arrays: Iterable[pa.Array]) -> Iterator[pa.Array]:
    held, size = list[pa.Array](), 0
    for array in arrays:
        held.append(array)
        size += _bytes(array)
        if size >= ARRAY_BYTES:
            yield pa.concat_arrays(held)
            held, size = [], 0
    if held:
        yield pa.concat_arrays(held)


# -- what was named --------------------------------------------------------------------------------------------------


def _inputs(kind: str, given: str | Sequence[str], column: str, limit: int | None) -> _Inputs:
    names = [given] if isinstance(given, str) else list(given)
    urls = list(dict.fromkeys(url for name in names for url in _urls(kind, name)))
    for url in urls:
        _check_column(kind, url, column)
    return _Inputs(names, urls, column, limit)


def _urls(kind: str, given: str) -> list[str]:
    """The Parquet files that an argument means, sorted."""
    folder, name = storage.locate(given)
    published = newest(Store(given))
    if published is not None or name == "manifest.json":
        urls = _train_files(kind, published or folder)
    else:
        urls = [file.url for file in storage.expand(given).files]
    if not urls:
        rule = "it holds no Parquet file"
        raise setting_error(f"--{kind}", given, rule, "name a Parquet file, folder or pattern, or a manifest.json")
    return sorted(urls)


def _train_files(kind: str, folder: Store) -> list[str]:
    try:
        document = manifest.load(folder.read_bytes("manifest.json"))
    except ValueError as error:
        raise ConfigError(f"--{kind}: {folder.where('manifest.json')}: {error}") from error
    train = [dataset for dataset in document["datasets"] if dataset["split"] == "train"]
    files = [file["path"] for dataset in train for file in dataset["files"] if file["role"] == "data"]
    return [store.url_of(path) for store, path in (resolve(folder, file) for file in files)]


def _check_column(kind: str, url: str, column: str) -> None:
    try:
        with storage.open_url(url) as handle:
            schema = pq.read_schema(handle)
    except (pa.ArrowException, ValueError) as error:
        raise setting_error(f"--{kind}", url, f"it cannot be read as Parquet: {error}") from error
    if column not in schema.names:
        raise setting_error(f"--{kind}", url, f"it has no column {column!r}", nearest(column, schema.names))
    found = plain(schema.field(column).type)
    if not (is_textual(found) or pa.types.is_large_binary(found) or pa.types.is_null(found)):
        raise setting_error(f"--{kind}", url, f"its column {column!r} is {found}, not text")
