"""Chrome: the report as a trace in the JSON that chrome://tracing and most viewers read.

The Trace Event Format (Google, 2016), to the nanosecond.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubbleviz.render.formats import Renderer

if TYPE_CHECKING:
    from bubbleviz.report.report import Report
    from bubbleviz.report.view import View


def render(report: Report, view: View) -> str:
    """Return the whole report as Chrome trace events, whatever the view."""
    del view
    from bubbleviz.render.trace.json_events import written
    from bubbleviz.render.trace.trace import trace_of

    # Joined once: the text can be half a gigabyte.
    return "".join(written(trace_of(report)))


RENDERER = Renderer(
    name="chrome",
    summary="trace for chrome://tracing, as JSON",
    suffixes=(".trace.json",),
    render=render,
    order=9,
)
