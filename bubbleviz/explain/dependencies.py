"""Dependencies: whose results each operation takes, by virtual stage and microbatch.

F of a virtual stage takes the result of the F on the stage before it, B that of the B on the stage
behind it, of the same microbatch; a B takes that of its own F too, and a W that of its own B::

    virtual stage 0   F3 ──┐                    ┌─> B3 ──> W3
    virtual stage 1        └─> F3 ──> B3 ──> W3 │
                                      └─────────┘
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bubbleviz.align.waits import NEVER
from bubbleviz.count.rank_iterations import stage_and_pipeline
from bubbleviz.model.columns import NONE, Bools, Ints, Table
from bubbleviz.model.grouping import distinct, found_in, groups_of, looked_up, sorted_rows
from bubbleviz.model.intervals import group_latest
from bubbleviz.model.operations import Operations, Rank
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import PASSED_ON, Phase


@dataclass(frozen=True, eq=False, repr=False)
class Dependencies(Table):
    """Pairs of rows, of operations or of the work of a run.

    Attributes:
        after: what begins once the other has ended; for operations in this order.
        before: the other: of an operation's result the producer; among indistinguishable replicas,
            the last to finish before the other started, else the first to finish.
    """

    after: Ints
    before: Ints

    def remote(self, rank: Ints) -> Bools:
        """Tell which rows ran on different ranks; ``rank`` is that of each row."""
        return np.not_equal(rank[self.after], rank[self.before])


@dataclass(frozen=True, eq=False, repr=False)
class Inputs(Table):
    """What each operation waited for on other ranks; one row per operation.

    Attributes:
        ready_ns: the latest end of its producers on other ranks; ``NEVER`` where it has none, or
            none is known.
        producer: row of the producer that ended then; -1 none.
        unknown: whether it may take one from another rank, and nothing shows of which.
    """

    ready_ns: Ints
    producer: Ints
    unknown: Bools


def dependencies_of(operations: Operations, ranks: tuple[Rank, ...]) -> Dependencies:
    """Return the dependencies of operations on each other.

    Args:
        operations: of all ranks, ``iteration`` counted over all of them.
        ranks: by number.
    """
    row, phase, number, stage = _halves(operations)
    known = (number >= 0) & (stage >= 0)
    known &= (operations.has_span[row] == 1) & (operations.iteration[row] >= 0)
    if not known.all():
        row, phase, number, stage = row[known], phase[known], number[known], stage[known]
    pipeline = stage_and_pipeline(ranks)[1]
    microbatch = groups_of(
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
        order = sorted_rows(after, before)
        after, before = after[order], before[order]
    return Dependencies(after, before)


def _halves(operations: Operations) -> tuple[Ints, Ints, Ints, Ints]:
    """Return forwards and backwards: an ``FB`` as both, a fused backward as a backward.

    Each with the row of its operation, its phase, microbatch and virtual stage.
    """
    phase, stage, microbatch = operations.phase, operations.virtual_stage, operations.microbatch
    single = np.flatnonzero(among(phase, (Phase.F, Phase.B, Phase.BW, Phase.W)))
    alone = phase[single].astype(np.int64)
    alone[alone == Phase.BW] = Phase.B
    halves = single, alone, microbatch[single], stage[single]
    both = np.flatnonzero(phase == Phase.FB)
    if not len(both):
        return halves
    placed = np.flatnonzero(stage >= 0)
    behind = looked_up(
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


def _producers(operations: Operations, given: tuple[Ints, Ints], taken: tuple[Ints, Ints]) -> Ints:
    """Return the producer that each consumer takes a result from; -1 none.

    Args:
        operations: of all ranks.
        given: rows of producers, and the number of what each gives.
        taken: rows of consumers, and the number of what each takes; -1 nothing.
    """
    (producer, gives), (consumer, takes) = given, taken
    before = looked_up((gives,), producer, (takes,))
    if len(distinct(gives)) < len(gives):
        results = groups_of(gives)
        several = (np.bincount(results.of_row) > 1)[results.of_row]
        some = found_in(distinct(gives[several]), takes) != NONE
        before[some] = _nearest(
            operations, (producer[several], gives[several]), (consumer[some], takes[some])
        )
    return before


def _nearest(operations: Operations, given: tuple[Ints, Ints], taken: tuple[Ints, Ints]) -> Ints:
    """Return the producer that each consumer waited for; -1 none.

    Producers and consumers of one result stand in order of time::

        end of producer 1  end of producer 2  start of the consumer  end of producer 3
                                 └────────────────┘
    """
    (producer, gives), (consumer, takes) = given, taken
    before = np.full(len(consumer), NONE, np.int64)
    number = np.concatenate((gives, takes))
    # An operation that receives inside itself may begin before its input is ready.
    taken_ns = np.maximum(operations.start_ns[consumer], operations.received_ns[consumer])
    time_ns = np.concatenate((operations.end_ns[producer], taken_ns))
    is_taken = np.arange(len(number)) >= len(producer)
    order = sorted_rows(number, time_ns, is_taken)
    place = np.arange(len(order))
    is_given = ~is_taken[order]
    last = np.maximum.accumulate(np.where(is_given, place, NONE))
    following = np.minimum.accumulate(np.where(is_given, place, len(order))[::-1])[::-1]
    for nearest in (following, last):
        inside = (nearest >= 0) & (nearest < len(order)) & ~is_given
        at = np.flatnonzero(inside)
        at = at[number[order[nearest[at]]] == number[order[at]]]
        before[order[at] - len(producer)] = producer[order[nearest[at]]]
    return before


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
        operations: of all ranks.
        dependencies: between these.
        stages_known: whether the virtual stages that operations have are those that they ran.
        passing: whether several ranks of the run have operations that take from other ranks.
        ends_early: whether the last stage may take from later ones, of which nothing was recorded.
    """
    remote = dependencies.take(dependencies.remote(operations.rank))
    count = len(operations)
    end_ns = operations.end_ns[remote.before]
    ready_ns = group_latest(remote.after, count, end_ns, NEVER)
    producer = np.full(count, NONE, np.int64)
    last = np.flatnonzero(end_ns == ready_ns[remote.after])[::-1]
    producer[remote.after[last]] = remote.before[last]
    taking = among(operations.phase, (*PASSED_ON, Phase.FB))
    unknown: Bools = taking & (operations.virtual_stage < 0 if stages_known else True) & passing
    if ends_early:
        last = operations.virtual_stage == operations.virtual_stage.max(initial=NONE)
        unknown |= last & among(operations.phase, (Phase.B, Phase.BW))
    return Inputs(ready_ns, producer, unknown)
