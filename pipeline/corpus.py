"""The input: its shards, one schema for all of them, and their cut into slices. Reads footers, never text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from pipeline import storage
from pipeline.errors import ConfigError, ContractError
from pipeline.keys import fingerprint
from pipeline.types import Slice

if TYPE_CHECKING:
    from pipeline.config import Config, InputConfig

CANONICAL = ("text", "id", "source", "language", "date")
FOOTER_THREADS = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class BadShard:
    """A file whose footer cannot be read: quarantined whole, its rows unknown."""

    shard_id: str
    url: str
    size: int
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpus:
    """What the listing and the footers say. `slices` are sorted by (shard_id, first_row): that order is the ordinal.

    A corpus without a row has one slice without rows, so that whatever is counted has its columns.
    """

    slices: tuple[Slice, ...]
    schema: pa.Schema
    """Every input column under its own name and its type for the whole corpus."""
    names: Mapping[str, str]
    """text, id, source, language, date -> the input column that plays that part, where there is one."""
    bad: tuple[BadShard, ...]
    ignored: tuple[str, ...]

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.slices)

    @property
    def bytes(self) -> int:
        """Uncompressed text bytes by the footers: an estimate."""
        return sum(part.bytes for part in self.slices)


@dataclass(frozen=True, slots=True)
class _Footer:
    shard_id: str
    file: storage.InputFile
    schema: pa.Schema
    groups: tuple[tuple[int, tuple[tuple[str, int], ...]], ...]
    """(rows, ((column, uncompressed bytes), ...)) of every row group."""
    digest: str


def open_corpus(config: Config) -> Corpus:
    """List the input, read its footers, settle the schema and cut the slices.

    Raises ConfigError for an empty match, clashing shard ids, a missing or non-textual text column and types that
    cannot be one; ContractError for an unreadable shard under `bad_shards: stop`.
    """
    files, ignored = _listing(config)
    footers, bad = _footers(files)
    if bad and config.input.bad_shards == "stop":
        first = bad[0]
        raise ContractError(
            f"{first.url}: {first.message}; input.bad_shards is 'stop', so nothing was read or written; "
            f"repair or remove the file, or set input.bad_shards: quarantine ({len(bad)} unreadable in all)"
        )
    if not footers:
        raise ContractError(
            f"{config.origin}: input.paths: none of the {len(bad)} shards can be read, the first is {bad[0].url}: "
            f"{bad[0].message}; check that these are Parquet files; for JSON lines, run `corpusmill convert` first"
        )
    schemas = [(footer.file.url, footer.schema) for footer in footers]
    schema = unify(schemas, _id_column(config.input), config.input.columns.text)
    names = _parts(config.input, schema, schemas)
    slices = [part for footer in footers for part in _cut(footer, schema, names, config.input.slice_bytes)]
    slices = slices or [_slice(footers[0], schema, 0, 0, 0, 0, 0)]
    slices.sort(key=lambda part: (part.shard_id, part.first_row))
    return Corpus(slices=tuple(slices), schema=schema, names=names, bad=tuple(bad), ignored=tuple(ignored))


def _listing(config: Config) -> tuple[dict[str, storage.InputFile], list[str]]:
    files: dict[str, storage.InputFile] = {}
    ignored: list[str] = []
    tiers = {name: getattr(config.tiers, name) for name in ("work", "hot", "cold")}
    own = {f"{storage.Store(tier.url, tier.options).child(config.name).url}/": name for name, tier in tiers.items()}
    for index, entry in enumerate(config.input.paths):
        listing = storage.expand(entry.url)
        ignored.extend(listing.ignored)
        if not listing.files:
            raise ConfigError(
                f"{config.origin}: input.paths.{index}: got {entry.url!r}, but it matches no Parquet file; "
                "check the path; for JSON lines, run `corpusmill convert` first"
            )
        for file in listing.files:
            if tier := next((name for folder, name in own.items() if file.url.startswith(folder)), None):
                raise ConfigError(
                    f"{config.origin}: input.paths.{index}: got {entry.url!r}, but {file.url} lies where this run "
                    f"itself writes (tiers.{tier}); name the input more narrowly, or put the tier elsewhere"
                )
            shard_id = f"{entry.prefix}/{file.path}" if entry.prefix else file.path
            if shard_id in files and files[shard_id].url != file.url:
                raise ConfigError(
                    f"{config.origin}: input.paths.{index}: {file.url} and {files[shard_id].url} are both shard "
                    f"{shard_id!r}; give one of the paths a prefix: {{url: ..., as: NAME}}"
                )
            files[shard_id] = file
    return files, ignored


def _footers(files: Mapping[str, storage.InputFile]) -> tuple[list[_Footer], list[BadShard]]:
    def read(item: tuple[str, storage.InputFile]) -> _Footer | BadShard:
        shard_id, file = item
        try:
            return _footer(shard_id, file)
        except (pa.ArrowException, OSError, ValueError, storage.MissingFileError) as error:
            return BadShard(shard_id=shard_id, url=file.url, size=file.size, message=f"unreadable footer: {error}")

    with ThreadPoolExecutor(FOOTER_THREADS) as pool:
        found = list(pool.map(read, sorted(files.items())))
    return [f for f in found if isinstance(f, _Footer)], [f for f in found if isinstance(f, BadShard)]


def _footer(shard_id: str, file: storage.InputFile) -> _Footer:
    with storage.open_url(file.url) as handle:
        handle.seek(max(0, file.size - 8))
        tail = handle.read(8)
        if len(tail) < 8 or tail[4:] != b"PAR1":
            raise ValueError("no Parquet footer (cut off, empty or another format)")
        length = int.from_bytes(tail[:4], "little")
        if length + 8 > file.size:
            raise ValueError("its footer is longer than the file")
        handle.seek(file.size - 8 - length)
        digest = xxhash.xxh3_128_hexdigest(handle.read(length))
        handle.seek(0)
        reader = pq.ParquetFile(handle)
        metadata = reader.metadata
        groups = tuple(
            (group.num_rows, _column_bytes(group)) for group in map(metadata.row_group, range(metadata.num_row_groups))
        )
        return _Footer(shard_id, file, reader.schema_arrow, groups, digest)


def _column_bytes(group: Any) -> tuple[tuple[str, int], ...]:
    """Uncompressed bytes by top-level column of one row group."""
    sizes: dict[str, int] = {}
    for index in range(group.num_columns):
        column = group.column(index)
        name = column.path_in_schema.split(".")[0]
        sizes[name] = sizes.get(name, 0) + column.total_uncompressed_size
    return tuple(sizes.items())


def _cut(footer: _Footer, schema: pa.Schema, names: Mapping[str, str], slice_bytes: int) -> Iterable[Slice]:
    """Runs of whole row groups of about `slice_bytes` of text."""
    start, first_row, row, size = 0, 0, 0, 0
    for index, (rows, columns) in enumerate(footer.groups):
        row += rows
        size += dict(columns).get(names["text"], 0)
        if size >= slice_bytes or index == len(footer.groups) - 1:
            if row > first_row:
                yield _slice(footer, schema, first_row, row - first_row, start, index + 1 - start, size)
            start, first_row, size = index + 1, row, 0


def _slice(
    footer: _Footer, schema: pa.Schema, first_row: int, rows: int, first_group: int, groups: int, size: int
) -> Slice:
    file = footer.file
    types = [[name, str(schema.field(name).type)] for name in sorted(footer.schema.names)]
    return Slice(
        shard_id=footer.shard_id, url=file.url, size=file.size, stamp=file.stamp, first_row=first_row, rows=rows,
        first_group=first_group, groups=groups, bytes=size,
        input_id=fingerprint([footer.shard_id, file.size, footer.digest, file.stamp, first_row, rows, types]),
    )  # fmt: skip


# -- one schema ------------------------------------------------------------------------------------------------------


def unify(
    schemas: Sequence[tuple[str, pa.Schema]], id_column: str | None = None, text_column: str | None = None
) -> pa.Schema:
    """One type for every column of all shards; the order of columns is by name, so file order cannot matter.

    Null gives way to anything, textual types are large_string, integers widen, integers and floats are float64 (which
    rounds integers beyond 2^53), structs merge by field. An id that differs in type becomes text. The text is
    large_string, whatever it came as. Anything else raises ConfigError with both files, and so does a name that stands
    twice in one file.
    """
    found: dict[str, dict[pa.DataType, str]] = {}
    for url, schema in schemas:
        if twice := _twice(schema):
            raise ConfigError(
                f"input column {twice!r}: stands twice in {url}; a column has one name; rename one of the two, or "
                "leave the file out of input.paths"
            )
        for item in schema:
            kind = pa.large_string() if item.name == text_column else plain(item.type)
            found.setdefault(item.name, {}).setdefault(kind, url)
    return pa.schema([(name, _one_type(name, found[name], is_id=name == id_column)) for name in sorted(found)])


def _twice(fields: Iterable[pa.Field]) -> str:
    """The first name that two of the fields have, at any depth; empty where there is none."""
    seen = set[str]()
    for item in fields:
        if item.name in seen:
            return str(item.name)
        seen.add(item.name)
        if inner := _twice(item.type.field(index) for index in range(item.type.num_fields)):
            return f"{item.name}.{inner}"
    return ""


def _one_type(name: str, found: Mapping[pa.DataType, str], *, is_id: bool) -> pa.DataType:
    """The one type for the column `name`, of which `found` has all types, each with a file that has it."""
    merged, where = pa.null(), ""
    # In the order of their names, so that no order of files matters, and floats are met before the integers that no
    # integer type holds together.
    for kind in sorted(found, key=str):
        try:
            both = _merge_ids(merged, kind) if is_id else _merge(merged, kind)
        except TypeError:
            if not is_id or pa.types.is_nested(merged) or pa.types.is_nested(kind):
                raise ConfigError(
                    f"input column {name!r}: {merged} in {where} but {kind} in {found[kind]}; one column has one type; "
                    "convert one of the files, or leave it out of input.paths"
                ) from None
            both = pa.large_string()
        merged, where = both, found[kind] if pa.types.is_null(merged) else where
    return merged


def plain(kind: pa.DataType) -> pa.DataType:
    """The one physical type that stands for all spellings of a logical type, with 64-bit offsets."""
    if pa.types.is_dictionary(kind):
        return plain(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return plain(kind.storage_type)
    if is_textual(kind):
        return pa.large_string()
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.large_binary()
    if pa.types.is_struct(kind):
        return pa.struct([(item.name, plain(item.type)) for item in sorted(kind, key=lambda item: item.name)])
    if pa.types.is_map(kind):
        return pa.map_(plain(kind.key_type), plain(kind.item_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(plain(kind.value_type), kind.list_size)
    if pa.types.is_nested(kind) and hasattr(kind, "value_type"):  # lists and their views
        return pa.large_list(plain(kind.value_type))
    return kind


def is_textual(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _merge(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    if a.equals(b) or pa.types.is_null(b):
        return a
    if pa.types.is_null(a):
        return b
    if pa.types.is_integer(a) and pa.types.is_integer(b):
        unsigned = [pa.types.is_unsigned_integer(kind) for kind in (a, b)]
        if pa.uint64() in (a, b) and not all(unsigned):
            raise TypeError  # no integer holds the values of both
        return pa.uint64() if all(unsigned) else pa.int64()
    numbers = [pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in (a, b)]
    if all(numbers):
        return pa.float64()
    if pa.types.is_struct(a) and pa.types.is_struct(b):
        old, new = ({item.name: item.type for item in kind} for kind in (a, b))
        both = sorted({*old, *new})
        return pa.struct([(name, _merge(old.get(name, pa.null()), new.get(name, pa.null()))) for name in both])
    if pa.types.is_map(a) and pa.types.is_map(b):
        return pa.map_(_merge(a.key_type, b.key_type), _merge(a.item_type, b.item_type))
    if all(pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind) for kind in (a, b)):
        inner = _merge(a.value_type, b.value_type)
        sizes = {getattr(kind, "list_size", -1) for kind in (a, b)}
        return pa.list_(inner, sizes.pop()) if len(sizes) == 1 and -1 not in sizes else pa.large_list(inner)
    raise TypeError


def _merge_ids(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    """The same for ids, which a float would round."""
    merged = _merge(a, b)
    if pa.types.is_floating(merged) and a != b and not (pa.types.is_null(a) or pa.types.is_null(b)):
        raise TypeError
    return merged


def _id_column(settings: InputConfig) -> str:
    return settings.columns.id or "id"


def _parts(settings: InputConfig, schema: pa.Schema, schemas: Sequence[tuple[str, pa.Schema]]) -> dict[str, str]:
    """Which input column plays text, id, source, language and date; checks that text is textual everywhere."""
    names = {}
    for part in CANONICAL:
        named = getattr(settings.columns, part)
        name = named or part
        if name in schema.names:
            names[part] = name
        elif named and part != "text":
            raise ConfigError(_absent(part, name, schema.names))
    text = settings.columns.text
    for url, own in schemas:
        if text not in own.names:
            raise ConfigError(f"{_absent('text', text, own.names)} (in {url})")
        kind = plain(own.field(text).type)
        if not (is_textual(kind) or pa.types.is_large_binary(kind) or pa.types.is_null(kind)):
            raise ConfigError(
                f"input.columns.text: column {text!r} is {kind} in {url}, but text must be a string or binary column"
            )
    return names | {"text": text}


def _absent(part: str, name: str, known: Sequence[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, known, 1)
    step = f"did you mean {near[0]!r}?" if near else f"name the one that is meant: input.columns.{part}: COLUMN"
    return f"input.columns.{part}: no shard has a column {name!r}; the columns are {', '.join(sorted(known))}; {step}"
