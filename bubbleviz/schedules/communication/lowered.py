"""Lowered plans: the steps in which each device computes, sends, receives and waits.

::

    rank 0   0F0  0SEND_F0  0F1  0SEND_F1  0RECV_B0  0B0 ...
    rank 1   1RECV_F0  1F0  1RECV_F1  1B0  1SEND_B0  ...

Messages between two ranks carry no tags. Sends and receives match in FIFO order, as in PyTorch, MPI
and NCCL point-to-point operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

from bubbleviz.model.phases import Phase
from bubbleviz.schedules.plan import Plan, PlannedOperation

#: A result that is computed by one virtual stage and needed by another. Activations (F) go to the
#: next virtual stage, and gradients (B) go to the previous one.
Message = PlannedOperation


@dataclass(frozen=True, order=True)
class Transfer:
    """One end of a message: its send or its receive.

    Attributes:
        message: The message.
        sends: Whether this is the send.
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
    """A step of a device, which computes, starts transfers, or waits for transfers.

    Attributes:
        operations: Operations to compute, in order. There are two operations if a forward and a
            backward run together.
        transfers: Transfers to start together. If there are several, they also complete together
            (``batch_isend_irecv``).
        awaited: Transfers that must be complete before the next step. The transfers were started in
            this step or earlier.
    """

    operations: tuple[PlannedOperation, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    awaited: tuple[Transfer, ...] = ()


@dataclass(frozen=True)
class LoweredPlan:
    """A plan with sends and receives.

    Attributes:
        plan: The plan.
        lines: Steps of each device, in order.
    """

    plan: Plan
    lines: tuple[tuple[Step, ...], ...]

    @property
    def communicates(self) -> bool:
        """Whether anything is sent or received."""
        return any(step.transfers for line in self.lines for step in line)

    def peer(self, transfer: Transfer) -> int:
        """Return the device at the other end of a transfer."""
        return self.plan.placement[transfer.other_stage]


def list_steps(plan: Plan) -> tuple[tuple[Step, ...], ...]:
    """Return the steps of each device in a plan, without communication.

    A forward that overlaps with the next operation shares a step with that operation. Every other
    operation is a separate step.
    """
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


def get_cell(operation: PlannedOperation) -> str:
    """Return the notation for an operation in PyTorch's CSV, such as ``0F3``."""
    return f"{operation.virtual_stage}{_LETTERS[operation.phase]}{operation.microbatch}"


_LETTERS = {Phase.F: "F", Phase.B: "I", Phase.BW: "B", Phase.W: "W"}


def get_output(operation: PlannedOperation, plan: Plan) -> Message | None:
    """Return the message that carries an operation's result, or None if no other stage needs it."""
    return _get_message(operation, plan, stages_back=0)


def get_input(operation: PlannedOperation, plan: Plan) -> Message | None:
    """Return the message that an operation needs, or None if nothing comes from another stage."""
    return _get_message(operation, plan, stages_back=1)


def _get_message(operation: PlannedOperation, plan: Plan, *, stages_back: int) -> Message | None:
    """Return the message that an operation sends or receives.

    Args:
        operation: The operation.
        plan: The plan that contains it.
        stages_back: 0 for the message that the operation sends, or 1 for the message that it
            receives.

    Returns:
        The message. The message is None if the operation is a W, or if the neighboring stage would
        be outside the pipeline.
    """
    if operation.phase is Phase.W:
        return None
    phase = Phase.F if operation.phase is Phase.F else Phase.B
    stage = operation.virtual_stage - (stages_back if phase is Phase.F else -stages_back)
    message = Message(stage, phase, operation.microbatch)
    length = plan.virtual_stages // plan.replicas
    return message if stage // length == message.receiver // length else None


def crosses(message: Message | None, plan: Plan) -> TypeGuard[Message]:
    """Return whether a message exists and travels from one device to another."""
    return (
        message is not None
        and plan.placement[message.virtual_stage] != plan.placement[message.receiver]
    )
