"""JSON lines to Parquet shards, in bounded memory, without losing a line in silence.

Everything is read twice: one column has one type, and only the last line tells which.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline import storage
from pipeline.commands.kinds import DEPTH, Kind, depth
from pipeline.commands.target import empty_folder, whole
from pipeline.driver import Notify
from pipeline.errors import ContractError, setting_error
from pipeline.keys import canonical
from pipeline.run import silent
from pipeline.storage import Store
from pipeline.types import Output

SUFFIXES = tuple(f".{name}{packed}" for name in ("jsonl", "ndjson", "json") for packed in ("", ".gz", ".zst"))
"""Files that are taken from a folder or pattern. A file that is named itself may be called anything."""
REJECTS = "_rejects.jsonl"
"""A name that no reader of the folder takes for a shard."""
GROUP_BYTES, FILE_BYTES = 8_000_000, 256_000_000
"""JSON in a row group; Parquet in a file, a row group more or less."""
LINE_BYTES = 128 << 20
"""A longer line is rejected: it would not fit into a worker either."""
BLOCK = 1 << 20
PACKED_BLOCK = 1 << 14
"""Compressed bytes unpacked at once: zstd may make 30,000 times as many of them."""
WINDOW = 1 << 31
"""The largest zstd window (`--long=31`), in which some published dumps are packed."""
EXCERPT = 200

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_GZIP, _ZSTD = b"\x1f\x8b", (b"\x28\xb5\x2f\xfd", *(bytes([0x50 + low, 0x2A, 0x4D, 0x18]) for low in range(16)))


def convert(src: str, out: str, notify: Notify = silent) -> dict[str, Any]:
    """Write the objects of JSON lines files as Parquet files part-NNNNN.parquet in the empty folder `out`.

    `src` is a file, folder or pattern of .jsonl, .ndjson or .json, plain or packed by gzip or zstd. Every line holds
    one object, and its keys become columns by the rules of `pipeline.commands.kinds`. Any other line goes to
    `_rejects.jsonl` with file, line, reason and its beginning. Half surrogate pairs become U+FFFD.

    Returns files [{path, rows, bytes, xxh128}], rows, rejected, rejects (path or null), blank (empty lines), repaired
    (lines with half surrogates), inputs, ignored (files that are no JSON lines) and columns {name: type}; rows,
    rejected and blank add up to the lines read. Raises ConfigError before anything is written where nothing matches, no
    line is an object, `out` is not empty, or types conflict; ContractError if a file changes while it is read.
    """
    files, ignored = _listing(src)
    folder = empty_folder("OUT", out)
    root = _look(files, notify)
    schema = pa.schema([(name, kind.type) for name, kind in root.keys.items()])
    counts = _Counts()
    with whole(folder) as written, ExitStack() as open_files:
        tables = _tables(files, root, schema, counts, _Rejects(folder, open_files), notify)
        written.extend(_parts(folder, tables, schema))
    return {
        "files": [{"path": o.path, "rows": o.rows, "bytes": o.bytes, "xxh128": o.xxh128} for o in written],
        "rows": counts.rows, "rejected": counts.rejected, "blank": counts.blank, "repaired": counts.repaired,
        "rejects": folder.url_of(REJECTS) if counts.rejected else None,
        "inputs": len(files), "ignored": ignored, "columns": {item.name: str(item.type) for item in schema},
    }  # fmt: skip


def _listing(src: str) -> tuple[Sequence[storage.InputFile], Sequence[str]]:
    """The files to read by name, and those that are passed over."""
    listing = storage.expand(src)
    store, name = storage.locate(src)
    if name and store.exists(name):
        if name.endswith(".parquet"):
            raise setting_error("SRC", src, "it is Parquet already", "give it to `corpusmill run` or `dry-run`")
        return listing.files, ()
    taken = [url for url in listing.ignored if url.endswith(SUFFIXES)]
    if not taken:
        raise setting_error("SRC", src, f"it matches no file of JSON lines ({', '.join(SUFFIXES)})", "check the path")
    files = []
    for url in sorted(taken):
        entry = storage.entry_of(url)
        path = url.removeprefix(f"{listing.fixed.rstrip('/')}/")
        files.append(storage.InputFile(url, path, entry.size, entry.stamp))
    others = {*listing.ignored, *(file.url for file in listing.files)} - set(taken)
    return files, sorted(others)


# -- lines -----------------------------------------------------------------------------------------------------------


class _Line(NamedTuple):
    """A line that is not empty: its object, or why it has none."""

    number: int
    size: int
    row: dict[str, Any] | None
    reason: str = ""
    start: str = ""
    repaired: bool = False


@dataclass(slots=True)
class _Counts:
    rows: int = 0
    rejected: int = 0
    blank: int = 0
    repaired: int = 0


def _lines(file: storage.InputFile, counts: _Counts) -> Iterator[_Line]:
    """The lines of a file, counted. Raises ContractError if it is not the file that was listed."""
    entry = storage.entry_of(file.url)
    if (entry.size, entry.stamp) != (file.size, file.stamp):
        raise ContractError(f"{file.url}: it changed while it was being converted; convert again")
    number = 0
    try:
        with storage.open_url(file.url) as handle:
            for data in _split(_blocks(handle)):
                number += 1
                line = _parsed(number, data)
                if line is None:
                    counts.blank += 1
                    continue
                _count(counts, line)
                yield line
    except EOFError as error:
        broken = _Line(number + 1, 0, None, f"the file is damaged or cut off here, and the rest is unread: {error}")
        _count(counts, broken)
        yield broken


def _count(counts: _Counts, line: _Line) -> None:
    counts.rows += line.row is not None
    counts.rejected += line.row is None
    counts.repaired += line.repaired


def _parsed(number: int, data: bytes | None) -> _Line | None:
    """The object in a line; None for an empty one. `data` is None for a line that is too long."""
    if data is None:
        return _Line(number, LINE_BYTES, None, f"the line is longer than {LINE_BYTES} bytes")
    if number == 1:
        data = data.removeprefix(b"\xef\xbb\xbf")
    if not data.strip():
        return None
    try:
        row, repaired = json.loads(data.decode()), False
        if type(row) is not dict:
            raise ValueError(f"a line must hold one JSON object, not {_called(row)}")
        if depth(row) > DEPTH:
            raise ValueError(f"lists and objects are nested more than {DEPTH} deep")
        if _SURROGATE.search(data):
            whole = _repaired(row)
            row, repaired = whole, whole != row
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, ValueError) else "lists and objects are nested too deep"
        return _Line(number, len(data), None, reason, data[:EXCERPT].decode(errors="replace"))
    return _Line(number, len(data), row, repaired=repaired)


def _called(value: Any) -> str:
    return {list: "a list", str: "a text", type(None): "null", bool: "a boolean"}.get(type(value), "a number")


def _repaired(value: Any) -> Any:
    """The value with U+FFFD for every half of a surrogate pair."""
    if type(value) is str:
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if type(value) is dict:
        return {_repaired(key): _repaired(inner) for key, inner in value.items()}
    return [_repaired(inner) for inner in value] if type(value) is list else value


def _split(blocks: Iterator[bytes]) -> Iterator[bytes | None]:
    """The lines of a stream without their ends; None for one of more than LINE_BYTES."""
    held, size = list[bytes](), 0
    for block in blocks:
        first, *rest = block.split(b"\n")
        held.append(first if size <= LINE_BYTES else b"")
        size += len(first)
        for piece in rest:
            yield b"".join(held) if size <= LINE_BYTES else None
            held, size = [piece], len(piece)
    if size:
        yield b"".join(held) if size <= LINE_BYTES else None


def _blocks(handle: BinaryIO) -> Iterator[bytes]:
    """The file's content, unpacked by what its first bytes say it is. Raises EOFError where the packing is damaged."""
    magic = handle.read(4)
    handle.seek(0)
    if magic[:2] == _GZIP:
        yield from _unpacked(handle, lambda: zlib.decompressobj(wbits=31), zlib.error)
    elif magic in _ZSTD:
        import zstandard

        unpacker = zstandard.ZstdDecompressor(max_window_size=WINDOW)
        yield from _unpacked(handle, unpacker.decompressobj, zstandard.ZstdError)
    else:
        while block := handle.read(BLOCK):
            yield block


