"""Finds a model's best layout for each schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bubbleviz.analyses.layout.layer_table import MeasuredModel
from bubbleviz.errors import UsageError
from bubbleviz.model.memory_sizes import MemorySize
from bubbleviz.model.texts import format_count
from bubbleviz.progress import Watch, unwatched
from bubbleviz.report.layer_moves import RunMoves
from bubbleviz.schedules.layout.best_layouts import (
    LayoutQuestion,
    ScheduleLayout,
    find_best_layouts,
)
from bubbleviz.schedules.layout.single_moves import find_single_moves


@dataclass(frozen=True)
class LayoutReport:
    """The best layout of a model for each schedule.

    Attributes:
        question: The question that the search answered.
        measured: The measured model.
        rows: Best layout for each schedule, sorted by iteration time, shortest first.
        are_schedules_named: Whether the user named the schedules. Otherwise, ``rows`` contains all
            schedules with a fixed order.
    """

    question: LayoutQuestion
    measured: MeasuredModel
    rows: tuple[ScheduleLayout, ...]
    are_schedules_named: bool = False

    @property
    def best(self) -> ScheduleLayout | None:
        """The schedule and layout with the shortest iteration, or None if no layout fits."""
        return next((row for row in self.rows if row.best is not None), None)

    @property
    def same(self) -> ScheduleLayout | None:
        """The schedule that the run used, and its best layout.

        None if the schedule is unknown, was not searched, or has no layout that fits.
        """
        ran = self.measured.ran
        return next((row for row in self.rows if row.schedule == ran and row.best), None)

    @property
    def single_moves(self) -> RunMoves | None:
        """The effect of moving one layer in the run's layout, with the schedule that the run used.

        None if the layout or the schedule is unknown, or if the schedule has no fixed order.
        """
        ran, names = self.measured.ran, self.question.layers.names
        single = None if ran is None else find_single_moves(self.question, ran)
        if ran is None or single is None:
            return None
        return RunMoves(single, names, ran, self.measured.memory, self.measured.in_bytes)


UNKNOWN_MEMORY = (
    "the memory of the layers is unknown; add the column memory to the --layers file, or pass "
    "profiles with memory events (bubbleviz guide layout)"
)


def find_layouts(
    measured: MeasuredModel,
    sizes: tuple[int | None, int | None, int | None] = (None, None, None),
    schedules: Sequence[str] = (),
    limit: MemorySize | None = None,
    watch: Watch = unwatched,
) -> LayoutReport:
    """Find the best layout for each schedule.

    Args:
        measured: The measured model.
        sizes: Number of devices, of microbatches, and of chunks per device. None means the number
            in the measured run.
        schedules: Names of schedules, or empty for all schedules with a fixed order.
        limit: Available memory per device, or None for no limit.
        watch: Callback that receives the completed fraction of the search.

    Raises:
        UsageError: A named schedule is unknown or does not allow the sizes, a size is unknown, or
            there are fewer layers than devices. Also raised if a limit is given, but the memory of
            the layers is unknown or in a different unit.
    """
    stages, microbatches, chunks = sizes
    question = measured.make_question(stages, microbatches)
    if len(question.layers) < question.stages:
        n_layers, devices = len(question.layers), format_count(question.stages, "device")
        raise UsageError(
            f"{format_count(n_layers, 'layer')} for {devices}: each device needs at least one "
            "layer; use fewer devices with -p"
        )
    if limit is not None:
        if not measured.memory:
            raise UsageError(f"--memory-limit: {UNKNOWN_MEMORY}")
        if measured.in_bytes and not limit.in_bytes:
            raise UsageError(
                f"--memory-limit {limit.amount:g}: the memory of the layers is in bytes; pass a "
                "limit such as 80GB"
            )
        if measured.plain_memory:
            measured = replace(measured, in_bytes=limit.in_bytes)
        question = replace(question, limit=(limit.amount,) * question.stages)
    rows = find_best_layouts(question, schedules, chunks, watch)
    return LayoutReport(question, measured, rows, are_schedules_named=bool(schedules))
