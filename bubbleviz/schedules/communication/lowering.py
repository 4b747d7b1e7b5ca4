"""Lowering: a plan gets its sends and receives, where PyTorch's runtimes have them, or faster."""

from __future__ import annotations

from collections import Counter, deque

from bubbleviz.errors import MismatchError
from bubbleviz.model.phases import Phase
from bubbleviz.schedules.communication import lowered as model
from bubbleviz.schedules.communication.deadlocks import check_order
from bubbleviz.schedules.communication.precedence import Precedence
from bubbleviz.schedules.communication.transports import BUFFERED, Transport
from bubbleviz.schedules.plan import Plan
from bubbleviz.schedules.timing import find_longest_path
from bubbleviz.schedules.workload import Workload

#: Maximum number of stages whose parameters PyTorch gathers ahead (``max_active_stages``).
_GATHERED = 3
#: A turn that a rank spends on its parameters or gradients (``UNSHARD``, ``RESHARD`` or
#: ``REDUCE_GRAD``). It takes no time and needs nothing, but it decides which rank sends first.
_PARAMETER_TURN = model.Step()


def lowered(plan: Plan) -> model.LoweredPlan:
    """Return the plan with its communication, as PyTorch's ``_PipelineScheduleRuntime`` lowers it.

    Ranks take turns, an operation each. A send follows its operation, and the receive is put
    where the receiving rank then is; so all sends and receives are in one common order, and no
    transport deadlocks. Receives are started as early as that allows, and an operation waits for
    its own (``_add_send_recv`` of ``torch.distributed.pipelining.schedules``).

    Raises:
        MismatchError: the order deadlocks; the circle in a sentence.
    """
    check_order(plan)
    todo = [deque(_with_parameter_turns(plan, steps)) for steps in model.steps_of(plan)]
    lines: list[list[model.Step]] = [[] for _ in todo]
    there: list[set[model.Message | None]] = [{None} for _ in todo]
    while any(todo):
        left = sum(map(len, todo))
        for device, steps in enumerate(todo):
            if not steps or not all(
                model.input_of(operation, plan) in there[device]
                for operation in steps[0].operations
            ):
                continue
            step = steps.popleft()
            if step is not _PARAMETER_TURN:
                lines[device].append(step)
            for operation in step.operations:
                message = model.output_of(operation, plan)
                there[device].add(message)
                if model.crosses(message, plan):
                    peer = plan.placement[message.receiver]
                    lines[device].append(
                        model.Step(transfers=(model.Transfer(message, sends=True),))
                    )
                    lines[peer].append(
                        model.Step(transfers=(model.Transfer(message, sends=False),))
                    )
                    there[peer].add(message)
        # Orders were checked; should one be stuck all the same, it must not take for ever.
        if sum(map(len, todo)) == left:
            raise MismatchError(f"the order of {plan.name} deadlocks; change it")
    return model.LoweredPlan(plan, tuple(map(tuple, lines)))


def _with_parameter_turns(plan: Plan, steps: tuple[model.Step, ...]) -> list[model.Step]:
    """Return the steps of a device with the turns that PyTorch spends on parameters and gradients.

    PyTorch gathers the parameters of the next stages and frees those of others
    (``_add_unshard_reshard``), and reduces gradients after the last backward of a stage
    (``_add_reduce_grad``).
    """
    # The stages that are computed next from each step on, soonest first.
    soon: list[int] = []
    upcoming = []
    for step in reversed(steps):
        computed = [operation.virtual_stage for operation in step.operations]
        soon = [*computed, *(stage for stage in soon if stage not in computed)]
        upcoming.append(soon[:_GATHERED])
    gathered: set[int] = set()
    n_backwards: Counter[int] = Counter()
    turns: list[model.Step] = []
    for step, needed in zip(steps, reversed(upcoming), strict=True):
        # Each stage that is freed or gathered takes a turn.
        turns += [_PARAMETER_TURN] * len(gathered ^ set(needed))
        gathered = set(needed)
        turns.append(step)
        for operation in step.operations:
            if operation.phase in (Phase.W, Phase.BW):
                n_backwards[operation.virtual_stage] += 1
                if n_backwards[operation.virtual_stage] == plan.microbatches:
                    turns.append(_PARAMETER_TURN)
    return turns + [_PARAMETER_TURN] * len(gathered)


# Reordering: sends and receives in the order of time, so that none waits for an unrelated one.
#
# PyTorch lowers a plan as if all operations took equally long. Where they do not, a receive can be
# started long before its message is sent, and on a stream what is behind it waits::
#
#     in turns    1RECV_B0 ─────────── waits ───────────┤ 1SEND_F3 ┤     rank 2 starves
#     by time     1SEND_F3 ┤ 1RECV_B0 ── waits ─────────┤
#
# Every order here comes from one common order of operations and messages, so none deadlocks.

#: Orders by time change the times; this often they are followed.
_ROUNDS = 8
#: Most orders that are timed to improve the best one, and most events in all of them.
_TRIALS, _EVENTS = 100, 500_000
#: What transfers cost is not sought to be less than this share.
_NOTHING = 1e-3


#: A step that computes, after its device.
_Work = tuple[int, model.Step]
#: The common order.
_Item = _Work | model.Message
_Sequence = list[_Item]


#: The communication of a plan, as :func:`communicated` returns it.
Communication = tuple[model.LoweredPlan, int, int]


