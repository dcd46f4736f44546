"""From a config and a corpus to phases, and from phases and what is done to tasks. Pure.

One key rule: the key of a phase is a hash of everything above it. Until the first phase in which rows meet, a key knows
nothing of the corpus, and a cell's key adds the input id of its slice; from there on the key holds all input ids.
A map phase also has a score key, which holds only what its measures depend on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pipeline import account, ingest, split
from pipeline.config import Config, StageEntry
from pipeline.job import ReduceWork, SettleWork, SidecarRef, SliceWork, Step, StepKind, UnitWork
from pipeline.keys import fingerprint
from pipeline.stage import Emit, GlobalStage, MapStage, Reduce, SettleStage, Stage, names
from pipeline.types import Cell, CellResult, Slice, Task

Over = Literal["slices", "partitions", "once"]
NUMBER_ROW_BYTES = 64
"""What a row of a task that reads no text counts as, beside the text bytes of one that does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """One phase of one stage. `key` is the stage-level key; a slice's cell adds its input id."""

    label: str
    name: str
    kind: StepKind | Literal["reduce", "settle"]
    over: Over
    key: str
    score: str = ""
    after: str = ""
    index: int = 0
    source: str = ""
    """Key of the phase whose output this one reads from the exchange."""
    facts: str = ""
    sidecar: bool = False
    text: bool = False
    """Whether its rows' text is read, unless their measures are carried over."""

    @property
    def folder(self) -> str:
        kind = "sidecars" if self.sidecar else "exchange"
        tail = "" if self.sidecar else f"/{self.name}"
        return f"{kind}/{self.label}-{self.key[:12]}{tail}"

    def cell(self, part: Slice) -> Cell:
        key = fingerprint(self.key, part.input_id)
        score = fingerprint(self.score, part.input_id) if self.score else ""
        return Cell(label=self.label, phase=self.name, unit=part.unit, key=key, score_key=score)

    def whole(self, unit: str) -> Cell:
        return Cell(label=self.label, phase=self.name, unit=unit, key=self.key)


@dataclass(frozen=True, slots=True)
class _Above:
    """What the next stage stands on."""

    key: str
    label: str
    global_key: str
    global_label: str


def phases(
    config: Config, ids: Sequence[str], names_of_parts: Mapping[str, str], hashes: Mapping[str, Any]
) -> list[Phase]:
    """All phases of a run in order, `ingest` first and `account` last. `hashes`: label -> file name -> xxh128."""
    policy = {"invalid_utf8": config.input.invalid_utf8, "max_document_bytes": config.input.max_document_bytes}
    root = fingerprint("ingest", ingest.VERSION, policy, dict(names_of_parts))
    found = [
        Phase(label="ingest", name="map", kind="ingest", over="slices", key=root, score=root, sidecar=True, text=True)
    ]
    above = _Above(root, "ingest", root, "ingest")
    keys: dict[str, tuple[str, str]] = {"ingest": (root, root)}
    world = _World(config, fingerprint(sorted(ids)), hashes, keys)
    for entry in (*config.stages, split_entry(config)):
        made = list(_stage_phases(entry, above, world))
        found += made
        last = made[-1]
        keys[entry.label] = (last.key, last.score or last.key)
        is_global = isinstance(entry.stage, GlobalStage)
        above = _Above(
            last.key, entry.label,
            last.key if is_global else above.global_key, entry.label if is_global else above.global_label,
        )  # fmt: skip
    key = fingerprint("account", account.VERSION, above.key, world.ratio)
    corpus_key = fingerprint(key, world.corpus)
    found.append(Phase(label="account", name="measure", kind="account", over="slices", key=key, after="split"))
    found.append(Phase(label="account", name="settle", kind="settle", over="once", key=corpus_key, source=key))
    return found


