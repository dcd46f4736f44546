"""End-to-end runs write thousands of small files, and no test here cuts the power."""

import os

import pytest


@pytest.fixture(scope="session", autouse=True)
def no_fsync():
    """A file that is written is there: waiting for the disk is left out, in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield
