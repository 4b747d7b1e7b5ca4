"""The report as text: its sections in the order in which they are printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubbleviz.model.texts import one_line
from bubbleviz.render.text.causes import causes, idle_of_ranks
from bubbleviz.render.text.console import WIDTH
from bubbleviz.render.text.headline import advice, headline
from bubbleviz.render.text.iterations import not_averaged
from bubbleviz.render.text.limitations import limitations
from bubbleviz.render.text.profiles import clocks, coverage
from bubbleviz.render.text.ranks import ranks
from bubbleviz.render.text.ratios import ratios
from bubbleviz.render.text.schedules import orders
from bubbleviz.render.text.times import critical_path, phase_times
from bubbleviz.render.text.what_if import alternatives, what_if

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from bubbleviz.count.iterations import Iteration
    from bubbleviz.report.report import Report, View


def sections(report: Report, view: View, width: int = WIDTH) -> Iterator[RenderableType]:
    """Yield the sections of a report, for a console of that width."""
    yield headline(report)
    yield from orders(report)
    yield from advice(report)
    yield from ratios(report)
    yield from causes(report)
    iteration = _shown_iteration(report, view)
    if iteration is not None and iteration.ranks:
        yield from ranks(report, view, iteration, width)
        yield from idle_of_ranks(report, iteration)
    yield from phase_times(report)
    yield from critical_path(report)
    yield from what_if(report)
    yield from alternatives(report)
    yield from not_averaged(report)
    yield from clocks(report)
    yield from coverage(report)
    yield from limitations(report)
    yield from _methods(report)


def _shown_iteration(report: Report, view: View) -> Iteration | None:
    chosen = [i for i in report.iterations if i.index in view.iterations]
    return chosen[0] if chosen else report.typical_iteration()


def _methods(report: Report) -> Iterator[RenderableType]:
    from rich.text import Text

    from bubbleviz.report.methods import methods

    if report.no_pipeline is not None or report.summary.bubble_ratio[report.headline].mean is None:
        return
    yield Text("\nMethods, ready to paste", style="bold")
    yield Text(one_line(methods(report), None))
