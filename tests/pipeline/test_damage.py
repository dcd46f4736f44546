"""Files of earlier runs that are no longer what the ledger recorded."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from pipeline import damage
from pipeline.job import PartSource, PublishWork, ReduceWork, SettleWork, SidecarRef, SliceWork, Step, UnitWork
from pipeline.storage import Store
from pipeline.types import Cell, Slice

CELL = Cell(label="near", phase="reduce", unit="all", key="k")
PART = Slice(
    shard_id="0.parquet", url="0.parquet", size=1, stamp="1", first_row=0, rows=1, first_group=0, groups=1, bytes=1,
    input_id="i",
)  # fmt: skip


def ref(path):
    return SidecarRef(path=path, key="k")


def test_every_recorded_file_that_a_task_reads_is_named():
    """Sidecars, records, facts and counts are among the reads of the tasks that open them."""
    step = Step(cell=CELL, kind="map", facts="facts", carry=ref("carried"), records=("records",))
    unit = UnitWork(
        part=PART, ordinal=0, steps=(step, replace(step, facts="", carry=None)), sidecars={"a": ref("known")}
    )
    assert set(damage.reads(SliceWork(units=(unit,)))) == {"facts", "carried", "records", "known"}
    reduced = ReduceWork(cell=CELL, index=1, sources=(("one", 0), ("two", None)), low=0, high=1, folder="f")
    assert list(damage.reads(reduced)) == ["one", "two"]
    assert list(damage.reads(SettleWork(cell=CELL, sources=("counts",), path="facts"))) == ["counts"]
    source = PartSource(part=PART, ordinal=0, sidecars={"a": ref("a"), "b": ref("b")})
    published = PublishWork(cell=CELL, kind="hot", files=(), sources=(source,), columns=())
    assert list(damage.reads(published)) == ["a", "b"]


def test_files_that_differ_or_are_gone_are_found(tmp_path):
    """A changed byte, a lost end and a missing file are told apart from files as recorded."""
    store = Store(str(tmp_path))
    outputs = []
    for name in ("whole", "changed", "short", "gone"):
        store.write_bytes(name, b"0123456789")
        outputs.append(store.output(name, rows=1))
    (tmp_path / "changed").write_bytes(b"0123x56789")
    (tmp_path / "short").write_bytes(b"01234")
    (tmp_path / "gone").unlink()
    [task] = damage.tasks(outputs)
    result = damage.check(SimpleNamespace(work=store), task.work)
    assert result.facts == {"damaged": ["changed", "short", "gone"]}


def test_each_file_is_in_one_task(tmp_path):
    """Many files are cut into tasks that hold each of them once."""
    store = Store(str(tmp_path))
    store.write_bytes("a", b"a")
    outputs = [replace(store.output("a", rows=1), path=f"{number}") for number in range(2 * damage.FILES + 1)]
    tasks = damage.tasks(outputs)
    assert [output for task in tasks for output in task.work.outputs] == outputs
    assert len({task.id for task in tasks}) == len(tasks) == 3
