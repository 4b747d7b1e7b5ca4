"""Panels: the schedule in theory above the measurement, on one axis of time.

As in Figure 6 of the Zero Bubble paper (arXiv 2401.10241).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from bubbleviz.render.formats import DRAWN, Renderer

if TYPE_CHECKING:
    from bubbleviz.report.report import Report, View

#: Ratios of an iteration by itself, the one to show first.
_OF_ONE = ("schedule", "stage")


def render(report: Report, view: View) -> str:
    """Return the SVG document; without a recognised schedule, the measurement alone.

    Both panels have the same ratio: one of a single iteration, for a plan has no other.
    """
    from bubbleviz.render.picture.panels import Panel, draw_panels
    from bubbleviz.report.ideal_run import report_of
    from bubbleviz.report.report import View as Everything

    others = report.alternatives
    if others is None or others.same is None:
        why = others.reason if others is not None and others.reason else "no schedule recognised"
        why = f"No schedule in theory is shown above it: {why}."
        return draw_panels((Panel("measured", report, view),), "As measured", why)
    plan = others.same.plan
    measured, view = _of_one_iteration(report, view)
    theory = Panel(
        f"{plan.name} at the measured times",
        replace(report_of(others.same), headline=measured.headline),
        Everything(),
    )
    heading = f"{plan.name}: in theory and as measured"
    return draw_panels((theory, Panel("measured", measured, view)), heading)


def _of_one_iteration(report: Report, view: View) -> tuple[Report, View]:
    """Return the report with a primary ratio that a plan has, too, and a view of one iteration."""
    shown = report.typical_iteration()
    if shown is None:
        return report, view
    ratios = {name: shown.ratios[name].value for name in _OF_ONE if name in shown.ratios}
    known = [name for name, value in ratios.items() if value is not None]
    if not known or report.headline in known:
        return report, view
    reason = "A plan has one iteration, and so does this ratio."
    measured = replace(report, headline=known[0], headline_reason=reason)
    return measured, replace(view, iterations=view.iterations or (shown.index,))


RENDERER = Renderer(
    name="panels",
    summary="schedule in theory above the measurement, as SVG",
    suffixes=(".panels.svg",),
    render=render,
    order=1,
    compares=True,
    draws=DRAWN - {"heat-map"},
)
