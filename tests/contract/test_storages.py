"""What every store promises, whatever lies behind its URL."""

from __future__ import annotations

import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import ledger as ledger_module
from pipeline import storage
from pipeline.errors import AlreadyExistsError, BusyError, StorageError
from pipeline.keys import hash_bytes
from pipeline.ledger import Ledger, read
from pipeline.storage import Store
from pipeline.types import Cell, CellResult, Outcome

AWKWARD = ("a#b c%20.parquet", "[x].bin", "what?.bin", "star*.bin", "übung ñ.bin", "x=1/y y/z+&.bin", "-dash", "a'b\"c")


def test_bytes_come_back_as_written(store):
    """What was written is read again, in memory, as a file and from any position."""
    data = bytes(range(256)) * 10_000
    store.write_bytes("deep/er/file.bin", data)
    assert store.read_bytes("deep/er/file.bin") == data
    assert store.size("deep/er/file.bin") == len(data)
    with store.open("deep/er/file.bin") as handle:
        assert handle.read(3) == data[:3]
        assert handle.seek(1_234_567) == 1_234_567
        assert handle.read(100_000) == data[1_234_567:1_334_567]
        handle.seek(-5, 2)
        assert handle.read() == data[-5:]
        assert handle.read() == b""
        handle.seek(0)
        assert handle.read() == data


def test_an_empty_file_is_a_file(store):
    """A file of no bytes exists, is listed and reads as nothing."""
    store.write_bytes("empty", b"")
    assert store.exists("empty")
    assert store.read_bytes("empty") == b""
    assert [(e.path, e.size) for e in store.list()] == [("empty", 0)]
    with store.open("empty") as handle:
        assert handle.read() == b""


def test_parquet_is_written_and_read_through_the_store(store):
    """Arrow writes into `writer` and reads single columns and row groups out of `open`."""
    table = pa.table({"n": range(10_000), "text": [f"text {i}" for i in range(10_000)]})
    with store.writer("t.parquet") as handle:
        pq.write_table(table, handle, row_group_size=1000)
    with store.open("t.parquet") as handle:
        reader = pq.ParquetFile(handle)
        assert reader.read_row_group(7, columns=["text"])["text"].to_pylist() == table["text"].to_pylist()[7000:8000]
        assert reader.read().equals(table)


def test_the_record_of_an_output_is_the_truth(store):
    """Size and checksum of a published file are those of its bytes, for its writer and for anybody else."""
    data = b"x" * 100_001
    with store.writer("out.bin") as handle:
        handle.write(data[:50])
        handle.write(data[50:])
    mine, others = store.output("out.bin", rows=7), store.output("out.bin", rows=7)
    assert mine == others
    assert (mine.path, mine.bytes, mine.rows, mine.xxh128) == ("out.bin", len(data), 7, hash_bytes(data))


def test_a_missing_file_is_named(store):
    """A file that is absent does not exist, and asking for it anyway raises a StorageError with its URL."""
    store.write_bytes("folder/file", b"x")
    for path in ("nothing", "folder", "folder/file/below", "fol"):
        assert not store.exists(path)
        for ask in (store.entry, store.read_bytes, store.open):
            with pytest.raises(StorageError, match=r"crawl\[2024\]/" + path):
                ask(path)


@pytest.mark.parametrize("size", [10, 12_000_000])
def test_a_writer_that_raises_leaves_nothing(store, size):
    """A body that fails half-way leaves no file at a new name, the old file at an old one, and nothing beside it."""
    store.write_bytes("old", b"as it was")
    for path in ("new", "old"):
        with pytest.raises(RuntimeError, match="half-way"), store.writer(path) as handle:  # noqa: PT012 - the point
            handle.write(b"x" * size)
            handle.flush()
            raise RuntimeError("half-way")
    assert [e.path for e in store.list()] == ["old"]
    assert store.read_bytes("old") == b"as it was"


def test_a_file_is_replaced_as_a_whole(store):
    """Until the writer ends the old file is read, from then on the new one, and its stamp is another."""
    store.write_bytes("f", b"old")
    before = store.entry("f")
    with store.writer("f") as handle:
        handle.write(b"n")
        handle.flush()
        assert store.read_bytes("f") == b"old"
        handle.write(b"ew")
    assert store.read_bytes("f") == b"new"
    assert store.entry("f").stamp != before.stamp


