"""Databases: an SQLite file, opened read-only; small queries give rows, large tables columns.

Nothing is ever written to the file or beside it: it is opened immutable, so that SQLite makes no
journal, and views are temporary ones of the connection. Columns come from the SQLite that ADBC's
driver brings: no Python object is made for a value, and other threads run meanwhile.

The queries of ``sql/`` are whole statements, which run as they are. What is put together from the
names of tables, their counts, SQLAlchemy composes. It takes a fifth of a second to import, and is
where it is used: by ``inspect``, and where there is nothing to analyse. The driver takes 10 ms, and
nobody needs it where pages are decoded.
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

#: Rows of a batch where it is not known how many there are.
_BATCH = 1 << 15
#: More bytes than a query needs.
_ROOM = 64 << 20
#: A row of any of the large tables takes more.
_ROW_BYTES = 8
#: So many steps of SQLite's machine take some milliseconds.
_STEPS = 1_000_000
#: What the driver puts before SQLite's reason.
_AROUND = re.compile(r"^([A-Z_]+: |C Data interface error: |Failed to \w+ query: )+")
#: How SQLite and the driver report that there is no memory.
_NO_MEMORY = ("out of memory", "Cannot allocate memory")
#: What is wrong with a column that holds something else than whole numbers.
NO_NUMBER = "something other than a whole number was found"
HEADER_BYTES = 100
#: How a file stores columns: rows of schema.sql.
StoredColumns: TypeAlias = Sequence[tuple[object, ...]]
#: What SQLite writes beside a file behind its name: before a change, or instead of one.
JOURNAL, LOG = "-journal", "-wal"
#: Any profiler.
SQLITE_QUERIES = Queries("the profiler", "sqlite", "profile of any profiler", "copy it again")


def make_damage_error(
    path: str, query: Query, reason: str, maker: Queries | None = None
) -> ProfileError:
    """Return the error of a query that failed, of its maker or that of the file, if known."""
    return ProfileError(
        f"{path}: {query.tables} cannot be read ({reason}); the file is damaged or was cut "
        f"short: {(maker or query.maker).again}"
    )


@contextmanager
def _report_damage(path: str, query: Query) -> Iterator[None]:
    """Turn what ADBC's driver raises into an error that names the damaged file."""
    import adbc_driver_manager as adbc

    try:
        yield
    except (adbc.Error, ValueError) as error:
        if any(text in str(error) for text in _NO_MEMORY):
            raise MemoryError from error
        # SQLite's reason, in one line and without the driver's words around it.
        reason = (str(error).splitlines() or [type(error).__name__])[0].rpartition("[SQLite] ")[2]
        raise make_damage_error(path, query, _AROUND.sub("", reason)) from error


def _iter_interrupts(caught: list[BaseException]) -> Iterator[bool]:
    """Yield whether SQLite is to stop; handlers of signals run between, and may raise.

    Python handles no signal, such as that of Ctrl-C, while SQLite runs. What is raised is caught,
    to be raised when SQLite has stopped. Of a function, a handler would run before its "try".
    """
    while True:
        try:
            yield bool(caught)
        except GeneratorExit:
            return
        except BaseException as error:
            caught.append(error)


