"""Alternatives: how long an iteration would take under other schedules, at its measured times."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from bubbleviz.count.count import Counts
from bubbleviz.count.iterations import Iteration, typical
from bubbleviz.errors import BubblevizError
from bubbleviz.explain.explanation import Explanation
from bubbleviz.explain.recognition.reasons import FORWARD_ONLY, NO_SCHEDULE
from bubbleviz.explain.recognition.recognition import Recognition
from bubbleviz.model.grouping import distinct, groups_of, sorted_rows
from bubbleviz.model.memory_sizes import MemorySize
from bubbleviz.model.operations import Operations, Rank
from bubbleviz.model.phases import WORK, Phase
from bubbleviz.schedules.ideal import Ideal, ideal, ideal_of
from bubbleviz.schedules.known import schedules
from bubbleviz.schedules.measured_times import MeasuredTimes, StageTimes, measured_times
from bubbleviz.schedules.plan import Plan, Schedule
from bubbleviz.schedules.predictions import microbatch_order

#: Schedules of more operations than this are not simulated.
_MOST_OPERATIONS = 100_000
#: The schedule whose ideal stands for an unknown one.
_USUAL = "1f1b"
#: A schedule that saves no more of the window is not worth a look.
_WORTH = 0.01
#: Tolerance for equal memory: warm-ups differ by parts of a microbatch.
_SAME_MEMORY = 1e-9
#: A microbatch is held whole from F to W, in searched schedules as in the measured order.
_MEMORY = (None, *(MemorySize(1.0, in_bytes=False),) * 2)


@dataclass(frozen=True)
class Alternative:
    """The iteration under one schedule.

    Attributes:
        name: of the schedule; ``measured``, or ``no-delay`` for the same order without delays.
        makespan_ms: window over all stages; None where it is unknown.
        cost_ms: the longest of the stages' own windows; None likewise.
        bubble_ratio: the ratio of the window that is compared.
        peak_activations: the most microbatches that a stage holds, each from its F to its W.
        speedup: share of the measured window that it saves.
        fits: whether ``peak_activations`` are no more than those of the measured order, and the
            weights are held once.
        reason: why it is unknown; else empty.
        peaks: ``peak_activations`` by stage; empty where they are unknown.
        replicas: how often the model is held.
        peak_bytes: what its fullest device holds; None where memory was not measured.
    """

    name: str
    makespan_ms: float | None = None
    cost_ms: float | None = None
    bubble_ratio: float | None = None
    peak_activations: float | None = None
    speedup: float | None = None
    fits: bool | None = None
    reason: str = ""
    peaks: tuple[float, ...] = ()
    replicas: int = 1
    peak_bytes: float | None = None


@dataclass(frozen=True)
class Alternatives:
    """Other schedules at the times of the typical iteration.

    Attributes:
        measured: the times; None where the run does not show them.
        rows: as measured, in the same order without delays, then schedules, the best first.
        same: the recognised schedule (or the given plan), simulated; None for none.
        ideal: its order where all stages take the mean of the times and transfers none; where it
            is unknown, that of 1f1b; None for neither.
        best: the fastest other schedule that fits in the same memory and saves time; None for
            none, and where others are not simulated.
        reason: why there are no rows; else empty.
        window: what is compared: ``schedule``, the makespan; or, where consecutive iterations
            overlap, ``stage``, the longest of the ranks' own windows. Training then waits for its
            period, and the simulation of one iteration gives only this lower bound of it.
        limit_bytes: what a device has, where schedules are compared with that; None for the run.
        reordered: where microbatches are of unequal length, in which order ``same`` is shortest
            with them, and the share of its makespan that this saves; None elsewhere.
    """

    measured: MeasuredTimes | None
    rows: tuple[Alternative, ...]
    same: Ideal | None
    reason: str = ""
    window: str = "schedule"
    ideal: Ideal | None = None
    best: Ideal | None = None
    limit_bytes: float | None = None
    reordered: tuple[tuple[int, ...], float] | None = None


def alternatives_of(
    ranks: tuple[Rank, ...],
    operations: Operations,
    counts: Counts,
    explanation: Explanation,
    ran: Recognition | None,
    plan: Plan | None = None,
    *,
    others: bool = True,
) -> Alternatives:
    """Return how long the typical iteration would take under other schedules.

    Args:
        ranks: by number.
        operations: of all ranks.
        counts: the iterations.
        explanation: of the run, with phase times and changes.
        ran: the recognised schedule.
        plan: the plan of the run; None for the recognised schedule.
        others: whether to simulate every schedule, or the recognised one alone.
    """

    def unknown(reason: str) -> Alternatives:
        return Alternatives(None, (), None, explanation.no_path_reason or reason)

    shown = typical(counts.iterations, counts.headline)
    if shown is None or not explanation.changes:
        return unknown("no iteration has all of its ranks on one clock and few enough operations")
    if ran is not None and ran.reason in (*NO_SCHEDULE, FORWARD_ONLY):
        return unknown(ran.reason)
    times = explanation.phase_times
    try:
        measured = measured_times(times.kinds, times.transfer_ns, shown.microbatches)
    except BubblevizError as error:
        return unknown(str(error))
    lengths = _lengths(operations, shown, explanation)
    measured = replace(measured, times=replace(measured.times, lengths=lengths))
    peak = max(_peaks(ranks, operations, shown), default=0.0)
    window = "schedule" if explanation.period_ns is None else "stage"
    rows = _as_measured(shown, explanation, peak, window)
    whole_ms = rows[0].cost_ms if window == "stage" else rows[0].makespan_ms
    same, own = None, None if ran is None else ran.name
    if plan is not None:
        with suppress(BubblevizError):  # a plan of other sizes
            same = ideal_of(plan, measured.times)
    results: list[tuple[bool, float, str, Ideal | None, Alternative]] = []
    for rule in schedules():
        if not others and (plan is not None or rule.name != own):
            continue
        result, reason = _simulated(rule, measured, of_makespan=window == "schedule")
        if result is None:
            results.append((True, 0.0, rule.name, None, Alternative(rule.name, reason=reason)))
            continue
        if plan is None and rule.name == own:
            same = result
        by_stage, held = window == "stage", max(result.peak_activations, default=0.0)
        time_ms = result.cost_ms if by_stage else result.makespan_ms
        row = Alternative(
            rule.name,
            makespan_ms=result.makespan_ms,
            cost_ms=result.cost_ms,
            bubble_ratio=result.stage_ratio if by_stage else result.schedule_ratio,
            peak_activations=held,
            speedup=1 - time_ms / whole_ms if whole_ms else None,
            # Two replicas of the model hold its weights twice.
            fits=held <= peak + _SAME_MEMORY and result.plan.replicas == 1,
            peaks=result.peak_activations,
            replicas=result.plan.replicas,
        )
        results.append((False, time_ms, rule.name, result, row))
    # The shortest first, unknown ones last.
    results.sort(key=lambda found: found[:3])
    worth = (
        result
        for *_, name, result, row in results
        if name != own and row.fits and (row.speedup or 0.0) > _WORTH
    )
    one_way = same is not None and same.plan.replicas == 1
    fed = same if others and lengths and one_way else None
    return Alternatives(
        measured,
        (*rows, *(row for *_, row in results)),
        same,
        window=window,
        ideal=_with_equal_stages(same, measured),
        best=next(worth, None) if others else None,
        reordered=None if fed is None else microbatch_order(fed.plan, measured.times),
    )


def _lengths(
    operations: Operations, shown: Iteration, explanation: Explanation
) -> tuple[float, ...]:
    """Return how many times as long as their mean microbatches take; empty where none stands out.

    Another schedule does not even them: a long one is as long in any order.
    """
    findings = () if explanation.diagnosis is None else explanation.diagnosis.findings
    if not any(fault.microbatches for finding in findings for fault in finding.faults):
        return ()
    ran = (operations.iteration == shown.index) & np.isin(operations.phase, WORK)
    numbers = operations.microbatch[ran]
    if not shown.microbatches or numbers.min(initial=0) < 0:
        return ()
    busy_ns = np.bincount(numbers, operations.busy_ns[ran], shown.microbatches)
    if len(busy_ns) > shown.microbatches or not busy_ns.any():
        return ()
    return tuple((busy_ns / busy_ns.mean()).tolist())


def _with_equal_stages(same: Ideal | None, measured: MeasuredTimes) -> Ideal | None:
    """Return the order (1f1b where it is unknown) with equal stages and free transfers."""
    times = measured.times
    forward, backward, weight = (
        (sum(time_ms) / len(time_ms),)
        for time_ms in (times.forward_ms, times.backward_ms, times.weight_ms)
    )
    mean = StageTimes(forward, backward, weight)
    with suppress(BubblevizError):  # a plan of other sizes
        if same is not None:
            return ideal_of(same.plan, mean)
        if measured.chunks == 1:
            return ideal(_USUAL, measured.stages, measured.microbatches, mean)
    return None


def _as_measured(
    shown: Iteration, explanation: Explanation, peak: float, window: str
) -> tuple[Alternative, ...]:
    """Return the iteration as measured, and in the same order without delays where comparable."""
    changes = {change.name: change for change in explanation.changes}
    whole_ns, no_delay = changes["measured"].makespan_ns, changes["no-delay"]
    stage = shown.ratios["stage"]
    measured = Alternative(
        "measured",
        makespan_ms=whole_ns / 1e6,
        cost_ms=None if stage.window_ns is None else stage.window_ns / 1e6,
        bubble_ratio=stage.value if window == "stage" else changes["measured"].bubble_ratio,
        peak_activations=peak,
        speedup=0.0 if whole_ns else None,
        fits=True,
    )
    if window == "stage":
        # A replay without delays gives a makespan alone.
        return (measured,)
    return measured, Alternative(
        "no-delay",
        makespan_ms=no_delay.makespan_ns / 1e6,
        bubble_ratio=no_delay.bubble_ratio,
        peak_activations=peak,
        speedup=1 - no_delay.makespan_ns / whole_ns if whole_ns else None,
        fits=True,
    )


def _simulated(
    rule: Schedule, measured: MeasuredTimes, *, of_makespan: bool
) -> tuple[Ideal | None, str]:
    """Return a schedule simulated at measured times, or None and why it cannot be.

    Where ``of_makespan`` schedules are searched for the shortest makespan, by which all are
    compared, rather than for the shortest cost.
    """
    chunks = measured.chunks if rule.chunks > 1 and measured.chunks > 1 else rule.chunks
    sizes = measured.stages, measured.microbatches
    if 3 * chunks * sizes[0] * sizes[1] > _MOST_OPERATIONS:
        return None, f"more than {_MOST_OPERATIONS:,} operations; see bubbleviz simulate"
    given = *sizes, measured.times, chunks
    try:
        return ideal(rule.name, *given, memory=_MEMORY, of_makespan=of_makespan), ""
    except BubblevizError as error:
        return None, str(error)


def _peaks(
    ranks: tuple[Rank, ...], operations: Operations, iteration: Iteration
) -> Iterator[float]:
    """Yield for each rank the most microbatches whose F has run and whose W or BW has not."""
    ran = operations.take(
        (operations.iteration == iteration.index)
        & (operations.has_span == 1)
        & (operations.occurrence == 0)
    )
    # An overlapped pair is a forward of one microbatch and a backward of another.
    pair = ran.take(ran.phase == Phase.FB)
    phase = np.concatenate(
        (np.where(ran.phase == Phase.FB, Phase.F, ran.phase), np.full(len(pair), Phase.B))
    )
    microbatch = np.concatenate((ran.microbatch, pair.second_microbatch))
    chunk = np.concatenate((ran.chunk, pair.second_chunk))
    rank, end_ns = np.concatenate((ran.rank, pair.rank)), np.concatenate((ran.end_ns, pair.end_ns))
    # 1 where activations begin to be held, -1 where they are freed, else 0.
    passes = groups_of(rank, chunk, microbatch).of_row
    split = np.isin(passes, passes[phase == Phase.W])
    done = (phase == Phase.W) | (phase == Phase.BW) | ((phase == Phase.B) & ~split)
    change = np.where(phase == Phase.F, 1, np.where(done, -1, 0)).astype(np.int64)
    share = max(1, len(distinct(chunk[phase == Phase.F])))
    for number in range(len(ranks)):
        rows = np.flatnonzero((rank == number) & (change != 0))
        # Of those that end at the same instant, the ones that free memory come first.
        order = rows[sorted_rows(end_ns[rows], change[rows])]
        yield float(np.cumsum(change[order]).max(initial=0)) / share
