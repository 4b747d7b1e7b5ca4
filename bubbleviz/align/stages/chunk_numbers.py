"""Chunk numbers: make a chunk of tokens have the same number on all ranks of an inference run.

Range names from serving frameworks do not number chunks, so each rank counts its chunks, starting
at 0. If a recording begins mid-stream, later stages are still working on chunks from before its
start::

    recording     │
    stage 0   F7 ─┼─ F8 ──── F9 ────        counts F8 as 0
    stage 1   F6 ─┼── F7 ──── F8 ───        counts F7 as 0: it is shifted by -1

Two facts reveal the shift: no chunk begins on a stage before it has ended on the previous stage,
and a chunk has the same number of tokens on all stages.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from bubbleviz.model import grouping
from bubbleviz.model.columns import Ints
from bubbleviz.model.operations import Operations
from bubbleviz.model.phases import Phase

#: Minimum number of chunks needed to infer an order, and minimum fraction of chunks that must fit
#: it.
MIN_CHUNKS, MIN_FITTING = 2, 0.95


#: Operations may begin with work that needs no input. An operation may therefore start before its
#: input arrives, by up to its busy time divided by this number.
EARLY_PART = 4


#: Maximum shift of chunk numbers. This is the maximum number of chunks that can be in the pipeline
#: when the recording begins.
_MAX_SHIFT = 64


def is_counted_by_order(operations: Operations) -> bool:
    """Return whether each rank numbers its chunks of tokens 0, 1, 2 and so on.

    Each forward runs one chunk, and its microbatch is the number of the chunk. All forwards of all
    ranks must be in a single iteration. The result is False if there are no forwards.
    """
    rows = np.flatnonzero((operations.phase == Phase.F) & (operations.iteration >= 0))
    if len(rows) == 0 or (operations.iteration[rows] != operations.iteration[rows[0]]).any():
        return False
    rank, number = operations.rank[rows], operations.microbatch[rows]
    order = grouping.sort_rows(rank, number)
    first = np.searchsorted(rank[order], rank[order])
    return bool((number[order] == np.arange(len(order)) - first).all())


def align_chunk_numbers(
    operations: Operations, stage: Ints, machine: Ints
) -> tuple[Operations, bool]:
    """Shift the chunk numbers of each rank so that a chunk has the same number on all ranks.

    Each rank is compared with the previous rank in stage order. A shift of the rank's chunk numbers
    fits if all of the following conditions hold:

    - All paired chunks have equal token counts (:func:`_match_tokens`).
    - If both ranks are on one machine: the times of the paired chunks fit (:func:`_can_pass`).
    - If the ranks are on two machines, and all chunks of the first rank have the same token count:
      the shift is 0. In this case, neither token counts nor times reveal the shift.

    Shift 0 is used if it fits, otherwise the largest shift that fits. Shifts are added up along the
    ranks. Finally, the same number is subtracted from all shifts so that the smallest is 0.

    Args:
        operations: Operations of all ranks. The ``microbatch`` column contains chunk numbers,
            counted by each rank in launch order.
        stage: Stage of each rank, or -1 if unknown. Ranks whose stage is unknown are not shifted.
        machine: Machine of each rank. Ranks on the same machine share its clock.

    Returns:
        operations: Operations with common chunk numbers in ``microbatch``. If no shift fits for
            some rank, the operations are unchanged.
        is_aligned: Whether a shift fits for every rank.
    """
    ranks = [rank for rank in grouping.sort_rows(stage).tolist() if stage[rank] >= 0]
    shifts = [0]
    for above, below in pairwise(ranks):
        upper, lower = _select_chunks(operations, above), _select_chunks(operations, below)
        is_replica = bool(stage[above] == stage[below])
        if machine[above] == machine[below]:
            fits = [
                m
                for m, a, b in _match_tokens(upper, lower)
                if _can_pass(upper.take(a), lower.take(b), is_replica)
            ]
        else:
            # The clocks of two machines cannot be compared. If all token counts are equal, every
            # shift fits, so token counts are inconclusive.
            has_distinct_tokens = len(grouping.find_distinct(upper.tokens)) > 1
            fits = [m for m, _, _ in _match_tokens(upper, lower) if has_distinct_tokens or m == 0]
        if not fits:
            return operations, False
        shifts.append(shifts[-1] + (0 if 0 in fits else max(fits)))
    by_rank = np.zeros(len(stage), np.int64)
    by_rank[ranks] = np.array(shifts[: len(ranks)], np.int64) - min(shifts)
    is_numbered = operations.microbatch >= 0
    number = np.where(is_numbered, operations.microbatch + by_rank[operations.rank], -1)
    return operations.replace_columns(microbatch=number), True


def order_by_tokens(operations: Operations, ranks: Ints) -> Ints | None:
    """Order ranks by how much later than the first rank they start the same chunks.

    Each rank is compared with the first rank in ``ranks``. The two ranks' chunks are paired by
    token counts, which must allow exactly one shift (:func:`_match_tokens`). Ranks are sorted by
    the median delay of the paired chunks.

    Args:
        operations: Operations of all ranks.
        ranks: Ranks to order. Must not be empty.

    Returns:
        Zero-based stage of each rank in ``ranks``. None if, for any rank, token counts allow no
        shift or several shifts.
    """
    first = _select_chunks(operations, int(ranks[0]))
    lag_ns = [0.0]
    for rank in ranks[1:].tolist():
        chunks = _select_chunks(operations, rank)
        fits = list(_match_tokens(first, chunks))
        if len(fits) != 1:
            return None
        _, a, b = fits[0]
        lag_ns.append(float(np.median(chunks.start_ns[b] - first.start_ns[a])))
    return grouping.invert_permutation(grouping.sort_rows(np.array(lag_ns)))


def _select_chunks(operations: Operations, rank: int) -> Operations:
    """Return a rank's forwards, sorted by microbatch, which is the chunk number."""
    rows = np.flatnonzero((operations.rank == rank) & (operations.phase == Phase.F))
    return operations.take(rows[grouping.sort_rows(operations.microbatch[rows])])


