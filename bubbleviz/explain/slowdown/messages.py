"""Messages of a run: what operations take from other ranks, and the sends and receives of it.

A send begins with its kernel, but no earlier than the end of the producer. Where names give no
microbatch, the n-th receive of a rank is that of the n-th operation that takes something, if there
are as many of both; and likewise sends. What a rank received in another order than it was sent met
in no stream, so that its receives show nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.align.waits import arrivals
from bubbleviz.explain.causes.forward_waits import TokenWaits
from bubbleviz.explain.explained_rows import ReplayedRun
from bubbleviz.explain.recognition.plan_distance import Deviation
from bubbleviz.explain.slowdown.replay import POINT_TO_POINT, Role, Work, numbered
from bubbleviz.model.columns import NONE, Bools, Ints, Table, joined
from bubbleviz.model.grouping import distinct, first_of_each, groups_of, looked_up, sorted_rows
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import Phase
from bubbleviz.model.values import frozen

#: How far the clock of sends and receives is off that of computes, as in the published analyzer.
CLOCK_NS = 50_000


@frozen
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


def messages_of(run: ReplayedRun, rows: Ints) -> Messages:
    """Return what operations take from other ranks in their iteration.

    Args:
        run: the operations of all ranks.
        rows: of the operations between which messages are wanted.
    """
    operations, receives, dependencies = run.operations, run.receives, run.dependencies
    chosen = np.zeros(len(operations), bool)
    chosen[rows] = True
    consumer, producer = dependencies.after, dependencies.before
    wanted = dependencies.remote & chosen[consumer] & chosen[producer]
    wanted &= operations.iteration[consumer] == operations.iteration[producer]
    consumer, producer = consumer[wanted], producer[wanted]
    # Which carry activations; of two overlapped pairs the stages tell.
    phase, stage = operations.phase, operations.virtual_stage
    both = (phase[consumer] == Phase.FB) & (phase[producer] == Phase.FB)
    forward = (phase[consumer] == Phase.F) | (phase[producer] == Phase.F)
    forward = np.where(both, stage[producer] < stage[consumer], forward)

    at = np.full(len(operations), NONE, np.int64)
    at[receives.operation] = np.arange(len(receives))
    # An overlapped pair takes two results; its last receive is that of the later one.
    last = np.zeros(len(consumer), bool)
    last[first_of_each(consumer, -operations.end_ns[producer])] = True
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

    send = arrivals(operations).send[producer]
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
    return replace(messages, seen=seen & ~_crossed(operations, messages))


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


# Reordering: how long iterations take where ranks run their operations as the schedule has them.
#
# What is out of place goes back among what is in place; each operation of a rank takes the turn of
# the one that ran there::
#
#     measured   F0 F1 B0 F2 B1 B2      B0 is late by 1
#     planned    F0 B0 F1 F2 B1 B2


#: What orders hold; a rank that runs anything else between them keeps its order.
_ORDERED = (Phase.F, Phase.B, Phase.BW, Phase.W)
#: Deviations that say where an operation belongs.
_MOVED = ("late", "early")


def turns_of(
    operations: Operations, rows: Ints, deviations: Sequence[Deviation], iterations: Ints
) -> Ints:
    """Return the row whose turn each operation takes in the planned order: most keep their own.

    Ranks of whose operations some are missing, repeated or more than planned keep their order in
    that iteration.

    Args:
        operations: of all ranks.
        rows: of those that compute.
        deviations: of the run, all of them.
        iterations: of each iteration in the deviations, its index in the operations.
    """
    turns = np.arange(len(rows))
    moved = [d for d in deviations if d.what in _MOVED]
    table = np.array(
        [(iterations[d.iteration], d.rank, d.phase, d.microbatch, d.chunk) for d in moved],
        np.int64,
    ).reshape(-1, 5)
    keys = (
        operations.iteration,
        operations.rank,
        operations.phase,
        operations.microbatch,
        operations.chunk,
    )
    at = looked_up([key[rows] for key in keys], np.arange(len(rows)), list(table.T))
    places = np.array([d.places if d.what == "late" else -d.places for d in moved], np.int64)
    other = {(d.iteration, d.rank) for d in deviations if d.what not in _MOVED}
    cells = [(d.iteration, d.rank) for d in moved]
    for cell in sorted(set(cells) - other):
        own = np.array([c == cell for c in cells], bool)
        low, high = np.searchsorted(operations.rank[rows], (cell[1], cell[1] + 1)).tolist()
        of_rank = operations.take(rows[low:high])
        in_cell = of_rank.iteration == iterations[cell[0]]
        of_cell = low + np.flatnonzero(in_cell & (of_rank.phase != Phase.OPTIMIZER))
        if (at[own] == NONE).any() or not among(operations.phase[rows[of_cell]], _ORDERED).all():
            continue
        ran = of_cell[sorted_rows(operations.host_start_ns[rows[of_cell]])]
        by_turn = of_cell[sorted_rows(operations.start_ns[rows[of_cell]])]
        planned = _planned(ran, at[own], places[own], operations.microbatch[rows])
        turns[planned] = by_turn
    return turns


def _planned(ran: Ints, moved: Ints, places: Ints, microbatch: Ints) -> Ints:
    """Return the operations of a rank in the planned order.

    Args:
        ran: in measured order.
        moved: those of them that are out of place.
        places: by how many in place each of these is late.
        microbatch: of all operations.
    """
    kept = ~np.isin(ran, moved)
    by_row = np.argsort(ran)
    kept_before = np.cumsum(kept)[by_row[np.searchsorted(ran, moved, sorter=by_row)]]
    # Those in place have even turns; what goes behind the n-th of them has the odd turn after it.
    turn = np.concatenate((2 * np.arange(1, int(kept.sum()) + 1), 2 * (kept_before - places) + 1))
    rows = np.concatenate((ran[kept], moved))
    return np.asarray(rows[sorted_rows(turn, microbatch[rows])], np.int64)


# Links: which stages each transfer moves data between.


def link_of(work: Work) -> tuple[Ints, Ints]:
    """Return the stages that each row moves data from and to; -1 where it is no transfer."""
    role = work.role
    sends = np.isin(role, (Role.SEND_F, Role.SEND_B))
    paired = np.flatnonzero(np.isin(role, POINT_TO_POINT) & (work.meeting != NONE))
    pairs = groups_of(work.meeting[paired])
    stages = np.full((2, len(pairs)), NONE, np.int64)
    for end, rows in enumerate((paired[sends[paired]], paired[~sends[paired]])):
        stages[end, pairs.of_row[sends[paired] if end == 0 else ~sends[paired]]] = work.stage[rows]
    ends = np.full((2, len(work)), NONE, np.int64)
    ends[:, paired] = np.where((stages != NONE).all(axis=0), stages, NONE)[:, pairs.of_row]
    return ends[0], ends[1]


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
    streams = (np.flatnonzero(role == own) for own in POINT_TO_POINT)
    rows, compute = rows[compute != NONE], compute[compute != NONE]
    receives = np.isin(role[rows], (Role.RECV_F, Role.RECV_B))
    taken, taken_by = rows[receives], compute[receives]
    directed = np.flatnonzero((role == Role.FORWARD) | (role == Role.BACKWARD))
    after, before = chained(work, directed, groups_of(place[directed], role[directed]).of_row)
    earlier = np.full(len(work) + 1, NONE, np.int64)
    earlier[after] = before
    previous = earlier[taken_by]
    return [
        *(chained(work, own, place[own]) for own in streams),
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


# Token order: which steps of a run that only goes forward follow the token of another step.
#
# The pipeline holds so many chunks at a time; the next one starts once the token of another came
# back. With one chunk more in flight it would need that of the chunk before::
#
#     last stage    ── F0 ──── F1 ──── F2 ──
#                           └──────┐└──────┐
#     first stage                  F3      F4          with one more: F4 after F1
#
# A step that waited for no token would wait for one if the pipeline were faster, so that all follow
# the token that leaves as many in flight as there ever were.


def all_token_waits(operations: Operations, tokens: TokenWaits, more: int = 0) -> TokenWaits:
    """Return for which tokens steps wait with some more chunks in flight than there were.

    Args:
        operations: of all ranks.
        tokens: which operations waited for which; without any, no number of chunks is a limit.
        more: chunks in flight beyond those that there were.
    """
    waits = []
    for first, last in _pairs_of_ranks(operations, tokens):
        begun, ended = _chunks(operations, first), _chunks(operations, last)
        number = np.arange(len(begun))
        done = np.searchsorted(operations.end_ns[ended], operations.start_ns[begun], side="right")
        most = int((number + 1 - done).max())
        token = number - most - more
        some = (token >= 0) & (token < len(ended))
        waits.append(TokenWaits(begun[some], ended[token[some]]))
        own = tokens.take(operations.rank[tokens.after] == first)
        at = np.searchsorted(ended, own.before) - more
        waits.append(TokenWaits(own.after[at >= 0], ended[at[at >= 0]]))
    return joined(waits) if waits else tokens


def usual_depth(operations: Operations, tokens: TokenWaits) -> int:
    """Return how many chunks were in flight where steps waited for tokens (median); 0 for none."""
    if not len(tokens):
        return 0
    depths = []
    for first, last in _pairs_of_ranks(operations, tokens):
        own = tokens.take(operations.rank[tokens.after] == first)
        begun = np.searchsorted(_chunks(operations, first), own.after)
        depths.append(begun - np.searchsorted(_chunks(operations, last), own.before))
    depth = np.sort(np.concatenate(depths))
    return int(depth[(len(depth) - 1) // 2])


def _pairs_of_ranks(operations: Operations, tokens: TokenWaits) -> list[tuple[int, int]]:
    """Return each rank that waited for tokens, and the one that gave them last."""
    first = operations.rank[tokens.after]
    return [
        (rank, int(operations.rank[tokens.before[first == rank]].max()))
        for rank in distinct(first).tolist()
    ]


def _chunks(operations: Operations, rank: int) -> Ints:
    """Return the rows of a rank's chunks, in the order of their starts."""
    own = operations.rank == rank
    return np.flatnonzero(own & (operations.phase == Phase.F) & (operations.has_span == 1))
