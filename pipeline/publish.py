"""The driver's part of publication: where every part is cut, and the manifest that makes them a corpus.

Names and bytes of what is published depend on content and settings alone, never on input ids, workers or history.
Order of writing: data files, then edges, control and placement, the manifest last and by exclusive create.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import xxhash

from pipeline.columns import write_plain
from pipeline.errors import AlreadyExists
from pipeline.job import PartFile, PartSource, PublishWork, SidecarRef
from pipeline.keys import canonical, fingerprint, hash_bytes
from pipeline.storage import Store
from pipeline.types import Cell, CellResult, Slice, Task

if TYPE_CHECKING:
    from pipeline.config import Config

VERSION = 1
TABLE_ROWS = 1_000_000
"""Rows of a part of removed/ and quarantined/."""
Totals = Mapping[str, Mapping[str, Sequence[int]]]
"""account.totals of one slice."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sources:
    """Every slice with its sidecars and what account counted in it, in ordinal order."""

    slices: Sequence[Slice]
    sidecars: Sequence[Mapping[str, SidecarRef]]
    totals: Sequence[Totals]

    def source(self, ordinal: int, **more: Any) -> PartSource:
        return PartSource(part=self.slices[ordinal], ordinal=ordinal, sidecars=self.sidecars[ordinal], **more)


def publish_fingerprint(config: Config, corpus_id: str, hashes: Mapping[str, Any]) -> str:
    """What names published data: the content of the corpus, the settings, the model files and the stages' versions."""
    versions = [[entry.label, entry.stage.name, entry.stage.version] for entry in config.stages]
    return fingerprint("publish", VERSION, corpus_id, config.fingerprint, hashes, versions)


def corpus_id(slices: Sequence[Slice], contents: Sequence[str]) -> str:
    """The content id of the input: shard, rows and content digest of every slice, file times left out."""
    rows = [[part.shard_id, part.first_row, part.rows, digest] for part, digest in zip(slices, contents, strict=True)]
    return fingerprint("corpus", sorted(rows))


# -- cutting ---------------------------------------------------------------------------------------------------------


def hot_tasks(config: Config, key: str, sources: Sources, columns: Sequence[str]) -> list[Task]:
    """Tasks that write the datasets: parts made of the same slices share a task, and so a reading."""
    seed = config.run.seed
    order = sorted(range(len(sources.slices)), key=lambda i: xxhash.xxh3_64_intdigest(sources.slices[i].unit.encode(), seed=seed))
    datasets = sorted({name for totals in sources.totals for name in totals["datasets"]})
    by_run: dict[tuple[int, ...], list[tuple[PartFile, int]]] = {}
    for dataset in datasets:
        sizes = {i: sources.totals[i]["datasets"][dataset][1] for i in order if dataset in sources.totals[i]["datasets"]}
        number = 0
        for run, count in _runs(list(sizes.items()), config.publish.part_bytes):
            for index in range(count):
                path = f"{config.name}/data/{dataset}-{key[:12]}/part-{number:05d}.parquet"
                size = sum(sizes[i] for i in run) // count
                by_run.setdefault(tuple(run), []).append((PartFile(path=path, dataset=dataset, index=index, of=count), size))
                number += 1
    tasks = []
    for run, files in by_run.items():
        for held in _bundles(files, config.publish.part_bytes):
            parts = tuple(sources.source(i) for i in run)
            tasks.append(_task("hot", key, held, parts, columns))
    return tasks


