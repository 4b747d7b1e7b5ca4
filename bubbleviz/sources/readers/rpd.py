"""rpd: the SQLite file that the tracer of rocmProfileData writes, ROCm's older one."""

from __future__ import annotations

from bubbleviz.sources.readers import SQLITE, Reader, opened_by

#: Of these tables every file has one.
_TABLES = frozenset(("rocpd_api", "rocpd_op"))

READER = Reader(
    name="rpd",
    suffixes=(".rpd",),
    recognises=lambda head: head.startswith(SQLITE),
    holds=lambda tables: bool(_TABLES & tables),
    open_file=opened_by("bubbleviz.sources.rocm.profile_file:open_rpd"),
    decoded_whole=True,
)
