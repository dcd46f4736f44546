"""One document's story is told from sidecars, with the reason's meaning and whoever it is charged to."""

from __future__ import annotations

import json
import shutil

import pyarrow.parquet as pq
import pytest

from pipeline import run
from pipeline.commands.explain import explain, find_id, parse_key
from pipeline.commands.target import config_of
from pipeline.errors import ConfigError
from tests.pipeline.small_runs import configured, corpus


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    root = tmp_path_factory.mktemp("run")
    corpus(root)
    config = configured(root)
    run.run(config)
    return config


def test_kept(finished):
    """A kept document has passed every stage, shows what they measured, and names its dataset."""
    told = explain(finished, "1.parquet", 4)
    assert json.loads(json.dumps(told)) == told
    assert (told["id"], told["source"], told["bytes"]) == ("1-4", "s0", len(told["text_excerpt"]))
    assert told["text_excerpt"] == "s1n0004 ordinary text number 4"
    assert [stage["label"] for stage in told["stages"]] == ["ingest", "words", "copies", "heads"]
    assert all(stage["passed"] for stage in told["stages"])
    assert told["stages"][1]["measures"] == {"words": 5}
    assert told["outcome"]["fate"] == "kept"
    assert told["outcome"]["dataset"] == "train-s0"
    assert told["outcome"]["manifest"].endswith("/hot/small/v1/manifest.json")
    assert told["chain"] == []


def test_removed_by_a_number(finished):
    """A document removed by a rule shows score, threshold and what the reason means, and where its text lies now."""
    told = explain(finished, "2.parquet", 20)
    stage = told["stages"][1]
    assert (stage["reason"], stage["score"], stage["threshold"]) == ("few", 2.0, 3.0)
    assert stage["meaning"] == "fewer words than limit"
    assert [later["state"] for later in told["stages"][2:]] == ["gone", "gone"]
    assert all(later["measures"] == {} for later in told["stages"][2:])
    archive = told["outcome"]["archive"]
    assert pq.read_table(archive["file"]).slice(archive["row"], 1).to_pylist()[0]["id"] == "2-20"


@pytest.mark.parametrize(
    ("row", "fate", "stage", "reason"),
    [(21, "removed", "ingest", "blank_text"), (22, "removed", "ingest", "null_text"),
     (23, "quarantined", "words", "stage_error")],
)  # fmt: skip
def test_other_fates(finished, row, fate, stage, reason):
    """What ingest took out and what a stage could not read are told with their reasons too."""
    told = explain(finished, "0.parquet", row)
    outcome = told["outcome"]
    assert (outcome["fate"], outcome["stage"], outcome["reason"]) == (fate, stage, reason)
    assert outcome["meaning"]
    if reason == "stage_error":
        assert "cannot read this" in told["stages"][1]["message"]


def test_chain(finished):
    """A duplicate's keeper that a later stage removed is followed to the document that stays in the end."""
    told = explain(finished, "2.parquet", 24)
    charged = told["stages"][2]["charged"]
    assert (charged["shard"], charged["row"], charged["id"], charged["similarity"]) == ("0.parquet", 24, "0-24", 1.0)
    keeper, last = told["chain"]
    assert (keeper["by"], keeper["id"], keeper["outcome"]["fate"], keeper["outcome"]["stage"]) == (
        "copies", "0-24", "removed", "heads",
    )  # fmt: skip
    assert keeper["text_excerpt"] == told["text_excerpt"]
    assert (last["by"], last["id"], last["outcome"]["fate"]) == ("heads", "0-25", "kept")


def test_pending(tmp_path):
    """Before a stage has run its entry says pending, and so does the outcome."""
    corpus(tmp_path)
    run.run(configured(tmp_path))
    later = configured(tmp_path, overrides=["words.limit=6"])
    told = explain(later, "0.parquet", 0)
    assert [stage["state"] for stage in told["stages"]] == ["scored", "pending", "pending", "pending"]
    assert told["outcome"] == {"fate": "pending", "stage": "words"}
    fresh = configured(tmp_path, overrides=["name=other"])
    told = explain(fresh, "0.parquet", 0)
    assert (told["id"], told["stages"][0]["state"], told["text_excerpt"][:5]) == (None, "pending", "s0n00")
    with pytest.raises(ConfigError, match="3 slices have not been read yet"):
        find_id(fresh, "0-0")


def test_unreadable_shard(tmp_path):
    """A row of a shard that is quarantined whole is told so."""
    corpus(tmp_path)
    (tmp_path / "in" / "bad.parquet").write_bytes(b"PAR1")
    config = configured(tmp_path)
    run.run(config)
    outcome = explain(config, "bad.parquet", 7)["outcome"]
    assert (outcome["fate"], outcome["reason"]) == ("quarantined", "unreadable_shard")


def test_unknown(finished):
    """A shard or row that does not exist is an error that names what there is."""
    with pytest.raises(ConfigError, match=r"'1\.parqet'.*did you mean 1\.parquet"):
        explain(finished, "1.parqet", 0)
    with pytest.raises(ConfigError, match=r"ROW: got 25, but 1\.parquet has 25 rows"):
        explain(finished, "1.parquet", 25)


def test_find_id(finished):
    """An id is found wherever it occurs; one that does not occur is an error."""
    assert find_id(finished, "2-7") == [("2.parquet", 7)]
    with pytest.raises(ConfigError, match="no document has this id in the column 'id'"):
        find_id(finished, "nobody")


def test_parse_key():
    """A key splits at its last colon, since shard names may hold others."""
    assert parse_key("crawl:7/a.parquet:12") == ("crawl:7/a.parquet", 12)
    for key in ("a.parquet", "a.parquet:", ":3", "a.parquet:-1", "a.parquet:²", "a.parquet:1.5"):
        with pytest.raises(ConfigError, match="SHARD:ROW"):
            parse_key(key)


def test_config_of_a_folder(finished, tmp_path):
    """A run's folder stands for the config of its newest start, with the work tier where the folder is now."""
    folder = f"{finished.tiers.work.url}/small"
    found = config_of(folder, ())
    assert found.dump() == finished.dump()
    with pytest.raises(ConfigError, match="neither a config file nor the folder"):
        config_of(str(tmp_path), ())
    assert config_of(folder, (), ["words.limit=4"]).fingerprint != finished.fingerprint
    shutil.copytree(folder, tmp_path / "elsewhere" / "small")
    moved = config_of(str(tmp_path / "elsewhere" / "small"), ())
    assert explain(moved, "1.parquet", 4)["outcome"]["fate"] == "kept"
    shutil.copytree(folder, tmp_path / "renamed")
    with pytest.raises(ConfigError, match="it holds run 'small'"):
        config_of(str(tmp_path / "renamed"), ())
