"""Precedences: operations and collectives that cannot have run in another order.

In a pipeline, the forward of a virtual stage needs the forward of the previous stage, and its
backward the backward of the next stage, of the same microbatch. If the transfer between them was
recorded, it gives two bounds::

    rank 0   F ████┤                           F ends before the other F starts,
             SEND  ├──▒▒▒▒─┤                   the send starts before the receive ends
    rank 1   RECV ├▒▒▒▒▒▒▒▒──┤
             F               ├████

A span may begin with kernels that need no input. Then the end of the receive cannot be before the
end of the F that it waits for.
"""

from __future__ import annotations

import numpy as np

from bubbleviz.align.arrivals import NEVER, Arrivals
from bubbleviz.align.clocks import offsets
from bubbleviz.align.profile_clocks import DRIFT
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import NONE, Bools, Ints, make_constant
from bubbleviz.model.grouping import Groups, find_first_rows, group_rows, lookup_values, sort_rows
from bubbleviz.model.intervals import group_extents
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import BACKWARD, CHAINED, COUNTED, WORK, Phase

#: Ranks leave a collective within so long of each other.
LEAVE_NS = 50_000


#: What no member leaves before all have entered.
_SYNCHRONISING = ("AllReduce", "AllGather", "ReduceScatter")


#: Each member of a collective is compared with so many others, which bounds the number of pairs.
_PARTNERS = 16


def dependencies(
    operations: Operations,
    inputs: Arrivals,
    pipeline: Ints,
    clock: Ints,
    replica_clock: Ints,
) -> offsets.Precedences:
    """Return the data dependencies within pipelines as precedences between clocks.

    Args:
        operations: Operations of all ranks with their virtual stages, and with iterations numbered
            over all ranks.
        inputs: Times at which the inputs of operations were available.
        pipeline: Pipeline of each rank, or -1 if the replicas of a stage cannot be distinguished.
        clock: Clock of each rank.
        replica_clock: Clock of each rank on which replicas of a stage are compared.
    """
    before, after = _hops(operations, pipeline, clock, replica_clock)

    def table(before: Ints, after: Ints, before_ns: Ints, after_ns: Ints) -> offsets.Precedences:
        return offsets.Precedences(
            before=clock[operations.rank[before]],
            after=clock[operations.rank[after]],
            before_ns=before_ns,
            after_ns=after_ns,
            before_row=before,
            after_row=after,
            iteration=operations.iteration[after],
        )

    # Where other receives were recorded, but not this one, a span shows no arrival.
    usable = ((inputs.latest_ns != NEVER) | ~inputs.receives)[after]
    first, second = before[usable], after[usable]
    ready_ns = np.maximum(operations.start_ns[second], inputs.latest_ns[second])
    ready = table(first, second, operations.end_ns[first], ready_ns)
    # No receive ends before its send starts; among indistinguishable replicas, another one's send
    # may have been received.
    ran = np.append(operations.has_span, 0) == 1
    sure = ran[inputs.send[before]] & ran[inputs.receive[after]]
    sure &= pipeline[operations.rank[after]] >= 0
    before, after = before[sure], after[sure]
    sent_ns = operations.start_ns[inputs.send[before]]
    return offsets.together(ready, table(before, after, sent_ns, inputs.exact_ns[after]))


def _hops(
    operations: Operations, pipeline: Ints, clock: Ints, replica_clock: Ints
) -> tuple[Ints, Ints]:
    """Return the rows of operations, and of those on other clocks that wait for them.

    A hop from block to block is one step of a microbatch from virtual stage to virtual stage.
    """
    is_usable = mask_phases(operations.phase, CHAINED) & (operations.has_span == 1)
    is_usable &= (operations.occurrence == 0) & (operations.iteration >= 0)
    rows = np.flatnonzero(is_usable & (operations.virtual_stage >= 0))
    rank = operations.rank[rows]
    own = clock[rank]
    compared = replica_clock[rank]
    forward = operations.phase[rows] == Phase.F
    microbatch = group_rows(
        pipeline[rank],
        operations.iteration[rows],
        operations.microbatch[rows],
        operations.sequence[rows],
        forward.astype(np.int64),
    ).of_row
    virtual_stage = operations.virtual_stage[rows]
    stage = np.where(forward, virtual_stage, -virtual_stage)
    blocks = group_rows(microbatch, stage)
    # A block is one operation, unless replicas of a stage cannot be distinguished. Then any of them
    # may have sent the input of the next stage, which cannot run before the earliest of them ends.
    # That one is known only if all replicas are compared on one clock.
    source = find_first_rows(blocks.of_row, operations.end_ns[rows])
    low, high = group_extents(blocks.of_row, len(blocks), compared, compared)
    source = np.where(low == high, source, NONE)
    of_block = microbatch[blocks.first]
    # The block before each, where it is of the same microbatch; none before the first one.
    follows = np.append(False, of_block[1:] == of_block[:-1])[: len(blocks)]
    previous = np.where(follows, np.append(NONE, source[:-1])[: len(blocks)], NONE)
    before = previous[blocks.of_row]
    # Of an operation that the end of the capture cut, the receive may not have been recorded.
    has_other_clock = own != np.append(own, NONE)[before]
    hops = np.flatnonzero((before >= 0) & has_other_clock & (operations.cut[rows] == 0))
    return rows[before[hops]], rows[hops]


