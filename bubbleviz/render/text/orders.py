"""Describes the recognized schedule, and how well the run matches it and the plan."""

from __future__ import annotations

from collections.abc import Iterator

from bubbleviz.explain.recognition.deviations import Deviation
from bubbleviz.explain.recognition.reasons import NO_PIPELINE
from bubbleviz.explain.recognition.recognition import Recognition
from bubbleviz.model.texts import to_one_line
from bubbleviz.render import document as doc
from bubbleviz.report.report import Report

#: Maximum number of listed deviations.
_DEVIATIONS = 5


def list_orders(report: Report) -> Iterator[doc.Block]:
    """Yield sentences on how well the run matches the recognized schedule and the plan.

    The sentences are followed by a list of the first operations that are out of order. If the ranks
    do not form a pipeline, a sentence gives the reason instead.
    """
    for title, recognition in (("schedule", report.schedule), ("plan", report.plan)):
        if recognition is None:
            continue
        if recognition.reason in NO_PIPELINE:
            yield doc.Sentence(f"no {title}: {recognition.reason}")
            continue
        yield doc.Sentence(f"{title}: {recognition}")
        yield from _list_deviations(report, recognition)


def list_plan_deviations(report: Report) -> Iterator[doc.Block]:
    """Yield a heading and a list of the first operations that deviate from the plan's order.

    Yields nothing if there is no plan or there are no deviations.
    """
    deviations = [] if report.plan is None else list(_list_deviations(report, report.plan))
    yield from (
        [doc.make_heading("Deviations from the plan's order"), *deviations] if deviations else []
    )


def _list_deviations(report: Report, recognition: Recognition) -> Iterator[doc.Block]:
    """Yield a list of the first ``_DEVIATIONS`` operations that are out of order.

    If there are more, the last entry gives the number of unlisted operations. Yields nothing if no
    schedule is recognized, or if no operation deviates from it.
    """
    if recognition.name is None or not recognition.deviations:
        return
    lines = [
        _describe_deviation(report, deviation) for deviation in recognition.deviations[:_DEVIATIONS]
    ]
    n_more = recognition.deviation_count - len(lines)
    if n_more > 0:
        lines.append(f"and {n_more:,} more; for the full list, use -o report.json")
    yield doc.make_bullets(lines)


def _describe_deviation(report: Report, deviation: Deviation) -> str:
    """Return one line about an operation that is out of order.

    The line names the rank, the iteration and the operation, and says by how many places the
    operation deviates. Chunk 0 is not mentioned.
    """
    rank, iteration = report.ranks[deviation.rank], report.iterations[deviation.iteration]
    chunk = f" of chunk {deviation.chunk}" if deviation.chunk > 0 else ""
    places = f" by {deviation.places}" if deviation.places else ""
    where = f"{to_one_line(rank.label, 40)}, iteration {to_one_line(iteration.name, 20)}"
    operation = f"{deviation.phase.label}{deviation.microbatch}{chunk}"
    return f"{where}: {operation} {deviation.what}{places}"
