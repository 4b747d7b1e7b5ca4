"""Tables of operations: the same rows as CSV, Parquet and Arrow IPC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from bubbleviz.model.texts import csv_text

Columns = Mapping[str, Sequence[Any]]


def tables_in(folder: Path, rows: Sequence[tuple[int, str, int, int]]) -> dict[str, Path]:
    """Write rows of rank, phase, start and end in every format; return the files by reader."""
    rank, phase, start_ns, end_ns = map(list, zip(*rows, strict=True))
    return written(folder, {"rank": rank, "phase": phase, "start_ns": start_ns, "end_ns": end_ns})


def written(folder: Path, columns: Columns, stem: str = "operations") -> dict[str, Path]:
    """Write columns in every format; return the files by reader."""
    frame = pl.DataFrame(columns, strict=False)
    paths = {kind: folder / f"{stem}.{kind}" for kind in ("csv", "parquet", "arrow")}
    csv_of(paths["csv"], columns)
    frame.write_parquet(paths["parquet"])
    frame.write_ipc(paths["arrow"])
    return paths


def csv_of(path: Path, columns: Columns) -> Path:
    rows = zip(*columns.values(), strict=True)
    path.write_text(csv_text(tuple(columns), rows), encoding="utf-8")
    return path


def stream_of(path: Path, columns: Columns) -> Path:
    """Write columns as a stream of Arrow IPC."""
    table = pa.table(pl.DataFrame(columns, strict=False))
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    return path
