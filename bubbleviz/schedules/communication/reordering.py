"""Reordering: sort sends and receives by time so that no transfer waits for an unrelated one.

PyTorch lowers a plan as if all operations took equally long. If operations take different times, a
receive can start long before its message is sent, and block later transfers on the same stream::

    in turns    1RECV_B0 ─────────── waits ───────────┤ 1SEND_F3 ┤     rank 2 starves
    by time     1SEND_F3 ┤ 1RECV_B0 ── waits ─────────┤

This module derives the steps of all ranks from one common order of operations and messages, so that
the resulting plans never deadlock.
"""

from __future__ import annotations

from bubbleviz.progress import Watch, unwatched
from bubbleviz.schedules.communication import lowered as model
from bubbleviz.schedules.communication.lowering import lower_plan
from bubbleviz.schedules.communication.precedence import Precedence
from bubbleviz.schedules.communication.transports import BUFFERED, Transport
from bubbleviz.schedules.plan import Plan
from bubbleviz.schedules.timing import find_longest_path
from bubbleviz.schedules.workload import Workload

#: Maximum number of rounds.
#: Each round sorts messages by time, which changes the times again.
_MAX_ROUNDS = 8
#: Maximum number of orders that a search tries, and maximum number of events that it times.
_MAX_TRIALS, _MAX_EVENTS = 100, 500_000
#: The search stops once messages slow down the plan by at most this fraction.
_NEGLIGIBLE = 1e-3


#: A step of a device, as a (device index, step) pair.
_Work = tuple[int, model.Step]
#: An entry of the common order of all devices.
_Item = _Work | model.Message
_Sequence = list[_Item]


#: A lowered plan, its makespan, and the makespan of PyTorch's lowering, both in ns.
Communication = tuple[model.LoweredPlan, int, int]


def order_messages(
    plan: Plan, workload: Workload, transport: Transport, watch: Watch = unwatched
) -> Communication:
    """Search for the order of sends and receives that makes a plan as fast as possible.

    The order of operations on each device does not change. The search has three steps:

    1. Time PyTorch's lowering (:func:`.lower_plan`), and an order in which messages are sorted by
       the time at which they would be ready if messages never delayed each other.
    2. Sort the messages again by the resulting times, for up to ``_MAX_ROUNDS`` rounds.
    3. Move single messages on the critical path past another message of the same rank, and keep a
       move if the plan gets faster.

    The search stops early once messages slow down the plan by at most the fraction ``_NEGLIGIBLE``.
    On the ``buffered`` transport, messages do not delay each other, so steps 2 and 3 are skipped.

    Args:
        plan: Operations of each device, in order.
        workload: Durations of operations and messages.
        transport: How messages are transferred between ranks.
        watch: Callback that receives the completed fraction of the search.

    Returns:
        lowered: The fastest lowered plan that was found, or PyTorch's lowering if no plan is
            faster.
        makespan_ns: Makespan of ``lowered``.
        torch_ns: Makespan of PyTorch's lowering.

    Raises:
        MismatchError: The order of the plan deadlocks.
    """
    search = _Search(plan, workload, transport)
    if transport != BUFFERED and not search.is_perfect:
        search.follow_times()
        search.move_messages(watch)
    makespan_ns = min(search.makespan_ns, search.torch_ns)
    is_faster = search.makespan_ns < search.torch_ns
    best = search.events.lowered if is_faster else search.torch_lowered
    return best, makespan_ns, search.torch_ns


