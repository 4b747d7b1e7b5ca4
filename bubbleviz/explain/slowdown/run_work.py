"""The work of a run as one table: operations, the messages between them, and collectives.

:func:`build_work_of_run` builds the table and the dependencies of its rows in five steps:

1. Find the compute operations (:func:`find_computing_rows`).
2. List the inputs that those operations receive from other ranks, with the send and the receive of
   each input (:func:`.list_messages`).
3. Select the collectives that run outside of operations, one row per rank and collective
   (:func:`select_outer_collectives`).
4. Concatenate the operations, sends, receives and collectives (:func:`build_work_table`). Rows with
   the same meeting are one communication::

       rows      ├─ operations ─┼─ sends ─┼─ receives ─┼─ collectives ─┤
       meeting         -1         0 ... n    0 ... n      n + 1 ...

5. Find the predecessors of each row (:func:`.order_work`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bubbleviz.count.rank_slices import list_stages_and_pipelines
from bubbleviz.explain.dependencies import Dependencies
from bubbleviz.explain.slowdown.messages import Messages, compute_operation_times, list_messages
from bubbleviz.explain.slowdown.replayed_run import ReplayedRun
from bubbleviz.explain.slowdown.work import Kind, Role, Work
from bubbleviz.explain.slowdown.work_order import order_work
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import NONE, Bools, Ints, join_tables
from bubbleviz.model.grouping import group_rows
from bubbleviz.model.intervals import group_extents
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import COMPUTE, Phase

#: Maximum clock error between ranks, in ns.
_MAX_CLOCK_ERROR_NS = 1_000_000
_ROLES = {
    Phase.F: Role.FORWARD,
    Phase.B: Role.BACKWARD,
    Phase.BW: Role.BACKWARD,
    Phase.OPTIMIZER: Role.OPTIMIZER,
}
#: Kind of operation of each phase, indexed by phase.
_OPERATION_KINDS = tuple(
    Kind(phase.label, _ROLES.get(phase, Role.COMPUTE), phase.label) for phase in Phase
)
#: Kinds of sends and receives. They are numbered after the operation kinds.
_MESSAGE_KINDS = (
    Kind("SEND_F", Role.SEND_F, "forward transfers"),
    Kind("RECV_F", Role.RECV_F, "forward transfers"),
    Kind("SEND_B", Role.SEND_B, "backward transfers"),
    Kind("RECV_B", Role.RECV_B, "backward transfers"),
)
_SEND_F, _RECV_F, _SEND_B, _RECV_B = (
    len(_OPERATION_KINDS) + number for number in range(len(_MESSAGE_KINDS))
)


def build_work_of_run(run: ReplayedRun, tokens: Dependencies) -> tuple[Work, Dependencies]:
    """Build the work table of the averaged iterations, and the dependencies between its rows.

    The iterations of the returned work are numbered as in the report (:attr:`ReplayedRun.numbers`).

    Args:
        run: The replayed run.
        tokens: Operations that wait for a token, and the operations that produce it.
    """
    rows = find_computing_rows(run.operations, run.averaged)
    messages = list_messages(run, rows)
    collectives = select_outer_collectives(run.collectives, run.operations, run.averaged)
    work = build_work_table(run, rows, messages, collectives)
    work = replace(work, iteration=run.numbers[work.iteration])
    return work, order_work(work, rows, messages, run.operations, tokens)


def build_work_table(
    run: ReplayedRun, rows: Ints, messages: Messages, collectives: CollectiveIntervals
) -> Work:
    """Concatenate the operations, the collectives, and the sends and receives of known transfers.

    - Operations have no meeting. :func:`.compute_operation_times` returns their times.
    - The i-th send and the i-th receive have the meeting i. A send has the rank, microbatch and
      chunk of the producer. A receive has the rank, microbatch and chunk of the consumer.

    Args:
        run: The replayed run, whose operations are sorted by (rank, start).
        rows: Rows of the compute operations.
        messages: Messages between the operations in ``rows``.
        collectives: Collectives of the same iterations, one row per rank and collective.
    """
    operations, transfers = run.operations, messages.take(messages.has_transfer)
    stage, replica = list_stages_and_pipelines(run.ranks)
    collective_work = _build_collective_work(collectives, stage, replica, len(transfers))

    def build_part(row: Ints, kind: Ints, start_ns: Ints, end_ns: Ints, meeting: Ints) -> Work:
        """Build work that has the rank, microbatch and chunk of the operations in ``row``."""
        rank = operations.rank[row]
        return Work(
            rank=rank,
            stage=stage[rank],
            replica=replica[rank],
            iteration=operations.iteration[row],
            kind=kind.astype(np.int64),
            microbatch=operations.microbatch[row],
            chunk=operations.chunk[row],
            virtual_stage=operations.virtual_stage[row],
            start_ns=start_ns,
            end_ns=end_ns,
            meeting=meeting,
            kinds=collective_work.kinds,
        )

    meeting = np.arange(len(transfers))
    send_kind = np.where(transfers.forward, _SEND_F, _SEND_B)
    receive_kind = np.where(transfers.forward, _RECV_F, _RECV_B)
    start_ns, end_ns = compute_operation_times(operations, rows)
    no_meeting = np.full(len(rows), NONE, np.int64)
    return join_tables(
        (
            build_part(rows, operations.phase[rows], start_ns, end_ns, no_meeting),
            build_part(
                transfers.producer,
                send_kind,
                transfers.send_start_ns,
                transfers.send_end_ns,
                meeting,
            ),
            build_part(
                transfers.consumer,
                receive_kind,
                transfers.receive_start_ns,
                transfers.receive_end_ns,
                meeting,
            ),
            collective_work,
        )
    )


def _build_collective_work(
    collectives: CollectiveIntervals, stage: Ints, replica: Ints, n_transfers: int
) -> Work:
    """Build the work table of collectives. Its ``kinds`` also list the kinds of all other work.

    Args:
        collectives: Collectives, one row per rank and collective.
        stage: Stage of each rank.
        replica: Replica of each rank.
        n_transfers: Number of messages with a transfer. The meetings of collectives are numbered
            after the meetings of those messages.
    """
    collective_kinds, kind_of_collective = _classify_collectives(collectives, stage, replica)
    unset = np.full(len(collectives), NONE, np.int64)
    return Work(
        rank=collectives.rank,
        stage=stage[collectives.rank],
        replica=replica[collectives.rank],
        iteration=collectives.iteration,
        kind=len(_OPERATION_KINDS) + len(_MESSAGE_KINDS) + kind_of_collective,
        microbatch=unset,
        chunk=unset,
        virtual_stage=unset,
        start_ns=collectives.start_ns,
        end_ns=collectives.end_ns,
        meeting=np.where(collectives.meeting != NONE, n_transfers + collectives.meeting, NONE),
        kinds=(*_OPERATION_KINDS, *_MESSAGE_KINDS, *collective_kinds),
    )


def find_computing_rows(
    operations: Operations, included: Bools, phases: tuple[Phase, ...] = COMPUTE
) -> Ints:
    """Return the rows of the complete compute operations in the given iterations.

    Args:
        operations: Operations of all ranks.
        included: Mask of the iterations to include.
        phases: Phases to include.
    """
    computes = mask_phases(operations.phase, phases) & (operations.has_span == 1)
    computes &= (operations.iteration >= 0) & (operations.cut == 0)
    return np.flatnonzero(computes & np.append(included, False)[operations.iteration])


def select_outer_collectives(
    collectives: CollectiveIntervals, operations: Operations, included: Bools
) -> CollectiveIntervals:
    """Select the collectives that run outside of operations, one row per rank and collective.

    A collective inside the span of the operation that it belongs to is left out. If a collective
    has several pieces on a rank, they are merged. If a member left a collective before all members
    had entered, the meeting of each of its rows becomes -1.

    Args:
        collectives: Collectives of all ranks.
        operations: Operations of all ranks.
        included: Mask of the iterations to include.
    """
    is_included = np.append(included, False)[collectives.iteration]
    is_inner = _mask_inner_collectives(collectives, operations)
    pieces = collectives.take(is_included & ~is_inner)
    # A collective whose members are unknown is not merged with any other.
    number = np.where(pieces.meeting == NONE, np.arange(len(pieces)), NONE)
    groups = group_rows(pieces.rank, pieces.meeting, number)
    start_ns, end_ns = group_extents(groups.of_row, len(groups), pieces.start_ns, pieces.end_ns)
    order = np.argsort(groups.first)
    start_ns, end_ns = start_ns[order], end_ns[order]
    merged = pieces.take(groups.first[order])
    meeting = _remove_impossible_meetings(merged.meeting, start_ns, end_ns)
    return merged.replace_columns(start_ns=start_ns, end_ns=end_ns, meeting=meeting)


def _mask_inner_collectives(collectives: CollectiveIntervals, operations: Operations) -> Bools:
    """Return a mask of the collectives that run inside the operation they belong to.

    The operation must be a compute operation that has GPU work. The collective must start and end
    within its span.
    """
    owner = collectives.operation
    owner_phase = np.append(operations.phase, NONE)[owner]
    is_inner: Bools = (owner != NONE) & mask_phases(owner_phase, COMPUTE)
    is_inner &= np.append(operations.has_span, 0)[owner] == 1
    is_inner &= collectives.start_ns >= np.append(operations.start_ns, 0)[owner]
    is_inner &= collectives.end_ns <= np.append(operations.end_ns, 0)[owner]
    return is_inner


def _remove_impossible_meetings(meeting: Ints, start_ns: Ints, end_ns: Ints) -> Ints:
    """Return a copy of ``meeting`` in which implausible meetings are -1.

    All members of a collective must have entered before any member leaves. A meeting is implausible
    if a member left more than 1 ms (the maximum clock error) before the last member entered.

    Args:
        meeting: Meeting of each row, or -1 if unknown.
        start_ns: Time at which each row entered.
        end_ns: Time at which each row left.
    """
    rows = np.flatnonzero(meeting != NONE)
    meetings = group_rows(meeting[rows])
    group = meetings.of_row, len(meetings)
    entered_ns = group_extents(*group, start_ns[rows], start_ns[rows])[1]
    left_ns = group_extents(*group, end_ns[rows], end_ns[rows])[0]
    is_impossible = entered_ns - left_ns > _MAX_CLOCK_ERROR_NS
    possible = meeting.copy()
    possible[rows[is_impossible[meetings.of_row]]] = NONE
    return possible


def _classify_collectives(
    collectives: CollectiveIntervals, stage: Ints, replica: Ints
) -> tuple[tuple[Kind, ...], Ints]:
    """Assign a kind to each collective, so that collectives of one kind do the same work.

    Collectives have the same kind if all of the following are equal:

    - The NCCL operation.
    - The position in the launch order of the rank (:attr:`.CollectiveIntervals.order`).
    - Whether the members are on several stages.
    - Whether the members are in several replicas.

    Args:
        collectives: Collectives of all ranks.
        stage: Stage of each rank.
        replica: Replica of each rank.

    Returns:
        The kinds, and for each collective the index of its kind.
    """
    if not len(collectives):
        return (), np.empty(0, np.int64)
    # A collective whose members are unknown gets a unique negative number.
    number = -2 - np.arange(len(collectives))
    meetings = group_rows(np.where(collectives.meeting == NONE, number, collectives.meeting))
    spans = []
    for column in (stage[collectives.rank], replica[collectives.rank]):
        low, high = group_extents(meetings.of_row, len(meetings), column, column)
        spans.append((low != high).astype(np.int64)[meetings.of_row])
    groups = group_rows(collectives.kind, *spans, collectives.order)
    names = ["collective", *(name or "collective" for name in collectives.kinds)]
    kinds = tuple(
        Kind(f"{names[kind + 1]} {number}", Role.COLLECTIVE, names[kind + 1])
        for number, kind in enumerate(collectives.kind[groups.first].tolist())
    )
    return kinds, groups.of_row
