"""Files of this machine's own file systems, network mounts included: temporary name, sync, rename or link."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from pipeline.storage.faults import MissingFileError, storage_error
from pipeline.storage.root import Entry, Root

TEMPORARY = ".tmp"
"""Files are written as `.<random>.tmp` beside their final name. A kill can leave one behind."""


def is_temporary(path: str) -> bool:
    """Whether the name is one that a local file has before it is published."""
    name = path.rpartition("/")[2]
    return name.startswith(".") and name.endswith(TEMPORARY)


@contextmanager
def place(store: Root, verb: str, path: str) -> Iterator[Path]:
    """The file's place; an OSError of the body becomes a StorageError."""
    try:
        yield Path(store.url, path)
    except OSError as error:
        raise storage_error(verb, store.where(path), error) from error


def look(store: Root, path: str) -> Entry | None:
    with suppress(MissingFileError), place(store, "read", path) as file:
        found = file.stat()
        return Entry(path, found.st_size, str(found.st_mtime_ns)) if file.is_file() else None
    return None


def read(store: Root, path: str) -> bytes:
    with place(store, "read", path) as file:
        return file.read_bytes()


def reader(store: Root, path: str) -> BinaryIO:
    import pyarrow as pa

    with place(store, "read", path) as file:
        handle: BinaryIO = pa.OSFile(str(file), "rb")
        return handle


def children(store: Root, path: str) -> tuple[Sequence[str], Sequence[Entry]]:
    """The folders and the files directly below the folder `path`."""
    with suppress(MissingFileError), place(store, "list", path) as folder:
        return _scan(str(folder), path)
    return (), ()


def below(store: Root, path: str) -> Iterator[Entry]:
    """Every file below the folder `path`."""
    folders, files = children(store, path)
    yield from files
    for folder in folders:
        yield from below(store, folder)


@contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """A new name in `folder` to write to; whatever bears it at the end goes."""
    folder.mkdir(parents=True, exist_ok=True)
    stage = folder / f".{secrets.token_hex(8)}{TEMPORARY}"
    try:
        yield stage
    finally:
        stage.unlink(missing_ok=True)


def publish(store: Root, stage: Path, path: str) -> None:
    with place(store, "write", path) as final:
        _sync(stage)
        stage.replace(final)
        _sync(final.parent)


def create(store: Root, path: str, data: bytes) -> None:
    with place(store, "create", path) as final, staged(final.parent) as stage:
        stage.write_bytes(data)
        _sync(stage)
        try:
            os.link(stage, final)
        except FileExistsError:
            # Over NFS the answer to a link that was made can be lost, and the repeated request is refused.
            if stage.stat().st_nlink < 2:
                raise
        _sync(final.parent)


def delete(store: Root, path: str) -> None:
    with suppress(MissingFileError), place(store, "delete", path) as file:
        file.unlink()


def delete_tree(store: Root, path: str) -> None:
    # A late attempt may still write into the folder: what stays behind is named by no record.
    shutil.rmtree(Path(store.url, path), ignore_errors=True)


def _sync(path: Path) -> None:
    """Make a file, or the names in a folder, outlast a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _scan(folder: str, path: str) -> tuple[Sequence[str], Sequence[Entry]]:
    folders, files = list[str](), list[Entry]()
    with os.scandir(folder) as items:
        for item in items:
            name = f"{path}/{item.name}" if path else item.name
            if item.is_dir():
                if not _leads_back(item, folder):
                    folders.append(name)
                continue
            with suppress(FileNotFoundError):  # removed since the folder was read
                # A link to nothing is listed as the link: an input must not be left out without a word.
                found = item.stat(follow_symlinks=os.path.exists(item.path))
                files.append(Entry(name, found.st_size, str(found.st_mtime_ns)))
    return folders, files


def _leads_back(item: os.DirEntry[str], folder: str) -> bool:
    """Whether the item is a link to the folder it lies in or to one above, which would be followed for ever."""
    return item.is_symlink() and f"{os.path.realpath(folder)}/".startswith(f"{os.path.realpath(item.path)}/")
