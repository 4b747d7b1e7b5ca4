"""The timeline: what a report's pictures are drawn from, as plain columns on one clock.

The interactive report carries it, and a small report's JSON, so that it can be shown again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bubbleviz.count.ratios import ratio_definitions
from bubbleviz.errors import InputError
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.phases import COMMUNICATION, COMPUTE, Phase
from bubbleviz.report.report import Report
from bubbleviz.report.saved import SavedDocument, SavedTimeline

_OPERATIONS = (
    "rank",
    "iteration",
    "phase",
    "microbatch",
    "second_microbatch",
    "chunk",
    "second_chunk",
    "virtual_stage",
    "kernels",
    "start_ns",
    "length_ns",
    "active_ns",
    "thousandths",
    "name",
)
_PIECES = ("operation", "start_ns", "length_ns")
_BUBBLES = (
    "rank",
    "iteration",
    "start_ns",
    "length_ns",
    "cause",
    "after",
    "peer_operation",
    "call",
    "around",
)
_WINDOWS = ("ratio", "iteration", "rank", "start_ns", "length_ns")
_COLUMNS = {
    "operations": _OPERATIONS,
    "compute": _PIECES,
    "communication": _PIECES,
    "unattributed": ("rank", "start_ns", "length_ns"),
    "bubbles": _BUBBLES,
    "windows": _WINDOWS,
    "critical": ("operation",),
}

#: A browser holds what is no time in 32 bits.
_MOST_THOUSANDTHS = 2**31 - 1
#: Characters of a name that are carried.
_LONGEST_NAME = 300
#: A report of more operations than this does not carry them in its JSON.
MOST_SAVED = 20_000


@dataclass(frozen=True)
class Timeline:
    """Columns by table and name; times are nanoseconds since ``base_ns``, -1 is none.

    Attributes:
        base_ns: the earliest time, on the report's clock.
        names: texts that ``name``, ``call`` and ``around`` are rows of.
        tables: ``operations``, ``compute`` and ``communication`` (when operations are at work),
                ``unattributed``, ``bubbles``, ``windows`` (of every definition) and ``critical``.
            ``thousandths`` is how long an operation took: of the median of its kind, or 0.
    """

    base_ns: int
    names: tuple[str, ...]
    tables: Mapping[str, Mapping[str, Ints]]


def timeline_of(report: Report) -> Timeline:
    """Return the timeline of a report."""
    base_ns = _base(report)
    names = _Names(report.operations.names)
    tables = _tables(report, base_ns, names)
    return Timeline(base_ns, tuple(names.texts()), tables)


def saved(timeline: Timeline) -> dict[str, Any]:
    """Return a timeline as JSON values."""
    return {
        "base_ns": timeline.base_ns,
        "names": list(timeline.names),
        "tables": {
            table: {name: column.tolist() for name, column in columns.items()}
            for table, columns in timeline.tables.items()
        },
    }


def _base(report: Report) -> int:
    """Return the earliest time that is shown."""
    operations = report.operations
    shown = operations.start_ns[operations.has_span == 1]
    starts = (shown, report.unattributed.start_ns, report.bubbles.start_ns)
    return min((int(own.min()) for own in starts if len(own)), default=0)


class _Names:
    """The texts that are used, by their place in the page."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._used = np.zeros(0, np.int64)

    def numbered(self, *columns: Ints) -> list[Ints]:
        """Return columns of rows of the report's names as rows of :meth:`texts`; -1 stays."""
        used = np.unique(np.concatenate(columns)) if columns else np.zeros(0, np.int64)
        self._used = used[used >= 0]
        return [
            np.where(own >= 0, np.searchsorted(self._used, own), NONE).astype(np.int64)
            for own in columns
        ]

    def texts(self) -> list[str]:
        return [self._names[row][:_LONGEST_NAME] for row in self._used.tolist()]


def _tables(report: Report, base_ns: int, names: _Names) -> Mapping[str, Mapping[str, Ints]]:
    operations, bubbles, loose = report.operations, report.bubbles, report.unattributed
    name, call, around = names.numbered(
        operations.name_id, bubbles.host_call_id, bubbles.host_range_id
    )
    times = np.minimum(
        np.round(1000 * report.explanation.phase_times.times_median), _MOST_THOUSANDTHS
    ).astype(np.int64)
    spans = operations.has_span == 1
    return {
        "operations": {
            "rank": operations.rank,
            "iteration": operations.iteration,
            "phase": operations.phase,
            "microbatch": operations.microbatch,
            "second_microbatch": operations.second_microbatch,
            "chunk": operations.chunk,
            "second_chunk": operations.second_chunk,
            "virtual_stage": operations.virtual_stage,
            "kernels": operations.kernels,
            "start_ns": np.where(spans, operations.start_ns - base_ns, NONE),
            "length_ns": np.where(spans, operations.end_ns - operations.start_ns, NONE),
            "active_ns": operations.active_ns,
            "thousandths": times,
            "name": name,
        },
        "compute": _pieces(report, base_ns, COMPUTE),
        "communication": _pieces(report, base_ns, COMMUNICATION),
        "unattributed": {
            "rank": loose.rank,
            "start_ns": loose.start_ns - base_ns,
            "length_ns": loose.end_ns - loose.start_ns,
        },
        "bubbles": {
            "rank": bubbles.rank,
            "iteration": bubbles.iteration,
            "start_ns": bubbles.start_ns - base_ns,
            "length_ns": bubbles.end_ns - bubbles.start_ns,
            "cause": bubbles.cause,
            "after": bubbles.after,
            "peer_operation": bubbles.peer_operation,
            "call": call,
            "around": around,
        },
        "windows": _windows(report, base_ns),
        "critical": {"operation": _critical(report)},
    }


