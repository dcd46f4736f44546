from __future__ import annotations

from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import grid, settle

FINITE = st.floats(allow_nan=False, allow_infinity=False, width=32) | st.floats(min_value=-3e38, max_value=3e38)
SHARES = st.sampled_from([0.001, 0.1, 0.25, 0.3, 0.4, 0.5, 2 / 3, 0.9, 1.0])
HISTOGRAMS = st.dictionaries(st.integers(0, 2**20 - 1), st.integers(1, 50), min_size=1, max_size=12).map(
    lambda weights: (np.array(sorted(weights), np.int32), np.array([weights[k] for k in sorted(weights)], np.int64))
)


@given(st.lists(FINITE, min_size=1, max_size=50))
def test_order(values):
    """A larger value never has a smaller cell, and equal values share one."""
    cells = grid.cells_of(np.array(sorted(values)))
    assert (np.diff(cells) >= 0).all()
    assert grid.cells_of(np.array([0.0]))[0] == grid.cells_of(np.array([-0.0]))[0]


@given(st.lists(FINITE, min_size=1, max_size=50))
def test_edges_hold_their_values(values):
    """Every float64 lies in [lower_edge, upper_edge) of its cell, and the edges of neighbours meet."""
    array = np.array(values)
    cells = grid.cells_of(array)
    assert (grid.lower_edge(cells) <= array).all()
    assert (array < grid.upper_edge(cells)).all()
    inner = cells[cells < 0xFF7FF]
    assert (grid.upper_edge(inner) == grid.lower_edge(inner + 1)).all()


@given(st.floats(min_value=1e-30, max_value=1e30))
def test_resolution(value):
    """A cell is at most 1/2048 of its value wide."""
    cell = grid.cells_of(np.array([value]))
    assert grid.upper_edge(cell)[0] - grid.lower_edge(cell)[0] <= grid.lower_edge(cell)[0] / 2048


def test_every_finite_cell_comes_back():
    """lower_edge and cells_of are inverse over the whole grid."""
    cells = np.arange(0x00800, 0xFF800, dtype=np.int32)
    assert (grid.cells_of(grid.lower_edge(cells)) == cells).all()
    assert grid.upper_edge(0xFF7FF) == 2.0**128


def test_scores_that_cannot_be_ranked():
    """Null, NaN, infinities and what float32 cannot hold are NaN; whole numbers and booleans are numbers."""
    column = pa.array([1.5, None, float("nan"), float("inf"), -1e39, 3e38])
    assert np.isnan(grid.scores(column)).tolist() == [False, True, True, True, True, False]
    assert grid.scores(pa.array([3, None])).tolist()[0] == 3.0
    assert grid.scores(pa.array([True, False])).tolist() == [1.0, 0.0]
    assert np.isnan(grid.scores(pa.nulls(2))).all()
    with pytest.raises(TypeError, match="column of numbers, not of string"):
        grid.scores(pa.array(["1.0"]))


@given(HISTOGRAMS, SHARES)
def test_quantile_is_its_definition(histogram, q):
    """quantile is the smallest cell whose cumulative weight reaches q of the total, in exact arithmetic."""
    cells, weights = histogram
    need = Fraction(str(q)) * int(weights.sum())
    assert grid.quantile(cells, weights, q) == min(c for c in cells if weights[cells <= c].sum() >= need)


@given(HISTOGRAMS, SHARES)
def test_keep_top_is_its_definition(histogram, share):
    """keep_top is the largest cell at and above which at least the share of the weight lies, in exact arithmetic."""
    cells, weights = histogram
    need = Fraction(str(share)) * int(weights.sum())
    assert grid.keep_top(cells, weights, share) == max(c for c in cells if weights[cells >= c].sum() >= need)


def test_shares_are_decimal():
    """0.1 of 1000 is 100 and not 101, although the float64 nearest to 0.1 lies above it."""
    assert grid.share_of(0.1, 1000) == 100
    assert grid.share_of(Fraction(1, 3), 10) == 4
    assert grid.share_of(0.7, 10**18) == 7 * 10**17


BATCH = pa.record_batch(
    {
        "language": pa.array(["en", None, "de", "en", "en", "de"]).dictionary_encode(),
        "level": pa.array([1, 1, None, 1, 2, None]),
        "score": pa.array([0.5, 2.0, None, 0.5, 0.25, None], pa.float32()),
        "tokens": pa.array([1, 2, 3, 4, 5, 6]),
    }
)


def test_groups():
    """Groups are named by the JSON of their values, null is a value, and every row finds its own."""
    names, codes = grid.groups(BATCH, ("language", "level"))
    assert [names[code] for code in codes] == [
        '["en",1]',
        "[null,1]",
        '["de",null]',
        '["en",1]',
        '["en",2]',
        '["de",null]',
    ]
    assert grid.groups(BATCH, ())[0] == ["[]"]
    assert grid.groups(BATCH.slice(0, 0), ("language",))[0] == []


def test_count_adds_up_in_any_cut():
    """Counts of a batch equal the sum of the counts of its pieces, and hold every row once."""

    def count(batch):
        return grid.count(batch, "score", ("language",), {"tokens": grid.amounts(batch, "tokens")})

    whole = settle.add([count(BATCH)], grid.COUNT_KEYS)
    pieces = settle.add([count(BATCH.slice(i, 1)) for i in (3, 0, 5, 1, 2, 4)], grid.COUNT_KEYS)
    assert whole.equals(pieces)
    half = int(grid.cells_of(np.array([0.5]))[0])
    assert {"group": '["en"]', "cell": half, "tokens": 5} in whole.to_pylist()
    assert {"group": '["de"]', "cell": None, "tokens": 9} in whole.to_pylist()
    assert sum(whole["tokens"].to_pylist()) == 21


def table(*rows):
    """A summed count table of (group, score or None, docs)."""
    batches = [
        pa.record_batch({"a": [group[0]], "b": [group[1]], "score": pa.array([score], pa.float32()), "docs": [docs]})
        for group, score, docs in rows
    ]
    counts = [grid.count(b, "score", ("a", "b"), {"docs": np.array(b["docs"])}) for b in batches]
    return settle.add(counts, grid.COUNT_KEYS)


def test_small_groups_use_their_parents():
    """A group under min_group is judged by its parent, which counts all its groups; the last parent is everything."""
    summed = table(
        (("en", "web"), 1.0, 10),
        (("en", "book"), 2.0, 3),
        (("en", "book"), None, 50),
        (("de", "web"), 3.0, 4),
    )
    found = {group.name: group for group in grid.grouped(summed, 10)}
    assert found["en", "web"].basis_name == ("en", "web")
    assert found["en", "book"].basis_name == ("en",)
    assert found["en", "book"].basis.counts["docs"].tolist() == [10, 3]
    assert found["en", "book"].own.total("docs") == 3
    assert found["en", "book"].unranked == {"docs": 50}
    assert found["de", "web"].basis_name == ()
    assert found["de", "web"].basis.total("docs") == 17
    assert list(grid.grouped(summed.slice(0, 0), 10)) == []


def test_equal_cells_of_groups_are_pooled():
    """A parent holds each cell once, with the counts of all its groups."""
    summed = table((("en", "x"), 1.0, 2), (("en", "y"), 1.0, 5), (("en", "y"), 0.5, 1))
    (first, _) = grid.grouped(summed, 100)
    assert first.basis.counts["docs"].tolist() == [1, 7]
    assert len(first.basis.cells) == 2
