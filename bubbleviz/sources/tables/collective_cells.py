"""Collective cells: what reports write of collectives beside operations."""

from __future__ import annotations

import json

import numpy as np

from bubbleviz.model.columns import NONE
from bubbleviz.model.numbering import Numbering
from bubbleviz.model.told_collectives import ToldCollectives
from bubbleviz.sources.tables.cells import Cells, refused, shown
from bubbleviz.sources.tables.schema import COLLECTIVES

#: Of each collective: iteration, kind and group as texts, then so many whole numbers.
_TEXTS, _NUMBERS = 3, 7
_LARGEST = 1 << 62


def told_collectives(cells: Cells) -> ToldCollectives:
    """Return the collectives in the cells of a table; none where it has no such column.

    Raises:
        ProfileError: a cell holds something else.
    """
    column = cells.texts.get(COLLECTIVES)
    if column is None:
        return ToldCollectives.none()
    names: tuple[Numbering[str], ...] = (Numbering(), Numbering(), Numbering())
    rows = []
    for row in np.flatnonzero(column.known).tolist():
        text = column.texts[int(column.code[row])]
        for entry in _entries(cells.path, row, text):
            numbers = (
                number.number(str(name)) if name else NONE
                for number, name in zip(names, entry[:_TEXTS], strict=True)
            )
            rows.append((row, *numbers, *entry[_TEXTS:]))
    # The order of columns is that of the value: row, texts, numbers.
    table = np.array(rows, np.int64).reshape(-1, 1 + _TEXTS + _NUMBERS)
    values = dict(zip(ToldCollectives.column_names(), (c.copy() for c in table.T), strict=True))
    iterations, kinds, groups = (number.values for number in names)
    return ToldCollectives(**values, iterations=iterations, kinds=kinds, groups=groups)


def _entries(path: str, row: int, text: str) -> list[list[str | int]]:
    """Return the collectives of a cell.

    Raises:
        ProfileError: it holds something else.
    """
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError):
        entries = None
    if not isinstance(entries, list) or not all(map(_is_collective, entries)):
        raise refused(
            path, row, f"collectives is {shown(text)}, which is no list of them that --csv writes"
        )
    return entries


def _is_collective(entry: object) -> bool:
    return (
        isinstance(entry, list)
        and len(entry) == _TEXTS + _NUMBERS
        and all(isinstance(text, str) for text in entry[:_TEXTS])
        and all(type(number) is int and abs(number) < _LARGEST for number in entry[_TEXTS:])
        and all(number >= NONE for number in entry[_TEXTS:-2])
        and bool(entry[-2] <= entry[-1])
    )