def split_entry(config: Config) -> StageEntry:
    """The built-in stage that assigns datasets, as an entry like those of the config."""
    curriculum = curriculum_of(config)
    validation = config.publish.validation.tokens if config.publish.validation else None
    settings = split.Split(
        mix_by=tuple(config.publish.mix_by), validation_tokens=validation,
        bucket=f"{curriculum.label}.bucket" if curriculum else None,
        buckets=getattr(curriculum.settings, "buckets", 0) if curriculum else 0,
    )  # fmt: skip
    return StageEntry(label="split", ref="pipeline.split:STAGE", stage=split.STAGE, settings=settings)


def curriculum_of(config: Config) -> StageEntry | None:
    """The last stage that assigns buckets, by what it writes."""
    found = [
        entry for entry in config.stages
        if isinstance(entry.stage, SettleStage) and "bucket" in entry.stage.decide_writes.names
    ]  # fmt: skip
    return found[-1] if found else None


class _World:
    """What all stages' keys may depend on beside the stage above."""

    def __init__(
        self, config: Config, corpus: str, hashes: Mapping[str, Any], keys: Mapping[str, tuple[str, str]]
    ) -> None:
        self.corpus = corpus
        self.hashes = hashes
        self.keys = keys
        self.ratio = ingest.token_ratio(config.training.bytes_per_token if config.training else None)
        self.sources = {name: item.model_dump(mode="json") for name, item in sorted(config.sources.items())}
        self.seed = config.run.seed

    def beside(self, reads: Sequence[str]) -> list[Any]:
        """Settings from outside the stage that the named columns depend on."""
        return [self.ratio if "tokens" in reads else None, self.sources if "source.priority" in reads else None]

    def scores(self, reads: Sequence[str]) -> list[str]:
        """Keys of the columns read, in the weakest form that tells whether they changed."""
        labels = [name.partition(".")[0] for name in reads if "." in name and name.partition(".")[0] in self.keys]
        return [self.keys["ingest"][0], *(self.keys[label][1] for label in labels)]


def _stage_phases(entry: StageEntry, above: _Above, world: _World) -> Iterator[Phase]:
    stage = entry.stage
    own = _Own(entry, world.hashes.get(entry.label, {}))
    if isinstance(stage, GlobalStage):
        yield from _global(stage, own, above, world)
    elif isinstance(stage, SettleStage):
        yield from _settle(stage, own, above, world)
    else:
        yield _map(stage, own, above, world, "")


class _Own:
    """A stage's own part of its keys: name, version, file hashes, and its settings with paths of files left out."""

    def __init__(self, entry: StageEntry, files: Mapping[str, str]) -> None:
        paths = set(entry.stage.files(entry.settings).values())
        every = entry.settings.model_dump(mode="json")
        self.label, self.settings = entry.label, entry.settings
        self.base: list[Any] = [entry.stage.name, entry.stage.version, dict(files)]
        self.every = {name: value for name, value in every.items() if not (isinstance(value, str) and value in paths)}


def _map(stage: MapStage | SettleStage, own: _Own, above: _Above, world: _World, facts: str) -> Phase:
    label, settings, every, base = own.label, own.settings, own.every, own.base
    scoring = {name: value for name, value in every.items() if name not in stage.decide_settings}
    reads = names(stage.reads, settings)
    decides = names(stage.decide_reads, settings)
    score = fingerprint("score", base, scoring, facts, world.scores(reads), world.beside(reads))
    context = world.sources if isinstance(stage, SettleStage) else None
    key = fingerprint("map", score, every, above.key, world.beside((*reads, *decides)), context)
    path = f"facts/{label}-{facts[:12]}.{_suffix(stage)}" if facts else ""
    return Phase(
        label=label, name="map", kind="map", over="slices", key=key, score=score if stage.bind else "",
        after=above.label, facts=path, sidecar=True, text="text" in reads,
    )  # fmt: skip


def _suffix(stage: Stage) -> str:
    return "bin" if isinstance(stage, SettleStage) and stage.bind else "json"


