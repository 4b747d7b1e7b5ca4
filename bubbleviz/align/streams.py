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

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from bubbleviz.align.pipelines import RankNumbers, VirtualStages
from bubbleviz.model import grouping
from bubbleviz.model.columns import NONE, Ints, scattered
from bubbleviz.model.operations import Operations
from bubbleviz.model.phases import Phase

#: Two chunks at least, and nearly all of them, show an order.
_FEWEST, _FITTING = 2, 0.95
#: An operation may begin with work that needs no input: so much of its busy time.
_EARLY = 4


def forward_order(
    operations: Operations, machine: Ints, numbers: RankNumbers, *, counted: bool
) -> VirtualStages:
    """Return the virtual stage of every rank that goes forward; unknown (-1) where nothing shows.

    Only ranks with one model chunk each can be ordered.

    Args:
        operations: of all ranks, with iterations that are the same on all of them.
        machine: a number for the clock of each rank.
        numbers: of the ranks.
        counted: whether chunks are numbered by their order, and by nothing else.
    """
    rows = np.flatnonzero((operations.phase == Phase.F) & (operations.has_span == 1))
    rank, chunk = grouping.distinct_rows(operations.rank[rows], operations.chunk[rows])
    unknown = VirtualStages(rank, chunk, np.full(len(rank), NONE, np.int64))
    if len(rank) == 0 or len(grouping.distinct(rank)) < len(rank):
        return unknown
    if len(rank) == 1:
        return VirtualStages(rank, chunk, np.zeros(1, np.int64))
    if len(grouping.distinct(machine[rank])) > 1:
        if not numbers.named:
            return unknown
        return VirtualStages(rank, chunk, grouping.places_in(np.argsort(numbers.number[rank])))
    first = rows[operations.occurrence[rows] == 0]
    chunks = grouping.groups_of(
        operations.iteration[first], operations.microbatch[first], operations.sequence[first]
    )
    at = np.searchsorted(rank, operations.rank[first]), chunks.of_row
    held = scattered((len(rank), len(chunks)), at, first)
    # Those that all ranks ran.
    common = operations.take(held[:, (held >= 0).all(axis=0)].reshape(-1))
    shape = len(rank), len(common) // len(rank)
    times = common.start_ns.reshape(shape), common.end_ns.reshape(shape)
    level = _levels(*times, common.busy_ns.reshape(shape))
    if counted and level is None:
        # The recording began mid-stream, and the first chunk of one rank is another one than that
        # of another: tokens decide, then the numbers of ranks, if chunks can pass in that order.
        level = _by_tokens(operations, rank)
        if level is None and numbers.named:
            level = grouping.places_in(np.argsort(numbers.number[rank]))
        stage = scattered(len(machine), rank, NONE if level is None else level)
        if not moved_chunks(operations, stage, machine)[1]:
            level = None
    return unknown if level is None else VirtualStages(rank, chunk, level)


