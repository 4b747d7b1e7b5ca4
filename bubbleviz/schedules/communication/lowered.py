"""A lowered plan: one line per device, of what it computes, sends and receives.

::

    rank 0   0F0  0SEND_F0  0F1  0SEND_F1  0RECV_B0  0B0 ...
    rank 1   1RECV_F0  1F0  1RECV_F1  1B0  1SEND_B0  ...

Messages from one rank to another have no number of their own: what is sent first is what is
received first, as PyTorch's, MPI's and NCCL's point-to-point operations match.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TypeGuard

from bubbleviz.errors import MismatchError
from bubbleviz.model.phases import Phase
from bubbleviz.schedules.plan import Plan, PlannedOperation
from bubbleviz.schedules.simulation import Workload, phase_times

#: What one virtual stage computed and its neighbour needs: F, activations for the next virtual
#: stage; B, gradients for the one before.
Message = PlannedOperation


@dataclass(frozen=True, order=True)
class Transfer:
    """One end of a message: the device that sends or receives it starts this.

    Attributes:
        message: what is sent or received.
        sends: whether this is the sender's end.
    """

    message: Message
    sends: bool

    @property
    def virtual_stage(self) -> int:
        """Virtual stage at this end."""
        return self.message.virtual_stage if self.sends else self.message.receiver

    @property
    def other_stage(self) -> int:
        """Virtual stage at the other end."""
        return self.message.receiver if self.sends else self.message.virtual_stage

    def __str__(self) -> str:
        end = "SEND" if self.sends else "RECV"
        return f"{self.virtual_stage}{end}_{self.message.phase.label}{self.message.microbatch}"


@dataclass(frozen=True)
class Step:
    """What a line does in one place: it computes, starts transfers, or waits for some.

    Attributes:
        operations: computed one after the other; two where a forward runs beside a backward.
        transfers: started together, and complete together where they are several
            (``batch_isend_irecv``).
        awaited: transfers of this or earlier steps that must be complete before the line goes on.
    """

    operations: tuple[PlannedOperation, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    awaited: tuple[Transfer, ...] = ()


@dataclass(frozen=True)
class LoweredPlan:
    """A plan with its communication.

    Attributes:
        plan: what is computed.
        lines: one a device.
    """

    plan: Plan
    lines: tuple[tuple[Step, ...], ...]

    @property
    def communicates(self) -> bool:
        """Whether anything is sent or received."""
        return any(step.transfers for line in self.lines for step in line)

    def peer(self, transfer: Transfer) -> int:
        """Return the device at the other end."""
        return self.plan.placement[transfer.other_stage]


def steps_of(plan: Plan) -> tuple[tuple[Step, ...], ...]:
    """Return the lines of a plan without its communication."""
    lines = []
    for order in plan.orders:
        steps: list[Step] = []
        pair: tuple[PlannedOperation, ...] = ()
        for operation in order:
            pair = (*pair, operation)
            if operation not in plan.together:
                steps.append(Step(operations=pair))
                pair = ()
        lines.append((*steps, *([Step(operations=pair)] if pair else [])))
    return tuple(lines)


def cell_of(operation: PlannedOperation) -> str:
    """Return an operation as PyTorch writes it."""
    return f"{operation.virtual_stage}{_LETTERS[operation.phase]}{operation.microbatch}"


_LETTERS = {Phase.F: "F", Phase.B: "I", Phase.BW: "B", Phase.W: "W"}


def output_of(operation: PlannedOperation, plan: Plan) -> Message | None:
    """Return what an operation computes for the next virtual stage; None where there is none."""
    return _message(operation, plan, 0)


def input_of(operation: PlannedOperation, plan: Plan) -> Message | None:
    """Return what an operation needs of another virtual stage; None where it needs nothing."""
    return _message(operation, plan, 1)


def _message(operation: PlannedOperation, plan: Plan, behind: int) -> Message | None:
    """Return the message of an operation, or that of the one before it, inside a pipeline."""
    if operation.phase is Phase.W:
        return None
    phase = Phase.F if operation.phase is Phase.F else Phase.B
    stage = operation.virtual_stage - (behind if phase is Phase.F else -behind)
    message = Message(stage, phase, operation.microbatch)
    length = plan.virtual_stages // plan.replicas
    return message if stage // length == message.receiver // length else None


def crosses(message: Message | None, plan: Plan) -> TypeGuard[Message]:
    """Return whether there is a message, from one device to another."""
    return (
        message is not None
        and plan.placement[message.virtual_stage] != plan.placement[message.receiver]
    )


# Transports: what a send and a receive wait for, and what waits behind them.


@dataclass(frozen=True)
class Transport:
    """How messages go from one rank to another.

    Each adds to what those before it wait for (``TRANSPORTS``), so an order that deadlocks on one
    deadlocks on the next.

    Attributes:
        name: what users call it.
        rendezvous: a message moves once both ends are there, and a send is complete then.
        streams: transfers between two ranks run one after the other, whatever their direction.
        blocking: a device does nothing else until a transfer that it starts is complete.
    """

    name: str
    rendezvous: bool = False
    streams: bool = False
    blocking: bool = False


#: A send never waits; an operation waits for its own receive (gloo).
BUFFERED = Transport("buffered")
#: A message moves once both ends have started it; nothing waits behind it.
RENDEZVOUS = Transport("rendezvous", rendezvous=True)
#: Transfers between two ranks run one after the other on a stream (NCCL).
STREAMS = Transport("streams", rendezvous=True, streams=True)
#: A rank does nothing else until its send or receive is complete (blocking MPI).
BLOCKING = Transport("blocking", rendezvous=True, streams=True, blocking=True)
TRANSPORTS = (BUFFERED, RENDEZVOUS, STREAMS, BLOCKING)


# Precedence: what must have happened before each event of a plan, and how long before.
#
# Events are the ends of operations, and the starts and ends of transfers. All that an event waits
# for is known beforehand, since messages match in their order; so a plan deadlocks where events
# wait for each other in a circle, and otherwise each happens at the latest of what it waits for.


class Precedence:
    """The events of a lowered plan, and what each waits for.

    Args:
        lowered: both ends of each message are in it, once, in one order for each pair of ranks;
            with no transfers at all, what an operation computes is there at once.
        transport: what transfers wait for.
        workload: how long operations and messages take; None for no time.

    Attributes:
        device: of each event.
        text: of each event, as PyTorch's file writes it; empty where a line only waits.
        before: of each event, the events that it waits for, each with the nanoseconds between.
        operation: event of the end of each operation.
        time: of each operation, how long it takes.
        message: of each event of a transfer, what is sent or received.
    """

    def __init__(
        self, lowered: LoweredPlan, transport: Transport, workload: Workload | None = None
    ) -> None:
        self.lowered, self.transport, self._workload = lowered, transport, workload
        self.device: list[int] = []
        self.text: list[str] = []
        self.before: list[list[tuple[int, int]]] = []
        self.operation: dict[PlannedOperation, int] = {}
        self.time: dict[PlannedOperation, int] = {}
        self.message: dict[int, Message] = {}
        self._started: dict[Transfer, int] = {}
        self._complete: dict[Transfer, int] = {}
        self._add_events()
        #: The events with which results are there.
        self._made = {
            message: end
            for operation, end in self.operation.items()
            if (message := output_of(operation, lowered.plan)) is not None
        }
        if not self._started:
            self._join_pairs()
        for device, line in enumerate(lowered.lines):
            self._add_waits(device, line)
        self._match_ends()
        for line in lowered.lines:
            self._queue(line)

    def _add(self, device: int, text: str) -> int:
        """Add an event that waits for nothing yet; return its number."""
        self.device.append(device)
        self.text.append(text)
        self.before.append([])
        return len(self.before) - 1

    def _add_events(self) -> None:
        times = None if self._workload is None else phase_times(self._workload)
        for device, line in enumerate(self.lowered.lines):
            for step in line:
                for operation in step.operations:
                    self.operation[operation] = self._add(device, cell_of(operation))
                    stage = operation.virtual_stage
                    self.time[operation] = times[operation.phase][stage] if times else 0
                for transfer in step.transfers:
                    for events in (self._complete, self._started):
                        events[transfer] = self._add(device, str(transfer))
                        self.message[events[transfer]] = transfer.message

    def _transfer_ns(self, message: Message) -> int:
        if self._workload is None:
            return 0
        forward = message.phase is Phase.F
        edges = self._workload.down_ns if forward else self._workload.up_ns
        return edges[message.virtual_stage]

    def _join_pairs(self) -> None:
        """Have both results of what runs together be there when both ended."""
        plan = self.lowered.plan
        for device, order in enumerate(plan.orders):
            for operation, following in pairwise(order):
                if operation in plan.together:
                    made = self._add(device, cell_of(operation))
                    self.before[made].append((self.operation[following], 0))
                    message = output_of(operation, plan)
                    if message is not None:
                        self._made[message] = made

    def _add_waits(self, device: int, line: tuple[Step, ...]) -> None:
        """Have each event of a line wait for what is before it, and for its inputs."""
        before = self.before
        last: list[int] = []
        for step in line:
            for operation in step.operations:
                end, ns = self.operation[operation], self.time[operation]
                before[end] += [(event, ns) for event in last + self._inputs(operation)]
                if not before[end]:
                    before[end].append((self._add(device, ""), ns))
                last = [end]
            for transfer in step.transfers:
                start = self._started[transfer]
                made = self._made.get(transfer.message) if transfer.sends else None
                before[start] += [(event, 0) for event in [*last, made] if event is not None]
                last = [start]
            awaited = step.transfers if self.transport.blocking else step.awaited
            if awaited:
                wait = self._add(device, "")
                ends = (self._complete[transfer] for transfer in awaited)
                before[wait] += [(event, 0) for event in (*last, *ends)]
                last = [wait]

    def _inputs(self, operation: PlannedOperation) -> list[int]:
        """Return the events that an operation's inputs are there with."""
        stage, microbatch = operation.virtual_stage, operation.microbatch
        first = Phase.B if operation.phase is Phase.W else Phase.F
        own = self.operation.get(PlannedOperation(stage, first, microbatch))
        message = input_of(operation, self.lowered.plan)
        there = None
        if message is not None:
            there = self._complete.get(Transfer(message, sends=False), self._made.get(message))
        earlier = None if operation.phase is Phase.F else own
        # Of a plan without transfers, what another rank is at fault of is named first.
        inputs = (earlier, there) if self._started else (there, earlier)
        return [event for event in inputs if event is not None]

    def _match_ends(self) -> None:
        """Have each transfer wait for its other end."""
        before, started, complete = self.before, self._started, self._complete
        for send in [transfer for transfer in started if transfer.sends]:
            receive = Transfer(send.message, sends=False)
            ns = self._transfer_ns(send.message)
            before[complete[send]].append((started[send], ns))
            before[complete[receive]].append((started[send], ns))
            late = ns if self.transport.rendezvous else 0
            before[complete[receive]].append((started[receive], late))
            if self.transport.rendezvous:
                before[complete[send]].append((started[receive], ns))

    def _queue(self, line: tuple[Step, ...]) -> None:
        """Have transfers wait for those ahead of them in their queue.

        On a stream, which takes both directions, one begins only then, so that its other end is
        complete no earlier.
        """
        streams, ahead = self.transport.streams, dict[tuple[int, bool], list[int]]()
        for step in line:
            own: dict[tuple[int, bool], list[int]] = {}
            for transfer in step.transfers:
                queue = self.lowered.peer(transfer), transfer.sends and not streams
                own.setdefault(queue, []).append(self._complete[transfer])
                ns = self._transfer_ns(transfer.message) if streams else 0
                other = Transfer(transfer.message, not transfer.sends)
                for end in (transfer, other) if streams else (transfer,):
                    waits = [(event, ns) for event in ahead.get(queue, [])]
                    self.before[self._complete[end]] += waits
            ahead.update(own)

    def times(self) -> tuple[list[int], list[int]]:
        """Return when each event happens, from 0, and the events that do, in an order."""
        after: list[list[tuple[int, int]]] = [[] for _ in self.before]
        for event, before in enumerate(self.before):
            for other, ns in before:
                after[other].append((event, ns))
        left = [len(before) for before in self.before]
        at = [0] * len(left)
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

    def makespan_ns(self) -> int:
        """Return the time from the start of the first operation to the end of the last."""
        at, _ = self.times()
        ends = [at[event] for event in self.operation.values()]
        starts = [at[event] - self.time[op] for op, event in self.operation.items()]
        return max(ends, default=0) - min(starts, default=0)