class Database:
    """An open file; another thread opens it for itself.

    Args:
        path: as given.
        maker: of such files.
        views: statements that create the temporary views which queries read, by the views' names.
    """

    def __init__(self, path: str, maker: Queries, views: Mapping[str, str] | None = None) -> None:
        self.path, self._maker, self.views = path, maker, views or {}
        self._opened = ExitStack()

    def close(self) -> None:
        """Close the file."""
        self._opened.close()

    @cached_property
    def _small(self) -> tuple[sqlite3.Connection, list[BaseException]]:
        """The connection of small queries, and what signals raised while it ran."""
        try:
            connection = sqlite3.connect(_make_uri(self.path), uri=True)
        except sqlite3.Error as error:
            raise ProfileError(
                f"{self.path}: cannot be opened ({error}); too many files may be open: give a "
                "smaller --jobs"
            ) from error
        self._opened.callback(connection.close)
        # Text that is not UTF-8 is read as far as it is.
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        for statement in self.views.values():
            connection.execute(statement)
        caught: list[BaseException] = []
        connection.set_progress_handler(partial(next, _iter_interrupts(caught)), _STEPS)
        return connection, caught

    @cached_property
    def connection(self) -> adbc.AdbcConnection:
        """The connection of large queries."""
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
                # The driver's reason is not the real one.
                raise ProfileError(
                    f"{self.path}: cannot be opened; too many files may be open, or memory too "
                    "small: give a smaller --jobs"
                ) from error
            self._opened.push(stack.pop_all())
        return connection

    @property
    def max_rows(self) -> int:
        """More rows than fit into the file; a row of any table that is read takes more bytes."""
        return Path(self.path).stat().st_size // _ROW_BYTES + 1

    def create_views(self, views: Mapping[str, str]) -> None:
        """Create the temporary views which queries read, in place of those that there are.

        An open connection keeps what it knows of a file: that takes long where tables are many.
        """
        kept = self.views.items() & views.items()
        dropped = [f"DROP VIEW temp.{view[0]}" for view in self.views.items() if view not in kept]
        statements = [*dropped, *(view[1] for view in views.items() if view not in kept)]
        for statement in statements:
            self._small[0].execute(statement)
        if "connection" in vars(self):
            _execute(self.connection, statements)
        self.views = views

    def query_rows(self, query: Query, binds: Binds | None = None) -> list[tuple[object, ...]]:
        """Return the rows of a query; text, and what a blob holds, is read as far as it is UTF-8.

        Raises:
            ProfileError: the file is damaged.
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
            # Python cannot decode what SQLite reports of a malformed schema.
            raise make_damage_error(
                self.path, query, "the schema is not text", self._maker
            ) from error
        return [tuple(map(_decode_blob, row)) for row in result]

    def count_rows(self, table: str) -> int:
        """Return the number of rows of a table.

        Raises:
            ProfileError: the file is damaged.
        """
        from sqlalchemy import func

        ((rows,),) = self._select(table, func.count())
        return int(rows)

    def find_extents(self, table: str, column: str) -> dict[object, tuple[int, int]]:
        """Return the numbers of the first and of the last row with each value of a column.

        They are empty if the rows of the table have no numbers (``WITHOUT ROWID``).

        Raises:
            ProfileError: the file is damaged.
        """
        from sqlalchemy import func, text

        value, row = text(f'"{column}"'), text("rowid")
        try:
            found = self._select(table, value, func.min(row), func.max(row), group=value)
        except ProfileError as error:
            if "no such column: rowid" in str(error):
                return {}
            raise
        return {_decode_blob(own): (int(first), int(last)) for own, first, last in found}

    def _select(self, table: str, *selected: Any, group: Any = None) -> Sequence[Any]:
        """Return what is selected of a table, in groups of equal values of a column if given."""
        import sqlalchemy
        from sqlalchemy.exc import DBAPIError
        from sqlalchemy.pool import StaticPool

        opened, caught = self._small
        rows = sqlalchemy.select(*selected).select_from(sqlalchemy.table(table, schema="main"))
        rows = rows if group is None else rows.group_by(group)
        engine = sqlalchemy.create_engine("sqlite://", creator=lambda: opened, poolclass=StaticPool)
        try:
            with engine.connect() as connection:
                return connection.execute(rows).fetchall()
        except DBAPIError as error:
            if caught:
                raise caught.pop() from None
            raise ProfileError(
                f"{self.path}: {table} cannot be counted ({error.orig}); the file is damaged or "
                f"was cut short: {self._maker.again}"
            ) from error

    def query_columns(self, query: Query, binds: Binds | None = None, rows: int = _BATCH) -> Ints:
        """Return the int64 columns of a query, shape (columns, rows).

        Args:
            query: that gives them.
            binds: its parameters.
            rows: how many there are, if that is known. No more of them than this are read while
                other threads run Python; the rest while none does.

        Raises:
            ProfileError: the file is damaged, or holds something else than integers.
        """
        with _report_damage(self.path, query):
            batches = self._query_batches(query, binds or {}, max(rows, 1)) or []
            if not batches:
                return np.empty((len(query.columns), 0), np.int64)
            blocks = [stack_integers(batch.columns) for batch in batches]
            return blocks[0] if len(blocks) == 1 else np.concatenate(blocks, axis=1)

    def read_batch(self, query: Query, binds: Binds, rows: int = _BATCH) -> RecordBatch | None:
        """Return the result of a query, texts among it; None without rows.

        Args:
            query: that gives it.
            binds: its parameters.
            rows: more than there are, if that is known; else it may be read again.

        Raises:
            ProfileError: the file is damaged.
        """
        most = max(rows, 1)
        with _report_damage(self.path, query):
            # A column has the type of its first batch, so that all rows must come in one.
            while (batches := self._query_batches(query, binds, most, alone=True)) is None:
                most <<= 4
        return batches[0] if batches else None

    def _query_batches(
        self, query: Query, binds: Binds, most: int, *, alone: bool = False
    ) -> list[RecordBatch] | None:
        """Return the result in batches of ``most`` rows; None if it is to be one, and is more."""
        import adbc_driver_manager as adbc

        # Where memory runs out the driver may end the process; numpy says so. Other threads take
        # memory too, so that this helps nearly always.
        np.empty(_ROOM, np.uint8)
        text, number = DataType.string(), DataType.int64()
        values = [
            Array([binds[name]], text if isinstance(binds[name], str) else number)
            for name in query.parameters
        ]
        statement = adbc.AdbcStatement(self.connection)
        stream = reader = None
        try:
            statement.set_options(**{"adbc.sqlite.query.batch_rows": str(most)})
            statement.set_sql_query(query.text)
            statement.prepare()
            if values:
                statement.bind(RecordBatch.from_arrays(values, names=query.parameters))
            stream, _ = statement.execute_query()
            reader = RecordBatchReader.from_stream(stream)
            batches: list[RecordBatch] = []
            for batch in reader:
                batches.append(batch)
                if alone and batch.num_rows == most:
                    return None
            return batches
        except (adbc.Error, MemoryError):
            raise
        except Exception as error:
            # Whatever the driver reports of a step comes as a plain Exception.
            raise ValueError(str(error)) from error
        finally:
            # What is left of a result holds on to its statement, which must be closed after it.
            stream = reader = None
            statement.close()


def stack_integers(columns: Sequence[Array]) -> Ints:
    """Return columns of whole numbers, shape (columns, rows).

    Raises:
        ValueError: they hold something else.
    """
    for column in columns:
        if column.type != DataType.int64() or column.null_count:
            raise ValueError(NO_NUMBER)
    return np.stack([column.to_numpy() for column in columns])


def decode_texts(column: Array) -> list[object]:
    """Return the values of a column of texts; one blob among texts makes all of them blobs."""
    if column.type not in {DataType.string(), DataType.binary()}:
        return list(column.to_pylist())
    raw: list[Any] = list(column.cast(DataType.binary()).to_pylist())
    # Mostly there is no NULL among them, and all are UTF-8.
    with suppress(TypeError, UnicodeDecodeError):
        return list(map(bytes.decode, raw))
    return [None if text is None else text.decode("utf-8", "replace") for text in raw]


def _decode_blob(value: object) -> object:
    """Return a value; a blob as the text that it holds."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _execute(connection: adbc.AdbcConnection, texts: Iterable[str]) -> None:
    """Run statements without a result."""
    import adbc_driver_manager as adbc

    for text in texts:
        with closing(adbc.AdbcStatement(connection)) as statement:
            statement.set_sql_query(text)
            statement.execute_update()