def reductions(collectives: CollectiveIntervals, operations: Operations) -> CollectiveIntervals:
    """Return the collectives that synchronise the replicas of a stage.

    Of each iteration of a rank this is the first all-reduce, all-gather or reduce-scatter after its
    last backward: it reduces the gradients of data-parallel replicas, before those of norms and
    embeddings are reduced in other groups. What runs inside a forward or a backward belongs to
    tensor parallelism, or to buckets that cannot be distinguished from it.

    Args:
        collectives: ``iteration`` counts each rank's own.
        operations: likewise.
    """
    rows = np.flatnonzero(mask_phases(operations.phase, COUNTED) & (operations.iteration >= 0))
    cells = group_rows(operations.rank[rows], operations.iteration[rows])
    last = rows[find_first_rows(cells.of_row, -operations.host_start_ns[rows])]
    last = last[mask_phases(operations.phase[last], BACKWARD)]
    cells_of_last = operations.rank[last], operations.iteration[last]
    after = lookup_values(cells_of_last, last, (collectives.rank, collectives.iteration))
    inside = np.append(mask_phases(operations.phase, WORK), False)[collectives.operation]
    kind = np.array([kind in _SYNCHRONISING for kind in collectives.kinds], bool)
    found = (after >= 0) & ~inside & kind[collectives.kind]
    found &= collectives.start_ns >= np.append(operations.start_ns, 0)[after]
    own = collectives.take(found)
    return own.take(find_first_rows(group_rows(own.rank, own.iteration).of_row, own.start_ns))


def overlaps(collectives: CollectiveIntervals, group: Ints, clock: Ints) -> offsets.Precedences:
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
    event = group_rows(
        group[collectives.rank[rows]], collectives.iteration[rows], collectives.kind[rows]
    ).of_row
    order = sort_rows(event, collectives.rank[rows])
    rows, event = rows[order], event[order]
    members = int(np.bincount(event, minlength=1).max())
    parts = []
    # Every member with the next one, then with the next but one, and so on.
    for step in range(1, min(members, _PARTNERS + 1)):
        same = np.flatnonzero(event[:-step] == event[step:])
        first, second = rows[same], rows[same + step]
        apart = clock[collectives.rank[first]] != clock[collectives.rank[second]]
        first, second = first[apart], second[apart]
        pair = group_rows(collectives.rank[first], collectives.rank[second])
        ends = collectives.end_ns[first], collectives.end_ns[second]
        leaving = ~unsteady(pair, ends[0] - ends[1], ends[0])
        first, second = first[leaving], second[leaving]
        before, after = np.concatenate((first, second)), np.concatenate((second, first))
        parts.append(
            offsets.Precedences(
                before=clock[collectives.rank[before]],
                after=clock[collectives.rank[after]],
                before_ns=collectives.start_ns[before],
                after_ns=collectives.end_ns[after],
                before_row=make_constant(NONE, len(before)),
                after_row=make_constant(NONE, len(before)),
                iteration=collectives.iteration[after],
            )
        )
    return offsets.together(*parts)


def unsteady(pair: Groups, apart_ns: Ints, at_ns: Ints) -> Bools:
    """Return which rows are of pairs whose ends lie unequally far apart, but for drift.

    Args:
        pair: of each row.
        apart_ns: how far its ends are apart.
        at_ns: when.
    """
    low, high = group_extents(pair.of_row, len(pair), apart_ns, apart_ns)
    first, last = group_extents(pair.of_row, len(pair), at_ns, at_ns)
    varies = high - low > LEAVE_NS + DRIFT * (last - first)
    return np.asarray(varies[pair.of_row], bool)
