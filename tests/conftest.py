"""What all tests share: Ray's environment, set before anything imports it, and the one Ray cluster of a session."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

pytest_plugins = ["s3_server"]
ROOT = Path(__file__).parents[1]

os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

# The same examples in every run, and none too slow: the first one of a kernel pays for compiling it.
settings.register_profile("corpusmill", deadline=None, derandomize=True)
settings.load_profile("corpusmill")


@pytest.fixture(scope="session")
def ray_session():
    """A Ray cluster of two CPUs on this machine, whose workers import what the tests import.

    Executors use the connection that a process has, so every test shares the ten seconds that it takes to start.
    """
    import ray

    from pipeline.worker import THREADS

    with pytest.MonkeyPatch.context() as patch:
        for name in THREADS:
            patch.setenv(name, "1")
        folders = [str(ROOT), str(ROOT / "tests" / "e2e"), os.environ.get("PYTHONPATH", "")]
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, folders)))
        ray.init(
            address="local", num_cpus=2, include_dashboard=False, object_store_memory=100_000_000,
            log_to_driver=False, logging_level="error",
        )  # fmt: skip
        yield
        ray.shutdown()
