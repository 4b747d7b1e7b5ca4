"""Memory events of PyTorch's profiler: instants named ``[memory]``, of ``profile_memory=True``.

Their arguments are ``Bytes`` (less than 0: freed), ``Addr``, ``Device Type`` (0 the host, others
accelerators; c10/core/DeviceType.h), ``Device Id`` and ``Total Allocated``, the bytes in use on the
device after it. They are read in a pass of their own, so that others pay nothing for them.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
import numpy as np

from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import Numbering
from bubbleviz.model.memory_sizes import MemoryEvents
from bubbleviz.sources.trace_events import (
    ThreadName,
    TraceEvent,
    columns_of,
    global_threads,
    opened_trace,
)

_NAME = "[memory]"
#: ``Device Type`` of the host's own memory.
_HOST = 0
#: No machine has more bytes, 70 TB, nor as many devices; sums of many still fit 64 bits.
_Bytes = Annotated[int, msgspec.Meta(ge=-(1 << 46), le=1 << 46)]
_Number = Annotated[int, msgspec.Meta(ge=-1, le=1 << 31)]


class MemoryArgs(msgspec.Struct, gc=False):
    """Arguments of events, as far as they are used."""

    change: _Bytes | None = msgspec.field(default=None, name="Bytes")
    address: int | None = msgspec.field(default=None, name="Addr")
    device_type: _Number | None = msgspec.field(default=None, name="Device Type")
    device: _Number | None = msgspec.field(default=None, name="Device Id")
    total: _Bytes | None = msgspec.field(default=None, name="Total Allocated")


class MemoryEvent(TraceEvent, gc=False):
    """An event with these arguments."""

    args: MemoryArgs | None = None


def read_memory(path: str, base_ns: int, *, on_host: bool) -> MemoryEvents | None:
    """Return the memory events of a trace; None where it holds none.

    Args:
        path: of the trace.
        base_ns: when the profile's clock begins.
        on_host: whether the host stands for the device, so that its memory counts.

    Raises:
        ProfileError: the trace cannot be read.
    """
    threads, names = Numbering[ThreadName](), Numbering[str]()
    blocks: list[Ints] = []
    with opened_trace(path, MemoryEvent) as file:
        for block in file.blocks():
            # JSON gives an object an event, so that each must be looked at.
            events = [
                event
                for event in block
                if event.name == _NAME
                and event.ts is not None
                and event.args is not None
                and event.args.change
                and (event.args.device_type == _HOST) == on_host
            ]
            if events:
                columns = columns_of(events, threads, names)
                args = [event.args or MemoryArgs() for event in events]
                numbers = (
                    [NONE if a.device is None else a.device for a in args],
                    [0 if a.address is None else a.address & ((1 << 63) - 1) for a in args],
                    [a.change or 0 for a in args],
                    [NONE if a.total is None else a.total for a in args],
                )
                table = np.array(numbers, np.int64)
                blocks.append(np.concatenate((columns[1:2] - base_ns, columns[:1], table)))
    if not blocks:
        return None
    columns = np.concatenate(blocks, axis=1)
    time_ns, thread, device, address, change, total = (row.copy() for row in columns)
    return MemoryEvents(
        time_ns, global_threads(threads)[thread], np.maximum(device, 0), address, change, total
    )
