"""A store and what can be done with it; and the same for single files that are known by their URL."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import xxhash

from pipeline.errors import AlreadyExistsError, ConfigError, StorageError
from pipeline.keys import canonical
from pipeline.storage import local, remote
from pipeline.storage.faults import MissingFileError, shown
from pipeline.storage.root import Entry, Files
from pipeline.types import Output

_CHUNK = 8 << 20
_published: dict[tuple[Store, str], tuple[int, str]] = {}
"""Size and checksum of the last files this process wrote, so that `Store.output` need not read them."""


@dataclass(frozen=True, slots=True)
class Store:
    """One root. `path` in every method is relative to it, with "/" between its parts, and never a pattern."""

    url: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", _normal(self.url))
        object.__setattr__(self, "options", dict(self.options))

    @property
    def is_local(self) -> bool:
        return "://" not in self.url

    @property
    def _files(self) -> Files:
        return local if self.is_local else remote

    def child(self, path: str) -> Store:
        """The store whose root is the folder `path` of this one."""
        return Store(self.url_of(path), self.options)

    def url_of(self, path: str) -> str:
        return _join(self.url, _inside(path))

    def where(self, path: str = "") -> str:
        """The URL as messages may show it: without user, password and signature."""
        return shown(_join(self.url, path) if path else self.url)

    def local_path(self, path: str) -> Path | None:
        """Where the file lies in this machine's own file system; None for any other store."""
        inside = _inside(path)
        return Path(self.url, inside) if self.is_local else None

    def exists(self, path: str) -> bool:
        """Whether there is a file at `path`. Folders do not count: object stores have none."""
        return self._files.look(self, _inside(path)) is not None

    def entry(self, path: str) -> Entry:
        """Size and stamp of the file as it is now. Raises StorageError if there is none."""
        found = self._files.look(self, _inside(path))
        if found is None:
            raise MissingFileError(f"cannot read {self.where(path)}: no such file")
        return found

    def size(self, path: str) -> int:
        return self.entry(path).size

    def read_bytes(self, path: str) -> bytes:
        return self._files.read(self, _inside(path))

    def open(self, path: str) -> BinaryIO:
        """A seekable binary file for reading: Arrow's own for local files, so that it reads them without Python."""
        return self._files.reader(self, _inside(path))

    def list(self, prefix: str = "") -> Sequence[Entry]:
        """Every file below the folder `prefix`, sorted by path; none if there is no such folder."""
        return sorted(self._files.below(self, _inside(prefix)), key=lambda entry: entry.path)

    def children(self, prefix: str = "") -> tuple[Sequence[str], Sequence[Entry]]:
        """The folders and the files directly below the folder `prefix`, in no promised order."""
        return self._files.children(self, _inside(prefix))

    def write_bytes(self, path: str, data: bytes) -> None:
        with self.writer(path) as handle:
            handle.write(data)

    @contextmanager
    def writer(self, path: str) -> Iterator[BinaryIO]:
        """A binary file that takes the place of `path` when the body ends, and leaves nothing there when it raises.

        A local file is written beside its final name, synced and renamed. Any other is written to this machine's
        folder for temporary files (TMPDIR) first and uploaded as a whole, so that the upload can be repeated.
        """
        final = self.local_path(path)
        with ExitStack() as cleanup:
            with local.place(self, "write", path):
                stage = cleanup.enter_context(local.staged(final.parent if final else Path(tempfile.gettempdir())))
                handle = cleanup.enter_context(stage.open("xb"))
            try:
                yield handle
                handle.close()
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise StorageError(f"cannot write {self.where(path)}: no space left in {stage.parent}") from error
                raise
            with stage.open("rb") as written:
                published = _size_and_checksum(written)
            self._files.publish(self, stage, path)
        if len(_published) >= 256:
            _published.clear()
        _published[self, path] = published

    def create(self, path: str, data: bytes) -> None:
        """Publish `data` at `path` unless the name is taken: AlreadyExistsError, for all but one if they come together.

        `data` should be unlike any other writer's: where an answer is lost and the request repeated, what lies there
        tells whether the first one got through.
        """
        self._files.create(self, _inside(path), data)

    def probe_exclusive(self) -> None:
        """Raise StorageError, naming tiers.work, if one name can be created twice: no ledger could be kept here."""
        path = f".probe-{secrets.token_hex(8)}"
        try:
            self.create(path, secrets.token_bytes(8))
            self.create(path, secrets.token_bytes(8))
        except AlreadyExistsError:
            return
        except StorageError as error:
            raise StorageError(f"tiers.work: {error.message}") from error
        finally:
            with suppress(StorageError):
                self.delete(path)
        raise StorageError(
            f"tiers.work: {self.where()} lets two writers create the same file, so it cannot keep the ledger; use a "
            "local or shared disk, or an object store with conditional writes (S3, Google Cloud Storage)"
        )

    def probe_writable(self, key: str) -> None:
        """Raise StorageError, naming the setting `key`, if no file can be made here; leaves nothing."""
        path = f".probe-{secrets.token_hex(8)}"
        try:
            self.write_bytes(path, b"probe")
        except StorageError as error:
            raise StorageError(f"{key}: {error.message}") from error
        finally:
            with suppress(StorageError):
                self.delete(path)

    def output(self, path: str, rows: int) -> Output:
        """The record of a published file. The process that wrote it need not read it again."""
        known = _published.pop((self, path), None)
        if known is None:
            with self.open(path) as handle:
                known = _size_and_checksum(handle)
        return Output(path=path, bytes=known[0], rows=rows, xxh128=known[1])

    def delete(self, path: str) -> None:
        """Remove the file; one that is gone already is as good."""
        self._files.delete(self, _inside(path))

    def delete_tree(self, prefix: str) -> None:
        """Remove everything below the folder `prefix`: for intermediate files, which nobody else may need."""
        if not prefix.strip("/"):
            raise StorageError(f"{self.where()}: a whole store is never deleted")
        self._files.delete_tree(self, _inside(prefix))


