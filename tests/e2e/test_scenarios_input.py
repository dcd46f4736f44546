"""What the input may look like: ids that lie, columns that differ between shards, folders with damaged files."""

from __future__ import annotations

import datetime as dt
import itertools
import os
import random
from collections import Counter
from decimal import Decimal

import harness
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import ConfigError, ContractError


def texts(count, seed, words=40):
    return [harness.words(10_000 * seed + i, words) for i in range(count)]


def put(folder, name, columns, **options):
    """One shard of these columns (arrays or lists)."""
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), folder / f"{name}.parquet", **options)


# -- S05: ids that lie -----------------------------------------------------------------------------------------------


def lying_ids(folder):
    """Ids repeated between shards, null, absent and of another type; row 7 of the first is row 50 of the fifth."""
    shards = [texts(100, seed) for seed in range(5)]
    shards[4][50] = shards[0][7]
    strings = [str(i) for i in range(100)]
    put(folder, "0", {"text": shards[0], "id": strings})
    put(folder, "1", {"text": shards[1], "id": strings})
    put(folder, "2", {"text": shards[2], "id": pa.nulls(100, pa.string())})
    put(folder, "3", {"text": shards[3]})
    put(folder, "4", {"text": shards[4], "id": pa.array(range(100), pa.int64())})
    ids = [*strings, *strings, *[None] * 200, *strings]
    return Counter(zip(itertools.chain(*shards), ids, strict=True))


@pytest.mark.parametrize("stages", ["exact", "near", "both"])
def test_rows_are_told_apart_whatever_their_ids_say(tmp_path, stages):
    """Of rows with equal ids only the true copy goes; ids come out as they came in, as text where types differ."""
    rows = lying_ids(tmp_path / "in")
    chain = {"exact": [harness.EXACT], "near": [harness.NEAR], "both": [harness.EXACT, harness.NEAR]}
    config = harness.configure(tmp_path, *chain[stages])
    (gone,) = harness.removed(harness.run(config))
    pair = {tuple(gone[f"{of}{name}"] for name in ("shard", "row", "id")) for of in ("", "charged_")}
    assert pair == {("0.parquet", 7, "7"), ("4.parquet", 50, "50")}
    kept = Counter((row["text"], row["id"]) for row in harness.hot_rows(config))
    (lost,) = rows - kept
    assert kept == rows - Counter([lost])
    assert lost == (texts(8, 0)[7], gone["id"])


def test_ids_of_one_type_keep_it(tmp_path):
    """Whole numbers stay whole numbers in what is published, and are text in the table of removed rows."""
    first, second = texts(30, 1), texts(30, 2)
    put(tmp_path / "in", "a", {"text": [*first, first[3]], "key": pa.array(range(31), pa.int32())})
    put(tmp_path / "in", "b", {"text": second, "key": pa.array(range(2**40, 2**40 + 30), pa.int64())})
    config = harness.configure(tmp_path, harness.EXACT, sets=["input.columns.id=key"])
    report = harness.run(config)
    (gone,) = harness.removed(report)
    assert {gone["id"], gone["charged_id"]} == {"3", "30"}
    kept = {row["text"]: row["key"] for row in harness.hot_rows(config)}
    assert [kept[text] for text in second] == list(range(2**40, 2**40 + 30))


def test_ids_that_a_table_library_made_floats_become_text(tmp_path):
    """Whole numbers in one shard and floats with gaps in another are not one number type: ids are then text."""
    put(tmp_path / "in", "a", {"text": texts(3, 1), "id": pa.array([1, 2, 2**53 + 1], pa.int64())})
    put(tmp_path / "in", "b", {"text": texts(3, 2), "id": pa.array([1.0, None, 3.5], pa.float64())})
    config = harness.configure(tmp_path, harness.EXACT)
    harness.run(config)
    found = [row["id"] for row in harness.hot_rows(config)]
    assert Counter(found) == Counter(["1", "2", str(2**53 + 1), "1", None, "3.5"])


