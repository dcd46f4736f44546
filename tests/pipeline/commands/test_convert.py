"""JSON lines become Parquet of one schema; a line that cannot is written down with its place and reason."""

from __future__ import annotations

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from pipeline.commands import convert as converting
from pipeline.commands.convert import convert
from pipeline.errors import ConfigError, ContractError


def lines(*rows):
    return "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows).encode()


def converted(tmp_path, content, name="a.jsonl"):
    """(result, rows as Python) of one file."""
    (tmp_path / "in").mkdir(exist_ok=True)
    (tmp_path / "in" / name).write_bytes(content)
    found = convert(str(tmp_path / "in"), str(tmp_path / "out"))
    return found, read(tmp_path)


def read(tmp_path):
    return [row for part in sorted((tmp_path / "out").glob("*.parquet")) for row in pq.read_table(part).to_pylist()]


def rejects(tmp_path):
    return [json.loads(line) for line in (tmp_path / "out" / "_rejects.jsonl").read_text().splitlines()]


def test_plain(tmp_path):
    """Every object is a row, in order; keys keep the order in which they first came; what a line lacks is null."""
    rows = [{"id": 1, "text": "a\nb", "meta": {"n": 1}}, {"text": "ü", "meta": {"u": "x"}, "score": 0.5}]
    found, got = converted(tmp_path, lines(*rows))
    assert got == [
        {"id": 1, "text": "a\nb", "meta": {"n": 1, "u": None}, "score": None},
        {"id": None, "text": "ü", "meta": {"n": None, "u": "x"}, "score": 0.5},
    ]
    assert list(found["columns"]) == ["id", "text", "meta", "score"]
    assert (found["rows"], found["rejected"], found["rejects"], found["blank"]) == (2, 0, None, 0)
    assert [(file["path"], file["rows"]) for file in found["files"]] == [("part-00000.parquet", 2)]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["part-00000.parquet"]


@pytest.mark.parametrize(
    ("values", "kind", "wanted"),
    [
        ([None, 1], pa.int64(), [None, 1]),
        ([1, 2.5], pa.float64(), [1.0, 2.5]),
        ([2**62, -1], pa.int64(), [2**62, -1]),
        ([2**64, 3], pa.large_string(), [str(2**64), "3"]),
        ([True, None], pa.bool_(), [True, None]),
        ([[1], [], None, [2.5]], pa.large_list(pa.float64()), [[1.0], [], None, [2.5]]),
        ([{}, None], pa.null(), [None, None]),
        ([{"a": {}}, {"a": {"b": 1}}], None, [{"a": {"b": None}}, {"a": {"b": 1}}]),
        (["2020-01-01", "x"], pa.large_string(), ["2020-01-01", "x"]),
        ([[{"k": 1}], [{"v": "x"}]], None, [[{"k": 1, "v": None}], [{"k": None, "v": "x"}]]),
    ],
)
def test_types(tmp_path, values, kind, wanted):
    """One column has one type that loses nothing of any of its values."""
    _, got = converted(tmp_path, lines(*({"v": value, "text": "t"} for value in values)))
    assert [row["v"] for row in got] == wanted
    if kind is not None:
        assert pq.read_schema(tmp_path / "out" / "part-00000.parquet").field("v").type == kind


def test_ids(tmp_path):
    """An id of numbers and texts becomes text; the same under another key, even a nested id, is an error."""
    _, got = converted(tmp_path, lines({"id": 7, "text": "a"}, {"id": "x7", "text": "b"}, {"id": None, "text": "c"}))
    assert [row["id"] for row in got] == ["7", "x7", None]


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ({"n": 1}, {"n": "x"}, r"column 'n': integer in a\.jsonl:1 but text in a\.jsonl:3"),
        ({"m": {"id": 1}}, {"m": {"id": "x"}}, r"column 'm\.id': integer in a\.jsonl:1 but text in a\.jsonl:3"),
        ({"l": [1]}, {"l": [True]}, r"column 'l\[\]': integer in a\.jsonl:1 but boolean in a\.jsonl:3"),
        ({"o": {}}, {"o": []}, r"column 'o': object in a\.jsonl:1 but list in a\.jsonl:3"),
        ({"x": 2**60}, {"x": 0.5}, r"column 'x': integer over 2\^53 in a\.jsonl:1 but fraction in a\.jsonl:3"),
    ],
)
def test_conflicts(tmp_path, first, second, said):
    """Two kinds of values under one key are an error that names both and their places, before anything is written."""
    with pytest.raises(ConfigError, match=said):
        converted(tmp_path, lines(first, {}, second))
    assert not (tmp_path / "out").exists()


