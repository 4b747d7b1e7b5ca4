"""The work of a run: operations, the messages between them, and its collectives, as one table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bubbleviz.count.rank_slices import list_stages_and_pipelines
from bubbleviz.explain.dependencies import Dependencies
from bubbleviz.explain.slowdown.messages import Messages, messages_of, operation_times
from bubbleviz.explain.slowdown.replayed_run import ReplayedRun
from bubbleviz.explain.slowdown.work import Kind, Role, Work
from bubbleviz.explain.slowdown.work_order import run_order
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import NONE, Bools, Ints, join_tables
from bubbleviz.model.grouping import group_rows
from bubbleviz.model.intervals import group_extents
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import COMPUTE, Phase

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
    stage, replica = list_stages_and_pipelines(run.ranks)
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
    return join_tables(
        (
            part(rows, operations.phase[rows], *operation_times(operations, rows), none),
            part(seen.producer, sends, seen.send_start_ns, seen.send_end_ns, pair),
            part(seen.consumer, receives, seen.receive_start_ns, seen.receive_end_ns, pair),
            beside,
        )
    )


def computing_rows(operations: Operations, included: Bools) -> Ints:
    """Return the operations that compute in some iterations.

    Args:
        operations: of all ranks.
        included: of each iteration, whether it is wanted.
    """
    wanted = mask_phases(operations.phase, COMPUTE) & (operations.has_span == 1)
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
    own = (owner != NONE) & mask_phases(np.append(operations.phase, NONE)[owner], COMPUTE)
    own &= np.append(operations.has_span, 0)[owner] == 1
    own &= collectives.start_ns >= np.append(operations.start_ns, 0)[owner]
    own &= collectives.end_ns <= np.append(operations.end_ns, 0)[owner]
    kept = collectives.take(wanted & ~own)
    alone = np.where(kept.meeting == NONE, np.arange(len(kept)), NONE)
    pieces = group_rows(kept.rank, kept.meeting, alone)
    start_ns, end_ns = group_extents(pieces.of_row, len(pieces), kept.start_ns, kept.end_ns)
    order = np.argsort(pieces.first)
    whole = kept.take(pieces.first[order])
    start_ns, end_ns, meeting = start_ns[order], end_ns[order], whole.meeting.copy()
    # A meeting that a member left before all had entered is none, whatever a table calls it.
    rows = np.flatnonzero(meeting != NONE)
    meetings = group_rows(meeting[rows])
    entered_ns = group_extents(meetings.of_row, len(meetings), start_ns[rows], start_ns[rows])[1]
    left_ns = group_extents(meetings.of_row, len(meetings), end_ns[rows], end_ns[rows])[0]
    early = entered_ns - left_ns > _RANK_CLOCK_NS
    meeting[rows[early[meetings.of_row]]] = NONE
    return whole.replace_columns(start_ns=start_ns, end_ns=end_ns, meeting=meeting)


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
    meetings = group_rows(number)
    spans = []
    for place in (stage[collectives.rank], replica[collectives.rank]):
        low, high = group_extents(meetings.of_row, len(meetings), place, place)
        spans.append((low != high).astype(np.int64)[meetings.of_row])
    kinds = group_rows(collectives.kind, *spans, collectives.order)
    names = ["collective", *(name or "collective" for name in collectives.kinds)]
    return (
        tuple(
            Kind(f"{names[kind + 1]} {number}", Role.COLLECTIVE, names[kind + 1])
            for number, kind in enumerate(collectives.kind[kinds.first].tolist())
        ),
        kinds.of_row,
    )