def _settle(stage: SettleStage, own: _Own, above: _Above, world: _World) -> Iterator[Phase]:
    label, settings, base = own.label, own.settings, own.base
    chosen = stage.measure_settings
    used = {
        n: v for n, v in own.every.items() if (n in chosen if chosen is not None else n not in stage.decide_settings)
    }
    reads = names(stage.measure_reads, settings)
    key, after = (above.key, above.label) if stage.basis == "previous" else (above.global_key, above.global_label)
    # Counts over text are of a sample whose rate depends on the bytes of the corpus, so on all of its inputs.
    sampled = world.corpus if "text" in reads else None
    beside = [world.beside(reads), world.sources, world.seed, sampled]
    measured = fingerprint("measure", base, used, key, world.scores(reads), beside)
    facts = fingerprint(measured, world.corpus)
    yield Phase(
        label=label, name="measure", kind="measure", over="slices", key=measured, after=after, text="text" in reads
    )
    path = f"facts/{label}-{facts[:12]}.{_suffix(stage)}"
    yield Phase(label=label, name="settle", kind="settle", over="once", key=facts, source=measured, facts=path)
    yield _map(stage, own, above, world, facts)


def _global(stage: GlobalStage, own: _Own, above: _Above, world: _World) -> Iterator[Phase]:
    label, settings = own.label, own.settings
    key, met, last = fingerprint("global", own.base, above.key), False, ""
    for index, phase in enumerate(stage.phases):
        used = {name: own.every[name] for name in phase.settings}
        reads = names(phase.reads, settings) if isinstance(phase, Emit) else ()
        key = fingerprint(key, phase.name, used, world.beside(reads))
        if isinstance(phase, Reduce) and not met:
            key, met = fingerprint(key, world.corpus), True
        yield _one(label, phase, key, above.label, index, last, "text" in reads)
        last = key
    yield Phase(
        label=label, name="scatter", kind="scatter", over="slices", key=fingerprint(key, "scatter"),
        after=above.label, index=len(stage.phases), source=key, sidecar=True,
    )  # fmt: skip


def _one(
    label: str, phase: Emit | Reduce, key: str, after: str, index: int, source: str, text: bool
) -> Phase:  # fmt: skip
    if isinstance(phase, Emit):
        return Phase(
            label=label, name=phase.name, kind="emit", over="slices", key=key, after=after, index=index, source=source,
            text=text,
        )  # fmt: skip
    over: Over = "once" if phase.single else "partitions"
    return Phase(label=label, name=phase.name, kind="reduce", over=over, key=key, index=index, source=source)


def fuse(chain: Sequence[Phase]) -> list[list[Phase]]:
    """Runs of phases over slices that one reading can serve; phases over partitions stand alone.

    Counts never share a task with ingest: what they may depend on (the bytes of the corpus) is known after it.
    """
    groups: list[list[Phase]] = []
    for phase in chain:
        early = phase.kind in ("measure", "account") and groups and groups[-1][0].kind == "ingest"
        if phase.over == "slices" and groups and groups[-1][-1].over == "slices" and not early:
            groups[-1].append(phase)
        else:
            groups.append([phase])
    return groups


# -- tasks -----------------------------------------------------------------------------------------------------------

