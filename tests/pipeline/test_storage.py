from __future__ import annotations

import os
import random
import secrets
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from pipeline import storage
from pipeline.errors import AlreadyExistsError, ConfigError, StorageError
from pipeline.storage import Store, remote

SECRET = "planted-secret-7f3a"


def quiet(method, name):
    """No fault."""


class Faulty(MemoryFileSystem):
    """Memory behind a network: `rule(method, name)` raises, waits or does nothing before each request."""

    protocol = "faulty"
    cachable = False
    rule = staticmethod(quiet)
    made = 0

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        type(self).made += 1
        self.calls = 0

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.removeprefix(f"{cls.protocol}://"))

    def _request(self, method, name):
        self.calls += 1
        type(self).rule(method, name)

    def info(self, path, **kwargs):
        self._request("info", path)
        return super().info(path, **kwargs)

    def find(self, path, **kwargs):
        self._request("find", path)
        return super().find(path, **kwargs)

    def ls(self, path, **kwargs):
        self._request("ls", path)
        return super().ls(path, **kwargs)

    def cat_file(self, path, **kwargs):
        self._request("cat_file", path)
        return super().cat_file(path, **kwargs)

    def rm_file(self, path):
        self._request("rm_file", path)
        super().rm_file(path)

    def pipe_file(self, path, value, mode="overwrite", **kwargs):
        self._request("pipe_file", path)
        super().pipe_file(path, value, mode=mode, **kwargs)
        self._request("answer", path)


fsspec.register_implementation("faulty", Faulty, clobber=True)


@pytest.fixture
def faulty(monkeypatch):
    """A store on `Faulty`, quick to retry; set `Faulty.rule` to make it fail."""
    monkeypatch.setattr(remote, "PAUSES", (0.0,) * 6)
    monkeypatch.setattr(Faulty, "rule", staticmethod(quiet))
    return Store(f"faulty://{secrets.token_hex(8)}/root", {"password": SECRET})


def fail(monkeypatch, error, *methods, times=10**9):
    """Let the first `times` requests of `methods` raise `error()`."""
    left = [times]

    def rule(method, name):
        if method in methods and left[0] > 0:
            left[0] -= 1
            raise error()

    monkeypatch.setattr(Faulty, "rule", staticmethod(rule))
    return left


# -- faults ----------------------------------------------------------------------------------------------------------


def test_one_request_in_ten_failing_changes_nothing(faulty, monkeypatch):
    """A store whose requests fail at random ends with the bytes of one that never fails, and counts its retries."""
    draw = random.Random(7)
    errors = (TimeoutError("slow"), ConnectionResetError("gone"), OSError(16, "SlowDown"))

    def rule(method, name):
        if draw.random() < 0.1:
            raise draw.choice(errors)

    monkeypatch.setattr(Faulty, "rule", staticmethod(rule))
    before = remote.counts()["retries"]
    expected = {f"{i % 3}/{i:03d}": os.urandom(i) for i in range(120)}
    for path, data in expected.items():
        (faulty.create if len(data) % 2 else faulty.write_bytes)(path, data)
    assert [(e.path, e.size) for e in faulty.list()] == sorted((path, len(data)) for path, data in expected.items())
    for path, data in expected.items():
        with faulty.open(path) as handle:
            assert handle.read() == data
        faulty.delete(path)
    assert list(faulty.list()) == []
    assert remote.counts()["retries"] - before > 50


@pytest.mark.parametrize("error", [TimeoutError, ConnectionResetError, BrokenPipeError, lambda: OSError(121, "500")])
def test_a_transient_error_ends_after_its_retries(faulty, monkeypatch, error):
    """A store that stays unreachable is a StorageError after a bounded number of tries."""
    left = fail(monkeypatch, error, "cat_file")
    with pytest.raises(StorageError, match=r"cannot read faulty://\w+/root/f"):
        faulty.read_bytes("f")
    assert 10**9 - left[0] == len(remote.PAUSES) + 1


