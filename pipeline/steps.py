"""What a task does with each frame: every step is a pair of closures, `advance(frame)` and `finish() -> result`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from pipeline import account, columns, exchange, ingest, listing, settle
from pipeline.binding import bound, stage_of
from pipeline.errors import ContractError, CorpusmillError
from pipeline.frame import Frame
from pipeline.job import Job, Step, UnitWork
from pipeline.stage import Context, Emit, GlobalStage, MapStage, SettleStage, StageConfig, Transform, names
from pipeline.types import FAILED, GONE, SCORED, UNSCORABLE, CellResult, Output

Pair = tuple[Callable[[Frame], None], Callable[[], CellResult]]
RUN_BYTES = 32_000_000
"""Records of an emit phase that are held before they are sorted and written: texts may be as many as the slice has."""
MANY_TABLES = 64
"""Count tables of batches that wait before they are added up."""


def prepare(
    job: Job, unit: UnitWork, step: Step, attempt: int, carried: pa.Table | None, records: pa.Table | None
) -> Pair:
    """The closures of one step. `carried` is an earlier sidecar of its score key, `records` what addressed its rows."""
    make = {
        "ingest": _ingest,
        "map": _map,
        "measure": _measure,
        "emit": _emit,
        "scatter": _scatter,
        "account": _account,
    }
    return make[step.kind](job, unit, step, attempt, carried if step.kind == "map" else records)


def identity(unit: UnitWork, key: str) -> dict[str, str]:
    """What a sidecar says of itself, checked whenever it is read."""
    return {"shard": unit.part.shard_id, "first_row": str(unit.part.first_row), "key": key}


def _path(unit: UnitWork, step: Step, attempt: int, suffix: str) -> str:
    return f"{step.folder}/{unit.part.unit[:2]}/{unit.part.unit}.{attempt}.{suffix}"


def _published(job: Job, unit: UnitWork, step: Step, attempt: int, kept: list[Mapping[str, pa.Array]]) -> CellResult:
    path = _path(unit, step, attempt, "parquet")
    output = columns.write(job.work, path, kept, identity(unit, step.cell.key))
    return CellResult(cell=step.cell, outputs=(output,), facts=_tally(kept))


def _tally(kept: list[Mapping[str, pa.Array]]) -> dict[str, int]:
    """Rows by state: what progress and plans need without opening the file."""
    codes = np.concatenate([columns.state_codes(piece["state"]) for piece in kept])
    passing = np.concatenate([pc.is_null(piece["reason"]).to_numpy(zero_copy_only=False) for piece in kept])
    return {"rows": len(codes), "alive": int(((codes < GONE) & passing).sum()), "failed": int((codes == FAILED).sum())}


def _ingest(job: Job, unit: UnitWork, step: Step, attempt: int, nothing: pa.Table | None) -> Pair:
    """Ingest: the frame was made by it, so only its columns are kept."""
    kept: list[Mapping[str, pa.Array]] = []

    def finish() -> CellResult:
        result = _published(job, unit, step, attempt, kept)
        live = [columns.alive(pa.table({k: piece[k] for k in ("state", "reason")})) for piece in kept]
        size = sum(int(piece["bytes"].to_numpy()[ok].sum()) for piece, ok in zip(kept, live, strict=True))
        content = xxhash.xxh3_128_hexdigest(b"".join(columns.fixed_bytes(piece["content_hash"]) for piece in kept))
        broken = next(filter(None, map(ingest.undecodable, kept)), "")
        facts = {**result.facts, "bytes": size, "content": content} | ({"undecodable": broken} if broken else {})
        return CellResult(cell=step.cell, outputs=result.outputs, facts=facts)

    return lambda frame: kept.append(frame.made[ingest.LABEL]), finish


def guarded(
    transform: Transform, batch: pa.RecordBatch, check: pa.Schema | None
) -> tuple[list[Any], list[tuple[int, str]]]:
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
        except (CorpusmillError, MemoryError, KeyboardInterrupt, SystemExit):
            raise  # not the row's fault
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


def _bind(stage: Any, config: StageConfig, context: Context) -> Transform | None:
    return stage.bind(config, context) if stage.bind else None


def _bind_decide(stage: Any, config: StageConfig, context: Context) -> Transform | None:
    return (lambda batch: stage.decide(config, context, batch)) if stage.decide else None


def _map(job: Job, unit: UnitWork, step: Step, attempt: int, carried: pa.Table | None) -> Pair:
    stage, config = stage_of(job, step.cell.label)
    assert not isinstance(stage, GlobalStage)
    label, kept = step.cell.label, list[Mapping[str, pa.Array]]()
    transform = bound(job, label, "bind", step.facts, _bind)
    decide = bound(job, label, "decide", step.facts, _bind_decide)
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
        made |= _decided(frame, decide, names(stage.decide_reads, config), extra, measures, code < GONE)
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
    index = columns.place(positions, rows)
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


def _decided(
    frame: Frame, decide: Transform | None, asked: Sequence[str], extra: pa.Schema,
    measures: Mapping[str, pa.Array], live: np.ndarray,
) -> dict[str, pa.Array]:  # fmt: skip
    """Decision columns of every row, null where the stage said nothing."""
    kinds = dict(columns.NUMBERS_ONLY if decide else {"reason": pa.large_string()})
    kinds |= {"message": pa.large_string()} | {item.name: item.type for item in extra}
    made = {name: pa.nulls(frame.rows, kind) for name, kind in kinds.items()}
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
    messages = columns.spread(
        pa.array([failed[row] for row in rows], pa.large_string()), columns.place(np.array(rows), len(live))
    )
    made["message"] = pc.coalesce(messages, made["message"])


def _bind_measure(stage: Any, config: StageConfig, context: Context) -> Callable[[pa.RecordBatch], pa.Table]:
    return stage.measure(config, context)  # type: ignore[no-any-return]


def _measure(job: Job, unit: UnitWork, step: Step, attempt: int, nothing: pa.Table | None) -> Pair:
    stage, config = stage_of(job, step.cell.label)
    assert isinstance(stage, SettleStage)
    count = bound(job, step.cell.label, "measure", "", _bind_measure)
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
        output = exchange.write_counts(
            job.work, _path(unit, step, attempt, "arrow"), settle.add(tables, stage.count_keys)
        )
        return CellResult(cell=step.cell, outputs=(output,), facts={"failures": failed} if failed else {})

    return advance, finish


def _emit(job: Job, unit: UnitWork, step: Step, attempt: int, records: pa.Table | None) -> Pair:
    stage, config = stage_of(job, step.cell.label)
    assert isinstance(stage, GlobalStage)
    phase = stage.phases[step.index]
    assert isinstance(phase, Emit)
    emit = bound(job, step.cell.label, phase.name, "", lambda _, settings, context: phase.bind(settings, context))
    asked, made, failed = names(phase.reads, config), list[pa.RecordBatch](), list[tuple[int, str]]()
    runs = list[tuple[Output, int]]()

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

        if sum(batch.nbytes for batch in made) > RUN_BYTES:
            flush()

    def flush() -> None:
        path = _path(unit, step, attempt, f"{len(runs)}.arrow")
        runs.append(exchange.write(job.work, path, made, exchange.KEY_SPACE))

    def finish() -> CellResult:
        if made or not runs:
            flush()
        facts: dict[str, Any] = {"raw": sum(raw for _, raw in runs)} | ({"failures": failed} if failed else {})
        return CellResult(cell=step.cell, outputs=tuple(output for output, _ in runs), facts=facts)

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
        _, values = _chosen(found, frame)
        if "charged" in values:
            values["charged_shard"], values["charged_row"] = listing.keys_of(job, values.pop("charged"))
        made = {
            name: values[name].cast(kind) if name in values else pa.nulls(frame.rows, kind)
            for name, kind in kinds.items()
        }
        failed = {row - frame.first: text for row, text in step.failed if frame.first <= row < frame.first + frame.rows}
        code = np.where(live, SCORED, GONE).astype(np.int8)
        code[[row for row in failed if live[row]]] = FAILED
        made |= {"state": columns.states(code), "measured": pa.array(live)}
        _quarantine(made, failed, live)
        frame.made[step.cell.label] = made
        kept.append(made)

    return advance, lambda: _published(job, unit, step, attempt, kept)


def _account(job: Job, unit: UnitWork, step: Step, attempt: int, nothing: pa.Table | None) -> Pair:
    tables = list[pa.Table]()
    chain = [*unit.sidecars, *(other.cell.label for other in unit.steps if other.kind in ("ingest", "map", "scatter"))]
    order = [label for label in (ingest.LABEL, *job.stages) if label in chain]
    loaded = [(label, stage_of(job, label)[0]) for label in order if label != ingest.LABEL]
    scores = [(label, stage.score) for label, stage in loaded if not isinstance(stage, GlobalStage) and stage.score]

    def finish() -> CellResult:
        total = settle.add(tables, account.KEYS)
        output = exchange.write_counts(job.work, _path(unit, step, attempt, "arrow"), total)
        return CellResult(cell=step.cell, outputs=(output,), facts=account.totals(total))

    return lambda frame: tables.append(account.measure(frame, order, scores)), finish