Done = Callable[[Cell], CellResult | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """What the ledger says: `done(cell)`, and `latest(score_key, unit)` for measures that can be carried."""

    done: Done
    latest: Callable[[str, str], CellResult | None]


def slice_units(
    group: Sequence[Phase],
    chain: Sequence[Phase],
    slices: Sequence[Slice],
    known: Known,
    sources: Mapping[str, Sequence[str]],
) -> Iterator[tuple[UnitWork, int]]:
    """The missing cells of every slice, and how many bytes doing them costs. `sources`: phase key -> exchange files."""
    before = [phase for phase in chain if phase.sidecar]
    for ordinal, part in enumerate(slices):
        missing = [phase for phase in group if known.done(phase.cell(part)) is None]
        if not missing:
            continue
        first = chain.index(missing[0])
        sidecars = {}
        for phase in before:
            result = known.done(phase.cell(part))
            if result and phase not in missing and (chain.index(phase) < first or phase in group):
                sidecars[phase.label] = SidecarRef(path=result.outputs[0].path, key=result.cell.key)
        steps = tuple(_step(phase, part, known, chain, sources) for phase in missing)
        yield UnitWork(part=part, ordinal=ordinal, steps=steps, sidecars=sidecars), _weight(part, missing, steps)


def _step(
    phase: Phase, part: Slice, known: Known, chain: Sequence[Phase], sources: Mapping[str, Sequence[str]]
) -> Step:
    carry = None
    if phase.score and phase.kind == "map":
        found = known.latest(fingerprint(phase.score, part.input_id), part.unit)
        carry = SidecarRef(path=found.outputs[0].path, key=found.cell.key) if found else None
    failed: list[tuple[int, str]] = []
    if phase.sidecar and phase.kind != "ingest":
        for other in chain:
            if other.label == phase.label and other.kind in ("emit", "measure"):
                result = known.done(other.cell(part))
                failed += [(int(row), str(text)) for row, text in (result.facts.get("failures", ()) if result else ())]
    return Step(
        cell=phase.cell(part), kind=phase.kind, after=phase.after, folder=phase.folder, index=phase.index,  # type: ignore[arg-type]
        facts=phase.facts, carry=carry, records=tuple(sources.get(phase.source, ())), failed=tuple(sorted(set(failed))),
    )  # fmt: skip


def _weight(part: Slice, missing: Sequence[Phase], steps: Sequence[Step]) -> int:
    """Bytes of text for a unit that has to read it, next to nothing for one of numbers only."""
    reads = any(phase.text and step.carry is None for phase, step in zip(missing, steps, strict=True))
    return part.bytes if reads else part.rows * NUMBER_ROW_BYTES


def slice_tasks(units: Sequence[tuple[UnitWork, int]], workers: int, most: int) -> list[Task]:
    """Bundle units into tasks: enough for four rounds on every worker, none heavier than `most` unless one unit is."""
    total = sum(weight for _, weight in units)
    limit = min(most, max(2_000_000, total // max(1, 4 * workers)))
    tasks: list[Task] = []
    held: list[UnitWork] = []
    size = 0
    for unit, weight in units:
        if held and size + weight > limit:
            tasks.append(_task(held, size))
            held, size = [], 0
        held.append(unit)
        size += weight
    return [*tasks, _task(held, size)] if held else tasks


def single_units(tasks: Sequence[Task]) -> list[Task]:
    """The same work with one slice a task."""
    found = []
    for task in tasks:
        units = task.work.units if isinstance(task.work, SliceWork) else ()
        parted = [replace(_task([unit], unit.part.bytes), attempt=task.attempt) for unit in units]
        found += parted if len(parted) > 1 else [task]
    return found


def _task(units: Sequence[UnitWork], size: int) -> Task:
    cells = tuple(step.cell for unit in units for step in unit.steps)
    name = fingerprint([cell.id for cell in cells])[:16]
    rows = sum(unit.part.rows for unit in units)
    return Task(id=name, attempt=0, cells=cells, work=SliceWork(units=tuple(units)), bytes=size, rows=rows)


def partitions(raw_bytes: int, partition_bytes: int, asked: int | None) -> int:
    """How many partitions a reduce is cut into: a power of two so that one fits, or as asked."""
    if asked is not None:
        return asked
    parts = 1
    while parts * partition_bytes < raw_bytes and parts < 4096:
        parts *= 2
    return parts


def reduce_task(
    phase: Phase, sources: Sequence[tuple[str, int | None]], part: int, parts: int, bounds: tuple[int, int]
) -> Task:
    cell = phase.whole(f"{part:04d}of{parts:04d}")
    low, high = bounds
    work = ReduceWork(cell=cell, index=phase.index, sources=tuple(sources), low=low, high=high, folder=phase.folder)
    return Task(id=fingerprint(cell.id)[:16], attempt=0, cells=(cell,), work=work)


def settle_task(phase: Phase, sources: Sequence[str]) -> Task:
    cell = phase.whole("all")
    path = phase.facts or f"facts/{phase.label}-{phase.key[:12]}.json"
    work = SettleWork(cell=cell, sources=tuple(sources), path=path, builtin=phase.label == account.LABEL)
    return Task(id=fingerprint(cell.id)[:16], attempt=0, cells=(cell,), work=work)
