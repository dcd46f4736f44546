"""Figures keep track of how they are known; money is computed as by hand."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import cost
from pipeline.errors import ConfigError
from pipeline.figures import KINDS, derive, figure, needs, number, percent, setting, short, show, size

CONFIG = {
    "currency": "USD",
    "training": {"parameters": 7e9, "gpu": "H100-SXM", "mfu": 0.4, "goodput": 0.9, "price_per_gpu_hour": 2.0},
    "run": {"pool": {"name": "local", "kind": "spot", "price_per_cpu_hour": 0.05, "source": None, "date": None}},
    "tiers": {
        "hot": {"prices": {"price_per_gb_month": 0.1, "source": "list", "date": "2026-11-01"}},
        "cold": {"prices": None},
    },
}
TODAY = date(2026, 11, 30)


def counted(value: float, unit: str = "x"):
    return figure(value, unit, "counted", "given")


def money(*, removed=None, config=CONFIG, cpu=3600.0, wasted=0.0, hot=0, cold=0):
    pools = [cost.priced_pool({"pool": "local", "cpu_seconds": cpu, "wasted_seconds": wasted}, config)]
    tiers = [
        cost.priced_tier({"tier": name, "bytes": stored, "retrieved_bytes": 0}, config)
        for name, stored in (("hot", hot), ("cold", cold))
    ]
    removed = removed or figure(1e9, "tokens", "counted", "given")
    return cost.money(removed=removed, config=config, pools=pools, tiers=tiers, today=TODAY)


@pytest.mark.parametrize(
    ("kind", "value", "low", "high"),
    [
        ("guessed", 1, None, None),
        ("unknown", 1, None, None),
        ("bounded", 1, 0, 2),
        ("bounded", None, None, None),
        ("counted", None, None, None),
        ("unknown", None, 0, 1),
        ("estimated", 1, 0, None),
        ("estimated", 1, 2, 3),
        ("measured", float("nan"), None, None),
        ("measured", float("inf"), None, None),
    ],
)
def test_figures_that_contradict_their_kind_are_refused(kind, value, low, high):
    """Kind, value and interval of a figure always fit together."""
    with pytest.raises(ValueError, match="figure 'why'"):
        figure(value, "x", kind, "why", low=low, high=high)


@given(st.permutations(KINDS[:4]))
def test_a_derived_figure_is_as_sure_as_its_least_sure_input(kinds):
    """The kind of a sum is the last of its parts' kinds in the order from counted to assumed."""
    parts = {kind: figure(1, "x", kind, "given") for kind in kinds[:3]}
    assert derive(lambda *v: sum(v), "x", "sum", parts)["kind"] == max(kinds[:3], key=KINDS.index)


def test_unknown_beats_everything_and_says_what_is_missing():
    """A figure made of an unknown one is unknown and carries the config line that would make it known."""
    parts = {"bound": figure(None, "x", "bounded", "b", low=0, high=1), "price": setting("a.price", None, "x", "2.5")}
    derived = derive(
        lambda a, b: a * b, "x", "product", {"first": derive(lambda a, b: a + b, "x", "sum", parts), "n": counted(2)}
    )
    assert derived["value"] is None
    assert derived["kind"] == "unknown"
    assert needs(derived) == ["a.price: 2.5"]


@given(*[st.tuples(st.floats(0.1, 1e6), st.floats(1, 3)) for _ in range(3)])
def test_intervals_hold_every_value_inside_the_inputs(a, b, c):
    """(a - b) / c over three intervals spans what its extreme corners span, with the plain value inside."""
    parts = {
        name: figure(v * (1 + w) / 2, "x", "estimated", name, low=v, high=v * w)
        for name, (v, w) in zip("abc", (a, b, c), strict=True)
    }
    derived = derive(lambda a, b, c: (a - b) / c, "x", "f", parts)
    corners = [(x - y) / z for x in ends(a) for y in ends(b) for z in ends(c)]
    assert (derived["low"], derived["high"]) == (min(corners), max(corners))
    assert derived["low"] <= derived["value"] <= derived["high"]


