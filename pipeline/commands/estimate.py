"""What a run has left to do and what that takes, from the ledger alone. Pure: reads what it is given, writes nothing.

What earlier cells of a stage took says what its next ones will; what has never run here is unknown, not guessed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pipeline import account, cuts, ingest, plan, publish
from pipeline.commands.changes import Need
from pipeline.driver import Driver
from pipeline.figures import Figure, figure
from pipeline.opened import Opened, results_folder
from pipeline.plan import Phase
from pipeline.state import State
from pipeline.types import Cell, Slice

PUBLISH = "publish"
HOT_AND_COLD = ((PUBLISH, "hot"), (PUBLISH, "cold"))
NEVER_RAN = ["a run, or a dry run on a sample, would tell"]


# -- what is left ----------------------------------------------------------------------------------------------------


def left(driver: Driver) -> dict[str, list[Need]]:
    """Label -> those of its phases that the run comes to, in order.

    How many partitions a phase has is known once its input is there; until then it counts as one cell.
    """
    found: dict[str, list[Need]] = {}
    for phase in driver.chain:
        own = found.setdefault(phase.label, [])
        if driver.needed(phase):
            own.append(_slices(driver, phase) if phase.over == "slices" else _whole(driver, phase))
    return found


def _slices(driver: Driver, phase: Phase) -> Need:
    slices = driver.corpus.slices
    missing = [part for part in slices if driver.done(phase.cell(part)) is None]
    recorded = _recorded(driver, [phase.cell(part) for part in missing])
    return Need(phase=phase, total=len(slices), redo=len(missing), missing=missing, recorded=recorded)


def _whole(driver: Driver, phase: Phase) -> Need:
    cells = [phase.whole(unit) for unit in (["all"] if phase.kind == "settle" else _partitions(driver, phase))]
    missing = [cell for cell in cells if driver.done(cell) is None]
    return Need(phase=phase, total=len(cells), redo=len(missing), recorded=_recorded(driver, missing))


def _recorded(driver: Driver, missing: Sequence[Cell]) -> int:
    return sum(cell.id in driver.ledger.state.done for cell in missing)


def _partitions(driver: Driver, phase: Phase) -> list[str]:
    if have := driver.partition_results(phase):
        return [result.cell.unit for result in have]
    source = next(other for other in driver.chain if other.key == phase.source)
    over_slices = source.over == "slices"
    results = driver.results(source) if over_slices else driver.partition_results(source)
    there = len(results) == len(driver.corpus.slices) if over_slices else bool(results)
    parts = driver.partition_count(phase, results) if there else 1
    return [f"{part:04d}of{parts:04d}" for part in range(parts)]


def publication(
    driver: Driver, opened: Opened, needs: Mapping[str, Sequence[Need]]
) -> tuple[int, int] | tuple[None, None]:
    """(cells, cells to do) of publication, whose parts are cut by what was counted; None until all is counted."""
    if any(need.redo for label in (ingest.LABEL, account.LABEL) for need in needs[label]):
        return None, None
    config, slices = opened.config, opened.corpus.slices
    contents = [str(result.facts["content"]) for result in driver.results(driver.chain[0])]
    key = publish.publish_fingerprint(config, publish.corpus_id(slices, contents), opened.hashes)
    totals = [result.facts for result in driver.results(driver.phase(account.LABEL, "measure"), whole=False)]
    sources = cuts.Sources(slices=slices, sidecars=[{}] * len(slices), totals=totals)
    cold, begins = cuts.cold_tasks(config, key, sources, ())
    tasks = [*cuts.hot_tasks(config, key, sources, ()), *cold]
    for kind in ("removed", "quarantined"):
        folder = results_folder(config.fingerprint)
        tasks += cuts.table_tasks(kind, folder, key, sources, begins, opened.corpus.bad)
    return len(tasks), sum(driver.done(task.cells[0]) is None for task in tasks)


# -- what it takes ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Past:
    """What earlier cells of one phase took: CPU seconds and bytes written."""

    cpu: float = 0.0
    written: float = 0.0
    text: int = 0
    """Text bytes of the slices that these cells were of."""
    newest: dict[str, tuple[float, float]] = field(default_factory=dict)
    """The same by key, of cells that are of no slice; the newest key last."""

    def again(self, text: int) -> tuple[float, float] | None:
        """(CPU seconds, bytes written) for so many bytes of text; as last time where the cells were of no slice."""
        if self.newest:
            return next(reversed(self.newest.values()))
        return (self.cpu / self.text * text, self.written / self.text * text) if self.text else None


Known = Mapping[tuple[str, str], Past]


def past(state: State, chain: Sequence[Phase], slices: Sequence[Slice]) -> Known:
    """(label, phase) -> what its cells took, under whatever settings."""
    sizes = {part.unit: part.bytes for part in slices}
    over_slices = {(phase.label, phase.name) for phase in chain if phase.over == "slices"}
    found: defaultdict[tuple[str, str], Past] = defaultdict(Past)
    for result in state.done.values():
        cell, cpu = result.cell, float(result.facts.get("cpu", 0.0))
        own, written = found[cell.label, cell.phase], sum(output.bytes for output in result.outputs)
        if cell.unit in sizes:
            own.cpu, own.written, own.text = own.cpu + cpu, own.written + written, own.text + sizes[cell.unit]
        elif (cell.label, cell.phase) not in over_slices:
            before = own.newest.pop(cell.key, (0.0, 0.0))
            own.newest[cell.key] = (before[0] + cpu, before[1] + written)
    return found


@dataclass(frozen=True, slots=True)
class Takes:
    """What the work that is left takes."""

    cpu: Figure
    written: Figure


def takes(needs: Sequence[Need], known: Known) -> Takes:
    """What the missing cells of a stage take."""
    todo = [
        (need.phase.label, need.phase.name, sum(part.bytes for part in need.missing)) for need in needs if need.redo
    ]
    return _takes([(f"{label}.{phase}", known.get((label, phase), Past()).again(text)) for label, phase, text in todo])


def publication_takes(todo: int | None, known: Known) -> Takes:
    """What publication takes: as much as last time. `todo`: its cells, None where their number is not known."""
    if todo == 0:
        return _takes([])
    earlier = [(PUBLISH, known[pair].again(0)) for pair in HOT_AND_COLD if pair in known]
    return _takes(earlier or [(PUBLISH, None)])


def _takes(parts: Sequence[tuple[str, tuple[float, float] | None]]) -> Takes:
    unknown = [name for name, took in parts if took is None]
    sums = [sum(took[index] for _, took in parts if took) for index in (0, 1)]
    return Takes(_figure(sums[0], "s", parts, unknown), _figure(round(sums[1]), "bytes", parts, unknown))


def _figure(value: float, unit: str, parts: Sequence[object], unknown: Sequence[str]) -> Figure:
    if not parts:
        return figure(0, unit, "counted", "nothing to do")
    if unknown:
        return figure(None, unit, "unknown", f"{', '.join(unknown)} has not run here", NEVER_RAN)
    return figure(round(value, 3), unit, "estimated", "by what earlier cells took for a byte of text, or as last time")


def reading(driver: Driver, needs: Mapping[str, Sequence[Need]]) -> int:
    """Bytes to read: text as the footers say, uncompressed; `plan.NUMBER_ROW_BYTES` a row where only numbers are."""
    known = plan.Known(done=driver.done, latest=driver.latest)
    wanted = {id(need.phase) for own in needs.values() for need in own}
    return sum(
        weight
        for phases in _readings(driver.chain, lambda phase: id(phase) in wanted)
        for _, weight in plan.slice_units(phases, driver.chain, driver.corpus.slices, known, {})
    )


def _readings(chain: Sequence[Phase], wanted: Callable[[Phase], bool]) -> Iterator[list[Phase]]:
    """Phases over slices that share a reading."""
    for group in plan.fuse(chain):
        phases = [phase for phase in group if phase.over == "slices" and wanted(phase)]
        if phases:
            yield phases
