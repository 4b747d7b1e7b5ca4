"""Collective cells: the collectives of a report in the rows of its operations, as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from bubbleviz.model.coded_texts import CodedTexts
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.sorting import sorted_rows
from bubbleviz.model.texts import inert
from bubbleviz.report.report import Report


def collective_cells(report: Report, beside: Ints) -> CodedTexts:
    """Return a cell for each operation; see :mod:`bubbleviz.model.told_collectives`.

    Args:
        report: with its collectives.
        beside: row of the operation that began last before each of them; -1 for none.
    """
    table = report.collectives
    owned = table.operation != NONE
    row = np.where(owned, table.operation, beside)
    order = np.flatnonzero(row != NONE)
    order = order[sorted_rows(row[order])]
    table, row, owned = table.take(order), row[order], owned[order]
    iterations = [*(iteration.name for iteration in report.iterations), ""]
    kinds = [*table.kinds, ""]
    groups = [*_names([group.label for group in table.groups]), ""]
    sizes = np.array([*(group.size for group in table.groups), 0], np.int64)
    columns = (
        [iterations[number] for number in table.iteration.tolist()],
        [kinds[number] for number in table.kind.tolist()],
        [groups[number] for number in table.group.tolist()],
        *(
            column.tolist()
            for column in (
                *(sizes[table.group], table.order, table.sequence, table.meeting),
                *(owned.astype(np.int64), table.start_ns, table.end_ns),
            )
        ),
    )
    entries = [json.dumps(entry, separators=(",", ":")) for entry in zip(*columns, strict=True)]
    first = np.flatnonzero(np.diff(row, prepend=NONE))
    code = np.full(len(report.operations), NONE, np.int64)
    code[row[first]] = np.arange(len(first))
    return CodedTexts(code, _joined(entries, first.tolist()))


def _names(labels: Sequence[str]) -> list[str]:
    """Return labels of groups that tell them apart."""
    flat = [inert(label) for label in labels]
    return [
        name if name and flat.count(name) == 1 else f"{name} ({number})".strip()
        for number, name in enumerate(flat)
    ]


def _joined(entries: Sequence[str], first: Sequence[int]) -> list[str]:
    """Return the lists of the cells that begin at some entries."""
    bounds = [*first, len(entries)]
    return [f"[{','.join(entries[low:high])}]" for low, high in pairwise(bounds)]
