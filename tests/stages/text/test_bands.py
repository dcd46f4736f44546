import pytest

from stages.text.bands import MISS, SKETCH, derived_bands, derived_rows, expected_miss


@pytest.mark.parametrize(
    ("threshold", "bands", "rows"), [(0.5, 64, 4), (0.7, 42, 6), (0.75, 36, 7), (0.8, 28, 9), (1.0, 1, 256)]
)
def test_bands_and_rows_follow_from_the_threshold(threshold, bands, rows):
    """The table of the documentation is what the rule gives."""
    assert (derived_bands(derived_rows(threshold)), derived_rows(threshold)) == (bands, rows)


@pytest.mark.parametrize("threshold", [0.05, 0.3, 0.45, 0.62, 0.9, 0.95, 0.99])
def test_the_rows_are_the_most_that_miss_little(threshold):
    """At the derived rows the miss is within the bound, and no larger number of rows has that."""
    rows = derived_rows(threshold)
    assert expected_miss(threshold, SKETCH // rows, rows) <= MISS
    assert all(expected_miss(threshold, SKETCH // more, more) > MISS for more in range(rows + 1, SKETCH + 1))


def test_a_threshold_too_low_for_any_bands_gets_the_best_there_are():
    """Where even single rows miss more than the bound, rows is 1."""
    assert derived_rows(0.001) == 1