def _unpacked(handle: BinaryIO, unpacker: Callable[[], Any], damage: type[Exception]) -> Iterator[bytes]:
    """The content of one packed stream after the other, as far as it goes.

    File objects of gzip lose what they have unpacked when the file is cut off, those of zstandard take its cut for its
    end: hence the layer below.
    """
    stream = None
    try:
        while packed := handle.read(PACKED_BLOCK):
            while packed := packed if stream else packed.lstrip(b"\0"):  # some tapes and tools pad with zeros
                stream = stream or unpacker()
                yield stream.decompress(packed)
                packed, stream = (stream.unused_data, None) if stream.eof else (b"", stream)
    except damage as error:
        raise EOFError(str(error)) from error
    if stream is not None:
        raise EOFError("the packed data have no end")


# -- writing ---------------------------------------------------------------------------------------------------------


def _look(files: Sequence[storage.InputFile], notify: Notify) -> Kind:
    """What the objects of all files have in common."""
    root, counts, first = Kind(), _Counts(), ""
    for file in files:
        for line in _lines(file, counts):
            if line.row is not None:
                root.see(line.row, f"{file.path}:{line.number}")
            else:
                first = first or f"{file.path}:{line.number}: {line.reason}"
        notify("convert", {"file": file.path, "step": "types", "rows": counts.rows, "bytes": file.size})
    if not root.keys:
        rule = f"no line of {len(files)} files holds a JSON object with a key"
        seen = f"first line refused: {first}; other formats than JSON lines are not read" if first else "they are empty"
        raise setting_error("SRC", files[0].url, rule, seen)
    return root


