"""The demonstration's own corpus and stages: the same bytes on every executor and worker count."""

from __future__ import annotations

import sys
from pathlib import Path

import harness
import pytest

from pipeline import config as configs
from pipeline.commands import fitting
from stages import STAGES, quality

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """A folder with the demo corpus, the run of the rules and the model that is fitted on it."""
    import demo_corpus

    root = tmp_path_factory.mktemp("demo")
    demo_corpus.build(root / "corpus", 30, 6)
    rules = loaded("demo-rules", root, root / "rules")
    harness.run(rules)
    fitting.fit_quality(
        f"{root}/rules/hot/demo-rules", f"{root}/rules/cold/demo-rules", str(root / "quality.bin"), quality.fit
    )
    return root


def loaded(name, root, tiers, *sets):
    """A shipped config on this corpus, with tiers of its own."""
    given = [
        f"input.paths=['{root}/corpus/*.parquet']",
        *(f"tiers.{t}.url='{tiers}/{t}'" for t in ("work", "hot", "cold")),
    ]
    if name == "demo":
        given.append(f"quality.model='{root}/quality.bin'")
    return configs.load(ROOT / "configs" / f"{name}.yaml", STAGES, [*given, "run.workers=0", *sets])


@pytest.fixture(scope="module")
def expected(demo, tmp_path_factory):
    config = loaded("demo", demo, tmp_path_factory.mktemp("one"))
    return harness.outcome(config, harness.run(config))


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_worker_counts_leave_no_trace(demo, expected, tmp_path, workers):
    """hot, cold, removed/, the manifest and the report are those of one process."""
    config = loaded("demo", demo, tmp_path, f"run.workers={workers}")
    assert harness.differing(harness.outcome(config, harness.run(config)), expected) == []


@pytest.mark.ray
def test_ray_leaves_no_trace(demo, expected, tmp_path, ray_session):
    """hot, cold, removed/, the manifest and the report are those of one process."""
    config = loaded("demo", demo, tmp_path, "run.executor=ray", "run.workers=2")
    assert harness.differing(harness.outcome(config, harness.run(config)), expected) == []
