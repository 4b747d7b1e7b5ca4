"""Recorded tables: their slowdowns, with meetings and order as the published analyzer has them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bubbleviz.explain.dependencies import Dependencies
from bubbleviz.explain.slowdown.replay import COMPUTING, Role, Work, numbered
from bubbleviz.explain.slowdown.run_work import CLOCK_NS, Pairs, chained, message_order
from bubbleviz.explain.slowdown.slowdowns import Slowdowns, scenarios_of, slowdowns_of
from bubbleviz.model.columns import NONE, Bools, Ints, Table
from bubbleviz.model.grouping import first_of_each, groups_of, looked_up
from bubbleviz.model.intervals import group_extents
from bubbleviz.model.values import frozen
from tests.support.straggler_traces import KINDS

# Lanes: ranks of one stage and replica, by which parts of tensors they hold.


def lanes_of(work: Work) -> Ints:
    """Return the place of each row's rank among those of its stage and replica.

    Ranks of one place in different stages or replicas hold matching parts of tensors.
    """
    pairs = groups_of(work.replica, work.stage, work.rank)
    first = pairs.first
    copies = groups_of(work.replica[first], work.stage[first]).of_row
    return numbered(copies)[pairs.of_row]


# Point to point: which compute each send and receive of a recorded iteration belongs to.
#
# Recorded tables number the sends and receives of a rank, and some stand for nothing: receives
# after the last compute of their direction began, sends before the first one ended, and those at
# either end of the model, which have no peer. The rest belong to computes in their order. The rules
# are those of ``get_peer_op_and_match_compute`` in the published ``analyzer/dependency_model.py``.


@frozen
class PointToPoint(Table):
    """Sends and receives of an iteration, each with what it belongs to.

    Attributes:
        row: of the work table.
        compute: row of the compute that took or gave the data; -1 where it stands for nothing.
        pair: number of the pair that it forms with its peer; -1 without a peer.
    """

    row: Ints
    compute: Ints
    pair: Ints


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


# Meetings: which rows of a recorded table are one communication.
#
# The groups are those of ``setup_pp_dependency`` and ``label_dp_sync`` in the published
# ``analyzer/dependency_model.py``: parameters and gradients meet across the replicas of a stage,
# embedding gradients across the stages of a replica that have them, the gradient norm across all.


_ACROSS_REPLICAS = (Role.PARAMETERS, Role.GRADIENTS, Role.SEPARATE_GRADIENTS)


def with_meetings(work: Work, messages: PointToPoint) -> Work:
    """Return work with the meetings that follow from what its rows are.

    Layer-norm gradients meet inside a stage, of which a table holds one rank: they have none.

    Args:
        work: of all ranks.
        messages: its sends and receives.
    """
    role = work.role
    across_replicas = np.isin(role, _ACROSS_REPLICAS)
    across_stages = role == Role.EMBEDDING
    rows = np.flatnonzero(across_replicas | across_stages | (role == Role.GRADIENT_NORM))
    everywhere = np.full(len(rows), NONE, np.int64)
    within_stage = np.where(across_replicas[rows], work.stage[rows], everywhere)
    within_replica = np.where(across_stages[rows], work.replica[rows], everywhere)
    lane = np.where(role[rows] == Role.GRADIENT_NORM, everywhere, lanes_of(work)[rows])
    number = numbered(groups_of(work.rank_iteration, work.kind).of_row, work.start_ns)[rows]
    groups = groups_of(
        work.iteration[rows], work.kind[rows], within_stage, within_replica, lane, number
    )
    meeting = np.full(len(work), NONE, np.int64)
    meeting[rows] = groups.of_row
    paired = messages.pair != NONE
    meeting[messages.row[paired]] = len(groups) + messages.pair[paired]
    return replace(work, meeting=meeting)


# Recorded order: what each row of a recorded table follows on its rank.
#
# Computes run in their order, and sends and receives beside them. Parameters are gathered before
# the
# first forward of a chunk; gradients are scattered after its last backward, or after everything.
# The
# rules are those of ``setup_pp_dependency`` in the published ``analyzer/dependency_model.py``; a
# kind
# that was not recorded is passed over.


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


def recorded_order(work: Work, messages: PointToPoint) -> Dependencies:
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
        *message_order(work, messages.row, messages.compute, computes),
        chained(work, shared, place[shared]),
        _parameters(work),
        *_ending(work, computes, overlapped=overlapped),
    ]
    if overlapped:
        pairs += _gradients(work)
    return Dependencies(
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


def recorded(work: Work) -> tuple[Work, Dependencies]:
    """Return recorded work with its meetings, and what each of its rows follows.

    Args:
        work: of all ranks; meetings that it has are dropped.
    """
    messages = point_to_point_of(work)
    return with_meetings(work, messages), recorded_order(work, messages)


def recorded_slowdowns(work: Work) -> Slowdowns | None:
    """Return the slowdowns of recorded work; None where none of it can be replayed.

    Args:
        work: of all ranks; meetings that it has are dropped.
    """
    work, order = recorded(work)
    scenarios = scenarios_of(work, order)
    return None if scenarios is None else slowdowns_of(scenarios)


# Small recorded tables, row by row.


NO_ORDER = Dependencies(np.empty(0, np.int64), np.empty(0, np.int64))
NUMBER = {name: number for number, name in enumerate(KINDS)}
Row = tuple[int, int, int, str, int, int, int]


def table(*rows: Row) -> Work:
    """Return recorded work of (stage, replica, iteration, kind, microbatch, start, end)."""
    columns = [
        np.array([NUMBER[str(row[n])] if n == 3 else row[n] for row in rows], np.int64)
        for n in range(7)
    ]
    stage, replica, iteration, kind, microbatch, start_ns, end_ns = columns
    none = np.full(len(rows), -1, np.int64)
    return Work(
        rank=stage + 10 * replica,
        stage=stage,
        replica=replica,
        iteration=iteration,
        kind=kind,
        microbatch=microbatch,
        chunk=np.zeros(len(rows), np.int64),
        virtual_stage=stage.copy(),
        start_ns=start_ns,
        end_ns=end_ns,
        meeting=none,
        kinds=tuple(KINDS.values()),
    )
