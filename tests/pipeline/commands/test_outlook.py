"""A plan says what will be done and why, and doing it then is no surprise."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from pipeline import run
from pipeline.commands import outlook
from pipeline.config import loads
from pipeline.errors import ConfigError
from pipeline.stage import MapStage, StageConfig
from pipeline.storage import Store
from tests.pipeline import small_runs
from tests.pipeline.small_runs import WORDS, corpus

LABELS = ["ingest", "words", "copies", "heads", "split", "account", "publish"]


class Listed(StageConfig):
    file: str


def decide(config, context, batch):
    banned = pa.array(context.files["list"].read_text().split())
    return pa.record_batch(
        [pc.if_else(pc.is_in(batch["id"], banned), "listed", pa.scalar(None, pa.string()))], names=["reason"]
    )


LISTED = MapStage(
    name="listed", version=1, config=Listed, decide=decide, decide_reads=("id",), reasons={"listed": "the id is"},
    files=lambda config: {"list": config.file},
)  # fmt: skip
REWORDED = MapStage(
    name="words", version=2, config=WORDS.config, reads=WORDS.reads, writes=WORDS.writes, bind=WORDS.bind,
    decide=WORDS.decide, decide_settings=WORDS.decide_settings, reasons=WORDS.reasons,
)  # fmt: skip
YAML = small_runs.YAML.replace("stages:\n", f'stages:\n  - {{{{stage: "{__name__}:LISTED", file: "{{root}}/list"}}}}\n')


def configured(root, yaml=small_runs.YAML, overrides=()):
    return loads(yaml.format(root=root, module=small_runs.__name__), (), overrides=overrides)


def why(config):
    """Label -> reason, of what is to be done."""
    return {s["label"]: s["why"] for s in outlook.outlook(config)["stages"] if s["why"] != "nothing to do"}


def redone(config):
    """Label -> cells that a run does compute."""
    report = run.run(config)
    return {stage["label"]: stage["cells_computed"] for stage in report["stages"]}


def files_of(root):
    return {str(path): path.stat().st_mtime_ns for path in Path(root).rglob("*") if path.is_file()}


def shown(found):
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(outlook.table(found))
    return console.export_text()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with a finished run, only to be looked at."""
    root = tmp_path_factory.mktemp("finished")
    corpus(root)
    run.run(configured(root))
    return root


@pytest.fixture
def copied(finished, tmp_path):
    """A folder with a finished run to change. That its input has moved calls for another publication, no more."""
    return Path(shutil.copytree(finished, tmp_path / "copy"))


def test_before_the_first_run(tmp_path):
    """A plan for a run that never was: everything is new, what it takes is unknown, and nothing is written anywhere."""
    corpus(tmp_path)
    before = files_of(tmp_path)
    found = outlook.outlook(configured(tmp_path))
    assert files_of(tmp_path) == before
    assert not (tmp_path / "work").exists()
    assert json.loads(json.dumps(found)) == found
    assert [stage["label"] for stage in found["stages"]] == LABELS
    assert [stage["why"] for stage in found["stages"]] == ["new"] * 6 + ["follows from ingest"]
    assert [stage["redo"] for stage in found["stages"][:4]] == [3, 3, 7, 7]
    assert found["stages"][-1]["cells"] is None
    assert found["compute"]["cpu"]["kind"] == "unknown"
    assert found["storage"]["hot_and_cold"]["kind"] == "bounded"
    assert (found["input"]["shards"], found["input"]["rows"]) == (3, 76)


def test_after_a_run(finished):
    """After a run there is nothing to do, at no cost, and looking writes nothing."""
    before = files_of(finished)
    found = outlook.outlook(configured(finished))
    assert files_of(finished) == before
    assert {stage["why"] for stage in found["stages"]} == {"nothing to do"}
    assert {(stage["redo"], stage["cells"] == stage["reused"]) for stage in found["stages"]} == {(0, True)}
    assert [found["compute"]["cpu"]["value"], found["network"]["read"]["value"]] == [0, 0]
    assert found["network"]["write"]["value"] == 0


@pytest.mark.parametrize(
    ("override", "first", "reason"),
    [
        ("words.limit=4", "words", "settings changed: limit: 3 -> 4"),
        ("training.bytes_per_token=4.0", "split", "settings changed: training.bytes_per_token: unset -> 4.0"),
        ("publish.mix_by=[]", "split", "settings changed: publish.mix_by: ['source'] -> []"),
        ("run.seed=7", "split", "settings changed: run.seed: 0 -> 7"),
        ("input.max_document_bytes=20MB", "ingest", "settings changed: input.max_document_bytes: 64MiB -> 20MB"),
        ("guards.max_source_loss=0.9", "publish", "settings changed: guards.max_source_loss: 0.95 -> 0.9"),
    ],
)  # fmt: skip
def test_a_changed_setting(finished, override, first, reason):
    """The stage that a setting belongs to says which setting, those after it follow, and those before are reused."""
    config = configured(finished, overrides=[override])
    told = why(config)
    assert next(iter(told.items())) == (first, reason)
    assert list(told) == LABELS[LABELS.index(first) :]
    assert all(text in (reason, f"follows from {first}") for text in told.values())


def test_what_follows_is_what_is_done(copied):
    """The cells that a plan counts are those that the run computes; what they take is estimated by the last ones."""
    config = configured(copied, overrides=["words.limit=4"])
    found = outlook.outlook(config)
    planned = {stage["label"]: stage["redo"] for stage in found["stages"]}
    assert found["compute"]["cpu"]["kind"] == "estimated"
    assert found["compute"]["cpu"]["value"] > 0
    done = redone(config)
    assert {label: planned[label] for label in done} == done


