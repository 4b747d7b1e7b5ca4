"""The best layouts of a model for each schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bubbleviz.analyses.layout.layer_table import MeasuredModel
from bubbleviz.errors import UsageError
from bubbleviz.model.memory_sizes import MemorySize
from bubbleviz.model.texts import format_count
from bubbleviz.progress import Watch, unwatched
from bubbleviz.schedules.layout.best_layouts import LayoutQuestion, ScheduleLayout, best_layouts


@dataclass(frozen=True)
class LayoutReport:
    """Layouts of a model.

    Attributes:
        question: what was sought.
        measured: where its numbers come from.
        rows: a schedule each, the shortest iteration first.
        asked: whether they were named, rather than all of one order.
    """

    question: LayoutQuestion
    measured: MeasuredModel
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


UNKNOWN_MEMORY = (
    "the memory of layers is unknown; give it in the column memory of --layers, or profiles with "
    "memory events (bubbleviz guide layout)"
)


def layouts_of(
    measured: MeasuredModel,
    sizes: tuple[int | None, int | None, int | None] = (None, None, None),
    schedules: Sequence[str] = (),
    limit: MemorySize | None = None,
    watch: Watch = unwatched,
) -> LayoutReport:
    """Return the best layouts for some schedules; for all of one order, if none is named.

    Args:
        measured: what is known of the model.
        sizes: devices, microbatches and chunks of a device; None for those of the run.
        schedules: names.
        limit: memory of a device.
        watch: called with the share of the search that is done.

    Raises:
        UsageError: a schedule that was named is unknown, or does not allow the sizes; or the memory
            of layers is unknown, or in another unit than the limit.
    """
    stages, microbatches, chunks = sizes
    question = measured.question(stages, microbatches)
    if len(question.layers) < question.stages:
        few, devices = len(question.layers), format_count(question.stages, "device")
        raise UsageError(
            f"{format_count(few, 'layer')} for {devices}: each needs one; give fewer devices "
            "with -p"
        )
    if limit is not None:
        if not measured.memory:
            raise UsageError(f"--memory-limit: {UNKNOWN_MEMORY}")
        if measured.in_bytes and not limit.in_bytes:
            raise UsageError(
                f"--memory-limit {limit.amount:g}: memory is measured in bytes; give a limit such "
                "as 80GB"
            )
        if measured.plain_memory:
            measured = replace(measured, in_bytes=limit.in_bytes)
        question = replace(question, limit=(limit.amount,) * question.stages)
    rows = best_layouts(question, schedules, chunks, watch)
    return LayoutReport(question, measured, rows, asked=bool(schedules))
