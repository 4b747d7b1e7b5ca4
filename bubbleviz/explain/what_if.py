"""Simulate the typical iteration under other schedules, with its measured times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from bubbleviz.count.iterations import Iteration, choose_typical
from bubbleviz.errors import BubblevizError
from bubbleviz.explain.explanation import Explanation
from bubbleviz.explain.microbatch_lengths import get_lengths
from bubbleviz.explain.recognition.reasons import FORWARD_ONLY, NO_SCHEDULE
from bubbleviz.explain.recognition.recognition import Recognition
from bubbleviz.model.columns import Ints
from bubbleviz.model.grouping import find_distinct, group_rows, sort_rows
from bubbleviz.model.operations import Operations, Rank
from bubbleviz.model.phases import Phase
from bubbleviz.schedules.choices import (
    MEASURED,
    NO_DELAY,
    Choice,
    DeviceMemory,
    add_memory,
    compare_schedules,
    simulate_equal_stages,
)
from bubbleviz.schedules.ideal import Ideal, simulate_plan
from bubbleviz.schedules.known import schedules
from bubbleviz.schedules.measured_times import MeasuredTimes, collect_times
from bubbleviz.schedules.microbatch_order import order_microbatches
from bubbleviz.schedules.plan import Plan

#: The best schedule must save more than this fraction of the window.
_MIN_SPEEDUP = 0.01


@dataclass(frozen=True)
class WhatIf:
    """Schedules simulated with the times of the typical iteration.

    Attributes:
        measured: Operation times of the run, or None if they could not be determined.
        rows: First the order that ran, as measured. Then the same order without delays, if known.
            Then the simulated schedules, best first.
        same_schedule: Simulation of the given plan or, if no plan is given, of the recognized
            schedule. None if it is unknown or cannot be simulated.
        reason: Reason why there are no rows, or "" if there are rows.
        window: Name of the ratio whose window is compared. This is ``schedule``, whose window is
            the makespan. If consecutive iterations overlap, it is ``stage``, whose window is the
            longest window on any rank. In this case, a simulated iteration gives only a lower bound
            on the period.
        ideal: The order of ``same_schedule``, simulated with equal stages and free transfers. 1F1B
            is used if that order is unknown. None if neither can be simulated.
        fastest_other: The fastest schedule that fits in memory and is not the schedule that ran.
            None if no schedule meets both conditions, or if other schedules were not simulated.
        best: Simulation of ``fastest_other``. None if there is no such schedule, or if it saves at
            most 1 % of the window.
        limit_bytes: Memory limit per device, or None if the run's peak memory is the limit.
        reordered: The best microbatch order that was found for ``same_schedule``, and the fraction
            of the makespan that it saves. None if microbatches have equal lengths, or if
            ``same_schedule`` is None or has two directions. Also None if other schedules were not
            simulated.
    """

    measured: MeasuredTimes | None
    rows: tuple[Choice, ...]
    same_schedule: Ideal | None
    reason: str = ""
    window: str = "schedule"
    ideal: Ideal | None = None
    fastest_other: Choice | None = None
    best: Ideal | None = None
    limit_bytes: float | None = None
    reordered: tuple[tuple[int, ...], float] | None = None

    @property
    def as_measured(self) -> Choice | None:
        """The row for the order that ran, with its measured times. None if there are no rows."""
        return next((row for row in self.rows if row.schedule == MEASURED), None)

    @property
    def without_delays(self) -> Choice | None:
        """The row for the order that ran, without delays.

        None if the row is unknown or if iterations overlap.
        """
        return next((row for row in self.rows if row.schedule == NO_DELAY), None)

    @property
    def base_ms(self) -> float | None:
        """Makespan in ms of the order that ran, without delays, or None if it is unknown.

        This is the makespan of :attr:`same_schedule`, which is simulated at mean times like all
        other schedules. If the order cannot be simulated, it is the makespan of a replay at the
        measured times.
        """
        return _get_base_ms(self.rows, self.same_schedule)

    @property
    def schedules(self) -> tuple[Choice, ...]:
        """The rows that are simulated schedules, best first."""
        return tuple(row for row in self.rows if not row.is_measured_order)


def ask_what_if(
    ranks: tuple[Rank, ...],
    operations: Operations,
    iterations: Sequence[Iteration],
    headline: str,
    explanation: Explanation,
    recognized: Recognition | None,
    plan: Plan | None = None,
    *,
    with_all_schedules: bool = True,
    memory: DeviceMemory | None = None,
) -> WhatIf:
    """Simulate how long the typical iteration would take under other schedules.

    The result contains rows only if the typical iteration was replayed, the run is a training
    pipeline, and the times of its operations are complete. Otherwise it contains only a reason.

    Args:
        ranks: The ranks, by index.
        operations: Operations of all ranks.
        iterations: The iterations of the run.
        headline: Name of the primary ratio.
        explanation: Explanation of the run, with phase times and changes.
        recognized: The recognized schedule, or None if recognition did not run.
        plan: The plan of the run, or None for the recognized schedule.
        with_all_schedules: Whether to simulate all known schedules. If false, only one is
            simulated: ``plan`` or, if it is None, the recognized schedule.
        memory: Device memory in bytes, or None if it is unknown.
    """
    limit_bytes = None if memory is None else memory.limit

    def make_unknown(reason: str) -> WhatIf:
        main_reason = explanation.no_path_reason or reason
        return WhatIf(None, (), None, main_reason, limit_bytes=limit_bytes)

    typical = choose_typical(iterations, headline)
    if typical is None or not explanation.changes:
        return make_unknown(
            "no iteration both has a common clock for all ranks and is small enough to replay"
        )
    if recognized is not None and recognized.reason in (*NO_SCHEDULE, FORWARD_ONLY):
        return make_unknown(recognized.reason)
    times = explanation.phase_times
    try:
        measured = collect_times(times.kinds, times.transfer_ns, typical.microbatches)
    except BubblevizError as error:
        return make_unknown(str(error))
    if _has_uneven_microbatches(explanation):
        # The relative lengths of microbatches do not depend on the schedule.
        lengths = get_lengths(operations, typical.index, typical.microbatches or 0)
        measured = replace(measured, times=replace(measured.times, lengths=lengths))
    peak = max(_measure_peaks(ranks, operations, typical), default=0.0)
    rows = _list_measured_choices(measured, typical, explanation, peak)
    name = None if recognized is None else recognized.name
    by_makespan = explanation.period_ns is None
    return _compare_with_run(
        measured,
        rows,
        name,
        plan,
        memory,
        with_all_schedules=with_all_schedules,
        by_makespan=by_makespan,
    )


def _compare_with_run(
    measured: MeasuredTimes,
    rows: tuple[Choice, ...],
    name: str | None,
    plan: Plan | None,
    memory: DeviceMemory | None,
    *,
    with_all_schedules: bool,
    by_makespan: bool,
) -> WhatIf:
    """Simulate schedules with the times of the run, and compare them with the order that ran.

    Args:
        measured: Times of the run.
        rows: Rows for the order that ran: first as measured, then, if known, without delays.
        name: Name of the recognized schedule, or None if it is unknown.
        plan: Plan to simulate instead of the recognized schedule, or None.
        memory: Device memory in bytes, or None if it is unknown.
        with_all_schedules: Whether to simulate all known schedules. If false, only one is
            simulated: ``plan`` or, if it is None, the recognized schedule.
        by_makespan: Whether schedules are compared by makespan. If false, they are compared by
            cost, the longest window on any stage.
    """
    rules = [
        rule for rule in schedules() if with_all_schedules or (plan is None and rule.name == name)
    ]
    compared = compare_schedules(measured, rules, rows[0], by_makespan=by_makespan)
    same_schedule = None
    if plan is None:
        same_schedule = next((ideal for choice, ideal in compared if choice.schedule == name), None)
    else:
        with suppress(BubblevizError):  # The sizes of plan and run differ.
            same_schedule = simulate_plan(plan, measured.times)
    reordered = None
    if (
        with_all_schedules
        and measured.times.lengths
        and same_schedule is not None
        and same_schedule.plan.replicas == 1
    ):
        reordered = order_microbatches(same_schedule.plan, measured.times)
    if memory is not None:
        rows = tuple(add_memory(row, memory) for row in rows)
        compared = [(add_memory(choice, memory), simulated) for choice, simulated in compared]
    base_ms = _get_base_ms(rows, same_schedule) if by_makespan else None
    if base_ms:
        rows = tuple(_compare_with_base(row, base_ms) for row in rows)
        compared = [
            (_compare_with_base(choice, base_ms), simulated) for choice, simulated in compared
        ]
    choices = tuple(choice for choice, _ in compared)
    fastest = find_fastest_other(choices, name) if with_all_schedules else None
    best = None
    if fastest is not None and (fastest.speedup or 0.0) > _MIN_SPEEDUP:
        best = next(simulated for choice, simulated in compared if choice is fastest)
    return WhatIf(
        measured,
        (*rows, *choices),
        same_schedule,
        window="schedule" if by_makespan else "stage",
        ideal=simulate_equal_stages(
            None if same_schedule is None else same_schedule.plan, measured
        ),
        fastest_other=fastest,
        best=best,
        limit_bytes=None if memory is None else memory.limit,
        reordered=reordered,
    )


def _get_base_ms(rows: Iterable[Choice], same_schedule: Ideal | None) -> float | None:
    """Return the makespan in ms of the order that ran, without delays; see :attr:`WhatIf.base_ms`.

    Args:
        rows: Rows for the order that ran, and any other rows.
        same_schedule: Simulation of the order that ran, or None if it cannot be simulated.
    """
    if same_schedule is not None:
        return same_schedule.makespan_ms
    return next((row.makespan_ms for row in rows if row.schedule == NO_DELAY), None)


def _compare_with_base(choice: Choice, base_ms: float) -> Choice:
    """Return the choice with its speedup relative to ``base_ms``, unless its makespan is unknown.

    Schedules are simulated without delays, so a comparison with the measured iteration would also
    count the run's delays as savings.
    """
    if choice.makespan_ms is None:
        return choice
    return replace(choice, speedup=1 - choice.makespan_ms / base_ms)


def find_fastest_other(choices: Iterable[Choice], name: str | None) -> Choice | None:
    """Return the first choice that fits in memory and is not the schedule that ran, or None.

    Args:
        choices: Schedules, fastest first.
        name: Name of the schedule that ran, or None if it is unknown.
    """
    return next((choice for choice in choices if choice.fits and choice.schedule != name), None)


def _has_uneven_microbatches(explanation: Explanation) -> bool:
    """Return whether any finding of the diagnosis names individual microbatches as the cause."""
    findings = () if explanation.diagnosis is None else explanation.diagnosis.findings
    return any(fault.microbatches for finding in findings for fault in finding.faults)


def _list_measured_choices(
    measured: MeasuredTimes, typical: Iteration, explanation: Explanation, peak: float
) -> tuple[Choice, ...]:
    """Return the rows for the order that ran: as measured, and without delays.

    If iterations overlap, only the row as measured is returned.

    Args:
        measured: Times and sizes of the run.
        typical: The typical iteration.
        explanation: Explanation of the run, with the changes ``MEASURED`` and ``NO_DELAY``.
        peak: Maximum number of microbatches whose activations any rank held at once.
    """
    changes = {change.name: change for change in explanation.changes}
    measured_change, undelayed_change = changes[MEASURED], changes[NO_DELAY]
    stage, overlaps = typical.ratios["stage"], explanation.period_ns is not None
    as_measured = Choice(
        MEASURED,
        measured.stages,
        measured.microbatches,
        measured.chunks,
        makespan_ns=measured_change.makespan_ns,
        cost_ns=stage.window_ns,
        bubble_ratio=stage.value if overlaps else measured_change.bubble_ratio,
        peak_activations=peak,
        speedup=0.0 if measured_change.makespan_ns else None,
        fits=True,
    )
    if overlaps:
        # A replay without delays gives only a makespan.
        return (as_measured,)
    without_delays = replace(
        as_measured,
        schedule=NO_DELAY,
        makespan_ns=undelayed_change.makespan_ns,
        cost_ns=None,
        bubble_ratio=undelayed_change.bubble_ratio,
        speedup=1 - undelayed_change.makespan_ns / measured_change.makespan_ns
        if measured_change.makespan_ns
        else None,
    )
    return as_measured, without_delays


def _measure_peaks(
    ranks: tuple[Rank, ...], operations: Operations, iteration: Iteration
) -> Iterator[float]:
    """Yield for each rank the maximum number of microbatches whose activations it held at once.

    A microbatch holds activations from the end of its F to the end of its W. If it has no W, it
    holds them to the end of its BW or B. With n model chunks, the activations of one chunk are
    counted as 1/n of a microbatch.
    """
    ran = operations.take(
        (operations.iteration == iteration.index)
        & (operations.has_span == 1)
        & (operations.occurrence == 0)
    )
    # An overlapped pair is a forward of one microbatch and a backward of another.
    pair = ran.take(ran.phase == Phase.FB)
    first_phase = np.where(ran.phase == Phase.FB, Phase.F, ran.phase)
    phase = np.concatenate((first_phase, np.full(len(pair), Phase.B)))
    microbatch = np.concatenate((ran.microbatch, pair.second_microbatch))
    chunk = np.concatenate((ran.chunk, pair.second_chunk))
    rank = np.concatenate((ran.rank, pair.rank))
    end_ns = np.concatenate((ran.end_ns, pair.end_ns))
    change = _scale_activations(rank, chunk, microbatch, phase)
    chunks = max(1, len(find_distinct(chunk[phase == Phase.F])))
    for number in range(len(ranks)):
        rows = np.flatnonzero((rank == number) & (change != 0))
        yield _find_peak(end_ns[rows], change[rows]) / chunks


def _find_peak(time_ns: Ints, change: Ints) -> float:
    """Return the maximum of the running sum of the changes over time, or 0 if it is never positive.

    At equal times, negative changes come first: memory is freed before it is allocated again.
    """
    return float(np.cumsum(change[sort_rows(time_ns, change)]).max(initial=0))


def _scale_activations(rank: Ints, chunk: Ints, microbatch: Ints, phase: Ints) -> Ints:
    """Return 1 for operations that allocate activations, -1 for operations that free them, else 0.

    An F allocates activations. A W and a BW free activations. A B frees activations if its rank has
    no W of the same microbatch and chunk.

    Args:
        rank: Rank of each operation.
        chunk: Model chunk of each operation.
        microbatch: Microbatch of each operation.
        phase: Phase of each operation.
    """
    passes = group_rows(rank, chunk, microbatch).of_row
    is_split = np.isin(passes, passes[phase == Phase.W])
    frees = (phase == Phase.W) | (phase == Phase.BW) | ((phase == Phase.B) & ~is_split)
    return np.where(phase == Phase.F, 1, np.where(frees, -1, 0)).astype(np.int64)