def test_a_stamp_stays_while_the_file_does(store):
    """`entry` says the same each time, and `list` says the same as `entry`."""
    store.write_bytes("a/f", b"data")
    assert store.entry("a/f") == store.entry("a/f") == store.list("a")[0]
    assert store.entry("a/f").stamp


def test_one_exclusive_create_wins(store):
    """The second create of a name raises AlreadyExistsError, and the first one's bytes stay."""
    store.create("ledger/1", b"first")
    for data in (b"second", b"first", b""):
        with pytest.raises(AlreadyExistsError):
            store.create("ledger/1", data)
    assert store.read_bytes("ledger/1") == b"first"
    assert [e.path for e in store.list()] == ["ledger/1"]


def test_of_creates_at_the_same_moment_one_wins(store):
    """When eight writers create each of ten names, every name has one winner, and its bytes are there whole."""

    def attempt(job):
        name, writer = job
        try:
            store.create(f"race/{name}", str(writer).encode() * 1000)
        except AlreadyExistsError:
            return None
        return name, writer

    jobs = [(name, writer) for name in range(10) for writer in range(8)]
    with ThreadPoolExecutor(8) as pool:
        winners = dict(filter(None, pool.map(attempt, jobs)))
        won = [outcome for outcome in pool.map(attempt, jobs) if outcome]
    assert sorted(winners) == list(range(10))
    assert won == []
    for name, writer in winners.items():
        assert store.read_bytes(f"race/{name}") == str(writer).encode() * 1000


def test_the_probe_passes_and_leaves_nothing(store):
    """A store with exclusive creates passes the probe, which cleans up behind itself."""
    store.probe_exclusive()
    assert list(store.list()) == []


def test_names_are_literal(store):
    """Blanks, brackets, wildcards, signs and accents in a name mean themselves, in every method."""
    for path in AWKWARD:
        store.write_bytes(path, path.encode())
    assert [e.path for e in store.list()] == sorted(AWKWARD)
    for path in AWKWARD:
        assert store.exists(path)
        assert store.read_bytes(path) == path.encode()
        store.delete(path)
        assert not store.exists(path)
    assert list(store.list()) == []


def test_a_prefix_is_a_folder(store):
    """`list` and `delete_tree` take a folder literally: not its neighbours of the same beginning, and no patterns."""
    for path in ("a/1", "a/b/2", "ab/3", "a[b]/4", "a*/5"):
        store.write_bytes(path, b"x")
    assert [e.path for e in store.list("a")] == ["a/1", "a/b/2"]
    assert [e.path for e in store.list("a[b]")] == ["a[b]/4"]
    assert list(store.list("nowhere")) == []
    store.delete_tree("a*")
    store.delete_tree("nowhere")
    assert [e.path for e in store.list()] == ["a/1", "a/b/2", "a[b]/4", "ab/3"]
    store.delete_tree("a")
    assert [e.path for e in store.list()] == ["a[b]/4", "ab/3"]
    with pytest.raises(StorageError, match="never"):
        store.delete_tree("")


def test_children_are_one_level(store):
    """`children` gives the folders and the files of one folder, and nothing for a folder that is not there."""
    for path in ("a/1", "a/b/2", "a/c/d/3"):
        store.write_bytes(path, b"x")
    folders, files = store.children("a")
    assert (sorted(folders), [e.path for e in files]) == (["a/b", "a/c"], ["a/1"])
    assert store.children("nowhere") == ((), ())


def test_listings_are_fresh(store):
    """What another client wrote, replaced or removed after a listing is in the next one, and in `entry`."""
    other = pickle.loads(pickle.dumps(store))
    store.write_bytes("a/1", b"x")
    assert [e.path for e in store.list("a")] == ["a/1"]
    assert not store.exists("a/2")
    other.write_bytes("a/2", b"yy")
    other.write_bytes("a/1", b"zzz")
    assert [(e.path, e.size) for e in store.list("a")] == [("a/1", 3), ("a/2", 2)]
    assert (store.size("a/1"), store.exists("a/2")) == (3, True)
    other.delete("a/1")
    assert [e.path for e in store.list("a")] == ["a/2"]
    assert not store.exists("a/1")


def test_deleting_twice_is_deleting(store):
    """A file that is gone already is as good as deleted."""
    store.write_bytes("f", b"x")
    store.delete("f")
    store.delete("f")
    assert not store.exists("f")


def test_a_child_is_a_store(store):
    """A child sees its parent's folder as its root."""
    store.child("work").child("run").write_bytes("f", b"x")
    assert store.read_bytes("work/run/f") == b"x"
    assert store.child("work/run").url == store.url + "/work/run"


