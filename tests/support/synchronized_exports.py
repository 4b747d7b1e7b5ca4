"""Adds CUDA events and waits to small nsys exports, with times in microseconds."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tests.support.idle_runs import US
from tests.support.nsys_exports import pack_global_id

#: CUPTI's value for "no stream" and "no event".
NONE = (1 << 32) - 1
WAITS, RECORDS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
_TABLES = f"""
CREATE TABLE {WAITS} (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
  contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL,
  correlationId INTEGER, globalPid INTEGER, deprecatedSyncType INTEGER, syncType INTEGER NOT NULL,
  eventId INTEGER NOT NULL, eventSyncId INTEGER);
CREATE TABLE {RECORDS} (timestamp INTEGER, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL,
  greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
  eventId INTEGER NOT NULL, eventSyncId INTEGER);
"""


@dataclass(frozen=True)
class Rec:
    """A record of a CUDA event. Its correlation id identifies the call that recorded the event."""

    stream: int
    event: int
    correlation: int | None
    pairing: int | None = None
    device: int = 0
    pid: int = 1
    completed: int = 0


@dataclass(frozen=True)
class Wait:
    """A wait by a stream or by the host."""

    start: int
    stream: int = NONE
    event: int = NONE
    correlation: int | None = None
    pairing: int | None = None
    device: int = 0
    pid: int = 1


def add_synchronization(
    file: Path,
    records: Sequence[Rec] = (),
    waits: Sequence[Wait] = (),
    *,
    without: Sequence[str] = (),
) -> Path:
    """Add tables of records and waits to an export, and return its path.

    Args:
        file: Export to change.
        records: Rows of the event record table.
        waits: Rows of the synchronization table.
        without: Tables or columns (as ``TABLE.column``) to drop at the end.
    """
    with closing(sqlite3.connect(file)) as db:
        db.execute("PRAGMA synchronous = OFF")
        db.executescript(_TABLES)
        db.executemany(
            f"INSERT INTO {RECORDS} VALUES (?,?,1,0,?,?,?,?,?)",
            [
                (
                    r.completed * US,
                    r.device,
                    r.stream,
                    r.correlation,
                    pack_global_id(r.pid),
                    r.event,
                    r.pairing,
                )
                for r in records
            ],
        )
        db.executemany(
            f"INSERT INTO {WAITS} VALUES (?,?,?,1,NULL,?,?,?,NULL,2,?,?)",
            [
                (
                    w.start * US,
                    w.start * US + 500,
                    w.device,
                    w.stream,
                    w.correlation,
                    pack_global_id(w.pid),
                    w.event,
                    w.pairing,
                )
                for w in waits
            ],
        )
        for name in without:
            table, _, column = name.partition(".")
            statement = (
                f"ALTER TABLE {table} DROP COLUMN {column}" if column else f"DROP TABLE {table}"
            )
            db.execute(statement)
        db.commit()
    return file
