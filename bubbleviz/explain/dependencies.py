"""Dependencies: whose results each operation takes, by virtual stage and microbatch.

F of a virtual stage takes the result of the F on the stage before it, B that of the B on the stage
behind it, of the same microbatch; a B takes that of its own F too, and a W that of its own B::

    virtual stage 0   F3 ──┐                    ┌─> B3 ──> W3
    virtual stage 1        └─> F3 ──> B3 ──> W3 │
                                      └─────────┘
"""

from __future__ import annotations

import numpy as np

from bubbleviz.align.arrivals import NEVER
from bubbleviz.model.columns import NONE, Bools, Ints, Table
from bubbleviz.model.grouping import distinct, groups_of, looked_up
from bubbleviz.model.intervals import group_extents
from bubbleviz.model.operations import Operations, Rank
from bubbleviz.model.phases import PASSED_ON, Phase
from bubbleviz.model.sorting import sorted_rows
from bubbleviz.model.values import frozen


@frozen
class Dependencies(Table):
    """Pairs of operations, in order of ``after``.

    Attributes:
        after: row of the operation that takes the result.
        before: row of its producer; among indistinguishable replicas, the last to finish before
            the other started, else the first to finish.
        remote: whether they ran on different ranks.
    """

    after: Ints
    before: Ints
    remote: Bools


@frozen
class Inputs(Table):
    """What each operation waited for on other ranks; one row an operation.

    Attributes:
        ready_ns: the latest end of its producers on other ranks; ``NEVER`` where it has none, or
            none is known.
        producer: row of the producer that ended then; -1 none.
        unknown: whether it may take one from another rank, and nothing shows of which.
    """

    ready_ns: Ints
    producer: Ints
    unknown: Bools


@frozen
class _Halves(Table):
    """Forwards and backwards, an ``FB`` being one of each."""

    row: Ints
    phase: Ints
    microbatch: Ints
    virtual_stage: Ints


def dependencies_of(operations: Operations, ranks: tuple[Rank, ...]) -> Dependencies:
    """Return the dependencies of operations on each other.

    Args:
        operations: of all ranks, ``iteration`` counted over all of them.
        ranks: by number.
    """
    halves = _halves(operations)
    known = (halves.microbatch >= 0) & (halves.virtual_stage >= 0)
    known &= (operations.has_span[halves.row] == 1) & (operations.iteration[halves.row] >= 0)
    halves = halves.take(known)
    pipeline = np.array([NONE if r.pipeline is None else r.pipeline for r in ranks], np.int64)
    after, wanted, code = [], [], _codes(operations, halves, pipeline, halves.phase, 0)
    for phase, producing, step in (
        (Phase.F, Phase.F, -1),
        (Phase.B, Phase.B, 1),
        (Phase.B, Phase.F, 0),
        (Phase.W, Phase.B, 0),
    ):
        takers = halves.take(halves.phase == phase)
        after.append(takers.row)
        wanted.append(_codes(operations, takers, pipeline, np.full(len(takers), producing), step))
    first = operations.occurrence[halves.row] == 0
    return _matched(operations, halves.row[first], code[:, first], after, wanted)


def _halves(operations: Operations) -> _Halves:
    """Return forwards and backwards: an ``FB`` as both, a fused backward as a backward."""
    phase = operations.phase
    single = np.flatnonzero(np.isin(phase, (Phase.F, Phase.B, Phase.BW, Phase.W)))
    both = np.flatnonzero(phase == Phase.FB)
    placed = operations.virtual_stage >= 0
    behind = looked_up(
        (operations.rank[placed], operations.chunk[placed]),
        operations.virtual_stage[placed],
        (operations.rank[both], operations.second_chunk[both]),
    )
    alone = np.where(phase[single] == Phase.BW, Phase.B, phase[single])
    forward, backward = np.full(len(both), Phase.F), np.full(len(both), Phase.B)
    stage, microbatch = operations.virtual_stage, operations.microbatch
    return _Halves(
        row=np.concatenate((single, both, both)),
        phase=np.concatenate((alone, forward, backward)).astype(np.int64),
        microbatch=np.concatenate(
            (microbatch[single], microbatch[both], operations.second_microbatch[both])
        ),
        virtual_stage=np.concatenate((stage[single], stage[both], behind)),
    )


def _codes(operations: Operations, halves: _Halves, pipeline: Ints, phase: Ints, step: int) -> Ints:
    """Return key columns: those of the halves, with another phase and some virtual stages on."""
    row = halves.row
    return np.stack(
        (
            pipeline[operations.rank[row]],
            operations.iteration[row],
            operations.sequence[row],
            halves.microbatch,
            phase,
            halves.virtual_stage + step,
        )
    )


def _matched(
    operations: Operations, producer: Ints, code: Ints, after: list[Ints], wanted: list[Ints]
) -> Dependencies:
    """Return the pairs whose key columns agree; of several producers the one that was waited for.

    Producers and consumers of one key stand in order of time::

        end of producer 1  end of producer 2  start of the consumer  end of producer 3
                                 └────────────────┘
    """
    consumer = np.concatenate(after)
    number = groups_of(*np.concatenate((code, *wanted), axis=1)).of_row
    before = np.full(len(consumer), NONE, np.int64)
    # An operation that receives inside itself may begin before its input is ready.
    taken_ns = np.maximum(operations.start_ns, operations.received_ns)
    time_ns = np.concatenate((operations.end_ns[producer], taken_ns[consumer]))
    takes = np.arange(len(number)) >= len(producer)
    order = sorted_rows(number, time_ns, takes)
    place = np.arange(len(order))
    gives = ~takes[order]
    last = np.maximum.accumulate(np.where(gives, place, NONE))
    following = np.minimum.accumulate(np.where(gives, place, len(order))[::-1])[::-1]
    for nearest in (following, last):
        inside = (nearest >= 0) & (nearest < len(order)) & takes[order]
        at = np.flatnonzero(inside)
        at = at[number[order[nearest[at]]] == number[order[at]]]
        before[order[at] - len(producer)] = producer[order[nearest[at]]]
    pairs = np.flatnonzero((before >= 0) & (before != consumer))
    pairs = pairs[sorted_rows(consumer[pairs], before[pairs])]
    consumer, before = consumer[pairs], before[pairs]
    return Dependencies(consumer, before, operations.rank[consumer] != operations.rank[before])


def inputs_of(
    operations: Operations, dependencies: Dependencies, *, stages_known: bool = True
) -> Inputs:
    """Return when the inputs that operations take from other ranks were ready.

    Args:
        operations: of all ranks.
        dependencies: between these.
        stages_known: whether the virtual stages that operations have are those that they ran.
    """
    remote = dependencies.take(dependencies.remote)
    count = len(operations)
    end_ns = operations.end_ns[remote.before]
    ready_ns = group_extents(remote.after, count, end_ns, end_ns)[1]
    waits = np.zeros(count, bool)
    waits[remote.after] = True
    producer = np.full(count, NONE, np.int64)
    last = np.flatnonzero(end_ns == ready_ns[remote.after])[::-1]
    producer[remote.after[last]] = remote.before[last]
    taking = np.isin(operations.phase, (*PASSED_ON, Phase.FB))
    unknown: Bools = taking & (operations.virtual_stage < 0 if stages_known else True)
    unknown &= len(distinct(operations.rank[taking])) > 1
    return Inputs(np.where(waits, ready_ns, NEVER), producer, unknown)
