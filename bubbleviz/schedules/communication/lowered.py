"""A lowered plan: one line per device, of what it computes, sends and receives.

::

    rank 0   0F0  0SEND_F0  0F1  0SEND_F1  0RECV_B0  0B0 ...
    rank 1   1RECV_F0  1F0  1RECV_F1  1B0  1SEND_B0  ...

Messages from one rank to another have no number of their own: what is sent first is what is
received first, as PyTorch's, MPI's and NCCL's point-to-point operations match.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

from bubbleviz.model.phases import Phase
from bubbleviz.schedules.plan import Plan, PlannedOperation

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
