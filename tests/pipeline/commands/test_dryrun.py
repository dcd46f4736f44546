"""A dry run tries the stages on rows of the whole input, says what a run would do, and touches nothing else."""

from __future__ import annotations

import functools
import json
import sys
import types

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import ledger, run
from pipeline.commands import dryrun, sampling, starter
from pipeline.commands.dryrun import dry_run
from pipeline.commands.predictions import share, total
from pipeline.commands.sampling import Drawn
from pipeline.config import load
from pipeline.errors import ConfigError
from pipeline.opened import prepare
from pipeline.storage import Store
from stages import STAGES
from tests.pipeline import small_runs
from tests.pipeline.small_runs import WORDS, YAML, corpus


def config_file(root, yaml=YAML, name="small.yaml"):
    file = root / name
    file.write_text(yaml.format(root=root, module=small_runs.__name__))
    return str(file)


def tree(root):
    """Every file below, with what tells that it was written again."""
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(root.rglob("*")) if path.is_file()}


def predicted(report):
    return {entry["name"]: entry for entry in report["predictions"]}


@pytest.fixture
def few(monkeypatch):
    """Draw 60 rows, at least 10 a source, so that a small corpus is not drawn whole."""
    monkeypatch.setattr(dryrun.sampling, "draw", functools.partial(sampling.draw, rows=60, per_source=10))


# -- with a config ---------------------------------------------------------------------------------------------------


def test_own_place(tmp_path, few):
    """Everything lies in work/<name>/dry-run/, and all that was there before, a finished run included, is untouched."""
    corpus(tmp_path, ordinary=200)
    file = config_file(tmp_path)
    run.run(load(file, ()))
    before = tree(tmp_path)
    report = dry_run(file, ())
    after = tree(tmp_path)
    place = tmp_path / "work" / "small" / "dry-run"
    assert before.items() <= after.items()
    new = sorted(path.relative_to(place).as_posix() for path in after.keys() - before.keys())
    assert new == [
        "quarantined/part-00000.parquet", "removed/part-00000.parquet", "report.html", "report.json",
        *(f"sample/{shard}.parquet" for shard in range(3)),
    ]  # fmt: skip
    assert json.loads((place / "report.json").read_bytes()) == report
    assert report["run"]["paths"] == {
        "report": str(place / "report.json"), "html": str(place / "report.html"), "manifest": None,
        "removed": str(place / "removed"), "quarantined": str(place / "quarantined"),
    }  # fmt: skip


def test_what_the_report_is_about(tmp_path, few):
    """Totals are of the drawn rows; run and config are those of the real one; rows are named as in the input."""
    corpus(tmp_path, ordinary=200)
    file = config_file(tmp_path)
    report = dry_run(file, ())
    config = load(file, ())
    assert (report["run"]["dry_run"], report["run"]["complete"], report["run"]["name"]) == (True, True, "small")
    assert report["run"]["config_fingerprint"] == config.fingerprint
    assert report["config"]["input"]["paths"][0]["url"] == config.input.paths[0].url
    sample = report["run"]["sample"]
    docs = report["totals"]["in"]["docs"]
    assert sample == {"seed": 0, "docs": docs, "shards": 3, "fraction": docs / 616}
    removed = pq.read_table(report["run"]["paths"]["removed"]).to_pylist()
    assert len(removed) == report["totals"]["removed"]["docs"] > 0
    for row in removed:
        assert row["id"] == f"{row['shard'].removesuffix('.parquet')}-{row['row']}"
        assert row["archive_file"] is None
    page = (tmp_path / "work" / "small" / "dry-run" / "report.html").read_text()
    shown = next(row for row in removed if row["row"] > 60)
    assert f"{shown['row']:,}" in page


def test_the_same_twice(tmp_path, few):
    """Two dry runs draw the same rows and say the same; another seed draws others; nothing of the first one stays."""
    corpus(tmp_path, ordinary=200)
    file = config_file(tmp_path)
    one = dry_run(file, ())
    sample = tmp_path / "work" / "small" / "dry-run" / "sample"
    kept = {path.name: path.read_bytes() for path in sample.iterdir()}
    (sample / "stale.parquet").write_bytes(b"")
    (sample.parent / "scratch-killed").mkdir()
    two = dry_run(file, ())
    assert {path.name: path.read_bytes() for path in sample.iterdir()} == kept
    assert one["predictions"] == two["predictions"]
    assert not list(sample.parent.glob("scratch-*"))
    dry_run(file, (), overrides=["run.seed=1"])
    assert {path.name: path.read_bytes() for path in sample.iterdir()} != kept


