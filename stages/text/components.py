"""Connected components of the rows that share keys, in a form that does not depend on the order they come in.

A forest is written as one star per component: each row but the least points at the least. Any set of records has one.
"""

from __future__ import annotations

from itertools import pairwise

import numba as nb
import numpy as np
from numpy.typing import NDArray

from stages.text.bits import P1, U64

Rows = NDArray[np.uint64]
AT_ONCE = 1 << 19
"""Records whose keys are looked up in one hash table: 24 MB of it."""


def joined(keys: Rows, rows: Rows) -> tuple[Rows, Rows]:
    """The forest over rows that share a key: (row, least row of its component) of each row that is not the least.

    Keys are not 0. They are taken range by range, so that the hash table and the edges stay small beside the records.
    """
    if not keys.size:
        return merged(np.empty((0, 2), np.uint64))
    cuts = np.linspace(float(keys.min()), float(keys.max()), -(-keys.size // AT_ONCE) + 1)[1:-1].astype(np.uint64)
    bounds = [U64(0), *cuts, U64(2**64 - 1)]
    forests = []
    for low, high in pairwise(bounds):
        chosen = (keys > low) & (keys <= high)
        edges = np.empty((np.count_nonzero(chosen), 2), np.uint64)
        forests.append(np.stack(merged(edges[: _edges(keys[chosen], rows[chosen], edges)]), axis=1))
    return merged(np.concatenate(forests))


def merged(edges: NDArray[np.uint64]) -> tuple[Rows, Rows]:
    """The forest over all rows that edges, an array of pairs, connect."""
    rows, places = np.unique(edges, return_inverse=True)
    least = rows[_roots(places.reshape(edges.shape), rows.size)]
    inner = least != rows
    return rows[inner], least[inner]


@nb.njit(nogil=True, cache=True)
def _edges(keys, rows, out):
    """An edge from every row to the first one with its key, through a hash table of the keys; returns how many."""
    size = 16
    while size < 2 * keys.size:
        size *= 2
    mask = U64(size - 1)
    table, first = np.zeros(size, np.uint64), np.empty(size, np.uint64)
    count = 0
    for i in range(keys.size):
        slot = (keys[i] * P1) >> U64(20) & mask
        while table[slot] != 0 and table[slot] != keys[i]:
            slot = (slot + U64(1)) & mask
        if table[slot] == 0:
            table[slot], first[slot] = keys[i], rows[i]
        elif first[slot] != rows[i]:
            out[count, 0], out[count, 1] = rows[i], first[slot]
            count += 1
    return count


@nb.njit(nogil=True, cache=True)
def _root(parent, node):
    while parent[node] != node:
        parent[node] = parent[parent[node]]
        node = parent[node]
    return node


@nb.njit(nogil=True, cache=True)
def _roots(edges, count):
    """The least member of the component of each of `count` nodes."""
    parent = np.arange(count)
    for i in range(edges.shape[0]):
        a, b = _root(parent, edges[i, 0]), _root(parent, edges[i, 1])
        if a < b:
            parent[b] = a
        else:
            parent[a] = b
    for node in range(count):
        parent[node] = _root(parent, node)
    return parent
