"""What happened to one document and why, stage by stage, from the sidecars that its stages wrote."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline import columns, examples, ingest
from pipeline.commands.target import labels, look, published, read_sidecar
from pipeline.config import Config
from pipeline.driver import Driver
from pipeline.errors import setting_error
from pipeline.opened import cold_store, results_folder
from pipeline.types import GONE, STATES, Slice

STEPS = 8
"""Documents that a chain of charges is followed over. Each charge is to a document that a later stage removed."""
PENDING = "pending"
ENGINE = {"state", "measured", "message", *columns.DECISIONS}
"""Columns of a sidecar that are not the stage's own measures."""
ABOUT = ("id", "source", "language", "bytes")
"""Columns of ingest that say who a document is."""
HASHES = {"text_hash", "content_hash"}


def parse_key(key: str) -> tuple[str, int]:
    """(shard, row) of SHARD:ROW, split at the last colon. ConfigError where the row is not a number from 0."""
    shard, colon, row = key.rpartition(":")
    if not (colon and shard and row.isascii() and row.isdigit()):
        raise setting_error("SHARD:ROW", key, "it is a shard's name, a colon and a row counted from 0", "or use --id")
    return shard, int(row)


def find_id(config: Config, wanted: str) -> list[tuple[str, int]]:
    """(shard, row) of every document with this id, in corpus order. Ids are the user's: several may share one.

    Reads the id column that ingest wrote, slice by slice. Raises ConfigError where no document has the id.
    """
    driver = look(config)
    found, pending = list[tuple[str, int]](), 0
    for part in driver.corpus.slices:
        table = read_sidecar(driver, ingest.LABEL, part, ["id"])
        if table is None:
            pending += 1
            continue
        rows = pc.indices_nonzero(pc.fill_null(pc.equal(table["id"], wanted), False)).to_pylist()
        found += [(part.shard_id, part.first_row + row) for row in rows]
    if not found:
        column = driver.corpus.names.get("id")
        of = f"the column {column!r}" if column else "the input, which has no id column"
        wait = f"; {pending} slices have not been read yet: run first" if pending else ""
        raise setting_error("--id", wanted, f"no document has this id in {of}{wait}")
    return found


def explain(config: Config, shard: str, row: int) -> dict[str, Any]:
    """What happened to row `row` (from 0) of `shard` under `config`, as a JSON-able record.

        shard, row, id, source, language, bytes, tokens
        text_excerpt    the beginning of its text; empty where there is none or it cannot be read
        stages          one entry a stage in order: label, stage, state (scored, unscorable, gone: dead before it,
                        failed: quarantined by it, pending: not done yet), passed, measures, and what decided: reason,
                        meaning, score, threshold, message, charged {shard, row, id, similarity ...}, group_size
        outcome         fate (kept, removed, quarantined, pending), and stage, reason, meaning, dataset, manifest,
                        archive {file, row} where they are known
        chain           for a duplicate: the document it is charged to with its excerpt and outcome, then the one that
                        is charged to if a later stage removed the keeper as a duplicate too, at most STEPS of them

    Raises ConfigError for a shard that the input does not have and for a row beyond its end.
    """
    driver = look(config)
    whole = next((bad for bad in driver.corpus.bad if bad.shard_id == shard), None)
    if whole is not None:
        outcome = {"fate": "quarantined", "stage": ingest.LABEL, "reason": "unreadable_shard", "message": whole.message}
        return {"shard": shard, "row": row, "text_excerpt": "", "stages": [], "outcome": outcome, "chain": []}
    found = _document(driver, shard, row)
    return found | {"chain": list(_chain(driver, found))}


def _document(driver: Driver, shard: str, row: int) -> dict[str, Any]:
    part = _slice(driver, shard, row)
    stages = [_stage(driver, label, part, row) for label in labels(driver)]
    return {
        "shard": shard, "row": row, **_about(driver, part, row),
        "text_excerpt": examples.texts(driver.corpus, [(shard, row)]).get((shard, row), ""),
        "stages": stages[:-1],
        "outcome": _outcome(driver, stages, shard, row),
    }  # fmt: skip


