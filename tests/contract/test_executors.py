"""What every executor promises, whatever runs the tasks: one outcome a task, come what may.

The tasks are real ones: each reads a shard of its own and runs a stage that does what the shard's texts say.
"""

from __future__ import annotations

import multiprocessing
from collections import Counter
from dataclasses import asdict, replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import ingest, listing, plan
from pipeline import run as runs
from pipeline.config import loads
from pipeline.executors import local
from pipeline.job import Job
from pipeline.opened import prepare
from pipeline.storage import Store
from stages import STAGES

EVERY = ["in this process", "1 process", "2 processes", pytest.param("ray", marks=pytest.mark.ray)]
APART = EVERY[1:]
"""Executors that a dying task does not take along."""


@pytest.fixture(scope="module")
def execute(request):
    """`run(job, tasks)` of the executor that the parameter names, with workers that live from test to test."""
    if request.param == "ray":
        request.getfixturevalue("ray_session")
        from pipeline.executors import ray

        with ray.start(None, 2, ()) as run:
            yield run
        return
    with local.start({"in this process": 0, "1 process": 1, "2 processes": 2}[request.param]) as run:
        yield run


def work(folder, *deeds):
    """A job, and one task for each of `deeds` in their order: a shard of three texts, the middle one the deed."""
    folder.joinpath("in").mkdir()
    for number, deed in enumerate(deeds):
        texts = [f"fine {number}", f"{deed} {number}", "fine as well"]
        pq.write_table(pa.table({"text": texts}), folder / "in" / f"{number:02d}.parquet")
    tiers = ", ".join(f"{tier}: {{url: '{folder}/{tier}'}}" for tier in ("work", "hot", "cold"))
    config = loads(
        f"name: deeds\ninput: {{paths: ['{folder}/in']}}\ntiers: {{{tiers}}}\n"
        "stages: [{stage: 'tests.contract.misbehaving:STAGE'}]\n",
        STAGES,
    )
    opened = prepare(config)
    corpus, store = opened.corpus, opened.work
    job = Job(
        work=store, hot=Store(config.tiers.hot.url), cold=Store(config.tiers.cold.url), schema=corpus.schema,
        names=corpus.names, policy={"invalid_utf8": "replace", "max_document_bytes": 1000},
        token_ratio=ingest.token_ratio(None), seed=0, sources={}, stages=runs.stage_refs(config, opened.hashes),
        slices=len(corpus.slices), memory=config.run.worker_memory, listing=listing.put(store, corpus.slices),
    )  # fmt: skip
    nothing = plan.Known(done=lambda *_: None, latest=lambda *_: None)
    units = list(plan.slice_units(plan.fuse(opened.chain)[0], opened.chain, corpus.slices, nothing, {}))
    tasks = plan.slice_tasks(units, workers=1, most=1)
    assert len(tasks) == len(deeds)
    return job, tasks


def outcomes(execute, job, tasks):
    """Task id -> its one outcome."""
    found = list(execute(job, tasks))
    assert Counter(outcome.task for outcome in found) == Counter(task.id for task in tasks)
    return [next(outcome for outcome in found if outcome.task == task.id) for task in tasks]


def plain(outcome):
    """An outcome without what may differ from run to run: times, memory, host."""
    told = asdict(replace(outcome, wall=0.0, cpu=0.0, peak_rss=0, host=""))
    for result in told["results"]:
        result["facts"].pop("cpu", None)
    return told


@pytest.mark.parametrize("execute", EVERY, indirect=True)
def test_every_task_has_one_outcome(execute, tmp_path):
    """More tasks than workers all end, each once, with a result for each of its cells."""
    job, tasks = work(tmp_path, *["fine"] * 7)
    for task, outcome in zip(tasks, outcomes(execute, job, tasks), strict=True):
        assert (outcome.error, outcome.attempt, outcome.lost) == ("", task.attempt, False)
        assert tuple(result.cell for result in outcome.results) == task.cells == outcome.cells
        for result in outcome.results:
            assert [job.work.size(output.path) for output in result.outputs] == [o.bytes for o in result.outputs]


@pytest.mark.parametrize("execute", EVERY, indirect=True)
def test_no_task_is_no_outcome(execute, tmp_path):
    """Nothing to do ends at once with nothing."""
    job, _ = work(tmp_path, "fine")
    assert list(execute(job, [])) == []


@pytest.mark.parametrize("execute", APART, indirect=True)
def test_outcomes_are_those_of_one_process(execute, tmp_path):
    """Paths, sizes, checksums, facts and messages are what a plain loop gives, failures included."""
    job, tasks = work(tmp_path, "fine", "fault", "escape", "fine", "memory")
    with local.start(0) as here:
        wanted = [plain(outcome) for outcome in outcomes(here, job, tasks)]
    assert [plain(outcome) for outcome in outcomes(execute, job, tasks)] == wanted


@pytest.mark.parametrize("execute", EVERY, indirect=True)
def test_what_raises_is_an_outcome(execute, tmp_path):
    """A row at fault is set aside and the task goes on; what ends a task is told, and others are not disturbed."""
    job, tasks = work(tmp_path, "fault", "escape", "unpicklable", "memory", "fine")
    fault, escape, unpicklable, memory, fine = outcomes(execute, job, tasks)
    assert fault.error == ""
    assert fault.results[-1].facts["failed"] == 1
    assert (escape.error, escape.transient) == ("Escaped", False)
    assert "out of the stage" in escape.message
    assert (unpicklable.error, unpicklable.transient) == ("Unpicklable", False)
    assert "with a lock" in unpicklable.message
    assert (memory.error, memory.transient) == ("MemoryError", True)
    assert fine.error == ""
    for failed in (escape, unpicklable, memory):
        assert (failed.results, failed.lost) == ((), False)
        assert failed.cells


@pytest.mark.parametrize("deed", ["exit", "kill"])
@pytest.mark.parametrize("execute", APART, indirect=True)
def test_a_dead_worker_is_a_lost_attempt(execute, deed, tmp_path):
    """A task that takes its worker along is lost, which a retry may mend; the others end well on a new worker."""
    job, tasks = work(tmp_path, "fine", deed, "fine", "fine")
    first, dead, *others = outcomes(execute, job, tasks)
    assert (dead.error, dead.lost, dead.transient) == ("WorkerLost", True, True)
    assert dead.cells == tasks[1].cells
    assert dead.message
    assert [outcome.error for outcome in (first, *others)] == [""] * 3


@pytest.mark.parametrize("execute", APART, indirect=True)
def test_a_retry_has_files_of_its_own(execute, tmp_path):
    """Another attempt at a task writes the same bytes under other names, so a late first one harms nobody."""
    job, tasks = work(tmp_path, "fine")
    (first,), (second,) = (outcomes(execute, job, [replace(tasks[0], attempt=attempt)]) for attempt in (1, 2))
    for one, other in zip(first.results, second.results, strict=True):
        assert [o.xxh128 for o in one.outputs] == [o.xxh128 for o in other.outputs]
        assert not {o.path for o in one.outputs} & {o.path for o in other.outputs}


def test_no_process_is_left_behind(tmp_path):
    """When the driver gives up in the middle, its workers end with it."""
    before = set(multiprocessing.active_children())
    job, tasks = work(tmp_path, *["fine"] * 6)
    with local.start(2) as run:
        found = run(job, tasks)
        next(found)
        assert set(multiprocessing.active_children()) - before
    assert not set(multiprocessing.active_children()) - before
