"""Iterations that are not averaged, and their ratios."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubbleviz.model.texts import one_line
from bubbleviz.render.text.cells import percent, titled
from bubbleviz.render.text.tables import Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from bubbleviz.report.report import Report

_MOST_ITERATIONS = 12


def not_averaged(report: Report) -> Iterator[RenderableType]:
    """Yield the iterations that are not averaged, if any."""
    others = [i for i in report.iterations if not i.averaged]
    if not others:
        return
    table = Table(
        "iteration",
        "kind",
        "complete",
        "microbatches",
        report.headline,
        left=("iteration", "kind", "complete"),
    )
    for iteration in others[:_MOST_ITERATIONS]:
        table.add_row(
            one_line(iteration.name, 60),
            iteration.kind,
            "yes" if iteration.complete else "no",
            "-" if iteration.microbatches is None else str(iteration.microbatches),
            percent(iteration.ratios[report.headline].value),
        )
    if len(others) > _MOST_ITERATIONS:
        table.add_row(f"… {len(others) - _MOST_ITERATIONS} more", "", "", "", "")
    yield from titled("Iterations not averaged", table)
