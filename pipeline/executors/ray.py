"""Tasks on a Ray cluster. Ray places them and carries their small outcomes; it retries nothing and decides nothing.

A reference can stay unresolved for ever (a frozen node, a label no node has), so the driver watches nodes and deadlines
itself, abandons such a reference and lets the engine start a new attempt. A late attempt harms nobody: its files have
names of their own and the first recorded result wins.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any

import ray
from ray import exceptions as rx
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pipeline import __version__, worker
from pipeline.errors import ClusterError
from pipeline.executors.local import Run, lost
from pipeline.job import Job
from pipeline.types import Outcome, Task

WINDOW = 4
"""Tasks in flight a slot: one runs, the others hide the round trip."""
TICK = 1.0
WATCH_S = 5.0
STORE_BYTES = 100_000_000
"""Object store of an own cluster: outcomes travel in replies, so the smallest useful one."""
CONNECT_S = 5.0
BASE_DEADLINE_S, SLOWEST_BYTES_PER_S = 600.0, 50_000.0
"""A task is given up for lost after this long: far beyond what the slowest stage needs."""


@dataclass(slots=True)
class _Flight:
    task: Task
    deadline: float


@contextmanager
def start(address: str | None, workers: int, pythonpath: Sequence[str]) -> Iterator[Run]:
    """`run(job, tasks)` on Ray: this process's connection if it has one, the cluster at `address`, or an own one.

    Only a cluster started here is shut down. Raises ClusterError if none can be reached or its nodes do not match.
    """
    ours = not ray.is_initialized()
    if ours:
        _connect(address, max(1, workers), pythonpath)
    try:
        _check_nodes()
        yield _drive
    finally:
        if ours:
            ray.shutdown()


def _connect(address: str | None, workers: int, pythonpath: Sequence[str]) -> None:
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    variables = dict.fromkeys(worker.THREADS, "1") | worker.ALLOCATOR
    if pythonpath:
        variables["PYTHONPATH"] = os.pathsep.join([*pythonpath, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    if address is None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.update(variables)
        ray.init(
            address="local", num_cpus=workers, include_dashboard=False, object_store_memory=STORE_BYTES, **settings
        )
        return
    if address.startswith("ray://"):
        raise ClusterError(
            f"run.address: got {address!r}, but Ray Client is not supported; run the driver on a node, with HOST:PORT"
        )
    _probe(address)
    ray.init(address=address, runtime_env={"env_vars": variables}, **settings)


def _probe(address: str) -> None:
    """A dead address makes Ray hang for minutes: a plain connection says so at once."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
    except (OSError, ValueError) as error:
        raise ClusterError(
            f"run.address: {address!r} cannot be reached ({error}); is the cluster's head up, and is it HOST:PORT?"
        ) from error


def identity() -> dict[str, str]:
    """What must be equal on every node for the bytes to be."""
    packages = {name: metadata.version(name) for name in ("ray", "pyarrow", "numpy", "numba", "fasttext-community")}
    return {"python": ".".join(map(str, sys.version_info[:2])), "corpusmill": __version__, **packages}


def _check_nodes() -> None:
    """One task on every live node compares Python, Ray and the packages whose bytes we publish."""
    here = identity()
    probe = ray.remote(num_cpus=0, max_retries=0)(identity)
    asked = {}
    for node in _nodes():
        if node["Alive"] and node["Resources"].get("CPU", 0) >= 1:
            place = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            asked[node["NodeManagerHostname"]] = probe.options(scheduling_strategy=place).remote()
    if not asked:
        raise ClusterError("run.executor: ray has no live node with a CPU; start one, or use executor: local")
    for host, reference in asked.items():
        try:
            there = ray.get(reference, timeout=120)
        except rx.RayError as error:
            raise ClusterError(
                f"node {host} cannot run corpusmill: {error}; install the same corpusmill on every node"
            ) from error
        wrong = [f"{name} {there[name]} (here {here[name]})" for name in here if there[name] != here[name]]
        if wrong:
            raise ClusterError(f"node {host} has {', '.join(wrong)}; install the same versions on every node")


