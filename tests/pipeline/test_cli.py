"""Every command answers on stdout alone, and its exit code says how it went."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import cli, ledger, run
from pipeline.commands.progress import Board
from pipeline.errors import StorageError
from pipeline.storage import Store
from tests.pipeline import small_runs, waiting

ROOT = Path(__file__).parents[2]
MAIN = "import sys; from pipeline.cli import main; sys.exit(main())"
NO_WORDS = small_runs.YAML.replace('  - {{stage: "{module}:WORDS", limit: 3}}\n', "")
"""Without the stage that raises on some rows: nothing is quarantined."""
WAITS = NO_WORDS.replace("publish:", f'  - {{{{stage: "{waiting.__name__}:STAGE"}}}}\npublish:')


def written(root, yaml=small_runs.YAML):
    path = root / "small.yaml"
    path.write_text(yaml.format(root=root, module=small_runs.__name__))
    return str(path)


def fail(settings, context, table):
    raise RuntimeError("the disk of this partition is gone")


EMIT, REDUCE = small_runs.COPIES.phases
BROKEN = replace(small_runs.COPIES, phases=(EMIT, replace(REDUCE, reduce=fail)))


@pytest.fixture
def mill(capfd):
    """Runs a command in this process: (exit code, stdout, stderr)."""

    def call(*arguments):
        code = cli.main([str(argument) for argument in arguments])
        return (code, *capfd.readouterr())

    return call


def spawned(*arguments, **more):
    command = [sys.executable, "-c", MAIN, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300, **more)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The config file of a finished run, only to be looked at."""
    root = tmp_path_factory.mktemp("finished")
    small_runs.corpus(root)
    path = written(root)
    assert cli.main(["run", path]) == 5
    return path


@pytest.fixture
def corpus(tmp_path):
    small_runs.corpus(tmp_path)
    return tmp_path


# -- start-up and usage ----------------------------------------------------------------------------------------------


def test_help_is_quick():
    """Help imports nothing that is slow to import."""
    slow = ("ray", "numba", "polars", "fasttext", "pyarrow", "torch", "fsspec", "pydantic")
    code = f"import sys; from pipeline.cli import main; main(['--help']); print({slow!r} & sys.modules.keys())"
    code = code.replace(f"{slow!r} &", f"set({slow!r}) &")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"
    assert "Start or resume a run" in done.stdout


