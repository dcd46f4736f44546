"""The report: plain records of a run in, the document of `corpusmill.report/1` out, and the identities it must keep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from datetime import date
from itertools import pairwise
from math import isclose
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline import cost
from pipeline.errors import ContractError

SCHEMA = "corpusmill.report/1"
MEASURES = ("docs", "bytes", "tokens")
FATES = ("kept", "removed", "quarantined")
NO_SOURCE = "(none)"
"""The name under which guards know documents without a source."""
EXACT_REASON = "exact_duplicate"
"""Reason of a document whose text another kept document has; guards do not count it as a loss."""

_NAMED = 5
"""Sources that a guard's message names."""

_EXEMPT_FIELDS = {"compute", "money", "failures", "warnings", "predictions"}
_EXEMPT_KEYS = {
    "run": ("run_id", "started", "ended", "attempts_of_run", "executor", "devices", "paths"),
    "stages": ("seconds", "cells_computed", "cells_reused", "warnings"),
    "tiers": ("copied_bytes", "retrieved_bytes", "deleted_bytes"),
}
"""What may differ between two reports of one result: whole fields, and keys of the entries of others."""

Record = Mapping[str, Any]


def build(
    *,
    run: Record,
    token_basis: Record,
    counts: pa.Table,
    stages: Sequence[Record],
    config: Record,
    datasets: Sequence[Record] = (),
    phases: Sequence[Record] = (),
    buckets: Record | None = None,
    tiers: Sequence[Record] = (),
    compute: Sequence[Record] = (),
    guards: Sequence[Record] = (),
    duplicates: Record | None = None,
    predictions: Sequence[Record] = (),
    failures: Sequence[Record] = (),
    warnings: Sequence[str] = (),
    unknown_bytes_docs: int = 0,
    quarantined_shards: Record | None = None,
) -> dict[str, Any]:
    """The report document.

    Args are the document's own fields, but for what is derived here:
        counts: stage, kind (kept | removed | quarantined, and in where it was counted apart), reason, source, language,
            dataset, and int64 docs, bytes, tokens; a removed or quarantined row carries its stage and reason.
        stages: in order, ingest first; each without the counts that are derived from `counts`.
        tiers, compute: without their figures.
        buckets: `{score, by, edges: [{group, bucket, lower, upper, docs, tokens}]}`; open ends are None.
        config: all of what the run used, as JSON values; the report keeps what the results depend on.
    """
    counts = counts.filter(pc.is_in(counts["kind"], pa.array(["in", *FATES])))
    fates = _sums(counts, "kind")
    totals = {**_fates(fates, ()), "unknown_bytes_docs": unknown_bytes_docs}
    pools = [cost.priced_pool(pool, config) for pool in compute]
    priced_tiers = [cost.priced_tier(tier, config) for tier in tiers]
    removed = cost.token_figure(totals["removed"]["tokens"] + totals["trimmed"]["tokens"], token_basis)
    return {
        "schema": SCHEMA,
        "run": dict(run),
        "token_basis": dict(token_basis),
        "totals": {**totals, "quarantined_shards": quarantined_shards or {"count": 0, "bytes": 0}},
        "stages": _stages(stages, counts, totals["in"]),
        "sources": _groups("source", counts, stages),
        "languages": _groups("language", counts, stages),
        "guards": [dict(guard) for guard in guards],
        "duplicates": dict(duplicates or {}),
        "datasets": [{k: v for k, v in dataset.items() if k != "files"} for dataset in datasets],
        "phases": [dict(phase) for phase in phases],
        "buckets": buckets,
        "tiers": priced_tiers,
        "compute": pools,
        "money": cost.money(
            removed=removed,
            config=config,
            pools=pools,
            tiers=priced_tiers,
            today=date.fromisoformat(run["ended"][:10]),
        ),
        "predictions": [dict(prediction) for prediction in predictions],
        "failures": [dict(failure) for failure in failures],
        "warnings": list(warnings),
        "config": _fingerprinted(config),
    }


def _sums(counts: pa.Table, *by: str) -> dict[tuple[Any, ...], dict[str, int]]:
    """Documents, bytes and tokens per value of the columns `by`."""
    table = counts.group_by(list(by)).aggregate([(measure, "sum") for measure in MEASURES])
    return {tuple(row[k] for k in by): {m: row[f"{m}_sum"] for m in MEASURES} for row in table.to_pylist()}


def _zero() -> dict[str, int]:
    return dict.fromkeys(MEASURES, 0)


