"""The cells of one slice in one reading: every step is a pair of closures, `advance(frame)` and `finish()`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from pipeline import account, columns, exchange, ingest, listing, settle
from pipeline.binding import bound, stage_of
from pipeline.errors import ContractError
from pipeline.frame import INGESTED, Frame
from pipeline.job import Job, SidecarRef, Step, UnitWork
from pipeline.reading import RawBatch, read_rows
from pipeline.stage import Emit, GlobalStage, MapStage, SettleStage, Transform, names
from pipeline.types import FAILED, GONE, SCORED, SLICE_BITS, UNSCORABLE, CellResult, Output

Pair = tuple[Callable[[Frame], None], Callable[[], CellResult]]
ROW_MASK = (1 << SLICE_BITS) - 1
NUMBER_ROWS = 1 << 18
"""Rows of a batch when no text is read."""
MANY_TABLES = 64
"""Count tables of batches that wait before they are added up."""


def run_unit(job: Job, unit: UnitWork, attempt: int) -> list[CellResult]:
    """Do the missing cells of one slice and publish their files."""
    known = {label: _sidecar(job, unit, ref) for label, ref in unit.sidecars.items()}
    carried = {step.cell.label: _sidecar(job, unit, step.carry) for step in unit.steps if step.carry}
    records = {step.cell.id: _addressed(job, unit, step) for step in unit.steps if step.records}
    pairs = [_step(job, unit, step, attempt, carried.get(step.cell.label), records.get(step.cell.id)) for step in unit.steps]
    for frame in _frames(job, unit, known, carried, records):
        for advance, _ in pairs:
            advance(frame)
    return [finish() for _, finish in pairs]


def _sidecar(job: Job, unit: UnitWork, ref: SidecarRef) -> pa.Table:
    return columns.read(job.work, ref.path, unit.part.rows, _names(unit, ref.key))


def _names(unit: UnitWork, key: str) -> dict[str, str]:
    return {"shard": unit.part.shard_id, "first_row": str(unit.part.first_row), "key": key}


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
    job: Job, unit: UnitWork, known: Mapping[str, pa.Table], carried: Mapping[str, pa.Table], records: Mapping[str, pa.Table]
) -> Iterator[Frame]:
    wanted = _rows_needing_text(job, unit, known, carried, records)
    inputs = _inputs(job, unit, bool(wanted.any()))
    for raw in _raw(job, unit, inputs, wanted):
        found = dict(raw.columns or {})
        frame = Frame(
            raw.first, raw.rows, found, None, known, token_ratio=job.token_ratio, sources=job.sources
        )
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
            frame.text = ingest.utf8(found[job.names["text"]])[0]
        yield frame


def _null_columns(job: Job, inputs: Sequence[str], rows: int) -> dict[str, pa.Array]:
    return {name: pa.nulls(rows, job.schema.field(name).type) for name in inputs}


def _raw(job: Job, unit: UnitWork, inputs: Sequence[str], wanted: np.ndarray) -> Iterator[RawBatch]:
    if inputs:
        yield from read_rows(unit.part, job.schema, inputs, None if job.names["text"] not in inputs else wanted)
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
    job: Job, unit: UnitWork, known: Mapping[str, pa.Table], carried: Mapping[str, pa.Table], records: Mapping[str, pa.Table]
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


# -- steps -----------------------------------------------------------------------------------------------------------


def _step(job: Job, unit: UnitWork, step: Step, attempt: int, carried: pa.Table | None, records: pa.Table | None) -> Pair:
    if step.kind == "map":
        return _map(job, unit, step, attempt, carried)
    if step.kind == "measure":
        return _measure(job, unit, step, attempt)
    if step.kind == "emit":
        return _emit(job, unit, step, attempt, records)
    if step.kind == "scatter":
        return _scatter(job, unit, step, attempt, records)
    if step.kind == "account":
        return _account(job, unit, step, attempt)
    return _collect(job, unit, step, attempt)


def _path(unit: UnitWork, step: Step, attempt: int, suffix: str) -> str:
    return f"{step.folder}/{unit.part.unit[:2]}/{unit.part.unit}.{attempt}.{suffix}"


def _published(job: Job, unit: UnitWork, step: Step, attempt: int, kept: list[Mapping[str, pa.Array]]) -> CellResult:
    path = _path(unit, step, attempt, "parquet")
    output = columns.write(job.work, path, kept, _names(unit, step.cell.key))
    return CellResult(cell=step.cell, outputs=(output,), facts=_tally(kept))


def _tally(kept: list[Mapping[str, pa.Array]]) -> dict[str, int]:
    """Rows by state: what progress and plans need without opening the file."""
    codes = np.concatenate([columns.state_codes(piece["state"]) for piece in kept])
    passing = np.concatenate([pc.is_null(piece["reason"]).to_numpy(zero_copy_only=False) for piece in kept])
    return {"rows": len(codes), "alive": int(((codes < GONE) & passing).sum()), "failed": int((codes == FAILED).sum())}


def _collect(job: Job, unit: UnitWork, step: Step, attempt: int) -> Pair:
    """Ingest: the frame was made by it, so only its columns are kept."""
    kept: list[Mapping[str, pa.Array]] = []

    def finish() -> CellResult:
        result = _published(job, unit, step, attempt, kept)
        live = [columns.alive(pa.table({k: piece[k] for k in ("state", "reason")})) for piece in kept]
        size = sum(int(piece["bytes"].to_numpy()[ok].sum()) for piece, ok in zip(kept, live, strict=True))
        content = xxhash.xxh3_128_hexdigest(b"".join(listing.fixed_bytes(piece["content_hash"]) for piece in kept))
        return CellResult(cell=step.cell, outputs=result.outputs, facts={**result.facts, "bytes": size, "content": content})

    return lambda frame: kept.append(frame.made[ingest.LABEL]), finish


def guarded(transform: Transform, batch: pa.RecordBatch, check: pa.Schema | None) -> tuple[list[Any], list[tuple[int, str]]]:
    """Apply `transform`; a batch on which it raises is halved until the rows at fault are alone.

    Returns [(positions, result), ...] and [(position, message), ...].
    """
    good: list[Any] = []
    bad: list[tuple[int, str]] = []
    todo = [np.arange(batch.num_rows)] if batch.num_rows else []
    while todo:
        rows = todo.pop()
        piece = batch if len(rows) == batch.num_rows else batch.slice(int(rows[0]), len(rows))
        try:
            result = transform(piece)
        except (MemoryError, KeyboardInterrupt, SystemExit):
            raise
        except Exception as error:
            if len(rows) == 1:
                bad.append((int(rows[0]), f"{type(error).__name__}: {error}"[:500]))
            else:
                half = len(rows) // 2
                todo += [rows[half:], rows[:half]]
            continue
        if check is not None and (result.num_rows != len(rows) or not result.schema.equals(check)):
            raise ContractError(
                f"a stage returned {result.num_rows} rows of {result.schema} for {len(rows)} rows; it promised {check}"
            )
        good.append((rows, result))
    return good, bad


def _map(job: Job, unit: UnitWork, step: Step, attempt: int, carried: pa.Table | None) -> Pair:
    stage, config = stage_of(job, step.cell.label)
    assert not isinstance(stage, GlobalStage)
    label, kept = step.cell.label, list[Mapping[str, pa.Array]]()
    transform = bound(job, label, "bind", step.facts, lambda s, c, x: s.bind(c, x) if s.bind else None)
    decide = bound(job, label, "decide", step.facts, lambda s, c, x: (lambda b: s.decide(c, x, b)) if s.decide else None)
    asked = names(stage.reads, config)
    extra = stage.decide_writes if isinstance(stage, SettleStage) else pa.schema([])
    known_bad = dict(step.failed)

    def advance(frame: Frame) -> None:
        live = frame.alive(step.after)
        old = carried.slice(frame.first, frame.rows) if carried is not None else None
        measures, measured, failed = _measures(frame, stage, transform, asked, live, old, known_bad)
        made: dict[str, pa.Array] = dict(measures)
        code = np.where(live, SCORED, GONE).astype(np.int8)
        if stage.score:
            code[live & pc.is_null(measures[stage.score]).to_numpy(zero_copy_only=False)] = UNSCORABLE
        code[list(failed)] = FAILED
        code[~live] = GONE
        made |= {"state": columns.states(code), "measured": pa.array(measured)}
        made |= _decided(frame, stage, decide, names(stage.decide_reads, config), extra, measures, code < GONE)
        _quarantine(made, failed, live)
        frame.made[label] = made
        kept.append(made)

    return advance, lambda: _published(job, unit, step, attempt, kept)


def _measures(
    frame: Frame, stage: MapStage | SettleStage, transform: Transform | None, asked: Sequence[str],
    live: np.ndarray, old: pa.Table | None, known_bad: Mapping[int, str],
) -> tuple[dict[str, pa.Array], np.ndarray, dict[int, str]]:  # fmt: skip
    """The stage's measures for every row: carried where they are known, scored where a live row has none."""
    rows = frame.rows
    have = old["measured"].to_numpy() if old is not None else np.zeros(rows, bool)
    failed = {row - frame.first: text for row, text in known_bad.items() if frame.first <= row < frame.first + rows}
    if old is not None:
        messages = old["message"].to_pylist()
        failed |= {int(row): messages[row] for row in np.flatnonzero(columns.failed(old)) if live[row]}
    if transform is None:
        return {}, live | have, failed
    need = live & ~have
    need[list(failed)] = False
    where = np.flatnonzero(need)
    good, bad = guarded(transform, frame.batch(asked, need), stage.writes) if len(where) else ([], [])
    failed |= {int(where[position]): message for position, message in bad}
    positions = np.concatenate([where[r] for r, _ in good]) if good else np.empty(0, np.int64)
    index = place(positions, rows)
    measures = {}
    for item in stage.writes:
        values = pa.chunked_array([out[item.name] for _, out in good], item.type)
        if old is not None:
            offset = len(values)
            merged = np.where(index >= 0, index, np.where(have, np.arange(rows) + offset, -1))
            values = pa.chunked_array([*values.chunks, *old[item.name].cast(item.type).chunks], item.type)
            measures[item.name] = columns.spread(values, merged)
        else:
            measures[item.name] = columns.spread(values, index)
    return measures, have | (index >= 0), failed


