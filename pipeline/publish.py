"""The driver's part of publication: what the manifest says of the files, and the order in which it comes to be.

Data files first, then edges, control and placement, the manifest last and by exclusive create. What is published
depends on content and settings alone: if the newest manifest has the same id, nothing is written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.account import COUNTS
from pipeline.columns import write_plain
from pipeline.config import Config
from pipeline.errors import ContractError
from pipeline.handoff import manifest
from pipeline.handoff.phases import Plan, Schedule, phases
from pipeline.keys import canonical, fingerprint, hash_bytes
from pipeline.plan import curriculum_of
from pipeline.storage import Store, is_temporary
from pipeline.types import CellResult, Output, Slice

PUBLISHED_AS = 1
"""Goes into the name of what is published: another number and everything is published anew."""
VERSION = re.compile(r"v([1-9][0-9]*)")
"""Folders of manifests in hot/<name>/."""


def publish_fingerprint(config: Config, corpus_id: str, hashes: Mapping[str, Any]) -> str:
    """What names published data: the content of the corpus, the settings, the model files and the stages' versions."""
    versions = [[entry.label, entry.stage.name, entry.stage.version] for entry in config.stages]
    return fingerprint("publish", PUBLISHED_AS, corpus_id, config.fingerprint, hashes, versions)


def corpus_id(slices: Sequence[Slice], contents: Sequence[str]) -> str:
    """The content id of the input: shard, rows and content digest of every slice, file times left out."""
    rows = [[part.shard_id, part.first_row, part.rows, digest] for part, digest in zip(slices, contents, strict=True)]
    return fingerprint("corpus", sorted(rows))


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """The outcome of publication, as the manifest and the report need it."""

    corpus_id: str
    key: str
    datasets: list[dict[str, Any]]
    schedule: Schedule
    control: Schedule | None
    edges: pa.Table | None
    hot: Sequence[Output]
    cold: Sequence[Output]
    archive: dict[str, Any] | None
    tables: Mapping[str, Sequence[Output]]


def datasets(
    split_facts: Mapping[str, Any], counts: pa.Table, files: Mapping[str, Sequence[Mapping[str, Any]]]
) -> list[dict[str, Any]]:
    """The manifest's datasets: records of split, totals of account, files of publication."""
    kept = counts.filter(pc.equal(counts["kind"], "kept")).group_by("dataset").aggregate([(n, "sum") for n in COUNTS])
    sums = {row["dataset"]: {n: row[f"{n}_sum"] for n in COUNTS} for row in kept.to_pylist()}
    return [
        {**record, **sums.get(record["id"], dict.fromkeys(COUNTS, 0)), "files": list(files.get(record["id"], []))}
        for record in split_facts["datasets"]
    ]


def files_of(name: str, results: Sequence[CellResult]) -> dict[str, list[dict[str, Any]]]:
    """Dataset id -> its files as the manifest names them, relative to the manifest's own folder."""
    found: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        for output in result.outputs:
            dataset, tokens = result.facts["files"][output.path]
            found.setdefault(dataset, []).append({
                "path": f"../{output.path.removeprefix(f'{name}/')}", "format": "text", "role": "data",
                "rows": output.rows, "tokens": tokens, "bytes": output.bytes, "xxh128": output.xxh128,
            })  # fmt: skip
    return {dataset: sorted(files, key=lambda file: file["path"]) for dataset, files in found.items()}


def schedules(config: Config, records: Sequence[Mapping[str, Any]]) -> tuple[Schedule, Schedule | None]:
    """The phases of the manifest and of its shuffled control; no control without a curriculum."""
    curriculum = curriculum_of(config)
    limits = config.publish.limits.model_dump()
    tokens = config.training.tokens if config.training else None
    own = {}
    for record in records:
        source = config.sources.get(str(record["group"].get("source")))
        if source is not None and source.max_epochs is not None:
            own[record["id"]] = source.max_epochs
    seed = config.run.seed
    shuffled = phases(records, tokens, None, limits, max_epochs=own, seed=seed)
    if curriculum is None:
        return shuffled, None
    shape = {
        name: getattr(curriculum.settings, name) for name in ("warmup", "anneal", "warmup_buckets", "anneal_buckets")
    }
    return phases(records, tokens, Plan(**shape), limits, max_epochs=own, seed=seed), shuffled


# -- the manifest ----------------------------------------------------------------------------------------------------


