"""Traces for viewers: JSON for chrome://tracing, and Perfetto's own format for ui.perfetto.dev.

Chrome's is the Trace Event Format (Google, 2016), to the nanosecond, which most viewers read. What
Perfetto's messages are comes with its own package, an extra: ``pip install 'bubbleviz[perfetto]'``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubbleviz.render.formats import Renderer, needs

if TYPE_CHECKING:
    from bubbleviz.report.report import Report
    from bubbleviz.report.view import View

#: Raises where traces for Perfetto cannot be written.
check = needs(
    "perfetto",
    "traces for Perfetto need its package; install it with: "
    "pip install 'bubbleviz[perfetto]', or write --chrome",
)


def as_json(report: Report, view: View) -> str:
    """Return the whole report as Chrome trace events, whatever the view."""
    del view
    from bubbleviz.render.trace.json_events import written
    from bubbleviz.render.trace.trace import trace_of

    # Joined once: the text can be half a gigabyte.
    return "".join(written(trace_of(report)))


def as_packets(report: Report, view: View) -> bytes:
    """Return the whole report as a Perfetto trace, whatever the view.

    Raises:
        OutputError: Perfetto's package is not installed.
    """
    del view
    check()
    from bubbleviz.render.trace.packets import written
    from bubbleviz.render.trace.trace import trace_of

    return b"".join(written(trace_of(report)))


RENDERER = (
    Renderer("chrome", "trace for chrome://tracing, as JSON", as_json, (".trace.json",), order=9),
    Renderer(
        "perfetto",
        "trace for ui.perfetto.dev",
        as_packets,
        (".pftrace", ".perfetto-trace"),
        order=9,
        check=check,
        binary=True,
    ),
)
