"""Rows: operations of event files, and of profiles, in one table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np

from bubbleviz.analyses.nccl.clocks import KernelPool, Placed
from bubbleviz.analyses.nccl.communications import SIZES, Communications, Communicator, Timing
from bubbleviz.analyses.nccl.kernels import Carried, said_by
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.sources.nccl.events import STATES, NcclEvents, OperationKind

#: More elements than any operation has.
_MOST_COUNT = 1 << 59
T = TypeVar("T")


class Numbers(Generic[T]):
    """Numbers of values, in the order in which they come."""

    def __init__(self) -> None:
        self._numbers: dict[T, int] = {}

    def of(self, values: Sequence[T]) -> Ints:
        """Return the numbers of values; behind the last one that of none."""
        found = [self._numbers.setdefault(value, len(self._numbers)) for value in values]
        return np.array([*found, NONE], np.int64)

    @property
    def values(self) -> tuple[T, ...]:
        """The values, by number."""
        return tuple(self._numbers)


def of_events(
    source: int,
    events: NcclEvents,
    placed: Placed,
    clocks: int,
    names: Numbers[str],
    communicators: Numbers[Communicator],
) -> Communications:
    """Return a file's operations as rows; clocks of profiles come before those of files."""
    name = names.of(events.names)
    elements = np.array([SIZES.get(own, NONE) for own in (*events.names, "")], np.int64)
    size = elements[events.datatype]
    told = (events.count >= 0) & (size > 0) & (events.count < _MOST_COUNT)
    counted = np.where(told, np.where(told, events.count, 0) * size, NONE)
    count = len(events)
    return Communications(
        source=np.full(count, source, np.int64),
        kind=events.kind,
        pid=events.pid,
        name=name[events.name],
        communicator=communicators.of(events.communicators)[events.communicator],
        rank=events.rank,
        peer=events.peer,
        root=events.root,
        sequence=events.sequence,
        count=events.count,
        datatype=name[events.datatype],
        bytes=np.where(counted >= 0, counted, events.payload),
        algorithm=name[events.algorithm],
        protocol=name[events.protocol],
        channels=events.channels,
        clock=placed.clock + clocks,
        start_ns=placed.start_ns,
        end_ns=placed.end_ns,
        duration_ns=placed.duration_ns,
        timing=placed.timing,
        kernel=placed.kernel,
        shared=np.ones(count, np.int64),
        state_ns=events.state_ns,
        waiting_ns=np.full(count, NONE, np.int64),
        moving_ns=np.full(count, NONE, np.int64),
        split=np.zeros(count, np.int64),
        names=(),
        communicators=(),
    )


def of_kernels(
    source: int,
    profile: Carried,
    pool: KernelPool,
    at: int,
    clock: int,
    names: Numbers[str],
    communicators: Numbers[Communicator],
) -> Communications:
    """Return a profile's operations as rows: those of ranges, then kernels without any.

    Args:
        source: number of the file.
        profile: what it tells.
        pool: its kernels among others.
        at: the first of them.
        clock: of the profile.
        names: of all operations.
        communicators: of all.
    """
    kernels, called = profile.kernels, profile.called
    carried = np.zeros(len(kernels), bool)
    carried[called.first] = carried[called.last] = True
    bare = np.flatnonzero(~carried)
    first = np.concatenate((called.first, bare))
    last = np.concatenate((called.last, bare))
    said = [said_by(name) for name in kernels.names]
    by_kernel = [names.of([own[part] or "unknown" for own in said]) for part in range(3)]
    unknown = [np.array([not own[part] for own in said] + [True]) for part in range(3)]
    of_name = kernels.name[first]
    algorithm, protocol = (
        np.where(unknown[part][of_name], NONE, by_kernel[part][of_name]) for part in (1, 2)
    )
    named = names.of(called.names)
    none = np.full(len(bare), NONE, np.int64)
    start_ns, end_ns = pool.start_ns[at + first], pool.end_ns[at + last]
    places = np.array([pid for pid, _ in kernels.places] or [0], np.int64)
    rows = len(first)
    empty = np.full(rows, NONE, np.int64)
    return Communications(
        source=np.full(rows, source, np.int64),
        kind=np.full(rows, OperationKind.KERNEL, np.int64),
        pid=places[kernels.place[first]],
        name=np.concatenate((named[called.name], by_kernel[0][kernels.name[bare]])),
        communicator=np.concatenate(
            (communicators.of(called.communicators)[called.communicator], none)
        ),
        rank=np.concatenate((called.rank, none)),
        peer=np.concatenate((called.peer, none)),
        root=np.concatenate((called.root, none)),
        sequence=np.concatenate((called.sequence, none)),
        count=np.concatenate((called.count, none)),
        datatype=np.concatenate((named[called.datatype], none)),
        bytes=np.concatenate((called.bytes, none)),
        algorithm=algorithm,
        protocol=protocol,
        channels=empty.copy(),
        clock=np.full(rows, clock, np.int64),
        start_ns=start_ns,
        end_ns=end_ns,
        duration_ns=end_ns - start_ns,
        timing=np.full(rows, Timing.KERNEL, np.int64),
        kernel=at + first,
        shared=np.ones(rows, np.int64),
        state_ns=np.zeros((rows, len(STATES)), np.int64),
        waiting_ns=empty,
        moving_ns=empty.copy(),
        split=np.zeros(rows, np.int64),
        names=(),
        communicators=(),
    )
