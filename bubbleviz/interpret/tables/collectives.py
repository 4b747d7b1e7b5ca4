"""Collectives of a table: its rows that are one, by kind, group and order."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from bubbleviz.interpret.collective_intervals import places_by_launch
from bubbleviz.model.coded_texts import CodedTexts
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import looked_up, places_in
from bubbleviz.model.numbering import Numbering
from bubbleviz.model.operation_table import OperationTable
from bubbleviz.model.operations import RankOperations
from bubbleviz.model.phases import Phase
from bubbleviz.model.process_groups import Group
from bubbleviz.model.sorting import sorted_rows

#: NCCL's names of operations, by their letters alone: ``all-reduce`` is AllReduce.
_KINDS = {
    name.lower(): name
    for name in (
        "AllGather",
        "AllReduce",
        "AllToAll",
        "Broadcast",
        "Gather",
        "Reduce",
        "ReduceScatter",
        "Scatter",
    )
}
_NO_LETTER = re.compile(r"[^a-z]")


def collectives_of(
    table: OperationTable, order: Ints, operations: RankOperations
) -> CollectiveIntervals:
    """Return the collectives of a table, in order of (rank, start).

    Args:
        table: as read.
        order: its rows in order of (rank, host start).
        operations: these, with keys.
    """
    if "collectives" in table.told:
        return _as_told(table, order, operations)
    rows = np.flatnonzero((operations.phase == Phase.COLLECTIVE) & (operations.has_span == 1))
    own = operations.take(rows)
    kind, kinds = _numbered(table.kind.at(order[rows]), _kind)
    group, groups = _numbered(table.group.at(order[rows]), str)
    # A row without a kind does something, and nobody knows what.
    kind = np.where(kind == NONE, len(kinds), kind)
    place = places_by_launch(own.host_start_ns, own.start_ns, own.rank, own.iteration, kind, group)
    nothing = np.full(len(rows), NONE, np.int64)
    collectives = CollectiveIntervals(
        rank=own.rank,
        iteration=own.iteration,
        kind=kind,
        group=group,
        order=place,
        sequence=nothing,
        start_ns=own.start_ns,
        end_ns=own.end_ns,
        late_ns=np.zeros(len(rows), np.int64),
        operation=rows,
        meeting=nothing.copy(),
        kinds=(*kinds, ""),
        groups=tuple(Group(name=name, sole=True) for name in groups),
    )
    return collectives.take(sorted_rows(own.rank, own.start_ns))


def _as_told(table: OperationTable, order: Ints, operations: RankOperations) -> CollectiveIntervals:
    """Return the collectives that cells hold, with the meetings that they tell."""
    told = table.collectives
    row = places_in(order)[told.row]
    rank = operations.rank[row]
    # Iterations go by the names that operations have.
    number = {name: code for code, name in enumerate(table.iterations)}
    code = np.array([*(number.get(name, NONE) for name in told.iterations), NONE], np.int64)
    keys = table.operations.rank[order], table.operations.iteration[order]
    iteration = looked_up(keys, operations.iteration, (rank, code[told.iteration]))
    sizes = np.zeros(len(told.groups) + 1, np.int64)
    sizes[told.group] = told.size
    collectives = CollectiveIntervals(
        rank=rank,
        iteration=np.where(told.iteration == NONE, NONE, iteration),
        kind=np.where(told.kind == NONE, len(told.kinds), told.kind),
        group=told.group.copy(),
        order=told.order.copy(),
        sequence=told.sequence.copy(),
        start_ns=told.start_ns.copy(),
        end_ns=told.end_ns.copy(),
        late_ns=np.zeros(len(told), np.int64),
        operation=np.where(told.owned == 1, row, NONE),
        meeting=told.meeting.copy(),
        kinds=(*told.kinds, ""),
        groups=tuple(
            Group(name=name, size=size)
            for name, size in zip(told.groups, sizes.tolist(), strict=False)
        ),
    )
    return collectives.take(sorted_rows(collectives.rank, collectives.start_ns))


def _kind(text: str) -> str:
    """Return NCCL's name of an operation; one that it does not have as it is written."""
    return _KINDS.get(_NO_LETTER.sub("", text.lower()), text)


def _numbered(texts: CodedTexts, name: Callable[[str], str]) -> tuple[Ints, Sequence[str]]:
    """Return the number of each row's name, and the names; -1 for none."""
    numbers: Numbering[str] = Numbering()
    places = numbers.numbers(map(name, texts.texts))
    return np.append(places, NONE)[texts.code], numbers.values
