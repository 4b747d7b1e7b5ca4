"""The layouts of a model: what they were sought for, what they win, and what is assumed."""

from __future__ import annotations

from collections.abc import Sequence

from bubbleviz.errors import UsageError
from bubbleviz.model.memory_sizes import MemorySize
from bubbleviz.model.values import frozen
from bubbleviz.progress import Watch, unwatched
from bubbleviz.schedules.layout.best_layouts import LayoutQuestion, ScheduleLayout, best_layouts


@frozen
class MeasuredLayers:
    """Where the times and the memory of layers come from.

    Attributes:
        source: in words, for a table's caption.
        ran: name of the schedule that ran; None unknown.
        ran_ns: measured length of an iteration; None unknown.
        memory: whether the memory of activations is known.
        in_bytes: whether it is in bytes.
        assumptions: what was not measured, a sentence each.
    """

    source: str
    ran: str | None = None
    ran_ns: float | None = None
    memory: bool = False
    in_bytes: bool = False
    assumptions: tuple[str, ...] = ()


@frozen
class LayoutReport:
    """Layouts of a model.

    Attributes:
        question: what was sought.
        measured: where its numbers come from.
        rows: a schedule each, the shortest iteration first.
        asked: whether they were named, rather than all of one order.
    """

    question: LayoutQuestion
    measured: MeasuredLayers
    rows: tuple[ScheduleLayout, ...]
    asked: bool = False

    @property
    def best(self) -> ScheduleLayout | None:
        """The schedule and the layout with the shortest iteration; None where none fits."""
        return next((row for row in self.rows if row.best is not None), None)

    @property
    def same(self) -> ScheduleLayout | None:
        """The schedule that ran, with its best layout; None where it is unknown."""
        ran = self.measured.ran
        return next((row for row in self.rows if row.schedule == ran and row.best), None)


def limit_of(
    size: MemorySize | None, measured: MeasuredLayers, stages: int
) -> tuple[float, ...] | None:
    """Return the memory limit of each device, in the unit of the layers; None for no limit.

    Raises:
        UsageError: the memory of layers is unknown, or in another unit.
    """
    if size is None:
        return None
    if not measured.memory:
        raise UsageError(
            "--memory-limit: the memory of layers is unknown; give it in the column memory of "
            "--layers, or profiles with memory events (bubbleviz guide layout)"
        )
    if measured.in_bytes and not size.in_bytes:
        raise UsageError(
            f"--memory-limit {size.amount:g}: memory is measured in bytes; give a limit such as "
            "80GB"
        )
    return (size.amount,) * stages


def layouts_of(
    question: LayoutQuestion,
    measured: MeasuredLayers,
    schedules: Sequence[str] = (),
    chunks: int | None = None,
    watch: Watch = unwatched,
) -> LayoutReport:
    """Return the best layouts for some schedules; for all of one order, if none is named.

    Raises:
        UsageError: a schedule that was named is unknown, or does not allow the sizes.
    """
    rows = best_layouts(question, schedules, chunks, watch)
    return LayoutReport(question, measured, rows, asked=bool(schedules))
