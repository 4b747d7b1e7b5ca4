"""Arrivals: the times at which operation inputs became available, inferred from receives.

The span of an operation may begin with kernels that need no input, such as recomputation. The input
then became available at the end of the receive, not at the start of the span::

    RECV_F3  ├▒▒▒▒▒▒▒▒▒▒──┤             launched before F3, or inside its range
    F3           ├██ waits ├████████┤
                          arrival

Transfers are matched with operations in host launch order, because a receive may be launched long
before its operation's iteration begins.
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

#: Sentinel for an unknown time.
NEVER = np.iinfo(np.int64).min


@dataclass(frozen=True, eq=False, repr=False)
class Arrivals(Table):
    """Time at which the input of each operation arrived. Only F, B and BW have arrivals.

    An operation's named receive or send is a transfer with the same rank, microbatch, chunk and
    sequence split.

    Attributes:
        exact_ns: Latest end of the operation's named receive and of the receives inside its ranges,
            or ``NEVER`` if there are none.
        latest_ns: Latest time at which the input may have arrived, or ``NEVER`` if unknown. Equal
            to ``exact_ns`` for operations with a named receive. Other operations may also have
            waited for receives without a microbatch number that were launched earlier. For such
            operations, the latest end of those receives is included.
        receives: Mask of the operations whose rank has at least one receive in the operation's
            direction (activations for F, gradients for B and BW).
        receive: Row of the operation's named receive, or -1 if there is none.
        send: Row of the operation's named send, or -1 if there is none.
    """

    exact_ns: Ints
    latest_ns: Ints
    receives: Bools
    receive: Ints
    send: Ints


def find_arrivals(operations: Operations) -> Arrivals:
    """Find the time at which the input of each operation arrived.

    The input has arrived once all of the following receives have ended:

    - The receives inside the operation's ranges (``received_ns``).
    - The operation's named receive (:func:`_find_named_transfers`), if it has a device span.
    - For ``latest_ns`` of operations without a named receive: the transfers without a microbatch
      number that were launched before the operation (:func:`_find_latest_receive_end`).

    Args:
        operations: Operations of all ranks.
    """
    exact = np.where(operations.received_ns == NONE, NEVER, operations.received_ns)
    if not mask_phases(operations.phase, TRANSFERS).any() and (exact == NEVER).all():
        return _make_unknown_arrivals(len(operations))
    rows = np.flatnonzero(mask_phases(operations.phase, CHAINED))
    is_forward = operations.phase[rows] == Phase.F
    receive = _find_named_transfers(operations, (Phase.RECV_F, Phase.RECV_B), -1)
    has_receive = (receive >= 0) & (np.append(operations.has_span, 0)[receive] == 1)
    exact[has_receive] = np.maximum(exact[has_receive], operations.end_ns[receive[has_receive]])
    latest, rank_receives = exact.copy(), np.zeros(len(operations), bool)
    for consumers, phase in ((rows[is_forward], Phase.RECV_F), (rows[~is_forward], Phase.RECV_B)):
        unnamed = consumers[~has_receive[consumers]]
        receive_end_ns = _find_latest_receive_end(operations, unnamed, phase)
        latest[unnamed] = np.maximum(latest[unnamed], receive_end_ns)
        rank_receives[consumers] = _has_receiving_rank(operations, consumers, phase)
    return Arrivals(exact, latest, rank_receives, receive, find_sends(operations))


def _make_unknown_arrivals(count: int) -> Arrivals:
    """Return ``count`` unknown arrivals, for the operations of a run without transfers."""
    no_row, never = make_constant(NONE, count), make_constant(NEVER, count)
    return Arrivals(never, never, np.zeros(count, bool), no_row, no_row)


def _has_receiving_rank(operations: Operations, consumers: Ints, phase: Phase) -> Bools:
    """Return a mask of the operations whose rank has any receives of the kind they need.

    Forwards need activations, and backwards need gradients. A rank has such receives if it runs any
    operation of ``phase``, any SEND_RECV, or a receive inside the ranges of its ``consumers``.

    Args:
        operations: Operations of all ranks.
        consumers: Rows of the forwards, or of the backwards, of all ranks.
        phase: Phase of the receives in this direction.

    Returns:
        Mask with one entry per row of ``consumers``.
    """
    is_receive = mask_phases(operations.phase, (phase, Phase.SEND_RECV))
    n_ranks = int(operations.rank.max(initial=NONE)) + 1
    is_receiving_rank = make_mask(n_ranks, operations.rank[is_receive])
    with_receive_inside = consumers[operations.received_ns[consumers] != NONE]
    is_receiving_rank[operations.rank[with_receive_inside]] = True
    return is_receiving_rank[operations.rank[consumers]]


def find_sends(operations: Operations) -> Ints:
    """Return, for each operation, the row of its named send, or -1 if there is none.

    A named send has the same rank, microbatch, chunk and sequence split as the operation.
    """
    return _find_named_transfers(operations, (Phase.SEND_F, Phase.SEND_B), 1)


def _find_named_transfers(operations: Operations, phases: tuple[Phase, Phase], side: int) -> Ints:
    """Find the receive or send of each F, B and BW operation by comparing names.

    A transfer and an operation have the same name if their rank, microbatch, chunk and sequence
    split are equal. If another operation with this name was launched between them, the transfer
    belongs to that operation instead. Transfers without a microbatch number have no name.

    Args:
        operations: Operations of all ranks.
        phases: The transfer phase for F, and the transfer phase for B and BW.
        side: -1 for the last transfer that was launched before the operation ended on the host, or
            1 for the first transfer that was launched after the operation started on the host.

    Returns:
        Row of the transfer for each operation, or -1 if there is none.
    """
    transfer_of = np.full(len(operations), NONE, np.int64)
    transfers = np.flatnonzero(mask_phases(operations.phase, phases) & (operations.microbatch >= 0))
    if len(transfers) == 0:
        return transfer_of
    consumers = np.flatnonzero(mask_phases(operations.phase, CHAINED))
    phase = np.where(operations.phase[consumers] == Phase.F, *phases)
    rows = np.concatenate((transfers, consumers))
    group = _group_by_name(operations, rows, np.concatenate((operations.phase[transfers], phase)))
    host_ns = operations.host_end_ns if side < 0 else operations.host_start_ns
    time_ns = np.concatenate((operations.host_start_ns[transfers], host_ns[consumers])) * -side
    is_consumer = np.arange(len(rows)) >= len(transfers)
    # For side 1, times are negated, so that the match is the previous row in both cases.
    order = sort_rows(group, time_ns, is_consumer)
    rows, group, is_consumer = rows[order], group[order], is_consumer[order]
    has_same_name = group[1:] == group[:-1]
    matched = 1 + np.flatnonzero(has_same_name & is_consumer[1:] & ~is_consumer[:-1])
    transfer_of[rows[matched]] = rows[matched - 1]
    return transfer_of


def _group_by_name(operations: Operations, rows: Ints, transfer_phase: Ints) -> Ints:
    """Group operations and their transfers by rank, transfer phase and name.

    Args:
        operations: Operations of all ranks.
        rows: Rows to group.
        transfer_phase: For each row, its own phase if it is a transfer, or else the phase of its
            transfer.

    Returns:
        Group number of each row in ``rows``.
    """
    names = operations.microbatch[rows], operations.chunk[rows], operations.sequence[rows]
    return group_rows(operations.rank[rows], transfer_phase, *names).of_row


def _find_latest_receive_end(operations: Operations, waiting: Ints, phase: Phase) -> Ints:
    """Return, for each operation, the latest end time of all transfers that may carry its input.

    Any SEND_RECV, and any receive without a microbatch number, may carry the input if the rank
    launched it no later than the operation.

    Args:
        operations: Operations of all ranks.
        waiting: Rows of the operations that need an input.
        phase: Phase of the receives.

    Returns:
        Latest end in ns for each row of ``waiting``, or ``NEVER`` if no such transfer was launched.
    """
    receives = _find_unnumbered_receives(operations, phase)
    if len(receives) == 0 or len(waiting) == 0:
        return np.full(len(waiting), NEVER)
    rank, waiting_rank = operations.rank[receives], operations.rank[waiting]
    n_ranks = int(max(rank.max(initial=NONE), waiting_rank.max(initial=NONE))) + 1
    end_ns = operations.end_ns[receives]
    # After packing, the end times of each rank are larger than the end times of all previous ranks.
    # A single running maximum over all ranks is therefore sufficient.
    packing = _pack_by_rank(rank, end_ns, n_ranks)
    packed_end_ns = np.concatenate((packing.place(rank, end_ns), np.full(len(waiting), NONE)))
    launched_ns = operations.host_start_ns[np.concatenate((receives, waiting))]
    is_waiting = np.arange(len(packed_end_ns)) >= len(receives)
    order = sort_rows(np.concatenate((rank, waiting_rank)), launched_ns, is_waiting)
    latest_ns = np.empty_like(packed_end_ns)
    latest_ns[order] = np.maximum.accumulate(packed_end_ns[order])
    latest_ns = latest_ns[len(receives) :]
    has_receive = latest_ns >= packing.offset_ns[waiting_rank]
    return np.where(has_receive, latest_ns - packing.shift_ns[waiting_rank], NEVER)


def _find_unnumbered_receives(operations: Operations, phase: Phase) -> Ints:
    """Return the rows of all receives without a microbatch number, and of every SEND_RECV.

    Transfers without a device span are left out. Rows are in ascending order.

    Args:
        operations: Operations of all ranks.
        phase: Phase of the receives.
    """
    is_unnumbered = (operations.phase == phase) & (operations.microbatch < 0)
    is_receive = is_unnumbered | (operations.phase == Phase.SEND_RECV)
    return np.flatnonzero(is_receive & (operations.has_span == 1))


def _pack_by_rank(rank: Ints, time_ns: Ints, n_ranks: int) -> Packing:
    """Return a packing that shifts each rank's times past the times of all previous ranks.

    A rank without times still gets room for one time.

    Args:
        rank: Rank of each time.
        time_ns: Times to pack.
        n_ranks: Number of ranks.
    """
    low_ns, high_ns = group_extents(rank, n_ranks, time_ns, time_ns)
    return Packing.of(low_ns, np.maximum(low_ns, high_ns))


def find_ready_times(operations: Operations, inputs: Arrivals) -> Ints:
    """Return when each operation could first use its input, or ``NEVER`` if unknown.

    The ready time is the start of the operation's span or the arrival of its input
    (``latest_ns``), whichever is later. If the arrival is unknown, the ready time is the start of
    the span if ``receives`` is False, and unknown otherwise.

    Args:
        operations: Operations of all ranks.
        inputs: Input arrivals of all operations, as returned by :func:`find_arrivals`.
    """
    if (inputs.latest_ns == NEVER).all() and not inputs.receives.any():
        return operations.start_ns
    ready_ns = np.maximum(operations.start_ns, inputs.latest_ns)
    return np.where((inputs.latest_ns != NEVER) | ~inputs.receives, ready_ns, NEVER)
