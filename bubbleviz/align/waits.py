"""Waits: how long every microbatch is away from a stage, on the clock of its rank alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bubbleviz.align.arrivals import arrivals
from bubbleviz.model.columns import NONE, Ints, Table
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.operations import RankOperations
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


def waits(operations: RankOperations, *, doubtful: bool = False) -> Waits:
    """Return the waits of all first occurrences with a device span; see :func:`passages`."""
    every = passages(operations, doubtful=doubtful)
    return Waits(
        rank=every.rank,
        chunk=every.chunk,
        microbatch=every.microbatch,
        sequence=every.sequence,
        iteration=every.iteration,
        waited_ns=every.returned_ns - every.left_ns,
        worked_ns=every.forward_ns + every.backward_ns,
    )


def passages(operations: RankOperations, *, doubtful: bool = False) -> Passages:
    """Return the passages of all first occurrences with a device span.

    Args:
        operations: of all ranks.
        doubtful: whether to take the start of a span for the arrival of its input where a receive
            that may be its own ends later.
    """
    # Kernels of a span before its input arrives are neither waiting nor work on it. Where a receive
    # that may be its own, or another one's, ends after its start, the arrival is unknown.
    inputs = arrivals(operations)
    ready_ns = np.maximum(operations.start_ns, inputs.exact_ns)
    busy_ns = np.clip(operations.end_ns - ready_ns, 0, operations.busy_ns)
    usable = (operations.has_span == 1) & (operations.occurrence == 0)
    usable &= (inputs.latest_ns <= ready_ns) | doubtful
    # Of an operation that overlaps both, half is one of them.
    busy_ns //= np.where(operations.phase == Phase.FB, 2, 1)
    forward = np.flatnonzero(usable & np.isin(operations.phase, (Phase.F, Phase.FB)))
    backward = np.flatnonzero(usable & np.isin(operations.phase, (*_BACKWARD, Phase.FB)))
    both = np.concatenate((forward, backward))
    microbatch, chunk = forward_and_backward(operations, forward, backward)
    key = np.stack(
        (
            operations.rank[both],
            chunk,
            microbatch,
            operations.sequence[both],
            operations.iteration[both],
        )
    )
    number = groups_of(*key).of_row
    of_forward, of_backward = number[: len(forward)], number[len(forward) :]
    _, at_forward, at_backward = np.intersect1d(of_forward, of_backward, return_indices=True)
    forward, backward = forward[at_forward], backward[at_backward]
    rank, chunk, microbatch, sequence, iteration = key[:, at_forward]
    return Passages(
        rank=rank,
        chunk=chunk,
        microbatch=microbatch,
        sequence=sequence,
        iteration=iteration,
        left_ns=operations.end_ns[forward],
        returned_ns=ready_ns[backward],
        forward_ns=busy_ns[forward],
        backward_ns=busy_ns[backward],
    )


def usual_waits(operations: RankOperations, *, doubtful: bool = False) -> Waits:
    """Return the median wait of every microbatch of each (rank, chunk), as :func:`waits` do."""
    every = waits(operations, doubtful=doubtful)
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
    _, i, j = np.intersect1d(number[: len(upper)], number[len(upper) :], return_indices=True)
    return i, j
