"""What a hostile corpus or a damaged work folder could break: odd schemas, odd names, files changed from outside."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from harness import EXACT, NEAR, configure, current_files, differing, hot_rows, newest_manifest, outcome, run, words

from pipeline.errors import ConfigError, ContractError

CHAIN = (EXACT, NEAR, "{stage: difficulty}", "{stage: curriculum, by: difficulty.bits_per_byte, buckets: 2}")
TEXTS = [words(seed, 40) for seed in range(12)]
BROKEN = pa.Array.from_buffers(pa.string(), 3, pa.array([b"\xff a", b"fine", b"b \xed\xa0\x80"]).buffers())


def put(root: Path, columns: dict | pa.Table, name: str = "0") -> None:
    (root / "in").mkdir(exist_ok=True)
    pq.write_table(columns if isinstance(columns, pa.Table) else pa.table(columns), root / "in" / f"{name}.parquet")


# -- schemas ---------------------------------------------------------------------------------------------------------


def test_input_columns_may_be_called_like_ours(tmp_path):
    """Columns with the names of our own come out as they came in, and the archive has ours beside them."""
    ours = ("stage", "reason", "shard", "row", "order", "dataset", "state", "key", "bucket", "bytes", "split")
    put(tmp_path, {"text": [*TEXTS, TEXTS[0]], **{name: [f"{name} {i}" for i in range(13)] for name in ours}})
    put(tmp_path, {"text": ["no column of that kind"]}, "1")
    config = configure(tmp_path, *CHAIN)
    report = run(config)
    [archive] = (tmp_path / "cold").rglob("*.parquet")
    [gone] = pq.read_table(archive).to_pylist()
    row = gone["corpusmill_row"]
    assert (gone["reason"], gone["row"], gone["corpusmill_reason"]) == (
        f"reason {row}",
        f"row {row}",
        "exact_duplicate",
    )
    kept = {f"order {i}" for i in range(13)} - {f"order {row}"}
    assert {found["order"] for found in hot_rows(config)} == {None, *kept}
    assert report["totals"]["removed"]["docs"] == 1


@pytest.mark.parametrize(
    "table",
    [
        pa.table([pa.array(TEXTS), pa.array(TEXTS)], names=["text", "text"]),
        pa.table([pa.array(TEXTS), pa.array(TEXTS), pa.array(TEXTS)], names=["text", "a", "a"]),
        pa.table({
            "text": TEXTS[:2],
            "outer": pa.StructArray.from_arrays([pa.array([1, 2]), pa.array(["x", "y"])], names=["a", "a"]),
        }),
    ],
    ids=["text", "another", "in a struct"],
)  # fmt: skip
def test_a_name_that_stands_twice_is_refused(tmp_path, table):
    """A column or a field whose name stands twice in a file is an error before any work: none is silently dropped."""
    put(tmp_path, table)
    with pytest.raises(ConfigError, match=r"stands twice in .*0\.parquet"):
        run(configure(tmp_path, EXACT))
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize(
    "column",
    [
        pa.MapArray.from_arrays([0, 1, 2, 3], BROKEN, BROKEN),
        pa.FixedSizeListArray.from_arrays(BROKEN, 1),
        pa.ListArray.from_arrays([0, 1, 2, 3], pa.MapArray.from_arrays([0, 1, 2, 3], BROKEN, BROKEN)),
        pa.StructArray.from_arrays([pa.FixedSizeListArray.from_arrays(BROKEN, 1)], ["a"]),
    ],
    ids=lambda column: str(column.type),
)
def test_bytes_that_are_no_text_are_replaced_at_any_depth(tmp_path, column):
    """Strings inside maps, lists of a fixed size and what they hold come out as valid UTF-8, and no row is lost."""
    put(tmp_path, {"text": TEXTS[:3], "meta": column})
    config = configure(tmp_path, EXACT)
    run(config)
    assert sum("\ufffd" in str(row["meta"]) for row in hot_rows(config)) == 2
    assert sum("fine" in str(row["meta"]) for row in hot_rows(config)) == 1


def test_maps_and_lists_of_different_make_are_one_column(tmp_path):
    """Maps of other string types, and lists of fixed and of free size, share a type that keeps every value."""
    put(tmp_path, {
        "text": TEXTS[:2], "map": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int8())),
        "list": pa.array([[1.0, 2.0], None], pa.list_(pa.float32(), 2)),
    })  # fmt: skip
    put(tmp_path, {
        "text": TEXTS[2:4], "map": pa.array([[("b", 2**40)], []], pa.map_(pa.large_string(), pa.int64())),
        "list": pa.array([[3.0], []], pa.list_(pa.float64())),
    }, "1")  # fmt: skip
    config = configure(tmp_path, EXACT)
    run(config)
    found = {row["text"]: (row["map"], row["list"]) for row in hot_rows(config)}
    assert [found[text] for text in TEXTS[:4]] == [
        ([("a", 1)], [1.0, 2.0]), (None, None), ([("b", 2**40)], [3.0]), ([], []),
    ]  # fmt: skip


def test_extension_types_are_what_they_store(tmp_path):
    """A column of an extension type is read as the type below it."""
    put(tmp_path, {"text": TEXTS[:2], "id": pa.array([b"0" * 16, b"1" * 16], pa.uuid())})
    config = configure(tmp_path, EXACT)
    run(config)
    assert {row["id"] for row in hot_rows(config)} == {b"0" * 16, b"1" * 16}


# -- names and numbers -----------------------------------------------------------------------------------------------


def test_mix_groups_hold_any_text(tmp_path):
    """Every distinct value makes a dataset of its own whose group names it, control characters and null included."""
    odd = ["a\x1fb", "a", "b", "", None, "a/b", "../..", "x" * 300, '["a"]', "A", "\x1f", "é"]
    put(tmp_path, {"text": TEXTS, "source": odd, "language": odd[::-1]})
    config = configure(tmp_path, EXACT, more="publish: {mix_by: [source, language]}")
    run(config)
    datasets = newest_manifest(config)["datasets"]
    groups = {(dataset["group"]["source"], dataset["group"]["language"]) for dataset in datasets}
    assert groups == set(zip(odd, odd[::-1], strict=True))
    assert len({dataset["id"] for dataset in datasets}) == len(odd)


def test_parts_are_no_more_than_documents(tmp_path):
    """The smallest part_bytes gives a part a document at most, not one a byte."""
    put(tmp_path, {"text": TEXTS})
    config = configure(tmp_path, EXACT, sets=["publish.part_bytes=1"])
    run(config)
    assert len(current_files(config)) <= len(TEXTS)


def test_groups_of_a_curriculum_may_be_large_integers(tmp_path):
    """Unsigned values beyond int64 are groups like any others, in the edges file too."""
    put(tmp_path, {"text": TEXTS, "q": pa.array([2**64 - 1, 7, None] * 4, pa.uint64())})
    config = configure(tmp_path, *CHAIN[2:], sets=["curriculum.within=[q]", "curriculum.min_group=1"])
    run(config)
    edges = pq.read_table(tmp_path / "hot/test/v1/meta/edges.parquet")
    assert set(edges["q"].to_pylist()) == {2**64 - 1, 7, None}


@pytest.mark.parametrize(
    ("stage", "setting"),
    [
        ("{stage: select, by: q, keep_top: 0.5}", r"stages\.0\.by: got 'q'"),
        ("{stage: select, by: source, keep_top: 0.5}", r"stages\.0\.by: got 'source'"),
        ("{stage: curriculum, by: q}", r"stages\.0\.by: got 'q'"),
        ("{stage: exact, keep: ['q desc']}", r"stages\.0\.keep: got 'q desc'"),
        ("{stage: minhash, keep: [bytes, 'q asc']}", r"stages\.0\.keep: got 'q asc'"),
        ("{stage: minhash, within: [q]}", r"stages\.0\.within: got 'q'"),
        ("{stage: curriculum, by: bytes, within: [q]}", r"stages\.0\.within: got 'q'"),
    ],
)
def test_a_column_that_cannot_serve_is_refused_before_any_work(tmp_path, stage, setting):
    """A column of lists as a score, an order or a group is an error that names the setting, and nothing is written."""
    put(tmp_path, {"text": TEXTS, "q": [[1]] * 12, "source": ["s"] * 12})
    with pytest.raises(ConfigError, match=setting):
        run(configure(tmp_path, stage))
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize(
    "setting",
    [
        "publish.columns=[text, text]", "publish.mix_by=[source, source]", "training={bytes_per_token: 1e-300}",
        "sources={a: {priority: 99999999999999999999}}",
    ],
)  # fmt: skip
def test_settings_that_no_run_can_follow_are_refused(tmp_path, setting):
    """A name given twice and a number that no column holds are errors of the config, not of a task hours later."""
    with pytest.raises(ConfigError):
        configure(tmp_path, EXACT, sets=[setting])


def test_a_curriculum_needs_no_floor(tmp_path):
    """Without a floor the phases still read every token once."""
    put(tmp_path, {"text": TEXTS})
    config = configure(tmp_path, *CHAIN, sets=["publish.limits.floor=0"])
    report = run(config)
    assert newest_manifest(config)["phases"][-1]["end"] == report["totals"]["kept"]["tokens"]


def test_what_a_run_writes_is_not_its_input(tmp_path):
    """Where the input's folder holds a tier, the second run is an error that names it: outputs are never read again."""
    put(tmp_path, {"text": TEXTS})
    config = configure(tmp_path, EXACT, paths="")
    run(config)
    with pytest.raises(ConfigError, match=r"where this run itself writes \(tiers\.(work|hot|cold)\)"):
        run(config)


