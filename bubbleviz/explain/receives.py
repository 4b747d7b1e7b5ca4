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
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.causes.idle import IdleIntervals
from bubbleviz.explain.collective_waits import CollectiveTimes
from bubbleviz.explain.dependencies import Inputs
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
    operations: Operations,
    receives: Receives,
    collectives: CollectiveTimes,
    communication_ns: Ints,
    overlapped_ns: Ints,
) -> CommunicationTimes:
    """Return how long ranks communicated in each iteration.

    Args:
        operations: of all ranks.
        receives: of these.
        collectives: how long ranks were in collectives.
        communication_ns: of each rank in each iteration, shape (iterations, ranks).
        overlapped_ns: likewise.
    """
    shape = communication_ns.shape
    iteration = operations.iteration[receives.operation]
    some = np.flatnonzero(iteration >= 0)
    cell = iteration[some] * shape[1] + operations.rank[receives.operation[some]]

    def summed(column: Ints) -> Ints:
        return intervals.group_sum(cell, shape[0] * shape[1], column[some]).reshape(shape)

    return CommunicationTimes(
        wait_ns=summed(receives.wait_ns) + collectives.wait_ns,
        transfer_ns=summed(receives.transfer_ns) + collectives.move_ns,
        exposed_ns=summed(receives.exposed_ns) + collectives.exposed_ns,
        communication_ns=communication_ns,
        overlapped_ns=overlapped_ns,
    )
