"""What local.py and remote.py have in common: where files lie, what is known of one, and what can be done with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol


@dataclass(frozen=True, slots=True)
class Entry:
    """A file in a store. `stamp` is its etag, or its modification time where the store has none."""

    path: str
    size: int
    stamp: str


class Root(Protocol):
    """As much of a `Store` as its files need to know."""

    @property
    def url(self) -> str: ...

    @property
    def options(self) -> Mapping[str, Any]: ...

    def where(self, path: str = "") -> str:
        """The URL as messages may show it."""

    def entry(self, path: str) -> Entry:
        """Size and stamp of the file as it is now. Raises StorageError if there is none."""


class Files(Protocol):
    """What a `Store` asks of either module. Errors are StorageErrors; paths lie inside the root, as `Store` checks."""

    def look(self, store: Root, path: str) -> Entry | None: ...

    def read(self, store: Root, path: str) -> bytes: ...

    def reader(self, store: Root, path: str) -> BinaryIO: ...

    def children(self, store: Root, path: str) -> tuple[Sequence[str], Sequence[Entry]]: ...

    def below(self, store: Root, path: str) -> Iterator[Entry]: ...

    def publish(self, store: Root, stage: Path, path: str) -> None:
        """Make the finished local file `stage` the one at `path`, whole or not at all."""

    def create(self, store: Root, path: str, data: bytes) -> None:
        """The same with `data`, unless there is one: AlreadyExistsError."""

    def delete(self, store: Root, path: str) -> None: ...

    def delete_tree(self, store: Root, path: str) -> None: ...
