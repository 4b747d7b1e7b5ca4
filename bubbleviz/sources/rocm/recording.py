"""A recording of ROCm's profilers, whatever file it came from."""

from __future__ import annotations

from bubbleviz.model.values import frozen
from bubbleviz.sources.rocm.tables import RocmTables


@frozen
class RocmRecording:
    """What one file holds, and where it came from.

    Attributes:
        path: as given.
        format: name of the input format.
        tables: what it holds.
        host: hostname; None where the file does not record it.
        machine: id of the machine; likewise.
        schema_version: version of the file's schema; None unknown.
    """

    path: str
    format: str
    tables: RocmTables
    host: str | None = None
    machine: str | None = None
    schema_version: str | None = None
