"""Collectives of a table: its rows that are one, by kind, group and order."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from bubbleviz.interpret.collective_intervals import places_by_launch
from bubbleviz.model.coded_texts import CodedTexts
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.numbering import Numbering
from bubbleviz.model.operation_table import OperationTable
from bubbleviz.model.operations import RankOperations
from bubbleviz.model.phases import Phase
from bubbleviz.model.process_groups import Group

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
        operation=rows,
        meeting=nothing.copy(),
        kinds=(*kinds, ""),
        groups=tuple(Group(name=name, sole=True) for name in groups),
    )
    return collectives.take(np.lexsort((own.start_ns, own.rank)))


def _kind(text: str) -> str:
    """Return NCCL's name of an operation; one that it does not have as it is written."""
    return _KINDS.get(_NO_LETTER.sub("", text.lower()), text)


def _numbered(texts: CodedTexts, name: Callable[[str], str]) -> tuple[Ints, Sequence[str]]:
    """Return the number of each row's name, and the names; -1 for none."""
    numbers: Numbering[str] = Numbering()
    places = numbers.numbers(map(name, texts.texts))
    return np.append(places, NONE)[texts.code], numbers.values
