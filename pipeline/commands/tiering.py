"""Whether what was published is still there, byte for byte: the manifest, all it names, and what nobody names."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from pipeline.commands.target import newest, resolve
from pipeline.config import Config
from pipeline.errors import setting_error
from pipeline.handoff import manifest
from pipeline.keys import hash_bytes
from pipeline.opened import cold_store, hot_store
from pipeline.publish import VERSION
from pipeline.storage import Store, locate

READERS = 8
"""Files read at once."""
CHUNK = 8 << 20
PLACEMENT = re.compile(r"placement-([1-9][0-9]*)\.json")
EDGES = {"bucket": pa.int16(), "lower": pa.float64(), "upper": pa.float64(), "docs": pa.int64(), "tokens": pa.int64()}

Problem = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Place:
    """A manifest that is to be verified: its folder and name there, and the cold tier where it is known."""

    folder: Store
    name: str
    cold: Store | None

    @property
    def versioned(self) -> bool:
        """Whether it lies in hot/<name>/v<n>/, where a run publishes, and not in the folder of an export."""
        return VERSION.fullmatch(self.folder.url.rpartition("/")[2]) is not None

    @property
    def root(self) -> Store:
        """The folder below which `data/` lies."""
        return _up(self.folder) if self.versioned else self.folder


def verify(target: Config | str) -> dict[str, Any]:
    """Read everything that a manifest names and compare it with what the manifest says.

    `target` is a config, for the newest manifest of its run, or the path or URL of a manifest.json. Returns
        manifest, manifest_id    what was verified
        checked, bytes           files read whole, and their bytes
        problems                 [{file, problem, message}], `problem` being missing, size, checksum, rows, unreadable,
                                 manifest, placement, control, edges or archive
        leftovers                files under data/ that no manifest there names: a kill leaves them, `tier gc` removes
                                 them, nothing reads them
        unchecked                what could not be looked for, and what to give so that it is

    Raises ConfigError where there is no manifest, StorageError where a store does not answer.
    """
    place = _place(target)
    url = place.folder.where(place.name)
    found: dict[str, Any] = {"manifest": url, "manifest_id": None, "checked": 0, "bytes": 0, "problems": []}
    problems: list[Problem] = found["problems"]
    document = _loaded(place.folder, place.name, problems)
    if document is None:
        unchecked = ["the files it names: a manifest that is damaged names nothing for sure"]
        return found | {"leftovers": [], "unchecked": unchecked}
    found["manifest_id"] = document["id"]
    placed = _placement(place, document, problems)
    wanted = [
        _Wanted(*_where(place.folder, file["path"], placed), file)
        for dataset in document["datasets"] for file in dataset["files"]
    ]  # fmt: skip
    _check_control(place.folder, document, problems)
    _check_edges(place.folder, document, problems)
    unchecked = []
    if document["archive"] is not None and place.cold is None:
        unchecked.append(f"the archive {document['archive']['path']}: a manifest does not say where the cold tier is; "
                         "verify by the run's config")  # fmt: skip
    elif document["archive"] is not None and place.cold is not None:
        wanted += _archive(place.cold, document["archive"], problems)
    with ThreadPoolExecutor(READERS) as pool:
        for size, told in pool.map(_read, wanted):
            found["checked"] += size is not None
            found["bytes"] += size or 0
            problems += told
    return found | {"leftovers": _leftovers(place, document, problems), "unchecked": unchecked}


def _problem(file: str, problem: str, message: str) -> Problem:
    return {"file": file, "problem": problem, "message": message}


def _place(target: Config | str) -> _Place:
    if isinstance(target, str):
        folder, name = locate(target)
        if not name or not folder.exists(name):
            raise setting_error("TARGET", target, "there is no such file", "give a manifest.json or the run's config")
        return _Place(folder, name, None)
    hot = hot_store(target).child(target.name)
    if (published := newest(hot)) is not None:
        return _Place(published, "manifest.json", cold_store(target))
    raise setting_error("tiers.hot", hot.where(), "nothing is published there yet", "run the config to its end first")


def _up(store: Store) -> Store:
    return locate(store.url, store.options)[0]


def _loaded(folder: Store, path: str, problems: list[Problem], kind: str = "manifest") -> dict[str, Any] | None:
    try:
        return manifest.load(folder.read_bytes(path))
    except ValueError as error:
        problems.append(_problem(folder.where(path), kind, str(error)))
        return None


# -- beside the manifest ---------------------------------------------------------------------------------------------


def _placement(place: _Place, document: Mapping[str, Any], problems: list[Problem]) -> Mapping[str, Any]:
    """The `files` of the newest placement, checked against the manifest."""
    names = {int(match[1]): entry.path for entry in place.folder.children()[1]
             if (match := PLACEMENT.fullmatch(entry.path))}  # fmt: skip
    if not names:
        if place.versioned:
            message = "a manifest has a placement beside it"
            problems.append(_problem(place.folder.where("placement-1.json"), "missing", message))
        return {}
    path = names[max(names)]
    url = place.folder.where(path)

    def wrong(message: str) -> None:
        problems.append(_problem(url, "placement", message))

    try:
        found = json.loads(place.folder.read_bytes(path))
        schema, owner, files = (found[name] for name in ("schema", "manifest_id", "files"))
        if not str(schema).startswith("corpusmill.placement/1"):
            raise ValueError(f"its schema is {schema!r}; this version knows corpusmill.placement/1")
        if owner != document["id"]:
            wrong(f"it belongs to manifest {owner}, not to {document['id']}")
        for file in (file for dataset in document["datasets"] for file in dataset["files"]):
            copies = files.get(file["path"], [])
            same = all((copy["bytes"], copy["xxh128"]) == (file["bytes"], file["xxh128"]) for copy in copies)
            if not copies or not same:
                wrong(f"{file['path']}: {'another size or checksum than in the manifest' if copies else 'not placed'}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        wrong(f"{type(error).__name__}: {error}")
        return {}
    return dict(files)


def _where(folder: Store, path: str, placed: Mapping[str, Any]) -> tuple[Store, str]:
    """Where a data file is: where the manifest says, or else where the placement does because it has moved."""
    store, inside = resolve(folder, path)
    if not store.exists(inside):
        for copy in placed.get(path, []):
            other, name = locate(copy["url"], folder.options)
            if other.exists(name):
                return other, name
    return store, inside


def _check_control(folder: Store, document: Mapping[str, Any], problems: list[Problem]) -> None:
    """The control manifest is the same publication with other phases."""
    path = document["control"]
    if path is None:
        return
    if not folder.exists(path):
        problems.append(_problem(folder.where(path), "missing", "the manifest names it as its control"))
        return
    control = _loaded(folder, path, problems, "control")
    names = ("datasets", "totals", "corpus_id", "publish_fingerprint", "version", "parent")
    if control is not None:
        differ = [name for name in names if control[name] != document[name]]
        if differ:
            problems.append(_problem(folder.where(path), "control", f"{', '.join(differ)} differ from the manifest's"))


def _check_edges(folder: Store, document: Mapping[str, Any], problems: list[Problem]) -> None:
    """The bounds of the buckets leave no gap: from -inf to +inf in every group."""
    if document["buckets"] is None:
        return
    path, groups = document["buckets"]["edges_file"], document["buckets"]["by"]
    url = folder.where(path)
    if not folder.exists(path):
        problems.append(_problem(url, "missing", "the manifest names it as the edges of its buckets"))
        return
    try:
        with folder.open(path) as handle:
            table = pq.read_table(handle)
    except (pa.ArrowException, OSError, ValueError) as error:
        problems.append(_problem(url, "unreadable", str(error)))
        return
    wanted = [*groups, *EDGES]
    if table.column_names != wanted or any(table.schema.field(name).type != kind for name, kind in EDGES.items()):
        problems.append(_problem(url, "edges", f"its columns are {table.schema.to_string()!r}, not {wanted}"))
    elif not _without_gaps(*(table[name].to_numpy() for name in ("bucket", "lower", "upper"))):
        problems.append(_problem(url, "edges", "the buckets of a group do not reach from -inf to +inf without a gap"))


def _without_gaps(bucket: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> bool:
    first = bucket == 0
    last = np.append(first[1:], True)[: len(first)]
    follows = (bucket[1:] == bucket[:-1] + 1) & (lower[1:] == upper[:-1])
    return bool(np.all(lower[first] == -np.inf) and np.all(upper[last] == np.inf) and np.all(follows | first[1:]))


def _archive(cold: Store, told: Mapping[str, Any], problems: list[Problem]) -> list[_Wanted]:
    """The archive's files, by archive.json."""
    path = told["path"]
    if not cold.exists(path):
        problems.append(_problem(cold.where(path), "missing", "the manifest names it as its archive"))
        return []
    data = cold.read_bytes(path)
    if hash_bytes(data) != told["xxh128"]:
        problems.append(_problem(cold.where(path), "checksum", f"{hash_bytes(data)}, not {told['xxh128']}"))
    try:
        files = json.loads(data)["files"]
        return [_Wanted(cold, f"{path.rpartition('/')[0]}/{file['path']}", {"role": "data", **file}) for file in files]
    except (ValueError, KeyError, TypeError) as error:
        problems.append(_problem(cold.where(path), "archive", f"{type(error).__name__}: {error}"))
        return []