def test_other_errors_are_not_repeated(faulty, monkeypatch):
    """An error that will not pass is reported at once, as a StorageError."""
    left = fail(monkeypatch, lambda: OSError(22, "invalid"), "cat_file")
    with pytest.raises(StorageError, match="invalid"):
        faulty.read_bytes("f")
    assert 10**9 - left[0] == 1


def test_an_error_is_not_taken_for_absence(faulty, monkeypatch):
    """A store that fails to answer whether a file exists raises; it does not say no, nor list nothing."""
    faulty.write_bytes("a/f", b"x")
    fail(monkeypatch, lambda: OSError(22, "invalid"), "info", "find", "ls")
    for ask in (faulty.exists, faulty.list, faulty.children):
        with pytest.raises(StorageError):
            ask("a")


class StatusError(Exception):
    def __init__(self, status):
        super().__init__(f"HTTP {status}")
        self.status = status


class BotocoreError(Exception):
    def __init__(self, status):
        super().__init__(f"An error occurred ({status})")
        self.response = {"Error": {"Code": str(status)}, "ResponseMetadata": {"HTTPStatusCode": status}}


@pytest.mark.parametrize("kind", [StatusError, BotocoreError])
@pytest.mark.parametrize(("status", "tries"), [(500, 7), (503, 7), (429, 7), (404, 1), (400, 1), (403, 2)])
def test_an_http_status_decides_on_the_retry(faulty, monkeypatch, kind, status, tries):
    """5xx, 408 and 429 are repeated, 401 and 403 once with a new connection, the others never."""

    def wrapped():
        error = OSError(22, "translated")
        error.__cause__ = kind(status)
        return error

    left = fail(monkeypatch, wrapped, "cat_file")
    with pytest.raises(StorageError):
        faulty.read_bytes("f")
    assert 10**9 - left[0] == tries


def test_expired_credentials_are_renewed_once(faulty, monkeypatch):
    """A connection that refuses after some calls is made anew, and the work goes on."""
    faulty.write_bytes("f", b"data")
    made = Faulty.made
    fail(monkeypatch, lambda: PermissionError("ExpiredToken"), "cat_file", times=1)
    assert faulty.read_bytes("f") == b"data"
    assert Faulty.made == made + 1
    fail(monkeypatch, lambda: PermissionError("AccessDenied"), "cat_file")
    with pytest.raises(StorageError, match="check the permissions and credentials"):
        faulty.read_bytes("f")
    assert Faulty.made == made + 2
    assert remote.counts()["renewals"] >= 2


def test_a_create_whose_answer_was_lost_is_ours(faulty, monkeypatch):
    """When the first try got through without an answer, the retry finds our own bytes: no false second driver."""
    fail(monkeypatch, TimeoutError, "answer", times=1)
    faulty.create("ours", b"unique")
    assert faulty.read_bytes("ours") == b"unique"
    faulty.create("theirs", b"other")
    fail(monkeypatch, TimeoutError, "pipe_file", times=1)
    with pytest.raises(AlreadyExistsError):
        faulty.create("theirs", b"unique")
    assert faulty.read_bytes("theirs") == b"other"


def test_a_short_upload_is_repeated(faulty, monkeypatch):
    """An upload of which only a part arrived is noticed by its size and made again."""
    whole, cuts = MemoryFileSystem.pipe_file, [1]

    def cut(self, path, value, mode="overwrite", **kwargs):
        whole(self, path, value[:3] if cuts and cuts.pop() else value, mode=mode, **kwargs)

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", cut)
    faulty.write_bytes("f", b"twelve bytes")
    assert faulty.read_bytes("f") == b"twelve bytes"
    assert cuts == []


def test_a_short_read_is_repeated(faulty, monkeypatch):
    """A range of which only a part arrived is asked for again, not handed on."""
    faulty.write_bytes("f", b"twelve bytes")
    whole, cuts = MemoryFileSystem.cat_file, [1]

    def cut(self, path, **kwargs):
        return whole(self, path, **kwargs)[: 3 if cuts and cuts.pop() else None]

    monkeypatch.setattr(MemoryFileSystem, "cat_file", cut)
    with faulty.open("f") as handle:
        assert handle.read() == b"twelve bytes"


