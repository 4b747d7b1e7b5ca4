"""Precedence: what must have happened before each event of a plan, and how long before.

Events are the ends of operations, and the starts and ends of transfers. All that an event waits
for is known beforehand, since messages match in their order; so a plan deadlocks where events wait
for each other in a circle, and otherwise each happens at the latest of what it waits for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from bubbleviz.errors import MismatchError
from bubbleviz.model.phases import Phase
from bubbleviz.model.values import frozen
from bubbleviz.schedules.communication.lowered import (
    LoweredPlan,
    Message,
    Step,
    Transfer,
    Transport,
    local_input,
    needed_by,
)
from bubbleviz.schedules.files.torch_csv import cell_of
from bubbleviz.schedules.plan import Plan, PlannedOperation

#: How long an operation takes, and how long a message is on its way, in nanoseconds.
OperationTime = Callable[[PlannedOperation], int]
TransferTime = Callable[[Message], int]


def _no_time(_: object) -> int:
    return 0


@dataclass
class Precedence:
    """Events, and what each waits for.

    Attributes:
        device: of each event.
        text: of each event, as PyTorch's file writes it; empty where a line only waits.
        before: of each event, the events that it waits for, each with the nanoseconds between.
        operation: event of the end of each operation.
        time: of each operation, how long it takes.
        message: of each event of a transfer, what is sent or received.
    """

    device: list[int] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    before: list[list[tuple[int, int]]] = field(default_factory=list)
    operation: dict[PlannedOperation, int] = field(default_factory=dict)
    time: dict[PlannedOperation, int] = field(default_factory=dict)
    message: dict[int, Message] = field(default_factory=dict)

    def add(self, device: int, text: str) -> int:
        """Add an event that waits for nothing yet; return its number."""
        self.device.append(device)
        self.text.append(text)
        self.before.append([])
        return len(self.before) - 1

    def after(self) -> list[list[tuple[int, int]]]:
        """Return the events that wait for each, with the nanoseconds between."""
        after: list[list[tuple[int, int]]] = [[] for _ in self.before]
        for event, before in enumerate(self.before):
            for other, ns in before:
                after[other].append((event, ns))
        return after

    def times(self) -> tuple[list[int], list[int]]:
        """Return when each event happens, from 0, and the events that do, in an order."""
        left = [len(before) for before in self.before]
        at = [0] * len(left)
        after = self.after()
        ready = [event for event, count in enumerate(left) if not count]
        happen = []
        while ready:
            event = ready.pop()
            happen.append(event)
            now = at[event]
            for other, ns in after[event]:
                at[other] = max(at[other], now + ns)
                left[other] -= 1
                if not left[other]:
                    ready.append(other)
        return at, happen

    def stuck(self) -> list[int]:
        """Return the events that never happen, since they wait for each other."""
        _, happen = self.times()
        return sorted(set(range(len(self.before))) - set(happen))

    def makespan_ns(self) -> int:
        """Return the time from the start of the first operation to the end of the last."""
        at, _ = self.times()
        ends = [at[event] for event in self.operation.values()]
        starts = [at[event] - self.time[op] for op, event in self.operation.items()]
        return max(ends, default=0) - min(starts, default=0)


def of_order(plan: Plan) -> Precedence:
    """Return the precedence of a plan as if what an operation computes were there at once."""
    events = Precedence()
    for device, order in enumerate(plan.orders):
        for operation in order:
            events.operation[operation] = events.add(device, cell_of(operation))
    producers = _producers(plan)
    made = _made(plan, events)
    for order in plan.orders:
        last: int | None = None
        for operation in order:
            end = events.operation[operation]
            if last is not None:
                events.before[end].append((last, 0))
            message = needed_by(operation, plan) or local_input(operation, plan)
            if message is not None and message in producers:
                events.before[end].append((made[producers[message]], 0))
            own = _event(events.operation, _own_input(operation))
            if own is not None:
                events.before[end].append((own, 0))
            last = end
    return events


def _made(plan: Plan, events: Precedence) -> dict[PlannedOperation, int]:
    """Return the events with which the results of operations are there.

    Both results of what runs together are there when both ended.
    """
    made = dict(events.operation)
    for device, order in enumerate(plan.orders):
        for operation, following in pairwise(order):
            if operation in plan.together:
                made[operation] = events.add(device, cell_of(operation))
                events.before[made[operation]].append((events.operation[following], 0))
    return made


def of_lines(
    lowered: LoweredPlan,
    transport: Transport,
    operation_ns: OperationTime = _no_time,
    transfer_ns: TransferTime = _no_time,
) -> Precedence:
    """Return the precedence of a lowered plan.

    Args:
        lowered: both ends of each message are in it, once, in one order for each pair of ranks.
        transport: what transfers wait for.
        operation_ns: how long each operation takes.
        transfer_ns: how long each message is on its way.
    """
    return _Lines(lowered, transport, operation_ns, transfer_ns).events


class _Lines:
    """Builds the events of lines."""

    def __init__(
        self,
        lowered: LoweredPlan,
        transport: Transport,
        operation_ns: OperationTime,
        transfer_ns: TransferTime,
    ) -> None:
        self.lowered = lowered
        self.transport = transport
        self.operation_ns = operation_ns
        self.transfer_ns = transfer_ns
        self.events = Precedence()
        self.started: dict[Transfer, int] = {}
        self.complete: dict[Transfer, int] = {}
        for device, line in enumerate(lowered.lines):
            for step in line:
                self._add(device, step)
        self.producers = _producers(lowered.plan)
        for device, line in enumerate(lowered.lines):
            self._order(device, line)
        self._match()

    def _add(self, device: int, step: Step) -> None:
        """Add the events of a step."""
        events = self.events
        for operation in step.operations:
            events.operation[operation] = events.add(device, cell_of(operation))
            events.time[operation] = self.operation_ns(operation)
        for transfer in step.transfers:
            self.complete[transfer] = events.add(device, str(transfer))
            self.started[transfer] = events.add(device, str(transfer))
            events.message[self.complete[transfer]] = transfer.message
            events.message[self.started[transfer]] = transfer.message

    def _order(self, device: int, line: tuple[Step, ...]) -> None:
        """Have each event of a line wait for what is before it."""
        before = self.events.before
        last: int | None = None
        for step in line:
            for operation in step.operations:
                end, ns = self.events.operation[operation], self.events.time[operation]
                needs = [] if last is None else [last]
                before[end] += [(event, ns) for event in needs + self._inputs(operation)]
                if not before[end]:
                    before[end].append((self.events.add(device, ""), ns))
                last = end
            for transfer in step.transfers:
                start = self.started[transfer]
                before[start] += [] if last is None else [(last, 0)]
                maker = self.producers.get(transfer.message) if transfer.sends else None
                if maker is not None:
                    before[start].append((self.events.operation[maker], 0))
                last = start
            awaited = step.transfers if self.transport.blocking else step.awaited
            if awaited:
                wait = self.events.add(device, "")
                before[wait] += [] if last is None else [(last, 0)]
                before[wait] += [(self.complete[transfer], 0) for transfer in awaited]
                last = wait

    def _inputs(self, operation: PlannedOperation) -> list[int]:
        """Return the events that an operation's inputs are there with."""
        plan = self.lowered.plan
        own = _event(self.events.operation, _own_input(operation))
        events = [] if own is None else [own]
        message = needed_by(operation, plan)
        if message is not None:
            return [*events, self.complete[Transfer(message, sends=False)]]
        local = local_input(operation, plan)
        maker = None if local is None else self.producers.get(local)
        return events if maker is None else [*events, self.events.operation[maker]]

    def _match(self) -> None:
        """Have each transfer wait for its other end, and for those ahead of it."""
        before, started, complete = self.events.before, self.started, self.complete
        for send in [transfer for transfer in started if transfer.sends]:
            receive = Transfer(send.message, sends=False)
            ns = self.transfer_ns(send.message)
            before[complete[send]].append((started[send], ns))
            before[complete[receive]].append((started[send], ns))
            late = ns if self.transport.rendezvous else 0
            before[complete[receive]].append((started[receive], late))
            if self.transport.rendezvous:
                before[complete[send]].append((started[receive], ns))
        for line in self.lowered.lines:
            self._queue(line)

    def _queue(self, line: tuple[Step, ...]) -> None:
        """Have transfers wait for those ahead of them in their queue."""
        ahead: dict[tuple[int, bool], list[Transfer]] = {}
        for step in line:
            own: dict[tuple[int, bool], list[Transfer]] = {}
            for transfer in step.transfers:
                # A stream takes both directions.
                queue = self.lowered.peer(transfer), transfer.sends and not self.transport.streams
                own.setdefault(queue, []).append(transfer)
            for queue, transfers in own.items():
                for transfer in transfers:
                    self._behind(transfer, ahead.get(queue, []))
                ahead[queue] = transfers

    def _behind(self, transfer: Transfer, ahead: list[Transfer]) -> None:
        """Have a transfer wait for those that are ahead of it.

        On a stream it begins then, so its other end is complete no earlier.
        """
        before, complete = self.events.before, self.complete
        if not self.transport.streams:
            before[complete[transfer]] += [(complete[other], 0) for other in ahead]
            return
        ns = self.transfer_ns(transfer.message)
        for end in (transfer, Transfer(transfer.message, not transfer.sends)):
            before[complete[end]] += [(complete[other], ns) for other in ahead]


def _event(events: dict[PlannedOperation, int], operation: PlannedOperation | None) -> int | None:
    return None if operation is None else events.get(operation)


def _own_input(operation: PlannedOperation) -> PlannedOperation | None:
    """Return the operation of the same virtual stage and microbatch that comes first, or None."""
    if operation.phase is Phase.F:
        return None
    first = Phase.B if operation.phase is Phase.W else Phase.F
    return PlannedOperation(operation.virtual_stage, first, operation.microbatch)


def _producers(plan: Plan) -> dict[Message, PlannedOperation]:
    """Return the operation that computes each message, those that stay on a device included."""
    producers = {}
    for operation in (operation for order in plan.orders for operation in order):
        if operation.phase is not Phase.W:
            phase = Phase.F if operation.phase is Phase.F else Phase.B
            message = Message(operation.virtual_stage, phase, operation.microbatch)
            producers[message] = operation
    return producers


# Deadlocks: a circle of ranks that wait for each other, found and named before anything runs.


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
