"""FLOPs, GPU-hours, storage and money: pure arithmetic over plain records, each number with where it comes from.

A removed token is not a saved token. What removal is worth depends on what training does with what is left, so three
regimes stand side by side and none is called "the" saving:

    fixed_epoch    the same passes over less text: every removed token would have been trained on once
    fixed_budget   the same tokens whatever was removed: nothing is saved, the gain (if any) is quality
    fixed_target   train to the same loss: known only where matched training runs measured it
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from pipeline.errors import nearest, setting_error
from pipeline.figures import Figure, derive, figure, setting, show

Settings = Mapping[str, Any]
"""A whole config as JSON values, every section present."""

REGIMES = ("fixed_epoch", "fixed_budget", "fixed_target")
GPU_HOURS = "GPU-hours"

PEAK_SOURCE = "vendor data sheet, dense bf16 (as collected in torchtitan/tools/utils.py, 2026-08)"
PEAK_FLOPS: Mapping[str, float] = {
    "A100": 312e12,
    "H20": 148e12,
    "H100-SXM": 989e12,
    "H100-NVL": 835e12,
    "H100-PCIe": 756e12,
    "H200": 989e12,
    "B200": 2250e12,
    "B300": 2250e12,
    "GB200": 2500e12,
    "GB300": 2500e12,
    "L40S": 362e12,
    "MI250X": 191.5e12,
    "MI300X": 1300e12,
    "MI325X": 1300e12,
    "MI355X": 2500e12,
    "TPU-v5e": 197e12,
    "TPU-v5p": 459e12,
    "TPU-v6e": 918e12,
}
"""Dense bf16 peak in FLOP/s per accelerator. Public pages also list twice these numbers: those are with sparsity."""


def peak(gpu: str | None) -> Figure:
    """Dense bf16 peak of an accelerator, FLOP/s. ConfigError where it is not in `PEAK_FLOPS`."""
    if gpu is None:
        return setting("training.gpu", None, "FLOP/s", "H100-SXM")
    if gpu not in PEAK_FLOPS:
        raise setting_error("training.gpu", gpu, "its peak FLOP/s are not known here", nearest(gpu, PEAK_FLOPS))
    return figure(PEAK_FLOPS[gpu], "FLOP/s", "assumed", f"{gpu}, {PEAK_SOURCE}")


def utilisation(training: Mapping[str, Any]) -> Figure:
    """`training.mfu`, or what published dense runs reach: 0.40, from 0.30 to 0.50."""
    if training.get("mfu") is not None:
        return setting("training.mfu", training["mfu"], "share of peak")
    source = "default of training.mfu; published dense runs reach 0.38-0.43 (Llama 3 405B), 0.41-0.48 (Megatron-Core)"
    return figure(0.40, "share of peak", "assumed", source, low=0.30, high=0.50)


def goodput(training: Mapping[str, Any]) -> Figure:
    """`training.goodput`, or 0.90: the share of paid hours that train (Llama 3 405B reports over 0.90)."""
    if training.get("goodput") is not None:
        return setting("training.goodput", training["goodput"], "share of hours")
    return figure(0.90, "share of hours", "assumed", "default of training.goodput; Llama 3 405B reports over 0.90")


def token_figure(tokens: int, basis: Mapping[str, Any]) -> Figure:
    """A number of tokens under a report's `token_basis`; unknown where bytes stand in for them.

    `relative_interval` is [low, high] as multiples of the estimate, for example [0.98, 1.03].
    """
    if basis["unit"] != "tokens":
        return setting("training.bytes_per_token", None, "tokens", "4.0")
    if basis["method"] == "exact":
        return figure(tokens, "tokens", "counted", f"tokens of {basis['tokenizer']}")
    if basis["tokenizer"] is None:
        return figure(tokens, "tokens", "assumed", "bytes / training.bytes_per_token")
    low, high = basis["relative_interval"] or (None, None)
    return figure(
        tokens,
        "tokens",
        "estimated",
        f"bytes x tokens per byte of {basis['tokenizer']}, per source and language",
        [f"{basis['sample_docs']:,} sampled documents"],
        low=None if low is None else tokens * low,
        high=None if high is None else tokens * high,
    )


def gpu_hours(tokens: Figure, training: Mapping[str, Any]) -> Figure:
    """GPU-hours to train once on `tokens`: 6 FLOPs per parameter and token (attention left out)."""
    return derive(
        lambda tokens, parameters, peak, mfu, goodput: 6 * parameters * tokens / (peak * mfu * 3600) / goodput,
        GPU_HOURS,
        "6 x parameters x tokens / (dense peak x MFU x 3600 s) / goodput",
        {
            "tokens": tokens,
            "training.parameters": setting("training.parameters", training.get("parameters"), "parameters", "7e9"),
            "dense peak": peak(training.get("gpu")),
            "MFU": utilisation(training),
            "goodput": goodput(training),
        },
    )


def regimes(removed: Figure, training: Mapping[str, Any]) -> dict[str, Figure]:
    """What not training on `removed` tokens is worth in GPU-hours, under each regime."""
    once = gpu_hours(removed, training)
    return {
        "removed_tokens_equivalent": once,
        "fixed_epoch": {
            **once,
            "formula": f"{once['formula']}, as if each removed token had been trained on exactly once",
        },
        "fixed_budget": figure(0, GPU_HOURS, "counted", "0: the token budget is spent whatever was removed"),
        "fixed_target": figure(
            None,
            GPU_HOURS,
            "unknown",
            "GPU-hours of the run x (1 - tokens to reach the loss with this corpus / with the raw corpus)",
            ["only matched training runs on both corpora can measure this; none are known here"],
        ),
    }


def gross(hours: Figure, price: Figure, currency: str) -> Figure:
    """What GPU-hours cost at `training.price_per_gpu_hour`; none cost nothing, whatever the price."""
    formula = "GPU-hours x training.price_per_gpu_hour"
    if hours["value"] == 0:
        return figure(0, currency, hours["kind"], formula, [f"GPU-hours = {show(hours)}"])
    return derive(lambda hours, price: hours * price, currency, formula, {"GPU-hours": hours, "price": price})


def net(gross: Figure, costs: Mapping[str, Figure], currency: str) -> Figure:
    """Gross saving minus what getting it cost: `curation`, `storage`, `transfer`. A loss is negative and shown so."""
    return derive(
        lambda gross, curation, storage, transfer: gross - curation - storage - transfer,
        currency,
        "gross - curation - storage - transfer",
        {"gross": gross, **{name: costs[name] for name in ("curation", "storage", "transfer")}},
    )


def pool_price(config: Settings) -> Figure:
    """`run.pool.price_per_cpu_hour`: the price of one core of the machines that curate."""
    pool = config["run"]["pool"]
    return setting("run.pool.price_per_cpu_hour", pool["price_per_cpu_hour"], f"{config['currency']}/CPU-hour", "0.04")


def tier_price(tier: str, config: Settings) -> Figure:
    """`tiers.<tier>.prices.price_per_gb_month`, per decimal gigabyte."""
    prices = config["tiers"][tier]["prices"] or {}
    name = f"tiers.{tier}.prices.price_per_gb_month"
    return setting(name, prices.get("price_per_gb_month"), f"{config['currency']}/GB-month", "0.023")


def gpu_price(config: Settings) -> Figure:
    """`training.price_per_gpu_hour`."""
    given = config["training"].get("price_per_gpu_hour")
    return setting("training.price_per_gpu_hour", given, f"{config['currency']}/GPU-hour", "2.5")


def priced_pool(pool: Mapping[str, Any], config: Settings) -> dict[str, Any]:
    """A pool's record (`cpu_seconds`, `wasted_seconds`, ...) with its `cost` and the `effective_price` of useful hours.

    Seconds of lost attempts are paid as well, which is what raises the effective price over the sticker.
    """
    currency, price = config["currency"], pool_price(config)
    operands = {
        "useful": figure(pool["cpu_seconds"], "s", "measured", "CPU seconds of attempts that counted"),
        "wasted": figure(pool["wasted_seconds"], "s", "measured", "CPU seconds of attempts that were lost"),
        "price": price,
    }
    cost = derive(
        lambda useful, wasted, price: (useful + wasted) / 3600 * price,
        currency,
        "(useful + wasted CPU seconds) / 3600 x price per CPU-hour; waiting slots are not charged",
        operands,
    )
    effective = price
    if pool["cpu_seconds"]:
        effective = derive(
            lambda useful, wasted, price: price * (useful + wasted) / useful,
            price["unit"],
            "price per CPU-hour x (useful + wasted) / useful",
            operands,
        )
    return {**pool, "cost": cost, "effective_price": effective}


def priced_tier(tier: Mapping[str, Any], config: Settings) -> dict[str, Any]:
    """A tier's record (`tier`, `bytes`, `retrieved_bytes`, ...) with what a `month` of it and its `retrieval` cost."""
    currency, price = config["currency"], tier_price(tier["tier"], config)
    month = figure(0, currency, "counted", "no bytes stored")
    if tier["bytes"]:
        month = derive(
            lambda size, price: size / 1e9 * price,
            currency,
            "bytes stored / 1e9 x price per GB-month, one month",
            {"bytes": figure(tier["bytes"], "bytes", "counted", "bytes stored"), "price": price},
        )
    retrieval = figure(0, currency, "counted", "no bytes retrieved")
    if tier["retrieved_bytes"]:
        retrieval = figure(
            None, currency, "unknown", "bytes retrieved x retrieval price", ["no retrieval price is known"]
        )
    return {**tier, "month": month, "retrieval": retrieval}