place = columns.place


def _decided(
    frame: Frame, stage: MapStage | SettleStage, decide: Transform | None, asked: Sequence[str],
    extra: pa.Schema, measures: Mapping[str, pa.Array], live: np.ndarray,
) -> dict[str, pa.Array]:  # fmt: skip
    """Decision columns of every row, null where the stage said nothing."""
    kinds = dict(columns.NUMBERS_ONLY if decide else {"reason": pa.large_string()})
    kinds |= {"message": pa.large_string()} | {item.name: item.type for item in extra}
    made = {name: columns.nulls(kind, frame.rows) for name, kind in kinds.items()}
    if decide is not None and live.any():
        out = decide(frame.batch(asked, live, **measures))
        index = columns.place(np.flatnonzero(live), frame.rows)
        for name in out.schema.names:
            made[name] = columns.spread(out[name].cast(kinds[name]), index)
    return made


def _quarantine(made: dict[str, pa.Array], failed: Mapping[int, str], live: np.ndarray) -> None:
    """Mark the rows on which the stage raised."""
    rows = sorted(row for row in failed if live[row])
    if not rows:
        return
    mask = np.zeros(len(live), bool)
    mask[rows] = True
    made["reason"] = pc.if_else(pa.array(mask), pa.scalar("stage_error", pa.large_string()), made["reason"])
    messages = columns.spread(pa.array([failed[row] for row in rows], pa.large_string()), columns.place(np.array(rows), len(live)))
    made["message"] = pc.coalesce(messages, made["message"])


