"""Tables of a columnar export, a Parquet or Arrow IPC file each, read block by block by pyarrow.

Where a newer nsys writes names themselves instead of numbers of ``StringIds``, they get the numbers
that they have there, or new ones, so that all that follows knows numbers alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from bubbleviz.errors import EXPORT_AGAIN, ProfileError
from bubbleviz.model.columns import Bools, Ints
from bubbleviz.model.pointers import refuse_pointer
from bubbleviz.model.texts import one_line
from bubbleviz.model.values import frozen
from bubbleviz.sources.nsys.queries import ABSENT, columns_read
from bubbleviz.sources.sqlite.database import NO_NUMBER

STRINGS = "StringIds"
#: Columns that refer to texts by their numbers in StringIds.
_NUMBERS_OF_TEXTS = ("nameId", "demangledName", "textId")
#: Rows of a batch: enough that its parts cost little, few enough to stay in the cache.
_BATCH_ROWS = 1 << 15
#: Bytes of a column's pages that are read at a time, where one part of a file has all rows.
_BUFFER = 1 << 18
#: Characters of pyarrow's own words in a refusal.
_LONGEST_REASON = 120


@contextmanager
def plain_memory() -> Iterator[None]:
    """Have pyarrow take memory from the system, which gets back what a batch no longer needs."""
    import pyarrow as pa

    before = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(before)


@contextmanager
def _damage_reported(path: str, file: str) -> Iterator[None]:
    """Turn what pyarrow raises into an error that names the damaged file.

    Raises:
        ProfileError: it raised something else than that memory ran out.
    """
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, OverflowError, UnicodeDecodeError) as error:
        if isinstance(error, MemoryError):
            raise
        reason = one_line((str(error).splitlines() or [type(error).__name__])[0], _LONGEST_REASON)
        raise ProfileError(
            f"{path}: {file} cannot be read ({reason}); the file is damaged or was cut short: "
            f"{EXPORT_AGAIN}"
        ) from error


class TableFile:
    """A file that holds a table: Parquet, or a file or a stream of Arrow IPC.

    Args:
        path: of the export, for messages.
        file: that holds the table.
        threads: whether several columns are decoded at once.

    Attributes:
        schema: types of its columns.
        rows: how many it has.

    Raises:
        ProfileError: it cannot be read.
    """

    def __init__(self, path: str, file: Path, *, threads: bool) -> None:
        from pyarrow import parquet

        refuse_pointer(str(file))
        if not file.stat().st_size:
            raise ProfileError(f"{path}: {file.name} is empty; {EXPORT_AGAIN}")
        self.path, self._threads = file, threads
        self._metadata: Any = None
        with _damage_reported(path, file.name):
            if file.suffix == ".parquet":
                with parquet.ParquetFile(file) as opened:
                    self._metadata, self.schema = opened.metadata, opened.schema_arrow
                self.rows: int = self._metadata.num_rows
            else:
                with self._arrow(None) as reader:
                    self.schema = reader.schema
                self.rows = sum(b.num_rows for _, b in self._parts([0] if self.names else []))
        if len(set(self.names)) < len(self.names):
            raise ProfileError(
                f"{path}: {file.name} has two columns of one name, which no export of nsys has; "
                f"{EXPORT_AGAIN}"
            )

    @property
    def names(self) -> Sequence[str]:
        """Names of its columns."""
        names: list[str] = self.schema.names
        return names

    def batches(self, names: Sequence[str], first: int) -> Iterator[tuple[int, Any]]:
        """Yield some columns in batches, each with the place of its first row.

        Args:
            names: of the columns.
            first: rows before this, counted from 0, need not be among them.
        """
        if self._metadata is None:
            fields = [self.schema.get_field_index(name) for name in names]
            for at, part in self._parts(fields):
                if at + part.num_rows > first:
                    for begin in range(0, part.num_rows, _BATCH_ROWS):
                        yield at + begin, part.slice(begin, _BATCH_ROWS)
            return
        from pyarrow import parquet

        groups = map(self._metadata.row_group, range(self._metadata.num_row_groups))
        lengths = [group.num_rows for group in groups]
        begins = list(accumulate(lengths, initial=0))
        parts = [i for i in range(len(lengths)) if begins[i + 1] > first]
        # Buffered, a column of millions of rows is never in memory as a whole.
        options = {"pre_buffer": False, "buffer_size": _BUFFER, "page_checksum_verification": True}
        with parquet.ParquetFile(self.path, metadata=self._metadata, **options) as file:
            at = begins[parts[0]] if parts else 0
            for batch in file.iter_batches(
                _BATCH_ROWS, row_groups=parts, columns=list(names), use_threads=self._threads
            ):
                yield at, batch
                at += batch.num_rows

    @contextmanager
    def _arrow(self, fields: Sequence[int] | None) -> Iterator[Any]:
        import pyarrow as pa

        options = pa.ipc.IpcReadOptions(
            use_threads=self._threads, included_fields=list(fields or ()) or None
        )
        with pa.OSFile(str(self.path)) as file:
            try:
                reader = pa.ipc.open_file(file, options=options)
            except pa.ArrowInvalid:
                file.seek(0)
                reader = pa.ipc.open_stream(file, options=options)
            yield reader

    def _parts(self, fields: Sequence[int]) -> Iterator[tuple[int, Any]]:
        """Yield the own batches of Arrow IPC, each with the place of its first row."""
        at = 0
        with self._arrow(fields) as reader:
            numbered = getattr(reader, "num_record_batches", None)
            batches = reader if numbered is None else map(reader.get_batch, range(numbered))
            for batch in batches:
                # Nothing of a batch is checked before it is used, offsets into texts included.
                batch.validate(full=True)
                yield at, batch
                at += batch.num_rows


# Cells: columns of Arrow as numbers and texts, as strictly as those of an SQLite export.


def _is_text(kind: Any) -> bool:
    """Tell whether a type is that of texts, dictionaries of them included."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return str(kind) in ("string", "large_string", "string_view")


