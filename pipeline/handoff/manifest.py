"""The manifest: what a training job reads. Built from plain records, checked against itself, named by its content.

The form is `corpusmill.manifest/1`. Readers ignore fields they do not know and refuse another major. Problems are
ValueErrors that name the field.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

SCHEMA = "corpusmill.manifest/1"
OUTSIDE_ID = ("id", "created", "software", "version", "parent")
MEASURES = ("docs", "bytes", "tokens")
TOLERANCE = 1e-9
SLUG_LENGTH = 40


class Rule(NamedTuple):
    """What a single value must be."""

    holds: Callable[[Any], bool]
    text: str


Shape = Rule | list[Any] | dict[str, Any]
"""A rule, [the shape of every item], or {field: its shape}. Fields that are not named are not looked at."""


def _one_of(*values: str | None) -> Rule:
    return Rule(lambda value: value in values, f"it must be one of {', '.join(map(str, values))}")


def _or_null(rule: Rule) -> Rule:
    return Rule(lambda value: value is None or rule.holds(value), f"{rule.text}, or null")


def _matches(pattern: str, text: str) -> Rule:
    return Rule(lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None, text)


TEXT = _matches(r"(?s).+", "it must be text")
HASH = _matches(r"[0-9a-f]{32}", "it must be 32 hex digits")
PATH = _matches(r"(?!/)(?!\w+://)(?s:.)+", "it must be a path relative to the manifest")
COUNT = Rule(lambda value: type(value) is int and 0 <= value < 2**63, "it must be an integer from 0")
SHARE = Rule(lambda value: type(value) in (int, float) and 0 <= value < math.inf, "it must be a number from 0")
OBJECT = Rule(lambda value: isinstance(value, dict), "it must be an object")

FILE = {
    "path": PATH,
    "format": _one_of("text", "megatron", "mds", "flat"),
    "role": _one_of("data", "index"),
    "xxh128": HASH,
    **dict.fromkeys(("rows", "tokens", "bytes"), COUNT),
}
DATASET = {
    "id": _matches(r"[a-z][a-z0-9_-]*", "it must start with a-z and go on with a-z, 0-9, _ and -"),
    "split": _one_of("train", "validation"),
    "kind": _one_of("bucket", "plain", "unscorable"),
    "bucket": _or_null(COUNT),
    "group": OBJECT,
    **dict.fromkeys(MEASURES, COUNT),
    "files": [FILE],
}
PHASE = {
    "name": TEXT,
    "start": COUNT,
    "end": COUNT,
    "lr_stage": _one_of("warmup", "stable", "decay", None),
    "weights": [{"dataset": TEXT, "weight": SHARE, "tokens": COUNT, "epochs": SHARE}],
    "shuffle_seed": COUNT,
}
DOCUMENT = {
    "schema": TEXT,
    "id": HASH,
    "name": TEXT,
    "version": COUNT,
    "parent": _or_null(HASH),
    **dict.fromkeys(("created", "software", "corpus_id", "config_fingerprint", "publish_fingerprint"), TEXT),
    "tokenizer": _or_null(OBJECT),
    "token_counts": _one_of("exact", "estimated"),
    "scores": [{"name": TEXT, "direction": _one_of("higher_is_harder", "higher_is_better")}],
    "buckets": _or_null(OBJECT),
    "datasets": [DATASET],
    "phases": [PHASE],
    "limits": {"epochs": SHARE, "floor": SHARE, "remainder": _one_of("drop", "wrap"), "remainder_docs": COUNT},
    "control": _or_null(PATH),
    "exclusions": [{"dataset": TEXT, "file": TEXT, "first_row": COUNT, "rows": COUNT, "reason": TEXT}],
    "positions": _or_null(OBJECT),
    "archive": _or_null(OBJECT),
    "totals": dict.fromkeys(MEASURES, COUNT),
}


def canonical(value: Any) -> bytes:
    """UTF-8 JSON with sorted keys, no blanks, shortest floats, and no NaN or infinity."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def build(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The finished, checked document of `fields`, which are all but schema, totals and id."""
    document = dict(fields)
    document["schema"] = SCHEMA
    document["datasets"] = sorted(document["datasets"], key=lambda dataset: str(dataset["id"]))
    document["totals"] = {name: sum(d[name] for d in document["datasets"]) for name in MEASURES}
    document["id"] = manifest_id(document)
    check(document)
    return document


