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
from bubbleviz.explain.causes.idle import IdleIntervals
from bubbleviz.explain.explained_rows import ReplayedRun
from bubbleviz.explain.slowdown.replay import (
    POINT_TO_POINT,
    Order,
    Replay,
    Role,
    Work,
    replay_of,
    slack_of,
)
from bubbleviz.explain.slowdown.run_work import (
    computing_rows,
    delays_of,
    messages_of,
    outside_operations,
    run_order,
    run_work,
)
from bubbleviz.model import intervals
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


# The critical path: the chain of work that bounds an iteration, and the slack beside it.
#
# Work starts its delay after the last of what it follows: the operation before it on its rank, its
# input, the members of its collective. The path runs backwards from the end of the iteration,
# always to what came last; through a collective that is the member that entered last, on any rank::
#
#     rank 0   ██ F0 ██                      ██ B0 ██             ▓ all-reduce ▓█ Optimizer █
#                     │                      │       │            │
#     rank 1          └─delay─██ F0 ████ B0 ██       │            │
#                                                    └██ F0 .. B0 █ of another replica


@frozen
class PathPart:
    """A part of the critical path: the work of one rank in one phase, or one cause of delay.

    Attributes:
        rank: the rank.
        what: printed name of the phase, of the kind of collective, or of the cause.
        time_ns: how much of the path it is.
        count: operations, collectives, or delays.
    """

    rank: int
    what: str
    time_ns: int
    count: int


@frozen
class PathCollective:
    """A collective that the critical path passes.

    Attributes:
        what: printed name of its kind.
        last_rank: the rank that entered it last, from which the path comes.
        rank: the rank on which the path goes on.
        start_ns: when the last rank entered.
        end_ns: when the other one left.
    """

    what: str
    last_rank: int
    rank: int
    start_ns: int
    end_ns: int


@frozen
class CriticalPath:
    """The chain of work that bounds an iteration, each delayed only by what comes before it.

    Attributes:
        iteration: index of the iteration.
        operations: rows of the operations of the chain, in order.
        length_ns: from the start of the first to the end of the iteration, its optimizer included.
        parts: what the length is made of, largest first.
        collectives: those that the chain passes, in order.
        slack_ns: of every operation of the iteration, how much later it could end without a
            longer iteration, all else as measured; -1 for operations of other iterations.
    """

    iteration: int
    operations: Ints
    length_ns: int
    parts: tuple[PathPart, ...]
    collectives: tuple[PathCollective, ...]
    slack_ns: Ints


def critical_path(graph: Graph, run: ReplayedRun, iteration: int) -> CriticalPath:
    """Return the critical path of an iteration, and the slack of each of its operations.

    Args:
        graph: the iteration.
        run: all ranks.
        iteration: index of the iteration.
    """
    work, replay, before = graph.work, graph.replay, graph.order.before
    slack_ns = np.full(len(run.operations), NONE, np.int64)
    if len(replay.rows) == 0:
        return CriticalPath(iteration, np.empty(0, np.int64), 0, (), (), slack_ns)
    slack_ns[graph.rows] = slack_of(work, replay, graph.own_ns, graph.delay_ns)[: len(graph.rows)]
    # The member of the meeting of each row that started last; of several its own.
    last_entered = np.arange(len(work))
    met = np.flatnonzero(work.meeting != NONE)
    meetings, start_ns = groups_of(work.meeting[met]), work.start_ns[met]
    latest = met[_last_of_each(meetings.of_row, start_ns)][meetings.of_row]
    last_entered[met] = np.where(start_ns == work.start_ns[latest], met, latest)
    # What ended last of what each row follows; of several what its own rank computed.
    own = (work.rank[graph.order.row] == work.rank[before]).astype(np.int64)
    computed = (~work.communicates[before]).astype(np.int64)
    last = _last_of_each(graph.order.row, work.end_ns[before], own, computed)
    followed = np.full(len(work), NONE, np.int64)
    followed[graph.order.row[last]] = before[last]
    # From the end of the iteration backwards, each step from what ended to what began last.
    closing = replay.rows[replay.closing]
    step, steps = int(closing[work.end_ns[closing].argmax()]), []
    while step != NONE:
        steps.append((int(last_entered[step]), step))
        step = int(followed[last_entered[step]])
    entered, row = np.array(steps[::-1], np.int64).T.copy()
    passed = np.flatnonzero(graph.collectives[row])
    columns = (
        work.kind[row[passed]],
        work.rank[entered[passed]],
        work.rank[row[passed]],
        work.start_ns[entered[passed]],
        work.end_ns[row[passed]],
    )
    return CriticalPath(
        iteration,
        graph.rows[row[row < len(graph.rows)]],
        int(work.end_ns[row[-1]] - work.start_ns[entered[0]]),
        tuple(_parts(work, entered, row, run.idle)),
        tuple(
            PathCollective(work.kinds[kind].phase, *rest)
            for kind, *rest in zip(*(column.tolist() for column in columns), strict=True)
        ),
        slack_ns,
    )


