"""Tables of a columnar export, read block by block.

Where a newer nsys writes names themselves instead of numbers of ``StringIds``, they get the numbers
that they have there, or new ones, so that all that follows knows numbers alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from bubbleviz.errors import EXPORT_AGAIN, ProfileError
from bubbleviz.model.columns import Bools, Ints
from bubbleviz.model.values import frozen
from bubbleviz.sources.nsys.columnar.table_files import TableFile, damage_reported, give_back
from bubbleviz.sources.nsys.queries import columns_read

# Cells: columns of Arrow as numbers and texts, as strictly as those of an SQLite export.


#: What is wrong with a column that holds something else than whole numbers.
NO_NUMBER = "there is something else than a whole number where one belongs"


@frozen
class Numbers:
    """A column of whole numbers.

    Attributes:
        values: 0 where there is none.
        known: where there is one; None for everywhere.
    """

    values: Ints
    known: Bools | None

    def filled(self, missing: int) -> Ints:
        """Return the values, and another where there is none."""
        return self.values if self.known is None else np.where(self.known, self.values, missing)

    def without(self, values: tuple[int, ...]) -> Numbers:
        """Return the column in which some values stand for none."""
        if not values or not (hit := np.isin(self.values, values)).any():
            return self
        return Numbers(self.values, ~hit if self.known is None else self.known & ~hit)

    def every(self) -> Ints:
        """Return the values.

        Raises:
            ValueError: there is none somewhere.
        """
        if self.known is not None and not self.known.all():
            raise ValueError(NO_NUMBER)
        return self.values

    def mask(self) -> Bools:
        """Tell where there is one."""
        return np.ones(len(self.values), bool) if self.known is None else self.known


def absent(length: int) -> Numbers:
    """Return a column of so many rows without any number."""
    return Numbers(np.zeros(length, np.int64), np.zeros(length, bool))


def is_text(kind: Any) -> bool:
    """Tell whether a type is that of texts, dictionaries of them included."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return str(kind) in ("string", "large_string", "string_view")


def numbers_of(column: Any) -> Numbers:
    """Return a column as whole numbers; unsigned ones of 64 bits as SQLite keeps their bits.

    Raises:
        ValueError: it holds something else.
    """
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if pa.types.is_null(kind):
        return absent(len(column))
    if pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
    elif not pa.types.is_integer(kind):
        raise ValueError(NO_NUMBER)
    known = None
    if column.null_count:
        known = present(column)
        column = column.fill_null(0)
    values = column.to_numpy(zero_copy_only=False)
    return Numbers(values.astype(np.int64, casting="unsafe", copy=False), known)


def kept(batch: Any, rows: Bools) -> Any:
    """Return the rows of a batch, or of a column, that a mask names."""
    import pyarrow as pa

    return batch.filter(pa.array(rows))


def may_match(column: Any, regex: str) -> Bools | None:
    """Tell which texts of a column a regex of RE2 matches; None where it cannot be used."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(column.type):
        of_text = may_match(column.dictionary, regex)
        codes = column.indices.fill_null(0).to_numpy(zero_copy_only=False)
        none = of_text is None or not len(of_text)
        return of_text if none else of_text[codes] & present(column)  # type: ignore[index]
    if not is_text(column.type):
        return None
    if str(column.type) == "string_view":
        column = column.cast(pa.string())
    try:
        matches = pc.match_substring_regex(column, regex).fill_null(False)
    except pa.ArrowInvalid:
        return None
    return np.asarray(matches.to_numpy(zero_copy_only=False), bool)


def present(column: Any) -> Bools:
    """Tell where a column has a value."""
    return np.asarray(column.is_valid().to_numpy(zero_copy_only=False), bool)


def numbered(column: Any, numbers: Mapping[str, int]) -> Any:
    """Return the number of each text of a column, as a column."""
    import pyarrow as pa

    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    of_text = [None if t is None else numbers[t] for t in texts_of(column.dictionary)]
    return pa.array(of_text, pa.int64()).take(column.indices)


def affinity_of(kind: Any) -> str:
    """Return the type that SQLite has for a type of Arrow; "" where it has none."""
    import pyarrow as pa

    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    if is_text(plain):
        return "TEXT"
    if pa.types.is_integer(plain) or pa.types.is_boolean(plain) or pa.types.is_null(plain):
        return "INT"
    return "REAL" if pa.types.is_floating(plain) else ""


def column_of(texts: Sequence[str]) -> Any:
    """Return texts as a column."""
    import pyarrow as pa

    return pa.array(texts, pa.string())


def texts_of(column: Any) -> list[Any]:
    """Return the values of a column, read as far as bytes are UTF-8; None where there is none."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    values: list[Any] = column.to_pylist()
    if pa.types.is_string(column.type):
        return values
    return [v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in values]


