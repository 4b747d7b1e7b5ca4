"""The best layout for each schedule, compared with a run's current layout.

For a schedule with a fixed order, the best layout is found exactly (:mod:`.partition`). The order
of a searched schedule depends on the times and therefore on the layout. For a searched schedule,
the order and the layout are improved alternately, as long as the iteration gets shorter. The result
may not be optimal.
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

#: Maximum number of rounds.
#: Each round improves the order and the layout of a searched schedule.
_MAX_ROUNDS = 4
#: Name of the schedule that represents runs without backwards.
FORWARD = "gpipe"


@dataclass(frozen=True)
class LayoutQuestion:
    """The model and the run for which the best layouts are searched for.

    Attributes:
        layers: Layers of the model.
        stages: Number of devices.
        microbatches: Number of microbatches.
        limit: Memory available on each device, in the same unit as the layer sizes, or None if
            there is no limit.
        current_layout: The run's current layout, or None if unknown.
        links: Transfer time in ns between each pair of devices, which is added to the layers' own
            transfer times. None adds nothing.
        split: Whether B and W were measured separately.
    """

    layers: model.Layers
    stages: int
    microbatches: int
    limit: tuple[float, ...] | None = None
    current_layout: model.Layout | None = None
    links: tuple[tuple[int, ...], ...] | None = None
    split: bool = True

    def recurrence(self, plan: Plan) -> Recurrence:
        """Build the recurrence that computes makespans of a plan, including ``links``."""
        links = None if self.links is None else np.array(self.links, np.int64)
        return Recurrence(plan, links)

    def workload(self, layout: model.Layout) -> Workload:
        """Build the workload of a layout: times, transfers and memory of its virtual stages."""
        links = None if self.links is None else np.array(self.links, np.int64)
        edges = get_edges(layout.placement, links)
        return model.build_layout_workload(
            self.layers, layout, self.microbatches, self.limit, edges=edges, split=self.split
        )


@dataclass(frozen=True)
class ScheduleLayout:
    """The best layout for a particular schedule.

    Attributes:
        schedule: Name of the schedule.
        plan: The order of the operations, or None if the schedule does not allow these sizes.
        baseline: Layout to compare with. It is the run's current layout if that has the schedule's
            placement. Otherwise, it is one of the two even layouts (:func:`.make_even_layouts`): a
            layout that fits in memory is preferred, then the faster layout.
        is_current_layout: Whether ``baseline`` is the run's current layout.
        baseline_ns: Makespan with the layout ``baseline``.
        baseline_fits: Whether ``baseline`` fits in memory.
        best: The best layout, or None if no layout fits in memory or the schedule does not allow
            these sizes.
        exact: Whether the schedule has a fixed order, which does not depend on the times. A layout
            can be proven to be the best only if the order is fixed.
        peak_memory: Peak memory of each device, in the same unit as the layer sizes, including
            memory that is always in use.
        bubble_ratio: Bubble ratio over the makespan with the best layout.
        reason: Reason why there is no best layout, or "".
    """

    schedule: str
    plan: Plan | None = None
    baseline: model.Layout | None = None
    is_current_layout: bool = False
    baseline_ns: int | None = None
    baseline_fits: bool = True
    best: Partition | None = None
    exact: bool = True
    peak_memory: tuple[float, ...] = ()
    bubble_ratio: float | None = None
    reason: str = ""

    @property
    def saving(self) -> float | None:
        """Fraction of the makespan that the best layout saves, or None if unknown."""
        if self.best is None or not self.baseline_ns:
            return None
        return 1 - self.best.makespan_ns / self.baseline_ns

    def list_holders(self) -> tuple[tuple[int, int], ...]:
        """Return, for each virtual stage, its device and its index within its pipeline."""
        assert self.plan is not None
        length = len(self.plan.placement) // self.plan.replicas
        return tuple((device, at % length) for at, device in enumerate(self.plan.placement))

    @property
    def proven(self) -> bool:
        """Whether the layout is proved to be the best one for this schedule."""
        return self.exact and self.best is not None and self.best.proven


def find_best_layouts(
    question: LayoutQuestion,
    names: Sequence[str],
    chunks: int | None = None,
    watch: Watch = unwatched,
) -> tuple[ScheduleLayout, ...]:
    """Find the best layout for each of several schedules.

    Args:
        question: The model and the run.
        names: Schedule names. If empty, all schedules that have one order are used, or only
            :data:`FORWARD` if the run has no backwards.
        chunks: Number of model chunks per device for schedules with several chunks, or None for the
            default of each schedule.
        watch: Callback that receives the fraction of schedules that are finished.

    Returns:
        One result per schedule, sorted by makespan, shortest first. Schedules without a layout come
        last.

    Raises:
        UsageError: A named schedule is unknown or does not allow the sizes.
        MismatchError: The total time of all operations is too long to simulate.
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
    return tuple(sorted(rows, key=_make_sort_key))


