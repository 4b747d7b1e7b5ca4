"""Causality: which operation of one host cannot have been before which of another.

Inside one pipeline F of a virtual stage needs the F before it, and B the B behind it, of the
same microbatch. Where the transfer between them was recorded::

    rank 0   F ████┤                           F ends before the other F starts,
             SEND  ├──▒▒▒▒─┤                   the send starts before the receive ends
    rank 1   RECV ├▒▒▒▒▒▒▒▒──┤
             F               ├████

A span may begin with kernels that need no input. Then it is the end of the receive that cannot
be before the end of the F that it waits for.
"""

from __future__ import annotations

import numpy as np

from bubbleviz.align.arrivals import NEVER, Arrivals
from bubbleviz.align.bounds.clock_segments import DRIFT
from bubbleviz.align.bounds.precedences import Precedences, together
from bubbleviz.interpret.collectives import ReplicaCollectives
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import groups_of, least_of_each
from bubbleviz.model.intervals import group_extents
from bubbleviz.model.operations import RankOperations
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import PASSED_ON, Phase
from bubbleviz.model.sorting import sorted_rows

#: Ranks leave a collective within so long of each other.
_LEAVE_NS = 50_000
#: Each member of a collective is compared with so many others, which bounds the number of pairs.
_PARTNERS = 16


def dependencies(
    operations: RankOperations,
    inputs: Arrivals,
    virtual_stage: Ints,
    pipeline: Ints,
    clock: Ints,
) -> Precedences:
    """Return the precedences of the pipelines' data dependencies, over pairs of clocks.

    Args:
        operations: of all ranks, ``iteration`` counted over all of them.
        inputs: when their inputs were there.
        virtual_stage: of each operation; -1 unknown.
        pipeline: of each rank; -1 where replicas of a stage cannot be distinguished.
        clock: of each rank.
    """
    rows = np.flatnonzero(
        among(operations.phase, PASSED_ON)
        & (operations.has_span == 1)
        & (operations.occurrence == 0)
        & (operations.iteration >= 0)
        & (virtual_stage >= 0)
    )
    # A hop from block to block is one step of a microbatch from virtual stage to virtual stage.
    forward = operations.phase[rows] == Phase.F
    microbatch = groups_of(
        pipeline[operations.rank[rows]],
        operations.iteration[rows],
        operations.microbatch[rows],
        operations.sequence[rows],
        forward.astype(np.int64),
    ).of_row
    stage = np.where(forward, virtual_stage[rows], -virtual_stage[rows])
    blocks = groups_of(microbatch, stage)
    source = _sources(operations.end_ns[rows], clock[operations.rank[rows]], blocks.of_row)
    previous = blocks.of_row - 1
    hops = np.flatnonzero((previous >= 0) & (microbatch[blocks.first[previous]] == microbatch))
    # Of an operation that the end of the capture cut, the receive may not have been recorded.
    hops = hops[(source[previous[hops]] >= 0) & (operations.cut[rows[hops]] == 0)]
    before, after = rows[source[previous[hops]]], rows[hops]
    apart = clock[operations.rank[before]] != clock[operations.rank[after]]
    before, after = before[apart], after[apart]
    # Among indistinguishable replicas, another one's send may have been received.
    sure = pipeline[operations.rank[after]] >= 0
    return _precedences(operations, inputs, clock, (before, after), sure)


def _sources(end_ns: Ints, clock: Ints, block: Ints) -> Ints:
    """Return for each block the row that ended first, or -1 where it lies on several clocks.

    A block is one operation, unless replicas of a stage cannot be distinguished: then any of them
    may be the one that the next stage waited for, and the earliest bounds it.
    """
    blocks = int(block.max(initial=NONE)) + 1
    source = least_of_each(block, blocks, end_ns)
    low, high = group_extents(block, blocks, clock, clock)
    return np.where(low == high, source, NONE)


