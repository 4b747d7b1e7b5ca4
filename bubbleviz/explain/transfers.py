"""Transfers and gaps: what passes before operations, as far as they show it.

A receive shows it that waited for its input. Where receives are only seen to start, as in
recordings without a profiler, an operation shows it whose rank idled when the input was ready::

    peer    ██████ F3 ██████│ready
    rank    █████ F2 █████│        │██ F3
                            ├──────┤ transfer

A gap is between an operation whose input was there and the one before it on its rank: the host, a
launch, a framework at work.
"""

from __future__ import annotations

import numpy as np

from bubbleviz.align.arrivals import NEVER, Arrivals
from bubbleviz.explain.dependencies import Inputs
from bubbleviz.explain.receives import Receives
from bubbleviz.model.columns import NONE, Bools, Ints, Table
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import COMPUTE, Phase
from bubbleviz.model.preceding import last_before
from bubbleviz.model.sorting import sorted_rows
from bubbleviz.model.values import frozen

#: A message may be as late by chance.
_LATE_NS = 500_000


@frozen
class Transfers(Table):
    """Inputs whose transfer shows.

    Attributes:
        operation: row of the operation that took the input.
        transfer_ns: from when the peer had finished it until it was there.
    """

    operation: Ints
    transfer_ns: Ints


def waited(receives: Receives) -> Transfers:
    """Return the transfers that receives show which waited."""
    own = receives.take(receives.wait_ns > 0)
    return Transfers(own.operation, own.transfer_ns)


def after_idling(operations: Operations, inputs: Inputs, known: Arrivals) -> Transfers:
    """Return the inputs of operations that began once these were there, as far as times show it.

    Their rank ran nothing when the input was ready, and no end of their receive is recorded. Those
    that :func:`sent_at_once` are transfers.

    Args:
        operations: of all ranks.
        inputs: that they took from other ranks.
        known: when receives show that these were there.
    """
    shown: Bools = (known.exact_ns == NEVER) & (inputs.ready_ns != NEVER)
    shown &= (operations.has_span == 1) & (operations.start_ns >= inputs.ready_ns)
    # Where the host itself computes, it launches once the input is there.
    itself = operations.host_start_ns >= operations.start_ns
    shown &= itself | (operations.host_start_ns <= inputs.ready_ns)
    rows = np.flatnonzero(shown)
    if len(rows):
        work = np.flatnonzero(among(operations.phase, COMPUTE) & (operations.has_span == 1))
        last = last_before(
            operations.rank[work],
            operations.end_ns[work],
            operations.rank[rows],
            operations.start_ns[rows],
            or_at=True,
        )
        free_ns = np.where(last == NONE, NEVER, operations.end_ns[work][last])
        rows = rows[free_ns <= inputs.ready_ns[rows]]
    return Transfers(rows, operations.start_ns[rows] - inputs.ready_ns[rows])


def sent_at_once(edge: Ints, took_ns: Ints, least_ns: Ints) -> Bools:
    """Return which inputs took little longer than the fastest of their edge and direction.

    Others were sent late: a forward that runs beside a backward is sent after both.

    Args:
        edge: of each input.
        took_ns: from when it was ready until its operation began.
        least_ns: by edge, the least of all that may be transfers.
    """
    return np.asarray(took_ns - _LATE_NS <= 2 * least_ns[edge], bool)


def edges_of(virtual_stage: Ints, phase: Ints) -> Ints:
    """Return a number of the virtual stage and the direction in which inputs come.

    Args:
        virtual_stage: of operations that take them; -1 unknown.
        phase: of these.
    """
    return 2 * (virtual_stage + 1) + among(phase, (Phase.F, Phase.FB))


@frozen
class Gaps(Table):
    """Operations whose inputs were there when the one before them on their rank ended.

    Attributes:
        operation: row of the operation.
        gap_ns: from that end to its start.
        room_ns: how long before that end its input was ready; it was there if that is as long as
            any transfer of its edge. -1 where it takes nothing from another rank.
    """

    operation: Ints
    gap_ns: Ints
    room_ns: Ints


def gaps_of(operations: Operations, inputs: Inputs) -> Gaps:
    """Return the gaps before operations of one iteration whose inputs were ready.

    Args:
        operations: of all ranks.
        inputs: that they took from other ranks.
    """
    computes = among(operations.phase, COMPUTE) & (operations.has_span == 1)
    rows = np.flatnonzero(computes & (operations.iteration >= 0) & ~inputs.unknown)
    rank, start_ns = operations.rank[rows], operations.start_ns[rows]
    if not ((rank[1:] > rank[:-1]) | (start_ns[1:] >= start_ns[:-1])).all():
        rows = rows[sorted_rows(rank, start_ns)]
    before, row = rows[:-1], rows[1:]
    gap_ns = operations.start_ns[row] - operations.end_ns[before]
    shown = (operations.rank[before] == operations.rank[row]) & (gap_ns >= 0)
    shown &= operations.iteration[before] == operations.iteration[row]
    before, row, gap_ns = before[shown], row[shown], gap_ns[shown]
    ready_ns = inputs.ready_ns[row]
    local = ready_ns == NEVER
    room_ns = operations.end_ns[before] - np.where(local, 0, ready_ns)
    there = local | (room_ns >= 0)
    return Gaps(row[there], gap_ns[there], np.where(local, NONE, room_ns)[there])
