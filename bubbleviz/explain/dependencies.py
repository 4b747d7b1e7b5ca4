"""Dependencies: which results each operation takes, by virtual stage and microbatch.

The F of a virtual stage takes the result of the F on the stage before it, and a B takes the result
of the B on the stage after it, both of the same microbatch. A B also takes the result of its F, and
a W takes the result of its B::

    virtual stage 0   F3 ──┐                    ┌─> B3 ──> W3
    virtual stage 1        └─> F3 ──> B3 ──> W3 │
                                      └─────────┘
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bubbleviz.align.arrivals import NEVER
from bubbleviz.count.rank_slices import list_stages_and_pipelines
from bubbleviz.model.columns import NONE, Bools, Ints, Table
from bubbleviz.model.grouping import (
    find_distinct,
    find_positions,
    group_rows,
    lookup_values,
    sort_rows,
)
from bubbleviz.model.intervals import group_latest
from bubbleviz.model.operations import Operations, Rank
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import CHAINED, Phase


@dataclass(frozen=True, eq=False, repr=False)
class Dependencies(Table):
    """Pairs of rows of operations, or of the work of a run.

    Attributes:
        after: Row that starts once the other one has ended, ascending for operations.
        before: Row that must have ended: the producer of an input. Among indistinguishable
            replicas, it is the last one to end before the other started, else the first to end.
    """

    after: Ints
    before: Ints

    def is_remote(self, rank: Ints) -> Bools:
        """Return a mask of the pairs whose rows ran on different ranks.

        Args:
            rank: Rank of each row.
        """
        return np.not_equal(rank[self.after], rank[self.before])


@dataclass(frozen=True, eq=False, repr=False)
class Inputs(Table):
    """What each operation waited for on other ranks, one row per operation.

    Attributes:
        ready_ns: Latest end of its producers on other ranks, or ``NEVER`` if no producer is known.
        producer: Row of the producer that ended then, or -1 if there is none.
        unknown: Whether the operation may take an input from an unknown other rank.
    """

    ready_ns: Ints
    producer: Ints
    unknown: Bools


def dependencies_of(operations: Operations, ranks: tuple[Rank, ...]) -> Dependencies:
    """Return the dependencies of operations on each other.

    Args:
        operations: Operations of all ranks, with iterations numbered over all of them.
        ranks: The ranks, by index.
    """
    row, phase, number, stage = _halves(operations)
    known = (number >= 0) & (stage >= 0)
    known &= (operations.has_span[row] == 1) & (operations.iteration[row] >= 0)
    if not known.all():
        row, phase, number, stage = row[known], phase[known], number[known], stage[known]
    pipeline = list_stages_and_pipelines(ranks)[1]
    microbatch = group_rows(
        pipeline[operations.rank[row]], operations.iteration[row], operations.sequence[row], number
    ).of_row
    stages = int(stage.max(initial=NONE)) + 1
    forward, backward = phase == Phase.F, phase == Phase.B
    own = np.flatnonzero(backward)
    gives = np.flatnonzero((phase != Phase.W) & (operations.occurrence[row] == 0))
    # A number of the result of each; those of a microbatch's backwards are followed by those of
    # its forwards.
    result = (2 * microbatch + forward) * stages + stage
    # Forwards take from the stage before, backwards from that behind, a W from its own backward;
    # and each backward from its own forward.
    beside = result + backward - forward
    beside[(forward & (stage == 0)) | (backward & (stage == stages - 1))] = NONE
    second = np.full(len(row), NONE, np.int64)
    before = _producers(
        operations,
        (row[gives], result[gives]),
        (np.concatenate((row, row[own])), np.concatenate((beside, result[own] + stages))),
    )
    first, second[own] = before[: len(row)], before[len(row) :]
    # In order of the rows that take something.
    taken = np.stack((np.minimum(first, second), np.maximum(first, second)), axis=1)
    after, before = np.repeat(row, 2), taken.reshape(-1)
    pairs = np.flatnonzero((before != NONE) & (before != after))
    after, before = after[pairs], before[pairs]
    if (row[1:] <= row[:-1]).any():
        order = sort_rows(after, before)
        after, before = after[order], before[order]
    return Dependencies(after, before)


def _halves(operations: Operations) -> tuple[Ints, Ints, Ints, Ints]:
    """Split operations into forwards and backwards.

    An ``FB`` is one of each, and a fused backward counts as a backward.

    Returns:
        The row of the operation, phase, microbatch and virtual stage of each half.
    """
    phase, stage, microbatch = operations.phase, operations.virtual_stage, operations.microbatch
    single = np.flatnonzero(mask_phases(phase, (Phase.F, Phase.B, Phase.BW, Phase.W)))
    alone = phase[single].astype(np.int64)
    alone[alone == Phase.BW] = Phase.B
    halves = single, alone, microbatch[single], stage[single]
    both = np.flatnonzero(phase == Phase.FB)
    if not len(both):
        return halves
    placed = np.flatnonzero(stage >= 0)
    behind = lookup_values(
        (operations.rank[placed], operations.chunk[placed]),
        stage[placed],
        (operations.rank[both], operations.second_chunk[both]),
    )
    forward, backward = (np.full(len(both), half, np.int64) for half in (Phase.F, Phase.B))
    return (
        np.concatenate((single, both, both)),
        np.concatenate((alone, forward, backward)),
        np.concatenate((halves[2], microbatch[both], operations.second_microbatch[both])),
        np.concatenate((halves[3], stage[both], behind)),
    )


def _producers(
    operations: Operations, produced: tuple[Ints, Ints], consumed: tuple[Ints, Ints]
) -> Ints:
    """Return the producer of each consumer's input, or -1 if there is none.

    If several operations produce the same result, as replicas do, it is the nearest one in time
    (see :func:`_find_nearest`).

    Args:
        operations: Operations of all ranks.
        produced: Rows of the producers, and the ids of their results.
        consumed: Rows of the consumers, and the ids of their inputs; -1 for no input.
    """
    (producer, produced_id), (consumer, required_id) = produced, consumed
    producer_of = lookup_values((produced_id,), producer, (required_id,))
    if len(find_distinct(produced_id)) < len(produced_id):
        results = group_rows(produced_id)
        is_ambiguous = (np.bincount(results.of_row) > 1)[results.of_row]
        ambiguous_ids = find_distinct(produced_id[is_ambiguous])
        needs_ambiguous = find_positions(ambiguous_ids, required_id) != NONE
        producer_of[needs_ambiguous] = _find_nearest(
            operations,
            (producer[is_ambiguous], produced_id[is_ambiguous]),
            (consumer[needs_ambiguous], required_id[needs_ambiguous]),
        )
    return producer_of


def _find_nearest(
    operations: Operations, produced: tuple[Ints, Ints], consumed: tuple[Ints, Ints]
) -> Ints:
    """Return the nearest producer of each consumer's input, or -1 if there is none.

    It is the last one to end before the consumer starts, here producer 2. If none ends before, it
    is the first to end after::

        end of producer 1  end of producer 2  start of the consumer  end of producer 3
                                 └────────────────┘

    Args:
        operations: Operations of all ranks.
        produced: Rows of the producers, and the ids of their results.
        consumed: Rows of the consumers, and the ids of their inputs.
    """
    (producer, produced_id), (consumer, required_id) = produced, consumed
    producer_of = np.full(len(consumer), NONE, np.int64)
    result_id = np.concatenate((produced_id, required_id))
    # An operation that receives inside itself may begin before its input is ready.
    needed_ns = np.maximum(operations.start_ns[consumer], operations.received_ns[consumer])
    time_ns = np.concatenate((operations.end_ns[producer], needed_ns))
    is_consumer = np.arange(len(result_id)) >= len(producer)
    order = sort_rows(result_id, time_ns, is_consumer)
    count, place = len(order), np.arange(len(order))
    is_producer = ~is_consumer[order]
    last = np.maximum.accumulate(np.where(is_producer, place, NONE))
    following = np.minimum.accumulate(np.where(is_producer, place, count)[::-1])[::-1]
    # The last one before a consumer overrides the first one after it.
    for nearest in (following, last):
        consumers = np.flatnonzero((nearest >= 0) & (nearest < count) & ~is_producer)
        has_same_id = result_id[order[nearest[consumers]]] == result_id[order[consumers]]
        consumers = consumers[has_same_id]
        producer_of[order[consumers] - len(producer)] = producer[order[nearest[consumers]]]
    return producer_of


def inputs_of(
    operations: Operations,
    dependencies: Dependencies,
    *,
    stages_known: bool = True,
    passing: bool = True,
    ends_early: bool = False,
) -> Inputs:
    """Return when the inputs that operations take from other ranks were ready.

    Args:
        operations: Operations of all ranks.
        dependencies: Dependencies between them.
        stages_known: Whether the virtual stages of the operations are known to be right.
        passing: Whether operations of several ranks of the run take inputs from other ranks.
        ends_early: Whether the last stage may take inputs from later stages that were not recorded.
    """
    remote = dependencies.take(dependencies.is_remote(operations.rank))
    count = len(operations)
    end_ns = operations.end_ns[remote.before]
    ready_ns = group_latest(remote.after, count, end_ns, NEVER)
    producer = np.full(count, NONE, np.int64)
    last = np.flatnonzero(end_ns == ready_ns[remote.after])[::-1]
    producer[remote.after[last]] = remote.before[last]
    taking = mask_phases(operations.phase, (*CHAINED, Phase.FB))
    unknown: Bools = taking & (operations.virtual_stage < 0 if stages_known else True) & passing
    if ends_early:
        last = operations.virtual_stage == operations.virtual_stage.max(initial=NONE)
        unknown |= last & mask_phases(operations.phase, (Phase.B, Phase.BW))
    return Inputs(ready_ns, producer, unknown)