def manifest_id(document: Mapping[str, Any]) -> str:
    """xxh3-128 of the canonical document without what may differ between equal publications. Needs xxhash."""
    import xxhash

    content = {name: value for name, value in document.items() if name not in OUTSIDE_ID}
    return str(xxhash.xxh3_128_hexdigest(canonical(content)))


def to_bytes(document: Mapping[str, Any]) -> bytes:
    """The bytes of the manifest's file."""
    return canonical(document) + b"\n"


def load(data: bytes) -> dict[str, Any]:
    """The document in a manifest file's bytes. Raises ValueError for damage and for a schema of another major."""
    try:
        document: dict[str, Any] = json.loads(data)
    except ValueError as error:
        raise ValueError(f"manifest: not JSON ({error}); the file is damaged or cut off") from error
    check(document)
    found = manifest_id(document)
    _expect(found == document["id"], "id", document["id"], f"the content has id {found}: the file was changed")
    return document


def read(path: str | Path) -> dict[str, Any]:
    """The checked document in a local manifest file. Raises as `load` does, and OSError."""
    return load(Path(path).read_bytes())


def dataset_ids(datasets: Sequence[Mapping[str, Any]]) -> list[str]:
    """An id for each of `datasets` (split, kind, bucket, group): split[-bK|-unscorable][-slug of the group's values].

    Where different groups come to one id, each of them ends in -<6 hex of xxh3-64 of its record>. Needs xxhash then.
    """
    plain = [_plain_id(dataset) for dataset in datasets]
    uses = Counter(plain)
    return [
        name if uses[name] == 1 else f"{name}-{_record_hash(dataset)}"
        for name, dataset in zip(plain, datasets, strict=True)
    ]


def edges_table(within: Sequence[str], groups: Sequence[Mapping[str, Any]]) -> pa.Table:
    """The rows of the edges file: group columns, bucket, lower (inclusive), upper, docs, tokens.

    `groups` are `{group: {column: value}, edges: inner edges, docs, tokens: one a bucket}`, the facts of a curriculum;
    those without any score have no buckets and no rows. The first lower edge is -inf, the last upper one +inf.
    """
    scored = [group for group in groups if sum(group["docs"])]
    sizes = [len(group["docs"]) for group in scored]
    columns = {}
    for name in within:
        own = [group["group"][name] for group in scored]
        large = any(isinstance(value, int) and value >> 63 > 0 for value in own)
        values = pa.array(own, pa.uint64() if large else None)
        values = values.cast(pa.large_string()) if pa.types.is_null(values.type) else values
        columns[name] = values.take(pa.array(np.repeat(np.arange(len(scored)), sizes)))
    edges = [[-math.inf, *group["edges"], math.inf] for group in scored]
    columns["bucket"] = pa.array([bucket for size in sizes for bucket in range(size)], pa.int16())
    columns["lower"] = pa.array([edge for row in edges for edge in row[:-1]], pa.float64())
    columns["upper"] = pa.array([edge for row in edges for edge in row[1:]], pa.float64())
    for name in ("docs", "tokens"):
        columns[name] = pa.array([value for group in scored for value in group[name]], pa.int64())
    return pa.table(columns)


def check(document: Any) -> None:
    """Verify what a manifest promises about itself; raises a ValueError that names the first field that breaks it."""
    schema = document.get("schema") if isinstance(document, dict) else None
    major = re.fullmatch(r"corpusmill\.manifest/(\d+)(\.\d+)?", schema) if isinstance(schema, str) else None
    _expect(major is not None and major[1] == SCHEMA[-1], "schema", schema, f"this reader knows {SCHEMA}")
    _check_shape("", document, DOCUMENT)
    _check_datasets(document)
    datasets = {dataset["id"]: dataset for dataset in document["datasets"]}
    _check_phases(document["phases"], datasets, document["limits"]["epochs"])
    for number, excluded in enumerate(document["exclusions"]):
        _expect(
            excluded["dataset"] in datasets, f"exclusions[{number}].dataset", excluded["dataset"], "no such dataset"
        )


def _check_shape(where: str, value: Any, shape: Shape) -> None:
    if isinstance(shape, Rule):
        _expect(shape.holds(value), where, value, shape.text)
    elif isinstance(shape, list):
        _expect(isinstance(value, list), where, value, "it must be a list")
        for number, item in enumerate(value):
            _check_shape(f"{where}[{number}]", item, shape[0])
    else:
        _expect(isinstance(value, dict), where, value, "it must be an object")
        for name, inner in shape.items():
            path = f"{where}.{name}" if where else name
            _expect(name in value, path, None, "the field is missing")
            _check_shape(path, value[name], inner)