@pytest.mark.parametrize(
    "command", ["run", "dry-run", "plan", "status", "report", "explain", "export", "convert", "tier", "fit"]
)
def test_ten_commands(mill, command):
    """Each of the ten commands has a help page on stdout."""
    code, out, err = mill(command, "--help")
    assert (code, err) == (0, "")
    assert f"corpusmill {command}" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["frobnicate"], "No such command 'frobnicate'"),
        (["repor", "x"], "Did you mean 'report'"),
        (["run"], "Missing argument 'CONFIG'"),
        (["run", "x.yaml", "--frob"], "No such option: --frob"),
        (["fit", "quality", "--good", "x"], "Missing option '--bad'"),
        (["explain", "x.yaml"], "name one document"),
        (["run", "nowhere.yaml"], "No such file"),
        (["status", "nowhere"], "neither a config file nor the folder"),
        (["tier", "verify", "nowhere/manifest.json"], "nowhere"),
        (["convert", "nowhere", "--out", "x"], "nowhere"),
    ],
)
def test_wrong_calls(mill, arguments, said):
    """A call that cannot work exits 2, says why on stderr, without a traceback, and prints nothing else."""
    code, out, err = mill(*arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err
    code, out, err = mill(*arguments, "--json")
    error = json.loads(out)["error"]
    assert (code, error["exit_code"]) == (2, 2)
    assert said in error["message"]


def test_no_arguments(mill):
    """Without arguments the help is shown, and the call counts as wrong."""
    code, out, err = mill()
    assert (code, err) == (2, "")
    assert "Commands" in out


def test_version(mill):
    """--version prints the version and nothing else."""
    assert mill("--version") == (0, "0.1.0\n", "")


# -- exit codes ------------------------------------------------------------------------------------------------------


def test_done(mill, corpus):
    """A run without a fault exits 0 and ends with the table and where page, report and manifest are."""
    code, out, err = mill("run", written(corpus, NO_WORDS))
    assert code == 0
    assert "small  complete" in out
    paths = dict(line.split(maxsplit=1) for line in out.splitlines()[-3:])
    assert list(paths) == ["page", "report", "manifest"]
    assert all(Path(path).is_file() for path in paths.values())
    assert "manifest: small/v1/manifest.json" in err


def test_done_with_quarantined_rows(mill, corpus):
    """A run that had to leave rows out exits 5 and says how many and where they are, the second time too."""
    path = written(corpus)
    for _ in range(2):
        code, out, _ = mill("run", path)
        assert code == 5
        name, told = out.splitlines()[-1].split(maxsplit=1)
        assert name == "quarantined"
        assert told.startswith("3 documents: ")


def test_done_with_a_quarantined_shard(mill, corpus):
    """A shard that cannot be read is told beside the rows."""
    (corpus / "in" / "bad.parquet").write_bytes(b"no Parquet")
    code, out, _ = mill("run", written(corpus, NO_WORDS))
    assert code == 5
    assert "1 whole shards: " in out.splitlines()[-1]


def test_a_guard(mill, corpus):
    """A source that loses more than allowed stops the run with 3, and the message has the key that accepts it."""
    path = written(corpus)
    limits = ["--set", "guards.max_source_loss=0.01", "--set", "guards.min_docs=1"]
    code, out, err = mill("run", path, *limits)
    assert (code, out) == (3, "")
    assert "guards.accept" in err
    assert Path(err.split("what would go: ")[1].strip()).is_file()
    assert not (corpus / "hot" / "small").exists()
    assert mill("run", path, *limits, "--set", "guards.accept=[s0, s1]")[0] == 5


@pytest.mark.parametrize("tier", ["work", "hot", "cold"])
def test_a_tier_that_cannot_be_written(mill, corpus, tier):
    """A tier in which no file can be made is told with its key before any work, and its exit code is 4."""
    (corpus / "file").write_bytes(b"")
    code, _, err = mill("run", written(corpus), "--set", f"tiers.{tier}.url={corpus}/file/{tier}")
    assert code == 4
    assert f"tiers.{tier}: cannot " in err
    assert "what should be a folder above it is a file" in err
    assert "ingest" not in err


def test_an_unreadable_shard_where_that_is_forbidden(mill, corpus):
    """With input.bad_shards: stop, an unreadable shard is a broken contract: 3."""
    (corpus / "in" / "bad.parquet").write_bytes(b"no Parquet")
    code, _, err = mill("run", written(corpus), "--set", "input.bad_shards=stop")
    assert code == 3
    assert "bad.parquet" in err


def test_a_second_driver(mill, corpus):
    """While another driver has the run, a second one ends with 4 and says who and what to do."""
    path = written(corpus)
    mill("run", path)
    store = Store(str(corpus / "work" / "small"))
    with ledger.Ledger.open(store, ledger.read(store).started, interval=0.05):
        code, out, err = mill("run", path)
    assert (code, out) == (4, "")
    assert f"driver {os.getpid()} on " in err
    assert "run the same command again" in err


def test_failed_work(mill, corpus):
    """Work that fails after its retries exits 1, names the cell and the cause, and says how to resume."""
    yaml = NO_WORDS.replace("{module}:COPIES", f"{__name__}:BROKEN")
    code, out, err = mill("run", written(corpus, yaml))
    assert (code, out) == (1, "")
    assert "copies.reduce 0000of0001: attempt failed: RuntimeError: the disk of this partition is gone" in err
    assert "what is finished is recorded: run the same command again to resume" in err


def test_a_fault(mill, corpus, monkeypatch):
    """An error that nobody foresaw exits 1 with its traceback; with --json stdout still holds one document."""

    def fail(*arguments, **more):
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr(run, "run", fail)
    code, out, err = mill("run", written(corpus), "--json")
    assert code == 1
    assert json.loads(out)["error"]["kind"] == "ZeroDivisionError"
    assert "Traceback" in err


def test_what_fails_while_a_stop_unwinds(mill, corpus, monkeypatch):
    """A request to stop is what counts, even if something else fails on the way out."""

    def fail(*arguments, **more):
        try:
            raise KeyboardInterrupt
        finally:
            raise StorageError("the store went away")

    monkeypatch.setattr(run, "run", fail)
    code, out, _ = mill("run", written(corpus), "--json")
    assert code == 130
    assert json.loads(out)["error"]["kind"] == "Interrupted"


# -- --json ----------------------------------------------------------------------------------------------------------


def test_stdout_holds_one_document(corpus):
    """With --json stdout holds the report as it is in its file, and nothing that libraries print there."""
    noisy = "import os; os.write(1, b'noise'); print('noise')"
    (corpus / "noisy.py").write_text(f"from tests.pipeline.small_runs import WORDS\n{noisy}\n")
    path = written(corpus, small_runs.YAML.replace("{module}:WORDS", "noisy:WORDS"))
    done = spawned("run", path, "--json", env={**os.environ, "PYTHONPATH": str(corpus)})
    assert done.returncode == 5
    report = json.loads(done.stdout)
    assert done.stdout.count("\n") == 1
    assert report == json.loads(Path(report["run"]["paths"]["report"]).read_bytes())
    assert "noise" in done.stderr
    assert "complete" not in done.stderr


@pytest.mark.parametrize("command", ["plan", "status", "report"])
def test_documents(mill, finished, command):
    """Looking exits 0, with a table for people and a document with its schema for programs."""
    code, out, err = mill(command, finished)
    assert (code, err) == (0, "")
    assert out.startswith("small  ")
    code, out, err = mill(command, finished, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["schema"] == f"corpusmill.{command}/1"


def test_the_report_of_a_folder(mill, finished):
    """A run's folder stands for its config, and its report is the one that the run printed."""
    folder = Path(finished).parent / "work" / "small"
    of_folder, of_config = (json.loads(mill("report", run, "--json")[1]) for run in (folder, finished))
    assert of_folder == of_config


def test_a_report_that_is_not_there(mill, finished):
    """Under settings that never ran there is no report, and the error says what to do."""
    code, _, err = mill("report", finished, "--set", "words.limit=7")
    assert code == 2
    assert "run it to the end first" in err


# -- what commands do ------------------------------------------------------------------------------------------------


def test_set(mill, corpus):
    """--set changes a setting for this run, several times in one call, and a wrong one is refused with its name."""
    path = written(corpus)
    _, out, _ = mill("run", path, "--set", "words.limit=100", "--set", "name=other", "--json")
    report = json.loads(out)
    assert report["run"]["name"] == "other"
    assert report["totals"]["kept"]["docs"] == 0
    code, _, err = mill("run", path, "--set", "words.limt=2")
    assert code == 2
    assert "did you mean 'limit'?" in err


def test_executor_and_address(mill, corpus):
    """--executor and --address are settings like others, checked like others."""
    code, _, err = mill("run", written(corpus), "--executor", "slurm")
    assert code == 2
    assert "run.executor: got 'slurm'" in err


def test_explain(mill, finished):
    """A document is told by its key, with whoever it is charged to; by an id all that have it."""
    code, out, _ = mill("explain", finished, "1.parquet:24")
    assert code == 0
    assert "removed by copies: exact_duplicate" in out
    assert "charged by copies to 0.parquet:24" in out
    documents = json.loads(mill("explain", finished, "--id", "1-3", "--json")[1])["documents"]
    assert [(told["shard"], told["row"], told["outcome"]["fate"]) for told in documents] == [("1.parquet", 3, "kept")]
    code, _, err = mill("explain", finished, "9.parquet:1")
    assert code == 2
    assert "no such shard" in err


def test_explain_what_failed_and_what_is_not_there_yet(mill, corpus):
    """A quarantined document shows its message; before the run every document is pending."""
    path = written(corpus)
    assert "pending" in mill("explain", path, "0.parquet:23")[1]
    mill("run", path)
    out = mill("explain", path, "0.parquet:23")[1]
    assert "quarantined by words: stage_error" in out
    assert "cannot read this" in out


def test_verify(mill, corpus):
    """Published files verify with 0; one changed byte is damage, named, and exits 3."""
    path = written(corpus)
    mill("run", path)
    code, out, _ = mill("tier", "verify", path)
    assert code == 0
    assert "everything is as it was published" in out
    data = next((corpus / "hot" / "small" / "data").rglob("*.parquet"))
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    code, out, _ = mill("tier", "verify", path)
    assert code == 3
    assert f"checksum: {data}" in out
    code, out, _ = mill("tier", "verify", corpus / "hot" / "small" / "v1" / "manifest.json", "--json")
    assert (code, len(json.loads(out)["problems"])) == (3, 1)


def test_dry_run(mill, corpus):
    """A dry run exits 0 even where rows would be quarantined, tells its page, and leaves the run itself unstarted."""
    path = written(corpus)
    code, out, _ = mill("dry-run", path)
    assert code == 0
    assert "small  dry run on 76 sampled documents" in out
    assert "quarantined 3 documents: " in out
    code, out, _ = mill("dry-run", path, "--until", "words", "--json")
    report = json.loads(out)
    assert (code, report["run"]["dry_run"]) == (0, True)
    assert [stage["label"] for stage in report["stages"]] == ["ingest", "words"]
    assert Path(report["run"]["paths"]["html"]).is_file()
    assert not (corpus / "hot").exists()
    assert json.loads(mill("status", path, "--json")[1])["runs"] == 0


def test_export(mill, finished, tmp_path):
    """What was published is written in another format, and where it lies is told."""
    code, out, err = mill("export", finished, "--format", "text", "--out", tmp_path / "text", "--json")
    assert (code, json.loads(out)["rows"]) == (0, 61)
    assert "data/train-s0/part-00000.jsonl.gz" in err or json.loads(out)["files"] == 2
    code, out, _ = mill("export", finished, "--format", "frame", "--out", tmp_path / "frame")
    assert code == 0
    assert "rows    76" in out
    assert mill("export", finished, "--format", "frame", "--out", tmp_path / "frame")[0] == 2


def test_convert(mill, tmp_path):
    """JSON lines become Parquet; a line that is no object is left out, told, and makes the exit code 5."""
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    code, out, _ = mill("convert", tmp_path / "a.jsonl", "--out", tmp_path / "good")
    assert code == 0
    assert "columns   text large_string" in out
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\nnothing\n')
    code, out, _ = mill("convert", tmp_path / "a.jsonl", "--out", tmp_path / "bad", "--json")
    assert (code, json.loads(out)["rejected"]) == (5, 1)


def test_fit(mill, tmp_path):
    """A quality model is fitted from good and bad texts, and the answer says how well it tells them apart."""
    for kind, words in (("good", "measured results show clearly that"), ("bad", "click buy cheap now free")):
        texts = [f"{words} {' '.join(words.split()[: n % 5 + 1])} number {n}" for n in range(600)]
        pq.write_table(pa.table({"text": texts}), tmp_path / f"{kind}.parquet")
    model = tmp_path / "quality.bin"
    files = [f"--{kind}={tmp_path}/{kind}.parquet" for kind in ("good", "bad")]
    code, out, _ = mill("fit", "quality", *files, "--out", model)
    assert code == 0
    assert "auc" in out
    assert model.is_file()


# -- stopping --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "workers"), [(signal.SIGINT, 0), (signal.SIGTERM, 1)])
def test_stop_and_resume(corpus, number, workers):
    """A signal ends a run with 130 and its ledger closed; the same command then redoes nothing that was finished."""
    path, mark = written(corpus, WAITS), corpus / "mark"
    command = [sys.executable, "-c", MAIN, "run", path, "--json", "--set", f"run.workers={workers}"]
    environment = {**os.environ, waiting.MARK: str(mark)}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    _wait_for(mark, process)
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert json.loads(out)["error"]["kind"] == "Interrupted"
    assert b"run the same command again to resume" in err
    state = ledger.read(Store(str(corpus / "work" / "small")))
    assert state.driver is None
    before = set(state.done)
    assert {state.done[cell].cell.label for cell in before} >= {"ingest", "copies"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    state = ledger.read(Store(str(corpus / "work" / "small")))
    assert not state.again
    assert before < set(state.done)


def _wait_for(mark, process):
    while not mark.exists():
        assert process.poll() is None, process.stderr.read()
        try:
            process.wait(timeout=0.05)
        except subprocess.TimeoutExpired:
            continue


def test_a_board_takes_what_the_engine_tells(corpus, tmp_path):
    """Every note of a whole run is one that the progress knows: at its end all groups are complete."""
    board, kinds = Board(lambda: 0.0), []

    def notify(kind, facts):
        kinds.append(kind)
        board.take(kind, facts)

    run.run(small_runs.configured(corpus), notify)
    assert {"stage", "start", "task", "published"} == set(kinds)
    assert board.group is None
