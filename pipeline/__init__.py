"""The engine: plans, runs, publishes and reports. It knows nothing about duplicates or quality."""

__version__ = "0.1.0"