def _last_of_each(group: Ints, *by: Ints) -> Ints:
    """Return the row of each group, in their order, that comes last by some columns."""
    order = sorted_rows(group, *by)
    ordered = group[order]
    ends = np.append(ordered[1:] != ordered[:-1], True)[: len(order)]
    return np.asarray(order[ends], np.int64)


def _parts(work: Work, entered: Ints, row: Ints, idle: IdleIntervals) -> list[PathPart]:
    """Return the parts of a chain: work by rank and kind, and delays by rank and cause.

    Args:
        work: of the iteration.
        entered: what began last in each step of the chain; of a collective its last member.
        row: what ended in it.
        idle: idle intervals of all ranks.
    """
    start_ns, end_ns = work.start_ns[entered], work.end_ns[row]
    # What follows can begin before the one that it followed ended: no time counts twice.
    until_ns = np.maximum.accumulate(end_ns)
    since_ns = np.append(start_ns[:1], until_ns[:-1])
    gap_ns = np.maximum(start_ns - since_ns, 0)
    names = [kind.phase for kind in work.kinds]
    for number, kind in enumerate(work.kinds):
        if kind.role in POINT_TO_POINT:
            names[number] = Cause.COMMUNICATION.label
    labels = sorted(set(names))
    label = np.array([labels.index(name) for name in names], np.int64)[work.kind[row]]
    times: dict[tuple[int, str], tuple[int, int]] = {}

    def add(what: str, rank: Ints, time_ns: Ints) -> None:
        groups = groups_of(rank)
        total_ns = intervals.group_sum(groups.of_row, len(groups), time_ns).tolist()
        counts = np.bincount(groups.of_row, minlength=len(groups)).tolist()
        for place, *time in zip(rank[groups.first].tolist(), total_ns, counts, strict=True):
            before = times.get((place, what), (0, 0))
            if time[0]:
                times[place, what] = before[0] + time[0], before[1] + time[1]

    rank, worked_ns = work.rank[row], until_ns - since_ns - gap_ns
    for number, what in enumerate(labels):
        add(what, rank[label == number], worked_ns[label == number])
    late = np.flatnonzero(gap_ns)
    entering, low_ns, rest_ns = work.rank[entered][late], since_ns[late], gap_ns[late]
    high_ns = low_ns + rest_ns
    for cause in Cause:
        delay_ns = idle.time_within((cause,), entering, low_ns, high_ns)
        rest_ns = rest_ns - delay_ns
        add(cause.label, entering[delay_ns > 0], delay_ns[delay_ns > 0])
    add("other work", entering[rest_ns > 0], rest_ns[rest_ns > 0])
    parts = [PathPart(place, what, *time) for (place, what), time in times.items()]
    return sorted(parts, key=lambda part: (-part.time_ns, part.rank, part.what))