def ends(pair):
    return pair[0], pair[0] * pair[1]


def test_a_bounded_input_gives_a_bounded_result():
    """Without a value there is an interval and no value."""
    derived = derive(
        lambda a, b: a * b, "x", "f", {"a": figure(None, "x", "bounded", "a", low=2, high=3), "b": counted(10)}
    )
    assert (derived["kind"], derived["value"], derived["low"], derived["high"]) == ("bounded", None, 20, 30)


@pytest.mark.parametrize(
    ("parameters", "tokens", "mfu", "hours", "rel"),
    [
        (412e6, 8.2e9, 0.216, 26, 0.02),
        (1.4e9, 28e9, 0.281, 240, 0.025),
        (2.8e9, 55.9e9, 0.357, 740, 0.01),
        (6.9e9, 138e9, 0.433, 3700, 0.01),
        (6.9e9, 276e9, 0.423, 7300, 0.05),
    ],
)
def test_gpu_hours_agree_with_the_published_dclm_table(parameters, tokens, mfu, hours, rel):
    """Each row of DCLM's compute table comes out at its implied utilisation, within the table's rounding."""
    training = {"parameters": parameters, "gpu": "H100-SXM", "mfu": mfu, "goodput": 1.0}
    assert cost.gpu_hours(counted(tokens, "tokens"), training)["value"] == pytest.approx(hours, rel=rel)


def test_gpu_hours_by_hand():
    """6 x 7e9 x 1e9 = 4.2e19 FLOPs at 1.42416e18 an hour are 29.4911 hours, at a goodput of 0.9 32.7679."""
    hours = cost.gpu_hours(counted(1e9, "tokens"), CONFIG["training"])
    assert hours["value"] == pytest.approx(32.7679, abs=1e-4)
    assert hours["kind"] == "assumed"
    assert hours["low"] is None


def test_defaults_of_utilisation_carry_their_interval():
    """Without training.mfu the hours are an interval: from 0.40/0.50 to 0.40/0.30 of the middle."""
    hours = cost.gpu_hours(counted(1e9, "tokens"), {"parameters": 7e9, "gpu": "H100-SXM"})
    assert hours["low"] == pytest.approx(hours["value"] * 0.8)
    assert hours["high"] == pytest.approx(hours["value"] * 4 / 3)


def test_gpu_hours_name_the_settings_they_lack():
    """Without a model size and an accelerator the hours are unknown, and both lines to add are named."""
    hours = cost.gpu_hours(counted(1e9, "tokens"), {})
    assert needs(hours) == ["training.parameters: 7e9", "training.gpu: H100-SXM"]


def test_an_accelerator_that_is_not_known_is_a_config_error():
    """A misspelt accelerator is refused with its key path and the nearest name."""
    with pytest.raises(ConfigError, match=r"training\.gpu: got 'H100SXM'.*did you mean 'H100-SXM'"):
        cost.peak("H100SXM")


@pytest.mark.parametrize(
    ("basis", "kind", "interval"),
    [
        ({"unit": "tokens", "method": "exact", "tokenizer": "t"}, "counted", None),
        ({"unit": "tokens", "method": "estimated", "tokenizer": None}, "assumed", None),
        (
            {"unit": "tokens", "method": "estimated", "tokenizer": "t", "relative_interval": [0.9, 1.2]},
            "estimated",
            (90, 120),
        ),
        ({"unit": "tokens", "method": "estimated", "tokenizer": "t", "relative_interval": None}, "estimated", None),
        ({"unit": "bytes", "method": "none", "tokenizer": None}, "unknown", None),
    ],
)
def test_tokens_are_as_sure_as_their_basis(basis, kind, interval):
    """Exact tokens are counted, sampled ratios estimated, a given ratio assumed, and bytes are not tokens."""
    tokens = cost.token_figure(100, {"sample_docs": 10, "relative_interval": None, **basis})
    assert tokens["kind"] == kind
    assert (tokens["low"], tokens["high"]) == (interval or (None, None))


