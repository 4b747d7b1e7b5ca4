"""Columnar exports: the directories of ``nsys export --type parquetdir`` and ``arrowdir``.

Each file of such a directory, Parquet or Arrow IPC, is a table of the SQLite export, with the same
columns, read block by block by pyarrow. ``sql/`` stays the reference: queries of large tables are
read as columns, and all others run as they are, on small tables that are loaded into an SQLite
database in memory when a query first reads them.

Where a newer nsys writes names themselves instead of numbers of ``StringIds``, they get numbers
beyond those, so that all that follows knows numbers alone.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import accumulate, repeat
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from bubbleviz.conventions.globs import fitting, loose_regex
from bubbleviz.errors import EXPORT_AGAIN, ProfileError
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.pointers import refuse_pointer
from bubbleviz.model.texts import one_line
from bubbleviz.progress import Watch, unwatched
from bubbleviz.sources.nsys import export, queries
from bubbleviz.sources.nsys.files import files_of
from bubbleviz.sources.sqlite.database import NO_NUMBER, damage
from bubbleviz.sources.sqlite.queries import ABSENT, EVERY_ROW, Binds, PlainColumn
from bubbleviz.sources.tables.files import opened_ipc, values_of

_ResultT = TypeVar("_ResultT")
Rows = list[tuple[object, ...]]

#: The number of a row, as queries call it; the first row of each table is 1.
_ROW = "_rowid_"
#: What queries select rows by: a column, and the parameter that holds its wanted values.
_SELECTED_BY = {"calls/at": (_ROW, "rows"), "calls/named": ("nameId", "name_ids")}
#: What files of these endings are, in words.
_FORMATS = {".parquet": "Parquet", ".arrow": "Arrow", ".arrows": "Arrow"}
#: Columns that refer to texts by their numbers in StringIds.
_NUMBERS_OF_TEXTS = ("nameId", "demangledName", "textId")
#: Names that stand where their numbers belong get numbers from here on.
_MADE_UP = 1 << 40
#: Rows of a batch: enough that its parts cost little, few enough to stay in the cache.
_BATCH_ROWS = 1 << 15
#: Bytes of a column's pages that are read at a time, where one part of a file has all rows.
_BUFFER = 1 << 18
#: Characters of pyarrow's own words in a refusal.
_LONGEST_REASON = 120


@contextmanager
def _plain_memory() -> Iterator[None]:
    """Have pyarrow take memory from the system, which gets back what a batch no longer needs."""
    before = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(before)


@contextmanager
def _damage_reported(path: str, file: str) -> Iterator[None]:
    """Turn what pyarrow raises, but that memory ran out, into an error that names the file."""
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
        names: of its columns.
        rows: how many it has.

    Raises:
        ProfileError: it cannot be read.
    """

    def __init__(self, path: str, file: Path, *, threads: bool) -> None:
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
                with self._arrow(()) as reader:
                    self.schema = reader.schema
                self.rows = sum(b.num_rows for b in self._parts([0] if self.schema.names else []))
        self.names: list[str] = self.schema.names
        if len(set(self.names)) < len(self.names):
            raise ProfileError(
                f"{path}: {file.name} has two columns of one name, which no export of nsys has; "
                f"{EXPORT_AGAIN}"
            )

    def batches(self, names: Sequence[str], first: int) -> Iterator[tuple[int, Any]]:
        """Yield some columns in batches, each with the place of its first row.

        Args:
            names: of the columns.
            first: rows before this, counted from 0, need not be among them.
        """
        at = 0
        if self._metadata is None:
            for part in self._parts([self.schema.get_field_index(name) for name in names]):
                if at + part.num_rows > first:
                    for begin in range(0, part.num_rows, _BATCH_ROWS):
                        yield at + begin, part.slice(begin, _BATCH_ROWS)
                at += part.num_rows
            return
        groups = map(self._metadata.row_group, range(self._metadata.num_row_groups))
        begins = list(accumulate((group.num_rows for group in groups), initial=0))
        parts = [i for i, end in enumerate(begins[1:]) if end > first]
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
    def _arrow(self, fields: Sequence[int]) -> Iterator[Any]:
        options = pa.ipc.IpcReadOptions(
            use_threads=self._threads, included_fields=list(fields) or None
        )
        with pa.OSFile(str(self.path)) as file:
            yield opened_ipc(file, options)

    def _parts(self, fields: Sequence[int]) -> Iterator[Any]:
        """Yield the own batches of Arrow IPC."""
        with self._arrow(fields) as reader:
            numbered = getattr(reader, "num_record_batches", None)
            for batch in reader if numbered is None else map(reader.get_batch, range(numbered)):
                # Nothing of a batch is checked before it is used, offsets into texts included.
                batch.validate(full=True)
                yield batch


