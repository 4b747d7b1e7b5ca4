"""Memory events of PyTorch's profiler: instants named ``[memory]``, with ``profile_memory=True``.

Their arguments are ``Bytes`` (negative if freed), ``Addr``, ``Device Type`` (0 is the host, others
are accelerators; c10/core/DeviceType.h), ``Device Id`` and ``Total Allocated``, the bytes in use on
the device afterwards. They are read in a separate pass, so that other analyses do not pay for them.
"""

from __future__ import annotations

import msgspec
import numpy as np

from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.memory_events import MemoryEvents
from bubbleviz.sources.trace_events import MISSING, TraceEvents, TraceFile, to_global_threads

#: Maximum number of bytes (70 TB) and device number. Sums of many such values fit in 64 bits.
_MAX_BYTES, _MAX_DEVICE = 1 << 46, 1 << 31


class MemoryArgs(msgspec.Struct, gc=False):
    """The arguments of a memory event. Missing ones are None."""

    change: int | None = msgspec.field(default=None, name="Bytes")
    address: int | None = msgspec.field(default=None, name="Addr")
    device_type: int | None = msgspec.field(default=None, name="Device Type")
    device: int | None = msgspec.field(default=None, name="Device Id")
    total: int | None = msgspec.field(default=None, name="Total Allocated")


def read_memory(path: str, base_ns: int, *, on_host: bool) -> MemoryEvents | None:
    """Return the memory events of a trace, or None if there are none.

    Events of the host are used if ``on_host`` is true, otherwise those of all accelerators. Events
    without a time, with a change of 0, or with an implausible change are left out. An implausible
    total becomes -1.

    Args:
        path: Path of the trace.
        base_ns: Time 0 of the profile.
        on_host: Whether the host is the only device, so that its memory counts.

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
    """Return the columns of a block's memory events, without the events that are left out.

    Args:
        events: A block of events.
        is_memory: Mask of the memory events.
        base_ns: Time 0 of the profile.
        on_host: Whether to return the events of the host instead of those of all accelerators.

    Returns:
        Time, thread, device, address, change and total of each event, shape (6, events). An unknown
        device or address is 0.
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
