"""Lowering: a plan gets its sends and receives, where PyTorch's runtimes have them."""

from __future__ import annotations

from collections import Counter, deque

from bubbleviz.errors import MismatchError, UsageError
from bubbleviz.model.phases import Phase
from bubbleviz.schedules.communication.lowered import (
    LoweredPlan,
    Message,
    Step,
    Transfer,
    local_input,
    needed_by,
    sent_by,
)
from bubbleviz.schedules.communication.precedence import check_order
from bubbleviz.schedules.plan import Order, Plan, PlannedOperation

#: Stages whose parameters PyTorch gathers ahead (``max_active_stages`` of its lowering).
_GATHERED = 3


def lowered(plan: Plan) -> LoweredPlan:
    """Return the plan with its communication, as PyTorch's ``_PipelineScheduleRuntime`` lowers it.

    Ranks take turns, an operation each. A send follows its operation, and the receive is put
    where the receiving rank then is; so all sends and receives are in one common order, and no
    transport deadlocks. Receives are started as early as that allows, and an operation waits for
    its own (``_add_send_recv`` of ``torch.distributed.pipelining.schedules``).

    Raises:
        MismatchError: the order deadlocks; the cycle in a sentence.
    """
    check_order(plan)
    todo = [deque(_with_parameters(plan, order)) for order in plan.orders]
    lines: list[list[Step]] = [[] for _ in todo]
    there: list[set[Message]] = [set() for _ in todo]
    while any(todo):
        left = sum(map(len, todo))
        for device, steps in enumerate(todo):
            if not steps or not _ready(steps[0], plan, there[device]):
                continue
            step = steps.popleft()
            lines[device].append(step)
            for operation in step.operations:
                there[device].update(_outputs(operation))
                message = sent_by(operation, plan)
                if message is not None:
                    peer = plan.placement[message.receiver]
                    lines[device].append(Step(transfers=(Transfer(message, sends=True),)))
                    lines[peer].append(Step(transfers=(Transfer(message, sends=False),)))
                    there[peer].add(message)
        # Orders were checked; should one be stuck all the same, it must not take for ever.
        if sum(map(len, todo)) == left:
            raise MismatchError(f"the order of {plan.name} deadlocks; change it")
    return LoweredPlan(plan, tuple(map(tuple, lines)))


def batched(plan: Plan, *, waits_for_sends: bool = False) -> LoweredPlan:
    """Return a plan of one stage a device as batched point-to-point operations run it.

    1F1B starts the send of one operation and the receive of the next together and waits for both
    (``Schedule1F1B`` of PyTorch, ``forward_backward_pipelining_without_interleaving`` of
    Megatron-LM); receives alone are waited for at once.

    Args:
        plan: with whole backwards; where all forwards come first it runs as PyTorch's GPipe.
        waits_for_sends: wait for each send at once, as Megatron-LM does, rather than before the
            next one.

    Raises:
        UsageError: a device has several stages, or the order has a W.
        MismatchError: the order deadlocks.
    """
    if plan.chunks > 1 or plan.replicas > 1:
        raise UsageError(f"{plan.name} has several stages a rank; batched operations have one")
    if any(op.phase is Phase.W for order in plan.orders for op in order):
        raise UsageError(f"{plan.name} splits backwards; batched operations run whole ones")
    check_order(plan)
    fused = not all(_forwards_first(order) for order in plan.orders)
    lines = (
        tuple(_batched_line(order, plan, fused=fused, waits_for_sends=waits_for_sends))
        for order in plan.orders
    )
    return LoweredPlan(plan, tuple(lines))


def _ready(step: Step, plan: Plan, there: set[Message]) -> bool:
    """Return whether the inputs of a step are there, or their receives are in the line."""
    for operation in step.operations:
        message = needed_by(operation, plan) or local_input(operation, plan)
        if message is not None and message not in there:
            return False
    return True


