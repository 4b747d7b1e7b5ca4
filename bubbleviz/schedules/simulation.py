"""Simulation: when the operations of a plan run, and what they need.

An input from another device arrives some time after its producer ended. The transfer does not
occupy a device.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bubbleviz.errors import UsageError
from bubbleviz.model.columns import Ints, Table
from bubbleviz.schedules.operation_graph import OperationGraph, build_operation_graph
from bubbleviz.schedules.plan import Plan
from bubbleviz.schedules.plan_memory import compute_peak_memory, fits
from bubbleviz.schedules.timing import compute_ends
from bubbleviz.schedules.workload import Workload, get_phase_times


@dataclass(frozen=True, eq=False, repr=False)
class Simulation(Table):
    """When each operation ran, ordered by device and time.

    Attributes:
        device: Device that ran the operation.
        virtual_stage: Virtual stage of the operation.
        phase: Code of :class:`bubbleviz.model.phases.Phase`.
        microbatch: Microbatch of the operation, from 0.
        start_ns: Start time.
        end_ns: End time, exclusive.
    """

    device: Ints
    virtual_stage: Ints
    phase: Ints
    microbatch: Ints
    start_ns: Ints
    end_ns: Ints

    @property
    def makespan_ns(self) -> int:
        """Length of one window over all devices."""
        return int(self.end_ns.max() - self.start_ns.min()) if len(self) else 0

    @property
    def cost_ns(self) -> int:
        """Length of the longest window of a single device (arXiv 2401.10241, section 5.3)."""
        first = np.flatnonzero(np.diff(self.device, prepend=-1))
        last = np.append(first[1:], len(self)) - 1
        return int((self.end_ns[last] - self.start_ns[first]).max()) if len(first) else 0

    @property
    def schedule_ratio(self) -> float | None:
        """The bubble ratio in the window of all devices, or None without work."""
        return self._compute_bubble_ratio(self.makespan_ns)

    @property
    def stage_ratio(self) -> float | None:
        """The bubble ratio in the longest window of a single device, or None without work."""
        return self._compute_bubble_ratio(self.cost_ns)

    def _compute_bubble_ratio(self, window_ns: int) -> float | None:
        whole_ns = len(np.unique(self.device)) * window_ns
        return 1 - int((self.end_ns - self.start_ns).sum()) / whole_ns if whole_ns else None


def simulate(plan: Plan, workload: Workload) -> Simulation:
    """Compute when each operation of a plan runs.

    If two operations run together, the second one starts after the first one, so that each takes
    its own time, and the results of both are available at the end::

        inputs of both   │
        operations       ├─F──┤├─B──────┤
        results                         │ of both

    Raises:
        MismatchError: The plan deadlocks.
    """
    graph = build_operation_graph(plan)
    lengths_ns = list_lengths(graph, workload)
    ends_ns = compute_ends(graph.edges, lengths_ns, list_lags(workload))
    columns = (
        graph.device,
        (operation.virtual_stage for operation in graph.operations),
        (operation.phase for operation in graph.operations),
        (operation.microbatch for operation in graph.operations),
        (end_ns - length_ns for end_ns, length_ns in zip(ends_ns, lengths_ns, strict=True)),
        ends_ns,
    )
    by_device = np.argsort(graph.device, kind="stable")
    return Simulation(*(np.fromiter(column, np.int64)[by_device] for column in columns))


def list_lengths(graph: OperationGraph, workload: Workload) -> list[int]:
    """Return the length of each operation of a plan, in ns."""
    times = get_phase_times(workload)
    return [
        workload.scale_time(times[op.phase][op.virtual_stage], op.microbatch)
        for op in graph.operations
    ]


def list_lags(workload: Workload) -> tuple[int, ...]:
    """Return the times of transfers in the order of the lags of an :class:`OperationGraph`."""
    return *workload.down_ns, *workload.up_ns


@dataclass(frozen=True)
class Outcome:
    """A plan, simulated with the measured times of a workload, and its memory.

    Attributes:
        plan: What each device runs.
        simulation: When the operations run, in nanoseconds.
        peak_memory: Peak of each device, in the unit of the workload's ``activation``.
        fits: Whether no device exceeds its limit.
        allowed: Whether the plan fits in memory, and only splits the backward if the run can split
            it.
    """

    plan: Plan
    simulation: Simulation
    peak_memory: tuple[float, ...]
    fits: bool
    allowed: bool = True

    @cached_property
    def makespan_ns(self) -> int:
        """Length of one window over all devices."""
        return self.simulation.makespan_ns


def simulate_outcome(plan: Plan, workload: Workload) -> Outcome:
    """Simulate a plan with a workload.

    Raises:
        MismatchError: The plan deadlocks.
        UsageError: The plan places its virtual stages on other devices.
    """
    if plan.placement != workload.placement:
        raise UsageError(
            f"{plan.name} assigns virtual stages to different devices than the run; give a plan "
            "with the same placement"
        )
    peaks = compute_peak_memory(plan, workload.activation, workload.weight_activation)
    return Outcome(plan, simulate(plan, workload), peaks, fits(peaks, workload.limit))
