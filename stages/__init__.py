"""Every stage that corpusmill ships, typed by hand: `stage: NAME` in a config means the entry of that name."""

from pipeline.stage import Stage
from stages import curriculum, difficulty, exact, heuristics, minhash, quality, select

STAGES: tuple[Stage, ...] = (
    heuristics.STAGE,
    exact.STAGE,
    quality.STAGE,
    minhash.STAGE,
    select.STAGE,
    difficulty.STAGE,
    curriculum.STAGE,
)