# -- data files ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A file, and what a manifest or an archive says of it."""

    store: Store
    path: str
    told: Mapping[str, Any]


def _read(wanted: _Wanted) -> tuple[int | None, list[Problem]]:
    """(bytes that were read, None if nothing was; problems) of one file. The first mismatch is the one told."""
    store, path, told = wanted.store, wanted.path, wanted.told
    url = store.where(path)
    if not store.exists(path):
        return None, [_problem(url, "missing", "there is no such file")]
    size = store.size(path)
    if size != told["bytes"]:
        return None, [_problem(url, "size", f"{size} bytes, not {told['bytes']}")]
    with store.open(path) as handle:
        found = _checksum(handle)
    if found != told["xxh128"]:
        return size, [_problem(url, "checksum", f"{found}, not {told['xxh128']}")]
    count = next((count for suffix, count in ROWS.items() if path.endswith(suffix)), None)
    if told["role"] != "data" or count is None:
        return size, []
    try:
        with store.open(path) as handle:
            rows = count(handle)
    except (pa.ArrowException, OSError, EOFError, ValueError) as error:
        return size, [_problem(url, "unreadable", str(error))]
    return size, [] if rows == told["rows"] else [_problem(url, "rows", f"{rows} rows, not {told['rows']}")]


def _checksum(handle: BinaryIO) -> str:
    digest = xxhash.xxh3_128()
    for piece in _pieces(handle):
        digest.update(piece)
    return str(digest.hexdigest())


