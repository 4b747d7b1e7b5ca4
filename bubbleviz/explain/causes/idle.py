"""Idle intervals: when ranks ran nothing, cut by cause, independent of any window.

An idle interval before an operation is cut where the operation's input becomes ready, where the
receive is launched, where what its transfer was queued behind ends, and where the receive ends::

    last work ├──────────┬─────────┬────────┬───────────────┬──────┤ next operation
               dependency    host    queued   communication   other
                         ready     launched front ended   received

Where the stages are unknown, so is whether the input of an operation without a receive was ready.
Time under the profiler's own work goes to it first. Under a collective, a rank depends on the last
member until that has entered; from then on the collective is the cause. Where a receive was
recorded, its launch and end are the cuts; the operation's own launch counts from there on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from bubbleviz.align.waits import NEVER, Arrivals
from bubbleviz.count.rank_iterations import stage_and_pipeline
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.dependencies import Dependencies, Inputs
from bubbleviz.explain.stretch import CollectiveWaits, Stretch
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Bools, Ints, Table, constant, is_constant, joined, marked
from bubbleviz.model.grouping import distinct, found_in, looked_up, sorted_rows
from bubbleviz.model.operations import Operations, Rank, RankIntervals
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import COMPUTE, Phase

# Idle intervals as pieces with a cause each, and what is laid over their causes.
#
# Ranks are laid side by side on one line (:class:`~bubbleviz.model.intervals.Packing`), so that one
# pass serves all of them.


@dataclass(frozen=True, eq=False, repr=False)
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
            that the rank waits in; of what is queued, the transfer in front; else -1.
        collective: kind of the collective that the rank is in; -1 none.
        unrecorded: 1 if the rank may have run work that was not recorded, else 0.
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
    unrecorded: Ints


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
    pieces = cut_idle(idle, *times)
    inside = intervals.covering(*exposed, pieces.start_ns) != NONE
    moves = intervals.covering(own.moving_ns, own.end_ns, pieces.start_ns)
    waits = intervals.covering(own.start_ns, own.moving_ns, pieces.start_ns)
    waiting = inside & (moves == NONE) & (waits != NONE)
    held = np.where(moves != NONE, moves, waits)
    cause = np.where(waiting, Cause.DEPENDENCY, Cause.COLLECTIVE)
    kind = np.append(own.kind, NONE)[held]
    peer = np.append(own.last_operation, NONE)[waits]
    return replace(
        pieces,
        cause=np.where(inside, cause, pieces.cause),
        peer_operation=np.where(waiting, peer, np.where(inside, NONE, pieces.peer_operation)),
        collective=np.where(inside, kind, NONE),
    )


def cut_idle(idle: IdleIntervals, *times_ns: Ints) -> IdleIntervals:
    """Cut idle intervals, which are in order of time, at the given times."""
    row, start_ns, end_ns = intervals.cut(idle.start_ns, idle.end_ns, np.concatenate(times_ns))
    return replace(idle.take(row), start_ns=start_ns, end_ns=end_ns)


# Ranks on one line: what some ranks ran, side by side, so that one pass finds all their idle time.
#
# ::
#
#     rank 0   ├ busy ┤   ├ busy ┤
#     rank 1     ├ busy ┤     ├ busy ┤
#     line     ├ busy ┤   ├ busy ┤ ├ busy ┤     ├ busy ┤
#              └──── rank 0 ─────┘ └───── rank 1 ──────┘


_EARLIEST, _LATEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


def idle_of(stretch: Stretch, inputs: Inputs, known: Arrivals) -> IdleIntervals:
    """Return the idle intervals of each rank between its earliest and its latest window."""
    operations, ranks = stretch.operations, len(stretch.ranks)
    looked_at, since, until = _looked_at(stretch)
    computing = stretch.busy.take(among(operations.phase, COMPUTE)[stretch.busy.operation])
    busy_rank = operations.rank[computing.operation]
    unattributed, exposed, overheads = stretch.unattributed, stretch.exposed, stretch.overheads
    is_exposed = marked(ranks, exposed.rank)
    collectives = stretch.collectives.take(is_exposed[stretch.collectives.rank])
    # A line with room for all times of each rank.
    low_ns, high_ns = np.full(ranks, _LATEST), np.full(ranks, _EARLIEST)
    for rank, start_ns, end_ns in (
        (busy_rank, computing.start_ns, computing.end_ns),
        (looked_at, since, until),
        *(
            (table.rank, table.start_ns, table.end_ns)
            for table in (unattributed, exposed, overheads, stretch.unrecorded, collectives)
        ),
    ):
        low, high = intervals.group_extents(rank, ranks, start_ns, end_ns)
        some = marked(ranks, rank)
        low_ns[some] = np.minimum(low_ns[some], low[some])
        high_ns[some] = np.maximum(high_ns[some], high[some])
    none = low_ns > high_ns
    low_ns[none], high_ns[none] = 0, 0
    packing = intervals.Packing.of(low_ns, high_ns)

    def placed(table: RankIntervals) -> intervals.Intervals:
        return packing.place(table.rank, table.start_ns), packing.place(table.rank, table.end_ns)

    start_ns = packing.place(busy_rank, computing.start_ns)
    end_ns, operation = packing.place(busy_rank, computing.end_ns), computing.operation
    if (start_ns[1:] < start_ns[:-1]).any():
        order = sorted_rows(start_ns)
        busy_rank, operation, start_ns, end_ns = (
            column[order] for column in (busy_rank, operation, start_ns, end_ns)
        )
    loose = placed(unattributed)
    covered = intervals.union(
        np.concatenate((start_ns, loose[0])), np.concatenate((end_ns, loose[1]))
    )
    gaps = intervals.difference(
        intervals.union(packing.place(looked_at, since), packing.place(looked_at, until)), covered
    )
    rank = packing.groups(gaps[0])

    # The last place is that of no row.
    busy_rank, operation = np.append(busy_rank, NONE), np.append(operation, NONE)

    def of_rank(row: Ints) -> Ints:
        """Return the operations of some busy intervals, where they are of the idle rank."""
        found = operation[row]
        found[busy_rank[row] != rank] = NONE
        return found

    following, by_end = np.searchsorted(start_ns, gaps[1]), sorted_rows(end_ns)
    # Of intervals that are not empty all that do not follow a gap ended before it.
    ended = following
    if not (end_ns > start_ns).all():
        ended = np.searchsorted(end_ns[by_end], gaps[0], side="right")
    after, before = of_rank(following), of_rank(np.append(by_end, NONE)[ended - 1])
    idle = _cut_by_waits(operations, inputs, known, after, gaps, packing.shift_ns[rank])
    # Intervals count from the first of their rank.
    number = np.arange(len(rank)) - np.searchsorted(rank, np.arange(ranks))[rank]
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
    # The profiler's overhead comes first.
    for table, cause in ((stretch.unrecorded, Cause.UNKNOWN), (overheads, Cause.PROFILER)):
        if len(table) and len(idle):
            times = placed(table)
            idle = cut_idle(idle, *times)
            is_inside = intervals.covering(*times, idle.start_ns) != NONE
            idle = replace(
                idle,
                cause=np.where(is_inside, cause, idle.cause),
                unrecorded=np.where(is_inside, int(cause is Cause.UNKNOWN), idle.unrecorded),
            )
    shift_ns = packing.shift_ns[idle.rank]
    idle = replace(idle, start_ns=idle.start_ns - shift_ns, end_ns=idle.end_ns - shift_ns)
    return idle.compacted()


def _looked_at(stretch: Stretch) -> tuple[Ints, Ints, Ints]:
    """Return ranks that have windows, with the earliest start and the latest end of these."""
    present, windows = stretch.extents.present, stretch.windows.values()
    since, until = np.full(present.shape[1], _LATEST), np.full(present.shape[1], _EARLIEST)
    for window in windows:
        known = window.known[:, None] & present
        starts_ns = np.where(known, window.start_ns, _LATEST)
        ends_ns = np.where(known, window.end_ns, _EARLIEST)
        since = np.minimum(since, starts_ns.min(axis=0, initial=_LATEST))
        until = np.maximum(until, ends_ns.max(axis=0, initial=_EARLIEST))
    some = np.flatnonzero(since <= until)
    return some, since[some], until[some]


def _cut_by_waits(
    operations: Operations,
    inputs: Inputs,
    known: Arrivals,
    after: Ints,
    gaps: intervals.Intervals,
    shift_ns: Ints,
) -> IdleIntervals:
    """Return idle intervals cut by what the operation after them waited for.

    Their ranks and operations are to be filled in.

    Args:
        operations: of all ranks.
        inputs: what they waited for.
        known: when receives show that it was there.
        after: the operation after each gap; -1 none.
        gaps: on a line.
        shift_ns: by how much times on it are later than the rank's own.
    """

    def of_next(times_ns: Ints, none: int = NEVER) -> Ints:
        """Return a time of the operation after each gap; ``NEVER`` where it has none."""
        if is_constant(times_ns) and times_ns[0] == none:
            return constant(NEVER, len(after))
        found = np.append(times_ns, none)[after]
        return found if none == NEVER else np.where(found == none, NEVER, found)

    (low, high), front = gaps, None
    received_ns = of_next(known.exact_ns)
    # With an unknown producer, waiting and transfer look the same: the receive counts as waiting.
    ready_ns = of_next(inputs.ready_ns)
    if not is_constant(received_ns):
        ready_ns = np.where(ready_ns == NEVER, received_ns, ready_ns)
    ends = [(ready_ns, Cause.DEPENDENCY)]
    if not is_constant(known.receive):
        ends.append((of_next(_receives_launched(operations, known), NONE), Cause.HOST))
        front = np.append(queued_behind(operations, inputs, known), NONE)[after]
        ended_ns = np.append(operations.end_ns, NEVER)[front]
        ends.append((np.minimum(ended_ns, received_ns), Cause.QUEUED))
    ends.append((received_ns, Cause.COMMUNICATION))
    ends.append((of_next(operations.launched_ns, NONE), Cause.HOST))
    cuts, causes, cut = [low], list[Cause](), low
    for end_ns, until in ends:
        # Most tables tell of no receives and launches.
        if not is_constant(end_ns) and (end_ns != NEVER).any():
            cut = np.clip(np.where(end_ns == NEVER, NEVER, end_ns + shift_ns), cut, high)
            cuts.append(cut)
            causes.append(until)
    bounds_ns = np.stack((*cuts, high), axis=1)
    some = np.flatnonzero(bounds_ns[:, 1:] > bounds_ns[:, :-1])
    interval = some // len(cuts)
    none, part = constant(NONE, len(some)), some - interval * len(cuts)
    cause = np.array([*causes, Cause.COMMUNICATION], np.int64)[part]
    cause[(part == len(causes)) & (ready_ns == NEVER)[interval]] = Cause.OTHER
    if inputs.unknown.any():
        unknown = np.append(inputs.unknown, False)[after] & (received_ns == NEVER)
        cause = np.where(unknown[interval], Cause.UNKNOWN, cause)
    return IdleIntervals(
        rank=none,
        start_ns=bounds_ns.reshape(-1)[some + interval],
        end_ns=bounds_ns.reshape(-1)[some + interval + 1],
        cause=cause,
        interval=interval,
        before=none,
        after=none,
        peer_operation=(
            none if front is None else np.where(cause == Cause.QUEUED, front[interval], NONE)
        ),
        collective=none,
        unrecorded=constant(0, len(some)),
    )


def _receives_launched(operations: Operations, known: Arrivals) -> Ints:
    """Return when the last receive of each operation was launched; -1 none."""
    inside = operations.received_ns != NONE
    named = (known.receive >= 0) & (np.append(operations.has_span, 0)[known.receive] == 1)
    ended_ns = np.append(operations.end_ns, NONE)[known.receive]
    later = named & (~inside | (ended_ns > operations.received_ns))
    of_name = np.append(operations.launched_ns, NONE)[known.receive]
    return np.where(later, of_name, np.where(inside, operations.receive_launched_ns, NONE))


#: What begins so long after another transfer at most was queued behind it.
_QUEUED_NS = 50_000


def queued_behind(operations: Operations, inputs: Inputs, known: Arrivals) -> Ints:
    """Return behind which transfer that of each operation's input was queued; -1 none.

    On a stream transfers run in the order in which they were posted. The one in front waited for
    its data, or its peer, and the one behind it, a receive here or a send on the producer's rank,
    begins once it ends::

        producer   ├ F1 ┤├─────── RECV_F0 waits ───────┤├ SEND_F1 ┤
        consumer         ├──────────────── RECV_F1 ───────────────┤├ F1 ┤
                         ├────────── queued ───────────┤

    Args:
        operations: of all ranks.
        inputs: what they took from other ranks.
        known: when receives show that these were there.
    """
    row = np.flatnonzero((known.receive >= 0) & (inputs.producer >= 0))
    front = np.full(len(operations), NONE, np.int64)
    if not len(row):
        return front
    until_ns = np.full(len(operations), NEVER)
    rank, has_span, start_ns, end_ns, launched_ns = (
        np.append(column, NONE)
        for column in (
            *(operations.rank, operations.has_span, operations.start_ns),
            *(operations.end_ns, operations.launched_ns),
        )
    )
    row = row[has_span[known.receive[row]] == 1]
    receive, send = known.receive[row], known.send[inputs.producer[row]]
    send = np.where(has_span[send] == 1, send, NONE)
    ready_ns = inputs.ready_ns[row]
    sent_ns = np.where(send == NONE, ready_ns, np.maximum(start_ns[send], ready_ns))
    late = sent_ns > start_ns[receive] + _QUEUED_NS
    early = (send != NONE) & (start_ns[receive] > start_ns[send] + _QUEUED_NS)
    held = np.concatenate((receive[late], send[early]))
    for moved in (receive, send):
        last = intervals.last_before(
            rank[held], end_ns[held], rank[moved], start_ns[moved], or_at=True
        )
        before = np.append(held, NONE)[last]
        queued = (moved >= 0) & (before >= 0) & (launched_ns[moved] < end_ns[before])
        queued &= start_ns[moved] <= end_ns[before] + _QUEUED_NS
        queued &= end_ns[before] > np.maximum(until_ns[row], ready_ns)
        front[row[queued]], until_ns[row[queued]] = before[queued], end_ns[before[queued]]
    return front


# Forward waits: why ranks of a run that only goes forward waited, down to where it began.
#
# The first stage waits for a token: a request's next step can start there once the last stage has
# ended the one before. Then its host schedules that step, and launches it. Where the pipeline stays
# empty for longer than the last chunk took from end to end, no request was there::
#
#     last stage   ── F6 ──┤                             ┌────────── F7
#     first stage  ────────┼───────────┬────────┤ F7 ├───┘
#                    token │   host    │ other                  or all of it: requests
#                          ends    launched
#
# Every later stage gets a chunk late since the one before it did, so idle time travels down the
# pipeline with its cause; and it waits by as much as the stage before takes longer for a chunk than
# this one (stages), and this chunk longer than the last one (chunks).


#: Causes of waits for no other rank that say no more than when the host launched.
_UNDIVIDED = (Cause.HOST, Cause.OTHER)


def forward_waits(
    operations: Operations, ranks: Sequence[Rank], inputs: Inputs, idle: IdleIntervals
) -> tuple[IdleIntervals, Dependencies]:
    """Return idle intervals with the causes of forward pipelines.

    Every interval is only divided further, so that all parts still add up.

    Args:
        operations: of all ranks, of a run that only goes forward.
        ranks: in the order of their numbers.
        inputs: what operations took from other ranks.
        idle: idle intervals of all ranks, with the causes of any run.
    """
    bounds = np.searchsorted(idle.rank, np.arange(len(ranks) + 1)).tolist()
    of_rank = [idle.take(slice(low, high)) for low, high in pairwise(bounds)]
    tokens = []
    stages, pipelines = stage_and_pipeline(ranks)
    for rank in sorted_rows(stages).tolist():
        own = of_rank[rank]
        if stages[rank] == 0:
            # Where pipelines are unknown, chunks of any rank may be those of this one.
            same = pipelines == pipelines[rank]
            in_pipeline = same | (pipelines[rank] == NONE)
            own, waits = _first_stage(operations, in_pipeline, inputs, own)
            tokens.append(waits)
        of_rank[rank] = _later_stage(operations, inputs, own, of_rank)
    return joined(of_rank), joined(tokens) if tokens else Dependencies.none()


def _first_stage(
    operations: Operations, in_pipeline: Bools, inputs: Inputs, idle: IdleIntervals
) -> tuple[IdleIntervals, Dependencies]:
    """Return the idle intervals of a rank of the first stage, and which tokens it waited for.

    Args:
        operations: of all ranks.
        in_pipeline: of each rank, whether it is of the same pipeline.
        inputs: what operations took from other ranks.
        idle: idle intervals of the rank.
    """
    own = (idle.after >= 0) & np.isin(idle.cause, _UNDIVIDED)
    own &= np.append(inputs.ready_ns, 0)[idle.after] == NEVER
    waits, rest = idle.take(own), idle.take(~own)
    rows = np.flatnonzero(
        (operations.phase == Phase.F)
        & (operations.has_span == 1)
        & (operations.virtual_stage >= 0)
        & in_pipeline[operations.rank]
    )
    if len(waits) == 0 or len(rows) == 0:
        return idle, Dependencies.none()
    # The chunks of the pipeline by their ends on the last stage, and how long each took from the
    # first stage on; 0 unknown.
    stage = operations.virtual_stage[rows]
    first, ended = rows[stage == 0], rows[stage == stage.max()]
    ended = ended[sorted_rows(operations.end_ns[ended])]
    keys = operations.iteration, operations.microbatch, operations.sequence
    begun = looked_up(tuple(key[first] for key in keys), first, tuple(key[ended] for key in keys))
    length_ns = operations.end_ns[ended] - operations.start_ns[begun]
    length_ns = np.where(begun == NONE, 0, length_ns)
    # The latest end of those that began up to each, on any stage.
    rows = rows[sorted_rows(operations.start_ns[rows])]
    latest_ns = np.maximum.accumulate(operations.end_ns[rows])
    number = distinct(waits.interval)
    of_row = np.searchsorted(number, waits.interval)
    low_ns, high_ns = intervals.group_extents(of_row, len(number), waits.start_ns, waits.end_ns)
    after = np.empty(len(number), np.int64)
    after[of_row] = waits.after
    launched_ns = operations.launched_ns[after]
    limit_ns = np.where(launched_ns == NONE, high_ns, np.clip(launched_ns, low_ns, high_ns))
    end_ns = operations.end_ns[ended]
    place = np.searchsorted(end_ns, limit_ns, side="right") - 1
    # The token of the chunk that this rank ran last cannot have come before it ran.
    came = (place >= 0) & (end_ns[place] >= low_ns)
    token_ns = np.where(came, end_ns[place], low_ns)
    before_ns = np.append(latest_ns, 0)[np.searchsorted(operations.start_ns[rows], high_ns) - 1]
    empty = came & (before_ns <= token_ns)
    idle_for_none = empty & (limit_ns - token_ns > np.maximum(length_ns[place], 1))
    pieces = cut_idle(waits, token_ns, limit_ns)
    of_piece = np.searchsorted(number, pieces.interval)
    before_launch = pieces.start_ns < limit_ns[of_piece]
    waiting = came[of_piece] & (pieces.start_ns < token_ns[of_piece])
    cause = np.where(waiting, Cause.TOKEN, pieces.cause)
    cause = np.where(idle_for_none[of_piece] & before_launch, Cause.REQUESTS, cause)
    waited = came & ~idle_for_none & (token_ns > low_ns)
    return (
        _in_order(rest, replace(pieces, cause=cause)),
        Dependencies(after[waited], ended[place[waited]]),
    )


def _later_stage(
    operations: Operations,
    inputs: Inputs,
    idle: IdleIntervals,
    idle_of_ranks: Sequence[IdleIntervals],
) -> IdleIntervals:
    """Return the idle intervals of a rank, waits for another one divided by where they began.

    A chunk comes as late as the rank before got it, and by as much as it took longer there than the
    chunk before it took here::

        wait for F7 here = idle before F7 there + F7 there - F6 here - launch, transfer of F6 here
    """
    producer = np.append(inputs.producer, NONE)[idle.after]
    waits = (idle.cause == Cause.DEPENDENCY) & (idle.peer_operation == NONE)
    waits &= (idle.collective == NONE) & (producer >= 0) & (idle.before >= 0)
    pieces = idle.take(waits)
    if len(pieces) == 0:
        return idle
    number, first, of_piece = np.unique(pieces.interval, return_index=True, return_inverse=True)
    after, before, source = pieces.after[first], pieces.before[first], producer[waits][first]
    parts_ns = np.zeros((len(number), len(Cause)), np.int64)
    upstream = operations.rank[source]
    for rank in distinct(upstream).tolist():
        rows = upstream == rank
        parts_ns[rows] = _idle_before(idle_of_ranks[rank], source[rows])
    parts_ns -= _idle_before(idle.take(idle.cause != Cause.DEPENDENCY), before)
    here_ns = operations.busy_ns[after]
    parts_ns[:, Cause.STAGES] += operations.busy_ns[source] - here_ns
    parts_ns[:, Cause.CHUNKS] += here_ns - operations.busy_ns[before]
    parts_ns = np.maximum(parts_ns, 0)
    length_ns = intervals.group_sum(of_piece, len(number), pieces.end_ns - pieces.start_ns)
    unexplained_ns = np.maximum(length_ns - parts_ns.sum(axis=1), 0)
    parts_ns[:, Cause.DEPENDENCY] += unexplained_ns
    until_ns = np.cumsum(parts_ns, axis=1)
    until_ns = np.rint(length_ns[:, None] * (until_ns / until_ns[:, -1:])).astype(np.int64)
    return _in_order(idle.take(~waits), _cut(pieces, of_piece, until_ns))


def _idle_before(idle: IdleIntervals, operation: Ints) -> Ints:
    """Return how long a rank was idle before each operation, shape (operations, causes)."""
    held = distinct(idle.after)
    time_ns = np.zeros((len(held) + 1, len(Cause)), np.int64)
    place = np.searchsorted(held, idle.after)
    np.add.at(time_ns, (place, idle.cause), idle.end_ns - idle.start_ns)
    return time_ns[found_in(held, operation)]


def _cut(pieces: IdleIntervals, of_piece: Ints, until_ns: Ints) -> IdleIntervals:
    """Return pieces of idle intervals, each of which is cut where its causes end.

    Args:
        pieces: in the order of their intervals, and of time.
        of_piece: place of the interval of each.
        until_ns: where each cause ends within each interval, shape (intervals, causes).
    """
    length_ns = pieces.end_ns - pieces.start_ns
    done_ns = np.cumsum(length_ns) - length_ns
    done_ns -= done_ns[np.searchsorted(of_piece, of_piece)]
    ends_ns = np.clip(until_ns[of_piece] - done_ns[:, None], 0, length_ns[:, None])
    starts_ns = np.concatenate((np.zeros((len(pieces), 1), np.int64), ends_ns[:, :-1]), axis=1)
    row, cause = np.nonzero(ends_ns > starts_ns)
    parts = pieces.take(row)
    return replace(
        parts,
        start_ns=parts.start_ns + starts_ns[row, cause],
        end_ns=parts.start_ns + ends_ns[row, cause],
        cause=cause.astype(np.int64),
    )


def _in_order(*parts: IdleIntervals) -> IdleIntervals:
    """Return all pieces in the order of their starts."""
    pieces = joined(parts)
    return pieces.take(sorted_rows(pieces.start_ns))


# Token order: which steps of a run that only goes forward follow the token of another step.
#
# The pipeline holds so many chunks at a time; the next one starts once the token of another came
# back. With one chunk more in flight it would need that of the chunk before::
#
#     last stage    ── F0 ──── F1 ──── F2 ──
#                           └──────┐└──────┐
#     first stage                  F3      F4          with one more: F4 after F1
#
# A step that waited for no token would wait for one if the pipeline were faster, so that all follow
# the token that leaves as many in flight as there ever were.


def all_token_waits(operations: Operations, tokens: Dependencies, more: int = 0) -> Dependencies:
    """Return for which tokens steps wait with some more chunks in flight than there were.

    Args:
        operations: of all ranks.
        tokens: which operations waited for which; without any, no number of chunks is a limit.
        more: chunks in flight beyond those that there were.
    """
    waits = []
    for first, last in _pairs_of_ranks(operations, tokens):
        begun, ended = _chunks(operations, first), _chunks(operations, last)
        number = np.arange(len(begun))
        done = np.searchsorted(operations.end_ns[ended], operations.start_ns[begun], side="right")
        most = int((number + 1 - done).max())
        token = number - most - more
        some = (token >= 0) & (token < len(ended))
        waits.append(Dependencies(begun[some], ended[token[some]]))
        own = tokens.take(operations.rank[tokens.after] == first)
        at = np.searchsorted(ended, own.before) - more
        waits.append(Dependencies(own.after[at >= 0], ended[at[at >= 0]]))
    return joined(waits) if waits else tokens


def usual_depth(operations: Operations, tokens: Dependencies) -> int:
    """Return how many chunks were in flight where steps waited for tokens (median); 0 for none."""
    if not len(tokens):
        return 0
    depths = []
    for first, last in _pairs_of_ranks(operations, tokens):
        own = tokens.take(operations.rank[tokens.after] == first)
        begun = np.searchsorted(_chunks(operations, first), own.after)
        depths.append(begun - np.searchsorted(_chunks(operations, last), own.before))
    depth = np.sort(np.concatenate(depths))
    return int(depth[(len(depth) - 1) // 2])


def _pairs_of_ranks(operations: Operations, tokens: Dependencies) -> list[tuple[int, int]]:
    """Return each rank that waited for tokens, and the one that gave them last."""
    first = operations.rank[tokens.after]
    return [
        (rank, int(operations.rank[tokens.before[first == rank]].max()))
        for rank in distinct(first).tolist()
    ]


def _chunks(operations: Operations, rank: int) -> Ints:
    """Return the rows of a rank's chunks, in the order of their starts."""
    own = operations.rank == rank
    return np.flatnonzero(own & (operations.phase == Phase.F) & (operations.has_span == 1))
