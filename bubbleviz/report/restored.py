"""Restores a report from a saved report, so that pictures and tables of it can be made.

A restored report contains what pictures show: ranks, iterations, operations, idle time with its
causes, the critical path, and the advice that marks ranks. It is not a complete measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, TypeVar

import numpy as np

from bubbleviz.count.iterations import Iteration, Ratio, make_iteration_records
from bubbleviz.count.rank_iterations import (
    PHASES,
    AccountColumns,
    RankColumns,
    RankIterations,
)
from bubbleviz.count.ratios import list_ratios
from bubbleviz.count.statistics import Spread
from bubbleviz.count.summary import Summary
from bubbleviz.errors import InputError, UsageError
from bubbleviz.explain.causes.bubbles import Bubbles
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.causes.cause_times import CauseTimes
from bubbleviz.explain.communication_times import CommunicationTimes, Receives
from bubbleviz.explain.dependencies import Dependencies
from bubbleviz.explain.explanation import Explanation
from bubbleviz.explain.idle import IdleIntervals
from bubbleviz.explain.path import CriticalPath
from bubbleviz.explain.phase_times import PhaseTimes
from bubbleviz.explain.recognition.recognition import Recognition
from bubbleviz.explain.slowdown.replayed_run import ExplainedRows
from bubbleviz.explain.standouts import Standout
from bubbleviz.explain.what_if import WhatIf
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import sort_rows
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.operations import BusyIntervals, Operations, Rank, RankIntervals
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import WORK
from bubbleviz.model.restrictions import Restriction
from bubbleviz.report import summary as saved
from bubbleviz.report.advice import Advice, Advised, Step, StepCode, make_advice
from bubbleviz.report.kernel_time import KernelTime
from bubbleviz.report.marked_ranks import MarkedRanks, make_marked_ranks
from bubbleviz.report.methods import write_methods
from bubbleviz.report.profiled_run import measure_profiling_cost
from bubbleviz.report.profiling_cost import ProfilingCost
from bubbleviz.report.report import Report
from bubbleviz.report.restrictions import read_restrictions
from bubbleviz.report.sentences import make_marked_entry
from bubbleviz.report.timeline import MAX_SAVED_OPERATIONS, Timeline, read_timeline
from bubbleviz.schedules.choices import Choice, choose_chunks
from bubbleviz.schedules.known import schedules
from bubbleviz.schedules.measured_times import MeasuredTimes, StageTimes

DerivedT = TypeVar("DerivedT")

#: Columns of the timeline's table of operations that have the same name in ``Operations``.
_SAME_COLUMNS = (
    "rank",
    "iteration",
    "phase",
    "microbatch",
    "second_microbatch",
    "chunk",
    "second_chunk",
    "virtual_stage",
    "kernels",
    "active_ns",
)
#: Columns of ``Operations`` that a timeline does not contain.
UNSAVED_COLUMNS = ("host_start_ns", "host_end_ns", "launched_ns", "sequence", "occurrence")
#: Columns of ``WindowColumns`` that have the same name in ``AccountColumns``.
_SAME_TIMES = (
    "start_ns",
    "end_ns",
    "compute_ns",
    "optimizer_ns",
    "overlap_ns",
    "unattributed_ns",
    "bubble_ns",
)


@dataclass(frozen=True, repr=False)
class RestoredReport(Report):
    """A report for pictures, restored from a saved report.

    Attributes:
        saved_restrictions: Restrictions of the saved report, most severe first.
        saved_kernel_time: Time during which kernels ran, as saved.
        saved_texts: Results that were derived from the measured report, keyed by the function that
            derived them.
    """

    saved_restrictions: tuple[Restriction, ...] = ()
    saved_kernel_time: KernelTime | None = None
    saved_texts: Mapping[Callable[[Report], Any], Any] = field(default_factory=dict)

    def derive(self, make: Callable[[Report], DerivedT]) -> DerivedT:
        """Return ``make(self)``, or the result that was saved with the report."""
        if make in self.saved_texts:
            result: DerivedT = self.saved_texts[make]
            return result
        return super().derive(make)

    @property
    def restrictions(self) -> tuple[Restriction, ...]:
        """Reasons why the ratios do not describe a complete pipeline, most severe first."""
        return self.saved_restrictions

    @property
    def kernel_time(self) -> KernelTime:
        """Time during which kernels ran in the averaged iterations."""
        return self.saved_kernel_time or KernelTime(0, 0, 0, 0, 0)


def check_timeline(path: str, run: saved.RunSummary) -> None:
    """Check that a saved report contains the timeline that pictures are drawn from.

    Args:
        path: Path of the report, used in the message.
        run: The saved report.

    Raises:
        UsageError: The report has no timeline.
    """
    if run.timeline is None:
        raise UsageError(
            f"{path}: no timeline was saved, because the run has more than "
            f"{MAX_SAVED_OPERATIONS:,} operations; pass the profiles of the run instead, or leave "
            "out the picture"
        )


def restore(path: str, run: saved.RunSummary) -> RestoredReport:
    """Restore a report from which pictures can be drawn.

    Args:
        path: Path of the saved report, used in messages.
        run: The saved report.

    Raises:
        UsageError: The report has no timeline.
        InputError: The timeline is damaged, or a number refers to a missing rank or iteration.
    """
    check_timeline(path, run)
    return restore_numbers(path, run)


def restore_numbers(path: str, run: saved.RunSummary) -> RestoredReport:
    """Restore a report for tables of ratios, causes and stages.

    If the saved report has no timeline, the restored report has no operations.

    Args:
        path: Path of the saved report, used in messages.
        run: The saved report.

    Raises:
        InputError: The timeline is damaged, or a number refers to a missing rank or iteration.
    """
    timeline = read_timeline(path, run)
    if not _is_consistent(run):
        raise InputError(
            f"{path}: the report refers to ranks, profiles, iterations or phases that it does not "
            "contain; write it again with bubbleviz analyze -o report.json"
        )
    operations = _restore_operations(run, timeline)
    numbers = run.summary.kernel_time
    return RestoredReport(
        version=run.version,
        convention=run.convention,
        headline=run.headline,
        headline_reason=run.headline_reason,
        profiles=tuple(run.profiles),
        ranks=tuple(map(_restore_rank, run.ranks)),
        iterations=make_iteration_records(_restore_iterations(run, operations)),
        summary=_restore_summary(run.summary),
        operations=operations,
        busy=_restore_busy_intervals(timeline),
        unattributed=_restore_unattributed(timeline),
        coverage=tuple(run.coverage),
        unattributed_kernels=tuple(run.unattributed_kernels),
        explanation=_restore_explanation(run, timeline, operations),
        limitations=tuple(map(_restore_limitation, run.limitations)),
        schedule=_restore_schedule(run.schedule),
        hosts=run.hosts,
        unprofiled_step_ns=None if run.profiling_cost is None else run.profiling_cost.unprofiled_ns,
        saved_restrictions=read_restrictions(run.restrictions),
        saved_kernel_time=KernelTime(
            numbers.window_ns,
            numbers.kernel_ns,
            numbers.bubble_ns,
            numbers.gap_ns,
            numbers.unattributed_ns,
            numbers.work_ns,
        ),
        saved_texts=_restore_texts(run),
    )


def restore_what_if(entry: saved.WhatIfEntry) -> WhatIf:
    """Restore the schedules that were simulated when a report was saved.

    Returns:
        The times of the run and one row per schedule, without the simulations themselves.
    """
    measured, rows = None, tuple[Choice, ...]()
    if entry.times is not None:
        measured = _restore_times(entry.times)
        rows = tuple(_restore_choice(row, measured) for row in entry.rows)
    return WhatIf(
        measured=measured,
        rows=rows,
        same_schedule=None,
        reason=entry.reason,
        window=entry.window,
        limit_bytes=entry.limit_bytes,
        reordered=entry.reordered,
    )


def _restore_times(entry: saved.SimulatedTimes) -> MeasuredTimes:
    times = StageTimes(
        entry.times.forward_ms,
        entry.times.backward_ms,
        entry.times.weight_ms,
        entry.times.transfer_ms,
        lengths=entry.times.lengths,
    )
    return MeasuredTimes(entry.stages, entry.microbatches, entry.chunks, times, entry.split)


def _restore_choice(entry: saved.ChoiceEntry, measured: MeasuredTimes) -> Choice:
    """Return a simulated schedule.

    Args:
        entry: The schedule as saved.
        measured: Sizes of the run that was simulated.
    """
    rule = next((rule for rule in schedules() if rule.name == entry.name), None)
    return Choice(
        schedule=entry.name,
        stages=measured.stages,
        microbatches=measured.microbatches,
        chunks=measured.chunks if rule is None else choose_chunks(rule, measured),
        makespan_ns=None if entry.makespan_ms is None else entry.makespan_ms * 1e6,
        cost_ns=None if entry.cost_ms is None else entry.cost_ms * 1e6,
        bubble_ratio=entry.bubble_ratio,
        peak_activations=entry.peak_activations,
        peaks=entry.peaks,
        replicas=entry.replicas,
        speedup=entry.speedup,
        fits=entry.fits,
        peak_bytes=entry.peak_bytes,
        reason=entry.reason,
    )


def _is_consistent(run: saved.RunSummary) -> bool:
    """Return whether all indices of a report refer to something that the report contains."""
    n_profiles, n_ranks, n_iterations = len(run.profiles), len(run.ranks), len(run.iterations)
    if any(not 0 <= rank.profile < n_profiles for rank in run.ranks):
        return False
    if [rank.index for rank in run.ranks] != list(range(n_ranks)):
        return False
    if [iteration.index for iteration in run.iterations] != list(range(n_iterations)):
        return False
    named_ranks = [advice.ranks for advice in run.advice]
    named_ranks += [outlier.ranks for outlier in run.outliers]
    if run.lateness is not None:
        named_ranks.append(tuple(rank.rank for rank in run.lateness.ranks))
    if any(not 0 <= rank < n_ranks for ranks in named_ranks for rank in ranks):
        return False
    examples = [advice.example_iteration for advice in run.advice]
    if any(example is not None and not 0 <= example < n_iterations for example in examples):
        return False
    return all(
        iteration.ranks is None or _is_consistent_table(iteration.ranks, n_ranks)
        for iteration in run.iterations
    )


def _is_consistent_table(ranks: saved.RankColumns, n_ranks: int) -> bool:
    """Return whether a table lists existing ranks, all phases, and the ratio of each window."""
    return (
        all(0 <= rank < n_ranks for rank in ranks.rank)
        and ranks.busy_ns.keys() >= set(PHASES)
        and ranks.bubble_ratio.keys() >= ranks.windows.keys()
    )


def _restore_limitation(entry: saved.LimitationEntry) -> Limitation:
    kind = LimitationKind.OTHER if entry.affects_times else LimitationKind.DETAILS
    return Limitation(entry.what, entry.reason, entry.count, kind)


def _restore_rank(entry: saved.RankEntry) -> Rank:
    return Rank(
        index=entry.index,
        label=entry.label,
        host=entry.host,
        profile=entry.profile,
        pid=entry.pid,
        device_id=entry.device_id,
        uuid=entry.uuid,
        gpu=entry.gpu,
        pci=entry.pci,
        stage=entry.stage,
        pipeline=entry.pipeline,
        global_rank=entry.global_rank,
    )


def _restore_operations(run: saved.RunSummary, timeline: Timeline) -> Operations:
    """Return the operations of a timeline. Columns that a timeline lacks are -1 or 0."""
    table = timeline.tables["operations"]
    n_rows = len(table["rank"])
    none, zero = np.full(n_rows, NONE, np.int64), np.zeros(n_rows, np.int64)
    has_span = table["length_ns"] != NONE
    start_ns = np.where(has_span, table["start_ns"] + timeline.base_ns, NONE)
    end_ns = np.where(has_span, start_ns + table["length_ns"], NONE)
    columns: dict[str, Ints] = dict.fromkeys(Operations.column_names(), none)
    columns |= {name: table[name] for name in _SAME_COLUMNS}
    columns |= {
        "name_id": table["name"],
        "cut": zero,
        "occurrence": zero,
        "start_ns": start_ns,
        "end_ns": end_ns,
        "has_span": has_span.astype(np.int64),
        "busy_ns": _sum_busy_times(timeline, n_rows),
    }
    return Operations(
        **columns,
        names=timeline.names,
        stages=tuple(rank.stage for rank in run.ranks),
        global_ranks=tuple(rank.global_rank for rank in run.ranks),
    )


def _sum_busy_times(timeline: Timeline, n_operations: int) -> Ints:
    """Return the total length of each operation's busy intervals, in ns."""
    total_ns = np.zeros(n_operations, np.int64)
    for name in ("compute", "communication"):
        table = timeline.tables[name]
        np.add.at(total_ns, table["operation"], table["length_ns"])
    return total_ns


