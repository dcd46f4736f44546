"""HTML by construction: what is not `Html` is escaped, so text from the corpus can never become markup."""

from __future__ import annotations

import html
import re
from typing import Any

_VOID = frozenset({"meta", "link", "input", "br"})
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ufffe\uffff\ud800-\udfff\U000e0000-\U000e007f]"
)
"""What a reader cannot see but a browser may act on: controls, bidi overrides, separators, lone surrogates. Joiners
(U+200C, U+200D) stay: scripts and emoji need them."""


class Html(str):
    """Markup that goes into the page as it is."""

    __slots__ = ()


def visible(value: object) -> str:
    """Text with every invisible character written out: a right-to-left override becomes `[U+202E]`."""
    return _INVISIBLE.sub(lambda match: f"[U+{ord(match[0]):04X}]", str(value).replace("\r\n", "\n"))


def text(value: object) -> Html:
    """`value` as text, unless it is markup already."""
    return value if isinstance(value, Html) else Html(html.escape(visible(value)))


def join(*parts: object) -> Html:
    """The parts one after another; None is nothing."""
    return Html("".join(text(part) for part in parts if part is not None))


def el(name: str, /, *children: object, **attributes: Any) -> Html:
    """An element. `class_` loses its underscore, inner underscores become dashes; None and False drop out."""
    shown = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{text(_attribute(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Html(f"<{name}{shown}>" if name in _VOID else f"<{name}{shown}>{join(*children)}</{name}>")


def _attribute(value: object) -> object:
    """Coordinates with two decimals: a page is read, not measured."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else value