def _slice(driver: Driver, shard: str, row: int) -> Slice:
    parts = [part for part in driver.corpus.slices if part.shard_id == shard]
    if not parts:
        names = sorted({part.shard_id for part in driver.corpus.slices})
        near = get_close_matches(shard, names, n=3)
        step = f"did you mean {', '.join(near)}?" if near else f"its {len(names)} shards are called like {names[:1]}"
        raise setting_error("SHARD", shard, "the input has no such shard with rows", step)
    for part in parts:
        if part.first_row <= row < part.first_row + part.rows:
            return part
    rows = sum(part.rows for part in parts)
    raise setting_error("ROW", row, f"{shard} has {rows} rows, counted from 0")


def _about(driver: Driver, part: Slice, row: int) -> dict[str, Any]:
    """Who the document is; null where it has not been read yet."""
    table = read_sidecar(driver, ingest.LABEL, part, ABOUT)
    if table is None:
        return dict.fromkeys((*ABOUT, "tokens"))
    own = table.slice(row - part.first_row, 1)
    tokens = ingest.count_tokens(own["bytes"].to_numpy(), driver.job.token_ratio)
    about: dict[str, Any] = own.to_pylist()[0]
    return about | {"tokens": int(tokens[0])}


def _stage(driver: Driver, label: str, part: Slice, row: int) -> dict[str, Any]:
    entry = next((entry for entry in driver.config.stages if entry.label == label), None)
    told: dict[str, Any] = {"label": label, "stage": entry.stage.name if entry else label}
    table = read_sidecar(driver, label, part)
    if table is None:
        return told | {"state": PENDING, "passed": None, "measures": {}}
    values = table.slice(row - part.first_row, 1).to_pylist()[0]
    state = STATES.index(values["state"])
    told |= {"state": values["state"], "passed": state < GONE and values["reason"] is None}
    shown = {name: value for name, value in values.items() if name not in {*ENGINE, *ABOUT, *HASHES}}
    told["measures"] = shown if state < GONE else {}
    if state == GONE:
        return told
    return told | _decision(values, {**ingest.REASONS, **(entry.stage.reasons if entry else {})})


def _decision(values: Mapping[str, Any], meanings: Mapping[str, str]) -> dict[str, Any]:
    """What a stage decided about a document, without what it left open."""
    names = ("reason", "score", "threshold", "message", "group_size")
    told = {name: values[name] for name in names if values.get(name) is not None}
    if "reason" in told:
        told["meaning"] = meanings.get(told["reason"], "")
    if values.get("charged_shard") is not None:
        evidence = ("similarity", "similarity_kind", "inter", "union")
        told["charged"] = {name: values[f"charged_{name}"] for name in ("shard", "row", "id")}
        told["charged"] |= {name: values[name] for name in evidence if values.get(name) is not None}
    return told


def _outcome(driver: Driver, stages: list[dict[str, Any]], shard: str, row: int) -> dict[str, Any]:
    for told in stages:
        if told["state"] == PENDING:
            return {"fate": PENDING, "stage": told["label"]}
        if not told["passed"]:
            fate = "quarantined" if told["state"] == "failed" else "removed"
            why = {name: told.get(name) for name in ("reason", "meaning")}
            place = {"archive": _archived(driver, shard, row)} if fate == "removed" else {}
            return {"fate": fate, "stage": told["label"], **why, **place}
    dataset = stages[-1]["measures"]["dataset"]
    there = published(driver.config)
    return {"fate": "kept", "dataset": dataset, "manifest": there[0].url_of("manifest.json") if there else None}


def _archived(driver: Driver, shard: str, row: int) -> dict[str, Any] | None:
    """Where the document's text lies in the cold tier, by the table of removed rows; None before publication."""
    config, work = driver.config, driver.job.work
    key = (pc.field("shard") == shard) & (pc.field("row") == row)
    for entry in work.list(f"{results_folder(config.fingerprint)}/removed"):
        with work.open(entry.path) as handle:
            rows = pq.read_table(handle, columns=["archive_file", "archive_row"], filters=key).to_pylist()
        if rows and rows[0]["archive_file"]:
            return {"file": cold_store(config).url_of(rows[0]["archive_file"]), "row": rows[0]["archive_row"]}
    return None


def _chain(driver: Driver, document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The documents that this one, then its keeper, and so on, are charged to."""
    for _ in range(STEPS):
        charge = next((told for told in document["stages"] if "charged" in told), None)
        if charge is None:
            return
        keeper = charge["charged"]
        document = _document(driver, keeper["shard"], keeper["row"])
        names = ("shard", "row", "id", "text_excerpt", "outcome")
        yield {"by": charge["label"], **{name: document[name] for name in names}}
