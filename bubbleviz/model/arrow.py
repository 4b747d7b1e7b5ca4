"""Arrow: tables that other libraries read as they are, through the Arrow PyCapsule interface.

``pyarrow.table(report.operations)`` and ``polars.DataFrame(report.operations)`` need none of these
libraries here: they ask a table for ``__arrow_c_stream__``. Whole numbers without nulls are handed
on where they lie, and -1 for "none" becomes null. ``pandas.DataFrame`` asks for rows instead.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar, overload

import numpy as np
from arro3.core import Array, ChunkedArray, DataType, Table

from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.numbering import CodedTexts
from bubbleviz.model.texts import list_first

if TYPE_CHECKING:  # the analysis of most runs shows no table this way
    from arro3.core import Array, Table

Column: TypeAlias = "Array"
#: Columns by name, as a table of its own.
Columns: TypeAlias = "Table"
#: Types of columns of a few values.
Kind = Literal["int64", "float64", "bool", "string"]


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
        return build_table(self.arrow_columns()).__arrow_c_stream__(requested_schema)

    def __iter__(self) -> Iterator[Any]:
        """Yield the rows as named tuples, which pandas makes a frame of; None for what is null."""
        columns = self.arrow_columns()
        row = make_row_type("Row", (*columns,))
        yield from map(row._make, zip(*(c.to_pylist() for c in columns.values()), strict=True))


@cache
def make_row_type(name: str, columns: tuple[str, ...]) -> Any:
    """Return the type of named tuples with these columns, which can be pickled."""
    row = namedtuple(name, columns)  # type: ignore[misc]  # its names are those of the table
    members = {"__reduce__": lambda own: (_make_row, (name, columns, tuple(own)))}
    return type(name, (row,), {"__slots__": (), **members})


def _make_row(name: str, columns: tuple[str, ...], values: tuple[object, ...]) -> object:
    return make_row_type(name, columns)._make(values)


ValueT = TypeVar("ValueT")


class Records(ArrowTable, Generic[ValueT]):
    """Frozen values in order, like a tuple of them, and as a table with a row each.

    Args:
        values: of one kind.
        columns: returns the columns of such values by name.
    """

    def __init__(
        self, values: Iterable[ValueT], columns: Callable[[Sequence[ValueT]], Mapping[str, Column]]
    ) -> None:
        self._values, self._columns = tuple(values), columns

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[ValueT]:
        return iter(self._values)

    @overload
    def __getitem__(self, index: int) -> ValueT: ...

    @overload
    def __getitem__(self, index: slice) -> Records[ValueT]: ...

    def __getitem__(self, index: int | slice) -> ValueT | Records[ValueT]:
        if isinstance(index, slice):
            return Records(self._values[index], self._columns)
        return self._values[index]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Records):
            return self._values == other._values
        return self._values == other if isinstance(other, tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._values)

    def __repr__(self) -> str:
        return f"Records({len(self):,} rows: {list_first(self.arrow_columns(), 12)})"

    def arrow_columns(self) -> Mapping[str, Column]:
        """Return the columns by name."""
        return self._columns(self._values)


def make_records(values: Iterable[ValueT], kinds: Mapping[str, Kind]) -> Records[ValueT]:
    """Return values as a table whose columns are attributes of them.

    Args:
        values: the values.
        kinds: names of the attributes in the order of the columns, with their types.
    """
    return Records(values, partial(collect_attributes, kinds))


def collect_attributes(kinds: Mapping[str, Kind], objects: Sequence[object]) -> dict[str, Column]:
    """Return attributes of values as columns by name; see ``make_records``."""
    return {
        n: make_column([getattr(each, n) for each in objects], kind) for n, kind in kinds.items()
    }


def build_table(columns: Mapping[str, Column]) -> Columns:
    """Return columns as a table that Arrow's libraries take."""
    return Table.from_pydict(dict(columns))


#: Columns of instants, which can be -1 as any other number; what is none among these.
_INSTANTS = frozenset(("start_ns", "end_ns", "host_start_ns", "host_end_ns"))
NO_INSTANT = -(1 << 63)


def mask_known(name: str, column: Ints) -> Bools:
    """Tell which numbers of a column are known: in most columns those that are not -1."""
    return np.asarray(column != (NO_INSTANT if name in _INSTANTS else NONE))


def convert_column(name: str, column: Ints | CodedTexts) -> Column:
    """Return a column of whole numbers (see :func:`mask_known`) or of texts for Arrow.

    Numbers are not copied where all are known.
    """
    if isinstance(column, CodedTexts):
        return encode_dictionary(column.code, column.texts)
    array, is_known = Array.from_numpy(np.ascontiguousarray(column)), mask_known(name, column)
    if is_known.all():
        return array
    # A null behind the last row is what all rows that are not known take.
    with_null = ChunkedArray([array, Array([None], DataType.int64())]).combine_chunks()
    return with_null.take(Array.from_numpy(np.where(is_known, np.arange(len(column)), len(column))))


def encode_dictionary(codes: Ints, labels: Sequence[str]) -> Column:
    """Return the texts that codes stand for as a dictionary-encoded column, -1 as null.

    The dictionary holds the texts that occur, in the order of their codes.

    Args:
        codes: places in ``labels``.
        labels: any texts, however long: each is held once.
    """
    n_uses = np.bincount(codes[codes != NONE])
    used_codes = np.flatnonzero(n_uses)
    dictionary_index = np.full(len(n_uses) + 1, len(used_codes), np.int64)
    dictionary_index[used_codes] = np.arange(len(used_codes))
    texts = [*(_valid(labels[code]) for code in used_codes.tolist()), None]
    kind = DataType.dictionary(DataType.int32(), DataType.string())
    dictionary = Array(texts, DataType.string()).cast(kind)
    return dictionary.take(Array.from_numpy(dictionary_index[codes]))


def make_column(cells: Sequence[int | float | bool | str | None], kind: Kind) -> Column:
    """Return a few values as an Arrow column, None as null."""
    types = {
        "int64": DataType.int64,
        "float64": DataType.float64,
        "bool": DataType.bool,
        "string": DataType.string,
    }
    return Array([_valid(v) if isinstance(v, str) else v for v in cells], types[kind]())


def _valid(text: str) -> str:
    """Return a text that has a form in UTF-8: half characters have none."""
    return text.encode("utf-8", "replace").decode("utf-8")
