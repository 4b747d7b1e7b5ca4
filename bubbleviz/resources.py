"""Resources of this process: the cores that it may use, and the memory that it keeps."""

from __future__ import annotations

import ctypes
import os
import sys

#: Parameters of glibc's ``mallopt``: size from which a block has its own memory map, amount of free
#: memory at the end of the heap that is returned to the system, and number of heaps.
_MMAP_THRESHOLD, _TRIM_THRESHOLD, _ARENA_MAX = -3, -1, -8
#: Values of the first two parameters.
_MAX_HEAP_BLOCK_BYTES, _MAX_FREE_BYTES = 16 << 20, 128 << 20


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def keep_freed_memory() -> None:
    """Have glibc reuse freed memory instead of returning it to the system.

    Columns are allocated and freed for each block of a file, often by different threads. The system
    clears every page that it hands out, which took 8 % of the CPU time on 2 million kernels.
    """
    system = ctypes.CDLL(None) if sys.platform == "linux" else None
    if system is None or not hasattr(system, "mallopt"):
        return
    system.mallopt(_MMAP_THRESHOLD, _MAX_HEAP_BLOCK_BYTES)
    system.mallopt(_TRIM_THRESHOLD, _MAX_FREE_BYTES)
    system.mallopt(_ARENA_MAX, 1)
