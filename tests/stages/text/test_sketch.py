import numpy as np
import pyarrow as pa
import pytest
from datasketch import MinHash

from stages.text.arrow import text_buffers
from stages.text.bits import P1, P2, mix
from stages.text.codepoints import tables
from stages.text.shingles import shingle_sets
from stages.text.sketch import band_keys, sketch

K = 256


def sketched(shingles, k=K):
    values = np.empty(k, np.uint32)
    sketch(np.asarray(shingles, np.uint64), values)
    return values


def pair(rng, size, jaccard):
    """Two sets of random hashes of about `size` members whose similarity is as near as integers allow."""
    both = round(2 * size * jaccard / (1 + jaccard))
    pool = rng.integers(1, 1 << 63, 2 * size - both).astype(np.uint64) << np.uint64(1)
    return pool[:size], np.concatenate([pool[:both], pool[size:]]), both / (2 * size - both)


@pytest.mark.parametrize("size", [3, 60, 900])
def test_estimates_are_as_good_as_independent_permutations(size):
    """Over many pairs the estimate has no bias and no more error than k permutations would have, for small sets too."""
    rng = np.random.default_rng(size)
    errors, variance, reference = [], [], []
    for trial in range(150):
        a, b, true = pair(rng, size, rng.uniform(0.2, 0.95))
        errors.append((sketched(a) == sketched(b)).mean() - true)
        variance.append(true * (1 - true) / K)
        if trial < 40:
            classic = [MinHash(num_perm=K, seed=3, hashfunc=int) for _ in range(2)]
            for minhash, members in zip(classic, (a, b), strict=True):
                minhash.hashvalues = np.minimum(minhash.hashvalues, _permuted(minhash, members))
            reference.append(classic[0].jaccard(classic[1]) - true)
    theory = np.sqrt(np.mean(variance))
    assert abs(np.mean(errors)) < 4 * theory / np.sqrt(len(errors))
    assert np.sqrt(np.mean(np.square(errors))) < 1.15 * theory
    assert np.sqrt(np.mean(np.square(errors))) < 1.25 * np.sqrt(np.mean(np.square(reference)))


def _permuted(minhash, members):
    """The least value of each of datasketch's permutations over 32-bit hashes of the members."""
    a, b = (part[:, None] for part in minhash.permutations)
    hashes = (members >> np.uint64(32)).astype(np.uint64)
    return (((a * hashes + b) % np.uint64((1 << 61) - 1)) & np.uint64((1 << 32) - 1)).min(axis=1)


def test_order_and_repeats_do_not_matter():
    """A sketch is a function of the set: no bin stays empty, even for one shingle."""
    rng = np.random.default_rng(3)
    members = rng.integers(1, 1 << 62, 40).astype(np.uint64)
    again = rng.permutation(np.concatenate([members, members[:7]]))
    assert (sketched(members) == sketched(again)).all()
    assert (sketched(members[:1], 252) != 0xFFFFFFFF).all()


def keys(texts, scopes, ngram=5, bands=28, rows=9):
    found, owners = np.empty((2, len(texts) * bands), np.uint64)
    count = band_keys(
        *text_buffers(pa.array(texts, pa.large_string())), np.array(scopes, np.uint64), ngram, bands, rows, tables(),
        found, owners,
    )  # fmt: skip
    return [set(found[:count][owners[:count] == i].tolist()) for i in range(len(texts))]


def test_equal_sets_share_all_bands_and_scopes_share_none():
    """Texts of the same words have the same keys; another scope has others; a text without words has none."""
    texts = ["a b c d e f g", "A b, c d e f (g)", "a b c d e f g", "\u200b"]
    same, spelled, elsewhere, nothing = keys(texts, [0, 0, 1, 0])
    assert len(same) == 28
    assert same == spelled
    assert not same & elsewhere
    assert nothing == set()


def test_bands_are_shared_as_often_as_theory_says():
    """Of pairs at similarity J, about 1 - (1 - J^r)^b share a band."""
    rng = np.random.default_rng(5)
    met = 0
    for _ in range(300):
        a, b, _ = pair(rng, 200, 0.6)
        x, y = sketched(a, 80).reshape(20, 4), sketched(b, 80).reshape(20, 4)
        met += bool((x == y).all(axis=1).any())
    assert met / 300 == pytest.approx(1 - (1 - 0.6**4) ** 20, abs=0.06)


def test_mix_loses_nothing():
    """The mixer is a bijection: distinct numbers stay distinct."""
    offsets, data = text_buffers(pa.array([" ".join(map(str, range(5000)))], pa.large_string()))
    _, found = shingle_sets(offsets, data, np.array([0]), 1, tables())
    assert len({int(mix(value)) for value in found}) == 5000


@pytest.mark.parametrize("distinct", [30, 3_000, 40_000])
@pytest.mark.parametrize("bands", [28, 900])
def test_a_long_text_has_the_sketch_of_its_set(distinct, bands):
    """Shingles that went into their bins as they came give the keys of all together, in any number of bins."""
    rng = np.random.default_rng(distinct)
    text = " ".join(f"w{i}" for i in [*range(distinct), *rng.integers(0, distinct, 60_000)])
    (found,) = keys([text], [7], ngram=1, bands=bands)
    offsets, data = text_buffers(pa.array([text], pa.large_string()))
    _, members = shingle_sets(offsets, data, np.array([0]), 1, tables())
    values = sketched(members, bands * 9).reshape(bands, 9)
    assert found == {band_key(7, band, part) for band, part in enumerate(values)}


def band_key(scope, band, values):
    """The key of a band, by its definition."""
    with np.errstate(over="ignore"):
        h = mix(np.uint64(scope) + np.uint64(band + 1) * P1)
        for value in values:
            h = mix(h ^ np.uint64(value)) + P2
    return int(h | np.uint64(1))
