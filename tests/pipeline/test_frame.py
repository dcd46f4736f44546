"""A frame: columns by the names that stages use, for the rows of one batch."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from pipeline import columns
from pipeline.errors import ConfigError
from pipeline.frame import Frame
from pipeline.types import SCORED

RATIO = 1 << 18
"""Four bytes a token, in units of 2^-20."""


def frame(first=0, rows=4, **known):
    ingested = pa.table({
        "bytes": [8, 9, 0, 7, 100], "source": ["a", None, "b", "a", "c"], "language": pa.nulls(5, pa.large_string()),
        "reason": pa.nulls(5, pa.large_string()), "state": columns.states(np.zeros(5, np.int8)),
    })  # fmt: skip
    text = pa.array([f"text {first + row}" for row in range(rows)], pa.large_string())
    sources = {"a": {"priority": 3}, "b": {"max_epochs": 2.0}}
    known = {"ingest": ingested, **known}
    return Frame(first, rows, {"url": pa.array(range(rows))}, text, known, token_ratio=RATIO, sources=sources)


def test_a_frame_is_a_window_of_the_slice():
    """Columns of sidecars are those of the frame's own rows; what this task has made so far stands for them."""
    scores = pa.table({"value": [10, 11, 12, 13, 14]})
    made = frame(1, 3, score=scores)
    assert made.column("score.value").to_pylist() == [11, 12, 13]
    made.made["score"] = {"value": pa.array([0, 0, 0])}
    assert made.column("score.value").to_pylist() == [0, 0, 0]


def test_tokens_are_rounded_up():
    """Tokens are the ceiling of bytes times the ratio."""
    assert frame().column("tokens").to_pylist() == [2, 3, 0, 2]


def test_priority_is_that_of_the_source():
    """`source.priority` comes from the table of sources: 0 where it, or the source, says nothing."""
    assert frame().column("source.priority").to_pylist() == [3, 0, 0, 3]


@pytest.mark.parametrize("mask", [[True] * 4, [False, True, False, True], [False] * 4])
def test_a_batch_holds_the_chosen_rows(mask):
    """A batch has the named columns and the extras of the chosen rows, in order."""
    rows = pa.array(np.arange(4, dtype=np.uint32))
    batch = frame().batch(["text", "url"], np.array(mask), row=rows)
    assert batch.schema.names == ["text", "url", "row"]
    assert batch["row"].to_pylist() == [i for i, chosen in enumerate(mask) if chosen]
    assert batch["text"].to_pylist() == [f"text {i}" for i, chosen in enumerate(mask) if chosen]


def test_a_batch_of_no_columns_knows_its_rows():
    """A stage that reads nothing still gets one row for each document."""
    assert frame().batch([], np.array([True, False, True, True])).num_rows == 3


def test_an_unknown_column_is_a_config_error():
    """A name that neither the input nor a stage above has is told by name."""
    with pytest.raises(ConfigError, match=r"column 'quality\.score'"):
        frame().column("quality.score")


def test_who_is_alive_is_read_from_one_sidecar():
    """Liveness after a stage is its own sidecar's, the stages before it do not matter."""
    table = pa.table({
        "state": columns.states(np.full(5, SCORED, np.int8)),
        "reason": pa.array([None, "x", None, None, "y"], pa.large_string()),
    })  # fmt: skip
    assert frame(1, 4, rules=table).alive("rules").tolist() == [False, True, True, False]
    assert frame(1, 4, rules=table).alive("ingest").tolist() == [True] * 4
