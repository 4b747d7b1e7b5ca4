"""Interval cells: any number of times in one cell, ``12..15 20..31``; reports write such.

That way a row stays an operation, and what ran beside it is told, too.
"""

from __future__ import annotations

import re

import numpy as np

from bubbleviz.model.columns import NONE
from bubbleviz.model.operation_table import RowIntervals
from bubbleviz.sources.tables.cells import Cells, refused, shown

_CELL = re.compile(r"-?[0-9]{1,18}\.\.-?[0-9]{1,18}(?: -?[0-9]{1,18}\.\.-?[0-9]{1,18})*")


def row_intervals(cells: Cells, name: str) -> RowIntervals:
    """Return the times of a column, row by row; none where it is not there.

    Raises:
        ProfileError: a cell holds something else.
    """
    column = cells.texts.get(name)
    if column is None:
        return RowIntervals.none()
    column = column.occurring()
    counts, words = [], []
    for place, text in enumerate(column.texts):
        if _CELL.fullmatch(text) is None:
            raise refused(
                cells.path,
                int((column.code == place).argmax()),
                f"{name} is {shown(text)}, and should be times such as 12..15 20..31",
            )
        own = text.split(" ")
        counts.append(len(own))
        words.extend(own)
    ends = np.array([word.split("..") for word in words], np.int64).reshape(-1, 2)
    row = np.flatnonzero(column.code != NONE)
    code = column.code[row]
    first = np.concatenate(([0], np.cumsum(counts)))[:-1].astype(np.int64)
    length = np.array(counts, np.int64)[code] if len(code) else code
    at = np.arange(int(length.sum())) - np.repeat(np.cumsum(length) - length, length)
    at += np.repeat(first[code] if len(code) else code, length)
    return RowIntervals(np.repeat(row, length), ends[at, 0].copy(), ends[at, 1].copy())
