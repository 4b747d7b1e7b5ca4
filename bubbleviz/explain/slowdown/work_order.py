"""Find the predecessors of each work table row, as far as the measured times reveal them.

The operations of a rank keep their measured order. A collective follows the last operation that had
ended when the collective began. If the collective was exposed, the next operation follows it;
otherwise the next optimizer follows it::

    compute     ├─ B6 ─┤├─ B7 ─┤                 ├ Optimizer ┤
    collective          ├─ bucket 0 ─┤├ bucket 1 ┤
                 after B6             after B7 and bucket 0
"""

from __future__ import annotations

import numpy as np

from bubbleviz.align.arrivals import NEVER
from bubbleviz.explain.dependencies import Dependencies
from bubbleviz.explain.slowdown.message_order import Pairs, chain_rows, order_messages
from bubbleviz.explain.slowdown.messages import CLOCK_NS, Messages
from bubbleviz.explain.slowdown.replayed_run import ReplayedRun
from bubbleviz.explain.slowdown.work import (
    COMPUTING,
    POINT_TO_POINT,
    RECEIVES,
    SENDS,
    Role,
    Work,
    has_role,
)
from bubbleviz.model.columns import NONE, Bools, Ints, scatter
from bubbleviz.model.grouping import group_rows, sort_rows
from bubbleviz.model.intervals import find_last_before, group_extents, group_sum
from bubbleviz.model.operations import Operations


def order_work(
    work: Work, rows: Ints, messages: Messages, operations: Operations, tokens: Dependencies
) -> Dependencies:
    """Find the predecessors of each row of the work table.

    The following rules give (row, predecessor) pairs. A pair can occur several times.

    1. A compute operation follows the previous one on its rank in the same iteration.
    2. The consumer of a message without a transfer follows the producer.
    3. An operation that waited for a token follows the operation that produced the token, if both
       are in the same iteration.
    4. Sends and receives are ordered by :func:`_order_transfers`. A queued transfer also follows
       the transfer ahead of it (:func:`find_queued_transfers`).
    5. A collective follows the last compute operation and the last collective of its rank that
       finished before it.
    6. A compute operation or optimizer follows the collectives of :func:`_find_followers`.

    Args:
        work: Work of the run: operations, then sends, then receives, then collectives.
        rows: For each row of ``work[: len(rows)]``, its row in the operations table.
        messages: Messages between operations. The sends and receives in ``work`` belong to the
            messages that have a transfer, in the same order.
        operations: Operations of all ranks.
        tokens: Operations that waited for a token, and the operations that produced it.
    """
    row_of = scatter(len(operations), rows, np.arange(len(rows)))
    is_transfer = messages.has_transfer
    transfers, direct = messages.take(is_transfer), messages.take(~is_transfer)
    computes = sort_rows(
        *(column[: len(rows)] for column in (work.rank_iteration, work.start_ns, work.kind))
    )
    transfer_rows = len(rows) + np.arange(2 * len(transfers))
    collectives = np.arange(len(rows) + len(transfer_rows), len(work))
    producers = row_of[transfers.producer]
    sends = Dependencies(transfer_rows[: len(transfers)], producers)
    pairs = [
        chain_rows(work, computes, work.rank_iteration[computes]),
        (row_of[direct.consumer], row_of[direct.producer]),
        _select_token_waits(operations, row_of, tokens),
        *_order_transfers(
            work,
            transfer_rows,
            np.concatenate((producers, row_of[transfers.consumer])),
            np.tile(transfers.send_start_ns, 2),
            computes,
        ),
        find_queued_transfers(work, sends),
        _match_last_finished(work, computes, collectives),
        _match_last_finished(work, collectives, collectives),
        _find_followers(work, computes, collectives),
    ]
    successor, predecessor = (np.concatenate([pair[side] for pair in pairs]) for side in (0, 1))
    return Dependencies(successor, predecessor)


def _select_token_waits(operations: Operations, row_of: Ints, tokens: Dependencies) -> Pairs:
    """Return token waits within an iteration, as (waiting row, producing row) pairs of the work.

    Args:
        operations: Operations of all ranks.
        row_of: For each operation, its row in the work, or -1 if it is not included.
        tokens: Operations that waited for a token, and the operations that produced it.
    """
    waiting, producer = row_of[tokens.successor], row_of[tokens.predecessor]
    is_included = (waiting >= 0) & (producer >= 0)
    is_included &= (
        operations.iteration[tokens.successor] == operations.iteration[tokens.predecessor]
    )
    return waiting[is_included], producer[is_included]


