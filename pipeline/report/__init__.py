"""The report: plain records of a run in; the document, its terminal table and its HTML page out."""

from pipeline.report.document import NO_SOURCE, breach, build, comparable, guards, identities

__all__ = ["NO_SOURCE", "breach", "build", "comparable", "guards", "identities"]
