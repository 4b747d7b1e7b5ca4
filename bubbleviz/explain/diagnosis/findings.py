"""Findings: faults with the time that iterations save without them, according to a replay.

Savings do not add up: if two ranks are equally slow, removing the fault of one of them saves
nothing. So each fault is removed alone, and pairs of faults are removed together. A pair is a
finding if it saves clearly more than its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from bubbleviz.align.arrivals import NEVER
from bubbleviz.count.statistics import spread
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.causes.cause_times import idle_by_cause
from bubbleviz.explain.causes.tokens import all_token_waits, usual_depth
from bubbleviz.explain.dependencies import Dependencies
from bubbleviz.explain.diagnosis import faults as shapes
from bubbleviz.explain.diagnosis.effects import effects_of
from bubbleviz.explain.diagnosis.faults import Evidence, Fault
from bubbleviz.explain.slowdown.delays import measured_ns
from bubbleviz.explain.slowdown.replay import Replay, build_replay
from bubbleviz.explain.slowdown.replayed_run import ReplayedRun
from bubbleviz.explain.slowdown.run_work import computing_rows, outside_operations, work_of_run
from bubbleviz.explain.slowdown.slowdowns import Scenarios
from bubbleviz.explain.slowdown.work import COMPUTING, POINT_TO_POINT, Role, Work, plays
from bubbleviz.explain.slowdown.work_order import queued_collectives, queued_transfers
from bubbleviz.model.columns import NONE, Bools, Floats, Ints, scatter
from bubbleviz.model.grouping import (
    find_distinct,
    find_positions,
    find_run_starts,
    group_rows,
    lookup_values,
    sort_rows,
)
from bubbleviz.model.intervals import group_extents, group_latest, group_sum
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import COMPUTE, Phase
from bubbleviz.model.run_kinds import INFERENCE, run_kind
from bubbleviz.schedules.timing import count_scenarios_together

if TYPE_CHECKING:
    from bubbleviz.schedules.layout.best_layouts import LayoutQuestion

#: Minimum delay of the first operation of an iteration that counts as a late launch.
_LATE_NS = 20_000
#: Minimum saving, as a fraction of an iteration.
_LEAST = 0.001
#: Number of faults whose pairs are tried; the minimum saving of a pair as a multiple of the sum of
#: its parts; and the fraction of an iteration by which it must save more than the better part.
_PAIRED, _MORE_THAN_PARTS, _MORE = 6, 1.2, 0.02
#: Minimum number of iterations with a saving for a confidence interval.
_LEAST_SAVING = 3
#: Minimum length of a warm-up iteration, as a multiple of the median of the others.
_WARM_UP = 1.5
#: Minimum time between iterations that is reported, as a fraction of an iteration.
_BETWEEN = 0.01
#: Maximum difference between replayed and measured iterations with which savings are promised.
_MISSED = 0.1
#: Kinds of faults of which one can be part of another.
_NESTED = ("link", "iteration", "launch")


@dataclass(frozen=True)
class Finding:
    """Faults, and the time that iterations save without them.

    Attributes:
        faults: One fault, or several that save more together than alone.
        saving_ns: Mean saving over all iterations.
        length_ns: Mean length of the iterations. If they overlap, the mean time from the start of
            one iteration to the next, because that is the time that is saved.
        saved_iterations: Number of iterations with a noticeable saving.
        error_ns: Half width of the 95 % confidence interval of the mean saving (Student's t over
            the iterations with a saving, and the error of the replay), or None if fewer than three
            iterations save time.
        is_measured: Whether the saving was measured, and does not rest on the replay.
    """

    faults: tuple[Fault, ...]
    saving_ns: float
    length_ns: float
    saved_iterations: int
    error_ns: float | None
    is_measured: bool = False

    @property
    def saving_ratio(self) -> float:
        """Saving as a fraction of the length."""
        return self.saving_ns / max(self.length_ns, 1.0)


@dataclass(frozen=True)
class Diagnosis:
    """Why iterations are long.

    Attributes:
        findings: Findings with a noticeable saving, the largest first.
        iterations: Number of replayed iterations that count.
        length_ns: Mean length of the iterations; see :attr:`Finding.length_ns`.
        warm_up: Length of the first iteration as a multiple of the median of the others if it is a
            warm-up, which does not count; otherwise 0.
        missed_ratio: Mean difference between replayed and measured iterations, as a fraction of the
            measured length. Replicas that drift apart are measured from their own starts.
    """

    findings: tuple[Finding, ...]
    iterations: int
    length_ns: float
    warm_up: float
    missed_ratio: float = 0.0

    @property
    def misses_measurement(self) -> bool:
        """Whether the replay is too far from the measured iterations to promise a saving."""
        return self.missed_ratio > _MISSED


def diagnosis_of(
    run: ReplayedRun,
    scenarios: Scenarios,
    layout: LayoutQuestion | None = None,
    schedule: str | None = None,
    period_ns: float | None = None,
) -> Diagnosis:
    """Return the reasons why the iterations of a run are long.

    Args:
        run: The run.
        scenarios: Replay of the run.
        layout: Layers of its stages, or None if they are unknown.
        schedule: Name of the schedule that ran, or None if it is unknown.
        period_ns: Mean time from one iteration to the next if they overlap, or None.
    """
    seen, replay = _evidence(run, scenarios, layout, schedule), scenarios.replay
    delays_ns = scenarios.early_ns + seen.late_ns + seen.profiler_ns

    def lengths_without(scenarios: Sequence[Sequence[Fault]], replay: Replay = replay) -> Ints:
        """Return how long iterations take without some faults, shape (iterations, scenarios)."""
        lengths = [np.zeros((len(replay.iterations), 0), np.int64)]
        step, count = count_scenarios_together(len(seen.work)), len(replay.rows)
        # What is not replayed has the place behind all others.
        place = scatter(len(seen.work), replay.rows, np.arange(count))
        placed_ns = (np.append(column[replay.rows], 0) for column in (seen.own_ns, delays_ns))
        columns = [column[:, None] for column in placed_ns]
        for low in range(0, len(scenarios), step):
            some = scenarios[low : low + step]
            own_ns, delay_ns = (np.repeat(column, len(some), axis=1) for column in columns)
            for number, faults in enumerate(some):
                # What operations paused beyond their usual time goes last: no factor scales it.
                for fault in sorted(faults, key=lambda own: own.family == "pauses"):
                    rows = place[fault.rows]
                    time_ns = own_ns[rows, number]
                    if fault.family == "pauses":
                        time_ns = time_ns - seen.own_ns[fault.rows] * (1 - fault.scale)
                    else:
                        time_ns = time_ns * fault.scale
                    own_ns[rows, number] = np.rint(np.maximum(time_ns, 0))
                    delay_ns[place[fault.delayed], number] -= fault.late_ns
            lengths.append(lengths_of(replay, own_ns[:count], delay_ns[:count]))
        return np.concatenate(lengths, axis=1)

    measured = seen.own_ns[replay.rows], delays_ns[replay.rows]
    lengths_of, length_ns = _lengths(seen.work, replay, *measured, period_ns)
    # Receives of an iteration that are posted before it begins only wait.
    whole_ns = measured_ns(
        seen.work.take(~plays(seen.work.role, POINT_TO_POINT)), replay.iterations
    )
    first, others = whole_ns[:1], np.sort(whole_ns[1:])
    warm_up = float(first[0] / max(others[len(others) // 2], 1)) if len(others) >= 3 else 0.0
    counts = slice(1 if warm_up > _WARM_UP else 0, None)
    base_ns = lengths_without([()])[counts, 0]
    length_ns = float(base_ns.mean()) if length_ns is None else length_ns
    missed_ratio = _missed_ratio(base_ns, whole_ns[counts])

    def finding(faults: tuple[Fault, ...], without_ns: Ints) -> Finding:
        saved_ns = base_ns - without_ns[counts]
        saves = saved_ns > _LEAST * base_ns
        mean_ns, error_ns = mean_saving(saved_ns, saves, missed_ratio)
        return Finding(faults, mean_ns, length_ns, int(saves.sum()), error_ns)

    faults = [(fault,) for shape in shapes.SHAPES for fault in shape(seen)]
    alone = list(map(finding, faults, lengths_without(faults).T))
    alone += [
        finding((fault,), lengths_without([(fault,)], free)[:, 0])
        for fault, free in _eased(run, scenarios)
    ]
    ranked = sorted(alone, key=lambda f: -f.saving_ns)
    tried = [f.faults[0] for f in ranked[:_PAIRED]]
    pairs = [
        (one, other)
        for one, other in combinations([fault for fault in tried if not fault.bound], 2)
        if "token" not in (one.kind, other.kind)
        and (one.kind != other.kind or one.kind not in _NESTED)
    ]
    saved = {f.faults[0].name: f.saving_ns for f in alone}
    together = []
    for found in map(finding, pairs, lengths_without(pairs).T):
        parts = [saved[fault.name] for fault in found.faults]
        more_ns = found.saving_ns - max(parts)
        if found.saving_ns > _MORE_THAN_PARTS * sum(parts) and more_ns > _MORE * length_ns:
            together.append(found)
    findings = [f for f in (*together, *ranked) if f.saving_ratio >= _LEAST]
    findings.extend(_between(run))
    findings.sort(key=lambda f: -f.saving_ns)
    return Diagnosis(
        tuple(findings),
        len(base_ns),
        length_ns,
        warm_up if warm_up > _WARM_UP else 0.0,
        min(
            missed_ratio,
            _missed_ratio(base_ns, _longest_replicas_ns(seen.work, replay.iterations)[counts]),
        ),
    )


def _missed_ratio(replayed_ns: Ints, measured_ns: Ints) -> float:
    """Return the mean difference of two lengths of iterations, as a share of the measured ones."""
    missed_ns = np.abs(replayed_ns - measured_ns)
    return float(missed_ns.mean() / max(measured_ns.mean(), 1))


def _longest_replicas_ns(work: Work, iterations: Ints) -> Ints:
    """Return the measured length of each iteration on the replica that takes longest.

    Replicas that never wait for each other drift apart, and the replay starts all of them at once.

    Args:
        work: Work of all ranks.
        iterations: Numbers of the iterations, ascending; each has work besides transfers.
    """
    rows = np.flatnonzero(
        ~plays(work.role, POINT_TO_POINT) & (find_positions(iterations, work.iteration) != NONE)
    )
    parts = group_rows(work.iteration[rows], work.replica[rows])
    start_ns, end_ns = group_extents(
        parts.of_row, len(parts), work.start_ns[rows], work.end_ns[rows]
    )
    place = find_positions(iterations, work.iteration[rows][parts.first])
    return group_latest(place, len(iterations), end_ns - start_ns, 0)


def _lengths(
    work: Work, measured: Replay, own_ns: Ints, delay_ns: Ints, period_ns: float | None
) -> tuple[Callable[[Replay, Ints, Ints], Ints], float | None]:
    """Return a function that measures the lengths of replayed iterations, and the mean length.

    If iterations overlap, an iteration starts after the longest span of a rank in the previous one.
    The time from one to the next can then only be shortened by as much as this span and the time
    between the two.

    Args:
        work: Work of all ranks.
        measured: Replay of this work.
        own_ns: Measured time of each row, in the order of the replay.
        delay_ns: Measured delay of each row, in the order of the replay.
        period_ns: Mean time from one iteration to the next, or None if they do not overlap.

    Returns:
        A function of a replay and the times and delays of its rows, which returns lengths in ns.
        And the mean time of which savings are fractions, or None for the mean of these lengths.
    """
    if period_ns is None or not len(measured.rows):
        return lambda replay, *times: replay.lengths_ns(*times, placed=True), None
    whole_ns, spans_ns = _lengths_and_spans(work, measured, own_ns[:, None], delay_ns[:, None])
    # Replicas that never wait for each other have periods of their own; the longest counts.
    span_ns = float(spans_ns.mean())
    period_ns = max(period_ns, span_ns)
    beyond_ns = whole_ns - spans_ns - round(period_ns - span_ns)

    def bounded(replay: Replay, own_ns: Ints, delay_ns: Ints) -> Ints:
        lengths_ns, spans_ns = _lengths_and_spans(work, replay, own_ns, delay_ns)
        return np.maximum(lengths_ns, spans_ns + beyond_ns)

    return bounded, period_ns


def _lengths_and_spans(
    work: Work, replay: Replay, own_ns: Ints, delay_ns: Ints
) -> tuple[Ints, Ints]:
    """Return the lengths of iterations, and the longest time from start to end of a single rank.

    Args:
        work: Work of all ranks.
        replay: Replay of this work.
        own_ns: Time of each row in the order of the replay, shape (rows, scenarios).
        delay_ns: Delay of each row, same order and shape.

    Returns:
        Both in ns, shape (iterations, scenarios).
    """
    ends_ns = replay.ends_ns(own_ns, delay_ns, placed=True)
    computing = np.flatnonzero(plays(work.role[replay.rows], (*COMPUTING, Role.OPTIMIZER)))
    rows = replay.rows[computing]
    order = sort_rows(work.iteration[rows], work.rank[rows])
    rows, computing = rows[order], computing[order]
    first = find_run_starts(work.iteration[rows], work.rank[rows])
    begin_ns = np.minimum.reduceat(ends_ns[computing] - own_ns[computing], first, axis=0)
    spans_ns = np.maximum.reduceat(ends_ns[computing], first, axis=0) - begin_ns
    first = find_run_starts(work.iteration[rows[first]])
    return replay.closed_ns(ends_ns), np.maximum.reduceat(spans_ns, first, axis=0)


def mean_saving(
    saved_ns: Ints, saves: Bools | None = None, missed_ratio: float = 0.0
) -> tuple[float, float | None]:
    """Return the mean saving of iterations, and the half width of its 95 % confidence interval.

    Iterations without the fault certainly save nothing, so only the others contribute to the
    interval.

    Args:
        saved_ns: Saving of each iteration.
        saves: Mask of the iterations with a noticeable saving, or None for all.
        missed_ratio: Relative error of the replay.

    Returns:
        Both in ns. The half width is None if fewer than three iterations save time.
    """
    savings = spread((saved_ns if saves is None else saved_ns[saves]).tolist())
    mean_ns = float(saved_ns.mean())
    if savings.n < _LEAST_SAVING:
        return mean_ns, None
    error_ns = (savings.ci95 or 0.0) * savings.n / len(saved_ns)
    return mean_ns, float(np.hypot(error_ns, missed_ratio * mean_ns))


def _between(run: ReplayedRun) -> Iterator[Finding]:
    """Yield the finding for time between iterations, before any rank starts the next one.

    It is the shortest such time of all ranks, each on its own clock::

        stage 0   ... B ├ Optimizer ┤          ├ F ...
        stage 1   ... B   ├ Optimizer ┤            ├ F ...
                                      │ between│
    """
    operations = run.operations
    rows = np.flatnonzero(mask_phases(operations.phase, COMPUTE) & (operations.has_span == 1))
    rows = rows[operations.iteration[rows] >= 0]
    if not len(rows) or run_kind(operations.phase) == INFERENCE:
        return
    places = group_rows(operations.rank[rows], operations.iteration[rows])
    begin_ns, end_ns = group_extents(
        places.of_row, len(places), operations.start_ns[rows], operations.end_ns[rows]
    )
    rank, iteration = operations.rank[rows[places.first]], operations.iteration[rows[places.first]]
    follows = (rank[1:] == rank[:-1]) & (iteration[1:] == iteration[:-1] + 1)
    follows &= run.averaged[iteration[1:]] & run.averaged[iteration[:-1]]
    if run.paused is not None:
        # Iterations that were not recorded lie between.
        follows &= ~run.paused[iteration[:-1]]
    later = np.flatnonzero(follows) + 1
    if not len(later):
        return
    of_iteration = group_rows(iteration[later])
    gap_ns = np.maximum(begin_ns[later] - end_ns[later - 1], 0)
    # Ranks end apart: a pause begins where the last one has ended.
    group = of_iteration.of_row, len(of_iteration)
    own_ns = group_extents(*group, gap_ns, gap_ns)[0]
    all_ns = group_extents(*group, begin_ns[later], begin_ns[later])[0]
    all_ns = all_ns - group_extents(*group, end_ns[later - 1], end_ns[later - 1])[1]
    pause_ns = np.maximum(np.minimum(own_ns, all_ns), 0)
    if not (operations.phase[rows] == Phase.OPTIMIZER).any():
        # What is usual may be an optimizer that nobody named.
        pause_ns = np.maximum(pause_ns - int(np.sort(pause_ns)[(len(pause_ns) - 1) // 2]), 0)
    length_ns = float((begin_ns[later] - begin_ns[later - 1]).mean())
    paused = pause_ns > _BETWEEN * length_ns
    saving_ns, error_ns = mean_saving(pause_ns, paused)
    # A single pause, a checkpoint say, is no habit.
    if saving_ns < _BETWEEN * length_ns or paused.sum() < min(2, len(paused)):
        return
    longest = int(pause_ns.argmax())
    shortest_ns = gap_ns[of_iteration.of_row == longest].min()
    first = later[(of_iteration.of_row == longest) & (gap_ns == shortest_ns)]
    since_ns, until_ns = int(end_ns[first[0] - 1]), int(begin_ns[first[0]])
    fault = Fault(
        "launch",
        "between-iterations",
        ranks=tuple(find_distinct(rank[first]).tolist()),
        iterations=tuple(iteration[later[of_iteration.first[paused]]].tolist()),
        what="iterations",
        host=shapes.host_during(
            run.hosts, int(rank[first[0]]), since_ns, until_ns, float(until_ns - since_ns)
        ),
    )
    yield Finding((fault,), saving_ns, length_ns, int(paused.sum()), error_ns, is_measured=True)


def _evidence(
    run: ReplayedRun,
    scenarios: Scenarios,
    layout: LayoutQuestion | None,
    schedule: str | None,
) -> Evidence:
    """Return what is known of a run beside times."""
    work, operations = scenarios.work, run.operations
    rows = computing_rows(operations, run.averaged)
    gap_ns = np.zeros(len(work), np.int64)
    gap_ns[: len(rows)] = np.maximum(operations.busy_ns - operations.active_ns, 0)[rows]
    late_ns, profiler_ns = (
        _delayed_ns(run, scenarios, rows, cause) for cause in (Cause.HOST, Cause.PROFILER)
    )
    beside = outside_operations(run.collectives, operations, run.averaged)
    late_ns[len(work) - len(beside) :] += beside.late_ns
    hosts = {host: n for n, host in enumerate(sorted({rank.host for rank in run.ranks}))}
    return Evidence(
        work,
        scenarios.bounded_ns,
        effects_of(work, gap_ns),
        _launch_share(run, work, gap_ns),
        np.array([hosts[rank.host] for rank in run.ranks], np.int64),
        late_ns,
        profiler_ns,
        shapes.beside_operations(run.hosts, find_distinct(operations.name_id), operations.phase),
        layout,
        schedule,
    )


def _launch_share(run: ReplayedRun, work: Work, gap_ns: Ints) -> Floats | None:
    """Return for each row the share of its time without compute kernels in which no kernel ran.

    The time without any kernel is known per rank and iteration, and without that of Optimizers. All
    rows of a rank in an iteration have the same share. The result is None if it is unknown.

    Args:
        run: The replayed run.
        work: Work of all ranks in the iterations that count.
        gap_ns: Time in each row in which no compute kernel ran.
    """
    if run.launch_gap_ns is None:
        return None
    ranks = run.launch_gap_ns.shape[1]
    cell = work.iteration * ranks + work.rank
    without_optimizers_ns = np.where(plays(work.role, COMPUTING), gap_ns, 0)
    total_ns = group_sum(cell, run.launch_gap_ns.size, without_optimizers_ns)
    share = run.launch_gap_ns.ravel() / np.maximum(total_ns, 1)
    return np.asarray(np.minimum(share, 1.0)[cell], np.float64)


def _eased(run: ReplayedRun, scenarios: Scenarios) -> Iterator[tuple[Fault, Replay]]:
    """Yield faults of what work waits for, with the replay of the run without them.

    These are too few chunks in flight, and what is queued behind transfers.
    """
    work, order = scenarios.work, scenarios.order
    row = queued_transfers(work, order)[0]
    rows = computing_rows(run.operations, run.averaged)
    late, late_ns = queued_collectives(run, work, rows)
    if len(row) or len(late):
        queued = np.isin(order.after, row) & plays(work.role[order.before], POINT_TO_POINT)
        free = build_replay(work, order.take(~queued))
        if len(free.iterations) == len(scenarios.replay.iterations):
            yield (
                Fault(
                    "queue",
                    "queued-transfers",
                    rows=late,
                    scale=1 - late_ns / np.maximum(work.own_ns[late], 1),
                    ranks=tuple(find_distinct(work.rank[row], work.rank[late]).tolist()),
                    phases=(("transfer", float(len(row))), ("collective", float(len(late)))),
                ),
                free,
            )
    operations, tokens = run.operations, run.explained().tokens
    if len(tokens):
        rank, depth = int(operations.rank[tokens.after[0]]), usual_depth(operations, tokens)
        more = all_token_waits(operations, tokens, 1), Dependencies.make_empty()
        for what, waits in zip((shapes.ONE_MORE, shapes.ENOUGH), more, strict=True):
            yield (
                shapes.token_fault(what, rank, depth),
                build_replay(*work_of_run(run, waits)),
            )


def _delayed_ns(run: ReplayedRun, scenarios: Scenarios, rows: Ints, cause: Cause) -> Ints:
    """Return how late each row of the work started for one cause, its input being there.

    ``rows`` are those of the operations that compute, the first of the work.
    """
    operations, explained, work = run.operations, run.explained(), scenarios.work
    bubbles = explained.bubbles
    bubbles = bubbles.take((bubbles.cause == cause) & (bubbles.after >= 0))
    since_ns = bubbles.start_ns
    if cause == Cause.PROFILER or run_kind(operations.phase) == INFERENCE:
        after, before = explained.dependencies.after, explained.dependencies.before
        ready_ns = group_latest(after, len(operations), operations.end_ns[before], NEVER)
        if cause == Cause.PROFILER:
            # What the profiler does meanwhile delays nothing before the input is ready.
            since_ns = np.clip(ready_ns[bubbles.after], since_ns, bubbles.end_ns)
        else:
            # In a run that only goes forward, what a rank waits for its input has the causes of
            # the idle time of the ranks before. It is over where the input is ready.
            since_ns = np.where(since_ns >= ready_ns[bubbles.after], since_ns, bubbles.end_ns)
    # Where windows overlap, an idle interval is in both.
    own = bubbles.iteration == operations.iteration[bubbles.after]
    of_operation = group_sum(bubbles.after[own], len(operations), (bubbles.end_ns - since_ns)[own])
    late_ns = np.zeros(len(work), np.int64)
    late_ns[: len(rows)] = of_operation[rows]
    if cause == Cause.HOST:
        late_ns[: len(rows)] = np.maximum(late_ns[: len(rows)], _late_begins(run, scenarios, rows))
    last = np.flatnonzero(work.role == Role.OPTIMIZER)
    ready_ns = work.start_ns[last] - np.maximum(scenarios.delays_ns[last], 0)
    windows = work.rank[last], ready_ns, work.start_ns[last]
    late_ns[last] = idle_by_cause(explained.idle, *windows)[:, cause]
    return late_ns


def _late_begins(run: ReplayedRun, scenarios: Scenarios, rows: Ints) -> Ints:
    """Return how late the host launched the first operation of each rank and iteration, ns.

    Its wait counts as warm-up, whatever it is for. One without inputs is held against the first
    rank that begins the iteration, and all against the end of their own rank's last iteration::

        stage 0   ├ F0 ┤├ F1 ┤├ F2 ┤├ F3 ┤
        stage 1         │ late │├ F0 ┤├ F1 ┤     its input is there, and the launch is not

    Args:
        run: the operations of all ranks.
        scenarios: the replay of it, which tells how long data moved to each operation.
        rows: of those that compute in the iterations that count, the first of the work.
    """
    operations, dependencies = run.operations, run.explained().dependencies
    late_ns = np.zeros(len(rows), np.int64)
    rank, iteration = operations.rank[rows], operations.iteration[rows]
    start_ns, launched_ns = operations.start_ns[rows], operations.launched_ns[rows]
    places = group_rows(rank, iteration)
    first = np.flatnonzero(
        start_ns == group_extents(places.of_row, len(places), start_ns, start_ns)[0][places.of_row]
    )
    if run_kind(operations.phase) == INFERENCE or (launched_ns[first] == NONE).all():
        return late_ns
    same = operations.iteration[dependencies.after] == operations.iteration[dependencies.before]
    taken = dependencies.take(same)
    produced_ns = operations.end_ns[taken.before]
    ready_ns = group_latest(taken.after, len(operations), produced_ns, NEVER)
    begun = group_rows(iteration[first])
    begun_ns = group_extents(begun.of_row, len(begun), start_ns[first], start_ns[first])[0]
    # The last end of each rank's iteration before.
    own = operations.take(operations.iteration >= 0)
    ended = group_rows(own.rank, own.iteration)
    ends_ns = group_extents(ended.of_row, len(ended), own.start_ns, own.end_ns)[1]
    keys = own.rank[ended.first], own.iteration[ended.first]
    before_ns = lookup_values(keys, ends_ns, (rank[first], iteration[first] - 1))
    inputs_ns = ready_ns[rows[first]]
    needed_ns = np.where(inputs_ns == NEVER, begun_ns[begun.of_row], inputs_ns)
    needed_ns = np.maximum(needed_ns, before_ns)
    after, before = scenarios.order.after, scenarios.order.before
    moved = scenarios.work.communicates[before] & (after < len(rows))
    moved_ns = group_latest(after[moved], len(rows), scenarios.own_ns[before[moved]], 0)
    moved_ns = np.maximum(moved_ns, 0)
    delay_ns = (np.minimum(start_ns, launched_ns) - moved_ns)[first] - needed_ns
    known = (launched_ns[first] != NONE) & (delay_ns > _LATE_NS)
    late_ns[first[known]] = delay_ns[known]
    return late_ns