def test_counted(tmp_path):
    """A corpus that is drawn whole is counted, duplicates too, as the run then finds."""
    corpus(tmp_path)
    file = config_file(tmp_path)
    report = dry_run(file, ())
    real = run.run(load(file, ()))
    assert report["totals"] == real["totals"]
    found = predicted(report)
    for stage in real["stages"]:
        kept, left = (found[f"{stage['label']}: {name}"] for name in ("documents kept", "text left"))
        assert (kept["how"], left["how"], left["predicted"]["unit"]) == ("counted", "counted", "bytes")
        assert kept["predicted"]["value"] == pytest.approx(100 * stage["kept"]["docs"] / stage["in"]["docs"])
        assert left["predicted"]["value"] == stage["kept"]["bytes"]
        assert kept["actual"]["kind"] == "unknown"


def test_estimated(tmp_path, few):
    """Of a part, shares and what is left are estimated with an interval, and duplicates are not extrapolated."""
    corpus(tmp_path, ordinary=200)
    file = config_file(tmp_path, YAML.replace("run:", "training: {{bytes_per_token: 4.0}}\nrun:"))
    found = predicted(dry_run(file, ()))
    real = {stage["label"]: stage for stage in run.run(load(file, ()))["stages"]}
    for label in ("ingest", "words"):
        kept, left = (found[f"{label}: {name}"] for name in ("documents kept", "text left"))
        stage = real[label]
        assert kept["how"] == left["how"] == "estimated"
        assert (
            kept["predicted"]["low"] <= 100 * stage["kept"]["docs"] / stage["in"]["docs"] <= kept["predicted"]["high"]
        )
        assert left["predicted"]["unit"] == "tokens"
        assert left["predicted"]["low"] <= stage["kept"]["tokens"] <= left["predicted"]["high"]
    for label in ("copies", "heads"):
        kept, left = (found[f"{label}: {name}"] for name in ("documents kept", "text left"))
        assert (kept["how"], kept["predicted"]["value"], kept["predicted"]["low"]) == ("cannot_be_said", None, None)
        assert "does not scale" in kept["predicted"]["formula"]
        assert (left["how"], left["predicted"]["value"]) == ("bounded", None)
        assert real[label]["kept"]["tokens"] <= left["predicted"]["high"]


def test_both_scripts(tmp_path, few):
    """Of twenty shards of which only the first is in Latin script, the sample holds both, and not the head of one."""
    (tmp_path / "in").mkdir()
    for shard in range(20):
        text = "an english sentence of words" if shard == 0 else "ประโยค ภาษา ไทย นี้ ยาว พอ"
        rows = [f"{text} {row}" for row in range(50)]
        pq.write_table(pa.table({"text": rows}), tmp_path / "in" / f"{shard:02d}.parquet")
    dry_run(config_file(tmp_path), ())
    sample = tmp_path / "work" / "small" / "dry-run" / "sample"
    texts = {path.name: pq.read_table(path)["text"].to_pylist() for path in sorted(sample.iterdir())}
    assert len(texts) == 20
    assert all(text.startswith("an english") for text in texts.pop("00.parquet"))
    numbers = [int(text.rpartition(" ")[2]) for rows in texts.values() for text in rows]
    assert all("ไทย" in text for rows in texts.values() for text in rows)
    assert sum(number >= 25 for number in numbers) > len(numbers) / 4


def test_until(tmp_path):
    """With a last stage the others are not tried, nor are groups made of what they would write."""
    corpus(tmp_path)
    bucket = '  - {{stage: "stages.curriculum:STAGE", by: words.words}}\n'
    yaml = YAML.replace("publish: {{mix_by: [source]", f"{bucket}publish: {{{{mix_by: [source, curriculum.bucket]")
    file = config_file(tmp_path, yaml)
    report = dry_run(file, (), until="words")
    assert [stage["label"] for stage in report["stages"]] == ["ingest", "words"]
    assert report["datasets"]
    with pytest.raises(ConfigError, match=r"--until: got 'word', but no stage .*; did you mean 'words'\?"):
        dry_run(file, (), until="word")


