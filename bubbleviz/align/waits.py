"""Waits: how long every microbatch is away from a stage, on the clock of its rank alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bubbleviz.align.arrivals import Arrivals
from bubbleviz.model.columns import NONE, Ints, Table
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.operations import RankOperations
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import Phase
from bubbleviz.model.sorting import sorted_rows
from bubbleviz.model.values import frozen

_BACKWARD = (Phase.B, Phase.BW)


def forward_and_backward(
    operations: RankOperations, forward: Ints, backward: Ints
) -> tuple[Ints, Ints]:
    """Return (microbatch, chunk) that the rows run forward, then those that they run backward.

    An FB is the forward of its first microbatch and the backward of its second.
    """
    both = operations.phase[backward] == Phase.FB
    microbatch = np.where(
        both, operations.second_microbatch[backward], operations.microbatch[backward]
    )
    chunk = np.where(both, operations.second_chunk[backward], operations.chunk[backward])
    return (
        np.concatenate((operations.microbatch[forward], microbatch)),
        np.concatenate((operations.chunk[forward], chunk)),
    )


@frozen
class Waits(Table):
    """How long a microbatch is away from a (rank, chunk).

    Attributes:
        rank: the rank.
        chunk: model chunk, as named.
        microbatch: the microbatch.
        sequence: sequence split; -1 none.
        iteration: the rank's own iteration; -1 where it is a median over these (and splits).
        waited_ns: from the end of its F until its gradient is there, else to the start of its B.
        worked_ns: how long these two keep the rank busy.
    """

    rank: Ints
    chunk: Ints
    microbatch: Ints
    sequence: Ints
    iteration: Ints
    waited_ns: Ints
    worked_ns: Ints


@frozen
class Passages(Table):
    """When a microbatch leaves a (rank, chunk) and when it is back.

    Attributes:
        rank: the rank.
        chunk: model chunk, as named.
        microbatch: the microbatch.
        sequence: sequence split; -1 none.
        iteration: the rank's own iteration.
        left_ns: end of its F.
        returned_ns: when its gradient is there, else start of its B.
        forward_ns: how long its F keeps the rank busy.
        backward_ns: how long its B does.
    """

    rank: Ints
    chunk: Ints
    microbatch: Ints
    sequence: Ints
    iteration: Ints
    left_ns: Ints
    returned_ns: Ints
    forward_ns: Ints
    backward_ns: Ints


def waits(operations: RankOperations, inputs: Arrivals, *, doubtful: bool = False) -> Waits:
    """Return the waits of all first occurrences with a device span; see :func:`passages`."""
    every = passages(operations, inputs, doubtful=doubtful)
    return Waits(
        rank=every.rank,
        chunk=every.chunk,
        microbatch=every.microbatch,
        sequence=every.sequence,
        iteration=every.iteration,
        waited_ns=every.returned_ns - every.left_ns,
        worked_ns=every.forward_ns + every.backward_ns,
    )


def passages(operations: RankOperations, inputs: Arrivals, *, doubtful: bool = False) -> Passages:
    """Return the passages of all first occurrences with a device span.

    Args:
        operations: of all ranks.
        inputs: when their inputs were there.
        doubtful: whether to take the start of a span for the arrival of its input where a receive
            that may be its own ends later.
    """
    usable = (operations.has_span == 1) & (operations.occurrence == 0)
    if not doubtful:
        # Where a receive that may be its own, or another one's, ends after its start, the arrival
        # is unknown.
        usable &= (inputs.latest_ns <= inputs.exact_ns) | (inputs.latest_ns <= operations.start_ns)
    forward = np.flatnonzero(usable & among(operations.phase, (Phase.F, Phase.FB)))
    backward = np.flatnonzero(usable & among(operations.phase, (*_BACKWARD, Phase.FB)))
    both = np.concatenate((forward, backward))
    microbatch, chunk = forward_and_backward(operations, forward, backward)
    key = (
        operations.rank[both],
        chunk,
        microbatch,
        operations.sequence[both],
        operations.iteration[both],
    )
    at_forward, at_backward = _first_pairs(groups_of(*key).of_row, len(forward))
    forward, backward = forward[at_forward], backward[at_backward]
    # Kernels of a span before its input arrives are neither waiting nor work on it.
    forward_ns, _ = _worked(operations, inputs, forward)
    backward_ns, returned_ns = _worked(operations, inputs, backward)
    rank, chunk, microbatch, sequence, iteration = (column[at_forward] for column in key)
    return Passages(
        rank=rank,
        chunk=chunk,
        microbatch=microbatch,
        sequence=sequence,
        iteration=iteration,
        left_ns=operations.end_ns[forward],
        returned_ns=returned_ns,
        forward_ns=forward_ns,
        backward_ns=backward_ns,
    )


def _worked(operations: RankOperations, inputs: Arrivals, rows: Ints) -> tuple[Ints, Ints]:
    """Return how long operations keep their rank busy once their input is there, and when it is.

    Of an operation that overlaps a forward and a backward, half is one of them.
    """
    ready_ns = np.maximum(operations.start_ns[rows], inputs.exact_ns[rows])
    busy_ns = np.clip(operations.end_ns[rows] - ready_ns, 0, operations.busy_ns[rows])
    return busy_ns // np.where(operations.phase[rows] == Phase.FB, 2, 1), ready_ns


def _first_pairs(number: Ints, count: int) -> tuple[Ints, Ints]:
    """Return the first row of each number among the first rows, and among the others.

    Args:
        number: of each row.
        count: of the first rows.
    """
    numbers = int(number.max(initial=NONE)) + 1
    firsts = []
    for rows in (number[:count], number[count:]):
        first = np.full(numbers, NONE, np.int64)
        # Of rows with one number the last that is written stays: the first.
        first[rows[::-1]] = np.arange(len(rows))[::-1]
        firsts.append(first)
    common = (firsts[0] >= 0) & (firsts[1] >= 0)
    return firsts[0][common], firsts[1][common]


def usual_waits(operations: RankOperations, inputs: Arrivals, *, doubtful: bool = False) -> Waits:
    """Return the median wait of every microbatch of each (rank, chunk), as :func:`waits` do."""
    every = waits(operations, inputs, doubtful=doubtful)
    groups = groups_of(every.rank, every.chunk, every.microbatch)
    none = np.full(len(groups), NONE, np.int64)
    return Waits(
        rank=every.rank[groups.first],
        chunk=every.chunk[groups.first],
        microbatch=every.microbatch[groups.first],
        sequence=none,
        iteration=none.copy(),
        waited_ns=_medians(groups.of_row, every.waited_ns, len(groups)),
        worked_ns=_medians(groups.of_row, every.worked_ns, len(groups)),
    )


def waits_of_neighbours(every: Waits) -> Iterator[tuple[int, Waits, Waits]]:
    """Yield (virtual stage, its waits, those of the next one) for each but the last.

    Args:
        every: waits of which ``chunk`` is the virtual stage; -1 unknown.
    """
    for stage in range(int(every.chunk.max(initial=0))):
        yield stage, every.take(every.chunk == stage), every.take(every.chunk == stage + 1)


def _medians(group: Ints, values: Ints, groups: int) -> Ints:
    """Return the lower median of each group's values."""
    order = sorted_rows(group, values)
    counts = np.bincount(group, minlength=groups)
    first = np.concatenate(([0], np.cumsum(counts)[:-1])).astype(np.int64)
    return values[order][first + (counts - 1) // 2] if len(values) else values


def following(upper: Waits, lower: Waits) -> tuple[Ints, Ints]:
    """Return rows of waits, ``chunk`` a virtual stage, and those of the next one that they hold.

    That is, of the same microbatch, sequence split and iteration.
    """
    number = groups_of(
        np.concatenate((upper.chunk + 1, lower.chunk)),
        *(
            np.concatenate((getattr(upper, name), getattr(lower, name)))
            for name in ("iteration", "microbatch", "sequence")
        ),
    ).of_row
    return _first_pairs(number, len(upper))
