"""Memory events: what was allocated and freed on devices, and when."""

from __future__ import annotations

from bubbleviz.model.columns import Ints, Table
from bubbleviz.model.values import frozen


@frozen
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
