"""Memory: what each virtual stage holds, and the peaks of ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubbleviz.render.text.cells import titled
from bubbleviz.render.text.tables import Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from bubbleviz.report.report import Report

#: Virtual stages that are listed.
_MOST = 64


def memory(report: Report) -> Iterator[RenderableType]:
    """Yield the activations of each virtual stage, where memory was read."""
    from rich.text import Text

    from bubbleviz.model.memory_sizes import memory_text
    from bubbleviz.model.phases import Phase

    if report.memory is None:
        return
    peaks: dict[int | None, list[int]] = {}
    for peak in report.memory.ranks:
        peaks.setdefault(report.ranks[peak.rank].stage, []).append(peak.peak_bytes)
    columns = ("F leaves", "held to B", "kept to W", "F needs", "backward needs", "rank's peak")
    table = Table("virtual stage", *columns)
    stage_of = {k.virtual_stage: k.stage for k in report.explanation.phase_times.kinds}
    kinds = report.memory.operations
    for own in [kind for kind in kinds if kind.phase is Phase.F][:_MOST]:
        back = [k.above_bytes for k in kinds
                if k.virtual_stage == own.virtual_stage and k.phase is not Phase.F]  # fmt: skip
        most = max(peaks.get(stage_of.get(own.virtual_stage), []), default=None)
        amounts = (
            *(own.net_bytes, own.held_bytes, own.kept_bytes, own.above_bytes - own.net_bytes),
            *(max(back, default=None), most),
        )
        cells = ["-" if amount is None else memory_text(amount) for amount in amounts]
        table.add_row("-" if own.virtual_stage < 0 else str(own.virtual_stage), *cells)
    yield from titled("Memory of a microbatch", table)
    yield Text(
        "held to B, kept to W: activations; needs: beside what it leaves, at its fullest moment "
        "(bubbleviz guide memory)"
    )
