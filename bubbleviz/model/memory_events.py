"""Memory events: allocations and frees on devices."""

from __future__ import annotations

from dataclasses import dataclass

from bubbleviz.model.columns import Ints, Table


@dataclass(frozen=True, eq=False, repr=False)
class MemoryEvents(Table):
    """Allocations and frees of device memory, in the order of the file.

    Attributes:
        time_ns: when the host asked for it, on the profile's clock.
        thread: that asked, as :mod:`bubbleviz.model.profile` numbers it.
        device: device number as the process sees it.
        address: of the memory.
        change: bytes allocated, or less than 0: freed.
        total: bytes that are allocated on the device after it; -1 unknown.
    """

    time_ns: Ints
    thread: Ints
    device: Ints
    address: Ints
    change: Ints
    total: Ints