def _restore_busy_intervals(timeline: Timeline) -> BusyIntervals:
    """Return the busy intervals of all operations, sorted by (operation, start)."""
    tables = [timeline.tables[name] for name in ("compute", "communication")]
    operation, start_ns, length_ns = (
        np.concatenate([table[name] for table in tables])
        for name in ("operation", "start_ns", "length_ns")
    )
    order = sort_rows(operation, start_ns)
    starts_ns = start_ns[order] + timeline.base_ns
    return BusyIntervals(operation[order], starts_ns, starts_ns + length_ns[order])


def _restore_unattributed(timeline: Timeline) -> RankIntervals:
    table = timeline.tables["unattributed"]
    start_ns = table["start_ns"] + timeline.base_ns
    return RankIntervals(table["rank"], start_ns, start_ns + table["length_ns"])


def _restore_summary(numbers: saved.Numbers) -> Summary:
    return Summary(
        iterations=numbers.iterations,
        bubble_ratio=_restore_spreads(numbers.bubble_ratio),
        bubble_interval=numbers.bubble_interval,
        bubble_low=_restore_spreads(numbers.bubble_low),
        bubble_overhead=_restore_spreads(numbers.bubble_overhead),
        window_ns=_restore_spreads(numbers.window_ns),
    )


def _restore_spreads(averages: Mapping[str, saved.Average]) -> dict[str, Spread]:
    return {
        name: Spread(average.mean, average.std, average.min, average.max, average.ci95, average.n)
        for name, average in averages.items()
    }


