"""Every kind of damage to what was published is found, and the file is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import run
from pipeline.commands.tiering import verify
from pipeline.errors import ConfigError
from pipeline.handoff import manifest
from pipeline.keys import canonical
from tests.pipeline.small_runs import YAML, configured, corpus

BUCKETS = YAML.replace("publish:", '  - {{stage: "stages.curriculum:STAGE", by: words.words, buckets: 2}}\npublish:')


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished run with buckets, so with edges and a control manifest."""
    root = tmp_path_factory.mktemp("run")
    corpus(root)
    run.run(configured(root, BUCKETS))
    return root


@pytest.fixture
def published(whole, tmp_path):
    """A copy of it to damage: (folder, config)."""
    for tier in ("in", "work", "hot", "cold"):
        shutil.copytree(whole / tier, tmp_path / tier)
    placement = version(tmp_path) / "placement-1.json"
    placement.write_text(placement.read_text().replace(str(whole), str(tmp_path)))
    return tmp_path, configured(tmp_path, BUCKETS)


def version(root):
    return root / "hot" / "small" / "v1"


def a_part(root):
    return min((root / "hot" / "small" / "data").glob("*/*.parquet"))


def archived(root):
    return min((root / "cold" / "small").glob("archive-*/*.parquet"))


def told(found):
    return [(problem["problem"], problem["file"]) for problem in found["problems"]]


def test_sound(published):
    """Nothing is wrong with what a run leaves, and all of it has been read."""
    root, config = published
    found = verify(config)
    files = [*(root / "hot").rglob("data/*/*.parquet"), *(root / "cold").rglob("*.parquet")]
    assert json.loads(json.dumps(found)) == found
    assert (found["problems"], found["leftovers"], found["unchecked"]) == ([], [], [])
    assert found["checked"] == len(files) >= 4
    assert found["bytes"] == sum(file.stat().st_size for file in files)
    assert found["manifest_id"] == manifest.read(version(root) / "manifest.json")["id"]


def test_by_path(published):
    """A manifest's path does for all but the archive, which it cannot find: that is said."""
    root, _ = published
    found = verify(str(version(root) / "manifest.json"))
    assert (found["problems"], found["leftovers"]) == ([], [])
    assert "verify by the run's config" in found["unchecked"][0]
    with pytest.raises(ConfigError, match="there is no such file"):
        verify(str(root / "hot" / "manifest.json"))


