"""Advice: what would shorten iterations, and by how much a replay of them proves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubbleviz.model.texts import counted, one_line
from bubbleviz.render.text.cells import milliseconds, percent, titled
from bubbleviz.render.text.tables import Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from bubbleviz.report.report import Report


def advice_table(report: Report) -> Iterator[RenderableType]:
    """Yield what saves most, then at most four more; savings overlap and do not add up."""
    from bubbleviz.report.advice_list import advice_of

    diagnosis, listed = report.explanation.diagnosis, advice_of(report)
    if diagnosis is None or not listed:
        return
    table = Table("saves ms", "share", "what to do", left=("what to do",), wrap=("what to do",))
    for advice in listed:
        # The saving has its own columns.
        what = one_line(advice.action, 400)
        table.add_row(milliseconds(advice.saving_ns), percent(advice.saving_ratio), what)
    yield from titled(
        f"What would shorten an iteration ({milliseconds(diagnosis.length_ns)} ms), by a replay of "
        f"{counted(diagnosis.iterations, 'iteration')}; savings do not add up",
        table,
    )