def _restore_schedule(entry: saved.ScheduleEntry | None) -> Recognition | None:
    """Return the name of the schedule and the reason for it, or None if both are unknown."""
    return None if entry is None else Recognition(entry.name, reason=entry.reason or "")


def _restore_iterations(run: saved.RunSummary, operations: Operations) -> list[Iteration]:
    """Return the iterations with their ranks. An iteration without work starts and ends at 0."""
    columns = _restore_rank_columns(run, operations)
    return [
        Iteration(
            index=entry.index,
            name=entry.name,
            kind=entry.kind,
            complete=entry.complete,
            averaged=entry.averaged,
            microbatches=entry.microbatches,
            start_ns=entry.start_ns or 0,
            end_ns=entry.end_ns or 0,
            ratios=_restore_ratios(entry),
            ranks=RankIterations(columns, row, _list_ranks(entry)),
            bubble_ratio=entry.bubble_ratio.get(run.headline),
        )
        for row, entry in enumerate(run.iterations)
    ]


def _list_ranks(entry: saved.IterationEntry) -> Ints:
    return np.array([] if entry.ranks is None else entry.ranks.rank, np.int64)


def _restore_ratios(entry: saved.IterationEntry) -> dict[str, Ratio]:
    """Return the ratios of an iteration.

    A saved iteration does not say which ratios depend on contradictory clocks. These are the ratios
    that compare clocks, or all ratios if a clock was set during the iteration.
    """
    common_clock = {ratio.name for ratio in list_ratios() if ratio.common_clock}
    return {
        name: Ratio(
            value=value,
            low=entry.bubble_low.get(name),
            overhead=entry.bubble_overhead.get(name),
            window_ns=entry.window_ns.get(name),
            interval=entry.bubble_interval.get(name),
            incomplete=entry.incomplete,
            contradicted=entry.clock_set or (entry.clocks_contradict and name in common_clock),
        )
        for name, value in entry.bubble_ratio.items()
    }