def _numbers_of(column: Any) -> Ints:
    """Return a column as whole numbers; unsigned ones of 64 bits as SQLite keeps their bits.

    Raises:
        ValueError: it holds something else.
    """
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if pa.types.is_null(kind):
        return np.full(len(column), ABSENT)
    if not (pa.types.is_boolean(kind) or pa.types.is_integer(kind)):
        raise ValueError(NO_NUMBER)
    known = present(column) if column.null_count else None
    if known is not None:
        column = column.fill_null(False if pa.types.is_boolean(kind) else 0)
    values = column.to_numpy(zero_copy_only=False).astype(np.int64, casting="unsafe", copy=False)
    return values if known is None else np.where(known, values, ABSENT)


def kept(batch: Any, rows: Bools) -> Any:
    """Return the rows of a batch, or of a column, that a mask names."""
    import pyarrow as pa

    return batch.filter(pa.array(rows))


def present(column: Any) -> Bools:
    """Tell where a column has a value."""
    return np.asarray(column.is_valid().to_numpy(zero_copy_only=False), bool)


def may_match(column: Any, regex: str) -> Bools | None:
    """Tell which texts of a column a regex of RE2 matches; None where it cannot be used."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(column.type):
        of_text = may_match(column.dictionary, regex)
        codes = column.indices.fill_null(0).to_numpy(zero_copy_only=False)
        none = of_text is None or not len(of_text)
        return of_text if none else of_text[codes] & present(column)  # type: ignore[index]
    if not _is_text(column.type):
        return None
    if str(column.type) == "string_view":
        column = column.cast(pa.string())
    try:
        matches = pc.match_substring_regex(column, regex).fill_null(False)
    except pa.ArrowInvalid:
        return None
    return np.asarray(matches.to_numpy(zero_copy_only=False), bool)


def texts_of(column: Any) -> list[Any]:
    """Return the values of a column, read as far as bytes are UTF-8; None where there is none."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    values: list[Any] = column.to_pylist()
    if pa.types.is_string(column.type):
        return values
    return [v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in values]


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

    def numbers(self, name: str) -> Ints:
        """Return a column of whole numbers, ABSENT for none; so are all that the table lacks.

        Raises:
            ValueError: it holds something else.
        """
        column = self.column(name)
        if column is None:
            return np.full(len(self), ABSENT)
        if name in _NUMBERS_OF_TEXTS and _is_text(column.type):
            import pyarrow as pa

            if not pa.types.is_dictionary(column.type):
                column = column.dictionary_encode()
            texts = texts_of(column.dictionary)
            of_text = [None if text is None else self.numbers_of_texts[text] for text in texts]
            column = pa.array(of_text, pa.int64()).take(column.indices)
        return _numbers_of(column)

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
    """The tables of an export that queries read; threads may read them at the same time.

    Args:
        path: of the export.
        files: by table.

    Attributes:
        schema: columns of each table.
    """

    def __init__(self, path: str, files: Mapping[str, TableFile]) -> None:
        self.path, self._files = path, files
        self._made_up: dict[int, str] = {}
        self._numbers: dict[str, int] = {}
        self.schema = {table: frozenset(file.names) for table, file in files.items()}
        self._number_texts()
        if self._made_up:
            self.schema[STRINGS] = frozenset(("id", "value"))

    def rows(self, table: str) -> int:
        """Return the number of rows of a table."""
        made_up = len(self._made_up) if table == STRINGS else 0
        return made_up + (self._files[table].rows if table in self._files else 0)

    def suffixes(self) -> frozenset[str]:
        """Return the endings of the files."""
        return frozenset(file.path.suffix for file in self._files.values())

    def affinity(self, table: str, column: str) -> str:
        """Return the type that a column has in SQLite.

        Raises:
            ProfileError: it has none.
        """
        import pyarrow as pa

        kind = self._files[table].schema.field(column).type
        plain = kind.value_type if pa.types.is_dictionary(kind) else kind
        if _is_text(plain):
            return "INT" if column in _NUMBERS_OF_TEXTS else "TEXT"
        if pa.types.is_integer(plain) or pa.types.is_boolean(plain) or pa.types.is_null(plain):
            return "INT"
        if pa.types.is_floating(plain):
            return "REAL"
        raise ProfileError(
            f"{self.path}: {table}.{column} holds values of the type {kind}, which no "
            f"export of nsys has there; {EXPORT_AGAIN}"
        )

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
        file = self._files[table]
        names = [name for name in dict.fromkeys(columns) if name in file.names]
        # Without a column, a batch would not say how many rows it has.
        batches = file.batches(names or file.names[:1], max(first - 1, 0))
        last = 0
        while True:
            with _damage_reported(self.path, file.path.name):
                place, batch = next(batches, (0, None))
            if batch is None:
                break
            last = place + batch.num_rows
            yield Block(place + 1, batch, self._numbers)
        if first <= file.rows and last != file.rows:
            raise ProfileError(
                f"{self.path}: {file.path.name} ends after {last:,} of {file.rows:,} rows, so it "
                f"is damaged; {EXPORT_AGAIN}"
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
            yield every(block.numbers("id")), block.column("value")
        if self._made_up:
            import pyarrow as pa

            texts = pa.array([*self._made_up.values()], pa.string())
            yield np.array([*self._made_up], np.int64), texts

    def _number_texts(self) -> None:
        """Number the names that stand where their numbers belong."""
        named = [
            (table, column)
            for table, file in self._files.items()
            for column in _NUMBERS_OF_TEXTS
            if column in file.names
            and column in columns_read().get(table, ())
            and _is_text(file.schema.field(column).type)
        ]
        numbers = self._numbers
        for block in self.blocks(STRINGS, ("id", "value")) if named else ():
            ids = every(block.numbers("id")).tolist()
            for number, text in zip(ids, block.texts("value"), strict=True):
                numbers.setdefault(str(text), number)
        after = max(numbers.values(), default=-1) + 1
        for table, column in named:
            for block in self.blocks(table, (column,)):
                for text in texts_of(block.batch.column(0).unique()):
                    if text is not None and text not in numbers:
                        numbers[text] = after
                        self._made_up[after] = text
                        after += 1


def every(numbers: Ints) -> Ints:
    """Return a column of whole numbers.

    Raises:
        ValueError: there is none somewhere.
    """
    if (numbers == ABSENT).any():
        raise ValueError(NO_NUMBER)
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
        import pyarrow as pa

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
                pa.default_memory_pool().release_unused()
