"""Metrics of a simulation: makespan, cost, bubble ratios, activations and memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bubbleviz.model.grouping import distinct
from bubbleviz.model.phases import COMPUTE, WORK, Phase
from bubbleviz.schedules.plan import Memory
from bubbleviz.schedules.simulation import Simulation


def work_of(simulation: Simulation, iteration: int = 0) -> Simulation:
    """Return the F, B, W and BW of one iteration."""
    rows = np.isin(simulation.phase, WORK) & (simulation.iteration == iteration)
    return simulation.take(rows)


def makespan(simulation: Simulation, iteration: int = 0) -> int:
    """Return the length of one window over all devices, optimizer excluded, in nanoseconds."""
    work = work_of(simulation, iteration)
    return int(work.end_ns.max() - work.start_ns.min()) if len(work) else 0


def cost(simulation: Simulation, iteration: int = 0) -> int:
    """Return the longest of the devices' own windows, optimizer excluded, in nanoseconds.

    That is the cost of arXiv 2401.10241, section 5.3.
    """
    work = work_of(simulation, iteration)
    windows = [
        int(work.end_ns[rows].max() - work.start_ns[rows].min())
        for rows in (work.device == device for device in distinct(work.device))
    ]
    return max(windows, default=0)


def schedule_ratio(simulation: Simulation, iteration: int = 0) -> float | None:
    """Return the bubble ratio in the window of all devices, or None without work."""
    return _ratio(work_of(simulation, iteration), makespan(simulation, iteration))


def stage_ratio(simulation: Simulation, iteration: int = 0) -> float | None:
    """Return the bubble ratio in the longest of the devices' own windows, or None."""
    return _ratio(work_of(simulation, iteration), cost(simulation, iteration))


def _ratio(work: Simulation, window_ns: int) -> float | None:
    devices = len(distinct(work.device))
    if not devices or not window_ns:
        return None
    return 1 - int(work.busy_ns.sum()) / (devices * window_ns)


def peak_activations(
    simulation: Simulation, iteration: int = 0, *, until: Phase = Phase.W
) -> float:
    """Return the most activations that one device holds; see :func:`peaks_of_devices`."""
    return max(peaks_of_devices(simulation, iteration, until=until), default=0)


def peaks_of_devices(
    simulation: Simulation, iteration: int = 0, *, until: Phase = Phase.W
) -> tuple[float, ...]:
    """Return the most activations that each device holds, in microbatches of a whole stage.

    Args:
        simulation: what ran.
        iteration: the iteration to look at.
        until: an activation is held from its F to the end of its W (a BW ends it too), or only
            to its B.
    """
    work = work_of(simulation, iteration)
    frees = (Phase.BW, until)
    step = np.where(work.phase == Phase.F, 1, np.where(np.isin(work.phase, frees), -1, 0))
    return tuple(int(most) / _chunks(simulation) for most in _highest(work, step))


def memory_of_devices(
    simulation: Simulation, memory: Memory, iteration: int = 0
) -> tuple[float, ...]:
    """Return the most memory that activations of each device take, in the unit of ``memory``."""
    work = work_of(simulation, iteration)
    step = np.zeros(len(work))
    for phase, change in (
        (Phase.F, memory.backward),
        (Phase.B, memory.weight - memory.backward),
        (Phase.W, -memory.weight),
        (Phase.BW, -memory.backward),
    ):
        step[work.phase == phase] = change
    return tuple(float(most) / _chunks(simulation) for most in _highest(work, step))


def _chunks(simulation: Simulation) -> float:
    pipeline = simulation.placement[: simulation.length]
    return len(pipeline) / max(1, len(set(pipeline)))


def _highest(
    work: Simulation, step: npt.NDArray[np.int64] | npt.NDArray[np.float64]
) -> list[np.int64 | np.float64]:
    """Return the highest sum of the steps so far, by device; never below 0."""
    return [
        np.cumsum(step[work.device == device]).max(initial=0) for device in distinct(work.device)
    ]


def idle_ns(simulation: Simulation) -> int:
    """Return the time that devices idle between their first and their last task."""
    rows = np.isin(simulation.phase, COMPUTE)
    compute = simulation.take(rows)
    total = 0
    for device in distinct(compute.device):
        tasks = compute.take(compute.device == device)
        total += int(tasks.end_ns.max() - tasks.start_ns.min() - tasks.busy_ns.sum())
    return total
