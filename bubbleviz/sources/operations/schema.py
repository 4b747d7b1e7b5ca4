"""The operation schema, which defines a table's columns and the contents of their cells.

All input formats (CSV, Parquet and Arrow tables, traces, and recordings) are converted to these
columns. Reports export the same columns. ``bubbleviz guide tables`` describes the columns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from bubbleviz.errors import SchemaError
from bubbleviz.model.columns import NONE
from bubbleviz.model.texts import list_first, to_one_line


class CellKind(Enum):
    """The kind of value that a cell contains."""

    WHOLE = "a whole number"
    TIME = "a time or a duration"
    TEXT = "a text"
    PAIR = "one or two whole numbers, such as 7;3"
    INTERVALS = "any number of time intervals, such as 12..15 20..31"
    COLLECTIVES = "a JSON list of collectives"

    @property
    def is_number(self) -> bool:
        """Whether cells of this kind are numbers rather than texts."""
        return self in (CellKind.WHOLE, CellKind.TIME)


@dataclass(frozen=True)
class Column:
    """A column in the operation schema.

    Attributes:
        kind: Kind of value that the cells contain.
        meaning: Short description of the column, for users.
        unit: Unit of the times in the column, such as "ns", or "" if it contains no times.
        minimum: Smallest valid value in a column of whole numbers.
        maximum: Largest valid value in a column of whole numbers.
        empty: Number to use for empty cells in a column of whole numbers.
    """

    kind: CellKind
    meaning: str
    unit: str = ""
    minimum: int = 0
    maximum: int = 2**31 - 1
    empty: int = NONE


#: Length of each time unit in ns, finest unit first. If a table has the same time in several units,
#: only the column with the finest unit is used, and the other columns must not contradict it.
UNITS_NS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
#: Maximum absolute value of a time in ns. The difference between two such times fits in 64 bits.
MAX_TIME_NS = 1 << 62
#: Largest valid rank number. The limit also applies to stage and pipeline numbers.
MAX_RANK = 999_999
#: Names of the start and end columns without their unit, in order of preference.
_START_NAMES, _END_NAMES = ("start",), ("end", "duration")
#: Maximum number and length of column names in a message. Further columns are only counted.
_MAX_NAMES, _MAX_NAME_LENGTH = 20, 40


def _whole(meaning: str, minimum: int = 0, maximum: int = 2**31 - 1, empty: int = NONE) -> Column:
    return Column(CellKind.WHOLE, meaning, minimum=minimum, maximum=maximum, empty=empty)


def _pair(meaning: str) -> Column:
    return Column(CellKind.PAIR, meaning, minimum=NONE)


def _time(meaning: str, unit: str = "ns") -> Column:
    return Column(CellKind.TIME, meaning, unit)


#: All columns of the schema, keyed by name. In columns that allow it, -1 means unknown.
COLUMNS: Mapping[str, Column] = {
    "rank": _whole("number of the rank", maximum=MAX_RANK),
    "phase": Column(CellKind.TEXT, "phase label, in any case"),
    **{
        f"{name}_{unit}": _time(meaning, unit)
        for name, meaning in (
            ("start", "start on the device"),
            ("end", "end on the device"),
            ("duration", "time between start and end"),
        )
        for unit in UNITS_NS
    },
    "iteration": Column(
        CellKind.TEXT, "number of the training step, or a position next to one, such as after 3"
    ),
    "stage": _whole("stage of the rank", NONE, MAX_RANK),
    "microbatch": _pair("microbatch, or both microbatches of a fused operation"),
    "chunk": _pair("model chunk of the rank, or both of a fused operation"),
    "second_microbatch": _whole("microbatch of the backward of a fused operation", NONE),
    "second_chunk": _whole("chunk of the backward of a fused operation", NONE),
    "virtual_stage": _whole("virtual stage", NONE),
    "pipeline": _whole("pipeline of the rank", NONE, MAX_RANK),
    "global_rank": _whole("global number of the rank in the job", NONE, MAX_RANK),
    "tokens": _whole("number of processed tokens"),
    "prefix": _whole("number of earlier tokens of the same prompts that the operation reads"),
    "sequence": _whole("number of the sequence split of the microbatch", NONE),
    "occurrence": _whole("repetition number of the operation"),
    "name": Column(CellKind.TEXT, "name of the operation"),
    "host": Column(CellKind.TEXT, "hostname of the rank"),
    "clock": Column(CellKind.TEXT, "name of the clock that measured the rank's times"),
    "clock_uncertainty_ns": Column(
        CellKind.WHOLE, "uncertainty of that clock", "ns", NONE, MAX_TIME_NS - 1
    ),
    "kind": Column(CellKind.TEXT, "kind of a collective"),
    "group": Column(CellKind.TEXT, "ranks that take part in a collective"),
    "launched_ns": _time("launch of the first kernel on the host"),
    "host_start_ns": _time("start of the range on the host"),
    "host_end_ns": _time("end of the range on the host"),
    "kernels": _whole("number of compute kernels", empty=0),
    "active_ns": Column(
        CellKind.WHOLE,
        "time during which at least one compute kernel runs",
        "ns",
        0,
        MAX_TIME_NS - 1,
    ),
    "received_ns": _time("end of the last receive"),
    "receive_start_ns": _time("start of the last receive on the device"),
    "receive_launched_ns": _time("launch of the last receive on the host"),
    "cut": _whole("1 if a range, 2 if work was unfinished when the capture ended", empty=0),
    "paired": _whole("0 if ranks may use the same iteration name for different iterations"),
    "waits": Column(CellKind.INTERVALS, "times when receives kept the operation waiting", "ns"),
    "unattributed": Column(CellKind.INTERVALS, "compute of the rank outside operations", "ns"),
    "exposed": Column(CellKind.INTERVALS, "times when only collectives ran on the rank", "ns"),
    "profiler": Column(CellKind.INTERVALS, "overhead of the profiler on the rank", "ns"),
    "pauses": Column(CellKind.INTERVALS, "times when the rank was not recorded", "ns"),
    "collectives": Column(CellKind.COLLECTIVES, "collectives that began in the operation", "ns"),
}


def find_start_column(names: Collection[str]) -> str | None:
    """Return the name of the start column with the finest unit, or None if there is none."""
    return _find_time_column(names, _START_NAMES)


def find_end_column(names: Collection[str]) -> str | None:
    """Return the name of the end column with the finest unit, or None if there is none.

    If the table has no end column, the duration column with the finest unit is returned.
    """
    return _find_time_column(names, _END_NAMES)


def list_span_columns(names: Collection[str]) -> list[str]:
    """Return the start, end and duration columns, finest unit first within each of the three."""
    return _list_time_columns(names, (*_START_NAMES, *_END_NAMES))


def _find_time_column(names: Collection[str], prefixes: Sequence[str]) -> str | None:
    return next(iter(_list_time_columns(names, prefixes)), None)


def _list_time_columns(names: Collection[str], prefixes: Sequence[str]) -> list[str]:
    candidates = (f"{prefix}_{unit}" for prefix in prefixes for unit in UNITS_NS)
    return [name for name in candidates if name in names]


def list_missing(names: Collection[str]) -> list[str]:
    """Return the required columns that a table lacks, as phrases for a message.

    Args:
        names: Column names in the table.
    """
    missing = [name for name in ("rank", "phase") if name not in names]
    if find_start_column(names) is None:
        missing.append("start_ns (or start_us, start_ms, start_s)")
    if find_end_column(names) is None:
        missing.append("end_ns (or another unit, or duration_ns)")
    return missing


def select_columns(path: str, names: Iterable[str]) -> list[str]:
    """Return the names of the table columns that belong to the schema, in table order.

    Args:
        path: Path to the table, for messages.
        names: All column names in the table.

    Raises:
        SchemaError: A required column is missing, or two schema columns have the same name.
    """
    names = list(names)
    if missing := list_missing(names):
        quoted = (repr(to_one_line(name, _MAX_NAME_LENGTH)) for name in names)
        present = list_first(quoted, _MAX_NAMES) or "none"
        raise SchemaError(
            f"{path}: is not a table of operations, because it lacks {', '.join(missing)}; its "
            f"columns are {present}; rename them as described in bubbleviz guide tables, "
            "or pass the profile from which the table was made"
        )
    selected = [name for name in dict.fromkeys(names) if name in COLUMNS]
    duplicate = next((name for name in selected if names.count(name) > 1), None)
    if duplicate is not None:
        raise SchemaError(f"{path}: two columns are named {duplicate}; remove one of them")
    return selected
