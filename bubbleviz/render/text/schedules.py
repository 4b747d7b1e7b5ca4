"""Schedules: the recognised order of operations, and how a plan was kept to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubbleviz.model.texts import one_line
from bubbleviz.render.text.cells import listed, percent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from bubbleviz.explain.recognition.deviations import Deviation
    from bubbleviz.explain.recognition.recognition import Recognition
    from bubbleviz.report.report import Report

_DEVIATIONS = 5


def orders(report: Report) -> Iterator[RenderableType]:
    """Yield which schedule ran and how a plan was kept to, with some deviations of each."""
    from rich.text import Text

    for title, found in (("schedule", report.schedule), ("plan", report.plan)):
        if found is None:
            continue
        yield Text(f"{title}: {_recognised(found)}")
        if found.name is not None and found.deviations:
            lines = [_deviation(report, one) for one in found.deviations[:_DEVIATIONS]]
            if found.deviation_count > len(lines):
                lines.append(f"and {found.deviation_count - len(lines):,} more in --json")
            yield listed(lines)


def _recognised(found: Recognition) -> str:
    """Return which schedule ran, in one line."""
    if found.name is None:
        return f"not recognised: {found.reason}"
    also = f", which here is also {' and '.join(found.also)}" if found.also else ""
    agreeing = found.agreeing
    exact = sum(i.exact for i in agreeing)
    of_all = f"of {len(found.judged)} iterations"
    if exact == len(found.judged):
        how = f"exact in {exact} {of_all}"
    elif found.distance is None:
        how = f"by its structure, in {len(agreeing)} {of_all}"
    else:
        how = f"{percent(found.distance)} of operations elsewhere, exact in {exact} {of_all}"
    if found.inferred:
        how += "; microbatches are counted by order, another may look the same"
    others = [name for i in found.iterations for name in (i.name, *i.names) if name != found.name]
    unlike = sorted({name or "an order of its own" for name in others})
    return f"{one_line(found.name, 60)}{also} ({how})" + (
        f"; elsewhere {one_line(', '.join(unlike), 120)}" if unlike else ""
    )


def _deviation(report: Report, one: Deviation) -> str:
    """Return one operation that is not where the schedule has it, in one line."""
    rank, iteration = report.ranks[one.rank], report.iterations[one.iteration]
    chunk = f" of chunk {one.chunk}" if one.chunk > 0 else ""
    places = f" by {one.places}" if one.places else ""
    return (
        f"{one_line(rank.label, 40)}, iteration {one_line(iteration.name, 20)}: "
        f"{one.phase.label}{one.microbatch}{chunk} {one.what}{places}"
    )
