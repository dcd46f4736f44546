"""The house rules that a machine can check: who imports whom, who may do what, how long files are, what start-up loads.

They hold for pipeline/ and stages/, the two packages that are installed.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]

LAYERS = """
    errors figures keys types units utf8 grid settle cost
    stage handoff storage
    config
    corpus reading columns ingest frame split
    job damage binding listing exchange account state ledger
    examples steps slices rowgroups hot parts worker
    executors.local executors.ray
    plan opened cuts publish driver
    report results run
    commands
    cli
"""
"""The parts of pipeline from the ground up, in reading order: each may import only what stands before it."""

FOR_STAGES = {"stage", "types", "errors", "grid", "units"}
"""The parts of pipeline that a stage may import: no IO, no executor, nothing that knows of a run."""

HOMES = {
    "fsspec": {"pipeline/storage/remote.py"},
    "s3fs": set(),
    "ray": {"pipeline/executors/ray.py"},
    "typer": {"pipeline/cli.py"},
    "numba": {"stages/text"},
    "fasttext": {"stages/text/classifier.py"},
    "torch": set(),
    "pandas": set(),
}
"""Libraries that only these files or folders import."""

PRINTS = {"pipeline/cli.py"}
HEAVY = ("ray", "numba", "fasttext", "polars", "s3fs", "torch", "pandas", "scipy")
LONGEST_FILE, LONGEST_FUNCTION = 400, 60

TESTED_BY = {
    "tests/pipeline/test_cost.py": "pipeline/figures",
    "tests/pipeline/config/test_loading.py": (
        "pipeline/config/overrides pipeline/config/problems pipeline/config/settings pipeline/config/stagelist"
    ),
    "tests/pipeline/report/test_document.py": "pipeline/report/table",
    "tests/pipeline/commands/test_outlook.py": "pipeline/commands/changes pipeline/commands/estimate",
    "tests/pipeline/commands/test_dryrun.py": "pipeline/commands/predictions pipeline/commands/starter",
    "tests/pipeline/commands/test_convert.py": "pipeline/commands/kinds",
    "tests/pipeline/commands/test_explain.py": "pipeline/commands/target",
    "tests/pipeline/test_cli.py": "pipeline/commands/shown",
    "tests/pipeline/test_hot.py": "pipeline/rowgroups",
    "tests/contract/test_executors.py": "pipeline/executors/ray pipeline/job",
    "tests/contract/test_stages.py": "pipeline/stage",
    "tests/stages/test_quality.py": "stages/text/classifier stages/text/flatten stages/text/sample",
    "tests/stages/text/test_resolve.py": "stages/text/greedy",
    "tests/stages/text/test_ngram_model.py": "stages/text/ngram",
    "tests/stages/text/test_normalise.py": "stages/text/utf8 stages/text/bits",
    "tests/stages/test_heuristics.py": (
        "stages/text/rules stages/text/rules_chars stages/text/rules_lines stages/text/rules_ngrams "
        "stages/text/rules_numbering stages/text/rules_runs stages/text/rules_words"
    ),
    "tests/e2e": (
        "pipeline/errors pipeline/types pipeline/keys pipeline/account pipeline/binding pipeline/examples "
        "pipeline/listing pipeline/opened pipeline/results pipeline/run pipeline/slices pipeline/split"
    ),
}
"""Source files without a test file of their name, by the tests that cover them."""


class Import(NamedTuple):
    """`name` is imported by the file at `path`, relative to the root; `late` means inside a function."""

    path: str
    name: str
    line: int
    late: bool


def sources(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(path: Path) -> Iterator[Import]:
    """Everything that is imported when the file runs, inside functions too; not what only a type checker sees."""
    todo: list[tuple[ast.AST, bool]] = [(ast.parse(path.read_text(encoding="utf-8")), False)]
    while todo:
        node, late = todo.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        late = late or isinstance(node, ast.FunctionDef)
        todo += [(child, late) for child in ast.iter_child_nodes(node)]
        found = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{relative(path)}:{node.lineno}: imports are absolute"
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            found = [name if is_module(name) else str(node.module) for name in whole]
        yield from (Import(relative(path), name, getattr(node, "lineno", 0), late) for name in found)


def is_module(name: str) -> bool:
    path = ROOT / name.replace(".", "/")
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def part_of(module: str) -> str:
    """The part of pipeline that a module belongs to: `pipeline.storage.remote` -> `storage`."""
    _, _, inside = module.partition(".")
    return inside if inside.startswith("executors.") else inside.partition(".")[0]


def module_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def test_pipeline_imports_point_down():
    """No part of the engine imports one that stands above it, and every part has its place."""
    order = {part: place for place, part in enumerate(LAYERS.split())}
    parts = {part_of(module_of(relative(path))) for path in sources("pipeline")} - {"", "executors"}
    assert parts == set(order), f"not in LAYERS: {parts - set(order)}; gone: {set(order) - parts}"
    wrong = []
    for path in sources("pipeline"):
        own = part_of(module_of(relative(path)))
        for found in imports(path):
            other = part_of(found.name) if found.name.startswith("pipeline.") else own
            if other != own and order[other] > order.get(own, -1):
                wrong.append(f"{found.path}:{found.line} imports {found.name}")
    assert not wrong


def test_the_engine_knows_no_stage():
    """Only the command line, where everything is put together, imports stages."""
    users = {
        found.path for path in sources("pipeline") for found in imports(path) if found.name.split(".")[0] == "stages"
    }
    assert users <= {"pipeline/cli.py"}


def test_stages_stand_apart():
    """A stage imports what stage authors may import and stages.text, never the rest of the engine or another stage."""
    for path in sources("stages"):
        for found in imports(path):
            package, _, inside = found.name.partition(".")
            if package == "pipeline":
                assert inside in FOR_STAGES, f"{found.path}:{found.line} imports {found.name}"
            elif package == "stages" and found.path != "stages/__init__.py":
                assert inside.startswith("text"), f"{found.path}:{found.line} imports {found.name}"


def test_handoff_stands_alone():
    """A training image loads the hand-off with numpy, pyarrow and the standard library; checking ids takes xxhash."""
    allowed = {"numpy", "pyarrow", *sys.stdlib_module_names}
    for path in sources("pipeline/handoff"):
        for found in imports(path):
            if not found.name.startswith("pipeline.handoff"):
                assert found.name.split(".")[0] in allowed | ({"xxhash"} if found.late else set()), found


@pytest.mark.parametrize("library", HOMES)
def test_library_has_one_home(library):
    """A library that shapes its surroundings is imported in its home only."""
    found = {i.path for path in sources("pipeline", "stages") for i in imports(path) if i.name.split(".")[0] == library}
    strays = {path for path in found if not any(path == home or path.startswith(f"{home}/") for home in HOMES[library])}
    assert not strays


def calls(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id, node.lineno


def test_one_file_prints():
    """Only the command line writes to the terminal, so that --json can promise one document."""
    printing = {relative(path) for path in sources("pipeline", "stages") for name, _ in calls(path) if name == "print"}
    assert printing <= PRINTS


def test_stages_open_nothing():
    """Stages get batches and local files from the engine; they open none themselves."""
    for path in sources("stages"):
        assert "open" not in {name for name, _ in calls(path)}, relative(path)
        names = {found.name.split(".")[0] for found in imports(path)}
        assert not names & {"fsspec", "shutil", "socket", "subprocess", "urllib", "http", "requests"}, relative(path)


@pytest.mark.parametrize("path", sources("pipeline", "stages"), ids=relative)
def test_file_is_readable(path):
    """A file says what it is, and neither it nor any of its functions is longer than one can hold in mind."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "no docstring"
    assert len(text.splitlines()) <= LONGEST_FILE
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[1 if ast.get_docstring(node) and len(node.body) > 1 else 0]
            length = (node.end_lineno or 0) - first.lineno + 1
            assert length <= LONGEST_FUNCTION, f"{node.name} has {length} lines"
        text_of = ast.unparse(node) if isinstance(node, ast.Raise) else ""
        assert "NotImplementedError" not in text_of, f"line {node.lineno} is a placeholder"


def test_every_file_has_its_test():
    """Tests mirror the source: a file or its package has one of its name, or TESTED_BY says where it is tested."""
    listed = {f"{name}.py": test for test, names in TESTED_BY.items() for name in names.split()}
    missing, stale = [], []
    for path in sources("pipeline", "stages"):
        name, folder = relative(path), ROOT / "tests" / path.parent.relative_to(ROOT)
        own = (folder / f"test_{path.name}").exists() or (folder.parent / f"test_{folder.name}.py").exists()
        missing += [name] if not own and name not in listed and path.name != "__init__.py" else []
        stale += [name] if own and name in listed else []
    assert not missing, "write a test, or say in TESTED_BY where it is tested"
    assert not stale, "they have tests of their own by now: take them off TESTED_BY"
    for name, test in listed.items():
        assert (ROOT / name).exists(), f"TESTED_BY names {name}, which is gone"
        assert (ROOT / test).exists(), f"TESTED_BY names {test}, which does not exist"


def test_start_is_cheap():
    """The command line starts without the libraries that only some commands and stages need."""
    asked = f"import sys, pipeline.cli, stages; print(*[name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", asked], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr
