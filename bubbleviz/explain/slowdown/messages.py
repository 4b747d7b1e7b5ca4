"""Messages of a run: what operations take from other ranks, and the sends and receives of it.

A send begins with its kernel, but no earlier than the end of the producer. Where names give no
microbatch, the n-th receive of a rank is that of the n-th operation that takes something, if there
are as many of both; and likewise sends. What a rank received in another order than it was sent met
in no stream, so that its receives show nothing.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bubbleviz.align.arrivals import arrivals
from bubbleviz.explain.dependencies import Dependencies
from bubbleviz.explain.receives import Receives
from bubbleviz.explain.slowdown.work import numbered
from bubbleviz.model.columns import NONE, Bools, Ints, Table
from bubbleviz.model.grouping import first_of_each, groups_of, looked_up
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import Phase
from bubbleviz.model.values import frozen


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


def messages_of(
    operations: Operations, dependencies: Dependencies, receives: Receives, rows: Ints
) -> Messages:
    """Return what operations take from other ranks in their iteration.

    Args:
        operations: of all ranks.
        dependencies: between these.
        receives: of operations.
        rows: of the operations between which messages are wanted.
    """
    chosen = np.zeros(len(operations), bool)
    chosen[rows] = True
    consumer, producer = dependencies.after, dependencies.before
    wanted = dependencies.remote & chosen[consumer] & chosen[producer]
    wanted &= operations.iteration[consumer] == operations.iteration[producer]
    consumer, producer = consumer[wanted], producer[wanted]
    forward = _forward(operations, consumer, producer)
    start_ns, end_ns = _received(operations, receives, consumer, producer, forward)
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


def _forward(operations: Operations, consumer: Ints, producer: Ints) -> Bools:
    """Return which messages carry activations; of two overlapped pairs the stages tell."""
    phase, stage = operations.phase, operations.virtual_stage
    both = (phase[consumer] == Phase.FB) & (phase[producer] == Phase.FB)
    forward = (phase[consumer] == Phase.F) | (phase[producer] == Phase.F)
    return np.where(both, stage[producer] < stage[consumer], forward)


def _received(
    operations: Operations, receives: Receives, consumer: Ints, producer: Ints, forward: Bools
) -> tuple[Ints, Ints]:
    """Return when the receive of each message began and ended; -1 unknown."""
    at = np.full(len(operations), NONE, np.int64)
    at[receives.operation] = np.arange(len(receives))
    # An overlapped pair takes two results; its last receive is that of the later one.
    last = np.zeros(len(consumer), bool)
    last[first_of_each(consumer, -operations.end_ns[producer])] = True
    receive = np.where(last, at[consumer], NONE)
    start_ns = np.append(receives.start_ns, NONE)[receive]
    end_ns = np.append(receives.end_ns, NONE)[receive]
    unnamed = _in_order(operations, consumer, forward, (Phase.RECV_F, Phase.RECV_B))
    open_rows = (receive == NONE) & (unnamed != NONE)
    return (
        np.where(open_rows, operations.start_ns[unnamed], start_ns),
        np.where(open_rows, operations.end_ns[unnamed], end_ns),
    )


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
