"""Streams: forward-only runs, which process one chunk of tokens after another.

No gradient comes back to show how long a chunk was away. However, ranks on one machine share a
clock, and a chunk cannot begin on a stage before it has ended on the previous stage::

    virtual stage 0   ██ F0 ██ ██ F1 ██
    virtual stage 1            ██ F0 ██ ██ F1 ██
    virtual stage 2                     ██ F0 ██ ██ F1 ██

A stage's replicas run a chunk at the same time. If ranks are on several machines, the rank numbers
in names determine the order.
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
    """Infer the virtual stage of every rank in an inference run.

    A single rank is on stage 0. Multiple ranks are ordered only if each one runs a single model
    chunk:

    - Ranks on several machines are ordered by the rank numbers in names.
    - Ranks on one machine are ordered by the times at which they run the same chunks of tokens
      (:func:`_order_by_time`).
    - If the times do not fit any order and ``is_counted`` is True, ranks on one machine are ordered
      by token counts (:func:`order_by_tokens`), or else by the rank numbers in names. This order is
      used only if the chunk numbers can be aligned with it (:func:`align_chunk_numbers`).

    Args:
        operations: Operations of all ranks, with iteration numbers that mean the same on all ranks.
        machine: Machine of each rank. Ranks on the same machine share its clock.
        numbers: Rank numbers.
        is_counted: Whether token chunks are numbered only by their order.

    Returns:
        Virtual stage of each (rank, chunk). All stages are -1 if the ranks cannot be ordered.
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
    common = _find_common_chunks(operations, rows, rank)
    level = _order_by_time(
        operations.start_ns[common], operations.end_ns[common], operations.busy_ns[common]
    )
    if is_counted and level is None:
        # The recording began mid-stream, so the first recorded chunks of two ranks may differ. The
        # order is determined by token counts, or else by rank numbers, provided that chunks can
        # pass in this order.
        level = order_by_tokens(operations, rank)
        if level is None and numbers.from_names:
            level = grouping.invert_permutation(np.argsort(numbers.number[rank]))
        stage = scatter(len(machine), rank, NONE if level is None else level)
        if not align_chunk_numbers(operations, stage, machine)[1]:
            level = None
    return unknown if level is None else VirtualStages(rank, chunk, level)


def _find_common_chunks(operations: Operations, rows: Ints, rank: Ints) -> Ints:
    """Return the forwards of the token chunks that all ranks ran.

    A token chunk is identified by its iteration, microbatch and sequence split. Repeated forwards
    are left out.

    Args:
        operations: Operations of all ranks, with iteration numbers that mean the same on all ranks.
        rows: Rows of all forwards.
        rank: Ranks that run the forwards, in ascending order.

    Returns:
        Row of the forward for each token chunk on each rank, shape (ranks, token chunks).
    """
    first = rows[operations.occurrence[rows] == 0]
    chunks = grouping.group_rows(
        operations.iteration[first], operations.microbatch[first], operations.sequence[first]
    )
    cell = np.searchsorted(rank, operations.rank[first]), chunks.of_row
    row_of_cell = scatter((len(rank), len(chunks)), cell, first)
    return row_of_cell[:, (row_of_cell >= 0).all(axis=0)]


def _order_by_time(start_ns: Ints, end_ns: Ints, busy_ns: Ints) -> Ints | None:
    """Order ranks by the times at which they run the same chunks.

    The ranks are sorted by the median of ``start_ns + end_ns`` over all chunks. Each rank is then
    compared with the previous one:

    - The rank is on the next stage if at least ``MIN_FITTING`` of its chunks start after they end
      on the previous rank. A chunk may start early by up to its busy time divided by
      ``EARLY_PART``.
    - Otherwise, the rank is a replica of the previous rank if at least ``MIN_FITTING`` of its
      chunks start before ``end_ns - busy_ns // 2`` of the previous rank.

    Args:
        start_ns: Start of each chunk on each rank, shape (ranks, chunks).
        end_ns: End of each chunk on each rank, shape (ranks, chunks).
        busy_ns: How long each chunk keeps each rank busy, shape (ranks, chunks).

    Returns:
        Zero-based stage of each rank. The result is None in each of the following cases:

        - There are fewer than ``MIN_CHUNKS`` chunks.
        - A rank is neither on the next stage nor a replica.
        - Stages have different numbers of ranks, or there is a single stage.
    """
    chunks = start_ns.shape[1]
    if chunks < MIN_CHUNKS:
        return None
    order = grouping.sort_rows(np.median(start_ns + end_ns, axis=1))
    level = np.zeros(len(order), np.int64)
    for above, below in zip(order[:-1].tolist(), order[1:].tolist(), strict=True):
        early_ns = busy_ns[below] // EARLY_PART
        n_following = (start_ns[below] + early_ns >= end_ns[above]).sum()
        n_concurrent = (start_ns[below] < end_ns[above] - busy_ns[above] // 2).sum()
        if n_following >= MIN_FITTING * chunks:
            level[below] = level[above] + 1
        elif n_concurrent >= MIN_FITTING * chunks:
            level[below] = level[above]
        else:
            return None
    replicas = np.bincount(level)
    has_equal_sizes = bool((replicas == replicas[0]).all())
    return level if has_equal_sizes and len(replicas) > 1 else None
