"""Databases: an SQLite file, opened read-only, whose large tables are read as columns.

Nothing is ever written to the file or beside it: it is opened immutable, so that SQLite makes no
journal, and views are temporary ones of the connection. Results come as Arrow columns from the
SQLite that ADBC's driver brings: no Python object is made for a value, and other threads run
meanwhile.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import adbc_driver_manager as adbc
import adbc_driver_sqlite
import numpy as np
from arro3.core import Array, DataType, RecordBatch, RecordBatchReader

from bubbleviz.errors import ProfileError
from bubbleviz.model.columns import Ints
from bubbleviz.model.values import frozen
from bubbleviz.sources.sqlite.queries import Binds, Query

#: Rows of a batch where it is not known how many there are.
_BATCH = 1 << 15
#: More bytes than a query needs.
_ROOM = 64 << 20
#: A row of any of the large tables takes more.
_ROW_BYTES = 8
_INT64, _UTF8, _BINARY = DataType.int64(), DataType.string(), DataType.binary()
#: Errors of reading where a file is damaged, or holds text where a number belongs.
_UNREADABLE = (adbc.Error, ValueError)
#: What the driver puts before SQLite's reason.
_AROUND = re.compile(r"^([A-Z_]+: |C Data interface error: |Failed to \w+ query: )+")
#: How SQLite and the driver report that there is no memory.
_NO_MEMORY = ("out of memory", "Cannot allocate memory")


@contextmanager
def _damage_reported(path: str, query: Query) -> Iterator[None]:
    """Turn what a query raises into an error that names the damaged file."""
    try:
        yield
    except _UNREADABLE as error:
        if any(text in str(error) for text in _NO_MEMORY):
            raise MemoryError from error
        raise damage(path, query, _reason(error)) from error


def damage(path: str, query: Query, reason: str) -> ProfileError:
    """Return the error of a query that failed."""
    return ProfileError(
        f"{path}: {query.path} failed ({reason}); the file is damaged or was cut "
        f"short: {query.maker.again}"
    )


def _reason(error: Exception) -> str:
    """Return SQLite's reason, in one line and without the driver's words around it."""
    reason = (str(error).splitlines() or [type(error).__name__])[0].rpartition("[SQLite] ")[2]
    return _AROUND.sub("", reason)


@frozen
class Database:
    """An open file. One thread at a time may use it.

    Attributes:
        path: as given.
        connection: through which queries run.
        size: of the file, bytes.
        views: statements that created its temporary views.
    """

    path: str
    connection: adbc.AdbcConnection
    size: int
    views: tuple[str, ...] = ()

    @property
    def most_rows(self) -> int:
        """More rows than fit into the file; a row of any table that is read takes more bytes."""
        return self.size // _ROW_BYTES + 1

    def rows(self, query: Query, binds: Binds | None = None) -> list[tuple[object, ...]]:
        """Return the rows of a query, which hold texts; these are read as far as they are UTF-8.

        Raises:
            ProfileError: the file is damaged.
        """
        most = _BATCH
        with _damage_reported(self.path, query):
            # A column has the type of its first batch, so that all rows must come in one.
            while (batches := self._batches(query, binds or {}, most, alone=True)) is None:
                most <<= 4
        return [row for batch in batches for row in zip(*map(_values, batch.columns), strict=True)]

    def columns(self, query: Query, binds: Binds | None = None, rows: int = _BATCH) -> Ints:
        """Return the int64 columns of a query, shape (columns, rows).

        Args:
            query: that gives them.
            binds: its parameters.
            rows: how many there are, if that is known. No more of them than this are read while
                other threads run Python; the rest while none does.

        Raises:
            ProfileError: the file is damaged, or holds something else than integers.
        """
        with _damage_reported(self.path, query):
            batches = self._batches(query, binds or {}, max(rows, 1)) or []
            if not batches:
                return np.empty((len(query.columns), 0), np.int64)
            blocks = [_integers(batch) for batch in batches]
            return blocks[0] if len(blocks) == 1 else np.concatenate(blocks, axis=1)

    def reopened(self) -> AbstractContextManager[Database]:
        """Open the same file for another thread."""
        return opened_database(self.path, self.views)

    def _batches(
        self, query: Query, binds: Binds, most: int, *, alone: bool = False
    ) -> list[RecordBatch] | None:
        """Return the result in batches of ``most`` rows; None if it is to be one, and is more."""
        # Where memory runs out the driver may end the process; numpy says so. Other threads take
        # memory too, so that this helps nearly always.
        np.empty(_ROOM, np.uint8)
        values = [_parameter(binds[name]) for name in query.parameters]
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


def _parameter(value: int | str | None) -> Array:
    return Array([value], _UTF8 if isinstance(value, str) else _INT64)


def _integers(batch: RecordBatch) -> Ints:
    for column in batch.columns:
        if column.type != _INT64 or column.null_count:
            raise ValueError("there is something else than a whole number where one belongs")
    return np.stack([column.to_numpy() for column in batch.columns])


def _values(column: Array) -> list[object]:
    """Return the values of a column; one blob among texts makes all of them blobs."""
    if column.type not in {_UTF8, _BINARY}:
        return list(column.to_pylist())
    raw: list[bytes | None] = list(column.cast(_BINARY).to_pylist())
    return [None if text is None else text.decode("utf-8", "replace") for text in raw]


def _create_views(connection: adbc.AdbcConnection, statements: Sequence[str]) -> None:
    for text in statements:
        statement = adbc.AdbcStatement(connection)
        try:
            statement.set_sql_query(text)
            statement.execute_update()
        finally:
            statement.close()


@contextmanager
def opened_database(path: str, views: Sequence[str] = ()) -> Iterator[Database]:
    """Open a file read-only.

    Args:
        path: of the file.
        views: statements that create the temporary views which queries read.

    Raises:
        ProfileError: it cannot be opened.
    """
    with ExitStack() as stack:
        try:
            size = Path(path).stat().st_size
            database = adbc_driver_sqlite.connect(uri_of(path))
            stack.callback(_close, database)
            connection = adbc.AdbcConnection(database)
            stack.callback(_close, connection)
            _create_views(connection, views)
        except OSError as error:
            raise ProfileError(f"{path}: cannot be opened ({error.strerror})") from error
        except adbc.Error as error:
            # The driver's reason is not the real one.
            raise ProfileError(
                f"{path}: cannot be opened; it may be that too many files are open, or that there "
                "is too little memory: give a smaller --jobs"
            ) from error
        yield Database(path, connection, size, tuple(views))


def _close(handle: adbc.AdbcConnection | adbc.AdbcDatabase) -> None:
    # A signal may have come between a statement and its end; what it left is closed with it.
    with suppress(RuntimeError):
        handle.close()


def uri_of(path: str) -> str:
    """Return the URI by which SQLite opens a file and writes nothing."""
    return f"file:{quote(os.fsencode(str(Path(path).resolve())))}?mode=ro&immutable=1"