def test_a_link_to_nothing_is_a_bad_shard(tmp_path):
    """A shard that is listed and cannot be opened is quarantined whole, like one that cannot be read."""
    put(tmp_path, {"text": TEXTS})
    (tmp_path / "in/gone.parquet").symlink_to(tmp_path / "nowhere.parquet")
    report = run(configure(tmp_path, EXACT))
    assert report["totals"]["quarantined_shards"]["count"] == 1
    assert report["totals"]["kept"]["docs"] == len(TEXTS)


# -- files changed from outside --------------------------------------------------------------------------------------


def flip(path: Path) -> None:
    """Change one byte, and not the size: of a ledger's file the first, since others may say no more than a time."""
    data = bytearray(path.read_bytes())
    data[0 if path.suffix == ".jsonl" else len(data) // 2] ^= 0x41
    path.write_bytes(data)


@pytest.fixture(scope="module")
def changed(tmp_path_factory):
    """A finished run, and the outcome of a second one with another threshold on an untouched folder."""
    import shutil

    root = tmp_path_factory.mktemp("damage")
    near = [" ".join([*TEXTS[0].split()[:38], f"x{i}"]) for i in range(4)]
    put(root, {"text": [*TEXTS, *near, TEXTS[1]]})
    put(root, {"text": [f"{text} and more of it" for text in TEXTS[:6]]}, "1")
    sets = ["minhash.threshold=0.6", "minhash.bands=40", "minhash.rows=6"]
    run(configure(root, *CHAIN, sets=[*sets, "minhash.threshold=0.9"]))
    shutil.copytree(root, root.with_name("kept"), copy_function=shutil.copy2)
    wanted = run(configure(root, *CHAIN, sets=sets))
    return root, sets, outcome(configure(root, *CHAIN, sets=sets), wanted)


@pytest.mark.parametrize(
    "pattern",
    [
        "sidecars/ingest-*/*/*", "sidecars/exact-*/*/*", "exchange/minhash-*/payload/*/*", "ledger/*1.jsonl",
        "ledger/*3.jsonl", "ledger/*4.jsonl",
    ],
)  # fmt: skip
def test_a_flipped_byte_is_found_and_its_cell_redone(changed, pattern):
    """A file of an earlier run with one other byte and the same size is made again before it is read, with a warning
    that names it, and the result is that of an untouched folder."""
    import shutil

    root, sets, wanted = changed
    for tier in ("work", "hot", "cold"):
        shutil.rmtree(root / tier)
        shutil.copytree(root.with_name("kept") / tier, root / tier)
    damaged = min((root / "work" / "test").glob(pattern))
    flip(damaged)
    config = configure(root, *CHAIN, sets=sets)
    report = run(config)
    assert any(damaged.name in warning for warning in report["warnings"])
    assert not differing(outcome(config, report), wanted)


def test_damaged_facts_do_not_reach_the_report(tmp_path):
    """Facts with another digit in them are settled again, although nothing else of the run has to be."""
    put(tmp_path, {"text": TEXTS})
    config = configure(tmp_path, *CHAIN)
    wanted = outcome(config, run(config))
    for facts in (tmp_path / "work" / "test" / "facts").iterdir():
        flip(facts)
    assert not differing(outcome(config, run(config)), wanted)


@pytest.mark.parametrize("name", ["hot/test/v1/manifest.json", "work/test/run.json"])
@pytest.mark.parametrize("left", [b"", b'{"schema": "corp', b"[]\n", bytes(100)])
def test_a_damaged_document_is_named(tmp_path, name, left):
    """A manifest or run.json that cannot be understood stops the run with exit code 3 and its path."""
    put(tmp_path, {"text": TEXTS})
    config = configure(tmp_path, EXACT)
    run(config)
    (tmp_path / name).write_bytes(left)
    with pytest.raises(ContractError, match=name):
        run(config)
