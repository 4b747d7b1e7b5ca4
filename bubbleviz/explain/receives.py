"""Receives: how long each waited for its input, and how long the transfer took.

A receive's kernel runs from the moment it is launched, and spins until the peer sends::

    peer    ██████ F3 ██████│ready
    RECV       ├▒▒ waits ▒▒▒│▓▓ transfer ▓▓┤
    rank    █████ F2 █████│        exposed │██ F3
                                   ├───────┤
"""

from __future__ import annotations

import numpy as np

from bubbleviz.align.waits import NEVER, Arrivals
from bubbleviz.count.time_breakdown import time_within
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.causes.idle import IdleIntervals
from bubbleviz.explain.dependencies import Inputs
from bubbleviz.explain.stretch import Stretch
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Ints, Table
from bubbleviz.model.operations import Operations
from bubbleviz.model.values import frozen


@frozen
class Receives(Table):
    """The last receive of each operation whose input is known.

    Attributes:
        operation: row of the operation that took the received data.
        start_ns: start of the receive's kernel.
        ready_ns: when the peer had finished the input.
        end_ns: end of the receive's kernel.
        exposed_ns: how much of the time from ready to the end the rank was idle, and no collective
            moved data.
    """

    operation: Ints
    start_ns: Ints
    ready_ns: Ints
    end_ns: Ints
    exposed_ns: Ints

    @property
    def wait_ns(self) -> Ints:
        """How long the receive's kernel waited for its input."""
        return np.clip(self.ready_ns, self.start_ns, self.end_ns) - self.start_ns

    @property
    def transfer_ns(self) -> Ints:
        """How long it ran once its input was ready."""
        return self.end_ns - self.start_ns - self.wait_ns


@frozen
class CommunicationTimes:
    """How long ranks communicated in iterations; columns of shape (iterations, ranks).

    Attributes:
        wait_ns: receives, before their input was ready; and in the window, collectives whose
            members are known, before the last of these had entered.
        transfer_ns: receives, once their input was ready, and such collectives, from then on.
        exposed_ns: the part of the transfers in which the rank was idle, that of other collectives
            too, and time in which one ran and no compute kernel in an operation.
        communication_ns: union of all communication kernels in the rank's window of the ratio that
            bubbles are shown in, and from the start of its first receive on where that is earlier.
        overlapped_ns: the part of it in which compute kernels ran as well.
    """

    wait_ns: Ints
    transfer_ns: Ints
    exposed_ns: Ints
    communication_ns: Ints
    overlapped_ns: Ints


def receives_of(
    operations: Operations, inputs: Inputs, known: Arrivals, idle: IdleIntervals
) -> Receives:
    """Return the receives of operations.

    Args:
        operations: of all ranks.
        inputs: that they took from other ranks.
        known: when receives show that these were there.
        idle: idle intervals of all ranks.
    """
    inside = operations.received_ns != NONE
    named = np.append(operations.start_ns, NONE)[known.receive]
    named_end = np.append(operations.end_ns, NONE)[known.receive]
    spanned = np.append(operations.has_span, 0)[known.receive] == 1
    of_name = (known.receive >= 0) & spanned & (~inside | (named_end > operations.received_ns))
    start_ns = np.where(of_name, named, operations.receive_start_ns)
    rows = np.flatnonzero((known.exact_ns != NEVER) & (inputs.ready_ns != NEVER))
    start_ns, end_ns, ready_ns = start_ns[rows], known.exact_ns[rows], inputs.ready_ns[rows]
    uncollected = tuple(cause for cause in Cause if cause is not Cause.COLLECTIVE)
    moving_ns = np.clip(ready_ns, start_ns, end_ns)
    exposed_ns = idle.time_within(uncollected, operations.rank[rows], moving_ns, end_ns)
    return Receives(rows, start_ns, ready_ns, end_ns, exposed_ns)


def communication_of(
    stretch: Stretch, receives: Receives, collective_idle_ns: Ints
) -> CommunicationTimes:
    """Return how long the ranks of a stretch communicated in each iteration.

    That counts in a rank's window of the listed ratio, and from the start of the iteration's first
    receive on where that comes before. Where an iteration has no such window, its last work ends
    it.

    Args:
        stretch: whole pipelines of a run.
        receives: of its operations.
        collective_idle_ns: how long ranks idled in the windows while a collective moved data, or
            may have; shape (iterations, ranks).
    """
    operations, running, extents = stretch.operations, stretch.running, stretch.extents
    window, shape = stretch.windows[stretch.listed], stretch.extents.present.shape
    known = window.known[:, None] & extents.present
    low_ns = np.where(known, window.start_ns, extents.first_ns)
    high_ns = np.maximum(np.where(known, window.end_ns, extents.last_ns), low_ns)
    iteration = operations.iteration[receives.operation]
    received = receives.take(iteration >= 0)
    at = iteration[iteration >= 0], operations.rank[received.operation]
    np.minimum.at(low_ns, at, received.start_ns)
    met = stretch.collectives.take((stretch.collectives.iteration >= 0) & stretch.collectives.known)
    inside = met.iteration, met.rank
    start_ns, moving_ns, end_ns = (
        np.clip(time_ns, low_ns[inside], high_ns[inside])
        for time_ns in (met.start_ns, met.moving_ns, met.end_ns)
    )

    def summed(cells: tuple[Ints, Ints], time_ns: Ints) -> Ints:
        cell = cells[0] * shape[1] + cells[1]
        return intervals.group_sum(cell, shape[0] * shape[1], time_ns).reshape(shape)

    exposed_ns = collective_idle_ns + stretch.collective_gap_ns
    return CommunicationTimes(
        wait_ns=summed(at, received.wait_ns) + summed(inside, moving_ns - start_ns),
        transfer_ns=summed(at, received.transfer_ns) + summed(inside, end_ns - moving_ns),
        exposed_ns=summed(at, received.exposed_ns) + exposed_ns,
        communication_ns=time_within(running, running.communication_ns, low_ns, high_ns),
        overlapped_ns=time_within(running, running.overlapped_ns, low_ns, high_ns),
    )