def test_guard(tmp_path):
    """A guard that would stop the run is a warning with the key that accepts it, and the dry run ends well."""
    corpus(tmp_path, ordinary=300)
    file = config_file(tmp_path, YAML.replace("limit: 3", "limit: 6").replace("run:", "guards: {{min_docs: 10}}\nrun:"))
    report = dry_run(file, ())
    assert report["run"]["complete"]
    assert any("guards.accept: ['s0', 's1']" in warning for warning in report["warnings"])


def test_no_cluster(tmp_path, monkeypatch):
    """Whatever the config says, the dry run works in this process and starts no executor."""
    corpus(tmp_path)
    used = []
    monkeypatch.setattr(run, "executor", lambda config: used.append(config.run) or run.local.start(config.run.workers))
    file = config_file(tmp_path, YAML.replace("{{workers: 0}}", "{{executor: ray, address: 'nowhere:1', workers: 8}}"))
    report = dry_run(file, ())
    assert [(found.executor, found.address, found.workers) for found in used] == [("local", None, 0)]
    assert report["run"]["executor"] == "local"


def test_damage(tmp_path, few):
    """Shards that cannot be read, and drawn rows that cannot be decoded, are told and count as lost at ingest."""
    corpus(tmp_path, ordinary=200)
    (tmp_path / "in" / "bad.parquet").write_bytes(b"PAR1")
    file = tmp_path / "in" / "1.parquet"
    metadata = pq.read_metadata(file)
    data = bytearray(file.read_bytes())
    for number in range(metadata.num_row_groups):
        column = metadata.row_group(number).column(1)
        start = column.dictionary_page_offset or column.data_page_offset
        data[start : start + column.total_compressed_size] = bytes(column.total_compressed_size)
    file.write_bytes(data)
    report = dry_run(config_file(tmp_path), ())
    told = "\n".join(report["warnings"])
    assert "1 shard(s) cannot be read and would be quarantined" in told
    assert "drawn documents cannot be decoded and would be quarantined" in told
    kept = predicted(report)["ingest: documents kept"]["predicted"]
    assert kept["low"] < 66 < kept["high"]


def test_shards_of_other_names(tmp_path, few):
    """Shards that a config names one by one are drawn from, whatever they are called and in whatever folders."""
    corpus(tmp_path, ordinary=200)
    (tmp_path / "in" / "0.parquet").rename(tmp_path / "in" / "_zero.data")
    paths = '["{root}/in/_zero.data", "{root}/in/1.parquet", {{url: "{root}/in/2.parquet", as: deep/er}}]'
    report = dry_run(config_file(tmp_path, YAML.replace('["{root}/in/*.parquet"]', paths)), ())
    assert report["run"]["sample"]["shards"] == 3
    removed = pq.read_table(report["run"]["paths"]["removed"])
    assert set(removed["shard"].to_pylist()) <= {"_zero.data", "1.parquet", "deep/er/2.parquet"}
    assert (tmp_path / "work" / "small" / "dry-run" / "sample" / "deep" / "er" / "2.parquet").exists()


def test_out(tmp_path):
    """A folder of the user's choice is used if it is new or holds an earlier dry run, and nothing else."""
    corpus(tmp_path)
    file = config_file(tmp_path)
    place = tmp_path / "tried"
    for _ in range(2):
        assert dry_run(file, (), out=str(place))["run"]["paths"]["report"] == str(place / "report.json")
    assert not (tmp_path / "work").exists()
    other = tmp_path / "other"
    (other / "removed").mkdir(parents=True)
    (other / "removed" / "mine.txt").touch()
    with pytest.raises(ConfigError, match=r"--out: .*it is in use, and not by a dry run"):
        dry_run(file, (), out=str(other))
    assert (other / "removed" / "mine.txt").exists()


def test_on_another_store(tmp_path):
    """With a work tier that is no local disk, the report lies there, and nothing is left on this machine."""
    corpus(tmp_path)
    file = config_file(tmp_path, YAML.replace('{{url: "{root}/work"}}', "{{url: 'memory://dry/work'}}"))
    before = tree(tmp_path)
    report = dry_run(file, ())
    assert tree(tmp_path) == before
    store = Store("memory://dry/work/small/dry-run")
    assert report["run"]["paths"]["report"] == store.url_of("report.json")
    assert {entry.path.partition("/")[0] for entry in store.list()} == {
        "report.json", "report.html", "removed", "quarantined", "sample",
    }  # fmt: skip