def total(unit: str, formula: str, parts: Mapping[str, Figure]) -> Figure:
    """The sum of `parts`, 0 where there are none."""
    if not parts:
        return figure(0, unit, "counted", formula)
    return derive(lambda *values: sum(values), unit, formula, parts)


def money(
    *,
    removed: Figure,
    config: Settings,
    pools: Sequence[Mapping[str, Any]],
    tiers: Sequence[Mapping[str, Any]],
    today: date,
) -> dict[str, Any]:
    """The report's `money` block: what `removed` tokens are worth by regime, what curation cost, and the difference.

    `pools` and `tiers` are records as `priced_pool` and `priced_tier` return them.
    """
    currency = config["currency"]
    costs = {
        "curation": total(currency, "sum over compute pools", {pool["pool"]: pool["cost"] for pool in pools}),
        "storage": total(currency, "sum over tiers, one month", {tier["tier"]: tier["month"] for tier in tiers}),
        "transfer": total(
            currency,
            "retrieval, sum over tiers; requests and cross-region traffic are not priced",
            {tier["tier"]: tier["retrieval"] for tier in tiers},
        ),
    }
    hours = regimes(removed, config["training"])
    worth = {regime: gross(hours[regime], gpu_price(config), currency) for regime in REGIMES}
    return {
        "currency": currency,
        "prices": _prices(config, [tier["tier"] for tier in tiers], today),
        **costs,
        "gpu_hours": hours,
        "gross": worth,
        "net": {regime: net(worth[regime], costs, currency) for regime in REGIMES},
        "read_rate": None,
        "budget": None,
    }


def _prices(config: Settings, tiers: Sequence[str], today: date) -> list[dict[str, Any]]:
    """Every price the config gives, with its source and age. Reserved machines are paid whether used or not: fixed."""
    training, pool = config["training"], config["run"]["pool"]
    used = "fixed" if pool["kind"] == "reserved" else "elastic"
    given = {
        "training.price_per_gpu_hour": (
            gpu_price(config), training.get("price_source"), training.get("price_date"), "elastic",
        ),
        "run.pool.price_per_cpu_hour": (pool_price(config), pool["source"], pool["date"], used),
    }  # fmt: skip
    for tier in tiers:
        prices = config["tiers"][tier]["prices"] or {}
        name = f"tiers.{tier}.prices.price_per_gb_month"
        given[name] = (tier_price(tier, config), prices.get("source"), prices.get("date"), "elastic")
    return [
        {
            "name": name,
            "value": price["value"],
            "unit": price["unit"],
            "source": source,
            "date": day,
            "age_days": None if day is None else (today - date.fromisoformat(day)).days,
            "kind": kind,
        }
        for name, (price, source, day, kind) in given.items()
        if price["value"] is not None
    ]
