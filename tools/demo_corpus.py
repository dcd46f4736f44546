"""Build a corpus of real text from what is installed beside corpusmill: nothing is downloaded, nothing is made up.

    python tools/demo_corpus.py OUT [--megabytes 30] [--shards 6]

Sources: licences; readmes and documentation that distributions carry; docstrings; comments of Python code; comments of
C and C++ headers. Copied licences, vendored packages and generated code bring real exact and near duplicates. The same
installed packages give the same bytes: files are taken by name, documents are ordered by the hash of their id.
"""

from __future__ import annotations

import argparse
import re
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

SHARES = {"docstrings": 0.45, "comments": 0.2, "headers": 0.15, "documentation": 0.12, "licences": 0.08}
"""Most of the corpus that each source may be; what one source lacks the others do not fill."""
SHORTEST, LONGEST, PIECE = 200, 16_000, 8_000
"""Characters: shorter texts are left out, longer ones are cut into pieces of about PIECE at blank lines."""
LARGEST_FILE = 4_000_000
DOCSTRING = re.compile(r'"""(.*?)"""', re.DOTALL)
COMMENT = re.compile(r"(?:^[ \t]*#.*\n){4,}", re.MULTILINE)
C_COMMENT = re.compile(r"/\*(.*?)\*/|((?:^[ \t]*//.*\n){4,})", re.DOTALL | re.MULTILINE)
MARK = re.compile(r"^[ \t]*(?:#+|///?<?|\*)[ \t]?", re.MULTILINE)
PROSE = (".md", ".rst", ".txt", ".html")


def documents(folder: Path) -> Iterator[tuple[str, str, str]]:
    """(id, source, text) of everything found under a folder of installed packages."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if not path.is_file() or path.is_symlink() or path.stat().st_size > LARGEST_FILE:
            continue
        for source, text in texts(path, name.lower()):
            for number, piece in enumerate(pieces(text)):
                if len(piece) >= SHORTEST:
                    yield f"{name}#{source}-{number}", source, piece


def texts(path: Path, name: str) -> Iterator[tuple[str, str]]:
    base = name.rsplit("/", 1)[-1]
    if re.match(r"(licen[sc]e|copying|notice|authors)", base) or "/licenses/" in name:
        yield "licences", read(path)
    elif base == "metadata" and ".dist-info/" in name:
        yield "documentation", read(path).partition("\n\n")[2]
    elif base.endswith(PROSE) and base not in {"top_level.txt", "entry_points.txt"}:
        yield "documentation", read(path)
    elif base.endswith(".py"):
        code = read(path)
        docstrings = [found.strip() for found in DOCSTRING.findall(code)]
        yield from (("docstrings", found) for found in docstrings if len(found) >= SHORTEST)
        yield from (("comments", unmarked(found)) for found in COMMENT.findall(code))
    elif base.endswith((".h", ".hpp")):
        blocks = [unmarked(first or second) for first, second in C_COMMENT.findall(read(path))]
        yield "headers", "\n\n".join(block for block in blocks if len(block) > 40)


def read(path: Path) -> str:
    data = path.read_bytes()
    return "" if b"\0" in data[:4096] else data.decode("utf-8", "replace")


def unmarked(block: str) -> str:
    return MARK.sub("", block).strip()


def pieces(text: str) -> Iterator[str]:
    """The text, or for a long one its parts of about PIECE characters, cut at blank lines or line ends."""
    start = 0
    while len(text) - start > LONGEST:
        cut = text.find("\n\n", start + PIECE, start + LONGEST)
        cut = cut if cut >= 0 else text.find("\n", start + PIECE, start + LONGEST)
        cut = cut if cut >= 0 else start + PIECE
        yield text[start:cut].strip()
        start = cut
    yield text[start:].strip()


def build(out: Path, megabytes: float, shards: int) -> dict[str, int]:
    """Write the shards; returns bytes by source."""
    folders = {"site": Path(sysconfig.get_path("purelib")), "python": Path(sysconfig.get_path("stdlib"))}
    found = [
        (f"{kind}/{name}", source, text)
        for kind, folder in folders.items()
        for name, source, text in documents(folder)
        if not (kind == "python" and name.startswith("site-packages/"))
    ]
    found.sort(key=lambda document: xxhash.xxh3_64_intdigest(document[0].encode()))
    used = dict.fromkeys(SHARES, 0)
    kept = []
    for name, source, text in found:
        size = len(text.encode())
        if used[source] + size <= SHARES[source] * megabytes * 1_000_000:
            used[source] += size
            kept.append((name, source, text))
    out.mkdir(parents=True, exist_ok=True)
    for number in range(shards):
        rows = kept[number * len(kept) // shards : (number + 1) * len(kept) // shards]
        columns = {"id": [r[0] for r in rows], "source": [r[1] for r in rows], "text": [r[2] for r in rows]}
        part = out / f"part-{number:03d}.parquet"
        pq.write_table(pa.table(columns), part, compression="zstd", row_group_size=1000)
    return used


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--megabytes", type=float, default=30)
    parser.add_argument("--shards", type=int, default=6)
    given = parser.parse_args()
    used = build(given.out, given.megabytes, given.shards)
    total = sum(used.values())
    by_source = ", ".join(f"{source} {size / 1e6:.1f}" for source, size in used.items())
    print(f"demo corpus: {total / 1e6:.1f} MB of real text in {given.shards} shards under {given.out} ({by_source} MB)")
    if total < 20_000_000:
        sys.exit("demo corpus: less than 20 MB of text is installed here; is this corpusmill's own environment?")


if __name__ == "__main__":
    main()
