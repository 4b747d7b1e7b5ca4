"""Transports: what a send and a receive wait for, and what waits behind them."""

from __future__ import annotations

from bubbleviz.model.values import frozen


@frozen
class Transport:
    """How messages go from one rank to another.

    Each adds to what those before it wait for (``TRANSPORTS``), so an order that deadlocks on one
    deadlocks on the next.

    Attributes:
        name: what users call it.
        summary: one sentence for people.
        rendezvous: a message moves once both ends are there, and a send is complete then.
        streams: transfers between two ranks run one after the other, whatever their direction.
        blocking: a device does nothing else until a transfer that it starts is complete.
    """

    name: str
    summary: str
    rendezvous: bool = False
    streams: bool = False
    blocking: bool = False


BUFFERED = Transport(
    "buffered", "A send never waits; an operation waits for its own receive (gloo)."
)
RENDEZVOUS = Transport(
    "rendezvous",
    "A message moves once both ends have started it; nothing waits behind it.",
    rendezvous=True,
)
STREAMS = Transport(
    "streams",
    "Transfers between two ranks run one after the other on a stream (NCCL).",
    rendezvous=True,
    streams=True,
)
BLOCKING = Transport(
    "blocking",
    "A rank does nothing else until its send or receive is complete (blocking MPI).",
    rendezvous=True,
    streams=True,
    blocking=True,
)
TRANSPORTS = (BUFFERED, RENDEZVOUS, STREAMS, BLOCKING)