def _check_datasets(document: Mapping[str, Any]) -> None:
    datasets = document["datasets"]
    ids = [dataset["id"] for dataset in datasets]
    _expect(ids == sorted(set(ids)), "datasets", ids, "ids must be unique and sorted")
    for number, dataset in enumerate(datasets):
        where, bucket = f"datasets[{number}]", dataset["bucket"]
        numbered = (bucket is not None) == (dataset["kind"] == "bucket")
        _expect(numbered, f"{where}.bucket", bucket, "it must be a number for kind bucket and null for the others")
        text = [file for file in dataset["files"] if file["format"] == "text" and file["role"] == "data"]
        for name, of_files in (("docs", "rows"), ("tokens", "tokens")) if text else ():
            found = sum(file[of_files] for file in text)
            _expect(dataset[name] == found, f"{where}.{name}", dataset[name], f"its text files hold {found}")
    for name in MEASURES:
        total, found = document["totals"][name], sum(dataset[name] for dataset in datasets)
        _expect(total == found, f"totals.{name}", total, f"the datasets add up to {found}")


def _check_phases(phases: Sequence[Any], datasets: Mapping[str, Mapping[str, Any]], epochs: float) -> None:
    start = 0
    read: Counter[str] = Counter()
    for number, phase in enumerate(phases):
        where, length = f"phases[{number}]", phase["end"] - start
        _expect(phase["start"] == start, f"{where}.start", phase["start"], f"the phase before ends at {start}")
        _expect(length > 0, f"{where}.end", phase["end"], f"it must lie after {start}")
        names = [weight["dataset"] for weight in phase["weights"]]
        _expect(len(set(names)) == len(names), f"{where}.weights", names, "a dataset may stand once")
        for place, weight in enumerate(phase["weights"]):
            at, name = f"{where}.weights[{place}]", weight["dataset"]
            drawn = name in datasets and datasets[name]["split"] == "train" and datasets[name]["tokens"] > 0
            _expect(drawn, f"{at}.dataset", name, "it must be a train dataset that holds tokens")
            share = weight["tokens"] / length
            _expect(
                abs(weight["weight"] - share) <= TOLERANCE, f"{at}.weight", weight["weight"], f"its tokens are {share}"
            )
            read[name] += weight["tokens"]
            asked = read[name] / datasets[name]["tokens"]
            same = math.isclose(weight["epochs"], asked, rel_tol=TOLERANCE)
            _expect(same, f"{at}.epochs", weight["epochs"], f"the tokens asked so far are {asked}")
            _expect(asked <= epochs, f"{at}.epochs", asked, f"the limit is {epochs}")
        tokens = sum(weight["tokens"] for weight in phase["weights"])
        _expect(tokens == length, f"{where}.weights", tokens, f"the tokens of the phase are {length}")
        total = math.fsum(weight["weight"] for weight in phase["weights"])
        _expect(abs(total - 1) <= TOLERANCE, f"{where}.weights", total, "the weights must add up to 1")
        start = phase["end"]


def _plain_id(dataset: Mapping[str, Any]) -> str:
    parts = [dataset["split"]]
    if dataset["kind"] == "bucket":
        parts.append(f"b{dataset['bucket']}")
    if dataset["kind"] == "unscorable":
        parts.append("unscorable")
    return "-".join([*parts, *(_slug(value) for _, value in sorted(dataset["group"].items()))])


def _slug(value: Any) -> str:
    """Lower-case a-z, 0-9 and _ of a group value, - for the rest; null is "none", a value without any of them "x"."""
    text = "none" if value is None else unicodedata.normalize("NFKD", str(value).casefold())
    plain = text.encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9_]+", "-", plain).strip("-")[:SLUG_LENGTH] or "x"


def _record_hash(dataset: Mapping[str, Any]) -> str:
    import xxhash

    record = [dataset[name] for name in ("split", "kind", "bucket", "group")]
    return str(xxhash.xxh3_64_hexdigest(canonical(record)))[:6]


def _expect(condition: bool, where: str, got: object, rule: str) -> None:
    if not condition:
        raise ValueError(f"{where}: got {got!r}, but {rule}")
