"""Write a reproducible SQLite file in the layout of ``nsys export --type sqlite``.

The tables are the same as in real exports (``layout.sql``). Callers pass a table as columns. A
single value stands for a constant column, and omitted columns are NULL.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt

#: Rows of META_DATA_EXPORT that state the version of planted exports.
EXPORT_VERSION = {
    "EXPORT_PRODUCT_NAME": "NVIDIA Nsight Systems",
    "EXPORT_PRODUCT_VERSION": "2026.2.1.210",
    "EXPORT_SCHEMA_VERSION": "3.25.0",
    "EXPORT_SCHEMA_VERSION_MAJOR": "3",
    "EXPORT_SCHEMA_VERSION_MINOR": "25",
    "EXPORT_SCHEMA_VERSION_MICRO": "0",
}

Value: TypeAlias = "int | float | str | None"
Column: TypeAlias = "npt.NDArray[np.int64] | Sequence[Value] | Value"
Columns: TypeAlias = Mapping[str, Column]

_DDL = Path(__file__).with_suffix(".sql")

#: Rows of ENUM_NSYS_EVENT_TYPE and ENUM_NSYS_EVENT_CLASS for NVTX and CUDA.
_EVENT_TYPES = (
    (33, "NvtxCategory"), (34, "NvtxMark"), (35, "NvtxPushRange"), (36, "NvtxPopRange"),
    (37, "NvtxStartRange"), (38, "NvtxEndRange"), (39, "NvtxThread"), (45, "Cuda"),
    (59, "NvtxPushPopRange"), (60, "NvtxStartEndRange"), (70, "NvtxtPushPopRange"),
    (71, "NvtxtStartEndRange"), (75, "NvtxDomainCreate"), (76, "NvtxDomainDestroy"),
    (79, "CudaDeviceKernel"), (80, "CudaDeviceMemory"), (152, "CudaApi"),
)  # fmt: skip
_EVENT_CLASSES = (
    (0, "TRACE_PROCESS_EVENT_CUDA_RUNTIME", "CUDA runtime"),
    (1, "TRACE_PROCESS_EVENT_CUDA_DRIVER", "CUDA driver"),
)
_MEMCPY_KINDS = (
    (1, "CUDA_MEMCPY_KIND_HTOD", "Host-to-Device"),
    (2, "CUDA_MEMCPY_KIND_DTOH", "Device-to-Host"),
    (8, "CUDA_MEMCPY_KIND_DTOD", "Device-to-Device"),
)
_OVERHEADS = (
    (1, "OVERHEAD_UNKNOWN", "Unknown"),
    (3, "OVERHEAD_CUPTI_BUFFER_FLUSH", "Buffer flush (Profiler)"),
)


def parse_tables(ddl: str) -> dict[str, dict[str, bool]]:
    """Return, for each table, a mapping from column names to whether the column is NOT NULL."""
    tables = {}
    for name, body in re.findall(r"CREATE TABLE (\w+) \((.*?)\n\);", ddl, re.DOTALL):
        columns = re.findall(r"^ +(\w+) +(?:INTEGER|TEXT|REAL)( +NOT NULL)?", body, re.MULTILINE)
        tables[name] = {column: bool(needed) for column, needed in columns}
    return tables


def make_enums() -> dict[str, Columns]:
    """Return the part of the enumeration tables that NVTX and CUDA need."""
    return {
        "ENUM_NSYS_EVENT_TYPE": _make_enum([(i, name, name) for i, name in _EVENT_TYPES]),
        "ENUM_NSYS_EVENT_CLASS": _make_enum(_EVENT_CLASSES),
        "ENUM_CUDA_MEMCPY_OPER": _make_enum(_MEMCPY_KINDS),
        "ENUM_CUPTI_OVERHEAD_TYPE": _make_enum(_OVERHEADS),
    }


def _make_enum(rows: Sequence[tuple[int, str, str]]) -> Columns:
    ids, names, labels = zip(*rows, strict=True)
    return {"id": ids, "name": names, "label": labels}


def write_export(path: Path, tables: Mapping[str, Columns]) -> None:
    """Write tables to a new file. Like nsys, omit tables without rows.

    Args:
        path: Output file; an existing file is replaced.
        tables: Columns of each table, keyed by table name and column name.
    """
    path.unlink(missing_ok=True)
    with open_for_writing(path) as database:
        for name in _read_statements():
            if _count_rows(tables.get(name, {})):
                create_table(database, name)
                insert_rows(database, name, tables[name])


@contextmanager
def open_for_writing(path: Path) -> Iterator[sqlite3.Connection]:
    """Yield a connection without a journal, because an unfinished file is worthless anyway."""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA page_size = 4096")
        database.execute("PRAGMA journal_mode = OFF")
        database.execute("PRAGMA synchronous = OFF")
        database.execute("BEGIN")
        yield database
        database.execute("COMMIT")


@cache
def _read_statements() -> Mapping[str, str]:
    """Return the CREATE statement of each table, in the order of the layout."""
    matches = re.findall(r"CREATE TABLE \w+ \(.*?\n\)", _read_ddl(), re.DOTALL)
    return {statement.split()[2]: statement for statement in matches}


@cache
def _read_schema() -> Mapping[str, Mapping[str, bool]]:
    return parse_tables(_read_ddl())


def _read_ddl() -> str:
    return _DDL.read_text(encoding="utf-8")


def create_table(database: sqlite3.Connection, table: str) -> None:
    """Create a table of the layout."""
    database.execute(_read_statements()[table])


def _is_constant(column: Column) -> TypeGuard[Value]:
    return isinstance(column, (int, float, str)) or column is None


def _count_rows(columns: Columns) -> int:
    """Return the number of rows of a table."""
    lengths = [
        len(column)
        for column in columns.values()
        if isinstance(column, (np.ndarray, Sequence)) and not isinstance(column, str)
    ]
    return max(lengths, default=0)


def insert_rows(database: sqlite3.Connection, table: str, columns: Columns) -> None:
    """Insert rows. Constant columns become literals in the SQL statement.

    Raises:
        ValueError: A column does not exist, or a column that is NOT NULL is missing.
    """
    is_required = _read_schema()[table]
    strange = set(columns) - set(is_required)
    missing = {name for name, needed in is_required.items() if needed and name not in columns}
    if strange or missing:
        raise ValueError(f"{table}: no columns {sorted(strange)}, or lacks {sorted(missing)}")
    varying, slots = [], []
    for column in columns.values():
        if _is_constant(column):
            slots.append(_format_literal(column))
            continue
        slots.append("?")
        varying.append(column.tolist() if isinstance(column, np.ndarray) else column)
    names = ", ".join(f'"{name}"' for name in columns)
    statement = f'INSERT INTO "{table}" ({names}) VALUES ({", ".join(slots)})'
    database.executemany(statement, zip(*varying, strict=True))


def _format_literal(value: Value) -> str:
    if value is None:
        return "NULL"
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)