def test_a_failure_leaves_no_scratch(tmp_path, monkeypatch):
    """When the engine raises, what an earlier dry run said stays, and nothing half-done does."""
    corpus(tmp_path)
    file = config_file(tmp_path)
    dry_run(file, ())
    before = tree(tmp_path)

    def broken(*_):
        raise RuntimeError("no")

    monkeypatch.setattr(dryrun, "predictions", broken)
    with pytest.raises(RuntimeError):
        dry_run(file, ())
    assert tree(tmp_path) == before


# -- without a config ------------------------------------------------------------------------------------------------

TINY = (WORDS,)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A current folder of its own, and `words` for the only stage that is tried by default."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setattr(starter, "STAGES", ("words",))
    module = types.ModuleType("stages.words")
    module.STAGE = WORDS
    monkeypatch.setitem(sys.modules, "stages.words", module)
    return tmp_path / "cwd"


def test_without_a_config(here):
    """A file is enough: the report lies beside the config that was used, which `run` then takes as it is."""
    texts = [f"{row} words that make a text" for row in range(40)] + ["short"]
    pq.write_table(pa.table({"body": texts, "id": range(41)}), here / "My Crawl.parquet")
    told = []
    report = dry_run("My Crawl.parquet", TINY, notify=lambda kind, facts: told.append((kind, facts)))
    folder = here / "corpusmill-my-crawl"
    files = sorted(path.relative_to(folder).as_posix() for path in tree(folder))
    assert files == [
        "config.yaml", "dry-run/sample/My Crawl.parquet", "quarantined/part-00000.parquet",
        "removed/part-00000.parquet", "report.html", "report.json",
    ]  # fmt: skip
    assert ("note", {"text": f"the config that is used, to go on from: {folder}/config.yaml"}) in told
    assert report["totals"]["removed"]["docs"] == 1
    config = load(folder / "config.yaml", TINY, ["run.workers=0"])
    assert (config.name, config.input.columns.text) == ("my-crawl", "body")
    assert report["run"]["config_fingerprint"] == config.fingerprint
    assert run.run(config)["totals"] == report["totals"]
    assert all(str(path).startswith(str(folder)) for path in tree(here) if path.name != "My Crawl.parquet")


def test_config_is_not_lost(here):
    """A second dry run of the same file goes through; a config that was edited since is not overwritten."""
    pq.write_table(pa.table({"text": ["a text of words"] * 5}), here / "a.parquet")
    dry_run("a.parquet", TINY)
    dry_run("a.parquet", TINY)
    file = here / "corpusmill-a" / "config.yaml"
    file.write_text(file.read_text() + "# mine\n")
    with pytest.raises(ConfigError, match=r"may be your work; run `corpusmill dry-run .*corpusmill-a/config\.yaml`"):
        dry_run("a.parquet", TINY)
    assert file.read_text().endswith("# mine\n")
    assert dry_run(str(file), TINY)["totals"]["in"]["docs"] == 5


def test_overrides_are_in_the_config(here):
    """What was set on the command line is in the config that is kept."""
    pq.write_table(pa.table({"text": ["a text of words"] * 5}), here / "a.parquet")
    report = dry_run("a.parquet", TINY, overrides=["words.limit=9"], out="elsewhere")
    assert report["totals"]["kept"]["docs"] == 0
    assert load(here / "elsewhere" / "config.yaml", TINY).fingerprint == report["run"]["config_fingerprint"]


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        ({"url": ["x" * 99], "text": ["a"]}, "text"),
        ({"url": ["x" * 99], "raw_content": ["a"]}, "raw_content"),
        ({"content": [7], "body": ["a"]}, "body"),
        ({"text": [b"a"], "url": ["x"]}, "text"),
        ({"url": ["x"], "article": ["a long text"], "n": [1]}, "article"),
    ],
)
def test_text_column(tmp_path, columns, found):
    """The text column is one of a usual name that holds text, or else the one with the most of it."""
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    assert starter.text_column("x", starter.storage.expand(str(tmp_path)).files) == found


