"""Files of every other store, through fsspec, which only this module imports.

fsspec promises less than a store does: its buffered files publish what a failing writer left, its listings are cached,
its `exists` takes any error for absence, its `walk` passes over folders that fail, its `rm` takes names for patterns,
and its default exclusive create looks first and writes then. What is used here is what is left.
"""

from __future__ import annotations

import inspect
import io
import os
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from pipeline.errors import AlreadyExistsError, ConfigError, CorpusmillError, StorageError
from pipeline.keys import canonical
from pipeline.storage.faults import MissingFileError, is_auth, is_taken, is_transient, said, shown, storage_error
from pipeline.storage.root import Entry, Root

T = TypeVar("T")

PAUSES = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds between the tries of one request, each varied by half. The libraries have short retries of their own."""
READ_AHEAD = 1 << 20
"""Bytes that a small read fetches; larger reads fetch what they ask for."""

_lock = threading.Lock()
_creating = threading.Lock()
_filesystems: dict[tuple[int, str, bytes], Any] = {}
_counts: Counter[str] = Counter()


def counts() -> dict[str, int]:
    """What this process has met so far: `retries` of failed requests, `renewals` of credentials."""
    return {"retries": _counts["retries"], "renewals": _counts["renewals"]}


def request(store: Root, verb: str, path: str, action: Callable[[Any, str], T]) -> T:
    """`action(file system, full name)`, repeated while it fails for a reason that may pass."""
    pauses, renewed = iter(PAUSES), False
    while True:
        try:
            filesystem, root = _connected(store)
            return action(filesystem, f"{root}/{path}" if path else root)
        except CorpusmillError:
            raise
        except Exception as error:
            settled = isinstance(error, FileNotFoundError | FileExistsError)
            if not settled and is_auth(error) and not renewed:
                renewed = True
                _disconnect(store)
                _counts["renewals"] += 1
            elif not settled and is_transient(error) and (pause := next(pauses, None)) is not None:
                _counts["retries"] += 1
                time.sleep(pause * random.uniform(0.5, 1.5))
            else:
                raise storage_error(verb, store.where(path), error, _resolved(store.options)) from error


# -- what root.Files asks for ----------------------------------------------------------------------------------------


def look(store: Root, path: str) -> Entry | None:
    def info(filesystem: Any, name: str) -> Entry | None:
        filesystem.invalidate_cache()
        found = filesystem.info(name)
        return None if found["type"] == "directory" else _entry(path, found)

    with suppress(MissingFileError):
        return request(store, "read", path, info)
    return None


def read(store: Root, path: str) -> bytes:
    return request(store, "read", path, lambda filesystem, name: bytes(filesystem.cat_file(name)))


def reader(store: Root, path: str) -> BinaryIO:
    return io.BufferedReader(_Reader(store, store.entry(path)), READ_AHEAD)


def children(store: Root, path: str) -> tuple[Sequence[str], Sequence[Entry]]:
    def ls(filesystem: Any, name: str) -> tuple[Sequence[str], Sequence[Entry]]:
        filesystem.invalidate_cache()
        return _entries(filesystem.ls(name, detail=True), name, path)

    with suppress(MissingFileError):
        return request(store, "list", path, ls)
    return (), ()


def below(store: Root, path: str) -> Iterator[Entry]:
    def find(filesystem: Any, name: str) -> Sequence[Entry] | None:
        if not _lists_flat(filesystem):
            return None
        filesystem.invalidate_cache()
        return _entries(filesystem.find(name, detail=True).values(), name, path)[1]

    with suppress(MissingFileError):
        found = request(store, "list", path, find)
        yield from _walk(store, path) if found is None else found


def publish(store: Root, stage: Path, path: str) -> None:
    request(store, "write", path, lambda filesystem, name: _upload(filesystem, stage, name))


def create(store: Root, path: str, data: bytes) -> None:
    tries = 0

    def put(filesystem: Any, name: str) -> None:
        nonlocal tries
        tries += 1
        _put_new(filesystem, name, data)

    try:
        request(store, "create", path, put)
    except AlreadyExistsError:
        # Our own first try may have got through although its answer did not.
        if not (tries > 1 and data and read(store, path) == data):
            raise


def delete(store: Root, path: str) -> None:
    with suppress(MissingFileError):
        request(store, "delete", path, lambda filesystem, name: filesystem.rm_file(name))


def delete_tree(store: Root, path: str) -> None:
    names = [entry.path[len(path) + 1 :] for entry in below(store, path)]
    with suppress(MissingFileError):
        request(store, "delete", path, lambda filesystem, root: _delete_all(filesystem, root, names))


class _Reader(io.RawIOBase):
    """A file read by ranges, each with the store's retries: a broken connection costs a range, not the file."""

    def __init__(self, store: Root, entry: Entry) -> None:
        self._store, self._entry, self._at = store, entry, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(0, offset + (0, self._at, self._entry.size)[whence])
        return self._at

    def readall(self) -> bytes:
        return self._next(self._entry.size)

    def readinto(self, buffer: Any) -> int:
        data = self._next(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _next(self, length: int) -> bytes:
        start, stop = self._at, min(self._at + length, self._entry.size)
        if start >= stop:
            return b""

        def get(filesystem: Any, name: str) -> bytes:
            data: bytes = filesystem.cat_file(name, start=start, end=stop)
            if len(data) != stop - start:
                raise ConnectionError(f"{len(data)} of {stop - start} bytes arrived")
            return data

        data = request(self._store, "read", self._entry.path, get)
        self._at = stop
        return data


# -- connections -----------------------------------------------------------------------------------------------------


def _connected(store: Root) -> tuple[Any, str]:
    """The file system that this process has for the store, and the store's root in it."""
    key = _connection(store)
    with _lock:
        if key not in _filesystems:
            _filesystems[key] = _connect(store)
        filesystem = _filesystems[key]
    return filesystem, filesystem._strip_protocol(store.url).rstrip("/")  # noqa: SLF001 - fsspec has no public name


def _disconnect(store: Root) -> None:
    with _lock:
        _filesystems.pop(_connection(store), None)


def _connection(store: Root) -> tuple[int, str, bytes]:
    """What a connection serves: one bucket or host of one process, so that nothing is shared over a fork."""
    return os.getpid(), "/".join(store.url.split("/")[:3]), canonical(dict(store.options))


def _connect(store: Root) -> Any:
    import fsspec
    from fsspec.registry import known_implementations

    protocol = store.url.partition("://")[0]
    options = _resolved(store.options)
    if protocol in ("s3", "s3a"):
        # The retries of botocore, s3fs and ours multiply: with all of them a dead endpoint is told after 70 s.
        options["config_kwargs"] = {"retries": {"max_attempts": 1}, **options.get("config_kwargs", {})}
    try:
        fsspec.get_filesystem_class(protocol)
        # From fsspec's own cache of instances a renewal would get the expired one again.
        filesystem, _ = fsspec.url_to_fs(store.url, skip_instance_cache=True, **options)
    except ImportError as error:
        package = known_implementations.get(protocol, {}).get("class", "fsspec").partition(".")[0]
        if package == "fsspec":
            package = getattr(error.__cause__, "name", None) or protocol
        what = f"{store.where()}: {protocol}:// needs a package that is not installed"
        raise ConfigError(f"{what}; run: pip install '{package}'") from error
    except (ValueError, TypeError) as error:
        what = f"{store.where()}: {said(error, options)}"
        raise ConfigError(f"{what}; check the URL's scheme and the store's options") from error
    if hasattr(filesystem, "dircache"):
        filesystem.dircache.use_listings_cache = False
    return filesystem


def _resolved(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with every `env:NAME` read from this process's environment."""
    values: dict[str, Any] = {}
    for name, value in options.items():
        if isinstance(value, Mapping):
            values[name] = _resolved(value)
        elif isinstance(value, str) and value.startswith("env:"):
            if value[4:] not in os.environ:
                raise ConfigError(f"option {name}: got {value!r}, but this process has no such environment variable")
            values[name] = os.environ[value[4:]]
        else:
            values[name] = value
    return values


# -- what file systems can do ----------------------------------------------------------------------------------------


def _in_memory(filesystem: Any) -> bool:
    from fsspec.implementations.memory import MemoryFileSystem

    return isinstance(filesystem, MemoryFileSystem)


def _lists_flat(filesystem: Any) -> bool:
    """Whether `find` is its own. The inherited one walks, and passes over folders that fail."""
    from fsspec.asyn import AsyncFileSystem

    inherited = AsyncFileSystem._find  # noqa: SLF001
    return _in_memory(filesystem) or getattr(type(filesystem), "_find", inherited) is not inherited


def _walk(store: Root, path: str) -> Iterator[Entry]:
    folders, files = children(store, path)
    yield from files
    for folder in folders:
        yield from _walk(store, folder)


def _entries(infos: Iterable[Mapping[str, Any]], root: str, path: str) -> tuple[Sequence[str], Sequence[Entry]]:
    """The folders and files, `path` before their names, of what fsspec says lies below `root`."""
    folders, files = list[str](), list[Entry]()
    for info in infos:
        name = info["name"].removeprefix(f"{root}/")
        if name in (info["name"], "") or name.endswith("/"):
            continue  # the folder itself, or an object that stands for a folder
        inside = f"{path}/{name}" if path else name
        if info["type"] == "directory":
            folders.append(inside)
        else:
            files.append(_entry(inside, info))
    return folders, files


def _entry(path: str, info: Mapping[str, Any]) -> Entry:
    if info["size"] is None:
        raise StorageError(f"{shown(info['name'])}: the server tells no size here; name each file by its full URL")
    return Entry(path, int(info["size"]), _stamp(info))


def _stamp(info: Mapping[str, Any]) -> str:
    for name in (
        "ETag",
        "etag",
        "generation",
        "mtime",
        "LastModified",
        "Last-Modified",
        "last_modified",
        "modified",
        "created",
    ):
        value = info.get(name)
        if isinstance(value, datetime):
            value = value.timestamp()
        if isinstance(value, float):
            value = round(value * 1e6)
        if value:
            return str(value).strip('"')
    return ""


def _upload(filesystem: Any, stage: Path, name: str) -> None:
    size = stage.stat().st_size
    if _in_memory(filesystem):  # its put_file shows the file while it grows
        filesystem.pipe_file(name, stage.read_bytes())
    else:
        filesystem.put_file(str(stage), name)
    filesystem.invalidate_cache()
    if (arrived := filesystem.info(name)["size"]) != size:
        raise ConnectionError(f"{arrived} of {size} bytes arrived")


def _put_new(filesystem: Any, name: str, data: bytes) -> None:
    """Write unless the name is taken: FileExistsError. Only where the store itself decides: looking first is a race."""
    from fsspec import AbstractFileSystem

    put = getattr(type(filesystem), "_pipe_file", type(filesystem).pipe_file)
    if put is AbstractFileSystem.pipe_file or "mode" not in inspect.signature(put).parameters:
        raise StorageError(
            f"{type(filesystem).__name__} cannot create a file on condition that it is absent; use a local or shared "
            "disk, or an object store with conditional writes (S3, Google Cloud Storage)"
        )
    try:
        with _creating:  # memory:// has no other referee; other stores do not mind
            filesystem.pipe_file(name, data, mode="create")
    except Exception as error:
        if is_taken(error):
            raise FileExistsError(name) from error
        raise


def _delete_all(filesystem: Any, root: str, names: Sequence[str]) -> None:
    full = [f"{root}/{name}" for name in names]
    if any(re.search(r"[*?[]", name) for name in full):  # `rm` would take these for patterns
        for name in full:
            filesystem.rm_file(name)
    elif full:
        filesystem.rm(full)
