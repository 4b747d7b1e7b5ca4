"""Schedules: the recognised order of operations, and its match with a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubbleviz.model.texts import counted, one_line
from bubbleviz.render.text.cells import percent
from bubbleviz.render.text.tables import BulletList

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from bubbleviz.explain.recognition.deviations import Deviation
    from bubbleviz.explain.recognition.recognition import Recognition
    from bubbleviz.report.report import Report

_DEVIATIONS = 5


def orders(report: Report) -> Iterator[RenderableType]:
    """Yield the recognised schedule and the match with a plan, with some deviations of each."""
    from rich.text import Text

    from bubbleviz.explain.recognition.reasons import NO_PIPELINE

    for title, recognition in (("schedule", report.schedule), ("plan", report.plan)):
        if recognition is None:
            continue
        if recognition.reason in NO_PIPELINE:
            yield Text(f"no {title}: {recognition.reason}")
            continue
        yield Text(f"{title}: {recognised(recognition)}")
        yield from _deviations(report, recognition)


def plan_deviations(report: Report) -> Iterator[RenderableType]:
    """Yield some operations that are out of the plan's order, if any."""
    from rich.text import Text

    if report.plan is not None and report.plan.name is not None and report.plan.deviations:
        yield Text("\nOut of the plan's order", style="bold")
        yield from _deviations(report, report.plan)


def _deviations(report: Report, recognition: Recognition) -> Iterator[RenderableType]:
    if recognition.name is not None and recognition.deviations:
        lines = [_deviation(report, each) for each in recognition.deviations[:_DEVIATIONS]]
        if recognition.deviation_count > len(lines):
            lines.append(f"and {recognition.deviation_count - len(lines):,} more in --json")
        yield BulletList(lines)


def recognised(recognition: Recognition) -> str:
    """Return the recognised schedule and its match, on one line."""
    from bubbleviz.explain.recognition.reasons import FORWARD_ONLY

    if recognition.reason == FORWARD_ONLY:
        return f"none, {FORWARD_ONLY}"
    if recognition.name is None:
        return f"not recognised: {recognition.reason}"
    also = f", here the same as {' and '.join(recognition.also)}" if recognition.also else ""
    exact = sum(iteration.exact for iteration in recognition.agreeing)
    total = len(recognition.judged)
    matches = f"order matches in {exact} of {counted(total, 'iteration')}"
    if exact < total and recognition.distance is None:
        agreeing = len(recognition.agreeing)
        matches = f"by structure in {agreeing} of {counted(total, 'iteration')}"
    elif exact < total:
        matches = f"{percent(recognition.distance)} of operations out of order, {matches}"
    if recognition.inferred:
        matches += "; microbatches are numbered by order, so another schedule may look the same"
    line = f"{one_line(recognition.name, 60)}{also} ({matches})"
    names = {name for i in recognition.iterations for name in (i.name, *i.names)}
    others = sorted({name or "an order of its own" for name in names if name != recognition.name})
    return f"{line}; other iterations: {one_line(', '.join(others), 120)}" if others else line


def _deviation(report: Report, deviation: Deviation) -> str:
    """Return an operation that is out of the schedule's order, on one line."""
    rank, iteration = report.ranks[deviation.rank], report.iterations[deviation.iteration]
    chunk = f" of chunk {deviation.chunk}" if deviation.chunk > 0 else ""
    places = f" by {deviation.places}" if deviation.places else ""
    return (
        f"{one_line(rank.label, 40)}, iteration {one_line(iteration.name, 20)}: "
        f"{deviation.phase.label}{deviation.microbatch}{chunk} {deviation.what}{places}"
    )
