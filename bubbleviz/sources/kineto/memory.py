"""Reads memory events, which PyTorch's profiler records with ``profile_memory=True``.

A memory event is an instant named ``[memory]`` with these arguments:

- ``Bytes``: Size, which is negative if memory is freed.
- ``Addr``: Address.
- ``Device Type``: 0 for the host, other values for accelerators (c10/core/DeviceType.h).
- ``Device Id``: Device number.
- ``Total Allocated``: Number of bytes in use on the device after the event.

Memory events are read in a separate pass over the file, so that other analyses are not slowed down.
"""

from __future__ import annotations

import msgspec
import numpy as np

from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.memory_events import MemoryEvents
from bubbleviz.sources.trace_events import MISSING, TraceEvents, TraceFile, to_global_threads

#: Maximum size in bytes (70 TB, so that sums of sizes fit in 64 bits) and maximum device number.
_MAX_BYTES, _MAX_DEVICE = 1 << 46, 1 << 31


class MemoryArgs(msgspec.Struct, gc=False):
    """The arguments of a memory event. Missing arguments are None."""

    change: int | None = msgspec.field(default=None, name="Bytes")
    address: int | None = msgspec.field(default=None, name="Addr")
    device_type: int | None = msgspec.field(default=None, name="Device Type")
    device: int | None = msgspec.field(default=None, name="Device Id")
    total: int | None = msgspec.field(default=None, name="Total Allocated")


def read_memory(path: str, base_ns: int, *, on_host: bool) -> MemoryEvents | None:
    """Read the memory events in a trace, or return None if there are none.

    An event is left out if it has no time, if its size is missing or 0, or if the absolute value of
    its size exceeds ``_MAX_BYTES``. A total that exceeds ``_MAX_BYTES`` becomes -1.

    Args:
        path: Path to the trace.
        base_ns: Time in the trace, in ns, that becomes time 0 of the profile.
        on_host: Whether to read the events for host memory instead of the events for all
            accelerators.

    Raises:
        ProfileError: The trace cannot be read.
    """
    blocks = [np.empty((6, 0), np.int64)]
    file = TraceFile(path, MemoryArgs)
    for events in file.blocks():
        is_memory = events.name == file.texts.number("[memory]")
        blocks.append(_select_columns(events, is_memory, base_ns, on_host=on_host))
    time_ns, thread, *rest = (row.copy() for row in np.concatenate(blocks, axis=1))
    if len(time_ns) == 0:
        return None
    return MemoryEvents(time_ns, to_global_threads(file.threads)[thread], *rest)


def _select_columns(
    events: TraceEvents[MemoryArgs], is_memory: Bools, base_ns: int, *, on_host: bool
) -> Ints:
    """Return the valid memory events in a block as columns, see :func:`read_memory`.

    Args:
        events: A block of events.
        is_memory: Mask of the events that are memory events.
        base_ns: Time in the trace, in ns, that becomes time 0 of the profile.
        on_host: Whether to select the events for host memory instead of the events for all
            accelerators.

    Returns:
        Array of shape (6, events). The first axis contains the time in ns, the thread, the device,
        the address, the change in bytes and the total in bytes. An unknown device or address is 0,
        and an unknown total is -1.
    """
    arguments = events.arguments
    change, total, device = arguments["change"], arguments["total"], arguments["device"]
    keep = is_memory & (events.start_ns != MISSING)
    keep &= (change != 0) & (change >= -_MAX_BYTES) & (change <= _MAX_BYTES)
    keep &= (arguments["device_type"] == 0) == on_host
    numbers = (
        np.where((device > 0) & (device <= _MAX_DEVICE), device, 0),
        np.where(arguments["address"] == MISSING, 0, arguments["address"]) & ((1 << 63) - 1),
        change,
        np.where((total >= -_MAX_BYTES) & (total <= _MAX_BYTES), total, NONE),
    )
    return np.stack((events.start_ns - base_ns, events.thread, *numbers))[:, keep]
