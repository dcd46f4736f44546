"""What the documentation says is true: commands run, links lead somewhere, formats are those of a real run.

Blocks of a page run in their order, in a folder of their own that holds `shards/` and `crawl.jsonl.gz`. A block after a
line that ends in `NAME`: is written to that file instead. A block after `<!-- not run: reason -->` is only read.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.contract.stage_contract.case import texts

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", ".github/CONTRIBUTING.md", "docs/operators.md", "docs/adding-a-stage.md", "docs/decisions.md"]
BLOCK = re.compile(
    r"(?:(?:`([\w./-]+)`:|<!-- not run: (.+?) -->)\s*\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
SET_UP = ("tools/demo", "tools/test", "pip install")
"""Commands that set up an environment: they have tests of their own."""


class Block(NamedTuple):
    """A fenced block: the file it is to be written to and why it is not run, if so; its language and text."""

    file: str
    skip: str
    language: str
    text: str


def blocks(page):
    return [Block(*found) for found in BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))]


@pytest.fixture
def folder(tmp_path):
    """A folder with a small corpus in it, and `corpusmill` and `python` that mean this checkout."""
    rows = [
        {"id": f"d{i}", "source": ("web", "books")[i % 2], "text": text.upper() if i % 9 == 0 else text}
        for i, text in enumerate(texts() * 2)
    ]
    (tmp_path / "shards").mkdir()
    for number in range(2):
        pq.write_table(pa.Table.from_pylist(rows[number::2]), tmp_path / "shards" / f"{number:02d}.parquet")
    with gzip.open(tmp_path / "crawl.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(row)}\n" for row in rows)
    return tmp_path


@pytest.fixture
def environment(tmp_path_factory):
    """Variables under which the commands of the documentation mean this checkout, installed or not."""
    programs = tmp_path_factory.mktemp("bin")
    main = "import sys\nfrom pipeline.cli import main\nif __name__ == '__main__':\n    sys.exit(main())\n"
    (programs / "main.py").write_text(main)
    python = f'PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}{ROOT}" exec {sys.executable} "$@"'
    for name, text in (("python", python), ("corpusmill", f'exec python {programs}/main.py "$@"')):
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    path = os.pathsep.join([str(programs), os.environ["PATH"]])
    return os.environ | {"PATH": path, "CORPUSMILL": str(ROOT)}


def perform(page, folder, environment, *, wanted):
    """Write and run the blocks of a page whose text `wanted` accepts; returns what was run."""
    done = []
    for block in blocks(page):
        if block.file:
            (folder / block.file).write_text(block.text, encoding="utf-8")
            continue
        if block.skip or block.language not in ("sh", "python") or not wanted(block.text):
            continue
        command = ["sh", "-eu", "-c", block.text] if block.language == "sh" else ["python", "-c", block.text]
        found = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert found.returncode == 0, f"{page}:\n{block.text}\n{found.stdout[-2000:]}\n{found.stderr[-4000:]}"
        done.append(block.text)
    return done


def quick(text):
    return not any(command in text for command in SET_UP) and "ray" not in text


@pytest.mark.parametrize("page", ["README.md", "docs/adding-a-stage.md"])
def test_commands_work(page, folder, environment):
    """Every command of the page runs, one after the other, and ends well."""
    assert len(perform(page, folder, environment, wanted=quick)) > 1


@pytest.mark.ray
@pytest.mark.slow
def test_ray_commands_work(folder, environment):
    """The README's commands on Ray run on a cluster of their own."""
    assert perform("README.md", folder, environment, wanted=lambda text: quick(text) or "ray" in text)