def _measure(job: Job, unit: UnitWork, step: Step, attempt: int) -> Pair:
    stage, config = stage_of(job, step.cell.label)
    assert isinstance(stage, SettleStage)
    count = bound(job, step.cell.label, "measure", "", lambda s, c, x: s.measure(c, x))
    asked, tables, failed = names(stage.measure_reads, config), list[pa.Table](), list[tuple[int, str]]()

    def advance(frame: Frame) -> None:
        live = frame.alive(step.after)
        if not tables:
            tables.append(count(frame.batch(asked, np.zeros(frame.rows, bool))))
        where = np.flatnonzero(live)
        good, bad = guarded(count, frame.batch(asked, live), None)
        tables.extend(table for _, table in good)
        failed.extend((frame.first + int(where[position]), message) for position, message in bad)
        if len(tables) >= MANY_TABLES:
            tables[:] = [settle.add(tables, stage.count_keys)]

    def finish() -> CellResult:
        output = exchange.write_counts(job.work, _path(unit, step, attempt, "arrow"), settle.add(tables, stage.count_keys))
        return CellResult(cell=step.cell, outputs=(output,), facts={"failures": failed} if failed else {})

    return advance, finish


def _emit(job: Job, unit: UnitWork, step: Step, attempt: int, records: pa.Table | None) -> Pair:
    stage, config = stage_of(job, step.cell.label)
    assert isinstance(stage, GlobalStage)
    phase = stage.phases[step.index]
    assert isinstance(phase, Emit)
    index = step.index
    emit = bound(job, step.cell.label, phase.name, "", lambda s, c, x: s.phases[index].bind(c, x))
    asked, made, failed = names(phase.reads, config), list[pa.RecordBatch](), list[tuple[int, str]]()

    def advance(frame: Frame) -> None:
        live = frame.alive(step.after)
        extra = {"row": pa.array(np.arange(frame.first, frame.first + frame.rows, dtype=np.uint32))}
        if records is not None:
            chosen, columns_ = _chosen(records, frame)
            live, extra = live & chosen, extra | columns_
        if not live.any():
            return
        where = np.flatnonzero(live)
        good, bad = guarded(emit, frame.batch(asked, live, **extra), None)
        made.extend(out for _, out in good if out.num_rows)
        failed.extend((frame.first + int(where[position]), message) for position, message in bad)

    def finish() -> CellResult:
        output, raw = exchange.write(job.work, _path(unit, step, attempt, "arrow"), made, exchange.KEY_SPACE)
        facts: dict[str, Any] = {"raw": raw} | ({"failures": failed} if failed else {})
        return CellResult(cell=step.cell, outputs=(output,), facts=facts)

    return advance, finish


