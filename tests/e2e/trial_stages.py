"""Stages for trials of the engine: one with a model file and a threshold, one that ends its worker where texts say so.

Workers import them by this module's name.
"""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.stage import MapStage, StageConfig

WEIGHT = pa.schema([("weight", pa.float32())])
RAN = pa.schema([("bytes", pa.int64())])


class Weigh(StageConfig):
    model: str
    """A JSON file: letter -> weight."""
    least: float = 0.0
    """A lighter text goes."""


def bind_weigh(config, context):
    weights = json.loads(context.files["model"].read_text())

    def transform(batch):
        found = []
        for text in batch["text"].to_pylist():
            if "RAISE" in text:
                raise ValueError("a text that cannot be weighed")
            found.append(sum(weights.get(letter, 0) for letter in text) / len(text) if weights.keys() & text else None)
        return pa.record_batch([pa.array(found, pa.float32())], schema=WEIGHT)

    return transform


def decide_weigh(config, context, batch):
    light = pc.fill_null(pc.less(batch["weight"], config.least), fill_value=False)
    reason = pc.if_else(light, pa.scalar("light", pa.large_string()), None)
    score = pc.if_else(light, batch["weight"].cast(pa.float64()), None)
    threshold = pc.if_else(light, pa.scalar(config.least), None)
    return pa.record_batch([reason, score, threshold], names=["reason", "score", "threshold"])


WEIGH = MapStage(
    name="weigh", version=1, config=Weigh, reads=("text",), writes=WEIGHT, bind=bind_weigh, decide=decide_weigh,
    decide_settings=("least",), score="weight", reasons={"light": "score < threshold, the setting least"},
    files=lambda config: {"model": config.model},
)  # fmt: skip


class Deadly(StageConfig):
    folder: str
    """Where the dead leave a mark, so that each text kills once."""
    park: float = 0.0
    """Seconds that a text which says PARK holds its worker up, once."""


def bind_deadly(config, context):
    def once(name):
        with suppress(FileExistsError), Path(config.folder, name).open("x") as mark:
            mark.write(str(os.getpid()))
            return True
        return False

    def transform(batch):
        for text in batch["text"].to_pylist():
            if "DEADLY" in text and once(text.split("DEADLY ")[1].split()[0]):
                os.kill(os.getpid(), signal.SIGKILL)
            if "PARK" in text and once(text.split("PARK ")[1].split()[0]):
                time.sleep(config.park)
        return pa.record_batch([pc.binary_length(batch["text"]).cast(pa.int64())], schema=RAN)

    return transform


DEADLY = MapStage(name="deadly", version=1, config=Deadly, reads=("text",), writes=RAN, bind=bind_deadly)