def test_shards_added_changed_and_gone(copied):
    """The first stage that a change of the input reaches names the shards; before rows meet only they are redone."""
    folder = copied / "in"
    (folder / "0.parquet").unlink()
    pq.write_table(pq.read_table(folder / "1.parquet").slice(1), folder / "1.parquet")
    pq.write_table(pq.read_table(folder / "2.parquet"), folder / "new.parquet")
    config = configured(copied)
    found = outlook.outlook(config)
    names = "1 shard new (new.parquet), 1 shard changed (1.parquet), 1 shard gone (0.parquet)"
    assert found["stages"][0]["why"] == f"input changed: {names}"
    assert {stage["why"] for stage in found["stages"][1:6]} == {"input changed"}
    assert [stage["redo"] for stage in found["stages"][:2]] == [2, 2]
    assert [found["input"][name] for name in ("new", "changed", "gone")] == [
        ["new.parquet"],
        ["1.parquet"],
        ["0.parquet"],
    ]
    run.run(config)
    assert why(config) == {}


def test_a_shard_gone(copied):
    """Where nothing is to be read, the stage in which rows meet is the one that names the shard that is gone."""
    (copied / "in" / "2.parquet").unlink()
    told = why(configured(copied))
    assert next(iter(told.items())) == ("copies", "input changed: 1 shard gone (2.parquet)")


def test_order_and_new_stages(finished):
    """A stage that runs elsewhere says where, one that is new says so, and what follows names the nearest of them."""
    yaml = small_runs.YAML
    copies, heads = (f'  - {{{{stage: "{{module}}:{name}"}}}}\n' for name in ("COPIES", "HEADS"))
    swapped = why(configured(finished, yaml.replace(copies + heads, heads + copies)))
    assert swapped["heads"] == "order changed: runs after words, ran after copies"
    assert swapped["copies"] == "follows from heads"
    more = why(configured(finished, yaml.replace(heads, heads + heads.replace('HEADS"', 'HEADS", as: again'))))
    assert list(more.items())[:2] == [("again", "new"), ("split", "follows from again")]
    fewer = why(configured(finished, yaml.replace(heads, "")))
    assert next(iter(fewer.items())) == ("split", "order changed: runs after copies, ran after heads")


def test_a_changed_file(tmp_path):
    """Another content under the same name is a changed model; the same content elsewhere changes nothing."""
    corpus(tmp_path)
    (tmp_path / "list").write_text("0-1")
    run.run(configured(tmp_path, YAML))
    (tmp_path / "copy").write_text("0-1")
    assert "listed" not in why(configured(tmp_path, YAML, [f"listed.file={tmp_path}/copy"]))
    (tmp_path / "list").write_text("0-1 0-2")
    told = why(configured(tmp_path, YAML))
    assert next(iter(told.items())) == ("listed", "model changed")


def test_another_version_of_a_stage(finished, monkeypatch):
    """A stage whose code has another version is redone, and the version of corpusmill is the only thing to name."""
    monkeypatch.setattr(small_runs, "WORDS", REWORDED)
    monkeypatch.setattr(outlook, "__version__", "9.9")
    assert next(iter(why(configured(finished)).items())) == ("words", "corpusmill changed: 0.1.0 -> 9.9")


def test_a_missing_file(copied):
    """A file that is gone is redone alone: its cell keeps its key, so no later stage is."""
    next((copied / "work/small/sidecars").glob("words-*/*/*.parquet")).unlink()
    told = why(configured(copied))
    assert list(told) == ["words", "publish"]
    assert told["words"] == "missing or damaged files: 1"


def test_an_unfinished_run(tmp_path, monkeypatch):
    """What a stopped run has not come to is not done yet."""
    corpus(tmp_path)
    config = configured(tmp_path)

    def stop(records):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(run, "publication", stop)
        with pytest.raises(KeyboardInterrupt):
            run.run(config)
    assert why(config) == {"publish": "not done yet"}


def test_prices(finished):
    """With prices a plan has costs; without, it names the line to add."""
    priced = configured(finished, overrides=["words.limit=4", "run.pool.price_per_cpu_hour=36"])
    compute = outlook.outlook(priced)["compute"]
    assert compute["cost"]["value"] == pytest.approx(compute["cpu"]["value"] / 100)
    assert "add to the config: run.pool.price_per_cpu_hour" in shown(outlook.outlook(configured(finished)))


def test_an_unreadable_shard(tmp_path):
    """A file that is no Parquet is named before anything is done."""
    corpus(tmp_path)
    (tmp_path / "in" / "bad.parquet").write_bytes(b"PAR1")
    found = outlook.outlook(configured(tmp_path))
    assert [bad["shard"] for bad in found["input"]["unreadable"]] == ["bad.parquet"]
    assert "quarantined as a whole: bad.parquet" in shown(found)


def test_a_config_that_cannot_work(tmp_path):
    """What a run would refuse, a plan refuses."""
    (tmp_path / "in").mkdir()
    with pytest.raises(ConfigError, match="matches no Parquet file"):
        outlook.outlook(configured(tmp_path))


def test_a_start_without_its_config(copied):
    """Where the last config is gone from the folder, a plan still counts; it cannot say what changed."""
    work = Store(str(copied / "work" / "small"))
    for entry in work.list("configs"):
        work.delete(entry.path)
    assert next(iter(why(configured(copied, overrides=["words.limit=4"])).items())) == ("words", "new")
