"""Chunk pairs: which chunk of one rank is which of another's, where the recording began mid-stream.

Names of serving frameworks give chunks no numbers, so each rank counts its own from 0. Ranks begin
to record at one time, and later stages are then still at earlier chunks::

    recording     │
    stage 0   F7 ─┼─ F8 ──── F9 ────        counts F8 as 0
    stage 1   F6 ─┼── F7 ──── F8 ───        counts F7 as 0: it is moved by -1

No chunk begins on a stage before it ended on the one before, and it has the same tokens on all.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from bubbleviz.model.columns import Ints, Table
from bubbleviz.model.grouping import distinct
from bubbleviz.model.operations import RankOperations
from bubbleviz.model.phases import Phase
from bubbleviz.model.sorting import sorted_rows
from bubbleviz.model.values import frozen

#: Chunks in the pipeline when recording began; nearly all chunks must fit, and two at least.
_MOST_MOVED, _FITTING, _FEWEST = 64, 0.95, 2
#: An operation may begin with work that needs no input: so much of its busy time.
_EARLY = 4


@frozen
class _Chunks(Table):
    """The chunks of one rank, in the order of their numbers."""

    start_ns: Ints
    end_ns: Ints
    busy_ns: Ints
    tokens: Ints


def counted_by_order(operations: RankOperations) -> bool:
    """Return whether all ranks number the chunks of one window from 0 on, one after the other."""
    rows = np.flatnonzero((operations.phase == Phase.F) & (operations.iteration >= 0))
    if len(rows) == 0 or (operations.iteration[rows] != operations.iteration[rows[0]]).any():
        return False
    rank, number = operations.rank[rows], operations.microbatch[rows]
    order = sorted_rows(rank, number)
    first = np.searchsorted(rank[order], rank[order])
    return bool((number[order] == np.arange(len(order)) - first).all())


def moved_chunks(
    operations: RankOperations, stage: Ints, machine: Ints
) -> tuple[RankOperations, bool]:
    """Return operations whose chunks have one number on all ranks, and whether that was possible.

    Args:
        operations: of all ranks, with the chunks of one window counted by their order.
        stage: of each rank; -1 unknown.
        machine: a number for the clock of each rank.
    """
    ranks = [rank for rank in sorted_rows(stage).tolist() if stage[rank] >= 0]
    moves = _moves(operations, ranks, stage, machine)
    if moves is None:
        return operations, False
    by_rank = np.zeros(len(stage), np.int64)
    by_rank[ranks] = moves - moves.min(initial=0)
    numbered = operations.microbatch >= 0
    number = np.where(numbered, operations.microbatch + by_rank[operations.rank], -1)
    return operations.changed(microbatch=number), True


def stages_by_tokens(operations: RankOperations, ranks: Ints, machine: Ints) -> Ints | None:
    """Return the stage of each of some ranks by when they run chunks of the same tokens.

    None where their clocks differ, or the tokens fit in more than one way.

    Args:
        operations: of all ranks, with the chunks of one window counted by their order.
        ranks: the ranks.
        machine: a number for the clock of each rank.
    """
    if len(distinct(machine[ranks])) > 1:
        return None
    first = _chunks_of(operations, int(ranks[0]))
    lag_ns = [0.0]
    for rank in ranks[1:].tolist():
        own = _chunks_of(operations, rank)
        fits = [move for move in _candidates(first, own) if _same_tokens(first, own, move)]
        if len(fits) != 1:
            return None
        a, b = _overlap(first, own, fits[0])
        lag_ns.append(float(np.median(own.start_ns[b] - first.start_ns[a])))
    stage = np.empty(len(ranks), np.int64)
    stage[sorted_rows(np.array(lag_ns))] = np.arange(len(ranks))
    return stage


def _moves(
    operations: RankOperations, ranks: Sequence[int], stage: Ints, machine: Ints
) -> Ints | None:
    """Return by how much the numbers of each rank are moved; None where nothing fits."""
    moves = [0]
    for above, below in pairwise(ranks):
        upper, lower = _chunks_of(operations, above), _chunks_of(operations, below)
        beside = bool(stage[above] == stage[below])
        timed = bool(machine[above] == machine[below])
        fits = [m for m in _candidates(upper, lower) if _fits(upper, lower, m, timed, beside)]
        if not fits:
            return None
        moves.append(moves[-1] + (0 if 0 in fits else max(fits)))
    return np.array(moves, np.int64)


def _chunks_of(operations: RankOperations, rank: int) -> _Chunks:
    rows = np.flatnonzero((operations.rank == rank) & (operations.phase == Phase.F))
    rows = rows[sorted_rows(operations.microbatch[rows])]
    return _Chunks(*(getattr(operations, name)[rows] for name in _Chunks.column_names()))


def _candidates(upper: _Chunks, lower: _Chunks) -> list[int]:
    """Return the moves that leave most chunks of both, at least two, with a partner."""
    least = max(_FEWEST, min(len(upper), len(lower)) // 2)
    span = range(-_MOST_MOVED, _MOST_MOVED + 1)
    return [move for move in span if len(_overlap(upper, lower, move)[0]) >= least]


def _overlap(upper: _Chunks, lower: _Chunks, move: int) -> tuple[Ints, Ints]:
    """Return the chunks that are one where the second rank's numbers are moved."""
    below = np.arange(max(0, -move), min(len(lower), len(upper) - move))
    return below + move, below


def _same_tokens(upper: _Chunks, lower: _Chunks, move: int) -> bool:
    a, b = _overlap(upper, lower, move)
    return bool((upper.tokens[a] == lower.tokens[b]).all())


def _fits(upper: _Chunks, lower: _Chunks, move: int, timed: bool, beside: bool) -> bool:
    """Return whether times and tokens allow a move."""
    if not _same_tokens(upper, lower, move):
        return False
    a, b = _overlap(upper, lower, move)
    if not timed:
        # Clocks of two machines show nothing, and equal tokens neither.
        return move == 0 or len(distinct(upper.tokens)) > 1
    if beside:
        late = lower.start_ns[b] >= upper.end_ns[a] - upper.busy_ns[a] // 2
        early = upper.start_ns[a] >= lower.end_ns[b] - lower.busy_ns[b] // 2
        return float((late | early).mean()) <= 1 - _FITTING
    follows = lower.start_ns[b] + lower.busy_ns[b] // _EARLY >= upper.end_ns[a]
    return float(follows.mean()) >= _FITTING
