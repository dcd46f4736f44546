"""The command line: arguments, exit codes, and the only place that prints.

stdout carries a command's one result, as text or with --json as one JSON document; everything else goes to stderr.
Exit codes are those of pipeline.errors: 0 done, 1 work failed or a fault of corpusmill, 2 config or usage, 3 data
contract or guard, 4 storage, cluster or a second driver, 5 done with quarantined input, 130 interrupted.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from pipeline import __version__
from pipeline.errors import (
    EXIT_CONFIG,
    EXIT_CONTRACT,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_QUARANTINED,
    EXIT_STORAGE,
    ConfigError,
    CorpusmillError,
    setting_error,
)

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from pipeline.config import Config
    from pipeline.stage import Stage

app = typer.Typer(
    help="Turn raw text shards into the cheapest corpus that trains as good a model, and say what that saved.",
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
)  # fmt: skip
tier = typer.Typer(help="Look after published files.", no_args_is_help=True)
fit = typer.Typer(help="Train the small models that stages use.", no_args_is_help=True)
app.add_typer(tier, name="tier")
app.add_typer(fit, name="fit")

ConfigFile = Annotated[str, typer.Argument(metavar="CONFIG", help="A YAML file.")]
Run = Annotated[str, typer.Argument(metavar="RUN", help="The config file of a run, or its folder work/NAME.")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting: training.tokens=1e9, select.keep_top=0.3."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
WIDTH = 100
"""Columns of an output that is no terminal."""
RESUMABLE = (EXIT_FAILED, EXIT_STORAGE, EXIT_INTERRUPTED)


def _version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it and stop.")]


@dataclass(frozen=True, slots=True)
class Result:
    """What a command found: for --json, for people, and its exit code."""

    document: Any
    shown: Sequence[RenderableType]
    code: int = EXIT_OK


# -- commands --------------------------------------------------------------------------------------------------------


def command(
    group: typer.Typer, name: str | None = None, *, resumes: bool = False
) -> Callable[[Callable[..., Result]], Callable[..., int]]:
    """Make a function that returns a Result a command of `group`. `resumes`: given again, it goes on where it was."""

    def register(function: Callable[..., Result]) -> Callable[..., int]:
        @functools.wraps(function)
        def call(*, as_json: bool, **arguments: Any) -> int:
            work = functools.partial(function, **arguments, as_json=as_json)
            return _perform(work, as_json=as_json, resumes=resumes)

        group.command(name)(call)
        return call

    return register


@command(app, resumes=True)
def run(
    config: ConfigFile,
    executor: Annotated[str | None, typer.Option(metavar="local|ray", help="Sets run.executor.")] = None,
    address: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Sets run.address.")] = None,
    sets: Sets = None, as_json: Json = False,
) -> Result:  # fmt: skip
    """Start or resume a run: curate, publish, report."""
    from pipeline import run as engine
    from pipeline.commands import shown
    from pipeline.commands.progress import progress
    from pipeline.report import table

    given = {"run.executor": executor, "run.address": address}
    overrides = [*(sets or ()), *(f"{key}={value}" for key, value in given.items() if value is not None)]
    with _stoppable(), progress(_log()) as notify:
        report = engine.run(_load(config, overrides), notify)
    code = EXIT_QUARANTINED if shown.is_quarantined(report) else EXIT_OK
    return Result(report, [table.table(report), shown.outcome(report)], code)


@command(app, "dry-run")
def dry_run(
    target: Annotated[str, typer.Argument(metavar="CONFIG|PARQUET", help="A config, or just a Parquet file.")],
    until: Annotated[str | None, typer.Option(metavar="STAGE", help="The last stage to try.")] = None,
    out: Annotated[str | None, typer.Option(metavar="DIR", help="A folder for what it writes.")] = None,
    sets: Sets = None, as_json: Json = False,
) -> Result:  # fmt: skip
    """Try a run on a sample, stage by stage, and predict the whole."""
    from pipeline.commands import dryrun, shown
    from pipeline.commands.progress import progress
    from pipeline.report import table

    with _stoppable(), progress(_log()) as notify:
        report = dryrun.dry_run(target, _stages(), until=until, overrides=sets or (), out=out, notify=notify)
    return Result(report, [table.table(report), shown.outcome(report)])


@command(app)
def plan(config: ConfigFile, sets: Sets = None, as_json: Json = False) -> Result:
    """Say what a run would do and why, without doing anything."""
    from pipeline.commands import outlook

    found = outlook.outlook(_load(config, sets or ()))
    return Result(found, [outlook.table(found)])


@command(app)
def status(run: Run, sets: Sets = None, as_json: Json = False) -> Result:
    """Say how far a run is and who has it, from its ledger alone."""
    from pipeline.commands import status as ledger_status

    registry = () if os.path.isdir(run) else _stages()
    found = ledger_status.status(ledger_status.folder_of(run, registry, sets or ()))
    return Result(found, [ledger_status.table(found)])


@command(app)
def report(run: Run, sets: Sets = None, as_json: Json = False) -> Result:
    """Show the report of a run again."""
    from pipeline.commands import shown
    from pipeline.opened import results_folder, work_store
    from pipeline.report import table

    config = _config_of(run, sets)
    folder = work_store(config).child(results_folder(config.fingerprint))
    if not folder.exists("report.json"):
        step = "run it to the end first, give the --set it was run with, or name its folder work/NAME"
        raise setting_error("RUN", run, f"{folder.where('report.json')} does not exist", step)
    found = json.loads(folder.read_bytes("report.json"))
    return Result(found, [table.table(found), shown.outcome(found)])


@command(app)
def explain(
    run: Run,
    key: Annotated[str | None, typer.Argument(metavar="SHARD:ROW", help="A shard and a row in it, from 0.")] = None,
    wanted: Annotated[str | None, typer.Option("--id", metavar="ID", help="All documents with this id.")] = None,
    sets: Sets = None, as_json: Json = False,
) -> Result:  # fmt: skip
    """Say what happened to a document, and why."""
    from pipeline.commands import explain as sidecars
    from pipeline.commands import shown

    if (key is None) == (wanted is None):
        raise ConfigError("explain: name one document, by SHARD:ROW or by --id ID")
    config = _config_of(run, sets)
    keys = [sidecars.parse_key(key)] if key is not None else sidecars.find_id(config, str(wanted))
    found = [sidecars.explain(config, shard, row) for shard, row in keys]
    return Result(found[0] if key is not None else {"documents": found}, [shown.story(told) for told in found])


@command(app)
def export(
    run: Run,
    kind: Annotated[str, typer.Option("--format", metavar="text|frame", help="What to write.")],
    out: Annotated[str, typer.Option(metavar="URL", help="A folder, on any store.")],
    sets: Sets = None, as_json: Json = False,
) -> Result:  # fmt: skip
    """Copy what a run published into another format."""
    from pipeline.commands import export as exports
    from pipeline.commands import shown
    from pipeline.commands.progress import progress

    with _stoppable(), progress(_log()) as notify:
        found = exports.export(_config_of(run, sets), kind, out, notify)
    return Result(found, [shown.pairs(found)])


@command(app)
def convert(
    source: Annotated[str, typer.Argument(metavar="SRC", help="JSON lines, plain, .gz or .zst; or a folder.")],
    out: Annotated[str, typer.Option(metavar="DIR", help="A folder for the Parquet files.")],
    as_json: Json = False,
) -> Result:  # fmt: skip
    """Make Parquet shards of JSON lines."""
    from pipeline.commands import convert as conversion
    from pipeline.commands import shown
    from pipeline.commands.progress import progress

    with _stoppable(), progress(_log()) as notify:
        found = conversion.convert(source, out, notify)
    return Result(found, [shown.converted(found)], EXIT_QUARANTINED if found["rejected"] else EXIT_OK)


@command(tier)
def verify(
    target: Annotated[str, typer.Argument(metavar="RUN|MANIFEST", help="A config, work/NAME, or a manifest.json.")],
    as_json: Json = False,
) -> Result:
    """Read every published file and compare it with its manifest."""
    from pipeline.commands import shown, tiering

    found = tiering.verify(target if target.endswith(".json") else _config_of(target, None))
    return Result(found, [shown.verified(found)], EXIT_CONTRACT if found["problems"] else EXIT_OK)


@command(fit)
def quality(
    good: Annotated[list[str], typer.Option(metavar="URL", help="Good texts: Parquet, or what a run published.")],
    bad: Annotated[list[str], typer.Option(metavar="URL", help="Bad texts.")],
    out: Annotated[str, typer.Option(metavar="FILE", help="The model to write.")],
    as_json: Json = False,
) -> Result:
    """Fit a classifier for the quality stage from examples."""
    from pipeline.commands import fitting, shown
    from stages import quality as stage

    card = fitting.fit_quality(good, bad, out, stage.fit)
    return Result(card, [shown.fitted(card, out)])


@app.callback()
def _root(version: Version = False) -> None:
    pass


def _stages() -> tuple[Stage, ...]:
    from stages import STAGES

    return STAGES


def _load(config: str, overrides: Sequence[str]) -> Config:
    from pipeline.config import load

    return load(config, _stages(), overrides)


def _config_of(run: str, sets: Sequence[str] | None) -> Config:
    from pipeline.commands.target import config_of

    return config_of(run, _stages(), sets or ())


# -- from command to exit code ---------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return int(app(given, prog_name="corpusmill", standalone_mode=False) or EXIT_OK)
    except Exception as error:
        if getattr(error, "exit_code", None) != EXIT_CONFIG:  # what typer raises for a wrong call has it
            raise
        message, context = error.format_message(), getattr(error, "ctx", None)  # type: ignore[attr-defined]
    if message:  # empty for a call without arguments, which has shown the help instead
        print(f"error: {message}", file=sys.stderr)
    if message and context is not None:
        print(f"{context.get_usage()}\n{context.command_path} --help says more", file=sys.stderr)
    if "--json" in given:
        print(_error_document("UsageError", EXIT_CONFIG, message))
    return EXIT_CONFIG


def _perform(work: Callable[[], Result], *, as_json: bool, resumes: bool) -> int:
    with _kept_stdout() as out:
        try:
            result = work()
        except BaseException as error:
            return _fail(error, out if as_json else None, resumes=resumes)
        with suppress(BrokenPipeError):  # whoever reads has seen enough
            _show(result, out, as_json=as_json)
        return result.code


@contextmanager
def _kept_stdout() -> Iterator[TextIO]:
    """The real stdout, for the result; all else that writes to it, native libraries included, goes to stderr."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    with redirect_stdout(sys.stderr), os.fdopen(os.dup(kept), "w", encoding="utf-8") as out:
        try:
            yield out
        finally:
            with suppress(BrokenPipeError):
                out.flush()
            os.dup2(kept, 1)
            os.close(kept)