def _precedences(
    operations: RankOperations,
    inputs: Arrivals,
    clock: Ints,
    pairs: tuple[Ints, Ints],
    sure: Bools,
) -> Precedences:
    """Return the precedences of pairs of an operation and the one that waits for it.

    Args:
        operations: of all ranks.
        inputs: when their inputs were there.
        clock: of each rank.
        pairs: rows of operations, and of those that wait for them.
        sure: whether these wait for each other, and no replicas of them.
    """
    before, after = pairs
    exact_ns, latest_ns = inputs.exact_ns[after], inputs.latest_ns[after]
    # Where other receives were recorded, but not this one, a span shows no arrival.
    usable = np.flatnonzero((latest_ns != NEVER) | ~inputs.receives[after])
    ready_ns = np.maximum(operations.start_ns[after], latest_ns)
    send, receive = inputs.send[before], inputs.receive[after]
    both = (send >= 0) & (receive >= 0) & sure
    both &= np.append(operations.has_span, 0)[send] == 1
    both &= np.append(operations.has_span, 0)[receive] == 1
    pair = np.flatnonzero(both)
    # The input was ready when the operation started, or when its receive ended; and a receive
    # never ends before its send starts.
    row = np.concatenate((usable, pair))
    return Precedences(
        before=clock[operations.rank[before]][row],
        after=clock[operations.rank[after]][row],
        before_ns=np.concatenate(
            (operations.end_ns[before[usable]], operations.start_ns[send[pair]])
        ),
        after_ns=np.concatenate((ready_ns[usable], exact_ns[pair])),
        before_row=before[row],
        after_row=after[row],
        iteration=operations.iteration[after[row]],
    )


def overlaps(collectives: ReplicaCollectives, group: Ints, clock: Ints) -> Precedences:
    """Return the precedences of collectives over the replicas of a stage.

    All members must have entered before any can leave (all-reduce, all-gather, reduce-scatter),
    so each one's kernel starts before each other one's ends. And all leave together: where they
    do not, iteration after iteration, it is no collective of theirs.

    Args:
        collectives: at most one per rank and iteration, counted over all ranks.
        group: of each rank, those that reduce together; -1 for none.
        clock: of each rank.
    """
    rows = np.flatnonzero((group[collectives.rank] >= 0) & (collectives.iteration >= 0))
    event = groups_of(
        group[collectives.rank[rows]], collectives.iteration[rows], collectives.kind[rows]
    ).of_row
    order = sorted_rows(event, collectives.rank[rows])
    rows, event = rows[order], event[order]
    members = int(np.bincount(event, minlength=1).max())
    parts = []
    # Every member with the next one, then with the next but one, and so on.
    for step in range(1, min(members, _PARTNERS + 1)):
        same = np.flatnonzero(event[:-step] == event[step:])
        first, second = rows[same], rows[same + step]
        apart = clock[collectives.rank[first]] != clock[collectives.rank[second]]
        first, second = first[apart], second[apart]
        leaving = _leave_together(collectives, first, second)
        first, second = first[leaving], second[leaving]
        before, after = np.concatenate((first, second)), np.concatenate((second, first))
        none = np.full(len(before), NONE, np.int64)
        parts.append(
            Precedences(
                before=clock[collectives.rank[before]],
                after=clock[collectives.rank[after]],
                before_ns=collectives.start_ns[before],
                after_ns=collectives.end_ns[after],
                before_row=none,
                after_row=none.copy(),
                iteration=collectives.iteration[after],
            )
        )
    return together(*parts)


def _leave_together(collectives: ReplicaCollectives, first: Ints, second: Ints) -> Bools:
    """Return which pairs of ranks have kernels that end at a constant distance, but for drift.

    Args:
        collectives: of all ranks.
        first: rows of them.
        second: rows of the other members.
    """
    pair = groups_of(collectives.rank[first], collectives.rank[second])
    end_ns = collectives.end_ns
    apart = end_ns[first] - end_ns[second]
    low, high = group_extents(pair.of_row, len(pair), apart, apart)
    first, last = group_extents(pair.of_row, len(pair), end_ns[first], end_ns[first])
    steady = high - low <= _LEAVE_NS + DRIFT * (last - first)
    return np.asarray(steady[pair.of_row], bool)
