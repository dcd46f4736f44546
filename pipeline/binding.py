"""Bring stages to life in a worker: files fetched, facts read, functions bound once and kept."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline import storage
from pipeline.job import Job, StageRef
from pipeline.keys import canonical
from pipeline.stage import Context, Stage, StageConfig
from pipeline.storage import Store

KEPT = 8
"""Bound stages a worker keeps: a run has few, and a model may be large."""


def stage_of(job: Job, label: str) -> tuple[Stage, StageConfig]:
    return _load(job.stages[label].ref, canonical(dict(job.stages[label].settings)))


@functools.lru_cache(maxsize=64)
def _load(ref: str, settings: bytes) -> tuple[Stage, StageConfig]:
    return StageRef(ref=ref, settings=json.loads(settings)).load()


def context(job: Job, label: str, facts: str = "") -> Context:
    """The context of a stage: its files are local copies, `facts` the path of what it settled, if it did."""
    files = {name: _fetched(url) for name, url in job.stages[label].files.items()}
    return Context(
        files=files, facts=read_facts(job.work, facts) if facts else None, seed=job.seed, sources=job.sources,
        corpus_bytes=job.corpus_bytes,
    )  # fmt: skip


@functools.lru_cache(maxsize=64)
def _fetched(url: str) -> Path:
    return storage.fetch(url, model_folder())


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
        canonical([dict(ref.settings), dict(ref.files)]).decode(),
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
