"""A model is fitted on what was named, all of it, in an order that is always the same, and written with its card."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import run
from pipeline.commands.fitting import fit_quality
from pipeline.errors import ConfigError
from pipeline.handoff import manifest
from tests.pipeline.small_runs import YAML, configured, corpus


def listing(good, bad, *, seed):
    """A fit that puts what it was given into its model."""
    told = [[text for array in texts for text in _checked(array)] for texts in (good, bad)]
    return json.dumps(told).encode(), {"seed": seed}


def _checked(array):
    assert array.type == pa.large_string()
    assert array.null_count == 0
    return array.to_pylist()


def fitted(tmp_path, good, bad, **more):
    card = fit_quality(str(good), str(bad), str(tmp_path / "models" / "out.bin"), listing, **more)
    assert json.loads((tmp_path / "models" / "out.bin.card.json").read_bytes()) == card
    return (*json.loads((tmp_path / "models" / "out.bin").read_bytes()), card)


def write(file, texts, name="text", kind=None, rows=2):
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({name: pa.array(texts, kind)}), file, row_group_size=rows)


def test_folder_and_file(tmp_path):
    """Texts come file by file in the order of their names, nulls left out, whatever spelling of text they are in."""
    write(tmp_path / "good" / "b.parquet", ["c", None, "d"])
    write(tmp_path / "good" / "a.parquet", [b"a", b"\xffb"], kind=pa.binary())
    write(tmp_path / "good" / "n.parquet", [None, None])
    write(tmp_path / "bad.parquet", pa.array(["x", "y", "x"]).dictionary_encode())
    good, bad, card = fitted(tmp_path, tmp_path / "good", tmp_path / "bad.parquet")
    assert (good, bad) == (["a", "�b", "c", "d"], ["x", "y", "x"])
    assert card["seed"] == 0
    assert card["sources"]["good"] == {"given": [str(tmp_path / "good")], "files": 3, "documents": 4, "bytes": 7}


def test_several_and_twice(tmp_path):
    """Several sources count as one, and a file that two of them name is read once."""
    write(tmp_path / "a.parquet", ["a"])
    write(tmp_path / "b.parquet", ["b"])
    out = str(tmp_path / "m.bin")
    card = fit_quality(
        [str(tmp_path / "a.parquet"), str(tmp_path / "*.parquet")], str(tmp_path / "b.parquet"), out, listing
    )
    assert json.loads((tmp_path / "m.bin").read_bytes()) == [["a", "b"], ["b"]]
    assert card["sources"]["good"]["files"] == 2


def test_published(tmp_path):
    """Of a run's hot folder the train datasets are read, not the validation set; an archive is a folder like others."""
    corpus(tmp_path, ordinary=200)
    config = configured(tmp_path, YAML.replace("publish: {{", "publish: {{validation: {{tokens: 500}}, "))
    run.run(config)
    hot = tmp_path / "hot" / "small"
    good, bad, _ = fitted(tmp_path, hot, tmp_path / "cold" / "small")
    document = manifest.read(hot / "v1" / "manifest.json")
    docs = {
        split: sum(d["docs"] for d in document["datasets"] if d["split"] == split) for split in ("train", "validation")
    }
    assert len(good) == docs["train"]
    assert docs["validation"] > 0
    assert sorted(set(bad) - {None}) == ["  ", "a b", "the head is common to them"]
    again, _, _ = fitted(tmp_path, hot / "v1" / "manifest.json", tmp_path / "cold" / "small")
    assert again == good


def test_limit(tmp_path):
    """Under a limit every file gives its share, from row groups that do not depend on what else is read."""
    for name in "ab":
        write(tmp_path / "good" / f"{name}.parquet", [f"{name}{row:09d}" for row in range(100)], rows=5)
    write(tmp_path / "bad.parquet", ["x"])
    good, _, card = fitted(tmp_path, tmp_path / "good", tmp_path / "bad.parquet", limit_bytes=200)
    assert {text[0] for text in good} == {"a", "b"}
    assert 20 <= len(good) <= 30
    assert good[0] != "a000000000"
    assert card["sources"]["good"]["documents"] == len(good)


@pytest.mark.parametrize(
    ("column", "message"),
    [("body", r"it has no column 'body'; did you mean 'bodies'\?"), ("n", "column 'n' is int64, not text")],
)
def test_column(tmp_path, column, message):
    """A column that is absent or holds no text is an error that names the file, before anything is written."""
    table = pa.table({"bodies": ["a"], "n": [1]})
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match=rf"--good: got '.*a\.parquet', but .*{message}"):
        fitted(tmp_path, tmp_path / "a.parquet", tmp_path / "a.parquet", text_column=column)
    assert not (tmp_path / "models").exists()


def test_nothing_there(tmp_path):
    """A source that matches nothing, or that is not Parquet, is an error that says what to name."""
    write(tmp_path / "a.parquet", ["a"])
    (tmp_path / "b.parquet").write_bytes(b"no")
    for bad, message in (
        (tmp_path / "none", "holds no Parquet file"),
        (tmp_path / "b.parquet", "cannot be read as Parquet"),
    ):
        with pytest.raises(ConfigError, match=f"--bad: got .*{message}"):
            fitted(tmp_path, tmp_path / "a.parquet", bad)


def test_a_fit_that_fails_leaves_nothing(tmp_path):
    """When fitting raises, neither a model nor a card is written."""

    def failing(good, bad, *, seed):
        raise ConfigError("too little text")

    write(tmp_path / "a.parquet", ["a"])
    with pytest.raises(ConfigError, match="too little"):
        fit_quality(str(tmp_path / "a.parquet"), str(tmp_path / "a.parquet"), str(tmp_path / "m" / "out.bin"), failing)
    assert not (tmp_path / "m").exists()
