"""The layouts of a model: what they were sought for, what they win, and what is assumed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bubbleviz.errors import UsageError
from bubbleviz.model.memory_sizes import MemorySize
from bubbleviz.model.values import frozen
from bubbleviz.progress import Watch, unwatched
from bubbleviz.schedules.layout.best_layouts import LayoutQuestion, ScheduleLayout, best_layouts
from bubbleviz.schedules.layout.layers import Layers, Layout


@frozen
class MeasuredModel:
    """What is known of a model, and of the run it was measured in.

    Attributes:
        source: where it is known from, in words, for a table's caption.
        layers: of the model.
        split: whether both halves of the backward were measured; else each takes half of it.
        assumptions: what was not measured, a sentence each.
        memory: whether the memory of activations is known.
        in_bytes: whether it is in bytes.
        plain_memory: whether memory is in plain numbers, of the unit of the limit.
        ran: name of the schedule that ran; None unknown.
        ran_ns: measured length of an iteration; None unknown.
        stages: devices of the run; None without a run.
        microbatches: of its iterations.
        own: its layout.
        links: nanoseconds from each device to each; None unknown.
    """

    source: str
    layers: Layers
    split: bool = True
    assumptions: tuple[str, ...] = ()
    memory: bool = False
    in_bytes: bool = False
    plain_memory: bool = False
    ran: str | None = None
    ran_ns: float | None = None
    stages: int | None = None
    microbatches: int | None = None
    own: Layout | None = None
    links: tuple[tuple[int, ...], ...] | None = None

    def question(self, stages: int | None, microbatches: int | None) -> LayoutQuestion:
        """Return what is sought, with sizes in place of those of the run.

        Raises:
            UsageError: a size is neither given nor measured.
        """
        p, m = stages or self.stages, microbatches or self.microbatches
        lacking = [option for option, size in (("-p P", p), ("-m M", m)) if size is None]
        if p is None or m is None:
            raise UsageError(f"give {' and '.join(lacking)}, or the profiles of a run")
        own = self.own if p == self.stages else None
        links = self.links
        if links is not None and p != self.stages:
            usual = int(np.median([ns for row in links for ns in row]))
            links = ((usual,) * p,) * p
        return LayoutQuestion(self.layers, p, m, own=own, links=links, split=self.split)


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


def limit_of(
    size: MemorySize | None, measured: MeasuredModel, stages: int
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
    measured: MeasuredModel,
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