def test_a_failing_read_inside_arrow_is_a_storage_error(faulty, monkeypatch):
    """What goes wrong under Arrow's reader arrives as a StorageError with the URL, not as a damaged file."""
    with faulty.writer("t.parquet") as handle:
        pq.write_table(pa.table({"n": range(100_000)}), handle)
    with faulty.open("t.parquet") as handle:
        reader = pq.ParquetFile(handle)
        fail(monkeypatch, TimeoutError, "cat_file")
        with pytest.raises(StorageError, match=r"root/t\.parquet"):
            reader.read()


def test_no_secret_is_in_a_message(faulty, monkeypatch):
    """Neither an option's value nor what a URL carries besides its place is in an error, a repr or a shown URL."""
    monkeypatch.setenv("STORE_SECRET", "from-the-environment")
    store = Store(faulty.url, {"password": SECRET, "client_kwargs": {"token": "env:STORE_SECRET"}})
    text = f"refused {SECRET} and from-the-environment at https://me:pw@host/f?X-Amz-Signature=abc end"
    fail(monkeypatch, lambda: ValueError(text), "cat_file")
    with pytest.raises(StorageError) as caught:
        store.read_bytes("f")
    assert str(caught.value).endswith("ValueError: refused *** and *** at https://host/f end")
    assert SECRET not in repr(store)
    assert Store("https://me:pw@host/a?sig=1").where("b") == "https://host/a"
    assert Store("sftp://me:pw@host/a@b").where("c?d") == "sftp://host/a@b/c?d"


def test_an_option_may_name_an_environment_variable(monkeypatch):
    """`env:NAME` is looked up where the connection is made; an absent variable is a config error that names it."""
    store = Store(f"faulty://{secrets.token_hex(8)}/x", {"password": "env:STORE_PASSWORD"})
    with pytest.raises(ConfigError, match="STORE_PASSWORD"):
        store.exists("f")
    monkeypatch.setenv("STORE_PASSWORD", SECRET)
    assert not store.exists("f")
    assert SECRET not in str(store.options)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("gs://bucket/x", "pip install 'gcsfs'"),
        ("abfs://container/x", "pip install 'adlfs'"),
        ("sftp://host/x", "pip install 'paramiko'"),
        ("s3x://bucket/x", "scheme"),
    ],
)
def test_a_missing_package_is_named(url, words):
    """A URL whose file system is not installed is a config error with the command to install it."""
    with pytest.raises(ConfigError, match=words):
        Store(url).exists("f")


def test_a_chained_url_is_refused():
    """A URL of several links is a config error instead of a name cut in the wrong place."""
    with pytest.raises(ConfigError, match="chained"):
        Store("zip://a.parquet::s3://bucket/b.zip")


def test_a_server_that_tells_no_size_is_refused():
    """A file whose size the store does not tell cannot be compared later, so it is not taken."""
    with pytest.raises(StorageError, match="no size"):
        remote._entries([{"name": "r/f", "type": "file", "size": None}], "r", "")


# -- exclusive creates -----------------------------------------------------------------------------------------------


class Careless(Faulty):
    """A store that takes a conditional write for an ordinary one."""

    protocol = "careless"

    def pipe_file(self, path, value, mode="overwrite", **kwargs):  # noqa: ARG002 - carelessly
        super().pipe_file(path, value, **kwargs)


class Simple(Careless):
    """A store that has no conditional write: it only inherits one that looks first."""

    protocol = "simple"
    pipe_file = fsspec.AbstractFileSystem.pipe_file


fsspec.register_implementation("careless", Careless, clobber=True)
fsspec.register_implementation("simple", Simple, clobber=True)


@pytest.mark.parametrize("scheme", ["careless", "simple"])
def test_a_store_without_exclusive_create_is_refused(scheme):
    """The probe fails for a store that would let two drivers in, and names tiers.work."""
    store = Store(f"{scheme}://{secrets.token_hex(8)}/work")
    with pytest.raises(StorageError, match=r"^tiers\.work: .*S3"):
        store.probe_exclusive()
    assert list(store.list()) == []