def test_the_regimes_stand_apart():
    """The same removal is worth its training at fixed epochs, nothing at a fixed budget, unknown at a fixed loss."""
    found = cost.regimes(counted(1e9, "tokens"), CONFIG["training"])
    assert found["fixed_epoch"]["value"] == found["removed_tokens_equivalent"]["value"]
    assert "exactly once" in found["fixed_epoch"]["formula"]
    assert found["fixed_budget"]["value"] == 0
    assert found["fixed_target"]["kind"] == "unknown"
    assert needs(found["fixed_target"]) == []


def test_net_by_hand():
    """65.5357 USD of GPU time, minus 1.1 CPU-hours at 0.05 and 2 GB-months at 0.1, is 65.2807 USD."""
    found = money(cpu=3600.0, wasted=360.0, hot=2_000_000_000)
    assert found["curation"]["value"] == pytest.approx(0.055)
    assert found["storage"]["value"] == pytest.approx(0.2)
    assert found["transfer"]["value"] == 0
    assert found["net"]["fixed_epoch"]["value"] == pytest.approx(65.2807, abs=1e-4)


def test_a_loss_is_shown_as_a_loss():
    """At a fixed budget net is minus what curation cost, and below zero as well where little was removed."""
    found = money(removed=counted(1000, "tokens"), cpu=36_000.0)
    assert found["net"]["fixed_budget"]["value"] == pytest.approx(-0.5)
    assert found["net"]["fixed_epoch"]["value"] < 0
    assert found["net"]["fixed_target"]["value"] is None


def test_a_missing_price_makes_net_unknown_and_is_named():
    """Bytes in a tier without a price leave storage and net unknown; an empty tier needs no price."""
    found = money(cold=1)
    assert found["storage"]["kind"] == "unknown"
    assert needs(found["net"]["fixed_epoch"]) == ["tiers.cold.prices.price_per_gb_month: 0.023"]
    assert money(cold=0)["storage"]["value"] == 0


def test_lost_attempts_raise_the_effective_price():
    """A quarter of the useful time lost makes a useful hour a quarter dearer."""
    pool = cost.priced_pool({"pool": "local", "cpu_seconds": 400.0, "wasted_seconds": 100.0}, CONFIG)
    assert pool["effective_price"]["value"] == pytest.approx(0.0625)


def test_prices_carry_source_date_and_age():
    """Every price that was given is listed once with its age; those that were not are left out."""
    prices = {price["name"]: price for price in money()["prices"]}
    assert prices.keys() == {
        "training.price_per_gpu_hour",
        "run.pool.price_per_cpu_hour",
        "tiers.hot.prices.price_per_gb_month",
    }
    assert prices["tiers.hot.prices.price_per_gb_month"]["age_days"] == 29


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (number(0), "0"), (number(1234567), "1,234,567"), (number(0.0123456), "0.01235"), (number(12345.6), "12,346"),
        (number(989e12), "989,000,000,000,000"), (number(None), "unknown"),
        (short(9999), "9,999"), (short(12_345), "12.3k"), (short(999_960), "1.00M"), (short(4_560_000), "4.56M"),
        (short(1.2e12), "1.20T"), (short(123e9), "123B"),
        (size(812), "812 B"), (size(3_210_000_000), "3.21 GB"), (size(999_999), "1.00 MB"),
        (percent(1, 2), "50.0%"), (percent(1, 100_000), "<0.1%"), (percent(99_999, 100_000), ">99.9%"),
        (percent(0, 5), "0%"), (percent(5, 5), "100%"), (percent(0, 0), "-"),
        (show(figure(2, "USD", "estimated", "f", low=1, high=3)), "2 USD [1 to 3] (estimated)"),
        (show(figure(None, "USD", "bounded", "f", low=1, high=3)), "USD [1 to 3] (bounded)"),
        (show(figure(None, "USD", "unknown", "f")), "unknown"),
    ],
)  # fmt: skip
def test_numbers_as_readers_see_them(text, expected):
    """Numbers are short, never rounded to nothing, and unknown is a word."""
    assert text == expected
