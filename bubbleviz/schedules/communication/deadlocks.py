"""Deadlocks: cycles of ranks that wait for each other, which are detected before anything runs."""

from __future__ import annotations

from itertools import pairwise

from bubbleviz.errors import MismatchError
from bubbleviz.schedules.communication.lowered import (
    LoweredPlan,
    Message,
    Transfer,
    crosses,
    get_cell,
    get_input,
    list_steps,
)
from bubbleviz.schedules.communication.precedence import Precedence
from bubbleviz.schedules.communication.transports import BUFFERED, Transport
from bubbleviz.schedules.plan import Plan
from bubbleviz.schedules.workload import Workload

#: A wait: (rank, event, awaited rank, awaited event). Events are named as in PyTorch's CSV. If only
#: the order within one rank is wrong, that rank waits for itself.
Wait = tuple[int, str, int, str]
#: Messages between two ranks, in the order in which one of the ranks lists them. The keys are
#: (sender, receiver, whether the sender listed the messages).
_Queues = dict[tuple[int, int, bool], list[Message]]
#: Maximum number of waits in the description of a cycle.
_MAX_WAITS = 6


def find_deadlock(lowered: LoweredPlan, transport: Transport) -> list[Wait]:
    """Find a cycle of ranks that wait for each other, or return [] if the plan does not deadlock.

    The result lists the waits of the cycle as (rank, event, awaited rank, awaited event) tuples.
    The awaited rank of each wait is the rank of the next wait, and the last wait leads back to the
    first. Waits of a rank for itself are left out.

    If all waits in the cycle are within one rank, the order on that rank is wrong. In this case,
    the result is a single wait, for the event that is furthest ahead in the rank's order.

    Args:
        lowered: Plan whose messages match (see :func:`check_messages`).
        transport: The transport, which determines what transfers wait for.
    """
    events = Precedence(lowered, transport)
    blocked = set(range(len(events.edges))) - set(events.order)
    if not blocked:
        return []
    event = min(blocked)
    visited: dict[int, None] = {}
    while event not in visited:
        visited[event] = None
        event = next(awaited for awaited, _ in events.edges[event] if awaited in blocked)
    path = list(visited)
    cycle = path[path.index(event) :]
    waits = list(pairwise([*cycle, event]))
    between_ranks = [(a, b) for a, b in waits if events.device[a] != events.device[b]]
    if not between_ranks:
        # An event waits for a later event on the same device. The events on a device are numbered
        # in order.
        between_ranks = [max(waits, key=lambda wait: wait[1] - wait[0])]
    return [
        (events.device[a], events.text[a], events.device[b], events.text[b])
        for a, b in between_ranks
    ]


def describe_deadlock(waits: list[Wait]) -> str:
    """Describe a cycle of waits in words, for an error message.

    If there are more than ``_MAX_WAITS`` waits, the text contains the first ``_MAX_WAITS`` - 1
    waits, the number of omitted waits, and the last wait.

    Args:
        waits: Waits from :func:`find_deadlock`. Must not be empty.
    """
    if len(waits) == 1:
        ((rank, step, _, awaited),) = waits
        return f"rank {rank} runs {step} before {awaited}, although it needs {awaited} first"
    parts = []
    for (rank, step, other, awaited), following in zip(waits, waits[1:] + waits[:1], strict=True):
        blocking_clause = "" if awaited == following[1] else f", which comes after {following[1]}"
        parts.append(f"rank {rank} waits at {step} for rank {other}'s {awaited}{blocking_clause}")
    if len(parts) > _MAX_WAITS:
        n_omitted = len(parts) - _MAX_WAITS
        parts = [*parts[: _MAX_WAITS - 1], f"followed by {n_omitted} more waits", parts[-1]]
    return "; ".join(parts)


def check_order(plan: Plan) -> None:
    """Check that the order of operations cannot deadlock, assuming that transfers never block.

    Raises:
        MismatchError: The order deadlocks. The error message describes the cycle.
    """
    if waits := find_deadlock(LoweredPlan(plan, list_steps(plan)), BUFFERED):
        raise MismatchError(
            f"this order of operations deadlocks: {describe_deadlock(waits)}; reorder the "
            "operations of one of these ranks"
        )


