"""Canonical JSON and the hashes made of it: the names of everything that is stored."""

from __future__ import annotations

import json
from typing import Any

import xxhash


def canonical(value: Any) -> bytes:
    """UTF-8 JSON with sorted keys, no blanks, shortest floats, and no NaN or infinity."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def fingerprint(*parts: Any) -> str:
    """32 hex digits (xxh3-128) that change when any part of the JSON-able `parts` changes."""
    return xxhash.xxh3_128_hexdigest(canonical(list(parts)))


def hash_bytes(data: bytes | memoryview) -> str:
    """The `xxh128` of file bytes, 32 hex digits."""
    return xxhash.xxh3_128_hexdigest(data)
