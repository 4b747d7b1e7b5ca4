"""Text of waits: what streams and hosts are proved to have waited for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.text import Text

from bubbleviz.analyses.idle.report import IdleReport
from bubbleviz.analyses.idle.waits import order_of
from bubbleviz.conventions.kinds import plain_name
from bubbleviz.model.texts import one_line
from bubbleviz.render.text.cells import milliseconds, omitted, percent, titled
from bubbleviz.render.text.display import shortened
from bubbleviz.render.text.tables import Table

if TYPE_CHECKING:
    from rich.console import RenderableType

#: Characters of names.
_WHO, _WORK, _DEVICE = 30, 36, 24


def proved_waits(report: IdleReport, top: int, hint: str) -> Iterator[RenderableType]:
    """Yield who waited for which work, and how much of the time that explains; nothing of none.

    Args:
        report: of some profiles.
        top: rows of the table, at most.
        hint: where to find the others.
    """
    count = sum(len(rank.waits) for rank in report.devices)
    if not count:
        return
    yield from titled("What they waited for, as far as it is proved", wait_table(report, top))
    yield from omitted(count, top, hint)
    yield Text(f"proved: {', '.join(_shares(report))}")


def wait_table(report: IdleReport, top: int) -> Table:
    """Return a row for each of the ``top`` waits of all devices."""
    left = ("device", "waiting", "for", "on")
    table = Table(
        *("device", "waiting", "for", "on", "waits", "blocked ms", "no compute ms", "idle ms"),
        left=left,
        giving_way=("waits", "device", "blocked ms"),
    )
    waits = [(wait, rank) for rank in report.devices for wait in rank.waits]
    # The sort is stable: devices keep their order.
    for wait, rank in sorted(waits, key=lambda pair: order_of(pair[0]))[:top]:
        work = plain_name(one_line(wait.work, None))
        table.add_row(
            shortened(one_line(rank.label, None), _DEVICE),
            shortened(one_line(wait.waiting, None), _WHO),
            shortened(work, _WORK),
            wait.stream,
            f"{wait.waits:,}",
            milliseconds(wait.blocked_ns),
            milliseconds(wait.without_compute_ns),
            milliseconds(wait.idle_ns),
        )
    return table


def _shares(report: IdleReport) -> Iterator[str]:
    """Yield which shares of the time the waits explain."""
    if report.idle_ns:
        yield f"{percent(report.proved_idle_ns / report.idle_ns)} of the idle time"
    devices = [rank for rank in report.devices if not rank.single]
    for what, awaited_ns, exposed_ns in (
        (
            "communication",
            sum(rank.awaited.communication_ns for rank in devices),
            sum(rank.breakdown.exposed_communication_ns for rank in devices),
        ),
        (
            "copies",
            sum(rank.awaited.copy_ns for rank in devices),
            sum(rank.breakdown.exposed_copy_ns for rank in devices),
        ),
    ):
        if awaited_ns:
            yield f"{percent(awaited_ns / exposed_ns)} of exposed {what} held up launched work"
