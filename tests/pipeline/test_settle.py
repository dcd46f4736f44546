from __future__ import annotations

import random
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import settle

KEYS = ("group", "cell")
ROWS = st.tuples(
    st.sampled_from([None, "", "a", "b", "é", "中"]), st.none() | st.integers(-3, 3), st.integers(-5, 2**40)
)


def table(rows):
    groups, cells, docs = zip(*rows, strict=True) if rows else ((), (), ())
    return pa.table(
        {
            "docs": pa.array(docs, pa.int64()),
            "cell": pa.array(cells, pa.int32()),
            "group": pa.array(groups, pa.string()),
        }
    )


@given(st.lists(st.lists(ROWS, max_size=12), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_sum_does_not_depend_on_order_or_grouping(lists, rng: random.Random):
    """Tables in any order, one by one or summed in parts before, come to the same table, which is the plain sum."""
    tables = [table(rows) for rows in lists]
    whole = settle.add(tables, KEYS)
    shuffled = rng.sample(tables, len(tables))
    cut = rng.randint(0, len(shuffled))
    parts = [settle.add(part, KEYS) for part in (shuffled[:cut], shuffled[cut:]) if part]
    assert settle.add(shuffled, KEYS).equals(whole)
    assert settle.add(parts, KEYS).equals(whole)
    expected = Counter()
    for group, cell, docs in (row for rows in lists for row in rows):
        expected[group, cell] += docs
    found = {(row["group"], row["cell"]): row["docs"] for row in whole.to_pylist()}
    assert found == {key: expected[key] for key in found}
    assert set(found) == {(group, cell) for rows in lists for group, cell, _ in rows}


def test_order_of_rows():
    """Rows ascend by the keys in turn, strings by their bytes, and a null key stands last as an entry of its own."""
    rows = [(None, 1, 1), ("b", None, 1), ("é", 0, 1), ("b", 2, 1), ("", 5, 1), ("b", -1, 1), (None, None, 1)]
    found = settle.add([table(rows)], KEYS).to_pylist()
    order = [("", 5), ("b", -1), ("b", 2), ("b", None), ("é", 0), (None, 1), (None, None)]
    assert [(row["group"], row["cell"]) for row in found] == order


def test_chunks_bound_the_waiting_rows(monkeypatch):
    """A long stream comes to the same sum when it is folded every few rows, and is not held as a whole."""
    waiting, most = 0, 0

    def stream():
        nonlocal waiting, most
        for i in range(200):
            waiting += 3
            most = max(most, waiting)
            yield table([("a", i % 7, i), (None, 0, 1), ("b", i % 5, 2)])

    summed = settle._sum

    def fold(tables, keys):
        nonlocal waiting
        waiting = 0
        return summed(tables, keys)

    expected = settle.add([pa.concat_tables(stream())], KEYS)
    waiting = most = 0
    monkeypatch.setattr(settle, "CHUNK_ROWS", 10)
    monkeypatch.setattr(settle, "_sum", fold)
    assert settle.add(stream(), KEYS).equals(expected)
    assert most <= 2 * expected.num_rows


def test_types():
    """Keys come first in the order asked for; dictionaries are decoded, strings become large_string, bytes stay."""
    one = pa.table(
        {
            "docs": pa.array([1, 2], pa.int64()),
            "hash": pa.array([b"\x01" * 16, b"\x00" * 16], pa.binary(16)),
            "source": pa.array(["x", None]).dictionary_encode(),
            "kept": [True, False],
        }
    )
    found = settle.add([one, one], ("source", "hash", "kept"))
    assert found.column_names == ["source", "hash", "kept", "docs"]
    assert [field.type for field in found.schema] == [pa.large_string(), pa.binary(16), pa.bool_(), pa.int64()]
    assert found["docs"].to_pylist() == [2, 4]


def test_without_keys():
    """Without keys there is one sum, and none of no rows."""
    one = pa.table({"docs": pa.array([1, 2], pa.int64())})
    assert settle.add([one, one], ()).to_pylist() == [{"docs": 6}]
    assert settle.add([one.slice(0, 0)], ()).num_rows == 0


def test_64_bits():
    """Counts beyond 2^53 and 2^32 stay exact."""
    big = [table([("a", 0, 2**60 + 1)]), table([("a", 0, 2**33)]), table([("a", 0, 1)])]
    assert settle.add(big, KEYS)["docs"].to_pylist() == [2**60 + 2**33 + 2]


@pytest.mark.parametrize(
    ("tables", "error", "message"),
    [
        ([], ValueError, "no count tables"),
        ([table([("a", 0, 1)]), table([("a", 0, 1)]).drop_columns("docs")], ValueError, "count tables differ"),
        (
            [pa.table({"group": ["a"], "cell": [1], "docs": [0.5]})],
            TypeError,
            "counts must be int64 without nulls: docs",
        ),
        (
            [pa.table({"group": ["a"], "cell": [1], "docs": pa.array([None], pa.int64())})],
            TypeError,
            "without nulls: docs",
        ),
        ([pa.table({"group": ["a"], "cell": [0.5], "docs": [1]})], TypeError, "key cell is double"),
    ],
)
def test_what_cannot_be_added(tables, error, message):
    """What has no exact sum is refused by name."""
    with pytest.raises(error, match=message):
        settle.add(tables, KEYS)