def test_rejects(tmp_path):
    """A line without a good object is written down with file, number, reason and beginning; others are untouched."""
    deep = "[" * 40 + "]" * 40
    content = lines({"text": "a"}, '{"text": ', "[1]", "", "7", f'{{"d": {deep}}}', '{"a": ' + "[" * 100_000)
    content += b'{"text": "\xff"}\n' + lines({"text": "b"})[:-1]
    found, got = converted(tmp_path, content)
    assert [row["text"] for row in got] == ["a", "b"]
    assert (found["rows"], found["rejected"], found["blank"]) == (2, 6, 1)
    assert found["rows"] + found["rejected"] + found["blank"] == content.count(b"\n") + 1
    told = rejects(tmp_path)
    assert [(entry["file"], entry["line"]) for entry in told] == [("a.jsonl", n) for n in (2, 3, 5, 6, 7, 8)]
    for entry, reason in zip(
        told, ("Expecting value", "not a list", "not a number", "nested more than 32", "nested too deep", "codec"),
        strict=True,
    ):  # fmt: skip
        assert reason in entry["reason"]
    assert told[0]["start"] == '{"text": '
    assert found["rejects"].endswith("/_rejects.jsonl")


def test_surrogates(tmp_path):
    """Half a surrogate pair becomes U+FFFD and is counted; a whole pair is the character it stands for."""
    found, got = converted(tmp_path, lines('{"text": "\\ud83d\\ude00"}', '{"text": "a\\ud83d", "\\udc00": 1}'))
    assert [row["text"] for row in got] == ["😀", "a�"]
    assert got[1]["�"] == 1
    assert found["repaired"] == 1


def test_byte_order_mark_and_line_ends(tmp_path):
    """A byte order mark at the start, carriage returns and a missing last line end do not matter."""
    _, got = converted(tmp_path, b'\xef\xbb\xbf{"text": "a"}\r\n\r\n{"text": "b"}')
    assert [row["text"] for row in got] == ["a", "b"]


def packed_gzip(data):
    """Two members and padding, as gzip and tools around it write them."""
    return gzip.compress(data[:1000]) + gzip.compress(data[1000:]) + bytes(512)


