"""Reordering: sends and receives in the order of time, so that none waits for an unrelated one.

PyTorch lowers a plan as if all operations took equally long. Where they do not, a receive can be
started long before its message is sent, and on a stream what is behind it waits::

    in turns    1RECV_B0 ─────────── waits ───────────┤ 1SEND_F3 ┤     rank 2 starves
    by time     1SEND_F3 ┤ 1RECV_B0 ── waits ─────────┤

Every order here comes from one common order of operations and messages, so none deadlocks.
"""

from __future__ import annotations

from bubbleviz.model.values import frozen
from bubbleviz.schedules.communication.lowered import (
    BUFFERED,
    LoweredPlan,
    Message,
    Step,
    Transfer,
    Transport,
    needed_by,
    sent_by,
)
from bubbleviz.schedules.communication.lowering import lowered
from bubbleviz.schedules.communication.precedence import Precedence, of_lines
from bubbleviz.schedules.communication.timing import operation_times, transfer_times
from bubbleviz.schedules.plan import Plan
from bubbleviz.schedules.workload import Workload

#: Orders by time change the times; this often they are followed.
_ROUNDS = 8
#: Most orders that are timed to improve the best one, and most events in all of them.
_TRIALS, _EVENTS = 100, 500_000
#: What transfers cost is not sought to be less than this share.
_NOTHING = 1e-3


@frozen
class _Work:
    """A step of a line that computes, with what is done to parameters around it."""

    device: int
    step: Step
    before: tuple[Step, ...]
    after: tuple[Step, ...] = ()


#: The common order.
_Item = _Work | Message
_Sequence = list[_Item]


@frozen
class Communication:
    """The communication of a plan on a transport.

    Attributes:
        lowered: in the fastest order that was found.
        transport: what transfers wait for.
        makespan_ns: of it.
        own_ns: makespan of PyTorch's own lowering.
    """

    lowered: LoweredPlan
    transport: Transport
    makespan_ns: int
    own_ns: int


def best_lowering(plan: Plan, workload: Workload, transport: Transport) -> LoweredPlan:
    """Return the plan with its communication in the fastest order; see :func:`communicated`."""
    return communicated(plan, workload, transport).lowered


def communicated(plan: Plan, workload: Workload, transport: Transport) -> Communication:
    """Return the plan with its communication in the fastest order that is found.

    Tried are PyTorch's own lowering, orders by time, and the best of these with messages moved
    past others of their ranks. On the ``buffered`` transport nothing waits behind anything, and
    PyTorch's is returned.

    Raises:
        MismatchError: the order of the plan deadlocks.
    """
    search = _Search(plan, workload, transport)
    if transport != BUFFERED and not search.perfect:
        search.follow_times()
        search.move_messages()
    makespan_ns = min(search.makespan_ns, search.own_ns)
    return Communication(search.best, transport, makespan_ns, search.own_ns)


