"""Order of a run's work: what each row of it follows, as far as its times show it.

Operations run in their order. A collective follows the operation that had ended when it began;
where it was exposed the next operation follows it, else the optimizer does::

    compute     ├─ B6 ─┤├─ B7 ─┤                 ├ Optimizer ┤
    collective          ├─ bucket 0 ─┤├ bucket 1 ┤
                 after B6             after B7 and bucket 0
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bubbleviz.explain.causes.forward_waits import TokenWaits
from bubbleviz.explain.slowdown.message_order import Pairs, chained, message_order
from bubbleviz.explain.slowdown.messages import Messages
from bubbleviz.explain.slowdown.point_to_point import CLOCK_NS, PointToPoint
from bubbleviz.explain.slowdown.replay import Order
from bubbleviz.explain.slowdown.token_order import token_pairs
from bubbleviz.explain.slowdown.work import Role, Work
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.operations import Operations
from bubbleviz.model.sorting import sorted_rows


def run_order(
    work: Work, rows: Ints, messages: Messages, operations: Operations, tokens: TokenWaits
) -> Order:
    """Return what each row of a run's work follows.

    Args:
        work: operations, then sends, then receives, then collectives.
        rows: of the operations table, of the first rows of it.
        messages: between operations; those seen are the sends and receives.
        operations: of all ranks.
        tokens: which of these waited for the token of which.
    """
    place = np.full(len(operations), NONE, np.int64)
    place[rows] = np.arange(len(rows))
    seen, unseen = messages.take(messages.seen), messages.take(~messages.seen)
    computes = np.arange(len(rows))
    collective = np.arange(len(rows) + 2 * len(seen), len(work))
    pairs = [
        chained(work, computes, work.rank_iteration[computes]),
        (place[unseen.consumer], place[unseen.producer]),
        token_pairs(operations, tokens, place),
        *_in_time(work, message_order(work, _point_to_point(place, seen, len(rows)), computes)),
        _last_ended(work, computes, collective),
        _last_ended(work, collective, collective),
        _followed(work, computes, collective),
    ]
    row, before = (np.concatenate([pair[side] for pair in pairs]) for side in (0, 1))
    return Order(row, before)


def _point_to_point(place: Ints, seen: Messages, rows: int) -> PointToPoint:
    """Return the sends, then the receives of messages, which stand behind so many rows."""
    pair = np.arange(len(seen))
    return PointToPoint(
        row=rows + np.arange(2 * len(seen)),
        compute=np.concatenate((place[seen.producer], place[seen.consumer])),
        pair=np.concatenate((pair, pair)),
    )


def _in_time(work: Work, pairs: list[Pairs]) -> Iterator[Pairs]:
    """Yield pairs without those sends and receives that began before what they would follow ended.

    A rank can post receives ahead of the operation before.
    """
    for row, before in pairs:
        late = work.end_ns[before] > work.start_ns[row] + CLOCK_NS
        kept = ~(late & work.communicates[row])
        yield row[kept], before[kept]


def _last_ended(work: Work, earlier: Ints, rows: Ints) -> Pairs:
    """Return rows with the last of some others that had ended when they began, about.

    What each follows began before it, so that none follows itself.
    """
    place = work.rank_iteration
    both = np.concatenate((earlier, rows))
    begins = np.arange(len(both)) >= len(earlier)
    start_ns = work.start_ns[both]
    ended_ns = np.maximum(work.end_ns[both] - CLOCK_NS, start_ns)
    turn = np.where(begins, 1, np.where(ended_ns > start_ns, 0, 2))
    order = sorted_rows(place[both], np.where(begins, start_ns, ended_ns), turn, both)
    at = np.arange(len(order))
    last = np.maximum.accumulate(np.where(begins[order], NONE, at)) if len(order) else at
    found = np.flatnonzero(begins[order] & (last != NONE))
    row, before = both[order[found]], both[order[last[found]]]
    same = place[row] == place[before]
    return row[same], before[same]


def _followed(work: Work, computes: Ints, collectives: Ints) -> Pairs:
    """Return what follows collectives: the next operation if they were exposed, else the optimizer.

    A collective is exposed if the operation before the next one had ended when it did.
    """
    optimizers = computes[work.role[computes] == Role.OPTIMIZER]
    next_row = _next_begun(work, computes, collectives)
    optimizer = _next_begun(work, optimizers, collectives)
    before = np.full(len(work) + 1, NONE, np.int64)
    after, earlier = chained(work, computes, work.rank_iteration[computes])
    before[after] = earlier
    previous = before[next_row]
    exposed = previous == NONE
    exposed |= work.end_ns[previous] <= work.end_ns[collectives] + CLOCK_NS
    follower = np.where(exposed, next_row, optimizer)
    some = follower != NONE
    return follower[some], collectives[some]


def _next_begun(work: Work, later: Ints, rows: Ints) -> Ints:
    """Return the first of some others that began once each row had ended, about; -1 for none.

    It began after the row itself.
    """
    place = work.rank_iteration
    both = np.concatenate((later, rows))
    ends = np.arange(len(both)) >= len(later)
    start_ns = work.start_ns[both]
    ended_ns = np.maximum(work.end_ns[both] - CLOCK_NS, start_ns)
    turn = np.where(~ends, 1, np.where(ended_ns > start_ns, 0, 2))
    order = sorted_rows(place[both], np.where(ends, ended_ns, start_ns), turn, both)
    at = np.where(ends[order], len(order), np.arange(len(order)))
    following = np.minimum.accumulate(at[::-1])[::-1] if len(order) else at
    found = np.full(len(both), NONE, np.int64)
    some = np.flatnonzero(ends[order] & (following < len(order)))
    found[order[some]] = both[order[following[some]]]
    result = found[len(later) :]
    return np.where((result != NONE) & (place[result] == place[rows]), result, NONE)
