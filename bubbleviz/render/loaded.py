"""Saved reports of the Python API, with pictures and tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bubbleviz.errors import UsageError
from bubbleviz.model.arrow import Records
from bubbleviz.model.texts import format_json
from bubbleviz.render.display import Hinting, PrintedRecords, check_view, save_as
from bubbleviz.render.formats import list_renderers
from bubbleviz.render.formats.saved import check_saved_format, render_saved
from bubbleviz.render.idle_causes import print_idle_causes
from bubbleviz.render.notebook import Plotting, print_causes, print_ratios, print_schedules
from bubbleviz.report.bubble_parts import BubblePart
from bubbleviz.report.idle_summary import IdleSummary
from bubbleviz.report.rank_means import summarize_stages
from bubbleviz.report.ratio_means import RatioMean
from bubbleviz.report.report import Report
from bubbleviz.report.restored import (
    UNSAVED_COLUMNS,
    restore,
    restore_numbers,
    restore_what_if,
)
from bubbleviz.report.summary import RunSummary
from bubbleviz.report.timeline import MAX_SAVED_OPERATIONS
from bubbleviz.report.view import View
from bubbleviz.schedules.choices import Choice

#: How messages refer to the path of a saved report, which is not known after it has been loaded.
_PATH = "the report"
#: How to write the formats that need more data than a saved report contains.
_OTHER_FORMATS = "to write other formats, use bubbleviz.analyze(report.paths).save(...)"
#: Code to use instead of attributes of measured reports, keyed by attribute name.
_HINTS: Mapping[str, str] = {
    "bubbles": "bubbleviz.analyze(report.paths).bubbles",
    "num_iterations": "len(report.iterations)",
    "num_microbatches": "report.microbatches",
    "operations": "bubbleviz.analyze(report.paths).operations",
    "slowdowns": "report.slowdown",
    "worst_iteration": "bubbleviz.analyze(report.paths).worst_iteration",
}
#: Code to use instead of attributes of measured reports on idle time, keyed by attribute name.
_IDLE_HINTS: Mapping[str, str] = {
    "plot": "bubbleviz.idle(path).plot()",
    "to_pandas": "idle.causes.to_pandas()",
}


class LoadedReport(RunSummary, Plotting, Hinting, frozen=True):  # noqa: D101 - help() shows the docstring of the base class
    # The subclass adds the pictures and tables of the report that was saved.

    _hints = _HINTS

    def _get_drawn_report(self) -> Report:
        return restore(_PATH, self)

    @property
    def ratios(self) -> PrintedRecords[RatioMean]:
        """One record per bubble ratio; see :attr:`.Report.ratios`."""
        return print_ratios(restore_numbers(_PATH, self))

    @property
    def causes(self) -> PrintedRecords[BubblePart]:
        """One record per cause of the bubble; see :attr:`.Report.causes`."""
        return print_causes(restore_numbers(_PATH, self))

    @property
    def stages(self) -> Records[Any]:
        """One record per stage; see :attr:`.Report.stages`."""
        return summarize_stages(restore_numbers(_PATH, self))

    def to_pandas(self) -> Any:
        """Return the operations as a pandas DataFrame, one row per operation.

        The columns are the same as in :meth:`.Report.to_pandas`, without host times, launch times
        and other columns that a saved report does not contain.

        Raises:
            UsageError: The saved report contains no operations, because the run has too many.
            OutputError: pandas is not installed.
        """
        if self.timeline is None:
            raise UsageError(
                "the saved report contains no operations, because the run has more than "
                f"{MAX_SAVED_OPERATIONS:,}; use bubbleviz.analyze(report.paths).to_pandas()"
            )
        operations = self._get_drawn_report().operations
        return operations.to_pandas().drop(columns=[*UNSAVED_COLUMNS])

    def save(self, path: str | Path, view: View | None = None) -> None:
        """Write the report to a file. The path's suffix determines the format.

        Args:
            path: Path of the file. An existing file is replaced. The suffix is ``.json``, ``.svg``,
                ``.pdf``, ``.png``, ``.html`` or ``.tex``.
            view: Iterations and ranks to draw if the format is a picture, or None for the typical
                iteration and all ranks.

        Raises:
            UsageError: A saved report does not contain the data of the format or has no timeline to
                draw, or an argument has the wrong type.
            OutputError: A package for the format is not installed, or the file cannot be written.
        """
        checked = check_view(view)
        save_as(path, _list_formats(), lambda name: self._render(name, checked, str(path)))

    def _render(self, name: str, view: View, file: str) -> str | bytes:
        """Return the content of an output file in the format with the given name."""
        check_saved_format(file, name, _OTHER_FORMATS)
        return render_saved(_PATH, self, name, view, file)

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
        report = restore_numbers(_PATH, self)
        return print_schedules(report, restore_what_if(simulated))


class LoadedIdleReport(IdleSummary, Hinting, frozen=True):  # noqa: D101 - help() shows the docstring of the base class
    # The subclass adds the table of causes.

    _hints = _IDLE_HINTS

    @property
    def causes(self) -> PrintedRecords[Any]:
        """One record per host activity; see :attr:`.IdleReport.causes`."""
        return print_idle_causes(self, self.meanings)

    def save(self, path: str | Path) -> None:
        """Write the report as JSON. A saved report does not contain the data of other formats.

        Args:
            path: Path of the file. An existing file is replaced.

        Raises:
            UsageError: The suffix is not ``.json``.
            OutputError: The file cannot be written.
        """
        save_as(path, _list_formats(), lambda name: self._render(name, str(path)))

    def _render(self, name: str, file: str) -> str:
        """Return the report as JSON, given the name of the format."""
        if name != "json":
            raise UsageError(
                f"{file}: a saved report on idle time can only be written as .json; use "
                "bubbleviz.idle(report.paths).save(...)"
            )
        return format_json(self.to_dict())


def _list_formats() -> list[str]:
    """Return the names of all formats of a measured report."""
    return [renderer.name for renderer in list_renderers()]
