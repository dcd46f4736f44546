"""Take a run from its ledger to its last count: which cells are missing, in what order, and what to do when one fails.

The driver holds nothing per row and nothing that the ledger lacks: it can be killed and started anywhere.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pipeline import account, damage, exchange, plan
from pipeline.config import Config
from pipeline.corpus import Corpus
from pipeline.errors import BY_NAME, ContractError, WorkError
from pipeline.executors.local import Run
from pipeline.job import Job, SidecarRef
from pipeline.ledger import Ledger
from pipeline.plan import Phase
from pipeline.types import Cell, CellResult, Outcome, Output, Task

Notify = Callable[[str, Mapping[str, Any]], None]
"""Told of progress, as a kind and its facts:

    stage      labels, phases, over: a group begins
    start      tasks, rows, bytes: what of it is to be done
    task       outcome, task, again: an attempt has ended, and whether there will be another
    published  path, new: the manifest is written, or was there already
    note       text: something that takes time
"""
TOGETHER, BACK_OFF_S = 2, 0.5
"""Rounds in which lost tasks run beside others, and seconds before the first retry; they double."""
PART_OF_MEMORY = 16
"""Raw bytes of a partition are a sixteenth of a worker's memory: a join holds about four times as much, beside the
runtime's own 300 MB (measured)."""


