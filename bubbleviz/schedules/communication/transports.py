"""Transports: rules that define which operations and transfers wait for each other."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Transport:
    """How messages move from one rank to another.

    ``TRANSPORTS`` lists the transports from least to most restrictive. Each transport imposes all
    the waits of the previous one, plus additional waits. An order that deadlocks on one transport
    therefore also deadlocks on all later transports.

    Attributes:
        name: Name used on the command line.
        rendezvous: Whether the transfer of a message begins only once both ends have started. If
            so, the send is complete when the message has been transferred.
        streams: Whether all transfers between two ranks, in either direction, run one after the
            other.
        blocking: Whether a device that starts a transfer does nothing else until the transfer is
            complete.
    """

    name: str
    rendezvous: bool = False
    streams: bool = False
    blocking: bool = False


#: A send never waits, and an operation waits only for its own receives (gloo).
BUFFERED = Transport("buffered")
#: A message is transferred once both ends have started, and does not delay other messages.
RENDEZVOUS = Transport("rendezvous", rendezvous=True)
#: Transfers between two ranks run one after the other on a stream (NCCL).
STREAMS = Transport("streams", rendezvous=True, streams=True)
#: A rank does nothing else until its current send or receive is complete (blocking MPI).
BLOCKING = Transport("blocking", rendezvous=True, streams=True, blocking=True)
TRANSPORTS = (BUFFERED, RENDEZVOUS, STREAMS, BLOCKING)
