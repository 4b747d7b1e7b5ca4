"""Convert the times and memory of a saved run to the form that simulation and planning need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from numbers import Real
from statistics import mean, median, pvariance, stdev
from typing import Any, TypeAlias

from bubbleviz.model.columns import NONE
from bubbleviz.model.phases import Phase, parse_phase_label
from bubbleviz.model.texts import list_first
from bubbleviz.report.memory import measure_memory
from bubbleviz.report.slow_windows import MIN_SLOW_EXCESS, measure_slow_windows
from bubbleviz.report.summary import IterationEntry, PhaseTimeEntry, RunSummary
from bubbleviz.schedules.known import SCHEDULES
from bubbleviz.schedules.measured_times import (
    MeasuredTimes,
    StageTimes,
    build_workload,
    collect_times,
    resize_times,
)
from bubbleviz.schedules.plan import MeasuredMemory, OperationTimes
from bubbleviz.schedules.workload import Workload

#: Name of a schedule, number of stages and number of microbatches. Each is None if unknown.
Sizes: TypeAlias = tuple[str | None, int | None, int | None]


def list_operation_times(run: RunSummary) -> tuple[OperationTimes, ...]:
    """Return the times of each kind of operation. Unknown stages and chunks are -1."""
    return tuple(map(_convert_times, run.phase_times))


def _convert_times(entry: PhaseTimeEntry) -> OperationTimes:
    """Convert the saved times of one kind of operation. Unknown stages and chunks become -1."""
    return OperationTimes(
        phase=parse_phase_label(entry.phase) or Phase.F,
        median_ns=entry.median_ns,
        stage=_number(entry.stage),
        chunk=_number(entry.chunk),
        virtual_stage=_number(entry.virtual_stage),
        gap_ns=entry.gap_ns,
        pipeline_ns=entry.pipeline_ns,
        mean_ns=entry.mean_ns,
        std_ns=entry.std_ns,
    )


def _number(number: int | None) -> int:
    """Return a number, or -1 if it is unknown."""
    return NONE if number is None else number


def measure_workload(run: RunSummary, *, forward_only: bool = False) -> Workload:
    """Return the times of the virtual stages; see :func:`.measured_times.build_workload`.

    Raises:
        MismatchError: The number of microbatches or the time of a virtual stage is unknown.
    """
    times = list_operation_times(run)
    return build_workload(times, run.transfer_ns, run.microbatches, forward_only=forward_only)


def measure_stage_times(run: RunSummary) -> MeasuredTimes:
    """Return a run's stage times, as needed to simulate other schedules.

    If a run has a single pipeline, the times are means over all of its iterations; see
    :func:`_average_all`. The schedule's name and window are included if the schedule is one of
    ``SCHEDULES`` and the mean ``schedule`` ratio was measured.

    Slow iterations (:func:`list_slow_iterations`) are left out, because other schedules are
    compared in usual iterations. In that case, the times come from the typical iteration.

    Raises:
        MismatchError: The number of microbatches or the time of a virtual stage is unknown.
    """
    window_ns = run.summary.window_ns.get("schedule")
    slow = list_slow_iterations(run)
    times = _list_typical_times(run) if slow else _list_mean_times(run)
    measured = collect_times(times, run.transfer_ns, run.microbatches)
    lengths = _drop_slow_rows(run.microbatch_lengths) if slow else run.microbatch_lengths
    measured = replace(measured, lengths=lengths)
    schedule = run.schedule_name or ""
    is_known = schedule in {rule.name for rule in SCHEDULES}
    if not is_known or window_ns is None or not window_ns.mean:
        return measured
    window = (window_ns.mean, window_ns.std or 0.0, window_ns.n)
    if slow:
        window = _measure_usual_windows(run, slow)
    return replace(measured, schedule=schedule, window_ns=window)


def _list_mean_times(run: RunSummary) -> tuple[OperationTimes, ...]:
    """Return the operation times of a run, averaged over all iterations if it has one pipeline."""
    window_ns = run.summary.window_ns.get("schedule")
    n_iterations = 0 if window_ns is None else window_ns.n
    n_operations = n_iterations * (run.microbatches or 0)
    return tuple(
        _average_all(kind) if entry.n == n_operations else kind
        for entry, kind in zip(run.phase_times, list_operation_times(run), strict=True)
    )


def _list_typical_times(run: RunSummary) -> tuple[OperationTimes, ...]:
    """Return the operation times of the typical iteration, without variance between iterations."""
    variance = _measure_window_variance(run)
    return tuple(_remove_variance(kind, variance) for kind in list_operation_times(run))


def _measure_usual_windows(
    run: RunSummary, slow: Sequence[IterationEntry]
) -> tuple[float, float, int]:
    """Return the mean, standard deviation and number of the windows of usual iterations.

    Args:
        run: The run.
        slow: The slow iterations, which are left out. At least two other iterations have a window.
    """
    slow_indices = {entry.index for entry in slow}
    windows = _list_windows(run)
    usual_ns = [ns for index, ns in windows.items() if index not in slow_indices]
    return mean(usual_ns), stdev(usual_ns), len(usual_ns)


def list_slow_iterations(run: RunSummary) -> tuple[IterationEntry, ...]:
    """Return the averaged iterations whose ``schedule`` window is much longer than usual.

    See :func:`.measure_slow_windows`.
    """
    slow = measure_slow_windows(_list_windows(run))
    return tuple(entry for entry in run.iterations if entry.index in slow)


def describe_slow_iterations(run: RunSummary) -> str:
    """Return a sentence that names the slow iterations and says how slow they are, or "".

    See :func:`list_slow_iterations`.
    """
    slow = list_slow_iterations(run)
    if not slow:
        return ""
    longest = max(measure_slow_windows(_list_windows(run)).values())
    names = list_first([entry.name for entry in slow], 3)
    noun, are, at_most = (
        ("Iteration", "is", "") if len(slow) == 1 else ("Iterations", "are", "up to ")
    )
    return f"{noun} {names} {are} left out: {at_most}{longest:.2f} times the usual length"


def describe_left_out(run: RunSummary | None, given_times: Sequence[Any]) -> str:
    """Return a sentence that names the slow iterations that the times leave out, or "".

    Args:
        run: The run that provides the times that were not given, or None.
        given_times: For each time of a simulation, the value that the user gave, or None.
    """
    if run is None or all(value is not None for value in given_times):
        return ""
    return describe_slow_iterations(run)


def _list_windows(run: RunSummary) -> dict[int, int]:
    """Return the ``schedule`` window of each averaged iteration in ns, keyed by iteration index.

    Iterations without such a window are left out.
    """
    windows = {
        entry.index: entry.window_ns.get("schedule") for entry in run.iterations if entry.averaged
    }
    return {index: window_ns for index, window_ns in windows.items() if window_ns}


def _drop_slow_rows(lengths: Sequence[tuple[float, ...]]) -> tuple[tuple[float, ...], ...]:
    """Return the microbatch lengths without slow iterations, divided by the mean of the others.

    Args:
        lengths: Length of each microbatch, with one row per iteration and pipeline.
    """
    row_means = list(map(mean, lengths))
    if not row_means:
        return ()
    max_mean = (1 + MIN_SLOW_EXCESS) * median(row_means)
    usual = [row for row, row_mean in zip(lengths, row_means, strict=True) if row_mean <= max_mean]
    usual_mean = mean(length for row in usual for length in row)
    return tuple(tuple(length / usual_mean for length in row) for row in usual)


def _measure_window_variance(run: RunSummary) -> float:
    """Return the variance of the ``schedule`` windows, relative to their squared mean."""
    windows = list(_list_windows(run).values())
    return pvariance(windows) / mean(windows) ** 2


def _remove_variance(times: OperationTimes, variance: float) -> OperationTimes:
    """Remove the variance between iterations from the standard deviation of operation times.

    A time is the product of two independent factors, one for the iteration and one for the
    operation. The relative variances v of factors multiply as 1 + v. The result is at least 0.

    Args:
        times: Times of one kind of operation.
        variance: Variance of the iteration lengths, relative to their squared mean.
    """
    if not times.std_ns or not times.mean_ns:
        return times
    total = (times.std_ns / times.mean_ns) ** 2
    rest = max((1 + total) / (1 + variance) - 1, 0.0)
    return replace(times, std_ns=times.mean_ns * rest**0.5)


def _average_all(times: OperationTimes) -> OperationTimes:
    """Replace the mean over the typical iteration with the mean over all iterations.

    This is meant for runs that have a single pipeline, where more samples give a better estimate.
    If there is no mean over the typical iteration, the times are returned unchanged.
    """
    if times.pipeline_ns is None:
        return times
    return replace(times, pipeline_ns=times.mean_ns)


def measure_run_memory(run: RunSummary) -> MeasuredMemory | None:
    """Return the memory use of the virtual stages in bytes, or None if it was not measured."""
    if run.memory is None:
        return None
    stage_of_virtual = {
        _number(entry.virtual_stage): _number(entry.stage) for entry in run.phase_times
    }
    return measure_memory(run.memory, stage_of_virtual)


def choose_sizes_and_times(
    run: RunSummary | None,
    sizes: Sizes,
    tf: float | Sequence[float] | None,
    tb: float | Sequence[float] | None,
    tw: float | Sequence[float] | None,
    tcomm: float | None,
) -> tuple[Sizes, StageTimes]:
    """Return the sizes and times for a simulation. Missing values are taken from a run.

    If any time is given, the measured times of virtual stages are dropped.

    Args:
        run: The run. If None, operations take 1 ms and transfers take 0 ms by default.
        sizes: The sizes that were given.
        tf: Time of a forward pass in ms, as one value for all stages or one value per stage. None
            if not given.
        tb: Time of a backward pass that computes the input gradient, in the same form as ``tf``.
        tw: Time of a backward pass that computes the weight gradients, in the same form as ``tf``.
        tcomm: Time of a transfer in ms, or None if not given.

    Raises:
        MismatchError: The time of a virtual stage of the run is unknown.
    """
    times = StageTimes((1.0,), (1.0,), (1.0,))
    if run is not None:
        measured = measure_stage_times(run)
        schedule, stages, microbatches = sizes
        stages = measured.stages if stages is None else stages
        times = resize_times(measured.times, stages)
        sizes = (
            run.schedule_name if schedule is None else schedule,
            stages,
            measured.microbatches if microbatches is None else microbatches,
        )
    phases = {"forward_ms": tf, "backward_ms": tb, "weight_ms": tw}
    overrides: dict[str, Any] = {
        name: _list_times(ms) for name, ms in phases.items() if ms is not None
    }
    overrides |= {} if tcomm is None else {"transfer_ms": tcomm}
    # If any time is given, the measured times of virtual stages no longer apply.
    return sizes, replace(times, measured=None, **overrides) if overrides else times


def _list_times(ms: float | Sequence[float]) -> tuple[float, ...]:
    """Return one time for all stages, or one time per stage."""
    return (float(ms),) if isinstance(ms, (int, float, Real)) else tuple(map(float, ms))
