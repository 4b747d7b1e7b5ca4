"""Lowering: add sends and receives to a plan at the same positions as PyTorch's runtime does."""

from __future__ import annotations

from collections import Counter, deque

from bubbleviz.errors import MismatchError
from bubbleviz.model.phases import Phase
from bubbleviz.schedules.communication import lowered as model
from bubbleviz.schedules.communication.deadlocks import check_order
from bubbleviz.schedules.plan import Plan

#: Maximum number of stages whose parameters PyTorch gathers ahead (``max_active_stages``).
_MAX_GATHERED = 3
#: A turn for ``UNSHARD``, ``RESHARD`` or ``REDUCE_GRAD``. Such a turn takes no time and has no
#: inputs, but it affects which rank sends first.
_PARAMETER_TURN = model.Step()


def lower_plan(plan: Plan) -> model.LoweredPlan:
    """Add sends and receives to a plan, as PyTorch's ``_PipelineScheduleRuntime`` does.

    The algorithm follows ``_add_send_recv`` of ``torch.distributed.pipelining.schedules``:

    - The ranks take turns, one operation at a time. A rank is skipped while an input of its next
      operation is missing.
    - A send is added directly after the operation that computes the message.
    - At the same time, the receive is added after the receiving rank's last step so far.

    All sends and receives therefore follow one common order, so the plan cannot deadlock on any
    transport. An operation waits only for its own receives.

    Raises:
        MismatchError: The order deadlocks. The error message describes the cycle.
    """
    check_order(plan)
    remaining_steps = [deque(_add_parameter_turns(plan, steps)) for steps in model.list_steps(plan)]
    lines: list[list[model.Step]] = [[] for _ in remaining_steps]
    available: list[set[model.Message | None]] = [{None} for _ in remaining_steps]
    while any(remaining_steps):
        n_remaining = sum(map(len, remaining_steps))
        for device, steps in enumerate(remaining_steps):
            if not steps or not all(
                model.get_input(operation, plan) in available[device]
                for operation in steps[0].operations
            ):
                continue
            step = steps.popleft()
            if step is not _PARAMETER_TURN:
                lines[device].append(step)
            for operation in step.operations:
                message = model.get_output(operation, plan)
                available[device].add(message)
                if model.crosses(message, plan):
                    peer = plan.placement[message.receiver]
                    lines[device].append(
                        model.Step(transfers=(model.Transfer(message, sends=True),))
                    )
                    lines[peer].append(
                        model.Step(transfers=(model.Transfer(message, sends=False),))
                    )
                    available[peer].add(message)
        # The order was checked, but an error in this loop must not make the loop endless.
        if sum(map(len, remaining_steps)) == n_remaining:
            raise MismatchError(f"the order of {plan.name} deadlocks; reorder its operations")
    return model.LoweredPlan(plan, tuple(map(tuple, lines)))


def _add_parameter_turns(plan: Plan, steps: tuple[model.Step, ...]) -> list[model.Step]:
    """Insert the steps in which PyTorch handles parameters and gradients instead of computing.

    These steps matter because ranks take turns (see :func:`lower_plan`), and each of these steps
    takes a turn. There is one step per stage for each of these actions:

    - Gather the parameters of the stages that are computed next, for at most ``_MAX_GATHERED``
      stages.
    - Free the parameters of all other stages (``_add_unshard_reshard``).
    - Reduce the gradients of a stage after its last backward (``_add_reduce_grad``).
    """
    # For each step, the stages that are computed in this step or later, in order of first use.
    next_stages: list[int] = []
    upcoming = []
    for step in reversed(steps):
        computed = [operation.virtual_stage for operation in step.operations]
        next_stages = [*computed, *(stage for stage in next_stages if stage not in computed)]
        upcoming.append(next_stages[:_MAX_GATHERED])
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
