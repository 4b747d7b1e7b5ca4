"""Measure how long ranks waited for inputs and how long transfers took.

The kernel of a receive starts as soon as it is launched and spins until the peer sends::

    peer    ██████ F3 ██████│ready
    RECV       ├▒▒ waits ▒▒▒│▓▓ transfer ▓▓┤
    rank    █████ F2 █████│        exposed │██ F3
                                   ├───────┤
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bubbleviz.align.arrivals import NEVER, Arrivals
from bubbleviz.count.busy_times import measure_within_windows
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.causes.cause_times import sum_idle_by_cause
from bubbleviz.explain.dependencies import Inputs
from bubbleviz.explain.idle import IdleIntervals
from bubbleviz.explain.stretch import Stretch
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Ints, Table
from bubbleviz.model.intervals import Intervals
from bubbleviz.model.operations import Operations


@dataclass(frozen=True, eq=False, repr=False)
class Receives(Table):
    """The last receive of each operation whose receive and producer are both known.

    Attributes:
        operation: Row of the operation that used the received data.
        start_ns: Start of the receive's kernel.
        ready_ns: Time at which the peer had finished the input.
        end_ns: End of the receive's kernel.
        exposed_ns: Part of the time from ``ready_ns`` to ``end_ns`` during which the rank was idle
            and no collective moved data.
    """

    operation: Ints
    start_ns: Ints
    ready_ns: Ints
    end_ns: Ints
    exposed_ns: Ints

    @property
    def wait_ns(self) -> Ints:
        """Time for which the receive's kernel waited for its input."""
        return np.clip(self.ready_ns, self.start_ns, self.end_ns) - self.start_ns

    @property
    def transfer_ns(self) -> Ints:
        """Time for which the receive's kernel ran once its input was ready."""
        return self.end_ns - self.start_ns - self.wait_ns


@dataclass(frozen=True)
class CommunicationTimes:
    """Communication time of each rank in each iteration; columns of shape (iterations, ranks).

    Attributes:
        wait_ns: Time that receives spent waiting until their input was ready. For collectives in
            the window whose members are known, the time spent waiting for the last member is
            included.
        transfer_ns: Remaining time of the receives and collectives in ``wait_ns``.
        exposed_ns: Time during which data moved and the rank was idle, including collectives whose
            members are unknown. This includes time inside operations during which a collective ran
            but no compute kernel did.
        communication_ns: Time during which at least one communication kernel ran, within the rank's
            window of the listed ratio. The window is extended to the start of the iteration's first
            receive if that is earlier.
        overlapped_ns: Part of ``communication_ns`` during which compute kernels also ran.
    """

    wait_ns: Ints
    transfer_ns: Ints
    exposed_ns: Ints
    communication_ns: Ints
    overlapped_ns: Ints


def list_receives(
    operations: Operations, inputs: Inputs, arrivals: Arrivals, idle: IdleIntervals
) -> Receives:
    """List each operation's last receive, provided that its end and its producer are known.

    Args:
        operations: Operations of all ranks.
        inputs: Inputs of the operations from other ranks.
        arrivals: Arrival times of those inputs, measured from receives.
        idle: Idle intervals of all ranks.

    Returns:
        Receives sorted by operation. Operations without a receive or a known producer are left out.
    """
    rows = np.flatnonzero((arrivals.exact_ns != NEVER) & (inputs.ready_ns != NEVER))
    if not len(rows):
        return Receives.make_empty()
    start_ns = _find_receive_starts(operations, arrivals.receive, rows)
    end_ns, ready_ns = arrivals.exact_ns[rows], inputs.ready_ns[rows]
    moving_ns = np.clip(ready_ns, start_ns, end_ns)
    idle_ns = sum_idle_by_cause(idle, operations.rank[rows], moving_ns, end_ns)
    exposed_ns = idle_ns.sum(axis=1) - idle_ns[:, Cause.COLLECTIVE]
    return Receives(rows, start_ns, ready_ns, end_ns, exposed_ns)


