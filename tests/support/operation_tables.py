"""Writes the same operations as CSV, Parquet, Arrow IPC and tracer events."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from bubbleviz.model.texts import format_csv

Columns = Mapping[str, Sequence[Any]]


def write_tables(folder: Path, rows: Sequence[tuple[int, str, int, int]]) -> dict[str, Path]:
    """Write rows (rank, phase, start, end) in every format. Return the files, keyed by reader."""
    rank, phase, start_ns, end_ns = map(list, zip(*rows, strict=True))
    return write_columns(
        folder, {"rank": rank, "phase": phase, "start_ns": start_ns, "end_ns": end_ns}
    )


def write_columns(folder: Path, columns: Columns, stem: str = "operations") -> dict[str, Path]:
    """Write columns in every format. Return the files, keyed by reader."""
    frame = pl.DataFrame(columns, strict=False)
    paths = {kind: folder / f"{stem}.{kind}" for kind in ("csv", "parquet", "arrow")}
    write_csv(paths["csv"], columns)
    frame.write_parquet(paths["parquet"])
    frame.write_ipc(paths["arrow"])
    return paths


#: MegaScan's operation names, keyed by phase.
_SCOPES = {"F": "forward", "BW": "backward", "Optimizer": "optimizer"}


def write_trace(
    path: Path, rows: Sequence[tuple[int, int, str, int, int]], *, as_one_event: bool = False
) -> Path:
    """Write rows (rank, microbatch, phase, start, end) as MegaScan events.

    Args:
        path: Output file.
        rows: Operations of iteration 7; each rank is a stage.
        as_one_event: Whether each operation is written as one event, as in newer versions, instead
            of two.
    """
    events: list[tuple[float, int, dict[str, Any]]] = []
    for rank, microbatch, phase, start_ns, end_ns in rows:
        start_us, end_us = start_ns / 1000, end_ns / 1000
        counts = {"iteration": 7}
        if phase != "Optimizer":
            counts |= {"microbatch": microbatch, "model_chunk": 0}
        event = {"name": _SCOPES[phase], "cname": "light_memory_dump", "tid": 0}
        if as_one_event:
            args = {**counts, "dp_rk": 0, "pp_rk": rank, "tp_rk": 0, "g_rk": rank}
            event |= {"ph": "X", "ts": start_us, "dur": end_us - start_us, "pid": 40 + rank}
            events.append((start_us, 1, event | {"args": args}))
            continue
        event["pid"] = rank
        begin_event = {"ph": "B", "ts": start_us, "args": {"iteration": 7}}
        events.append((start_us, 1, event | begin_event))
        end_event = {"ph": "E", "ts": end_us, "args": {**counts, "pp_rank": rank}}
        events.append((end_us, 0, event | end_event))
    path.write_text(json.dumps([event for *_, event in sorted(events, key=lambda e: e[:2])]))
    return path


def write_csv(path: Path, columns: Columns) -> Path:
    rows = zip(*columns.values(), strict=True)
    path.write_text(format_csv(tuple(columns), rows), encoding="utf-8")
    return path


def write_stream(path: Path, columns: Columns) -> Path:
    """Write columns as an Arrow IPC stream."""
    table = pa.table(pl.DataFrame(columns, strict=False))
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    return path
