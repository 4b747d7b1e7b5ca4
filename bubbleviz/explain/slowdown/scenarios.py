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
from dataclasses import replace
from functools import cached_property
from itertools import islice

import numpy as np

from bubbleviz.align.waits import NEVER
from bubbleviz.explain.slowdown.replay import Order, Replay, Work, replay_of, scenarios_at_once
from bubbleviz.model.columns import NONE, Bools, Floats, Ints
from bubbleviz.model.grouping import distinct, found_in, groups_of, sorted_rows
from bubbleviz.model.values import frozen

# Apart: replays in which one group of work after the other takes its own times.
#
# Replicas of a pipeline run on their own up to the collectives that they share. So one replay of
# all
# groups at their own times, and one at ideal times, tell when any work ends that follows a single
# group, and only what follows several is replayed for each::
#
#     replica 0   ├─ F0 ─┤├─ B0 ─┤│▓ all-reduce ▓┤├ Optimizer ┤
#     replica 1   ├─ F0 ─┤├─ B0 ─┤│▓ all-reduce ▓┤├ Optimizer ┤
#                      apart      │  for each replica


@frozen(eq=False, shown=False)
class Times:
    """Work with two times for each of its rows.

    Attributes:
        work: of all ranks.
        order: what each of its rows follows.
        replay: of it.
        early_ns: as of :class:`~bubbleviz.explain.slowdown.scenarios.Scenarios`.
        own_ns: how long each row took itself.
        ideal_ns: how long it takes in an ideal iteration.
    """

    work: Work
    order: Order
    replay: Replay
    early_ns: Ints
    own_ns: Ints
    ideal_ns: Ints


def lengths_apart(times: Times, label: Ints, values: Ints) -> Ints:
    """Return how long ideal iterations take with the own times of each group put back.

    Args:
        times: of the work.
        label: group of each row; -1 none.
        values: of the groups, ascending.

    Returns:
        In ns, shape (iterations, groups).
    """
    replay = times.replay
    group = np.where(label == NONE, len(values), found_in(values, label))
    own_ns = np.where(label == NONE, times.ideal_ns, times.own_ns)
    ends_ns = np.empty((len(times.work), 2), np.int64)
    ends_ns[replay.rows] = replay.ends_ns(
        np.stack((own_ns, times.ideal_ns), axis=1), times.early_ns
    )[: len(replay.rows)]
    mixed = replay.mixed(group)
    closing = replay.rows[replay.closing]
    iteration = np.repeat(
        np.arange(len(replay.iterations)),
        np.diff(np.append(replay.first_closing, len(replay.closing))),
    )
    alone = ~mixed[closing]
    lengths_ns = _of_single_groups(
        (len(replay.iterations), len(values)),
        iteration[alone],
        group[closing[alone]],
        ends_ns[closing[alone]],
    )
    if mixed.any():
        rest = closing[~alone], iteration[~alone]
        lengths_ns = np.maximum(lengths_ns, _of_several(times, group, mixed, ends_ns, rest, values))
    return lengths_ns


def _of_single_groups(shape: tuple[int, int], iteration: Ints, group: Ints, ends_ns: Ints) -> Ints:
    """Return when the last row ends that follows a single group, for each group put back.

    Args:
        shape: iterations and groups.
        iteration: of each row that ends one.
        group: that it follows.
        ends_ns: with the own times of the group, and with ideal ones.
    """
    latest_ns = np.full((2, shape[0], shape[1] + 1), NEVER)
    for of_time, time_ns in zip(latest_ns, ends_ns.T, strict=True):
        np.maximum.at(of_time, (iteration, group), time_ns)
    own_ns, ideal_ns = latest_ns
    every = np.arange(shape[0])
    last = ideal_ns.argmax(axis=1)
    others_ns = np.repeat(ideal_ns[every, last][:, None], shape[1] + 1, axis=1)
    ideal_ns[every, last] = NEVER
    others_ns[every, last] = ideal_ns.max(axis=1)
    return np.asarray(np.maximum(own_ns, others_ns)[:, :-1], np.int64)


def _of_several(
    times: Times, group: Ints, mixed: Bools, ends_ns: Ints, closing: tuple[Ints, Ints], values: Ints
) -> Ints:
    """Return when the last row ends that follows several groups, for each group put back.

    Args:
        times: of the work.
        group: of each row.
        mixed: which rows follow several groups.
        ends_ns: of the others, with the own times of their group, and with ideal ones.
        closing: rows that follow several groups and end iterations, and these iterations.
        values: of the groups.
    """
    shape = len(times.replay.iterations), len(values)
    pairs = times.order.take(mixed[times.order.row])
    given = np.zeros(len(mixed), bool)
    given[pairs.before[~mixed[pairs.before]]] = True
    rows = np.flatnonzero(mixed | given)
    place = np.full(len(mixed), NONE, np.int64)
    place[rows] = np.arange(len(rows))
    of_rows, given = mixed[rows], given[rows]
    work = times.work.take(rows)
    # What follows a single group is only there with its end.
    work = replace(work, meeting=np.where(given, NONE, work.meeting))
    replay = replay_of(work, Order(place[pairs.row], place[pairs.before]))
    own_ns = np.where(of_rows, times.own_ns[rows], ends_ns[rows, 0])
    ideal_ns = np.where(of_rows, times.ideal_ns[rows], ends_ns[rows, 1])
    early_ns = np.where(of_rows, times.early_ns[rows], 0)
    ended = np.full(len(rows), NONE, np.int64)
    ended[replay.rows] = np.arange(len(replay.rows))
    ends = ended[place[closing[0]]]
    lengths_ns = np.full(shape, NEVER)
    step = scenarios_at_once(len(rows))
    for first in range(0, len(values), step):
        numbers = np.arange(first, min(first + step, len(values)))
        own = group[rows, None] == numbers
        put_back = np.where(own, own_ns[:, None], ideal_ns[:, None])
        found_ns = replay.ends_ns(put_back, early_ns)[ends]
        some = distinct(closing[1])
        begins = np.searchsorted(closing[1], some)
        if len(some):
            lengths_ns[some[:, None], numbers] = np.maximum.reduceat(found_ns, begins, axis=0)
    return lengths_ns


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
