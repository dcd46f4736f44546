"""Published files: each kept row in one part, in seeded order; each removed row where its table says it is archived."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import run as runs
from tests.pipeline import small_runs


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A run with parts far smaller than a slice, and what it published."""
    root = tmp_path_factory.mktemp("parts")
    small_runs.corpus(root, shards=3, ordinary=60)
    config = small_runs.configured(root, overrides=["publish.part_bytes=500B", "run.seed=5"])
    return root, runs.run(config)


def read(pattern, root):
    return [(path, pq.read_table(path)) for path in sorted(root.glob(pattern))]


def test_every_kept_row_is_in_one_part(ran):
    """Parts of one slice share its rows out: each once, with the columns of the input and nothing more."""
    root, report = ran
    found = read("hot/small/data/*/*.parquet", root)
    assert len(found) > 2 * len({path.parent for path, _ in found})
    assert {tuple(table.column_names) for _, table in found} == {("id", "source", "text")}
    ids = Counter(one for _, table in found for one in table["id"].to_pylist())
    removed = pq.read_table(report["run"]["paths"]["removed"])
    quarantined = pq.read_table(report["run"]["paths"]["quarantined"])
    lost = {*removed["id"].to_pylist(), *quarantined["id"].to_pylist()}
    given = [one for _, table in read("in/*.parquet", root) for one in table["id"].to_pylist()]
    assert ids == Counter(one for one in given if one not in lost)


def test_a_part_holds_its_dataset_in_an_order_of_its_own(ran):
    """A part has rows of its source only, not in the order of the input."""
    root, _ = ran
    for path, table in read("hot/small/data/*/*.parquet", root):
        assert set(table["source"].to_pylist()) == {path.parent.name.split("-")[1]}
    ids = [one for _, table in read("hot/small/data/*/*.parquet", root) for one in table["id"].to_pylist()]
    assert ids != sorted(ids)


def test_the_archive_holds_what_its_table_says(ran):
    """The text of a removed row lies in the file and row that removed/ names, with all its columns and its reason."""
    root, report = ran
    removed = pq.read_table(report["run"]["paths"]["removed"]).to_pylist()
    assert len(removed) == report["totals"]["removed"]["docs"] > 5
    given = {path.name: table.to_pylist() for path, table in read("in/*.parquet", root)}
    files = {path: pq.read_table(root / "cold" / path).to_pylist() for path in {row["archive_file"] for row in removed}}
    for row in removed:
        archived = files[row["archive_file"]][row["archive_row"]]
        same = {name: row[name] for name in ("shard", "row", "stage", "reason", "id", "source")}
        assert archived == same | {"text": given[row["shard"]][row["row"]]["text"]}
    assert sum(map(len, files.values())) == len(removed)


def test_an_input_column_keeps_its_name_in_the_archive(tmp_path):
    """Where the input has a column `stage` or `row`, the archive's own takes a longer name."""
    small_runs.corpus(tmp_path, shards=1)
    path = tmp_path / "in" / "0.parquet"
    table = pq.read_table(path)
    pq.write_table(table.append_column("row", pa.array(["mine"] * table.num_rows)), path)
    runs.run(small_runs.configured(tmp_path))
    [(_, archived)] = read("cold/small/*/*.parquet", tmp_path)
    assert set(archived["row"].to_pylist()) == {"mine"}
    assert archived["corpusmill_row"].type == pa.int64()
