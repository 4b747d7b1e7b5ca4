"""Find the predecessors and successors of sends and receives on their rank.

A send follows the compute operation that produces its data. A receive precedes the compute
operation that consumes its data. A receive also follows the previous compute operation in the same
direction (forward or backward). Here, a compute operation is any row of the work table that is not
communication. The sends and receives of activations and gradients form four separate sequences::

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

#: Two columns of work table rows: each row and one of its predecessors.
Pairs = tuple[Ints, Ints]


def order_messages(work: Work, rows: Ints, compute: Ints, computes: Ints) -> list[Pairs]:
    """Find the predecessors of the sends and receives of each rank, and of their consumers.

    Each rule gives (row, predecessor) pairs:

    1. A send or receive follows the previous one with the same role on its link. A link is a
       combination of rank, iteration, source stage and destination stage.
    2. A send follows the compute operation that produces its data.
    3. A compute operation follows the receives of its data.
    4. The receive of a compute operation follows the previous compute operation in the same
       direction (forward or backward) on the same rank in the same iteration. For example, RECV_F 3
       follows F2.
    5. The first backward transfers follow a forward of the warm-up
       (:func:`_order_first_backwards`).

    Rules 2 to 4 apply only to transfers whose compute operation is known.

    Args:
        work: Work table of all ranks.
        rows: Rows of the sends and receives.
        compute: For each entry of ``rows``, the row of the compute operation that produces or
            consumes its data, or -1 if unknown.
        computes: Rows of the compute operations. A rank runs them sequentially.

    Returns:
        Nine entries of pairs: four for rule 1, in the order of the roles in
        :data:`.POINT_TO_POINT`, one each for rules 2 to 4, and two for rule 5.
    """
    role, rank_iteration = work.role, work.rank_iteration
    # In a V-shaped layout, the chunks of a rank send to both neighbors at the same time.
    # So transfers are ordered separately for each link.
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
    """Return the previous forward of each forward and the previous backward of each backward.

    The previous one is on the same rank in the same iteration. The result is -1 if there is none,
    and for rows that have other roles. An additional last entry of -1 maps the row -1 (unknown) to
    -1.
    """
    role = work.role
    directed = np.flatnonzero((role == Role.FORWARD) | (role == Role.BACKWARD))
    direction = group_rows(work.rank_iteration[directed], role[directed]).of_row
    return scatter(len(work) + 1, *chain_rows(work, directed, direction))


def chain_rows(work: Work, rows: Ints, group: Ints) -> Pairs:
    """Return (row, previous row) pairs of consecutive rows in each group.

    The rows of a group are sorted by start, then by the index of their kind.

    Args:
        work: Work table of all ranks.
        rows: Rows of the work table.
        group: Group number of each row.
    """
    order = sort_rows(group, work.start_ns[rows], work.kind[rows])
    rows, group = rows[order], group[order]
    is_same_group = group[1:] == group[:-1]
    return rows[1:][is_same_group], rows[:-1][is_same_group]


def _order_first_backwards(work: Work, computes: Ints) -> list[Pairs]:
    """Return pairs that make the first backward transfers follow a forward of the warm-up.

    This forward is the second-to-last compute operation before the first backward, here F2::

        ... ├─ F2 ─┤├─ F3 ─┤├─ B0 ─┤
                   └─> RECV_B, SEND_B

    A rank has no pair in an iteration unless the last two compute operations before its first
    backward are forwards.

    Args:
        work: Work table of all ranks.
        computes: Rows of the compute operations. A rank runs them sequentially.

    Returns:
        Two entries of (transfer, forward) pairs: one for the first RECV_B of each rank and
        iteration, and one for the first SEND_B of each rank and iteration.
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
    """Find the second-to-last forward before the first backward of each rank and iteration.

    Args:
        work: Work table of all ranks.
        computes: Rows of the compute operations. A rank runs them sequentially.

    Returns:
        cells: Ranks and iterations in which the last two compute operations before the first
            backward are forwards, as :attr:`Work.rank_iteration` numbers, ascending.
        forwards: For each entry of ``cells``, the row of the earlier of the two forwards.
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
