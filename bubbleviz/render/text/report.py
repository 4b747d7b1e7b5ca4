"""The report as text: its sections in the order in which they are printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubbleviz.model.texts import one_line
from bubbleviz.render.text.advice_table import advice_table
from bubbleviz.render.text.causes import by_rank, causes, communication, idle_of_ranks, longest
from bubbleviz.render.text.console import WIDTH
from bubbleviz.render.text.headline import advice, headline
from bubbleviz.render.text.iterations import not_averaged
from bubbleviz.render.text.limitations import limitations
from bubbleviz.render.text.memory import memory
from bubbleviz.render.text.profiles import clocks, coverage
from bubbleviz.render.text.ranks import ranks
from bubbleviz.render.text.ratios import ratios
from bubbleviz.render.text.schedules import orders
from bubbleviz.render.text.slowdowns import slowdowns
from bubbleviz.render.text.times import critical_path, phase_times
from bubbleviz.render.text.what_if import alternatives, what_if

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rich.console import RenderableType

    from bubbleviz.count.iterations import Iteration
    from bubbleviz.report.report import Report
    from bubbleviz.report.view import View


def sections(report: Report, view: View, width: int = WIDTH) -> Iterator[RenderableType]:
    """Yield the sections of a report, for a console of that width."""
    yield headline(report)
    yield from orders(report)
    yield from advice(report)
    yield from ratios(report)
    yield from causes(report)
    iteration = shown_iteration(report, view)
    if iteration is not None and iteration.ranks:
        yield from ranks(report, view, iteration, width)
        yield from idle_of_ranks(report, view, iteration)
    yield from phase_times(report)
    yield from critical_path(report)
    yield from what_if(report)
    yield from alternatives(report)
    yield from memory(report)
    yield from advice_table(report)
    yield from slowdowns(report)
    yield from not_averaged(report)
    yield from clocks(report)
    yield from coverage(report)
    yield from limitations(report)
    yield from _methods(report)


def details(
    report: Report, view: View, names: Sequence[str], width: int = WIDTH
) -> Iterator[RenderableType]:
    """Yield some tables of a report, in the order named.

    Args:
        report: any report.
        view: the iteration and the ranks that are listed.
        names: as in ``--details``.
        width: of the console.
    """
    from rich.text import Text

    for name in names:
        empty = True
        for section in _TABLES[name](report, view, width):
            empty = False
            yield section
        if empty:
            yield Text(f"\n{name}: this run has nothing to list")


def _listed_ratios(report: Report, _view: View, _width: int) -> Iterator[RenderableType]:
    yield from ratios(report)
    yield from not_averaged(report)
    yield from _methods(report)


def _listed_ranks(report: Report, view: View, width: int) -> Iterator[RenderableType]:
    iteration = shown_iteration(report, view)
    if iteration is not None and iteration.ranks:
        yield from ranks(report, view, iteration, width)


def _listed_causes(report: Report, view: View, _width: int) -> Iterator[RenderableType]:
    yield from causes(report)
    iteration = shown_iteration(report, view)
    if iteration is not None and iteration.ranks:
        yield from by_rank(report, view, iteration)
        yield from longest(report)


def _listed_communication(report: Report, view: View, _width: int) -> Iterator[RenderableType]:
    iteration = shown_iteration(report, view)
    if iteration is not None and iteration.ranks:
        yield from communication(report, view, iteration)


def _listed_operations(report: Report, _view: View, _width: int) -> Iterator[RenderableType]:
    yield from orders(report)
    yield from phase_times(report)
    yield from critical_path(report)
    yield from what_if(report)
    yield from alternatives(report)
    yield from memory(report)


def _listed_advice(report: Report, _view: View, _width: int) -> Iterator[RenderableType]:
    yield from advice_table(report)


def _listed_slowdowns(report: Report, _view: View, _width: int) -> Iterator[RenderableType]:
    yield from slowdowns(report)


def _listed_clocks(report: Report, _view: View, _width: int) -> Iterator[RenderableType]:
    yield from clocks(report)


def _listed_coverage(report: Report, _view: View, _width: int) -> Iterator[RenderableType]:
    yield from coverage(report)
    yield from limitations(report)


#: The tables by name; see ``--details``.
_TABLES: Mapping[str, Callable[[Report, View, int], Iterator[RenderableType]]] = {
    "ratios": _listed_ratios,
    "ranks": _listed_ranks,
    "causes": _listed_causes,
    "communication": _listed_communication,
    "operations": _listed_operations,
    "advice": _listed_advice,
    "slowdown": _listed_slowdowns,
    "clocks": _listed_clocks,
    "coverage": _listed_coverage,
}


def shown_iteration(report: Report, view: View) -> Iteration | None:
    """Return the iteration that is listed by rank: the first of the view, else the typical one."""
    chosen = [i for i in report.iterations if i.index in view.iterations]
    return chosen[0] if chosen else report.typical_iteration()


def _methods(report: Report) -> Iterator[RenderableType]:
    from rich.text import Text

    from bubbleviz.report.methods import methods

    if report.no_pipeline is not None or report.summary.bubble_ratio[report.headline].mean is None:
        return
    yield Text("\nMethods, ready to paste", style="bold")
    yield Text(one_line(methods(report), None))