def communicated(plan: Plan, workload: Workload, transport: Transport) -> Communication:
    """Return the fastest lowering that is found, its makespan, and that of PyTorch's own, in ns.

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
    # PyTorch's own order, where none is faster.
    best = search.events.lowered if search.makespan_ns < search.own_ns else search.own
    return best, makespan_ns, search.own_ns


class _Search:
    """The best order so far, but for PyTorch's own, in which no messages can be moved."""

    def __init__(self, plan: Plan, workload: Workload, transport: Transport) -> None:
        self.plan, self.workload, self.transport = plan, workload, transport
        self.own = lowered(plan)
        free = Precedence(self.own, BUFFERED, workload)
        self.least_ns = free.makespan_ns()
        place = {event: rank for rank, event in enumerate(free.order)}
        self.rank = {operation: place[event] for operation, event in free.operation.items()}
        self.work = [
            (device, step)
            for device, line in enumerate(self.own.lines)
            for step in line
            if step.operations
        ]
        self.sequence = self.by_time(free)
        self.own_ns = Precedence(self.own, transport, workload).makespan_ns()
        self.events = self.timed(self.sequence)
        self.makespan_ns = self.events.makespan_ns()

    @property
    def perfect(self) -> bool:
        """Whether hardly anything waits behind anything."""
        return min(self.own_ns, self.makespan_ns) <= self.least_ns * (1 + _NOTHING)

    def timed(self, sequence: _Sequence) -> Precedence:
        """Return the events of a common order."""
        lines: list[list[model.Step]] = [[] for _ in self.plan.orders]
        for item in sequence:
            if not isinstance(item, model.Message):
                device, computation = item
                lines[device].append(computation)
                continue
            for sends, stage in ((True, item.virtual_stage), (False, item.receiver)):
                step = model.Step(transfers=(model.Transfer(item, sends),))
                lines[self.plan.placement[stage]].append(step)
        made = model.LoweredPlan(self.plan, tuple(map(tuple, lines)))
        return Precedence(made, self.transport, self.workload)

    def offer(self, sequence: _Sequence, events: Precedence) -> bool:
        """Take an order if it is faster; return whether it is."""
        makespan_ns = events.makespan_ns()
        if makespan_ns >= self.makespan_ns:
            return False
        self.events, self.sequence, self.makespan_ns = events, sequence, makespan_ns
        return True

    def follow_times(self) -> None:
        """Put messages in order of when they are ready, again and again."""
        sequence, events = self.sequence, self.events
        for _ in range(max(1, min(_ROUNDS, _EVENTS // max(1, len(events.edges))))):
            following = self.by_time(events)
            if self.perfect or following == sequence:
                return
            sequence, events = following, self.timed(following)
            self.offer(sequence, events)

    def by_time(self, events: Precedence) -> _Sequence:
        """Return work by when it starts, and messages by when they are ready."""
        keyed: list[tuple[int, float, _Item]] = []
        for work in self.work:
            # What runs together receives all inputs before, and sends both results after.
            operations = work[1].operations
            last = operations[-1]
            event, rank = events.operation[last], self.rank[last]
            end = events.times_ns[event]
            keyed.append((end - events.own_ns[event], rank, work))
            made = (model.output_of(operation, self.plan) for operation in operations)
            for place, message in enumerate(m for m in made if model.crosses(m, self.plan)):
                keyed.append((end, rank + 0.25 * (place + 1), message))
        keyed.sort(key=lambda item: item[:2])
        return [item for _, _, item in keyed]

    def move_messages(self) -> None:
        """Move messages of the critical path past others of their ranks, as long as that helps."""
        trials = max(1, min(_TRIALS, _EVENTS // max(1, len(self.events.edges))))
        improved = True
        while improved and not self.perfect:
            improved = False
            for message in _critical_messages(self.events):
                for moved in _moves(self.plan, self.sequence, message):
                    trials -= 1
                    if self.offer(moved, self.timed(moved)):
                        improved = True
                        break
                    if not trials:
                        return
                if improved:
                    break


def _critical_messages(events: Precedence) -> list[model.Message]:
    """Return the messages of a critical path, the last one first."""
    last = max(events.operation.values(), key=lambda event: events.times_ns[event])
    path = find_longest_path(last, events.edges, events.times_ns, events.own_ns, events.lags_ns)
    messages = (events.message[event] for event, _ in path if event in events.message)
    return list(dict.fromkeys(messages))


def _moves(plan: Plan, sequence: _Sequence, message: model.Message) -> list[_Sequence]:
    """Return the orders in which a message is before, or after, its neighbour on its ranks."""

    def ranks_of(item: model.Message) -> set[int]:
        return {plan.placement[item.virtual_stage], plan.placement[item.receiver]}

    at, moves = sequence.index(message), []
    for step in (-1, 1):
        place = at + step
        while 0 <= place < len(sequence):
            item = sequence[place]
            if isinstance(item, model.Message):
                if ranks_of(message) & ranks_of(item):
                    moved = [other for other in sequence if other != message]
                    moved.insert(place, message)
                    moves.append(moved)
                    break
            elif any(
                message in (model.output_of(operation, plan), model.input_of(operation, plan))
                for operation in item[1].operations
            ):
                break  # It is made there, or needed.
            place += step
    return moves
