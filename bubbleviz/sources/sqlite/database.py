"""Opens SQLite files read-only. Small queries return rows, and large queries return columns.

Nothing is ever written to the file or its directory. The file is opened as immutable, so SQLite
does not create a journal. All views are temporary views of the connection. Columns are read through
the ADBC driver for SQLite, which does not create a Python object for each value and does not block
other threads.

Statements in ``sql/`` run unchanged. SQLAlchemy composes statements that contain table names, such
as row counts. Importing SQLAlchemy takes 0.2 s, so SQLAlchemy is imported on first use, that is,
when a file is inspected or cannot be analyzed. Importing the ADBC driver takes 10 ms, and is
unnecessary if all queries are answered by decoding pages.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote

import numpy as np
from arro3.core import Array, DataType, RecordBatch, RecordBatchReader

from bubbleviz.errors import ProfileError
from bubbleviz.model.columns import Ints
from bubbleviz.sources.sqlite.queries import Binds, Queries, Query, Schema

if TYPE_CHECKING:
    import adbc_driver_manager as adbc
    from arro3.core import Array, RecordBatch

#: Number of rows per batch if the result size is unknown.
_BATCH = 1 << 15
#: Upper bound in bytes on the memory that a query needs.
_ROOM = 64 << 20
#: Lower bound in bytes on the size of a row in a large table.
_ROW_BYTES = 8
#: Number of SQLite virtual machine steps between two signal checks (a few milliseconds).
_STEPS = 1_000_000
#: Matches the prefixes that the ADBC driver adds to SQLite's error messages.
_AROUND = re.compile(r"^([A-Z_]+: |C Data interface error: |Failed to \w+ query: )+")
#: Text fragments that identify out-of-memory messages from SQLite and the ADBC driver.
_NO_MEMORY = ("out of memory", "Cannot allocate memory")
#: Reason given in messages if an integer column contains a value that is not an integer.
NO_NUMBER = "it contains a value that is not a whole number"
#: Size of an SQLite file header in bytes.
HEADER_BYTES = 100
#: Table and column definitions, as rows returned by ``schema.sql``.
StoredColumns: TypeAlias = Sequence[tuple[object, ...]]
#: Suffixes of the rollback journal and the write-ahead log, which SQLite writes next to a database.
JOURNAL, LOG = "-journal", "-wal"
#: Queries that can run on any profiler's SQLite files.
SQLITE_QUERIES = Queries("the profiler", "sqlite", "profile of any profiler", "copy the file again")


def make_damage_error(
    path: str, query: Query, reason: str, maker: Queries | None = None
) -> ProfileError:
    """Return the error for a query that failed because of a damaged file.

    Args:
        path: Path to the file.
        query: The query that failed.
        reason: Explanation of what is wrong with the file.
        maker: Queries for the profiler that wrote the file, which provide the advice at the end of
            the message. None means the collection to which ``query`` belongs.
    """
    return ProfileError(
        f"{path}: {query.tables} cannot be read ({reason}), so the file is damaged or truncated; "
        f"{(maker or query.maker).again}"
    )


@contextmanager
def _report_damage(path: str, query: Query) -> Iterator[None]:
    """Convert ADBC driver errors to errors that name the damaged file.

    Raises:
        MemoryError: Memory ran out.
        ProfileError: The query failed for another reason.
    """
    import adbc_driver_manager as adbc

    try:
        yield
    except (adbc.Error, ValueError) as error:
        if any(text in str(error) for text in _NO_MEMORY):
            raise MemoryError from error
        # Keep only SQLite's own message, on one line and without the driver's prefixes.
        reason = (str(error).splitlines() or [type(error).__name__])[0].rpartition("[SQLite] ")[2]
        raise make_damage_error(path, query, _AROUND.sub("", reason)) from error


def _iter_interrupts(caught: list[BaseException]) -> Iterator[bool]:
    """Let Ctrl-C interrupt SQLite by yielding True if SQLite must stop, and False otherwise.

    SQLite's progress handler calls ``next()`` on this generator. Python can handle signals only
    during this call. If a signal handler raises an exception, the exception is stored in
    ``caught``, and SQLite stops. The caller then raises the exception. A plain function would not
    be sufficient, because the signal handler could run before the function's ``try`` statement.

    Args:
        caught: List to which the exception is appended.
    """
    while True:
        try:
            yield bool(caught)
        except GeneratorExit:
            return
        except BaseException as error:
            caught.append(error)


class Database:
    """An open SQLite file. Threads cannot share a ``Database``, so each thread opens its own.

    Args:
        path: Path to the file as given by the user.
        maker: Queries for the profiler that wrote the file.
        views: Statements that create the temporary views for the queries, keyed by view name.
    """

    def __init__(self, path: str, maker: Queries, views: Mapping[str, str] | None = None) -> None:
        self.path, self._maker, self.views = path, maker, views or {}
        self._opened = ExitStack()

    def close(self) -> None:
        """Close the file."""
        self._opened.close()

    @cached_property
    def _small(self) -> tuple[sqlite3.Connection, list[BaseException]]:
        """The connection for small queries, and the exceptions raised by signal handlers.

        The connection is opened, and the temporary views are created, on first use.
        """
        try:
            connection = sqlite3.connect(_make_uri(self.path), uri=True)
        except sqlite3.Error as error:
            raise ProfileError(
                f"{self.path}: cannot be opened ({error}), perhaps because too many files are "
                "open; pass a smaller --jobs"
            ) from error
        self._opened.callback(connection.close)
        # Replace bytes that are not valid UTF-8.
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        for statement in self.views.values():
            connection.execute(statement)
        caught: list[BaseException] = []
        connection.set_progress_handler(partial(next, _iter_interrupts(caught)), _STEPS)
        return connection, caught

    @cached_property
    def connection(self) -> adbc.AdbcConnection:
        """The ADBC connection for large queries, opened on first use."""
        import adbc_driver_manager as adbc
        import adbc_driver_sqlite

        with ExitStack() as stack:
            try:
                database = adbc_driver_sqlite.connect(_make_uri(self.path))
                stack.callback(_close, database)
                connection = adbc.AdbcConnection(database)
                stack.callback(_close, connection)
                _execute(connection, self.views.values())
            except adbc.Error as error:
                # Do not quote the driver's reason, because it is misleading.
                raise ProfileError(
                    f"{self.path}: cannot be opened, perhaps because too many files are open or "
                    "memory ran out; pass a smaller --jobs"
                ) from error
            self._opened.push(stack.pop_all())
        return connection

    @property
    def max_rows(self) -> int:
        """Upper bound on the number of rows in any table, derived from the size of the file."""
        return Path(self.path).stat().st_size // _ROW_BYTES + 1

    def create_views(self, views: Mapping[str, str]) -> None:
        """Replace the temporary views for the queries.

        Views with unchanged statements are kept. The connections stay open, because reopening a
        file with many tables takes a long time.

        Args:
            views: Statements that create the new views, keyed by view name.
        """
        unchanged = self.views.items() & views.items()
        statements = [
            f"DROP VIEW temp.{name}"
            for name, text in self.views.items()
            if (name, text) not in unchanged
        ]
        statements += [text for name, text in views.items() if (name, text) not in unchanged]
        for statement in statements:
            self._small[0].execute(statement)
        if "connection" in vars(self):
            _execute(self.connection, statements)
        self.views = views

    def query_rows(self, query: Query, binds: Binds | None = None) -> list[tuple[object, ...]]:
        """Run a query, and return its rows. Blobs are converted to texts.

        Bytes that are not valid UTF-8 are replaced with U+FFFD.

        Args:
            query: The query.
            binds: Values for the query's parameters.

        Raises:
            ProfileError: The file is damaged.
        """
        connection, caught = self._small
        values = {name: (binds or {})[name] for name in query.parameters}
        try:
            result = connection.execute(query.text, values).fetchall()
        except sqlite3.Error as error:
            if caught:
                raise caught.pop() from None
            raise make_damage_error(self.path, query, str(error), self._maker) from error
        except UnicodeDecodeError as error:
            # SQLite's error message quotes a malformed schema and therefore cannot be decoded.
            raise make_damage_error(
                self.path, query, "the schema is not text", self._maker
            ) from error
        return [tuple(map(_decode_blob, row)) for row in result]

    def count_rows(self, table: str) -> int:
        """Return the number of rows in a table.

        Raises:
            ProfileError: The file is damaged.
        """
        from sqlalchemy import func

        ((rows,),) = self._select(table, func.count())
        return int(rows)

    def find_extents(self, table: str, column: str) -> dict[object, tuple[int, int]]:
        """Find the smallest and largest row number at which each value in a column occurs.

        Args:
            table: Name of the table.
            column: Name of the column.

        Returns:
            (smallest, largest) row numbers, keyed by value. Empty if the table has no row numbers
            (``WITHOUT ROWID``).

        Raises:
            ProfileError: The file is damaged.
        """
        from sqlalchemy import func, text

        value, row = text(f'"{column}"'), text("rowid")
        try:
            groups = self._select(table, value, func.min(row), func.max(row), group_by=value)
        except ProfileError as error:
            if "no such column: rowid" in str(error):
                return {}
            raise
        return {_decode_blob(key): (int(first), int(last)) for key, first, last in groups}

    def _select(self, table: str, *columns: Any, group_by: Any = None) -> Sequence[Any]:
        """Run a SELECT statement that SQLAlchemy composes, and return its rows.

        Args:
            table: Name of the table.
            columns: SQLAlchemy expressions to select.
            group_by: SQLAlchemy expression to group by, or None for no grouping.

        Raises:
            ProfileError: The file is damaged.
        """
        import sqlalchemy
        from sqlalchemy.exc import DBAPIError
        from sqlalchemy.pool import StaticPool

        opened, caught = self._small
        rows = sqlalchemy.select(*columns).select_from(sqlalchemy.table(table, schema="main"))
        rows = rows if group_by is None else rows.group_by(group_by)
        engine = sqlalchemy.create_engine("sqlite://", creator=lambda: opened, poolclass=StaticPool)
        try:
            with engine.connect() as connection:
                return connection.execute(rows).fetchall()
        except DBAPIError as error:
            if caught:
                raise caught.pop() from None
            raise ProfileError(
                f"{self.path}: the rows of {table} cannot be counted ({error.orig}), so the file "
                f"is damaged or truncated; {self._maker.again}"
            ) from error

    def query_columns(self, query: Query, binds: Binds | None = None, rows: int = _BATCH) -> Ints:
        """Run a query, and return its int64 columns, shape (columns, rows).

        Args:
            query: The query.
            binds: Values for the query's parameters.
            rows: Expected number of rows, which becomes the batch size. An exact number is best:
                the query then returns a single batch, and other threads can run Python code in the
                meantime.

        Raises:
            ProfileError: The file is damaged, or a column contains non-integer values.
        """
        with _report_damage(self.path, query):
            batches = self._query_batches(query, binds or {}, max(rows, 1)) or []
            if not batches:
                return np.empty((len(query.columns), 0), np.int64)
            blocks = [stack_integers(batch.columns) for batch in batches]
            return blocks[0] if len(blocks) == 1 else np.concatenate(blocks, axis=1)

    def read_batch(self, query: Query, binds: Binds, rows: int = _BATCH) -> RecordBatch | None:
        """Run a query with text columns, and return its rows as a single batch.

        The result is None if there are no rows.

        Args:
            query: The query.
            binds: Values for the query's parameters.
            rows: Initial batch size, which should exceed the number of rows. If the batch is full,
                the query runs again with a larger batch.

        Raises:
            ProfileError: The file is damaged.
        """
        batch_rows = max(rows, 1)
        with _report_damage(self.path, query):
            # The driver infers column types from the first batch, so all rows must be in one batch.
            while (batches := self._query_batches(query, binds, batch_rows, single=True)) is None:
                batch_rows <<= 4
        return batches[0] if batches else None

    def _query_batches(
        self, query: Query, binds: Binds, batch_rows: int, *, single: bool = False
    ) -> list[RecordBatch] | None:
        """Run a query, and return its result in batches.

        If ``single`` is true, all rows must fit in one batch. In that case, the result is None if
        the first batch is full, because more rows may follow.

        Args:
            query: The query.
            binds: Values for the query's parameters.
            batch_rows: Maximum number of rows per batch.
            single: Whether all rows must fit in one batch.

        Raises:
            MemoryError: Memory ran out.
            adbc.Error: The driver cannot run the query.
            ValueError: A row cannot be read.
        """
        import adbc_driver_manager as adbc

        # If memory runs out, the driver may terminate the process. This allocation raises a
        # MemoryError before that happens, unless other threads use up the memory afterwards.
        np.empty(_ROOM, np.uint8)
        text, number = DataType.string(), DataType.int64()
        values = [
            Array([binds[name]], text if isinstance(binds[name], str) else number)
            for name in query.parameters
        ]
        statement = adbc.AdbcStatement(self.connection)
        stream = reader = None
        try:
            statement.set_options(**{"adbc.sqlite.query.batch_rows": str(batch_rows)})
            statement.set_sql_query(query.text)
            statement.prepare()
            if values:
                statement.bind(RecordBatch.from_arrays(values, names=query.parameters))
            stream, _ = statement.execute_query()
            reader = RecordBatchReader.from_stream(stream)
            batches: list[RecordBatch] = []
            for batch in reader:
                batches.append(batch)
                if single and batch.num_rows == batch_rows:
                    return None
            return batches
        except (adbc.Error, MemoryError):
            raise
        except Exception as error:
            # If the driver cannot read a row, it raises a plain Exception.
            raise ValueError(str(error)) from error
        finally:
            # Release the reader first, because it keeps a reference to its statement.
            stream = reader = None
            statement.close()


def stack_integers(columns: Sequence[Array]) -> Ints:
    """Stack integer columns into one int64 array, shape (columns, rows).

    Raises:
        ValueError: A column contains NULL or non-integer values.
    """
    for column in columns:
        if column.type != DataType.int64() or column.null_count:
            raise ValueError(NO_NUMBER)
    return np.stack([column.to_numpy() for column in columns])


def decode_texts(column: Array) -> list[object]:
    """Return the values in a text column as Python strings. NULL becomes None.

    If any value is a blob, the driver returns all values as blobs, so blobs are decoded too. Bytes
    that are not valid UTF-8 are replaced with U+FFFD. A column of another type, such as integers,
    is not converted.
    """
    if column.type not in {DataType.string(), DataType.binary()}:
        return list(column.to_pylist())
    raw: list[Any] = list(column.cast(DataType.binary()).to_pylist())
    # Try the common case first: no value is NULL, and all texts are valid UTF-8.
    with suppress(TypeError, UnicodeDecodeError):
        return list(map(bytes.decode, raw))
    return [None if text is None else text.decode("utf-8", "replace") for text in raw]


def _decode_blob(value: object) -> object:
    """Decode a blob as text. Any other value is returned unchanged."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _execute(connection: adbc.AdbcConnection, texts: Iterable[str]) -> None:
    """Run SQL statements, ignoring their results."""
    import adbc_driver_manager as adbc

    for text in texts:
        with closing(adbc.AdbcStatement(connection)) as statement:
            statement.set_sql_query(text)
            statement.execute_update()


