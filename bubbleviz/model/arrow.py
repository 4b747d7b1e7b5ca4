"""Tables that other libraries can read through the Arrow PyCapsule interface.

``pyarrow.table(report.operations)`` and ``polars.DataFrame(report.operations)`` call the method
``__arrow_c_stream__`` of the table, so bubbleviz depends on neither library. Integer columns
without unknown values are not copied, and the value -1 (none) becomes null. ``pandas.DataFrame``
iterates over the rows instead.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar, overload

import numpy as np
from arro3.core import Array, ChunkedArray, DataType, Table

from bubbleviz.errors import OutputError
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.numbering import CodedTexts
from bubbleviz.model.texts import list_first, replace_surrogates

if TYPE_CHECKING:  # most analyses export no Arrow tables
    from arro3.core import Array, Table

Column: TypeAlias = "Array"
#: An Arrow table.
Columns: TypeAlias = "Table"
#: Column types of small tables.
Kind = Literal["int64", "float64", "bool", "string"]


class ArrowTable(ABC):
    """Base class of objects that Arrow libraries accept as a table.

    A subclass must be neither a tuple nor a ``Sequence``. For a sequence, pyarrow and polars would
    use the items as columns instead of calling ``__arrow_c_stream__``.
    """

    @abstractmethod
    def arrow_columns(self) -> Mapping[str, Column]:
        """Return the columns in display order, keyed by name."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Export the table as an Arrow C stream, as defined by Arrow's PyCapsule interface.

        Args:
            requested_schema: Capsule with the schema that the caller would like to get. Ignored if
                the table cannot be exported with that schema.

        Returns:
            A PyCapsule that contains the stream.
        """
        return build_table(self.arrow_columns()).__arrow_c_stream__(requested_schema)

    def to_pandas(self) -> Any:
        """Return the table as a pandas DataFrame.

        A column of integers that contains nulls has the type ``Int64``. In other columns, nulls
        are NaN or None.

        Raises:
            OutputError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise OutputError(
                "to_pandas needs pandas; install it with: pip install pandas"
            ) from error
        columns = self.arrow_columns().items()
        return pandas.DataFrame({name: _convert_for_pandas(column) for name, column in columns})

    def __iter__(self) -> Iterator[Any]:
        """Yield the rows as named tuples, with None for nulls. pandas reads tables this way."""
        columns = self.arrow_columns()
        row = make_row_type("Row", (*columns,))
        yield from map(row._make, zip(*(c.to_pylist() for c in columns.values()), strict=True))


def _convert_for_pandas(column: Column) -> Any:
    """Return the values of a column in a form that pandas stores with the right type."""
    # In the type stubs of arro3, these functions do not return bool.
    is_integer, is_float = (
        bool(is_kind(column.type)) for is_kind in (DataType.is_integer, DataType.is_floating)
    )
    if is_integer and column.null_count:
        import pandas

        return pandas.array(column.to_pylist(), dtype="Int64")
    if (is_integer or is_float) and not column.null_count:
        return column.to_numpy()
    return np.array(column.to_pylist(), np.float64) if is_float else column.to_pylist()


@cache
def make_row_type(name: str, columns: tuple[str, ...]) -> Any:
    """Return a named tuple type whose instances can be pickled, with the given field names."""
    row = namedtuple(name, columns)  # type: ignore[misc]  # the field names are not literals
    members = {"__reduce__": lambda self: (_make_row, (name, columns, tuple(self)))}
    return type(name, (row,), {"__slots__": (), **members})


def _make_row(name: str, columns: tuple[str, ...], values: tuple[object, ...]) -> object:
    return make_row_type(name, columns)._make(values)


ValueT = TypeVar("ValueT")


