"""Predictions: what a run would take in other sizes, with an interval, from its measured times.

Operations vary, and a device that waits for two inputs waits for the later one, so a simulation of
mean times ends too early. A plan is replayed with times that are drawn from the measured spread,
many draws side by side::

    means     F0 ███  F1 ███  BW0 ██████           -> T
    draws     F0 ██·  F1 ███▌ BW0 █████▌           -> T of each
              F0 ███▌ F1 ██·  BW0 ███████
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from bubbleviz.errors import UsageError
from bubbleviz.model.columns import Floats
from bubbleviz.model.phases import Phase
from bubbleviz.schedules.ideal import Ideal, ideal, ideal_workload
from bubbleviz.schedules.measured_times import StageTimes, of_stages
from bubbleviz.schedules.plan import Plan
from bubbleviz.schedules.simulation import needs, phase_times, run_order

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


@dataclass(frozen=True)
class MeasuredWindow:
    """What iterations of a run took, and how far its operations spread.

    Attributes:
        ran: what the run was simulated as, with its own schedule and sizes.
        times: of its stages.
        mean_ns: mean of the windows of ``schedule``.
        std_ns: their standard deviation; None for one.
        n: how many.
        spread: by phase, the standard deviation of operations as a share of their mean.
    """

    ran: Ideal
    times: StageTimes
    mean_ns: float
    std_ns: float | None
    n: int
    spread: Mapping[Phase, float]


def predicted(
    times: StageTimes,
    window: MeasuredWindow | None,
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
        window: of the run that has these times; None simulates the times as they are.
        schedules: names.
        stages: p.
        microbatches: m.
        chunks: v; None for the schedule's usual number.
    """
    spread: Mapping[Phase, float] = {} if window is None else window.spread
    scale, measured, n = 1.0, 0.0, 1
    if window is not None:
        own_ns, _ = _mean_and_spread(window.ran.plan, window.times, spread)
        scale, n = window.mean_ns / own_ns if own_ns else 1.0, window.n
        measured = _Z95 * (window.std_ns or 0.0) / window.mean_ns
    settings = []
    for name, p, m, v in product(schedules, stages, microbatches, chunks):
        known = of_stages(times, p)
        try:
            found = ideal(name, p, m, known, v)
        except UsageError as refused:
            settings.append(Setting(name, p, m, v or 1, reason=str(refused)))
            continue
        mean_ns, std_ns = _mean_and_spread(found.plan, known, spread)
        drawn = _Z95 * std_ns / mean_ns if mean_ns else 0.0
        error = ((measured**2 + drawn**2) / n) ** 0.5 + abs(scale - 1)
        iteration_ns = scale * mean_ns
        settings.append(_setting(found, iteration_ns, None if window is None else error))
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
    plan: Plan, times: StageTimes, spread: Mapping[Phase, float]
) -> tuple[float, float]:
    """Return mean and standard deviation of the makespan over all draws, in ns."""
    makespans = drawn_makespans(plan, times, spread)
    return float(makespans.mean()), float(makespans.std(ddof=1))


def drawn_makespans(
    plan: Plan, times: StageTimes, spread: Mapping[Phase, float], draws: int = _DRAWS
) -> Floats:
    """Return the makespan of a plan in nanoseconds, shape (draws,).

    Args:
        plan: what each device runs.
        times: means of the stages.
        spread: by phase, the standard deviation as a share of the mean; 0 where there is none.
        draws: how many.
    """
    work, length = ideal_workload(plan, times), plan.virtual_stages // plan.replicas
    usual, random = phase_times(work), np.random.default_rng(0)
    free_ns, ended = np.zeros((plan.stages, draws)), dict[tuple[bool, int, int], Floats]()
    for operation in run_order(plan):
        stage, phase = operation.virtual_stage, operation.phase
        device, start_ns = plan.placement[stage], free_ns[plan.placement[stage]]
        for result in needs(operation, length):
            forward, producer, _ = result
            apart = plan.placement[producer] != device
            transfer_ns = (work.down_ns if forward else work.up_ns)[producer] if apart else 0
            start_ns = np.maximum(start_ns, ended[result] + transfer_ns)
        factor = 1 + spread.get(phase, 0.0) * random.standard_normal(draws)
        lasting_ns = work.lasting_ns(usual[phase][stage], operation.microbatch)
        free_ns[device] = start_ns + lasting_ns * np.maximum(factor, 0.0)
        if phase is not Phase.W:
            ended[phase is Phase.F, stage, operation.microbatch] = free_ns[device].copy()
    return np.asarray(free_ns.max(axis=0, initial=0.0) / plan.chunks, np.float64)