IDS = {
    "bytes": (pa.array([b"doc-1", b"\x00\xff", None], pa.binary()), ["doc-1", "00ff", None]),
    "fixed bytes": (pa.array([b"ab", b"\xfe\xff", None], pa.binary(2)), ["ab", "feff", None]),
    "structs": (pa.array([{"a": 1}, {"a": None}, None]), ['{"a": 1}', '{"a": null}', None]),
    "lists": (pa.array([["x"], [], None]), ['["x"]', "[]", None]),
    "dates": (pa.array([dt.date(2024, 1, 2), None, None]), ["2024-01-02", None, None]),
    "truth": (pa.array([True, False, None]), ["true", "false", None]),
}


@pytest.mark.parametrize("kind", IDS)
@pytest.mark.parametrize("part", ["id", "source"])
def test_an_id_or_a_source_of_any_type_is_text_in_reports(tmp_path, kind, part):
    """Types that nobody would choose for a name: readable in tables and report, unchanged in what is published."""
    column, expected = IDS[kind]
    values = texts(3, 1)
    put(tmp_path / "in", "a", {"text": values, part: column})
    put(tmp_path / "in", "b", {"text": values})
    config = harness.configure(tmp_path, harness.EXACT)
    report = harness.run(config)
    gone = harness.removed(report)
    ends = {row["text"]: row[part] for row in harness.hot_rows(config)}
    known = {text: (value, told) for text, value, told in zip(values, column.to_pylist(), expected, strict=True)}
    for row in gone:  # one of each pair went; the other, whichever it was, tells what it was called
        text = values[row["row"]]
        went, stayed = (known[text][1], None) if row["shard"] == "a.parquet" else (None, known[text][1])
        assert row[part] == went
        assert ends[text] == (None if stayed is None else known[text][0])


# -- S09: one column, many types -------------------------------------------------------------------------------------

TEXTUAL = {
    "string": lambda values: pa.array(values, pa.string()),
    "large_string": lambda values: pa.array(values, pa.large_string()),
    "string_view": lambda values: pa.array(values, pa.string_view()),
    "dictionary": lambda values: pa.array(values, pa.string()).dictionary_encode(),
    "binary": lambda values: pa.array([v if v is None else v.encode() for v in values], pa.binary()),
    "large_binary": lambda values: pa.array([v if v is None else v.encode() for v in values], pa.large_binary()),
}


def six_shards():
    """The shards of the scenario: `url` null, string, large_string, dictionary; text as binary; no `url`."""

    def urls(k):
        return [f"http://s{k}/{i}" if i % 3 else None for i in range(10)]

    shared = texts(10, 9)
    made = [{"text": [*texts(10, k)[:-1], shared[k]]} for k in range(6)]
    made[0] |= {"url": pa.nulls(10)}
    made[1] |= {"url": pa.array(urls(1), pa.string())}
    made[2] |= {"url": pa.array(urls(2), pa.large_string())}
    made[3] |= {"url": pa.array(urls(3), pa.string()).dictionary_encode()}
    made[4] |= {"url": pa.array(urls(4), pa.string()), "text": TEXTUAL["binary"](made[4]["text"])}
    made[1]["text"] = [*made[1]["text"][:-2], shared[0], shared[1]]
    return made


def published(root, shards, order):
    """A run over these shards under names that put them into this order: rows without their place, and the schema."""
    for name, k in zip("abcdef", order, strict=False):
        put(root / "in", name, shards[k])
    config = harness.configure(root, harness.EXACT, harness.NEAR)
    report = harness.run(config)
    files = harness.current_files(config)
    schemas = {tuple((f.name, str(f.type)) for f in pq.read_schema(file)) for file in files}
    assert len(schemas) == 1
    rows = sorted((row["text"], str(row.get("url"))) for row in harness.hot_rows(config))
    return rows, schemas.pop(), report["totals"]


def test_the_order_of_shards_decides_nothing_about_types(tmp_path):
    """Whichever shard comes first, columns get the same types and the same rows stay."""
    shards = six_shards()
    orders = [tuple(range(6)), (5, 4, 3, 2, 1, 0), *random.Random(4).sample(list(itertools.permutations(range(6))), 4)]
    found = [published(tmp_path / str(i), shards, order) for i, order in enumerate(orders)]
    assert all(other == found[0] for other in found)
    assert found[0][1] == (("text", "large_string"), ("url", "large_string"))
    assert found[0][2]["removed"]["docs"] == 1


