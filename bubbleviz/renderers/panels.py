"""Panels: the schedule in theory above what was measured, on one axis of time.

As in Figure 6 of the Zero Bubble paper (arXiv 2401.10241).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubbleviz.renderers import Renderer

if TYPE_CHECKING:
    from bubbleviz.report import Report, View


def render(report: Report, view: View) -> str:
    """Return the SVG document; without a schedule that is known, the measurement alone."""
    from bubbleviz.ideal_run import report_of
    from bubbleviz.panels import Panel, draw_panels
    from bubbleviz.report import View as Everything

    measured = Panel("measured", report, view)
    others = report.alternatives
    if others is None or others.same is None:
        why = others.because if others is not None and others.because else "no schedule recognised"
        return draw_panels((measured,), f"Measured ({why})")
    plan = others.same.plan
    theory = Panel(f"{plan.name} at the measured times", report_of(others.same), Everything())
    return draw_panels((theory, measured), f"{plan.name}: in theory and as measured")


RENDERER = Renderer(
    name="panels",
    summary="the schedule in theory above the measurement, on one axis of time, as SVG",
    render=render,
    order=1,
    compares=True,
)
