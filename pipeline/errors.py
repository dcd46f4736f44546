"""Everything corpusmill raises on purpose, and the exit code each kind ends a command with.

    CorpusmillError
    |-- ConfigError          2   a setting, argument or input that cannot work: nothing was started
    |-- ContractError        3   data broke a promise: a guard, an identity, a changed input, a damaged file
    |-- StorageError         4   a store that cannot do what its tier needs, or cannot be reached
    |   `-- AlreadyExistsError    4   an exclusive create found the name taken
    |-- BusyError            4   another driver owns this run
    |-- ClusterError         4   Ray is absent, unreachable or does not match
    `-- WorkError            1   work that failed after its retries: run again to resume

A command that is stopped on request exits 130 and is safe to run again. A run that is complete but met unreadable
input exits 5 without an error. Where several apply, the first of 130, 2, 3, 4, 1, 5 wins. Anything else that escapes
is a fault of corpusmill and exits 1 with its traceback.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

EXIT_OK, EXIT_FAILED, EXIT_CONFIG, EXIT_CONTRACT = 0, 1, 2, 3
EXIT_STORAGE, EXIT_QUARANTINED, EXIT_INTERRUPTED = 4, 5, 130


class CorpusmillError(Exception):
    """Base of the tree. `message` says what, where, got, rule and next step."""

    exit_code = EXIT_FAILED

    @property
    def message(self) -> str:
        return str(self.args[0]) if self.args else type(self).__name__


class ConfigError(CorpusmillError):
    exit_code = EXIT_CONFIG


class ContractError(CorpusmillError):
    exit_code = EXIT_CONTRACT


class StorageError(CorpusmillError):
    exit_code = EXIT_STORAGE


class AlreadyExistsError(StorageError):
    """The name of an exclusive create is taken."""


class BusyError(CorpusmillError):
    exit_code = EXIT_STORAGE


class ClusterError(CorpusmillError):
    exit_code = EXIT_STORAGE


class WorkError(CorpusmillError):
    exit_code = EXIT_FAILED


BY_NAME = {
    kind.__name__: kind
    for kind in (ConfigError, ContractError, StorageError, AlreadyExistsError, BusyError, ClusterError, WorkError)
}
"""Errors by the name under which an outcome carries them."""


def setting_error(where: str, got: object, rule: str, next_step: str = "") -> ConfigError:
    """A ConfigError in the one form all of them have: where, got, rule, next step."""
    tail = f"; {next_step}" if next_step else ""
    return ConfigError(f"{where}: got {got!r}, but {rule}{tail}")


def nearest(name: str, valid: Iterable[str]) -> str:
    """The next step for a name that is not among the `valid` ones: the one that was probably meant, or all of them."""
    known = list(dict.fromkeys(valid))
    close = [begun for begun in known if name and begun.startswith(name)] or get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"valid: {', '.join(known) or 'none'}"