@pytest.mark.parametrize("pair", [*itertools.combinations(range(6), 2)], ids=str)
def test_any_two_shards_go_together(tmp_path, pair):
    """Each pair in both orders: the same rows, the same schema."""
    shards = six_shards()
    assert published(tmp_path / "one", shards, pair) == published(tmp_path / "two", shards, pair[::-1])


@pytest.mark.parametrize("kind", TEXTUAL)
def test_text_may_have_any_textual_type(tmp_path, kind):
    """The same ten documents come out, as text, whatever physical type they came as, alone or beside plain strings."""
    values = [*texts(9, 3), "naïve café 猫"]
    other = texts(5, 4)
    put(tmp_path / "in", "a", {"text": TEXTUAL[kind](values)})
    put(tmp_path / "in", "b", {"text": other})
    for paths, expected in (("in/a.parquet", values), ("in/*.parquet", values + other)):
        config = harness.configure(tmp_path, harness.EXACT, harness.NEAR, paths=paths, sets=[f"name=n{len(expected)}"])
        harness.run(config)
        assert sorted(row["text"] for row in harness.hot_rows(config)) == sorted(expected)
        assert pq.read_schema(harness.current_files(config)[0]).field("text").type == pa.large_string()


def refused(root, *stages):
    """The message of the config error, which comes before a file is written."""
    before = sorted(root.rglob("*"))
    with pytest.raises(ConfigError) as error:
        harness.run(harness.configure(root, *(stages or (harness.EXACT,))))
    assert sorted(root.rglob("*")) == before
    return error.value.message


def test_a_list_is_no_text(tmp_path):
    """A text column that holds lists is an error that names column, type and file."""
    put(tmp_path / "in", "a", {"text": texts(3, 1)})
    put(tmp_path / "in", "b", {"text": pa.array([["x"]], pa.list_(pa.string()))})
    message = refused(tmp_path)
    assert "input.columns.text" in message
    assert "list<" in message
    assert "b.parquet" in message
    assert "a.parquet" not in message


CONFLICTS = {
    "url": (pa.array(["u"]), pa.array([1], pa.int64())),
    "score": (pa.array([0.5]), pa.array(["high"])),
    "date": (pa.array([dt.date(2024, 1, 1)]), pa.array(["2024-01-01"])),
    "meta": (pa.array([{"a": 1}]), pa.array(["{}"])),
    "size": (pa.array([1], pa.uint64()), pa.array([-1], pa.int64())),
}


@pytest.mark.parametrize("column", CONFLICTS)
@pytest.mark.parametrize("order", ["ab", "ba"])
def test_types_that_cannot_be_one_are_an_error_before_any_work(tmp_path, column, order):
    """The message names the column, both types and both files; nothing is written."""
    for name, values in zip(order, CONFLICTS[column], strict=True):
        put(tmp_path / "in", name, {"text": texts(1, 1), column: values})
    put(tmp_path / "in", "c", {"text": texts(1, 3)})
    message = refused(tmp_path)
    assert repr(column) in message
    assert all(f"{name}.parquet" in message for name in "ab")
    old, new = (str(values.type) for values in CONFLICTS[column])
    for kind in (old, new):
        assert {"string": "large_string", "struct<a: int64>": "struct<a: int64>"}.get(kind, kind) in message


def test_the_conflict_of_the_scenario(tmp_path):
    """An int64 `url` among the six shards stops them all, whatever the order."""
    shards = six_shards()
    for name, k in zip("abcdef", range(6), strict=True):
        put(tmp_path / "in", name, shards[k])
    put(tmp_path / "in", "aa", {"text": texts(2, 30), "url": pa.array([1, 2], pa.int64())})
    message = refused(tmp_path)
    for part in ("'url'", "large_string", "int64", "aa.parquet", "convert one of the files"):
        assert part in message