def _levels(start_ns: Ints, end_ns: Ints, busy_ns: Ints) -> Ints | None:
    """Return the stage of each rank: one after the other, or side by side; None if neither.

    Args:
        start_ns: of the chunks that all ranks ran, shape (ranks, chunks).
        end_ns: likewise.
        busy_ns: likewise how long they keep their rank busy.
    """
    chunks = start_ns.shape[1]
    if chunks < _FEWEST:
        return None
    order = grouping.sorted_rows(np.median(start_ns + end_ns, axis=1))
    level = np.zeros(len(order), np.int64)
    for above, below in zip(order[:-1].tolist(), order[1:].tolist(), strict=True):
        early_ns = busy_ns[below] // _EARLY
        follows = (start_ns[below] + early_ns >= end_ns[above]).sum()
        beside = (start_ns[below] < end_ns[above] - busy_ns[above] // 2).sum()
        if follows >= _FITTING * chunks:
            level[below] = level[above] + 1
        elif beside >= _FITTING * chunks:
            level[below] = level[above]
        else:
            return None
    replicas = np.bincount(level)
    alike = bool((replicas == replicas[0]).all())
    return level if alike and len(replicas) > 1 else None


# Chunk pairs: which chunk of one rank is which of another's, where the recording began mid-stream.
#
# Names of serving frameworks give chunks no numbers, so each rank counts its own from 0. Ranks
# begin to record at one time, and later stages are then still at earlier chunks::
#
#     recording     │
#     stage 0   F7 ─┼─ F8 ──── F9 ────        counts F8 as 0
#     stage 1   F6 ─┼── F7 ──── F8 ───        counts F7 as 0: it is moved by -1
#
# No chunk begins on a stage before it ended on the one before, and it has the same tokens on all.


#: Chunks in the pipeline when recording began.
_MOST_MOVED = 64


def counted_by_order(operations: Operations) -> bool:
    """Return whether all ranks number the chunks of one window from 0 on, one after the other."""
    rows = np.flatnonzero((operations.phase == Phase.F) & (operations.iteration >= 0))
    if len(rows) == 0 or (operations.iteration[rows] != operations.iteration[rows[0]]).any():
        return False
    rank, number = operations.rank[rows], operations.microbatch[rows]
    order = grouping.sorted_rows(rank, number)
    first = np.searchsorted(rank[order], rank[order])
    return bool((number[order] == np.arange(len(order)) - first).all())


def moved_chunks(operations: Operations, stage: Ints, machine: Ints) -> tuple[Operations, bool]:
    """Return operations whose chunks have one number on all ranks, and whether that was possible.

    Args:
        operations: of all ranks, with the chunks of one window counted by their order.
        stage: of each rank; -1 unknown.
        machine: a number for the clock of each rank.
    """
    ranks = [rank for rank in grouping.sorted_rows(stage).tolist() if stage[rank] >= 0]
    moves = [0]
    for above, below in pairwise(ranks):
        upper, lower = _chunks_of(operations, above), _chunks_of(operations, below)
        beside = bool(stage[above] == stage[below])
        if machine[above] == machine[below]:
            fits = [
                m for m, a, b in _alike(upper, lower) if _pass(upper.take(a), lower.take(b), beside)
            ]
        else:
            # Clocks of two machines show nothing, and equal tokens neither.
            told = len(grouping.distinct(upper.tokens)) > 1
            fits = [m for m, _, _ in _alike(upper, lower) if told or m == 0]
        if not fits:
            return operations, False
        moves.append(moves[-1] + (0 if 0 in fits else max(fits)))
    by_rank = np.zeros(len(stage), np.int64)
    by_rank[ranks] = np.array(moves[: len(ranks)], np.int64) - min(moves)
    numbered = operations.microbatch >= 0
    number = np.where(numbered, operations.microbatch + by_rank[operations.rank], -1)
    return operations.changed(microbatch=number), True


def _by_tokens(operations: Operations, ranks: Ints) -> Ints | None:
    """Return the stage of each of some ranks by when they run chunks of the same tokens.

    None where the tokens fit in more than one way.
    """
    first = _chunks_of(operations, int(ranks[0]))
    lag_ns = [0.0]
    for rank in ranks[1:].tolist():
        own = _chunks_of(operations, rank)
        fits = list(_alike(first, own))
        if len(fits) != 1:
            return None
        _, a, b = fits[0]
        lag_ns.append(float(np.median(own.start_ns[b] - first.start_ns[a])))
    return grouping.places_in(grouping.sorted_rows(np.array(lag_ns)))


def _chunks_of(operations: Operations, rank: int) -> Operations:
    """Return the chunks of a rank, in the order of their numbers."""
    rows = np.flatnonzero((operations.rank == rank) & (operations.phase == Phase.F))
    return operations.take(rows[grouping.sorted_rows(operations.microbatch[rows])])


def _alike(upper: Operations, lower: Operations) -> Iterator[tuple[int, Ints, Ints]]:
    """Yield moves of the second rank's numbers that pair equal tokens, and the chunks of both.

    They leave most chunks of both, at least two, with a partner.
    """
    least = max(_FEWEST, min(len(upper), len(lower)) // 2)
    for move in range(-_MOST_MOVED, _MOST_MOVED + 1):
        below = np.arange(max(0, -move), min(len(lower), len(upper) - move))
        if len(below) >= least and (upper.tokens[below + move] == lower.tokens[below]).all():
            yield move, below + move, below


def _pass(upper: Operations, lower: Operations, beside: bool) -> bool:
    """Return whether times allow chunks to pass from one rank to the other, or to run on both."""
    if beside:
        late = lower.start_ns >= upper.end_ns - upper.busy_ns // 2
        early = upper.start_ns >= lower.end_ns - lower.busy_ns // 2
        return float((late | early).mean()) <= 1 - _FITTING
    follows = lower.start_ns + lower.busy_ns // _EARLY >= upper.end_ns
    return float(follows.mean()) >= _FITTING
