"""Run one task: the same function here, in a spawned process and on Ray. Whatever happens, it returns an outcome."""

from __future__ import annotations

import ctypes
import os
import resource
import socket
import time
import traceback
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa

from pipeline import account, damage, exchange, parts, settle
from pipeline.binding import context, stage_of
from pipeline.errors import CorpusmillError
from pipeline.job import CheckWork, Job, ReduceWork, SettleWork, SliceWork
from pipeline.keys import canonical
from pipeline.slices import run_unit
from pipeline.stage import GlobalStage, Reduce, SettleStage
from pipeline.types import CellResult, Outcome, Task

MEMORY = "MemoryError"
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS", "NUMBA_NUM_THREADS")

ALLOCATOR = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_MMAP_THRESHOLD_": "1000000"}
"""For the environment that a worker is started with, since Arrow and glibc read it when they are loaded: the system
gets back at once what is freed. At the peak that is up to 110 MB less than with Arrow's own allocator, and 150 to 520
MB less than with glibc's threshold, which grows with what is freed until large buffers lie scattered over the heap."""


def quiet_threads() -> None:
    """One process a core, no threads inside: set before numpy, numba or polars are first used in a worker."""
    for name in THREADS:
        os.environ.setdefault(name, "1")
    pa.set_cpu_count(1)


def run(job: Job, task: Task) -> Outcome:
    """Do the task. Failures come back as an outcome that says what, and whether a retry may help."""
    wall, cpu = time.perf_counter(), time.process_time()
    error, message, transient, results = "", "", False, list[CellResult]()
    try:
        results = _results(job, task)
    except KeyboardInterrupt:
        raise
    except CorpusmillError as failure:
        error, message = type(failure).__name__, failure.message
    except (MemoryError, OSError) as failure:
        error, message, transient = type(failure).__name__, str(failure), True
    except BaseException as failure:
        error, message = type(failure).__name__, "".join(traceback.format_exception(failure, limit=-6))
    _give_back_memory()
    return Outcome(
        task=task.id, attempt=task.attempt, results=tuple(results), cells=task.cells, error=error, message=message,
        transient=transient, wall=time.perf_counter() - wall, cpu=time.process_time() - cpu,
        peak_rss=_peak_rss(), host=socket.gethostname(),
    )  # fmt: skip


def _peak_rss() -> int:
    """Bytes. Linux's getrusage gives a spawned process the peak of the one that spawned it, /proc its own."""
    with suppress(OSError), open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _give_back_memory() -> None:
    """Return what the task freed to the system: allocators keep it, and the next task would come on top of it."""
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's alone
    if trim is not None:
        trim(0)


def _results(job: Job, task: Task) -> list[CellResult]:
    work = task.work
    if isinstance(work, SliceWork):
        return [result for unit in work.units for result in run_unit(job, unit, task.attempt)]
    begun = time.process_time()
    if isinstance(work, ReduceWork):
        result = _reduce(job, work, task.attempt)
    elif isinstance(work, SettleWork):
        result = _settle(job, work)
    elif isinstance(work, CheckWork):
        result = damage.check(job, work)
    else:
        result = parts.run(job, work)
    return [replace(result, facts={**result.facts, "cpu": round(time.process_time() - begun, 4)})]


def _reduce(job: Job, work: ReduceWork, attempt: int) -> CellResult:
    stage, config = stage_of(job, work.cell.label)
    assert isinstance(stage, GlobalStage)
    phase = stage.phases[work.index]
    assert isinstance(phase, Reduce)
    records = exchange.gather(job.work, work.sources, work.low, work.high)
    made: list[pa.RecordBatch] = []
    facts: dict[str, Any] = {}
    if records is not None:
        out, facts = phase.reduce(config, context(job, work.cell.label), records)
        made = [out] if out.num_rows else []
    space = exchange.row_space(job.slices) if phase.to == "rows" else exchange.KEY_SPACE
    path = f"{work.folder}/{work.cell.unit}.{attempt}.arrow"
    output, raw = exchange.write(job.work, path, made, space)
    return CellResult(cell=work.cell, outputs=(output,), facts={"raw": raw, "sum": facts})


def _settle(job: Job, work: SettleWork) -> CellResult:
    if work.builtin:
        total = settle.add((exchange.read_counts(job.work, path) for path in work.sources), account.KEYS)
        facts: Any = total.to_pydict()
    else:
        stage, config = stage_of(job, work.cell.label)
        assert isinstance(stage, SettleStage)
        total = settle.add((exchange.read_counts(job.work, path) for path in work.sources), stage.count_keys)
        facts = stage.settle(config, context(job, work.cell.label), total)
    data = facts if isinstance(facts, bytes) else canonical(facts) + b"\n"
    job.work.write_bytes(work.path, data)
    return CellResult(cell=work.cell, outputs=(job.work.output(work.path, rows=total.num_rows),))
