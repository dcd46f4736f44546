import numpy as np
import pytest

from stages.text.components import joined, merged


def least_of_each(pairs):
    """{row: least row of its component}, one union after the other."""
    groups = []
    for pair in pairs:
        touched = [group for group in groups if group & set(pair)]
        groups = [group for group in groups if group not in touched] + [set(pair).union(*touched)]
    return {row: min(group) for group in groups for row in group if row != min(group)}


@pytest.mark.parametrize("seed", range(8))
def test_forests_are_stars_whatever_the_order(seed):
    """Rows that share a key, over any number of partitions in any order, end at the least row of their component."""
    rng = np.random.default_rng(seed)
    keys = rng.integers(1, 60, 200).astype(np.uint64)
    rows = rng.integers(0, 90, 200).astype(np.uint64) << np.uint64(32)
    pairs = [(int(a), int(b)) for a, k in zip(rows, keys, strict=True) for b in rows[keys == k]]
    expected = least_of_each([pair for pair in pairs if pair[0] != pair[1]])
    for parts in (1, 2, 7):
        order = rng.permutation(200)
        chunks = [order[keys[order] % parts == part] for part in range(parts)]
        edges = np.concatenate([np.stack(joined(keys[chunk], rows[chunk]), axis=1) for chunk in chunks])
        found, least = merged(rng.permutation(edges))
        assert dict(zip(found.tolist(), least.tolist(), strict=True)) == expected
        assert found.tolist() == sorted(found.tolist())


def test_a_long_chain_is_one_component():
    """A hundred thousand rows, each sharing a key with the next only, are one component."""
    rows = np.arange(100_000, dtype=np.uint64)
    keys = np.concatenate([rows + 1, rows + 2])
    order = np.random.default_rng(1).permutation(len(keys))
    found, least = joined(keys[order], np.concatenate([rows, rows])[order])
    assert len(found) == 99_999
    assert least.max() == 0


def test_nothing_in_common_is_no_forest():
    """Distinct keys, and none at all, have no edges."""
    numbers = np.arange(1, 10, dtype=np.uint64)
    for size in (9, 0):
        assert [len(part) for part in joined(numbers[:size], numbers[:size])] == [0, 0]
