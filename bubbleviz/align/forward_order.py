"""The order of stages of a run that only goes forward, by what no clock of one machine allows.

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

from bubbleviz.align.chunk_pairs import moved_chunks, stages_by_tokens
from bubbleviz.align.pipelines import RankNumbers
from bubbleviz.align.virtual_stages import VirtualStages
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import distinct, distinct_rows, groups_of, places_in
from bubbleviz.model.operations import RankOperations
from bubbleviz.model.phases import Phase
from bubbleviz.model.sorting import sorted_rows

#: Two chunks at least, and nearly all of them, show an order.
_FEWEST, _MOST = 2, 0.95
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
        level = _levels(*_times(operations, rows, rank))
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
    level = _levels(start_ns, end_ns, busy_ns)
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


def _levels(start_ns: Ints, end_ns: Ints, busy_ns: Ints) -> Ints | None:
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
        if follows >= _MOST * chunks:
            level[below] = level[above] + 1
        elif beside >= _MOST * chunks:
            level[below] = level[above]
        else:
            return None
    replicas = np.bincount(level)
    alike = bool((replicas == replicas[0]).all())
    return level if alike and len(replicas) > 1 else None
