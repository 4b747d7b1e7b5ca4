"""Simulation of a plan: when operations run, and how much memory each device needs.

An input from another device arrives one transfer time after the operation that produced it has
ended. The transfer does not occupy any device.
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
    """Start and end times of all operations, sorted by device and time.

    Times are in the workload's unit, which is either ns or ticks of 1/v ns.

    Attributes:
        device: Index of the device that ran the operation.
        virtual_stage: Virtual stage of the operation.
        phase: Phase of the operation, as a code of :class:`bubbleviz.model.phases.Phase`.
        microbatch: Zero-based index of the operation's microbatch.
        start_ns: Start time.
        end_ns: End time (exclusive).
    """

    device: Ints
    virtual_stage: Ints
    phase: Ints
    microbatch: Ints
    start_ns: Ints
    end_ns: Ints

    @property
    def makespan_ns(self) -> int:
        """Time from the first start to the last end over all devices, or 0 if nothing runs."""
        return int(self.end_ns.max() - self.start_ns.min()) if len(self) else 0

    @property
    def cost_ns(self) -> int:
        """Longest time from the first start to the last end on one device, or 0 if there is none.

        This time is the cost of a schedule in arXiv 2401.10241, section 5.3.
        """
        first = np.flatnonzero(np.diff(self.device, prepend=-1))
        last = np.append(first[1:], len(self)) - 1
        return int((self.end_ns[last] - self.start_ns[first]).max()) if len(first) else 0

    @property
    def schedule_ratio(self) -> float | None:
        """Bubble ratio in the window of all devices, or None if this window has no length."""
        return self._compute_bubble_ratio(self.makespan_ns)

    @property
    def stage_ratio(self) -> float | None:
        """Bubble ratio in the longest window of one device, or None if this window has no length.

        The ratio assumes that every device's window is this long.
        """
        return self._compute_bubble_ratio(self.cost_ns)

    def _compute_bubble_ratio(self, window_ns: int) -> float | None:
        whole_ns = len(np.unique(self.device)) * window_ns
        return 1 - int((self.end_ns - self.start_ns).sum()) / whole_ns if whole_ns else None


def simulate(plan: Plan, workload: Workload) -> Simulation:
    """Compute when each operation of a plan runs. Every device can start at time 0.

    If two operations run together, both inputs must have arrived. The second operation starts when
    the first one ends, and the results of both are available when the second one ends::

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
    """Return the duration of each operation of a graph, in the unit of the workload."""
    times = get_phase_times(workload)
    return [
        workload.scale_time(times[op.phase][op.virtual_stage], op.microbatch)
        for op in graph.operations
    ]


def list_lags(workload: Workload) -> tuple[int, ...]:
    """Return the transfer times, indexed by the lag index used in an :class:`OperationGraph`."""
    return *workload.down_ns, *workload.up_ns


@dataclass(frozen=True)
class Outcome:
    """A plan, simulated with a workload's measured times, along with its memory use.

    Attributes:
        plan: Operations of each device, in order.
        simulation: Start and end times of the operations, in ns.
        peak_memory: Peak activation memory of each device, in the unit of the workload's
            ``activation``.
        fits: Whether no device exceeds its memory limit.
        allowed: Whether the plan fits in memory and splits no backwards that the run cannot split.
    """

    plan: Plan
    simulation: Simulation
    peak_memory: tuple[float, ...]
    fits: bool
    allowed: bool = True

    @cached_property
    def makespan_ns(self) -> int:
        """Time from the first start on any device to the last end on any device."""
        return self.simulation.makespan_ns


def simulate_outcome(plan: Plan, workload: Workload) -> Outcome:
    """Simulate a plan with a workload, and determine whether it fits in memory.

    Raises:
        MismatchError: The plan deadlocks.
        UsageError: The plan and the workload have different placements.
    """
    if plan.placement != workload.placement:
        raise UsageError(
            f"{plan.name} and the run place virtual stages on different devices; use a plan with "
            "the run's placement"
        )
    peaks = compute_peak_memory(plan, workload.activation, workload.weight_activation)
    return Outcome(plan, simulate(plan, workload), peaks, fits(peaks, workload.limit))
