"""Find the time during which ranks ran no operation, and split it by cause.

Windows do not affect how idle time is split. An idle interval before an operation is split when the
input becomes ready, when the receive is launched, when the transfer ahead in the queue ends, and
when the receive ends::

    last work ├──────────┬─────────┬────────┬───────────────┬──────┤ next operation
               dependency    host    queued   communication   other
                         ready     launched front ended   received

The time that remains after the receive is split at the launch of the operation itself. If the
stages are unknown and no receive was recorded, there is no way to tell when the input was ready. In
a collective, the rank first waits for the last member to enter. From then on, the collective itself
is the cause. Time during which the profiler delayed the rank is always attributed to PROFILER.

The time axes of all ranks are packed into one timeline
(:class:`~bubbleviz.model.intervals.Packing`), so that all ranks are processed in one pass::

    rank 0   ├ busy ┤   ├ busy ┤
    rank 1     ├ busy ┤     ├ busy ┤
    line     ├ busy ┤   ├ busy ┤ ├ busy ┤     ├ busy ┤
             └──── rank 0 ─────┘ └───── rank 1 ──────┘
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from bubbleviz.align.arrivals import NEVER, Arrivals
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.collective_waits import CollectiveWaits
from bubbleviz.explain.dependencies import Inputs
from bubbleviz.explain.idle import (
    BusyTimes,
    IdleIntervals,
    Wait,
    mark_inside,
    split_at_waits,
    split_idle,
)
from bubbleviz.explain.stretch import Stretch
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Ints, is_constant, make_constant, make_mask
from bubbleviz.model.intervals import Intervals, Packing
from bubbleviz.model.operations import Operations, RankIntervals
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import COMPUTE

_EARLIEST, _LATEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


def find_idle(stretch: Stretch, inputs: Inputs, arrivals: Arrivals) -> IdleIntervals:
    """Return each rank's idle time between its earliest and latest windows, by cause.

    A rank is idle while it runs neither a compute operation nor a compute kernel outside
    operations.

    Args:
        stretch: The stretch, a group of complete pipelines.
        inputs: Inputs of the operations from other ranks.
        arrivals: Arrival times of those inputs, measured from receives.

    Returns:
        Pieces of idle time with their causes, sorted by (rank, start).
    """
    operations = stretch.operations
    busy = stretch.busy.take(mask_phases(operations.phase, COMPUTE)[stretch.busy.operation])
    rank = operations.rank[busy.operation]
    computing = BusyTimes(rank, busy.operation, busy.start_ns, busy.end_ns)
    windows = _find_window_spans(stretch)
    is_exposed = make_mask(len(stretch.ranks), stretch.exposed.rank)
    collectives = stretch.collectives.take(is_exposed[stretch.collectives.rank])
    evidence = stretch.unattributed, stretch.exposed, stretch.overheads, stretch.unrecorded
    line = _pack_ranks(len(stretch.ranks), (computing, windows, collectives, *evidence))
    gaps = _find_gaps(line, computing, windows, stretch.unattributed)
    idle = split_at_waits(gaps, list(_list_waits(operations, inputs, arrivals, gaps, line)))
    idle = _mark_unknown_inputs(idle, inputs, arrivals)
    idle = _split_in_collectives(
        idle, _map_to_line(line, stretch.exposed), _shift_to_line(line, collectives)
    )
    idle = mark_inside(
        idle, _map_to_line(line, stretch.unrecorded), cause=Cause.UNKNOWN, unrecorded=1
    )
    # The profiler's overhead takes precedence.
    idle = mark_inside(idle, _map_to_line(line, stretch.overheads), cause=Cause.PROFILER)
    shift_ns = line.shift_ns[idle.rank]
    idle = replace(idle, start_ns=idle.start_ns - shift_ns, end_ns=idle.end_ns - shift_ns)
    return idle.compact()


def _find_window_spans(stretch: Stretch) -> RankIntervals:
    """Return each rank's time range, from its earliest window start to its latest window end.

    The windows of all ratios and iterations are included. Ranks without a known window are left
    out.
    """
    is_present = stretch.extents.present
    since_ns = np.full(is_present.shape[1], _LATEST)
    until_ns = np.full(is_present.shape[1], _EARLIEST)
    for window in stretch.windows.values():
        is_known = window.is_known[:, None] & is_present
        start_ns = np.where(is_known, window.start_ns, _LATEST)
        end_ns = np.where(is_known, window.end_ns, _EARLIEST)
        since_ns = np.minimum(since_ns, start_ns.min(axis=0, initial=_LATEST))
        until_ns = np.maximum(until_ns, end_ns.max(axis=0, initial=_EARLIEST))
    rank = np.flatnonzero(since_ns <= until_ns)
    return RankIntervals(rank, since_ns[rank], until_ns[rank])


def _pack_ranks(
    n_ranks: int, tables: Iterable[RankIntervals | BusyTimes | CollectiveWaits]
) -> Packing:
    """Place the time axes of all ranks one after the other on one timeline.

    Each rank's section covers all of its intervals in the tables.
    """
    low_ns, high_ns = np.full(n_ranks, _LATEST), np.full(n_ranks, _EARLIEST)
    for table in tables:
        low, high = intervals.group_extents(table.rank, n_ranks, table.start_ns, table.end_ns)
        has_rows = make_mask(n_ranks, table.rank)
        low_ns[has_rows] = np.minimum(low_ns[has_rows], low[has_rows])
        high_ns[has_rows] = np.maximum(high_ns[has_rows], high[has_rows])
    is_empty = low_ns > high_ns
    low_ns[is_empty], high_ns[is_empty] = 0, 0
    return Packing.of(low_ns, high_ns)


def _map_to_line(line: Packing, table: RankIntervals) -> Intervals:
    """Return intervals as positions on the packed timeline."""
    return line.place(table.rank, table.start_ns), line.place(table.rank, table.end_ns)


def _shift_to_line(line: Packing, collectives: CollectiveWaits) -> CollectiveWaits:
    """Return collectives with start, moving and end times as positions on the packed timeline."""
    rank = collectives.rank
    return replace(
        collectives,
        start_ns=line.place(rank, collectives.start_ns),
        moving_ns=line.place(rank, collectives.moving_ns),
        end_ns=line.place(rank, collectives.end_ns),
    )


def _find_gaps(
    line: Packing, computing: BusyTimes, windows: RankIntervals, unattributed: RankIntervals
) -> IdleIntervals:
    """Return the times within the windows during which the ranks were not busy.

    All returned times are positions on the packed timeline.

    Args:
        line: Packing of all ranks' time axes into one timeline.
        computing: Intervals during which compute operations keep ranks busy.
        windows: At most one window per rank. Ranks without a window have no gaps.
        unattributed: Intervals during which compute kernels ran outside all operations; also
            treated as busy.
    """
    start_ns = line.place(computing.rank, computing.start_ns)
    end_ns = line.place(computing.rank, computing.end_ns)
    busy = replace(computing, start_ns=start_ns, end_ns=end_ns).sort_by_start()
    line_windows = intervals.union(*_map_to_line(line, windows))
    gaps = busy.find_gaps(line_windows, also_busy=_map_to_line(line, unattributed))
    return busy.describe_gaps(line.find_groups(gaps[0]), gaps)


def _list_waits(
    operations: Operations, inputs: Inputs, arrivals: Arrivals, gaps: IdleIntervals, line: Packing
) -> Iterator[Wait]:
    """Yield up to six waits for the operations after the gaps.

    Each wait has one end time per gap, and begins when the previous wait ends:

    1. DEPENDENCY: until the input is ready. If the producer of the input is unknown, until the
       input is received.
    2. HOST: until the receive of the input is launched.
    3. QUEUED: until the transfer ahead in the queue ends, but not longer than until the input is
       received.
    4. COMMUNICATION: until the input is received.
    5. HOST: until the operation is launched.
    6. The remaining time: COMMUNICATION, or OTHER if it is unknown when the input was ready.

    Waits 2 and 3 are left out if no operation has a receive.

    Args:
        operations: Operations of all ranks.
        inputs: Inputs of the operations from other ranks.
        arrivals: Arrival times of those inputs, measured from receives.
        gaps: The gaps, whose times are positions on the packed timeline.
        line: Packing of all ranks' time axes into one timeline.
    """
    next_operation, shift_ns = gaps.after, line.shift_ns[gaps.rank]

    def make_wait(time_ns: Ints, cause: Cause, peer_operation: Ints | int = NONE) -> Wait:
        is_never = is_constant(time_ns) and time_ns[0] == NEVER
        until_ns = time_ns if is_never else np.where(time_ns == NEVER, NEVER, time_ns + shift_ns)
        return Wait.of(until_ns, cause=cause, peer_operation=peer_operation)

    received_ns = _get_time_of_next(arrivals.exact_ns, next_operation)
    # If the producer is unknown, waiting and transfer look the same, so both are treated as
    # waiting.
    ready_ns = _get_time_of_next(inputs.ready_ns, next_operation)
    if not is_constant(received_ns):
        ready_ns = np.where(ready_ns == NEVER, received_ns, ready_ns)
    yield make_wait(ready_ns, Cause.DEPENDENCY)
    if not is_constant(arrivals.receive):
        receive_launched_ns = _find_receive_launches(operations, arrivals)
        yield make_wait(
            _get_time_of_next(receive_launched_ns, next_operation, missing=NONE), Cause.HOST
        )
        front = np.append(find_transfers_ahead(operations, inputs, arrivals), NONE)[next_operation]
        front_ended_ns = np.append(operations.end_ns, NEVER)[front]
        yield make_wait(np.minimum(front_ended_ns, received_ns), Cause.QUEUED, front)
    yield make_wait(received_ns, Cause.COMMUNICATION)
    yield make_wait(
        _get_time_of_next(operations.launched_ns, next_operation, missing=NONE), Cause.HOST
    )
    rest = np.where(ready_ns == NEVER, Cause.OTHER, Cause.COMMUNICATION)
    yield Wait.of(make_constant(NEVER, len(next_operation)), cause=rest)


def _get_time_of_next(time_ns: Ints, next_operation: Ints, missing: int = NEVER) -> Ints:
    """Look up the time of the operation after each gap, or ``NEVER`` if the time is missing.

    Args:
        time_ns: One time per operation.
        next_operation: Operation after each gap, or -1 if there is none.
        missing: Sentinel for missing times in ``time_ns``.
    """
    if is_constant(time_ns) and time_ns[0] == missing:
        return make_constant(NEVER, len(next_operation))
    of_next = np.append(time_ns, missing)[next_operation]
    return of_next if missing == NEVER else np.where(of_next == missing, NEVER, of_next)


def _mark_unknown_inputs(idle: IdleIntervals, inputs: Inputs, arrivals: Arrivals) -> IdleIntervals:
    """Set the cause of idle time to UNKNOWN if the input of the next operation is unknown.

    If the receive of the input was recorded, the cause is kept, because the receive shows when the
    input arrived.
    """
    if not inputs.unknown.any():
        return idle
    is_unknown = inputs.unknown & (arrivals.exact_ns == NEVER)
    before_unknown = np.append(is_unknown, False)[idle.after]
    return replace(idle, cause=np.where(before_unknown, Cause.UNKNOWN, idle.cause))


def _split_in_collectives(
    idle: IdleIntervals, exposed: Intervals, collectives: CollectiveWaits
) -> IdleIntervals:
    """Split idle time inside collectives into waiting for the last member and moving data.

    Waiting gets the cause DEPENDENCY, and moving data gets the cause COLLECTIVE. Two cases are also
    treated as moving data:

    - A rank waits in one collective while another collective moves data.
    - A collective ran, according to ``exposed``, but no row of ``collectives`` covers the time.

    Args:
        idle: Idle time, whose times are positions on the packed timeline.
        exposed: Intervals during which collectives ran but no operation did.
        collectives: Collectives, whose times are positions on the packed timeline.
    """
    if len(exposed[0]) == 0 or len(idle) == 0:
        return idle
    start_ns, moving_ns = collectives.start_ns, collectives.moving_ns
    pieces = split_idle(idle, *exposed, start_ns, moving_ns, collectives.end_ns)
    is_inside = intervals.find_covering(*exposed, pieces.start_ns) != NONE
    moving = intervals.find_covering(moving_ns, collectives.end_ns, pieces.start_ns)
    waiting = intervals.find_covering(start_ns, moving_ns, pieces.start_ns)
    is_waiting = is_inside & (moving == NONE) & (waiting != NONE)
    collective = np.where(moving != NONE, moving, waiting)
    kind = np.append(collectives.kind, NONE)[collective]
    last_operation = np.append(collectives.last_operation, NONE)[waiting]
    cause = np.where(is_waiting, Cause.DEPENDENCY, Cause.COLLECTIVE)
    peer_operation = np.where(is_inside, NONE, pieces.peer_operation)
    return replace(
        pieces,
        cause=np.where(is_inside, cause, pieces.cause),
        peer_operation=np.where(is_waiting, last_operation, peer_operation),
        collective=np.where(is_inside, kind, NONE),
    )


def _find_receive_launches(operations: Operations, arrivals: Arrivals) -> Ints:
    """Return the launch time of each operation's last receive, or -1 if there is none.

    An operation can have two receives: one inside the operation, and a separate one that names its
    microbatch. The receive that ends later is used. If both end at the same time, the receive
    inside the operation is used.
    """
    receive = arrivals.receive
    has_inner = operations.received_ns != NONE
    has_named = (receive >= 0) & (np.append(operations.has_span, 0)[receive] == 1)
    named_end_ns = np.append(operations.end_ns, NONE)[receive]
    is_named_last = has_named & (~has_inner | (named_end_ns > operations.received_ns))
    named_launched_ns = np.append(operations.launched_ns, NONE)[receive]
    inner_launched_ns = np.where(has_inner, operations.receive_launched_ns, NONE)
    return np.where(is_named_last, named_launched_ns, inner_launched_ns)


#: Maximum time from the end of a transfer to the start of the transfer queued after it.
_QUEUED_NS = 50_000


def find_transfers_ahead(operations: Operations, inputs: Inputs, arrivals: Arrivals) -> Ints:
    """Find the transfer that delayed each operation's input because it was ahead in the queue.

    The transfers of a stream run in the order in which they were posted. The transfer ahead was
    waiting for its data or its peer, and blocked the queued transfer until it ended. The queued
    transfer is the receive of the input, or its send on the rank of the producer::

        producer   ├ F1 ┤├─────── RECV_F0 waits ───────┤├ SEND_F1 ┤
        consumer         ├──────────────── RECV_F1 ───────────────┤├ F1 ┤
                         ├────────── queued ───────────┤

    A transfer ahead is considered only if it ended after the data was ready. If the receive and the
    send were both queued, the transfer ahead that ended later wins. If both end at the same time,
    the transfer ahead of the receive wins.

    Args:
        operations: Operations of all ranks.
        inputs: Inputs of the operations from other ranks.
        arrivals: Arrival times of those inputs, measured from receives.

    Returns:
        Row of the transfer ahead for each operation, or -1 if there is none.
    """
    front = np.full(len(operations), NONE, np.int64)
    row = np.flatnonzero((arrivals.receive >= 0) & (inputs.producer >= 0))
    if not len(row):
        return front
    transfers = _Transfers.of(operations)
    row = row[transfers.has_span[arrivals.receive[row]] == 1]
    ready_ns = inputs.ready_ns[row]
    receive, send = arrivals.receive[row], arrivals.send[inputs.producer[row]]
    send = np.where(transfers.has_span[send] == 1, send, NONE)
    waiting = _find_waiting_transfers(transfers, receive, send, ready_ns)
    until_ns = np.full(len(row), NEVER)
    for transfer in (receive, send):
        ahead = _find_transfer_ahead(transfers, waiting, transfer)
        ended_ns = transfers.end_ns[ahead]
        is_queued = (ahead != NONE) & (ended_ns > np.maximum(until_ns, ready_ns))
        front[row[is_queued]] = ahead[is_queued]
        until_ns[is_queued] = ended_ns[is_queued]
    return front


@dataclass(frozen=True, eq=False, repr=False)
class _Transfers:
    """Columns of the operations table with an additional last entry, so that index -1 gives -1.

    Attributes:
        rank: Index of the rank.
        has_span: 1 if the operation has a span, else 0.
        start_ns: Start of the operation.
        end_ns: End of the operation.
        launched_ns: Launch time of the operation, or -1 if unknown.
    """

    rank: Ints
    has_span: Ints
    start_ns: Ints
    end_ns: Ints
    launched_ns: Ints

    @classmethod
    def of(cls, operations: Operations) -> _Transfers:
        """Copy the columns of operations, and append -1 to each."""
        return cls(
            np.append(operations.rank, NONE),
            np.append(operations.has_span, NONE),
            np.append(operations.start_ns, NONE),
            np.append(operations.end_ns, NONE),
            np.append(operations.launched_ns, NONE),
        )


def _find_waiting_transfers(
    transfers: _Transfers, receive: Ints, send: Ints, ready_ns: Ints
) -> Ints:
    """Return the rows of the receives and sends that waited for their data or their peer.

    A receive waits until its send starts, or until the data is ready if there is no send. A send
    waits until its receive starts. Waits of up to 50 us are ignored.

    Args:
        transfers: Columns of the operations table.
        receive: Row of each input's receive.
        send: Row of each input's send, or -1 if there is none.
        ready_ns: Time at which the data of each input was ready.
    """
    sent_ns = np.where(send == NONE, ready_ns, np.maximum(transfers.start_ns[send], ready_ns))
    received_ns = transfers.start_ns[receive]
    receive_waits = sent_ns > received_ns + _QUEUED_NS
    send_waits = (send != NONE) & (received_ns > transfers.start_ns[send] + _QUEUED_NS)
    return np.concatenate((receive[receive_waits], send[send_waits]))


def _find_transfer_ahead(transfers: _Transfers, waiting: Ints, transfer: Ints) -> Ints:
    """Find the transfer ahead of each transfer in the queue.

    This is the waiting transfer of the same rank that ended last, but not after the start of the
    queued transfer. The queued transfer must have been launched before the waiting transfer ended,
    and must have started at most 50 us after that.

    Args:
        transfers: Columns of the operations table.
        waiting: Rows of the transfers that waited.
        transfer: Rows of the transfers that may have been queued, or -1.

    Returns:
        For each entry of ``transfer``, the row of the transfer ahead of it, or -1 if there is none.
    """
    last = intervals.find_last_before(
        transfers.rank[waiting],
        transfers.end_ns[waiting],
        transfers.rank[transfer],
        transfers.start_ns[transfer],
        or_at=True,
    )
    ahead = np.append(waiting, NONE)[last]
    ended_ns = transfers.end_ns[ahead]
    is_queued = (transfer >= 0) & (ahead >= 0) & (transfers.launched_ns[transfer] < ended_ns)
    is_queued &= transfers.start_ns[transfer] <= ended_ns + _QUEUED_NS
    return np.where(is_queued, ahead, NONE)
