"""The cells of one slice in one reading: every step is a pair of closures, `advance(frame)` and `finish()`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from pipeline import columns, exchange, ingest, steps, utf8
from pipeline.binding import stage_of
from pipeline.errors import ContractError
from pipeline.frame import INGESTED, Frame
from pipeline.job import Job, SidecarRef, Step, UnitWork
from pipeline.reading import RawBatch, read_rows
from pipeline.stage import Emit, GlobalStage, SettleStage, names
from pipeline.types import SLICE_BITS, CellResult

ROW_MASK = (1 << SLICE_BITS) - 1
NUMBER_ROWS = 1 << 18
"""Rows of a batch when no text is read."""


def run_unit(job: Job, unit: UnitWork, attempt: int) -> list[CellResult]:
    """Do the missing cells of one slice and publish their files. Reading is charged to the first of them."""
    known = {label: _sidecar(job, unit, ref) for label, ref in unit.sidecars.items()}
    carried = {step.cell.label: _sidecar(job, unit, step.carry) for step in unit.steps if step.carry}
    records = {step.cell.id: _addressed(job, unit, step) for step in unit.steps if step.records}
    pairs = [
        steps.prepare(job, unit, step, attempt, carried.get(step.cell.label), records.get(step.cell.id))
        for step in unit.steps
    ]
    seconds = [0.0] * len(pairs)
    clock = time.process_time()
    for frame in _frames(job, unit, known, carried, records):
        for index, (advance, _) in enumerate(pairs):
            begun = time.process_time()
            advance(frame)
            seconds[index] += time.process_time() - begun
    seconds[0] += time.process_time() - clock - sum(seconds)
    results = []
    for index, (_, finish) in enumerate(pairs):
        begun = time.process_time()
        result = finish()
        seconds[index] += time.process_time() - begun
        results.append(replace(result, facts={**result.facts, "cpu": round(seconds[index], 4)}))
    return results


def _sidecar(job: Job, unit: UnitWork, ref: SidecarRef) -> pa.Table:
    return columns.read(job.work, ref.path, unit.part.rows, steps.identity(unit, ref.key))


def _addressed(job: Job, unit: UnitWork, step: Step) -> pa.Table:
    """The records that the reduce phase before this step addressed to rows of this slice; `row` is the row in it."""
    low, high = unit.ordinal << SLICE_BITS, (unit.ordinal + 1) << SLICE_BITS
    table = exchange.gather(job.work, [(path, None) for path in step.records], low, high)
    if table is None:
        return pa.table({"row": pa.array([], pa.uint32())})
    rows = (table["key"].to_numpy() & np.uint64(ROW_MASK)).astype(np.int64)
    order = np.argsort(rows, kind="stable")
    return table.drop_columns(["key"]).append_column("row", pa.array(rows)).take(pa.array(order)).combine_chunks()


# -- reading ---------------------------------------------------------------------------------------------------------


def _frames(
    job: Job,
    unit: UnitWork,
    known: Mapping[str, pa.Table],
    carried: Mapping[str, pa.Table],
    records: Mapping[str, pa.Table],
) -> Iterator[Frame]:
    wanted = _rows_needing_text(job, unit, known, carried, records)
    inputs = _inputs(job, unit, bool(wanted.any()))
    for raw in _raw(job, unit, inputs, wanted):
        found = dict(raw.columns or {})
        frame = Frame(raw.first, raw.rows, found, None, known, token_ratio=job.token_ratio, sources=job.sources)
        if unit.steps[0].kind == "ingest":
            frame.made[ingest.LABEL], frame.text = ingest.ingest(raw, job.names, job.policy)
            if frame.text is None:
                frame.raw = _null_columns(job, inputs, raw.rows)
                frame.text = pa.nulls(raw.rows, pa.large_string())
        elif raw.columns is None and inputs:
            frame.raw = _null_columns(job, inputs, raw.rows)
            if raw.error and (frame.alive(ingest.LABEL) & wanted[raw.first : raw.first + raw.rows]).any():
                raise ContractError(f"{unit.part.url}: rows that could be read before cannot be now: {raw.error}")
            frame.text = pa.nulls(raw.rows, pa.large_string())
        elif job.names["text"] in found:
            frame.text = utf8.decoded(found[job.names["text"]])[0]
        yield frame


def _null_columns(job: Job, inputs: Sequence[str], rows: int) -> dict[str, pa.Array]:
    return {name: pa.nulls(rows, job.schema.field(name).type) for name in inputs}


def _raw(job: Job, unit: UnitWork, inputs: Sequence[str], wanted: np.ndarray) -> Iterator[RawBatch]:
    if not unit.part.rows:
        yield RawBatch(0, 0, _null_columns(job, inputs, 0))
        return
    if inputs:
        text = job.names["text"]
        yield from read_rows(unit.part, job.schema, inputs, wanted if text in inputs else None, text=text)
        return
    for first in range(0, unit.part.rows, NUMBER_ROWS):
        yield RawBatch(first, min(NUMBER_ROWS, unit.part.rows - first), None)


def _inputs(job: Job, unit: UnitWork, text: bool) -> list[str]:
    """Input columns to read: all for ingest, else what the steps name."""
    if unit.steps[0].kind == "ingest":
        return list(job.schema.names)
    asked = {name for step in unit.steps for name in reads_of(job, step)}
    labels = {*unit.sidecars, *(step.cell.label for step in unit.steps)}
    core = {*INGESTED, "text", "tokens", "source.priority", "row"}
    plain = sorted(name for name in asked - core if name.partition(".")[0] not in labels or name in job.schema.names)
    return [*plain, job.names["text"]] if text else plain


def reads_of(job: Job, step: Step) -> tuple[str, ...]:
    """The column names that a step asks for."""
    if step.kind in ("ingest", "scatter", "account"):
        return ()
    stage, config = stage_of(job, step.cell.label)
    if isinstance(stage, GlobalStage):
        phase = stage.phases[step.index]
        return names(phase.reads, config) if isinstance(phase, Emit) else ()
    if step.kind == "measure" and isinstance(stage, SettleStage):
        return names(stage.measure_reads, config)
    return (*names(stage.reads, config), *names(stage.decide_reads, config))


def _rows_needing_text(
    job: Job,
    unit: UnitWork,
    known: Mapping[str, pa.Table],
    carried: Mapping[str, pa.Table],
    records: Mapping[str, pa.Table],
) -> np.ndarray:
    """Rows whose text some step may need, by what is known before the first step has run."""
    everything = np.ones(unit.part.rows, bool)
    if unit.steps[0].kind == "ingest":
        return everything
    live = columns.alive(known[unit.steps[0].after])
    wanted = np.zeros(unit.part.rows, bool)
    for step in unit.steps:
        if "text" not in reads_of(job, step):
            continue
        before = columns.alive(known[step.after]) if step.after in known else live
        if step.cell.id in records:
            chosen = np.zeros(unit.part.rows, bool)
            chosen[records[step.cell.id]["row"].to_numpy()] = True
            before = before & chosen
        if step.kind == "map" and step.cell.label in carried:
            before = before & ~carried[step.cell.label]["measured"].to_numpy()
        wanted |= before
    return wanted
