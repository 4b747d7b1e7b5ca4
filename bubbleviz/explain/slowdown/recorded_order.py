"""Recorded order: what each row of a recorded table follows on its rank.

Computes run in their order, and each kind of send and receive in its own::

    RECV_F  ├──┤           ├──┤
    compute     ├─ F0 ─┤       ├─ F1 ─┤       ├─ B0 ─┤
    SEND_F              ├──┤           ├──┤

Parameters are gathered before the first forward of a chunk; gradients are scattered after its
last backward, or after everything. The rules are those of ``setup_pp_dependency`` in the published
``analyzer/dependency_model.py``; a kind that was not recorded is passed over.
"""

from __future__ import annotations

import numpy as np

from bubbleviz.explain.slowdown.point_to_point import PointToPoint
from bubbleviz.explain.slowdown.replay import Order
from bubbleviz.explain.slowdown.work import COMPUTING, POINT_TO_POINT, Role, Work, numbered
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import first_of_each, groups_of, looked_up

#: What ends an iteration, in this order.
_ENDING = (
    Role.AFTER_COMPUTE,
    Role.LAYER_NORM,
    Role.EMBEDDING,
    Role.GRADIENTS,
    Role.SEPARATE_GRADIENTS,
    Role.GRADIENT_NORM,
    Role.OPTIMIZER,
)


def recorded_order(work: Work, messages: PointToPoint) -> Order:
    """Return what each row follows on its rank.

    Args:
        work: of all ranks.
        messages: its sends and receives.
    """
    role, place = work.role, work.rank_iteration
    computes = np.flatnonzero(np.isin(role, COMPUTING))
    overlapped = bool((role == Role.SEPARATE_GRADIENTS).any())
    shared = np.flatnonzero(np.isin(role, (Role.PARAMETERS, Role.GRADIENTS)))
    pairs = [
        _chained(work, computes, place[computes]),
        *(
            _chained(work, rows, place[rows])
            for rows in (np.flatnonzero(role == own) for own in POINT_TO_POINT)
        ),
        *_messages(work, messages),
        *_first_backward(work, computes),
        _chained(work, shared, place[shared]),
        _parameters(work),
        *_ending(work, computes, overlapped=overlapped),
    ]
    if overlapped:
        pairs += _gradients(work)
    return Order(
        np.concatenate([pair[0] for pair in pairs]), np.concatenate([pair[1] for pair in pairs])
    )


Pairs = tuple[Ints, Ints]


def _chained(work: Work, rows: Ints, group: Ints) -> Pairs:
    """Return each of some rows, and the one before it in its group, by start."""
    order = np.lexsort((work.kind[rows], work.start_ns[rows], group))
    rows, group = rows[order], group[order]
    same = group[1:] == group[:-1]
    return rows[1:][same], rows[:-1][same]


def _messages(work: Work, messages: PointToPoint) -> list[Pairs]:
    """Return that a send follows its compute; a receive precedes it, and follows the one before."""
    known = messages.take(messages.compute != NONE)
    receives = np.isin(work.role[known.row], (Role.RECV_F, Role.RECV_B))
    taken, given = known.take(receives), known.take(~receives)
    role = work.role
    computes = np.flatnonzero((role == Role.FORWARD) | (role == Role.BACKWARD))
    of_role = groups_of(work.rank_iteration[computes], role[computes]).of_row
    after, before = _chained(work, computes, of_role)
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


def _parameters(work: Work) -> Pairs:
    """Return that the first forward of a chunk follows the last gather of its parameters."""
    role = work.role
    forwards = _of_chunks(work, role == Role.FORWARD, work.start_ns)
    gathers = _of_chunks(work, role == Role.PARAMETERS, -work.start_ns)
    return _by_chunk(work, forwards, gathers)


def _gradients(work: Work) -> list[Pairs]:
    """Return that the first scatter of a chunk's gradients follows its last backward."""
    role = work.role
    scatters = _of_chunks(work, role == Role.GRADIENTS, work.start_ns)
    backwards = _of_chunks(work, role == Role.BACKWARD, -work.end_ns)
    return [_by_chunk(work, scatters, backwards)]


def _of_chunks(work: Work, chosen: Bools, by: Ints) -> Ints:
    """Return the row of each rank, iteration and chunk that comes first by a column."""
    rows = np.flatnonzero(chosen)
    chunk = groups_of(work.rank_iteration[rows], work.chunk[rows]).of_row
    return rows[first_of_each(chunk, by[rows])]


def _by_chunk(work: Work, after: Ints, before: Ints) -> Pairs:
    place, chunk = work.rank_iteration, work.chunk
    found = looked_up((place[before], chunk[before]), before, (place[after], chunk[after]))
    return after[found != NONE], found[found != NONE]


def _ending(work: Work, computes: Ints, *, overlapped: bool) -> list[Pairs]:
    """Return what follows the last compute of each rank and iteration, one after the other.

    Gradients that were scattered beside the backwards end before layer norm and embedding begin;
    else they follow these.
    """
    role, place = work.role, work.rank_iteration
    position = np.full(len(Role) + 1, NONE, np.int64)
    position[list(_ENDING)] = np.arange(1, len(_ENDING) + 1)
    if overlapped:
        position[Role.GRADIENTS] = NONE
    position = position[role]
    last = computes[first_of_each(place[computes], -work.end_ns[computes])]
    position[last] = 0
    rows = np.flatnonzero(position != NONE)
    order = np.lexsort((work.kind[rows], work.start_ns[rows], position[rows], place[rows]))
    rows = rows[order]
    same = place[rows[1:]] == place[rows[:-1]]
    pairs = [(rows[1:][same], rows[:-1][same])]
    if overlapped:
        ends = rows[position[rows] > 1]
        first = ends[first_of_each(place[ends])]
        scatters = np.flatnonzero(role == Role.GRADIENTS)
        scatters = scatters[first_of_each(place[scatters], -work.start_ns[scatters])]
        before = looked_up((place[scatters],), scatters, (place[first],))
        pairs.append((first[before != NONE], before[before != NONE]))
    return pairs
