from __future__ import annotations

import math
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from pipeline.handoff.phases import Plan, apportion, phases

LIMITS = {"epochs": 4, "floor": 0.1, "remainder": "drop", "remainder_docs": 0}


def dataset(name, tokens, bucket=None, split="train", kind=None):
    kind = kind or ("plain" if bucket is None else "bucket")
    return {"id": name, "split": split, "kind": kind, "bucket": bucket, "group": {}, "docs": tokens, "tokens": tokens}


def five(tokens=1000):
    return [dataset(f"train-b{k}", tokens, k) for k in range(5)]


@st.composite
def corpora(draw):
    buckets = draw(st.integers(1, 6))
    sizes = st.integers(0, 3) | st.integers(1, 10**4) | st.integers(10**8, 10**12)
    found = [dataset(f"train-b{k}-{g}", draw(sizes), k) for k in range(buckets) for g in range(draw(st.integers(1, 3)))]
    found.append(dataset("train-unscorable", draw(sizes), kind="unscorable"))
    found.append(dataset("validation", draw(sizes), split="validation"))
    return draw(st.permutations(found))


PLANS = st.builds(
    Plan,
    warmup=st.sampled_from([0.0, 0.05, 0.1, 0.4]),
    anneal=st.sampled_from([0.0, 0.1, 0.3, 0.55]),
    warmup_buckets=st.none() | st.just([0]),
    anneal_buckets=st.none() | st.just([0, 5]),
)


@given(
    corpora(),
    st.none() | st.integers(0, 10**5) | st.integers(10**9, 10**13),
    st.none() | PLANS,
    st.sampled_from([0, 0.01, 0.1, 1]),
    st.tuples(st.sampled_from([0.5, 1, 2.5, 4]), st.sampled_from([{}, {"train-b0-0": 1.5}, {"train-b0-0": 9}])),
)
def test_identities(datasets, asked, plan, floor, caps):
    """Phases are contiguous from 0, weights, tokens and epochs agree, limits hold, and the rest is the shortfall."""
    epochs, own = caps
    schedule = phases(datasets, asked, plan, {**LIMITS, "epochs": epochs, "floor": floor}, max_epochs=own)
    sizes = {d["id"]: d["tokens"] for d in datasets if d["split"] == "train" and d["tokens"]}
    read = dict.fromkeys(sizes, 0)
    start = 0
    for phase in schedule.phases:
        assert phase["start"] == start < phase["end"]
        length = phase["end"] - start
        start = phase["end"]
        assert sum(weight["tokens"] for weight in phase["weights"]) == length
        assert abs(math.fsum(weight["weight"] for weight in phase["weights"]) - 1) <= 1e-9
        for weight in phase["weights"]:
            read[weight["dataset"]] += weight["tokens"]
            assert weight["weight"] == weight["tokens"] / length > 0
            assert weight["epochs"] == read[weight["dataset"]] / sizes[weight["dataset"]]
            assert weight["epochs"] <= min(epochs, own.get(weight["dataset"], epochs))
    assert start == schedule.tokens
    wanted = sum(sizes.values()) if asked is None else asked
    allowed = sum(int(Fraction(str(min(epochs, own.get(name, epochs)))) * size) for name, size in sizes.items())
    assert schedule.tokens == min(wanted, allowed)
    assert schedule.shortfall == wanted - schedule.tokens
    assert bool(schedule.warnings) == (schedule.shortfall > 0)


@given(corpora(), st.integers(1, 10**10), PLANS, st.sampled_from([0, 0.05, 0.3, 1.0]))
def test_order_changes_and_amounts_do_not(datasets, asked, plan, floor):
    """A curriculum reads of every dataset what its control reads, and leaves every dataset its floor in every phase."""
    limits = {**LIMITS, "floor": floor}
    schedule = phases(datasets, asked, plan, limits)
    control = phases(datasets, asked, None, limits)
    amounts = {weight["dataset"]: weight["tokens"] for phase in control.phases for weight in phase["weights"]}
    read = dict.fromkeys(amounts, 0)
    for phase in schedule.phases:
        length = phase["end"] - phase["start"]
        parts = {weight["dataset"]: weight["tokens"] for weight in phase["weights"]}
        for name, amount in amounts.items():
            read[name] += parts.get(name, 0)
            assert parts.get(name, 0) >= floor * length * amount / control.tokens - len(amounts)
    assert read == amounts


