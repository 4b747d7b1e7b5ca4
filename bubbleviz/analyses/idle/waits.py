"""Waits of the report: what streams and hosts are proved to have waited for."""

from __future__ import annotations

from bubbleviz.model.values import frozen

#: The name of work that has none.
COPY = "copy or memset"


@frozen
class ProvedWait:
    """What a stream of a device, or a host while it was idle, waited for, by all of its waits.

    Attributes:
        waiting: who: ``stream 7``, or ``host, cudaStreamSynchronize``.
        stream: of the work that was waited for; with its device where that is another.
        work: its name.
        kind: what it is: ``compute``, ``communication`` or ``copy``.
        waits: how many.
        blocked_ns: how long the stream's next work, launched, waited for it; of hosts, while the
            device was idle. Several streams may wait at a time.
        without_compute_ns: the part in which the device computed nothing.
        idle_ns: the device's idle time that is attributed to it.
    """

    waiting: str
    stream: str
    work: str
    kind: str
    waits: int
    blocked_ns: int
    without_compute_ns: int
    idle_ns: int


def order_of(wait: ProvedWait) -> tuple[object, ...]:
    """Return by what waits are sorted: the most time without compute first."""
    names = wait.waiting, wait.stream, wait.work
    return (-wait.without_compute_ns, -wait.blocked_ns, *names)


@frozen
class Awaited:
    """How much of a device's exposed time is proved to have held up launched work.

    Attributes:
        communication_ns: exposed communication while a stream waited for a communication kernel.
        copy_ns: exposed copies while a stream waited for a copy or memset.
    """

    communication_ns: int
    copy_ns: int
