"""Message order: the rows that sends and receives follow on their rank, and that follow them.

A send follows its compute. A receive precedes its compute, and follows the previous compute of its
direction. Each kind of send and receive runs in its own order::

    RECV_F  ├──┤           ├──┤
    compute     ├─ F0 ─┤       ├─ F1 ─┤       ├─ B0 ─┤
    SEND_F              ├──┤           ├──┤

The rules are those of ``setup_pp_dependency`` in the published ``analyzer/dependency_model.py``.
"""

from __future__ import annotations

import numpy as np

from bubbleviz.explain.slowdown.work import POINT_TO_POINT, RECEIVES, Role, Work, plays
from bubbleviz.model.columns import NONE, Ints, scatter
from bubbleviz.model.grouping import (
    find_first_rows,
    group_rows,
    lookup_values,
    number_within_groups,
    sort_rows,
)

#: Rows, and what each follows.
Pairs = tuple[Ints, Ints]


def message_order(work: Work, rows: Ints, compute: Ints, computes: Ints) -> list[Pairs]:
    """Return what sends and receives follow, and what follows them.

    Args:
        work: of all ranks.
        rows: of its sends and receives.
        compute: row of the compute that took or gave the data of each; -1 where it stands for
            nothing.
        computes: rows that ranks compute one after the other.
    """
    role, place = work.role, work.rank_iteration
    # Chunks of a V send to both neighbours at once.
    of_link = group_rows(place, *work.link).of_row
    streams = (np.flatnonzero(role == own) for own in POINT_TO_POINT)
    rows, compute = rows[compute != NONE], compute[compute != NONE]
    receives = plays(role[rows], RECEIVES)
    taken, taken_by = rows[receives], compute[receives]
    directed = np.flatnonzero((role == Role.FORWARD) | (role == Role.BACKWARD))
    after, before = chained(work, directed, group_rows(place[directed], role[directed]).of_row)
    earlier = scatter(len(work) + 1, after, before)
    previous = earlier[taken_by]
    return [
        *(chained(work, own, of_link[own]) for own in streams),
        (rows[~receives], compute[~receives]),
        (taken_by, taken),
        (taken[previous != NONE], previous[previous != NONE]),
        *_first_backward(work, computes),
    ]


def chained(work: Work, rows: Ints, group: Ints) -> Pairs:
    """Return each of some rows, and the one before it in its group, by start."""
    order = sort_rows(group, work.start_ns[rows], work.kind[rows])
    rows, group = rows[order], group[order]
    same = group[1:] == group[:-1]
    return rows[1:][same], rows[:-1][same]


def _first_backward(work: Work, computes: Ints) -> list[Pairs]:
    """Return what the first backward messages follow: the forward before the last of the warm-up.

    ::

        ... ├─ F2 ─┤├─ F3 ─┤├─ B0 ─┤
                   └─> RECV_B, SEND_B
    """
    role, place = work.role, work.rank_iteration
    number = number_within_groups(place[computes], work.start_ns[computes], work.kind[computes])
    backward = np.flatnonzero(role[computes] == Role.BACKWARD)
    first = backward[find_first_rows(place[computes[backward]], number[backward])]
    of_place = place[computes[first]]
    keys = (place[computes], number)
    last, second = (lookup_values(keys, computes, (of_place, number[first] - i)) for i in (1, 2))
    warmed = (last != NONE) & (second != NONE)
    warmed &= (role[last] == Role.FORWARD) & (role[second] == Role.FORWARD)
    pairs = []
    for own in (Role.RECV_B, Role.SEND_B):
        rows = np.flatnonzero(role == own)
        rows = rows[find_first_rows(place[rows], work.start_ns[rows])]
        before = lookup_values((of_place[warmed],), second[warmed], (place[rows],))
        pairs.append((rows[before != NONE], before[before != NONE]))
    return pairs
