"""A fresh store of each kind."""

from __future__ import annotations

import secrets

import pytest

from pipeline.storage import Store


@pytest.fixture(params=["local", "memory", "s3"])
def store(request, tmp_path):
    """An empty store of each kind. Its root has a bracket in its name, as folders of crawls have."""
    if request.param == "local":
        return Store(str(tmp_path / "crawl[2024]"))
    if request.param == "memory":
        return Store(f"memory://{secrets.token_hex(8)}/crawl[2024]")
    return Store(f"s3://bucket/{secrets.token_hex(8)}/crawl[2024]", request.getfixturevalue("s3"))