STRINGS = "StringIds"
#: Columns that refer to texts by their numbers in StringIds.
_NUMBERS_OF_TEXTS = ("nameId", "demangledName", "textId")


@frozen
class Block:
    """Some rows of a table.

    Attributes:
        first: number of the first row; the table's first is 1.
        batch: of pyarrow.
        numbers_of_texts: of names that stand where their numbers belong.
    """

    first: int
    batch: Any
    numbers_of_texts: Mapping[str, int]

    def __len__(self) -> int:
        length: int = self.batch.num_rows
        return length

    def numbers(self, name: str) -> Numbers:
        """Return a column of whole numbers; one without any where the table lacks it.

        Raises:
            ValueError: it holds something else.
        """
        column = self.column(name)
        if column is None:
            return absent(len(self))
        if name in _NUMBERS_OF_TEXTS and is_text(column.type):
            return numbers_of(numbered(column, self.numbers_of_texts))
        return numbers_of(column)

    def column(self, name: str) -> Any:
        """Return a column as it is; None where the table lacks it."""
        place = self.batch.schema.get_field_index(name)
        return None if place < 0 else self.batch.column(place)

    def texts(self, name: str) -> list[Any]:
        """Return a column of texts; none where the table lacks it."""
        column = self.column(name)
        return [None] * len(self) if column is None else texts_of(column)

    def rows(self, first: int, last: int) -> Block:
        """Return those rows whose numbers lie between two."""
        begin = max(first - self.first, 0)
        length = max(last - self.first + 1 - begin, 0)
        return Block(self.first + begin, self.batch.slice(begin, length), self.numbers_of_texts)

    def take(self, rows: Bools) -> Block:
        """Return the rows of a mask; their numbers are then unknown."""
        return Block(0, kept(self.batch, rows), self.numbers_of_texts)


