"""Drivers in processes of their own, to be killed, and what must be true after that."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

from pipeline.opened import work_store

ROOT = Path(__file__).parents[2]
IMPORTS = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
"""PYTHONPATH of processes that run stages of these tests."""


def files(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


def drive(config, folder):
    """A driver in a process of its own."""
    (folder / "run.yaml").write_text(config.dump())
    main = "import sys; from pipeline.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", main, "run", str(folder / "run.yaml")]
    with (folder / "log").open("w") as log:
        return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": IMPORTS}, stdout=log, stderr=log)


def wait_for(process, folder, count):
    """Until the run has made so many files, or is over."""
    while process.poll() is None and len(files(folder)) < count:
        time.sleep(0.002)


def wait_for_end(processes):
    """Until none of them runs. One that has ended and that nobody reaps is no longer at work either."""

    def at_work(process):
        with suppress(psutil.NoSuchProcess):
            return process.status() != psutil.STATUS_ZOMBIE
        return False

    deadline = time.monotonic() + 60
    while any(map(at_work, processes)) and time.monotonic() < deadline:
        time.sleep(0.05)


def clean(config):
    """No file that was being written lies in what was published or reported."""
    results = work_store(config).local_path("results")
    published = (Path(config.tiers.hot.url), Path(config.tiers.cold.url), results)
    return [path for folder in published for path in folder.rglob(".*") if path.is_file()] == []
