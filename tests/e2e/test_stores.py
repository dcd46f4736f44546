"""A run gives the same bytes on any store."""

from __future__ import annotations

import secrets

import harness
import pytest

from pipeline.storage import Store

STAGES = (harness.EXACT, harness.NEAR, "{stage: curriculum, by: bytes, buckets: 2}")


def texts():
    """Documents with an exact and a near copy among them."""
    own = [harness.words(seed, 60) for seed in range(60)]
    return [*own, own[3], own[7].replace(own[7].split()[0], "another", 1)]


def published(store: Store, name: str) -> dict[str, str]:
    """Digests of the data files, the archive and removed/ under the tiers of a run."""
    found = {}
    for folder in (f"hot/{name}/data", f"cold/{name}", f"work/{name}/results"):
        for entry in store.list(folder):
            if entry.path.endswith(".parquet"):
                found[entry.path] = harness.digest(store.read_bytes(entry.path))
    return found


@pytest.fixture
def shards(tmp_path):
    harness.write_shards(tmp_path / "in", [harness.rows_of(texts()[:30]), harness.rows_of(texts()[30:], first=30)])
    return tmp_path


def run_on(url: str, paths: str) -> dict[str, object]:
    tiers = ", ".join(f"{tier}: {{url: '{url}/{tier}'}}" for tier in ("work", "hot", "cold"))
    text = f"name: test\ninput: {{paths: ['{paths}']}}\ntiers: {{{tiers}}}\nrun: {{workers: 0}}\nstages:\n"
    config = harness.configs.loads(text + "".join(f"  - {stage}\n" for stage in STAGES), harness.STAGES)
    return dict(harness.runs.run(config))


def test_memory_gives_the_bytes_of_a_disk(shards):
    """Tiers in memory hold what tiers on a disk hold."""
    url = f"memory://{secrets.token_hex(8)}"
    run_on(url, f"{shards}/in/*.parquet")
    run_on(str(shards), f"{shards}/in/*.parquet")
    found = published(Store(str(shards)), "test")
    assert found
    assert published(Store(url), "test") == found


def test_s3_gives_the_bytes_of_a_disk(shards, s3, monkeypatch):
    """Input and tiers in S3 hold what they hold on a disk; run again, nothing new is published."""
    endpoint = s3["client_kwargs"]["endpoint_url"]
    for name, value in {
        "AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "planted-secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    root = Store(f"s3://bucket/{secrets.token_hex(8)}")
    for path in sorted((shards / "in").iterdir()):
        root.write_bytes(f"in/{path.name}", path.read_bytes())
    run_on(root.url, f"{root.url}/in/*.parquet")
    local = Store(str(shards))
    run_on(str(shards), f"{shards}/in/*.parquet")
    again = run_on(root.url, f"{root.url}/in/*.parquet")
    here, there = published(local, "test"), published(root, "test")
    data = [sorted(digest for path, digest in found.items() if path[:4] in ("hot/", "cold")) for found in (here, there)]
    assert data[0]
    assert data[0] == data[1]
    assert str(again["run"]["paths"]["manifest"]).endswith("/v1/manifest.json")