# Deadlocks: a circle of ranks that wait for each other, found and named before anything runs.


#: A rank, its place as PyTorch's file writes it, the rank that it waits for there (itself where
#: the order of its own line is at fault), and for what.
Wait = tuple[int, str, int, str]
#: Waits of a circle that a sentence names.
_NAMED = 6


def deadlock_of(lowered: LoweredPlan, transport: Transport) -> list[Wait]:
    """Return the circle of waits of a lowered plan on a transport; empty for none.

    Each waits for a rank that is held up at the next one's place.

    Args:
        lowered: whose messages match; see :func:`check_messages`.
        transport: what transfers wait for.
    """
    events = Precedence(lowered, transport)
    _, happen = events.times()
    never = set(range(len(events.before))) - set(happen)
    if not never:
        return []
    at, path, place = min(never), list[int](), dict[int, int]()
    while at not in place:
        place[at] = len(path)
        path.append(at)
        at = next(other for other, _ in events.before[at] if other in never)
    circle = path[place[at] :]
    hops = list(zip(circle, circle[1:] + circle[:1], strict=True))
    between = [(a, b) for a, b in hops if events.device[a] != events.device[b]]
    if not between:
        # One event of a line waits for a later one; events are numbered in order.
        between = [max(hops, key=lambda hop: hop[1] - hop[0])]
    return [
        (events.device[a], events.text[a], events.device[b], events.text[b]) for a, b in between
    ]


