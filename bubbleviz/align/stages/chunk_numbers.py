"""Chunk numbers: common numbers of chunks in runs that only go forward.

Names of serving frameworks give no numbers to chunks, so each rank counts its chunks from 0. If a
recording begins mid-stream, later stages are still working on earlier chunks::

    recording     │
    stage 0   F7 ─┼─ F8 ──── F9 ────        counts F8 as 0
    stage 1   F6 ─┼── F7 ──── F8 ───        counts F7 as 0: it is shifted by -1

No chunk begins on a stage before it ended on the previous stage, and a chunk has the same number of
tokens on all stages.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from bubbleviz.model import grouping
from bubbleviz.model.columns import Ints
from bubbleviz.model.operations import Operations
from bubbleviz.model.phases import Phase

#: Minimum number of chunks that show an order, and minimum fraction of them that fit it.
MIN_CHUNKS, MIN_FITTING = 2, 0.95


#: An operation may begin with work that needs no input, so it may start before its input arrives,
#: earlier by at most its busy time divided by this number.
EARLY_PART = 4


#: Maximum shift: the number of chunks in the pipeline when recording began.
_MAX_SHIFT = 64


def is_counted_by_order(operations: Operations) -> bool:
    """Return whether all forwards are in one iteration, numbered 0, 1, 2 and so on by each rank.

    Each forward runs one chunk, and its microbatch is the number of the chunk. The result is False
    if no iteration has a forward.
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

    Each rank is compared with the previous one in order of stages. A shift fits if all paired
    chunks have equal numbers of tokens (:func:`_match_tokens`). On one machine, the times must also
    allow these chunks to pass (:func:`_can_pass`). On two machines, only shift 0 fits if all chunks
    have equal numbers of tokens. If shift 0 fits, it is used; otherwise the largest shift that fits
    is used. The rank with the smallest shift keeps its numbers.

    Args:
        operations: Operations of all ranks, with the chunks of one window numbered by their order.
        stage: Stage of each rank, or -1 if unknown.
        machine: Machine of each rank. Ranks of one machine share its clock.

    Returns:
        operations: Operations with common chunk numbers, or the unchanged operations if no shift
            fits for some rank.
        is_aligned: Whether a shift fits for all ranks.
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
            # The clocks of two machines cannot be compared, and equal token counts fit any shift.
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
    """Order ranks by how long after the first rank they run the same chunks.

    Chunks of two ranks are the same if their numbers of tokens are equal under the only possible
    shift of the chunk numbers (:func:`_match_tokens`). The median delay over the chunks decides.

    Args:
        operations: Operations of all ranks.
        ranks: Ranks to order, at least one. The delay is measured from the first of them.

    Returns:
        Stage of each rank, from 0, or None if some rank has no possible shift or several.
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
    """Return the forwards of a rank, sorted by microbatch, which is the number of the chunk."""
    rows = np.flatnonzero((operations.rank == rank) & (operations.phase == Phase.F))
    return operations.take(rows[grouping.sort_rows(operations.microbatch[rows])])


def _match_tokens(upper: Operations, lower: Operations) -> Iterator[tuple[int, Ints, Ints]]:
    """Yield the shifts of the second rank's chunk numbers that pair equal numbers of tokens.

    At least ``MIN_CHUNKS`` chunks, and half of the chunks of the rank with fewer chunks, must be
    paired. A shift changes chunk numbers by at most ``_MAX_SHIFT``.

    Args:
        upper: Chunks of the first rank, sorted by number.
        lower: Chunks of the second rank, sorted by number.

    Yields:
        shift: Number to add to the chunk numbers of the second rank.
        upper: Indices of the paired chunks of the first rank.
        lower: Indices of the paired chunks of the second rank.
    """
    min_chunks = max(MIN_CHUNKS, min(len(upper), len(lower)) // 2)
    for shift in range(-_MAX_SHIFT, _MAX_SHIFT + 1):
        below = np.arange(max(0, -shift), min(len(lower), len(upper) - shift))
        if len(below) >= min_chunks and (upper.tokens[below + shift] == lower.tokens[below]).all():
            yield shift, below + shift, below


def _can_pass(upper: Operations, lower: Operations, is_replica: bool) -> bool:
    """Return whether the times of paired chunks fit two consecutive stages, or two replicas.

    On consecutive stages, at least ``MIN_FITTING`` of the chunks must start on ``lower`` after they
    ended on ``upper``; up to 1 / ``EARLY_PART`` of a chunk's busy time may run before. On replicas,
    at least this fraction must start on each rank before the last half of the other rank's work on
    them.

    Args:
        upper: Chunks on the first rank.
        lower: The same chunks on the second rank, in the same order.
        is_replica: Whether the ranks must be replicas.
    """
    if is_replica:
        is_late = lower.start_ns >= upper.end_ns - upper.busy_ns // 2
        is_early = upper.start_ns >= lower.end_ns - lower.busy_ns // 2
        return float((is_late | is_early).mean()) <= 1 - MIN_FITTING
    follows = lower.start_ns + lower.busy_ns // EARLY_PART >= upper.end_ns
    return float(follows.mean()) >= MIN_FITTING