def _chosen(records: pa.Table, frame: Frame) -> tuple[np.ndarray, dict[str, pa.Array]]:
    """Rows of the frame that records address, and the records' columns at full length."""
    rows = records["row"].to_numpy()
    low, high = np.searchsorted(rows, [frame.first, frame.first + frame.rows])
    piece = records.slice(low, high - low)
    index = columns.place(rows[low:high] - frame.first, frame.rows)
    return index >= 0, {name: columns.spread(piece[name], index) for name in records.column_names if name != "row"}


def _scatter(job: Job, unit: UnitWork, step: Step, attempt: int, records: pa.Table | None) -> Pair:
    stage, _ = stage_of(job, step.cell.label)
    assert isinstance(stage, GlobalStage)
    kinds = columns.DECISIONS | {item.name: item.type for item in stage.writes} | {"message": pa.large_string()}
    kept = list[Mapping[str, pa.Array]]()
    found = records if records is not None else pa.table({"row": pa.array([], pa.int64())})

    def advance(frame: Frame) -> None:
        live = frame.alive(step.after)
        chosen, values = _chosen(found, frame)
        if "charged" in values:
            values["charged_shard"], values["charged_row"] = listing.keys_of(job, values.pop("charged"))
        made = {name: values[name].cast(kind) if name in values else columns.nulls(kind, frame.rows) for name, kind in kinds.items()}
        failed = {row - frame.first: text for row, text in step.failed if frame.first <= row < frame.first + frame.rows}
        code = np.where(live, SCORED, GONE).astype(np.int8)
        code[[row for row in failed if live[row]]] = FAILED
        made |= {"state": columns.states(code), "measured": pa.array(live)}
        _quarantine(made, failed, live)
        frame.made[step.cell.label] = made
        kept.append(made)

    return advance, lambda: _published(job, unit, step, attempt, kept)


def _account(job: Job, unit: UnitWork, step: Step, attempt: int) -> Pair:
    tables = list[pa.Table]()
    chain = [*unit.sidecars, *(other.cell.label for other in unit.steps if other.kind in ("ingest", "map", "scatter"))]
    order = [label for label in (ingest.LABEL, *job.stages) if label in chain]
    loaded = [(label, stage_of(job, label)[0]) for label in order if label != ingest.LABEL]
    scores = [(label, stage.score) for label, stage in loaded if not isinstance(stage, GlobalStage) and stage.score]

    def finish() -> CellResult:
        total = settle.add(tables, account.KEYS)
        output: Output = exchange.write_counts(job.work, _path(unit, step, attempt, "arrow"), total)
        return CellResult(cell=step.cell, outputs=(output,), facts=account.totals(total))

    return lambda frame: tables.append(account.measure(frame, order, scores)), finish
