"""The messages of a run: inputs that operations receive from other ranks, and their transfers.

The transfer of a message is a send and a receive that meet. If the transfer of a message is
unknown, the consumer just follows the producer. Transfers are found in four steps:

1. Each dependency between two ranks is a message (:func:`_select_remote_inputs`).
2. The receive of a message is the consumer's last receive, as found by the explanation. Receives
   that name no microbatch are matched by order: the n-th receive of a rank belongs to the n-th
   operation that receives an input from another rank. This requires the same number of receives and
   operations. Sends are matched in the same way.
3. A receive is ignored if it starts after its consumer starts, or ends after its consumer ends.
   Receives between two ranks are also ignored if they do not arrive in the order in which they were
   sent (:func:`_mask_crossing`).
4. For messages that still have no transfer, a transfer of the usual length of their link is assumed
   (:func:`_infer_transfers`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bubbleviz.align.arrivals import NEVER
from bubbleviz.explain.slowdown.replayed_run import ReplayedRun
from bubbleviz.explain.slowdown.work import find_median_rows
from bubbleviz.model.columns import NONE, Bools, Floats, Ints, Table, make_mask, scatter
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

#: Maximum clock difference in ns between transfers and compute operations.
#: The published analyzer uses the same value.
CLOCK_NS = 50_000
#: Minimum number of messages that are needed to measure the transfer time of a link.
_MIN_IDLE_CONSUMERS = 3


@dataclass(frozen=True, eq=False, repr=False)
class Messages(Table):
    """Inputs that operations receive from other ranks, one row per input.

    Attributes:
        consumer: Row of the operation that receives the input.
        producer: Row of the operation that produces the input.
        forward: Whether the message carries activations rather than gradients.
        receive_start_ns: Start of the receive; meaningless if ``has_transfer`` is false.
        receive_end_ns: End of the receive; meaningless if ``has_transfer`` is false.
        send_start_ns: Start of the send, or the end of the producer if that is later.
        send_end_ns: End of the send, or the end of the producer if that is later.
        has_transfer: Whether the transfer is known, because it was either recorded or inferred.
    """

    consumer: Ints
    producer: Ints
    forward: Bools
    receive_start_ns: Ints
    receive_end_ns: Ints
    send_start_ns: Ints
    send_end_ns: Ints
    has_transfer: Bools


def list_messages(run: ReplayedRun, rows: Ints) -> Messages:
    """List the inputs that operations receive from other ranks in an iteration, with transfers.

    The transfer of a message is taken from its receive if two conditions hold:

    - The receive neither starts nor ends after the consumer.
    - Messages do not overtake each other on the link (:func:`_mask_crossing`).

    All other transfers are inferred if possible (:func:`_infer_transfers`).

    Args:
        run: The replayed run.
        rows: Rows of the operations. Messages from or to any other operation are left out.
    """
    operations = run.operations
    consumer, producer = _select_remote_inputs(run, rows)
    forward = _mask_forward_messages(operations, consumer, producer)

    start_ns, end_ns = _find_receive_times(run, consumer, producer, forward)
    # A receive that began or ended after its consumer did not deliver the consumer's input.
    begin_ns = operations.end_ns[consumer] - operations.busy_ns[consumer]
    is_received = start_ns != NONE
    is_received &= (start_ns <= begin_ns) & (end_ns <= operations.end_ns[consumer])
    send_start_ns, send_end_ns = _find_send_times(run, producer, forward, end_ns)
    messages = Messages(
        consumer=consumer,
        producer=producer,
        forward=forward,
        receive_start_ns=start_ns,
        receive_end_ns=end_ns,
        send_start_ns=send_start_ns,
        send_end_ns=send_end_ns,
        has_transfer=is_received,
    )
    has_transfer = is_received & ~_mask_crossing(operations, messages)
    return _infer_transfers(run, rows, replace(messages, has_transfer=has_transfer))


def _mask_forward_messages(operations: Operations, consumer: Ints, producer: Ints) -> Bools:
    """Return a mask of the messages that carry activations rather than gradients.

    A message from or to a forward carries activations. A message between two ``FB`` operations,
    which contain a forward and a backward, carries activations if it goes to a later virtual stage.

    Args:
        operations: Operations of all ranks.
        consumer: Row of the operation that receives each message.
        producer: Row of the operation that produces each message.
    """
    phase, stage = operations.phase, operations.virtual_stage
    is_between_pairs = (phase[consumer] == Phase.FB) & (phase[producer] == Phase.FB)
    has_forward = (phase[consumer] == Phase.F) | (phase[producer] == Phase.F)
    return np.where(is_between_pairs, stage[producer] < stage[consumer], has_forward)


def _select_remote_inputs(run: ReplayedRun, rows: Ints) -> tuple[Ints, Ints]:
    """Return (consumer, producer) for each dependency between two ranks in the same iteration.

    Args:
        run: The replayed run.
        rows: Rows of the operations. Dependencies from or to any other operation are left out.
    """
    operations, dependencies = run.operations, run.explained().dependencies
    is_included = make_mask(len(operations), rows)
    consumer, producer = dependencies.successor, dependencies.predecessor
    is_message = dependencies.is_remote(operations.rank)
    is_message &= is_included[consumer] & is_included[producer]
    is_message &= operations.iteration[consumer] == operations.iteration[producer]
    return consumer[is_message], producer[is_message]


def _find_receive_times(
    run: ReplayedRun, consumer: Ints, producer: Ints, forward: Bools
) -> tuple[Ints, Ints]:
    """Return when the receive of each message started and ended, or -1 if there is none.

    The receive that the explanation found for the consumer is used. If it found none, the receive
    is matched by order (:func:`_match_unnamed_transfers`).

    Args:
        run: The replayed run.
        consumer: Row of the operation that receives each message.
        producer: Row of the operation that produces each message.
        forward: Mask of the messages that carry activations.
    """
    operations, receives = run.operations, run.explained().receives
    receive_of = scatter(len(operations), receives.operation, np.arange(len(receives)))
    # An FB operation takes two inputs. Its last receive belongs to the input that was produced
    # later.
    last_inputs = find_first_rows(consumer, -operations.end_ns[producer])
    receive = np.where(make_mask(len(consumer), last_inputs), receive_of[consumer], NONE)
    unnamed = _match_unnamed_transfers(operations, consumer, forward, (Phase.RECV_F, Phase.RECV_B))
    is_by_order = (receive == NONE) & (unnamed != NONE)
    start_ns, end_ns = (
        np.where(is_by_order, of_operation[unnamed], np.append(of_receive, NONE)[receive])
        for of_operation, of_receive in (
            (operations.start_ns, receives.start_ns),
            (operations.end_ns, receives.end_ns),
        )
    )
    return start_ns, end_ns


def _find_send_times(
    run: ReplayedRun, producer: Ints, forward: Bools, received_ns: Ints
) -> tuple[Ints, Ints]:
    """Return when the send of each message started and ended.

    If no send was recorded, the message is assumed to be sent from the end of the producer to the
    end of the receive. No returned time is earlier than the end of the producer.

    Args:
        run: The replayed run.
        producer: Row of the operation that produces each message.
        forward: Mask of the messages that carry activations.
        received_ns: End of each message's receive.
    """
    operations = run.operations
    send = run.sends[producer]
    unnamed = _match_unnamed_transfers(operations, producer, forward, (Phase.SEND_F, Phase.SEND_B))
    send = np.where(send == NONE, unnamed, send)
    is_sent = (send != NONE) & (operations.has_span[send] == 1)
    produced_ns = operations.end_ns[producer]
    start_ns = np.where(is_sent, operations.start_ns[send], produced_ns)
    end_ns = np.where(is_sent, operations.end_ns[send], received_ns)
    return np.maximum(start_ns, produced_ns), np.maximum(end_ns, produced_ns)


def _match_unnamed_transfers(
    operations: Operations, owner: Ints, forward: Bools, phases: tuple[Phase, Phase]
) -> Ints:
    """Match transfers that name no microbatch with messages, by their order.

    Transfers and messages are grouped by rank, iteration and direction. If a group has the same
    number of transfers and messages, the n-th transfer belongs to the n-th message, both sorted by
    start. Otherwise none of the group's transfers is matched.

    Args:
        operations: Operations of all ranks.
        owner: For each message, the row of the operation that receives or sends it.
        forward: Mask of the messages that carry activations.
        phases: The phases of activation transfers and of gradient transfers.

    Returns:
        Row of the transfer of each message, or -1 if there is none.
    """
    rows = np.flatnonzero(
        mask_phases(operations.phase, phases)
        & (operations.microbatch < 0)
        & (operations.has_span == 1)
        & (operations.iteration >= 0)
    )
    if not len(rows):
        return np.full(len(owner), NONE, np.int64)
    all_rows = np.concatenate((rows, owner))
    is_forward = np.concatenate((operations.phase[rows] == phases[0], forward)).astype(np.int64)
    groups = group_rows(operations.rank[all_rows], operations.iteration[all_rows], is_forward)
    group_of_row, group_of_owner = groups.of_row[: len(rows)], groups.of_row[len(rows) :]
    n_rows = np.bincount(group_of_row, minlength=len(groups))
    n_owners = np.bincount(group_of_owner, minlength=len(groups))
    place_of_row = number_within_groups(group_of_row, operations.start_ns[rows])
    place_of_owner = number_within_groups(group_of_owner, operations.start_ns[owner])
    transfer = lookup_values((group_of_row, place_of_row), rows, (group_of_owner, place_of_owner))
    return np.where((n_rows == n_owners)[group_of_owner], transfer, NONE)


def _mask_crossing(operations: Operations, messages: Messages) -> Bools:
    """Return a mask of the messages on links where messages overtake each other.

    ::

        sender     ├ B3 ┤├ B4 ┤
        receiver   ├─ B4 ─┤├ B3 ┤

    Here a link is a combination of sender, receiver and direction (forward or backward) in one
    iteration. If any message overtakes another, the streams did not run in order. So all receives
    of the link are considered unreliable. Messages without a transfer are never marked.
    """
    rows = np.flatnonzero(messages.has_transfer)
    transfers = messages.take(rows)
    link = group_rows(
        operations.iteration[transfers.consumer],
        operations.rank[transfers.producer],
        operations.rank[transfers.consumer],
        transfers.forward.astype(np.int64),
    ).of_row
    sent_place = number_within_groups(link, transfers.send_start_ns)
    received_place = number_within_groups(link, transfers.receive_start_ns)
    crossing_links = link[sent_place != received_place]
    is_crossing = np.zeros(len(messages), bool)
    is_crossing[rows] = np.isin(link, crossing_links)
    return is_crossing


def _infer_transfers(run: ReplayedRun, rows: Ints, messages: Messages) -> Messages:
    """Infer the transfers of messages that have none, if the transfer time of their link is known.

    The transfer time of a link is measured from consumers that were launched while their rank was
    idle. Such a consumer starts as soon as its input arrives, so the transfer took the time from
    the end of the producer to the start of the consumer::

        producer   ├─ F3 ─┤
        consumer           │ RECV │├─ F3 ─┤        idle since before the end of F3

    A late receive is posted after the data was sent. If data moves before late receives are posted
    (:func:`_has_data_moved_ahead`), their transfers are inferred as well.

    An inferred transfer starts when its data was sent. In two cases, it ends when the data was
    received:

    - The message itself shows the transfer time.
    - Its receive was late and took more than ``CLOCK_NS``.

    All other transfers take the median time of their link, but end no later than the time at which
    the data was received.

    Args:
        run: The replayed run.
        rows: Rows of the compute operations.
        messages: Messages between the operations in ``rows``.
    """
    is_late = messages.has_transfer & (messages.receive_start_ns > messages.send_start_ns)
    if not (~messages.has_transfer | is_late).any():
        return messages
    sent_ns, received_ns, shows_time = _bound_transfer_times(
        run.operations, rows, messages, is_late
    )
    gap_ns = (received_ns - sent_ns).astype(np.float64)
    link_ns = _measure_link_times(run.operations, messages, gap_ns, shows_time)
    is_known = (gap_ns >= 0) & (link_ns > 0)
    posted_ns = messages.receive_start_ns
    is_inferred = ~messages.has_transfer
    if _has_data_moved_ahead(messages, is_known & is_late, sent_ns, received_ns, link_ns):
        is_inferred |= is_late
    is_inferred &= is_known

    keeps_gap = shows_time | (is_late & (received_ns > posted_ns + CLOCK_NS))
    moved_ns = np.where(keeps_gap, gap_ns, np.minimum(link_ns, gap_ns)).astype(np.int64)
    columns = {
        # The receive of an idle consumer is posted before the send.
        "receive_start_ns": sent_ns - (keeps_gap & ~is_late),
        "receive_end_ns": sent_ns + moved_ns,
        "send_start_ns": sent_ns,
        "send_end_ns": sent_ns + moved_ns,
        "has_transfer": np.ones(len(messages), bool),
    }
    return replace(
        messages,
        **{
            name: np.where(is_inferred, column, getattr(messages, name))
            for name, column in columns.items()
        },
    )


def _has_data_moved_ahead(
    messages: Messages, is_late: Bools, sent_ns: Ints, received_ns: Ints, link_ns: Floats
) -> bool:
    """Return whether data moves before late receives are posted, so that late receives are short.

    Only receives that were posted more than half a transfer time after the send are considered. The
    result is true if more than half of them took less than half a transfer time.

    Args:
        messages: Messages between operations.
        is_late: Mask of the messages whose receive was posted after the send, and whose link has a
            known transfer time.
        sent_ns: Time at which the data of each message was sent.
        received_ns: Time at which each message was received.
        link_ns: Usual transfer time of each message's link.
    """
    posted_ns = messages.receive_start_ns
    is_clearly_late = is_late & (2 * (posted_ns - sent_ns) > link_ns)
    is_short = 2 * (received_ns - posted_ns)[is_clearly_late] < link_ns[is_clearly_late]
    return bool(2 * is_short.sum() > len(is_short))


def _bound_transfer_times(
    operations: Operations, rows: Ints, messages: Messages, is_late: Bools
) -> tuple[Ints, Ints, Bools]:
    """Return the earliest possible send time and latest possible receive time of each message.

    Args:
        operations: Operations of all ranks.
        rows: Rows of the compute operations.
        messages: Messages between the operations in ``rows``.
        is_late: Mask of the messages whose receive was posted late.

    Returns:
        sent_ns: Start of the send, or the end of the producer if the message has no transfer.
        received_ns: End of the receive, or the start of the consumer if the message has no
            transfer.
        shows_time: Whether data was moving for the entire time between the two. If the message has
            a transfer, its receive must not be late. Otherwise, before the producer ended, the
            consumer must have been launched and its rank must have been idle.
    """
    start_ns, end_ns = compute_operation_times(operations, rows)
    position = scatter(len(operations), rows, np.arange(len(rows)))[messages.consumer]
    has_previous = operations.rank[rows[position - 1]] == operations.rank[messages.consumer]
    free_ns = np.where((position > 0) & has_previous, end_ns[position - 1], NEVER)
    produced_ns = operations.end_ns[messages.producer]
    is_launched = operations.launched_ns[messages.consumer] < produced_ns
    is_idle = (free_ns < produced_ns) & is_launched
    sent_ns = np.where(messages.has_transfer, messages.send_start_ns, produced_ns)
    received_ns = np.where(messages.has_transfer, messages.receive_end_ns, start_ns[position])
    shows_time = np.where(messages.has_transfer, ~is_late, is_idle & (received_ns >= sent_ns))
    return sent_ns, received_ns, shows_time


def _measure_link_times(
    operations: Operations, messages: Messages, gap_ns: Floats, shows_time: Bools
) -> Floats:
    """Return the usual transfer time of each message's link, in ns.

    Here a link is a pair of a sending and a receiving rank. The usual time of a link is the lower
    median over the messages that show the transfer time, or 0 if fewer than ``_MIN_IDLE_CONSUMERS``
    messages show it.

    Args:
        operations: Operations of all ranks.
        messages: Messages between operations.
        gap_ns: Time from the send to the receipt of each message.
        shows_time: Mask of the messages whose data was moving for this entire time.
    """
    links = group_rows(operations.rank[messages.producer], operations.rank[messages.consumer])
    measured_link, measured_ns = links.of_row[shows_time], gap_ns[shows_time]
    median_row = find_median_rows(measured_link, len(links), measured_ns)
    has_enough = np.bincount(measured_link, minlength=len(links)) >= _MIN_IDLE_CONSUMERS
    link_ns = np.where(has_enough, np.append(measured_ns, 0.0)[median_row], 0.0)
    return np.asarray(link_ns[links.of_row], np.float64)


def compute_operation_times(operations: Operations, rows: Ints) -> tuple[Ints, Ints]:
    """Return the start and end of operations without waiting, with no overlaps on a rank.

    Without waiting, an operation starts ``busy_ns`` before its end. If it then overlaps with
    earlier operations of its rank, it starts when the last of them ends. If its end is earlier than
    that, its end becomes its start, and it takes no time::

        stream 1   ├────── F3 ──────┤              ├────── F3 ──────┤
        stream 2        ├──── B1 ────────┤                          ├ B1 ┤

    Args:
        operations: Operations of all ranks.
        rows: Rows of the operations.
    """
    start_ns, end_ns = operations.end_ns[rows] - operations.busy_ns[rows], operations.end_ns[rows]
    order = sort_rows(operations.rank[rows], start_ns, end_ns)
    bounds = find_run_starts(operations.rank[rows][order])
    for of_rank in np.split(order, bounds[1:]):
        covered_ns = np.append(NEVER, np.maximum.accumulate(end_ns[of_rank])[:-1])
        start_ns[of_rank] = np.maximum(start_ns[of_rank], covered_ns)
        end_ns[of_rank] = np.maximum(end_ns[of_rank], start_ns[of_rank])
    return start_ns, end_ns