def packed_zstd(data):
    """Two frames and one that readers pass over."""
    one, two = data[: len(data) // 2], data[len(data) // 2 :]
    pack = zstandard.ZstdCompressor().compress
    return pack(one) + b"\x50\x2a\x4d\x18\x04\x00\x00\x00skip" + pack(two)


@pytest.mark.parametrize(
    ("name", "pack"),
    [("a.jsonl", bytes), ("a.json.gz", packed_gzip), ("a.jsonl.zst", packed_zstd), ("a.ndjson", gzip.compress)],
)
def test_packed(tmp_path, name, pack):
    """What a file is packed with is told by its content, and the rows are the same."""
    rows = [{"text": f"text {n} " * 50} for n in range(500)]
    _, got = converted(tmp_path, pack(lines(*rows)), name)
    assert got == rows


@pytest.mark.parametrize(("name", "pack"), [("a.jsonl.gz", gzip.compress), ("a.jsonl.zst", packed_zstd)])
def test_cut_off(tmp_path, name, pack):
    """Of a packed file that is cut off what can be read is kept, and the rest is one reject that says so."""
    rows = [{"text": f"{n * n * 7919 % 104729} " * 20} for n in range(5000)]
    found, got = converted(tmp_path, pack(lines(*rows))[:-40], name)
    assert 0 < len(got) < 5000
    assert got == rows[: len(got)]
    assert "damaged or cut off" in rejects(tmp_path)[-1]["reason"]
    assert found["rejected"] <= 2


def test_many_files(tmp_path, monkeypatch):
    """Files are read by name, cut to parts and row groups of bounded size, and others beside them are told."""
    monkeypatch.setattr(converting, "GROUP_BYTES", 500)
    monkeypatch.setattr(converting, "FILE_BYTES", 500)
    rows = [{"text": f"{n:04d} {n * 7919 % 104729}"} for n in range(300)]
    (tmp_path / "in" / "sub").mkdir(parents=True)
    (tmp_path / "in" / "b.jsonl").write_bytes(lines(*rows[100:200]))
    (tmp_path / "in" / "a.jsonl.gz").write_bytes(gzip.compress(lines(*rows[:100])))
    (tmp_path / "in" / "sub" / "a.jsonl").write_bytes(lines(*rows[200:]))
    (tmp_path / "in" / "README.md").write_text("no")
    found, got = converted(tmp_path, b"", "empty.jsonl")
    assert got == rows
    assert len(found["files"]) > 2
    assert sum(file["rows"] for file in found["files"]) == found["rows"] == 300
    first = pq.read_metadata(tmp_path / "out" / found["files"][0]["path"])
    assert first.num_row_groups > 1
    assert (found["inputs"], found["ignored"]) == (4, [str(tmp_path / "in" / "README.md")])
    again = convert(str(tmp_path / "in" / "**" / "*.jsonl*"), str(tmp_path / "again"))
    assert again["files"] == found["files"]


def test_a_line_too_long(tmp_path, monkeypatch):
    """A line beyond the limit is rejected, whatever blocks it comes in; the lines around it are kept."""
    monkeypatch.setattr(converting, "LINE_BYTES", 3000)
    monkeypatch.setattr(converting, "BLOCK", 700)
    found, got = converted(tmp_path, lines({"text": "a"}, {"text": "x" * 9000}, {"text": "b" * 2000}))
    assert [len(row["text"]) for row in got] == [1, 2000]
    assert found["rejected"] == 1
    assert "longer than 3000 bytes" in rejects(tmp_path)[0]["reason"]


def test_refused(tmp_path):
    """No match, no object in any line, Parquet, and a folder that is not empty are errors that say what to do."""
    (tmp_path / "list.json").write_text('[{"text": "a"},\n {"text": "b"}]\n')
    with pytest.raises(ConfigError, match=r"no line of 1 files holds a JSON object.*list\.json:1: "):
        convert(str(tmp_path / "list.json"), str(tmp_path / "out"))
    with pytest.raises(ConfigError, match="matches no file of JSON lines"):
        convert(str(tmp_path / "none"), str(tmp_path / "out"))
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match="it is Parquet already"):
        convert(str(tmp_path / "a.parquet"), str(tmp_path / "out"))
    with pytest.raises(ConfigError, match=r"OUT: .*not empty \(it holds a\.parquet\)"):
        convert(str(tmp_path / "list.json"), str(tmp_path))
    assert not (tmp_path / "out").exists()


def test_too_many_keys(tmp_path):
    """An object whose keys are data is refused by name instead of becoming thousands of columns."""
    with pytest.raises(ConfigError, match=r"column 'm': a\.jsonl:3 brings .* over 2000"):
        converted(tmp_path, lines(*({"m": {f"k{n}-{k}": 1 for k in range(900)}} for n in range(3))))


def test_changed_meanwhile(tmp_path, monkeypatch):
    """A file that changes between the two readings ends it, and no part stays behind."""
    source = tmp_path / "a.jsonl"
    source.write_bytes(lines({"text": "a"}))

    def change(kind, facts):
        source.write_bytes(lines({"text": 1, "more": 2}))

    with pytest.raises(ContractError, match="changed while it was being converted"):
        convert(str(source), str(tmp_path / "out"), change)
    assert list((tmp_path / "out").glob("*.parquet")) == []
