"""Everything that is wrong with a config, gathered and told at once: what, where, got, rule, next step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from pipeline.config.settings import PASSWORD_IN_URL, Settings, fields, section, walk
from pipeline.config.yamltext import Document, Path, plain_scalar
from pipeline.errors import ConfigError, nearest
from pipeline.stage import Stage

NOTHING = "nothing"

_RULES = {
    "missing": "it is required",
    "model_type": "it must be a mapping of keys to values",
    "dict_type": "it must be a mapping of keys to values",
    "tuple_type": "it must be a list",
    "list_type": "it must be a list",
    "string_type": "it must be a string",
    "int_type": "it must be a whole number",
    "int_from_float": "it must be a whole number",
    "float_type": "it must be a number",
    "bool_type": "it must be true or false",
}
_NUMERIC = ("int_type", "int_from_float", "float_type", "bool_type")


def show(got: object) -> str:
    """`got` for a message: short, without passwords, and of a mapping only its keys."""
    if isinstance(got, dict):
        return f"a mapping of {', '.join(got) or 'nothing'}"
    text = PASSWORD_IN_URL.sub("://***@", "null" if got is None else repr(got))
    return text if len(text) <= 100 else f"{text[:97]}..."


def of_python(detail: ErrorDetails) -> bool:
    """Whether one of pydantic's errors says only that a list of the file is no tuple or set."""
    return isinstance(detail["input"], list) and detail["type"] in (
        "tuple_type",
        "list_type",
        "set_type",
        "frozen_set_type",
    )


def dotted(path: Path) -> str:
    return ".".join(str(part) for part in path)


class Problems:
    """Collects problems of one document. `registry` makes hints about keys that belong to a stage."""

    def __init__(self, document: Document, registry: Sequence[Stage]) -> None:
        self.document = document
        self.lines: list[str] = []
        self.homes: dict[str, str] = {}
        for path, _ in walk(Settings):
            self.homes.setdefault(path.rpartition(".")[2], path)
        for stage in registry:
            for key in fields(stage.config):
                self.homes.setdefault(key, f"stage {stage.name}")

    def add(self, path: Path, got: str, rule: str, next_step: str = "") -> None:
        where = f"{self.document.place(path)}: {dotted(path)}" if path else self.document.name
        self.lines.append(f"{where}: got {got}, but {rule}" + (f"; {next_step}" if next_step else ""))

    def check(self) -> None:
        """Raise one ConfigError for all that was added, if anything was."""
        if len(self.lines) == 1:
            raise ConfigError(self.lines[0])
        if self.lines:
            raise ConfigError("\n  ".join([f"{self.document.name}: {len(self.lines)} problems", *self.lines]))

    def add_invalid(self, error: ValidationError, model: type[BaseModel], prefix: Path = (), owner: str = "") -> None:
        """Add what pydantic found in the part of the document at `prefix`, which `owner` describes in messages."""
        found: dict[tuple[Path, str], list[tuple[str, str]]] = {}
        for detail in error.errors(include_url=False):
            path = prefix + self._in_document(prefix, detail["loc"], detail["type"])
            if of_python(detail):
                continue
            if detail["type"] == "extra_forbidden":
                self._unknown_key(path, detail["input"], _model_at(model, path[len(prefix) : -1]), owner)
                continue
            got = NOTHING if detail["type"] == "missing" else show(detail["input"])
            found.setdefault((path, got), []).append(_rule(detail))
        for (path, got), rules in found.items():
            # A list whose entries were all refused counts as too short as well, which says nothing new.
            if any(len(other) > len(path) and other[: len(path)] == path for other, _ in found):
                continue
            # A union tells every branch's complaint about the same value.
            self.add(path, got, " or ".join(dict.fromkeys(rule for rule, _ in rules)), rules[0][1])

    def add_raised(self, error: ConfigError, stage: Stage, prefix: Path) -> None:
        """Add an error of a stage's own checks, which starts with the setting: `ngram: ...` or `minhash.ngram: ...`."""
        key, _, rest = error.message.partition(": ")
        inner = tuple(key.removeprefix(f"{stage.name}.").split("."))
        path, text = (prefix + inner, rest) if inner[0] in fields(stage.config) else (prefix, error.message)
        self.lines.append(f"{self.document.place(path)}: {dotted(path)}: {text}")

    def _unknown_key(self, path: Path, value: object, model: type[BaseModel], owner: str) -> None:
        key = str(path[-1])
        valid = [*fields(model), *(["stages"] if model is Settings else [])]
        hint = f"it belongs to {self.homes[key]}" if key in self.homes else nearest(key, valid)
        self.add(path, repr(key), f"{owner or dotted(path[:-1]) or 'a config'} has no such key", hint)
        # A section under a wrong name hides what was meant by the keys in it.
        for inner in value if isinstance(value, dict) else ():
            for close in get_close_matches(inner, self.homes, n=1, cutoff=0.8):
                step = f"did you mean {close!r} of {self.homes[close]}?"
                self.add((*path, inner), repr(inner), f"{key!r} is no section", step)

    def _in_document(self, prefix: Path, loc: Sequence[str | int], kind: str) -> Path:
        """`loc` without what pydantic adds to it: branches of unions and marks of dict keys."""
        value: Any = self.document.value
        for part in prefix:
            value = value[part]
        path: list[str | int] = []
        for part in loc:
            there = part in value if isinstance(value, dict) else isinstance(value, list) and isinstance(part, int)
            if there:
                value = value[part]
            elif not (part is loc[-1] and kind == "missing"):
                continue
            path.append(part)
        return tuple(path)


def _model_at(model: type[BaseModel], path: Path) -> type[BaseModel]:
    for part in path:
        keys = fields(model)
        if part in keys:
            model = section(keys[str(part)].annotation) or model
    return model


def _rule(detail: ErrorDetails) -> tuple[str, str]:
    """(rule, next step) of one of pydantic's errors."""
    kind, got = detail["type"], detail["input"]
    if kind == "value_error":
        rule, _, step = str(detail["ctx"]["error"]).partition("; ")
        return rule, step
    if kind == "missing":
        return _RULES[kind], "add it"
    rule = _RULES.get(kind) or re.sub(r" after validation.*", "", re.sub(r"^\w+ should ", "it must ", detail["msg"]))
    if kind in _NUMERIC and isinstance(got, str) and not isinstance(plain_scalar(got), str):
        return rule, "write it without quotes"
    if kind in ("int_type", "int_from_float") and isinstance(got, float) and got.is_integer():
        return rule, f"write {int(got)}"
    if kind == "string_type" and isinstance(got, int | float):
        return rule, "put it in quotes"
    if kind == "literal_error" and isinstance(got, str):
        step = nearest(got, re.findall(r"'([^']*)'", detail["ctx"]["expected"]))
        return rule, step if step.startswith("did") else ""
    return rule, ""
