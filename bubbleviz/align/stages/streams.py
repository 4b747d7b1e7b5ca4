"""Streams: runs that only go forward, chunk after chunk.

Nothing comes back that would show how long a chunk was away. But ranks of one machine share a
clock, and there a chunk cannot begin on a stage before it ended on the one before::

    virtual stage 0   ██ F0 ██ ██ F1 ██
    virtual stage 1            ██ F0 ██ ██ F1 ██
    virtual stage 2                     ██ F0 ██ ██ F1 ██

Replicas of a stage run a chunk at the same time. Where ranks are on several machines, the numbers
that names give them decide.
"""

from __future__ import annotations

import numpy as np

from bubbleviz.align.stages.chunk_numbers import (
    EARLY_PART,
    MIN_CHUNKS,
    MIN_FITTING,
    align_chunk_numbers,
    order_by_tokens,
)
from bubbleviz.align.stages.pipelines import RankNumbers
from bubbleviz.align.stages.virtual_stages import VirtualStages
from bubbleviz.model import grouping
from bubbleviz.model.columns import NONE, Ints, scatter
from bubbleviz.model.operations import Operations
from bubbleviz.model.phases import Phase


def order_forward_stages(
    operations: Operations, machine: Ints, numbers: RankNumbers, *, is_counted: bool
) -> VirtualStages:
    """Return the virtual stage of every rank that goes forward; unknown (-1) where nothing shows.

    Only ranks with one model chunk each can be ordered.

    Args:
        operations: of all ranks, with iterations that are the same on all of them.
        machine: a number for the clock of each rank.
        numbers: of the ranks.
        is_counted: whether chunks are numbered by their order, and by nothing else.
    """
    rows = np.flatnonzero((operations.phase == Phase.F) & (operations.has_span == 1))
    rank, chunk = grouping.find_distinct_rows(operations.rank[rows], operations.chunk[rows])
    unknown = VirtualStages(rank, chunk, np.full(len(rank), NONE, np.int64))
    if len(rank) == 0 or len(grouping.find_distinct(rank)) < len(rank):
        return unknown
    if len(rank) == 1:
        return VirtualStages(rank, chunk, np.zeros(1, np.int64))
    if len(grouping.find_distinct(machine[rank])) > 1:
        if not numbers.from_names:
            return unknown
        return VirtualStages(
            rank, chunk, grouping.invert_permutation(np.argsort(numbers.number[rank]))
        )
    first = rows[operations.occurrence[rows] == 0]
    chunks = grouping.group_rows(
        operations.iteration[first], operations.microbatch[first], operations.sequence[first]
    )
    cell = np.searchsorted(rank, operations.rank[first]), chunks.of_row
    row_of_cell = scatter((len(rank), len(chunks)), cell, first)
    # Those that all ranks ran.
    common = operations.take(row_of_cell[:, (row_of_cell >= 0).all(axis=0)].reshape(-1))
    shape = len(rank), len(common) // len(rank)
    times = common.start_ns.reshape(shape), common.end_ns.reshape(shape)
    level = _order_by_time(*times, common.busy_ns.reshape(shape))
    if is_counted and level is None:
        # The recording began mid-stream, and the first chunk of one rank is another one than that
        # of another: tokens decide, then the numbers of ranks, if chunks can pass in that order.
        level = order_by_tokens(operations, rank)
        if level is None and numbers.from_names:
            level = grouping.invert_permutation(np.argsort(numbers.number[rank]))
        stage = scatter(len(machine), rank, NONE if level is None else level)
        if not align_chunk_numbers(operations, stage, machine)[1]:
            level = None
    return unknown if level is None else VirtualStages(rank, chunk, level)


def _order_by_time(start_ns: Ints, end_ns: Ints, busy_ns: Ints) -> Ints | None:
    """Return the stage of each rank: one after the other, or side by side; None if neither.

    Args:
        start_ns: of the chunks that all ranks ran, shape (ranks, chunks).
        end_ns: likewise.
        busy_ns: likewise how long they keep their rank busy.
    """
    chunks = start_ns.shape[1]
    if chunks < MIN_CHUNKS:
        return None
    order = grouping.sort_rows(np.median(start_ns + end_ns, axis=1))
    level = np.zeros(len(order), np.int64)
    for above, below in zip(order[:-1].tolist(), order[1:].tolist(), strict=True):
        early_ns = busy_ns[below] // EARLY_PART
        n_following = (start_ns[below] + early_ns >= end_ns[above]).sum()
        n_beside = (start_ns[below] < end_ns[above] - busy_ns[above] // 2).sum()
        if n_following >= MIN_FITTING * chunks:
            level[below] = level[above] + 1
        elif n_beside >= MIN_FITTING * chunks:
            level[below] = level[above]
        else:
            return None
    replicas = np.bincount(level)
    has_equal_sizes = bool((replicas == replicas[0]).all())
    return level if has_equal_sizes and len(replicas) > 1 else None
