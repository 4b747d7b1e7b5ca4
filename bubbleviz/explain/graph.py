"""The graph of an iteration: when its work ran, and what each piece of it followed.

Every piece starts its delay after the last of those that it follows: the operation before it on
its rank, the transfers of its input from other ranks, and collectives, in which data moves once
the last member has entered::

    rank 0   ├── F0 ──┼── F1 ──┤ ...  ├── B7 ──┤▒ waits ▒│▓ all-reduce ▓┤├ Optimizer ┤
                      └transfer┐
    rank 1                     └delay├── F0 ──┤ ... ├─ B7 ─┤▓ all-reduce ▓┤├ Optimizer ┤
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.align.waits import NEVER, Arrivals
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.causes.forward_waits import TokenWaits
from bubbleviz.explain.causes.idle import IdleIntervals
from bubbleviz.explain.dependencies import Dependencies, Inputs
from bubbleviz.explain.receives import Receives
from bubbleviz.explain.slowdown.messages import messages_of
from bubbleviz.explain.slowdown.replay import POINT_TO_POINT, Order, Replay, Role, Work, replay_of
from bubbleviz.explain.slowdown.run_work import (
    computing_rows,
    delays_of,
    outside_operations,
    run_order,
    run_work,
)
from bubbleviz.model import intervals
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import NONE, Bools, Ints, Table, joined
from bubbleviz.model.grouping import groups_of, sorted_rows
from bubbleviz.model.intervals import last_before
from bubbleviz.model.operations import Operations, Rank
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import COMPUTE, WORK, Phase
from bubbleviz.model.values import frozen


@frozen(eq=False, shown=False)
class Graph:
    """The work of an iteration: operations, collectives, and transfers of inputs.

    Attributes:
        work: operations, then collectives, then transfers, each from the end of its producer on.
        order: what each row of the work follows.
        replay: of it.
        rows: of the operations table, of the first rows of the work.
        works: of each row of the work, whether it is a forward or backward.
        own_ns: how long each row takes itself, without waiting.
        delay_ns: how long each starts after all that it follows, or after the iteration did.
        follows: which follow any other.
        delay_by_cause: how much of the delay of operations has which cause, shape (operations,
            causes).
    """

    work: Work
    order: Order
    replay: Replay
    rows: Ints
    works: Bools
    own_ns: Ints
    delay_ns: Ints
    follows: Bools
    delay_by_cause: Ints

    @property
    def transfers(self) -> Bools:
        """Which rows of the work are transfers."""
        return np.isin(self.work.role, POINT_TO_POINT)

    @property
    def collectives(self) -> Bools:
        """Which rows of the work are collectives."""
        return self.work.communicates & ~self.transfers

    def makespans_ns(self, own_ns: Ints, delay_ns: Ints) -> list[int]:
        """Return the times from the first forward to the last backward, by scenario.

        Args:
            own_ns: how long each row takes itself, shape (rows, scenarios).
            delay_ns: how long each starts after all that it follows; the same shape.
        """
        if not self.works.any():
            return [0] * own_ns.shape[1]
        count = len(self.replay.rows)
        ends_ns = np.zeros_like(own_ns)
        ends_ns[self.replay.rows] = self.replay.ends_ns(own_ns, delay_ns)[:count]
        ends_ns, own_ns = ends_ns[self.works], own_ns[self.works]
        makespans: list[int] = (ends_ns.max(axis=0) - (ends_ns - own_ns).min(axis=0)).tolist()
        return makespans


def graph_of(
    operations: Operations,
    ranks: Sequence[Rank],
    dependencies: Dependencies,
    receives: Receives,
    collectives: CollectiveIntervals,
    idle: IdleIntervals,
    iteration: int,
    tokens: TokenWaits,
) -> Graph:
    """Return the work of one iteration, and what each piece of it follows.

    Args:
        operations: of all ranks.
        ranks: by number.
        dependencies: between operations.
        receives: of operations.
        collectives: of all ranks.
        idle: idle intervals of all ranks.
        iteration: index of the iteration.
        tokens: which operations waited for the token of which.
    """
    included = np.arange(int(operations.iteration.max(initial=iteration)) + 1) == iteration
    rows = computing_rows(operations, included)
    for of_work in (collectives, collectives.take(np.zeros(len(collectives), bool))):
        work, order = ordered_work(
            operations, ranks, dependencies, receives, of_work, included, tokens
        )
        replay = replay_of(work, order)
        # Collectives whose members' clocks are off can seem to wait for themselves.
        if not len(replay.unordered):
            break
    delay_ns = delays_of(work, order)
    follows = np.bincount(order.row, minlength=len(work)) > 0
    works = np.append(among(operations.phase[rows], WORK), np.zeros(len(work) - len(rows), bool))
    return Graph(
        work,
        order,
        replay,
        rows,
        works,
        work.own_ns,
        delay_ns,
        follows,
        _by_cause(work.take(slice(len(rows))), delay_ns, follows, idle),
    )


def ordered_work(
    operations: Operations,
    ranks: Sequence[Rank],
    dependencies: Dependencies,
    receives: Receives,
    collectives: CollectiveIntervals,
    included: Bools,
    tokens: TokenWaits,
    turns: Ints | None = None,
) -> tuple[Work, Order]:
    """Return the work of some iterations as in :class:`Graph`, and what each row of it follows.

    Args:
        operations: of all ranks.
        ranks: by number.
        dependencies: between operations.
        receives: of operations.
        collectives: of all ranks.
        included: of each iteration, whether it is wanted.
        tokens: which operations waited for the token of which.
        turns: the row whose turn on its rank each operation takes; None for its own.
    """
    rows = computing_rows(operations, included)
    messages = messages_of(operations, dependencies, receives, rows)
    messages = replace(messages, seen=np.zeros(len(messages), bool))
    beside = outside_operations(collectives, operations, included)
    work = run_work(operations, ranks, rows, messages, beside)
    place = np.full(len(operations), NONE, np.int64)
    place[rows] = np.arange(len(rows))
    # An operation that seems to run before its producer (clocks can be off) cannot follow it.
    in_turn = np.empty(len(rows), np.int64)
    in_turn[sorted_rows(*(column[: len(rows)] for column in (work.start_ns, work.end_ns)))] = (
        np.arange(len(rows))
    )
    ordered = in_turn[place[messages.producer]] < in_turn[place[messages.consumer]]
    messages = messages.take(ordered)
    turn = np.arange(len(work))
    if turns is not None:
        turn[: len(rows)] = turns
    in_turns = replace(work, start_ns=work.start_ns[turn], end_ns=work.end_ns[turn])
    order = run_order(in_turns, rows, messages, operations, tokens)
    ends = place[messages.producer], place[messages.consumer]
    transfer_ns = _transfers(operations, receives)[messages.consumer]
    moves = _moves(work, ends, messages.forward, transfer_ns)
    own = len(work) + np.arange(len(moves))
    return joined((work, moves)), Order(
        np.concatenate((order.row, own, ends[1])),
        np.concatenate((order.before, ends[0], own)),
    )


def _moves(work: Work, ends: tuple[Ints, Ints], forward: Bools, transfer_ns: Ints) -> Work:
    """Return the transfers of inputs, each from the end of its producer on.

    Args:
        work: of operations.
        ends: rows of the producer and of the consumer of each input.
        forward: whether it goes forward.
        transfer_ns: how long it is in transfer.
    """
    producer, consumer = ends
    # No transfer takes longer than the time between its operations.
    produced_ns = intervals.group_extents(
        consumer, len(work), work.end_ns[producer], work.end_ns[producer]
    )[1][consumer]
    room_ns = np.maximum(work.start_ns[consumer] - produced_ns, 0)
    start_ns = work.end_ns[producer]
    names = [kind.role for kind in work.kinds]
    return replace(
        work.take(consumer),
        kind=np.where(forward, names.index(Role.RECV_F), names.index(Role.RECV_B)),
        start_ns=start_ns,
        end_ns=start_ns + np.clip(transfer_ns, 0, room_ns),
    )


def _by_cause(work: Work, delay_ns: Ints, follows: Bools, idle: IdleIntervals) -> Ints:
    """Return how much of the delay of operations has which cause.

    Args:
        work: operations.
        delay_ns: of each, and of more rows behind them.
        follows: whether each follows any other, likewise.
        idle: idle intervals of all ranks.
    """
    count = len(work)
    delay_ns, follows = delay_ns[:count], follows[:count]
    delays = np.zeros((count, len(Cause)), np.int64)
    at = np.flatnonzero(follows)
    rank, end_ns = work.rank[at], work.end_ns[at]
    since_ns = np.minimum(work.start_ns[at] - delay_ns[at], end_ns)
    for cause in Cause:
        delays[at, cause] = idle.time_within((cause,), rank, since_ns, end_ns)
    # A span that begins with work that needs no input has idle time after its start.
    room_ns = np.maximum(delay_ns, 0)[:, None] - np.cumsum(delays, axis=1) + delays
    return np.clip(delays, 0, np.maximum(room_ns, 0))


def _transfers(operations: Operations, receives: Receives) -> Ints:
    """Return how long the input of each operation is in transfer.

    A receive that waited shows it. Any other one began late itself (before a bottleneck all do), or
    was not recorded: its transfer is the median of its virtual stage and direction, and where no
    receive of these waited, of the run.
    """
    waited = receives.take(receives.wait_ns > 0)
    row, measured_ns = waited.operation, waited.transfer_ns
    if not len(row):
        return np.zeros(len(operations), np.int64)
    forward = among(operations.phase, (Phase.F, Phase.FB)).astype(np.int64)
    kind = groups_of(operations.virtual_stage, forward).of_row
    median_ns = np.full(
        int(kind.max()) + 1, np.sort(measured_ns)[(len(measured_ns) - 1) // 2], np.int64
    )
    order = sorted_rows(kind[row], measured_ns)
    of_kind = kind[row][order]
    first = np.searchsorted(of_kind, np.arange(len(median_ns)))
    count = np.bincount(of_kind, minlength=len(median_ns))
    known = count > 0
    median_ns[known] = measured_ns[order][(first + (count - 1) // 2)[known]]
    transfer_ns: Ints = median_ns[kind]
    transfer_ns[row] = measured_ns
    return transfer_ns


# Transfers and gaps: what passes before operations, as far as they show it.
#
# A receive shows it that waited for its input. Where receives are only seen to start, as in
# recordings without a profiler, an operation shows it whose rank idled when the input was ready::
#
#     peer    ██████ F3 ██████│ready
#     rank    █████ F2 █████│        │██ F3
#                             ├──────┤ transfer
#
# A gap is between an operation whose input was there and the one before it on its rank: the host, a
# launch, a framework at work.


#: A message may be as late by chance.
_LATE_NS = 500_000


@frozen
class Transfers(Table):
    """Inputs whose transfer shows.

    Attributes:
        operation: row of the operation that took the input.
        transfer_ns: from when the peer had finished it until it was there.
    """

    operation: Ints
    transfer_ns: Ints


def waited(receives: Receives) -> Transfers:
    """Return the transfers that receives show which waited."""
    own = receives.take(receives.wait_ns > 0)
    return Transfers(own.operation, own.transfer_ns)


def after_idling(operations: Operations, inputs: Inputs, known: Arrivals) -> Transfers:
    """Return the inputs of operations that began once these were there, as far as times show it.

    Their rank ran nothing when the input was ready, and no end of their receive is recorded. Those
    that :func:`sent_at_once` are transfers.

    Args:
        operations: of all ranks.
        inputs: that they took from other ranks.
        known: when receives show that these were there.
    """
    shown: Bools = (known.exact_ns == NEVER) & (inputs.ready_ns != NEVER)
    shown &= (operations.has_span == 1) & (operations.start_ns >= inputs.ready_ns)
    # Where the host itself computes, it launches once the input is there.
    itself = operations.host_start_ns >= operations.start_ns
    shown &= itself | (operations.host_start_ns <= inputs.ready_ns)
    rows = np.flatnonzero(shown)
    if len(rows):
        work = np.flatnonzero(among(operations.phase, COMPUTE) & (operations.has_span == 1))
        last = last_before(
            operations.rank[work],
            operations.end_ns[work],
            operations.rank[rows],
            operations.start_ns[rows],
            or_at=True,
        )
        free_ns = np.where(last == NONE, NEVER, operations.end_ns[work][last])
        rows = rows[free_ns <= inputs.ready_ns[rows]]
    return Transfers(rows, operations.start_ns[rows] - inputs.ready_ns[rows])


def sent_at_once(edge: Ints, took_ns: Ints, least_ns: Ints) -> Bools:
    """Return which inputs took little longer than the fastest of their edge and direction.

    Others were sent late: a forward that runs beside a backward is sent after both.

    Args:
        edge: of each input.
        took_ns: from when it was ready until its operation began.
        least_ns: by edge, the least of all that may be transfers.
    """
    return np.asarray(took_ns - _LATE_NS <= 2 * least_ns[edge], bool)


def edges_of(virtual_stage: Ints, phase: Ints) -> Ints:
    """Return a number of the virtual stage and the direction in which inputs come.

    Args:
        virtual_stage: of operations that take them; -1 unknown.
        phase: of these.
    """
    return 2 * (virtual_stage + 1) + among(phase, (Phase.F, Phase.FB))


@frozen
class Gaps(Table):
    """Operations whose inputs were there when the one before them on their rank ended.

    Attributes:
        operation: row of the operation.
        gap_ns: from that end to its start.
        room_ns: how long before that end its input was ready; it was there if that is as long as
            any transfer of its edge. -1 where it takes nothing from another rank.
    """

    operation: Ints
    gap_ns: Ints
    room_ns: Ints


def gaps_of(operations: Operations, inputs: Inputs) -> Gaps:
    """Return the gaps before operations of one iteration whose inputs were ready.

    Args:
        operations: of all ranks.
        inputs: that they took from other ranks.
    """
    computes = among(operations.phase, COMPUTE) & (operations.has_span == 1)
    rows = np.flatnonzero(computes & (operations.iteration >= 0) & ~inputs.unknown)
    rank, start_ns = operations.rank[rows], operations.start_ns[rows]
    if not ((rank[1:] > rank[:-1]) | (start_ns[1:] >= start_ns[:-1])).all():
        rows = rows[sorted_rows(rank, start_ns)]
    before, row = rows[:-1], rows[1:]
    gap_ns = operations.start_ns[row] - operations.end_ns[before]
    shown = (operations.rank[before] == operations.rank[row]) & (gap_ns >= 0)
    shown &= operations.iteration[before] == operations.iteration[row]
    before, row, gap_ns = before[shown], row[shown], gap_ns[shown]
    ready_ns = inputs.ready_ns[row]
    local = ready_ns == NEVER
    room_ns = operations.end_ns[before] - np.where(local, 0, ready_ns)
    there = local | (room_ns >= 0)
    return Gaps(row[there], gap_ns[there], np.where(local, NONE, room_ns)[there])