def _runs(sizes: Sequence[tuple[int, int]], part_bytes: int) -> Iterator[tuple[list[int], int]]:
    """(slices, number of parts): whole slices up to about part_bytes; a bigger slice alone, in several parts."""
    held, total = list[int](), 0
    for ordinal, size in sizes:
        if size > part_bytes:
            yield [ordinal], -(-size // part_bytes)
            continue
        if held and total + size > part_bytes:
            yield held, 1
            held, total = [], 0
        held.append(ordinal)
        total += size
    if held:
        yield held, 1


def _bundles(files: Sequence[tuple[PartFile, int]], limit: int) -> Iterator[list[PartFile]]:
    held, total = list[PartFile](), 0
    for file, size in files:
        if held and total + size > limit:
            yield held
            held, total = [], 0
        held.append(file)
        total += size
    if held:
        yield held


def cold_tasks(config: Config, key: str, sources: Sources, columns: Sequence[str]) -> tuple[list[Task], dict[int, tuple[str, int]]]:
    """Tasks that write the archive in corpus order, and where every slice's removed rows begin in it."""
    sizes = [(i, sum(v[1] for v in totals["cold"].values())) for i, totals in enumerate(sources.totals) if totals["cold"]]
    tasks, begins = list[Task](), dict[int, tuple[str, int]]()
    for number, (run, _) in enumerate(_whole_runs(sizes, config.publish.part_bytes)):
        path = f"{config.name}/archive-{key[:12]}/part-{number:05d}.parquet"
        rows = 0
        for i in run:
            begins[i] = (path, rows)
            rows += _docs(sources.totals[i]["cold"])
        parts = tuple(sources.source(i) for i in run)
        tasks.append(_task("cold", key, [PartFile(path=path)], parts, columns))
    return tasks, begins


def _whole_runs(sizes: Sequence[tuple[int, int]], part_bytes: int) -> Iterator[tuple[list[int], int]]:
    return ((run, 1) for run, _ in _runs(sizes, part_bytes))


def _docs(counts: Mapping[str, Sequence[int]]) -> int:
    return sum(value[0] for value in counts.values())


def table_tasks(
    kind: str, folder: str, key: str, sources: Sources, begins: Mapping[int, tuple[str, int]], *, dry_run: bool = False
) -> list[Task]:
    """Tasks that write removed/ or quarantined/ in parts of TABLE_ROWS; an empty one is one file without rows."""
    name = "cold" if kind == "removed" else "quarantined"
    counts = [(i, _docs(totals[name])) for i, totals in enumerate(sources.totals) if totals[name]]
    tasks, held, rows, number = list[Task](), list[PartSource](), 0, 0

    def flush() -> None:
        nonlocal held, rows, number
        file = PartFile(path=f"{folder}/{kind}/part-{number:05d}.parquet")
        tasks.append(_task(kind, key, [file], tuple(held), (), rows=rows, dry_run=dry_run))
        held, rows, number = [], 0, number + 1

    for ordinal, count in counts:
        skip = 0
        while skip < count:
            room = TABLE_ROWS - rows
            held.append(sources.source(ordinal, skip=skip, archive=begins.get(ordinal, ("", 0))))
            taken = min(room, count - skip)
            rows += taken
            skip += taken
            if rows == TABLE_ROWS:
                flush()
    if held or not tasks:
        flush()
    return tasks


def _task(
    kind: Any, key: str, files: Sequence[PartFile], parts: tuple[PartSource, ...], columns: Sequence[str], rows: int = 0,
    *, dry_run: bool = False,
) -> Task:  # fmt: skip
    unit = f"{files[0].path.rsplit('/', 1)[-1]}@{fingerprint([file.path for file in files])[:8]}"
    cell = Cell(label="publish", phase=kind, unit=unit, key=key)
    work = PublishWork(
        cell=cell, kind=kind, files=tuple(files), sources=parts, columns=tuple(columns), rows=rows, dry_run=dry_run
    )
    size = sum(source.part.bytes for source in parts)
    return Task(id=fingerprint(cell.id)[:16], attempt=0, cells=(cell,), work=work, bytes=size)


# -- the manifest ----------------------------------------------------------------------------------------------------


def archive_document(config: Config, key: str, results: Sequence[CellResult]) -> dict[str, Any]:
    files = [
        {"path": output.path, "rows": output.rows, "bytes": output.bytes, "xxh128": output.xxh128, "reasons": dict(result.facts["reasons"])}
        for result in results for output in result.outputs
    ]  # fmt: skip
    return {"schema": "corpusmill.archive/1", "run": config.name, "key": key, "files": sorted(files, key=lambda file: file["path"])}


def put_archive(store: Store, config: Config, key: str, document: Mapping[str, Any]) -> dict[str, str]:
    """Write archive.json; returns the manifest's `archive` entry, its path relative to the cold tier's root."""
    data = canonical(document) + b"\n"
    path = f"{config.name}/archive-{key[:12]}/archive.json"
    store.write_bytes(path, data)
    return {"path": path, "xxh128": hash_bytes(data)}


def newest(store: Store, name: str) -> tuple[int, dict[str, Any] | None]:
    """The highest version under hot/<name>/ that has a manifest, and its manifest."""
    best = 0
    for entry in store.list(name):
        parts = entry.path.removeprefix(f"{name}/").split("/")
        if len(parts) == 2 and parts[1] == "manifest.json" and parts[0][:1] == "v" and parts[0][1:].isdigit():
            best = max(best, int(parts[0][1:]))
    return (best, json.loads(store.read_bytes(f"{name}/v{best}/manifest.json"))) if best else (0, None)


def put_manifest(
    store: Store, config: Config, document: dict[str, Any], control: dict[str, Any] | None, edges: pa.Table | None,
    identify: Callable[[Mapping[str, Any]], str],
) -> tuple[str, bool]:  # fmt: skip
    """Publish the manifest as the next version unless the newest has its id. Returns its path and whether it is new."""
    version, current = newest(store, config.name)
    document["id"] = identify(document)
    if current is not None and current["id"] == document["id"]:
        return f"{config.name}/v{version}/manifest.json", False
    document |= {"version": version + 1, "parent": current["id"] if current else None}
    folder = f"{config.name}/v{version + 1}"
    if edges is not None:
        write_plain(store, f"{folder}/meta/edges.parquet", edges)
    if control is not None:
        control |= {"id": identify(control), "version": version + 1, "parent": document["parent"]}
        store.write_bytes(f"{folder}/control.json", canonical(control) + b"\n")
    try:
        store.create(f"{folder}/placement-1.json", canonical(placement(store, document)) + b"\n")
    except AlreadyExists:
        pass  # left by a driver that was killed before the manifest: the same files at the same places
    store.create(f"{folder}/manifest.json", canonical(document) + b"\n")
    return f"{folder}/manifest.json", True


def placement(store: Store, document: Mapping[str, Any]) -> dict[str, Any]:
    """Where every data file is as long as nothing has moved."""
    files = {}
    for dataset in document["datasets"]:
        for file in dataset["files"]:
            path = file["path"].removeprefix("../")
            entry = {"tier": "hot", "url": store.url_of(f"{document['name']}/{path}"), "scope": "shared", "bytes": file["bytes"],
                     "xxh128": file["xxh128"], "verified_at": document["created"]}  # fmt: skip
            files[file["path"]] = [entry]
    return {"schema": "corpusmill.placement/1", "manifest_id": document["id"], "files": files}

