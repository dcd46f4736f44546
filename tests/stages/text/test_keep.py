import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from pipeline.errors import ConfigError
from stages.text import keep

DAY = dt.date(2020, 2, 3)
COLUMNS = {
    "int64": (pa.array([3, None, -5, 2**63 - 1, -(2**63)]), [4, 2, 0, 3]),
    "uint64": (pa.array([2**64 - 1, None, 0], pa.uint64()), [2, 0]),
    "int8": (pa.array([3, -4, None, 0], pa.int8()), [1, 3, 0]),
    "float64": (pa.array([1.5, float("nan"), None, -1.0, float("-inf"), float("inf")]), [4, 3, 0, 5]),
    "float32": (pa.array([0.25, -3.5, None], pa.float32()), [1, 0]),
    "string": (pa.array(["b", "a", None, "é", "ab", ""]), [5, 1, 4, 0, 3]),
    "dictionary": (pa.array(["b", "a", None]).dictionary_encode(), [1, 0]),
    "bool": (pa.array([True, False, None]), [1, 0]),
    "date": (pa.array([DAY, None, dt.date(1960, 1, 1)]), [2, 0]),
    "timestamp": (pa.array([dt.datetime(2020, 1, 1), dt.datetime(1969, 1, 1), None]), [1, 0]),  # noqa: DTZ001
    "binary": (pa.array([b"\xff", b"\x00", None]), [1, 0]),
    "null": (pa.nulls(3), []),
}


def ordered(rules, *columns, rows=None):
    """The order of records that carry these columns, after a trip as record batch and table."""
    size = len(columns[0])
    digests = pa.array([bytes([i % 3]) * 16 for i in range(size)], pa.binary(16))
    batch = pa.record_batch({f"c{i}": column for i, column in enumerate(columns)} | {"content_hash": digests})
    carried = keep.carried(rules, batch) | {"row": pa.array(range(size) if rows is None else rows, pa.uint64())}
    return keep.best_first(rules, [np.zeros(size, np.uint64)], pa.table(carried)).tolist()


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_rank_by_value_in_both_directions(name):
    """Ascending and descending are the order of the values, and what has no value comes last in both."""
    column, ascending = COLUMNS[name]
    assert ordered(["c0 asc"], column)[: len(ascending)] == ascending
    assert ordered(["c0 desc"], column)[: len(ascending)] == ascending[::-1]


def test_null_nan_and_the_two_zeros_tie():
    """Null and NaN rank alike, and so do 0.0 and -0.0: the next rule decides."""
    values = pa.array([None, float("nan"), -0.0, 0.0])
    assert ordered(["c0 desc", "c1 desc"], values, pa.array([1, 2, 4, 3])) == [2, 3, 1, 0]
    assert ordered(["c0 desc", "c1 desc"], values, pa.array([2, 1, 3, 4])) == [3, 2, 0, 1]


def test_content_hash_and_row_end_every_order():
    """Where no rule decides, the smaller content hash is first, and among equal ones the smaller row address."""
    assert ordered([], pa.nulls(6), rows=[5, 4, 3, 2, 1, 0]) == [3, 0, 4, 1, 5, 2]


def test_groups_come_before_ranks():
    """Records stand group by group, the first group column outermost."""
    column = pa.array([1, 2, 3, 4])
    batch = pa.record_batch({"c": column, "content_hash": pa.array([b"0" * 16] * 4, pa.binary(16))})
    table = pa.table(keep.carried(["c desc"], batch) | {"row": pa.array(range(4), pa.uint64())})
    groups = [np.array([2, 1, 2, 1], np.uint64), np.array([0, 1, 0, 0], np.uint64)]
    assert keep.best_first(["c desc"], groups, table).tolist() == [3, 1, 2, 0]


def test_rules_are_parsed_and_name_what_they_read():
    """A rule is a column and a direction, desc where none is given; a column may hold blanks."""
    assert keep.parse("quality.score desc") == ("quality.score", True)
    assert keep.parse("  date asc ") == ("date", False)
    assert keep.parse("my column") == ("my column", True)
    assert keep.columns(["bytes desc", "bytes asc", "id"]) == ("bytes", "id", "content_hash")


def test_a_column_without_an_order_is_refused():
    """Nested columns and decimals have no rank, and the error says which kind was met."""
    for column in (pa.array([[1]]), pa.array([{"a": 1}]), pa.array([Decimal("1.5")])):
        with pytest.raises(ConfigError, match="keep"):
            keep.comparable(column)


def test_scopes_are_equal_where_the_columns_are():
    """Scopes tell values, nulls, columns and empty texts apart, and do not depend on how strings are stored."""
    a = pa.array(["x", "", None, "x", "y", None])
    b = pa.array([1, 1, 1, 2, None, 1])
    batch = pa.record_batch({"a": a, "b": b, "c": a.cast(pa.large_string()).dictionary_encode(), "d": pa.nulls(6)})
    both = keep.scopes(["a", "b"], batch)
    assert len(set(both.tolist())) == 5
    assert both[2] == both[5]
    assert (keep.scopes(["a"], batch) == keep.scopes(["c"], batch)).all()
    assert (keep.scopes(["a", "b"], batch) != keep.scopes(["b", "a"], batch)).all()
    assert set(keep.scopes(["d"], batch).tolist()) != {0}
    assert set(keep.scopes([], batch).tolist()) == {0}
    with pytest.raises(ConfigError, match="within"):
        keep.scopes(["l"], pa.record_batch({"l": pa.array([[1]])}))