class Tables:
    """The tables of an export that queries read; threads may read them at the same time."""

    def __init__(self, path: str, files: Mapping[str, tuple[Path, TableFile]]) -> None:
        """Take the file of each table."""
        self.path = path
        self._files = files
        self.made_up: Mapping[int, str] = {}
        self._numbers: Mapping[str, int] = {}
        self._numbers = self._number_texts()

    @property
    def schema(self) -> Mapping[str, frozenset[str]]:
        """Columns of each table."""
        schema = {table: frozenset(file.names) for table, (_, file) in self._files.items()}
        if self.made_up:
            schema[STRINGS] = frozenset(("id", "value"))
        return schema

    def rows(self, table: str) -> int:
        """Return the number of rows of a table."""
        made_up = len(self.made_up) if table == STRINGS else 0
        return made_up + (self._files[table][1].rows if table in self._files else 0)

    def suffixes(self) -> frozenset[str]:
        """Return the endings of the files."""
        return frozenset(path.suffix for path, _ in self._files.values())

    def type_of(self, table: str, column: str) -> Any:
        """Return the type of a column."""
        return self._files[table][1].type_of(column)

    def blocks(self, table: str, columns: Sequence[str], first: int = 1) -> Iterator[Block]:
        """Yield blocks of some columns of a table, in order; without those that it lacks.

        Args:
            table: of nsys.
            columns: of the table.
            first: rows before this may be left out.

        Raises:
            ProfileError: the file is damaged.
        """
        if table not in self._files:
            return
        path, file = self._files[table]
        names = [name for name in dict.fromkeys(columns) if name in file.names]
        # Without a column, a batch would not say how many rows it has.
        batches = file.batches(names or file.names[:1], max(first - 1, 0))
        last = 0
        while True:
            with damage_reported(self.path, path.name):
                place, batch = next(batches, (0, None))
            if batch is None:
                break
            last = place + batch.num_rows
            yield Block(place + 1, batch, self._numbers)
        if first <= file.rows and last != file.rows:
            raise ProfileError(
                f"{self.path}: {path.name} ends after {last:,} of {file.rows:,} rows, so it is "
                f"damaged; {EXPORT_AGAIN}"
            )

    def strings(self) -> Iterator[tuple[Ints, Any]]:
        """Yield the numbers and the column of texts of StringIds, and those made up, in blocks.

        Raises:
            ProfileError: the file is damaged.
            ValueError: a number is none.
        """
        # As in the view of strings, what lacks either is none.
        whole = {"id", "value"} <= self.schema.get(STRINGS, frozenset())
        for block in self.blocks(STRINGS, ("id", "value")) if whole else ():
            yield block.numbers("id").every(), block.column("value")
        if self.made_up:
            yield np.array([*self.made_up], np.int64), column_of([*self.made_up.values()])

    def _number_texts(self) -> Mapping[str, int]:
        """Number the names that stand where their numbers belong."""
        named = [
            (table, column)
            for table, (_, file) in self._files.items()
            for column in _NUMBERS_OF_TEXTS
            if column in file.names
            and column in columns_read().get(table, ())
            and is_text(file.type_of(column))
        ]
        if not named:
            return {}
        numbers: dict[str, int] = {}
        for block in self.blocks(STRINGS, ("id", "value")):
            ids = block.numbers("id").every().tolist()
            for number, text in zip(ids, block.texts("value"), strict=True):
                numbers.setdefault(str(text), number)
        made_up: dict[int, str] = {}
        after = max(numbers.values(), default=-1) + 1
        for table, column in named:
            for block in self.blocks(table, (column,)):
                unique = block.batch.column(0).unique()
                for text in texts_of(unique):
                    if text is not None and text not in numbers:
                        numbers[text] = after
                        made_up[after] = text
                        after += 1
        self.made_up = made_up
        return numbers


class Cursor:
    """Reads a table once from its beginning to its end, in stretches that follow one another."""

    def __init__(self, tables: Tables, table: str, columns: Sequence[str]) -> None:
        """Begin before the first row of some columns."""
        self._tables, self._table, self._columns = tables, table, columns
        self._blocks: Iterator[Block] = iter(())
        self._rest: Block | None = None
        self._next = 0
        self._lock = Lock()

    def between(self, first: int, last: int) -> Iterator[Block]:
        """Yield the rows between two, the last included; rows before those are read anew.

        Raises:
            ProfileError: the file is damaged.
        """
        with self._lock:
            if self._next == 0 or first < self._next:
                self._blocks = self._tables.blocks(self._table, self._columns, first)
                self._rest = None
            # After an error, the next begins anew.
            self._next = 0
            while (block := self._rest or next(self._blocks, None)) is not None:
                end = block.first + len(block) - 1
                self._rest = block.rows(last + 1, end) if end > last else None
                if end >= first and block.first <= last:
                    yield block.rows(first, min(last, end))
                if end >= last:
                    break
            self._next = last + 1
            if last >= self._tables.rows(self._table):
                # What has been read to its end holds on to no pages.
                self._blocks, self._rest, self._next = iter(()), None, 0
                give_back()
