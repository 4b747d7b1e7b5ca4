"""Perfetto: the report as a trace for ui.perfetto.dev, in its own binary format.

What its messages are comes with Perfetto's own package, an extra:
``pip install 'bubbleviz[perfetto]'``.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from bubbleviz.errors import OutputError
from bubbleviz.render.formats import Renderer

if TYPE_CHECKING:
    from bubbleviz.report.report import Report
    from bubbleviz.report.view import View


def check() -> None:
    """Check that traces can be written.

    Raises:
        OutputError: Perfetto's package is not installed.
    """
    if importlib.util.find_spec("perfetto") is None:
        raise OutputError(
            "traces for Perfetto need its package; install it with: "
            "pip install 'bubbleviz[perfetto]', or write --chrome"
        )


def render(report: Report, view: View) -> bytes:
    """Return the whole report as a Perfetto trace, whatever the view.

    Raises:
        OutputError: Perfetto's package is not installed.
    """
    del view
    check()
    from bubbleviz.render.trace.packets import written
    from bubbleviz.render.trace.trace import trace_of

    return b"".join(written(trace_of(report)))


RENDERER = Renderer(
    name="perfetto",
    summary="trace for ui.perfetto.dev",
    suffixes=(".pftrace", ".perfetto-trace"),
    render=render,
    order=9,
    check=check,
    binary=True,
)
