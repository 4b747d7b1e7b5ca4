"""Cells: the columns of a table as they were read, numbers and texts, before they mean anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from bubbleviz.errors import ProfileError
from bubbleviz.model.coded_texts import CodedTexts
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.texts import one_line
from bubbleviz.model.values import frozen

#: Whole numbers stay whole; all others are floats.
Numbers: TypeAlias = "Ints | npt.NDArray[np.float64]"

#: Characters of a cell that a message shows.
_SHOWN = 40


@frozen
class NumberColumn:
    """A column of numbers.

    Attributes:
        values: one a row; any number where a cell is empty.
        known: which cells hold one; None for all.
        in_ns: whether the file's own type says that these are nanoseconds, whatever the name says.
    """

    values: Numbers
    known: Bools | None = None
    in_ns: bool = False

    @property
    def filled(self) -> Bools:
        """Which cells hold a number, shape (rows,)."""
        return np.ones(len(self.values), bool) if self.known is None else self.known


@frozen
class Cells:
    """The columns of a table that mean something here.

    Attributes:
        path: of the file.
        rows: how many there are.
        numbers: by name.
        texts: by name; empty cells have none.
    """

    path: str
    rows: int
    numbers: Mapping[str, NumberColumn]
    texts: Mapping[str, CodedTexts]

    @property
    def names(self) -> frozenset[str]:
        """Names of the columns."""
        return frozenset((*self.numbers, *self.texts))


def refused(path: str, row: int, reason: str) -> ProfileError:
    """Return the refusal of a table for one row, counted from 0; people count from 1."""
    return ProfileError(f"{path}: row {row + 1}: {reason}")


def shown(cell: object) -> str:
    """Return a cell as a message shows it."""
    return repr(one_line(str(cell), _SHOWN))


def stripped(code: Ints, texts: Sequence[str]) -> CodedTexts:
    """Return coded texts without blanks around them; what is blank becomes none."""
    places: dict[str, int] = {}
    place = [places.setdefault(t, len(places)) if (t := text.strip()) else NONE for text in texts]
    # The last place is that of none.
    return CodedTexts(np.array([*place, NONE], np.int64)[code], list(places))
