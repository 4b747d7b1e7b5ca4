"""Recorded order: what each row of a recorded table follows on its rank.

Computes run in their order, and sends and receives beside them. Parameters are gathered before the
first forward of a chunk; gradients are scattered after its last backward, or after everything. The
rules are those of ``setup_pp_dependency`` in the published ``analyzer/dependency_model.py``; a kind
that was not recorded is passed over.
"""

from __future__ import annotations

import numpy as np

from bubbleviz.explain.slowdown.messages import Pairs, chained, message_order
from bubbleviz.explain.slowdown.point_to_point import PointToPoint
from bubbleviz.explain.slowdown.replay import COMPUTING, Order, Role, Work
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
        chained(work, computes, place[computes]),
        *message_order(work, messages, computes),
        chained(work, shared, place[shared]),
        _parameters(work),
        *_ending(work, computes, overlapped=overlapped),
    ]
    if overlapped:
        pairs += _gradients(work)
    return Order(
        np.concatenate([pair[0] for pair in pairs]), np.concatenate([pair[1] for pair in pairs])
    )


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