class _Search:
    """The best order so far."""

    def __init__(self, plan: Plan, workload: Workload, transport: Transport) -> None:
        self.plan, self.transport = plan, transport
        self.operation_ns = operation_times(workload)
        self.transfer_ns = transfer_times(workload)
        self.own = lowered(plan)
        free = of_lines(self.own, BUFFERED, self.operation_ns, self.transfer_ns)
        self.least_ns = free.makespan_ns()
        _, happen = free.times()
        place = {event: rank for rank, event in enumerate(happen)}
        self.rank = {operation: place[event] for operation, event in free.operation.items()}
        self.work = [
            work for device, line in enumerate(self.own.lines) for work in _work(device, line)
        ]
        self.sequence = self.by_time(free)
        self.own_ns = self.timed(self.own).makespan_ns()
        # PyTorch's own order has no sequence that messages could be moved in.
        self.ordered = _lines(plan, self.sequence)
        self.events = self.timed(self.ordered)
        self.makespan_ns = self.events.makespan_ns()

    @property
    def best(self) -> LoweredPlan:
        """The fastest order; PyTorch's own where none is faster."""
        return self.ordered if self.makespan_ns < self.own_ns else self.own

    @property
    def perfect(self) -> bool:
        """Whether hardly anything waits behind anything."""
        return min(self.own_ns, self.makespan_ns) <= self.least_ns * (1 + _NOTHING)

    def timed(self, made: LoweredPlan) -> Precedence:
        """Return the events of an order."""
        return of_lines(made, self.transport, self.operation_ns, self.transfer_ns)

    def offer(self, sequence: _Sequence) -> bool:
        """Take an order if it is faster; return whether it is."""
        made = _lines(self.plan, sequence)
        events = self.timed(made)
        makespan_ns = events.makespan_ns()
        if makespan_ns >= self.makespan_ns:
            return False
        self.ordered, self.events, self.sequence = made, events, sequence
        self.makespan_ns = makespan_ns
        return True

    def follow_times(self) -> None:
        """Put messages in order of when they are ready, again and again."""
        sequence, events = self.sequence, self.events
        for _ in range(max(1, min(_ROUNDS, _EVENTS // max(1, len(events.before))))):
            following = self.by_time(events)
            if self.perfect or following == sequence:
                return
            sequence = following
            self.offer(sequence)
            events = self.timed(_lines(self.plan, sequence))

    def by_time(self, events: Precedence) -> _Sequence:
        """Return work by when it starts, and messages by when they are ready."""
        at, _ = events.times()
        keyed: list[tuple[int, float, _Item]] = []
        for work in self.work:
            # What runs together receives all inputs before, and sends both results after.
            last = work.step.operations[-1]
            end, rank = at[events.operation[last]], self.rank[last]
            keyed.append((end - events.time[last], rank, work))
            messages = [sent_by(operation, self.plan) for operation in work.step.operations]
            for place, message in enumerate(m for m in messages if m is not None):
                keyed.append((end, rank + 0.25 * (place + 1), message))
        keyed.sort(key=lambda item: item[:2])
        return [item for _, _, item in keyed]

    def move_messages(self) -> None:
        """Move messages of the critical path past others of their ranks, as long as that helps."""
        trials = max(1, min(_TRIALS, _EVENTS // max(1, len(self.events.before))))
        improved = True
        while improved and not self.perfect:
            improved = False
            for message in _critical(self.events):
                for moved in _moves(self.plan, self.sequence, message):
                    trials -= 1
                    if self.offer(moved):
                        improved = True
                        break
                    if not trials:
                        return
                if improved:
                    break


def _work(device: int, line: tuple[Step, ...]) -> list[_Work]:
    """Return the steps of a line that compute, with the parameters' steps before them."""
    result: list[_Work] = []
    before: list[Step] = []
    for step in line:
        if step.operations:
            result.append(_Work(device, step, tuple(before)))
            before = []
        elif step.parameters:
            before.append(step)
    if result and before:
        last = result[-1]
        result[-1] = _Work(device, last.step, last.before, tuple(before))
    return result


def _lines(plan: Plan, sequence: _Sequence) -> LoweredPlan:
    """Return the lines of a common order."""
    lines: list[list[Step]] = [[] for _ in plan.orders]
    for item in sequence:
        if isinstance(item, Message):
            for sends, stage in ((True, item.virtual_stage), (False, item.receiver)):
                step = Step(transfers=(Transfer(item, sends),))
                lines[plan.placement[stage]].append(step)
        else:
            lines[item.device] += [*item.before, item.step, *item.after]
    return LoweredPlan(plan, tuple(map(tuple, lines)))


def _critical(events: Precedence) -> list[Message]:
    """Return the messages of a critical path, the last first."""
    at, _ = events.times()
    event = max(events.operation.values(), key=lambda each: at[each])
    messages: dict[Message, None] = {}
    while True:
        if event in events.message:
            messages[events.message[event]] = None
        tight = [other for other, ns in events.before[event] if at[other] + ns == at[event]]
        if not tight:
            return list(messages)
        event = tight[0]


def _moves(plan: Plan, sequence: _Sequence, message: Message) -> list[_Sequence]:
    """Return the orders in which a message is before, or after, its neighbour on its ranks."""
    ranks = {plan.placement[message.virtual_stage], plan.placement[message.receiver]}
    at = sequence.index(message)
    moves = []
    for step in (-1, 1):
        place = at + step
        while 0 <= place < len(sequence):
            item = sequence[place]
            if isinstance(item, Message):
                if ranks & {plan.placement[item.virtual_stage], plan.placement[item.receiver]}:
                    moved = [other for other in sequence if other != message]
                    moved.insert(place, message)
                    moves.append(moved)
                    break
            elif _bounds(item, message, plan):
                break
            place += step
    return moves


def _bounds(work: _Work, message: Message, plan: Plan) -> bool:
    """Return whether a step makes a message or needs it."""
    return any(
        message in (sent_by(operation, plan), needed_by(operation, plan))
        for operation in work.step.operations
    )
