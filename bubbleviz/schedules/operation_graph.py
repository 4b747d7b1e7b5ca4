"""A plan's dependency graph: its operations in topological order, and their predecessors.

For one microbatch on virtual stage v, F needs the F of v-1. B and BW need the F of v, and the B or
BW of v+1. W needs the B of v. In addition, each operation follows the previous operation on its
device::

    device 0   F0 ─── F1 ───────────── B0
                 └ lag ┐             ┌ lag
    device 1           F0 ─── B0 ────┘

Inputs from the same device need no separate edges, because each operation already follows the
previous operation on its device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bubbleviz.errors import MismatchError
from bubbleviz.model.columns import NONE
from bubbleviz.model.phases import Phase
from bubbleviz.schedules.plan import Order, Plan, PlannedOperation
from bubbleviz.schedules.timing import Edge

#: The output of an operation: (whether it is an activation, virtual stage, microbatch).
#: Outputs that are not activations are gradients.
_Result = tuple[bool, int, int]


@dataclass(frozen=True)
class OperationGraph:
    """The operations of a plan in topological order, along with their dependencies.

    If two operations run together, the second one follows the first, and the results of both are
    available when the second one ends.

    Attributes:
        device: Device index of each operation.
        operations: The operations.
        edges: For each operation, the edges to the operations that it follows. The edge to the
            previous operation on the device comes first, if there is one. The lag index of an
            activation is the virtual stage that produced it. For a gradient, the lag index is the
            virtual stage that produced it plus the number of virtual stages.
        last: Index of the last operation on each device. Devices without operations are left out.
    """

    device: tuple[int, ...]
    operations: tuple[PlannedOperation, ...]
    edges: tuple[tuple[Edge, ...], ...]
    last: tuple[int, ...]


def build_operation_graph(plan: Plan) -> OperationGraph:
    """Build the dependency graph of a plan's operations, in an order in which they can run.

    Raises:
        MismatchError: The plan deadlocks.
    """
    devices: list[int] = []
    operations: list[PlannedOperation] = []
    edges: list[tuple[Edge, ...]] = []
    producer: dict[_Result, int] = {}
    last_of_device: dict[int, int] = {}
    for device, group, inputs, results in _sort_topologically(plan):
        followed = [(last_of_device[device], NONE)] if device in last_of_device else []
        followed += _list_input_edges(plan, device, inputs, producer)
        for operation in group:
            devices.append(device)
            edges.append(tuple(followed))
            followed = [(len(operations), NONE)]
            operations.append(operation)
        last = len(operations) - 1
        last_of_device[device] = last
        producer.update(dict.fromkeys(results, last))
    return OperationGraph(
        tuple(devices), tuple(operations), tuple(edges), tuple(last_of_device.values())
    )


def _list_input_edges(
    plan: Plan, device: int, inputs: list[_Result], producer: dict[_Result, int]
) -> list[Edge]:
    """Return an edge for each input of an operation that comes from another device.

    Inputs from the same device need no edges (see the module docstring).

    Args:
        plan: The plan.
        device: Device of the operation.
        inputs: Results that are needed by the operation or the overlapping pair of operations.
        producer: Maps each result to the index of the operation that produces it.
    """
    edges = []
    for result in inputs:
        is_activation, stage, _ = result
        if plan.placement[stage] != device:
            lag = stage if is_activation else plan.virtual_stages + stage
            edges.append((producer[result], lag))
    return edges


def _sort_topologically(plan: Plan) -> Iterator[tuple[int, Order, list[_Result], list[_Result]]]:
    """Yield the operations in an order in which they can run.

    A stack contains the devices that may be able to continue. The device on top is popped and runs
    its operations until an input is missing. A device that receives a result is pushed onto the
    stack.

    Yields:
        The device, the operation or overlapping pair of operations, its inputs, and its results.

    Raises:
        MismatchError: The plan deadlocks.
    """
    stages = range(plan.virtual_stages)
    length = plan.virtual_stages // plan.replicas
    available: set[_Result] = set()
    n_run = [0] * plan.stages
    turns = list(range(plan.stages))
    while turns:
        device = turns.pop()
        order = plan.orders[device]
        while n_run[device] < len(order):
            group = _get_group(plan, order, n_run[device])
            inputs = [result for operation in group for result in _list_inputs(operation, length)]
            if not available.issuperset(inputs):
                break
            results = _list_results(group)
            yield device, group, inputs, results
            n_run[device] += len(group)
            available.update(results)
            for operation in group:
                if operation.phase is not Phase.W and operation.receiver in stages:
                    turns.append(plan.placement[operation.receiver])
    for device, (order, n_done) in enumerate(zip(plan.orders, n_run, strict=True)):
        if n_done < len(order):
            raise MismatchError(
                f"this order of operations deadlocks: device {device} waits forever for the input "
                f"of {order[n_done]}"
            )


def _get_group(plan: Plan, order: Order, index: int) -> Order:
    """Return the operation at ``index``, along with the next operation if the two run together."""
    is_pair = bool(plan.together) and order[index] in plan.together
    return order[index : index + 1 + is_pair]


def _list_results(group: Order) -> list[_Result]:
    """List the results of operations. A W has no result, because no other operation needs one."""
    return [
        (operation.phase is Phase.F, operation.virtual_stage, operation.microbatch)
        for operation in group
        if operation.phase is not Phase.W
    ]


def _list_inputs(operation: PlannedOperation, length: int) -> list[_Result]:
    """Return the results that an operation needs as inputs.

    Args:
        operation: The operation.
        length: Number of virtual stages in a pipeline.
    """
    stage, phase, microbatch = operation.virtual_stage, operation.phase, operation.microbatch
    if phase is Phase.F:
        return [(True, stage - 1, microbatch)] if stage % length else []
    if phase is Phase.W:
        return [(False, stage, microbatch)]
    is_last = (stage + 1) % length == 0
    gradient = [] if is_last else [(False, stage + 1, microbatch)]
    return [(True, stage, microbatch), *gradient]
