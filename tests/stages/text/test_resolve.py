import numpy as np
import pyarrow as pa
import pytest

from stages.text import resolve as module
from stages.text.greedy import SMALL, UNITS, overlap
from stages.text.resolve import Rules, resolve
from tests.stages.text.one_block import one_block

WAYS = {"as it comes": {}, "index only": {"small": 0}, "comparison only": {"small": 1 << 40}, "chunks": {"chunk": 7}}


def loader(sets):
    """What `resolve` loads: sorted hashes of sets of small numbers."""
    rng = np.random.default_rng(0)
    hashes = rng.integers(1, 1 << 63, 1 + max((max(s, default=0) for s in sets), default=0)).astype(np.uint64)
    arrays = [np.sort(hashes[sorted(members)]) for members in sets]

    def load(rows):
        chosen = [arrays[row] for row in rows]
        ends = np.cumsum([0, *map(len, chosen)])
        return ends, np.concatenate([*chosen, np.empty(0, np.uint64)])

    return load


def settled(sets, threshold, starts=None, **rules):
    starts = np.array([0, len(sets)] if starts is None else starts)
    return resolve(starts, np.ones(len(sets), np.int64), loader(sets), Rules(threshold, **rules))


def greedy(sets, threshold):
    """{row: (kept row, intersection, union)} of the documents that go, best first, as the definition reads."""
    kept, gone = [], {}
    for x, members in enumerate(sets):
        for y in kept:
            both, either = len(members & sets[y]), len(members | sets[y])
            if members and both * UNITS >= threshold * either:
                gone[x] = (y, both, either)
                break
        else:
            kept.append(x)
    return gone


def evidence(verdicts):
    found = zip(verdicts.charge.tolist(), verdicts.inter.tolist(), verdicts.unions().tolist(), strict=True)
    return {x: entry for x, entry in enumerate(found) if entry[0] >= 0}


def family(rng):
    """Sets whose similarities lie densely around any threshold, empty ones included."""
    universe = int(rng.integers(5, 90))
    heads = [set(rng.permutation(universe)[: rng.integers(1, universe + 1)].tolist()) for _ in range(6)]
    changes = [rng.integers(0, universe, rng.integers(0, 8)).tolist() for _ in range(rng.integers(2, 150))]
    return [heads[rng.integers(6)] ^ set(change) for change in changes]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("threshold", [3000, 5000, 7000, 8000, 9000, 10_000])
def test_verdicts_are_the_greedy_ones(threshold, way):
    """Charges, intersections and unions are those of a ten-line greedy, whichever way they are found."""
    rng = np.random.default_rng(threshold)
    charged = 0
    for _ in range(30):
        sets = family(rng)
        found = evidence(settled(sets, threshold, **WAYS[way]))
        assert found == greedy(sets, threshold)
        charged += len(found)
    assert charged > 150


def test_components_are_decided_apart():
    """Equal sets in different components both stay, however many components fit into a block."""
    sets = [{1, 2}, {1, 2}, {1, 2}, {3}, {3}, {1, 2}]
    for chunk in (1, 2, 3, 100):
        assert evidence(settled(sets, 8000, [0, 2, 5, 6], chunk=chunk)) == {1: (0, 2, 2), 4: (3, 1, 1)}


def test_the_threshold_is_an_integer_matter():
    """J exactly t is similar; one member less in common is not: 8 of 10, 7 of 10 and 79 of 99."""
    base = set(range(9))
    assert evidence(settled([base, set(range(8)) | {20}], 8000)) == {1: (0, 8, 10)}
    assert evidence(settled([base, set(range(1, 8)) | {20}], 8000)) == {}
    assert overlap(np.arange(9, dtype=np.uint64), np.arange(1, 10, dtype=np.uint64), 8) == 8
    assert overlap(np.arange(9, dtype=np.uint64), np.arange(1, 10, dtype=np.uint64), 9) == -1


def test_a_star_a_chain_and_a_clique_in_adverse_order():
    """Leaves go by their hub if it is kept; without a kept similar document everything stays."""
    hub = set(range(20))
    leaves = [hub - {i} | {100 + i} for i in range(6)]
    assert set(evidence(settled([hub, *leaves], 9000))) == set(range(1, 7))
    assert evidence(settled([leaves[0], hub, *leaves[1:]], 9000)) == {1: (0, 19, 21)}
    chain = [set(range(i, i + 20)) for i in range(0, 8, 2)]
    assert set(evidence(settled(chain, 8000))) == {1, 3}
    assert len(evidence(settled([hub] * 5, 8000))) == 4


def templates(rng, count, own):
    """Pages of one template: 200 shared members and as many own ones as `own` says."""
    fresh = iter(range(1000, 10_000_000))
    return [set(range(200)) | {next(fresh) for _ in range(rng.integers(*own))} for _ in range(count)]


def test_a_large_group_of_templates_costs_next_to_nothing():
    """Unlike pages of one template are told apart without reading postings or comparing beyond the first few."""
    sets = templates(np.random.default_rng(2), 3000, (30, 60))
    verdicts = settled(sets, 8000)
    assert (verdicts.charge < 0).all()
    assert verdicts.postings < len(sets)
    assert verdicts.comparisons <= SMALL * (SMALL + 1) / 2 + len(sets)


def test_a_large_group_of_copies_is_compared_once_each():
    """Copies of one page each meet the first one and go."""
    sets = templates(np.random.default_rng(3), 3000, (0, 10))
    verdicts = settled(sets, 8000)
    assert (verdicts.charge[1:] == 0).all()
    assert verdicts.comparisons == len(sets) - 1


def test_what_passes_the_work_limit_is_kept_and_marked():
    """The limit never removes, never charges to another document, and marks exactly what it kept."""
    rng = np.random.default_rng(4)
    pool = [set(range(10 * i, 10 * i + 10)) for i in range(30)]
    sets = [set().union(*(pool[i] for i in rng.permutation(30)[:24])) for _ in range(300)]
    free = settled(sets, 8000)
    assert not free.undecided.any()
    for limit in (0, 300, 3000):
        verdicts = settled(sets, 8000, work_limit=limit)
        assert verdicts.undecided.any()
        assert (verdicts.charge[verdicts.undecided] < 0).all()
        for x, (y, both, either) in evidence(verdicts).items():
            assert verdicts.charge[y] < 0
            assert y < x
            assert both * UNITS >= 8000 * either


def test_chunks_are_cut_by_bytes_as_well(monkeypatch):
    """A component of texts too large to be held at once is decided in chunks, with the same outcome."""
    rng = np.random.default_rng(5)
    texts = [" ".join(f"w{i}" for i in rng.integers(0, 40, 30)) for _ in range(4)]
    texts = pa.array([texts[rng.integers(4)] + f" own{i % 9}" for i in range(80)], pa.large_string())
    whole = one_block(texts, 2, 0.8)
    monkeypatch.setattr(module, "BLOCK_BYTES", 500)
    parts = one_block(texts, 2, 0.8)
    assert evidence(whole) == evidence(parts) != {}
    assert (whole.sizes == parts.sizes).all()


def test_one_block_of_nothing_is_nothing():
    """No text at all and texts without words have no verdict against them."""
    assert one_block(pa.array([], pa.large_string()), 5, 0.8).charge.tolist() == []
    assert one_block(pa.array(["", "\u200b", ""], pa.large_string()), 5, 0.8).charge.tolist() == [-1, -1, -1]
