"""An S3 server of moto's on loopback, for the tests that need one: a plugin of the suite."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import time
import urllib.request

import pytest


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _answers(url):
    try:
        with urllib.request.urlopen(f"{url}/moto-api/", timeout=1) as answer:
            return answer.status == 200
    except OSError:
        return False


@pytest.fixture(scope="session")
def s3():
    """fsspec options for an S3 server that lives as long as the session; its bucket is `bucket`."""
    if not all(map(importlib.util.find_spec, ("s3fs", "moto", "flask"))):
        pytest.skip("s3fs or moto[server] is not installed")
    environment = os.environ | {"AWS_DEFAULT_REGION": "us-east-1"}
    for _ in range(3):  # another process may take the port first
        url = f"http://127.0.0.1:{_free_port()}"
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", url.rpartition(":")[2]]
        server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 60
            while server.poll() is None and not _answers(url):
                assert time.monotonic() < deadline, "the S3 server does not answer"
                time.sleep(0.05)
            if server.poll() is None:
                put = urllib.request.Request(f"{url}/bucket", method="PUT")
                urllib.request.urlopen(put, timeout=10).close()
                yield {"key": "testing", "secret": "planted-secret", "client_kwargs": {"endpoint_url": url}}
                return
        finally:
            server.terminate()
            server.wait(10)
    pytest.fail("the S3 server did not start")
