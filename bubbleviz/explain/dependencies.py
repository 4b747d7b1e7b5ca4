"""Find the operations whose results each operation needs, by virtual stage and microbatch.

The operations of a microbatch depend on each other as follows:

- An F needs the result of the F on the previous virtual stage.
- A B needs the result of the B on the next virtual stage, and the result of the F on its own stage.
- A W needs the result of the B on its own stage.

::

    virtual stage 0   F3 ──┐                    ┌─> B3 ──> W3
    virtual stage 1        └─> F3 ──> B3 ──> W3 │
                                      └─────────┘

:func:`find_dependencies` finds these pairs in three steps:

1. Split operations that contain a forward and a backward (:func:`_split_halves`).
2. Give each result an id, and compute the ids of the inputs (:func:`_number_results`). With S
   stages, the ids of a microbatch are consecutive::

       result of     B 0    B 1   ...  B S-1    F 0    F 1   ...  F S-1
       id             0      1    ...   S-1      S     S+1   ...  2S-1    (+ 2S x microbatch)

3. Look up the producer of each input by its id. If replicas have the same names, several operations
   have the same id. Then the nearest one in time is used (:func:`_find_nearest`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bubbleviz.align.arrivals import NEVER
from bubbleviz.count.rank_slices import list_stages_and_pipelines
from bubbleviz.model.columns import NONE, Bools, Ints, Table, join_tables
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
    """Pairs of a row and one of its predecessors, in the operations table or the work table.

    Attributes:
        successor: Row that can start only after its predecessor has ended. This column is ascending
            if the rows are operations.
        predecessor: Row that must have ended, because it produces an input of the successor. If
            several replicas could be the producer, it is the one that ended last before the
            successor started. If none had ended by then, it is the one that ended first.
    """

    successor: Ints
    predecessor: Ints

    def is_remote(self, rank: Ints) -> Bools:
        """Return a mask of the pairs whose rows ran on different ranks.

        Args:
            rank: Rank of each row.
        """
        return np.not_equal(rank[self.successor], rank[self.predecessor])


@dataclass(frozen=True, eq=False, repr=False)
class Inputs(Table):
    """Inputs that operations receive from other ranks, one row per operation.

    Attributes:
        ready_ns: Latest end of the producers on other ranks, or ``NEVER`` if no producer is known.
        producer: Row of the producer on another rank that ended last, or -1 if no producer is
            known. The smaller row wins ties.
        unknown: Mask of the operations whose input may come from an unknown operation on another
            rank.
    """

    ready_ns: Ints
    producer: Ints
    unknown: Bools


def find_dependencies(operations: Operations, ranks: tuple[Rank, ...]) -> Dependencies:
    """Find the dependencies between operations.

    An operation has no dependencies if it ran no GPU work, or if its iteration, microbatch or
    virtual stage is unknown. If an operation ran several times in an iteration, only its first run
    is a producer.

    Args:
        operations: Operations of all ranks, with iterations numbered consistently over all ranks.
        ranks: The ranks, by index.
    """
    halves = _split_halves(operations)
    is_known = (halves.microbatch >= 0) & (halves.virtual_stage >= 0)
    is_known &= operations.has_span[halves.row] == 1
    is_known &= operations.iteration[halves.row] >= 0
    if not is_known.all():
        halves = halves.take(is_known)
    row, is_backward = halves.row, halves.phase == Phase.B
    _, pipeline = list_stages_and_pipelines(ranks)
    result_id, input_id, forward_id = _number_results(operations, halves, pipeline)
    produces = (halves.phase != Phase.W) & (operations.occurrence[row] == 0)
    producer_of = _find_producers(
        operations,
        (row[produces], result_id[produces]),
        (
            np.concatenate((row, row[is_backward])),
            np.concatenate((input_id, forward_id[is_backward])),
        ),
    )
    return _pair_with_producers(row, is_backward, producer_of)


def _pair_with_producers(row: Ints, is_backward: Bools, producer_of: Ints) -> Dependencies:
    """Return (operation, producer) pairs, sorted by operation, then by producer.

    A half is the forward or the backward part of an operation; an operation that contains both has
    two halves. A half can have two producers: the producer of its input and, if it is a backward,
    its own forward. Inputs whose producer is unknown are left out, as are inputs that the operation
    produced itself.

    Args:
        row: Operation row of each half.
        is_backward: Mask of the halves that are backwards.
        producer_of: Producers, or -1 if unknown. The producer of each half's input comes first,
            followed by the forward that belongs to each backward half.
    """
    forward_of = np.full(len(row), NONE, np.int64)
    forward_of[is_backward] = producer_of[len(row) :]
    # Two pairs per half, sorted by operation.
    producers = np.sort(np.stack((producer_of[: len(row)], forward_of), axis=1), axis=1)
    consumer, producer = np.repeat(row, 2), producers.reshape(-1)
    pairs = np.flatnonzero((producer != NONE) & (producer != consumer))
    consumer, producer = consumer[pairs], producer[pairs]
    if (row[1:] <= row[:-1]).any():
        order = sort_rows(consumer, producer)
        consumer, producer = consumer[order], producer[order]
    return Dependencies(consumer, producer)


@dataclass(frozen=True, eq=False, repr=False)
class _Halves(Table):
    """The forward and backward parts of operations (halves), one row per part.

    Attributes:
        row: Row of the operation.
        phase: ``F``, ``B`` or ``W``. A fused backward is a ``B``.
        microbatch: Number of the microbatch.
        virtual_stage: Virtual stage, or -1 if unknown.
    """

    row: Ints
    phase: Ints
    microbatch: Ints
    virtual_stage: Ints


def _number_results(
    operations: Operations, halves: _Halves, pipeline: Ints
) -> tuple[Ints, Ints, Ints]:
    """Compute the id of the result that each half produces, and the id of the result that it needs.

    Args:
        operations: Operations of all ranks.
        halves: Forwards and backwards whose stage and microbatch are known.
        pipeline: Pipeline of each rank, or -1 if unknown.

    Returns:
        result_id: Id of each half's result; see the module docstring.
        input_id: Id of the result that each half needs. A forward needs the forward on the previous
            stage, a backward needs the backward on the next stage, and a W needs the B on the same
            stage. It is -1 if there is no previous or next stage.
        forward_id: Id of the forward's result on the same stage; valid only for backwards.
    """
    row, stage = halves.row, halves.virtual_stage
    microbatch = group_rows(
        pipeline[operations.rank[row]],
        operations.iteration[row],
        operations.sequence[row],
        halves.microbatch,
    ).of_row
    n_stages = int(stage.max(initial=NONE)) + 1
    is_forward, is_backward = halves.phase == Phase.F, halves.phase == Phase.B
    result_id = (2 * microbatch + is_forward) * n_stages + stage
    input_id = result_id + is_backward - is_forward
    input_id[(is_forward & (stage == 0)) | (is_backward & (stage == n_stages - 1))] = NONE
    return result_id, input_id, result_id + n_stages


def _split_halves(operations: Operations) -> _Halves:
    """Split operations into halves: their forward and backward parts.

    An ``FB`` operation has two halves, and an F, B, BW or W has one. All other operations are left
    out. A fused backward becomes a ``B``. The forwards of all ``FB`` operations come after the
    other halves, followed by the backwards of the ``FB`` operations.
    """
    phase, stage, microbatch = operations.phase, operations.virtual_stage, operations.microbatch
    single = np.flatnonzero(mask_phases(phase, (Phase.F, Phase.B, Phase.BW, Phase.W)))
    single_phase = phase[single].astype(np.int64)
    single_phase[single_phase == Phase.BW] = Phase.B
    halves = _Halves(single, single_phase, microbatch[single], stage[single])
    pairs = np.flatnonzero(phase == Phase.FB)
    if not len(pairs):
        return halves
    backward_stage = _find_backward_stages(operations, pairs)
    forward, backward = (np.full(len(pairs), half, np.int64) for half in (Phase.F, Phase.B))
    forwards = _Halves(pairs, forward, microbatch[pairs], stage[pairs])
    backwards = _Halves(pairs, backward, operations.second_microbatch[pairs], backward_stage)
    return join_tables((halves, forwards, backwards))


def _find_backward_stages(operations: Operations, pairs: Ints) -> Ints:
    """Return the virtual stage of the backward in each FB operation, or -1 if it is unknown.

    An FB operation runs the forward of one chunk and the backward of another (``second_chunk``).
    The virtual stage of the second chunk is taken from another operation with the same rank and
    chunk.

    Args:
        operations: Operations of all ranks.
        pairs: Rows of the FB operations.
    """
    has_stage = np.flatnonzero(operations.virtual_stage >= 0)
    return lookup_values(
        (operations.rank[has_stage], operations.chunk[has_stage]),
        operations.virtual_stage[has_stage],
        (operations.rank[pairs], operations.second_chunk[pairs]),
    )


def _find_producers(
    operations: Operations, produced: tuple[Ints, Ints], consumed: tuple[Ints, Ints]
) -> Ints:
    """Return the producer of each consumer's input, or -1 if there is none.

    If several operations produce the same result, as in replicas, the nearest one in time is used
    (see :func:`_find_nearest`).

    Args:
        operations: Operations of all ranks.
        produced: Two arrays: the rows of the producers and the ids of their results.
        consumed: Two arrays: the rows of the consumers and the ids of their inputs. The id is -1 if
            there is no input.
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

    The nearest producer is the last one that ended at or before the start of the consumer. In the
    figure, this is producer 2. If no producer had ended by then, it is the first producer to end
    after the start::

        end of producer 1  end of producer 2  start of the consumer  end of producer 3
                                 └────────────────┘

    Args:
        operations: Operations of all ranks.
        produced: Two arrays: the rows of the producers and the ids of their results.
        consumed: Two arrays: the rows of the consumers and the ids of their inputs.
    """
    producer, consumer = produced[0], consumed[0]
    order, result_id = _sort_by_time(operations, produced, consumed)
    is_producer = order < len(producer)
    position = np.arange(len(order))
    last = np.maximum.accumulate(np.where(is_producer, position, NONE))
    following = np.where(is_producer, position, len(order))
    following = np.minimum.accumulate(following[::-1])[::-1]
    producer_of = np.full(len(consumer), NONE, np.int64)
    # The last producer before a consumer overrides the first one after it.
    for nearest in (following, last):
        exists = (nearest >= 0) & (nearest < len(order))
        rows = np.flatnonzero(exists & ~is_producer)
        rows = rows[result_id[nearest[rows]] == result_id[rows]]
        producer_of[order[rows] - len(producer)] = producer[order[nearest[rows]]]
    return producer_of


def _sort_by_time(
    operations: Operations, produced: tuple[Ints, Ints], consumed: tuple[Ints, Ints]
) -> tuple[Ints, Ints]:
    """Merge the ends of producers and the starts of consumers, sorted by result id, then by time.

    At equal times, producers come first. A consumer that receives its input after its start is
    sorted by the end of this receive.

    Args:
        operations: Operations of all ranks.
        produced: Two arrays: the rows of the producers and the ids of their results.
        consumed: Two arrays: the rows of the consumers and the ids of their inputs.

    Returns:
        order: Indices in sorted order. With n producers, index i < n refers to producer i, and
            index i >= n refers to consumer i - n.
        result_id: Result id of each entry in ``order``.
    """
    (producer, produced_id), (consumer, required_id) = produced, consumed
    # An operation that contains its own receive may begin before its input is ready.
    needed_ns = np.maximum(operations.start_ns[consumer], operations.received_ns[consumer])
    time_ns = np.concatenate((operations.end_ns[producer], needed_ns))
    result_id = np.concatenate((produced_id, required_id))
    is_consumer = np.arange(len(result_id)) >= len(producer)
    order = sort_rows(result_id, time_ns, is_consumer)
    return order, result_id[order]


def find_inputs(
    operations: Operations,
    dependencies: Dependencies,
    *,
    stages_known: bool = True,
    passing: bool = True,
    ends_early: bool = False,
) -> Inputs:
    """Find each operation's last input from another rank: when it was ready, and its producer.

    An input is considered ready once its producer has ended. The result's mask ``unknown`` marks
    operations whose input may come from an unknown producer:

    - If ``passing`` is true: forwards and backwards whose virtual stage is unknown, or all forwards
      and backwards if ``stages_known`` is false.
    - If ``ends_early`` is true: the backwards of the last virtual stage.

    Args:
        operations: Operations of all ranks.
        dependencies: Dependencies between the operations.
        stages_known: Whether the virtual stages are consistent with all operations.
        passing: Whether operations on several ranks of the run receive inputs from other ranks.
        ends_early: Whether the last stage may receive inputs from later stages that were not
            recorded.
    """
    remote = dependencies.take(dependencies.is_remote(operations.rank))
    count = len(operations)
    end_ns = operations.end_ns[remote.predecessor]
    ready_ns = group_latest(remote.successor, count, end_ns, NEVER)
    producer = np.full(count, NONE, np.int64)
    last = np.flatnonzero(end_ns == ready_ns[remote.successor])[::-1]
    producer[remote.successor[last]] = remote.predecessor[last]
    taking = mask_phases(operations.phase, (*CHAINED, Phase.FB))
    unknown: Bools = taking & (operations.virtual_stage < 0 if stages_known else True) & passing
    if ends_early:
        last = operations.virtual_stage == operations.virtual_stage.max(initial=NONE)
        unknown |= last & mask_phases(operations.phase, (Phase.B, Phase.BW))
    return Inputs(ready_ns, producer, unknown)