def test_a_disk_without_links_is_refused(tmp_path, monkeypatch):
    """A file system that cannot link cannot create exclusively: the probe says so and leaves nothing."""

    def refuse(*args):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(StorageError, match=r"^tiers\.work: cannot create .*Operation not permitted"):
        Store(str(tmp_path)).probe_exclusive()
    assert list(tmp_path.iterdir()) == []


def test_a_link_whose_answer_was_lost_is_ours(tmp_path, monkeypatch):
    """Where the link was made and then reported as refused, as NFS can, the create has succeeded."""
    link = os.link

    def lost(source, target):
        link(source, target)
        raise FileExistsError(17, "File exists")

    monkeypatch.setattr(os, "link", lost)
    store = Store(str(tmp_path))
    store.create("f", b"ours")
    assert store.read_bytes("f") == b"ours"
    with pytest.raises(AlreadyExistsError):
        store.create("f", b"again")


# -- local files -----------------------------------------------------------------------------------------------------


def test_local_names_are_one_place(tmp_path, monkeypatch):
    """A path, its file:// URL and its relative spelling are the same store, wherever the process goes later."""
    monkeypatch.chdir(tmp_path)
    relative = Store("a/../b")
    assert Store(f"file://{tmp_path}/b/").url == Store(str(tmp_path / "b")).url == relative.url == f"{tmp_path}/b"
    monkeypatch.chdir("/")
    relative.write_bytes("f", b"x")
    assert relative.local_path("f") == tmp_path / "b" / "f"
    assert (tmp_path / "b" / "f").read_bytes() == b"x"
    assert Store("memory://x").local_path("f") is None


def test_a_temporary_file_is_known_by_its_name(tmp_path):
    """While a file is being written it lies beside its place under a name that no glob for data matches."""
    store = Store(str(tmp_path))
    with store.writer("a/part.parquet") as handle:
        handle.write(b"x")
        (waiting,) = store.list()
        assert storage.is_temporary(waiting.path)
        assert not list((tmp_path / "a").glob("*.parquet"))
    assert [e.path for e in store.list()] == ["a/part.parquet"]
    assert not storage.is_temporary("a/part.parquet")


def test_files_are_readable_by_others(tmp_path):
    """Published files have the permissions that the user's umask gives, not a temporary file's."""
    old = os.umask(0o022)
    try:
        store = Store(str(tmp_path))
        store.write_bytes("written", b"x")
        store.create("created", b"x")
    finally:
        os.umask(old)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o644}


def test_a_full_disk_is_named(tmp_path):
    """Running out of space is a StorageError that says where, and leaves no file."""
    for store in (Store(str(tmp_path)), Store("memory://full")):
        with pytest.raises(StorageError, match="no space left in"), store.writer("f"):
            raise OSError(28, "No space left on device")
        assert not store.exists("f")


def test_a_foreign_error_passes_through_a_writer(tmp_path):
    """An error of the body that has nothing to do with the store stays what it is."""
    with pytest.raises(ValueError, match="mine"), Store(str(tmp_path)).writer("f"):
        raise ValueError("mine")
    with pytest.raises(FileNotFoundError), Store(str(tmp_path)).writer("f"):
        (tmp_path / "nowhere").read_bytes()


def test_a_folder_that_cannot_be_written_is_a_storage_error(tmp_path):
    """A file where the folder should be is reported with the path."""
    (tmp_path / "folder").write_bytes(b"")
    with pytest.raises(StorageError, match="folder/f"):
        Store(str(tmp_path)).write_bytes("folder/f", b"x")


