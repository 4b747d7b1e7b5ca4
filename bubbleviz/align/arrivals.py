"""Arrivals: when the input of an operation was ready, as far as its receives show.

A span may begin with kernels that need no input (recompute, memcpy): then the end of the receive
shows when the input was ready, and not the start of the span::

    RECV_F3  ├▒▒▒▒▒▒▒▒▒▒──┤             launched before F3, or inside its range
    F3           ├██ waits ├████████┤
                          arrival

Transfers find their operation by the order in which the host launched them, for a receive may be
launched long before the iteration of its operation begins.
"""

from __future__ import annotations

import numpy as np

from bubbleviz.model.columns import NONE, Bools, Ints, Table, constant
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.intervals import Packing, group_extents
from bubbleviz.model.operations import RankOperations
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import PASSED_ON, TRANSFERS, Phase
from bubbleviz.model.sorting import sorted_rows
from bubbleviz.model.values import frozen

#: No time at all.
NEVER = np.iinfo(np.int64).min
#: The columns that arrivals are found by.
_SHOWING = (
    *("rank", "phase", "microbatch", "chunk", "sequence", "has_span", "received_ns"),
    *("start_ns", "end_ns", "host_start_ns", "host_end_ns"),
)


@frozen
class Arrivals(Table):
    """One row an operation; only those of F, B and BW have arrivals.

    Attributes:
        exact_ns: end of its own receives: the one of its name, and those inside its ranges;
            ``NEVER`` where none is seen.
        latest_ns: the same, or the latest end of all receives without a microbatch that the host
            launched before it.
        receives: whether any receive is seen on its rank, of its direction.
        receive: row of the receive of its name; -1 none.
        send: row of the send of its name; -1 none.
    """

    exact_ns: Ints
    latest_ns: Ints
    receives: Bools
    receive: Ints
    send: Ints


def arrivals(operations: RankOperations) -> Arrivals:
    """Return when the inputs of operations were there."""
    count = len(operations)
    exact = np.where(operations.received_ns == NONE, NEVER, operations.received_ns)
    if not among(operations.phase, TRANSFERS).any() and (exact == NEVER).all():
        none, never = constant(NONE, count), constant(NEVER, count)
        return Arrivals(never, never, np.zeros(count, bool), none, none)
    rows = np.flatnonzero(among(operations.phase, PASSED_ON))
    forward = operations.phase[rows] == Phase.F
    receive, send = np.full(count, NONE, np.int64), np.full(count, NONE, np.int64)
    receive[rows] = _named(operations, rows, np.where(forward, Phase.RECV_F, Phase.RECV_B), -1)
    send[rows] = _named(operations, rows, np.where(forward, Phase.SEND_F, Phase.SEND_B), 1)
    named = (receive >= 0) & (np.append(operations.has_span, 0)[receive] == 1)
    exact[named] = np.maximum(exact[named], operations.end_ns[receive[named]])
    latest, seen = exact.copy(), np.zeros(count, bool)
    ranks = int(operations.rank.max(initial=NONE)) + 1
    for consumers, phase in ((rows[forward], Phase.RECV_F), (rows[~forward], Phase.RECV_B)):
        unnamed = consumers[~named[consumers]]
        latest[unnamed] = np.maximum(latest[unnamed], _latest(operations, unnamed, phase))
        receives = np.zeros(ranks, bool)
        receives[operations.rank[among(operations.phase, (phase, Phase.SEND_RECV))]] = True
        receives[operations.rank[consumers[operations.received_ns[consumers] != NONE]]] = True
        seen[consumers] = receives[operations.rank[consumers]]
    return Arrivals(exact, latest, seen, receive, send)


class KnownArrivals:
    """Arrivals that are found once for all operations that agree in what shows them."""

    def __init__(self) -> None:
        self._found: list[tuple[tuple[Ints, ...], Arrivals]] = []

    def of(self, operations: RankOperations) -> Arrivals:
        """Return when the inputs of operations were there."""
        columns = tuple(getattr(operations, name) for name in _SHOWING)
        for known, found in self._found:
            if all(one is other for one, other in zip(known, columns, strict=True)):
                return found
        self._found.append((columns, arrivals(operations)))
        return self._found[-1][1]


