"""Arrow: tables that other libraries read as they are, through the Arrow PyCapsule interface.

``pyarrow.table(report.operations)`` and ``polars.DataFrame(report.operations)`` need none of these
libraries here: they ask a table for ``__arrow_c_stream__``. Whole numbers without nulls are handed
on where they lie, and -1 for "none" becomes null.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from bubbleviz.model.columns import NONE, Bools, Ints

if TYPE_CHECKING:  # the analysis of most runs shows no table this way
    from arro3.core import Array, Table

Column: TypeAlias = "Array"
#: Columns by name, as a table of its own.
Columns: TypeAlias = "Table"


class ArrowTable(ABC):
    """What Arrow's libraries take for a table.

    It must be neither a tuple nor a ``Sequence``: both pyarrow and polars would take its items for
    columns, and never ask.
    """

    @abstractmethod
    def arrow_columns(self) -> Mapping[str, Column]:
        """Return the columns by name, in the order in which people want to see them."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the table as the capsule of an Arrow C stream; see Arrow's PyCapsule interface.

        Args:
            requested_schema: capsule of the schema that is wished for; a wish that cannot be
                fulfilled is passed over.
        """
        return table_of(self.arrow_columns()).__arrow_c_stream__(requested_schema)


def table_of(columns: Mapping[str, Column]) -> Columns:
    """Return columns as a table that Arrow's libraries take."""
    from arro3.core import Table

    return Table.from_pydict(dict(columns))


def numbers(column: Ints, known: Bools | None = None) -> Column:
    """Return whole numbers as an Arrow column, without a copy where all are known.

    Args:
        column: the numbers.
        known: which of them are; None for all.
    """
    from arro3.core import Array, ChunkedArray, DataType

    array = Array.from_numpy(np.ascontiguousarray(column))
    if known is None or known.all():
        return array
    # A null behind the last row is what all rows that are not known take.
    with_null = ChunkedArray([array, Array([None], DataType.int64())]).combine_chunks()
    return with_null.take(Array.from_numpy(np.where(known, np.arange(len(column)), len(column))))


def identifiers(column: Ints) -> Column:
    """Return identifiers as an Arrow column, -1 as null."""
    return numbers(column, np.asarray(column != NONE))


def coded(codes: Ints, labels: Sequence[str]) -> Column:
    """Return the texts that codes stand for as a dictionary-encoded column, -1 as null.

    The dictionary holds the texts that occur, in the order of their codes.

    Args:
        codes: places in ``labels``.
        labels: any texts, however long: each is held once.
    """
    from arro3.core import Array, DataType

    occurs = np.bincount(codes[codes != NONE])
    used = np.flatnonzero(occurs)
    place = np.full(len(occurs) + 1, len(used), np.int64)
    place[used] = np.arange(len(used))
    texts = [*(_valid(labels[code]) for code in used.tolist()), None]
    kind = DataType.dictionary(DataType.int32(), DataType.string())
    dictionary = Array(texts, DataType.string()).cast(kind)
    return dictionary.take(Array.from_numpy(place[codes]))


def values(
    given: Sequence[int | float | bool | str | None],
    kind: Literal["int64", "float64", "bool", "string"],
) -> Column:
    """Return a few values as an Arrow column, None as null."""
    from arro3.core import Array, DataType

    types = {
        "int64": DataType.int64,
        "float64": DataType.float64,
        "bool": DataType.bool,
        "string": DataType.string,
    }
    return Array([_valid(v) if isinstance(v, str) else v for v in given], types[kind]())


def _valid(text: str) -> str:
    """Return a text that has a form in UTF-8: half characters have none."""
    return text.encode("utf-8", "replace").decode("utf-8")
