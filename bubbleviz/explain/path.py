"""Build the graph of an iteration and find its critical path.

The graph contains operations, transfers and collectives. An operation starts after its last
predecessor has ended, possibly with a delay. The predecessors of an operation are the previous
operation of its rank, the transfers of its inputs from other ranks, and collectives. A collective
moves data once the last member has entered::

    rank 0   ├── F0 ──┼── F1 ──┤ ...  ├── B7 ──┤▒ waits ▒│▓ all-reduce ▓┤├ Optimizer ┤
                      └transfer┐
    rank 1                     └delay├── F0 ──┤ ... ├─ B7 ─┤▓ all-reduce ▓┤├ Optimizer ┤

The critical path is traced backwards from the end of the iteration: from each operation, transfer
or collective to the predecessor that ended last. At a collective, the path continues with the
member that entered last. This member may be on another rank::

    rank 0   ██ F0 ██                      ██ B0 ██             ▓ all-reduce ▓█ Optimizer █
                    │                      │       │            │
    rank 1          └─delay─██ F0 ████ B0 ██       │            │
                                                   └██ F0 .. B0 █ of another replica
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
from bubbleviz.model.grouping import group_rows, invert_permutation, list_rows_by_value, sort_rows
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import WORK, Phase


@dataclass(frozen=True, eq=False, repr=False)
class Graph:
    """The work of an iteration as a graph: operations, collectives, and transfers of inputs.

    Attributes:
        work: Operations, then collectives, then transfers. A transfer starts at the end of its
            producer.
        dependencies: Pairs of a row and one of its predecessors.
        replay: The work in the order in which it is replayed.
        operation_rows: For each operation of the work, its row in the operations table.
        is_counted: Mask of the rows of ``work`` that are forwards or backwards.
        duration_ns: Duration of each row without waiting.
        delay_ns: For each row, the time from the end of its last predecessor to its start. If a row
            has no predecessor, its delay is the time from the start of the iteration to its start.
        follows: Mask of the rows that have a predecessor.
        delay_by_cause_ns: Idle time in the delay of each row by cause, shape (rows, causes). The
            times are 0 for rows without a predecessor and for rows that are not operations.
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
        """Mask of the work rows that are transfers between two ranks."""
        return has_role(self.work.role, POINT_TO_POINT)

    @property
    def is_collective(self) -> Bools:
        """Mask of the work rows that are collectives."""
        return self.work.communicates & ~self.is_transfer


