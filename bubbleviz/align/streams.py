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

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from bubbleviz.align.merge import JoinedRecordings
from bubbleviz.align.pipelines import RankNumbers, VirtualStages
from bubbleviz.interpret.iterations import occurrences
from bubbleviz.interpret.spans import ActiveTime
from bubbleviz.model.columns import NONE, Ints, Table
from bubbleviz.model.grouping import (
    distinct,
    distinct_rows,
    groups_of,
    looked_up,
    places_in,
    sorted_rows,
)
from bubbleviz.model.intervals import group_extents, group_sum
from bubbleviz.model.operations import RankOperations
from bubbleviz.model.phase_masks import INFERENCE, run_kind
from bubbleviz.model.phases import Phase
from bubbleviz.model.values import frozen

#: Two chunks at least, and nearly all of them, show an order.
_FEWEST, _FITTING = 2, 0.95
#: An operation may begin with work that needs no input: so much of its busy time.
_EARLY = 4


def forward_order(
    operations: RankOperations, machine: Ints, numbers: RankNumbers, *, counted: bool
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
    rank, chunk = distinct_rows(operations.rank[rows], operations.chunk[rows])
    unknown = VirtualStages(rank, chunk, np.full(len(rank), NONE, np.int64))
    if len(rank) == 0 or len(distinct(rank)) < len(rank):
        return unknown
    if len(rank) == 1:
        return VirtualStages(rank, chunk, np.zeros(1, np.int64))
    if len(distinct(machine[rank])) > 1:
        if not numbers.named:
            return unknown
        return VirtualStages(rank, chunk, places_in(np.argsort(numbers.number[rank])))
    if counted:
        level = _of_counted(operations, rank, machine, numbers)
    else:
        level = _forward_order_levels(*_times(operations, rows, rank))
    return unknown if level is None else VirtualStages(rank, chunk, level)


def _of_counted(
    operations: RankOperations, rank: Ints, machine: Ints, numbers: RankNumbers
) -> Ints | None:
    """Return the stages of ranks that count their chunks; None where nothing shows them.

    Where the recording began mid-stream, the first chunk of one rank is another one than that of
    another. A pipeline that is seen to fill decides, then tokens, then the numbers of ranks.
    """
    rows = np.flatnonzero((operations.phase == Phase.F) & (operations.has_span == 1))
    start_ns, end_ns, busy_ns = _times(operations, rows, rank)
    level = _forward_order_levels(start_ns, end_ns, busy_ns)
    if level is not None:
        first = np.unique(level, return_index=True)[1]
        waited_ns = start_ns[first[1:], 0] - end_ns[first[:-1], 0]
        if (waited_ns <= busy_ns[first[1:], 0] // _EARLY).all():
            return level
    level = stages_by_tokens(operations, rank, machine)
    if level is None and numbers.named:
        level = places_in(np.argsort(numbers.number[rank]))
    return None if level is None else _checked(operations, rank, level, machine)


def _checked(operations: RankOperations, rank: Ints, level: Ints, machine: Ints) -> Ints | None:
    """Return stages of ranks, if chunks can pass them in that order; None if not."""
    stage = np.full(len(machine), NONE, np.int64)
    stage[rank] = level
    return level if moved_chunks(operations, stage, machine)[1] else None


def _times(operations: RankOperations, rows: Ints, rank: Ints) -> tuple[Ints, Ints, Ints]:
    """Return starts, ends, busy times of the chunks that all ranks ran, shape (ranks, chunks)."""
    first = rows[operations.occurrence[rows] == 0]
    chunks = groups_of(
        operations.iteration[first], operations.microbatch[first], operations.sequence[first]
    )
    place = np.searchsorted(rank, operations.rank[first])
    held = np.full((len(rank), len(chunks)), NONE, np.int64)
    held[place, chunks.of_row] = first
    held = held[:, (held >= 0).all(axis=0)]
    return operations.start_ns[held], operations.end_ns[held], operations.busy_ns[held]


def _forward_order_levels(start_ns: Ints, end_ns: Ints, busy_ns: Ints) -> Ints | None:
    """Return the stage of each rank: one after the other, or side by side; None if neither."""
    chunks = start_ns.shape[1]
    if chunks < _FEWEST:
        return None
    order = sorted_rows(np.median(start_ns + end_ns, axis=1))
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


# Streams: a run that only goes forward, chunk after chunk, is one window and no iterations.
#
# Serving frameworks mark each step of their scheduler, and a step is one chunk: the next one enters
# the pipeline while this one is still in it. A window from the first start to the last end of one
# chunk would be nearly all bubble, whatever the pipeline does::
#
#     steps    ├── 7 ──┤├── 8 ──┤├── 9 ──┤
#     stage 0  ███ F7 ██ ███ F8 ██ ███ F9 ██
#     stage 1           ███ F7 ██ ███ F8 ██ ███ F9 ██
#     becomes  ├──────────── one window ───────────┤    with microbatches 7, 8, 9
#
# Marks that hold several chunks (the batches of an evaluation) stay iterations.


def as_stream(joined: JoinedRecordings) -> JoinedRecordings:
    """Return recordings of single chunks that follow each other as recordings of one window.

    Chunks are numbered by the marks around them, else in their order. Any other run is returned
    as it is.
    """
    operations = joined.operations
    if run_kind(operations.phase) != INFERENCE or not _chunk_by_chunk(operations):
        return joined
    forward = operations.phase == Phase.F
    named = joined.named_iteration
    marked = bool((named[forward] >= 0).all())
    rows = np.flatnonzero(forward & (operations.iteration >= 0))
    keys, wanted = operations.rank, operations.iteration
    of_forward = named if marked else operations.iteration
    number = looked_up((keys[rows], wanted[rows]), of_forward[rows], (keys, wanted))
    inside = operations.iteration >= 0
    iteration = np.where(inside, 0, NONE)
    collectives, replicas = joined.collectives, joined.replica_collectives
    return replace(
        joined,
        operations=operations.changed(
            iteration=iteration,
            microbatch=np.where(inside & (number >= 0), number, operations.microbatch),
        ),
        active=_together(joined),
        collectives=collectives.changed(iteration=np.minimum(collectives.iteration, 0)),
        # They tell training steps apart.
        replica_collectives=replicas.take(np.empty(0, np.int64)),
        named_iteration=np.full(len(named), NONE, np.int64),
    )


def _chunk_by_chunk(operations: RankOperations) -> bool:
    """Return whether each of several iterations of each rank holds one forward of each chunk."""
    rows = np.flatnonzero((operations.phase == Phase.F) & (operations.iteration >= 0))
    keys = tuple(
        getattr(operations, name)[rows] for name in ("rank", "iteration", "chunk", "sequence")
    )
    several = len(distinct(operations.iteration[rows])) > 1
    return several and not occurrences(keys).any()


def _together(joined: JoinedRecordings) -> ActiveTime:
    """Return how long kernels ran in the window of each rank."""
    active, running, operations = joined.active, joined.running, joined.operations
    ranks = len(joined.ranks)
    work = np.flatnonzero((operations.phase == Phase.F) & (operations.has_span == 1))
    first, last = group_extents(
        operations.rank[work], ranks, operations.start_ns[work], operations.end_ns[work]
    )
    within = running.start_ns >= first[running.rank]
    within &= running.end_ns <= last[running.rank]
    inside = active.iteration >= 0
    present = distinct(active.rank[inside])

    def total(name: str) -> Ints:
        return group_sum(active.rank[inside], ranks, getattr(active, name)[inside])[present]

    kernel_ns = group_sum(running.rank[within], ranks, running.running_ns[within])
    return ActiveTime(
        rank=present,
        iteration=np.zeros(len(present), np.int64),
        active_ns=total("active_ns"),
        kernel_ns=kernel_ns[present],
        gap_ns=total("gap_ns"),
        collective_gap_ns=total("collective_gap_ns"),
    )
