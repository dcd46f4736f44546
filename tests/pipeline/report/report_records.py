"""Records of one run as `report.build` takes them: eight stages, six sources, three languages, five buckets."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

STAGES = ("ingest", "heuristics", "exact", "quality", "minhash", "select", "difficulty", "curriculum")
SOURCES = {
    "crawl-2026-10": ("en", 412_400, 3_210),
    "forum": ("en", 61_900, 1_450),
    "docs": ("en", 24_800, 6_020),
    "wiki": ("de", 38_700, 2_880),
    "licences": ("en", 4_150, 9_400),
    None: (None, 1_930, 2_100),
}
"""source -> (language, documents, mean bytes)"""

LOSSES = {
    ("ingest", "removed", "blank_text"): 0.004,
    ("ingest", "quarantined", "undecodable"): 0.0006,
    ("heuristics", "removed", "gopher_repetition.top_2_gram"): 0.051,
    ("heuristics", "removed", "gopher_quality.stop_words"): 0.034,
    ("heuristics", "removed", "fineweb.short_lines"): 0.047,
    ("exact", "removed", "exact_duplicate"): 0.118,
    ("minhash", "removed", "near_duplicate"): 0.092,
    ("select", "removed", "below_cut"): 0.214,
    ("select", "removed", "unscorable"): 0.003,
}
"""(stage, fate, reason) -> share of a source's documents"""
HARSHER = {"licences": 1.6, "docs": 0.45, "wiki": 0.5}