def _restore_rank_columns(run: saved.RunSummary, operations: Operations) -> RankColumns:
    """Return the measurements of all ranks in all iterations. Ranks without work have zeros."""
    shape = len(run.iterations), len(run.ranks)
    tables = [entry.ranks for entry in run.iterations]
    fill = partial(_fill_column, shape, tables)
    reasons = (None, *dict.fromkeys(text for t in tables if t for text in t.missing if text))
    code_of_reason = {reason: code for code, reason in enumerate(reasons)}
    first_ns, last_ns = _find_work(operations, shape)
    return RankColumns(
        phase_ns=np.stack([fill(partial(_get_busy_ns, phase)) for phase in PHASES], axis=-1),
        compute_ns=fill(lambda table: table.compute_ns),
        active_ns=fill(lambda table: table.active_ns),
        first_ns=first_ns,
        last_ns=last_ns,
        kernel_ns=fill(lambda table: table.kernel_ns),
        gap_ns=fill(lambda table: table.gap_ns),
        missing=fill(lambda table: [code_of_reason[text] for text in table.missing]),
        reasons=reasons,
        accounts={
            ratio.name: _restore_account(shape, tables, ratio.name) for ratio in list_ratios()
        },
    )


def _get_busy_ns(phase: str, ranks: saved.RankColumns) -> Sequence[int]:
    return ranks.busy_ns[phase]