@dataclass(slots=True)
class Driver:
    """One run in progress."""

    config: Config
    corpus: Corpus
    chain: Sequence[Phase]
    job: Job
    ledger: Ledger
    execute: Run
    notify: Notify
    files: Mapping[str, int]
    """Sizes of the files under the work tier when the run began; a cell whose file is not as recorded is redone."""
    workers: int
    redone: dict[str, int] = field(default_factory=dict)
    """Cells computed in this run, by label."""
    reused: dict[str, int] = field(default_factory=dict)
    damaged: set[str] = field(default_factory=set)
    _fresh: dict[str, CellResult] = field(default_factory=dict)
    _unread: dict[str, Output] = field(default_factory=dict)
    """Files of earlier runs that this one counts on and has not compared with their record yet."""
    _sound: set[str] = field(default_factory=set)

    # -- what is done ------------------------------------------------------------------------------------------------

    def done(self, cell: Cell, *, whole: bool = True) -> CellResult | None:
        """The cell's result if this run made it, or the ledger has it and its files are there as recorded.

        What only its facts are asked of need not be `whole`: the ledger keeps those, whatever became of the files.
        """
        if cell.id in self._fresh:
            return self._fresh[cell.id]
        state = self.ledger.state
        for result in (state.done.get(cell.id), state.again.get(cell.id)):
            if result is not None and (not whole or cell.label == "publish" or self._whole(result)):
                return result
        return None

    def _whole(self, result: CellResult) -> bool:
        """Whether the files of a result are there with their recorded size."""
        for output in result.outputs:
            if output.path in self.damaged:
                return False
            if self.files.get(output.path) != output.bytes:
                if output.path in self.files:
                    self.damaged.add(output.path)
                return False
            if output.path not in self._sound:
                self._unread[output.path] = output
        return True

    def trust(self, paths: Iterable[str]) -> None:
        """Compare those of the files that an earlier run left with the ledger's checksums, before they are read.

        Raises DamagedError where one differs: then its cell is no longer done, and whatever was planned is void.
        """
        asked = [self._unread.pop(path) for path in dict.fromkeys(paths) if path in self._unread]
        self._sound.update(output.path for output in asked)
        waiting = {task.id: task for task in damage.tasks(asked)}
        for _ in range(self.config.run.max_attempts if waiting else 0):
            for outcome in self.execute(self.job, list(waiting.values())):
                if not outcome.error:
                    del waiting[outcome.task]
                    self.damaged.update(outcome.results[0].facts["damaged"])
        if waiting:
            raise WorkError(f"{outcome.error} while files of an earlier run were checked: {outcome.message}")
        if not self.damaged.isdisjoint(output.path for output in asked):
            raise damage.DamagedError("files of an earlier run are not as recorded")

    def latest(self, score_key: str, unit: str) -> CellResult | None:
        """The newest sidecar that holds measures of this score key."""
        result = self.ledger.state.latest_by_score.get((score_key, unit))
        return self.done(result.cell) if result else None

    def results(self, phase: Phase, *, whole: bool = True) -> list[CellResult]:
        """Results of a finished phase over slices, by ordinal."""
        found = [self.done(phase.cell(part), whole=whole) for part in self.corpus.slices]
        return [result for result in found if result is not None]

    def complete(self, phase: Phase) -> bool:
        return len(self.results(phase)) == len(self.corpus.slices)

    def phase(self, label: str, name: str) -> Phase:
        return next(phase for phase in self.chain if phase.label == label and phase.name == name)

    # -- the chain ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Do every missing cell of the chain, group by group."""
        for group in plan.fuse(self.chain):
            needed = [phase for phase in group if self.needed(phase)]
            if not needed:
                continue
            labels, names = ([getattr(phase, name) for phase in needed] for name in ("label", "name"))
            self.notify("stage", {"labels": labels, "phases": names, "over": needed[0].over})
            if needed[0].over == "slices":
                self._slices(needed)
            elif needed[0].kind == "settle":
                self._settle(needed[0])
            else:
                self._reduce(needed[0])
            if not self.config.run.keep_exchange:
                self._drop_exchange()
            if needed[0].kind == "ingest":
                read = self.results(needed[0])
                self._check_damage(read)
                self.job = replace(self.job, corpus_bytes=sum(int(result.facts["bytes"]) for result in read))

    def _check_damage(self, read: Sequence[CellResult]) -> None:
        """Raise ContractError for the first slice with rows that cannot be decoded, where bad shards stop the run."""
        for part, result in zip(self.corpus.slices, read, strict=True):
            message = result.facts.get("undecodable")
            if message and self.config.input.bad_shards == "stop":
                raise ContractError(
                    f"{part.url}: rows from {part.first_row} on: {message}; input.bad_shards is 'stop', so nothing was "
                    "published; repair or remove the file, or set input.bad_shards: quarantine"
                )

    def _drop_exchange(self) -> None:
        """Delete what the phases of complete global stages exchanged."""
        for last in self.chain:
            if last.kind == "scatter" and self.complete(last):
                for phase in self.chain:
                    if phase.label == last.label and not phase.sidecar:
                        self.job.work.delete_tree(phase.folder)

    def needed(self, phase: Phase) -> bool:
        """Whether the run comes to this phase: one that only serves a later one is skipped when that is complete."""
        if phase.sidecar:
            return True
        if phase.kind in ("measure", "account"):
            settled = next(p for p in self.chain if p.label == phase.label and p.kind == "settle")
            return self.done(settled.whole("all")) is None
        if phase.kind == "settle":
            return True
        reduced = [p for p in self.chain if p.label == phase.label and p.kind == "reduce"]
        told = all(self.partition_results(p, whole=False) for p in reduced)  # the report has their sums
        return not (told and self.complete(self.phase(phase.label, "scatter")))

    def _slices(self, group: Sequence[Phase]) -> None:
        sources = {phase.source: self._files_of(phase.source) for phase in group if phase.source}
        known = plan.Known(done=self.done, latest=self.latest)
        units = list(plan.slice_units(group, self.chain, self.corpus.slices, known, sources))
        for phase in group:
            missing = sum(
                1
                for unit, _ in units
                for step in unit.steps
                if step.cell.phase == phase.name and step.cell.label == phase.label
            )
            self._count(phase.label, missing, len(self.corpus.slices) - missing)
        self.do(plan.slice_tasks(units, self.workers, self.config.input.slice_bytes))

    def _count(self, label: str, computed: int, reused: int) -> None:
        self.redone[label] = self.redone.get(label, 0) + computed
        self.reused[label] = self.reused.get(label, 0) + reused

    def _source(self, key: str) -> tuple[Phase, list[CellResult]]:
        phase = next(phase for phase in self.chain if phase.key == key)
        if phase.over == "slices":
            return phase, self.results(phase)
        return phase, self.partition_results(phase)

    def _files_of(self, key: str) -> list[str]:
        return [output.path for result in self._source(key)[1] for output in result.outputs]

    def partition_results(self, phase: Phase, *, whole: bool = True) -> list[CellResult]:
        """The results of a reduce phase under any number of partitions for which all are there."""
        for parts in (1 << bits for bits in range(13)):
            first = self.done(phase.whole(f"{0:04d}of{parts:04d}"), whole=whole)
            if first is None:
                continue
            found = [self.done(phase.whole(f"{part:04d}of{parts:04d}"), whole=whole) for part in range(parts)]
            if None not in found:
                return [result for result in found if result is not None]
        return []

    def partition_count(self, phase: Phase, source: Sequence[CellResult]) -> int:
        """Into how many partitions a reduce phase over the results of `source` is cut."""
        raw = sum(int(result.facts.get("raw", 0)) for result in source)
        asked = self.config.run.partitions
        limit = self.config.run.worker_memory // PART_OF_MEMORY
        return 1 if phase.over == "once" else plan.partitions(raw, limit, None if asked == "auto" else int(asked))

    def _reduce(self, phase: Phase) -> None:
        have = self.partition_results(phase)
        if have:
            self._count(phase.label, 0, len(have))
            return
        source, results = self._source(phase.source)
        parts = self.partition_count(phase, results)
        ordinals = range(len(results)) if source.over == "slices" else [None] * len(results)
        paths = [
            (output.path, ordinal)
            for result, ordinal in zip(results, ordinals, strict=True)
            for output in result.outputs
        ]
        tasks = [
            plan.reduce_task(phase, paths, part, parts, exchange.bounds(part, parts, exchange.KEY_SPACE))
            for part in range(parts)
        ]
        missing = [task for task in tasks if self.done(task.cells[0]) is None]
        self._count(phase.label, len(missing), parts - len(missing))
        self.do(missing)

    def _settle(self, phase: Phase) -> None:
        task = plan.settle_task(phase, [])
        if (done := self.done(task.cells[0])) is not None:
            self.trust(output.path for output in done.outputs)
            self._count(phase.label, 0, 1)
            return
        measured = next(p for p in self.chain if p.key == phase.source)
        paths = [result.outputs[0].path for result in self.results(measured)]
        self._count(phase.label, 1, 0)
        self.do([plan.settle_task(phase, paths)])

    # -- doing -------------------------------------------------------------------------------------------------------

    def do(self, tasks: Sequence[Task]) -> None:
        """Run tasks until each has ended; lost and passing failures are tried again, a bounded number of times."""
        self.trust(path for task in tasks for path in damage.reads(task.work))
        first = self.ledger.state.runs << 8
        waiting = [replace(task, attempt=first) for task in tasks]
        last = first + self.config.run.max_attempts
        failed: list[Outcome] = []
        total = {"tasks": len(tasks), "rows": sum(t.rows for t in tasks), "bytes": sum(t.bytes for t in tasks)}
        self.notify("start", total)
        for tries in range(self.config.run.max_attempts):
            # A first loss may be a neighbour's fault. What fails again runs alone and slice by slice, so that what is
            # too large for a worker is found and named.
            rounds = [waiting] if tries < TOGETHER else [[task] for task in plan.single_units(waiting)]
            waiting = [task for some in rounds if some for task in self._round(some, last, failed)]
            if not waiting:
                break
            time.sleep(BACK_OFF_S * 2**tries)
        self.ledger.flush()
        if failed:
            raise WorkError(_summary(failed))

    def _round(self, tasks: Sequence[Task], last: int, failed: list[Outcome]) -> list[Task]:
        """Run tasks once; returns those to be tried again, and adds to `failed` what has ended for good."""
        by_id = {task.id: task for task in tasks}
        waiting = []
        for outcome in self.execute(self.job, list(tasks)):
            self._record(outcome)
            task = by_id[outcome.task]
            again = bool(outcome.error) and outcome.transient and task.attempt + 1 < last
            self.notify("task", {"outcome": outcome, "task": task, "again": again})
            if again:
                waiting.append(replace(task, attempt=task.attempt + 1))
            elif outcome.error in BY_NAME:
                raise BY_NAME[outcome.error](outcome.message)
            elif outcome.error:
                failed.append(outcome)
        return waiting

    def _record(self, outcome: Outcome) -> None:
        self.ledger.add(outcome)
        for result in outcome.results:
            self._fresh.setdefault(result.cell.id, result)

    # -- what stages say ---------------------------------------------------------------------------------------------

    def sums(self, label: str) -> dict[str, int]:
        """The facts of a global stage's reduce phases, added up."""
        total: dict[str, int] = {}
        for phase in self.chain:
            if phase.label == label and phase.kind == "reduce":
                for result in self.partition_results(phase, whole=False):
                    for name, value in result.facts.get("sum", {}).items():
                        total[name] = total.get(name, 0) + int(value)
        return total

    def seconds(self, label: str) -> float:
        """CPU seconds that the finished cells of a stage took, whenever they were done."""
        total = 0.0
        for phase in self.chain:
            if phase.label == label:
                found = self.results if phase.over == "slices" else self.partition_results
                settled = self.done(phase.whole("all"), whole=False) if phase.kind == "settle" else None
                total += sum(
                    float(result.facts.get("cpu", 0.0))
                    for result in [*found(phase, whole=False), *([settled] if settled else [])]
                )
        return round(total, 3)

    def warnings(self) -> list[str]:
        """What the ledger could not read, and files that were not as recorded."""
        changed = [
            f"{self.job.work.where(path)}: not as the ledger recorded it; its cell was redone"
            for path in sorted(self.damaged)
        ]
        return [*self.ledger.state.warnings, *changed]

    def sidecars(self) -> Iterator[dict[str, SidecarRef]]:
        """Sidecars by label of every slice, stages in order."""
        chain = [phase for phase in self.chain if phase.sidecar]
        for part in self.corpus.slices:
            found = {}
            for phase in chain:
                result = self.done(phase.cell(part))
                assert result is not None, f"{phase.label} of {part.shard_id} is missing after its group"
                found[phase.label] = SidecarRef(path=result.outputs[0].path, key=result.cell.key)
            yield found

    def counts_path(self) -> str:
        settled = self.phase(account.LABEL, "settle")
        return str(plan.settle_task(settled, []).work.path)


def _summary(failed: Sequence[Outcome]) -> str:
    first = failed[0]
    where = ", ".join(sorted({f"{cell.label}.{cell.phase} {cell.unit}" for cell in first.cells})[:3])
    said = (first.message.strip().splitlines() or ["no message"])[-1]
    said = said if said.startswith(first.error) else f"{first.error}: {said}"  # a traceback ends with the error's name
    return (
        f"{len(failed)} task(s) failed after their retries; the first: {where}: {said}; "
        "finished work is kept: mend the cause and run the same command again"
    )


def cores(workers: int | str) -> int:
    """How many worker processes `run.workers` means."""
    return (os.cpu_count() or 1) if workers == "cores" else int(workers)
