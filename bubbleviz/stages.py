"""The order of stages, told by each rank's own clock alone.

A microbatch goes down the pipeline and comes back, so on every rank the time from the end of
its F to the start of its B holds all that happens further down, and these times nest strictly::

    virtual stage 0   F├──────────────────────────┤B
    virtual stage 1      F├────────────────────┤B
    virtual stage 2         F├──────────────┤B

One sort of (rank, chunk) by that time gives stages, chunks and the direction of a V.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bubbleviz.columns import NONE, Ints
from bubbleviz.grouping import groups_of
from bubbleviz.model import Operations
from bubbleviz.phases import Phase

_BACKWARD = (Phase.B, Phase.BW)


@dataclass(frozen=True)
class VirtualStages:
    """Which (rank, chunk as named) holds which virtual stage; -1 where it cannot be told."""

    rank: Ints
    chunk: Ints
    virtual_stage: Ints


def forward_and_backward(
    operations: Operations, forward: Ints, backward: Ints
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


def waiting_times(operations: Operations) -> tuple[Ints, Ints, Ints, Ints]:
    """Return (rank, chunk, microbatch, time from F's end to B's start) of every microbatch.

    The time is the median over the rank's iterations. Only first occurrences with a device
    span count.
    """
    usable = (operations.has_span == 1) & (operations.occurrence == 0)
    forward = np.flatnonzero(usable & np.isin(operations.phase, (Phase.F, Phase.FB)))
    backward = np.flatnonzero(usable & np.isin(operations.phase, (*_BACKWARD, Phase.FB)))
    both = np.concatenate((forward, backward))
    microbatch, chunk = forward_and_backward(operations, forward, backward)
    key = np.stack((operations.rank[both], chunk, microbatch))
    number = groups_of(*key, operations.sequence[both], operations.iteration[both]).of_row
    of_forward, of_backward = number[: len(forward)], number[len(forward) :]
    _, at_forward, at_backward = np.intersect1d(of_forward, of_backward, return_indices=True)
    forward, backward = forward[at_forward], backward[at_backward]
    waited = operations.start_ns[backward] - operations.end_ns[forward]
    key = key[:, at_forward]
    groups = groups_of(*key)
    rank, chunk, microbatch = key[:, groups.first]
    return rank, chunk, microbatch, _medians(groups.of_row, waited, len(groups))


def _medians(group: Ints, values: Ints, groups: int) -> Ints:
    """Return the lower median of each group's values."""
    order = np.lexsort((values, group))
    counts = np.bincount(group, minlength=groups)
    first = np.concatenate(([0], np.cumsum(counts)[:-1])).astype(np.int64)
    return values[order][first + (counts - 1) // 2] if len(values) else values


def order_virtual_stages(operations: Operations) -> VirtualStages:
    """Return the virtual stage of every (rank, chunk) that ran forward and backward.

    Compared are the microbatches that all of them have; without any, the order is unknown.
    """
    rank, chunk, microbatch, waited = waiting_times(operations)
    groups = groups_of(rank, chunk)
    pair, pairs = groups.of_row, np.stack((rank, chunk))[:, groups.first]
    numbers, counts = np.unique(microbatch, return_counts=True)
    shared = np.isin(microbatch, numbers[counts == pairs.shape[1]])
    if not shared.any():
        return VirtualStages(pairs[0], pairs[1], np.full(pairs.shape[1], NONE, np.int64))
    total = np.zeros(pairs.shape[1], np.int64)
    np.add.at(total, pair[shared], waited[shared])
    order = np.lexsort((pairs[1], pairs[0], -total))
    stage = np.empty(len(order), np.int64)
    stage[order] = np.arange(len(order))
    return VirtualStages(pairs[0], pairs[1], stage)


def contradicted(
    operations: Operations, virtual_stage: Ints, iteration: Ints, machine_of_rank: Ints
) -> int:
    """Return how many neighbours in the order of stages cannot be neighbours of a pipeline.

    Two ranks of one machine share a clock, and there a forward cannot end before the one
    upstream has, and its own work on that input is done. A span may begin with kernels that need
    no input, so ends are compared: a pair counts if most of its microbatches end downstream less
    than a quarter of their own work after upstream, as copies of one stage (data or tensor
    parallel) do.

    Args:
        operations: of all ranks on one clock.
        virtual_stage: of each operation; -1 unknown.
        iteration: of each operation over all ranks.
        machine_of_rank: a number for each rank's clock.
    """
    rows = np.flatnonzero(
        (operations.phase == Phase.F)
        & (operations.has_span == 1)
        & (operations.occurrence == 0)
        & (virtual_stage >= 0)
        & (iteration >= 0)
    )
    machine = machine_of_rank[operations.rank[rows]]
    key = (iteration[rows], operations.microbatch[rows], operations.sequence[rows])
    if len(rows) == 0:
        return 0
    microbatch = groups_of(*key).of_row
    place = np.lexsort((virtual_stage[rows], microbatch))
    above, below = place[:-1], place[1:]
    neighbours = (
        (microbatch[above] == microbatch[below])
        & (virtual_stage[rows][below] == virtual_stage[rows][above] + 1)
        & (machine[above] == machine[below])
        & (operations.rank[rows][above] != operations.rank[rows][below])
    )
    above, below = above[neighbours], below[neighbours]
    end_ns, busy_ns = operations.end_ns[rows], operations.busy_ns[rows]
    early = end_ns[below] < end_ns[above] + busy_ns[below] // 4
    stage = virtual_stage[rows][above]
    pairs = np.bincount(stage, minlength=1)
    return int((2 * np.bincount(stage[early], minlength=len(pairs)) > pairs).sum())