def manifest_fields(
    config: Config, published: Published, scores: Sequence[Mapping[str, Any]], software: str, created: str
) -> dict[str, Any]:
    """Everything of a manifest but its schema, totals and id."""
    curriculum = curriculum_of(config)
    buckets = None
    if curriculum is not None:
        by = list(getattr(curriculum.settings, "within", ()))
        buckets = {"score": getattr(curriculum.settings, "by", ""), "by": by, "edges_file": "meta/edges.parquet"}
    return {
        "name": config.name, "created": created, "software": software, "corpus_id": published.corpus_id,
        "config_fingerprint": config.fingerprint, "publish_fingerprint": published.key,
        "tokenizer": None, "token_counts": "estimated", "scores": list(scores), "buckets": buckets,
        "datasets": published.datasets, "phases": published.schedule.phases,
        "limits": config.publish.limits.model_dump() | {"remainder": "wrap", "remainder_docs": 0},
        "control": "control.json" if published.control is not None else None,
        "exclusions": [], "positions": None, "archive": published.archive,
    }  # fmt: skip


def put_archive(store: Store, config: Config, key: str, results: Sequence[CellResult]) -> dict[str, str]:
    """Write archive.json; returns the manifest's `archive` entry, its path relative to the cold tier's root."""
    files = [
        {"path": output.path.rsplit("/", 1)[-1], "rows": output.rows, "bytes": output.bytes, "xxh128": output.xxh128,
         "reasons": dict(result.facts["reasons"])}
        for result in results for output in result.outputs
    ]  # fmt: skip
    document = {
        "schema": "corpusmill.archive/1",
        "run": config.name,
        "files": sorted(files, key=lambda file: str(file["path"])),
    }
    data = canonical(document) + b"\n"
    path = f"{config.name}/archive-{key[:12]}/archive.json"
    if not store.exists(path) or store.read_bytes(path) != data:
        store.write_bytes(path, data)
    return {"path": path, "xxh128": hash_bytes(data)}


def newest(folder: Store) -> int:
    """The number of the newest version in hot/<name>/ that has a manifest; 0 where there is none."""
    numbers = [int(match[1]) for path in folder.children()[0] if (match := VERSION.fullmatch(path))]
    with_manifest = (n for n in sorted(numbers, reverse=True) if folder.exists(f"v{n}/manifest.json"))
    return next(with_manifest, 0)


def read_manifest(folder: Store, path: str = "manifest.json") -> dict[str, Any]:
    """A published manifest or control manifest. Raises ContractError (exit 3) if the file was damaged or changed."""
    try:
        return manifest.load(folder.read_bytes(path))
    except ValueError as error:
        raise ContractError(
            f"{folder.where(path)}: {error}; bring the file back from a copy, or delete its folder and run again"
        ) from error


def put_manifest(store: Store, fields: Mapping[str, Any], published: Published) -> tuple[str, bool]:
    """Publish the manifest as the next version unless the newest has its id. Returns its path and whether it is new."""
    name = str(fields["name"])
    version = newest(store.child(name))
    current = read_manifest(store, f"{name}/v{version}/manifest.json") if version else None
    identity = {"version": version + 1, "parent": current["id"] if current else None}
    document = manifest.build({**fields, **identity})
    if current is not None and current["id"] == document["id"]:
        return f"{name}/v{version}/manifest.json", False
    folder = f"{name}/v{version + 1}"
    for entry in store.list(folder):  # left by a driver that was killed before its manifest, perhaps of other settings
        store.delete(entry.path)
    if published.edges is not None:
        write_plain(store, f"{folder}/meta/edges.parquet", published.edges)
    if published.control is not None:
        control = manifest.build({**fields, **identity, "phases": published.control.phases, "control": None})
        store.write_bytes(f"{folder}/control.json", manifest.to_bytes(control))
    store.create(f"{folder}/placement-1.json", canonical(_placement(store, document)) + b"\n")
    store.create(f"{folder}/manifest.json", manifest.to_bytes(document))
    return f"{folder}/manifest.json", True


def sweep(store: Store, folder: str) -> None:
    """Delete the temporary files that a kill has left below a folder of ours."""
    for entry in store.list(folder):
        if is_temporary(entry.path):
            store.delete(entry.path)


def keep_only(store: Store, folder: str, outputs: Sequence[Output]) -> None:
    """Delete what lies in a table's folder beside its parts: the table may have had more of them before."""
    named = {output.path for output in outputs}
    for entry in store.list(folder):
        if entry.path not in named:
            store.delete(entry.path)


def _placement(store: Store, document: Mapping[str, Any]) -> dict[str, Any]:
    """Where every data file is as long as nothing has moved."""
    files = {}
    for file in (file for dataset in document["datasets"] for file in dataset["files"]):
        url = store.url_of(f"{document['name']}/{file['path'].removeprefix('../')}")
        facts = {"bytes": file["bytes"], "xxh128": file["xxh128"], "verified_at": document["created"]}
        files[file["path"]] = [{"tier": "hot", "url": url, "scope": "shared", **facts}]
    return {"schema": "corpusmill.placement/1", "manifest_id": document["id"], "files": files}
