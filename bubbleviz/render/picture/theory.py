"""Panels: the schedule in theory, ideal and at the measured times, above the measurement.

All on one axis of time, as in Figure 6 of the Zero Bubble paper (arXiv 2401.10241).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from bubbleviz.explain.alternatives import Alternatives
from bubbleviz.render.picture.slowdowns import Panel, draw_panels
from bubbleviz.report.ideal_run import report_of
from bubbleviz.report.report import Report
from bubbleviz.report.view import View
from bubbleviz.schedules.ideal import Ideal

#: Makespans that differ by less, as a share, are drawn once.
_ALIKE = 0.002
#: Ratios of an iteration by itself, the one to show first.
_OF_ONE = ("schedule", "stage")


def draw_theory(report: Report, view: View) -> str:
    """Return the SVG document; without times of stages, the measurement alone.

    All panels have the same ratio: one of a single iteration, for a plan has no other.
    """
    others = report.alternatives
    same = None if others is None else others.same
    if others is None or (same is None and others.ideal is None):
        why = others.reason if others is not None and others.reason else "no schedule recognised"
        why = f"No schedule in theory is shown above it: {why}."
        return draw_panels((Panel("measured", report, view),), "As measured", why)
    measured, view = _of_one_iteration(report, view)
    above = []
    for title, result in _theories(others):
        simulated = replace(report_of(result), headline=measured.headline)
        own = View(style=view.style, width_mm=view.width_mm, causes=view.causes)
        above.append(Panel(title, simulated, own))
    heading, note = "Measured, below an ideal 1f1b of these times", "No schedule recognised."
    if same is not None:
        heading, note = f"{same.plan.name}: in theory and as measured", ""
    return draw_panels((*above, Panel("measured", measured, view)), heading, note)


def _theories(others: Alternatives) -> Iterator[tuple[str, Ideal]]:
    """Yield what is drawn above the measurement, with its title."""
    same, ideal, best = others.same, others.ideal, others.best
    # Where stages are equal and transfers free, the ideal is no other picture.
    if ideal is not None and (
        same is None or abs(ideal.makespan_ms - same.makespan_ms) > _ALIKE * same.makespan_ms
    ):
        yield f"{ideal.plan.name}, ideal: equal stages, free transfers", ideal
    if same is not None:
        yield f"{same.plan.name} at the measured times", same
    if best is not None:
        yield f"{best.plan.name} at the measured times: the best in as much memory", best


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
