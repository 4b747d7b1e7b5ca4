"""Message order: what sends and receives follow on their rank, and what follows them.

A send follows its compute. A receive precedes its compute, and follows the one of its direction
before that; each kind of send and receive runs in its own order::

    RECV_F  ├──┤           ├──┤
    compute     ├─ F0 ─┤       ├─ F1 ─┤       ├─ B0 ─┤
    SEND_F              ├──┤           ├──┤

The rules are those of ``setup_pp_dependency`` in the published ``analyzer/dependency_model.py``.
"""

from __future__ import annotations

import numpy as np

from bubbleviz.explain.slowdown.point_to_point import PointToPoint
from bubbleviz.explain.slowdown.work import POINT_TO_POINT, Role, Work, numbered
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import first_of_each, groups_of, looked_up
from bubbleviz.model.sorting import sorted_rows

#: Rows, and what each follows.
Pairs = tuple[Ints, Ints]


def message_order(work: Work, messages: PointToPoint, computes: Ints) -> list[Pairs]:
    """Return what sends and receives follow, and what follows them.

    Args:
        work: of all ranks.
        messages: its sends and receives.
        computes: rows that ranks compute one after the other.
    """
    role, place = work.role, work.rank_iteration
    streams = (np.flatnonzero(role == own) for own in POINT_TO_POINT)
    return [
        *(chained(work, rows, place[rows]) for rows in streams),
        *_of_computes(work, messages),
        *_first_backward(work, computes),
    ]


def chained(work: Work, rows: Ints, group: Ints) -> Pairs:
    """Return each of some rows, and the one before it in its group, by start."""
    order = sorted_rows(group, work.start_ns[rows], work.kind[rows])
    rows, group = rows[order], group[order]
    same = group[1:] == group[:-1]
    return rows[1:][same], rows[:-1][same]


def _of_computes(work: Work, messages: PointToPoint) -> list[Pairs]:
    """Return that a send follows its compute; a receive precedes it, and follows the one before."""
    known = messages.take(messages.compute != NONE)
    receives = np.isin(work.role[known.row], (Role.RECV_F, Role.RECV_B))
    taken, given = known.take(receives), known.take(~receives)
    role = work.role
    computes = np.flatnonzero((role == Role.FORWARD) | (role == Role.BACKWARD))
    of_role = groups_of(work.rank_iteration[computes], role[computes]).of_row
    after, before = chained(work, computes, of_role)
    earlier = np.full(len(work) + 1, NONE, np.int64)
    earlier[after] = before
    previous = earlier[taken.compute]
    follows = previous != NONE
    return [
        (given.row, given.compute),
        (taken.compute, taken.row),
        (taken.row[follows], previous[follows]),
    ]


def _first_backward(work: Work, computes: Ints) -> list[Pairs]:
    """Return what the first backward messages follow: the forward before the last of the warm-up.

    ::

        ... ├─ F2 ─┤├─ F3 ─┤├─ B0 ─┤
                   └─> RECV_B, SEND_B
    """
    role, place = work.role, work.rank_iteration
    number = numbered(place[computes], work.start_ns[computes], work.kind[computes])
    backward = np.flatnonzero(role[computes] == Role.BACKWARD)
    first = backward[first_of_each(place[computes[backward]], number[backward])]
    of_place = place[computes[first]]
    keys = (place[computes], number)
    last, second = (looked_up(keys, computes, (of_place, number[first] - i)) for i in (1, 2))
    warmed = (last != NONE) & (second != NONE)
    warmed &= (role[last] == Role.FORWARD) & (role[second] == Role.FORWARD)
    pairs = []
    for own in (Role.RECV_B, Role.SEND_B):
        rows = np.flatnonzero(role == own)
        rows = rows[first_of_each(place[rows], work.start_ns[rows])]
        before = looked_up((of_place[warmed],), second[warmed], (place[rows],))
        pairs.append((rows[before != NONE], before[before != NONE]))
    return pairs
