"""Tasks in spawned processes with a pipe each, or in this process.

A worker that dies is a failed attempt of the task it had, and a new worker takes its place: a process pool of the
standard library cannot survive that. Workers are spawned, never forked: native thread pools do not outlive a fork.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.context import SpawnProcess
from typing import Any

from pipeline import worker
from pipeline.job import Job
from pipeline.types import Outcome, Task

Run = Callable[[Job, Iterable[Task]], Iterator[Outcome]]
TICK = 1.0


@dataclass(slots=True)
class _Worker:
    process: SpawnProcess
    pipe: Any
    task: Task | None = None
    since: float = 0.0
    """When the task was sent, by the monotonic clock."""


@contextmanager
def start(workers: int) -> Iterator[Run]:
    """`run(job, tasks)` on `workers` processes; 0 means in this process."""
    if workers == 0:
        yield _here
        return
    pool: list[_Worker] = []
    try:
        yield lambda job, tasks: _drive(pool, workers, job, tasks)
    finally:
        for item in pool:
            item.pipe.close()
        for item in pool:
            item.process.join(timeout=5)
            if item.process.is_alive():
                item.process.kill()
                item.process.join()


def _here(job: Job, tasks: Iterable[Task]) -> Iterator[Outcome]:
    for task in tasks:
        yield worker.run(job, task)


def _drive(pool: list[_Worker], workers: int, job: Job, tasks: Iterable[Task]) -> Iterator[Outcome]:
    waiting = deque(tasks)
    while waiting or any(item.task for item in pool):
        _fill(pool, min(workers, len(waiting) + sum(1 for item in pool if item.task)))
        for item in pool:
            if item.task is None and waiting:
                _send(item, job, waiting)
        ready = multiprocessing.connection.wait([item.pipe for item in pool if item.task], timeout=TICK)
        for item in [item for item in pool if item.pipe in ready]:
            task = item.task
            assert task is not None
            item.task = None
            try:
                yield item.pipe.recv()
            except (EOFError, OSError):
                pool.remove(item)
                item.process.join()
                wall = time.monotonic() - item.since
                yield lost(task, f"worker process {item.process.pid} died (exit code {item.process.exitcode})", wall)


def _fill(pool: list[_Worker], count: int) -> None:
    spawn = multiprocessing.get_context("spawn")
    for name, value in worker.ALLOCATOR.items():
        os.environ.setdefault(name, value)
    while len(pool) < count:
        here, there = spawn.Pipe()
        process = spawn.Process(target=_serve, args=(there,), daemon=True)
        process.start()
        there.close()
        pool.append(_Worker(process, here))


def _send(item: _Worker, job: Job, waiting: deque[Task]) -> None:
    task = waiting.popleft()
    item.task, item.since = task, time.monotonic()
    with suppress(OSError):  # it died while idle: the wait sees the closed pipe and reports the task as lost
        item.pipe.send((job, task))


def lost(task: Task, message: str, wall: float) -> Outcome:
    """The outcome of an attempt whose worker never answered, `wall` seconds after it began."""
    return Outcome(
        task=task.id,
        attempt=task.attempt,
        cells=task.cells,
        error="WorkerLost",
        message=message,
        transient=True,
        lost=True,
        wall=wall,
    )


def _serve(pipe: Any) -> None:
    """A worker: tasks in, outcomes out, until the driver closes the pipe or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker.quiet_threads()
    while True:
        try:
            job, task = pipe.recv()
        except (EOFError, OSError):
            os._exit(0)
        outcome = worker.run(job, task)
        try:
            pipe.send(outcome)
        except OSError:
            os._exit(0)