def _close(handle: adbc.AdbcConnection | adbc.AdbcDatabase) -> None:
    # A signal may have come between a statement and its end; what it left is closed with it.
    with suppress(RuntimeError):
        handle.close()


# The file and what lies beside it, looked at without SQLite.


def check_pages(path: str, maker: Queries) -> None:
    """Check what SQLite cannot: whether the file is whole.

    Raises:
        ProfileError: the file is shorter than its own header says.
    """
    size = Path(path).stat().st_size
    with Path(path).open("rb") as file:
        head = file.read(HEADER_BYTES)
        page, pages = parse_page_counts(head)
        whole = len(head) == HEADER_BYTES
        if not whole or page * pages > size:
            left = f"{size} of {page * pages} bytes" if whole else f"{size} bytes are no database"
            raise ProfileError(f"{path}: was cut short, {left}; {maker.again}")


def check_finished(path: str, maker: Queries) -> None:
    """Check that nothing is writing a file.

    Raises:
        ProfileError: something is, or died meanwhile.
    """
    for beside in find_sidecar_files(path):
        unfinished = beside.name.endswith(LOG) and beside.stat().st_size
        if unfinished or beside.name.endswith(JOURNAL):
            raise ProfileError(
                f"{path}: is still being written, or its writer died ({beside.name} lies beside "
                f"it); wait for {maker.program} to finish, or {maker.again}"
            )