class ColumnarExport(export.Export):
    """A directory that holds a file for each table, which pyarrow reads.

    Args:
        path: of the directory.
        files: by table.
        small: an empty database in memory.
        watch: takes the share that has been read.
    """

    def __init__(
        self, path: str, files: Mapping[str, TableFile], small: sqlite3.Connection, watch: Watch
    ) -> None:
        self.path, self._files, self._small = path, files, small
        # Of names that stand where their numbers belong.
        self._numbers: dict[str, int] = {}
        self._numbers = self._numbers_of_names()
        schema = {table: frozenset(file.names) for table, file in files.items()}
        if self._numbers:
            schema[export.STRINGS] = frozenset(("id", "value"))
        # Parts follow one another, so that one thread reads them; pyarrow has threads of its own.
        super().__init__(path, schema, "a directory of tables", 1, watch)
        self._loaded: set[str] = set()
        self._lock = Lock()
        for name, view in self.views.items():
            small.execute(f"CREATE TEMP VIEW {name} AS\n{view.text}")

    def account(self) -> str:
        """Return what reads the export."""
        suffixes = sorted({file.path.suffix for file in self._files.values()})
        kinds = dict.fromkeys(_FORMATS[suffix] for suffix in suffixes)
        return f"pyarrow ({' and '.join(kinds)}, a file for each table)"

    def most_rows(self) -> int:
        """Return a number of rows that no table exceeds."""
        return 1 + max(map(self.count, self.schema), default=0)

    def count(self, table: str) -> int:
        """Return the number of rows of a table."""
        made_up = len(self._numbers) if table == export.STRINGS else 0
        return made_up + (self._files[table].rows if table in self._files else 0)

    def _blocks(
        self, table: str, columns: Iterable[str], first: int = 1, last: int = 1 << 62
    ) -> Iterator[Any]:
        """Yield blocks of some columns of a table, in order; without those that it lacks.

        Args:
            table: its name.
            columns: the numbers of the rows may be among them.
            first: number of the first row.
            last: number of the last row.

        Raises:
            ProfileError: the file is damaged.
        """
        if table not in self._files:
            return
        file = self._files[table]
        columns = dict.fromkeys(columns)
        names = [name for name in columns if name in file.names]
        # Without a column, a batch would not say how many rows it has.
        batches = file.batches(names or file.names[:1], max(first - 1, 0))
        end = 0
        while end < last:
            with _damage_reported(self.path, file.path.name):
                place, batch = next(batches, (0, None))
            if batch is None:
                break
            end = place + batch.num_rows
            begin = min(max(first - 1 - place, 0), batch.num_rows)
            if begin or end > last:
                batch = batch.slice(begin, min(end, last) - place - begin)
            if batch.num_rows:
                number = place + begin + 1 if _ROW in columns else None
                yield self._plain(batch, number)
        if first <= file.rows and end != file.rows and end < last:
            raise ProfileError(
                f"{self.path}: {file.path.name} ends after {end:,} of {file.rows:,} rows, so it "
                f"is damaged; {EXPORT_AGAIN}"
            )

    def _plain(self, batch: Any, first: int | None) -> Any:
        """Return a batch of plain columns: values instead of codes, and numbers of names.

        Args:
            batch: as it is in the file.
            first: number of its first row, where a column is to hold these; None for no such.
        """
        names, columns = list(batch.schema.names), list(map(_decoded, batch.columns))
        for place, name in enumerate(names) if self._numbers else ():
            if name in _NUMBERS_OF_TEXTS and _is_text(columns[place].type):
                codes = columns[place].dictionary_encode()
                numbers = [self._numbers.get(text) for text in _texts(codes.dictionary)]
                columns[place] = pa.array(numbers, pa.int64()).take(codes.indices)
        if first is not None:
            names.append(_ROW)
            columns.append(pa.array(np.arange(first, first + batch.num_rows)))
        return pa.RecordBatch.from_arrays(columns, names)

    def _numbers_of_names(self) -> dict[str, int]:
        """Return numbers of the names that stand where their numbers belong."""
        numbers: dict[str, int] = {}
        for table, file in self._files.items():
            read = queries.QUERIES.columns_read.get(table, frozenset())
            for column in read.intersection(_NUMBERS_OF_TEXTS, file.names):
                if _is_text(file.schema.field(column).type):
                    for block in self._blocks(table, (column,)):
                        for text in _texts(block.column(0).unique()):
                            if text is not None:
                                numbers.setdefault(text, _MADE_UP + len(numbers))
        return numbers

    def _strings(self) -> Iterator[tuple[Ints, Any]]:
        """Yield the numbers and the column of texts of StringIds, and those made up, in blocks."""
        # As in the view of strings, what lacks either is none.
        whole = {"id", "value"} <= self.schema.get(export.STRINGS, frozenset())
        for block in self._blocks(export.STRINGS, ("id", "value")) if whole else ():
            yield _every(_numbers(block, "id")), _column(block, "value")
        if self._numbers:
            texts = pa.array([*self._numbers], pa.string())
            yield np.array([*self._numbers.values()], np.int64), texts

    # Queries: those of large tables as columns, others by SQLite.

    def rows(self, name: str, binds: Binds | None = None) -> Rows:
        """Return the rows of a query that gives few, or any text."""
        binds = binds or {}
        if name.endswith("bounds"):
            rows = self.count(queries.table_of(name))
            # Of the last row only its number is used.
            return [(1, rows, None)] if rows else []
        answers: Mapping[str, Callable[[], Rows]] = {
            "strings/by_id": lambda: self._by_id(binds),
            "calls/any": lambda: self._any(name, "correlationId", lambda v: v != ABSENT),
            "ranges/any": lambda: self._any(
                name, "eventType", lambda v: np.isin(v, [int(binds[k] or 0) for k in export.KINDS])
            ),
            "ranges/payloads": lambda: self._payloads(binds),
        }
        return self._reported(name, answers.get(name, lambda: self._small_rows(name, binds)))

    def _columns(self, name: str, binds: Binds) -> Ints:
        if not name.startswith("target/"):
            return self._reported(name, lambda: self._selected(name, binds))
        found = self._small_rows(name, binds)
        if {type(value) for row in found for value in row} - {int}:
            raise damage(self.path, queries.query(name), NO_NUMBER)
        return np.array(found, np.int64).reshape(len(found), len(queries.query(name).columns)).T

    def _selected(self, name: str, binds: Binds) -> Ints:
        """Return the columns of a query of one table, in the rows that it selects."""
        table, columns = queries.QUERIES.plain_columns(name, self.views)
        parts, read = [np.empty((len(columns), 0), np.int64)], _names(columns)
        if name not in _SELECTED_BY:
            parts += [_values(block, columns) for block in self._blocks(table, read)]
            return np.concatenate(parts, axis=1)
        by, given = _SELECTED_BY[name]
        wanted = np.array(json.loads(str(binds[given])), np.int64)
        rows = (int(wanted.min()), int(wanted.max())) if by == _ROW else ()
        for block in self._blocks(table, (*read, by), *rows):
            chosen = _kept(block, np.isin(_numbers(block, by), wanted))
            parts.append(_values(chosen, columns))
            if chosen.num_rows and binds.get("most") == 1:
                break
        return np.concatenate(parts, axis=1)

    def _reported(self, name: str, read: Callable[[], _ResultT]) -> _ResultT:
        """Return what a function reads for a query; what is wrong becomes an error of that query.

        Raises:
            ProfileError: there is something else than whole numbers.
        """
        try:
            return read()
        except ValueError as error:
            raise damage(self.path, queries.query(name), str(error)) from error

    def _parts(
        self, name: str, selection: export.Selection | None
    ) -> Iterator[Callable[[], tuple[range, Any] | None]]:
        table, columns = queries.QUERIES.plain_columns(name, self.views)
        blocks = self._blocks(table, (*_names(columns), _ROW))

        def read() -> tuple[range, Any] | None:
            block = next(blocks, None)
            if block is None:
                # What has been read to its end holds on to no pages.
                pa.default_memory_pool().release_unused()
                return None
            first = int(_numbers(block, _ROW)[0])
            chosen = self._chosen(name, block, selection) if selection else _values(block, columns)
            return range(first, first + block.num_rows), chosen

        return repeat(lambda: self._reported(name, read))

    def named(
        self,
        name: str,
        selection: export.Selection,
        stretches: Sequence[tuple[int, int]] = (EVERY_ROW,),
    ) -> export.Named:
        """Return the selected rows of a query, in stretches from a row to a row or of all."""
        if name == "strings/matching":
            return self._reported(name, lambda: self._matching(selection.globs))
        table, columns = queries.QUERIES.plain_columns(name, self.views)
        parts = [export.named(np.empty((len(columns) - 1, 0), np.int64), ())]

        def read() -> export.Named:
            for block in self._blocks(table, (*_names(columns), _ROW)):
                number = _numbers(block, _ROW)
                inside = [(number >= begin) & (number <= end) for begin, end in stretches]
                rows = np.any(inside, axis=0)
                if rows.any():
                    parts.append(self._chosen(name, _kept(block, rows), selection))
            return export.joined(parts)

        return self._reported(name, read)

    def _chosen(self, name: str, block: Any, selection: export.Selection) -> export.Named:
        """Return the selected rows of a block."""
        *columns, text = queries.QUERIES.plain_columns(name, self.views)[1]
        fits = np.ones(block.num_rows, bool)
        if name != "calls/system":
            fits = np.isin(_numbers(block, "eventType"), selection.kinds)
        if name == "ranges/named":
            registered = np.isin(_numbers(block, columns[5].name), selection.text_ids)
            texts = _column(block, text.name)
            if texts is not None:
                # Those that may have a text that a pattern fits.
                named, likely = _present(texts), may_match(texts, loose_regex(selection.globs))
                registered = (named if likely is None else likely) | (registered & ~named)
            fits &= registered
        elif name != "ranges/sample":
            start, end, thread = (_numbers(block, n) for n in ("start", "end", "globalTid"))
            # Differences of times that are damaged may go beyond 64 bits, which SQLite's may not.
            fits &= end.astype(np.float64) - start >= selection.shortest_ns
            fits &= (end > min(selection.since_ns)) & (start < max(selection.until_ns))
            fits &= np.isin(thread, selection.threads) & (start != ABSENT) & (end != ABSENT)
        block = _kept(block, fits)
        known = _texts_in(block, text.name)
        if name == "ranges/named":
            fitted = fitting(selection.globs, ("" if t is None else str(t) for t in known))
            keep = [t is None or fit for t, fit in zip(known, fitted, strict=True)]
            block = _kept(block, np.array(keep, bool))
            known = [t for t, fit in zip(known, keep, strict=True) if fit]
            if (_numbers(block, "start") == ABSENT).any():
                raise self._null_among_ranges()
        if not known:
            return export.named(np.empty((len(columns), 0), np.int64), ())
        return export.named(_values(block, columns), known)

    def _matching(self, globs: Sequence[str]) -> export.Named:
        regex = loose_regex(globs)
        strings: dict[int, str] = {}
        for ids, column in self._strings():
            likely = may_match(column, regex)
            rows = _present(column) if likely is None else likely
            texts = [str(text) for text in _texts(_kept(column, rows))]
            named = zip(ids[rows].tolist(), texts, fitting(globs, texts), strict=True)
            strings.update((number, text) for number, text, fits in named if fits)
        numbers = sorted(strings)
        return export.named(np.array([numbers], np.int64), [strings[n] for n in numbers])

    def _by_id(self, binds: Binds) -> Rows:
        wanted = np.array(json.loads(str(binds["ids"])), np.int64)
        texts: dict[int, object] = {}
        for ids, column in self._strings() if len(wanted) else ():
            chosen = np.isin(ids, wanted)
            found = zip(ids[chosen].tolist(), _texts(_kept(column, chosen)), strict=True)
            texts.update((number, str(text)) for number, text in found if text is not None)
        return sorted(texts.items())

    def _any(self, name: str, column: str, wanted: Callable[[Ints], Bools]) -> Rows:
        """Return the first value that is wanted of a column of a query's table."""
        for block in self._blocks(queries.table_of(name), (column,)):
            values = _numbers(block, column)
            values = values[wanted(values)]
            if len(values):
                return [(int(values[0]),)]
        return []

    def _payloads(self, binds: Binds) -> Rows:
        first, last = int(binds["first"] or 0), int(binds["last"] or 0)
        rows: Rows = []
        columns = ("start", "globalTid", "binaryData")
        for block in self._blocks(export.NVTX, columns, first, last):
            part = _kept(block, _present(_column(block, "binaryData")))
            column = _column(part, "binaryData")
            starts = [None if s == ABSENT else s for s in _numbers(part, "start").tolist()]
            threads = _numbers(part, "globalTid")
            texts = (
                v.hex().upper() if isinstance(v, bytes) else str(v) for v in column.to_pylist()
            )
            threads = np.where(threads == ABSENT, NONE, threads)
            rows.extend(zip(starts, threads.tolist(), texts, strict=True))
        return rows

    def _small_rows(self, name: str, binds: Binds) -> Rows:
        """Return the rows of a query that SQLite runs; threads take turns."""
        asked = queries.query(name)
        values = {given: binds[given] for given in asked.parameters}
        with self._lock:
            try:
                for relation in asked.requires:
                    view = self.views.get(relation)
                    for table in view.requires if view else (relation,):
                        self._load(table)
                return self._small.execute(asked.text, values).fetchall()
            except sqlite3.Error as error:
                raise damage(self.path, asked, str(error)) from error

    def _load(self, table: str) -> None:
        """Load the columns of a table that queries read, unless they are there."""
        if table in self._loaded or table not in self.schema:
            return
        columns = sorted(self.schema[table] & queries.QUERIES.columns_read.get(table, frozenset()))
        if columns:
            declared = ", ".join(f'"{column}"' for column in columns)
            self._small.execute(f'CREATE TABLE "{table}" ({declared})')
            marks = ", ".join("?" * len(columns))
            for block in self._blocks(table, columns):
                rows = zip(*(_cells(block, column) for column in columns), strict=True)
                self._small.executemany(f'INSERT INTO "{table}" VALUES ({marks})', rows)
        self._loaded.add(table)


