"""Chains: the ranks of one pipeline, stage after stage, also where some of them are missing.

From a stage all of whose replicas are there, each chain is continued by the rank of the next stage
that alone fits. Over a missing rank many fit, since nothing shows how long it took; those that are
left take the chains that are left, in the order of their numbers, if they fit::

    stage 4   a ── b ── c ── d
    stage 5   a ── b    .    .      two ranks without a profile
    stage 6   a ── b ── c ── d      a and b follow theirs, c and d are left
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from bubbleviz.align.neighbours import forced
from bubbleviz.model.columns import NONE, Bools, Ints, Table
from bubbleviz.model.grouping import (
    Groups,
    Numbering,
    distinct,
    first_of_each,
    groups_of,
    sorted_rows,
)
from bubbleviz.model.operations import RankOperations
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import BACKWARD, COUNTED, Phase
from bubbleviz.model.values import frozen

#: Of all ranks at most one of so many may be missing. More than half of each stage must be there:
#: of a stage that times divide in two, one part has half of it or less.
_OF_ALL = 8
#: Stages of so many ranks are replicas if none lacks more than one of so many.
_LARGE, _CLOSE = 64, 8
#: Which ranks of one stage can form a pipeline with which ones of another.
Fits = Callable[[Ints, Ints], Bools]


def lack_many(sizes: Sequence[int]) -> bool:
    """Return whether stages hold too different numbers of ranks to be replicas of which few lack.

    As many are there of at least half of the stages, of two at least, and more of none. Of large
    stages most may lack some, where all are nearly as large.

    Args:
        sizes: how many ranks each stage has.
    """
    most = max(sizes, default=0)
    whole = sum(size == most for size in sizes)
    if whole == len(sizes) > 0:
        return False
    lacking = most * len(sizes) - sum(sizes)
    few = lacking * _OF_ALL <= most * len(sizes) and 2 * min(sizes, default=0) > most
    usual = 2 * whole >= len(sizes) and whole > 1
    close = most >= _LARGE and (most - min(sizes, default=0)) * _CLOSE <= most
    return not (few and (usual or close))


def pipelines_of(stages: Sequence[Ints], fits: Fits, ranks: int) -> Ints | None:
    """Return the pipeline of each rank; -1 for ranks of no stage.

    None where several ranks of a stage can continue one chain, or none can.

    Args:
        stages: the ranks of each stage, in the order of their numbers.
        fits: see there; between stages far apart, the ranks between them are missing.
        ranks: how many there are.
    """
    pipeline = np.full(ranks, NONE, np.int64)
    sizes = [len(own) for own in stages]
    count = max(sizes)
    first = sizes.index(count)
    lacking = min(sizes) < count
    pipeline[stages[first]] = np.arange(count)
    for others in (stages[first + 1 :], stages[:first][::-1]):
        tips, number = stages[first], pipeline[stages[first]]
        away = np.zeros(len(tips), np.int64)
        for own in others:
            away += 1
            whole = len(own) == sizes[first]
            chain = _continued((tips, away), own, fits, whole=whole, lacking=lacking)
            if chain is None:
                return None
            # Nothing shows what these continue, so they are chains of their own.
            new = np.flatnonzero(chain < 0)
            chain[new] = len(tips) + np.arange(len(new))
            number = np.append(number, count + np.arange(len(new)))
            tips, away = np.append(tips, own[new]), np.append(away, np.zeros(len(new), np.int64))
            count += len(new)
            tips[chain], away[chain] = own, 0
            pipeline[own] = number[chain]
    return pipeline


def _continued(
    chains: tuple[Ints, Ints], own: Ints, fits: Fits, *, whole: bool, lacking: bool
) -> Ints | None:
    """Return the chain that each rank of the next stage continues; -1 none that is known.

    None where that of some rank is one of several.

    Args:
        chains: the last rank of each, and how many stages before this one.
        own: the ranks of the stage, by their numbers.
        fits: which ranks can follow which.
        whole: whether as many are there as of any stage.
        lacking: whether some stage has fewer.
    """
    tips, away = chains
    near, gaps = np.flatnonzero(away == 1), np.flatnonzero(away > 1)
    can = fits(tips[near], own) if len(near) else np.zeros((0, len(own)), bool)
    # Over a missing rank, what fits may belong to a chain that ended before.
    row = _near_ones(can, whole=whole, unbroken=len(gaps) == 0)
    if row is None and whole and lacking:
        # Others may be missing than of the stage before.
        row = _near_ones(can, whole=False, unbroken=False)
    if row is None:
        return None
    left = np.flatnonzero(row < 0)
    chain = np.append(near, NONE)[row]
    if len(left) == len(gaps) and _fit_in_order(tips[gaps], away[gaps], own[left], fits):
        chain[left] = gaps
    return chain


def _near_ones(can: Bools, *, whole: bool, unbroken: bool) -> Ints | None:
    """Return the chain near each rank that it continues, -1 none; None where it is one of several.

    Args:
        can: which chains (rows) that reach the stage before, ranks can continue.
        whole: whether each of these goes on.
        unbroken: whether each rank continues one of these.
    """
    row = forced(can, rows_have_one=whole, columns_have_one=unbroken)
    rest = can.copy()
    rest[row[row >= 0]] = False
    if rest[:, row < 0].any() or (whole and np.count_nonzero(row >= 0) < len(can)):
        return None
    return row


def _fit_in_order(tips: Ints, away: Ints, own: Ints, fits: Fits) -> bool:
    """Return whether each rank can follow the tip of its own place, over ranks that are missing."""
    return all(
        bool(fits(tips[away == stages], own[away == stages]).diagonal().all())
        for stages in distinct(away).tolist()
    )


# Orders: in which order each rank runs the operations of its iterations, by its host.


_FORWARD = (Phase.F, Phase.FB)
_BACKWARD = (*BACKWARD, Phase.FB)


@frozen
class RankOrders:
    """Which orders ranks ran, and how often each.

    Attributes:
        rank: of each of its orders, ascending.
        order: a number that those share which are the same.
        often: in how many iterations.
        seen: the first of these, among the iterations of all ranks.
        texts: of each number, phase, microbatch and chunk of its operations.
    """

    rank: Ints
    order: Ints
    often: Ints
    seen: Ints
    texts: tuple[bytes, ...]

    def usual(self) -> tuple[Ints, Ints]:
        """Return ranks, ascending, and the most frequent order of each; of several the first."""
        rows = first_of_each(self.rank, -self.often, self.seen)
        return self.rank[rows], self.order[rows]

    def usual_whatever_came_first(self) -> tuple[Ints, Ints]:
        """Return the same, but of several orders the longest, and of these the last by its text."""
        place = np.empty(len(self.texts), np.int64)
        place[sorted(range(len(place)), key=self._by_text)] = np.arange(len(place))
        rows = first_of_each(self.rank, -self.often, -place[self.order])
        return self.rank[rows], self.order[rows]

    def _by_text(self, order: int) -> tuple[int, bytes]:
        return len(self.texts[order]), self.texts[order]

    @property
    def in_common(self) -> bool:
        """Whether there is an order that every rank ran."""
        holders = np.bincount(self.order, minlength=1)
        return bool(holders.max() == len(distinct(self.rank)))


def orders_of(operations: RankOperations, *, training: bool = False) -> RankOrders:
    """Return how often each rank ran which order.

    Args:
        operations: of all ranks, with each rank's own iteration numbers.
        training: whether to leave out iterations that do not both go forward and come back.
    """
    counted = among(operations.phase, COUNTED) & (operations.iteration >= 0)
    rows = np.flatnonzero(counted & (operations.occurrence == 0))
    rows = rows[
        sorted_rows(
            operations.rank[rows], operations.iteration[rows], operations.host_start_ns[rows]
        )
    ]
    iterations = groups_of(operations.rank[rows], operations.iteration[rows])
    rank = operations.rank[rows[iterations.first]]
    order, texts = _numbered(operations, rows, iterations.first)
    if training:
        trains = _training(operations.phase[rows], iterations)
        rank, order = rank[trains], order[trains]
    own = groups_of(rank, order)
    often = np.bincount(own.of_row, minlength=len(own))
    return RankOrders(rank[own.first], order[own.first], often, own.first, texts)


def _training(phase: Ints, iterations: Groups) -> Bools:
    """Return which iterations go both forward and backward."""
    trains: Bools = np.ones(len(iterations), bool)
    for phases in (_FORWARD, _BACKWARD):
        own = among(phase, phases)
        trains &= np.bincount(iterations.of_row[own], minlength=len(iterations)) > 0
    return trains


def _numbered(
    operations: RankOperations, rows: Ints, first: Ints
) -> tuple[Ints, tuple[bytes, ...]]:
    """Return a number for the order of each iteration, and the text of each number.

    Args:
        operations: of all ranks.
        rows: of these, those of one iteration after those of another.
        first: where among them each begins.
    """
    what = operations.phase[rows], operations.microbatch[rows], operations.chunk[rows]
    kinds = groups_of(*what)
    # In as few bytes as they need, since whole orders are compared.
    codes = kinds.of_row.astype(np.min_scalar_type(len(kinds)))
    lengths = np.diff(first, append=len(rows))
    numbers: Numbering[bytes] = Numbering()
    order = np.empty(len(first), np.int64)
    for length in distinct(lengths).tolist():
        own = np.flatnonzero(lengths == length)
        data = codes[first[own][:, None] + np.arange(length)].tobytes()
        size = length * codes.itemsize
        order[own] = numbers.numbers([data[at : at + size] for at in range(0, len(data), size)])
    texts = np.stack([column[kinds.first] for column in what], axis=1)
    each = (np.frombuffer(value, codes.dtype) for value in numbers.values)
    return order, tuple(texts[own].tobytes() for own in each)


# Chunk pairs: which chunk of one rank is which of another's, where the recording began mid-stream.
#
# Names of serving frameworks give chunks no numbers, so each rank counts its own from 0. Ranks
# begin
# to record at one time, and later stages are then still at earlier chunks::
#
#     recording     │
#     stage 0   F7 ─┼─ F8 ──── F9 ────        counts F8 as 0
#     stage 1   F6 ─┼── F7 ──── F8 ───        counts F7 as 0: it is moved by -1
#
# No chunk begins on a stage before it ended on the one before, and it has the same tokens on all.


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