ZOO = {
    "flag": pa.array([True, None, False]),
    "small": pa.array([1, -2, None], pa.int8()),
    "half": pa.array([0.5, None, 2.0], pa.float16()),
    "share": pa.array([0.1, None, 3.0], pa.float32()),
    "price": pa.array([Decimal("1.50"), None, Decimal("-2.25")], pa.decimal128(9, 2)),
    "day": pa.array([dt.date(2024, 2, 29), None, dt.date(1, 1, 1)], pa.date32()),
    "clock": pa.array([dt.time(1, 2, 3), None, dt.time(0)], pa.time64("us")),
    "at": pa.array([dt.datetime(2024, 1, 1, tzinfo=dt.UTC), None, None], pa.timestamp("us", "UTC")),
    "took": pa.array([dt.timedelta(seconds=1), None, dt.timedelta(0)], pa.duration("ms")),
    "digest": pa.array([b"\x00\xff", None, b""], pa.binary()),
    "fixed": pa.array([b"abcd", None, b"\x00\x01\x02\x03"], pa.binary(4)),
    "tags": pa.array([["a", None], None, []], pa.list_(pa.string())),
    "pair": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int16(), 2)),
    "views": pa.array(["a", None, "c"], pa.string_view()),
    "meta": pa.array([{"k": "v", "n": [1]}, None, {"k": None, "n": None}],
                     pa.struct([("k", pa.string()), ("n", pa.list_(pa.int32()))])),
    "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
    "coded": pa.array(["x", None, "x"]).dictionary_encode(),
    "nothing": pa.nulls(3),
    "reason": pa.array(["mine", None, "own"]),
    "shard": pa.array([7, 8, None], pa.int64()),
    "row": pa.array(["r", None, "s"]),
    "state": pa.array(["s", "t", None]),
    "a.b": pa.array([1, 2, None]),
    "exact.reason": pa.array(["q", "r", None]),
    "Text": pa.array(["upper", None, "case"]),
    "": pa.array([1, 2, 3]),
}  # fmt: skip


def test_every_column_comes_out_as_it_came_in(tmp_path):
    """Columns of any type and name are published with their values, and archived with those of removed rows."""
    values = texts(3, 1)
    put(tmp_path / "in", "a", {"text": values, **ZOO})
    put(tmp_path / "in", "b", {"text": [values[0], *texts(1, 2)]})
    config = harness.configure(tmp_path, harness.EXACT, harness.NEAR)
    report = harness.run(config)
    found = {row["text"]: row for row in harness.hot_rows(config)}
    for i, text in enumerate(values):
        if text != values[0]:
            for name, column in ZOO.items():
                assert found[text][name] == column[i].as_py(), name
    (gone,) = harness.removed(report)
    (file,) = (tmp_path / "cold").rglob("*.parquet")
    (archived,) = pq.read_table(file).to_pylist()
    assert archived["text"] == values[0]
    names = {"reason", "shard", "row"}
    assert {f"corpusmill_{name}" for name in names} <= set(archived)
    assert (archived["corpusmill_shard"], archived["corpusmill_row"]) == (gone["shard"], gone["row"])


def test_structs_of_shards_are_merged_by_field(tmp_path):
    """A field that a shard lacks is null there, in either order of shards, also deep inside."""
    strings, numbers = pa.struct([("x", pa.string())]), pa.struct([("y", pa.int32())])
    one = pa.array([{"a": 1, "deep": {"x": "q"}}], pa.struct([("a", pa.int32()), ("deep", strings)]))
    two = pa.array([{"deep": {"y": 5}, "b": None}], pa.struct([("deep", numbers), ("b", pa.string())]))
    for names in ("ab", "ba"):
        root = tmp_path / names
        for name, values, seed in zip(names, (one, two), (1, 2), strict=True):
            put(root / "in", name, {"text": texts(1, seed), "meta": values})
        config = harness.configure(root, harness.EXACT)
        harness.run(config)
        found = {row["text"]: row["meta"] for row in harness.hot_rows(config)}
        assert found[texts(1, 1)[0]] == {"a": 1, "b": None, "deep": {"x": "q", "y": None}}
        assert found[texts(1, 2)[0]] == {"a": None, "b": None, "deep": {"x": None, "y": 5}}


