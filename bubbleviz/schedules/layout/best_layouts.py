"""The best layout for each schedule, beside the layout that a run has.

A schedule with one order is given its best layout (:mod:`.partition`). Of a searched schedule the
order depends on the times, and so on the layout: order and layout are improved in turn, as long as
that shortens the iteration; each step is exact, both together are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bubbleviz.errors import UsageError
from bubbleviz.progress import Watch, unwatched
from bubbleviz.schedules import known
from bubbleviz.schedules.layout import layers as model
from bubbleviz.schedules.layout.lower_bounds import Sums
from bubbleviz.schedules.layout.partition import Partition, find_best_partition
from bubbleviz.schedules.layout.recurrence import Recurrence, get_edges
from bubbleviz.schedules.plan import Memory, Plan, Schedule
from bubbleviz.schedules.plan_memory import fits
from bubbleviz.schedules.workload import (
    Workload,
    build_device_workload,
    check_total,
    get_phase_times,
)

#: How often order and layout of a searched schedule are improved in turn, at most.
_MAX_ROUNDS = 4
#: The schedule whose forwards are the order of a run that only goes forward.
FORWARD = "gpipe"


@dataclass(frozen=True)
class LayoutQuestion:
    """What layouts are sought for.

    Attributes:
        layers: of the model.
        stages: number of devices, p.
        microbatches: m.
        limit: memory by device, in the unit of the layers; None for no limit.
        own: the layout that the run has; None where it is unknown.
        links: nanoseconds from each device to each, beside the layers' own transfers; None for
            none.
        split: whether both halves of the backward were measured.
    """

    layers: model.Layers
    stages: int
    microbatches: int
    limit: tuple[float, ...] | None = None
    own: model.Layout | None = None
    links: tuple[tuple[int, ...], ...] | None = None
    split: bool = True

    def recurrence(self, plan: Plan) -> Recurrence:
        """Return a plan, ready to be timed over these links."""
        links = None if self.links is None else np.array(self.links, np.int64)
        return Recurrence(plan, links)

    def workload(self, layout: model.Layout) -> Workload:
        """Return what the virtual stages of a layout take."""
        links = None if self.links is None else np.array(self.links, np.int64)
        edges = get_edges(layout.placement, links)
        return model.build_layout_workload(
            self.layers, layout, self.microbatches, self.limit, edges=edges, split=self.split
        )


@dataclass(frozen=True)
class ScheduleLayout:
    """The best layout for one schedule.

    Attributes:
        schedule: its name.
        plan: the order; None where there is none of these sizes.
        before: the layout that it is compared with: the run's own where it has as many virtual
            stages at the same places, else equal numbers of layers: of those that fit the memory,
            if any does, the faster.
        own: whether that is the run's own.
        baseline_ns: makespan with that.
        baseline_fits: whether that is within the memory.
        best: the best layout; None where none was found within the memory, or the schedule has
            not this size.
        exact: whether the order is the same whatever the times, so that the layout is the best of
            all where the search says so.
        peak_memory: by device, in the unit of the layers, what is always taken included.
        bubble_ratio: of the best layout, in its makespan.
        reason: why there is none; else empty.
    """

    schedule: str
    plan: Plan | None = None
    before: model.Layout | None = None
    own: bool = False
    baseline_ns: int | None = None
    baseline_fits: bool = True
    best: Partition | None = None
    exact: bool = True
    peak_memory: tuple[float, ...] = ()
    bubble_ratio: float | None = None
    reason: str = ""

    @property
    def saving(self) -> float | None:
        """Share of the makespan that the best layout saves; None where one is unknown."""
        if self.best is None or not self.baseline_ns:
            return None
        return 1 - self.best.makespan_ns / self.baseline_ns

    def list_holders(self) -> tuple[tuple[int, int], ...]:
        """Return (device, virtual stage of one pipeline) of all stages, those of replicas too."""
        assert self.plan is not None
        length = len(self.plan.placement) // self.plan.replicas
        return tuple((device, at % length) for at, device in enumerate(self.plan.placement))

    @property
    def proven(self) -> bool:
        """Whether no layout is better under this schedule."""
        return self.exact and self.best is not None and self.best.proven


def find_best_layouts(
    question: LayoutQuestion,
    names: Sequence[str],
    chunks: int | None = None,
    watch: Watch = unwatched,
) -> tuple[ScheduleLayout, ...]:
    """Return the best layout for each of some schedules, the shortest iteration first.

    Args:
        question: what is sought.
        names: of schedules; empty for all that have one order, whatever the times, and for
            :data:`FORWARD` where nothing goes back.
        chunks: model chunks per device, v, of schedules that have several; None for their usual.
        watch: called with the share that is done.

    Raises:
        UsageError: a schedule that was named is unknown, or does not allow the sizes.
        MismatchError: All operations together are too long to simulate.
    """
    layers = question.layers
    times_ns = (*layers.times, layers.down_ns, layers.up_ns)
    check_total((column.tolist() for column in times_ns), question.microbatches)
    schedule_names = names or ([FORWARD] if question.layers.forward_only else ())
    rules = [known.find_schedule(name) for name in schedule_names] or [
        rule for rule in known.SCHEDULES if rule.has_one_order
    ]
    rows: list[ScheduleLayout] = []
    for number, rule in enumerate(rules):
        watch(number / len(rules))
        try:
            rows.append(_find_for_schedule(question, rule, chunks))
        except UsageError as error:
            if names:
                raise
            rows.append(ScheduleLayout(rule.name, reason=str(error)))
    watch(1.0)
    return tuple(sorted(rows, key=_rank_row))


def _rank_row(row: ScheduleLayout) -> tuple[bool, int, str]:
    makespan_ns = 0 if row.best is None else row.best.makespan_ns
    return row.best is None, makespan_ns, row.schedule


def _find_for_schedule(
    question: LayoutQuestion, rule: Schedule, chunks: int | None
) -> ScheduleLayout:
    """Return the best layout for a schedule; order and layout of a searched one in turn.

    Raises:
        UsageError: it does not allow the sizes.
    """
    n_chunks = rule.chunks if chunks is None or rule.chunks == 1 else chunks
    if rule.has_one_order:
        return _find_for_plan(question, rule.plan(question.stages, question.microbatches, n_chunks))
    placement = known.get_searched_placement(rule, question.stages, n_chunks)
    (layout, *_), _ = _list_baselines(question, placement)
    rows: list[ScheduleLayout] = []
    for _ in range(_MAX_ROUNDS):
        workload = _build_device_workload(question, rule, layout)
        plan = known.search_plan(rule.name, workload, makespan=True)
        row = _find_for_plan(question, plan, layout)
        first_ns = rows[0].baseline_ns if rows else row.baseline_ns
        row = replace(row, schedule=rule.name, exact=False, baseline_ns=first_ns)
        is_worse = any(_rank_row(row) >= _rank_row(other) for other in rows)
        rows.append(row)
        if is_worse or row.best is None:
            break
        layout = row.best.layout
    return min(rows, key=_rank_row)


def _build_device_workload(
    question: LayoutQuestion, rule: Schedule, layout: model.Layout
) -> Workload:
    """Return what an order is searched for: times of devices, and the schedule's own memory."""
    work, searched = question.workload(layout), rule.searched
    assert searched is not None
    devices = range(question.stages)
    times = [
        [
            sum(each[s] for s in stages) // len(stages)
            for stages in map(layout.get_stages_of, devices)
        ]
        for each in (work.forward_ns, work.backward_ns, work.weight_ns)
    ]
    limit = searched.limit(question.stages) if searched.limit else None
    return build_device_workload(
        layout.placement,
        question.microbatches,
        times,
        max((*work.down_ns, *work.up_ns)),
        Memory(limit, 1.0, searched.weight_memory),
    )


