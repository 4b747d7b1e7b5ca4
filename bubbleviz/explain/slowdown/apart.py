"""Apart: replays in which one group of work after the other takes its own times.

Replicas of a pipeline run on their own up to the collectives that they share. So one replay of all
groups at their own times, and one at ideal times, tell when any work ends that follows a single
group, and only what follows several is replayed for each::

    replica 0   ├─ F0 ─┤├─ B0 ─┤│▓ all-reduce ▓┤├ Optimizer ┤
    replica 1   ├─ F0 ─┤├─ B0 ─┤│▓ all-reduce ▓┤├ Optimizer ┤
                     apart      │  for each replica
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bubbleviz.align.arrivals import NEVER
from bubbleviz.explain.slowdown.replay import Order, Replay, replay_of, scenarios_at_once
from bubbleviz.explain.slowdown.work import Work
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import distinct, found_in
from bubbleviz.model.values import frozen


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
