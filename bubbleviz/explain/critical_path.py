"""The critical path: the chain of work that bounds an iteration, and the slack beside it.

Work starts its delay after the last of what it follows: the operation before it on its rank, its
input, the members of its collective. The path runs backwards from the end of the iteration, always
to what came last; through a collective that is the member that entered last, on any rank::

    rank 0   ██ F0 ██                      ██ B0 ██             ▓ all-reduce ▓█ Optimizer █
                    │                      │       │            │
    rank 1          └─delay─██ F0 ████ B0 ██       │            │
                                                   └██ F0 .. B0 █ of another replica
"""

from __future__ import annotations

import numpy as np

from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.causes.idle import IdleIntervals
from bubbleviz.explain.explained_rows import ReplayedRun
from bubbleviz.explain.graph import Graph
from bubbleviz.explain.slowdown.replay import POINT_TO_POINT, Work, slack_of
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import groups_of, sorted_rows
from bubbleviz.model.values import frozen


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
