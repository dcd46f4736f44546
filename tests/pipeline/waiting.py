"""A stage to be stopped in: where the environment says so, it waits in the middle of its work."""

from __future__ import annotations

import os
import time
from pathlib import Path

from pipeline.stage import MapStage, StageConfig

MARK = "CORPUSMILL_TEST_WAIT"
"""Names a file that the stage makes when it has come to its work; then it waits. Unset: it does not wait."""


class Waiting(StageConfig):
    pass


def bind(config, context):
    def transform(batch):
        if mark := os.environ.get(MARK):
            Path(mark).touch()
            time.sleep(600)
        return batch.select([])

    return transform


STAGE = MapStage(name="waiting", version=1, config=Waiting, reads=("text",), bind=bind)