def check_lowered(lowered: LoweredPlan, transport: Transport) -> None:
    """Check that a lowered plan can run on a transport and that its messages match.

    Raises:
        MismatchError: The plan deadlocks, or messages do not match.
    """
    check_messages(lowered)
    if waits := find_deadlock(lowered, transport):
        raise MismatchError(
            f"the communication deadlocks (transport: {transport.name}): "
            f"{describe_deadlock(waits)}; move one of these sends or receives"
        )


def check_messages(lowered: LoweredPlan) -> None:
    """Check that each message is sent and received once, and in the same order by both ranks.

    Raises:
        MismatchError: A message is missing, duplicated, out of order or not needed by any other
            rank. The error message names the rank and the transfer.
    """
    plan = lowered.plan
    consumer_of_message = {
        message: get_cell(operation)
        for order in plan.orders
        for operation in order
        if crosses(message := get_input(operation, plan), plan)
    }
    queues = _collect_queues(lowered, consumer_of_message)
    for sends in (True, False):
        transfers = [Transfer(m, sends) for key, q in queues.items() if key[2] is sends for m in q]
        _check_listed_once(plan, transfers, consumer_of_message, sends=sends)
    for sender, receiver, _ in sorted(key for key in queues if key[2]):
        pair = queues[sender, receiver, True], queues[sender, receiver, False]
        crossed = next(((a, b) for a, b in zip(*pair, strict=True) if a != b), None)
        if crossed is not None:
            raise MismatchError(
                f"rank {sender} sends {Transfer(crossed[0], sends=True)} when rank {receiver} "
                f"expects {Transfer(crossed[1], sends=False)}; messages between two ranks are "
                "matched by order, so list them in the same order on both ranks"
            )


def _collect_queues(lowered: LoweredPlan, consumer_of_message: dict[Message, str]) -> _Queues:
    """Collect the messages that each rank sends to, or receives from, each other rank.

    Each message is in two queues: one lists what the sender sends to the receiver, and the other
    lists what the receiver receives from the sender.

    Raises:
        MismatchError: A message is not in ``consumer_of_message``, which means that no other rank
            needs it.
    """
    queues: _Queues = {}
    for device, line in enumerate(lowered.lines):
        for transfer in (transfer for step in line for transfer in step.transfers):
            if transfer.message not in consumer_of_message:
                raise MismatchError(
                    f"rank {device}: {transfer} transfers data that no other rank needs; remove "
                    "the cell"
                )
            ranks = device, lowered.peer(transfer)
            queue = (*(ranks if transfer.sends else ranks[::-1]), transfer.sends)
            queues.setdefault(queue, []).append(transfer.message)
    return queues


def _check_listed_once(
    plan: Plan,
    transfers: list[Transfer],
    consumer_of_message: dict[Message, str],
    *,
    sends: bool,
) -> None:
    """Check that each message that an operation needs is sent (or received) exactly once.

    Args:
        plan: The plan.
        transfers: All sends in the plan, or all receives in the plan.
        consumer_of_message: Maps each needed message to the text of the operation that needs it,
            for error messages.
        sends: Whether ``transfers`` are the sends.

    Raises:
        MismatchError: A transfer appears twice, or a message that is needed is not transferred.
    """
    distinct_transfers = set(transfers)
    if len(distinct_transfers) < len(transfers):
        repeated = next(end for end in transfers if transfers.count(end) > 1)
        raise MismatchError(
            f"rank {plan.placement[repeated.virtual_stage]}: {repeated} appears twice; "
            "list each transfer only once"
        )
    for message, operation in consumer_of_message.items():
        transfer = Transfer(message, sends)
        if transfer not in distinct_transfers:
            raise MismatchError(
                f"rank {plan.placement[transfer.virtual_stage]}: {transfer} is missing, but "
                f"{operation} needs it; list both the send and the receive of each message"
            )


def compute_makespan(lowered: LoweredPlan, workload: Workload, transport: Transport) -> int:
    """Return the makespan of a lowered plan, in the workload's time unit.

    Raises:
        MismatchError: The plan deadlocks on the transport, its messages do not match, or the
            workload and the plan have different numbers of virtual stages.
    """
    plan = lowered.plan
    if len(workload.forward_ns) != plan.virtual_stages:
        raise MismatchError(
            f"{plan.name} has {plan.virtual_stages} virtual stages, but the times are for "
            f"{len(workload.forward_ns)}; use a plan and times of the same run"
        )
    check_lowered(lowered, transport)
    return Precedence(lowered, transport, workload).makespan_ns()
