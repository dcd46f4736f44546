"""Small runs in process: a corpus with a planted fate for every document, and stages that take microseconds."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline import config
from pipeline.stage import Emit, GlobalStage, MapStage, Reduce, StageConfig

WRITES = pa.schema([("words", pa.int32())])


class Few(StageConfig):
    limit: int = 3


class Same(StageConfig):
    pass


def bind(settings, context):
    def transform(batch):
        texts = batch["text"].to_pylist()
        if any("RAISE" in text for text in texts):
            raise ValueError("cannot read this")
        return pa.record_batch([pa.array([len(text.split()) for text in texts], pa.int32())], schema=WRITES)

    return transform


def decide(settings, context, batch):
    few = pc.less(batch["words"], settings.limit)
    reason = pc.if_else(few, pa.scalar("few", pa.large_string()), None)
    score = pc.if_else(few, batch["words"].cast(pa.float64()), None)
    threshold = pc.if_else(few, pa.scalar(float(settings.limit)), None)
    return pa.record_batch([reason, score, threshold], names=["reason", "score", "threshold"])


WORDS = MapStage(
    name="words", version=1, config=Few, reads=("text",), writes=WRITES, bind=bind, decide=decide,
    decide_settings=("limit",), reasons={"few": "fewer words than limit"},
)  # fmt: skip


def emit_by(characters):
    """Texts that begin with the same characters meet."""

    def emit(settings, context):
        def emitted(batch):
            heads = [text[:characters] for text in batch["text"].to_pylist()]
            keys = pa.array([hash_of(head) for head in heads], pa.uint64())
            return pa.record_batch(
                [keys, batch["row"], batch["bytes"], batch["id"]], names=["key", "row", "bytes", "id"]
            )

        return emitted

    return emit


def hash_of(text):
    import xxhash

    return xxhash.xxh3_64_intdigest(text.encode())


def reduce_as(reason):
    """All but the longest of those that meet go; equal lengths: all but the first."""

    def reduce(settings, context, table):
        table = table.sort_by([("key", "ascending"), ("bytes", "descending"), ("row", "ascending")])
        keys, rows = table["key"].to_numpy(), table["row"].to_numpy()
        first = np.append(True, keys[1:] != keys[:-1])[: len(keys)]
        lead = np.maximum.accumulate(np.where(first, np.arange(len(keys)), 0)) if len(keys) else np.array([], int)
        gone, count = ~first, int((~first).sum())
        columns = {
            "key": rows[gone], "reason": pa.array([reason] * count, pa.large_string()), "charged": rows[lead[gone]],
            "charged_id": table["id"].combine_chunks().take(pa.array(lead[gone])), "similarity": np.ones(count),
        }  # fmt: skip
        return pa.record_batch(columns), {"gone": count}

    return reduce


def copies(name, characters, reason):
    phases = (
        Emit(name="emit", bind=emit_by(characters), reads=("text", "bytes", "id")),
        Reduce(name="reduce", reduce=reduce_as(reason), to="rows"),
    )
    return GlobalStage(name=name, version=1, config=Same, phases=phases, reasons={reason: f"the same as {reason} says"})


COPIES = copies("copies", 1000, "exact_duplicate")
HEADS = copies("heads", 8, "same_head")
YAML = """
name: small
input: {{paths: ["{root}/in/*.parquet"]}}
tiers: {{work: {{url: "{root}/work"}}, hot: {{url: "{root}/hot"}}, cold: {{url: "{root}/cold"}}}}
stages:
  - {{stage: "{module}:WORDS", limit: 3}}
  - {{stage: "{module}:COPIES"}}
  - {{stage: "{module}:HEADS"}}
publish: {{mix_by: [source]}}
run: {{workers: 0}}
"""


def corpus(root, shards=3, ordinary=20):
    """Shards 0.parquet ...: `ordinary` documents of their own, then one of every planted fate; ids `<shard>-<row>`.

    Of rows after the ordinary ones: 0 few words, 1 blank, 2 null, 3 raises; of the first shard only: 4 the keeper of
    copies, 5 a longer text with the same head as that keeper. Row 4 of the others is a copy of the first one's.
    """
    (root / "in").mkdir(parents=True, exist_ok=True)
    for shard in range(shards):
        texts = [f"s{shard}n{row:04d} ordinary text number {row}" for row in range(ordinary)]
        texts += ["a b", "  ", None, "x RAISE y z", "the head is common to them"]
        texts += ["the head is common to them and this one is longer"] if shard == 0 else []
        ids = [f"{shard}-{row}" for row in range(len(texts))]
        sources = [f"s{row % 2}" for row in range(len(texts))]
        table = pa.table({"id": ids, "text": texts, "source": sources})
        pq.write_table(table, root / "in" / f"{shard}.parquet", row_group_size=7)


def configured(root, yaml=YAML, overrides=()):
    return config.loads(yaml.format(root=root, module=__name__), (), overrides=overrides)
