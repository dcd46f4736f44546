"""What a failed request to a store means: worth repeating, a matter of credentials, or final; and how to say it.

Libraries are told apart by HTTP status, errno and class name, because every one of them is optional.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.errors import AlreadyExistsError, StorageError

_TRANSIENT_ERRNOS = {
    errno.EBUSY, errno.EAGAIN, errno.ECONNRESET, errno.ECONNREFUSED, errno.EPIPE, errno.ETIMEDOUT, errno.ENETUNREACH,
    errno.EHOSTUNREACH, errno.ESTALE, getattr(errno, "EREMOTEIO", errno.ETIMEDOUT),
}  # fmt: skip
_TRANSIENT_STATUSES = {408, 409, 425, 429, 500, 502, 503, 504}
_TRANSIENT_NAMES = {
    "ConnectionError", "TimeoutError", "HTTPClientError", "ClientConnectionError", "ClientPayloadError",
    "IncompleteRead", "IncompleteReadError", "ResponseParserError", "ServiceRequestError", "ServiceResponseError",
    "TransportError",
}  # fmt: skip
_AUTH_STATUSES = {401, 403}
_AUTH_NAMES = {
    "PermissionError", "NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "RefreshError",
    "TokenRetrievalError", "ClientAuthenticationError", "DefaultCredentialsError",
}  # fmt: skip
_SHOWN_OPTIONS = {"endpoint_url", "region", "region_name", "profile", "project", "account_name"}
"""Options whose values may stand in a message; any other text among the options is taken for a secret."""


_MAKING = {"write", "create"}
"""What makes files, and the folders above them."""


class MissingFileError(StorageError):
    """There is no file of that name."""


def storage_error(verb: str, where: str, error: Exception, options: Mapping[str, Any] | None = None) -> StorageError:
    """The StorageError for a foreign exception met while doing `verb` to `where`."""
    if isinstance(error, FileExistsError):
        return AlreadyExistsError(f"cannot {verb} {where}: it exists already")
    if isinstance(error, NotADirectoryError) and verb in _MAKING:
        return StorageError(f"cannot {verb} {where}: what should be a folder above it is a file")
    if isinstance(error, FileNotFoundError) and verb in _MAKING:
        return StorageError(f"cannot {verb} {where}: its folder or bucket does not exist and cannot be made")
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return MissingFileError(f"cannot {verb} {where}: no such file")
    hint = "; check the permissions and credentials" if is_auth(error) else ""
    return StorageError(f"cannot {verb} {where}: {said(error, options or {})}{hint}")


def is_transient(error: BaseException) -> bool:
    """Whether the same request may succeed a little later."""
    return any(
        _status(cause) in _TRANSIENT_STATUSES
        or getattr(cause, "errno", None) in _TRANSIENT_ERRNOS
        or _named(cause, _TRANSIENT_NAMES)
        for cause in _causes(error)
    )


def is_auth(error: BaseException) -> bool:
    """Whether new credentials may help."""
    return any(_status(cause) in _AUTH_STATUSES or _named(cause, _AUTH_NAMES) for cause in _causes(error))


def is_taken(error: BaseException) -> bool:
    """Whether a conditional write was refused because there is a file of that name."""
    return isinstance(error, FileExistsError) or any(_status(cause) == 412 for cause in _causes(error))


def shown(url: str) -> str:
    """The URL without user, password and signature."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    rest = re.sub(r"^[^/@]*@", "", rest)
    return f"{scheme}://{rest.partition('?')[0] if scheme in ('http', 'https') else rest}"


def said(error: BaseException, options: Mapping[str, Any]) -> str:
    """The error's kind and text; every option's value that may be a secret is struck out."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    text = re.sub(r"\w+://[^\s'\"]+", lambda match: shown(match[0]), text)
    for secret in sorted(_secrets(options), key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def _secrets(options: Mapping[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _secrets(value)
        elif isinstance(value, str) and len(value) > 3 and name not in _SHOWN_OPTIONS:
            yield value


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what it was raised from: libraries wrap the one that tells."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def _status(error: BaseException) -> int | None:
    """The HTTP status in an error of botocore, aiohttp, gcsfs or azure."""
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    else:
        found = (getattr(error, name, None) for name in ("status", "status_code", "code"))
        status = next((value for value in found if value), None)
    return int(status) if str(status).isdigit() else None


def _named(error: BaseException, names: set[str]) -> bool:
    return any(kind.__name__ in names for kind in type(error).__mro__)