# Cells: columns of Arrow as numbers and texts, as strictly as those of an SQLite export.


def _names(columns: Iterable[PlainColumn]) -> list[str]:
    """Return the columns of the table that are read."""
    return [column.name for column in columns if column.name]


def _values(block: Any, columns: Iterable[PlainColumn]) -> Ints:
    """Return columns of a block as a query gives them, shape (columns, rows).

    Raises:
        ValueError: one holds something else than whole numbers, or NULL where one is needed.
    """
    values = []
    for column in columns:
        numbers = _numbers(block, column.name)
        lacking = numbers == ABSENT
        if column.nothing:
            lacking |= np.isin(numbers, column.nothing)
        if column.missing is None:
            _every(numbers)
        elif lacking.any():
            numbers = np.where(lacking, column.missing, numbers)
        values.append(numbers)
    return np.stack(values)


def _every(numbers: Ints) -> Ints:
    """Return a column of whole numbers; ValueError where there is none somewhere."""
    if (numbers == ABSENT).any():
        raise ValueError(NO_NUMBER)
    return numbers


def _decoded(column: Any) -> Any:
    """Return a column of values, where it holds codes of them, or views."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    # Not every version of pyarrow computes with views.
    return column.cast(pa.string()) if str(column.type) == "string_view" else column


def _column(block: Any, name: str) -> Any:
    """Return a column as it is; None where the table lacks it."""
    place = block.schema.get_field_index(name)
    return None if place < 0 else block.column(place)


def _numbers(block: Any, name: str) -> Ints:
    """Return a column of whole numbers, ABSENT for none; unsigned 64 bits as SQLite keeps them.

    Raises:
        ValueError: it holds something else.
    """
    column = _column(block, name)
    if column is None or pa.types.is_null(column.type):
        return np.full(block.num_rows, ABSENT)
    if not (pa.types.is_boolean(column.type) or pa.types.is_integer(column.type)):
        raise ValueError(NO_NUMBER)
    values, known = values_of(column)
    values = values.astype(np.int64, casting="unsafe", copy=False)
    return np.where(known, values, ABSENT) if column.null_count else values


def _is_text(kind: Any) -> bool:
    """Tell whether a type is that of texts, dictionaries of them included."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return str(kind) in ("string", "large_string", "string_view")