def test_default_plan():
    """By default a tenth warms up on the two easiest of five buckets and a tenth anneals on the second hardest."""
    schedule = phases(five(), None, Plan(), LIMITS, seed=7)
    assert [(p["name"], p["start"], p["end"], p["lr_stage"], p["shuffle_seed"]) for p in schedule.phases] == [
        ("warmup", 0, 500, "warmup", 7),
        ("stable", 500, 4500, "stable", 8),
        ("anneal", 4500, 5000, "decay", 9),
    ]
    warmup, _, anneal = ({w["dataset"]: w["tokens"] for w in p["weights"]} for p in schedule.phases)
    assert warmup == {"train-b0": 235, "train-b1": 235, "train-b2": 10, "train-b3": 10, "train-b4": 10}
    assert anneal == {"train-b0": 10, "train-b1": 10, "train-b2": 10, "train-b3": 460, "train-b4": 10}
    assert all(w["epochs"] == 1.0 for w in schedule.phases[-1]["weights"])


def test_one_epoch_without_training_tokens():
    """Without a number of training tokens every kept token is read once; validation is not read at all."""
    data = [dataset("train-en", 700), dataset("train-de", 300), dataset("validation-en", 50, split="validation")]
    (phase,) = phases(data, None, None, LIMITS).phases
    assert [(w["dataset"], w["weight"], w["epochs"]) for w in phase["weights"]] == [
        ("train-de", 0.3, 1.0),
        ("train-en", 0.7, 1.0),
    ]
    assert phase["lr_stage"] is None


def test_caps_and_shortfall():
    """A capped dataset gives its place to the others; when all are at their limit, the shortfall is named in tokens."""
    data = [dataset("train-a", 1000), dataset("train-b", 1000)]
    (phase,) = phases(data, 4000, None, LIMITS, max_epochs={"train-a": 1}).phases
    assert [w["epochs"] for w in phase["weights"]] == [1.0, 3.0]
    schedule = phases(data, 10_000, None, LIMITS, max_epochs={"train-a": 1})
    assert (schedule.tokens, schedule.shortfall) == (5000, 5000)
    assert "5,000 of 10,000 tokens, 5,000 short" in schedule.warnings[0]


def test_nothing_vanishes():
    """A dataset of a few tokens in a corpus of 10^12 has a weight in every phase."""
    data = [*five(10**11), dataset("train-unscorable", 30, kind="unscorable")]
    for phase in phases(data, 10**11, Plan(), LIMITS).phases:
        assert "train-unscorable" in [weight["dataset"] for weight in phase["weights"]]


def test_nothing_to_train_on():
    """A corpus without train tokens has no phases, and all that was asked is short."""
    schedule = phases([dataset("train-b0", 0, 0)], 100, Plan(), LIMITS)
    assert (schedule.phases, schedule.tokens, schedule.shortfall) == ([], 0, 100)
    assert phases([], None, None, LIMITS).warnings == ()


def test_two_very_unequal_buckets():
    """A plan that leans on a tiny bucket reads it once and goes on with the rest, never over and over."""
    data = [dataset("train-b0", 10, 0), dataset("train-b1", 10_000, 1)]
    schedule = phases(data, None, Plan(warmup=0.5, warmup_buckets=[0]), LIMITS)
    assert max(weight["epochs"] for phase in schedule.phases for weight in phase["weights"]) == 1.0


@st.composite
def bounded_splits(draw):
    bounds = draw(
        st.lists(st.tuples(st.integers(1, 99), st.integers(0, 30), st.integers(0, 60)), min_size=1, max_size=8)
    )
    weights = [weight for weight, _, _ in bounds]
    lowest = [low for _, low, _ in bounds]
    highest = [low + more for _, low, more in bounds]
    return draw(st.integers(sum(lowest), sum(highest))), weights, lowest, highest


@given(bounded_splits())
def test_apportion(split):
    """Parts are whole, within bounds and add up; where no bound holds them they are in proportion to within a token."""
    amount, weights, lowest, highest = split
    parts = apportion(amount, weights, lowest, highest)
    assert sum(parts) == amount
    assert all(low <= part <= high for low, part, high in zip(lowest, parts, highest, strict=True))
    rates = [
        (part / weight, 1 / weight, low < part, part < high)
        for part, weight, low, high in zip(parts, weights, lowest, highest, strict=True)
    ]
    for rate, step, can_give, _ in rates:
        for other, other_step, _, can_take in rates:
            if can_give and can_take:
                assert rate - step <= other + other_step + 1e-9


def test_order_of_datasets_does_not_matter():
    """The same datasets in another order have the same phases."""
    assert phases(five()[::-1], 12_345, Plan(), LIMITS) == phases(five(), 12_345, Plan(), LIMITS)
