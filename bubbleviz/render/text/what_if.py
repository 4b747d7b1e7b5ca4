"""What-if: the iteration without each delay, and other schedules at the measured times."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubbleviz.model.texts import counted, one_line
from bubbleviz.render.text.cells import in_percent, milliseconds, titled
from bubbleviz.render.text.display import shortened
from bubbleviz.render.text.tables import Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from bubbleviz.report.report import Report

_MEMORY = "fits in the same memory"


def what_if(report: Report) -> Iterator[RenderableType]:
    """Yield the length of the typical iteration without each delay."""
    from rich.text import Text

    changes = report.explanation.what_if
    if not changes:
        return
    table = Table(
        *("what if", "iteration ms", "speed-up %", "schedule %"),
        left=("what if",),
        wrap=("what if",),
        giving_way=("schedule %",),
    )
    whole = changes[0].makespan_ns
    for change in changes:
        table.add_row(
            change.change,
            milliseconds(change.makespan_ns),
            in_percent(1 - change.makespan_ns / whole if whole else None),
            in_percent(change.bubble_ratio),
        )
    yield from titled("Typical iteration without each delay, all else as measured", table)
    if report.headline == "period":
        yield Text(
            "The iteration as if alone: consecutive iterations overlap, so training waits for the "
            "period, which may change less"
        )


def alternatives(report: Report) -> Iterator[RenderableType]:
    """Yield what other schedules would take, where the report has them."""
    from rich.text import Text

    others = report.alternatives
    if others is None:
        return
    if others.measured is None:
        yield Text(f"\nOther schedules cannot be compared: {one_line(others.reason, 300)}")
        return
    by_stage = others.window == "stage"
    times = ("stage window ms", "stage %") if by_stage else ("iteration ms", "schedule %")
    # Most reports compare no other schedules.
    from bubbleviz.model.memory_sizes import memory_text

    in_bytes = any(row.peak_bytes is not None for row in others.rows)
    limit = others.limit_bytes
    fits = _MEMORY if limit is None else f"fits in {memory_text(limit)}"
    columns = (times[0], "speed-up %", times[1], "activations", *(["peak memory"] * in_bytes), fits)
    table = Table("order", *columns, left=("order", fits), wrap=(fits,))
    called = {"measured": "as measured", "no-delay": "the same order, without any delay"}
    ran = report.schedule.name if report.schedule is not None else None
    for row in others.rows:
        name = called.get(row.name, row.name) + (" (this one)" if row.name == ran else "")
        time_ms = row.cost_ms if by_stage else row.makespan_ms
        if time_ms is None:
            gone = ["-"] * (4 + in_bytes)
            table.add_row(name, *gone, shortened(one_line(row.reason, 200), 40))
            continue
        table.add_row(
            name,
            f"{time_ms:,.3f}",
            in_percent(row.speedup),
            in_percent(row.bubble_ratio),
            "-" if row.peak_activations is None else f"{row.peak_activations:.2f}",
            *(["-" if row.peak_bytes is None else memory_text(row.peak_bytes)] * in_bytes),
            "yes" if row.fits else "no",
        )
    yield from titled(
        "Schedules at the measured times: this run as measured, the others without any delay", table
    )
    measured = others.measured
    if by_stage:
        yield Text(
            "Consecutive iterations overlap, so the longest rank's own window (stage) is compared, "
            "below which no period can be; a makespan is that of one iteration alone"
        )
    yield Text(
        f"Times of {counted(measured.stages, 'stage')} and "
        f"{counted(measured.microbatches, 'microbatch', 'microbatches')} are medians; "
        f"a transfer takes {measured.times.transfer_ms:,.3f} ms; activations: the most "
        "microbatches that a stage holds, each from F to W; fits in the same memory: no more "
        "activations than measured, and the weights once. Searched orders are those of the "
        f"shortest {'window' if by_stage else 'iteration'}."
        + (
            ""
            if measured.split
            else " The backward was measured as one operation: half of it counts as W."
        )
    )
