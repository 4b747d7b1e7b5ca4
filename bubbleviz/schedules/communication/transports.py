"""Transports: rules for what sends and receives wait for, and what waits for them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Transport:
    """How messages move from one rank to another.

    Each transport adds waits to the previous one in ``TRANSPORTS``, so an order that deadlocks on a
    transport deadlocks on the following ones too.

    Attributes:
        name: Name in the command line.
        rendezvous: Whether a message only moves once both ends have started, and the send is
            complete when it has moved.
        streams: Whether transfers between two ranks run one after the other, in both directions.
        blocking: Whether a device does nothing else until a transfer that it starts is complete.
    """

    name: str
    rendezvous: bool = False
    streams: bool = False
    blocking: bool = False


#: A send never waits; an operation waits for its own receives only (gloo).
BUFFERED = Transport("buffered")
#: A message moves once both ends have started it, and delays no other message.
RENDEZVOUS = Transport("rendezvous", rendezvous=True)
#: Transfers between two ranks run one after the other on a stream (NCCL).
STREAMS = Transport("streams", rendezvous=True, streams=True)
#: A rank does nothing else until its send or receive is complete (blocking MPI).
BLOCKING = Transport("blocking", rendezvous=True, streams=True, blocking=True)
TRANSPORTS = (BUFFERED, RENDEZVOUS, STREAMS, BLOCKING)
