"""Make a large corpus of the demo corpus: its documents again and again, changed by a seeded mutator.

    python tools/bench/amplify.py runs/demo/corpus OUT --megabytes 1000 [--seed 0]

Of each round's copies 4 % stay as they are, 6 % have a few words changed (near duplicates), and the rest have a third
of their words replaced by others of the corpus: documents of their own with the same shape of text.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

SAME, NEAR = 0.04, 0.06
SHARD_BYTES = 32_000_000


def documents(folder: Path, seed: int) -> Iterator[dict[str, Any]]:
    """The corpus without end; the first round is the corpus itself."""
    rows = [row for path in sorted(folder.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]
    vocabulary = [word for row in rows[::7] for word in row["text"].split(" ")[:200]]
    yield from rows
    number = 0
    while True:
        number += 1
        draw = random.Random(f"{seed}-{number}")
        for row in rows:
            yield {**row, "id": f"{row['id']}@{number}", "text": mutated(row["text"], draw, vocabulary)}


def mutated(text: str, draw: random.Random, vocabulary: list[str]) -> str:
    kind = draw.random()
    if kind < SAME:
        return text
    words = text.split(" ")
    changes = max(1, len(words) // (100 if kind < SAME + NEAR else 3))
    for _ in range(changes):
        words[draw.randrange(len(words))] = vocabulary[draw.randrange(len(vocabulary))]
    return " ".join(words)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--megabytes", type=float, required=True)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    total, size, number, held = 0, 0, 0, list[dict[str, Any]]()
    for row in documents(given.source, given.seed):
        held.append(row)
        size += len(row["text"].encode())
        if size >= SHARD_BYTES or total + size >= given.megabytes * 1e6:
            path = given.out / f"part-{number:04d}.parquet"
            pq.write_table(pa.Table.from_pylist(held), path, compression="zstd", row_group_size=2000)
            total, size, number, held = total + size, 0, number + 1, []
            if total >= given.megabytes * 1e6:
                break
    print(f"{total / 1e6:.0f} MB in {number} shards under {given.out}")


if __name__ == "__main__":
    main()
