"""The report as one HTML page that needs nothing else."""

from pipeline.report.page.document import figures, render

__all__ = ["figures", "render"]