def _find_receive_starts(operations: Operations, receive_of: Ints, rows: Ints) -> Ints:
    """Return the start time of each operation's last receive.

    An operation can have two receives: one inside the operation, and a separate one that names its
    microbatch. The receive that ends later is used. If both end at the same time, the receive
    inside the operation is used.

    Args:
        operations: Operations of all ranks.
        receive_of: Row of each operation's separate receive, or -1 if there is none.
        rows: Rows of the operations, each with at least one receive.
    """
    receive, received_ns = receive_of[rows], operations.received_ns[rows]
    has_span = np.append(operations.has_span, 0)[receive] == 1
    is_later = (received_ns == NONE) | (np.append(operations.end_ns, NONE)[receive] > received_ns)
    separate_ns = np.append(operations.start_ns, NONE)[receive]
    is_separate = (receive >= 0) & has_span & is_later
    return np.where(is_separate, separate_ns, operations.receive_start_ns[rows])


def measure_communication(
    stretch: Stretch, receives: Receives, collective_idle_ns: Ints
) -> CommunicationTimes:
    """Measure how long the ranks of a stretch communicated in each iteration.

    A receive is counted in full in the iteration of the operation that uses its data. Kernels and
    collectives are counted only inside the rank's window:

    - This is the window of the listed ratio. If the iteration has none, it is the time from the
      rank's first to its last work.
    - If the first receive of the iteration starts earlier, the window starts with this receive.

    Args:
        stretch: The stretch, a group of complete pipelines.
        receives: Receives of the stretch's operations.
        collective_idle_ns: Idle time of each rank in its window during which a collective moved or
            may have moved data, shape (iterations, ranks).
    """
    running, shape = stretch.running, stretch.extents.present.shape
    low_ns, high_ns = _find_bounds(stretch)
    iteration = stretch.operations.iteration[receives.operation]
    received = receives.take(iteration >= 0)
    receive_cells = iteration[iteration >= 0], stretch.operations.rank[received.operation]
    np.minimum.at(low_ns, receive_cells, received.start_ns)
    met = stretch.collectives.take(
        (stretch.collectives.iteration >= 0) & stretch.collectives.has_members
    )
    collective_cells = met.iteration, met.rank
    start_ns, moving_ns, end_ns = (
        np.clip(time_ns, low_ns[collective_cells], high_ns[collective_cells])
        for time_ns in (met.start_ns, met.moving_ns, met.end_ns)
    )

    def sum_by_cell(cells: tuple[Ints, Ints], time_ns: Ints) -> Ints:
        cell = cells[0] * shape[1] + cells[1]
        return intervals.group_sum(cell, shape[0] * shape[1], time_ns).reshape(shape)

    return CommunicationTimes(
        wait_ns=sum_by_cell(receive_cells, received.wait_ns)
        + sum_by_cell(collective_cells, moving_ns - start_ns),
        transfer_ns=sum_by_cell(receive_cells, received.transfer_ns)
        + sum_by_cell(collective_cells, end_ns - moving_ns),
        exposed_ns=sum_by_cell(receive_cells, received.exposed_ns)
        + (collective_idle_ns + stretch.collective_gap_ns),
        communication_ns=measure_within_windows(running, running.communication_ns, low_ns, high_ns),
        overlapped_ns=measure_within_windows(running, running.overlapped_ns, low_ns, high_ns),
    )


def _find_bounds(stretch: Stretch) -> Intervals:
    """Return the start and end of each rank's window of the listed ratio in each iteration, in ns.

    The arrays of starts and ends have the shape (iterations, ranks). If a rank has no window in an
    iteration, the start of its first work and the end of its last work are returned.
    """
    window, extents = stretch.windows[stretch.listed_ratio], stretch.extents
    has_window = window.is_known[:, None] & extents.present
    low_ns = np.where(has_window, window.start_ns, extents.first_ns)
    high_ns = np.maximum(np.where(has_window, window.end_ns, extents.last_ns), low_ns)
    return low_ns, high_ns
