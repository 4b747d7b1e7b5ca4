"""Coded texts: a text in each row, each distinct one held once.

texts    "F 0"  "B 0"  "F 1"
code       0      2      1     -1      ->  "F 0", "F 1", "B 0", none
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field

import numpy as np

from bubbleviz.model.columns import NONE, Bools, Ints, Table
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.values import frozen


@frozen
class CodedTexts(Table):
    """A text in each row, or none.

    Attributes:
        code: place of each row's text, shape (rows,); -1 for none.
        texts: by place; not all need occur.
    """

    code: Ints
    texts: Sequence[str] = field(metadata={"shared": True})

    @property
    def known(self) -> Bools:
        """Which rows have a text, shape (rows,)."""
        return np.asarray(self.code != NONE)

    def at(self, rows: Ints) -> CodedTexts:
        """Return the texts of some rows; a row of -1 has none."""
        known = rows != NONE
        code = np.full(len(rows), NONE, np.int64)
        code[known] = self.code[rows[known]]
        return CodedTexts(code, self.texts)

    def occurring(self) -> CodedTexts:
        """Return the same rows without the texts that do not occur."""
        known = self.known
        used, code = np.unique(self.code[known], return_inverse=True)
        renumbered = np.full(len(self), NONE, np.int64)
        renumbered[known] = code.reshape(-1)
        return CodedTexts(renumbered, [self.texts[place] for place in used.tolist()])

    def listed(self, none: str = "") -> list[str]:
        """Return the text of each row; ``none`` where there is none."""
        texts = np.array([*self.texts, none], object)
        listed: list[str] = texts[self.code].tolist()
        return listed


def coded_texts(text: Callable[..., str], *columns: Ints) -> CodedTexts:
    """Return a text for each row, made once for each distinct row of the columns (at least one)."""
    groups = groups_of(*columns)
    distinct = zip(*(column[groups.first].tolist() for column in columns), strict=True)
    return CodedTexts(groups.of_row, [text(*row) for row in distinct])