@pytest.mark.parametrize("path", ["../f", "a/../../f", "/etc/passwd"])
def test_no_path_leads_out(store, path):
    """A path that would leave the root is refused before anything is touched."""
    for act in (store.exists, store.read_bytes, store.open, store.list, store.delete, store.delete_tree, store.child):
        with pytest.raises(StorageError, match="leads out"):
            act(path)
    with pytest.raises(StorageError, match="leads out"):
        store.write_bytes(path, b"x")
    with pytest.raises(StorageError, match="leads out"):
        store.create(path, b"x")


def test_files_known_by_url(store, tmp_path):
    """A file is opened, looked at and fetched by its URL alone; a copy is made once per content."""
    store.write_bytes("models/m#1 %.bin", b"weights")
    url = store.url_of("models/m#1 %.bin")
    with storage.open_url(url, store.options) as handle:
        assert handle.read() == b"weights"
    assert storage.entry_of(url, store.options).size == 7
    copy = storage.fetch(url, tmp_path / "cache", store.options)
    assert copy.read_bytes() == b"weights"
    assert storage.fetch(url, tmp_path / "cache", store.options) == copy
    store.write_bytes("models/m#1 %.bin", b"other weights")
    assert storage.fetch(url, tmp_path / "cache", store.options).read_bytes() == b"other weights"
    with pytest.raises(StorageError, match=r"models/none"):
        storage.fetch(store.url_of("models/none"), tmp_path / "cache", store.options)


def test_an_input_is_a_file_a_folder_or_a_pattern(store):
    """Each way of naming the same shards finds them, with paths relative to its fixed part."""
    for path in ("x/1.parquet", "x/part=1/2.parquet", "y/3.parquet"):
        store.write_bytes(path, b"shard")

    def paths(name):
        listing = storage.expand(f"{store.url}/{name}" if name else store.url, store.options)
        assert all(storage.entry_of(f.url, store.options).stamp == f.stamp for f in listing.files)
        return listing.fixed.removeprefix(store.url), [file.path for file in listing.files]

    assert paths("") == ("", ["x/1.parquet", "x/part=1/2.parquet", "y/3.parquet"])
    assert paths("x") == ("/x", ["1.parquet", "part=1/2.parquet"])
    assert paths("x/1.parquet") == ("/x", ["1.parquet"])
    assert paths("*/*.parquet") == ("", ["x/1.parquet", "y/3.parquet"])
    assert paths("x/*") == ("/x", ["1.parquet", "part=1/2.parquet"])
    assert paths("**/[23].parquet") == ("", ["x/part=1/2.parquet", "y/3.parquet"])
    assert paths("x/**/*.parquet") == ("/x", ["1.parquet", "part=1/2.parquet"])
    assert paths("z/*.parquet") == ("/z", [])
    assert paths("z") == ("/z", [])


def _write_in_another_process(store):
    store.write_bytes("child", store.read_bytes("parent") + b" and child")


@pytest.mark.parametrize("store", ["local", "s3"], indirect=True)  # a memory store is one process's own
@pytest.mark.parametrize("method", ["spawn", "fork"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_store_travels_to_another_process(store, method):
    """A store that its process has used works in a worker, which makes its own connection."""
    store.write_bytes("parent", b"parent")
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method)) as pool:
        pool.submit(_write_in_another_process, store).result(60)
    assert store.read_bytes("child") == b"parent and child"


def test_a_store_is_a_value(store):
    """Stores of the same root and options are equal and hash alike, a pickle is its store, and no option is shown."""
    same = Store(store.url + "/", dict(store.options))
    assert (same, hash(same), pickle.loads(pickle.dumps(store))) == (store, hash(store), store)
    assert "planted-secret" not in repr(store)


def test_a_ledger_can_be_kept(store, monkeypatch):
    """One driver at a time records what is done, a second one is refused, and the next one reads all of it."""
    monkeypatch.setattr(ledger_module, "POLL", 0.01)
    cell = Cell(label="exact", phase="map", unit="0", key="k")
    with Ledger.open(store, {}, interval=0.05) as ledger:
        ledger.add(Outcome(task="t", attempt=1, results=(CellResult(cell=cell),), cells=(cell,)))
        with pytest.raises(BusyError):
            Ledger.open(store, {})
    with Ledger.open(store, {}) as ledger:
        assert list(ledger.state.done) == [cell.id]
    assert (read(store).runs, read(store).warnings) == (2, [])
