"""Bring stages to life in a worker: files fetched, facts read, functions bound once and kept."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline import storage
from pipeline.errors import ContractError
from pipeline.job import Job, StageRef
from pipeline.keys import canonical, hash_bytes
from pipeline.stage import Context, Stage, StageConfig
from pipeline.storage import Store

KEPT = 8
"""Bound stages a worker keeps: a run has few, and a model may be large."""


def stage_of(job: Job, label: str) -> tuple[Stage, StageConfig]:
    return _load(job.stages[label].ref, canonical(dict(job.stages[label].settings)))


@functools.cache
def kernel_cache() -> None:
    """Give numba a cache folder of this node that is named by the stages' sources.

    Its own index looks at the file of a compiled function, not at those of the functions that it calls, so that a
    changed callee would go on running as it was. A folder that the environment names is left as it is.
    """
    spec = importlib.util.find_spec("stages")
    if spec is None or not spec.submodule_search_locations:
        return
    sources = sorted(Path(spec.submodule_search_locations[0]).rglob("*.py"))
    digest = hash_bytes(b"".join(path.read_bytes() for path in sources))
    folder = Path(tempfile.gettempdir()) / f"corpusmill-kernels-{os.getuid()}-{digest[:12]}"
    os.environ.setdefault("NUMBA_CACHE_DIR", str(folder))


@functools.lru_cache(maxsize=64)
def _load(ref: str, settings: bytes) -> tuple[Stage, StageConfig]:
    kernel_cache()
    return StageRef(ref=ref, settings=json.loads(settings)).load()


def context(job: Job, label: str, facts: str = "") -> Context:
    """The context of a stage: its files are local copies, `facts` the path of what it settled, if it did."""
    ref = job.stages[label]
    files = {name: _fetched(url, ref.hashes[name]) for name, url in ref.files.items()}
    return Context(
        files=files, facts=read_facts(job.work, facts) if facts else None, seed=job.seed, sources=job.sources,
        corpus_bytes=job.corpus_bytes,
    )  # fmt: skip


@functools.lru_cache(maxsize=64)
def _fetched(url: str, digest: str) -> Path:
    """A local copy of a model file. Raises ContractError if it is no longer the one that the run was planned with."""
    path = storage.fetch(url, model_folder())
    if hash_bytes(path.read_bytes()) != digest:
        raise ContractError(f"{url}: changed while the run was under way; run again to take it as it is now")
    return path


def model_folder() -> Path:
    """Where fetched model files lie on this node, shared by its workers."""
    folder = Path(tempfile.gettempdir()) / "corpusmill-models"
    folder.mkdir(exist_ok=True)
    return folder


def read_facts(work: Store, path: str) -> Any:
    """Facts as their stage returned them: JSON from .json, bytes from .bin."""
    data = _facts_bytes(work, path)
    return json.loads(data) if path.endswith(".json") else data


@functools.lru_cache(maxsize=KEPT)
def _facts_bytes(work: Store, path: str) -> bytes:
    return work.read_bytes(path)


_bound: dict[tuple[str, ...], Any] = {}


def bound(job: Job, label: str, part: str, facts: str, make: Callable[[Stage, StageConfig, Context], Any]) -> Any:
    """`make(stage, config, context)` once per worker for this stage, part and facts; the oldest of KEPT goes first."""
    ref = job.stages[label]
    key = (
        ref.ref,
        canonical([dict(ref.settings), dict(ref.files), dict(ref.hashes)]).decode(),
        part,
        facts,
        job.work.url,
        str(job.corpus_bytes),
    )
    if key not in _bound:
        stage, config = stage_of(job, label)
        value = make(stage, config, context(job, label, facts))
        while len(_bound) >= KEPT:
            _bound.pop(next(iter(_bound)))
        _bound[key] = value
    return _bound[key]


def release() -> None:
    """Let go of every bound stage and its facts."""
    _bound.clear()
    _facts_bytes.cache_clear()
