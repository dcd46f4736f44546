"""What LSH is measured against: the verdicts on all texts without any blocking."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from stages.text.arrow import text_buffers
from stages.text.codepoints import tables
from stages.text.normalise import composed
from stages.text.resolve import Rules, Verdicts, resolve, units
from stages.text.shingles import shingle_sets


def one_block(texts: pa.Array, ngram: int, threshold: float) -> Verdicts:
    """The verdicts on texts that stand best first, as if all shared a band."""
    offsets, data = text_buffers(composed(texts))
    starts = np.array([0, len(texts)] if len(texts) else [0])

    def load(rows):
        return shingle_sets(offsets, data, rows, ngram, tables())

    return resolve(starts, np.diff(offsets), load, Rules(units(threshold)))
