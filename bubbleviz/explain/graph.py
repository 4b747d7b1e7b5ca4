"""The graph of an iteration: when its work ran, and what each piece of it followed.

Every piece starts its delay after the last of those that it follows: the operation before it on
its rank, the transfers of its input from other ranks, and collectives, in which data moves once
the last member has entered::

    rank 0   ├── F0 ──┼── F1 ──┤ ...  ├── B7 ──┤▒ waits ▒│▓ all-reduce ▓┤├ Optimizer ┤
                      └transfer┐
    rank 1                     └delay├── F0 ──┤ ... ├─ B7 ─┤▓ all-reduce ▓┤├ Optimizer ┤
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.causes.forward_waits import TokenWaits
from bubbleviz.explain.explained_rows import ReplayedRun
from bubbleviz.explain.slowdown.messages import messages_of
from bubbleviz.explain.slowdown.replay import POINT_TO_POINT, Order, Replay, Role, Work, replay_of
from bubbleviz.explain.slowdown.run_work import (
    computing_rows,
    delays_of,
    outside_operations,
    run_order,
    run_work,
)
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import NONE, Bools, Ints, joined
from bubbleviz.model.grouping import groups_of, sorted_rows
from bubbleviz.model.intervals import group_extents
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import WORK, Phase
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


def graph_of(run: ReplayedRun, iteration: int) -> Graph:
    """Return the work of one iteration, and what each piece of it follows.

    Args:
        run: all ranks.
        iteration: index of the iteration.
    """
    operations = run.operations
    included = np.arange(int(operations.iteration.max(initial=iteration)) + 1) == iteration
    rows = computing_rows(operations, included)
    for collectives in (run.collectives, run.collectives.take(slice(0))):
        work, order = ordered_work(run, included, run.tokens, collectives)
        replay = replay_of(work, order)
        # Collectives whose members' clocks are off can seem to wait for themselves.
        if not len(replay.unordered):
            break
    delay_ns = delays_of(work, order)
    follows = np.bincount(order.row, minlength=len(work)) > 0
    works = np.append(among(operations.phase[rows], WORK), np.zeros(len(work) - len(rows), bool))
    # How much of the delay of operations has which cause.
    delays = np.zeros((len(rows), len(Cause)), np.int64)
    at = np.flatnonzero(follows[: len(rows)])
    rank, end_ns = work.rank[at], work.end_ns[at]
    since_ns = np.minimum(work.start_ns[at] - delay_ns[at], end_ns)
    for cause in Cause:
        delays[at, cause] = run.idle.time_within((cause,), rank, since_ns, end_ns)
    # A span that begins with work that needs no input has idle time after its start.
    room_ns = np.maximum(delay_ns[: len(rows)], 0)[:, None] - np.cumsum(delays, axis=1) + delays
    delays = np.clip(delays, 0, np.maximum(room_ns, 0))
    return Graph(work, order, replay, rows, works, work.own_ns, delay_ns, follows, delays)


def ordered_work(
    run: ReplayedRun,
    included: Bools,
    tokens: TokenWaits,
    collectives: CollectiveIntervals,
    turns: Ints | None = None,
) -> tuple[Work, Order]:
    """Return the work of some iterations as in :class:`Graph`, and what each row of it follows.

    Args:
        run: all ranks.
        included: of each iteration, whether it is wanted.
        tokens: which operations wait for the token of which.
        collectives: of all ranks.
        turns: the row whose turn on its rank each operation takes; None for its own.
    """
    operations = run.operations
    rows = computing_rows(operations, included)
    messages = messages_of(run, rows)
    messages = replace(messages, seen=np.zeros(len(messages), bool))
    beside = outside_operations(collectives, operations, included)
    work = run_work(run, rows, messages, beside)
    place = np.full(len(operations), NONE, np.int64)
    place[rows] = np.arange(len(rows))
    # An operation that seems to run before its producer (clocks can be off) cannot follow it.
    in_turn = np.empty(len(rows), np.int64)
    in_turn[sorted_rows(work.start_ns[: len(rows)], work.end_ns[: len(rows)])] = np.arange(
        len(rows)
    )
    ordered = in_turn[place[messages.producer]] < in_turn[place[messages.consumer]]
    messages = messages.take(ordered)
    turn = np.arange(len(work))
    if turns is not None:
        turn[: len(rows)] = turns
    in_turns = replace(work, start_ns=work.start_ns[turn], end_ns=work.end_ns[turn])
    order = run_order(in_turns, rows, messages, operations, tokens)
    # Transfers of inputs, each from the end of its producer on. None takes longer than the time
    # between its operations.
    producer, consumer = place[messages.producer], place[messages.consumer]
    start_ns = work.end_ns[producer]
    produced_ns = group_extents(consumer, len(work), start_ns, start_ns)[1][consumer]
    room_ns = np.maximum(work.start_ns[consumer] - produced_ns, 0)
    transfer_ns = _transfers(run)[messages.consumer]
    names = [kind.role for kind in work.kinds]
    moves = replace(
        work.take(consumer),
        kind=np.where(messages.forward, names.index(Role.RECV_F), names.index(Role.RECV_B)),
        start_ns=start_ns,
        end_ns=start_ns + np.clip(transfer_ns, 0, room_ns),
    )
    own = len(work) + np.arange(len(moves))
    return joined((work, moves)), Order(
        np.concatenate((order.row, own, consumer)), np.concatenate((order.before, producer, own))
    )


def _transfers(run: ReplayedRun) -> Ints:
    """Return how long the input of each operation is in transfer.

    A receive that waited shows it. Any other one began late itself (before a bottleneck all do), or
    was not recorded: its transfer is the median of its virtual stage and direction, and where no
    receive of these waited, of the run.
    """
    operations = run.operations
    waited = run.receives.take(run.receives.wait_ns > 0)
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