def _order_transfers(
    work: Work, transfers: Ints, compute: Ints, sent_ns: Ints, computes: Ints
) -> list[Pairs]:
    """Return the pairs of :func:`.order_messages` that the measured times do not contradict.

    A (row, predecessor) pair is dropped in two cases:

    - The row is a send or receive that starts more than ``CLOCK_NS`` before the predecessor ends.
    - The row is a receive, and receives of the same entry are usually posted early, which means
      before the compute operation that should precede them has ended.

    The second case applies if more than half of the entry's receives were posted early. Only
    receives whose data was sent more than ``CLOCK_NS`` before the end of the compute operation are
    counted.

    Args:
        work: Work table of all ranks.
        transfers: Rows of the sends and receives.
        compute: Row of the compute operation that produces or consumes the data of each transfer.
        sent_ns: Time at which each transfer's send started.
        computes: Rows of the compute operations, in the order in which each rank ran them.

    Returns:
        (row, predecessor) pairs, with one entry per entry of :func:`.order_messages`.
    """
    send_start_ns = np.full(len(work), NEVER, np.int64)
    send_start_ns[transfers] = sent_ns
    is_communication, is_receive = work.communicates, has_role(work.role, RECEIVES)
    pairs = []
    for row, predecessor in order_messages(work, transfers, compute, computes):
        overlaps = work.end_ns[predecessor] > work.start_ns[row] + CLOCK_NS
        is_ahead = overlaps & is_communication[row]
        after_compute = ~is_communication[predecessor] & is_receive[row]
        is_early = after_compute & (send_start_ns[row] + CLOCK_NS < work.end_ns[predecessor])
        if 2 * is_ahead[is_early].sum() > is_early.sum():
            is_ahead |= after_compute
        pairs.append((row[~is_ahead], predecessor[~is_ahead]))
    return pairs


def find_queued_transfers(work: Work, order: Dependencies) -> Pairs:
    """Find transfers that were delayed by another transfer ahead of them in their rank's queue.

    The transfer ahead had been posted first and still waited for its peer, although the data of the
    queued transfer was ready::

        RECV_F 5   ├▒▒▒▒▒▒ waits ▒▒▒▒▒▒│▓▓┤
        SEND_F 2          computed        ├▓▓┤

    The transfer ahead is the last transfer of the same rank and iteration that had waited for its
    peer (:func:`_find_waiting_transfers`) and ended before the queued transfer started. The queued
    transfer must meet two conditions:

    - It started more than ``CLOCK_NS`` after its data was ready.
    - It started at most ``CLOCK_NS`` after the transfer ahead ended.

    Args:
        work: Work table of all ranks.
        order: Pairs of a row and one of its predecessors, including the compute operation of each
            send.

    Returns:
        (queued transfer, transfer ahead) pairs.
    """
    transfers = np.flatnonzero(has_role(work.role, POINT_TO_POINT))
    ready_ns = _find_ready_times(work, transfers, order)
    is_late = (ready_ns != NEVER) & (ready_ns + CLOCK_NS < work.start_ns)
    waiting = _find_waiting_transfers(work)
    row, ahead = _match_last_finished(work, waiting, transfers[is_late[transfers]])
    idle_ns = work.start_ns[row] - work.end_ns[ahead]
    is_queued = (idle_ns >= 0) & (idle_ns <= CLOCK_NS)
    return row[is_queued], ahead[is_queued]


def _find_ready_times(work: Work, transfers: Ints, order: Dependencies) -> Ints:
    """Return when the data of each send and receive was ready, or ``NEVER`` if it is unknown.

    The data of a send is ready when its compute operation ends. The data of a receive is ready when
    its send starts.

    Args:
        work: Work table of all ranks.
        transfers: Rows of the sends and receives.
        order: Pairs of a row and one of its predecessors, including the compute operation of each
            send.
    """
    role = work.role
    sends = transfers[has_role(role[transfers], SENDS)]
    sent_ns = np.full(int(work.meeting.max(initial=NONE)) + 1, NEVER)
    sent_ns[work.meeting[sends]] = work.start_ns[sends]
    computed_ns = np.full(len(work), NEVER)
    is_computed = has_role(role[order.successor], SENDS) & has_role(
        role[order.predecessor], COMPUTING
    )
    computed_ns[order.successor[is_computed]] = work.end_ns[order.predecessor[is_computed]]
    is_receive = has_role(role, RECEIVES)
    return np.where(is_receive, np.append(sent_ns, NEVER)[work.meeting], computed_ns)


