"""Orders: in which order each rank runs the operations of its iterations, by its host."""

from __future__ import annotations

import numpy as np

from bubbleviz.model.columns import Bools, Ints
from bubbleviz.model.grouping import Groups, distinct, first_of_each, groups_of
from bubbleviz.model.numbering import Numbering
from bubbleviz.model.operations import RankOperations
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import BACKWARD, COUNTED, Phase
from bubbleviz.model.sorting import sorted_rows
from bubbleviz.model.values import frozen

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
