"""Precedences: pairs of operations, or of collectives, whose order is known.

In a pipeline, a microbatch's forward on a virtual stage needs its forward on the previous stage. A
microbatch's backward needs its backward on the next stage. If the transfer between the two
operations was recorded, there are two bounds::

    rank 0   F ████┤                           F ends before the other F starts,
             SEND  ├──▒▒▒▒─┤                   the send starts before the receive ends
    rank 1   RECV ├▒▒▒▒▒▒▒▒──┤
             F               ├████

The span of an operation may begin with kernels that need no input. In that case, only the end of
the receive shows when the input arrived. The receive cannot end before the F of the previous stage
ends.
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

#: Maximum time in ns between the ends of a collective on two ranks.
LEAVE_NS = 50_000


#: Kinds of collectives that no member leaves before all members have entered.
_SYNCHRONIZING = ("AllReduce", "AllGather", "ReduceScatter")


#: Maximum number of other members to compare with each member of a collective.
_MAX_PARTNERS = 16


def find_dependencies(
    operations: Operations,
    inputs: Arrivals,
    pipeline: Ints,
    clock: Ints,
    replica_clock: Ints,
) -> offsets.Precedences:
    """Return the data dependencies within pipelines as precedences between clocks.

    A producer passes a microbatch to a consumer on another clock (:func:`_match_producers`). Up to
    two precedences are derived from each producer-consumer pair:

    - The producer ends before the input of the consumer is available. This precedence is left out
      if the arrival of the input is unknown although the consumer's rank has receives in this
      direction.
    - The send of the producer starts before the receive of the consumer ends. This precedence
      requires that both transfers were recorded and that replicas can be distinguished.

    Args:
        operations: Operations of all ranks, with their virtual stages and common iterations.
        inputs: Arrival times of all operations' inputs.
        pipeline: Pipeline of each rank, or -1 if the replicas of a stage cannot be distinguished.
        clock: Index of each rank's clock, shape (ranks,).
        replica_clock: Index of the clock used to find which of a stage's replicas ends first, shape
            (ranks,). It may be coarser than ``clock``, for example one clock per machine instead of
            one per rank.
    """
    producer, consumer = _match_producers(operations, pipeline, clock, replica_clock)

    def make_table(
        producer: Ints, consumer: Ints, earlier_ns: Ints, later_ns: Ints
    ) -> offsets.Precedences:
        """Return one precedence per pair of producer and consumer.

        Args:
            producer: Row of each producer.
            consumer: Row of each consumer.
            earlier_ns: Time of the event on the producer's clock.
            later_ns: Time of the event on the consumer's clock.
        """
        return offsets.Precedences(
            earlier_clock=clock[operations.rank[producer]],
            later_clock=clock[operations.rank[consumer]],
            earlier_ns=earlier_ns,
            later_ns=later_ns,
            earlier_row=producer,
            later_row=consumer,
            iteration=operations.iteration[consumer],
        )

    # If the rank has receives but this one was not recorded, the span does not show the arrival.
    has_arrival = ((inputs.latest_ns != NEVER) | ~inputs.receives)[consumer]
    first, second = producer[has_arrival], consumer[has_arrival]
    ready_ns = np.maximum(operations.start_ns[second], inputs.latest_ns[second])
    by_ends = make_table(first, second, operations.end_ns[first], ready_ns)
    # No receive ends before its send starts.
    # If replicas cannot be distinguished, the receive may belong to the send of another replica.
    has_span = np.append(operations.has_span, 0) == 1
    is_transfer = has_span[inputs.send[producer]] & has_span[inputs.receive[consumer]]
    is_transfer &= pipeline[operations.rank[consumer]] >= 0
    first, second = producer[is_transfer], consumer[is_transfer]
    sent_ns = operations.start_ns[inputs.send[first]]
    by_transfers = make_table(first, second, sent_ns, inputs.exact_ns[second])
    return offsets.join_precedences(by_ends, by_transfers)


def _match_producers(
    operations: Operations, pipeline: Ints, clock: Ints, replica_clock: Ints
) -> tuple[Ints, Ints]:
    """Match consumers with the producers of their input if the two are on different clocks.

    The producer is on the previous recorded virtual stage in the direction of the microbatch. If
    the replicas of a stage cannot be distinguished, the replica that ends first is used as the
    producer, because the consumer cannot start before it ends.

    These operations are left out:

    - Pairs whose producer has replicas on several clocks, because it is unknown which replica ends
      first.
    - Repeated operations, and operations without a span.
    - Consumers that the capture cut off.

    Args:
        operations: Operations of all ranks, with their virtual stages and common iterations.
        pipeline: Pipeline of each rank, or -1 if replicas cannot be distinguished.
        clock: Index of each rank's clock, shape (ranks,).
        replica_clock: Index of the clock used to find which of a stage's replicas ends first, shape
            (ranks,). It may be coarser than ``clock``, for example one clock per machine instead of
            one per rank.

    Returns:
        producer: Row of the operation on the previous virtual stage.
        consumer: Row of the operation that waits for the producer.
    """
    is_usable = mask_phases(operations.phase, CHAINED) & (operations.has_span == 1)
    is_usable &= (operations.occurrence == 0) & (operations.iteration >= 0)
    rows = np.flatnonzero(is_usable & (operations.virtual_stage >= 0))
    rank = operations.rank[rows]
    direction, blocks = _group_replicas(operations, rows, pipeline)
    earliest = _find_earliest(blocks, operations.end_ns[rows], replica_clock[rank])
    producer = _take_from_previous(earliest, direction[blocks.first])[blocks.of_row]
    clock_of_row = clock[rank]
    has_other_clock = clock_of_row != np.append(clock_of_row, NONE)[producer]
    # If the end of the capture cut off an operation, its receive may not have been recorded.
    is_complete = operations.cut[rows] == 0
    hops = np.flatnonzero((producer >= 0) & has_other_clock & is_complete)
    return rows[producer[hops]], rows[hops]


def _group_replicas(operations: Operations, rows: Ints, pipeline: Ints) -> tuple[Ints, Groups]:
    """Group operations into blocks: the same operation on all replicas of a stage.

    A direction consists of either all forwards or all backwards of one microbatch and sequence
    split, in one pipeline and iteration. Blocks are sorted by direction, and then in the order in
    which the microbatch passes them: by ascending virtual stage for forwards, and by descending
    virtual stage for backwards.

    Args:
        operations: Operations of all ranks, with their virtual stages.
        rows: Rows to group.
        pipeline: Pipeline of each rank, or -1 if replicas cannot be distinguished.

    Returns:
        direction: Direction number of each row.
        blocks: The rows, grouped into blocks.
    """
    is_forward = operations.phase[rows] == Phase.F
    direction = group_rows(
        pipeline[operations.rank[rows]],
        operations.iteration[rows],
        operations.microbatch[rows],
        operations.sequence[rows],
        is_forward.astype(np.int64),
    ).of_row
    virtual_stage = operations.virtual_stage[rows]
    return direction, group_rows(direction, np.where(is_forward, virtual_stage, -virtual_stage))


def _find_earliest(blocks: Groups, end_ns: Ints, clock: Ints) -> Ints:
    """Return, for each block, the row that ends first, or -1 if its rows are on several clocks.

    If end times are equal, the smallest row index wins.

    Args:
        blocks: Rows grouped into blocks.
        end_ns: End time of each row.
        clock: Clock of each row.
    """
    low, high = group_extents(blocks.of_row, len(blocks), clock, clock)
    return np.where(low == high, find_first_rows(blocks.of_row, end_ns), NONE)


def _take_from_previous(values: Ints, group: Ints) -> Ints:
    """Return ``values[i - 1]`` for each entry ``i``, or -1 if entry ``i - 1`` is in another group.

    The result is also -1 for entry 0.

    Args:
        values: Value of each entry.
        group: Group of each entry.
    """
    is_same_group = np.append(False, group[1:] == group[:-1])[: len(group)]
    previous = np.append(NONE, values[:-1])[: len(group)]
    return np.where(is_same_group, previous, NONE)


def select_reductions(
    collectives: CollectiveIntervals, operations: Operations
) -> CollectiveIntervals:
    """Select the collectives that synchronize a stage's replicas, one per rank and iteration.

    The last pass in an iteration of a rank is the forward or backward that the host launched last.
    If it is a B, W or BW, the first all-reduce, all-gather or reduce-scatter that does not start
    before it is selected. Otherwise, no collective of this iteration is selected.

    The selected collective reduces the gradients of data-parallel replicas. Gradients of norms and
    embeddings are reduced later, in other groups. Collectives inside a forward or backward are
    ignored, because they belong to tensor parallelism, or to gradient buckets that look the same.

    Args:
        collectives: Collectives of all ranks, with iterations numbered separately for each rank.
        operations: Operations of all ranks, with iterations numbered separately for each rank.
    """
    rows = np.flatnonzero(mask_phases(operations.phase, COUNTED) & (operations.iteration >= 0))
    cells = group_rows(operations.rank[rows], operations.iteration[rows])
    last = rows[find_first_rows(cells.of_row, -operations.host_start_ns[rows])]
    last = last[mask_phases(operations.phase[last], BACKWARD)]
    cells_of_last = operations.rank[last], operations.iteration[last]
    last_of_row = lookup_values(cells_of_last, last, (collectives.rank, collectives.iteration))
    is_inside = np.append(mask_phases(operations.phase, WORK), False)[collectives.operation]
    is_synchronizing = np.array([kind in _SYNCHRONIZING for kind in collectives.kinds], bool)
    is_candidate = (last_of_row >= 0) & ~is_inside & is_synchronizing[collectives.kind]
    is_candidate &= collectives.start_ns >= np.append(operations.start_ns, 0)[last_of_row]
    candidates = collectives.take(is_candidate)
    iterations = group_rows(candidates.rank, candidates.iteration)
    return candidates.take(find_first_rows(iterations.of_row, candidates.start_ns))


def find_collective_precedences(
    collectives: CollectiveIntervals, group: Ints, clock: Ints
) -> offsets.Precedences:
    """Derive precedences from the collectives that a stage's replicas run together.

    All members must have entered a collective (all-reduce, all-gather, reduce-scatter) before any
    member can leave. Each member's kernel therefore starts before any other member's kernel ends.

    Collectives with equal group, iteration and kind are assumed to be one collective. This
    assumption is checked, because all members leave a collective together: if the time between the
    ends on two ranks varies over iterations by more than drift explains, no precedence is derived
    from those ranks. Members are sorted by rank, and each is compared with at most
    ``_MAX_PARTNERS`` following members.

    Args:
        collectives: Collectives with common iterations, at most one per rank and iteration.
        group: For each rank, the group of ranks that reduce gradients together with it, or -1 if
            there is none.
        clock: Index of each rank's clock, shape (ranks,).
    """
    is_usable = (group[collectives.rank] >= 0) & (collectives.iteration >= 0)
    rows = np.flatnonzero(is_usable)
    event = group_rows(
        group[collectives.rank[rows]], collectives.iteration[rows], collectives.kind[rows]
    ).of_row
    order = sort_rows(event, collectives.rank[rows])
    rows, event = rows[order], event[order]
    n_members = int(np.bincount(event, minlength=1).max())
    parts = []
    # Compare every member with the next one, then with the one after that, and so on.
    for distance in range(1, min(n_members, _MAX_PARTNERS + 1)):
        same_event = np.flatnonzero(event[:-distance] == event[distance:])
        first, second = _select_steady(
            collectives, clock, rows[same_event], rows[same_event + distance]
        )
        entering, leaving = np.concatenate((first, second)), np.concatenate((second, first))
        parts.append(_make_precedences(collectives, clock, entering, leaving))
    return offsets.join_precedences(*parts)


def _make_precedences(
    collectives: CollectiveIntervals, clock: Ints, entering: Ints, leaving: Ints
) -> offsets.Precedences:
    """Return one precedence per pair of members: the first member starts before the second ends.

    The row columns are -1, because collectives are not operations. The iteration is the iteration
    of the member that ends.

    Args:
        collectives: Collectives of all ranks.
        clock: Index of each rank's clock, shape (ranks,).
        entering: Row of the member that starts.
        leaving: Row of the member that ends.
    """
    no_row = make_constant(NONE, len(entering))
    return offsets.Precedences(
        earlier_clock=clock[collectives.rank[entering]],
        later_clock=clock[collectives.rank[leaving]],
        earlier_ns=collectives.start_ns[entering],
        later_ns=collectives.end_ns[leaving],
        earlier_row=no_row,
        later_row=no_row,
        iteration=collectives.iteration[leaving],
    )


def _select_steady(
    collectives: CollectiveIntervals, clock: Ints, first: Ints, second: Ints
) -> tuple[Ints, Ints]:
    """Select pairs of members on two clocks whose ends are equally far apart in all iterations.

    If the time between the ends on two ranks is unsteady (:func:`is_unsteady`), all pairs of those
    two ranks are left out.

    Args:
        collectives: Collectives of all ranks.
        clock: Index of each rank's clock, shape (ranks,).
        first: Row of the first member of each pair.
        second: Row of the second member of each pair.

    Returns:
        first: Row of the first member of each selected pair.
        second: Row of the second member of each selected pair.
    """
    has_two_clocks = clock[collectives.rank[first]] != clock[collectives.rank[second]]
    first, second = first[has_two_clocks], second[has_two_clocks]
    pair = group_rows(collectives.rank[first], collectives.rank[second])
    first_end_ns, second_end_ns = collectives.end_ns[first], collectives.end_ns[second]
    is_steady = ~is_unsteady(pair, first_end_ns - second_end_ns, first_end_ns)
    return first[is_steady], second[is_steady]


def is_unsteady(pair: Groups, difference_ns: Ints, time_ns: Ints) -> Bools:
    """Return a mask of the rows that belong to rank pairs whose end times drift too far apart.

    The difference between two end times may change only as much as drift explains. The mask is True
    for all rows of a pair if its largest minus its smallest difference exceeds ``LEAVE_NS + DRIFT *
    duration``, where duration is the time from its first to its last row.

    Args:
        pair: Rows grouped by rank pair.
        difference_ns: Difference between the two end times of each row.
        time_ns: Time of each row.
    """
    low, high = group_extents(pair.of_row, len(pair), difference_ns, difference_ns)
    first_ns, last_ns = group_extents(pair.of_row, len(pair), time_ns, time_ns)
    varies = high - low > LEAVE_NS + DRIFT * (last_ns - first_ns)
    return np.asarray(varies[pair.of_row], bool)
