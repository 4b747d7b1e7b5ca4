"""Predictions of the iteration time for other schedules or other sizes.

A choice is a schedule with its sizes: the numbers of stages, microbatches and chunks. Schedules are
compared with the order that ran, using the times measured in the run. Sizes are compared with each
other. If a run was measured, the predictions also have confidence intervals.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product

from bubbleviz.errors import BubblevizError, UsageError
from bubbleviz.model.memory_sizes import MemorySize
from bubbleviz.schedules.ideal import Ideal, ideal, simulate_plan
from bubbleviz.schedules.known import find_formula
from bubbleviz.schedules.measured_times import MeasuredTimes, StageTimes, resize_times
from bubbleviz.schedules.plan import Plan, Schedule
from bubbleviz.schedules.plan_memory import is_within
from bubbleviz.schedules.varied_times import (
    Variation,
    draw_makespans,
    make_no_variation,
    measure_variation,
)

#: Names of two choices: the order that ran, and the same order without delays.
MEASURED, NO_DELAY = "measured", "no-delay"


@dataclass(frozen=True)
class Choice:
    """A schedule with its sizes, along with the predicted time and memory of one iteration.

    Attributes:
        schedule: Name of the schedule, or ``MEASURED`` or ``NO_DELAY``.
        stages: Number of stages, p.
        microbatches: Number of microbatches, m.
        chunks: Number of model chunks per stage, v.
        makespan_ns: Time from the first start to the last end over all stages, or None if unknown.
            If operation times vary, this is the mean makespan.
        cost_ns: Longest time from the first start to the last end on a single stage, or None if
            unknown.
        error_ns: Half-width of the 95 % interval of the makespan, or None if no run was measured.
        bubble_ratio: Bubble ratio over the window used to compare schedules (``makespan_ns`` or
            ``cost_ns``), or None if unknown.
        peak_activations: Maximum number of microbatches whose activations (kept from F to W) any
            stage stores at once, or None if unknown.
        peaks: For each stage, the maximum number of microbatches whose activations (kept from F to
            W) it stores at once. Empty if unknown.
        replicas: Number of model replicas.
        speedup: Fraction of the window of the order that ran that the choice saves, or None if this
            window is unknown. Negative if the choice is slower.
        fits: Whether the choice has one replica and fits in memory. It fits if it needs no more
            than the memory limit. Without a limit, it must need no more memory than the order that
            ran. None if memory is not compared.
        peak_bytes: Predicted peak memory in bytes on the device that needs the most, or None if the
            memory use of the run is unknown.
        reason: Why the choice cannot be simulated, or "" if it can be.
    """

    schedule: str
    stages: int
    microbatches: int
    chunks: int
    makespan_ns: float | None = None
    cost_ns: float | None = None
    error_ns: float | None = None
    bubble_ratio: float | None = None
    peak_activations: float | None = None
    peaks: tuple[float, ...] = ()
    replicas: int = 1
    speedup: float | None = None
    fits: bool | None = None
    peak_bytes: float | None = None
    reason: str = ""

    @property
    def is_measured_order(self) -> bool:
        """Whether the choice is the order that ran, with or without delays."""
        return self.schedule in {MEASURED, NO_DELAY}

    @property
    def makespan_ms(self) -> float | None:
        """Makespan in ms, or None if unknown."""
        return None if self.makespan_ns is None else self.makespan_ns / 1e6

    @property
    def cost_ms(self) -> float | None:
        """Longest window of any stage in ms, or None if unknown."""
        return None if self.cost_ns is None else self.cost_ns / 1e6

    @property
    def device_ns(self) -> float | None:
        """Device time per microbatch in ns, or None if the makespan is unknown.

        Device time is computed as ``makespan_ns * stages / microbatches`` and used to compare
        choices of different sizes.
        """
        if self.makespan_ns is None:
            return None
        return self.makespan_ns * self.stages / self.microbatches


#: Maximum number of operations in a schedule that is compared with the order that ran.
_MAX_OPERATIONS = 100_000
#: Tolerance for rounding errors when memory is compared, in microbatches.
_SAME_MEMORY = 1e-9
#: Memory options for searched schedules: the default limit, and M_B = M_W = 1. As in measured
#: orders, all activations are kept from F to W.
_MEMORY = (None, *(MemorySize(1.0, in_bytes=False),) * 2)


def compare_schedules(
    measured: MeasuredTimes, rules: Iterable[Schedule], ran: Choice, *, by_makespan: bool
) -> list[tuple[Choice, Ideal | None]]:
    """Simulate schedules with a run's times and sizes, and compare them with the order that ran.

    A schedule fits in memory if it has one replica and no stage stores the activations of more
    microbatches at once than the maximum of any stage in the order that ran.

    Args:
        measured: The run's times and sizes.
        rules: The schedules to simulate.
        ran: The order that ran, as measured.
        by_makespan: Whether to minimize and compare the makespan. If False, the cost (the longest
            window of any stage) is used.

    Returns:
        (choice, simulation) pairs, sorted by makespan or cost, fastest first, then by name.
        Schedules that cannot be simulated come last. For them, the choice contains the reason, and
        the simulation is None.
    """
    compared: list[tuple[Choice, Ideal | None]] = []
    for rule in rules:
        try:
            simulated = _simulate_schedule(rule, measured, by_makespan=by_makespan)
        except BubblevizError as error:
            sizes = (measured.stages, measured.microbatches, rule.chunks)
            compared.append((Choice(rule.name, *sizes, reason=str(error)), None))
        else:
            compared.append((_compare_with_run(ran, simulated, by_makespan=by_makespan), simulated))

    def make_sort_key(row: tuple[Choice, Ideal | None]) -> tuple[bool, float, str]:
        choice, _ = row
        time_ns = choice.makespan_ns if by_makespan else choice.cost_ns
        return time_ns is None, time_ns or 0.0, choice.schedule

    return sorted(compared, key=make_sort_key)


def choose_chunks(rule: Schedule, measured: MeasuredTimes) -> int:
    """Return the number of chunks per device with which a schedule is simulated.

    If both the schedule and the run have several chunks per device, this is the run's number of
    chunks. Otherwise, it is the schedule's default number of chunks.
    """
    return measured.chunks if rule.chunks > 1 and measured.chunks > 1 else rule.chunks


def _simulate_schedule(rule: Schedule, measured: MeasuredTimes, *, by_makespan: bool) -> Ideal:
    """Simulate a schedule with measured times.

    Args:
        rule: The schedule.
        measured: The run's times and sizes.
        by_makespan: Whether a search minimizes the makespan. If False, it minimizes the longest
            window of any stage.

    Raises:
        BubblevizError: The schedule has too many operations, or does not allow these sizes.
    """
    chunks = choose_chunks(rule, measured)
    stages, microbatches = measured.stages, measured.microbatches
    if 3 * chunks * stages * microbatches > _MAX_OPERATIONS:
        raise UsageError(
            f"more than {_MAX_OPERATIONS:,} operations, which is too many for this comparison; run "
            "bubbleviz simulate instead"
        )
    return ideal(
        rule.name,
        stages,
        microbatches,
        measured.times,
        chunks,
        memory=_MEMORY,
        by_makespan=by_makespan,
    )


def _compare_with_run(ran: Choice, simulated: Ideal, *, by_makespan: bool) -> Choice:
    """Convert a simulated schedule to a choice, compared with the order that ran.

    The choice fits in memory if it has one replica and no stage stores the activations of more
    microbatches at once than the maximum of any stage in the order that ran.

    Args:
        ran: The order that ran, as measured.
        simulated: The simulated schedule.
        by_makespan: Whether to compute the speedup and the bubble ratio from the makespan. If
            False, the longest window of any stage is used.
    """
    plan, peak = simulated.plan, max(simulated.peak_activations, default=0.0)
    time_ms = simulated.makespan_ms if by_makespan else simulated.cost_ms
    measured_ms = ran.makespan_ms if by_makespan else ran.cost_ms
    return Choice(
        plan.name,
        plan.stages,
        plan.microbatches,
        plan.chunks,
        makespan_ns=simulated.simulation.makespan_ns / plan.chunks,
        cost_ns=simulated.simulation.cost_ns / plan.chunks,
        bubble_ratio=simulated.schedule_ratio if by_makespan else simulated.stage_ratio,
        peak_activations=peak,
        peaks=simulated.peak_activations,
        replicas=plan.replicas,
        speedup=1 - time_ms / measured_ms if measured_ms else None,
        fits=peak <= (ran.peak_activations or 0.0) + _SAME_MEMORY and plan.replicas == 1,
    )


@dataclass(frozen=True)
class DeviceMemory:
    """Memory use of each device in a run, in bytes, used to predict the memory of other schedules.

    Attributes:
        resident: For each device, the memory that does not depend on the number of microbatches.
        microbatch: For each device, the activation memory of one microbatch, summed over all chunks
            on the device.
        peak: The largest peak memory of any device in the run.
        limit: Memory limit per device, or None to compare schedules with the run's memory use
            instead.
    """

    resident: tuple[float, ...]
    microbatch: tuple[float, ...]
    peak: float
    limit: float | None = None


def add_memory(choice: Choice, memory: DeviceMemory) -> Choice:
    """Add the peak memory in bytes to a choice, and whether the choice fits in the memory limit.

    The order that ran is given the measured peak. For any other choice, each device needs
    ``resident + peak * microbatch`` bytes, and the largest of these values is the peak memory. A
    choice with several replicas never fits within a limit. Without a limit, ``fits`` does not
    change.

    Args:
        choice: A schedule, or the order that ran.
        memory: The run's memory use.

    Returns:
        The choice including its memory. The choice is returned unchanged if its peaks are unknown
        or if it has a different number of devices than the run.
    """
    if choice.is_measured_order:
        peak_bytes = memory.peak
    elif len(choice.peaks) == len(memory.resident):
        devices = zip(memory.resident, choice.peaks, memory.microbatch, strict=True)
        peak_bytes = max(resident + peak * microbatch for resident, peak, microbatch in devices)
    else:
        return choice
    if memory.limit is None:
        return replace(choice, peak_bytes=peak_bytes)
    holds_weights_once = choice.is_measured_order or choice.replicas == 1
    is_within_limit = is_within(peak_bytes, memory.limit)
    return replace(choice, peak_bytes=peak_bytes, fits=holds_weights_once and is_within_limit)


#: The schedule that is assumed if the schedule of a run is unknown.
_USUAL = "1f1b"


def simulate_equal_stages(plan: Plan | None, measured: MeasuredTimes) -> Ideal | None:
    """Simulate a plan, assuming that all stages take equally long and transfers take no time.

    Args:
        plan: Plan to simulate, or None for 1F1B with the run's sizes.
        measured: The run's times and sizes. Every stage takes the mean time of all stages.

    Returns:
        The simulation, or None if the plan cannot be simulated. The result is also None if ``plan``
        is None and the run has several chunks per stage.
    """
    times = measured.times
    forward, backward, weight = (
        (sum(time_ms) / len(time_ms),)
        for time_ms in (times.forward_ms, times.backward_ms, times.weight_ms)
    )
    mean = StageTimes(forward, backward, weight)
    with suppress(BubblevizError):
        if plan is not None:
            return simulate_plan(plan, mean)
        if measured.chunks == 1:
            return ideal(_USUAL, measured.stages, measured.microbatches, mean)
    return None


#: Half-width of a 95 % interval, in standard errors.
_Z95 = 1.96


@dataclass(frozen=True)
class _Calibration:
    """Accuracy of predictions, determined by simulating the order that ran and comparing the times.

    Attributes:
        variation: How much the run's operation times vary.
        scale: Measured window divided by the simulated window. Predictions are multiplied by
            ``scale``.
        error: Half-width of the 95 % interval for a single window, divided by the mean window.
        windows: Number of measured windows, or 0 if no run was measured.
    """

    variation: Variation
    scale: float = 1.0
    error: float = 0.0
    windows: int = 0


def compare_sizes(
    times: StageTimes,
    run: MeasuredTimes | None,
    schedules: Sequence[str],
    stages: Sequence[int],
    microbatches: Sequence[int],
    chunks: Sequence[int | None],
) -> tuple[Choice, ...]:
    """Simulate every combination of schedule and sizes, and sort the results by device time.

    See :func:`simulate_sizes` for the arguments, and :func:`sort_by_device_time` for the order.
    """
    simulated = simulate_sizes(times, run, schedules, stages, microbatches, chunks)
    return sort_by_device_time(choice for choice, _ in simulated)


def sort_by_device_time(choices: Iterable[Choice]) -> tuple[Choice, ...]:
    """Sort choices by their device time per microbatch (:attr:`Choice.device_ns`), least first.

    Choices that cannot be simulated come last.
    """
    return tuple(sorted(choices, key=lambda row: (row.device_ns is None, row.device_ns or 0.0)))


def simulate_sizes(
    times: StageTimes,
    run: MeasuredTimes | None,
    schedules: Sequence[str],
    stages: Sequence[int],
    microbatches: Sequence[int],
    chunks: Sequence[int | None],
) -> Iterator[tuple[Choice, Ideal | None]]:
    """Simulate every combination of schedule and sizes, one after another.

    To calibrate the predictions, the run's own order is also simulated. All predictions are
    multiplied by the ratio of the measured window to the simulated window. The confidence interval
    of a prediction accounts for three errors: the uncertainty of the measured mean, the uncertainty
    of the random draws, and the difference between measurement and simulation.

    Args:
        times: Stage times; see :func:`resize_times`.
        run: The run in which ``times`` were measured. Predictions are not scaled if ``run`` is None
            or its windows are unknown.
        schedules: Schedule names.
        stages: Numbers of stages, p.
        microbatches: Numbers of microbatches, m.
        chunks: Numbers of model chunks per stage, v, or None for the schedule's default.

    Yields:
        (choice, simulation) pairs. If a schedule does not allow the sizes, the choice contains the
        reason, and the simulation is None.
    """
    calibration = _Calibration(make_no_variation()) if run is None else _calibrate(run)
    for name, p, m, v in product(schedules, stages, microbatches, chunks):
        formula = find_formula(name)
        if formula is not None:
            reason = (
                f"{name} is a formula without an order of operations; pass "
                f"{formula.similar_schedule} instead"
            )
            yield Choice(name, p, m, v or formula.chunks, reason=reason), None
            continue
        stage_times = resize_times(times, p)
        try:
            simulated = ideal(name, p, m, stage_times, v)
        except UsageError as error:
            yield Choice(name, p, m, v or 1, reason=str(error)), None
        else:
            yield _predict(simulated, stage_times, calibration), simulated


def _calibrate(run: MeasuredTimes) -> _Calibration:
    """Simulate a run's order, and return how to correct predictions by the measured windows.

    The simulation uses the run's schedule and sizes, and takes the mean makespan over random draws
    of the operation times. If the windows of the run are unknown, the calibration leaves
    predictions unchanged.
    """
    if run.window_ns is None:
        return _Calibration(make_no_variation())
    window_ns, std_ns, windows = run.window_ns
    simulated = ideal(run.schedule, run.stages, run.microbatches, run.times, run.chunks)
    variation = measure_variation(run)
    replayed_ns = float(draw_makespans(simulated.plan, run.times, variation).mean())
    scale = window_ns / replayed_ns if replayed_ns else 1.0
    return _Calibration(variation, scale, _Z95 * std_ns / window_ns, windows)


def _predict(simulated: Ideal, times: StageTimes, calibration: _Calibration) -> Choice:
    """Convert a simulated schedule to a choice with its predicted time.

    The predicted time is the mean makespan over random draws of the operation times, multiplied by
    the scale of the calibration. The bubble ratio is the fraction of the predicted time that the
    devices do not spend on work, or 0 if that fraction is negative.

    The error is None if no windows were measured. Otherwise, the error combines the errors of the
    measured mean and of the drawn mean with the relative difference between measurement and
    simulation.
    """
    plan, ratio = simulated.plan, simulated.schedule_ratio
    makespans_ns = draw_makespans(plan, times, calibration.variation)
    mean_ns = float(makespans_ns.mean())
    makespan_ns = calibration.scale * mean_ns
    error_ns = None
    if calibration.windows:
        drawn_error = _Z95 * float(makespans_ns.std(ddof=1)) / mean_ns if mean_ns else 0.0
        variance = (calibration.error**2 + drawn_error**2) / calibration.windows
        error_ns = (variance + (calibration.scale - 1) ** 2) ** 0.5 * makespan_ns
    work_ns = (1 - (ratio or 0.0)) * simulated.makespan_ms * 1e6
    return Choice(
        plan.name,
        plan.stages,
        plan.microbatches,
        plan.chunks,
        makespan_ns=makespan_ns,
        error_ns=error_ns,
        bubble_ratio=None if ratio is None else max(1 - work_ns / makespan_ns, 0.0),
        peak_activations=max(simulated.peak_activations),
    )
