"""Scenarios: iterations replayed with the times of some work put back, or taken away.

In an ideal iteration every kind of work takes equally long: computes the mean of their kind over
all ranks and iterations, transfers the median. What a set of work costs is seen from both ends::

    ideal ──────────┤
    added           ├──┤          the ideal with the set's own times put back
    removed             ├─────┤   the original with ideal times for the set
    original ─────────────────┤

(``explain_slowdown`` and ``simulation_analysis_reduce_dim_v4`` of the published analyzer.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import islice

import numpy as np

from bubbleviz.explain.slowdown.apart import Times, lengths_apart
from bubbleviz.explain.slowdown.replay import Order, Replay, replay_of, scenarios_at_once
from bubbleviz.explain.slowdown.work import Work
from bubbleviz.model.columns import Bools, Floats, Ints
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.sorting import sorted_rows
from bubbleviz.model.values import frozen


@frozen(eq=False, shown=False)
class Scenarios:
    """Work, its ideal, and the replay of both.

    Attributes:
        work: of the iterations that are replayed.
        order: what each of its rows follows.
        replay: of it.
        early_ns: how much each starts before all that it follows has ended, as a negative number:
            operations can begin with work that needs no input.
    """

    work: Work
    order: Order
    replay: Replay
    early_ns: Ints

    @cached_property
    def own_ns(self) -> Ints:
        """How long each row took itself (see :attr:`Work.own_ns`)."""
        return self.work.own_ns

    @cached_property
    def ideal_ns(self) -> Ints:
        """How long each row takes in an ideal iteration."""
        return ideal_times(self.work, self.own_ns)

    @property
    def lengths_ns(self) -> Ints:
        """How long each iteration takes at its own times, without launch delays."""
        return self._lengths_ns[:, 0]

    @property
    def ideal_lengths_ns(self) -> Ints:
        """How long each iteration takes where it is ideal."""
        return self._lengths_ns[:, 1]

    @cached_property
    def _lengths_ns(self) -> Ints:
        """Both, which advice on faults does without: they are replayed once asked for."""
        times = np.stack((self.own_ns, self.ideal_ns), axis=1)
        return self.replay.lengths_ns(times, self.early_ns)

    @property
    def original(self) -> float:
        """Mean length of the iterations at their own times, in ns, without launch delays."""
        return float(self.lengths_ns.mean())

    @property
    def ideal(self) -> float:
        """Mean length of ideal iterations, in ns."""
        return float(self.ideal_lengths_ns.mean())

    def put_back(self, groups: Sequence[tuple[Ints, int]]) -> Floats:
        """Return the mean length of ideal iterations with the own times of each group, in ns.

        Args:
            groups: a column of the work, and its value in the rows of the group.
        """
        replay, step = self.replay, scenarios_at_once(len(self.work))
        own_ns, ideal_ns, early_ns = (
            column[replay.rows] for column in (self.own_ns, self.ideal_ns, self.early_ns)
        )
        # A column is that of many groups.
        columns = {id(column): column[replay.rows] for column, _ in groups}
        means = [np.zeros(0)]
        for first in range(0, len(groups), step):
            some = groups[first : first + step]
            own = np.stack([columns[id(column)] == value for column, value in some], axis=1)
            times_ns = np.where(own, own_ns[:, None], ideal_ns[:, None])
            means.append(replay.placed_lengths_ns(times_ns, early_ns).mean(axis=0))
        return np.concatenate(means)

    def put_back_apart(self, label: Ints, values: Ints) -> Floats:
        """Return the same for groups whose work mostly follows none of any other, at less cost.

        Args:
            label: group of each row; -1 none.
            values: of the groups, ascending.
        """
        times = Times(self.work, self.order, self.replay, self.early_ns, self.own_ns, self.ideal_ns)
        return np.asarray(lengths_apart(times, label, values).mean(axis=0))

    def without(self, sets: Iterable[Bools]) -> Floats:
        """Return the mean length of the iterations with ideal times for each set, in ns.

        Args:
            sets: the rows of each, as masks.
        """
        return self._means(sets, self.ideal_ns, self.own_ns)

    def replayed(self, own_ns: Iterable[Ints]) -> Floats:
        """Return the mean length of the iterations with other times, in ns.

        Args:
            own_ns: of each row, by scenario; only some are held at a time.
        """
        scenarios = iter(own_ns)
        step = scenarios_at_once(len(self.work))
        means = []
        while some := list(islice(scenarios, step)):
            lengths_ns = self.replay.lengths_ns(np.stack(some, axis=1), self.early_ns)
            means.append(lengths_ns.mean(axis=0))
        return np.concatenate(means) if means else np.zeros(0)

    def _means(self, sets: Iterable[Bools], inside_ns: Ints, outside_ns: Ints) -> Floats:
        return self.replayed(np.where(rows, inside_ns, outside_ns) for rows in sets)

    def removal(self, sets: Iterable[Bools]) -> list[float | None]:
        """Return the share of the slowdown that goes where each set takes ideal times.

        None where there is no slowdown to take a share of.
        """
        lost = self.original - self.ideal
        return [float((self.original - ns) / lost) if lost else None for ns in self.without(sets)]


def scenarios_of(work: Work, order: Order, early_ns: Ints | None = None) -> Scenarios | None:
    """Return the replay of work and of its ideal; None where no iteration can be replayed.

    Args:
        work: of all ranks.
        order: what each of its rows follows.
        early_ns: see :class:`Scenarios`; None for nothing.
    """
    replay = replay_of(work, order)
    if not len(replay.iterations):
        return None
    early_ns = np.zeros(len(work), np.int64) if early_ns is None else early_ns
    return Scenarios(work, order, replay, early_ns)


def ideal_times(work: Work, own_ns: Ints) -> Ints:
    """Return the time that each row takes in an ideal iteration: the mean or median of its kind.

    Args:
        work: of all ranks.
        own_ns: how long each row took itself.
    """
    kinds = groups_of(work.kind)
    size = np.bincount(kinds.of_row, minlength=len(kinds))
    mean_ns = np.bincount(kinds.of_row, own_ns, len(kinds)) / size
    order = sorted_rows(kinds.of_row, own_ns)
    first = np.cumsum(size) - size
    low, high = own_ns[order][first + (size - 1) // 2], own_ns[order][first + size // 2]
    median_ns = low + (high - low) / 2
    moves = work.communicates[kinds.first]
    ideal_ns = np.rint(np.where(moves, median_ns, mean_ns)).astype(np.int64)
    return np.asarray(ideal_ns[kinds.of_row], np.int64)