def _make_sort_key(row: ScheduleLayout) -> tuple[bool, int, str]:
    makespan_ns = 0 if row.best is None else row.best.makespan_ns
    return row.best is None, makespan_ns, row.schedule


def _find_for_schedule(
    question: LayoutQuestion, rule: Schedule, chunks: int | None
) -> ScheduleLayout:
    """Find the best layout for a schedule.

    A schedule with a fixed order is passed to :func:`_find_for_plan`. For a searched schedule, each
    round first searches for the best order with the current layout, and then for the best layout
    with this order. The first round starts with a baseline layout (see :func:`_list_baselines`).

    The search ends after ``_MAX_ROUNDS`` rounds, after a round that does not improve the result, or
    if no layout fits in memory. The result from the best round is returned.

    Raises:
        UsageError: The schedule does not allow the sizes.
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
        is_worse = any(_make_sort_key(row) >= _make_sort_key(other) for other in rows)
        rows.append(row)
        if is_worse or row.best is None:
            break
        layout = row.best.layout
    return min(rows, key=_make_sort_key)


def _build_device_workload(
    question: LayoutQuestion, rule: Schedule, layout: model.Layout
) -> Workload:
    """Build the workload for an order search.

    Every virtual stage takes the mean time of all virtual stages on its device. Every transfer
    takes as long as the longest transfer of the layout. The memory limit is the default limit of
    the schedule.
    """
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
    """Find the best layout for a given order.

    The baseline in the result is the run's current layout if that has the placement of the order.
    Otherwise, the baseline is one of two even layouts: a layout that fits in memory is preferred,
    then the faster layout.

    Args:
        question: The model and the run.
        plan: The order of operations.
        start: An additional layout from which to start the search.
    """
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
        baseline=layouts[index],
        is_current_layout=is_current,
        baseline_ns=int(makespans[index]),
        baseline_fits=is_fitting[index],
    )
    best = find_best_partition(recurrence, layers, question.limit, starts)
    if isinstance(best, str):
        return replace(row, reason=best)
    return replace(
        row,
        best=best,
        peak_memory=compute_peak_memory(layers, recurrence, best.layout),
        bubble_ratio=_compute_bubble_ratio(question, recurrence, best),
    )


def _compute_bubble_ratio(
    question: LayoutQuestion, recurrence: Recurrence, best: Partition
) -> float | None:
    """Return the bubble ratio of an order with its best layout, or None if the makespan is 0."""
    times = get_phase_times(question.workload(best.layout))
    operations = [op for order in recurrence.plan.orders for op in order]
    work_ns = sum(times[op.phase][op.virtual_stage % recurrence.length] for op in operations)
    window_ns = best.makespan_ns * question.stages
    return 1 - work_ns / window_ns if window_ns else None


def _list_baselines(
    question: LayoutQuestion, placement: tuple[int, ...]
) -> tuple[tuple[model.Layout, ...], bool]:
    """Return the layouts to compare with, and whether they are the run's current layout.

    If the current layout has the given placement, it is the only layout returned. Otherwise, the
    layouts are the two even layouts from :func:`.make_even_layouts`.
    """
    current = question.current_layout
    if current is not None and current.placement == placement:
        return (current,), True
    return model.make_even_layouts(question.layers, placement), False


def compute_peak_memory(
    layers: model.Layers, recurrence: Recurrence, layout: model.Layout
) -> tuple[float, ...]:
    """Return each device's peak memory, including memory that is always in use.

    Args:
        layers: Layers of the model.
        recurrence: The recurrence for the order of operations.
        layout: The layers in each virtual stage.

    Returns:
        Peak memory of each device, in the same unit as the memory of the layers.
    """
    sums = Sums(layers, recurrence.length)
    rows = recurrence.memory_rows
    sums.add([path for _, path in rows])
    values = sums.values(np.array([layout.bounds], np.int64))[0]
    peaks = [0.0] * recurrence.plan.stages
    for (device, _), value in zip(rows, values.tolist(), strict=True):
        peaks[device] = max(peaks[device], value)
    return tuple(peaks)
