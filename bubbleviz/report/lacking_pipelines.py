"""Pipelines that lack ranks: how many there are, and whether the others can stand for the run."""

from __future__ import annotations

from bubbleviz.model.values import frozen
from bubbleviz.report.report import Report


@frozen
class LackingPipelines:
    """How many pipelines of a run lack a rank.

    Attributes:
        lacking: so many do.
        pipelines: of so many.
    """

    lacking: int
    pipelines: int


def few_lacking(report: Report) -> LackingPipelines | None:
    """Return how many pipelines lack ranks, where that is what is missing, and most lack none.

    None where all pipelines hold the same stages: what is missing is then one of these, or
    pipelines of which nothing is known.
    """
    stages: dict[int, set[int]] = {}
    for rank in report.ranks:
        if rank.stage is None or rank.pipeline is None:
            return None
        stages.setdefault(rank.pipeline, set()).add(rank.stage)
    every = set().union(*stages.values())
    lacking = sum(held != every for held in stages.values())
    if not 0 < 2 * lacking < len(stages) or every != set(range(len(every))):
        return None
    return LackingPipelines(lacking, len(stages))