@dataclass(slots=True)
class _Rejects:
    """The file of refused lines, made when there is one."""

    folder: Store
    open_files: ExitStack
    handle: BinaryIO | None = field(default=None)

    def add(self, file: str, line: _Line) -> None:
        if self.handle is None:
            self.handle = self.open_files.enter_context(self.folder.writer(REJECTS))
        told = {"file": file, "line": line.number, "reason": line.reason, "start": line.start}
        self.handle.write(canonical(told) + b"\n")


def _tables(
    files: Sequence[storage.InputFile], root: Kind, schema: pa.Schema, counts: _Counts, rejects: _Rejects,
    notify: Notify,
) -> Iterator[pa.Table]:  # fmt: skip
    """All rows, in tables of about GROUP_BYTES of JSON."""
    held, size, fits = list[dict[str, Any]](), 0, root.fits
    for file in files:
        for line in _lines(file, counts):
            if line.row is None:
                rejects.add(file.path, line)
                continue
            held.append(line.row if fits else root.fit(line.row))
            size += line.size
            if size >= GROUP_BYTES:
                yield pa.Table.from_pylist(held, schema=schema)
                held, size = [], 0
        notify("convert", {"file": file.path, "step": "rows", "rows": counts.rows, "bytes": file.size})
    if held:
        yield pa.Table.from_pylist(held, schema=schema)


def _parts(folder: Store, tables: Iterator[pa.Table], schema: pa.Schema) -> Iterator[Output]:
    """Files of about FILE_BYTES, a row group a table. Texts are not put into dictionaries: few of them are equal."""
    coded = [item.name for item in schema if not pa.types.is_large_string(item.type)]
    table, number = next(tables, None), 0
    while table is not None:
        path, rows = f"part-{number:05d}.parquet", 0
        with (
            folder.writer(path) as handle,
            pq.ParquetWriter(handle, schema, compression="zstd", compression_level=1, use_dictionary=coded) as out,
        ):
            while table is not None and (not rows or handle.tell() < FILE_BYTES):
                out.write_table(table, row_group_size=max(1, table.num_rows))
                rows += table.num_rows
                table = next(tables, None)
        yield folder.output(path, rows=rows)
        number += 1
