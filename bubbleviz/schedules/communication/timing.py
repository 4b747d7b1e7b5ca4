"""Timing: when operations and messages of a lowered plan run, at the times of a workload."""

from __future__ import annotations

from bubbleviz.errors import MismatchError
from bubbleviz.model.phases import Phase
from bubbleviz.model.values import frozen
from bubbleviz.schedules.communication.lowered import LoweredPlan, Message, Transport
from bubbleviz.schedules.communication.precedence import (
    OperationTime,
    Precedence,
    TransferTime,
    check_lowered,
    of_lines,
)
from bubbleviz.schedules.plan import PlannedOperation
from bubbleviz.schedules.workload import Workload


@frozen
class LoweredTiming:
    """When a lowered plan runs, in nanoseconds from the start of its first operation.

    Attributes:
        makespan_ns: to the end of the last operation.
        start_ns: of each operation of a device's line, in its order; one tuple a device.
        end_ns: likewise, exclusive.
        waited_ns: by device, how long it waits in its line, before its first operation too.
    """

    makespan_ns: int
    start_ns: tuple[tuple[int, ...], ...]
    end_ns: tuple[tuple[int, ...], ...]
    waited_ns: tuple[int, ...]


def timing_of(lowered: LoweredPlan, workload: Workload, transport: Transport) -> LoweredTiming:
    """Return when a lowered plan runs.

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
    events = of_lines(lowered, transport, operation_times(workload), transfer_times(workload))
    return _timing(lowered, events)


def operation_times(workload: Workload) -> OperationTime:
    """Return how long an operation takes."""
    times = {
        Phase.F: workload.forward_ns,
        Phase.B: workload.backward_ns,
        Phase.W: workload.weight_ns,
        Phase.BW: workload.fused_ns,
    }

    def operation_ns(operation: PlannedOperation) -> int:
        return times[operation.phase][operation.virtual_stage]

    return operation_ns


def transfer_times(workload: Workload) -> TransferTime:
    """Return how long a message is on its way."""

    def transfer_ns(message: Message) -> int:
        edges = workload.down_ns if message.phase is Phase.F else workload.up_ns
        return edges[message.virtual_stage]

    return transfer_ns


def _timing(lowered: LoweredPlan, events: Precedence) -> LoweredTiming:
    at, _ = events.times()
    starts, ends, waited = [], [], []
    for order in lowered.plan.orders:
        end = [at[events.operation[operation]] for operation in order]
        start = [at[events.operation[operation]] - events.time[operation] for operation in order]
        starts.append(start)
        ends.append(end)
        waited.append(max(end, default=0) - sum(events.time[operation] for operation in order))
    first = min((start for each in starts for start in each), default=0)
    last = max((end for each in ends for end in each), default=0)
    return LoweredTiming(
        last - first,
        tuple(tuple(start - first for start in each) for each in starts),
        tuple(tuple(end - first for end in each) for each in ends),
        tuple(ns - first for ns in waited),
    )
