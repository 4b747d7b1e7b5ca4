"""Order of a run's work: what each row of it follows, as far as its times show it.

Operations run in their order. A collective, or a receive, follows the operation that had ended when
it began; where it was exposed the next operation follows it, else the optimizer does::

    compute     ├─ B6 ─┤├─ B7 ─┤                 ├ Optimizer ┤
    collective          ├─ bucket 0 ─┤├ bucket 1 ┤
                 after B6             after B7 and bucket 0
"""

from __future__ import annotations

import numpy as np

from bubbleviz.explain.slowdown.replay import Order
from bubbleviz.explain.slowdown.run_work import Messages
from bubbleviz.explain.slowdown.work import Role, Work
from bubbleviz.model.columns import NONE, Ints


def run_order(work: Work, rows: Ints, messages: Messages, operations: int) -> Order:
    """Return what each row of a run's work follows.

    Args:
        work: operations, then sends, then receives, then collectives.
        rows: of the operations table, of the first rows of it.
        messages: between operations; those seen are the sends and receives.
        operations: number of rows of the operations table.
    """
    place = np.full(operations, NONE, np.int64)
    place[rows] = np.arange(len(rows))
    seen = np.flatnonzero(messages.seen)
    send = len(rows) + np.arange(len(seen))
    receive = send + len(seen)
    collective = np.arange(len(rows) + 2 * len(seen), len(work))
    computes = np.arange(len(rows))
    unseen = np.flatnonzero(~messages.seen)
    pairs = [
        _chained(work, computes),
        (send, place[messages.producer[seen]]),
        (place[messages.consumer[seen]], receive),
        (place[messages.consumer[unseen]], place[messages.producer[unseen]]),
        _last_ended(work, computes, np.concatenate((receive, collective))),
        _last_ended(work, collective, collective),
        _followed(work, computes, collective),
    ]
    row, before = (np.concatenate([pair[side] for pair in pairs]) for side in (0, 1))
    return Order(row, before)


def _chained(work: Work, rows: Ints) -> tuple[Ints, Ints]:
    """Return rows with the one before them on their rank and in their iteration."""
    place = work.rank_iteration[rows]
    order = np.lexsort((rows, work.start_ns[rows], place))
    rows, place = rows[order], place[order]
    same = place[1:] == place[:-1]
    return rows[1:][same], rows[:-1][same]


def _last_ended(work: Work, earlier: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """Return rows with the last of some others that had ended when they began.

    Rows of one time stand in their order, so that none follows itself.
    """
    place = work.rank_iteration
    both = np.concatenate((earlier, rows))
    begins = np.arange(len(both)) >= len(earlier)
    time_ns = np.where(begins, work.start_ns[both], work.end_ns[both])
    length_ns = work.end_ns[both] - work.start_ns[both]
    # What takes no time ends when it begins: it begins first, lest it follow itself.
    instant = length_ns == 0
    turn = np.where(begins, 2, np.where(instant, 3, 1))
    order = np.lexsort((both, turn, time_ns, place[both]))
    at = np.arange(len(order))
    last = np.maximum.accumulate(np.where(begins[order], NONE, at)) if len(order) else at
    found = np.flatnonzero(begins[order] & (last != NONE))
    row, before = both[order[found]], both[order[last[found]]]
    same = place[row] == place[before]
    return row[same], before[same]


def _followed(work: Work, computes: Ints, collectives: Ints) -> tuple[Ints, Ints]:
    """Return what follows collectives: the next operation if they were exposed, else the optimizer.

    A collective is exposed if the operation before the next one had ended when it did.
    """
    optimizers = computes[work.role[computes] == Role.OPTIMIZER]
    next_row = _next_begun(work, computes, collectives)
    optimizer = _next_begun(work, optimizers, collectives)
    before = np.full(len(work) + 1, NONE, np.int64)
    after, earlier = _chained(work, computes)
    before[after] = earlier
    previous = before[next_row]
    exposed = (previous == NONE) | (work.end_ns[previous] <= work.end_ns[collectives])
    follower = np.where(exposed, next_row, optimizer)
    some = follower != NONE
    return follower[some], collectives[some]


def _next_begun(work: Work, later: Ints, rows: Ints) -> Ints:
    """Return the first of some others that began once each row had ended; -1 for none."""
    place = work.rank_iteration
    both = np.concatenate((later, rows))
    ended = np.arange(len(both)) >= len(later)
    time_ns = np.where(ended, work.end_ns[both], work.start_ns[both])
    order = np.lexsort((both, ~ended, time_ns, place[both]))
    at = np.where(ended[order], len(order), np.arange(len(order)))
    following = np.minimum.accumulate(at[::-1])[::-1] if len(order) else at
    found = np.full(len(both), NONE, np.int64)
    some = np.flatnonzero(ended[order] & (following < len(order)))
    found[order[some]] = both[order[following[some]]]
    result = found[len(later) :]
    return np.where((result != NONE) & (place[result] == place[rows]), result, NONE)
