"""What worker processes hold at their peak: bounded by run.worker_memory, whatever the input's rows and row groups."""

from __future__ import annotations

import base64
import json
import random
import unicodedata

import harness
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

LENIENT = "{stage: heuristics, rules: [gopher_quality], min_words: 1, max_words: null, max_mean_word_length: null, \
min_mean_word_length: null, min_alphabetic_words: null, min_stop_words: null}"
CHAIN = (
    LENIENT, harness.EXACT, harness.NEAR, "{stage: difficulty}", "{stage: curriculum, by: difficulty.bits_per_byte}",
)  # fmt: skip
MB = 1_000_000
SMALL_PAGES = {"compression": "zstd", "use_dictionary": False, "write_batch_size": 16}
"""Pages of a megabyte or two. Arrow's writer looks at a page's size every 1,024 rows only, and its reader holds a page
three times over: 1,024 rows of 100 KB are a page of 100 MB, and 330 MB before the first row is there (measured)."""
WORD_RULES = {"gopher_quality.too_few_words", "gopher_quality.too_many_words"}


def words(size: int, seed: int) -> str:
    """About `size` bytes of words of a vocabulary of 5,000."""
    draw = random.Random(seed)
    vocabulary = [f"w{i}x{i % 97}" for i in range(5000)]
    return " ".join(draw.choices(vocabulary, k=size // 5))[:size].rpartition(" ")[0]


def noise(size: int, seed: int) -> str:
    """`size` bytes without a blank, of which no two stretches are the same."""
    return base64.b64encode(random.Random(seed).randbytes(size * 3 // 4)).decode()


def among_small(*giants: str, count: int = 1000) -> dict[str, list[str]]:
    small = [words(1000, seed) for seed in range(count)]
    return {"text": [*small[: count // 2], *giants, *small[count // 2 :]]}


def put(root, columns, **options):
    """One shard of one row group."""
    rows = len(columns["text"])
    (root / "in").mkdir(exist_ok=True)
    table = pa.table({"id": [f"d{i}" for i in range(rows)], **columns})
    pq.write_table(table, root / "in" / "a.parquet", row_group_size=rows, **options)


def run(root, *stages, limit, **sets):
    """Run in one worker process under the limit; returns config, report and what the process held at its peak."""
    overrides = ["run.workers=1", f"run.worker_memory={limit}", *(f"{key}={value}" for key, value in sets.items())]
    config = harness.configure(root, *(stages or CHAIN), sets=overrides)
    report = harness.run(config)
    records = [json.loads(line) for path in (root / "work").rglob("ledger/*.jsonl") for line in path.open()]
    return config, report, max(record["peak_rss"] for record in records if record["kind"] == "done")


def test_a_giant_among_small_documents(tmp_path):
    """A document of 64 MB passes through every stage in 600 MB, and no other row is lost."""
    put(tmp_path, among_small(words(64 * MB, 7)), compression="zstd")
    config, report, peak = run(tmp_path, limit="600MB")
    assert report["totals"]["kept"]["docs"] == 1001
    assert sum(len(row["text"]) > 60 * MB for row in harness.hot_rows(config)) == 1
    assert peak < 600 * MB


@pytest.mark.slow
@pytest.mark.parametrize(
    ("giant", "compression"),
    [
        ("word " * 12_800_000, "snappy"),
        ("line of words\n" * 4_600_000, "gzip"),
        (noise(64 * MB, 1), "zstd"),
        ("".join(random.Random(2).choices([chr(0x4E00 + i) for i in range(5000)], k=21_000_000)), "zstd"),
        (unicodedata.normalize("NFD", "Trường đại học mở cửa 😀 ") * 1_400_000, "zstd"),
        ("\n" * 63 * MB + "end", "none"),
    ],
    ids=["one word", "one line", "no blank", "Han", "decomposed", "blank"],
)
def test_a_giant_of_any_kind(tmp_path, giant, compression):
    """So does one that repeats itself, has no blank, is in another script, has to be composed, or is nearly blank."""
    assert 50 * MB < len(giant.encode()) < 64 * 2**20
    put(tmp_path, among_small(giant), compression=compression, use_dictionary=compression != "zstd")
    _, report, peak = run(tmp_path, limit="600MB")
    assert report["totals"]["kept"]["docs"] == 1001
    assert peak < 600 * MB


@pytest.mark.slow
@pytest.mark.parametrize("giant", ["word " * 40_000_000, words(200 * MB, 3)], ids=["one word", "words"])
def test_a_giant_of_200_mb_where_that_is_allowed(tmp_path, giant):
    """With the limit of a document raised one of 200 MB passes in 1.2 GB; without, it alone is quarantined."""
    put(tmp_path, among_small(giant), compression="zstd")
    _, report, peak = run(tmp_path, limit="1.2GB", **{"input.max_document_bytes": "256MiB"})
    assert report["totals"]["kept"]["docs"] == 1001
    assert peak < 1200 * MB
    _, report, peak = run(tmp_path, limit="1.2GB", name="refused")
    (row,) = harness.table(report, "quarantined").to_pylist()
    assert (row["row"], row["reason"], row["bytes"]) == (500, "oversize", len(giant))
    assert report["totals"]["kept"]["docs"] == 1000


@pytest.mark.parametrize("line", [noise(20 * MB, 5), "abcdefghij" * 2_000_000], ids=["noise", "pattern"])
def test_a_line_without_a_blank(tmp_path, line):
    """A document of one line of 20 MB without a blank is done in 600 MB, where the rules leave it and where not."""
    put(tmp_path, among_small(line, count=100))
    _, report, peak = run(tmp_path, limit="600MB")
    assert report["totals"]["kept"]["docs"] == 101
    assert peak < 600 * MB
    _, report, _ = run(tmp_path, "{stage: heuristics, rules: [gopher_quality], min_stop_words: null}", limit="600MB",
                       name="strict")  # fmt: skip
    assert {row["reason"] for row in harness.removed(report)} & WORD_RULES


def test_a_row_group_that_a_dictionary_makes_small(tmp_path):
    """A gigabyte that is one text a thousand times, a megabyte in the file, is read a few rows at a time."""
    put(tmp_path, {"text": [words(MB, 1)] * 1000})
    assert (tmp_path / "in" / "a.parquet").stat().st_size < 2 * MB
    _, report, peak = run(tmp_path, limit="600MB")
    assert report["totals"]["kept"]["docs"] == 1
    assert report["totals"]["removed"]["bytes"] > 990 * MB
    assert peak < 600 * MB


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "size"), [(10_000, 100_000), (250_000, 4_000)])
def test_a_gigabyte_in_one_row_group(tmp_path, rows, size):
    """A row group of a gigabyte of different texts, with wide columns beside them, is done in 600 MB."""
    wide = {f"wide{k}": [f"{i}-{k}-" * (size // 50) for i in range(rows)] for k in range(5 if rows == 10_000 else 0)}
    put(tmp_path, {"text": [words(size, seed) for seed in range(rows)], **wide}, **SMALL_PAGES)
    _, report, peak = run(tmp_path, limit="600MB")
    assert report["totals"]["kept"]["docs"] == rows
    assert peak < 600 * MB


@pytest.mark.slow
def test_near_copies_of_a_gigabyte(tmp_path):
    """Where every text is a candidate, the texts that meet are a gigabyte too, and are held a few at a time."""
    texts = [words(100_000, seed) for seed in range(50)]
    put(tmp_path, {"text": [texts[i % 50].replace("w1x1 ", f"q{i} ") for i in range(10_000)]}, **SMALL_PAGES)
    _, report, peak = run(tmp_path, limit="600MB", **{"guards.accept": "['(none)']"})
    assert report["totals"]["kept"]["docs"] == 50
    assert peak < 600 * MB
