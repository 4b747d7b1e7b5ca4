"""Classifies host events in rocpd: calls, ROCTx ranges, and functions in the program.

In the table, a ROCTx range is named after a function (``roctxThreadRangeA``, or ``roctxRangePushA``
before ROCm 7). The text of the range is the key ``message`` in the JSON of the event's ``extdata``.
See ``insert_api_data`` in ``generateRocpd.cpp``, and ``marker_views.sql``, both of rocprofiler-sdk
in ROCm/rocm-systems. The category of the range is ``MARKER_CORE_API`` in ROCm 6.4 and
``MARKER_CORE_RANGE_API`` since ROCm 7. ``rocprof-sys`` also records functions in the program, in
other categories. A function in the program is read as a range that is named after the function.
"""

from __future__ import annotations

import re
from enum import IntEnum

#: Matches the names of library functions that a program calls, such as HIP, HSA and RCCL functions.
_CALL_OF_LIBRARY = re.compile(r"(?:__)?(?:hip|hsa|cuda|cu|amd_|nccl|mscclpp|roc)[A-Z_]")
#: Matches the names of RCCL functions, which may themselves make other calls.
_COLLECTIVE = re.compile(r"nccl[A-Z]|mscclpp")
#: Matches the names of ROCTx functions whose ranges may overlap, such as roctxRangeStartA.
_START_STOP = re.compile(r"roctx(?:ProcessRange|RangeStart)")
_ROCTX_RANGE = re.compile(r"roctx\w*Range")


class HostEventKind(IntEnum):
    """The kind of a host event."""

    LEFT_OUT = 0  # a marker, a profiler control call, or a driver event
    CALL = 1
    COLLECTIVE = 2  # an RCCL call, which is read as a range named after the function
    PUSHED = 3  # a ROCTx range that is nested in, or disjoint from, all other ranges on its thread
    STARTED = 4  # a ROCTx range that may overlap other ranges
    FUNCTION = 5  # a function in the program, which is read as a range named after the function


def classify_host_event(category: str, name: str) -> HostEventKind:
    """Return the kind of a host event.

    The first of the following rules that applies determines the kind:

    1. ROCTx functions that do not open a range are left out. All other ROCTx functions, and all
       events whose category contains "marker", are ranges.
    2. Events whose category starts with "kfd" (the driver) are left out.
    3. RCCL functions are collectives.
    4. Functions in other libraries, functions without a name, and events whose category contains
       the word "api" are calls.
    5. Everything else is a function in the program.

    Args:
        category: Category of the event. Case is ignored.
        name: Name of the function, or "" if the function has no name.
    """
    category = category.lower()
    if "marker" in category or name.startswith("roctx"):
        if name.startswith("roctx") and not _ROCTX_RANGE.match(name):
            return HostEventKind.LEFT_OUT
        return HostEventKind.STARTED if _START_STOP.match(name) else HostEventKind.PUSHED
    if category.startswith("kfd"):
        return HostEventKind.LEFT_OUT
    if _COLLECTIVE.match(name):
        return HostEventKind.COLLECTIVE
    if not name or _CALL_OF_LIBRARY.match(name) or "api" in category.split("_"):
        return HostEventKind.CALL
    return HostEventKind.FUNCTION