def _add(parts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    return {measure: sum(part[measure] for part in parts) for measure in MEASURES}


def _fates(sums: Mapping[tuple[Any, ...], dict[str, int]], key: tuple[Any, ...]) -> dict[str, Any]:
    """in, kept, removed, quarantined and trimmed of one group. `in` is what was counted, or else what became of it."""
    fates: dict[str, Any] = {fate: sums.get((*key, fate), _zero()) for fate in FATES}
    return {"in": sums.get((*key, "in")) or _add(list(fates.values())), **fates, "trimmed": _zero()}


def _stages(stages: Sequence[Record], counts: pa.Table, entered: dict[str, int]) -> list[dict[str, Any]]:
    """The stages with their counts: each passes on what entered it but for what it removed or quarantined."""
    by_stage = _sums(counts, "stage", "kind")
    by_reason = _sums(counts, "stage", "kind", "reason")
    strangers = {stage for stage, kind in by_stage if kind in {"removed", "quarantined"}} - {s["label"] for s in stages}
    if strangers:
        raise ContractError(f"counts name stages that did not run: {', '.join(sorted(map(str, strangers)))}")
    done = []
    for stage in stages:
        label = stage["label"]
        removed, quarantined = (by_stage.get((label, kind), _zero()) for kind in ("removed", "quarantined"))
        kept = {m: entered[m] - removed[m] - quarantined[m] for m in MEASURES}
        done.append(
            {
                **stage,
                "in": entered,
                "kept": kept,
                "removed": removed,
                "quarantined": quarantined,
                "trimmed": _zero(),
                "reasons": _reasons(by_reason, label, "removed"),
                "quarantine_reasons": _reasons(by_reason, label, "quarantined"),
            }
        )
        entered = kept
    return done


def _reasons(sums: Mapping[tuple[Any, ...], dict[str, int]], label: str, kind: str) -> list[dict[str, Any]]:
    """What one stage gave as reasons, the commonest first."""
    found = [{"reason": key[2], **values} for key, values in sums.items() if key[:2] == (label, kind)]
    return sorted(found, key=lambda entry: (-entry["docs"], entry["reason"]))


def _groups(column: str, counts: pa.Table, stages: Sequence[Record]) -> list[dict[str, Any]]:
    """One entry per source or language, by name, the one of documents without a name last."""
    fates = _sums(counts, column, "kind")
    removed = _sums(counts.filter(pc.equal(counts["kind"], "removed")), column, "stage")
    names = sorted({name for name, _ in fates}, key=lambda name: (name is None, name or ""))
    labels = [stage["label"] for stage in stages]
    return [
        {
            "name": name,
            **_fates(fates, (name,)),
            "by_stage": {label: removed[name, label] for label in labels if (name, label) in removed},
        }
        for name in names
    ]


def _fingerprinted(config: Record) -> dict[str, Any]:
    """The config without what no result depends on: where and how it ran, budget and prices."""
    kept = {k: v for k, v in config.items() if k not in {"run", "tiers", "budget", "currency"}}
    training = {k: v for k, v in config["training"].items() if not k.startswith("price")}
    return {**kept, "training": training, "run": {"seed": config["run"]["seed"]}}


def guards(counts: pa.Table, config: Record) -> list[dict[str, Any]]:
    """How much each source loses against `guards.max_source_loss`, in shares of its documents.

    Exact copies and quarantined documents count neither as lost nor as there. Sources with under `guards.min_docs`
    documents left by that are not judged. `stage` is where the source loses most.
    """
    limits = config["guards"]
    losses = counts.filter(pc.or_(pc.equal(counts["kind"], "kept"), _counts_as_loss(counts)))
    fates = _sums(losses, "source", "kind")
    by_stage = _sums(losses, "source", "kind", "stage")
    judged = []
    for name in sorted({name for name, _ in fates}, key=lambda name: (name is None, name or "")):
        lost, kept = (fates.get((name, kind), _zero())["docs"] for kind in ("removed", "kept"))
        if lost + kept < max(limits["min_docs"], 1):
            continue
        shown = NO_SOURCE if name is None else name
        value = lost / (lost + kept)
        stages = {key[2]: sums["docs"] for key, sums in by_stage.items() if key[:2] == (name, "removed")}
        judged.append(
            {
                "scope": "source",
                "name": shown,
                "stage": min(stages, key=lambda stage: (-stages[stage], stage), default=None),
                "limit": limits["max_source_loss"],
                "value": value,
                "state": _state(value > limits["max_source_loss"], shown in limits["accept"]),
            }
        )
    return judged


def _counts_as_loss(counts: pa.Table) -> pa.ChunkedArray:
    not_a_copy = pc.fill_null(pc.not_equal(counts["reason"], EXACT_REASON), True)
    return pc.and_(pc.equal(counts["kind"], "removed"), not_a_copy)


def _state(broken: bool, accepted: bool) -> str:
    return "ok" if not broken else "accepted" if accepted else "stopped"


def breach(judged: Sequence[Record]) -> str:
    """The message for guards that stop a run, empty where none does: source, share, limit, stage, and how to accept."""
    stopped = [guard for guard in judged if guard["state"] == "stopped"]
    if not stopped:
        return ""
    lines = [
        f"source {guard['name']!r} would lose {guard['value']:.1%} of its documents (limit {guard['limit']:.1%}), "
        f"most of them at stage {guard['stage']!r}"
        for guard in stopped[:_NAMED]
    ]
    names = ", ".join(repr(guard["name"]) for guard in stopped[:_NAMED])
    more = f"; {len(stopped) - _NAMED:,} more sources would as well" if len(stopped) > _NAMED else ""
    return f"guards.max_source_loss: {'; '.join(lines)}{more}; if that is meant, set guards.accept: [{names}]"


def comparable(report: Record) -> dict[str, Any]:
    """The document without what may differ between executors, worker counts and histories of kills."""
    result = {k: deepcopy(v) for k, v in report.items() if k not in _EXEMPT_FIELDS}
    for field, keys in _EXEMPT_KEYS.items():
        for entry in result[field] if isinstance(result[field], list) else [result[field]]:
            for key in keys:
                entry.pop(key, None)
    return result


def identities(report: Record) -> None:
    """Raise ContractError that names the first identity which the report breaks.

    i     in = kept + removed + quarantined + trimmed: of the whole, a stage, a source, a language
    ii    what a stage keeps enters the next one, and what the last one keeps is kept
    iii   the reasons of a stage add up to what it removed
    iv    what stages removed, quarantined and trimmed adds up to the totals
    v     sources add up to the totals, and so do languages
    vi    the table of removed documents has a row for each: `pipeline.results.check_tables`, which sees the table
    vii   with a fixed budget of tokens nothing is saved
    viii  net = gross - curation - storage - transfer, and unknown where one of them is
    """
    for name, holds, detail in _checks(report):
        if not holds:
            raise ContractError(f"report identity ({name}) does not hold: {detail}")


def _checks(report: Record) -> Iterator[tuple[str, bool, str]]:
    totals, stages = report["totals"], report["stages"]
    parts = [("totals", totals), *((f"stage {s['label']}", s) for s in stages)]
    for field in ("sources", "languages"):
        parts += [(f"{field} {entry['name']!r}", entry) for entry in report[field]]
    for where, part in parts:
        for m in MEASURES:
            out = sum(part[fate][m] for fate in FATES) + (0 if m == "docs" else part["trimmed"][m])
            yield "i", part["in"][m] == out, f"{where}: {m} in {part['in'][m]}, accounted for {out}"
    for before, after in pairwise(stages):
        yield "ii", before["kept"] == after["in"], f"{after['label']} got {after['in']}, not {before['kept']}"
    yield "ii", stages[-1]["kept"] == totals["kept"], f"the last stage keeps {stages[-1]['kept']}, not {totals['kept']}"
    for stage in stages:
        given = _add(stage["reasons"])
        yield "iii", given == stage["removed"], f"{stage['label']}: reasons {given}, removed {stage['removed']}"
    for fate in ("removed", "quarantined", "trimmed"):
        given = _add([stage[fate] for stage in stages])
        yield "iv", given == totals[fate], f"{fate}: stages {given}, totals {totals[fate]}"
    for field in ("sources", "languages"):
        for fate in ("in", *FATES, "trimmed"):
            given = _add([entry[fate] for entry in report[field]])
            yield "v", given == totals[fate], f"{fate}: {field} {given}, totals {totals[fate]}"
    yield from _money_checks(report["money"])


def _money_checks(money: Record) -> Iterator[tuple[str, bool, str]]:
    for block in ("gpu_hours", "gross"):
        saved = money[block]["fixed_budget"]["value"]
        yield "vii", saved == 0, f"money.{block}.fixed_budget is {saved}"
    for regime in cost.REGIMES:
        names = ("curation", "storage", "transfer")
        gross, *costs = [money["gross"][regime]["value"], *(money[name]["value"] for name in names)]
        net = money["net"][regime]["value"]
        if None in {gross, *costs}:
            yield "viii", net is None, f"net {regime} is {net}, but not all it is made of is known"
        else:
            due = gross - sum(costs)
            scale = max(map(abs, [gross, *costs]))
            close = net is not None and isclose(net, due, rel_tol=1e-9, abs_tol=1e-9 * scale)
            yield "viii", close, f"net {regime} is {net}, gross minus costs is {due}"