def _fill_column(
    shape: tuple[int, int],
    tables: Sequence[saved.RankColumns | None],
    get: Callable[[saved.RankColumns], Sequence[int]],
) -> Ints:
    """Return a column of all ranks in all iterations, with zeros for ranks that are not listed.

    Args:
        shape: Number of iterations and number of ranks.
        tables: Ranks of each iteration, or None if the report does not contain them.
        get: Function that returns the column of an iteration's ranks.
    """
    column = np.zeros(shape, np.int64)
    for row, table in enumerate(tables):
        if table is not None:
            column[row, table.rank] = get(table)
    return column


def _find_work(operations: Operations, shape: tuple[int, int]) -> tuple[Ints, Ints]:
    """Return when each rank's work started and ended in each iteration, in ns.

    Both times are 0 if a rank did no work in an iteration.

    Args:
        operations: The operations.
        shape: Number of iterations and number of ranks.
    """
    is_work = mask_phases(operations.phase, WORK) & (operations.has_span == 1)
    work = operations.take(is_work & (operations.iteration != NONE))
    limits = np.iinfo(np.int64)
    first_ns, last_ns = np.full(shape, limits.max), np.full(shape, limits.min)
    np.minimum.at(first_ns, (work.iteration, work.rank), work.start_ns)
    np.maximum.at(last_ns, (work.iteration, work.rank), work.end_ns)
    has_work = last_ns > limits.min
    return np.where(has_work, first_ns, 0), np.where(has_work, last_ns, 0)


def _restore_account(
    shape: tuple[int, int], tables: Sequence[saved.RankColumns | None], ratio: str
) -> AccountColumns:
    """Return how the ranks spent the time in the windows of a ratio.

    Args:
        shape: Number of iterations and number of ranks.
        tables: Ranks of each iteration, or None if the report does not contain them.
        ratio: Name of the ratio.
    """
    with_windows = [
        table if table is not None and ratio in table.windows else None for table in tables
    ]

    def fill(name: str) -> Ints:
        """Return one column of the windows."""
        return _fill_column(shape, with_windows, lambda table: getattr(table.windows[ratio], name))

    return AccountColumns(
        **{name: fill(name) for name in _SAME_TIMES},
        running_ns=np.zeros(shape, np.int64),
        work_ns=_fill_column(shape, with_windows, lambda table: _list_work_times(table, ratio)),
        is_known=tuple(table is not None for table in with_windows),
        bounds=None,
    )


def _list_work_times(ranks: saved.RankColumns, ratio: str) -> list[int]:
    """Return the time that counts as work in a ratio, or 0 if a rank's ratio is unknown."""
    return [
        0 if value is None else round((1 - value) * window_ns)
        for value, window_ns in zip(
            ranks.bubble_ratio[ratio], ranks.windows[ratio].window_ns, strict=True
        )
    ]


def _restore_explanation(
    run: saved.RunSummary, timeline: Timeline, operations: Operations
) -> Explanation:
    """Return the causes of idle time, the communication times and the critical path."""
    shape = len(run.iterations), len(run.ranks)
    tables = [entry.ranks for entry in run.iterations]
    rows = ExplainedRows(
        Dependencies.make_empty(),
        Receives.make_empty(),
        IdleIntervals.make_empty(),
        _restore_bubbles(run, timeline, operations),
        Dependencies.make_empty(),
    )
    communication = {
        field.name: _fill_column(shape, tables, partial(_get_communication, field.name))
        for field in fields(CommunicationTimes)
    }
    return Explanation(
        causes=CauseTimes({run.headline: _restore_cause_times(shape, tables, run.headline)}),
        explained=partial(_get_rows, rows),
        listed_ratio=run.headline,
        received=np.zeros(shape[0], np.int64),
        communication=CommunicationTimes(**communication),
        phase_times=PhaseTimes((), run.transfer_ns, (), ()),
        path=_restore_path(run, timeline),
        changes=(),
        ran=run.schedule_name,
    )


def _get_rows(rows: ExplainedRows) -> ExplainedRows:
    return rows


def _get_communication(name: str, ranks: saved.RankColumns) -> Sequence[int]:
    column: Sequence[int] = getattr(ranks.communication, name)
    return column