class Records(ArrowTable, Generic[ValueT]):
    """An immutable sequence of objects that is also an Arrow table with one row per object.

    Args:
        values: Objects, all of the same type.
        columns: Function that converts objects of this type to columns, keyed by name.
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
        """Return the columns, keyed by name."""
        return self._columns(self._values)


def make_records(values: Iterable[ValueT], kinds: Mapping[str, Kind]) -> Records[ValueT]:
    """Return the objects as a sequence that is also a table of their attributes.

    Args:
        values: Objects, all of the same type.
        kinds: Type of each attribute, keyed by its name, in the order of the columns.
    """
    return Records(values, partial(collect_attributes, kinds))


def collect_attributes(kinds: Mapping[str, Kind], objects: Sequence[object]) -> dict[str, Column]:
    """Collect attributes of objects into columns, keyed by attribute name.

    Args:
        kinds: Type of each attribute, keyed by its name, in the order of the columns.
        objects: Objects that have these attributes, one per row.
    """
    return {
        n: make_column([getattr(each, n) for each in objects], kind) for n, kind in kinds.items()
    }


def build_table(columns: Mapping[str, Column]) -> Columns:
    """Return columns as an Arrow table."""
    return Table.from_pydict(dict(columns))


#: Columns that contain points in time. -1 is a valid time, so missing times are ``NO_INSTANT``.
_INSTANTS = frozenset(("start_ns", "end_ns", "host_start_ns", "host_end_ns"))
NO_INSTANT = -(1 << 63)


def mask_known(name: str, column: Ints) -> Bools:
    """Return a mask of the known values in a column.

    Unknown values are -1, or ``NO_INSTANT`` in columns that contain points in time.

    Args:
        name: Name of the column, which tells whether the column contains points in time.
        column: Values of the column.
    """
    return np.asarray(column != (NO_INSTANT if name in _INSTANTS else NONE))


def convert_column(name: str, column: Ints | CodedTexts) -> Column:
    """Convert a column of integers or strings to an Arrow column.

    Unknown integers (see :func:`mask_known`) and missing strings become null. A contiguous column
    of integers is not copied if all of its values are known.
    """
    if isinstance(column, CodedTexts):
        return encode_dictionary(column.code, column.texts)
    array, is_known = Array.from_numpy(np.ascontiguousarray(column)), mask_known(name, column)
    if is_known.all():
        return array
    # A null is appended to the array, and every unknown row takes its value.
    with_null = ChunkedArray([array, Array([None], DataType.int64())]).combine_chunks()
    return with_null.take(Array.from_numpy(np.where(is_known, np.arange(len(column)), len(column))))


def encode_dictionary(codes: Ints, labels: Sequence[str]) -> Column:
    """Return a dictionary-encoded Arrow column of strings. Code -1 becomes null.

    The dictionary contains only the strings that occur, in the order of their codes. Lone
    surrogates in the strings become question marks.

    Args:
        codes: Index into ``labels`` for each row, or -1 for no string.
        labels: The strings, indexed by code.
    """
    n_uses = np.bincount(codes[codes != NONE])
    used_codes = np.flatnonzero(n_uses)
    dictionary_index = np.full(len(n_uses) + 1, len(used_codes), np.int64)
    dictionary_index[used_codes] = np.arange(len(used_codes))
    texts = [*(replace_surrogates(labels[code]) for code in used_codes.tolist()), None]
    kind = DataType.dictionary(DataType.int32(), DataType.string())
    dictionary = Array(texts, DataType.string()).cast(kind)
    return dictionary.take(Array.from_numpy(dictionary_index[codes]))


def make_column(cells: Sequence[int | float | bool | str | None], kind: Kind) -> Column:
    """Convert values to an Arrow column of the given type.

    None becomes null. Lone surrogates in strings become question marks.
    """
    types = {
        "int64": DataType.int64,
        "float64": DataType.float64,
        "bool": DataType.bool,
        "string": DataType.string,
    }
    return Array([replace_surrogates(v) if isinstance(v, str) else v for v in cells], types[kind]())
