"""Arrivals: times at which the inputs of operations were available, as far as receives show.

A span may begin with kernels that need no input, such as recomputation. Then the end of the receive
shows when the input was available, and not the start of the span::

    RECV_F3  ├▒▒▒▒▒▒▒▒▒▒──┤             launched before F3, or inside its range
    F3           ├██ waits ├████████┤
                          arrival

Transfers are matched with operations in the order in which the host launched them, because a
receive may be launched long before the iteration of its operation begins.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bubbleviz.model.columns import NONE, Bools, Ints, Table, make_constant, make_mask
from bubbleviz.model.grouping import group_rows, sort_rows
from bubbleviz.model.intervals import Packing, group_extents
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import CHAINED, TRANSFERS, Phase

#: No time at all.
NEVER = np.iinfo(np.int64).min


@dataclass(frozen=True, eq=False, repr=False)
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


def find_arrivals(operations: Operations) -> Arrivals:
    """Return when the inputs of operations were there."""
    count = len(operations)
    exact = np.where(operations.received_ns == NONE, NEVER, operations.received_ns)
    if not mask_phases(operations.phase, TRANSFERS).any() and (exact == NEVER).all():
        none, never = make_constant(NONE, count), make_constant(NEVER, count)
        return Arrivals(never, never, np.zeros(count, bool), none, none)
    rows = np.flatnonzero(mask_phases(operations.phase, CHAINED))
    forward = operations.phase[rows] == Phase.F
    receive = _find_named_transfers(operations, (Phase.RECV_F, Phase.RECV_B), -1)
    named = (receive >= 0) & (np.append(operations.has_span, 0)[receive] == 1)
    exact[named] = np.maximum(exact[named], operations.end_ns[receive[named]])
    latest, seen = exact.copy(), np.zeros(count, bool)
    ranks = int(operations.rank.max(initial=NONE)) + 1
    for consumers, phase in ((rows[forward], Phase.RECV_F), (rows[~forward], Phase.RECV_B)):
        unnamed = consumers[~named[consumers]]
        latest[unnamed] = np.maximum(
            latest[unnamed], _find_latest_receive_end(operations, unnamed, phase)
        )
        receives = make_mask(
            ranks, operations.rank[mask_phases(operations.phase, (phase, Phase.SEND_RECV))]
        )
        receives[operations.rank[consumers[operations.received_ns[consumers] != NONE]]] = True
        seen[consumers] = receives[operations.rank[consumers]]
    return Arrivals(exact, latest, seen, receive, find_sends(operations))


def find_sends(operations: Operations) -> Ints:
    """Return the row of the send of the name of each operation; -1 none."""
    return _find_named_transfers(operations, (Phase.SEND_F, Phase.SEND_B), 1)


def _find_named_transfers(operations: Operations, phases: tuple[Phase, Phase], side: int) -> Ints:
    """Return the row of the transfer with the key of each F, B and BW; -1 for none.

    Its phase is the first one for F, and the other for what goes backward. It is the last one that
    was launched before the operation ended on the host (``side`` -1), or the first one after it
    started (1), unless another operation of that key lies between.
    """
    found = np.full(len(operations), NONE, np.int64)
    transfers = np.flatnonzero(mask_phases(operations.phase, phases) & (operations.microbatch >= 0))
    if len(transfers) == 0:
        return found
    rows = np.flatnonzero(mask_phases(operations.phase, CHAINED))
    phase = np.where(operations.phase[rows] == Phase.F, *phases)
    both = np.concatenate((transfers, rows))
    transfer_phase = np.concatenate((operations.phase[transfers], phase))
    names = operations.microbatch[both], operations.chunk[both], operations.sequence[both]
    group = group_rows(operations.rank[both], transfer_phase, *names).of_row
    host_ns = operations.host_end_ns if side < 0 else operations.host_start_ns
    time_ns = np.concatenate((operations.host_start_ns[transfers], host_ns[rows])) * -side
    is_row = np.arange(len(both)) >= len(transfers)
    # Transfers and operations of one key in the order in which an operation looks for them.
    order = sort_rows(group, time_ns, is_row)
    key, searches = group[order], is_row[order]
    has_same_key = key[1:] == key[:-1]
    after = 1 + np.flatnonzero(has_same_key & searches[1:] & ~searches[:-1])
    found[both[order[after]]] = both[order[after - 1]]
    return found


def _find_latest_receive_end(operations: Operations, waiting: Ints, phase: Phase) -> Ints:
    """Return the latest end of what a rank may have received for each of these operations.

    That is every transfer of no single microbatch, launched before it. ``NEVER`` for none.
    """
    is_unnumbered = (operations.phase == phase) & (operations.microbatch < 0)
    is_receive = is_unnumbered | (operations.phase == Phase.SEND_RECV)
    receives = np.flatnonzero(is_receive & (operations.has_span == 1))
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
    order = sort_rows(np.concatenate((rank, waiting_rank)), launched_ns, waits)
    latest_ns = np.empty_like(placed_ns)
    latest_ns[order] = np.maximum.accumulate(placed_ns[order])
    latest_ns = latest_ns[len(receives) :]
    some = latest_ns >= packing.offset_ns[waiting_rank]
    return np.where(some, latest_ns - packing.shift_ns[waiting_rank], NEVER)


def find_ready_times(operations: Operations, inputs: Arrivals) -> Ints:
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