def _kept(block: Any, rows: Bools) -> Any:
    """Return the rows of a block, or of a column, that a mask names."""
    return block.filter(pa.array(rows))


def _present(column: Any) -> Bools:
    """Tell where a column has a value."""
    return values_of(column.is_valid())[0].astype(bool)


def may_match(column: Any, regex: str) -> Bools | None:
    """Tell which texts of a column a regex of RE2 matches; None where it cannot be used."""
    if not _is_text(column.type):
        return None
    try:
        matches = pc.match_substring_regex(column, regex)
    except pa.ArrowInvalid:
        return None
    return values_of(matches)[0].astype(bool)


def _texts(column: Any) -> list[Any]:
    """Return the values of a column, read as far as bytes are UTF-8; None where there is none."""
    return [v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in column.to_pylist()]


def _cells(block: Any, name: str) -> list[Any]:
    """Return a column of values as SQLite takes them."""
    column = _column(block, name)
    if not pa.types.is_integer(column.type):
        return _texts(column)
    return [None if v == ABSENT else v for v in _numbers(block, name).tolist()]


def _texts_in(block: Any, name: str) -> list[Any]:
    """Return a column of texts; none where the table lacks it."""
    column = _column(block, name)
    return [None] * block.num_rows if column is None else _texts(column)


@contextmanager
def opened_directory(
    path: str, jobs: int = 1, watch: Watch = unwatched
) -> Iterator[ColumnarExport]:
    """Open a directory that holds a file for each table.

    Args:
        path: of the directory.
        jobs: pyarrow's threads, of which there are several unless this is 1.
        watch: takes the share that has been read.

    Raises:
        ProfileError: it is damaged, no export, or pyarrow is not installed.
    """
    with _plain_memory(), closing(sqlite3.connect(":memory:", check_same_thread=False)) as small:
        try:
            files = {
                t: file for t, file in files_of(path).items() if t in queries.QUERIES.columns_read
            }
        except OSError as error:
            raise ProfileError(f"{path}: cannot be opened ({error.strerror})") from error
        opened = {t: TableFile(path, file, threads=jobs > 1) for t, file in files.items()}
        yield ColumnarExport(path, opened, small, watch)