def _show(result: Result, out: TextIO, *, as_json: bool) -> None:
    from pipeline.keys import canonical

    if as_json:
        print(canonical(result.document).decode(), file=out, flush=True)
        return
    console = _console(out)
    for part in result.shown:
        console.print(part, crop=False)
    out.flush()


def _console(file: TextIO) -> Console:
    from rich.console import Console

    return Console(file=file, width=None if file.isatty() else WIDTH, highlight=False)


def _log() -> Console:
    return _console(sys.stderr)


def _fail(error: BaseException, out: TextIO | None, *, resumes: bool) -> int:
    """Say what went wrong, on stderr and with --json on `out` too; returns the exit code."""
    kind, code, message = type(error).__name__, EXIT_FAILED, f"{error}"
    if _interrupted(error):
        kind, code, message = "Interrupted", EXIT_INTERRUPTED, "stopped on request"
    elif isinstance(error, CorpusmillError):
        code, message = error.exit_code, error.message
    else:
        traceback.print_exception(error)
        message = f"{kind}: {message} (a fault of corpusmill: the traceback above says where)"
    print(f"error: {message}", file=sys.stderr)
    if resumes and code in RESUMABLE:
        print("what is finished is recorded: run the same command again to resume", file=sys.stderr)
    if out is not None:
        print(_error_document(kind, code, message), file=out, flush=True)
    return code


def _error_document(kind: str, code: int, message: str) -> str:
    return json.dumps({"error": {"kind": kind, "exit_code": code, "message": message}}, ensure_ascii=False)


def _interrupted(error: BaseException | None) -> bool:
    """Whether a request to stop is at the bottom of it: what fails while a run unwinds does not hide that.

    A SystemExit is one too: Ray answers SIGTERM with it, in place of our own handler.
    """
    while error is not None:
        if isinstance(error, KeyboardInterrupt | SystemExit) or getattr(error, "exit_code", None) == EXIT_INTERRUPTED:
            return True
        error = error.__context__
    return False


@contextmanager
def _stoppable() -> Iterator[None]:
    """The first SIGINT or SIGTERM ends the run in order, its ledger flushed; the next one at once."""
    numbers = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) is not signal.SIG_IGN]

    def stop(number: int, frame: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, signal.default_int_handler)
        os.write(2, b"\nstopping: what is finished is being recorded (once more to stop at once)\n")
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