def deadlock_text(waits: list[Wait]) -> str:
    """Return what waits for what, for people."""
    if len(waits) == 1:
        ((rank, at, _, awaited),) = waits
        return f"rank {rank} has {at} before {awaited}, which it needs"
    parts = []
    for (rank, at, other, awaited), following in zip(waits, waits[1:] + waits[:1], strict=True):
        behind = "" if awaited == following[1] else f", which is behind {following[1]}"
        parts.append(f"rank {rank} waits at {at} for rank {other}'s {awaited}{behind}")
    if len(parts) > _NAMED:
        left = len(parts) - _NAMED
        parts = [*parts[: _NAMED - 1], f"and so on over {left} more waits", parts[-1]]
    return "; ".join(parts)


def check_order(plan: Plan) -> None:
    """Check that the orders of a plan can be run.

    Raises:
        MismatchError: they deadlock; the sentence names the circle.
    """
    if waits := deadlock_of(LoweredPlan(plan, steps_of(plan)), BUFFERED):
        raise MismatchError(
            f"the order deadlocks: {deadlock_text(waits)}; change one of these orders"
        )


def check_lowered(lowered: LoweredPlan, transport: Transport) -> None:
    """Check that a lowered plan runs on a transport, and that no message is taken for another.

    Raises:
        MismatchError: it deadlocks, or messages do not match; a sentence.
    """
    check_messages(lowered)
    if waits := deadlock_of(lowered, transport):
        raise MismatchError(
            f"the communication deadlocks ({transport.name}): {deadlock_text(waits)}; "
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
        if crosses(message := input_of(operation, plan), plan)
    }
    #: By sender, receiver, and whether it is the sender's end.
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
    for sends in (True, False):
        found = [Transfer(m, sends) for key, q in queues.items() if key[2] is sends for m in q]
        there = set(found)
        if len(there) < len(found):
            twice = next(end for end in found if found.count(end) > 1)
            raise MismatchError(
                f"rank {plan.placement[twice.virtual_stage]}: {twice} stands twice; "
                "write each transfer once"
            )
        for end, operation in ((Transfer(m, sends), needs) for m, needs in wanted.items()):
            if end not in there:
                raise MismatchError(
                    f"rank {plan.placement[end.virtual_stage]} lacks {end}, which "
                    f"{operation} needs; write both ends of each message"
                )
    for sender, receiver, _ in sorted(key for key in queues if key[2]):
        pair = queues[sender, receiver, True], queues[sender, receiver, False]
        crossed = next(((a, b) for a, b in zip(*pair, strict=True) if a != b), None)
        if crossed is not None:
            raise MismatchError(
                f"rank {sender} sends {Transfer(crossed[0], sends=True)} where rank {receiver} "
                f"receives {Transfer(crossed[1], sends=False)}, and messages of two ranks match "
                "in their order; send and receive them in one order"
            )


def makespan_of(lowered: LoweredPlan, workload: Workload, transport: Transport) -> int:
    """Return how long a lowered plan takes, in nanoseconds.

    A device runs its line in order. An operation waits for its input; on a transport that meets or
    queues, a message begins once both its ends have been started and those ahead of it on the
    same stream are complete.

    Raises:
        MismatchError: the plan deadlocks on that transport, messages do not match, or the workload
            is of other stages.
    """
    plan = lowered.plan
    if len(workload.forward_ns) != plan.virtual_stages:
        raise MismatchError(
            f"{plan.name} has {plan.virtual_stages} virtual stages, and times are of "
            f"{len(workload.forward_ns)}; give those of one run"
        )
    check_lowered(lowered, transport)
    return Precedence(lowered, transport, workload).makespan_ns()
