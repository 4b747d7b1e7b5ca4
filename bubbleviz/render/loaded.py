"""Saved reports of the Python API, with pictures."""

from __future__ import annotations

from collections.abc import Mapping

from bubbleviz.render.display import Hinting
from bubbleviz.render.notebook import Plotting
from bubbleviz.report.report import Report
from bubbleviz.report.restored import restore
from bubbleviz.report.summary import RunSummary

#: Code to use instead of attributes of measured reports, keyed by attribute name.
_HINTS: Mapping[str, str] = {
    "causes": "report.summary.bubble_parts",
    "ratios": "report.summary.bubble_ratio",
    "slowdowns": "report.slowdown",
}


class LoadedReport(RunSummary, Plotting, Hinting, frozen=True):  # noqa: D101 - help() shows the docstring of the base class
    # The subclass adds plotting.

    _hints = _HINTS

    def _get_drawn_report(self) -> Report:
        return restore("the report", self)

    @classmethod
    def from_summary(cls, summary: RunSummary) -> LoadedReport:
        """Return a saved report with the methods of this class."""
        return cls(*(getattr(summary, name) for name in cls.__struct_fields__))