def build_graph(run: ReplayedRun, iteration: int) -> Graph:
    """Build the graph of one iteration.

    Clock errors at collectives can make the dependencies cyclic. If they do, the graph is built
    without collectives.

    Args:
        run: The replayed run.
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
    follows = np.bincount(dependencies.successor, minlength=len(work)) > 0
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
    """Split each row's delay by the causes of the idle time in it, shape (rows, causes).

    All idle time from the start of the delay to the end of the row is counted, because an operation
    can also be idle after its start. So the idle time can be longer than the delay. In this case,
    causes are added up in the order of their codes until the delay is reached, and the remaining
    idle time is dropped.

    Args:
        work: The work of the iteration.
        delay_ns: Delay of each row in ns.
        delayed: Rows whose delays are split. All other rows of the result are 0.
        idle: Idle intervals of all ranks.
    """
    end_ns = work.end_ns[delayed]
    since_ns = np.minimum(work.start_ns[delayed] - delay_ns[delayed], end_ns)
    divided_ns = np.zeros((len(work), len(Cause)), np.int64)
    divided_ns[delayed] = sum_idle_by_cause(idle, work.rank[delayed], since_ns, end_ns)
    # If the first kernels of an operation need no input, the operation can also be idle after its
    # start. So causes are added up in the order of their codes until they reach the delay.
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
    """Build the work table of the included iterations, and the dependencies between its rows.

    The table contains operations, then collectives, then transfers, as in :class:`Graph`. Each
    transfer depends on the producer of its message, and the consumer depends on the transfer.
    :func:`.order_work` finds all other dependencies. A message is left out if its consumer starts
    before its producer, which can happen because of clock errors.

    Args:
        run: The replayed run.
        included: Mask of the iterations to include.
        tokens: Pairs of an operation and the operation whose token it waits for.
        collectives: Collectives of all ranks.
        turns: For each operation in the work, the index of the operation whose position it takes in
            its rank's order. None keeps the measured order.
    """
    operations = run.operations
    rows = find_computing_rows(operations, included)
    row_of_work = scatter(len(operations), rows, np.arange(len(rows)))
    messages = list_messages(run, rows)
    messages = replace(messages, has_transfer=np.zeros(len(messages), bool))
    separate = select_outer_collectives(collectives, operations, included)
    work = build_work_table(run, rows, messages, separate)
    # Clock errors can make an operation start before its producer. Messages with such errors are
    # left out.
    messages = messages.take(_mask_ordered(work, len(rows), row_of_work, messages))
    in_turns = work if turns is None else _take_turns(work, turns)
    order = order_work(in_turns, rows, messages, operations, tokens)
    transfers = _build_transfers(run, work, messages, row_of_work)
    transfer_rows = len(work) + np.arange(len(transfers))
    producer, consumer = row_of_work[messages.producer], row_of_work[messages.consumer]
    return join_tables((work, transfers)), Dependencies(
        np.concatenate((order.successor, transfer_rows, consumer)),
        np.concatenate((order.predecessor, producer, transfer_rows)),
    )


def _mask_ordered(work: Work, n_operations: int, row_of_work: Ints, messages: Messages) -> Bools:
    """Return a mask of the messages whose producer comes before their consumer.

    Operations are compared by start, then by end.

    Args:
        work: Work table of the iterations, whose first rows are operations.
        n_operations: Number of operations in ``work``.
        row_of_work: Row in ``work`` of each operation of the run, or -1 if it is not included.
        messages: Messages between included operations.
    """
    producer, consumer = row_of_work[messages.producer], row_of_work[messages.consumer]
    by_time = sort_rows(work.start_ns[:n_operations], work.end_ns[:n_operations])
    position = invert_permutation(by_time)
    return np.asarray(position[producer] < position[consumer], bool)


def _take_turns(work: Work, turns: Ints) -> Work:
    """Give each operation ``i`` the start and end of operation ``turns[i]``.

    Args:
        work: Work table whose first rows are operations. The times of all other rows do not change.
        turns: For each operation, the row of the operation whose times it gets.
    """
    turn = np.arange(len(work))
    turn[: len(turns)] = turns
    return replace(work, start_ns=work.start_ns[turn], end_ns=work.end_ns[turn])


def _build_transfers(run: ReplayedRun, work: Work, messages: Messages, row_of_work: Ints) -> Work:
    """Build one transfer per message. It starts at the end of the message's producer.

    Its duration is the result of :func:`_measure_transfers`, but at most the time from the end of
    the consumer's last producer to the start of the consumer.

    Args:
        run: The replayed run.
        work: Work without transfers. Its first rows are operations.
        messages: Messages between operations of ``work``.
        row_of_work: Row in ``work`` of each operation of the run, or -1 if it is not included.
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
    """Estimate how long the transfer of each operation's input took.

    The transfer time can be measured only if the receive waited for its input. If the receive
    started late or was not recorded, the transfer time is the first known value of the following:

    1. The lower median of the measured times of the same virtual stage and direction.
    2. The lower median of all measured times of the run.
    3. 0 ns.

    Returns:
        Transfer times in ns, one per operation.
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
    """Total time that the critical path spends in one kind of work or delay on one rank.

    Attributes:
        rank: Index of the rank.
        what: Phase, kind of collective, or cause of delay, as printed in reports.
        time_ns: Total time of this part on the path.
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
        what: Kind of collective, as printed in reports.
        last_rank: Rank that entered the collective last. The path reaches the collective on this
            rank.
        rank: Rank on which the path continues after the collective.
        start_ns: Time at which ``last_rank`` entered the collective.
        end_ns: Time at which ``rank`` left the collective.
    """

    what: str
    last_rank: int
    rank: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class CriticalPath:
    """The chain of work that determines how long an iteration takes, and the slack of operations.

    Attributes:
        iteration: Index of the iteration.
        operations: Rows of the operations on the path, in order of time.
        length_ns: Time from the start of the path to the end of the iteration. The optimizer is
            part of the iteration.
        parts: Parts of the path, sorted by time, largest first. The times of all parts add up to
            ``length_ns``.
        collectives: Collectives on the path, in order of time.
        replayed: Rows of the iteration's operations whose slack is known, ascending.
        slack_ns: For each row of ``replayed``, how much later the operation could end without
            making the iteration longer, in ns.
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

    The path is empty and its length is 0 if no work in the iteration can be replayed.

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
    entered, left = _trace_path(graph)
    return CriticalPath(
        iteration,
        operations=rows[left[left < len(rows)]],
        length_ns=int(work.end_ns[left[-1]] - work.start_ns[entered[0]]),
        parts=tuple(_list_parts(work, entered, left, idle)),
        collectives=tuple(_list_collectives(graph, entered, left)),
        replayed=rows,
        slack_ns=slack_ns[: len(rows)],
    )


