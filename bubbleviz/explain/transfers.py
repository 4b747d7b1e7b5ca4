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
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.operations import Operations
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


def transfers_of(
    operations: Operations, inputs: Inputs, known: Arrivals, receives: Receives
) -> Transfers:
    """Return the transfers that show.

    Args:
        operations: of all ranks.
        inputs: that they took from other ranks.
        known: when receives show that these were there.
        receives: of these operations.
    """
    waited = receives.take(receives.wait_ns > 0)
    started = _after_idling(operations, inputs, known)
    return Transfers(
        np.concatenate((waited.operation, started)),
        np.concatenate(
            (waited.transfer_ns, operations.start_ns[started] - inputs.ready_ns[started])
        ),
    )


@frozen
class Gaps(Table):
    """Operations whose inputs were there when the one before them on their rank ended.

    Attributes:
        operation: row of the operation.
        gap_ns: from that end to its start.
    """

    operation: Ints
    gap_ns: Ints


def gaps_of(operations: Operations, inputs: Inputs, transfers: Transfers) -> Gaps:
    """Return the gaps before operations of one iteration that waited for nothing.

    Args:
        operations: of all ranks.
        inputs: that they took from other ranks.
        transfers: of these. An input is there once it was ready for the longest transfer of its
            virtual stage and direction; where none shows,
            only operations that take nothing from other ranks show gaps.
    """
    computes = np.isin(operations.phase, COMPUTE) & (operations.has_span == 1)
    rows = np.flatnonzero(computes & (operations.iteration >= 0) & ~inputs.unknown)
    rows = rows[sorted_rows(operations.rank[rows], operations.start_ns[rows])]
    before, row = rows[:-1], rows[1:]
    same = operations.rank[before] == operations.rank[row]
    same &= operations.iteration[before] == operations.iteration[row]
    gap_ns = operations.start_ns[row] - operations.end_ns[before]
    edge = _edges(operations)
    longest_ns = np.full(int(edge.max(initial=-1)) + 1, NONE, np.int64)
    np.maximum.at(longest_ns, edge[transfers.operation], transfers.transfer_ns)
    moved_ns = longest_ns[edge[row]]
    local = inputs.ready_ns[row] == NEVER
    there = (moved_ns != NONE) & (
        np.where(local, 0, inputs.ready_ns[row]) + moved_ns <= operations.end_ns[before]
    )
    shown = same & (gap_ns >= 0) & (local | there)
    return Gaps(row[shown], gap_ns[shown])


def _after_idling(operations: Operations, inputs: Inputs, known: Arrivals) -> Ints:
    """Return the operations that began once their input was there, with nothing else to wait for.

    Their rank ran nothing when the input was ready, and no end of their receive is recorded.
    """
    shown: Bools = (known.exact_ns == NEVER) & (inputs.ready_ns != NEVER)
    shown &= (operations.has_span == 1) & (operations.start_ns >= inputs.ready_ns)
    # Where the host itself computes, it launches once the input is there.
    itself = operations.host_start_ns >= operations.start_ns
    shown &= itself | (operations.host_start_ns <= inputs.ready_ns)
    rows = np.flatnonzero(shown)
    if not len(rows):
        return rows
    work = np.flatnonzero(np.isin(operations.phase, COMPUTE) & (operations.has_span == 1))
    last = last_before(
        operations.rank[work],
        operations.end_ns[work],
        operations.rank[rows],
        operations.start_ns[rows],
        or_at=True,
    )
    free_ns = np.where(last == NONE, NEVER, operations.end_ns[work][last])
    return _sent_at_once(operations, inputs, rows[free_ns <= inputs.ready_ns[rows]])


def _sent_at_once(operations: Operations, inputs: Inputs, rows: Ints) -> Ints:
    """Return those whose input took little longer than the fastest of its edge and direction.

    Others were sent late: a forward that runs beside a backward is sent after both.
    """
    edge = _edges(operations)[rows]
    took_ns = operations.start_ns[rows] - inputs.ready_ns[rows]
    least_ns = np.full(int(edge.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(least_ns, edge, took_ns)
    return rows[took_ns <= 2 * least_ns[edge] + _LATE_NS]


def _edges(operations: Operations) -> Ints:
    """Return a number of the virtual stage and the direction in which inputs come."""
    forward = np.isin(operations.phase, (Phase.F, Phase.FB)).astype(np.int64)
    return groups_of(operations.virtual_stage, forward).of_row
