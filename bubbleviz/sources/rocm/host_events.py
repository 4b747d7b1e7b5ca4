"""Host events of rocpd: which are calls, which are ranges, and what these are named.

A range of ROCTx is recorded under the name of a function (``roctxThreadRangeA``, or
``roctxRangePushA`` before ROCm 7), and its text stands in its event's ``extdata``, which is JSON
with the key ``message``: ``insert_api_data`` in ``generateRocpd.cpp``, and ``marker_views.sql``,
both of rocprofiler-sdk in ROCm/rocm-systems. Its category is ``MARKER_CORE_API`` in ROCm 6.4 and
``MARKER_CORE_RANGE_API`` from 7 on; ``rocprof-sys`` writes functions of the program, too, under
categories of its own, and their names are those of ranges.
"""

from __future__ import annotations

import re
from enum import IntEnum

import numpy as np

from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import groups_of

#: Functions of libraries below the program: HIP, HSA, RCCL, and what else calls itself an API.
_CALL = re.compile(r"(?:__)?(?:hip|hsa|amd_|nccl|mscclpp|roc)[A-Z_]")
#: Functions of RCCL, which other calls are nested in.
_COLLECTIVE = re.compile(r"nccl[A-Z]|mscclpp")
#: Functions of ROCTx that open ranges which need not nest (roctxRangeStartA).
_START_STOP = re.compile(r"roctx(?:ProcessRange|RangeStart)")
_ROCTX_RANGE = re.compile(r"roctx\w*Range")


class Kind(IntEnum):
    """What a host event is."""

    LEFT_OUT = 0  # marks, controls of the profiler, events of the driver
    CALL = 1
    COLLECTIVE = 2  # a call of RCCL, that names what its kernels do
    PUSHED = 3  # a range of ROCTx
    STARTED = 4  # one that need not nest
    FUNCTION = 5  # a range that is named as the function


def kinds_of(category: Ints, name: Ints, categories: list[str], names: list[str]) -> Ints:
    """Return what each event is, shape (events,).

    Args:
        category: row of ``categories`` of each event; -1 unknown.
        name: row of ``names`` of each event; -1 unknown.
        categories: names of kinds of events.
        names: of functions.
    """
    groups = groups_of(category, name)
    pairs = zip(category[groups.first].tolist(), name[groups.first].tolist(), strict=True)
    kinds = [
        _kind("" if of < 0 else categories[of], "" if own < 0 else names[own]) for of, own in pairs
    ]
    return np.array(kinds, np.int64)[groups.of_row] if kinds else np.empty(0, np.int64)


def _kind(category: str, name: str) -> Kind:
    category = category.lower()
    if "marker" in category or name.startswith("roctx"):
        if name.startswith("roctx") and not _ROCTX_RANGE.match(name):
            return Kind.LEFT_OUT
        return Kind.STARTED if _START_STOP.match(name) else Kind.PUSHED
    if category.startswith("kfd"):
        return Kind.LEFT_OUT
    if _COLLECTIVE.match(name):
        return Kind.COLLECTIVE
    if not name or _CALL.match(name) or "api" in category.split("_"):
        return Kind.CALL
    return Kind.FUNCTION


def is_roctx(names: list[str], name: Ints) -> Ints:
    """Return the rows whose function is one of ROCTx, so that its name is not that of a range."""
    known = np.array([text.startswith("roctx") for text in names], bool)
    return np.flatnonzero((name != NONE) & known[np.maximum(name, 0)]) if len(known) else name[:0]