def test_lists_of_structs_and_nulls_take_the_type_of_the_corpus(tmp_path):
    """A column that is null, or holds fewer fields or smaller numbers, in one shard is widened also inside lists."""
    few, many = pa.struct([("a", pa.int16())]), pa.struct([("b", pa.string()), ("a", pa.float64())])
    numbers = pa.struct([("k", pa.list_(pa.int8()))])
    shorter, longer = [[{"a": 7}], None], [[], [{"b": "x"}, None]]
    put(tmp_path / "in", "a", {"text": texts(2, 1), "tags": pa.array(shorter, pa.list_(few)), "meta": pa.nulls(2)})
    nested = {"tags": pa.array(longer, pa.list_(many)), "meta": pa.array([{"k": [1]}, None], numbers)}
    put(tmp_path / "in", "b", {"text": texts(2, 2), **nested})
    put(tmp_path / "in", "c", {"text": texts(1, 3), "tags": pa.nulls(1), "meta": pa.array([{"k": None}])})
    config = harness.configure(tmp_path, harness.EXACT)
    harness.run(config)
    found = {row["text"]: (row["tags"], row["meta"]) for row in harness.hot_rows(config)}
    assert [found[text] for text in (*texts(2, 1), *texts(2, 2), *texts(1, 3))] == [
        ([{"a": 7.0, "b": None}], None), (None, None),
        ([], {"k": [1]}), ([{"a": None, "b": "x"}, None], None), (None, {"k": None}),
    ]  # fmt: skip


def test_whole_numbers_beside_floats_are_floats(tmp_path):
    """A count that one shard has as floats is a float everywhere, rounded where a float cannot hold it."""
    put(tmp_path / "in", "a", {"text": texts(2, 1), "count": pa.array([3, 2**53 + 1], pa.int64())})
    put(tmp_path / "in", "b", {"text": texts(1, 2), "count": pa.array([0.5])})
    config = harness.configure(tmp_path, harness.EXACT)
    harness.run(config)
    assert sorted(row["count"] for row in harness.hot_rows(config)) == [0.5, 3.0, 2.0**53]


def test_strings_that_are_no_utf8_do_no_harm_in_other_columns(tmp_path):
    """Bad bytes in an id, a source, a url or inside lists and structs are replaced: they come from careless writers."""
    bad = pa.array([b"ok", b"caf\xe9", None], pa.binary())
    strings = pa.Array.from_buffers(pa.string(), 3, bad.buffers(), bad.null_count)
    lists = pa.ListArray.from_arrays([0, 2, 2, 3], strings)
    columns = {"id": strings, "source": strings, "url": strings, "tags": lists}
    columns["meta"] = pa.StructArray.from_arrays([strings], names=["k"])
    values = texts(3, 1)
    put(tmp_path / "in", "a", {"text": values, **columns})
    put(tmp_path / "in", "b", {"text": texts(2, 2)})
    config = harness.configure(tmp_path, harness.EXACT)
    report = harness.run(config)
    assert {source["name"] for source in report["sources"]} == {None, "ok", "caf\ufffd"}
    found = {row["text"]: row for row in harness.hot_rows(config)}
    for text, fixed, tags in zip(values, ["ok", "caf\ufffd", None], [["ok", "caf\ufffd"], [], [None]], strict=True):
        row = found[text]
        assert [row["id"], row["source"], row["url"], row["meta"]["k"], row["tags"]] == [fixed] * 4 + [tags]


# -- S12: a dirty folder ---------------------------------------------------------------------------------------------


def good_shards(folder, count=5, rows=20):
    for k in range(count):
        put(folder, f"good{k}", {"text": texts(rows, k), "id": [f"g{k}-{i}" for i in range(rows)]})


def damaged(folder, name, change, rows=20):
    """A shard whose bytes are changed after it was written."""
    put(folder, name, {"text": texts(rows, 50 + len(name)), "id": [f"{name}-{i}" for i in range(rows)]})
    path = folder / f"{name}.parquet"
    path.write_bytes(change(bytearray(path.read_bytes())))


def flipped(data):
    """Two bytes of the first page's payload turned over; the footer is whole."""
    for at in (60, 61):
        data[at] ^= 0xFF
    return data


