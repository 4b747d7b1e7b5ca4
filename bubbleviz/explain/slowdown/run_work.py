"""The work of a run: operations, the messages between them, and its collectives, as one table.

A message that is seen is a send and a receive that meet; any other consumer just follows its
producer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from bubbleviz.align.arrivals import NEVER, sends
from bubbleviz.count.rank_slices import stage_and_pipeline
from bubbleviz.explain.causes.bubbles import Bubbles
from bubbleviz.explain.dependencies import Dependencies
from bubbleviz.explain.idle import IdleIntervals
from bubbleviz.explain.phase_times import Receives
from bubbleviz.explain.slowdown.work import (
    COMPUTING,
    POINT_TO_POINT,
    Kind,
    Role,
    Work,
    median_rows,
    plays,
)
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import NONE, Bools, Ints, Table, TableT, joined, marked, scattered
from bubbleviz.model.grouping import (
    distinct,
    first_of_each,
    found_in,
    groups_of,
    heads,
    looked_up,
    numbered,
    sorted_rows,
)
from bubbleviz.model.intervals import group_extents, group_latest, group_sum, last_before
from bubbleviz.model.operations import HostActivities, Operations, Rank
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import COMPUTE, Phase

# Explained rows: the tables of an explanation that have rows for single operations.
#
# They take more memory than a run itself. Where a run is several stretches only those of the ranks
# that are replayed are kept; those of all are worked out once an output asks for them.


#: Columns of these tables that hold rows of operations.
_OPERATIONS = ("operation", "before", "after", "peer_operation")


@dataclass(frozen=True, eq=False, repr=False)
class ExplainedRows:
    """What is known of single operations, and of the idle time between them.

    Attributes:
        dependencies: between operations.
        receives: of operations.
        idle: idle intervals up to the last optimizers.
        bubbles: those in the windows of one ratio.
        tokens: which operations waited for the token of which.
    """

    dependencies: Dependencies
    receives: Receives
    idle: IdleIntervals
    bubbles: Bubbles
    tokens: Dependencies

    def of_ranks(self, chosen: Bools, rank: Ints) -> ExplainedRows:
        """Return the rows of some ranks, none of which takes anything from any other.

        Args:
            chosen: of each rank.
            rank: of each operation.
        """
        return ExplainedRows(
            self.dependencies.take(chosen[rank[self.dependencies.after]]),
            self.receives.take(chosen[rank[self.receives.operation]]),
            self.idle.take(chosen[self.idle.rank]),
            self.bubbles.take(chosen[self.bubbles.rank]),
            self.tokens.take(chosen[rank[self.tokens.after]]),
        )

    def placed(
        self, row: Callable[[Ints], Ints], operations: Operations, first_rank: int = 0
    ) -> ExplainedRows:
        """Return the same with other numbers.

        Args:
            row: new rows of operations; of -1, -1.
            operations: that they are rows of.
            first_rank: by how much numbers of ranks are larger.
        """
        tables = {n: renumbered(table, row, first_rank) for n, table in vars(self).items()}
        rows = ExplainedRows(**tables)
        return replace(rows, bubbles=replace(rows.bubbles, operations=operations))


def renumbered(table: TableT, row: Callable[[Ints], Ints], first_rank: int = 0) -> TableT:
    """Return a table of explained rows with other rows of operations.

    Args:
        table: one of :class:`ExplainedRows`.
        row: new rows of operations; of -1, -1.
        first_rank: by how much numbers of ranks are larger.
    """
    columns = {n: row(column) for n, column in vars(table).items() if n in _OPERATIONS}
    if "rank" in vars(table):
        columns["rank"] = vars(table)["rank"] + first_rank
    return type(table)(**{**vars(table), **columns})


def joined_rows(parts: Sequence[ExplainedRows], operations: Operations) -> ExplainedRows:
    """Return the rows of stretches as one; these have the numbers of the run."""
    bubbles = joined([part.bubbles for part in parts]).compacted()
    return ExplainedRows(
        joined([part.dependencies for part in parts]),
        joined([part.receives for part in parts]),
        joined([part.idle for part in parts]).compacted(),
        replace(bubbles, operations=operations),
        joined([part.tokens for part in parts]),
    )


def moved_rows(first: int, count: int, elsewhere: Ints) -> Callable[[Ints], Ints]:
    """Return what turns rows of a stretch into those of the run.

    Args:
        first: its first operation in the run.
        count: its operations.
        elsewhere: rows of the run that its rows from ``count`` on stand for.
    """

    def moved(row: Ints) -> Ints:
        if not len(elsewhere):
            return np.where(row == NONE, NONE, row + first) if first else row
        outside = row >= count
        placed = np.where(row == NONE, NONE, row + first)
        placed[outside] = elsewhere[row[outside] - count]
        return placed

    return moved


@dataclass(frozen=True, eq=False, repr=False)
class ReplayedRun:
    """What ranks did, from which the work of any of its iterations follows.

    Attributes:
        operations: of all ranks.
        ranks: by number.
        explained: returns the tables that have rows for these.
        collectives: of all ranks.
        averaged: of each iteration, whether it is replayed.
        hosts: what launching threads did before late launches.
        numbers: of each iteration in the report, which a window cuts; -1 where it is left out.
        reason: why nothing is replayed; empty where it is.
        paused: of each iteration, whether nothing was recorded before the next one; None for none.
        launch_gap_ns: Time in operations in which no kernel ran at all, shape (iterations, ranks),
            or None if it is unknown.
    """

    operations: Operations
    ranks: tuple[Rank, ...]
    explained: Callable[[], ExplainedRows]
    collectives: CollectiveIntervals
    averaged: Bools
    hosts: HostActivities
    numbers: Ints
    reason: str = ""
    paused: Bools | None = None
    launch_gap_ns: Ints | None = None

    @cached_property
    def sends(self) -> Ints:
        """Row of the send of the name of each operation; -1 none."""
        return sends(self.operations)

    def of_ranks(self, chosen: Bools, rows: ExplainedRows) -> ReplayedRun:
        """Return the same of some ranks, none of which takes anything from any other.

        Rows of operations are numbered anew, ranks are not.

        Args:
            chosen: of each rank.
            rows: the tables, with those of these ranks at least.
        """
        kept = chosen[self.operations.rank]
        operations = self.operations.take(kept)
        row = scattered(len(kept) + 1, np.flatnonzero(kept), np.arange(len(operations)))
        rows = rows.of_ranks(chosen, self.operations.rank)
        rows = rows.placed(lambda own: row[own], operations)
        collectives = self.collectives.take(chosen[self.collectives.rank])
        hosts = self.hosts.take(chosen[self.hosts.rank])
        return replace(
            self,
            operations=operations,
            explained=partial(_given, rows),
            collectives=collectives.changed(operation=row[collectives.operation]),
            hosts=replace(hosts, operation=row[hosts.operation]),
        )


# Messages of a run: what operations take from other ranks, and the sends and receives of it.
#
# A send begins with its kernel, but no earlier than the end of the producer. Where names give no
# microbatch, the n-th receive of a rank is that of the n-th operation that takes something, if
# there are as many of both; and likewise sends. What a rank received in another order than it was
# sent met in no stream, so that its receives show nothing.


#: How far the clock of sends and receives is off that of computes, as in the published analyzer.
CLOCK_NS = 50_000
#: So many idle consumers tell how long data moves on a link that no receive shows.
_IDLE_CONSUMERS = 3


@dataclass(frozen=True, eq=False, repr=False)
class Messages(Table):
    """What operations take from other ranks.

    Attributes:
        consumer: row of the operations.
        producer: likewise.
        forward: whether activations move, and no gradients.
        receive_start_ns: start of the receive; meaningless where it is not ``seen``.
        receive_end_ns: its end.
        send_start_ns: start of the send, no earlier than the end of the producer.
        send_end_ns: its end.
        seen: whether a receive shows how long data moved.
    """

    consumer: Ints
    producer: Ints
    forward: Bools
    receive_start_ns: Ints
    receive_end_ns: Ints
    send_start_ns: Ints
    send_end_ns: Ints
    seen: Bools


def _given(rows: ExplainedRows) -> ExplainedRows:
    return rows


def messages_of(run: ReplayedRun, rows: Ints) -> Messages:
    """Return what operations take from other ranks in their iteration.

    Args:
        run: the operations of all ranks.
        rows: of the operations between which messages are wanted.
    """
    operations, rows_of = run.operations, run.explained()
    receives, dependencies = rows_of.receives, rows_of.dependencies
    chosen = marked(len(operations), rows)
    consumer, producer = dependencies.after, dependencies.before
    wanted = dependencies.remote(operations.rank) & chosen[consumer] & chosen[producer]
    wanted &= operations.iteration[consumer] == operations.iteration[producer]
    consumer, producer = consumer[wanted], producer[wanted]
    # Which carry activations; of two overlapped pairs the stages tell.
    phase, stage = operations.phase, operations.virtual_stage
    both = (phase[consumer] == Phase.FB) & (phase[producer] == Phase.FB)
    forward = (phase[consumer] == Phase.F) | (phase[producer] == Phase.F)
    forward = np.where(both, stage[producer] < stage[consumer], forward)

    at = scattered(len(operations), receives.operation, np.arange(len(receives)))
    # An overlapped pair takes two results; its last receive is that of the later one.
    last = marked(len(consumer), first_of_each(consumer, -operations.end_ns[producer]))
    receive = np.where(last, at[consumer], NONE)
    unnamed = _in_order(operations, consumer, forward, (Phase.RECV_F, Phase.RECV_B))
    by_order = (receive == NONE) & (unnamed != NONE)
    start_ns, end_ns = (
        np.where(by_order, of_operation[unnamed], np.append(of_receive, NONE)[receive])
        for of_operation, of_receive in (
            (operations.start_ns, receives.start_ns),
            (operations.end_ns, receives.end_ns),
        )
    )
    # What began after its consumer, or ended after it, brought it nothing.
    began_ns = operations.end_ns[consumer] - operations.busy_ns[consumer]
    seen = (start_ns != NONE) & (start_ns <= began_ns) & (end_ns <= operations.end_ns[consumer])

    send = run.sends[producer]
    unnamed = _in_order(operations, producer, forward, (Phase.SEND_F, Phase.SEND_B))
    send = np.where(send == NONE, unnamed, send)
    sent = (send != NONE) & (operations.has_span[send] == 1)
    produced_ns = operations.end_ns[producer]
    send_start_ns = np.where(sent, operations.start_ns[send], produced_ns)
    messages = Messages(
        consumer=consumer,
        producer=producer,
        forward=forward,
        receive_start_ns=start_ns,
        receive_end_ns=end_ns,
        send_start_ns=np.maximum(send_start_ns, produced_ns),
        send_end_ns=np.maximum(np.where(sent, operations.end_ns[send], end_ns), produced_ns),
        seen=seen,
    )
    messages = replace(messages, seen=seen & ~_crossed(operations, messages))
    return _with_inferred(run, rows, messages)


def _with_inferred(run: ReplayedRun, rows: Ints, messages: Messages) -> Messages:
    """Return messages with receives for those that none shows, where idle consumers tell a time.

    An idle consumer that was launched begins once its input is there; what this takes on a link is
    what a busy one would have waited for, too::

        producer   ├─ F3 ─┤
        consumer           │ RECV │├─ F3 ─┤        since before the end of F3 it was idle

    Nor does a receive show that was posted late, where data moves ahead of late receives.

    Args:
        run: the operations of all ranks.
        rows: of those that compute.
        messages: between these.
    """
    operations, seen = run.operations, messages.seen
    late = seen & (messages.receive_start_ns > messages.send_start_ns)
    asked = np.flatnonzero(~seen | late)
    if not len(asked):
        return messages
    start_ns, end_ns = _times(operations, rows)
    place = scattered(len(operations), rows, np.arange(len(rows)))
    consumer, producer = messages.consumer, messages.producer
    at, produced_ns = place[consumer], operations.end_ns[producer]
    same = operations.rank[rows[at - 1]] == operations.rank[consumer]
    free_ns = np.where((at > 0) & same, end_ns[at - 1], NEVER)
    idle = (free_ns < produced_ns) & (operations.launched_ns[consumer] < produced_ns)
    since_ns = np.where(seen, messages.send_start_ns, produced_ns)
    there_ns = np.where(seen, messages.receive_end_ns, start_ns[at])
    shows = np.where(seen, ~late, idle & (there_ns >= since_ns))
    links = groups_of(operations.rank[producer], operations.rank[consumer])
    gap_ns = (there_ns - since_ns).astype(np.float64)
    told = np.bincount(links.of_row[shows], minlength=len(links)) >= _IDLE_CONSUMERS
    rows_of_link = median_rows(links.of_row[shows], len(links), gap_ns[shows])
    link_ns = np.append(gap_ns[shows], 0.0)[rows_of_link][links.of_row]
    known = told[links.of_row] & (gap_ns >= 0) & (link_ns > 0)
    # After a late receive all of it moves, or what had not moved ahead.
    posted_ns = messages.receive_start_ns
    clearly = known & late & (2 * (posted_ns - since_ns) > link_ns)
    ahead = 2 * (there_ns - posted_ns)[clearly] < link_ns[clearly]
    if 2 * ahead.sum() <= len(ahead):
        asked = np.flatnonzero(~seen)
    shows |= late & (there_ns > posted_ns + CLOCK_NS)
    moved_ns = np.where(shows, gap_ns, np.minimum(link_ns, gap_ns)).astype(np.int64)
    columns = {
        # The receive of an idle consumer was there first.
        "receive_start_ns": since_ns - (shows & ~late),
        "receive_end_ns": since_ns + moved_ns,
        "send_start_ns": since_ns,
        "send_end_ns": since_ns + moved_ns,
        "seen": np.ones(len(messages), bool),
    }
    asked = asked[known[asked]]
    for name, column in columns.items():
        whole = getattr(messages, name).copy()
        whole[asked] = column[asked]
        columns[name] = whole
    return replace(messages, **columns)


def _crossed(operations: Operations, messages: Messages) -> Bools:
    """Tell which messages are of a link on which they cross in their iteration.

    ::

        sender     ├ B3 ┤├ B4 ┤
        receiver   ├─ B4 ─┤├ B3 ┤
    """
    rows = np.flatnonzero(messages.seen)
    seen = messages.take(rows)
    link = groups_of(
        operations.iteration[seen.consumer],
        operations.rank[seen.producer],
        operations.rank[seen.consumer],
        seen.forward.astype(np.int64),
    ).of_row
    crossed = numbered(link, seen.send_start_ns) != numbered(link, seen.receive_start_ns)
    result = np.zeros(len(messages), bool)
    result[rows] = np.isin(link, link[crossed])
    return result


def _in_order(
    operations: Operations, owner: Ints, forward: Bools, phases: tuple[Phase, Phase]
) -> Ints:
    """Return the transfer without a microbatch of each owner, by their order; -1 for none.

    Args:
        operations: of all ranks.
        owner: rows that take or give something.
        forward: whether that is activations.
        phases: of transfers of activations, and of gradients.
    """
    rows = np.flatnonzero(
        among(operations.phase, phases)
        & (operations.microbatch < 0)
        & (operations.has_span == 1)
        & (operations.iteration >= 0)
    )
    if not len(rows):
        return np.full(len(owner), NONE, np.int64)
    both = np.concatenate((rows, owner))
    is_forward = np.concatenate((operations.phase[rows] == phases[0], forward)).astype(np.int64)
    group = groups_of(operations.rank[both], operations.iteration[both], is_forward).of_row
    of_row, of_owner = group[: len(rows)], group[len(rows) :]
    count = int(group.max(initial=NONE)) + 1
    equal = np.bincount(of_row, minlength=count) == np.bincount(of_owner, minlength=count)
    place = numbered(of_row, operations.start_ns[rows])
    wanted = numbered(of_owner, operations.start_ns[owner])
    found = looked_up((of_row, place), rows, (of_owner, wanted))
    return np.where(equal[of_owner], found, NONE)


# Message order: what sends and receives follow on their rank, and what follows them.
#
# A send follows its compute. A receive precedes its compute, and follows the one of its direction
# before that; each kind of send and receive runs in its own order::
#
#     RECV_F  ├──┤           ├──┤
#     compute     ├─ F0 ─┤       ├─ F1 ─┤       ├─ B0 ─┤
#     SEND_F              ├──┤           ├──┤
#
# The rules are those of ``setup_pp_dependency`` in the published ``analyzer/dependency_model.py``.


#: Rows, and what each follows.
Pairs = tuple[Ints, Ints]


def message_order(work: Work, rows: Ints, compute: Ints, computes: Ints) -> list[Pairs]:
    """Return what sends and receives follow, and what follows them.

    Args:
        work: of all ranks.
        rows: of its sends and receives.
        compute: row of the compute that took or gave the data of each; -1 where it stands for
            nothing.
        computes: rows that ranks compute one after the other.
    """
    role, place = work.role, work.rank_iteration
    # Chunks of a V send to both neighbours at once.
    of_link = groups_of(place, *work.link).of_row
    streams = (np.flatnonzero(role == own) for own in POINT_TO_POINT)
    rows, compute = rows[compute != NONE], compute[compute != NONE]
    receives = plays(role[rows], RECEIVES)
    taken, taken_by = rows[receives], compute[receives]
    directed = np.flatnonzero((role == Role.FORWARD) | (role == Role.BACKWARD))
    after, before = chained(work, directed, groups_of(place[directed], role[directed]).of_row)
    earlier = scattered(len(work) + 1, after, before)
    previous = earlier[taken_by]
    return [
        *(chained(work, own, of_link[own]) for own in streams),
        (rows[~receives], compute[~receives]),
        (taken_by, taken),
        (taken[previous != NONE], previous[previous != NONE]),
        *_first_backward(work, computes),
    ]


def chained(work: Work, rows: Ints, group: Ints) -> Pairs:
    """Return each of some rows, and the one before it in its group, by start."""
    order = sorted_rows(group, work.start_ns[rows], work.kind[rows])
    rows, group = rows[order], group[order]
    same = group[1:] == group[:-1]
    return rows[1:][same], rows[:-1][same]


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


#: Roles of receives, and of sends.
RECEIVES = (Role.RECV_F, Role.RECV_B)
_SENDS = (Role.SEND_F, Role.SEND_B)
#: Clocks of ranks are not off by more.
_RANK_CLOCK_NS = 1_000_000
_ROLES = {
    Phase.F: Role.FORWARD,
    Phase.B: Role.BACKWARD,
    Phase.BW: Role.BACKWARD,
    Phase.OPTIMIZER: Role.OPTIMIZER,
}
#: Kinds of messages, which stand after the phases.
_MESSAGES = (
    Kind("SEND_F", Role.SEND_F, "forward transfers"),
    Kind("RECV_F", Role.RECV_F, "forward transfers"),
    Kind("SEND_B", Role.SEND_B, "backward transfers"),
    Kind("RECV_B", Role.RECV_B, "backward transfers"),
)


def work_of_run(run: ReplayedRun, tokens: Dependencies) -> tuple[Work, Dependencies]:
    """Return what ranks did in the averaged iterations, and what each row of it follows.

    Args:
        run: all ranks.
        tokens: which operations wait for the token of which.
    """
    rows = computing_rows(run.operations, run.averaged)
    messages = messages_of(run, rows)
    beside = outside_operations(run.collectives, run.operations, run.averaged)
    work = run_work(run, rows, messages, beside)
    work = replace(work, iteration=run.numbers[work.iteration])
    return work, run_order(work, rows, messages, run.operations, tokens)


def run_work(
    run: ReplayedRun, rows: Ints, messages: Messages, collectives: CollectiveIntervals
) -> Work:
    """Return operations, then the sends and receives that are seen, then collectives.

    Args:
        run: the operations of all ranks, in order of (rank, start).
        rows: of the operations that compute.
        messages: between these.
        collectives: of the same iterations; a rank has one row of each.
    """
    operations, seen = run.operations, messages.take(messages.seen)
    stage, replica = stage_and_pipeline(run.ranks)
    kinds, of_collective = _kinds(collectives, stage, replica)
    none, first, pair = np.full(len(collectives), NONE, np.int64), len(Phase), np.arange(len(seen))
    every = (
        *(Kind(phase.label, _ROLES.get(phase, Role.COMPUTE), phase.label) for phase in Phase),
        *_MESSAGES,
        *kinds,
    )

    def part(row: Ints, kind: Ints, start_ns: Ints, end_ns: Ints, meeting: Ints) -> Work:
        rank = operations.rank[row]
        return Work(
            *(rank, stage[rank], replica[rank], operations.iteration[row], kind.astype(np.int64)),
            *(operations.microbatch[row], operations.chunk[row], operations.virtual_stage[row]),
            *(start_ns, end_ns, meeting),
            every,
        )

    rank, met = collectives.rank, collectives.meeting != NONE
    beside = Work(
        *(rank, stage[rank], replica[rank], collectives.iteration),
        *(first + len(_MESSAGES) + of_collective, none, none, none),
        *(collectives.start_ns, collectives.end_ns),
        np.where(met, len(pair) + collectives.meeting, NONE),
        every,
    )
    sends, receives = (np.where(seen.forward, first + n, first + n + 2) for n in (0, 1))
    none = np.full(len(rows), NONE, np.int64)
    return joined(
        (
            part(rows, operations.phase[rows], *_times(operations, rows), none),
            part(seen.producer, sends, seen.send_start_ns, seen.send_end_ns, pair),
            part(seen.consumer, receives, seen.receive_start_ns, seen.receive_end_ns, pair),
            beside,
        )
    )


def _times(operations: Operations, rows: Ints) -> tuple[Ints, Ints]:
    """Return when operations began and ended, waiting not counted.

    No two operations of a rank overlap: each continues where others end::

        stream 1   ├────── F3 ──────┤              ├────── F3 ──────┤
        stream 2        ├──── B1 ────────┤                          ├ B1 ┤
    """
    start_ns, end_ns = operations.end_ns[rows] - operations.busy_ns[rows], operations.end_ns[rows]
    order = sorted_rows(operations.rank[rows], start_ns, end_ns)
    bounds = heads(operations.rank[rows][order])
    for own in np.split(order, bounds[1:]):
        covered_ns = np.append(NEVER, np.maximum.accumulate(end_ns[own])[:-1])
        start_ns[own] = np.maximum(start_ns[own], covered_ns)
        end_ns[own] = np.maximum(end_ns[own], start_ns[own])
    return start_ns, end_ns


def computing_rows(operations: Operations, included: Bools) -> Ints:
    """Return the operations that compute in some iterations.

    Args:
        operations: of all ranks.
        included: of each iteration, whether it is wanted.
    """
    wanted = among(operations.phase, COMPUTE) & (operations.has_span == 1)
    wanted &= (operations.iteration >= 0) & (operations.cut == 0)
    return np.flatnonzero(wanted & np.append(included, False)[operations.iteration])


def outside_operations(
    collectives: CollectiveIntervals, operations: Operations, included: Bools
) -> CollectiveIntervals:
    """Return collectives of some iterations that run beside compute, one row per rank and one.

    What runs inside the span of its own operation is a part of that. Pieces become one.

    Args:
        collectives: of all ranks.
        operations: of these.
        included: of each iteration, whether it is wanted.
    """
    wanted = np.append(included, False)[collectives.iteration]
    owner = collectives.operation
    own = (owner != NONE) & among(np.append(operations.phase, NONE)[owner], COMPUTE)
    own &= np.append(operations.has_span, 0)[owner] == 1
    own &= collectives.start_ns >= np.append(operations.start_ns, 0)[owner]
    own &= collectives.end_ns <= np.append(operations.end_ns, 0)[owner]
    kept = collectives.take(wanted & ~own)
    alone = np.where(kept.meeting == NONE, np.arange(len(kept)), NONE)
    pieces = groups_of(kept.rank, kept.meeting, alone)
    start_ns, end_ns = group_extents(pieces.of_row, len(pieces), kept.start_ns, kept.end_ns)
    order = np.argsort(pieces.first)
    whole = kept.take(pieces.first[order])
    start_ns, end_ns, meeting = start_ns[order], end_ns[order], whole.meeting.copy()
    # A meeting that a member left before all had entered is none, whatever a table calls it.
    rows = np.flatnonzero(meeting != NONE)
    meetings = groups_of(meeting[rows])
    entered_ns = group_extents(meetings.of_row, len(meetings), start_ns[rows], start_ns[rows])[1]
    left_ns = group_extents(meetings.of_row, len(meetings), end_ns[rows], end_ns[rows])[0]
    early = entered_ns - left_ns > _RANK_CLOCK_NS
    meeting[rows[early[meetings.of_row]]] = NONE
    return whole.changed(start_ns=start_ns, end_ns=end_ns, meeting=meeting)


def _kinds(
    collectives: CollectiveIntervals, stage: Ints, replica: Ints
) -> tuple[tuple[Kind, ...], Ints]:
    """Return the kinds of collectives, and that of each.

    Those of one kind do the same work: one of NCCL's operations, the n-th of its members on their
    ranks, over several stages or one, and over several replicas or one.

    Args:
        collectives: of all ranks.
        stage: of each rank.
        replica: likewise.
    """
    if not len(collectives):
        return (), np.empty(0, np.int64)
    alone = collectives.meeting == NONE
    number = np.where(alone, -2 - np.arange(len(collectives)), collectives.meeting)
    meetings = groups_of(number)
    spans = []
    for place in (stage[collectives.rank], replica[collectives.rank]):
        low, high = group_extents(meetings.of_row, len(meetings), place, place)
        spans.append((low != high).astype(np.int64)[meetings.of_row])
    kinds = groups_of(collectives.kind, *spans, collectives.order)
    names = ["collective", *(name or "collective" for name in collectives.kinds)]
    return (
        tuple(
            Kind(f"{names[kind + 1]} {number}", Role.COLLECTIVE, names[kind + 1])
            for number, kind in enumerate(collectives.kind[kinds.first].tolist())
        ),
        kinds.of_row,
    )


# Order of a run's work: what each row of it follows, as far as its times show it.
#
# Operations run in their order. A collective follows the operation that had ended when it began;
# where it was exposed the next operation follows it, else the optimizer does::
#
#     compute     ├─ B6 ─┤├─ B7 ─┤                 ├ Optimizer ┤
#     collective          ├─ bucket 0 ─┤├ bucket 1 ┤
#                  after B6             after B7 and bucket 0


def run_order(
    work: Work, rows: Ints, messages: Messages, operations: Operations, tokens: Dependencies
) -> Dependencies:
    """Return what each row of a run's work follows.

    Args:
        work: operations, then sends, then receives, then collectives.
        rows: of the operations table, of the first rows of it.
        messages: between operations; those seen are the sends and receives.
        operations: of all ranks.
        tokens: which of these waited for the token of which.
    """
    place = scattered(len(operations), rows, np.arange(len(rows)))
    seen, unseen = messages.take(messages.seen), messages.take(~messages.seen)
    # Sorted once, they stay so for all that asks for their order.
    columns = work.rank_iteration, work.start_ns, work.kind
    computes = sorted_rows(*(column[: len(rows)] for column in columns))
    transfers = len(rows) + np.arange(2 * len(seen))
    collective = np.arange(len(rows) + len(transfers), len(work))
    ends = np.concatenate((place[seen.producer], place[seen.consumer]))
    waits, token = place[tokens.after], place[tokens.before]
    known = (waits >= 0) & (token >= 0)
    known &= operations.iteration[tokens.after] == operations.iteration[tokens.before]
    sent_ns = np.full(len(work), NEVER, np.int64)
    sent_ns[transfers] = np.tile(seen.send_start_ns, 2)
    in_time, communicates = [], work.communicates
    receives = plays(work.role, RECEIVES)
    for row, before in message_order(work, transfers, ends, computes):
        # A rank can post receives ahead of the operation before.
        late = work.end_ns[before] > work.start_ns[row] + CLOCK_NS
        ahead = late & communicates[row]
        # One that does so where data is there early does so where it waits, too.
        shows = ~communicates[before] & receives[row]
        early = shows & (sent_ns[row] + CLOCK_NS < work.end_ns[before])
        if 2 * ahead[early].sum() > early.sum():
            ahead |= shows
        in_time.append((row[~ahead], before[~ahead]))
    pairs = [
        chained(work, computes, work.rank_iteration[computes]),
        (place[unseen.consumer], place[unseen.producer]),
        (waits[known], token[known]),
        *in_time,
        queued_transfers(work, Dependencies(transfers[: len(seen)], place[seen.producer])),
        _in_turn(work, computes, collective),
        _in_turn(work, collective, collective),
        _followed(work, computes, collective),
    ]
    row, before = (np.concatenate([pair[side] for pair in pairs]) for side in (0, 1))
    return Dependencies(row, before)


def queued_transfers(work: Work, order: Dependencies) -> Pairs:
    """Return the transfers that were queued behind others, and the one that each then followed.

    Its data was there while the other one, which had been posted first, still waited for its peer::

        RECV_F 5   ├▒▒▒▒▒▒ waits ▒▒▒▒▒▒│▓▓┤
        SEND_F 2          computed        ├▓▓┤

    Args:
        work: of all ranks.
        order: what its sends follow.
    """
    role, transfers = work.role, np.flatnonzero(plays(work.role, POINT_TO_POINT))
    sends = transfers[plays(role[transfers], _SENDS)]
    meetings = int(work.meeting.max(initial=NONE)) + 1
    sent_ns, made_ns = np.full(meetings, NEVER), np.full(len(work), NEVER)
    sent_ns[work.meeting[sends]] = work.start_ns[sends]
    made = plays(role[order.after], _SENDS) & plays(role[order.before], COMPUTING)
    made_ns[order.after[made]] = work.end_ns[order.before[made]]
    ready_ns = np.where(plays(role, RECEIVES), np.append(sent_ns, NEVER)[work.meeting], made_ns)
    late = (ready_ns != NEVER) & (ready_ns + CLOCK_NS < work.start_ns)
    row, before = _in_turn(work, _waiting(work), transfers[late[transfers]])
    idle_ns = work.start_ns[row] - work.end_ns[before]
    queued = (idle_ns >= 0) & (idle_ns <= CLOCK_NS)
    return row[queued], before[queued]


def _waiting(work: Work) -> Ints:
    """Return the sends and receives that waited for their peer."""
    transfers = np.flatnonzero(plays(work.role, POINT_TO_POINT))
    meetings, start_ns = groups_of(work.meeting[transfers]), work.start_ns[transfers]
    met_ns = group_extents(meetings.of_row, len(meetings), start_ns, start_ns)[1]
    return transfers[met_ns[meetings.of_row] > start_ns + CLOCK_NS]


def queued_collectives(run: ReplayedRun, work: Work, rows: Ints) -> tuple[Ints, Ints]:
    """Return for how long collectives inside operations were queued behind transfers, by row.

    Experts exchange tokens in a forward, for which nothing runs while a receive of another one
    waits in front of them, as on a link that both share::

        RECV_F 5        ├▒▒▒▒▒▒▒▒ waits ▒▒▒▒▒▒▒▒│▓▓┤
        F 2         ├ attention ┤    queued        ├ all-to-all ┤├ experts ┤

    Operations lose no more than the time in which no kernel of theirs ran, nor any collective.

    Args:
        run: all ranks.
        work: of it.
        rows: of the operations that are the first rows of the work.
    """
    operations = run.operations
    place = scattered(len(operations) + 1, rows, np.arange(len(rows)))
    inside = run.collectives.take(place[run.collectives.operation] != NONE)
    owner = inside.operation
    inside = inside.take(inside.start_ns < operations.end_ns[owner])
    owner = place[inside.operation]
    held = _waiting(work)
    ended_ns = work.end_ns[held] - CLOCK_NS
    last = last_before(work.rank[held], ended_ns, inside.rank, inside.start_ns)
    front = np.append(held, NONE)[last]
    queued = (front != NONE) & (inside.start_ns <= work.end_ns[front] + CLOCK_NS)
    # What an operation receives for itself it waits for, whatever it runs then.
    same = work.microbatch[front] == work.microbatch[owner]
    queued &= ~same | (work.virtual_stage[front] != work.virtual_stage[owner])
    lost_ns = inside.start_ns - np.maximum(work.start_ns[front], work.start_ns[owner])
    of_row = group_sum(owner[queued], len(work), lost_ns[queued])
    gaps_ns = (operations.busy_ns - operations.active_ns)[rows]
    gaps_ns = gaps_ns - group_sum(owner, len(work), inside.end_ns - inside.start_ns)[: len(rows)]
    of_row[: len(rows)] = np.minimum(of_row[: len(rows)], gaps_ns)
    late = np.flatnonzero(of_row > CLOCK_NS)
    return late, of_row[late]


def _in_turn(work: Work, ended: Ints, begun: Ints, *, following: bool = False) -> Pairs:
    """Return rows with the last of some others that had ended when they began, about.

    What each follows began before it, so that none follows itself.

    Args:
        work: of all ranks.
        ended: the rows of which one is looked for.
        begun: those for which it is looked for.
        following: whether instead each of ``ended`` gets the first of ``begun`` after it.
    """
    if not (len(ended) and len(begun)):
        return ended[:0], begun[:0]
    place = work.rank_iteration
    both = np.concatenate((ended, begun))
    begins = np.arange(len(both)) >= len(ended)
    start_ns = work.start_ns[both]
    ended_ns = np.maximum(work.end_ns[both] - CLOCK_NS, start_ns)
    turn = np.where(begins, 1, np.where(ended_ns > start_ns, 0, 2))
    order = sorted_rows(place[both], np.where(begins, start_ns, ended_ns), turn, both)
    begins, at = begins[order], np.arange(len(order))
    if following:
        nearest = np.minimum.accumulate(np.where(begins, at, len(order))[::-1])[::-1]
        some = ~begins & (nearest < len(order))
    else:
        nearest = np.maximum.accumulate(np.where(begins, NONE, at))
        some = begins & (nearest != NONE)
    row, other = both[order[some]], both[order[nearest[some]]]
    same = place[row] == place[other]
    return row[same], other[same]


def _followed(work: Work, computes: Ints, collectives: Ints) -> Pairs:
    """Return what follows collectives: the next operation if they were exposed, else the optimizer.

    A collective is exposed if the operation before the next one had ended when it did.
    """
    if not len(collectives):
        return collectives, collectives
    optimizers = computes[work.role[computes] == Role.OPTIMIZER]
    next_row, optimizer, before = np.full((3, len(work) + 1), NONE, np.int64)
    for column, rows in ((next_row, computes), (optimizer, optimizers)):
        row, following = _in_turn(work, collectives, rows, following=True)
        column[row] = following
    after, earlier = chained(work, computes, work.rank_iteration[computes])
    before[after] = earlier
    previous = before[next_row[collectives]]
    exposed = previous == NONE
    exposed |= work.end_ns[previous] <= work.end_ns[collectives] + CLOCK_NS
    follower = np.where(exposed, next_row[collectives], optimizer[collectives])
    some = follower != NONE
    return follower[some], collectives[some]


# Measured: how long iterations took, and how late what was launched in them.


def measured_ns(work: Work, iterations: Ints) -> Ints:
    """Return how long each of some iterations took: from its first start to its last end.

    Args:
        work: of all ranks.
        iterations: numbers of the iterations.
    """
    low, high = _extents(work, iterations)
    return high - low


def _extents(work: Work, iterations: Ints) -> tuple[Ints, Ints]:
    # Any other iteration is the last place, at -1.
    place = found_in(iterations, work.iteration)
    low, high = group_extents(place, len(iterations) + 1, work.start_ns, work.end_ns)
    return low[:-1], high[:-1]


def delays_of(work: Work, order: Dependencies) -> Ints:
    """Return how long each row started after all that it follows had ended.

    The launch delay of ``calc_launch_delay`` in the published ``analyzer/wia.py``; of a row that
    follows none it counts from the first start of its iteration.
    """
    ready_ns = group_latest(order.after, len(work), work.end_ns[order.before], NEVER)
    iterations = distinct(work.iteration)
    first_ns = _extents(work, iterations)[0][found_in(iterations, work.iteration)]
    return work.start_ns - np.where(ready_ns == NEVER, first_ns, ready_ns)


def early_starts(work: Work, delays_ns: Ints) -> Ints:
    """Return how long before all that it follows had ended each row started, as negative numbers.

    Operations can begin with work that needs no input; any other row starts no earlier.
    """
    early_ns = np.minimum(delays_ns, 0)
    early_ns[~plays(work.role, COMPUTING)] = 0
    return early_ns
