"""A finished run in other forms: JSON lines for trainers that do not read Parquet, and a table of every measure."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime, time
from math import isfinite
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline import account, columns, publish
from pipeline.commands.target import empty_folder, labels, look, numbers, published, resolve, whole
from pipeline.config import Config
from pipeline.driver import Driver, Notify
from pipeline.errors import ConfigError, nearest, setting_error
from pipeline.frame import Frame
from pipeline.handoff import manifest
from pipeline.run import silent
from pipeline.stage import SettleStage
from pipeline.storage import Store
from pipeline.types import GONE, Output
from pipeline.units import now

FORMATS = ("text", "frame")
NOT_BUILT = ("megatron", "mds", "olmo", "datatrove")
LEVEL = 6
"""Of zlib, for text that is read many times."""
ROWS = 256
"""Rows that are Python objects at a time."""
FRAME_BYTES = 256_000_000
FRAME_ROWS = 1 << 18
"""Rows of a row group of a frame."""
ABOUT = ("id", "source", "language", "bytes", "tokens")


def export(config: Config, format: str, out: str, notify: Notify = silent) -> dict[str, Any]:  # noqa: A002
    """Write what `config` has published or measured into the empty folder `out`; each file appears whole.

    `text`   data/<dataset>/part-NNNNN.jsonl.gz, one object a document with the columns and rows of the Parquet file it
             is made of, and a manifest.json (control and edges too) that names these files. Its `exported_from`, and
             the gzip comment of every file, is the id of the published manifest.
    `frame`  frame-NNNNN.parquet with a row for every document of the input, in corpus order: who it is, what became of
             it, every stage's state and measures; no text. A document gone before a stage has null for its measures.

    Returns format, out, manifest (text only), files, rows and bytes. Raises ConfigError for another format, a folder
    that is not empty, and a run that is not finished under this config.
    """
    if format not in FORMATS:
        rule = "this is not built yet" if format in NOT_BUILT else "there is no such format"
        raise setting_error("--format", format, rule, nearest(format, FORMATS))
    written = _text(config, out, notify) if format == "text" else _frame(config, out, notify)
    named = {"manifest": Store(out).url_of("manifest.json")} if format == "text" else {}
    return {
        "format": format, "out": Store(out).url, **named, "files": len(written),
        "rows": sum(output.rows for output in written), "bytes": sum(output.bytes for output in written),
    }  # fmt: skip


# -- text ------------------------------------------------------------------------------------------------------------


def _text(config: Config, out: str, notify: Notify) -> list[Output]:
    found = published(config)
    if found is None:
        raise ConfigError(
            f"run {config.name!r}: nothing is published under this config ({config.fingerprint[:12]}) in "
            f"{config.tiers.hot.url}/{config.name}; run it to the end first"
        )
    folder, document = found
    target = empty_folder("--out", out)
    with whole(target) as written:
        renamed: dict[str, Output] = {}
        for dataset in document["datasets"]:
            for file in dataset["files"]:
                name = file["path"].rpartition("/")[2].removesuffix(".parquet")
                path = f"data/{dataset['id']}/{name}.jsonl.gz"
                store, inside = resolve(folder, file["path"])
                with target.writer(path) as handle:
                    gzipped(handle, _lines(store, inside), document["id"])
                renamed[file["path"]] = target.output(path, rows=file["rows"])
                written.append(renamed[file["path"]])
                notify("export", {"path": path, "rows": file["rows"], "bytes": written[-1].bytes})
        _put_manifest(folder, document, target, renamed)
    return written


def _put_manifest(folder: Store, document: Mapping[str, Any], target: Store, renamed: Mapping[str, Output]) -> None:
    """The manifest and what belongs to it, with the new files in place of the old; the manifest last."""
    if document["buckets"] is not None:
        edges = document["buckets"]["edges_file"]
        target.write_bytes(edges, folder.read_bytes(edges))
    if document["control"] is not None:
        control = publish.read_manifest(folder, document["control"])
        target.write_bytes(document["control"], manifest.to_bytes(_adapted(control, document["id"], renamed)))
    target.create("manifest.json", manifest.to_bytes(_adapted(document, document["id"], renamed)))


def _adapted(document: Mapping[str, Any], origin: str, renamed: Mapping[str, Output]) -> dict[str, Any]:
    def files(old: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        new = [(file, renamed[file["path"]]) for file in old]
        return [{**file, "path": o.path, "bytes": o.bytes, "xxh128": o.xxh128} for file, o in new]

    datasets = [{**dataset, "files": files(dataset["files"])} for dataset in document["datasets"]]
    exclusions = [{**entry, "file": renamed[entry["file"]].path} for entry in document["exclusions"]]
    changes = {"datasets": datasets, "exclusions": exclusions, "positions": None, "created": now()}
    return manifest.build({**document, **changes, "exported_from": origin})


def gzipped(handle: BinaryIO, blocks: Iterable[bytes], comment: str) -> None:
    """Write one gzip member with a comment in its header and no time, so that equal content gives equal bytes.

    The standard library writes no comments. RFC 1952: flag 16 says that one follows the header, ended by a zero.
    """
    handle.write(struct.pack("<4sIBB", b"\x1f\x8b\x08\x10", 0, 0, 255) + comment.encode("latin-1") + b"\0")
    packer = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    checksum = size = 0
    for block in blocks:
        checksum, size = zlib.crc32(block, checksum), size + len(block)
        handle.write(packer.compress(block))
    handle.write(packer.flush() + struct.pack("<II", checksum, size & 0xFFFFFFFF))


def _lines(store: Store, path: str) -> Iterator[bytes]:
    """The rows of a Parquet file as JSON lines, ROWS at a time."""
    with store.open(path) as handle:
        reader = pq.ParquetFile(handle, memory_map=True, pre_buffer=False, buffer_size=1 << 20)
        for group in range(reader.metadata.num_row_groups):
            for batch in reader.iter_batches(ROWS, [group], use_threads=False):
                yield "".join(f"{_json(row)}\n" for row in batch.to_pylist()).encode()


def _json(row: Mapping[str, Any]) -> str:
    try:
        return json.dumps(row, ensure_ascii=False, allow_nan=False, default=_plain)
    except ValueError:  # NaN and infinities are no JSON
        return json.dumps(_finite(row), ensure_ascii=False, allow_nan=False, default=_plain)


def _plain(value: Any) -> str:
    """Times in ISO form, binary values in base64, anything else as Python writes it."""
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not isfinite(value) else value


# -- frame -----------------------------------------------------------------------------------------------------------


def _frame(config: Config, out: str, notify: Notify) -> list[Output]:
    target = empty_folder("--out", out)
    driver, there = look(config), published(config)
    about = {"corpusmill": "frame/1", "config_fingerprint": config.fingerprint}
    about |= {"manifest_id": there[1]["id"]} if there else {}
    schema = _schema(driver).with_metadata(about)
    ordinals = deque(range(len(driver.corpus.slices)))
    with whole(target) as written:
        while ordinals or not written:
            path, rows = f"frame-{len(written):05d}.parquet", 0
            with target.writer(path) as handle, pq.ParquetWriter(handle, schema, compression="zstd") as file:
                while ordinals and (not rows or handle.tell() < FRAME_BYTES):
                    table = _rows(driver, ordinals.popleft(), schema)
                    file.write_table(table, row_group_size=FRAME_ROWS)
                    rows += table.num_rows
                    notify("export", {"path": path, "rows": table.num_rows, "bytes": handle.tell()})
            written.append(target.output(path, rows=rows))
    return written


def _measures(driver: Driver) -> Iterator[tuple[str, pa.Field]]:
    """(label, column) of everything that stages measured or assigned."""
    for entry in driver.config.stages:
        extra = entry.stage.decide_writes if isinstance(entry.stage, SettleStage) else pa.schema([])
        for item in (*entry.stage.writes, *extra):
            yield entry.label, item


def _schema(driver: Driver) -> pa.Schema:
    text, number = pa.large_string(), pa.int64()
    fields = [("shard", text), ("row", number), ("id", text), ("source", text), ("language", text)]
    fields += [("bytes", number), ("tokens", number), ("fate", pa.string()), ("stage", text), ("reason", text)]
    fields += [("dataset", text)]
    fields += [(f"{entry.label}.state", pa.string()) for entry in driver.config.stages]
    fields += [(f"{label}.{item.name}", item.type) for label, item in _measures(driver)]
    return pa.schema(fields)


def _rows(driver: Driver, ordinal: int, schema: pa.Schema) -> pa.Table:
    part, frame = driver.corpus.slices[ordinal], numbers(driver, ordinal)
    kind, stage, reason = account.fates(frame, labels(driver))
    made: dict[str, Any] = {
        "shard": pa.array([part.shard_id], pa.large_string()).take(pa.array(np.zeros(part.rows, np.int64))),
        "row": pa.array(np.arange(part.first_row, part.first_row + part.rows)),
        "fate": pa.array(account.KINDS, pa.string()).take(pa.array(kind)),
        "stage": pa.array(stage, pa.large_string()), "reason": reason, "dataset": frame.of("split", "dataset"),
    } | {name: frame.column(name) for name in ABOUT}  # fmt: skip
    for entry in driver.config.stages:
        made[f"{entry.label}.state"] = frame.of(entry.label, "state").cast(pa.string())
    for label, item in _measures(driver):
        made[f"{label}.{item.name}"] = _shown(frame, label, item)
    return pa.table([made[name] for name in schema.names], schema=schema)


def _shown(frame: Frame, label: str, item: pa.Field) -> pa.Array:
    """A measure of the documents that reached the stage: what others carry from earlier runs is not shown."""
    reached = columns.state_codes(frame.of(label, "state")) < GONE
    return pc.if_else(pa.array(reached), frame.of(label, item.name).cast(item.type), pa.scalar(None, item.type))
