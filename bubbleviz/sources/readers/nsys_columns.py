"""Nsight Systems: directories of ``nsys export --type parquetdir`` and ``arrowdir``."""

from __future__ import annotations

from bubbleviz.sources.nsys.files import is_columnar
from bubbleviz.sources.readers import Reader, opened_by

READER = Reader(
    name="nsys_columns",
    suffixes=(),
    recognises=lambda _: False,
    open_file=opened_by("bubbleviz.sources.nsys.profile_file:open_directory"),
    recognises_directory=is_columnar,
)
