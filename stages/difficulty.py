"""Difficulty: the loss of a small language model, a byte n-gram trained on a sample of the corpus itself.

A scorer: it removes nothing. It sees five bytes of context, so what it calls hard is spelling, vocabulary, markup and
language, not thought; and a repeated line has the lowest loss of all. Compare it within a source and a language.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field

from pipeline.errors import setting_error
from pipeline.stage import Context, SettleStage, StageConfig, Transform
from pipeline.units import Size
from stages.text.arrow import Bytes, Offsets, text_buffers

if TYPE_CHECKING:
    from stages.text.ngram_model import Model

BITS_STEPS = 1024
"""Bits per byte are multiples of 2^-10, so that the last bit of one machine's logarithm is in no score."""
UNIFORM_BITS = 8.0
"""What a byte costs without any model. A text that costs more is in a script or language that the sample lacks."""
DOCUMENT_SAMPLE = 1 << 20
"""Bytes of one document that can enter the sample: the rest of a huge one would push out everything else."""
SMALLEST_TABLE = 16

Level = Annotated[int, Field(ge=3, le=6)]


def _embedded(model: object) -> object:
    if model in (None, "ngram"):
        return "ngram"
    rule = "the embedded scorer is all there is: the causal scorer (a model folder or hub id) is not built yet"
    raise setting_error("difficulty.model", model, rule, 'leave it out or write "ngram"')


class Difficulty(StageConfig):
    """Writes `bits_per_byte` and `sum_nll` (nats, = bits_per_byte x bytes x ln 2), `tokens` (what the model predicted:
    bytes), `fold`, and `zstd_ratio` (compressed by raw bytes at level 1, low for repetitive text).

    A document is scored by the model trained without its fold, and its fold follows from its text: copies share it,
    near copies need not, so remove those first. Unscorable (null but for `fold` and `zstd_ratio`): a text above 8 bits
    per byte, an empty one, and one for which no other fold has any text.
    """

    model: Annotated[Literal["ngram"], BeforeValidator(_embedded)] = "ngram"
    """The embedded scorer, and so far the only one."""
    order: Literal[6] = 6
    """Bytes of the longest n-gram."""
    bits: int = Field(default=22, ge=16, le=24)
    """A model has at most 2^bits entries of 8 bytes (32 MiB); a small sample gets a smaller table."""
    sample: Size = Field(default=20_000_000, ge=1)
    """Bytes of text to train on, all folds together, drawn by text hash; of one document at most 1 MiB."""
    folds: int = Field(default=2, ge=2, le=16)
    """Models trained: a document is scored by the one whose sample left its fold out."""
    least: dict[Level, Annotated[int, Field(ge=1)]] = Field(default={5: 2, 6: 2})
    """The count under which an n-gram of a length is left out of the model."""


def measure(config: Difficulty, context: Context) -> Callable[[pa.RecordBatch], pa.Table]:
    from stages.text.ngram_model import count

    threshold = min(1 << 32, (config.sample << 32) // max(1, context.corpus_bytes))

    def counts(batch: pa.RecordBatch) -> pa.Table:
        offsets, data = text_buffers(batch.column("text"))
        hashes = batch.column("text_hash").to_numpy()
        folds, sampled = _folds(hashes, config), hashes >> np.uint64(32) < threshold
        parts = []
        for fold in range(config.folds):
            documents = np.flatnonzero(sampled & (folds == fold))
            starts = offsets[documents]
            windows, number = count(data, starts, np.minimum(offsets[documents + 1], starts + DOCUMENT_SAMPLE))
            parts.append(pa.table([np.full(len(windows), fold, np.int8), windows, number], schema=COUNTS))
        return pa.concat_tables(parts)

    return counts


def settle(config: Difficulty, context: Context, table: pa.Table) -> bytes:
    """One model a fold, trained on the counts of the others."""
    from stages.text.ngram_model import add, build, dump

    folds, windows, counts = (table.column(name).to_numpy() for name in COUNTS.names)
    edges = np.searchsorted(folds, np.arange(config.folds + 1))
    bits = min(config.bits, max(SMALLEST_TABLE, len(windows).bit_length()))
    models: list[Model | None] = []
    for fold in range(config.folds):
        others = np.r_[0 : edges[fold], edges[fold + 1] : len(windows)]
        seen = add([windows[others]], [counts[others]])
        models.append(build(*seen, bits, config.least) if len(others) else None)
    return dump(models)


def bind(config: Difficulty, context: Context) -> Transform:
    from stages.text.ngram_model import load

    models = load(context.facts)
    codec = pa.Codec("zstd", compression_level=1)

    def transform(batch: pa.RecordBatch) -> pa.RecordBatch:
        offsets, data = text_buffers(batch.column("text"))
        folds = _folds(batch.column("text_hash").to_numpy(), config)
        sizes = np.diff(offsets)
        bits = _bits_per_byte(models, offsets, data, folds)
        columns = {
            "bits_per_byte": bits,
            "sum_nll": bits * sizes * math.log(2),
            "tokens": np.where(np.isnan(bits), np.nan, sizes),
            "fold": folds,
            "zstd_ratio": _compressed(codec, offsets, data) / np.where(sizes > 0, sizes, np.nan),
        }
        arrays = [pa.array(columns[field.name], from_pandas=True).cast(field.type) for field in WRITES]
        return pa.record_batch(arrays, schema=WRITES)

    return transform


def _folds(hashes: NDArray[np.uint64], config: Difficulty) -> NDArray[np.int8]:
    return (hashes % np.uint64(config.folds)).astype(np.int8)


def _bits_per_byte(models: tuple[Model | None, ...], offsets: Offsets, data: Bytes, folds: NDArray[np.int8]) -> Any:
    """Rounded bits per byte, NaN where unscorable. Fold by fold, so that one model's table is in cache at a time."""
    from stages.text.ngram_model import score

    sizes, bits = np.diff(offsets), np.full(len(folds), np.nan)
    for fold, model in enumerate(models):
        documents = np.flatnonzero((folds == fold) & (sizes > 0))
        if model is not None and len(documents):
            score(model, data, offsets, documents, bits)
    per_byte = np.rint(bits / np.maximum(sizes, 1) * BITS_STEPS) / BITS_STEPS
    return np.where(per_byte <= UNIFORM_BITS, per_byte, np.nan)


def _compressed(codec: pa.Codec, offsets: Offsets, data: Bytes) -> NDArray[np.float64]:
    """Compressed bytes of every document. Arrow has no call for many buffers, hence one a document, held by none."""
    whole = pa.py_buffer(data)
    sizes = np.empty(len(offsets) - 1)
    for i, (start, end) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
        sizes[i] = codec.compress(whole.slice(start, end - start), asbytes=False).size
    return sizes


COUNTS = pa.schema([("fold", pa.int8()), ("window", pa.uint64()), ("count", pa.int64())])
WRITES = pa.schema(
    [
        ("bits_per_byte", pa.float32()),
        ("sum_nll", pa.float64()),
        ("tokens", pa.int64()),
        ("fold", pa.int8()),
        ("zstd_ratio", pa.float32()),
    ]
)

STAGE = SettleStage(
    name="difficulty",
    version=1,
    config=Difficulty,
    basis="global",
    measure=measure,
    measure_reads=("text", "text_hash"),
    count_keys=("fold", "window"),
    settle=settle,
    reads=("text", "text_hash"),
    writes=WRITES,
    bind=bind,
    score="bits_per_byte",
)
