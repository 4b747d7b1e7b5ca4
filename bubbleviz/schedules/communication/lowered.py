"""A lowered plan: one line a device, of what it computes, sends and receives.

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
from bubbleviz.model.values import frozen
from bubbleviz.schedules.plan import Plan, PlannedOperation


@dataclass(frozen=True, order=True)
class Message:
    """What one virtual stage computed and its neighbour needs.

    Attributes:
        virtual_stage: that computed it.
        phase: F, activations for the next virtual stage; B, gradients for the one before.
        microbatch: microbatch number, from 0.
    """

    virtual_stage: int
    phase: Phase
    microbatch: int

    @property
    def receiver(self) -> int:
        """Virtual stage that needs it."""
        return self.virtual_stage + (1 if self.phase is Phase.F else -1)


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


@frozen
class Step:
    """What a line does in one place: it computes, starts transfers, or waits for some.

    Attributes:
        operations: computed one after the other; two where a forward runs beside a backward.
        transfers: started together, and complete together where they are several
            (``batch_isend_irecv``).
        awaited: transfers of this or earlier steps that must be complete before the line goes on.
        parameters: what happens to a stage's parameters or gradients here, in PyTorch's words
            (``0UNSHARD``); it takes no time, and is kept for the file.
    """

    operations: tuple[PlannedOperation, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    awaited: tuple[Transfer, ...] = ()
    parameters: str = ""


@frozen
class LoweredPlan:
    """A plan with its communication.

    Attributes:
        plan: what is computed.
        lines: one a device.
    """

    plan: Plan
    lines: tuple[tuple[Step, ...], ...]

    def peer(self, transfer: Transfer) -> int:
        """Return the device at the other end."""
        return self.plan.placement[transfer.other_stage]


def output_of(operation: PlannedOperation, plan: Plan) -> Message | None:
    """Return what an operation computes for the next virtual stage; None where there is none."""
    if operation.phase is Phase.W:
        return None
    phase = Phase.F if operation.phase is Phase.F else Phase.B
    message = Message(operation.virtual_stage, phase, operation.microbatch)
    return message if _is_inside(message, plan) else None


def input_of(operation: PlannedOperation, plan: Plan) -> Message | None:
    """Return what an operation needs of another virtual stage; None where it needs nothing."""
    if operation.phase is Phase.W:
        return None
    phase = Phase.F if operation.phase is Phase.F else Phase.B
    stage = operation.virtual_stage + (-1 if phase is Phase.F else 1)
    message = Message(stage, phase, operation.microbatch)
    return message if _is_inside(message, plan) else None


def crosses(message: Message | None, plan: Plan) -> TypeGuard[Message]:
    """Return whether there is a message, from one device to another."""
    return (
        message is not None
        and plan.placement[message.virtual_stage] != plan.placement[message.receiver]
    )


def _is_inside(message: Message, plan: Plan) -> bool:
    """Return whether both ends are in one pipeline of the plan."""
    ends, length = (message.virtual_stage, message.receiver), plan.virtual_stages // plan.replicas
    within = all(0 <= end < plan.virtual_stages for end in ends)
    return within and ends[0] // length == ends[1] // length


# Transports: what a send and a receive wait for, and what waits behind them.


@frozen
class Transport:
    """How messages go from one rank to another.

    Each adds to what those before it wait for (``TRANSPORTS``), so an order that deadlocks on one
    deadlocks on the next.

    Attributes:
        name: what users call it.
        rendezvous: a message moves once both ends are there, and a send is complete then.
        streams: transfers between two ranks run one after the other, whatever their direction.
        blocking: a device does nothing else until a transfer that it starts is complete.
    """

    name: str
    rendezvous: bool = False
    streams: bool = False
    blocking: bool = False


#: A send never waits; an operation waits for its own receive (gloo).
BUFFERED = Transport("buffered")
#: A message moves once both ends have started it; nothing waits behind it.
RENDEZVOUS = Transport("rendezvous", rendezvous=True)
#: Transfers between two ranks run one after the other on a stream (NCCL).
STREAMS = Transport("streams", rendezvous=True, streams=True)
#: A rank does nothing else until its send or receive is complete (blocking MPI).
BLOCKING = Transport("blocking", rendezvous=True, streams=True, blocking=True)
TRANSPORTS = (BUFFERED, RENDEZVOUS, STREAMS, BLOCKING)
