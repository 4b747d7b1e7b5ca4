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

from bubbleviz.align.clock_segments import DRIFT
from bubbleviz.align.offsets import Precedences, together
from bubbleviz.align.waits import NEVER, Arrivals
from bubbleviz.interpret.collectives import ReplicaCollectives
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import groups_of, least_of_each, sorted_rows
from bubbleviz.model.intervals import group_extents
from bubbleviz.model.operations import RankOperations
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import PASSED_ON, Phase

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
    before, after = _hops(operations, virtual_stage, pipeline, clock)
    ready = _by_arrivals(operations, inputs, clock, before, after)
    if (inputs.send[before] == NONE).all():
        return ready
    # Among indistinguishable replicas, another one's send may have been received.
    sure = pipeline[operations.rank[after]] >= 0
    return together(ready, _by_transfers(operations, inputs, clock, before[sure], after[sure]))


def _hops(
    operations: RankOperations, virtual_stage: Ints, pipeline: Ints, clock: Ints
) -> tuple[Ints, Ints]:
    """Return the rows of operations, and of those on other clocks that wait for them.

    A hop from block to block is one step of a microbatch from virtual stage to virtual stage.
    """
    rows = np.flatnonzero(
        among(operations.phase, PASSED_ON)
        & (operations.has_span == 1)
        & (operations.occurrence == 0)
        & (operations.iteration >= 0)
        & (virtual_stage >= 0)
    )
    rank = operations.rank[rows]
    own = clock[rank]
    forward = operations.phase[rows] == Phase.F
    microbatch = groups_of(
        pipeline[rank],
        operations.iteration[rows],
        operations.microbatch[rows],
        operations.sequence[rows],
        forward.astype(np.int64),
    ).of_row
    stage = np.where(forward, virtual_stage[rows], -virtual_stage[rows])
    blocks = groups_of(microbatch, stage)
    source = _sources(operations.end_ns[rows], own, blocks.of_row)
    of_block = microbatch[blocks.first]
    # The block before each, where it is of the same microbatch; none before the first one.
    follows = np.append(False, of_block[1:] == of_block[:-1])[: len(blocks)]
    previous = np.where(follows, np.append(NONE, source[:-1])[: len(blocks)], NONE)
    before = previous[blocks.of_row]
    # Of an operation that the end of the capture cut, the receive may not have been recorded.
    hops = np.flatnonzero(
        (before >= 0) & (own != np.append(own, NONE)[before]) & (operations.cut[rows] == 0)
    )
    return rows[before[hops]], rows[hops]


def _sources(end_ns: Ints, clock: Ints, block: Ints) -> Ints:
    """Return for each block the row that ended first, or -1 where it lies on several clocks.

    A block is one operation, unless replicas of a stage cannot be distinguished: then any of them
    may be the one that the next stage waited for, and the earliest bounds it.
    """
    blocks = int(block.max(initial=NONE)) + 1
    source = least_of_each(block, blocks, end_ns)
    low, high = group_extents(block, blocks, clock, clock)
    return np.where(low == high, source, NONE)


def _by_arrivals(
    operations: RankOperations, inputs: Arrivals, clock: Ints, before: Ints, after: Ints
) -> Precedences:
    """Return the precedences of operations that end before the input of others is there.

    Args:
        operations: of all ranks.
        inputs: when their inputs were there.
        clock: of each rank.
        before: rows of operations.
        after: rows of those that wait for them.
    """
    # Where other receives were recorded, but not this one, a span shows no arrival.
    usable = (inputs.latest_ns != NEVER) | ~inputs.receives
    if not usable.all():
        kept = usable[after]
        before, after = before[kept], after[kept]
    return Precedences(
        before=clock[operations.rank[before]],
        after=clock[operations.rank[after]],
        before_ns=operations.end_ns[before],
        after_ns=np.maximum(operations.start_ns[after], inputs.latest_ns[after]),
        before_row=before,
        after_row=after,
        iteration=operations.iteration[after],
    )


def _by_transfers(
    operations: RankOperations, inputs: Arrivals, clock: Ints, before: Ints, after: Ints
) -> Precedences:
    """Return the precedences of sends, of which no receive ends before they start.

    The arguments are those of :func:`_by_arrivals`; operations wait for no replicas of each other.
    """
    send, receive = inputs.send[before], inputs.receive[after]
    ran = np.append(operations.has_span, 0)
    pair = (ran[send] == 1) & (ran[receive] == 1)
    before, after, send = before[pair], after[pair], send[pair]
    return Precedences(
        before=clock[operations.rank[before]],
        after=clock[operations.rank[after]],
        before_ns=operations.start_ns[send],
        after_ns=inputs.exact_ns[after],
        before_row=before,
        after_row=after,
        iteration=operations.iteration[after],
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
