"""Saved reports of the Python API, with pictures and tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bubbleviz.errors import UsageError
from bubbleviz.model.arrow import Records
from bubbleviz.render.display import Hinting, PrintedRecords
from bubbleviz.render.idle_causes import print_idle_causes
from bubbleviz.render.notebook import Plotting, print_causes, print_ratios, print_schedules
from bubbleviz.report.bubble_parts import BubblePart
from bubbleviz.report.idle_summary import IdleSummary
from bubbleviz.report.rank_means import summarize_stages
from bubbleviz.report.ratio_means import RatioMean
from bubbleviz.report.report import Report
from bubbleviz.report.restored import restore, restore_numbers, restore_what_if
from bubbleviz.report.summary import RunSummary
from bubbleviz.schedules.choices import Choice

#: Code to use instead of attributes of measured reports, keyed by attribute name.
_HINTS: Mapping[str, str] = {
    "bubbles": "bubbleviz.analyze(report.paths).bubbles",
    "num_iterations": "len(report.iterations)",
    "num_microbatches": "report.microbatches",
    "operations": "bubbleviz.analyze(report.paths).operations",
    "save": 'report.plot().save("x.svg")',
    "slowdowns": "report.slowdown",
    "to_pandas": "bubbleviz.analyze(report.paths).to_pandas()",
    "worst_iteration": "bubbleviz.analyze(report.paths).worst_iteration",
}
#: Code to use instead of attributes of measured reports on idle time, keyed by attribute name.
_IDLE_HINTS: Mapping[str, str] = {
    "plot": "bubbleviz.idle(path).plot()",
    "save": 'bubbleviz.idle(path).save("x.svg")',
    "to_pandas": "idle.causes.to_pandas()",
}


class LoadedReport(RunSummary, Plotting, Hinting, frozen=True):  # noqa: D101 - help() shows the docstring of the base class
    # The subclass adds the pictures and tables of the report that was saved.

    _hints = _HINTS

    def _get_drawn_report(self) -> Report:
        return restore("the report", self)

    @classmethod
    def from_summary(cls, summary: RunSummary) -> LoadedReport:
        """Return a saved report with the methods of this class."""
        return cls(*(getattr(summary, name) for name in cls.__struct_fields__))

    @property
    def ratios(self) -> PrintedRecords[RatioMean]:
        """One record per bubble ratio; see :attr:`.Report.ratios`."""
        return print_ratios(restore_numbers("the report", self))

    @property
    def causes(self) -> PrintedRecords[BubblePart]:
        """One record per cause of the bubble; see :attr:`.Report.causes`."""
        return print_causes(restore_numbers("the report", self))

    @property
    def stages(self) -> Records[Any]:
        """One record per stage; see :attr:`.Report.stages`."""
        return summarize_stages(restore_numbers("the report", self))

    def what_if(self) -> PrintedRecords[Choice]:  # type: ignore[misc, override]  # as the JSON key has the same name
        """Return the schedules that were simulated when the report was saved.

        The key ``what_if`` of the JSON is ``report.to_dict()["what_if"]``.

        Raises:
            UsageError: No schedules were simulated.
        """
        simulated = super().what_if
        if simulated is None:
            raise UsageError(
                "the saved report contains no simulated schedules; analyze the profiles again with "
                "bubbleviz.analyze(report.paths, what_if=True), or simulate one schedule with "
                'bubbleviz.simulate("zb-h1", report=report)'
            )
        report = restore_numbers("the report", self)
        return print_schedules(report, restore_what_if(simulated))


class LoadedIdleReport(IdleSummary, Hinting, frozen=True):  # noqa: D101 - help() shows the docstring of the base class
    # The subclass adds the table of causes.

    _hints = _IDLE_HINTS

    @classmethod
    def from_summary(cls, summary: IdleSummary) -> LoadedIdleReport:
        """Return a saved report with the methods of this class."""
        return cls(*(getattr(summary, name) for name in cls.__struct_fields__))

    @property
    def causes(self) -> PrintedRecords[Any]:
        """One record per host activity; see :attr:`.IdleReport.causes`."""
        return print_idle_causes(self, self.meanings)