@pytest.mark.slow
def test_demo_works():
    """`tools/demo` ends well and prints the report's table and where the page lies."""
    found = subprocess.run(["tools/demo"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode in (0, 5), found.stderr[-4000:]
    for part in ("kept", "heuristics", "minhash", "curriculum", "report.html", "manifest.json"):
        assert part in found.stdout
    (newest, *_) = sorted(
        ROOT.glob("runs/demo/work/demo/results/*/report.html"), key=lambda page: -page.stat().st_mtime
    )
    assert newest.read_text(encoding="utf-8").rstrip().endswith("</html>")


def test_tools_can_be_run():
    """The commands that the README starts with are there and executable."""
    for name in ("tools/demo", "tools/test", "tools/check"):
        assert (ROOT / name).stat().st_mode & stat.S_IXUSR
        assert name in (ROOT / "README.md").read_text(encoding="utf-8") or name == "tools/check"


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    """Relative links name files, and with # a heading in them."""
    here = ROOT / page
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", here.read_text(encoding="utf-8")):
        name, _, anchor = target.partition("#")
        path = (here.parent / name) if name else here
        assert path.exists(), f"{page} links to {target}"
        headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE) if anchor else []
        assert not anchor or anchor in [
            re.sub(r"[^\w -]", "", line).strip().lower().replace(" ", "-") for line in headings
        ]


@pytest.mark.parametrize("page", PAGES)
def test_files_named_exist(page):
    """What stands in backticks like a file of this repository is one."""
    for name in re.findall(
        r"`((?:docs|stages|pipeline|configs|tools|tests)/[\w./-]+)`", (ROOT / page).read_text("utf-8")
    ):
        assert (ROOT / name).exists() or name.endswith("results"), f"{page} names {name}"


def test_example_is_short():
    """Adding a stage from outside takes less than 40 lines."""
    (stage,) = [block for block in blocks("docs/adding-a-stage.md") if block.language == "python"]
    assert len(stage.text.splitlines()) < 40


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a run of most stages, in this process."""
    from pipeline.config import loads
    from pipeline.run import run
    from stages import STAGES

    root = tmp_path_factory.mktemp("finished")
    pq.write_table(pa.table({"text": texts(), "source": ["a", "b"] * (len(texts()) // 2)}), root / "in.parquet")
    tiers = ", ".join(f"{tier}: {{url: '{root}/{tier}'}}" for tier in ("work", "hot", "cold"))
    last = "{stage: curriculum, by: difficulty.bits_per_byte}"
    run(
        loads(
            f"name: own\ninput: {{paths: ['{root}/in.parquet']}}\ntiers: {{{tiers}}}\nrun: {{workers: 0}}\n"
            f"stages: [{{stage: exact}}, {{stage: minhash}}, {{stage: difficulty, bits: 16}}, {last}]\n",
            STAGES,
        )
    )
    return root


def operators():
    return (ROOT / "docs/operators.md").read_text(encoding="utf-8")


def test_every_file_of_a_run_is_described(finished):
    """Each file that a run leaves behind matches a row of the table of where things lie."""
    table = operators().partition("## Where things lie")[2].partition("## ")[0]
    rows = [re.findall(r"`([^`]+)`", row.split("|")[1]) for row in table.splitlines() if row.startswith("| `")]
    patterns = []
    for first, *_ in rows:
        escaped = re.escape(first.replace("NAME", "own"))
        patterns.append(
            re.sub(r"<[^>]*>", "[^/]+", escaped).replace(r"\.\.\.", ".*") + (".*" if first.endswith("/") else "")
        )
    found = [path.relative_to(finished).as_posix() for path in finished.rglob("*") if path.is_file()]
    shared = [path for path in found if path != "in.parquet"]
    assert len(shared) > 20
    for path in shared:
        named = path.replace(".bin", ".json") if "/facts/" in path else path
        assert any(re.fullmatch(pattern, named) for pattern in patterns), f"docs/operators.md has no row for {path}"


def test_every_ledger_field_is_described(finished):
    """The table of ledger records names each field of each kind, and no other."""
    section = operators().partition("## The ledger")[2].partition("## ")[0]
    seen = set()
    for file in sorted((finished / "work/own/ledger").glob("*.jsonl")):
        for record in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
            row = next(line for line in section.splitlines() if line.startswith(f"| `{record['kind']}` |"))
            inner = {*record.get("seconds", ()), "transient", "lost"} if record["kind"] != "start" else set()
            assert {*record} - {"kind", "time"} <= set(re.findall(r"`(\w+)`", row)), record["kind"]
            assert set(re.findall(r"`(\w+)`", row)) - {record["kind"]} <= {*record, *inner}, record["kind"]
            seen.add(record["kind"])
            for cell in record.get("cells", ()):
                assert all(f"`{name}`" in section for name in cell)
    assert seen == {"start", "done", "stop"}


def test_every_sidecar_column_is_described(finished):
    """The page names the columns that the engine writes into sidecars."""
    section = operators().partition("## Sidecars")[2].partition("## ")[0]
    own = {"curriculum": {"bucket"}, "difficulty": {"bits_per_byte", "sum_nll", "tokens", "fold", "zstd_ratio"}}
    for file in (finished / "work/own/sidecars").rglob("*.parquet"):
        label = file.parent.parent.name.partition("-")[0]
        for name in pq.read_schema(file).names:
            assert f"`{name}`" in section or name in own.get(label, ()), f"{label}: {name}"


def test_every_exit_code_is_described():
    """The page's table has the codes of pipeline.errors."""
    from pipeline import errors

    codes = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", operators(), re.MULTILINE)} == codes


def test_changelog_has_this_version():
    """The version that is installed has its entry."""
    from pipeline import __version__

    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
