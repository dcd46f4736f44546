"""YAML 1.2 text by the rules of the core schema: `no` is a string, `7e9` a number, and a key given twice is an error.

Values are what JSON can hold: numbers are finite, and a key is the text of a string or whole number.

ruamel.yaml finds the structure. What a plain scalar means is decided here, because ruamel adds dates, merge keys and
digits with underscores to the core schema, and because an error message needs the line of every key.
"""

from __future__ import annotations

import copy
import io
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    StreamEndEvent,
)
from ruamel.yaml.nodes import Node
from ruamel.yaml.representer import SafeRepresenter

from pipeline.errors import ConfigError

Path = tuple[str | int, ...]
Scalar = str | int | float | bool | None

_CONSTANTS: dict[str, bool | None] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip
_INT = re.compile(r"[-+]?[0-9]{1,300}")
_OCTAL_OR_HEX = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_PLAIN = re.compile(r"(?!.*:( |$))(\.{0,2}/|[A-Za-z_]|[0-9]+(?=[A-Z]))[\w./:@+*-]*( [\w./@+*][\w./:@+*-]*)*", re.ASCII)
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


@dataclass(frozen=True)
class Document:
    """The value of a YAML text, and where each part of it stands (`file:line`) by its path from the root."""

    name: str
    value: Any = None
    places: dict[Path, str] = field(default_factory=dict)

    def place(self, path: Path) -> str:
        """Where `path` stands, or the nearest part around it that the text holds."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, self.name)

    def mark(self, path: Path, place: str) -> None:
        """Say that `path` and all below it now come from `place`."""
        for below in [known for known in self.places if known[: len(path)] == path]:
            del self.places[below]
        self.places[path] = place


def parse(text: str, name: str) -> Document:
    """Read one document; an empty text is null. ConfigError with `name`, line and problem."""
    try:
        events = list(YAML(typ="safe", pure=True).parse(text))
    except MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{name}{line}: not YAML: {error.problem or error.context}") from error
    except YAMLError as error:
        raise ConfigError(f"{name}: not YAML: {' '.join(str(error).split())}") from error
    starts = [event for event in events if isinstance(event, DocumentStartEvent)]
    if len(starts) > 1:
        raise ConfigError(f"{name}:{_line(starts[1])}: a second document starts here, but one file holds one")
    reader = _Reader(name, (event for event in events if not isinstance(event, DocumentStartEvent)))
    next(reader.events)
    first = next(reader.events)
    value = None if isinstance(first, StreamEndEvent) else reader.read(first, ())
    return Document(name, value, reader.places)


def plain_scalar(text: str) -> Scalar:
    """What `text` means where it stands without quotes. Infinities and NaN are read here and refused by `parse`."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _OCTAL_OR_HEX.fullmatch(text):
        return int(text[2:], 8 if text[1] == "o" else 16)
    if _NOT_FINITE.fullmatch(text):
        return float(text.replace(".", ""))
    return float(text) if _FLOAT.fullmatch(text) else text


def dump(value: object) -> str:
    """Block-style YAML that `parse` reads back as the same value."""
    yaml = YAML(typ="safe", pure=True)
    yaml.Representer = _Representer
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # ruamel types it by its default
    stream = io.StringIO()
    yaml.dump(value, stream)
    return stream.getvalue()


class _Representer(SafeRepresenter):
    """Quotes every string that is not plainly one: ruamel's own choice loses U+0085 and knows other numbers."""

    def string(self, text: str) -> Node:
        plain = _PLAIN.fullmatch(text) and isinstance(plain_scalar(text), str)
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


_Representer.add_representer(str, _Representer.string)


def _line(event: Event) -> int:
    return int(event.start_mark.line) + 1


class _Reader:
    """Turns parser events into plain values; it holds what the recursion shares."""

    def __init__(self, name: str, events: Iterator[Event]) -> None:
        self.name = name
        self.events = events
        self.places: dict[Path, str] = {}
        self.anchors: dict[str, Any] = {}

    def read(self, event: Any, path: Path) -> Any:
        self.places.setdefault(path, f"{self.name}:{_line(event)}")
        if isinstance(event, AliasEvent):
            if event.anchor not in self.anchors:
                raise self.error(event, f"*{event.anchor} names no anchor before it")
            return copy.deepcopy(self.anchors[event.anchor])
        if event.tag is not None:
            raise self.error(event, f"tags such as {event.tag} are not used in a config; write the plain value")
        value: Any
        if isinstance(event, ScalarEvent):
            value = self.scalar(event)
        elif isinstance(event, MappingStartEvent):
            value = self.mapping(path)
        else:
            value = self.sequence(path)
        if event.anchor:
            self.anchors[event.anchor] = value
        return value

    def mapping(self, path: Path) -> dict[str, Any]:
        value: dict[str, Any] = {}
        while not isinstance(event := next(self.events), MappingEndEvent):
            key = self.key(event)
            if key in value:
                dotted = ".".join(str(part) for part in (*path, key))
                first = self.places[*path, key]
                raise self.error(event, f"{dotted}: this key is given twice, first at {first}; keep one")
            self.places[*path, key] = f"{self.name}:{_line(event)}"
            value[key] = self.read(next(self.events), (*path, key))
        return value

    def sequence(self, path: Path) -> list[Any]:
        value: list[Any] = []
        while not isinstance(event := next(self.events), SequenceEndEvent):
            value.append(self.read(event, (*path, len(value))))
        return value

    def key(self, event: Event) -> str:
        if isinstance(event, ScalarEvent) and event.tag is None:
            read = self.scalar(event)
            if isinstance(read, str | int) and not isinstance(read, bool):
                return str(event.value)
        raise self.error(event, "a key must be a string; put it in quotes")

    def scalar(self, event: ScalarEvent) -> Scalar:
        text = str(event.value)
        if not event.style:
            value = plain_scalar(text)
            if isinstance(value, float) and not math.isfinite(value):
                raise self.error(event, f"{text} is not a finite number")
            return value
        if any("\ud800" <= char <= "\udfff" for char in text):
            raise self.error(event, "half of a surrogate pair is not a character")
        return text

    def error(self, event: Event, problem: str) -> ConfigError:
        return ConfigError(f"{self.name}:{_line(event)}: {problem}")
