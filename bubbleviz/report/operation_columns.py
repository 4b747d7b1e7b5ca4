"""Operation columns: what a table of operations holds so that it can be analysed again.

A row is an operation. What ran beside operations stands in cells of the row that began last on its
rank, as times such as ``12..15 20..31``::

    rank          ├─ F0 ─┤  ▒▒   ▓▓    ├─ F1 ─┤
                            │    └ only a collective ran ┐
                            └ compute outside operations ┴ cells of the row of F0
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from bubbleviz.model import intervals
from bubbleviz.model.arrow import ArrowTable, Column, coded, identifiers
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import CodedTexts
from bubbleviz.model.intervals import last_before
from bubbleviz.model.limitations import LimitationKind
from bubbleviz.model.operations import Operations, RankIntervals
from bubbleviz.model.texts import inert
from bubbleviz.report.bubbles import collective_cells
from bubbleviz.report.report import Report

#: Whole numbers, -1 for none, or texts.
OperationColumn: TypeAlias = "Ints | CodedTexts"
#: Digits that fit into 64 bits.
_DIGITS = 18


def has_tokens(report: Report) -> bool:
    """Return whether it is known of any operation how many tokens it takes."""
    return bool((report.operations.tokens >= 0).any())


def further_columns(
    report: Report, *, with_tokens: bool | None = None
) -> Mapping[str, OperationColumn]:
    """Return the columns behind those that every table of operations has, in their order.

    Args:
        report: any report, or a part of one.
        with_tokens: whether there is a column of tokens; None for where any are known.
    """
    operations = report.operations
    has_column = has_tokens(report) if with_tokens is None else with_tokens
    tokens = {"tokens": operations.tokens} if has_column else {}
    return tokens | {
        "virtual_stage": operations.virtual_stage,
        "busy_ns": operations.busy_ns,
        "launched_ns": operations.launched_ns,
        "pipeline": _of_ranks(report, [rank.pipeline for rank in report.ranks]),
        "host": _hosts(report),
        "global_rank": _of_ranks(report, [rank.global_rank for rank in report.ranks]),
        "received_ns": operations.received_ns,
        "receive_start_ns": operations.receive_start_ns,
        "receive_launched_ns": operations.receive_launched_ns,
        "paired": np.full(len(operations), 0 if _unpaired(report) else NONE, np.int64),
        "clock": _clocks(report),
        "clock_uncertainty_ns": _of_ranks(
            report, [report.clock_uncertainty_ns(rank) for rank in report.ranks]
        ),
        "cut": np.where(operations.cut > 0, operations.cut, NONE),
        "waits": _cells(len(operations), *_waits(report)),
        "unattributed": _beside(operations, report.unattributed),
        "exposed": _beside(operations, report.exposed),
        "profiler": _beside(operations, report.overheads),
        "pauses": _beside(operations, report.pauses),
        "collectives": collective_cells(
            report,
            _began_last(operations, report.collectives.rank, report.collectives.start_ns),
        ),
    }


def _of_ranks(report: Report, values: list[int | None]) -> Ints:
    """Return the value of the rank of each operation; -1 for none."""
    by_rank = np.array([*(NONE if v is None else v for v in values), NONE], np.int64)
    return by_rank[report.operations.rank]


def _hosts(report: Report) -> CodedTexts:
    return CodedTexts(report.operations.rank.copy(), [inert(rank.host) for rank in report.ranks])


def _clocks(report: Report) -> CodedTexts:
    """Return the clocks of operations by the host they are of; none where all share one."""
    clocks = [report.clock(rank.profile) for rank in report.ranks]
    if len(set(clocks)) == 1:
        return CodedTexts(np.full(len(report.operations), NONE, np.int64), ())
    number = {clock: place for place, clock in enumerate(dict.fromkeys(clocks))}
    places = np.array([number[clock] for clock in clocks], np.int64)
    hosts = [clock[0] for clock in number]
    names = [
        inert(host if hosts.count(host) == 1 else f"{host} ({place})")
        for place, host in enumerate(hosts)
    ]
    return CodedTexts(places[report.operations.rank], names)


def _unpaired(report: Report) -> bool:
    """Return whether iterations of the ranks could not be paired."""
    unpaired = LimitationKind.ITERATIONS_UNPAIRED
    return any(note.kind is unpaired for note in report.limitations)


def _waits(report: Report) -> tuple[Ints, Ints, Ints]:
    """Return (operation, start, end): the times of spans that are not busy."""
    operations, busy = report.operations, report.busy
    length_ns = operations.end_ns - operations.start_ns
    rows = np.flatnonzero((operations.has_span == 1) & (operations.busy_ns != length_ns))
    number = np.full(len(operations), NONE, np.int64)
    number[rows] = every = np.arange(len(rows))
    own = busy.take(number[busy.operation] != NONE)
    owner = number[own.operation]
    packing = intervals.Packing.of(operations.start_ns[rows], operations.end_ns[rows])
    spans = intervals.union(
        packing.place(every, operations.start_ns[rows]),
        packing.place(every, operations.end_ns[rows]),
    )
    at_work = intervals.union(packing.place(owner, own.start_ns), packing.place(owner, own.end_ns))
    at, start_ns, end_ns = packing.unpack(intervals.difference(spans, at_work))
    return rows[at], start_ns, end_ns


def _beside(operations: Operations, times: RankIntervals) -> CodedTexts:
    """Return cells with the times of ranks, in the rows of the operations that began last."""
    row = _began_last(operations, times.rank, times.start_ns)
    held = row != NONE
    return _cells(len(operations), row[held], times.start_ns[held], times.end_ns[held])


def _began_last(operations: Operations, of_rank: Ints, at_ns: Ints) -> Ints:
    """Return the operation of a rank that began last before each time, else its first; -1 none."""
    began_ns = np.where(operations.has_span == 1, operations.start_ns, operations.host_start_ns)
    row = last_before(operations.rank, began_ns, of_rank, at_ns, or_at=True)
    first = np.searchsorted(operations.rank, of_rank)
    held = first < np.searchsorted(operations.rank, of_rank, side="right")
    return np.where(held, np.maximum(row, first), NONE)


def _cells(rows: int, row: Ints, start_ns: Ints, end_ns: Ints) -> CodedTexts:
    """Return cells with times, sorted by row, for so many rows."""
    first = np.flatnonzero(np.diff(row, prepend=NONE))
    bounds = [*first.tolist(), len(row)]
    words = [f"{low}..{high}" for low, high in zip(start_ns.tolist(), end_ns.tolist(), strict=True)]
    code = np.full(rows, NONE, np.int64)
    code[row[first]] = np.arange(len(first))
    return CodedTexts(code, [" ".join(words[low:high]) for low, high in pairwise(bounds)])


class WrittenOperations(ArrowTable):
    """The operations of a report with all columns, for Arrow's libraries.

    The columns are those of ``--csv``; two microbatches or chunks of one operation stand in two.
    """

    def __init__(self, report: Report, *, tokens: bool | None = None) -> None:
        self._report, self._tokens = report, tokens

    def arrow_columns(self) -> Mapping[str, Column]:
        """Return the columns by name."""
        report = self._report
        columns = dict(report.operations.arrow_columns())
        columns["iteration"] = self._iterations()
        for name, column in further_columns(report, with_tokens=self._tokens).items():
            if isinstance(column, CodedTexts):
                columns[name] = coded(column.code, column.texts)
            else:
                columns[name] = identifiers(column)
        return columns

    def _iterations(self) -> Column:
        """Return iterations by name, as numbers where all names are."""
        names = [iteration.name for iteration in self._report.iterations]
        iteration = self._report.operations.iteration
        if not all(name.isdecimal() and len(name) <= _DIGITS for name in names):
            return coded(iteration, names)
        return identifiers(np.array([*map(int, names), NONE], np.int64)[iteration])
