"""Idle intervals: when ranks ran nothing, cut by cause, independent of any window.

An idle interval before an operation is cut where the operation's input becomes ready, where the
receive is launched, and where the receive ends::

    last work ├──────────┬─────────┬───────────────┬──────┤ next operation
               dependency    host    communication   other
                         ready     launched      received

Where the stages are unknown, so is whether the input of an operation without a receive was ready.
Time under the profiler's own work goes to it first. Under a collective, a rank depends on the last
member until that has entered; from then on the collective is the cause. Where a receive was
recorded, its launch and end are the cuts; the operation's own launch counts from there on.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bubbleviz.align.waits import NEVER, Arrivals
from bubbleviz.count.rank_iterations import of_ranks
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.collective_waits import CollectiveWaits
from bubbleviz.explain.dependencies import Inputs
from bubbleviz.explain.stretch import Stretch
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Bools, Ints, Table, constant, joined
from bubbleviz.model.grouping import distinct, sorted_rows
from bubbleviz.model.operations import BusyIntervals, Operations, RankIntervals
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import COMPUTE
from bubbleviz.model.values import frozen

# Idle intervals as pieces with a cause each, and what is laid over their causes.
#
# Ranks are laid side by side on one line (:class:`~bubbleviz.model.intervals.Packing`), so that one
# pass serves all of them.


@frozen
class IdleIntervals(Table):
    """Idle intervals of ranks, cut by cause; warm-up and drain depend on the window.

    In order of (rank, start).

    Attributes:
        rank: the rank.
        start_ns: start of the piece.
        end_ns: end.
        cause: code of :class:`Cause`.
        interval: number of the idle interval within the rank.
        before: row of the operation that ended last before the interval; -1 none.
        after: row of the next operation; -1 none.
        peer_operation: row of the operation before which the last member entered the collective
            that the rank waits in; -1 where it waits in none.
        collective: kind of the collective that the rank is in; -1 none.
    """

    rank: Ints
    start_ns: Ints
    end_ns: Ints
    cause: Ints
    interval: Ints
    before: Ints
    after: Ints
    peer_operation: Ints
    collective: Ints

    def time_within(
        self, causes: tuple[Cause, ...], rank: Ints, low_ns: Ints, high_ns: Ints
    ) -> Ints:
        """Return how long ranks were idle for some causes in windows [low, high] of theirs."""
        rows = np.isin(self.cause, causes)
        own = self.rank[rows], self.start_ns[rows], self.end_ns[rows]
        ranks = int(max(own[0].max(initial=NONE), rank.max(initial=NONE))) + 1
        return intervals.GroupCover(own, ranks).within(rank, low_ns, high_ns)


def in_collectives(
    idle: IdleIntervals, exposed: intervals.Intervals, own: CollectiveWaits
) -> IdleIntervals:
    """Return idle intervals in which a rank in a collective moves data, or waits in it.

    Where one waits and another moves at a time, data moves. All times are on one line.

    Args:
        idle: idle intervals.
        exposed: when collectives ran and no operation.
        own: the collectives.
    """
    if len(exposed[0]) == 0 or len(idle) == 0:
        return idle
    times = (*exposed, own.start_ns, own.moving_ns, own.end_ns)
    pieces = divided(idle, *times)
    inside = _covering(*exposed, pieces.start_ns) != NONE
    moves = _covering(own.moving_ns, own.end_ns, pieces.start_ns)
    waits = _covering(own.start_ns, own.moving_ns, pieces.start_ns)
    waiting = inside & (moves == NONE) & (waits != NONE)
    held = np.where(moves != NONE, moves, waits)
    cause = np.where(waiting, Cause.DEPENDENCY, Cause.COLLECTIVE)
    kind = np.append(own.kind, NONE)[held]
    peer = np.append(own.last_operation, NONE)[waits]
    return replace(
        pieces,
        cause=np.where(inside, cause, pieces.cause),
        peer_operation=np.where(waiting, peer, NONE),
        collective=np.where(inside, kind, NONE),
    )


def divided(idle: IdleIntervals, *times_ns: Ints) -> IdleIntervals:
    """Return idle intervals cut at some times."""
    if len(idle) == 0:
        return idle
    low, high = idle.start_ns[0], idle.end_ns[-1]
    cuts = [times[(times > low) & (times < high)] for times in times_ns]
    points = distinct(idle.start_ns, idle.end_ns, *cuts)
    starts, ends = points[:-1], points[1:]
    row = np.searchsorted(idle.start_ns, starts, side="right") - 1
    within = (row >= 0) & (starts < idle.end_ns[np.maximum(row, 0)])
    return replace(idle.take(row[within]), start_ns=starts[within], end_ns=ends[within])


def _covering(start_ns: Ints, end_ns: Ints, time_ns: Ints) -> Ints:
    """Return the interval that covers each time, of several the one that ends last; -1 none."""
    if len(start_ns) == 0:
        return np.full(len(time_ns), NONE, np.int64)
    order = sorted_rows(start_ns)
    latest_ns = np.maximum.accumulate(end_ns[order])
    # The last to end of those that begin up to each.
    rises = np.append(True, latest_ns[1:] > latest_ns[:-1])
    last = order[np.maximum.accumulate(np.where(rises, np.arange(len(order)), 0))]
    at = np.searchsorted(start_ns[order], time_ns, side="right") - 1
    found = last[np.maximum(at, 0)]
    return np.where((at >= 0) & (end_ns[found] > time_ns), found, NONE)


# Ranks on one line: what some ranks ran, side by side, so that one pass finds all their idle time.
#
# ::
#
#     rank 0   ├ busy ┤   ├ busy ┤
#     rank 1     ├ busy ┤     ├ busy ┤
#     line     ├ busy ┤   ├ busy ┤ ├ busy ┤     ├ busy ┤
#              └──── rank 0 ─────┘ └───── rank 1 ──────┘


_EARLIEST, _LATEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


#: Busy intervals of the ranks that are laid on one line at a time: few enough for little memory.
_ON_A_LINE = 1 << 19


def idle_of(stretch: Stretch, inputs: Inputs, known: Arrivals) -> IdleIntervals:
    """Return the idle intervals of each rank between its earliest and its latest window."""
    operations, ranks = stretch.operations, len(stretch.ranks)
    waits = _waits(operations, inputs, known)
    # The earliest start and the latest end of each rank's windows; without any, its start is after
    # its end.
    present = stretch.extents.present
    low_ns, high_ns = np.full(ranks, _LATEST), np.full(ranks, _EARLIEST)
    for window in stretch.windows.values():
        has_window = window.known[:, None] & present
        starts_ns = np.where(has_window, window.start_ns, _LATEST)
        ends_ns = np.where(has_window, window.end_ns, _EARLIEST)
        low_ns = np.minimum(low_ns, starts_ns.min(axis=0, initial=_LATEST))
        high_ns = np.maximum(high_ns, ends_ns.max(axis=0, initial=_EARLIEST))
    computing = stretch.busy.take(among(operations.phase, COMPUTE)[stretch.busy.operation])
    bounds = np.searchsorted(operations.rank[computing.operation], np.arange(ranks + 1))
    idle = [IdleIntervals.none()]
    first = 0
    while first < ranks:
        end = int(np.searchsorted(bounds, bounds[first] + _ON_A_LINE, side="right")) - 1
        end = max(first + 1, end)
        own = computing.take(slice(*bounds[[first, end]].tolist()))
        idle.append(_idle_on_line(stretch, own, (low_ns, high_ns), (first, end), waits))
        first = end
    return joined(idle[1:] or idle).compacted()


def _idle_on_line(
    stretch: Stretch,
    computing: BusyIntervals,
    windows: tuple[Ints, Ints],
    ranks: tuple[int, int],
    waits: _Waits,
) -> IdleIntervals:
    """Return the idle intervals of some ranks, which are laid on one line.

    Args:
        stretch: of a run.
        computing: when operations that compute keep them busy, in order of rank.
        windows: earliest start and latest end of each rank's windows; without any, the start is
            after the end.
        ranks: first and end of the ranks on the line.
        waits: what operations waited for.
    """
    first, end = ranks
    unattributed, exposed, overheads = (
        of_ranks(table, ranks)
        for table in (stretch.unattributed, stretch.exposed, stretch.overheads)
    )
    is_exposed = np.zeros(end - first, bool)
    is_exposed[exposed.rank] = True
    collectives = of_ranks(stretch.collectives, ranks)
    collectives = collectives.take(is_exposed[collectives.rank])
    busy_rank = stretch.operations.rank[computing.operation] - first
    known = np.flatnonzero(windows[0][first:end] <= windows[1][first:end])
    since, until = (column[first:end][known] for column in windows)
    # A line with room for all times of each rank.
    low_ns, high_ns = np.full(end - first, _LATEST), np.full(end - first, _EARLIEST)
    for rank, start_ns, end_ns in (
        (busy_rank, computing.start_ns, computing.end_ns),
        (known, since, until),
        *(
            (table.rank, table.start_ns, table.end_ns)
            for table in (unattributed, exposed, overheads, collectives)
        ),
    ):
        low, high = intervals.group_extents(rank, end - first, start_ns, end_ns)
        some = np.zeros(end - first, bool)
        some[rank] = True
        low_ns[some] = np.minimum(low_ns[some], low[some])
        high_ns[some] = np.maximum(high_ns[some], high[some])
    none = low_ns > high_ns
    low_ns[none], high_ns[none] = 0, 0
    packing = intervals.Packing.of(low_ns, high_ns)

    def placed(table: RankIntervals) -> intervals.Intervals:
        return packing.place(table.rank, table.start_ns), packing.place(table.rank, table.end_ns)

    start_ns = packing.place(busy_rank, computing.start_ns)
    order = sorted_rows(start_ns)
    busy_rank, operation, start_ns = busy_rank[order], computing.operation[order], start_ns[order]
    end_ns = packing.place(busy_rank, computing.end_ns[order])
    loose = placed(unattributed)
    covered = intervals.union(
        np.concatenate((start_ns, loose[0])), np.concatenate((end_ns, loose[1]))
    )
    gaps = intervals.difference(
        intervals.union(packing.place(known, since), packing.place(known, until)), covered
    )
    rank = packing.groups(gaps[0])

    def of_rank(row: Ints) -> Ints:
        """Return the operations of some busy intervals, where they are of the idle rank."""
        same = np.append(busy_rank, NONE)[row] == rank
        return np.where(same, np.append(operation, NONE)[row], NONE)

    every, by_end = np.arange(len(operation)), sorted_rows(end_ns)
    after = of_rank(np.append(every, NONE)[np.searchsorted(start_ns, gaps[1])])
    last = np.searchsorted(end_ns[by_end], gaps[0], side="right") - 1
    before = of_rank(np.append(by_end, NONE)[last])
    idle = _cut(waits.take(after), gaps, packing.shift_ns[rank])
    # Intervals count from the first of their rank.
    number = np.arange(len(rank)) - np.searchsorted(rank, rank)
    idle = replace(
        idle,
        rank=rank[idle.interval],
        before=before[idle.interval],
        after=after[idle.interval],
        interval=number[idle.interval],
    )
    start_ns, moving_ns, end_ns = (
        packing.place(collectives.rank, time_ns)
        for time_ns in (collectives.start_ns, collectives.moving_ns, collectives.end_ns)
    )
    on_line = replace(collectives, start_ns=start_ns, moving_ns=moving_ns, end_ns=end_ns)
    idle = in_collectives(idle, placed(exposed), on_line)
    held = placed(overheads)
    if len(overheads) and len(idle):
        idle = divided(idle, *held)
        under = _covering(*held, idle.start_ns) != NONE
        idle = replace(idle, cause=np.where(under, Cause.PROFILER, idle.cause))
    shift_ns = packing.shift_ns[idle.rank]
    return replace(
        idle,
        rank=idle.rank + first,
        start_ns=idle.start_ns - shift_ns,
        end_ns=idle.end_ns - shift_ns,
    )


@frozen
class _Waits(Table):
    """What each operation waited for, in this order; the last row stands for no operation.

    Attributes:
        ready_ns: until its input was ready on another rank; ``NEVER`` where it needs none.
        receive_launched_ns: until its receive was launched.
        received_ns: until the receive ended.
        launched_ns: until the operation itself was launched.
        remote: whether it takes anything from another rank.
        unknown: whether it may, and neither its producer nor a receive shows until when.
    """

    ready_ns: Ints
    receive_launched_ns: Ints
    received_ns: Ints
    launched_ns: Ints
    remote: Bools
    unknown: Bools


def _waits(operations: Operations, inputs: Inputs, known: Arrivals) -> _Waits:
    """Return the waits of operations."""
    # When the last receive of each was launched.
    inside = operations.received_ns != NONE
    named = (known.receive >= 0) & (np.append(operations.has_span, 0)[known.receive] == 1)
    ended_ns = np.append(operations.end_ns, NONE)[known.receive]
    later = named & (~inside | (ended_ns > operations.received_ns))
    of_name = np.append(operations.launched_ns, NONE)[known.receive]
    receive_ns = np.where(inside, operations.receive_launched_ns, NONE)
    receive_ns = np.where(later, of_name, receive_ns)
    has_producer, received = inputs.ready_ns != NEVER, known.exact_ns != NEVER
    # With an unknown producer, waiting and transfer look the same: the receive counts as waiting.
    ready_ns = np.where(has_producer, inputs.ready_ns, known.exact_ns)
    launched_ns = operations.launched_ns
    return _Waits(
        np.append(ready_ns, NEVER),
        np.append(np.where(receive_ns == NONE, NEVER, receive_ns), NEVER),
        np.append(known.exact_ns, NEVER),
        np.append(np.where(launched_ns == NONE, NEVER, launched_ns), NEVER),
        np.append(has_producer | received, False),
        np.append(inputs.unknown & ~received, False),
    )


def _cut(wait: _Waits, gaps: intervals.Intervals, shift_ns: Ints) -> IdleIntervals:
    """Return idle intervals cut by what the operation after them waited for.

    Their ranks and operations are to be filled in.

    Args:
        wait: of the operation after each gap.
        gaps: on a line.
        shift_ns: by how much times on it are later than the rank's own.
    """
    low, high = gaps
    kinds = (Cause.DEPENDENCY, Cause.HOST, Cause.COMMUNICATION, Cause.HOST)
    ends = wait.ready_ns, wait.receive_launched_ns, wait.received_ns, wait.launched_ns
    cuts, causes, cut = [low], [], low
    for end_ns, kind in zip(ends, kinds, strict=True):
        if not (end_ns != NEVER).any():
            continue  # most tables tell of no receives and launches
        placed_ns = np.where(end_ns == NEVER, NEVER, end_ns + shift_ns)
        cut = np.clip(placed_ns, cut, high)
        cuts.append(cut)
        causes.append(np.full(len(low), kind, np.int64))
    causes.append(np.where(wait.remote, Cause.COMMUNICATION, Cause.OTHER).astype(np.int64))
    start_ns, end_ns = np.stack(cuts, axis=1), np.stack((*cuts[1:], high), axis=1)
    some = end_ns > start_ns
    cause = np.where(wait.unknown[:, None], Cause.UNKNOWN, np.stack(causes, axis=1))[some]
    interval = np.broadcast_to(np.arange(len(low))[:, None], some.shape)[some]
    none = constant(NONE, len(interval))
    return IdleIntervals(
        rank=none,
        start_ns=start_ns[some],
        end_ns=end_ns[some],
        cause=cause,
        interval=interval,
        before=none,
        after=none,
        peer_operation=none,
        collective=none,
    )
