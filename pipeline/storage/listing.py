"""What an input path names: a file, a folder or a pattern. The rule is written at `expand`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from pipeline.errors import ConfigError
from pipeline.storage.root import Entry
from pipeline.storage.store import Store, locate


@dataclass(frozen=True, slots=True)
class InputFile:
    """An input shard: `path` is relative to the fixed part of what the user named."""

    url: str
    path: str
    size: int
    stamp: str


class Listing(NamedTuple):
    """What was found: the fixed part, the shards by path, and the URLs of files that are neither shard nor marker."""

    fixed: str
    files: tuple[InputFile, ...]
    ignored: tuple[str, ...]


def expand(url: str, options: Mapping[str, Any] | None = None) -> Listing:
    """The shards that a file, a folder or a pattern names.

    In this order: the file of exactly this name, whatever the name; the files below the folder of exactly this name;
    what the pattern matches (`*`, `?`, `[...]` within a name, `**` for any folders; a matched folder stands for the
    files below it). The fixed part is the file's folder, the folder, or what comes before the first wildcard. Below it
    a shard is `*.parquet`, of any size, and a name that begins with "_" or "." is a marker, as is all below a folder of
    such a name. What is no shard is in `ignored`, but for markers that are not Parquet.
    """
    store, name = locate(url, options)
    if name and store.exists(name):
        entry = store.entry(name)
        return Listing(store.url, (InputFile(store.url_of(name), name, entry.size, entry.stamp),), ())
    store, pattern = _fixed_part(store.child(name) if name else store)
    files, ignored = list[InputFile](), list[str]()
    for path, entry in sorted({entry.path: entry for entry in _matching(store, "", pattern)}.items()):
        parquet = path.lower().endswith(".parquet")
        marker = any(part.startswith(("_", ".")) for part in path.split("/"))
        if parquet and not marker:
            files.append(InputFile(store.url_of(_unicode(path)), path, entry.size, entry.stamp))
        elif parquet or not marker:
            ignored.append(store.url_of(path))
    return Listing(store.url, tuple(files), tuple(ignored))


def _fixed_part(whole: Store) -> tuple[Store, Sequence[str]]:
    """The folder before the first part that is a pattern, and the parts from there on; a folder that exists is none."""
    start = whole.url.find("/", whole.url.find("://") + 3 if "://" in whole.url else 0)
    if start < 0:
        return whole, ()
    store, parts = Store(whole.url[:start] or "/", whole.options), whole.url[start + 1 :].split("/")
    for index, part in enumerate(parts):
        if re.search(r"[*?[]", part) and not any(store.children(part)):
            return store, parts[index:]
        store = store.child(part)
    return store, ()


def _matching(store: Store, path: str, pattern: Sequence[str]) -> Iterator[Entry]:
    """The files below the folder `path` that `pattern` names, folder by folder: a glob need not list its whole root."""
    if not pattern:
        yield from store.list(path)
        return
    if pattern[0] == "**":
        start = len(path) + 1 if path else 0
        yield from (entry for entry in store.list(path) if _fits(entry.path[start:].split("/"), pattern))
        return
    folders, files = store.children(path)
    if len(pattern) == 1:
        yield from (entry for entry in files if fnmatchcase(entry.path.rpartition("/")[2], pattern[0]))
    for folder in folders:
        if fnmatchcase(folder.rpartition("/")[2], pattern[0]):
            yield from _matching(store, folder, pattern[1:])


def _fits(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether the pattern names a file or a folder that it lies in."""
    if not pattern:
        return True
    if pattern[0] == "**":
        return any(_fits(parts[skip:], pattern[1:]) for skip in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _fits(parts[1:], pattern[1:])


def _unicode(path: str) -> str:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{path!r}: this input file's name is not UTF-8, but names become keys; rename it") from None
    return path