def _pieces(report: Report, base_ns: int, phases: tuple[Phase, ...]) -> Mapping[str, Ints]:
    """Return when operations of some phases were at work, in order of (rank, start).

    Communication that holds no GPU busy by itself is shown by its span.
    """
    operations, busy = report.operations, report.busy
    own = np.isin(operations.phase, phases)
    held = own[busy.operation]
    lacking = own & (operations.has_span == 1)
    lacking[busy.operation] = False
    rows = np.flatnonzero(lacking)
    operation = np.concatenate((busy.operation[held], rows))
    start_ns = np.concatenate((busy.start_ns[held], operations.start_ns[rows]))
    end_ns = np.concatenate((busy.end_ns[held], operations.end_ns[rows]))
    order = np.lexsort((operation, start_ns, operations.rank[operation]))
    operation, start_ns, end_ns = operation[order], start_ns[order], end_ns[order]
    return {
        "operation": operation,
        "start_ns": start_ns - base_ns,
        "length_ns": end_ns - start_ns,
    }


def _windows(report: Report, base_ns: int) -> Mapping[str, Ints]:
    """Return every window of every definition; of ranks that count in its ratio."""
    rows = [
        (place, iteration.index, own.rank, account.start_ns - base_ns, account.window_ns)
        for place, ratio in enumerate(ratio_definitions())
        for iteration in report.iterations
        if ratio.name in iteration.ratios and iteration.ratios[ratio.name].value is not None
        for own in iteration.ranks
        if (account := own.accounts.get(ratio.name)) is not None
        and own.bubble_ratio.get(ratio.name) is not None
    ]
    table = np.array(rows, np.int64).reshape(-1, 5).T
    return dict(zip(_WINDOWS, table, strict=True))


def _critical(report: Report) -> Ints:
    path = report.explanation.path
    return np.zeros(0, np.int64) if path is None else path.operations


#: What columns are rows of, other than of the names; ``ranks`` and ``iterations`` of the report.
_ROWS_OF = {
    "rank": "ranks",
    "iteration": "iterations",
    "operation": "operations",
    "after": "operations",
    "peer_operation": "operations",
    "name": "names",
    "call": "names",
    "around": "names",
    "ratio": "ratios",
}
#: Columns that hold codes, and how many there are.
_CODES = {"phase": len(Phase), "cause": len(Cause)}


def restored(path: str, saved: SavedDocument) -> Timeline:
    """Return the timeline of a saved report, without operations where it was not saved.

    Raises:
        InputError: columns are missing, or contradict each other.
    """
    own = saved.timeline or SavedTimeline(0, [], {name: _nothing(name) for name in _COLUMNS})
    rows = {key: len(saved.document[key]) for key in ("ranks", "iterations")}
    rows["names"], rows["ratios"] = len(own.names), len(ratio_definitions())
    rows["operations"] = len(own.tables.get("operations", {}).get("rank", ()))
    made: dict[str, dict[str, Ints]] = {}
    for table, columns in _COLUMNS.items():
        given = own.tables.get(table, {})
        if set(columns) - set(given) or len({len(given[name]) for name in columns}) > 1:
            raise _contradiction(path, f"lacks columns of {table}")
        made[table] = {name: _column(path, table, name, given[name], rows) for name in columns}
    return Timeline(own.base_ns, tuple(own.names), made)


def _nothing(table: str) -> dict[str, list[int]]:
    return {name: [] for name in _COLUMNS[table]}


def _contradiction(path: str, what: str) -> InputError:
    return InputError(
        f"{path}: its timeline {what}; write the report again with bubbleviz analyze --json"
    )


def _column(path: str, table: str, name: str, values: list[int], rows: Mapping[str, int]) -> Ints:
    try:
        column = np.array(values, np.int64)
    except OverflowError:
        raise _contradiction(path, f"has {name} of {table} beyond 64 bits") from None
    limit = rows[_ROWS_OF[name]] if name in _ROWS_OF else _CODES.get(name)
    if limit is not None and len(column) and not (NONE <= column.min() <= column.max() < limit):
        raise _contradiction(path, f"has {name} of {table} that there is not")
    return column
