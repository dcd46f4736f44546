"""A stage that does to its worker what its texts say: `<deed> <anything>`. Workers import it by its module's name."""

from __future__ import annotations

import os
import signal
import threading

import pyarrow as pa

from pipeline.stage import MapStage, StageConfig

WRITES = pa.schema([("bytes", pa.int64())])


class Escaped(BaseException):
    """Not an Exception: the engine quarantines the row for those, this one ends the task."""


class Unpicklable(BaseException):
    """Holds what no pickle can and cannot be made from its message."""

    def __init__(self, row, text):
        super().__init__(text)
        self.row, self.lock = row, threading.Lock()


class Config(StageConfig):
    """It has no settings."""


def bind(config, context):
    def transform(batch):
        texts = batch["text"].to_pylist()
        for row, text in enumerate(texts):
            _do(text.split()[0], row)
        return pa.record_batch([pa.array([len(text) for text in texts], pa.int64())], schema=WRITES)

    return transform


def _do(deed, row):
    if deed == "fault":
        raise ValueError("a row that the stage cannot read")
    if deed == "escape":
        raise Escaped("out of the stage")
    if deed == "unpicklable":
        raise Unpicklable(row, "with a lock")
    if deed == "memory":
        raise MemoryError("no more")
    if deed == "exit":
        os._exit(3)
    if deed == "kill":
        os.kill(os.getpid(), signal.SIGKILL)


STAGE = MapStage(name="misbehaving", version=1, config=Config, reads=("text",), writes=WRITES, bind=bind)
