"""Transports: what a send and a receive wait for, and what waits until they are complete."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
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
