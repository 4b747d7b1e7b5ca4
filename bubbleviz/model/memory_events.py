"""Memory events: allocations and frees on devices."""

from __future__ import annotations

from dataclasses import dataclass

from bubbleviz.model.columns import Ints, Table


@dataclass(frozen=True, eq=False, repr=False)
class MemoryEvents(Table):
    """Allocations and frees of device memory, one row per call, in the order of the file.

    Attributes:
        time_ns: Time of the call on the profile's clock.
        thread: Calling thread, coded as in :mod:`bubbleviz.model.profile`.
        device: Device number as the process sees it.
        address: Address of the allocated or freed memory.
        change: Number of bytes, positive for an allocation and negative for a free.
        total: Number of bytes allocated on the device after the call, or -1 if unknown.
    """

    time_ns: Ints
    thread: Ints
    device: Ints
    address: Ints
    change: Ints
    total: Ints
