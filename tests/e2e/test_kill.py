"""Killed at any moment, a run goes on from what it had recorded and ends in the bytes of an unbroken one."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import drivers
import harness
import psutil
import pytest
import watch

from pipeline import run as runs

STAGES = (
    "{stage: heuristics, min_words: 20, rules: [gopher_quality]}", harness.EXACT, harness.NEAR,
    "{stage: difficulty, sample: 1MB}", "{stage: select, by: difficulty.bits_per_byte, keep_bottom: 0.9}",
    "{stage: curriculum, by: difficulty.bits_per_byte, buckets: 3}",
)  # fmt: skip
MOMENTS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 10))]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Three shards of several slices; a folder `in` that all runs of this module read."""
    root = tmp_path_factory.mktemp("kill")
    draw = random.Random(5)
    texts = [" the and of ".join(harness.words(seed, 30).split()) for seed in range(120)]
    rows = [texts[draw.randrange(len(texts))] for _ in range(180)]
    near = [text.replace(" the ", " a ", 1) for text in rows[:40]] + [None, "too short"]
    shards = [harness.rows_of(part, f"s{i % 2}", 100 * i) for i, part in enumerate([rows[:90], rows[90:], near])]
    harness.write_shards(root / "in", shards, row_group_size=20)
    return root


def configure(corpus, folder, *sets):
    tiers = [f"tiers.{tier}.url='{folder}/{tier}'" for tier in ("work", "hot", "cold")]
    more = "publish: {part_bytes: 10kB, validation: {tokens: 500}}"
    return harness.configure(corpus, *STAGES, more=more, sets=["input.slice_bytes=15kB", *tiers, *sets])


@pytest.fixture(scope="module")
def unbroken(corpus, tmp_path_factory):
    """The outcome of a run that nobody disturbs, and how many files it made."""
    folder = tmp_path_factory.mktemp("unbroken")
    config = configure(corpus, folder)
    return harness.outcome(config, harness.run(config)), len(drivers.files(folder))


@pytest.mark.parametrize("seed", MOMENTS)
def test_a_killed_driver_is_taken_over(corpus, unbroken, tmp_path, seed):
    """Killed -9 at a random moment, the run starts again at once, redoes nothing that was recorded, ends the same."""
    expected, most = unbroken
    draw = random.Random(seed)
    exchange = f"run.keep_exchange={'false' if seed % 2 else 'true'}"
    process = drivers.drive(configure(corpus, tmp_path, "run.workers=2", exchange), tmp_path)
    drivers.wait_for(process, tmp_path, draw.randrange(3, most - 4))
    time.sleep(draw.random() / 20)
    orphans = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    process.kill()
    process.wait()

    config = configure(corpus, tmp_path, exchange)
    before, done = watch.newest(config), watch.committed(config)
    notes = []
    report = runs.run(config, lambda kind, facts: notes.append(facts["text"]) if kind == "note" else None)
    assert not [note for note in notes if "waiting" in note]
    drivers.wait_for_end(orphans)
    again = [watch.name_of(cell) for cell in watch.cells(config, before)]
    assert not done & set(again)
    assert len(again) == len(set(again))
    harness.sound(config, report)
    assert harness.differing(harness.outcome(config, report), expected) == []
    assert drivers.clean(config)