def _find_waiting_transfers(work: Work) -> Ints:
    """Return the rows of the sends and receives that waited for their peer.

    A transfer waited if it started more than ``CLOCK_NS`` before its peer.
    """
    transfers = np.flatnonzero(has_role(work.role, POINT_TO_POINT))
    meetings, start_ns = group_rows(work.meeting[transfers]), work.start_ns[transfers]
    latest_ns = group_extents(meetings.of_row, len(meetings), start_ns, start_ns)[1]
    return transfers[latest_ns[meetings.of_row] > start_ns + CLOCK_NS]


def find_queued_collectives(run: ReplayedRun, work: Work, rows: Ints) -> tuple[Ints, Ints]:
    """Find operations that were delayed because their inner collectives queued behind a receive.

    An inner collective runs inside an operation. For example, experts exchange tokens inside a
    forward. If the collective shares a link with a receive that was posted first, no kernel of the
    forward runs while this receive waits::

        RECV_F 5        ├▒▒▒▒▒▒▒▒ waits ▒▒▒▒▒▒▒▒│▓▓┤
        F 2         ├ attention ┤    queued        ├ all-to-all ┤├ experts ┤

    Args:
        run: The replayed run.
        work: Work of the run.
        rows: For each row of ``work[: len(rows)]``, its row in the operations table.

    Returns:
        Rows of the delayed operations in ``work``, ascending, and the time in ns for which each was
        queued. This time is at most the time during which neither a kernel of the operation nor a
        collective ran. Operations that were queued for at most ``CLOCK_NS`` are left out.
    """
    operations = run.operations
    row_of = scatter(len(operations) + 1, rows, np.arange(len(rows)))
    inner = run.collectives.take(row_of[run.collectives.operation] != NONE)
    inner = inner.take(inner.start_ns < operations.end_ns[inner.operation])
    owner = row_of[inner.operation]
    ahead = _find_last_waiting_transfers(work, inner.rank, inner.start_ns)
    is_queued = (ahead != NONE) & (inner.start_ns <= work.end_ns[ahead] + CLOCK_NS)
    # An operation always has to wait for its own receive, so this is not queueing.
    is_own_receive = work.microbatch[ahead] == work.microbatch[owner]
    is_own_receive &= work.virtual_stage[ahead] == work.virtual_stage[owner]
    is_queued &= ~is_own_receive
    queued_ns = inner.start_ns - np.maximum(work.start_ns[ahead], work.start_ns[owner])
    lost_ns = group_sum(owner[is_queued], len(work), queued_ns[is_queued])
    collective_ns = group_sum(owner, len(work), inner.end_ns - inner.start_ns)[: len(rows)]
    gap_ns = (operations.busy_ns - operations.active_ns)[rows] - collective_ns
    lost_ns[: len(rows)] = np.minimum(lost_ns[: len(rows)], gap_ns)
    queued_rows = np.flatnonzero(lost_ns > CLOCK_NS)
    return queued_rows, lost_ns[queued_rows]


def _find_last_waiting_transfers(work: Work, rank: Ints, time_ns: Ints) -> Ints:
    """Find the last transfer of a rank that had waited for its peer and ended before a time.

    Args:
        work: Work table of all ranks.
        rank: Rank of each query.
        time_ns: Time of each query. Transfers may end up to ``CLOCK_NS`` later than this time.

    Returns:
        Row of ``work`` for each query, or -1 if there is no such transfer.
    """
    waiting = _find_waiting_transfers(work)
    end_ns = work.end_ns[waiting] - CLOCK_NS
    last: Ints = find_last_before(work.rank[waiting], end_ns, rank, time_ns)
    return np.append(waiting, NONE)[last]