def flipped(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def shorter(file):
    file.write_bytes(file.read_bytes()[:-10])


@pytest.mark.parametrize(("damage", "kind"), [(Path.unlink, "missing"), (shorter, "size"), (flipped, "checksum")])
@pytest.mark.parametrize("file", [a_part, archived])
def test_data(published, file, damage, kind):
    """A data or archive file that is gone, cut or changed by one bit is named."""
    root, config = published
    chosen = file(root)
    damage(chosen)
    assert told(verify(config)) == [(kind, str(chosen))]


def test_rows(published):
    """A file with other rows than the manifest says is named, even if its checksum is the one that is said."""
    root, config = published
    document = manifest.read(version(root) / "manifest.json")
    one, other = (dataset for dataset in document["datasets"] if len(dataset["files"]) == 1 and dataset["docs"] > 1)
    for dataset, step in ((one, 1), (other, -1)):
        dataset["docs"] += step
        dataset["files"][0]["rows"] += step
    _rewrite(root, document)
    found = [(problem["problem"], problem["file"]) for problem in verify(config)["problems"]]
    wanted = [str(version(root).joinpath(dataset["files"][0]["path"]).resolve()) for dataset in (one, other)]
    assert found == [("rows", file) for file in wanted]


def _rewrite(root, document):
    """The manifest, its control and placement with other content and ids that fit it."""
    document["id"] = manifest.manifest_id(document)
    (version(root) / "manifest.json").write_bytes(manifest.to_bytes(document))
    control = manifest.read(version(root) / "control.json") | {"datasets": document["datasets"]}
    control["id"] = manifest.manifest_id(control)
    (version(root) / "control.json").write_bytes(manifest.to_bytes(control))
    placement = json.loads((version(root) / "placement-1.json").read_bytes()) | {"manifest_id": document["id"]}
    (version(root) / "placement-1.json").write_bytes(canonical(placement))


@pytest.mark.parametrize(
    ("name", "damage", "kind"),
    [
        ("manifest.json", flipped, "manifest"),
        ("manifest.json", shorter, "manifest"),
        ("control.json", Path.unlink, "missing"),
        ("control.json", flipped, "control"),
        ("placement-1.json", Path.unlink, "missing"),
        ("placement-1.json", lambda file: file.write_bytes(file.read_bytes()[:20]), "placement"),
        ("meta/edges.parquet", Path.unlink, "missing"),
        ("meta/edges.parquet", lambda file: file.write_bytes(b"PAR1"), "unreadable"),
    ],
)
def test_beside_the_data(published, name, damage, kind):
    """Damage to the manifest, or to what lies beside it, is named."""
    root, config = published
    damage(version(root) / name)
    found = verify(config)
    assert told(found) == [(kind, str(version(root) / name))]
    assert bool(found["unchecked"]) == (name == "manifest.json")


def test_another_manifest_id(published):
    """A placement that belongs to another manifest is a problem, and so is one with other checksums."""
    root, config = published
    file = version(root) / "placement-1.json"
    placement = json.loads(file.read_bytes())
    path = next(iter(placement["files"]))
    placement["files"][path][0]["xxh128"] = "0" * 32
    file.write_bytes(canonical(placement | {"manifest_id": "1" * 32}))
    problems = verify(config)["problems"]
    assert [problem["file"] for problem in problems] == [str(file)] * 2
    assert "belongs to manifest 1111" in problems[0]["message"]
    assert path in problems[1]["message"]


def test_edges_with_a_gap(published):
    """Buckets that leave out some scores are a problem."""
    root, config = published
    file = version(root) / "meta" / "edges.parquet"
    table = pq.read_table(file)
    lower = table["lower"].to_pylist()
    lower[1] += 1.0
    pq.write_table(table.set_column(table.column_names.index("lower"), "lower", pa.array(lower)), file)
    assert told(verify(config)) == [("edges", str(file))]


def test_archive_listing(published):
    """A changed archive.json is named; its files are checked by what it says now."""
    root, config = published
    file = archived(root).parent / "archive.json"
    file.write_bytes(file.read_bytes().replace(b'"rows":', b'"rows": '))
    assert told(verify(config)) == [("checksum", str(file))]
    file.unlink()
    assert told(verify(config)) == [("missing", str(file))]


def test_leftovers(published):
    """A data file that no manifest names is listed, and is no failure; what an older version names is none."""
    root, config = published
    stray = a_part(root).with_name("part-00099.parquet")
    shutil.copy(a_part(root), stray)
    found = verify(config)
    assert (found["problems"], found["leftovers"]) == ([], [str(stray)])
    stray.unlink()
    newer = configured(root, BUCKETS, overrides=["words.limit=4"])
    run.run(newer)
    found = verify(newer)
    assert found["manifest"].endswith("/v2/manifest.json")
    assert (found["problems"], found["leftovers"]) == ([], [])


def test_moved(published):
    """A file that is only where the newest placement says is found there."""
    root, config = published
    file = a_part(root)
    target = root / "elsewhere.parquet"
    shutil.move(file, target)
    placement = json.loads((version(root) / "placement-1.json").read_bytes())
    path = next(path for path in placement["files"] if str(file).endswith(path.removeprefix("../")))
    placement["files"][path][0]["url"] = str(target)
    (version(root) / "placement-2.json").write_bytes(canonical(placement))
    assert verify(config)["problems"] == []
    flipped(target)
    assert told(verify(config)) == [("checksum", str(target))]


def test_nothing_published(tmp_path):
    """Before anything is published there is nothing to verify."""
    corpus(tmp_path)
    with pytest.raises(ConfigError, match="nothing is published there yet"):
        verify(configured(tmp_path))