@pytest.mark.slow
def test_killed_again_and_again_it_comes_to_an_end(corpus, unbroken, tmp_path):
    """Ten drivers killed one after the other record each cell once between them, and the eleventh ends the same."""
    expected, most = unbroken
    draw = random.Random(77)
    config = configure(corpus, tmp_path, "run.workers=2")
    orphans = []
    for _ in range(10):
        process = drivers.drive(config, tmp_path)
        drivers.wait_for(process, tmp_path, len(drivers.files(tmp_path)) + draw.randrange(1, most // 5))
        orphans += psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.kill()
        process.wait()
    drivers.wait_for_end(orphans)
    config = configure(corpus, tmp_path)
    report = harness.run(config)
    done = [watch.name_of(cell) for cell in watch.cells(config)]
    assert len(done) == len(set(done))
    assert report["run"]["attempts_of_run"] > 1
    assert harness.differing(harness.outcome(config, report), expected) == []
    assert drivers.clean(config)


@pytest.mark.parametrize("seed", MOMENTS)
def test_a_killed_worker_is_a_lost_attempt(corpus, unbroken, tmp_path, seed):
    """A worker killed -9 at a random moment costs one attempt: the same run ends the same, every cell done once."""
    expected, most = unbroken
    draw = random.Random(100 + seed)
    config = configure(corpus, tmp_path, "run.workers=2")
    process = drivers.drive(config, tmp_path)
    drivers.wait_for(process, tmp_path, draw.randrange(3, most - 8))
    time.sleep(draw.random() / 20)
    victims = [child for child in psutil.Process(process.pid).children() if "spawn_main" in " ".join(child.cmdline())]
    if victims:
        draw.choice(victims).kill()
    assert process.wait(timeout=120) == 0, (tmp_path / "log").read_text()

    [path] = tmp_path.glob("work/test/results/*/report.json")
    report = json.loads(path.read_text())
    failed = [record for record in watch.records(config) if record["kind"] == "failed"]
    assert all(record["lost"] for record in failed)
    [compute] = report["compute"]
    assert compute["attempts_lost"] == len(failed) <= 1
    assert compute["wasted_seconds"] == pytest.approx(sum(record["seconds"]["wall"] for record in failed), abs=0.01)
    done = [watch.name_of(cell) for cell in watch.cells(config)]
    assert len(done) == len(set(done))
    harness.sound(config, report)
    assert harness.differing(harness.outcome(config, report), expected) == []
    assert drivers.clean(config)


@pytest.fixture
def doomed(tmp_path, request):
    """Configs by the name of their tiers, for a corpus whose third shard does once what the parameter says."""
    shards = [harness.rows_of([harness.words(100 * k + i, 20) for i in range(30)], f"s{k}", 100 * k) for k in range(4)]
    shards[2][7]["text"] += f" {request.param} first"
    harness.write_shards(tmp_path / "in", shards)
    (tmp_path / "marks").mkdir()

    def configured(name, *sets):
        tiers = [f"tiers.{tier}.url='{tmp_path}/{name}/{tier}'" for tier in ("work", "hot", "cold")]
        stages = f"{{stage: 'trial_stages:DEADLY', folder: '{tmp_path}/marks', park: 60}}", harness.EXACT
        return harness.configure(tmp_path, *stages, sets=[*tiers, *sets])

    return configured


def ends_the_same(config, report, undisturbed):
    """One attempt was lost and has cost something; the outcome is that of a run with the mark in place."""
    [failed] = [record for record in watch.records(config) if record["kind"] == "failed"]
    assert failed["lost"]
    assert failed["host"]
    assert report["compute"][0]["wasted_seconds"] > 0
    expected = harness.outcome(undisturbed, harness.run(undisturbed))
    assert harness.differing(harness.outcome(config, report), expected) == []
    assert drivers.clean(config)
    return failed


@pytest.mark.ray
@pytest.mark.parametrize("doomed", ["DEADLY"], indirect=True)
def test_a_killed_ray_worker_is_a_lost_attempt(doomed, ray_session):
    """A Ray worker that dies in a task costs one attempt, told with its host and seconds; the end is the same."""
    config = doomed("ray", "run.executor=ray")
    failed = ends_the_same(config, harness.run(config), doomed("clean"))
    assert failed["error"] == "WorkerLost"


@pytest.mark.slow
@pytest.mark.ray
def test_a_killed_driver_of_ray_is_taken_over(corpus, unbroken, tmp_path):
    """A driver killed with its own Ray cluster at work is taken over at once, whatever that cluster still writes."""
    expected, most = unbroken
    process = drivers.drive(configure(corpus, tmp_path, "run.workers=2", "run.executor=ray"), tmp_path)
    drivers.wait_for(process, tmp_path, most // 2)
    # Ray's agents stay for a minute, and write nothing of ours.
    children = psutil.Process(process.pid).children(recursive=True)
    orphans = [child for child in children if "Agent" not in " ".join(child.cmdline())]
    process.kill()
    process.wait()
    config = configure(corpus, tmp_path)
    before, done = watch.newest(config), watch.committed(config)
    report = runs.run(config)
    assert not done & {watch.name_of(cell) for cell in watch.cells(config, before)}
    drivers.wait_for_end(orphans)
    harness.sound(config, report)
    assert harness.differing(harness.outcome(config, report), expected) == []
    assert drivers.clean(config)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("doomed", ["PARK"], indirect=True)
def test_a_lost_node_is_a_lost_attempt(doomed, tmp_path):
    """A node that dies with a task on it costs that attempt; the other node does the rest, and the end is the same."""
    config = doomed("ray", "run.executor=ray")
    (tmp_path / "run.yaml").write_text(config.dump())
    command = [sys.executable, str(Path(__file__).with_name("node_loss.py")), "run.yaml", "marks"]
    environment = {**os.environ, "PYTHONPATH": drivers.IMPORTS}
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    [path] = (tmp_path / "ray").glob("work/test/results/*/report.json")
    report = json.loads(path.read_text())
    harness.sound(config, report)
    ends_the_same(config, report, doomed("clean"))
