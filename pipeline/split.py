"""The built-in settle before publication: which dataset a kept row belongs to.

A dataset is split x bucket x mix group. The validation split is made of the rows lowest by content hash until it holds
its tokens, at most 1 % of each mix group.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline import grid
from pipeline.handoff.manifest import dataset_ids
from pipeline.stage import Context, SettleStage, StageConfig

VALIDATION_PART = 100
"""At most one token in so many of a mix group is held out."""
CELL_BITS = 20
UNSCORABLE = -1
"""Bucket of a row without a score."""
NO_BUCKET = -2


class Split(StageConfig):
    mix_by: tuple[str, ...] = ()
    """Columns whose values make the mix groups."""
    bucket: str | None = None
    """Column with the bucket, where a curriculum assigned one."""
    buckets: int = 0
    """How many the curriculum has."""
    validation_tokens: int | None = None


def _reads(config: Split) -> tuple[str, ...]:
    return ("content_hash", "tokens", *config.mix_by, *([config.bucket] if config.bucket else []))


def _keys(config: Split, batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """The group of every row as a JSON array of its values (text or null), its bucket, its hash cell."""
    rows = batch.num_rows
    texts = {name: batch[name].cast(pa.large_string()) for name in config.mix_by}
    names, codes = grid.groups(pa.record_batch({"": batch["content_hash"]} | texts), config.mix_by)
    group = pa.array(names, pa.large_string()).take(pa.array(codes))
    bucket = batch[config.bucket].cast(pa.int16()) if config.bucket else pa.nulls(rows, pa.int16())
    return {"group": group, "bucket": bucket, "cell": pa.array(_cells(batch["content_hash"]))}


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
    """{"groups": {group: {"cut", "train": {bucket or "": dataset id}, "validation": id}}, "datasets": [record, ...]}.

    `cut` is the first hash cell that is no longer validation. Buckets that stayed empty have a dataset too.
    """
    group = np.array(table["group"].to_pylist(), object)
    cell, tokens = table["cell"].to_numpy(), table["tokens"].to_numpy()
    bucket = table["bucket"].fill_null(NO_BUCKET).to_numpy()
    names = sorted(set(group.tolist())) or ([] if config.mix_by else ["[]"])
    records, places = [], []
    for name in names:
        present = set(bucket[group == name].tolist())
        for split, kind, number in _kinds(config, present):
            records.append({"split": split, "kind": kind, "bucket": number, "group": _values(config, name)})
            places.append((name, split, "-1" if kind == "unscorable" else "" if number is None else str(number)))
    groups: dict[str, Any] = {name: {"cut": 0, "train": {}, "validation": ""} for name in names}
    for record, (name, split, key), dataset in zip(records, places, dataset_ids(records), strict=True):
        record["id"] = dataset
        if split == "validation":
            groups[name]["validation"] = dataset
        else:
            groups[name]["train"][key] = dataset
    if config.validation_tokens:
        overall = _cut(cell, tokens, config.validation_tokens)
        for name in names:
            rows = group == name
            share = int(tokens[rows].sum()) // VALIDATION_PART
            groups[name]["cut"] = min(overall, _cut(cell[rows], tokens[rows], share))
    return {"groups": groups, "datasets": records}


def _kinds(config: Split, present: set[int]) -> list[tuple[str, str, int | None]]:
    """(split, kind, bucket) of the datasets of one mix group."""
    found: list[tuple[str, str, int | None]] = [("train", "bucket", number) for number in range(config.buckets)]
    if not config.bucket:
        found = [("train", "plain", None)]
    elif UNSCORABLE in present:
        found.append(("train", "unscorable", None))
    return [*found, ("validation", "plain", None)] if config.validation_tokens else found


def _values(config: Split, name: str) -> dict[str, str | None]:
    return dict(zip(config.mix_by, json.loads(name), strict=True))


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
    bucket = pc.fill_null(frame["bucket"], NO_BUCKET).to_numpy()
    out = np.empty(batch.num_rows, object)
    for index, name in enumerate(names):
        rows = code == index
        entry = groups[name]
        for value, dataset in entry["train"].items():
            out[rows & (bucket == (int(value) if value else NO_BUCKET))] = dataset
        out[rows & (cells < entry["cut"])] = entry["validation"]
    return pa.RecordBatch.from_arrays([pa.array(out, pa.large_string())], ["dataset"])


STAGE = SettleStage(
    name="split",
    version=2,
    config=Split,
    measure=measure,
    measure_reads=_reads,
    count_keys=("group", "bucket", "cell"),
    settle=settle,
    decide=decide,
    decide_reads=_reads,
    decide_writes=pa.schema([("dataset", pa.large_string())]),
)
