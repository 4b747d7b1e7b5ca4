"""Reads columnar exports, as written by ``nsys export --type parquetdir`` and ``arrowdir``.

A columnar export is a directory with one file per table. The tables have the same columns as in an
SQLite export. DuckDB runs the queries in ``sql/`` on views of the table files. The views add row
numbers and widen integers to 64 bits, as in SQLite. DuckDB reads Parquet files itself, and pyarrow
reads Arrow files into memory.

Newer versions of nsys write names where older versions write ids in ``StringIds``. The views
replace each of these names with an unused id, and the view of ``StringIds`` contains the new ids as
well.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import local
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np

from bubbleviz.conventions.globs import convert_to_duckdb, match_any_glob
from bubbleviz.errors import EXPORT_AGAIN, ProfileError
from bubbleviz.model.columns import Ints
from bubbleviz.model.pointers import refuse_pointer
from bubbleviz.model.texts import to_one_line
from bubbleviz.progress import Watch, unwatched
from bubbleviz.resources import count_cores
from bubbleviz.sources.nsys import export
from bubbleviz.sources.nsys.files import find_table_files
from bubbleviz.sources.nsys.queries import QUERIES, query
from bubbleviz.sources.operations.arrow import check_installed, open_ipc
from bubbleviz.sources.sqlite.database import NO_NUMBER, make_damage_error
from bubbleviz.sources.sqlite.queries import EVERY_ROW, Binds

if TYPE_CHECKING:
    import pyarrow as pa

#: DuckDB settings. DuckDB must not write files. One DuckDB thread per query is enough, because
#: every reader thread runs separate queries.
_SETTINGS = (
    "threads = 1",
    "temp_directory = ''",
    # Sort NULL first, as SQLite does.
    "default_null_order = 'nulls_first_on_asc_last_on_desc'",
    # Read each file's footer only once, and do not keep anything else in memory.
    "parquet_metadata_cache = true",
    "enable_external_file_cache = false",
    # Skip pages that a part does not need.
    "disable_parquet_prefetching = true",
    "autoinstall_known_extensions = false",
    "autoload_known_extensions = false",
)
#: Defines SQLite's ``JSON_EACH`` for DuckDB.
#: This ``JSON_EACH`` returns the elements of a JSON array as texts, so the queries cast them to
#: numbers.
_JSON_EACH = (
    "CREATE MACRO JSON_EACH(given) AS TABLE "
    """SELECT UNNEST(FROM_JSON(given, '["VARCHAR"]')) AS value"""
)
#: Matches an SQL expression that tests a name against a table of GLOBs.
#: DuckDB would join all names with all GLOBs, which is ten times slower than a list of GLOBs.
PATTERN_TEST = re.compile(
    r"EXISTS \(\s*SELECT 1 FROM (?P<table>\w+)\s*WHERE (?P<name>[\w.]+) GLOB \w+\.pattern\s*\)"
)
_LIST_TEST = (
    r"LEN(LIST_FILTER((SELECT LIST(pattern) FROM \g<table>), "
    r"LAMBDA pattern: \g<name> GLOB pattern)) > 0"
)
#: File formats, keyed by file suffix.
_FORMATS = {".parquet": "Parquet", ".arrow": "Arrow", ".arrows": "Arrow"}
#: DuckDB types that the views cast to 64-bit integers.
_NARROW_TYPES = frozenset(
    ("BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "UTINYINT", "USMALLINT", "UINTEGER")
)
#: Columns that contain ids in ``StringIds``, or the names themselves.
_ID_COLUMNS = ("nameId", "demangledName", "textId")
#: The only column whose bytes do not encode text.
_BYTES_COLUMN = "binaryData"
#: First id to assign to names stored in place of ids, larger than any id in ``StringIds``.
_FIRST_NAME_ID = 1 << 40
#: Name of the ENUM type that numbers names stored in place of ids, and SQL that returns such names
#: as ``StringIds`` rows.
_NAMES_TYPE = "names_in_place_of_ids"
_NAMES = (
    f"SELECT {_FIRST_NAME_ID} + ENUM_CODE(CAST(name AS {_NAMES_TYPE})) AS id, name AS value, "
    "NULL AS _rowid_ "
    f"FROM (SELECT UNNEST(ENUM_RANGE(CAST(NULL AS {_NAMES_TYPE}))) AS name)"
)
#: Name of the row number column that is added to Arrow tables.
_ROW_NUMBER = "row number"
#: Minimum number of rows per part, and maximum number of parts per table.
#: More parts take more time, because DuckDB rereads a row group for every part. Larger parts take
#: more memory.
_PART_ROWS, _MAX_PARTS = 1 << 16, 16
#: Maximum number of characters that an error message quotes from a DuckDB message.
_MAX_REASON = 120
#: Exceptions that DuckDB raises if values have a different type than a query needs.
_CONVERSION_ERRORS = (duckdb.ConversionException, duckdb.OutOfRangeException)
#: Queries whose rows are selected by matching their texts with GLOBs.
_BY_PATTERNS = ("ranges/named", "strings/matching")


@dataclass(frozen=True)
class TableFile:
    """A file that contains one table of an export.

    Attributes:
        file: Path to the file.
        source: SQL that reads the file, for the FROM clause of a DuckDB statement.
        row_number: SQL expression for the row number, which starts at 1.
        types: DuckDB types of the columns, keyed by column name.
    """

    file: Path
    source: str
    row_number: str
    types: Mapping[str, str]

    def has_names(self, column: str) -> bool:
        """Return whether a column contains names instead of ids in ``StringIds``."""
        return column in _ID_COLUMNS and self.types.get(column) == "VARCHAR"

    def select(self, columns: Sequence[str]) -> str:
        """Return the SQL statement that selects columns and row numbers as SQLite would store them.

        Args:
            columns: Column names to select.
        """
        selected = [f"{self._value(name)} AS {_quote_identifier(name)}" for name in columns]
        selected.append(f"{self.row_number} AS _rowid_")
        return f"SELECT {', '.join(selected)} FROM {self.source}"

    def _value(self, column: str) -> str:
        """Return the SQL expression that converts a column to the values that SQLite would store.

        Names that replace ids are converted back to ids, integers are widened to 64 bits, and bytes
        are converted to text.
        """
        name, kind = _quote_identifier(column), self.types[column]
        if self.has_names(column):
            return f"{_FIRST_NAME_ID} + ENUM_CODE(CAST({name} AS {_NAMES_TYPE}))"
        if kind in _NARROW_TYPES:
            return f"CAST({name} AS BIGINT)"
        if kind == "UBIGINT":
            # SQLite stores the same 64 bits as a signed integer.
            signed = f"CAST({name} - {1 << 64} AS BIGINT)"
            return f"CASE WHEN {name} >= {1 << 63} THEN {signed} ELSE CAST({name} AS BIGINT) END"
        if kind == "BLOB" and column != _BYTES_COLUMN:
            return f"COALESCE(TRY(DECODE({name})), CAST({name} AS VARCHAR))"
        return name


class ColumnarExport(export.Export):
    """An export with one file per table. Each reader thread uses a separate DuckDB cursor.

    Args:
        path: Path to the directory.
        connection: Connection to a DuckDB database that has one view per table.
        files: Table files, keyed by table name.
        schema: Column names of the tables, keyed by table name.
        arrow: Arrow tables, keyed by the name under which the views read them.
        jobs: Number of reader threads.
        watch: Progress callback, called with the fraction of the data that has been read.
    """

    def __init__(
        self,
        path: str,
        connection: duckdb.DuckDBPyConnection,
        files: Mapping[str, TableFile],
        schema: Mapping[str, frozenset[str]],
        arrow: Mapping[str, pa.Table],
        jobs: int,
        watch: Watch,
    ) -> None:
        self._connection, self._files, self._arrow = connection, files, arrow
        super().__init__(path, schema, "a directory of tables", jobs, watch)
        self.opened_cursors = ExitStack()
        self._of_thread = local()
        for name, view in self.views.items():
            with self._report_errors(view.name):
                connection.execute(f"CREATE VIEW {name} AS\n{view.text}")

    @property
    def _cursor(self) -> duckdb.DuckDBPyConnection:
        """The DuckDB cursor of the current thread, opened on first use."""
        if not hasattr(self._of_thread, "cursor"):
            cursor = self._connection.cursor()
            self.opened_cursors.callback(cursor.close)
            for name, table in self._arrow.items():
                cursor.register(name, table)
            self._of_thread.cursor = cursor
        opened: duckdb.DuckDBPyConnection = self._of_thread.cursor
        return opened

    def describe_readers(self) -> str:
        """Name the library that reads the export, and the formats of its files."""
        suffixes = sorted({table.file.suffix for table in self._files.values()})
        kinds = dict.fromkeys(_FORMATS[suffix] for suffix in suffixes)
        return f"DuckDB ({' and '.join(kinds)}, one file per table)"

    def count_max_rows(self) -> int:
        """Return an upper bound on the number of rows in any table."""
        return 1 + max(map(self.count_rows, self.schema), default=0)

    def count_rows(self, table: str) -> int:
        """Return the number of rows in a table."""
        try:
            rows = self._cursor.execute(
                f"SELECT COUNT(*) FROM {_quote_identifier(table)}"
            ).fetchall()
        except duckdb.Error as error:
            file = self._files[table].file.name
            raise _make_read_error(self.path, file, error) from error
        return int(rows[0][0])

    def query_rows(self, name: str, binds: Binds | None = None) -> list[tuple[object, ...]]:
        """Run a query that returns few rows or text columns, and return its rows."""
        with self._report_errors(name):
            return list(self._execute(name, binds or {}).fetchall())

    def _query_columns(self, name: str, binds: Binds) -> Ints:
        with self._report_errors(name):
            arrays = self._execute(name, binds).fetchnumpy()
            return _stack_integers([arrays[column] for column in query(name).columns])

    def _execute(self, name: str, binds: Binds) -> duckdb.DuckDBPyConnection:
        """Run a query with the cursor of the current thread, and return the cursor."""
        query_ = query(name)
        values = {parameter: binds[parameter] for parameter in query_.parameters}
        return self._cursor.execute(PATTERN_TEST.sub(_LIST_TEST, query_.text), values)

    def _iter_parts(
        self, name: str, selection: export.Selection | None
    ) -> Iterator[export.Part[Ints | export.Named]]:
        """Divide a table into parts, and yield a function for each part that reads the part's rows.

        All parts except the last cover the same number of row numbers, at least 65,536. A table has
        at most 16 parts.
        """
        first, last = self.find_bounds(export.BOUNDS[name])
        n_rows = last - first + 1
        length = max(_PART_ROWS, math.ceil(n_rows / _MAX_PARTS))
        for start in range(first, last + 1, length):
            part = range(start, min(start + length, last + 1))
            yield partial(self._read_part, name, selection, part)

    def _read_part(
        self, name: str, selection: export.Selection | None, part: range
    ) -> tuple[range, Ints | export.Named]:
        if selection is not None:
            return part, self.read_named(name, selection, [(part[0], part[-1])])
        return part, self._query_columns(name, {"first": part[0], "last": part[-1]})

    def read_named(
        self,
        name: str,
        selection: export.Selection,
        stretches: Sequence[tuple[int, int]] = (EVERY_ROW,),
    ) -> export.Named:
        """Return the rows selected by a query with their texts, see :meth:`Export.read_named`."""
        return export.concatenate_named(
            [self._read_named(name, selection, *rows) for rows in stretches]
        )

    def _read_named(
        self, name: str, selection: export.Selection, first: int, last: int
    ) -> export.Named:
        """Run a query, and return the selected rows with their texts.

        If an integer column contains NULL, ``ranges/named`` raises an error. Other queries for
        ranges return no rows.

        Args:
            name: Name of the query.
            selection: Criteria that select the rows.
            first: Row number at which to start reading.
            last: Last row number to read, inclusive.
        """
        binds = _loosen_patterns(export.make_binds(selection, first, last))
        *columns, text = query(name).columns
        with self._report_errors(name):
            arrays = self._execute(name, binds).fetchnumpy()
            numbers = [arrays[column] for column in columns]
            has_null = any(map(_has_null, numbers))
            if has_null and name == "ranges/named":
                raise self._make_null_error()
            if has_null and name not in _BY_PATTERNS:
                # Only ranges/named needs all rows. Other queries collect hints.
                return export.combine_named(np.empty((len(columns), 0), np.int64), ())
            values = _stack_integers(numbers)
        texts = np.ma.MaskedArray(arrays[text]).tolist()
        rows = export.combine_named(values, texts)
        return _filter_by_patterns(rows, selection.globs) if name in _BY_PATTERNS else rows

    @contextmanager
    def _report_errors(self, name: str) -> Iterator[None]:
        """Convert DuckDB errors during a query to user-facing errors.

        Raises:
            ProfileError: A file is damaged or contains values of the wrong type.
            MemoryError: Memory ran out.
        """
        try:
            yield
        except _CONVERSION_ERRORS as error:
            raise make_damage_error(self.path, query(name), NO_NUMBER) from error
        except duckdb.BinderException as error:
            reason = "a column of whole numbers or text contains other values"
            raise make_damage_error(self.path, query(name), reason) from error
        except duckdb.Error as error:
            raise _make_read_error(self.path, self._name_files_read(name), error) from error
        except ValueError as error:
            raise make_damage_error(self.path, query(name), str(error)) from error

    def _name_files_read(self, name: str) -> str:
        """Return the names of the files read by a query, joined by " or "."""
        tables: list[str] = []
        for relation in query(name).requires:
            view = self.views.get(relation)
            tables.extend(view.requires if view else [relation])
        return " or ".join(self._files[table].file.name for table in tables if table in self._files)


def _make_read_error(path: str, file: str, error: Exception) -> Exception:
    """Return the error to raise for a file that cannot be read.

    Args:
        path: Path to the export.
        file: Name of the file.
        error: Exception that DuckDB or pyarrow raised.

    Returns:
        A MemoryError if memory ran out, otherwise a ProfileError.
    """
    if isinstance(error, (MemoryError, duckdb.OutOfMemoryException)):
        return MemoryError()
    lines = str(error).splitlines() or [type(error).__name__]
    # Remove the error type, and also the path, because our message starts with the path.
    reason = re.sub(r"^[\w ]*Error: ", "", lines[0]).replace(f"{Path(path).resolve()}/", "")
    return ProfileError(
        f"{path}: {file} cannot be read ({to_one_line(reason, _MAX_REASON)}), so the file is "
        f"damaged or truncated; {EXPORT_AGAIN}"
    )


def _has_null(column: Any) -> bool:
    """Return whether a column from DuckDB contains NULL. DuckDB then masks the column."""
    return bool(np.any(getattr(column, "mask", False)))


def _stack_integers(columns: Sequence[Any]) -> Ints:
    """Stack integer columns into one int64 array, shape (columns, rows).

    Raises:
        ValueError: A column contains NULL, or values that are not integers.
    """
    for column in columns:
        # If there are no rows, the type of a column may be unknown.
        if len(column) and (column.dtype.kind not in "iu" or _has_null(column)):
            raise ValueError(NO_NUMBER)
    return np.stack([np.ma.getdata(column).astype(np.int64, copy=False) for column in columns])


def _loosen_patterns(binds: Binds) -> Binds:
    """Convert all GLOBs in query parameters from SQLite to DuckDB.

    The converted GLOBs may match more texts, so the rows must be filtered afterwards. A GLOB with
    an unclosed ``[`` matches nothing, so it is removed.
    """
    loose = dict(binds)
    for name in ("first_letters", "floating_first", "floating_second", "floating_guard"):
        pattern = binds.get(name)
        loose[name] = None if pattern is None else convert_to_duckdb(str(pattern))
    for name in ("anchored", "floating"):
        patterns = map(convert_to_duckdb, json.loads(str(binds.get(name, "[]"))))
        loose[name] = json.dumps([pattern for pattern in patterns if pattern is not None])
    return loose


def _filter_by_patterns(rows: export.Named, globs: Sequence[str]) -> export.Named:
    """Keep the rows that have no text, or whose text matches at least one of the SQLite GLOBs."""
    values, number, texts = rows
    fits = np.array([*match_any_glob(globs, texts), True], bool)
    # Rows without a text have the index -1, which selects the appended True.
    is_selected = fits[number]
    return values.compress(is_selected, axis=1), number[is_selected], texts


def _quote_identifier(name: str) -> str:
    """Return a name, quoted as an SQL identifier."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def _quote_literal(text: str) -> str:
    """Return a text, quoted as an SQL string literal."""
    escaped = text.replace("'", "''")
    return f"'{escaped}'"


def _open_files(
    connection: duckdb.DuckDBPyConnection, path: str
) -> tuple[Mapping[str, TableFile], Mapping[str, pa.Table]]:
    """Open the files for all tables that a query reads. Other files are ignored.

    Args:
        connection: Connection to DuckDB, in which Arrow tables are registered.
        path: Path to the export.

    Returns:
        files: Table files, keyed by table name.
        arrow: Arrow tables in memory, keyed by the name under which DuckDB reads them.

    Raises:
        ProfileError: The directory or a file cannot be read.
    """
    try:
        paths = find_table_files(path)
    except OSError as error:
        raise ProfileError(
            f"{path}: the directory cannot be opened ({error.strerror}); check its permissions"
        ) from error
    files: dict[str, TableFile] = {}
    arrow: dict[str, pa.Table] = {}
    for table, file in paths.items():
        if table not in QUERIES.columns_read:
            continue
        refuse_pointer(str(file))
        if not file.stat().st_size:
            raise ProfileError(f"{path}: {file.name} is empty; {EXPORT_AGAIN}")
        if file.suffix == ".parquet":
            files[table] = _describe_parquet(connection, path, file)
        else:
            name = f"arrow {table}"
            arrow[name] = _read_arrow(path, file, QUERIES.columns_read[table])
            connection.register(name, arrow[name])
            types = _read_column_types(connection, _quote_identifier(name))
            files[table] = TableFile(
                file, _quote_identifier(name), _quote_identifier(_ROW_NUMBER), types
            )
    return files, arrow


def _describe_parquet(connection: duckdb.DuckDBPyConnection, path: str, file: Path) -> TableFile:
    """Return a Parquet file's column types, and the SQL with which DuckDB reads the file.

    Args:
        connection: Connection to DuckDB.
        path: Path to the export.
        file: Path to the file.

    Raises:
        ProfileError: The file cannot be read, or has two columns with the same name.
    """
    # DuckDB interprets a path as a GLOB, so wildcards in the path must be escaped.
    escaped_path = _quote_literal(re.sub(r"([*?\[])", r"[\1]", str(file.resolve())))
    options = "file_row_number = true, hive_partitioning = false"
    source = f"read_parquet({escaped_path}, {options})"
    statement = f"SELECT name, num_children FROM parquet_schema({escaped_path})"
    try:
        (_, n_columns), *elements = connection.execute(statement).fetchall()
        types = _read_column_types(connection, source)
    except duckdb.Error as error:
        raise _make_read_error(path, file.name, error) from error
    if n_columns == len(elements):  # no column is nested
        _refuse_repeated(path, file, [name for name, _ in elements])
    types.pop("file_row_number")
    return TableFile(file, source, "file_row_number + 1", types)


def _read_column_types(connection: duckdb.DuckDBPyConnection, source: str) -> dict[str, str]:
    """Return the DuckDB column types of a table, keyed by column name.

    Args:
        connection: Connection to DuckDB.
        source: SQL for the FROM clause.
    """
    rows = connection.execute(f"DESCRIBE SELECT * FROM {source}").fetchall()
    return {row[0]: row[1] for row in rows}


def _read_arrow(path: str, file: Path, read: Collection[str]) -> pa.Table:
    """Read the columns of an Arrow IPC file that queries need, and add a column of row numbers.

    Row numbers start at 1. The columns are copied into memory instead of being mapped, because the
    process would be killed if another program truncated a mapped file.

    Args:
        path: Path to the export.
        file: Path to the file, in the Arrow IPC file or stream format.
        read: Names of the columns that queries read.

    Raises:
        ProfileError: The file cannot be read, has two columns with the same name, or pyarrow is
            missing.
    """
    check_installed(
        path, "an export of Arrow tables", otherwise="export the report with --type parquetdir"
    )
    import pyarrow as pa

    try:
        with pa.OSFile(str(file), "rb") as opened:
            names = open_ipc(opened).schema.names
            _refuse_repeated(path, file, names)
            fields = [index for index, name in enumerate(names) if name in read]
            opened.seek(0)
            options = pa.ipc.IpcReadOptions(included_fields=fields or [0] if names else None)
            table = open_ipc(opened, options).read_all()
        # By default, pyarrow does not check the contents of a file, such as string offsets.
        table.validate(full=True)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _make_read_error(path, file.name, error) from error
    numbers = pa.array(np.arange(1, table.num_rows + 1))
    return table.append_column(_ROW_NUMBER, numbers)


def _refuse_repeated(path: str, file: Path, names: Sequence[str]) -> None:
    """Raise an error if two columns have the same name, because SQL would read only one of them.

    Raises:
        ProfileError: Two columns have the same name, ignoring case.
    """
    if len({name.lower() for name in names}) < len(names):
        raise ProfileError(
            f"{path}: {file.name} has two columns with the same name, which nsys never writes; "
            f"{EXPORT_AGAIN}"
        )


def _create_views(
    connection: duckdb.DuckDBPyConnection, path: str, files: Mapping[str, TableFile]
) -> Mapping[str, frozenset[str]]:
    """Create one view per table.

    If files contain names in place of ids, the view of ``StringIds`` contains these names as well.

    Args:
        connection: Connection to DuckDB.
        path: Path to the export.
        files: Table files, keyed by table name.

    Returns:
        Column names of the tables, keyed by table name.

    Raises:
        ProfileError: The names cannot be read.
    """
    schema = {table: frozenset(file.types) for table, file in files.items()}
    selects = {
        table: [file.select(sorted(schema[table] & QUERIES.columns_read[table]))]
        for table, file in files.items()
    }
    if _create_names(connection, path, files):
        has_strings = {"id", "value"} <= schema.get(export.STRINGS, frozenset())
        stored = selects[export.STRINGS] if has_strings else []
        selects[export.STRINGS] = [*stored, _NAMES]
        schema[export.STRINGS] = frozenset(("id", "value"))
    for table, statements in selects.items():
        connection.execute(
            f"CREATE VIEW {_quote_identifier(table)} AS {' UNION ALL '.join(statements)}"
        )
    return schema


def _create_names(
    connection: duckdb.DuckDBPyConnection, path: str, files: Mapping[str, TableFile]
) -> bool:
    """Create an ENUM type that numbers names, if columns contain names in place of ids.

    Names are numbered in order of first appearance.

    Returns:
        Whether any column contains names in place of ids, so that the type was created.

    Raises:
        ProfileError: The names cannot be read.
    """
    with_names = [
        (table, column)
        for table, file in files.items()
        for column in sorted(QUERIES.columns_read[table])
        if file.has_names(column)
    ]
    if not with_names:
        return False
    names = " UNION ALL ".join(
        f"SELECT {_quote_identifier(column)} AS name, {place} AS place, "
        f"{files[table].row_number} AS row FROM {files[table].source}"
        for place, (table, column) in enumerate(with_names)
    )
    try:
        connection.execute(
            f"CREATE TYPE {_NAMES_TYPE} AS ENUM "
            f"(SELECT name FROM ({names}) WHERE name IS NOT NULL "
            "GROUP BY name ORDER BY MIN((place, row)))"
        )
    except duckdb.Error as error:
        damaged = " or ".join(dict.fromkeys(files[table].file.name for table, _ in with_names))
        raise _make_read_error(path, damaged, error) from error
    return True


@contextmanager
def open_directory(path: str, jobs: int = 1, watch: Watch = unwatched) -> Iterator[ColumnarExport]:
    """Open a columnar export, which is closed on exit.

    Args:
        path: Path to the directory.
        jobs: Maximum number of reader threads.
        watch: Progress callback, called with the fraction of the data that has been read.

    Raises:
        ProfileError: The directory is damaged or not an nsys export, or pyarrow is missing for
            Arrow files.
    """
    with duckdb.connect(":memory:") as connection:
        for setting in _SETTINGS:
            connection.execute(f"SET GLOBAL {setting}")
        connection.execute(_JSON_EACH)
        files, arrow = _open_files(connection, path)
        schema = _create_views(connection, path, files)
        # The main thread also reads while it waits for other threads.
        threads = max(1, min(jobs, count_cores() - 1))
        opened = ColumnarExport(path, connection, files, schema, arrow, threads, watch)
        with opened.opened_cursors:
            yield opened
