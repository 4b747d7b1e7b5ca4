"""Messages of a run: inputs of operations from other ranks, with their sends and receives.

A message that is seen is a send and a receive that meet; any other consumer just follows its
producer. A send begins with its kernel, but no earlier than the end of the producer.

If names give no microbatch, the n-th receive of a rank belongs to its n-th operation with an input
from another rank, if there are as many of both; the same holds for sends. Receives of a rank that
do not arrive in the order in which they were sent show nothing, since they met in no stream.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bubbleviz.align.arrivals import NEVER
from bubbleviz.explain.slowdown.replayed_run import ReplayedRun
from bubbleviz.explain.slowdown.work import median_rows
from bubbleviz.model.columns import NONE, Bools, Ints, Table, make_mask, scatter
from bubbleviz.model.grouping import (
    find_first_rows,
    find_run_starts,
    group_rows,
    lookup_values,
    number_within_groups,
    sort_rows,
)
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import Phase

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


def messages_of(run: ReplayedRun, rows: Ints) -> Messages:
    """Return what operations take from other ranks in their iteration.

    Args:
        run: the operations of all ranks.
        rows: of the operations between which messages are wanted.
    """
    operations, rows_of = run.operations, run.explained()
    receives, dependencies = rows_of.receives, rows_of.dependencies
    chosen = make_mask(len(operations), rows)
    consumer, producer = dependencies.after, dependencies.before
    wanted = dependencies.remote(operations.rank) & chosen[consumer] & chosen[producer]
    wanted &= operations.iteration[consumer] == operations.iteration[producer]
    consumer, producer = consumer[wanted], producer[wanted]
    # Which carry activations; of two overlapped pairs the stages tell.
    phase, stage = operations.phase, operations.virtual_stage
    both = (phase[consumer] == Phase.FB) & (phase[producer] == Phase.FB)
    forward = (phase[consumer] == Phase.F) | (phase[producer] == Phase.F)
    forward = np.where(both, stage[producer] < stage[consumer], forward)

    at = scatter(len(operations), receives.operation, np.arange(len(receives)))
    # An overlapped pair takes two results; its last receive is that of the later one.
    last = make_mask(len(consumer), find_first_rows(consumer, -operations.end_ns[producer]))
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
    start_ns, end_ns = operation_times(operations, rows)
    place = scatter(len(operations), rows, np.arange(len(rows)))
    consumer, producer = messages.consumer, messages.producer
    at, produced_ns = place[consumer], operations.end_ns[producer]
    same = operations.rank[rows[at - 1]] == operations.rank[consumer]
    free_ns = np.where((at > 0) & same, end_ns[at - 1], NEVER)
    idle = (free_ns < produced_ns) & (operations.launched_ns[consumer] < produced_ns)
    since_ns = np.where(seen, messages.send_start_ns, produced_ns)
    there_ns = np.where(seen, messages.receive_end_ns, start_ns[at])
    shows = np.where(seen, ~late, idle & (there_ns >= since_ns))
    links = group_rows(operations.rank[producer], operations.rank[consumer])
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
    link = group_rows(
        operations.iteration[seen.consumer],
        operations.rank[seen.producer],
        operations.rank[seen.consumer],
        seen.forward.astype(np.int64),
    ).of_row
    crossed = number_within_groups(link, seen.send_start_ns) != number_within_groups(
        link, seen.receive_start_ns
    )
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
        mask_phases(operations.phase, phases)
        & (operations.microbatch < 0)
        & (operations.has_span == 1)
        & (operations.iteration >= 0)
    )
    if not len(rows):
        return np.full(len(owner), NONE, np.int64)
    both = np.concatenate((rows, owner))
    is_forward = np.concatenate((operations.phase[rows] == phases[0], forward)).astype(np.int64)
    group = group_rows(operations.rank[both], operations.iteration[both], is_forward).of_row
    of_row, of_owner = group[: len(rows)], group[len(rows) :]
    count = int(group.max(initial=NONE)) + 1
    equal = np.bincount(of_row, minlength=count) == np.bincount(of_owner, minlength=count)
    place = number_within_groups(of_row, operations.start_ns[rows])
    wanted = number_within_groups(of_owner, operations.start_ns[owner])
    found = lookup_values((of_row, place), rows, (of_owner, wanted))
    return np.where(equal[of_owner], found, NONE)


def operation_times(operations: Operations, rows: Ints) -> tuple[Ints, Ints]:
    """Return when operations began and ended, waiting not counted.

    No two operations of a rank overlap: each continues where others end::

        stream 1   ├────── F3 ──────┤              ├────── F3 ──────┤
        stream 2        ├──── B1 ────────┤                          ├ B1 ┤
    """
    start_ns, end_ns = operations.end_ns[rows] - operations.busy_ns[rows], operations.end_ns[rows]
    order = sort_rows(operations.rank[rows], start_ns, end_ns)
    bounds = find_run_starts(operations.rank[rows][order])
    for own in np.split(order, bounds[1:]):
        covered_ns = np.append(NEVER, np.maximum.accumulate(end_ns[own])[:-1])
        start_ns[own] = np.maximum(start_ns[own], covered_ns)
        end_ns[own] = np.maximum(end_ns[own], start_ns[own])
    return start_ns, end_ns
