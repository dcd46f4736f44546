"""How many LSH bands of how many rows find the pairs that matter.

A pair with Jaccard similarity J shares a given band of r sketch values with probability J^r, so b bands miss it with
probability (1 - J^r)^b. Candidates are verified exactly, so only misses lose anything: bands follow the threshold.
"""

from __future__ import annotations

SKETCH = 256
"""Values a derived sketch has at most."""
MISS = 0.02
"""Share of pairs exactly at the threshold that a derived pair of numbers may miss."""
TOLERATED = 0.10
"""The same for a pair set by hand before it is worth a warning."""


def expected_miss(threshold: float, bands: int, rows: int) -> float:
    """The probability that a pair exactly at the threshold shares no band."""
    return float((1.0 - threshold**rows) ** bands)


def derived_rows(threshold: float) -> int:
    """The most rows a band can have while the bands that fit into the sketch miss no more than MISS; at least 1."""
    fitting = (r for r in range(SKETCH, 0, -1) if expected_miss(threshold, SKETCH // r, r) <= MISS)
    return next(fitting, 1)


def derived_bands(rows: int) -> int:
    return max(1, SKETCH // rows)
