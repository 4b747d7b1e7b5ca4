"""Nsight Systems: the SQLite file of ``nsys export --type sqlite``.

The file is opened read-only and immutable, so that nothing is ever written to it or beside it.
Each table and column is probed: one that an export lacks is replaced by a view, or is a limitation,
or an error names it.
"""

from __future__ import annotations

from bubbleviz.sources.readers import SQLITE, Reader, opened_by

#: Of these tables every export has one.
_TABLES = frozenset(
    ("StringIds", "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS")
)

READER = Reader(
    name="nsys",
    suffixes=(".sqlite",),
    recognises=lambda head: head.startswith(SQLITE),
    holds=lambda tables: bool(_TABLES & tables),
    open_file=opened_by("bubbleviz.sources.nsys.profile_file:open_file"),
)
