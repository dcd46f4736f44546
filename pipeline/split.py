"""The built-in settle before publication: which dataset a kept row belongs to.

A dataset is split x bucket x mix group. The validation split is made of the rows lowest by content hash until it holds
its tokens, at most 1 % of each mix group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.handoff.manifest import dataset_ids
from pipeline.stage import Context, SettleStage, StageConfig

VALIDATION_SHARE = 0.01
CELL_BITS = 20


class Split(StageConfig):
    mix_by: tuple[str, ...] = ()
    """Columns whose values make the mix groups."""
    bucket: str | None = None
    """Column with the bucket, where a curriculum assigned one."""
    validation_tokens: int | None = None


def _reads(config: Split) -> tuple[str, ...]:
    return ("content_hash", "tokens", *config.mix_by, *([config.bucket] if config.bucket else []))


def _keys(config: Split, batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """The group of every row as one canonical string (null values kept apart from text), its bucket, its hash cell."""
    rows = batch.num_rows
    parts = [pc.coalesce(pc.binary_join_element_wise(_large("="), batch[name].cast(pa.large_string()), _large("")), _large(""))
             for name in config.mix_by]  # fmt: skip
    group = pc.binary_join_element_wise(*parts, _large("\x1f")) if parts else pa.array([""] * rows, pa.large_string())
    bucket = batch[config.bucket].cast(pa.int16()) if config.bucket else pa.nulls(rows, pa.int16())
    return {"group": group, "bucket": bucket, "cell": pa.array(_cells(batch["content_hash"]))}


def _large(text: str) -> pa.Scalar:
    return pa.scalar(text, pa.large_string())


def _cells(content: pa.Array) -> np.ndarray:
    """The upper CELL_BITS of each content hash."""
    data = np.frombuffer(content.buffers()[1], np.uint8)[16 * content.offset : 16 * (content.offset + len(content))]
    words = data.reshape(-1, 16)[:, :4].copy().view(">u4").ravel()
    return (words >> np.uint32(32 - CELL_BITS)).astype(np.int32)


def measure(config: Split, context: Context) -> Callable[[pa.RecordBatch], pa.Table]:
    def count(batch: pa.RecordBatch) -> pa.Table:
        rows = pa.table(_keys(config, batch) | {
            "docs": pa.array(np.ones(batch.num_rows, np.int64)), "tokens": batch["tokens"],
        })  # fmt: skip
        keys = ["group", "bucket", "cell"]
        summed = rows.group_by(keys, use_threads=False).aggregate([("docs", "sum"), ("tokens", "sum")])
        return summed.rename_columns([*keys, "docs", "tokens"])

    return count


def settle(config: Split, context: Context, table: pa.Table) -> dict[str, Any]:
    """{"groups": {group: {"values", "cut", "datasets": {bucket: id}, "validation": id}}}; cut = first cell of training."""
    group = np.array(table["group"].to_pylist(), object)
    cell, tokens = table["cell"].to_numpy(), table["tokens"].to_numpy()
    overall = _cut(cell, tokens, config.validation_tokens or 0)
    names = sorted(set(group.tolist()))
    wanted = []
    for name in names:
        rows = group == name
        values = _values(config, name)
        buckets = sorted(set(table["bucket"].filter(pa.array(rows)).to_pylist()), key=lambda b: (b is None, b))
        wanted += [("train", bucket, values) for bucket in buckets] + [("validation", None, values)]
    ids = iter(dataset_ids(wanted, bucketed=config.bucket is not None))
    groups: dict[str, Any] = {}
    for split, bucket, values in wanted:
        name = _name(values)
        entry = groups.setdefault(name, {"values": values, "cut": 0, "datasets": {}, "validation": ""})
        if split == "validation":
            entry["validation"] = next(ids)
        else:
            entry["datasets"][str(bucket)] = next(ids)
    for name in names:
        rows = group == name
        share = int(tokens[rows].sum() * VALIDATION_SHARE)
        groups[name]["cut"] = min(overall, _cut(cell[rows], tokens[rows], share)) if config.validation_tokens else 0
    return {"groups": groups}


def _values(config: Split, name: str) -> dict[str, str | None]:
    parts = name.split("\x1f") if config.mix_by else []
    return {column: part[1:] if part else None for column, part in zip(config.mix_by, parts, strict=True)}


def _name(values: dict[str, str | None]) -> str:
    return "\x1f".join("" if value is None else f"={value}" for value in values.values())


def _cut(cell: np.ndarray, tokens: np.ndarray, limit: int) -> int:
    """The largest cell below which the tokens do not pass `limit`."""
    order = np.argsort(cell, kind="stable")
    sums = np.cumsum(tokens[order])
    inside = int(np.searchsorted(sums, limit, side="right"))
    if inside == len(order):
        return 1 << CELL_BITS
    return int(cell[order][inside])


def decide(config: Split, context: Context, batch: pa.RecordBatch) -> pa.RecordBatch:
    keys = _keys(config, batch)
    frame = pa.table({"group": keys["group"], "bucket": keys["bucket"]})
    cells = keys["cell"].to_numpy()
    groups = context.facts["groups"]
    coded = frame["group"].combine_chunks().dictionary_encode()
    names = coded.dictionary.to_pylist()
    code = coded.indices.to_numpy()
    bucket = pc.fill_null(frame["bucket"], -2).to_numpy()
    out = np.empty(batch.num_rows, object)
    for index, name in enumerate(names):
        rows = code == index
        entry = groups[name]
        for value, dataset in entry["datasets"].items():
            out[rows & (bucket == (-2 if value == "None" else int(value)))] = dataset
        out[rows & (cells < entry["cut"])] = entry["validation"]
    return pa.RecordBatch.from_arrays([pa.array(out, pa.large_string())], ["dataset"])


STAGE = SettleStage(
    name="split", version=1, config=Split, measure=measure, measure_reads=_reads, count_keys=("group", "bucket", "cell"),
    settle=settle, decide=decide, decide_reads=_reads, decide_writes=pa.schema([("dataset", pa.large_string())]),
)  # fmt: skip