def _close(handle: adbc.AdbcConnection | adbc.AdbcDatabase) -> None:
    # Closing raises RuntimeError if a signal interrupted a query whose statement is still open.
    # The statement is closed along with the connection.
    with suppress(RuntimeError):
        handle.close()


def check_pages(path: str, maker: Queries) -> None:
    """Check that a file is at least as long as its header states. SQLite does not check this.

    Raises:
        ProfileError: The file is too short.
    """
    size = Path(path).stat().st_size
    with Path(path).open("rb") as file:
        head = file.read(HEADER_BYTES)
        page, pages = parse_page_counts(head)
        has_header = len(head) == HEADER_BYTES
        if not has_header or page * pages > size:
            length = f"it contains {size} of {page * pages} bytes"
            if not has_header:
                length = f"{size} bytes are too few for a database"
            raise ProfileError(f"{path}: the file is truncated ({length}); {maker.again}")


def check_finished(path: str, maker: Queries) -> None:
    """Check that no program is writing a file.

    A rollback journal or a non-empty write-ahead log next to the file shows that a program is
    writing it.

    Raises:
        ProfileError: A program is writing the file, or was killed while writing the file.
    """
    for sidecar in find_sidecar_files(path):
        is_unfinished = sidecar.name.endswith(LOG) and sidecar.stat().st_size
        if is_unfinished or sidecar.name.endswith(JOURNAL):
            raise ProfileError(
                f"{path}: is still being written, or the program that wrote it was killed "
                f"({sidecar.name} exists); wait for {maker.program} to finish, or {maker.again}"
            )