class _Search:
    """The state of the search: the best common order so far, and PyTorch's lowering.

    Attributes:
        torch_lowered: PyTorch's lowering, which is never changed.
        torch_ns: Makespan of PyTorch's lowering.
        least_ns: Makespan that the plan would have if messages never delayed each other.
        rank: Position of each operation in a topological order of all devices.
        work: (device, step) pairs for all steps in which a device computes.
        sequence: The best common order of operations and messages.
        events: Events of the plan as lowered with ``sequence``.
        makespan_ns: Makespan of the plan as lowered with ``sequence``.
    """

    def __init__(self, plan: Plan, workload: Workload, transport: Transport) -> None:
        self.plan, self.workload, self.transport = plan, workload, transport
        self._transfer_steps: dict[model.Message, list[_Work]] = {}
        self.torch_lowered = lower_plan(plan)
        unconstrained = Precedence(self.torch_lowered, BUFFERED, workload)
        self.least_ns = unconstrained.makespan_ns()
        event_position = {event: rank for rank, event in enumerate(unconstrained.order)}
        self.rank = {
            operation: event_position[event] for operation, event in unconstrained.operation.items()
        }
        self.work = [
            (device, step)
            for device, line in enumerate(self.torch_lowered.lines)
            for step in line
            if step.operations
        ]
        self.sequence = self.sort_by_time(unconstrained)
        self.torch_ns = Precedence(self.torch_lowered, transport, workload).makespan_ns()
        self.events = self.time_sequence(self.sequence)
        self.makespan_ns = self.events.makespan_ns()

    @property
    def is_perfect(self) -> bool:
        """Whether the best makespan is nearly as short as if messages never delayed each other."""
        return min(self.torch_ns, self.makespan_ns) <= self.least_ns * (1 + _NEGLIGIBLE)

    def time_sequence(self, sequence: _Sequence) -> Precedence:
        """Lower the plan using a common order, and return its events with their times.

        Each message in the order becomes two steps: a send on one rank, and a receive on the other
        rank.
        """
        lines: list[list[model.Step]] = [[] for _ in self.plan.orders]
        for item in sequence:
            if not isinstance(item, model.Message):
                device, computation = item
                lines[device].append(computation)
                continue
            for device, step in self._get_transfer_steps(item):
                lines[device].append(step)
        lowered = model.LoweredPlan(self.plan, tuple(map(tuple, lines)))
        return Precedence(lowered, self.transport, self.workload)

    def _get_transfer_steps(self, message: model.Message) -> list[_Work]:
        """Return the (device, step) pairs that send and receive a message."""
        steps = self._transfer_steps.get(message)
        if steps is None:
            steps = [
                (
                    self.plan.placement[stage],
                    model.Step(transfers=(model.Transfer(message, sends),)),
                )
                for sends, stage in ((True, message.virtual_stage), (False, message.receiver))
            ]
            self._transfer_steps[message] = steps
        return steps

    def keep_if_faster(self, sequence: _Sequence, events: Precedence) -> bool:
        """Keep an order if it is faster than the best so far, and return whether it was kept."""
        makespan_ns = events.makespan_ns()
        if makespan_ns >= self.makespan_ns:
            return False
        self.events, self.sequence, self.makespan_ns = events, sequence, makespan_ns
        return True

    def follow_times(self) -> None:
        """Sort the messages by time, and repeat as long as the order changes.

        Sorting changes the times, so the sorted order must be timed again in each round. The
        fastest order is kept. The loop also ends if :attr:`is_perfect` is true, or after the
        maximum number of rounds.
        """
        sequence, events = self.sequence, self.events
        for _ in range(max(1, min(_MAX_ROUNDS, _MAX_EVENTS // max(1, len(events.edges))))):
            following = self.sort_by_time(events)
            if self.is_perfect or following == sequence:
                return
            sequence, events = following, self.time_sequence(following)
            self.keep_if_faster(sequence, events)

    def sort_by_time(self, events: Precedence) -> _Sequence:
        """Return a common order of operations and messages, sorted by time.

        The sort key of a step is the start time of its last operation. The sort key of a message is
        the end time of the step that computes it. At equal times, the topological order of the
        operations decides.
        """
        keyed: list[tuple[int, float, _Item]] = []
        for work in self.work:
            # Operations that run together first receive all inputs, and send both results at the
            # end.
            operations = work[1].operations
            last = operations[-1]
            event, rank = events.operation[last], self.rank[last]
            end = events.times_ns[event]
            keyed.append((end - events.own_ns[event], rank, work))
            outputs = (model.get_output(operation, self.plan) for operation in operations)
            for output_index, message in enumerate(
                m for m in outputs if model.crosses(m, self.plan)
            ):
                keyed.append((end, rank + 0.25 * (output_index + 1), message))
        keyed.sort(key=lambda item: item[:2])
        return [item for _, _, item in keyed]

    def move_messages(self, watch: Watch) -> None:
        """Move messages on the critical path past other messages that share a rank with them.

        The first move that makes the plan faster is kept, and the search continues with the new
        critical path. The search ends if no move makes the plan faster, if :attr:`is_perfect` is
        true, or after the maximum number of trials.

        Args:
            watch: Callback that receives the completed fraction of the trials.
        """
        n_trials = max(1, min(_MAX_TRIALS, _MAX_EVENTS // max(1, len(self.events.edges))))
        n_trials_left = n_trials
        improved = True
        while improved and not self.is_perfect:
            improved = False
            for message in _find_critical_messages(self.events):
                for candidate in _list_moves(self.plan, self.sequence, message):
                    n_trials_left -= 1
                    watch(1 - n_trials_left / n_trials)
                    if self.keep_if_faster(candidate, self.time_sequence(candidate)):
                        improved = True
                        break
                    if not n_trials_left:
                        return
                if improved:
                    break


def _find_critical_messages(events: Precedence) -> list[model.Message]:
    """Return the messages on a critical path, last one first."""
    last = max(events.operation.values(), key=lambda event: events.times_ns[event])
    path = find_longest_path(last, events.edges, events.times_ns, events.own_ns, events.lags_ns)
    messages = (events.message[event] for event, _ in path if event in events.message)
    return list(dict.fromkeys(messages))


def _list_moves(plan: Plan, sequence: _Sequence, message: model.Message) -> list[_Sequence]:
    """Return up to two copies of an order in which one message is moved earlier or later.

    In one copy, the message is moved before the previous message that involves one of its ranks. In
    the other copy, it is moved after the next message that does. A copy is left out in two cases:

    - There is no previous or next message that involves one of its ranks.
    - The message would be moved past a step that computes or needs it.
    """

    def get_ranks(item: model.Message) -> set[int]:
        return {plan.placement[item.virtual_stage], plan.placement[item.receiver]}

    position, moves = sequence.index(message), []
    for step in (-1, 1):
        target = position + step
        while 0 <= target < len(sequence):
            item = sequence[target]
            if isinstance(item, model.Message):
                if get_ranks(message) & get_ranks(item):
                    reordered = [other for other in sequence if other != message]
                    reordered.insert(target, message)
                    moves.append(reordered)
                    break
            elif any(
                message in (model.get_output(operation, plan), model.get_input(operation, plan))
                for operation in item[1].operations
            ):
                break  # The step computes the message or needs it.
            target += step
    return moves
