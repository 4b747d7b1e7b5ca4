"""The host activities to which idle time is attributed, as a table and as records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from bubbleviz.model.arrow import Kind, make_row_type
from bubbleviz.render import document as doc
from bubbleviz.render.display import PrintedRecords

#: Title of the table.
ACTIVITY_TITLE = "What hosts did while devices were idle"
#: Maximum length of the name of an activity.
_MAX_NAME = 60
#: Column types of the records.
_CAUSE_KINDS: Mapping[str, Kind] = {
    "name": "string",
    "share": "float64",
    "idle_ns": "int64",
    "gaps": "int64",
    "longest_ns": "int64",
    "meaning": "string",
}


class _Activity(Protocol):
    """Idle time attributed to a host activity, measured or saved."""

    @property
    def activity(self) -> str: ...

    @property
    def idle_ns(self) -> int: ...

    @property
    def gaps(self) -> int: ...

    @property
    def longest_ns(self) -> int: ...


class _IdleTime(Protocol):
    """Idle time of all devices, measured or saved."""

    @property
    def activities(self) -> Sequence[_Activity]: ...

    @property
    def idle_ns(self) -> int: ...

    @property
    def span_ns(self) -> int: ...


def list_activity_rows(report: _IdleTime, top: int) -> list[dict[str, str]]:
    """Return the rows of a table of the ``top`` longest host activities.

    The last two rows are an empty row and the total of all activities.
    """
    rows = [
        {
            "activity": doc.truncate_name(total.activity, _MAX_NAME),
            "idle ms": doc.format_ms(total.idle_ns),
            "of idle %": doc.format_percent_cell(total.idle_ns / report.idle_ns),
            "of span %": doc.format_percent_cell(total.idle_ns / report.span_ns),
            "gaps": f"{total.gaps:,}",
            "longest ms": doc.format_ms(total.longest_ns),
        }
        for total in report.activities[:top]
    ]
    total_row = {
        "activity": f"sum of {len(report.activities)}",
        "idle ms": doc.format_ms(report.idle_ns),
        "of idle %": "100.00",
        "of span %": doc.format_percent_cell(report.idle_ns / report.span_ns),
    }
    return [*rows, {}, total_row]


def print_idle_causes(report: _IdleTime, meanings: Mapping[str, str]) -> PrintedRecords[Any]:
    """Return one record per host activity, most idle time first, printed as a table.

    Args:
        report: The measured or saved report.
        meanings: Meaning of each activity, keyed by activity.
    """
    cause = make_row_type("Cause", tuple(_CAUSE_KINDS))
    rows = [
        cause(
            name=total.activity,
            share=total.idle_ns / report.idle_ns if report.idle_ns else None,
            idle_ns=total.idle_ns,
            gaps=total.gaps,
            longest_ns=total.longest_ns,
            meaning=meanings.get(total.activity),
        )
        for total in report.activities
    ]
    tables = []
    if rows:
        cells = list_activity_rows(report, len(rows))
        tables.append(doc.Table(ACTIVITY_TITLE, cells, left=("activity",)))
    return PrintedRecords(rows, _CAUSE_KINDS, tables)