def empties(folder):
    """Zero rows in both forms, and row groups of 1, 0 and 1 rows."""
    schema = pa.schema([("text", pa.string()), ("id", pa.string())])
    pq.write_table(schema.empty_table(), folder / "zero-a.parquet")
    with pq.ParquetWriter(folder / "zero-b.parquet", schema):
        pass
    with pq.ParquetWriter(folder / "zero-c.parquet", schema) as out:
        for number in (0, None, 1):
            rows = [] if number is None else [{"text": texts(2, 70)[number], "id": f"z{number}"}]
            out.write_table(pa.Table.from_pylist(rows, schema=schema))
    assert [pq.read_metadata(folder / f"zero-{k}.parquet").num_row_groups for k in "bc"] == [0, 3]


def litter(folder):
    """What other programs leave beside shards."""
    (folder / "_SUCCESS").touch()
    (folder / ".good0.parquet.crc").write_bytes(b"crc")
    (folder / "good0.parquet.crc").write_bytes(b"crc")
    (folder / ".hidden.parquet").write_bytes((folder / "good0.parquet").read_bytes())
    (folder / "_metadata").write_bytes(b"PAR1")


BAD = {
    "cut": lambda data: data[:-9],
    "magic": lambda _: b"PAR1",
    "void": lambda _: b"",
    "head": lambda data: data[:40],
    "noise": lambda data: bytes(random.Random(1).randbytes(len(data))),
    "footer": lambda data: data[:-8] + (2**31 - 1).to_bytes(4, "little") + b"PAR1",
    "thrift": lambda data: data[: -int.from_bytes(data[-8:-4], "little") - 8] + bytes(200) + data[192:][-8:],
}


def dirty(folder):
    good_shards(folder)
    for name, change in BAD.items():
        damaged(folder, name, change)
    damaged(folder, "payload", flipped)
    empties(folder)
    litter(folder)


RAISES = "{stage: 'broken_stages:RAISES', marker: 'good3 boom'}"


@pytest.mark.parametrize("paths", ["in", "in/*.parquet"])
def test_a_dirty_folder_costs_only_what_is_damaged(tmp_path, paths):
    """All good rows are processed; every bad shard and row is listed with its reason; ignored shards are told."""
    folder = tmp_path / "in"
    dirty(folder)
    values = texts(20, 3)
    values[4], values[15] = f"{values[4]} good3 boom", f"good3 boom {values[15]}"
    put(folder, "good3", {"text": values, "id": [f"g3-{i}" for i in range(20)]})
    config = harness.configure(tmp_path, harness.EXACT, RAISES, harness.NEAR, paths=paths)
    report = harness.run(config)
    kept = {row["id"] for row in harness.hot_rows(config)}
    assert kept == {f"g{k}-{i}" for k in range(5) for i in range(20)} - {"g3-4", "g3-15"} | {"z0", "z1"}
    table = harness.table(report, "quarantined").to_pylist()
    whole = {row["shard"]: row for row in table if row["row"] is None}
    assert set(whole) == {f"{name}.parquet" for name in BAD}
    assert all(row["reason"] == "unreadable_shard" and row["message"] for row in whole.values())
    rows = Counter((row["shard"], row["stage"], row["reason"]) for row in table if row["row"] is not None)
    assert rows == {("payload.parquet", "ingest", "undecodable"): 20, ("good3.parquet", "broken", "stage_error"): 2}
    raised = [row for row in table if row["reason"] == "stage_error"]
    assert {row["id"] for row in raised} == {"g3-4", "g3-15"}
    assert all("boom" in row["message"] for row in raised)
    size = sum((folder / f"{name}.parquet").stat().st_size for name in BAD)
    assert report["totals"]["quarantined_shards"] == {"count": len(BAD), "bytes": size}
    assert report["totals"]["unknown_bytes_docs"] == 20
    assert {failure["shard"] for failure in report["failures"]} >= set(whole)
    if paths == "in":
        assert any(".hidden.parquet" in warning for warning in report["warnings"])
    assert not any(name in str(report["warnings"]) for name in ("_SUCCESS", "_metadata"))
    # Another run finds the same, redoes nothing and publishes nothing new.
    again = harness.run(harness.configure(tmp_path, harness.EXACT, RAISES, harness.NEAR, paths=paths))
    assert sum(stage["cells_computed"] for stage in again["stages"]) == 0
    assert again["totals"] == report["totals"]