def find_sidecar_files(path: str) -> list[Path]:
    """Return the journal, the log and its index that lie beside a file, even if they are empty."""
    real = str(Path(path).resolve())
    beside = (Path(real + suffix) for suffix in (JOURNAL, LOG, "-shm"))
    return [file for file in beside if file.exists()]


def parse_page_counts(head: bytes) -> tuple[int, int]:
    """Return the bytes of a page, and the number of pages, as the head of a file gives them."""
    page_bytes = int.from_bytes(head[16:18], "big")
    return 65536 if page_bytes == 1 else page_bytes, int.from_bytes(head[28:32], "big")


def _make_uri(path: str) -> str:
    """Return the URI by which SQLite opens a file and writes nothing."""
    return f"file:{quote(os.fsencode(str(Path(path).resolve())))}?mode=ro&immutable=1"


@contextmanager
def open_database(path: str, maker: Queries) -> Iterator[Database]:
    """Open a file read-only.

    Raises:
        ProfileError: it is being written, was cut short, or describes too much.
    """
    check_finished(path, maker)
    check_pages(path, maker)
    with closing(Database(path, maker)) as database:
        yield database


def list_relations(path: str) -> frozenset[str]:
    """Return the names of tables and views; none of a file that is damaged or describes too much.

    What cannot be read here is left to the reader of the file to refuse.
    """
    with closing(Database(path, SQLITE_QUERIES)) as database, suppress(ProfileError, OSError):
        check_pages(path, SQLITE_QUERIES)
        rows = database.query_rows(SQLITE_QUERIES.query("relations"))
        return frozenset(str(name) for (name,) in rows)
    return frozenset()


def read_stored_columns(database: Database, names: Collection[str] | None = None) -> StoredColumns:
    """Return how an open file stores relations, all or those of some names: rows of schema.sql.

    Raises:
        ProfileError: the file is damaged.
    """
    wanted = None if names is None else json.dumps(sorted(names))
    return database.query_rows(SQLITE_QUERIES.query("schema"), {"names": wanted})


def group_columns_by_table(stored: StoredColumns) -> Schema:
    """Return the columns of each table, but for generated ones, by its name in the file."""
    columns: dict[str, set[str]] = {}
    for table, _, _, _, column, _, _, hidden in stored:
        if column is not None:
            columns.setdefault(str(table), set()).update(() if hidden else (str(column),))
    return {table: frozenset(names) for table, names in columns.items()}
