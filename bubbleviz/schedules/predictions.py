"""Predictions: what a run would take in other sizes, with an interval, from its measured times.

Operations vary, and a device that waits for two inputs waits for the later one, so a simulation of
mean times ends too early. A plan is replayed with times that are drawn from the measured spread,
many draws side by side::

    means     F0 ███  F1 ███  BW0 ██████           -> T
    draws     F0 ██·  F1 ███▌ BW0 █████▌           -> T of each
              F0 ███▌ F1 ██·  BW0 ███████
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import product

import numpy as np

from bubbleviz.errors import UsageError
from bubbleviz.model.columns import Floats, Ints
from bubbleviz.model.phases import Phase
from bubbleviz.schedules.ideal import Ideal, ideal, ideal_workload
from bubbleviz.schedules.measured_times import MeasuredTimes, StageTimes, of_stages
from bubbleviz.schedules.plan import Plan, PlannedOperation
from bubbleviz.schedules.simulation import phase_times, timed

#: So many draws: the error of their mean is a sixth of the spread of one.
_DRAWS = 40
#: Half width of a 95 % interval, in standard errors.
_Z95 = 1.96


@dataclass(frozen=True)
class Setting:
    """A schedule and its sizes, and what an iteration of it would take.

    Attributes:
        schedule: its name.
        stages: p.
        microbatches: m.
        chunks: v.
        iteration_ns: mean of the window of ``schedule``; None where the sizes are not allowed.
        error_ns: half width of its 95 % interval; None where no run was measured.
        bubble_ratio: ``schedule``.
        peak_activations: the most microbatches that a stage holds.
        reason: why the sizes are not allowed.
    """

    schedule: str
    stages: int
    microbatches: int
    chunks: int
    iteration_ns: float | None = None
    error_ns: float | None = None
    bubble_ratio: float | None = None
    peak_activations: float | None = None
    reason: str = ""

    @property
    def device_ns(self) -> float | None:
        """Time of a device that one microbatch takes: comparable whatever the sizes."""
        if self.iteration_ns is None:
            return None
        return self.iteration_ns * self.stages / self.microbatches


def predicted(
    times: StageTimes,
    run: MeasuredTimes | None,
    schedules: Sequence[str],
    stages: Sequence[int],
    microbatches: Sequence[int],
    chunks: Sequence[int | None],
) -> tuple[Setting, ...]:
    """Return what iterations would take in every combination of sizes, the cheapest first.

    The run's own sizes are replayed, too: what is measured of them over that scales all others. The
    interval is that of the measured mean and of the draws, and how far the run is off its replay.

    Args:
        times: of stages; see :func:`of_stages`.
        run: that has these times; None, or one of unknown windows, simulates them as they are.
        schedules: names.
        stages: p.
        microbatches: m.
        chunks: v; None for the schedule's usual number.
    """
    spread: Mapping[Phase, float] = {}
    scale, measured, n, lengths = 1.0, 0.0, 0, np.ones((1, 1))
    if run is not None and run.window_ns is not None:
        window_ns, std_ns, n = run.window_ns
        own = ideal(run.schedule, run.stages, run.microbatches, run.times, run.chunks)
        # How microbatches differ is drawn for all operations of one together.
        lengths = np.array(run.lengths or [[1.0]])
        apart = lengths.var(ddof=1) if run.lengths else 0.0
        spread = {phase: max(own**2 - apart, 0) ** 0.5 for phase, own in run.spread.items()}
        measured = _Z95 * std_ns / window_ns
        own_ns, _ = _mean_and_spread(own.plan, run.times, spread, lengths)
        scale = window_ns / own_ns if own_ns else 1.0
    settings = []
    for name, p, m, v in product(schedules, stages, microbatches, chunks):
        known = of_stages(times, p)
        try:
            found = ideal(name, p, m, known, v)
        except UsageError as refused:
            settings.append(Setting(name, p, m, v or 1, reason=str(refused)))
            continue
        mean_ns, std_ns = _mean_and_spread(found.plan, known, spread, lengths)
        drawn = _Z95 * std_ns / mean_ns if mean_ns else 0.0
        error = ((measured**2 + drawn**2) / n + (scale - 1) ** 2) ** 0.5 if n else None
        settings.append(_setting(found, scale * mean_ns, error))
    return tuple(sorted(settings, key=lambda own: (own.device_ns is None, own.device_ns or 0.0)))


def _setting(found: Ideal, iteration_ns: float, error: float | None) -> Setting:
    """Return a setting; its bubble is what work leaves of the iteration."""
    plan, ratio = found.plan, found.schedule_ratio
    work_ns = (1 - (ratio or 0.0)) * found.makespan_ms * 1e6
    return Setting(
        plan.name,
        plan.stages,
        plan.microbatches,
        plan.chunks,
        iteration_ns,
        None if error is None else error * iteration_ns,
        None if ratio is None else max(1 - work_ns / iteration_ns, 0.0),
        max(found.peak_activations),
    )


def _mean_and_spread(
    plan: Plan, times: StageTimes, spread: Mapping[Phase, float], lengths: Floats
) -> tuple[float, float]:
    """Return mean and standard deviation of the makespan over all draws, in ns.

    Args:
        plan: what each device runs.
        times: means of the stages.
        spread: standard deviation of operations by phase, as a share.
        lengths: of the microbatches of iterations; shape (iterations, microbatches). Each draw
            takes those of one, and of others where the plan has more microbatches.
    """
    random = np.random.default_rng(0)
    rows = random.integers(0, len(lengths), (_DRAWS, -(-plan.microbatches // lengths.shape[1])))
    drawn = lengths[rows].reshape(_DRAWS, -1).T

    def factor(operation: PlannedOperation) -> Floats:
        share = spread.get(operation.phase, 0.0)
        own = np.maximum(1 + share * random.standard_normal(_DRAWS), 0.0)
        return np.asarray(own * drawn[operation.microbatch], np.float64)

    makespans = _makespans(plan, times, factor)
    return float(makespans.mean()), float(makespans.std(ddof=1))


def _makespans(
    plan: Plan, times: StageTimes, factor: Callable[[PlannedOperation], Floats]
) -> Floats:
    """Return the makespans of a plan in nanoseconds, shape (draws,).

    Args:
        plan: what each device runs.
        times: means of the stages.
        factor: how many times as long as that an operation takes, shape (draws,).
    """
    work = ideal_workload(plan, times)
    usual = phase_times(work)

    def lasting_ns(op: PlannedOperation) -> Floats:
        return work.lasting_ns(usual[op.phase][op.virtual_stage], op.microbatch) * factor(op)

    ran = timed(plan, work, lasting_ns, np.zeros(1), partial(reduce, np.maximum))
    # Of each device the end of its last operation stays.
    ends_ns = {device: end_ns for device, *_, end_ns in ran}
    return np.asarray(reduce(np.maximum, ends_ns.values()) / plan.chunks, np.float64)


#: Orders that are tried side by side, and rounds without a shorter one that end the search.
_SIDE_BY_SIDE, _PATIENCE = 48, 6
#: So many operations are timed at most, side by side.
_MOST_TIMED = 60_000


def microbatch_order(plan: Plan, times: StageTimes) -> tuple[tuple[int, ...], float]:
    """Return the order of microbatches of unequal length that is shortest, and how much shorter.

    Each stands where another one stood: the plan stays, and what is fed changes. In a round pairs
    change places in many orders at once, and the shortest goes on; the rounds begin with the
    orders by length.

    Args:
        plan: of one direction.
        times: with the lengths of the microbatches.

    Returns:
        The number of the microbatch at each place, and the share of the makespan that it saves.
    """
    lengths, m = np.array(times.lengths), plan.microbatches
    alike, random = replace(times, lengths=()), np.random.default_rng(0)

    def timed(orders: Ints) -> Floats:
        shares = lengths[orders].T
        return _makespans(plan, alike, lambda operation: shares[operation.microbatch])

    rising = np.argsort(lengths, kind="stable")
    # The shortest at both ends, so that filling and draining are short.
    hill = np.concatenate((rising[::2], rising[1::2][::-1]))
    orders = np.stack((np.arange(m), rising, rising[::-1], hill))
    times_ns = timed(orders)
    first_ns, at = float(times_ns[0]), int(times_ns.argmin())
    best, best_ns, idle = orders[at], float(times_ns[at]), 0
    rounds = _MOST_TIMED // max(sum(map(len, plan.orders)), 1)
    for _ in range(rounds):
        if idle == _PATIENCE:
            break
        orders = np.repeat(best[None], _SIDE_BY_SIDE, axis=0)
        pairs, row = random.integers(0, m, (2, _SIDE_BY_SIDE)), np.arange(_SIDE_BY_SIDE)
        orders[row, pairs[0]], orders[row, pairs[1]] = best[pairs[1]], best[pairs[0]]
        times_ns = timed(orders)
        at = int(times_ns.argmin())
        idle = idle + 1 if times_ns[at] >= best_ns else 0
        if not idle:
            best, best_ns = orders[at], float(times_ns[at])
    return tuple(best.tolist()), 1 - best_ns / first_ns if first_ns else 0.0
