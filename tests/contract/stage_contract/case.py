"""A stage under one config and the corpus it is tried on: real enough to decide something, and unkind on purpose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash

from pipeline import ingest
from pipeline.stage import Context, Emit, GlobalStage, SettleStage, Stage, StageConfig, names

WORDS = """
the of and to in that is was for with as his on be at by had not are but from or have an they which one you were all her
she there would their we him been has when who will no more if out so up said what its about than into them river engine
mountain theory garden market letter winter planet history music number kitchen harbour forest signal
""".split()  # noqa: SIM905 - a word list is read, not parsed
AWKWARD = (
    "", " ", "\n\n", "!!! ??? ###", "a", "naïve café, ÅNGSTRÖM", "日本語の文章です。" * 9, "ไทย ภาษาไทยไม่มีช่องว่าง",
    "\u00adsoft\u200bmarks\ufeff", "e\u0301 and \u00e9", "word " * 300, "- item\n" * 40, "line that ends...\n" * 12,
    "same line\n" * 30, "<html>&amp;</html>", "x" * 5000, "\U0001f600 \U0001f468\u200d\U0001f469", "1234567890 " * 20,
    "the quick brown fox\r\njumps over\tthe lazy dog", "__label__good the of and to in",
)  # fmt: skip
PRIORITY = {"books": 3}


def texts() -> tuple[str, ...]:
    """200 texts: made-up prose, exact and near copies of some of it, and what breaks code that reads text."""
    prose = [_prose(number) for number in range(120)]
    copies = [prose[_draw(f"copy/{i}", 40)] for i in range(20)]
    spaced = [prose[_draw(f"spaced/{i}", 40)].replace(" ", "  ") for i in range(10)]
    near = [f"{prose[_draw(f'near/{i}', 60)]}\nAdded line number {i}." for i in range(30)]
    made = [*prose, *AWKWARD, *copies, *spaced, *near]
    return tuple(made[i] for i in sorted(range(len(made)), key=lambda i: _draw(f"order/{i}", 1 << 62)))


@dataclass(frozen=True, kw_only=True)
class Case:
    """A stage, a config of it, and `made` texts. `extra`: columns that it reads, where made-up numbers will not do."""

    stage: Stage
    config: StageConfig
    extra: Mapping[str, pa.Array] = field(default_factory=dict)
    made: tuple[str, ...] = field(default_factory=texts)

    @cached_property
    def table(self) -> pa.Table:
        """Every column that the stage may read, and more."""
        core = corpus(self.made)
        wanted = [name for name in _reads(self.stage, self.config) if name not in {*core.column_names, *self.extra}]
        for name, column in {**{name: numbers(name, len(core)) for name in wanted}, **self.extra}.items():
            core = core.append_column(name, column)
        return core

    @cached_property
    def context(self) -> Context:
        files = {name: Path(url) for name, url in self.stage.files(self.config).items()}
        sources = {"books": {"priority": PRIORITY["books"], "protect": True}, "web": {}}
        return Context(files=files, seed=0, sources=sources, corpus_bytes=int(self.table["bytes"].to_numpy().sum()))


def _reads(stage: Stage, config: StageConfig) -> list[str]:
    """Every column that the stage reads, its own left out."""
    if isinstance(stage, GlobalStage):
        asked = [names(phase.reads, config) for phase in stage.phases if isinstance(phase, Emit)]
        return [name for group in asked for name in group]
    asked = [names(stage.reads, config), names(stage.decide_reads, config)]
    if isinstance(stage, SettleStage):
        asked.append(names(stage.measure_reads, config))
    return [name for group in asked for name in group if name not in stage.writes.names]


def corpus(made: Sequence[str]) -> pa.Table:
    """A table of every column that a stage may read without another stage before it."""
    rows, data = len(made), [text.encode() for text in made]
    size = np.array([len(piece) for piece in data], np.int64)
    source = [("web", "books", None)[_draw(f"source/{i}", 3)] for i in range(rows)]
    language = [("en", "de", None)[_draw(f"language/{i}", 3)] for i in range(rows)]
    return pa.table(
        {
            "text": pa.array(made, pa.large_string()),
            "bytes": pa.array(size),
            "tokens": pa.array(ingest.count_tokens(size, ingest.token_ratio(4.0))),
            "source": pa.array(source, pa.large_string()),
            "language": pa.array(language, pa.large_string()),
            "id": pa.array([f"id-{i}" if i % 5 else None for i in range(rows)], pa.large_string()),
            "content_hash": pa.array([xxhash.xxh3_128_digest(piece) for piece in data], pa.binary(16)),
            "text_hash": pa.array([xxhash.xxh3_64_intdigest(piece) for piece in data], pa.uint64()),
            "source.priority": pa.array([PRIORITY.get(name or "", 0) for name in source], pa.int64()),
        }
    )


def numbers(name: str, rows: int) -> pa.Array:
    """A float32 column as a scorer writes it: drawn by its name, with ties and nulls."""
    drawn = [_draw(f"{name}/{i}", 4096) / 1024 for i in range(rows)]
    return pa.array([value if _draw(f"null/{name}/{i}", 17) else None for i, value in enumerate(drawn)], pa.float32())


def _prose(number: int) -> str:
    words = [WORDS[_draw(f"{number}/{i}", len(WORDS))] for i in range(20 + _draw(f"length/{number}", 120))]
    sentences = [" ".join(words[i : i + 11]).capitalize() + "." for i in range(0, len(words), 11)]
    return "\n".join(" ".join(sentences[i : i + 3]) for i in range(0, len(sentences), 3))


def _draw(seed: str, limit: int) -> int:
    """A number under `limit` that is the same everywhere."""
    return xxhash.xxh3_64_intdigest(seed.encode()) % limit
