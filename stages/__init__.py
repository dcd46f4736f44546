"""Every stage that corpusmill ships, typed by hand: `stage: NAME` in a config means the entry of that name."""

from pipeline.stage import Stage

STAGES: tuple[Stage, ...] = ()