def _nodes() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return found


def _slots() -> int:
    return int(sum(node["Resources"].get("CPU", 0) for node in _nodes() if node["Alive"]))


def _work(job: Job, task: Task) -> Outcome:
    """The body of every Ray task: note where it runs, then do it. It returns an outcome whatever happens."""
    worker.quiet_threads()
    node = ray.get_runtime_context().get_node_id()
    note = {"node": node, "host": socket.gethostname(), "pid": os.getpid(), "began": time.time()}
    job.work.write_bytes(_note(task), json.dumps(note).encode())
    return worker.run(job, task)


def _note(task: Task) -> str:
    return f"attempts/{task.id}.{task.attempt}.json"


def _drive(job: Job, tasks: Iterable[Task]) -> Iterator[Outcome]:
    remote = ray.remote(num_cpus=1, max_retries=0)(_work)
    waiting, flying, watched = deque(tasks), dict[Any, _Flight](), time.monotonic()
    try:
        while waiting or flying:
            slots = max(1, _slots())
            while waiting and len(flying) < WINDOW * slots:
                task = waiting.popleft()
                reference = remote.options(
                    name=f"{task.cells[0].label}.{task.cells[0].phase}/{task.id}#{task.attempt}"
                ).remote(job, task)
                flying[reference] = _Flight(task, time.monotonic() + _patience(task, len(flying) + 1))
            ready, _ = ray.wait(list(flying), num_returns=1, timeout=TICK)
            for reference in ready:
                yield _landed(job, flying.pop(reference).task, reference)
            if time.monotonic() - watched > WATCH_S:
                watched = time.monotonic()
                for reference in _given_up(job, flying):
                    task = flying.pop(reference).task
                    ray.cancel(reference, force=True)
                    yield _lost(job, task, "its node is gone or it passed its deadline without an answer")
    finally:
        for reference in flying:
            ray.cancel(reference, force=True)


def _patience(task: Task, ahead: int) -> float:
    return (BASE_DEADLINE_S + task.bytes / SLOWEST_BYTES_PER_S) * ahead


def _landed(job: Job, task: Task, reference: Any) -> Outcome:
    try:
        outcome: Outcome = ray.get(reference)
    except rx.RayError as error:
        return _failed(job, task, error)
    return outcome


def _failed(job: Job, task: Task, error: rx.RayError) -> Outcome:
    """An exception out of a task is Ray's or the node's: the body itself catches everything."""
    cause = getattr(error, "cause", None)
    if isinstance(error, rx.OutOfMemoryError) or isinstance(cause, MemoryError):
        return replace(_lost(job, task, f"out of memory on its node: {_first_line(error)}"), error=worker.MEMORY)
    return _lost(job, task, f"{type(error).__name__}: {_first_line(error)}")


def _lost(job: Job, task: Task, message: str) -> Outcome:
    """A lost attempt has cost the time since its note; one without a note waited in Ray's queue and cost none."""
    note = _noted(job, task)
    wall = max(0.0, time.time() - note["began"]) if note else 0.0
    return replace(lost(task, message, wall), host=note.get("host", ""))


def _noted(job: Job, task: Task) -> dict[str, Any]:
    """What the attempt wrote down when it began; empty if it did not."""
    path = _note(task)
    found: dict[str, Any] = json.loads(job.work.read_bytes(path)) if job.work.exists(path) else {}
    return found


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0]


def _given_up(job: Job, flying: dict[Any, _Flight]) -> list[Any]:
    """References whose node is dead or whose deadline is past."""
    dead = {node["NodeID"] for node in _nodes() if not node["Alive"]}
    now = time.monotonic()
    found = [reference for reference, flight in flying.items() if now > flight.deadline]
    if dead:
        found += [reference for reference, flight in flying.items() if _noted(job, flight.task).get("node") in dead]
    return list(dict.fromkeys(found))
