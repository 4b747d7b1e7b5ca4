"""Adds payloads to the NCCL ranges of small exports, in the format that nsys uses."""

from __future__ import annotations

import sqlite3
import struct
from contextlib import closing
from pathlib import Path

from tests.support.nsys_exports import pack_global_id

#: Id, fields and layout of the payload of each NCCL function.
LAYOUTS = {
    "init": (
        16777218,
        (
            (18, "NCCL communicator ID", None),
            (5, "No. of ranks", 8),
            (5, "Rank", 12),
            (5, "CUDA device", 16),
        ),
        "<Qiii4x",
    ),
    "reduce": (
        16777223,
        (
            (18, "NCCL communicator ID", None),
            (22, "Message size [bytes]", 8),
            (16777232, "Reduction operation", 16),
        ),
        "<QQi4x",
    ),
    "pass": (
        16777226,
        ((18, "NCCL communicator ID", None), (22, "Message size [bytes]", 8), (5, "Peer rank", 16)),
        "<QQi4x",
    ),
}


def add_payloads(
    path: Path,
    payloads: list[tuple[int, str, str, tuple[int, ...]]],
    *,
    last: str = "offset",
    declared: str = "BLOB",
    pid: int = 1,
) -> str:
    """Add payloads (start, name, layout, values) to the NVTX ranges of a profile."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA synchronous = OFF")
        db.execute(f"ALTER TABLE NVTX_EVENTS ADD COLUMN binaryData {declared}")
        db.execute(
            "CREATE TABLE IF NOT EXISTS NVTX_PAYLOAD_SCHEMAS (domainId, schemaId, name, type, "
            "flags, numEntries, payloadSize, alignTo)"
        )
        db.execute(
            "CREATE TABLE IF NOT EXISTS NVTX_PAYLOAD_SCHEMA_ENTRIES (domainId, schemaId, idx, "
            "flags, type, name, description, arrayOrUnionDetail, offset)"
        )
        for number, fields, form in LAYOUTS.values():
            size = struct.calcsize(form)
            # Every process registers its own schemas.
            for _ in range(2):
                db.execute(
                    "INSERT INTO NVTX_PAYLOAD_SCHEMAS VALUES (1,?,NULL,1,NULL,?,?,NULL)",
                    (number, len(fields), size),
                )
                db.executemany(
                    "INSERT INTO NVTX_PAYLOAD_SCHEMA_ENTRIES VALUES (1,?,?,NULL,?,?,NULL,NULL,?)",
                    [(number, at, *own) for at, own in enumerate(fields)],
                )
        for start, name, layout, values in payloads:
            number, _, form = LAYOUTS[layout]
            body = struct.pack(form, *values)
            end = 32 if last == "offset" else 32 + len(body)
            blob = struct.pack("<QQQQ", 1, number, len(body), end) + body
            stored: object = blob.hex() if last == "text" else blob
            changed = db.execute(
                "UPDATE NVTX_EVENTS SET binaryData = ? WHERE start = ? AND globalTid = ? AND "
                "coalesce(text, (SELECT value FROM StringIds WHERE id = textId)) = ?",
                (stored, start, pack_global_id(pid, pid), name),
            )
            assert changed.rowcount == 1
        db.commit()
    return str(path)