def _restore_cause_times(
    shape: tuple[int, int], tables: Sequence[saved.RankColumns | None], ratio: str
) -> Ints:
    """Return the idle time by cause in the windows of a ratio, shape (iterations, ranks, causes).

    Causes that this version of the package does not know are left out.

    Args:
        shape: Number of iterations and number of ranks.
        tables: Ranks of each iteration, or None if the report does not contain them.
        ratio: Name of the ratio.
    """

    def fill(cause: Cause) -> Ints:
        """Return the idle time that has one cause."""
        with_cause = [
            table if table is not None and cause.label in table.cause_ns.get(ratio, {}) else None
            for table in tables
        ]
        return _fill_column(shape, with_cause, lambda table: table.cause_ns[ratio][cause.label])

    return np.stack([fill(cause) for cause in Cause], axis=-1)


def _restore_bubbles(run: saved.RunSummary, timeline: Timeline, operations: Operations) -> Bubbles:
    """Return the idle intervals of a timeline. Columns that a timeline lacks are -1."""
    table = timeline.tables["bubbles"]
    none = np.full(len(table["rank"]), NONE, np.int64)
    start_ns = table["start_ns"] + timeline.base_ns
    columns: dict[str, Ints] = dict.fromkeys(IdleIntervals.column_names(), none)
    columns |= {name: table[name] for name in ("rank", "cause", "after", "peer_operation")}
    columns |= {"start_ns": start_ns, "end_ns": start_ns + table["length_ns"]}
    columns |= {"host_call": table["call"], "host_range": table["around"]}
    return Bubbles.of(
        IdleIntervals(**columns), table["iteration"], ratio=run.headline, operations=operations
    )


def _restore_path(run: saved.RunSummary, timeline: Timeline) -> CriticalPath | None:
    """Return the operations on the critical path, without slack, or None if there is no path."""
    entry, rows = run.critical_path, timeline.tables["critical"]["operation"]
    if entry is None or not len(rows):
        return None
    no_rows = np.zeros(0, np.int64)
    return CriticalPath(entry.iteration, rows, entry.length_ns, (), (), no_rows, no_rows)


def _restore_texts(run: saved.RunSummary) -> dict[Callable[[Report], Any], Any]:
    """Return the advice and outliers in pictures, and the methods; see ``RestoredReport``."""
    steps = [step for step in run.first if step.advice is not None]
    entries = [run.advice[step.advice] for step in steps if step.advice is not None]
    advice = [_restore_advice(entry) for entry in entries]
    first = tuple(Step(StepCode.ADVICE, change) for change in advice)
    marked = next((index for index, step in enumerate(steps) if step.is_marked), None)
    advised = Advised(first, (), (), None if marked is None else advice[marked])
    outliers = tuple(_restore_outlier(entry) for entry in run.outliers if entry.is_marked)
    ranks = sorted(rank for outlier in outliers for rank in outlier.ranks)
    return {
        make_advice: advised,
        make_marked_entry: None if marked is None else entries[marked],
        make_marked_ranks: MarkedRanks(advised.marked_ranks or tuple(ranks), outliers),
        write_methods: run.methods,
        measure_profiling_cost: _restore_cost(run.profiling_cost),
    }


def _restore_cost(entry: saved.ProfilingCostEntry | None) -> ProfilingCost | None:
    if entry is None:
        return None
    return ProfilingCost(
        unprofiled_ns=entry.unprofiled_ns,
        profiled_ns=entry.profiled_ns,
        error_ns=entry.error_ns,
        steps=entry.steps,
        overhead_ns=entry.overhead_ns,
    )


def _restore_outlier(entry: saved.OutlierEntry) -> Standout:
    return Standout(
        kind=entry.kind,
        name=entry.name,
        ranks=entry.ranks,
        ratio=entry.bubble_ratio,
        above=entry.above_median,
        phase=entry.phase,
        times=entry.times_median,
    )


def _restore_advice(entry: saved.AdviceEntry) -> Advice:
    """Return a piece of advice. Its evidence and the iteration length are not saved."""
    return Advice(
        kind=entry.kind,
        place=entry.place,
        evidence=Recognition(None),
        saving_ns=entry.saving_ns or 0,
        length_ns=0.0,
        saving_ratio=entry.saving_ratio or 0.0,
        iterations=entry.iterations,
        ranks=entry.ranks,
        stages=entry.stages,
        stage=entry.stage,
        example_iteration=entry.example_iteration,
    )