def test_no_text(here):
    """No text column, no Parquet and JSON lines are errors that say what there is and what to do."""
    pq.write_table(pa.table({"n": [1], "x": [0.5]}), here / "a.parquet")
    with pytest.raises(ConfigError, match=r"no column holds text: n \(int64\), x \(double\); .*input\.columns\.text"):
        dry_run("a.parquet", TINY)
    (here / "a.jsonl").write_text('{"text": "a"}\n')
    for target in ("a.jsonl", "none.parquet", "*.txt"):
        with pytest.raises(ConfigError, match=r"neither a config .*run `corpusmill convert` first"):
            dry_run(target, TINY)
    (here / "b.parquet").write_bytes(b"PAR1")
    with pytest.raises(ConfigError, match="none of its 1 files is Parquet that can be read"):
        dry_run("b.parquet", TINY)
    assert not list(here.glob("corpusmill-*"))


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("a.parquet", "a"), ("/x/My Data.parquet", "my-data"), ("/x/crawl/", "crawl"), ("/x/crawl/*.parquet", "crawl"),
        ("s3://bucket/a b/part-*.parquet", "a-b"), ("*.parquet", "corpus"), ("/x/ไทย.parquet", "corpus"),
    ],
)  # fmt: skip
def test_stem(target, name):
    """The folder and the run are called as the file, or the folder that a pattern starts in."""
    assert starter.stem(target) == name


def test_default_stages(here, monkeypatch):
    """Of the shipped stages those are tried that need neither a model nor a setting."""
    monkeypatch.undo()
    config = starter.write(str(_one(here)), STAGES, Store(str(here / "s")))
    assert [entry.label for entry in config.stages] == ["heuristics", "exact", "minhash", "difficulty"]


def _one(folder):
    pq.write_table(pa.table({"text": ["a"]}), folder / "one.parquet")
    return folder / "one.parquet"


# -- estimates -------------------------------------------------------------------------------------------------------


def sampled(generator, population, sizes, drawn):
    """Rows drawn from strata of a population of 0 and 1: (Drawn, values)."""
    values, strata = [], []
    for index, (part, count) in enumerate(zip(population, drawn, strict=True)):
        values.append(generator.choice(part, count, replace=False))
        strata.append(np.full(count, index))
    row = np.arange(sum(drawn))
    found = Drawn(
        ordinal=row, row=row, stratum=np.concatenate(strata), sizes=np.array(sizes), rows=sum(sizes)
    )  # fmt: skip
    return found, np.concatenate(values)


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.02, 0.9), (0.0, 0.3), (0.99, 1.0)])
def test_intervals_hold(shares):
    """In nine of ten samples or more the interval of a share, and of a sum, holds the truth; on average it is right."""
    sizes, drawn = (20_000, 600), (400, 100)
    population = [(np.arange(size) < share * size).astype(np.int64) for size, share in zip(sizes, shares, strict=True)]
    truth = sum(int(part.sum()) for part in population)
    held, values = np.zeros(2), list[float]()
    for seed in range(300):
        found, ones = sampled(np.random.default_rng(seed), population, sizes, drawn)
        value, low, high = share(found, np.ones(500, bool), ones == 1)
        values.append(value)
        held[0] += low <= truth / sum(sizes) <= high
        value, low, high = total(found, ones * 7)
        assert low <= value <= high
        held[1] += low <= 7 * truth <= high
    assert (held >= 270).all()
    assert np.mean(values) == pytest.approx(truth / sum(sizes), rel=0.02)


def test_extremes():
    """A share of all or none has an interval too, rows added for their shard count for nothing, and all is exact."""
    row = np.arange(100)
    part = Drawn(ordinal=row, row=row, stratum=np.where(row < 90, 0, -1), sizes=np.array([1000]), rows=1000)
    everyone, nobody = np.ones(100, bool), np.zeros(100, bool)
    value, low, high = share(part, everyone, row < 90)
    assert (value, high) == (1.0, 1.0)
    assert 0.9 < low < 1.0
    value, low, high = share(part, everyone, nobody)
    assert (value, low) == (0.0, 0.0)
    assert 0.0 < high < 0.1
    assert share(part, nobody, nobody) is None
    whole = Drawn(ordinal=row, row=row, stratum=np.zeros(100, int), sizes=np.array([100]), rows=100)
    assert share(whole, everyone, row < 30) == (0.3, 0.3, 0.3)
    assert total(whole, row) == (4950.0, 4950.0, 4950.0)


def test_ledger_of_the_run_is_not_asked(tmp_path, monkeypatch):
    """A dry run of a config whose run is at work elsewhere neither waits for it nor disturbs it."""
    corpus(tmp_path)
    file = config_file(tmp_path)
    config = load(file, ())
    opened = prepare(config)
    run.claim(opened)
    with ledger.Ledger.open(opened.work, {"version": "x", "config_fingerprint": config.fingerprint}):
        assert dry_run(file, ())["run"]["complete"]
