"""Deadlocks: a circle of ranks that wait for each other, found and named before anything runs."""

from __future__ import annotations

from bubbleviz.errors import MismatchError
from bubbleviz.model.values import frozen
from bubbleviz.schedules.communication.lowered import LoweredPlan, Message, Transfer, needed_by
from bubbleviz.schedules.communication.precedence import Precedence, of_lines, of_order
from bubbleviz.schedules.communication.transports import Transport
from bubbleviz.schedules.files.torch_csv import cell_of
from bubbleviz.schedules.plan import Plan

#: Waits of a cycle that a sentence names.
_NAMED = 6


@frozen
class Wait:
    """A rank that waits.

    Attributes:
        rank: that waits.
        at: where in its line, as PyTorch's file writes it.
        other: rank that it waits for; itself where the order of its own line is at fault.
        for_: what it waits for there.
    """

    rank: int
    at: str
    other: int
    for_: str


@frozen
class Deadlock:
    """A circle of waits: each waits for a rank that is held up at the next one's place."""

    waits: tuple[Wait, ...]

    @property
    def sentence(self) -> str:
        """What waits for what, for people."""
        if len(self.waits) == 1:
            (wait,) = self.waits
            return f"rank {wait.rank} has {wait.at} before {wait.for_}, which it needs"
        parts = []
        for wait, following in zip(self.waits, self.waits[1:] + self.waits[:1], strict=True):
            behind = "" if wait.for_ == following.at else f", which is behind {following.at}"
            parts.append(
                f"rank {wait.rank} waits at {wait.at} for rank {wait.other}'s {wait.for_}{behind}"
            )
        if len(parts) > _NAMED:
            left = len(parts) - _NAMED
            parts = [*parts[: _NAMED - 1], f"and so on over {left} more waits", parts[-1]]
        return "; ".join(parts)


def deadlock_of_order(plan: Plan) -> Deadlock | None:
    """Return how a plan deadlocks whatever its communication, or None."""
    return _cycle(of_order(plan))


def deadlock_of(lowered: LoweredPlan, transport: Transport) -> Deadlock | None:
    """Return how a lowered plan deadlocks on a transport, or None.

    Args:
        lowered: whose messages match; see :func:`check_messages`.
        transport: what transfers wait for.
    """
    return _cycle(of_lines(lowered, transport))


def check_order(plan: Plan) -> None:
    """Check that the orders of a plan can be run.

    Raises:
        MismatchError: they deadlock; the sentence names the cycle.
    """
    found = deadlock_of_order(plan)
    if found is not None:
        raise MismatchError(f"the order deadlocks: {found.sentence}; change one of these orders")


def check_lowered(lowered: LoweredPlan, transport: Transport) -> None:
    """Check that a lowered plan runs on a transport, and that no message is taken for another.

    Raises:
        MismatchError: it deadlocks, or messages do not match; a sentence.
    """
    check_messages(lowered)
    found = deadlock_of(lowered, transport)
    if found is not None:
        raise MismatchError(
            f"the communication deadlocks ({transport.name}): {found.sentence}; "
            "move one of these sends or receives"
        )


def check_messages(lowered: LoweredPlan) -> None:
    """Check that each message is sent and received once, and in one order by both ranks.

    Raises:
        MismatchError: it is not; the sentence names rank and transfer.
    """
    plan = lowered.plan
    wanted = {
        message: cell_of(operation)
        for order in plan.orders
        for operation in order
        if (message := needed_by(operation, plan)) is not None
    }
    queues: dict[tuple[int, int, bool], list[Message]] = {}
    for device, line in enumerate(lowered.lines):
        for transfer in (transfer for step in line for transfer in step.transfers):
            if transfer.message not in wanted:
                raise MismatchError(
                    f"rank {device}: {transfer} moves what no operation of another rank needs; "
                    "leave it out"
                )
            ends = device, lowered.peer(transfer)
            queue = (*(ends if transfer.sends else ends[::-1]), transfer.sends)
            queues.setdefault(queue, []).append(transfer.message)
    _check_ends(plan, wanted, queues)
    for sender, receiver, sends in sorted(queues):
        if not sends:
            continue
        pair = queues[sender, receiver, True], queues[sender, receiver, False]
        crossed = next(((a, b) for a, b in zip(*pair, strict=True) if a != b), None)
        if crossed is not None:
            raise MismatchError(
                f"rank {sender} sends {Transfer(crossed[0], sends=True)} where rank {receiver} "
                f"receives {Transfer(crossed[1], sends=False)}, and messages of two ranks match "
                "in their order; send and receive them in one order"
            )


def _check_ends(
    plan: Plan,
    wanted: dict[Message, str],
    queues: dict[tuple[int, int, bool], list[Message]],
) -> None:
    """Check that each message has both its ends once."""
    for sends in (True, False):
        ends = [m for (_, _, kind), messages in queues.items() if kind is sends for m in messages]
        seen: set[Message] = set()
        for message in ends:
            if message in seen:
                stage = Transfer(message, sends).virtual_stage
                raise MismatchError(
                    f"rank {plan.placement[stage]}: {Transfer(message, sends)} stands twice; "
                    "write each transfer once"
                )
            seen.add(message)
        for message, operation in wanted.items():
            if message not in seen:
                stage = Transfer(message, sends).virtual_stage
                raise MismatchError(
                    f"rank {plan.placement[stage]} lacks {Transfer(message, sends)}, which "
                    f"{operation} needs; write both ends of each message"
                )


def _cycle(events: Precedence) -> Deadlock | None:
    """Return the waits between ranks of a circle of events, or None."""
    stuck = events.stuck()
    if not stuck:
        return None
    never = set(stuck)
    at, path, place = stuck[0], list[int](), dict[int, int]()
    while at not in place:
        place[at] = len(path)
        path.append(at)
        at = next(other for other, _ in events.before[at] if other in never)
    circle = path[place[at] :]
    hops = [
        (here, there)
        for here, there in zip(circle, circle[1:] + circle[:1], strict=True)
        if events.device[here] != events.device[there]
    ]
    if not hops:
        return Deadlock((_own_fault(events, circle),))
    return Deadlock(
        tuple(
            Wait(events.device[a], events.text[a], events.device[b], events.text[b])
            for a, b in hops
        )
    )


def _own_fault(events: Precedence, circle: list[int]) -> Wait:
    """Return the wait of a line for what comes later in it.

    A circle in one line has one event that waits for a later one; events are numbered in order.
    """
    rank = events.device[circle[0]]
    pairs = list(zip(circle, circle[1:] + circle[:1], strict=True))
    here, there = max(pairs, key=lambda pair: pair[1] - pair[0])
    return Wait(rank, events.text[here], rank, events.text[there])
