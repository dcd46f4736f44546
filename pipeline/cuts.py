"""Where every published part is cut: from what account counted to the tasks that write the files. Pure.

Cuts and names depend on content and settings alone, never on input ids, workers or history.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import xxhash

from pipeline.config import Config
from pipeline.corpus import BadShard
from pipeline.job import PartFile, PartSource, PublishWork, SidecarRef
from pipeline.keys import fingerprint
from pipeline.types import Cell, Slice, Task

TABLE_ROWS = 1_000_000
"""Rows of a part of removed/ and quarantined/."""
Item = TypeVar("Item")
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


def hot_tasks(config: Config, key: str, sources: Sources, columns: Sequence[str]) -> list[Task]:
    """Tasks that write the datasets: parts made of the same slices share a task, and so a reading."""
    seed = config.run.seed
    order = sorted(
        range(len(sources.slices)), key=lambda i: xxhash.xxh3_64_intdigest(sources.slices[i].unit.encode(), seed=seed)
    )
    datasets = sorted({name for totals in sources.totals for name in totals["datasets"]})
    by_run: dict[tuple[int, ...], list[tuple[PartFile, int]]] = {}
    for dataset in datasets:
        sizes = {
            i: sources.totals[i]["datasets"][dataset][1] for i in order if dataset in sources.totals[i]["datasets"]
        }
        number = 0
        for run, parts_of_bytes in _runs(list(sizes.items()), config.publish.part_bytes):
            docs = sum(sources.totals[i]["datasets"][dataset][0] for i in run)
            count = max(1, min(parts_of_bytes, docs))  # none is for less than a document
            for index in range(count):
                path = f"{config.name}/data/{dataset}-{key[:12]}/part-{number:05d}.parquet"
                size = sum(sizes[i] for i in run) // count
                by_run.setdefault(tuple(run), []).append(
                    (PartFile(path=path, dataset=dataset, index=index, of=count), size)
                )
                number += 1
    tasks = []
    for slices, files in by_run.items():
        for held in _bundles(files, min(config.publish.part_bytes, config.run.worker_memory // 8)):
            parts = tuple(sources.source(i) for i in slices)
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


def _bundles(items: Sequence[tuple[Item, int]], limit: int) -> Iterator[list[Item]]:
    """The items in their order, in runs whose sizes add up to at most `limit`, or of one item."""
    held, total = list[Item](), 0
    for item, size in items:
        if held and total + size > limit:
            yield held
            held, total = [], 0
        held.append(item)
        total += size
    if held:
        yield held


def cold_tasks(
    config: Config, key: str, sources: Sources, columns: Sequence[str]
) -> tuple[list[Task], dict[int, tuple[str, int]]]:
    """Tasks that write the archive in corpus order, and where every slice's removed rows begin in it."""
    sizes = [
        (i, sum(v[1] for v in totals["cold"].values())) for i, totals in enumerate(sources.totals) if totals["cold"]
    ]
    tasks, begins = list[Task](), dict[int, tuple[str, int]]()
    for number, run in enumerate(_bundles(sizes, config.publish.part_bytes)):
        path = f"{config.name}/archive-{key[:12]}/part-{number:05d}.parquet"
        rows = 0
        for i in run:
            begins[i] = (path, rows)
            rows += _docs(sources.totals[i]["cold"])
        parts = tuple(sources.source(i) for i in run)
        tasks.append(_task("cold", key, [PartFile(path=path)], parts, columns))
    return tasks, begins


def _docs(counts: Mapping[str, Sequence[int]]) -> int:
    return sum(value[0] for value in counts.values())


def table_tasks(
    kind: str, folder: str, key: str, sources: Sources, begins: Mapping[int, tuple[str, int]], bad: Sequence[BadShard],
    *, dry_run: bool = False,
) -> list[Task]:  # fmt: skip
    """Tasks that write removed/ or quarantined/ in parts of TABLE_ROWS; an empty one is one file without rows."""
    if kind == "quarantined" and bad:  # the corpus has no rows of theirs, so its id knows nothing of them
        key = fingerprint(key, [[shard.shard_id, shard.size, shard.message] for shard in bad])
    name = "cold" if kind == "removed" else "quarantined"
    counts = [(i, _docs(totals[name])) for i, totals in enumerate(sources.totals) if totals[name]]
    tasks, held, rows, number = list[Task](), list[PartSource](), 0, 0

    def flush() -> None:
        nonlocal held, rows, number
        file = PartFile(path=f"{folder}/{kind}/part-{number:05d}.parquet")
        shards = tuple(bad) if kind == "quarantined" and number == 0 else ()
        tasks.append(_task(kind, key, [file], tuple(held), (), rows=rows, dry_run=dry_run, bad=shards))
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
    kind: Any, key: str, files: Sequence[PartFile], parts: tuple[PartSource, ...], columns: Sequence[str],
    rows: int = 0, *, dry_run: bool = False, bad: tuple[BadShard, ...] = (),
) -> Task:  # fmt: skip
    unit = f"{files[0].path.rsplit('/', 1)[-1]}@{fingerprint([file.path for file in files])[:8]}"
    cell = Cell(label="publish", phase=kind, unit=unit, key=key)
    work = PublishWork(
        cell=cell, kind=kind, files=tuple(files), sources=parts, columns=tuple(columns), rows=rows,
        dry_run=dry_run, bad=bad,
    )  # fmt: skip
    size = sum(source.part.bytes for source in parts)
    return Task(id=fingerprint(cell.id)[:16], attempt=0, cells=(cell,), work=work, bytes=size)
