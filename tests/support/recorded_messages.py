"""Point to point: which compute each send and receive of a recorded iteration belongs to.

Recorded tables number the sends and receives of a rank, and some stand for nothing: receives
after the last compute of their direction began, sends before the first one ended, and those at
either end of the model, which have no peer. The rest belong to computes in their order. The rules
are those of ``get_peer_op_and_match_compute`` in the published ``analyzer/dependency_model.py``.
"""

from __future__ import annotations

import numpy as np

from bubbleviz.explain.slowdown.point_to_point import CLOCK_NS, PointToPoint
from bubbleviz.explain.slowdown.replay import Role, Work, numbered
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import first_of_each, groups_of, looked_up
from bubbleviz.model.intervals import group_extents
from bubbleviz.model.values import frozen
from tests.support.recorded_lanes import lanes_of


@frozen
class _Direction:
    """A role: that of its compute, whether it receives, and how far on its peer stands."""

    role: Role
    compute: Role
    receives: bool
    step: int


_DIRECTIONS = (
    _Direction(Role.SEND_F, Role.FORWARD, receives=False, step=1),
    _Direction(Role.RECV_F, Role.FORWARD, receives=True, step=-1),
    _Direction(Role.SEND_B, Role.BACKWARD, receives=False, step=-1),
    _Direction(Role.RECV_B, Role.BACKWARD, receives=True, step=1),
)


def point_to_point_of(work: Work) -> PointToPoint:
    """Return the sends and receives, in order of their rows.

    Args:
        work: of all ranks; its meetings are not looked at.
    """
    role, place = work.role, work.rank_iteration
    row, compute, key = [], [], []
    for rule in _DIRECTIONS:
        rows = np.flatnonzero(role == rule.role)
        computes = np.flatnonzero(role == rule.compute)
        matched = _matched(work, place, rows, computes, receives=rule.receives)
        row.append(rows)
        compute.append(matched)
        key.append(_pair_keys(work, place, rows, matched, rule))
    rows, keys = np.concatenate(row), np.concatenate(key, axis=1)
    order = np.argsort(rows, kind="stable")
    paired = keys[0] != NONE
    pair = np.where(paired, groups_of(*keys).of_row, NONE)
    return PointToPoint(rows[order], np.concatenate(compute)[order], pair[order])


def _matched(work: Work, place: Ints, rows: Ints, computes: Ints, *, receives: bool) -> Ints:
    """Return the compute that each send or receive of one role belongs to; -1 for none.

    Args:
        work: of all ranks.
        place: number of the rank and iteration of each row.
        rows: of the sends or receives.
        computes: rows of their computes.
        receives: whether they receive.
    """
    places = int(place.max(initial=NONE)) + 1
    count = np.bincount(place[computes], minlength=places)
    start_ns, end_ns = work.start_ns[computes], work.end_ns[computes]
    last_ns = group_extents(place[computes], places, start_ns, start_ns)[1][place[rows]]
    first_ns = group_extents(place[computes], places, end_ns, end_ns)[0][place[rows]]
    counts = count[place[rows]] > 0
    if receives:
        counts &= work.start_ns[rows] <= last_ns + CLOCK_NS
    else:
        counts &= work.end_ns[rows] >= first_ns - CLOCK_NS
    number = numbered(place[rows], work.start_ns[rows])
    counts = _as_first(work, rows, number, place, counts)
    at = np.flatnonzero(counts)
    of_compute = numbered(place[rows[at]], number[at])
    if receives:
        # The first receive of the first stage stands for nothing, and can be missing.
        found = np.bincount(place[rows[at]], minlength=places)
        of_compute += (found + 1 == count)[place[rows[at]]]
    matched = np.full(len(rows), NONE, np.int64)
    keys = (place[computes], numbered(place[computes], start_ns))
    matched[at] = looked_up(keys, computes, (place[rows[at]], of_compute))
    return matched


def _as_first(work: Work, rows: Ints, number: Ints, place: Ints, counts: Bools) -> Bools:
    """Return what holds for the first iteration and replica, for all that did the same.

    Whether one counts rests on times, which could be off in some iteration.
    """
    if not len(rows):
        return counts
    of_place = np.bincount(place[rows])[place[rows]]
    same = groups_of(work.stage[rows], lanes_of(work)[rows], number, of_place).of_row
    first = first_of_each(same, work.iteration[rows], work.replica[rows])
    return counts[first][same]


def _pair_keys(work: Work, place: Ints, rows: Ints, matched: Ints, rule: _Direction) -> Ints:
    """Return key columns that a send and its receive share; the first is -1 for no pair.

    The n-th send of a stage that has a peer meets the n-th such receive of the next stage.
    """
    stages = int(work.stage.max(initial=NONE)) + 1
    last = int(work.virtual_stage.max(initial=NONE))
    peer = work.virtual_stage[matched] + rule.step
    at = np.flatnonzero((matched != NONE) & (peer >= 0) & (peer <= last))
    sender = work.stage[rows[at]]
    if rule.receives:
        sender = (sender + rule.step) % stages
    keys = np.full((6, len(rows)), NONE, np.int64)
    keys[:, at] = (
        np.full(len(at), rule.compute),
        work.iteration[rows[at]],
        work.replica[rows[at]],
        lanes_of(work)[rows[at]],
        sender,
        numbered(place[rows[at]], work.start_ns[rows[at]]),
    )
    return keys