def _match_last_finished(work: Work, finishing: Ints, starting: Ints) -> Pairs:
    """Match each starting row with the last row of its rank and iteration that finished before it.

    This works like ``pandas.merge_asof`` by (rank, iteration) on time. :func:`_sort_events` defines
    how times are compared.

    Args:
        work: Work table of all ranks.
        finishing: Rows of the work table to match by their end.
        starting: Rows of the work table to match by their start.

    Returns:
        The rows of ``starting`` that have a match, and for each the matching row of ``finishing``.
    """
    rows, is_start = _sort_events(work, finishing, starting)
    position = np.arange(len(rows))
    match = np.maximum.accumulate(np.where(is_start, NONE, position))
    has_match = is_start & (match != NONE)
    return _select_pairs_of_rank(work, rows[has_match], rows[match[has_match]])


def _match_first_started(work: Work, finishing: Ints, starting: Ints) -> Pairs:
    """Match each finishing row with the first row of its rank and iteration that starts after it.

    This works like ``pandas.merge_asof`` by (rank, iteration) on time, with
    ``direction="forward"``. :func:`_sort_events` defines how times are compared.

    Args:
        work: Work table of all ranks.
        finishing: Rows of the work table to match by their end.
        starting: Rows of the work table to match by their start.

    Returns:
        The rows of ``finishing`` that have a match, and for each the matching row of ``starting``.
    """
    rows, is_start = _sort_events(work, finishing, starting)
    position = np.arange(len(rows))
    next_start = np.where(is_start, position, len(rows))
    match = np.minimum.accumulate(next_start[::-1])[::-1]
    has_match = ~is_start & (match < len(rows))
    return _select_pairs_of_rank(work, rows[has_match], rows[match[has_match]])


def _sort_events(work: Work, finishing: Ints, starting: Ints) -> tuple[Ints, Bools]:
    """Merge the ends of some rows and the starts of others, sorted by rank, iteration and time.

    To allow for clock noise, each end is moved ``CLOCK_NS`` earlier, but not before the start of
    its row. Simultaneous events are in this order, so that no row is matched with itself:

    1. Ends that are later than the start of their row.
    2. Starts.
    3. Ends that are equal to the start of their row.

    Remaining ties are sorted by row.

    Args:
        work: Work table of all ranks.
        finishing: Rows whose ends are events.
        starting: Rows whose starts are events.

    Returns:
        rows: Row of each event, in sorted order.
        is_start: Whether the event is a start.
    """
    rows = np.concatenate((finishing, starting))
    is_start = np.arange(len(rows)) >= len(finishing)
    start_ns = work.start_ns[rows]
    end_ns = np.maximum(work.end_ns[rows] - CLOCK_NS, start_ns)
    tie_break = np.where(is_start, 1, np.where(end_ns > start_ns, 0, 2))
    time_ns = np.where(is_start, start_ns, end_ns)
    order = sort_rows(work.rank_iteration[rows], time_ns, tie_break, rows)
    return rows[order], is_start[order]


def _select_pairs_of_rank(work: Work, rows: Ints, matches: Ints) -> Pairs:
    """Return the pairs whose two rows belong to the same rank and iteration."""
    is_same = work.rank_iteration[rows] == work.rank_iteration[matches]
    return rows[is_same], matches[is_same]


def _find_followers(work: Work, computes: Ints, collectives: Ints) -> Pairs:
    """Return (row, collective) pairs: for each collective, the row that has to wait for it.

    A collective was exposed if the rank had nothing else to compute when it ended. This is the case
    if all earlier compute operations had ended by then, allowing for ``CLOCK_NS``.

    - After an exposed collective, the first compute operation after its end has to wait.
    - After any other collective, the first optimizer after its end has to wait.

    Collectives without such a row are left out.

    Args:
        work: Work table of all ranks.
        computes: Rows of the compute operations, in the order in which each rank ran them.
        collectives: Rows of the collectives.

    Returns:
        The rows that wait for collectives, and the collectives.
    """
    if not len(collectives):
        return collectives, collectives
    optimizers = computes[work.role[computes] == Role.OPTIMIZER]
    next_compute, next_optimizer = (
        scatter(len(work) + 1, *_match_first_started(work, collectives, rows))
        for rows in (computes, optimizers)
    )
    previous_of = scatter(len(work) + 1, *chain_rows(work, computes, work.rank_iteration[computes]))
    previous = previous_of[next_compute[collectives]]
    is_exposed = previous == NONE
    is_exposed |= work.end_ns[previous] <= work.end_ns[collectives] + CLOCK_NS
    successor = np.where(is_exposed, next_compute[collectives], next_optimizer[collectives])
    has_follower = successor != NONE
    return successor[has_follower], collectives[has_follower]
