"""Precedence graph of the events in a lowered plan, and the time of each event.

Events are the ends of operations, and the starts and ends of transfers. The edges do not depend on
times, because messages match in FIFO order. A plan deadlocks if the graph has a cycle. Otherwise,
each event happens as soon as all of its predecessors have happened and the corresponding lags have
passed.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise

from bubbleviz.model.columns import NONE
from bubbleviz.model.phases import Phase
from bubbleviz.schedules.communication.lowered import (
    LoweredPlan,
    Message,
    Step,
    Transfer,
    get_cell,
    get_input,
    get_output,
)
from bubbleviz.schedules.communication.transports import Transport
from bubbleviz.schedules.plan import PlannedOperation
from bubbleviz.schedules.timing import Edge, compute_ends, order_rows
from bubbleviz.schedules.workload import Workload, get_phase_times


class Precedence:
    """The events in a lowered plan, and which events each event waits for.

    Args:
        lowered: Lowered plan whose messages match (see :func:`.check_messages`). If the plan
            contains no transfers, results arrive as soon as they are computed.
        transport: The transport, which determines what transfers wait for.
        workload: Operation and transfer times, or None if nothing takes time.

    Attributes:
        device: Index of each event's device.
        edges: For each event, the edges to the events that it waits for.
        own_ns: Duration of the operation that ends with each event, or 0 if no operation ends with
            it.
        lags_ns: Lag times, which edges refer to by index.
        operation: Maps each operation to the event that marks its end.
        message: Maps each event that starts or ends a transfer to the message that is transferred.
    """

    def __init__(
        self, lowered: LoweredPlan, transport: Transport, workload: Workload | None = None
    ) -> None:
        self.lowered, self.transport, self._workload = lowered, transport, workload
        self.device: list[int] = []
        self._named: list[PlannedOperation | Transfer | None] = []
        self.edges: list[list[Edge]] = []
        self.own_ns: list[int] = []
        self.lags_ns: list[int] = []
        self.operation: dict[PlannedOperation, int] = {}
        self.message: dict[int, Message] = {}
        self._started: dict[Transfer, int] = {}
        self._complete: dict[Transfer, int] = {}
        self._add_events()
        #: For each message, the event at which it is computed.
        self._computed = {
            message: end
            for operation, end in self.operation.items()
            if (message := get_output(operation, lowered.plan)) is not None
        }
        if not self._started:
            self._delay_overlapped_results()
        for device, line in enumerate(lowered.lines):
            self._add_waits(device, line)
        self._add_message_waits()
        for line in lowered.lines:
            self._add_queue_waits(line)

    @cached_property
    def order(self) -> list[int]:
        """The events in topological order, without events that are on or wait for a cycle."""
        return order_rows(self.edges)

    @cached_property
    def times_ns(self) -> list[int]:
        """Time of each event, or 0 for an event that never happens."""
        return compute_ends(self.edges, self.own_ns, self.lags_ns, self.order)

    @cached_property
    def text(self) -> list[str]:
        """Name of each event in PyTorch's CSV notation, for example ``0SEND_F3``.

        The name is empty if the device only waits.
        """
        return [
            get_cell(named) if isinstance(named, PlannedOperation) else str(named or "")
            for named in self._named
        ]

    def makespan_ns(self) -> int:
        """Return the time from the first start of an operation to the last end."""
        ends_ns = [self.times_ns[event] for event in self.operation.values()]
        starts_ns = [self.times_ns[event] - self.own_ns[event] for event in self.operation.values()]
        return max(ends_ns, default=0) - min(starts_ns, default=0)

    def _add_event(
        self, device: int, named: PlannedOperation | Transfer | None = None, own_ns: int = 0
    ) -> int:
        """Add an event without edges, and return its index."""
        self.device.append(device)
        self._named.append(named)
        self.own_ns.append(own_ns)
        self.edges.append([])
        return len(self.edges) - 1

    def _add_edge(self, event: int, awaited: int, lag_ns: int = 0) -> None:
        """Add an edge: an event happens no earlier than ``lag_ns`` after ``awaited``."""
        lag = NONE
        if lag_ns:
            lag = len(self.lags_ns)
            self.lags_ns.append(lag_ns)
        self.edges[event].append((awaited, lag))

    def _add_events(self) -> None:
        """Add one event per operation and two per transfer (started, complete), without edges."""
        times = None if self._workload is None else get_phase_times(self._workload)
        for device, line in enumerate(self.lowered.lines):
            for step in line:
                for operation in step.operations:
                    own_ns = times[operation.phase][operation.virtual_stage] if times else 0
                    self.operation[operation] = self._add_event(device, operation, own_ns)
                for transfer in step.transfers:
                    for events in (self._complete, self._started):
                        events[transfer] = self._add_event(device, transfer)
                        self.message[events[transfer]] = transfer.message

    def _get_transfer_ns(self, message: Message) -> int:
        """Return the transfer time of a message, or 0 if there is no workload."""
        if self._workload is None:
            return 0
        is_activation = message.phase is Phase.F
        edges = self._workload.down_ns if is_activation else self._workload.up_ns
        return edges[message.virtual_stage]

    def _delay_overlapped_results(self) -> None:
        """Delay the results of two overlapping operations until both have ended."""
        plan = self.lowered.plan
        for device, order in enumerate(plan.orders):
            for operation, following in pairwise(order):
                if operation in plan.together:
                    computed = self._add_event(device, operation)
                    self._add_edge(computed, self.operation[following])
                    message = get_output(operation, plan)
                    if message is not None:
                        self._computed[message] = computed

    def _add_waits(self, device: int, line: tuple[Step, ...]) -> None:
        """Make each event on a device wait for the device's previous event and for its own inputs.

        A send waits for the operation that computes its message. If a step awaits transfers, an
        extra event after the step waits for the transfers to complete, and the next event follows
        it.
        """
        last: list[int] = []
        for step in line:
            for operation in step.operations:
                end = self.operation[operation]
                # The first operation on a device follows an event that represents the start of the
                # device.
                for event in last + self._find_inputs(operation) or [self._add_event(device)]:
                    self._add_edge(end, event)
                last = [end]
            for transfer in step.transfers:
                start = self._started[transfer]
                computed = self._computed.get(transfer.message) if transfer.sends else None
                for event in last if computed is None else [*last, computed]:
                    self._add_edge(start, event)
                last = [start]
            awaited = step.transfers if self.transport.blocking else step.awaited
            if awaited:
                wait = self._add_event(device)
                for event in (*last, *(self._complete[transfer] for transfer in awaited)):
                    self._add_edge(wait, event)
                last = [wait]

    def _find_inputs(self, operation: PlannedOperation) -> list[int]:
        """Return the events at which the inputs of an operation arrive.

        A B or BW needs the end of the F on the same virtual stage, and a W needs the end of the B.
        F, B and BW also need a message from the neighboring virtual stage, if there is one. The
        message arrives once its receive is complete. A message that is not transferred arrives as
        soon as it is computed.
        """
        stage, microbatch = operation.virtual_stage, operation.microbatch
        local_phase = Phase.B if operation.phase is Phase.W else Phase.F
        local = self.operation.get(PlannedOperation(stage, local_phase, microbatch))
        if operation.phase is Phase.F:
            local = None
        message = get_input(operation, self.lowered.plan)
        remote = None
        if message is not None:
            receive = Transfer(message, sends=False)
            remote = self._complete.get(receive, self._computed.get(message))
        # Without transfers, the description of a deadlock mentions the input from another rank
        # first.
        inputs = (local, remote) if self._started else (remote, local)
        return [event for event in inputs if event is not None]

    def _add_message_waits(self) -> None:
        """Add the durations of transfers, and the edges between the two ends of each message.

        A receive always waits for its send. On rendezvous transports, a send also waits for its
        receive. On all other transports, the data is buffered, and a receive that starts after the
        data has arrived completes immediately.
        """
        rendezvous = self.transport.rendezvous
        for send in [transfer for transfer in self._started if transfer.sends]:
            receive = Transfer(send.message, sends=False)
            transfer_ns = self._get_transfer_ns(send.message)
            self._add_edge(self._complete[send], self._started[send], transfer_ns)
            self._add_edge(self._complete[receive], self._started[send], transfer_ns)
            lag_ns = transfer_ns if rendezvous else 0
            self._add_edge(self._complete[receive], self._started[receive], lag_ns)
            if rendezvous:
                self._add_edge(self._complete[send], self._started[receive], transfer_ns)

    def _add_queue_waits(self, line: tuple[Step, ...]) -> None:
        """Make each transfer on a device wait for the previous transfers in its queue.

        On transports with streams, there is one queue per peer. A transfer then starts only once
        the previous transfers in the queue are complete, so its other end is delayed as well.

        On all other transports, there is one queue per peer and direction.
        """
        streams = self.transport.streams
        ahead: dict[tuple[int, bool], list[int]] = {}
        for step in line:
            queued: dict[tuple[int, bool], list[int]] = {}
            for transfer in step.transfers:
                queue = self.lowered.peer(transfer), transfer.sends and not streams
                queued.setdefault(queue, []).append(self._complete[transfer])
                lag_ns = self._get_transfer_ns(transfer.message) if streams else 0
                other_end = Transfer(transfer.message, not transfer.sends)
                for end in (transfer, other_end) if streams else (transfer,):
                    for event in ahead.get(queue, []):
                        self._add_edge(self._complete[end], event, lag_ns)
            ahead.update(queued)