def _pieces(handle: BinaryIO | gzip.GzipFile) -> Iterator[bytes]:
    while piece := handle.read(CHUNK):
        yield piece


def _lines(handle: BinaryIO) -> int:
    with gzip.GzipFile(fileobj=handle, mode="rb") as unpacked:
        return sum(piece.count(b"\n") for piece in _pieces(unpacked))


ROWS: Mapping[str, Callable[[BinaryIO], int]] = {
    ".parquet": lambda handle: int(pq.read_metadata(handle).num_rows),
    ".jsonl.gz": _lines,
}
"""How to count the documents in a file of this name."""


def _leftovers(place: _Place, document: Mapping[str, Any], problems: list[Problem]) -> Sequence[str]:
    """Files under data/ that no manifest of the folder names; manifests that cannot be read are problems."""
    known = [(place.folder, document)]
    for folder in place.root.children()[0] if place.versioned else ():
        version = place.root.child(folder)
        if VERSION.fullmatch(folder) and version != place.folder and version.exists("manifest.json"):
            other = _loaded(version, "manifest.json", problems)
            known += [(version, other)] if other is not None else []
    named = {
        store.url_of(path)
        for folder, found in known for dataset in found["datasets"] for file in dataset["files"]
        for store, path in [resolve(folder, file["path"])]
    }  # fmt: skip
    urls = [place.root.url_of(entry.path) for entry in place.root.list("data")]
    return [url for url in urls if url not in named]