def _named(operations: RankOperations, rows: Ints, phase: Ints, side: int) -> Ints:
    """Return the row of the transfer of that phase with the key of each row; -1 for none.

    It is the last one that was launched before the operation ended on the host (``side`` -1), or
    the first one after it started (1), unless another operation of that key lies between.
    """
    transfers = np.flatnonzero(among(operations.phase, phase) & (operations.microbatch >= 0))
    if len(transfers) == 0:
        return np.full(len(rows), NONE, np.int64)
    both = np.concatenate((transfers, rows))
    group = groups_of(
        operations.rank[both],
        np.concatenate((operations.phase[transfers], phase)),
        operations.microbatch[both],
        operations.chunk[both],
        operations.sequence[both],
    ).of_row
    host_ns = operations.host_end_ns if side < 0 else operations.host_start_ns
    time_ns = np.concatenate((operations.host_start_ns[transfers], host_ns[rows])) * -side
    is_row = np.arange(len(both)) >= len(transfers)
    # Transfers and operations of one key in the order in which an operation looks for them.
    order = sorted_rows(group, time_ns, is_row)
    transfer = np.full(len(both), NONE, np.int64)
    if len(order) > 1:
        next_to = (group[order][1:] == group[order][:-1]) & is_row[order][1:]
        next_to &= ~is_row[order][:-1]
        transfer[order[1:][next_to]] = both[order[:-1][next_to]]
    return transfer[len(transfers) :]


def _latest(operations: RankOperations, waiting: Ints, phase: Phase) -> Ints:
    """Return the latest end of what a rank may have received for each of these operations.

    That is every transfer of no single microbatch, launched before it. ``NEVER`` for none.
    """
    receives = np.flatnonzero(
        ((operations.phase == phase) & (operations.microbatch < 0) & (operations.has_span == 1))
        | ((operations.phase == Phase.SEND_RECV) & (operations.has_span == 1))
    )
    if len(receives) == 0 or len(waiting) == 0:
        return np.full(len(waiting), NEVER)
    rank, waiting_rank = operations.rank[receives], operations.rank[waiting]
    ranks = int(max(rank.max(initial=NONE), waiting_rank.max(initial=NONE))) + 1
    end_ns = operations.end_ns[receives]
    low_ns, high_ns = group_extents(rank, ranks, end_ns, end_ns)
    packing = Packing.of(low_ns, np.maximum(low_ns, high_ns))
    # On a line what another rank received before lies before all that this one did.
    placed_ns = np.concatenate((packing.place(rank, end_ns), np.full(len(waiting), NONE)))
    launched_ns = operations.host_start_ns[np.concatenate((receives, waiting))]
    waits = np.arange(len(placed_ns)) >= len(receives)
    order = sorted_rows(np.concatenate((rank, waiting_rank)), launched_ns, waits)
    latest_ns = np.empty_like(placed_ns)
    latest_ns[order] = np.maximum.accumulate(placed_ns[order])
    latest_ns = latest_ns[len(receives) :]
    some = latest_ns >= packing.offset_ns[waiting_rank]
    return np.where(some, latest_ns - packing.shift_ns[waiting_rank], NEVER)


def inputs_ready(operations: RankOperations, inputs: Arrivals) -> Ints:
    """Return when the input of each operation was there at the latest, ``NEVER`` where unknown.

    A span that begins after its receive, or on a rank without any, begins when its input is there.

    Args:
        operations: of all ranks.
        inputs: when their inputs were there.
    """
    if (inputs.latest_ns == NEVER).all() and not inputs.receives.any():
        return operations.start_ns
    ready_ns = np.maximum(operations.start_ns, inputs.latest_ns)
    return np.where((inputs.latest_ns != NEVER) | ~inputs.receives, ready_ns, NEVER)
