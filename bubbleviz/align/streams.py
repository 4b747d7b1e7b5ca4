"""Streams: a run that only goes forward, chunk after chunk, is one window and no iterations.

Serving frameworks mark each step of their scheduler, and a step is one chunk: the next one enters
the pipeline while this one is still in it. A window from the first start to the last end of one
chunk would be nearly all bubble, whatever the pipeline does::

    steps    ├── 7 ──┤├── 8 ──┤├── 9 ──┤
    stage 0  ███ F7 ██ ███ F8 ██ ███ F9 ██
    stage 1           ███ F7 ██ ███ F8 ██ ███ F9 ██
    becomes  ├──────────── one window ───────────┤    with microbatches 7, 8, 9

Marks that hold several chunks (the batches of an evaluation) stay iterations.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bubbleviz.align.merge import JoinedRecordings
from bubbleviz.interpret.iterations import occurrences
from bubbleviz.interpret.spans import ActiveTime
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import distinct, looked_up
from bubbleviz.model.intervals import group_extents, group_sum
from bubbleviz.model.operations import RankOperations
from bubbleviz.model.phases import Phase
from bubbleviz.model.run_kind import INFERENCE, run_kind


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
    number = _chunk_numbers(operations, named if marked else operations.iteration)
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


def _chunk_numbers(operations: RankOperations, of_forward: Ints) -> Ints:
    """Return the number of the chunk that each operation is of; -1 where its step holds none."""
    rows = np.flatnonzero((operations.phase == Phase.F) & (operations.iteration >= 0))
    keys = operations.rank, operations.iteration
    return looked_up((keys[0][rows], keys[1][rows]), of_forward[rows], keys)


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
