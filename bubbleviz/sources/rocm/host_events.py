"""Kinds of host events in rocpd: calls, ROCTx ranges, and functions of the program.

A ROCTx range is recorded under the name of a function (``roctxThreadRangeA``, or
``roctxRangePushA`` before ROCm 7). Its text is the ``message`` in the JSON of its event's
``extdata``: see ``insert_api_data`` in ``generateRocpd.cpp`` and ``marker_views.sql``, both of
rocprofiler-sdk in ROCm/rocm-systems. Its category is ``MARKER_CORE_API`` in ROCm 6.4 and
``MARKER_CORE_RANGE_API`` since ROCm 7. ``rocprof-sys`` also records functions of the program under
other categories. They count as ranges, named after the function.
"""

from __future__ import annotations

import re
from enum import IntEnum

#: Matches functions of libraries that a program calls, such as HIP, HSA and RCCL.
_CALL_OF_LIBRARY = re.compile(r"(?:__)?(?:hip|hsa|cuda|cu|amd_|nccl|mscclpp|roc)[A-Z_]")
#: Matches functions of RCCL, in which other calls are nested.
_COLLECTIVE = re.compile(r"nccl[A-Z]|mscclpp")
#: Matches functions of ROCTx that open ranges that need not nest (roctxRangeStartA).
_START_STOP = re.compile(r"roctx(?:ProcessRange|RangeStart)")
_ROCTX_RANGE = re.compile(r"roctx\w*Range")


class HostEventKind(IntEnum):
    """The kinds of host events."""

    LEFT_OUT = 0  # marks, control of the profiler, events of the driver
    CALL = 1
    COLLECTIVE = 2  # a call of RCCL, which names the work of its kernels
    PUSHED = 3  # a range of ROCTx
    STARTED = 4  # a range of ROCTx that need not nest
    FUNCTION = 5  # a range with the name of a function


def classify_host_event(category: str, name: str) -> HostEventKind:
    """Return the kind of a host event.

    The first rule that applies wins. Functions of ROCTx that open no range are left out; its other
    functions and markers are ranges. Events of the driver (``kfd``) are left out. Functions of RCCL
    are collectives. Other functions of libraries, functions without a name, and events of an API
    category are calls. Everything else is a function of the program.

    Args:
        category: Category of the event.
        name: Name of the function, or "" if it has none.
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
