"""`--set key.path=VALUE`: a change to a config document before it is checked, so that checks cover it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.config import yamltext
from pipeline.config.settings import Settings, fields
from pipeline.config.yamltext import Document
from pipeline.errors import ConfigError, nearest


@dataclass(frozen=True, slots=True)
class Override:
    """One `--set`: its path, and the value read from YAML. Messages name the path only: a value may be a secret."""

    path: tuple[str, ...]
    value: Any

    def __str__(self) -> str:
        return f"--set {'.'.join(self.path)}"

    @property
    def of_section(self) -> bool:
        """Whether the path starts at the root of the config, not at a stage's label."""
        return self.path[0] == "stages" or self.path[0] in fields(Settings)

    def apply(self, document: Document, labels: Mapping[str, int]) -> None:
        """Write the value into `document`; `labels` has the position of each stage.

        A key that does not exist is created, for the checks to refuse with its nearest name. ConfigError where the
        path leads nowhere.
        """
        head, *rest = self.path
        if self.of_section:
            self._write(document, self.path)
        elif head not in labels:
            hint = nearest(head, [*fields(Settings), "stages", *labels])
            raise self._error(f"{head!r} is neither a key of the config nor the label of a stage; {hint}")
        elif not rest:
            raise self._error(f"{head!r} is a stage; name one of its settings: {head}.KEY=VALUE")
        else:
            self._write(document, ("stages", str(labels[head]), *rest))

    def _write(self, document: Document, path: tuple[str, ...]) -> None:
        holder: Any = document.value
        walked: list[str | int] = []
        for position, part in enumerate(path):
            key: str | int = part
            if isinstance(holder, list):
                if part not in map(str, range(len(holder))):
                    raise self._error(
                        f"{part!r} is no position of {'.'.join(path[:position])}, which has {len(holder)} entries"
                    )
                key = int(part)
            elif not isinstance(holder, dict):
                raise self._error(f"{'.'.join(path[:position])} holds no keys")
            walked.append(key)
            if position == len(path) - 1:
                holder[key] = self.value
            else:
                if isinstance(holder, dict) and holder.get(part) is None:
                    holder[part] = {}
                holder = holder[key]
        document.mark(tuple(walked), str(self))

    def _error(self, problem: str) -> ConfigError:
        return ConfigError(f"{self}: {problem}")


def parse(text: str) -> Override:
    """Split `key.path=VALUE` and read VALUE as YAML."""
    path, equals, value = text.partition("=")
    if not equals or not all(path.split(".")):
        raise ConfigError(f"--set {text}: write it as key.path=VALUE, for instance select.keep_top=0.3")
    return Override(tuple(path.split(".")), yamltext.parse(value, f"--set {path}").value)
