"""The graph of an iteration, and its critical path.

Each piece of work starts some delay after the last piece of work that it follows has ended. It
follows the operation before it on its rank, the transfers of its inputs from other ranks, and
collectives, in which data moves once the last member has entered::

    rank 0   ├── F0 ──┼── F1 ──┤ ...  ├── B7 ──┤▒ waits ▒│▓ all-reduce ▓┤├ Optimizer ┤
                      └transfer┐
    rank 1                     └delay├── F0 ──┤ ... ├─ B7 ─┤▓ all-reduce ▓┤├ Optimizer ┤

The critical path goes backwards from the end of the iteration, always to the work that ended last.
Through a collective it goes to the member that entered last, on any rank::

    rank 0   ██ F0 ██                      ██ B0 ██             ▓ all-reduce ▓█ Optimizer █
                    │                      │       │            │
    rank 1          └─delay─██ F0 ████ B0 ██       │            │
                                                   └██ F0 .. B0 █ of another replica
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.causes.cause_times import sum_idle_by_cause
from bubbleviz.explain.dependencies import Dependencies
from bubbleviz.explain.idle import IdleIntervals
from bubbleviz.explain.slowdown.delays import measure_delays
from bubbleviz.explain.slowdown.messages import Messages, list_messages
from bubbleviz.explain.slowdown.replay import Replay, build_replay
from bubbleviz.explain.slowdown.replayed_run import ReplayedRun
from bubbleviz.explain.slowdown.run_work import (
    build_work_table,
    find_computing_rows,
    select_outer_collectives,
)
from bubbleviz.explain.slowdown.slack import compute_slack
from bubbleviz.explain.slowdown.work import POINT_TO_POINT, Role, Work, find_median_rows, has_role
from bubbleviz.explain.slowdown.work_order import order_work
from bubbleviz.model import intervals
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import NONE, Bools, Ints, join_tables, scatter
from bubbleviz.model.grouping import group_rows, list_rows_by_value, sort_rows
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import WORK, Phase


@dataclass(frozen=True, eq=False, repr=False)
class Graph:
    """The work of an iteration: operations, collectives, and transfers of inputs.

    Attributes:
        work: Operations, then collectives, then transfers. A transfer starts at the end of its
            producer.
        dependencies: The rows that each row of the work follows.
        replay: The work in the order in which it is replayed.
        operation_rows: Row in the operations table of each operation of the work.
        is_counted: Mask of the rows that are a forward or backward.
        duration_ns: Time that each row takes itself, without waiting.
        delay_ns: Time from the end of everything that a row follows, or from the start of the
            iteration, to the start of the row.
        follows: Mask of the rows that follow any other row.
        delay_by_cause_ns: Part of each row's delay that has each cause, shape (rows, causes); 0 for
            rows that are not operations.
    """

    work: Work
    dependencies: Dependencies
    replay: Replay
    operation_rows: Ints
    is_counted: Bools
    duration_ns: Ints
    delay_ns: Ints
    follows: Bools
    delay_by_cause_ns: Ints

    @property
    def is_transfer(self) -> Bools:
        """Mask of the rows that are a transfer between two ranks."""
        return has_role(self.work.role, POINT_TO_POINT)

    @property
    def is_collective(self) -> Bools:
        """Mask of the rows that are a collective."""
        return self.work.communicates & ~self.is_transfer


def build_graph(run: ReplayedRun, iteration: int) -> Graph:
    """Build the graph of one iteration.

    Collectives are left out if the clocks of their members are so far off that a collective seems
    to wait for itself.

    Args:
        run: The operations of all ranks.
        iteration: Index of the iteration.
    """
    operations = run.operations
    included = np.arange(int(operations.iteration.max(initial=iteration)) + 1) == iteration
    rows = find_computing_rows(operations, included)
    for collectives in (run.collectives, run.collectives.take(slice(0))):
        work, dependencies = build_work(run, included, run.explained().tokens, collectives)
        replay = build_replay(work, dependencies)
        if not len(replay.unordered):
            break
    delay_ns = measure_delays(work, dependencies)
    follows = np.bincount(dependencies.after, minlength=len(work)) > 0
    is_counted = np.zeros(len(work), bool)
    is_counted[: len(rows)] = mask_phases(operations.phase[rows], WORK)
    delayed = np.flatnonzero(follows[: len(rows)])
    return Graph(
        work=work,
        dependencies=dependencies,
        replay=replay,
        operation_rows=rows,
        is_counted=is_counted,
        duration_ns=work.own_ns,
        delay_ns=delay_ns,
        follows=follows,
        delay_by_cause_ns=_split_delays(work, delay_ns, delayed, run.explained().idle),
    )


def _split_delays(work: Work, delay_ns: Ints, delayed: Ints, idle: IdleIntervals) -> Ints:
    """Divide the delay of each row by the cause of the idle time in it, shape (rows, causes).

    Args:
        work: The work of the iteration.
        delay_ns: Delay of each row.
        delayed: The rows to divide; all other rows are 0.
        idle: Idle intervals of all ranks.
    """
    end_ns = work.end_ns[delayed]
    since_ns = np.minimum(work.start_ns[delayed] - delay_ns[delayed], end_ns)
    divided_ns = np.zeros((len(work), len(Cause)), np.int64)
    divided_ns[delayed] = sum_idle_by_cause(idle, work.rank[delayed], since_ns, end_ns)
    # An operation that begins with work that needs no input has idle time after its start. The
    # causes take no more than the delay, in their order.
    taken_before_ns = np.cumsum(divided_ns, axis=1) - divided_ns
    left_ns = np.maximum(delay_ns, 0)[:, None] - taken_before_ns
    return np.clip(divided_ns, 0, np.maximum(left_ns, 0))


def build_work(
    run: ReplayedRun,
    included: Bools,
    tokens: Dependencies,
    collectives: CollectiveIntervals,
    turns: Ints | None = None,
) -> tuple[Work, Dependencies]:
    """Build the work of the included iterations as in :class:`Graph`, and its dependencies.

    Args:
        run: The operations of all ranks.
        included: Mask of the iterations.
        tokens: Pairs of operations in which one waits for the token of the other.
        collectives: Collectives of all ranks.
        turns: The operation whose turn on its rank each operation takes, or None if each takes its
            own.
    """
    operations = run.operations
    rows = find_computing_rows(operations, included)
    row_of_work = scatter(len(operations), rows, np.arange(len(rows)))
    messages = list_messages(run, rows)
    messages = replace(messages, has_transfer=np.zeros(len(messages), bool))
    separate = select_outer_collectives(collectives, operations, included)
    work = build_work_table(run, rows, messages, separate)
    # An operation that seems to run before its producer (clocks can be off) cannot follow it.
    position = np.empty(len(rows), np.int64)
    by_time = sort_rows(work.start_ns[: len(rows)], work.end_ns[: len(rows)])
    position[by_time] = np.arange(len(rows))
    is_ordered = position[row_of_work[messages.producer]] < position[row_of_work[messages.consumer]]
    messages = messages.take(is_ordered)
    turn = np.arange(len(work))
    if turns is not None:
        turn[: len(rows)] = turns
    in_turns = replace(work, start_ns=work.start_ns[turn], end_ns=work.end_ns[turn])
    order = order_work(in_turns, rows, messages, operations, tokens)
    transfers = _build_transfers(run, work, messages, row_of_work)
    transfer_rows = len(work) + np.arange(len(transfers))
    producer, consumer = row_of_work[messages.producer], row_of_work[messages.consumer]
    return join_tables((work, transfers)), Dependencies(
        np.concatenate((order.after, transfer_rows, consumer)),
        np.concatenate((order.before, producer, transfer_rows)),
    )


def _build_transfers(run: ReplayedRun, work: Work, messages: Messages, row_of_work: Ints) -> Work:
    """Build the transfer of each message, which starts at the end of its producer.

    No transfer takes longer than the time from the last producer of an operation to its start.

    Args:
        run: The operations of all ranks.
        work: The work without transfers; its first rows are operations.
        messages: The messages between these operations.
        row_of_work: Row in the work of each operation of the run.
    """
    producer, consumer = row_of_work[messages.producer], row_of_work[messages.consumer]
    start_ns = work.end_ns[producer]
    produced_ns = intervals.group_extents(consumer, len(work), start_ns, start_ns)[1][consumer]
    longest_ns = np.maximum(work.start_ns[consumer] - produced_ns, 0)
    duration_ns = np.clip(_measure_transfers(run)[messages.consumer], 0, longest_ns)
    roles = [kind.role for kind in work.kinds]
    forward, backward = (roles.index(role) for role in (Role.RECV_F, Role.RECV_B))
    return replace(
        work.take(consumer),
        kind=np.where(messages.forward, forward, backward),
        start_ns=start_ns,
        end_ns=start_ns + duration_ns,
    )


def _measure_transfers(run: ReplayedRun) -> Ints:
    """Return how long the input of each operation was in transfer.

    A receive that waited for its input shows the transfer time. Other receives began late
    themselves (before a bottleneck all do), or were not recorded. Their transfer takes the median
    of their virtual stage and direction or, if no receive of these waited, that of the run.
    """
    operations = run.operations
    receives = run.explained().receives
    waited = receives.take(receives.wait_ns > 0)
    row, measured_ns = waited.operation, waited.transfer_ns
    if not len(row):
        return np.zeros(len(operations), np.int64)
    forward = mask_phases(operations.phase, (Phase.F, Phase.FB)).astype(np.int64)
    kinds = group_rows(operations.virtual_stage, forward)
    median_row = find_median_rows(kinds.of_row[row], len(kinds), measured_ns)
    run_median_ns = np.sort(measured_ns)[(len(measured_ns) - 1) // 2]
    kind_ns = np.where(median_row == NONE, run_median_ns, measured_ns[median_row])
    transfer_ns = kind_ns[kinds.of_row]
    transfer_ns[row] = measured_ns
    return np.asarray(transfer_ns, np.int64)


@dataclass(frozen=True)
class PathPart:
    """A part of the critical path: the work of one rank in one phase, or one cause of delay.

    Attributes:
        rank: Index of the rank.
        what: Printed name of the phase, of the kind of collective, or of the cause.
        time_ns: Time that this part takes of the path.
        count: Number of operations, collectives or delays in this part.
    """

    rank: int
    what: str
    time_ns: int
    count: int


@dataclass(frozen=True)
class PathCollective:
    """A collective on the critical path.

    Attributes:
        what: Printed name of the kind of collective.
        last_rank: Rank that entered the collective last, from which the path comes.
        rank: Rank on which the path continues.
        start_ns: Time at which the last rank entered.
        end_ns: Time at which ``rank`` left.
    """

    what: str
    last_rank: int
    rank: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class CriticalPath:
    """The chain of work that bounds an iteration, each delayed only by what comes before it.

    Attributes:
        iteration: Index of the iteration.
        operations: Rows of the operations of the chain, in order.
        length_ns: Time from the start of the chain to the end of the iteration, including its
            optimizer.
        parts: What the length consists of, the largest first.
        collectives: Collectives on the path, in order.
        replayed: Rows of the iteration's operations whose slack is known, ascending.
        slack_ns: How much later each of these could end without a longer iteration, all else as
            measured.
    """

    iteration: int
    operations: Ints
    length_ns: int
    parts: tuple[PathPart, ...]
    collectives: tuple[PathCollective, ...]
    replayed: Ints
    slack_ns: Ints


def find_critical_path(graph: Graph, idle: IdleIntervals, iteration: int) -> CriticalPath:
    """Find the critical path of an iteration, and the slack of each of its operations.

    Args:
        graph: The graph of the iteration.
        idle: Idle intervals of all ranks.
        iteration: Index of the iteration.
    """
    work, rows = graph.work, graph.operation_rows
    if len(graph.replay.rows) == 0:
        empty = np.empty(0, np.int64)
        return CriticalPath(iteration, empty, 0, (), (), empty, empty)
    times_ns = graph.duration_ns, graph.delay_ns
    slack_ns = compute_slack(work, graph.dependencies, graph.replay, *times_ns)
    entered, left = _walk_back(graph)
    return CriticalPath(
        iteration,
        operations=rows[left[left < len(rows)]],
        length_ns=int(work.end_ns[left[-1]] - work.start_ns[entered[0]]),
        parts=tuple(_list_parts(work, entered, left, idle)),
        collectives=tuple(_list_collectives(graph, entered, left)),
        replayed=rows,
        slack_ns=slack_ns[: len(rows)],
    )


def _walk_back(graph: Graph) -> tuple[Ints, Ints]:
    """Walk from the end of the iteration backwards, and return the steps in order of time.

    Returns:
        entered: The row that began last in each step: of a collective its last member, else the
            row itself.
        left: The row that ended in each step.
    """
    work, closing = graph.work, graph.replay.rows[graph.replay.closing]
    last_member, predecessor = _find_last_members(work), _find_last_predecessors(graph)
    row = int(closing[work.end_ns[closing].argmax()])
    steps = []
    while row != NONE:
        entered = int(last_member[row])
        steps.append((entered, row))
        row = int(predecessor[entered])
    steps.reverse()
    entered_rows, left_rows = np.array(steps, np.int64).T.copy()
    return entered_rows, left_rows


def _find_last_members(work: Work) -> Ints:
    """Return the member that entered last of the meeting of each row; at ties the row itself.

    Rows without a meeting return themselves.
    """
    last_member = np.arange(len(work))
    met = np.flatnonzero(work.meeting != NONE)
    meetings, start_ns = group_rows(work.meeting[met]), work.start_ns[met]
    latest = met[_find_last_of_each(meetings.of_row, start_ns)][meetings.of_row]
    last_member[met] = np.where(start_ns == work.start_ns[latest], met, latest)
    return last_member


def _find_last_predecessors(graph: Graph) -> Ints:
    """Return the row that ended last of those that each row follows, or -1 if it follows none.

    At ties it is one of the same rank, and then one that computed.
    """
    work, row, predecessor = graph.work, graph.dependencies.after, graph.dependencies.before
    same_rank = (work.rank[row] == work.rank[predecessor]).astype(np.int64)
    computed = (~work.communicates[predecessor]).astype(np.int64)
    last = _find_last_of_each(row, work.end_ns[predecessor], same_rank, computed)
    return scatter(len(work), row[last], predecessor[last])


def _find_last_of_each(group: Ints, *columns: Ints) -> Ints:
    """Return the row of each group that comes last in the order of some columns."""
    order = sort_rows(group, *columns)
    ordered = group[order]
    is_last = np.append(ordered[1:] != ordered[:-1], True)[: len(order)]
    return np.asarray(order[is_last], np.int64)


def _list_collectives(graph: Graph, entered: Ints, left: Ints) -> Iterator[PathCollective]:
    """Yield the collectives of a chain; see :func:`_walk_back`."""
    work = graph.work
    is_collective = graph.is_collective[left]
    entered, left = entered[is_collective], left[is_collective]
    columns = (
        work.kind[left],
        work.rank[entered],
        work.rank[left],
        work.start_ns[entered],
        work.end_ns[left],
    )
    for kind, *values in zip(*(column.tolist() for column in columns), strict=True):
        yield PathCollective(work.kinds[kind].phase, *values)


def _list_parts(work: Work, entered: Ints, left: Ints, idle: IdleIntervals) -> list[PathPart]:
    """Return the parts of a chain: work by rank and kind, and delays by rank and cause.

    Args:
        work: The work of the iteration.
        entered: The row that began last in each step of the chain.
        left: The row that ended in each step.
        idle: Idle intervals of all ranks.
    """
    start_ns, end_ns = work.start_ns[entered], work.end_ns[left]
    # A step can begin before the step that it follows has ended: no time counts twice.
    until_ns = np.maximum.accumulate(end_ns)
    since_ns = np.append(start_ns[:1], until_ns[:-1])
    delay_ns = np.maximum(start_ns - since_ns, 0)
    work_ns = until_ns - since_ns - delay_ns
    delayed = np.flatnonzero(delay_ns)
    delay_times = (work.rank[entered][delayed], since_ns[delayed], delay_ns[delayed])
    times: dict[tuple[int, str], tuple[int, int]] = {}
    for label, ranks, label_ns in (
        *_sum_work_by_label(work, left, work_ns),
        *_sum_delays_by_label(idle, *delay_times),
    ):
        for rank, rows in list_rows_by_value(ranks):
            total_ns, count = times.get((rank, label), (0, 0))
            if label_ns[rows].any():
                times[rank, label] = total_ns + int(label_ns[rows].sum()), count + len(rows)
    parts = [PathPart(rank, label, *time) for (rank, label), time in times.items()]
    return sorted(parts, key=lambda part: (-part.time_ns, part.rank, part.what))


def _sum_work_by_label(work: Work, left: Ints, work_ns: Ints) -> Iterator[tuple[str, Ints, Ints]]:
    """Yield the ranks and times of the steps of each printed kind of work."""
    label_of_kind = [
        Cause.COMMUNICATION.label if kind.role in POINT_TO_POINT else kind.phase
        for kind in work.kinds
    ]
    labels = sorted(set(label_of_kind))
    label_index = np.array([labels.index(label) for label in label_of_kind], np.int64)
    label_of_step, rank = label_index[work.kind[left]], work.rank[left]
    for index, label in enumerate(labels):
        steps = label_of_step == index
        yield label, rank[steps], work_ns[steps]


def _sum_delays_by_label(
    idle: IdleIntervals, rank: Ints, since_ns: Ints, delay_ns: Ints
) -> Iterator[tuple[str, Ints, Ints]]:
    """Yield the ranks and times of the delays of each cause, then of those without a cause."""
    cause_ns = sum_idle_by_cause(idle, rank, since_ns, since_ns + delay_ns)
    other_ns = delay_ns - cause_ns.sum(axis=1)
    labels = [*(cause.label for cause in Cause), "other work"]
    for label, label_ns in zip(labels, (*cause_ns.T, other_ns), strict=True):
        yield label, rank[label_ns > 0], label_ns[label_ns > 0]