def _find_for_plan(
    question: LayoutQuestion, plan: Plan, start: model.Layout | None = None
) -> ScheduleLayout:
    """Return the best layout for one order."""
    recurrence, layers = question.recurrence(plan), question.layers
    layouts, is_current = _list_baselines(question, recurrence.placement)
    makespans = recurrence.compute_makespans(
        layers, np.array([each.bounds for each in layouts], np.int64)
    )
    is_fitting = [
        fits(compute_peak_memory(layers, recurrence, each), question.limit) for each in layouts
    ]
    index = min(range(len(layouts)), key=lambda row: (not is_fitting[row], makespans[row]))
    starts = [*layouts] if start is None else [*layouts, start]
    row = ScheduleLayout(
        schedule=plan.name,
        plan=plan,
        before=layouts[index],
        own=is_current,
        baseline_ns=int(makespans[index]),
        baseline_fits=is_fitting[index],
    )
    best = find_best_partition(recurrence, layers, question.limit, starts)
    if isinstance(best, str):
        return replace(row, reason=best)
    times = get_phase_times(question.workload(best.layout))
    operations = [op for order in plan.orders for op in order]
    work_ns = sum(times[op.phase][op.virtual_stage % recurrence.length] for op in operations)
    window_ns = best.makespan_ns * question.stages
    return replace(
        row,
        best=best,
        peak_memory=compute_peak_memory(layers, recurrence, best.layout),
        bubble_ratio=1 - work_ns / window_ns if window_ns else None,
    )


def _list_baselines(
    question: LayoutQuestion, placement: tuple[int, ...]
) -> tuple[tuple[model.Layout, ...], bool]:
    """Return the layouts to compare with, and whether it is the run's own."""
    current = question.own
    if current is not None and current.placement == placement:
        return (current,), True
    return model.make_even_layouts(question.layers, placement), False


def compute_peak_memory(
    layers: model.Layers, recurrence: Recurrence, layout: model.Layout
) -> tuple[float, ...]:
    """Return the most that each device holds, what is always taken included."""
    sums = Sums(layers, recurrence.length)
    rows = recurrence.list_memory_rows()
    sums.add([path for _, path in rows])
    values = sums.values(np.array([layout.bounds], np.int64))[0]
    peaks = [0.0] * recurrence.plan.stages
    for (device, _), value in zip(rows, values.tolist(), strict=True):
        peaks[device] = max(peaks[device], value)
    return tuple(peaks)
