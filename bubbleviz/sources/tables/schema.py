"""Schema: the columns of a table of operations, and which of them it cannot do without."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from bubbleviz.errors import SchemaError
from bubbleviz.model.texts import listed, one_line

#: Units of times in names of columns, in nanoseconds; of several columns the finest counts.
UNITS_NS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
#: Columns of numbers, beside those of times.
_NUMBERS = (
    "rank",
    "stage",
    "sequence",
    "occurrence",
    "second_microbatch",
    "second_chunk",
    "virtual_stage",
    "pipeline",
    "global_rank",
    "kernels",
    "active_ns",
    "host_start_ns",
    "host_end_ns",
    "launched_ns",
    "received_ns",
    "receive_start_ns",
    "receive_launched_ns",
    "cut",
    "tokens",
    "clock_uncertainty_ns",
    "paired",
)
#: Columns of texts; those of microbatches and chunks may hold two numbers, ``7;3``.
_TEXTS = ("phase", "iteration", "microbatch", "chunk", "name", "host", "clock", "kind", "group")
#: Columns of which a cell holds any number of times, ``12..15 20..31``.
INTERVALS = ("waits", "unattributed", "exposed", "profiler", "pauses")
#: The column whose cells hold collectives.
COLLECTIVES = "collectives"
_BEGINNING, _ENDING = ("start",), ("end", "duration")

#: Whether the cells of each column that is read are numbers, by the column's name.
IS_NUMBER: Mapping[str, bool] = {
    **dict.fromkeys(_NUMBERS, True),
    **{f"{what}_{unit}": True for what in (*_BEGINNING, *_ENDING) for unit in UNITS_NS},
    **dict.fromkeys((*_TEXTS, *INTERVALS, COLLECTIVES), False),
}
#: Columns that a message names; it counts all.
_NAMED = 20
_LONGEST_NAME = 40


def time_column(names: Collection[str], *what: str) -> str | None:
    """Return the column of a time: the finest one of the first word that has one; None for none."""
    candidates = (f"{word}_{unit}" for word in what for unit in UNITS_NS)
    return next((name for name in candidates if name in names), None)


def lacking(names: Collection[str]) -> list[str]:
    """Return what a table with these columns lacks to be one of operations, in words."""
    lacks = [name for name in ("rank", "phase") if name not in names]
    if time_column(names, *_BEGINNING) is None:
        lacks.append("start_ns (or start_us, start_ms, start_s)")
    if time_column(names, *_ENDING) is None:
        lacks.append("end_ns (or another unit, or duration_ns)")
    return lacks


def span_columns(names: Collection[str]) -> tuple[str, str]:
    """Return the columns of starts, and of ends or durations, of a table that has both."""
    start, end = time_column(names, *_BEGINNING), time_column(names, *_ENDING)
    if start is None or end is None:
        raise ValueError("the table has no column of times")
    return start, end


def unit_ns(column: str) -> int:
    """Return the nanoseconds of the unit that a column's name ends with."""
    return UNITS_NS[column.rpartition("_")[2]]


def refuse_lacking(path: str, names: Iterable[str]) -> None:
    """Refuse a table that lacks what operations need.

    Raises:
        SchemaError: it does; the message names its columns.
    """
    given = list(names)
    lacks = lacking(given)
    if not lacks:
        return
    found = listed((repr(one_line(name, _LONGEST_NAME)) for name in given), _NAMED) or "none"
    raise SchemaError(
        f"{path}: no table of operations, since it lacks {', '.join(lacks)}; its columns are "
        f"{found}; rename those that hold them (bubbleviz guide tables)"
    )


def columns_read(path: str, names: Sequence[str]) -> list[str]:
    """Return the columns that mean something, in their order.

    Raises:
        SchemaError: two of them have one name, and nobody knows which is meant.
    """
    read = [name for name in dict.fromkeys(names) if name in IS_NUMBER]
    twice = next((name for name in read if names.count(name) > 1), None)
    if twice is not None:
        raise SchemaError(f"{path}: two columns are named {twice}; leave one out")
    return read