def find_sidecar_files(path: str) -> list[Path]:
    """Return the existing sidecar files of a database file.

    Sidecar files are the rollback journal, the write-ahead log, and the index of the log.
    """
    resolved = str(Path(path).resolve())
    sidecars = (Path(resolved + suffix) for suffix in (JOURNAL, LOG, "-shm"))
    return [file for file in sidecars if file.exists()]


def parse_page_counts(head: bytes) -> tuple[int, int]:
    """Parse the page size in bytes and the page count from the header of an SQLite file."""
    page_bytes = int.from_bytes(head[16:18], "big")
    return 65536 if page_bytes == 1 else page_bytes, int.from_bytes(head[28:32], "big")


def _make_uri(path: str) -> str:
    """Return the URI that makes SQLite open a file read-only without creating any other file."""
    return f"file:{quote(os.fsencode(str(Path(path).resolve())))}?mode=ro&immutable=1"


@contextmanager
def open_database(path: str, maker: Queries) -> Iterator[Database]:
    """Open an SQLite file read-only. The file is closed on exit.

    Args:
        path: Path to the file.
        maker: Queries for the profiler that wrote the file.

    Raises:
        ProfileError: The file is still being written, or is too short.
    """
    check_finished(path, maker)
    check_pages(path, maker)
    with closing(Database(path, maker)) as database:
        yield database


