"""What the ledger and spies tell of a run: the cells it computed, the columns it read, the rows it scored."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline import rowgroups, slices, steps
from pipeline.config import Config
from pipeline.frame import Frame
from pipeline.opened import work_store


def records(config: Config, after: int = 0) -> list[dict[str, Any]]:
    """Every record of the ledger's files numbered above `after`, in order."""
    folder = work_store(config).local_path("ledger")
    files = [path for path in sorted(folder.glob("*.jsonl")) if int(path.stem) > after]
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def newest(config: Config) -> int:
    """The number of the ledger's last file."""
    return max((int(path.stem) for path in work_store(config).local_path("ledger").glob("*.jsonl")), default=0)


def cells(config: Config, after: int = 0) -> list[dict[str, Any]]:
    """The cells of all `done` records, in order."""
    return [cell for record in records(config, after) if record["kind"] == "done" for cell in record["cells"]]


def name_of(cell: dict[str, Any]) -> tuple[str, str, str]:
    """What makes two cells the same one: key, phase, unit."""
    return cell["key"], cell["phase"], cell["unit"]


def committed(config: Config) -> set[tuple[str, str, str]]:
    """Cells that the ledger calls done and whose files lie there with the size it recorded."""
    work = Path(work_store(config).url)
    roots = {"hot": Path(config.tiers.hot.url), "cold": Path(config.tiers.cold.url)}

    def whole(cell: dict[str, Any]) -> bool:
        root = roots.get(cell["phase"], work)
        files = [(root / output["path"], output["bytes"]) for output in cell["outputs"]]
        return all(path.is_file() and path.stat().st_size == size for path, size in files)

    return {name_of(cell) for cell in cells(config) if whole(cell)}


@contextmanager
def computing(config: Config) -> Iterator[Counter[str]]:
    """Cells done inside the block, counted by `label.phase`; those of publication are left out."""
    before, found = newest(config), Counter[str]()
    yield found
    done = {name_of(cell): cell for cell in cells(config, before)}
    found.update(f"{cell['label']}.{cell['phase']}" for cell in done.values() if cell["label"] != "publish")


@contextmanager
def reading() -> Iterator[dict[str, list[tuple[str, tuple[str, ...]]]]]:
    """Readings of input rows inside the block: (shard, columns), under `stages` and under `publish`."""
    found: dict[str, list[tuple[str, tuple[str, ...]]]] = {"stages": [], "publish": []}
    with pytest.MonkeyPatch.context() as patch:
        for module, name in ((slices, "stages"), (rowgroups, "publish")):
            real = module.read_rows

            def spied(
                part: Any, schema: Any, columns: Any, *rest: Any, real: Any = real, name: str = name, **more: Any
            ) -> Any:
                found[name].append((part.shard_id, tuple(columns)))
                return real(part, schema, columns, *rest, **more)

            patch.setattr(module, "read_rows", spied)
        yield found


@contextmanager
def scoring() -> Iterator[Counter[tuple[str, str, str, int]]]:
    """How often each row was handed to a map stage's transform inside the block: (label, score key, unit, row)."""
    found = Counter[tuple[str, str, str, int]]()
    last: dict[str, Any] = {}
    prepare, batch, guarded = steps.prepare, Frame.batch, steps.guarded

    def prepared(job: Any, unit: Any, step: Any, *rest: Any) -> Any:
        advance, finish = prepare(job, unit, step, *rest)

        def advanced(frame: Frame) -> None:
            last["cell"] = step.cell.label, step.cell.score_key, unit.part.unit
            advance(frame)

        return advanced, finish

    def batched(self: Frame, names: Any, rows: Any, **extra: Any) -> Any:
        last["rows"] = self.first + np.flatnonzero(rows)
        return batch(self, names, rows, **extra)

    def guard(transform: Any, given: Any, check: Any) -> Any:
        if check is not None:  # the schema that a map stage has promised: it is being scored
            found.update((*last["cell"], int(row)) for row in last["rows"])
        return guarded(transform, given, check)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "prepare", prepared)
        patch.setattr(Frame, "batch", batched)
        patch.setattr(steps, "guarded", guard)
        yield found
