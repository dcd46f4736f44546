"""Files that an earlier run left in the work tier: whether they are what the ledger recorded, before they are read.

Their sizes come with the listing; only a checksum tells a changed byte. Workers take the checksums, each file's once a
run, and nothing that this run wrote is read again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pipeline.errors import CorpusmillError
from pipeline.job import CheckWork, Job, PublishWork, ReduceWork, SettleWork, SliceWork
from pipeline.storage import Store
from pipeline.types import Cell, CellResult, Output, Task

FILES = 64
"""Files of one task."""


class DamagedError(CorpusmillError):
    """A file of an earlier run is not as recorded: its cell is missing, and the chain starts again with that one."""


def reads(work: Any) -> Iterator[str]:
    """The paths of recorded files that a task reads."""
    if isinstance(work, ReduceWork):
        yield from (path for path, _ in work.sources)
    elif isinstance(work, SettleWork):
        yield from work.sources
    elif isinstance(work, PublishWork):
        yield from (ref.path for source in work.sources for ref in source.sidecars.values())
    elif isinstance(work, SliceWork):
        for unit in work.units:
            yield from (ref.path for ref in unit.sidecars.values())
            for step in unit.steps:
                yield from step.records
                yield from (path for path in (step.facts, step.carry.path if step.carry else "") if path)


def tasks(outputs: Sequence[Output]) -> list[Task]:
    """Tasks that find the damaged ones among the files."""
    found = []
    for start in range(0, len(outputs), FILES):
        some = tuple(outputs[start : start + FILES])
        cell = Cell(label="damage", phase="check", unit=f"{start:06d}", key="")
        size = sum(output.bytes for output in some)
        found.append(Task(id=cell.id, attempt=0, cells=(cell,), work=CheckWork(cell=cell, outputs=some), bytes=size))
    return found


def check(job: Job, work: CheckWork) -> CellResult:
    """What a worker does with one: its fact `damaged` names files that differ from their record or are gone."""
    differ = [output.path for output in work.outputs if not _as_recorded(job.work, output)]
    return CellResult(cell=work.cell, facts={"damaged": differ})


def _as_recorded(store: Store, output: Output) -> bool:
    return store.exists(output.path) and store.output(output.path, output.rows) == output