def list_relations(path: str) -> frozenset[str]:
    """Return the names of the tables and views in a file, or an empty set if the file is damaged.

    The damage is reported later, when the file is read.
    """
    with closing(Database(path, SQLITE_QUERIES)) as database, suppress(ProfileError, OSError):
        check_pages(path, SQLITE_QUERIES)
        rows = database.query_rows(SQLITE_QUERIES.query("relations"))
        return frozenset(str(name) for (name,) in rows)
    return frozenset()


def read_stored_columns(database: Database, names: Collection[str] | None = None) -> StoredColumns:
    """Return the table and view definitions in a file, as returned by ``schema.sql``.

    Args:
        database: The open file.
        names: Names of the tables and views to return, or None to return all.

    Raises:
        ProfileError: The file is damaged.
    """
    binds = {"names": None if names is None else json.dumps(sorted(names))}
    return database.query_rows(SQLITE_QUERIES.query("schema"), binds)


def group_columns_by_table(stored: StoredColumns) -> Schema:
    """Return each table's column names, keyed by table name. Generated columns are left out."""
    columns: dict[str, set[str]] = {}
    for table, _, _, _, column, _, _, hidden in stored:
        if column is not None:
            columns.setdefault(str(table), set()).update(() if hidden else (str(column),))
    return {table: frozenset(names) for table, names in columns.items()}
