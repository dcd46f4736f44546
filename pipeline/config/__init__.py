"""A config file as one frozen object: YAML, sections, stages, overrides, and errors that all come at once."""

from pipeline.config.loading import Config, check_files, load, loads
from pipeline.config.settings import InputConfig, SourceConfig, TierConfig
from pipeline.config.stagelist import StageEntry

__all__ = ["Config", "InputConfig", "SourceConfig", "StageEntry", "TierConfig", "check_files", "load", "loads"]
