"""The report as JSON: see :class:`.summary.RunSummary` for its keys."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bubbleviz.report.report import Report
from bubbleviz.report.summarizing import summary_of
from bubbleviz.report.summary import values_of
from bubbleviz.report.view import View

if TYPE_CHECKING:
    from bubbleviz.report.saved import SavedReport


def render(report: Report, _: View) -> str:
    """Return the whole report as JSON, whatever the view."""
    return written(document(report))


def document(report: Report, *, by_rank: bool = True, slowdown: bool = True) -> dict[str, Any]:
    """Return the report as nested JSON values; see :func:`.summary_of` for the arguments."""
    return values_of(summary_of(report, by_rank=by_rank, slowdown=slowdown))


def written(values: Mapping[str, Any]) -> str:
    """Return values as JSON, a line for each item of a list: to be read, compared and searched.

    Indented all the way down it would take twenty times as long.
    """
    text = json.JSONEncoder(allow_nan=False).encode

    def lines(value: Any) -> str:
        if isinstance(value, list) and value:
            return "[\n " + ",\n ".join(map(text, value)) + "\n]"
        return text(value)

    return "{\n" + ",\n".join(f"{text(k)}: {lines(v)}" for k, v in values.items()) + "\n}\n"


def saved_of(report: Report, *, slowdown: bool = True) -> SavedReport:
    """Return the numbers of a report, as read back after saving it.

    Args:
        report: any report.
        slowdown: whether slowdowns are among them, which take long for very many ranks.
    """
    from bubbleviz.report.saved import saved_report

    values = document(report, by_rank=False, slowdown=slowdown)
    return saved_report("the report", written(values).encode())


def pipeline_of(report: Report) -> SavedReport:
    """Return the numbers of a report with which schedules are simulated.

    Raises:
        InputError: it is of no whole pipeline.
    """
    from bubbleviz.report.saved import of_pipeline

    return of_pipeline("the run", saved_of(report, slowdown=False))
