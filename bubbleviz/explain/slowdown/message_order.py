"""Find the predecessors and successors of sends and receives on their rank.

A send follows its compute. A receive precedes its compute, and follows the previous compute of its
direction. Each kind of send and receive runs in its own order::

    RECV_F  ├──┤           ├──┤
    compute     ├─ F0 ─┤       ├─ F1 ─┤       ├─ B0 ─┤
    SEND_F              ├──┤           ├──┤

The rules follow ``setup_pp_dependency`` in the published ``analyzer/dependency_model.py``.
"""

from __future__ import annotations

import numpy as np

from bubbleviz.explain.slowdown.work import POINT_TO_POINT, RECEIVES, Role, Work, has_role
from bubbleviz.model.columns import NONE, Ints, scatter
from bubbleviz.model.grouping import (
    find_first_rows,
    group_rows,
    lookup_values,
    number_within_groups,
    sort_rows,
)

#: Two columns: rows of the work, and the row that each one follows.
Pairs = tuple[Ints, Ints]


def order_messages(work: Work, rows: Ints, compute: Ints, computes: Ints) -> list[Pairs]:
    """Return pairs of a row and the row that it follows, for all sends and receives.

    A transfer follows the previous transfer of its kind on its link. A send follows the compute of
    its data, and a compute follows the receives of its data. A receive also follows the compute
    before its own of the same direction. If its compute is unknown, a transfer only follows
    the previous transfer. The pairs of :func:`_order_first_backwards` come last.

    Args:
        work: Work of all ranks.
        rows: Rows of the sends and receives.
        compute: Row of the compute that produces or consumes the data of each transfer, or -1.
        computes: Rows that ranks compute one after the other.
    """
    role, rank_iteration = work.role, work.rank_iteration
    # Chunks of a V send to both neighbours at the same time, so each link has its own order.
    link = group_rows(rank_iteration, *work.link).of_row
    streams = (np.flatnonzero(role == transfer_role) for transfer_role in POINT_TO_POINT)
    rows, compute = rows[compute != NONE], compute[compute != NONE]
    is_receive = has_role(role[rows], RECEIVES)
    receives, consumers = rows[is_receive], compute[is_receive]
    previous = _find_previous_of_direction(work)[consumers]
    has_previous = previous != NONE
    return [
        *(chain_rows(work, stream, link[stream]) for stream in streams),
        (rows[~is_receive], compute[~is_receive]),
        (consumers, receives),
        (receives[has_previous], previous[has_previous]),
        *_order_first_backwards(work, computes),
    ]


def _find_previous_of_direction(work: Work) -> Ints:
    """Return the previous compute of the same direction, rank and iteration of each compute.

    The result is -1 for the first forward and the first backward, and for all other rows. It has an
    additional last entry of -1, so that the row -1 (unknown) has no previous compute.
    """
    role = work.role
    directed = np.flatnonzero((role == Role.FORWARD) | (role == Role.BACKWARD))
    direction = group_rows(work.rank_iteration[directed], role[directed]).of_row
    return scatter(len(work) + 1, *chain_rows(work, directed, direction))


def chain_rows(work: Work, rows: Ints, group: Ints) -> Pairs:
    """Return pairs of consecutive rows of each group, ordered by start: (row, previous row).

    Args:
        work: Work of all ranks.
        rows: Rows of the work.
        group: Group of each row.
    """
    order = sort_rows(group, work.start_ns[rows], work.kind[rows])
    rows, group = rows[order], group[order]
    is_same_group = group[1:] == group[:-1]
    return rows[1:][is_same_group], rows[:-1][is_same_group]


def _order_first_backwards(work: Work, computes: Ints) -> list[Pairs]:
    """Return pairs that order the first backward transfers after a forward of the warm-up.

    This forward is the last but one before the first backward::

        ... ├─ F2 ─┤├─ F3 ─┤├─ B0 ─┤
                   └─> RECV_B, SEND_B

    Ranks whose first backward does not come after two forwards have no pair.

    Args:
        work: Work of all ranks.
        computes: Rows that ranks compute one after the other.

    Returns:
        Pairs of the first RECV_B of each rank and iteration and this forward, then pairs of the
        first SEND_B and this forward.
    """
    cells, forwards = _find_last_warm_up_forwards(work, computes)
    pairs = []
    for transfer_role in (Role.RECV_B, Role.SEND_B):
        rows = np.flatnonzero(work.role == transfer_role)
        rows = rows[find_first_rows(work.rank_iteration[rows], work.start_ns[rows])]
        forward = lookup_values((cells,), forwards, (work.rank_iteration[rows],))
        pairs.append((rows[forward != NONE], forward[forward != NONE]))
    return pairs


def _find_last_warm_up_forwards(work: Work, computes: Ints) -> tuple[Ints, Ints]:
    """Find the last forward but one before the first backward of each rank and iteration.

    Args:
        work: Work of all ranks.
        computes: Rows that ranks compute one after the other.

    Returns:
        cells: Numbers (:attr:`Work.rank_iteration`) of the ranks and iterations whose first
            backward comes directly after two forwards, ascending.
        forwards: Row of the first of these two forwards.
    """
    role, cell = work.role, work.rank_iteration[computes]
    number = number_within_groups(cell, work.start_ns[computes], work.kind[computes])
    backward = np.flatnonzero(role[computes] == Role.BACKWARD)
    first = backward[find_first_rows(cell[backward], number[backward])]
    last, last_but_one = (
        lookup_values((cell, number), computes, (cell[first], number[first] - offset))
        for offset in (1, 2)
    )
    has_warm_up = (last != NONE) & (last_but_one != NONE)
    has_warm_up &= (role[last] == Role.FORWARD) & (role[last_but_one] == Role.FORWARD)
    return cell[first][has_warm_up], last_but_one[has_warm_up]
