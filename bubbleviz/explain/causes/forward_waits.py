"""Forward waits: why ranks of a run that only goes forward waited, down to where it began.

The first stage waits for a token: a request's next step can start there once the last stage has
ended the one before. Then its host schedules that step, and launches it. If the pipeline stays
empty for longer than the last chunk took from end to end, no request was there::

    last stage   ── F6 ──┤                             ┌────────── F7
    first stage  ────────┼───────────┬────────┤ F7 ├───┘
                   token │   host    │ other                  or all of it: requests
                         ends     launched

Every later stage gets a chunk late because the one before it did, so idle time travels down the
pipeline with its cause. It also waits by as much as the stage before takes longer for a chunk than
this one (stages), and this chunk longer than the last one (chunks).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from bubbleviz.align.arrivals import NEVER
from bubbleviz.count.rank_slices import list_stages_and_pipelines
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.dependencies import Dependencies, Inputs
from bubbleviz.explain.idle import IdleIntervals, cut_idle
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Bools, Ints, join_tables
from bubbleviz.model.grouping import find_distinct, find_positions, lookup_values, sort_rows
from bubbleviz.model.operations import Operations, Rank
from bubbleviz.model.phases import Phase

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
    stages, pipelines = list_stages_and_pipelines(ranks)
    for rank in sort_rows(stages).tolist():
        own = of_rank[rank]
        if stages[rank] == 0:
            # Where pipelines are unknown, chunks of any rank may be those of this one.
            same = pipelines == pipelines[rank]
            in_pipeline = same | (pipelines[rank] == NONE)
            own, waits = _first_stage(operations, in_pipeline, inputs, own)
            tokens.append(waits)
        of_rank[rank] = _later_stage(operations, inputs, own, of_rank)
    return join_tables(of_rank), join_tables(tokens) if tokens else Dependencies.make_empty()


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
        return idle, Dependencies.make_empty()
    # The chunks of the pipeline by their ends on the last stage, and how long each took from the
    # first stage on; 0 unknown.
    stage = operations.virtual_stage[rows]
    first, ended = rows[stage == 0], rows[stage == stage.max()]
    ended = ended[sort_rows(operations.end_ns[ended])]
    keys = operations.iteration, operations.microbatch, operations.sequence
    begun = lookup_values(
        tuple(key[first] for key in keys), first, tuple(key[ended] for key in keys)
    )
    length_ns = operations.end_ns[ended] - operations.start_ns[begun]
    length_ns = np.where(begun == NONE, 0, length_ns)
    # The latest end of those that began up to each, on any stage.
    rows = rows[sort_rows(operations.start_ns[rows])]
    latest_ns = np.maximum.accumulate(operations.end_ns[rows])
    number = find_distinct(waits.interval)
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
    for rank in find_distinct(upstream).tolist():
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
    held = find_distinct(idle.after)
    time_ns = np.zeros((len(held) + 1, len(Cause)), np.int64)
    place = np.searchsorted(held, idle.after)
    np.add.at(time_ns, (place, idle.cause), idle.end_ns - idle.start_ns)
    return time_ns[find_positions(held, operation)]


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
    pieces = join_tables(parts)
    return pieces.take(sort_rows(pieces.start_ns))