def _trace_path(graph: Graph) -> tuple[Ints, Ints]:
    """Find the steps of the critical path, in order of time.

    The path is traced backwards from the row that ends the iteration. A step through a collective
    begins at the member that entered last, and ends at the member on which the path continues. Any
    other step begins and ends at the same row.

    Returns:
        entered: For each step, the row at which it begins.
        left: For each step, the row at which it ends.
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
    """For each row, return the row of the last member to enter the same collective.

    A row that belongs to no collective is mapped to itself. A member that entered at the same time
    as the last member is also mapped to itself.
    """
    last_member = np.arange(len(work))
    met = np.flatnonzero(work.meeting != NONE)
    meetings, start_ns = group_rows(work.meeting[met]), work.start_ns[met]
    latest = met[_find_last_of_each(meetings.of_row, start_ns)][meetings.of_row]
    last_member[met] = np.where(start_ns == work.start_ns[latest], met, latest)
    return last_member


def _find_last_predecessors(graph: Graph) -> Ints:
    """For each row, return the predecessor that ended last, or -1 if it has no predecessor.

    If several end at the same time, a predecessor on the same rank wins over one on another rank.
    Remaining ties go to predecessors that compute rather than communicate.
    """
    work = graph.work
    row = graph.dependencies.successor
    predecessor = graph.dependencies.predecessor
    same_rank = (work.rank[row] == work.rank[predecessor]).astype(np.int64)
    computed = (~work.communicates[predecessor]).astype(np.int64)
    last = _find_last_of_each(row, work.end_ns[predecessor], same_rank, computed)
    return scatter(len(work), row[last], predecessor[last])


def _find_last_of_each(group: Ints, *columns: Ints) -> Ints:
    """For each group, return the row with the largest ``columns``, compared column by column.

    The result is in ascending order of groups. If several rows of a group are equal in all columns,
    the largest row index wins.
    """
    order = sort_rows(group, *columns)
    ordered = group[order]
    is_last = np.append(ordered[1:] != ordered[:-1], True)[: len(order)]
    return np.asarray(order[is_last], np.int64)


def _list_collectives(graph: Graph, entered: Ints, left: Ints) -> Iterator[PathCollective]:
    """Yield the collectives on a path, in order of time.

    Args:
        graph: The graph of the iteration.
        entered: For each step of the path, the row at which it begins. For a collective, this is
            the member that entered last.
        left: For each step of the path, the row at which it ends.
    """
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
    """Return the parts of a path: work by rank and kind, and delays by rank and cause.

    Parts are sorted by time, largest first, then by rank, then by name.

    Args:
        work: The work of the iteration.
        entered: For each step of the path, the row at which it begins.
        left: For each step of the path, the row at which it ends.
        idle: Idle intervals of all ranks.
    """
    start_ns, end_ns = work.start_ns[entered], work.end_ns[left]
    # A step can begin before the previous step has ended. Overlapping time is counted once.
    until_ns = np.maximum.accumulate(end_ns)
    since_ns = np.append(start_ns[:1], until_ns[:-1])
    delay_ns = np.maximum(start_ns - since_ns, 0)
    work_ns = until_ns - since_ns - delay_ns
    delayed = np.flatnonzero(delay_ns)
    delay_times = (work.rank[entered][delayed], since_ns[delayed], delay_ns[delayed])
    parts = _sum_by_rank(
        (
            *_sum_work_by_label(work, left, work_ns),
            *_sum_delays_by_label(idle, *delay_times),
        )
    )
    return sorted(parts, key=lambda part: (-part.time_ns, part.rank, part.what))


def _sum_by_rank(labeled: Iterable[tuple[str, Ints, Ints]]) -> list[PathPart]:
    """Sum the times of each (rank, label) pair, and return one part per pair.

    A rank gets no part for a label if all of its times with that label are 0.

    Args:
        labeled: Triples of a label, the ranks of its steps or delays, and their times in ns. The
            same label can occur in several triples.
    """
    times: dict[tuple[int, str], tuple[int, int]] = {}
    for label, ranks, label_ns in labeled:
        for rank, rows in list_rows_by_value(ranks):
            total_ns, count = times.get((rank, label), (0, 0))
            if label_ns[rows].any():
                times[rank, label] = total_ns + int(label_ns[rows].sum()), count + len(rows)
    return [PathPart(rank, label, *time) for (rank, label), time in times.items()]


def _sum_work_by_label(work: Work, left: Ints, work_ns: Ints) -> Iterator[tuple[str, Ints, Ints]]:
    """Yield each work label, along with the ranks and times in ns of the steps that have it.

    The label of a step is its phase or kind of collective. Transfers between two ranks have the
    label of the cause COMMUNICATION.
    """
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
    """Yield each cause's label, along with the ranks and times in ns of its delays.

    The last label, ``other work``, covers the part of the delays that was not idle time.

    Args:
        idle: Idle intervals of all ranks.
        rank: Rank of each delay.
        since_ns: Start of each delay.
        delay_ns: Length of each delay.
    """
    cause_ns = sum_idle_by_cause(idle, rank, since_ns, since_ns + delay_ns)
    other_ns = delay_ns - cause_ns.sum(axis=1)
    labels = [*(cause.label for cause in Cause), "other work"]
    for label, label_ns in zip(labels, (*cause_ns.T, other_ns), strict=True):
        yield label, rank[label_ns > 0], label_ns[label_ns > 0]
