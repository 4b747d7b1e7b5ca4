"""Count how many pieces of extra work fit into the bubbles of each stage.

The extra work is a job, such as an encoder, that is divided into indivisible pieces of equal
length. A piece runs inside a single bubble and ends before the bubble does, so that it delays
nothing. A bubble of length d therefore takes ``floor(d / piece)`` pieces. If the job is not a
multiple of the piece, the last piece is shorter, and may fit next to them::

    stage 0   [F0][F1]··············[B0]····[F2]
    pieces            ├─┤├─┤├─┤├─┤      ├─┤          5 pieces
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.idle import merge_pieces
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import WORK

if TYPE_CHECKING:
    from bubbleviz.count.iterations import Iteration
    from bubbleviz.explain.causes.bubbles import Bubbles

#: Kinds of bubbles: before a rank's first operation of the iteration, between two operations, and
#: after its last operation.
WARM_UP, BETWEEN, DRAIN = range(3)
#: Causes of idle time during which no extra work could run. Without a profiler, there would be no
#: overhead. If the cause is unknown, the GPU may run work that was not recorded.
_NOT_FREE = (Cause.PROFILER, Cause.UNKNOWN)


@dataclass(frozen=True)
class StageSlots:
    """How much extra work fits into the bubbles of a stage, as means over iterations.

    The stage is represented by its rank with room for the fewest pieces.

    Attributes:
        stage: The stage, or -1 if unknown.
        rank: Index of the rank.
        idle_ns: Time of the bubbles.
        warm_up_pieces: Number of pieces that fit into bubbles before the rank's first operation.
        between_pieces: Number of pieces that fit into bubbles between two operations.
        drain_pieces: Number of pieces that fit into bubbles after the rank's last operation.
        fitting_ns: Time of the job that fits if the stage runs the job alone.
    """

    stage: int
    rank: int
    idle_ns: float
    warm_up_pieces: float
    between_pieces: float
    drain_pieces: float
    fitting_ns: float

    @property
    def pieces(self) -> float:
        """Number of pieces that fit into all bubbles."""
        return self.warm_up_pieces + self.between_pieces + self.drain_pieces


@dataclass(frozen=True)
class ExtraWork:
    """How much of a job fits into the bubbles of an iteration.

    Attributes:
        work_ns: Length of the job.
        piece_ns: Length of a piece. The last piece of the job may be shorter.
        ratio: Name of the ratio whose windows contain the bubbles.
        iterations: Number of iterations over which means are taken.
        stages: One entry per stage, in pipeline order. If stages are unknown, one entry per rank.
        fitting_ns: Time of the job that fits if the stages share its pieces, as a mean over
            iterations.
        longest_ns: Length of the longest bubble in which the job could run, on any rank of
            ``stages``.
    """

    work_ns: int
    piece_ns: int
    ratio: str
    iterations: int
    stages: tuple[StageSlots, ...]
    fitting_ns: float
    longest_ns: int


@dataclass(frozen=True, eq=False)
class Slots:
    """The times during which a rank could run extra work.

    Attributes:
        rank: Index of the rank.
        iteration: Index of the iteration.
        start_ns: Start of the bubble.
        end_ns: End of the bubble.
        kind: ``WARM_UP``, ``BETWEEN`` or ``DRAIN``.
    """

    rank: Ints
    iteration: Ints
    start_ns: Ints
    end_ns: Ints
    kind: Ints


def find_slots(bubbles: Bubbles, n_ranks: int, n_iterations: int) -> Slots:
    """Return the bubbles in which extra work could run, with their kinds.

    Pieces of a bubble with different causes are one slot. Profiler overhead and idle time of
    unknown cause belong to no slot, and divide a bubble.

    Args:
        bubbles: Bubbles of the run.
        n_ranks: Number of ranks.
        n_iterations: Number of iterations.
    """
    free = bubbles.take(~np.isin(bubbles.cause, _NOT_FREE))
    merged = merge_pieces(free, "rank", "iteration", "interval")
    operations = bubbles.operations
    is_work = mask_phases(operations.phase, WORK) & (operations.has_span == 1)
    work = operations.take(is_work & (operations.iteration >= 0))
    key = work.iteration * n_ranks + work.rank
    first_ns = np.full(n_ranks * n_iterations, np.iinfo(np.int64).max)
    last_ns = np.full(n_ranks * n_iterations, np.iinfo(np.int64).min)
    np.minimum.at(first_ns, key, work.start_ns)
    np.maximum.at(last_ns, key, work.end_ns)
    slot_key = merged.iteration * n_ranks + merged.rank
    kind = np.full(len(merged), BETWEEN)
    kind[merged.start_ns >= last_ns[slot_key]] = DRAIN
    kind[merged.end_ns <= first_ns[slot_key]] = WARM_UP
    return Slots(merged.rank, merged.iteration, merged.start_ns, merged.end_ns, kind)


def fit_extra_work(
    bubbles: Bubbles,
    stages: Sequence[int | None],
    iterations: Iterable[Iteration],
    work_ns: int,
    piece_ns: int,
) -> ExtraWork:
    """Count the pieces of a job that fit into the bubbles of averaged iterations.

    Iterations whose ratio is unknown are left out, because their windows are unknown.

    Args:
        bubbles: Bubbles of the run.
        stages: Stage of each rank, or None if unknown.
        iterations: The iterations of the run.
        work_ns: Length of the job, greater than 0.
        piece_ns: Length of a piece, greater than 0.
    """
    ratio, iterations = bubbles.ratio, tuple(iterations)
    counted = [
        iteration.index
        for iteration in iterations
        if iteration.averaged and iteration.ratios[ratio].value is not None
    ]
    counts = _count_pieces(bubbles, len(stages), len(iterations), counted, piece_ns)
    pieces, unused_ns = counts.pieces, counts.unused_ns
    chosen = _choose_ranks(stages, pieces.sum(axis=(1, 2)))
    stage_slots = []
    for rank_index in chosen:
        stage, of_rank = stages[rank_index], pieces[rank_index]
        warm_up, between, drain = of_rank.mean(axis=0).tolist()
        slots_of_rank = StageSlots(
            stage=NONE if stage is None else stage,
            rank=rank_index,
            idle_ns=float(counts.idle_ns[rank_index].mean()),
            warm_up_pieces=warm_up,
            between_pieces=between,
            drain_pieces=drain,
            fitting_ns=_measure_fitting(
                of_rank.sum(axis=1), unused_ns[rank_index], work_ns, piece_ns
            ),
        )
        stage_slots.append(slots_of_rank)
    return ExtraWork(
        work_ns=work_ns,
        piece_ns=piece_ns,
        ratio=ratio,
        iterations=len(counted),
        stages=tuple(stage_slots),
        fitting_ns=_measure_fitting(
            pieces[chosen].sum(axis=(0, 2)),
            unused_ns[chosen].max(axis=0, initial=0),
            work_ns,
            piece_ns,
        ),
        longest_ns=int(counts.longest_ns[chosen].max(initial=0)),
    )


@dataclass(frozen=True, eq=False)
class _PieceCounts:
    """How many pieces fit into the bubbles of each rank in each counted iteration.

    Attributes:
        pieces: Number of pieces, shape (ranks, counted iterations, kinds of bubbles).
        idle_ns: Time of the bubbles, shape (ranks, counted iterations).
        longest_ns: Length of the longest bubble, shape (ranks, counted iterations).
        unused_ns: Longest time that pieces leave unused in a single bubble, shape (ranks, counted
            iterations).
    """

    pieces: Ints
    idle_ns: Ints
    longest_ns: Ints
    unused_ns: Ints


def _count_pieces(
    bubbles: Bubbles, n_ranks: int, n_iterations: int, counted: list[int], piece_ns: int
) -> _PieceCounts:
    """Count the pieces that fit into the bubbles of each rank in the counted iterations.

    Args:
        bubbles: Bubbles of the run.
        n_ranks: Number of ranks.
        n_iterations: Number of iterations.
        counted: Indices of the counted iterations. If there are none, the results are 0.
        piece_ns: Length of a piece.
    """
    slots = find_slots(bubbles, n_ranks, n_iterations)
    position = np.full(n_iterations, NONE)
    position[counted] = np.arange(len(counted))
    rows = np.flatnonzero(position[slots.iteration] >= 0)
    rank, column = slots.rank[rows], position[slots.iteration[rows]]
    length_ns = (slots.end_ns - slots.start_ns)[rows]
    shape = n_ranks, max(len(counted), 1)
    pieces = np.zeros((*shape, 3), np.int64)
    idle_ns, longest_ns, unused_ns = np.zeros((3, *shape), np.int64)
    np.add.at(pieces, (rank, column, slots.kind[rows]), length_ns // piece_ns)
    np.add.at(idle_ns, (rank, column), length_ns)
    np.maximum.at(longest_ns, (rank, column), length_ns)
    np.maximum.at(unused_ns, (rank, column), length_ns % piece_ns)
    return _PieceCounts(pieces, idle_ns, longest_ns, unused_ns)


def _choose_ranks(stages: Sequence[int | None], pieces: Ints) -> list[int]:
    """Return one rank per stage, in the order of the stages: the rank that takes the fewest pieces.

    The smaller index wins a tie. Each rank without a stage is a stage of its own, at the end.

    Args:
        stages: Stage of each rank, or None if unknown.
        pieces: Number of pieces that each rank takes.
    """
    known = sorted({stage for stage in stages if stage is not None})
    ranks = range(len(stages))
    chosen = [
        min((rank for rank in ranks if stages[rank] == stage), key=lambda rank: int(pieces[rank]))
        for stage in known
    ]
    return chosen + [rank for rank in ranks if stages[rank] is None]


def _measure_fitting(pieces: Ints, unused_ns: Ints, work_ns: int, piece_ns: int) -> float:
    """Return how much of a job fits, as a mean over iterations.

    The last piece is shorter if the job is not a multiple of the piece. It runs where another piece
    would fit, or in the time that other pieces leave unused in a bubble.

    Args:
        pieces: Number of pieces that fit in each iteration.
        unused_ns: Longest time that pieces leave unused in a single bubble, for each iteration.
        work_ns: Length of the job.
        piece_ns: Length of a piece.
    """
    n_full, last_ns = divmod(work_ns, piece_ns)
    has_room = (pieces > n_full) | (unused_ns >= last_ns)
    fitting_ns = np.minimum(pieces, n_full) * piece_ns + np.where(has_room, last_ns, 0)
    return float(fitting_ns.mean())