def _outputs(operation: PlannedOperation) -> tuple[Message, ...]:
    if operation.phase is Phase.W:
        return ()
    phase = Phase.F if operation.phase is Phase.F else Phase.B
    return (Message(operation.virtual_stage, phase, operation.microbatch),)


def _with_parameters(plan: Plan, order: Order) -> list[Step]:
    """Return the steps of an order, with what PyTorch does to the parameters of each stage.

    They are gathered for the next stages and freed for others, which only FSDP's modules do
    (``_add_unshard_reshard``), and gradients are scaled and reduced after a stage's last backward
    (``_add_reduce_grad``).
    """
    steps, pair = [], []
    for operation in order:
        pair.append(operation)
        if operation not in plan.together:
            steps.append(Step(operations=tuple(pair)))
            pair = []
    upcoming = _upcoming_stages(steps)
    gathered: list[int] = []
    count: Counter[int] = Counter()
    result: list[Step] = []
    for step, soon in zip(steps, upcoming, strict=True):
        away = [stage for stage in sorted(gathered) if stage not in soon]
        result += [Step(parameters=f"{stage}RESHARD") for stage in away]
        new = [stage for stage in soon if stage not in gathered]
        result += [Step(parameters=f"{stage}UNSHARD") for stage in new]
        gathered = [stage for stage in gathered if stage in soon] + new
        result.append(step)
        for operation in step.operations:
            if operation.phase in (Phase.W, Phase.BW):
                count[operation.virtual_stage] += 1
                if count[operation.virtual_stage] == plan.microbatches:
                    result.append(Step(parameters=f"{operation.virtual_stage}REDUCE_GRAD"))
    # PyTorch frees before it counts backwards, so the last reduction stands before the last frees.
    return result + [Step(parameters=f"{stage}RESHARD") for stage in sorted(gathered)]


def _upcoming_stages(steps: list[Step]) -> list[list[int]]:
    """Return the stages that are computed next from each step on, soonest first."""
    soon: list[int] = []
    upcoming = []
    for step in reversed(steps):
        own = [operation.virtual_stage for operation in step.operations]
        soon = [*own, *(stage for stage in soon if stage not in own)]
        upcoming.append(soon[:_GATHERED])
    return upcoming[::-1]


def _batched_line(order: Order, plan: Plan, *, fused: bool, waits_for_sends: bool) -> list[Step]:
    """Return one line.

    Args:
        order: of the device.
        plan: that it is of.
        fused: whether a send goes with the receive of the next operation where forwards and
            backwards alternate, as in 1F1B; in GPipe none does.
        waits_for_sends: whether the other sends are waited for at once.
    """
    line: list[Step] = []
    sent: tuple[Transfer, ...] = ()  # started, to be waited for before the next one
    held: tuple[Transfer, ...] = ()  # to be started with the next receive
    for place, operation in enumerate(order):
        together = held + _end(needed_by(operation, plan), sends=False)
        if together:
            line.append(Step(transfers=together, awaited=together))
        line.append(Step(operations=(operation,)))
        if sent and fused:
            line.append(Step(awaited=sent))
            sent = ()
        made, held = _end(sent_by(operation, plan), sends=True), ()
        following = order[place + 1 : place + 2]
        if fused and following and following[0].phase is not operation.phase:
            held = made
        elif made:
            line.append(Step(transfers=made, awaited=made if waits_for_sends else ()))
            sent += () if waits_for_sends else made
        if sent and not fused and following and following[0].phase is not operation.phase:
            line.append(Step(awaited=sent))
            sent = ()
    return [*line, Step(awaited=sent)] if sent else line


def _forwards_first(order: Order) -> bool:
    forward = [operation.phase is Phase.F for operation in order]
    return forward == sorted(forward, reverse=True)


def _end(message: Message | None, *, sends: bool) -> tuple[Transfer, ...]:
    return () if message is None else (Transfer(message, sends),)
