"""The caption of a picture: one sentence on what it shows, and a note with the definitions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bubbleviz.count.iterations import Iteration
from bubbleviz.count.ratios import ratio_definitions
from bubbleviz.model.texts import capitalised, counted, one_line
from bubbleviz.model.values import frozen
from bubbleviz.report.measure import measure_of
from bubbleviz.report.methods import with_source
from bubbleviz.report.report import Report


@frozen
class FigureCaption:
    """A sentence with a full stop, and a note of several, which may be empty."""

    sentence: str
    note: str


def figure_caption(report: Report, iterations: Sequence[Iteration], rows: int) -> FigureCaption:
    """Return the caption of a timeline.

    Args:
        report: any report.
        iterations: those that are drawn, at least one.
        rows: number of rows that are drawn.
    """
    return FigureCaption(_sentence(report, iterations, rows), " ".join(_note(report)))


def _sentence(report: Report, iterations: Sequence[Iteration], rows: int) -> str:
    count = len(iterations)
    noun = report.iteration_noun
    what = f"One {noun}" if count == 1 else counted(count, noun)
    first = iterations[0]
    ran = report.schedule
    name = "" if ran is None or ran.name is None else f" of the schedule {one_line(ran.name, 60)}"
    stages = {rank.stage for rank in report.ranks} - {None}
    whole = report.no_pipeline is None and len(stages) > 1
    where = counted(len(stages), "pipeline stage") if whole else counted(rows, "GPU")
    microbatches = {it.microbatches for it in iterations} - {None}
    each = ""
    if len(microbatches) == 1:
        each = f" with {counted(microbatches.pop() or 0, 'microbatch', 'microbatches')}"
    ratio = first.ratios.get(report.headline)
    share = None if ratio is None or len(iterations) > 1 else ratio.value
    if share is None:
        spread = report.summary.bubble_ratio.get(report.headline)
        share = None if spread is None else spread.mean
    measured = ""
    if share is not None:
        whose = "its" if count == 1 else "their"
        measured = f"; {100 * share:.1f} % of {whose} time is {'bubble' if whole else 'idle'}"
    return f"{what}{name} on {where}{each}{measured}."


def _note(report: Report) -> Iterator[str]:
    definition = next((d for d in ratio_definitions() if d.name == report.headline), None)
    if definition is not None:
        yield f"{capitalised(measure_of(report))}: {with_source(definition.definition)}."
    yield "Boxes are operations, to scale; the number in a box is its microbatch."
    for restriction in report.restrictions:
        yield f"{capitalised(restriction.text)}."