def test_links_are_followed_but_not_in_circles(tmp_path):
    """Linked files and folders are listed where the link is, a link to a folder above is not, one to nothing is."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "2.parquet").write_bytes(b"22")
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "1.parquet").write_bytes(b"1")
    (root / "sub" / "up").symlink_to(root)
    (root / "sub" / "other").symlink_to(tmp_path / "elsewhere")
    (root / "sub" / "file.parquet").symlink_to(root / "1.parquet")
    (root / "broken.parquet").symlink_to(tmp_path / "nothing")
    listed = {e.path: e.size for e in Store(str(root)).list()}
    assert listed.pop("broken.parquet") >= 0
    assert listed == {"1.parquet": 1, "sub/other/2.parquet": 2, "sub/file.parquet": 1}


# -- what an input names ---------------------------------------------------------------------------------------------


def shards(tmp_path, *names):
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"shard")


def found(url):
    return [file.path for file in storage.expand(str(url)).files]


def test_literal_names_come_before_patterns(tmp_path):
    """Paths with brackets, signs, blanks and accents that exist are found as they are, as files and as folders."""
    names = ("a#b c%20.parquet", "über [1].parquet", "x?.parquet", "*.parquet")
    shards(tmp_path / "crawl[2024]", *names)
    shards(tmp_path / "crawl2", "decoy.parquet")
    assert found(tmp_path / "crawl[2024]") == sorted(names)
    assert found(tmp_path / "crawl[2024]" / "*") == sorted(names)
    assert found(tmp_path / "crawl[2024]" / "a*.parquet") == ["a#b c%20.parquet"]
    for name in names:
        listing = storage.expand(str(tmp_path / "crawl[2024]" / name))
        assert (listing.fixed, [f.path for f in listing.files]) == (str(tmp_path / "crawl[2024]"), [name])
        assert listing.files[0].url == str(tmp_path / "crawl[2024]" / name)
    assert found(tmp_path / "crawl[0-9]") == ["crawl2/decoy.parquet"]
    assert found(f"file://{tmp_path}/crawl[2024]/über [1].parquet") == ["über [1].parquet"]


def test_a_dirty_folder_is_told_apart(tmp_path):
    """Shards of any size are found, markers left out by rule, and every Parquet file that is left out is named."""
    shards(
        tmp_path, "1.parquet", "2.PARQUET", "part=1/3.parquet", "_SUCCESS", "_metadata", ".x.parquet", "a.parquet.crc",
        ".a.parquet.crc", "_temporary/0/4.parquet", "notes.txt", ".git/config", "out.parquet/part-0.parquet",
    )  # fmt: skip
    (tmp_path / "zero.parquet").write_bytes(b"")
    (tmp_path / "empty.parquet").mkdir()
    listing = storage.expand(str(tmp_path))
    assert [file.path for file in listing.files] == [
        "1.parquet", "2.PARQUET", "out.parquet/part-0.parquet", "part=1/3.parquet", "zero.parquet"
    ]  # fmt: skip
    assert [url.removeprefix(f"{tmp_path}/") for url in listing.ignored] == [
        ".x.parquet", "_temporary/0/4.parquet", "a.parquet.crc", "notes.txt"
    ]  # fmt: skip
    assert {file.path: file.size for file in listing.files}["zero.parquet"] == 0


def test_a_named_file_is_taken_whatever_its_name(tmp_path):
    """A file that is named in full is a shard although the rule for folders would leave it out."""
    shards(tmp_path, "_x.pq")
    assert found(tmp_path / "_x.pq") == ["_x.pq"]


def test_patterns_match_part_by_part(tmp_path):
    """`*` and `?` stay within a name, `**` spans folders, a matched folder stands for its files, none comes twice."""
    shards(tmp_path, "a/1.parquet", "a/b/2.parquet", "a/b/c/3.parquet", "d/4.parquet", "d/5.txt")
    assert found(tmp_path / "*.parquet") == []
    assert found(tmp_path / "?" / "*.parquet") == ["a/1.parquet", "d/4.parquet"]
    assert found(tmp_path / "a" / "**") == ["1.parquet", "b/2.parquet", "b/c/3.parquet"]
    assert found(tmp_path / "**" / "b" / "**" / "*.parquet") == ["a/b/2.parquet", "a/b/c/3.parquet"]
    assert found(tmp_path / "[!d]") == ["a/1.parquet", "a/b/2.parquet", "a/b/c/3.parquet"]
    assert found(tmp_path / "**" / "[3-5]*") == ["a/b/c/3.parquet", "d/4.parquet"]
    assert storage.expand(str(tmp_path / "d" / "*")).ignored == (str(tmp_path / "d" / "5.txt"),)
    assert storage.expand(str(tmp_path / "a" / "*" / "2.parquet")).fixed == str(tmp_path / "a")


def test_nothing_matched_is_an_empty_listing(tmp_path):
    """A pattern, file or folder that is not there is found empty: the caller knows which setting named it."""
    for name in ("*.parquet", "no.parquet", "no/*/x", "[", "a[b"):
        listing = storage.expand(str(tmp_path / name))
        assert (listing.files, listing.ignored) == ((), ())


def test_a_name_that_is_no_text_is_refused(tmp_path):
    """A shard whose name is not UTF-8 is a config error: names become keys and columns."""
    try:
        (tmp_path / os.fsdecode(b"bad-\xff.parquet")).write_bytes(b"")
    except OSError:
        pytest.skip("this file system takes only UTF-8 names")
    with pytest.raises(ConfigError, match="not UTF-8"):
        storage.expand(str(tmp_path))


# -- model files -----------------------------------------------------------------------------------------------------


def test_a_local_model_is_used_where_it_is(tmp_path):
    """A local file or folder is not copied, and one that is not there is an error with its path."""
    (tmp_path / "m.bin").write_bytes(b"x")
    assert storage.fetch(str(tmp_path / "m.bin"), tmp_path / "cache") == tmp_path / "m.bin"
    assert storage.fetch(str(tmp_path), tmp_path / "cache") == tmp_path
    assert not (tmp_path / "cache").exists()
    with pytest.raises(StorageError, match=r"none\.bin"):
        storage.fetch(str(tmp_path / "none.bin"), tmp_path / "cache")


def test_readers_that_fetch_at_once_get_whole_files(faulty, monkeypatch, tmp_path):
    """Sixteen readers at staggered starts through a slow store all get every byte, and one copy remains."""
    data = os.urandom(20_000_000)
    faulty.write_bytes("m.bin", data)
    waits = threading.local()

    def rule(method, name):
        if method == "cat_file":
            waits.seed = getattr(waits, "seed", random.Random(threading.get_ident()))
            time.sleep(waits.seed.random() * 0.02)

    monkeypatch.setattr(Faulty, "rule", staticmethod(rule))
    url = faulty.url_of("m.bin")
    with ThreadPoolExecutor(16) as pool:
        copies = [pool.submit(lambda: storage.fetch(url, tmp_path, faulty.options).read_bytes()) for _ in range(16)]
        assert all(copy.result() == data for copy in copies)
    assert len(list(tmp_path.iterdir())) == 1


# -- listing caches --------------------------------------------------------------------------------------------------


class Caching(Faulty):
    """A store whose client remembers every listing until it is told to forget."""

    protocol = "caching"

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.memory = {}

    def invalidate_cache(self, path=None):  # noqa: ARG002 - all of it
        self.memory.clear()

    def _remembered(self, method, path, kwargs):
        key = (method, path)
        if key not in self.memory:
            self.memory[key] = getattr(super(), method)(path, **kwargs)
        return self.memory[key]

    def info(self, path, **kwargs):
        return self._remembered("info", path, kwargs)

    def find(self, path, **kwargs):
        return self._remembered("find", path, kwargs)

    def ls(self, path, **kwargs):
        return self._remembered("ls", path, kwargs)


fsspec.register_implementation("caching", Caching, clobber=True)


def test_a_client_that_caches_listings_sees_what_another_wrote():
    """Two clients of a caching store see each other's files at once, in listings, sizes and existence."""
    url = f"caching://{secrets.token_hex(8)}/root"
    one, two = Store(url, {"client": 1}), Store(url, {"client": 2})
    assert (list(two.list()), two.exists("f"), two.children()) == ([], False, ((), ()))
    one.write_bytes("f", b"x")
    assert ([e.path for e in two.list()], two.exists("f"), len(two.children()[1])) == (["f"], True, 1)
    one.write_bytes("f", b"xyz")
    assert (two.size("f"), two.list()[0].size) == (3, 3)