@pytest.mark.parametrize("name", [*BAD, "payload"])
def test_strict_mode_stops_at_damage_and_publishes_nothing(tmp_path, name):
    """`bad_shards: stop` names the damaged file, whether its footer or its payload is broken."""
    good_shards(tmp_path / "in", count=2)
    damaged(tmp_path / "in", name, BAD.get(name, flipped))
    damaged(tmp_path / "in", "zz-later", BAD.get(name, flipped))
    config = harness.configure(tmp_path, harness.EXACT, sets=["input.bad_shards=stop"])
    with pytest.raises(ContractError) as stopped:
        harness.run(config)
    assert f"{name}.parquet" in stopped.value.message
    assert "zz-later" not in stopped.value.message
    assert "input.bad_shards" in stopped.value.message
    assert not [path for tier in ("hot", "cold") for path in (tmp_path / tier).rglob("*") if path.is_file()]


def test_strict_mode_stops_at_damage_that_an_earlier_run_put_up_with(tmp_path):
    """What a run under `quarantine` left in the work folder does not hide damage from one under `stop`."""
    good_shards(tmp_path / "in", count=2)
    damaged(tmp_path / "in", "payload", flipped)
    assert harness.run(harness.configure(tmp_path, harness.EXACT))["totals"]["quarantined"]["docs"] == 20
    with pytest.raises(ContractError, match=r"payload\.parquet"):
        harness.run(harness.configure(tmp_path, harness.EXACT, sets=["input.bad_shards=stop"]))


def test_strict_mode_is_no_obstacle_to_empty_files(tmp_path):
    """Zero rows, in a file or in a row group, are no damage."""
    good_shards(tmp_path / "in", count=1)
    empties(tmp_path / "in")
    config = harness.configure(tmp_path, harness.EXACT, harness.NEAR, sets=["input.bad_shards=stop"])
    assert harness.run(config)["totals"]["kept"]["docs"] == 22


@pytest.mark.parametrize("names", ["ab", "abc"])
def test_a_corpus_without_a_row_is_a_corpus(tmp_path, names):
    """Only empty shards: an empty result in every table, or two rows where the groups are of 1, 0 and 1."""
    (tmp_path / "in").mkdir()
    empties(tmp_path / "in")
    for name in set("abc") - set(names):
        os.remove(tmp_path / "in" / f"zero-{name}.parquet")
    config = harness.configure(
        tmp_path, harness.EXACT, harness.NEAR, "{stage: difficulty}",
        "{stage: curriculum, by: difficulty.bits_per_byte}",
    )  # fmt: skip
    assert harness.run(config)["totals"]["in"]["docs"] == (2 if "c" in names else 0)


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("broken", ["text", "url"])
def test_damage_in_one_column_costs_the_rows_from_there_on(tmp_path, compression, broken):
    """A page that cannot be decoded takes its row group's later rows; earlier rows and other groups are published."""
    rows = 3000
    values = texts(rows, 5, words=200)
    urls = [f"http://host/{i}/{random.Random(i).getrandbits(256):x}" for i in range(rows)]
    put(
        tmp_path / "in", "a", {"text": values, "url": urls}, row_group_size=rows // 2, compression=compression,
        use_dictionary=False, data_page_size=64_000, write_page_checksum=True,
    )  # fmt: skip
    path = tmp_path / "in" / "a.parquet"
    column = pq.read_metadata(path).row_group(0).column(["text", "url"].index(broken))
    data = bytearray(path.read_bytes())
    at = column.data_page_offset + column.total_compressed_size * 3 // 4
    data[at : at + 64] = bytes(byte ^ 0xFF for byte in data[at : at + 64])
    path.write_bytes(data)
    config = harness.configure(tmp_path, harness.EXACT)
    report = harness.run(config)
    lost = harness.table(report, "quarantined")["row"].to_pylist()
    assert lost == list(range(lost[0], rows // 2))
    assert 64 < lost[0] < rows // 2 - 64
    assert {row["url"] for row in harness.hot_rows(config)} == {url for i, url in enumerate(urls) if i not in set(lost)}