def counts() -> pa.Table:
    """The counts of the account settle."""
    rows: list[dict[str, Any]] = []
    for source, (language, documents, mean) in SOURCES.items():
        left = documents
        for (stage, kind, reason), share in LOSSES.items():
            docs = int(documents * share * HARSHER.get(source, 1.0))
            left -= docs
            size = docs * (mean * 3 // 4)
            rows.append(_row(kind, docs, size, source, language, stage=stage, reason=reason))
        for bucket, share in enumerate((0.3, 0.25, 0.2, 0.15)):
            docs = int(left * share)
            rows.append(_row("kept", docs, docs * mean, source, language, dataset=_dataset(bucket, language)))
        docs = left - sum(row["docs"] for row in rows[-4:])
        rows.append(_row("kept", docs, docs * mean, source, language, dataset=_dataset(4, language)))
    return pa.Table.from_pylist(rows)


def _row(kind: str, docs: int, size: int, source: str | None, language: str | None, **rest: str) -> dict[str, Any]:
    missing = {"stage": None, "reason": None, "dataset": None}
    tokens = -(-size // 4)
    return {
        **missing,
        "kind": kind,
        "source": source,
        "language": language,
        "docs": docs,
        "bytes": size,
        "tokens": tokens,
        **rest,
    }


def _dataset(bucket: int, language: str | None) -> str:
    return f"train-b{bucket}-{language or 'none'}"


def datasets(table: pa.Table) -> list[dict[str, Any]]:
    """The datasets that the kept rows of the counts add up to."""
    sums = table.filter(pa.compute.equal(table["kind"], "kept")).group_by("dataset")
    rows = sums.aggregate([("docs", "sum"), ("bytes", "sum"), ("tokens", "sum")]).sort_by("dataset").to_pylist()
    return [
        {
            "id": row["dataset"],
            "split": "train",
            "kind": "bucket",
            "bucket": int(row["dataset"][7]),
            "group": {"language": None if row["dataset"].endswith("none") else row["dataset"][-2:]},
            "docs": row["docs_sum"],
            "bytes": row["bytes_sum"],
            "tokens": row["tokens_sum"],
            "files": [{"path": "part-00000.parquet"}],
        }
        for row in rows
    ]


def phases(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A curriculum over the datasets: easy warm-up, stable mix, best-data anneal."""
    emphasis = {"warm-up": (5, 3, 1, 0.5, 0.5), "stable": (1, 1, 1, 1, 1), "anneal": (0.5, 0.5, 1, 3, 4)}
    total, at, asked = sum(d["tokens"] for d in found), 0, dict.fromkeys((d["id"] for d in found), 0)
    plan = []
    for (name, factors), share in zip(emphasis.items(), (0.1, 0.8, 0.1), strict=True):
        mass = {d["id"]: d["tokens"] * factors[d["bucket"]] for d in found}
        length = int(total * 1.6 * share)
        weights = []
        for dataset in found:
            weight = mass[dataset["id"]] / sum(mass.values())
            asked[dataset["id"]] += int(weight * length)
            epochs = asked[dataset["id"]] / max(dataset["tokens"], 1)
            weights.append(
                {"dataset": dataset["id"], "weight": weight, "tokens": int(weight * length), "epochs": epochs}
            )
        lr_stage = {"warm-up": "warmup", "stable": "stable", "anneal": "decay"}[name]
        plan.append(
            {"name": name, "start": at, "end": at + length, "lr_stage": lr_stage, "weights": weights, "shuffle_seed": 0}
        )
        at += length
    return plan


def config(**training: Any) -> dict[str, Any]:
    """A whole config as JSON values."""
    tier = {
        "scope": "shared",
        "options": {},
        "prices": {"price_per_gb_month": 0.023, "source": "price list", "date": "2026-09-01"},
    }
    cold = {**tier["prices"], "price_per_gb_month": 0.004}
    return {
        "name": "web-2026",
        "currency": "USD",
        "input": {"paths": [{"url": "data/raw/*.parquet", "as": None}], "slice_bytes": 268435456},
        "sources": {"forum": {"priority": 10, "protect": True, "max_epochs": 4.0}},
        "tiers": {
            "work": {**tier, "url": "runs/work", "prices": None},
            "hot": {**tier, "url": "runs/hot"},
            "cold": {**tier, "url": "runs/cold", "prices": cold},
        },
        "stages": [
            {"stage": "heuristics", "rules": ["gopher_quality", "gopher_repetition", "fineweb"]},
            {"stage": "exact"},
            {"stage": "quality", "model": "models/quality.bin"},
            {"stage": "minhash", "ngram": 5, "threshold": 0.8, "keep": ["quality.score desc", "bytes desc"]},
            {"stage": "select", "by": "quality.score", "keep_top": 0.6, "weight": "tokens", "within": ["language"]},
            {"stage": "difficulty"},
            {"stage": "curriculum", "by": "difficulty.bits_per_byte", "buckets": 5, "within": ["language"]},
        ],
        "publish": {"formats": ["text"], "mix_by": ["language"], "validation": None},
        "training": {"parameters": 7e9, "tokens": 1e12, "bytes_per_token": 4.0, "gpu": "H100-SXM", "mfu": 0.40,
                     "goodput": 0.9, "price_per_gpu_hour": 2.5, "price_source": "quote",
                     "price_date": "2026-10-01", **training},
        "guards": {"max_source_loss": 0.95, "min_docs": 100, "accept": []},
        "run": {"executor": "local", "workers": 2, "seed": 0,
                "pool": {"name": "local", "kind": "on_demand", "price_per_cpu_hour": 0.04,
                         "source": None, "date": None}},
    }  # fmt: skip


def records(**overrides: Any) -> dict[str, Any]:
    """Keyword arguments of `report.build`."""
    table = counts()
    found = datasets(table)
    kept = sum(dataset["bytes"] for dataset in found)
    moved = {"copied_bytes": 0, "retrieved_bytes": 0, "deleted_bytes": 0, "scope": "shared"}
    edges = [(None, 0.71), (0.71, 0.93), (0.93, 1.12), (1.12, 1.41), (1.41, None)]
    return {
        "run": {
            "name": "web-2026", "run_id": "8e4f0c2a91d7", "corpus_id": "0a51b6c3f2e94d7788aa01c2d3e4f566",
            "config_fingerprint": "c0ffee0c0ffee0c0ffee0c0ffee0c0ff", "version": "0.1.0", "executor": "local",
            "complete": True, "dry_run": False, "sample": None, "attempts_of_run": 1,
            "started": "2026-11-30T09:00:00Z", "ended": "2026-11-30T09:41:17Z", "devices": [],
            "paths": {"report": "report.json", "html": "report.html", "removed": "removed",
                      "quarantined": "quarantined", "manifest": "hot/web-2026/v1/manifest.json"},
        },
        "token_basis": {"unit": "tokens", "method": "estimated", "tokenizer": None, "revision": None, "sha256": None,
                        "relative_interval": None, "sample_docs": 0},
        "counts": table,
        "stages": [
            {
                "label": label, "stage": label, "fingerprint": f"{n:032x}", "settings": {}, "facts": {},
                "warnings": [], "unscorable_docs": 1_640 if label == "quality" else 0, "cells_computed": 64,
                "cells_reused": 0,
                "seconds": {"wall": 40.0 * n, "cpu": 75.5 * n, "gpu": 0.0, "wasted": 2.5, "idle": 1.0},
            }
            for n, label in enumerate(STAGES, start=1)
        ],
        "config": config(),
        "datasets": found,
        "phases": phases(found),
        "buckets": {
            "score": "difficulty.bits_per_byte", "by": ["language"],
            "edges": [
                {"group": dataset["group"], "bucket": dataset["bucket"], "lower": edges[dataset["bucket"]][0],
                 "upper": edges[dataset["bucket"]][1], "docs": dataset["docs"], "tokens": dataset["tokens"]}
                for dataset in found
            ],
        },
        "tiers": [
            {"tier": "hot", "files": 12, "bytes": kept * 2 // 5, **moved},
            {"tier": "cold", "files": 9, "bytes": kept // 5, **moved},
        ],
        "compute": [{"pool": "local", "kind": "on_demand", "cpu_seconds": 9_812.5, "gpu_seconds": 0.0,
                     "wasted_seconds": 61.0, "attempts": 512, "attempts_lost": 2}],
        "duplicates": {
            "minhash": {"candidates": 121_404, "components": 21_950, "largest_component": 1_204,
                        "size_histogram": [[1, 15_210], [2, 4_312], [3, 1_690], [4, 511], [5, 160], [6, 44], [7, 15],
                                           [8, 6], [9, 1], [10, 1]],
                        "comparisons": 388_120, "undecided": 3, "expected_miss": 0.0098, "recall": None,
                        "precision": None, "normalisation": "word-1", "shingle": "5 words", "bands": 28, "rows": 9},
        },
        "warnings": ["training.price_per_gpu_hour: the price is 60 days old"],
        **overrides,
    }  # fmt: skip