def _match_tokens(upper: Operations, lower: Operations) -> Iterator[tuple[int, Ints, Ints]]:
    """Yield the shifts of the second rank's chunk numbers at which all token counts agree.

    At least ``MIN_CHUNKS`` chunks, and at least half (rounded down) of the chunks of the rank with
    fewer chunks, must be paired. All paired chunks must have equal token counts. Shifts from
    ``-_MAX_SHIFT`` to ``_MAX_SHIFT`` are tried in ascending order.

    Args:
        upper: Chunks on the first rank, sorted by number.
        lower: Chunks on the second rank, sorted by number.

    Yields:
        shift: Number to add to the second rank's chunk numbers.
        upper: Indices of the paired chunks on the first rank.
        lower: Indices of the paired chunks on the second rank.
    """
    min_chunks = max(MIN_CHUNKS, min(len(upper), len(lower)) // 2)
    for shift in range(-_MAX_SHIFT, _MAX_SHIFT + 1):
        below = np.arange(max(0, -shift), min(len(lower), len(upper) - shift))
        if len(below) >= min_chunks and (upper.tokens[below + shift] == lower.tokens[below]).all():
            yield shift, below + shift, below


def _can_pass(upper: Operations, lower: Operations, is_replica: bool) -> bool:
    """Return whether the times of paired chunks fit two consecutive stages, or two replicas.

    At least ``MIN_FITTING`` of the chunks must meet one condition:

    - On consecutive stages, a chunk starts on the second rank after it ended on the first rank. It
      may start early by up to its busy time divided by ``EARLY_PART``.
    - On replicas, the chunk runs on both ranks at the same time: on each rank, it starts before
      ``end_ns - busy_ns // 2`` of the other rank.

    Args:
        upper: Chunks on the first rank.
        lower: The same chunks on the second rank, in the same order.
        is_replica: Whether the two ranks are replicas instead of consecutive stages.
    """
    if is_replica:
        is_late = lower.start_ns >= upper.end_ns - upper.busy_ns // 2
        is_early = upper.start_ns >= lower.end_ns - lower.busy_ns // 2
        return float((is_late | is_early).mean()) <= 1 - MIN_FITTING
    follows = lower.start_ns + lower.busy_ns // EARLY_PART >= upper.end_ns
    return float(follows.mean()) >= MIN_FITTING
