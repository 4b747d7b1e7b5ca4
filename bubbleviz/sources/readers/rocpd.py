"""rocpd: the SQLite file that ``rocprofv3`` of AMD's ROCm writes, of one or several processes."""

from __future__ import annotations

import re

from bubbleviz.sources.readers import SQLITE, Reader, opened_by

#: Of these tables every file has one; the GUID of a process stands behind the name.
_TABLE = re.compile(r"rocpd_(?:region|kernel_dispatch|info_process)(?:_[0-9A-Fa-f_]{16,})?")

READER = Reader(
    name="rocpd",
    suffixes=("_results.db",),
    recognises=lambda head: head.startswith(SQLITE),
    holds=lambda tables: any(map(_TABLE.fullmatch, tables)),
    open_file=opened_by("bubbleviz.sources.rocm.profile_file:open_rocpd"),
    decoded_whole=True,
    possible_suffixes=(".db",),
    folder_by_host=True,
)