def locate(url: str, options: Mapping[str, Any] | None = None) -> tuple[Store, str]:
    """The store that is the file's folder, and the file's name in it: empty where `url` itself is a root."""
    folder, _, name = _normal(url).rpartition("/")
    if folder.endswith((":", ":/")):
        return Store(url, options or {}), ""
    return Store(folder or "/", options or {}), name


def open_url(url: str, options: Mapping[str, Any] | None = None) -> BinaryIO:
    """`Store.open` of a file known by its URL."""
    store, name = locate(url, options)
    return store.open(name)


def entry_of(url: str, options: Mapping[str, Any] | None = None) -> Entry:
    """`Store.entry` of a file known by its URL."""
    store, name = locate(url, options)
    return store.entry(name)


def fetch(url: str, folder: Path, options: Mapping[str, Any] | None = None) -> Path:
    """A local path of a model file: the file itself if it is local, else a copy in `folder`, made once per content.

    A copy appears under its name when it is complete: any number of processes may fetch the same file at once.
    """
    store, name = locate(url, options)
    if (here := store.local_path(name)) is not None:
        if not here.exists():
            raise MissingFileError(f"cannot read {here}: no such file")
        return here
    entry = store.entry(name)
    copy = folder / f"{xxhash.xxh3_64_hexdigest(canonical([store.url, name, entry.size, entry.stamp]))}-{name}"
    if not copy.exists():
        with Store(str(folder)).writer(copy.name) as target, store.open(name) as source:
            shutil.copyfileobj(source, target, _CHUNK)
    return copy


def _size_and_checksum(handle: BinaryIO) -> tuple[int, str]:
    size, digest = 0, xxhash.xxh3_128()
    while piece := handle.read(_CHUNK):
        size += len(piece)
        digest.update(piece)
    return size, digest.hexdigest()


def _normal(url: str) -> str:
    """Without a trailing slash; local paths absolute and without `file://`, so that every process means the same."""
    if url.startswith(("file://", "local://")):
        url = url.partition("://")[2]
    scheme, separator, rest = url.partition("://")
    if not separator:
        return os.path.abspath(os.path.expanduser(url))
    if "::" in url:
        raise ConfigError(f"{shown(url)}: chained URLs (with '::') are not supported; name the store itself")
    return f"{scheme}://{rest.rstrip('/')}"


def _join(url: str, path: str) -> str:
    return f"{url}{path}" if url.endswith("/") else f"{url}/{path}"


def _inside(path: str) -> str:
    if path.startswith("/") or ".." in path.split("/"):
        raise StorageError(f"{path!r} leads out of its store: a path is relative to the root and has no '..'")
    return path
