"""Queries the databases written by ROCm's profilers, one process at a time.

``rocprofv3`` appends the GUID of the process to its table names (``rocpd_region_<GUID>``), and a
merged file contains several processes. Row ids are unique only within one GUID. Queries must
therefore never join rows of two processes. For this reason, they read views that contain the rows
of a single process, which is a *part* of the file. A view contains only the columns that queries
require. Nothing else in the file is read, in particular not the command lines and environments in
``rocpd_info_process``, which may contain secrets.

Sources: ``rocpd_tables.sql`` and ``generateRocpd.cpp`` of ROCm/rocm-systems
(``projects/rocprofiler-sdk/source/share/rocprofiler-sdk-rocpd``, ``.../source/lib/output``), and
``merge.py`` of its Python package ``rocpd``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from bubbleviz.errors import RECORD_WITH_ROCPROF, ProfileError, SchemaError
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.sources.sqlite import database as sqlite
from bubbleviz.sources.sqlite.pages import PackedRows, PageQuery, Pages, PageTable
from bubbleviz.sources.sqlite.queries import Binds, PlainColumn, Queries, find_missing

#: Advice in messages on how to record missing data.
RECORD_WITH_RPD = "record it again with: runTracer.sh"

ROCPD = Queries(
    "rocprofv3", "rocpd", "rocprofv3 profile", f"copy it again, or {RECORD_WITH_ROCPROF}"
)
RPD = Queries("the tracer", "rpd", "rocmProfileData trace", f"copy it again, or {RECORD_WITH_RPD}")

#: Matches a GUID at the end of a table name. Underscores separate the groups of digits.
_GUID = re.compile(r"(?:_[0-9A-Fa-f]+)+\Z")
#: Name prefix of the view variants for tables with a missing column.
_DEGRADED_VARIANT = "without_"
#: Queries on rocpd files that are answered by reading database pages directly, without SQLite.
PAGE_QUERIES: Mapping[str, PageQuery] = {
    "gpu_work/kernels": PageQuery(
        view="views/dispatches/current",
        columns=(
            PlainColumn("start"),
            PlainColumn("end"),
            PlainColumn("pid", NONE),
            PlainColumn("agent_id", NONE),
            PlainColumn("kernel_id", NONE),
            PlainColumn("event_id", NONE),
        ),
        key="id",
    ),
    "gpu_work/copies": PageQuery(
        view="views/copies/current",
        columns=(
            PlainColumn("start"),
            PlainColumn("end"),
            PlainColumn("pid", NONE),
            PlainColumn("dst_agent_id", NONE),
            PlainColumn("src_agent_id", NONE),
            PlainColumn("event_id", NONE),
        ),
        key="id",
    ),
    "calls/all": PageQuery(
        view="views/host_regions/current",
        columns=(
            PlainColumn("start"),
            PlainColumn("end"),
            PlainColumn("pid", NONE),
            PlainColumn("tid", NONE),
            PlainColumn("name_id", NONE),
            PlainColumn("event_id", NONE),
        ),
        key="id",
    ),
    "calls/events": PageQuery(
        view="views/events/current",
        columns=(
            PlainColumn("id"),
            PlainColumn("category_id", NONE),
            PlainColumn("stack_id", 0),
            PlainColumn("correlation_id", 0),
        ),
        key="id",
    ),
}
#: Names of the columns that contain text. All other columns contain integers.
_TEXT_COLUMNS = frozenset(
    (
        "display_name",
        "extdata",
        "guid",
        "hostname",
        "kernel_name",
        "machine_id",
        "name",
        "product_name",
        "string",
        "tag",
        "type",
        "value",
    )
)
#: Minimum number of digits in a GUID. A shorter suffix is part of the table name.
_MIN_GUID_DIGITS = 16


def _select_column(column: str, declared_type: str) -> str:
    """Return an SQL expression that selects a column and converts its values to integers.

    A tool that copies a file may store integers as texts or floats. No conversion is needed for
    text columns, nor for columns that were declared as integers, because SQLite has already
    converted their values. Values that do not represent an integer are returned unchanged.

    Args:
        column: Name of the column.
        declared_type: Declared type of the column, or "" if no type is declared.
    """
    if column in _TEXT_COLUMNS or "INT" in declared_type.upper():
        return f'"{column}"'
    number = f'CAST("{column}" AS INTEGER)'
    is_number = f"TYPEOF(\"{column}\") IN ('text', 'real') AND {number} = \"{column}\""
    return f'CASE WHEN {is_number} THEN {number} ELSE "{column}" END AS "{column}"'


class Part:
    """The tables in one part of a file: all tables with the same GUID, or one process's rows.

    Creating a part replaces the database's views, so only the newest part can be queried.

    Args:
        database: The open file.
        queries: Queries for files from this profiler.
        names: Table names in the file, keyed by table name in queries.
        stored: Columns in each table, keyed by table name in the file.
        guid: GUID of the process whose rows to read, or "" to read all rows.
        rows: The process's first and last row number in each table, keyed by table name in the
            file. Tables without an entry are searched completely.
        pages: Database pages of the file, or None if the pages cannot be read directly.
    """

    def __init__(
        self,
        database: sqlite.Database,
        queries: Queries,
        names: Mapping[str, str],
        stored: Mapping[str, sqlite.StoredColumns],
        guid: str = "",
        rows: Mapping[str, tuple[int, int]] | None = None,
        pages: Pages | None = None,
    ) -> None:
        self.path, self._database, self._queries = database.path, database, queries
        self._names, self._stored_tables = names, stored
        self._stored = {base: stored[table] for base, table in names.items()}
        self._pages = None if guid else pages
        self.schema = {
            base: sqlite.group_columns_by_table(columns)[names[base]]
            for base, columns in self._stored.items()
        }
        self._views = queries.select_views(self.schema)
        rows = rows or {}
        # Parts that use the same tables differ only in the view "part", so the other views are
        # kept.
        statements = {"part": self._define_part(guid, rows)}
        for base, table in names.items():
            is_filtered = bool(guid) and "guid" in self.schema[base]
            statements[base] = self._define_table(
                base, is_filtered=is_filtered, has_bounds=table in rows
            )
        for name, view in self._views.items():
            statements[name] = f"CREATE TEMP VIEW {name} AS\n{view.text}"
        database.create_views(statements)

    def _define_part(self, guid: str, rows: Mapping[str, tuple[int, int]]) -> str:
        """Return the statement that creates the view ``part``.

        The view has a single row, which contains this part's GUID and its first and last row number
        in each table.
        """
        quoted = guid.replace("'", "''")
        bounds = {base: rows.get(table, (1, 0)) for base, table in self._names.items()}
        columns = "".join(
            f", {first} AS {base}_first, {last} AS {base}_last"
            for base, (first, last) in bounds.items()
        )
        return f"CREATE TEMP VIEW part AS SELECT '{quoted}' AS guid{columns}"

    def _define_table(self, base: str, is_filtered: bool, has_bounds: bool) -> str:
        """Return the SQL statement that creates a table's view.

        The view has the name that queries use for the table. The view contains only the columns
        that queries read, converted by :func:`_select_column`.

        Args:
            base: Name of the table in queries.
            is_filtered: Whether to select only rows with this part's GUID.
            has_bounds: Whether the view ``part`` contains the first and last row number of the part
                in this table.
        """
        names = sorted(self._queries.columns_read[base] & self.schema[base])
        types = {str(row[4]): str(row[5]) for row in self._stored[base]}
        columns = ", ".join(_select_column(name, types[name]) for name in names)
        where = " WHERE guid = (SELECT guid FROM part)" if is_filtered else ""
        if is_filtered and has_bounds:
            first, last = (f"(SELECT {base}_{end} FROM part)" for end in ("first", "last"))
            where += f" AND rowid BETWEEN {first} AND {last}"
        selected = columns or 'NULL AS "nothing"'
        table = self._names[base]
        return f'CREATE TEMP VIEW {base} AS SELECT {selected} FROM main."{table}"{where}'

    @property
    def remedy(self) -> str:
        """Advice for a file that cannot be read."""
        return self._queries.again

    def select_process(self, guid: str, rows: Mapping[str, tuple[int, int]]) -> Part:
        """Return a part of the tables that contains only one process's rows.

        Args:
            guid: GUID of the process.
            rows: The process's first and last row number in each table, keyed by table name in the
                file.
        """
        return Part(self._database, self._queries, self._names, self._stored_tables, guid, rows)

    def find_extents_by_guid(self) -> dict[str, dict[object, tuple[int, int]]]:
        """Find the first and last row number of each process in each table with a GUID column.

        Returns:
            (first, last) row number, keyed by table name in the file and then by GUID.

        Raises:
            ProfileError: The file is damaged.
        """
        return {
            table: self._database.find_extents(table, "guid")
            for base, table in self._names.items()
            if "guid" in self.schema[base]
        }

    def has(self, name: str) -> bool:
        """Return whether the file contains all tables and columns that a query needs."""
        return self._queries.has(name, self.schema, self._views)

    def find_missing(self, name: str) -> tuple[str, ...]:
        """Return the tables and columns that a query needs but the file lacks.

        If the query reads a view with several variants, the variant with the fewest missing tables
        and columns is used. Variants for tables that lack a column (``_DEGRADED_VARIANT``) are not
        considered.
        """
        missing: dict[str, None] = {}
        for relation, columns in self._queries.query(name).requires.items():
            variants = self._queries.view_variants.get(relation)
            full_variants = [
                variant
                for variant in variants or ()
                if not variant.name.split("/")[-1].startswith(_DEGRADED_VARIANT)
            ]
            requirements = [variant.requires for variant in full_variants]
            if not variants:
                requirements = [{relation: columns}]
            fewest = min((find_missing(r, self.schema) for r in requirements), key=len)
            missing.update(dict.fromkeys(fewest))
        return tuple(missing)

    def query_columns(self, name: str, *, table: str = "") -> Ints:
        """Run a query, and return its columns as int64 values, shape (columns, rows).

        The columns are read directly from the file's pages if possible. Otherwise, SQLite runs the
        query.

        Args:
            name: Name of the query.
            table: Name of an optional table. If the file lacks this table, no rows are returned,
                and no error is raised.

        Raises:
            SchemaError: A table or column that the query needs is missing.
            ProfileError: The file is damaged, or a column contains non-integer values.
        """
        query = self._queries.query(name)
        if table and table not in self.schema:
            return np.empty((len(query.columns), 0), np.int64)
        if not self.has(name):
            raise SchemaError(
                f"{self.path}: the file lacks {', '.join(self.find_missing(name))}, which the "
                f"analysis needs; {query.maker.again}"
            )
        stored = self._find_page_table(name)
        columns = None if stored is None else stored.read_columns()
        return self._database.query_columns(query) if columns is None else columns

    def read_events(self) -> PackedRows:
        """Return the event table, along with the events' texts.

        If the file's pages cannot be read directly, all texts must be queried.

        Returns:
            columns: Id, category, stack id, correlation id and text length of each event,
                shape (5, events). The length is -1 for a text that must be queried, because it
                cannot be copied unchanged from the pages of the file.
            texts: Concatenation of all texts whose length is not -1.

        Raises:
            ProfileError: The file is damaged, because its events are not sorted by id.
        """
        table = self._find_page_table("calls/events")
        packed = None
        if table is not None:
            packed = table.read_named(table.places["extdata"], (), before='{"message":')
        if packed is None:
            columns = self.query_columns("calls/events")
            packed = np.pad(columns, ((0, 1), (0, 0)), constant_values=NONE), b""
        event_id = packed[0][0]
        if (event_id[1:] < event_id[:-1]).any():
            raise ProfileError(
                f"{self.path}: the events are not sorted by id, so the file is damaged; "
                f"{self._queries.again}"
            )
        return packed

    def _find_page_table(self, name: str) -> PageTable | None:
        """Return the table whose pages are sufficient to answer a query without SQLite.

        The result is None if SQLite must run the query.
        """
        query = PAGE_QUERIES.get(name)
        if self._pages is None or query is None:
            return None
        view = next((view for view in self._views.values() if view.name == query.view), None)
        if view is None:
            return None
        table = next(iter(view.requires))
        return self._pages.open_table(self._stored[table], query)

    def query_rows(self, name: str, n_integers: int = 0) -> list[tuple[Any, ...]]:
        """Return a query's rows, or no rows if the file lacks a required table or column.

        Args:
            name: Name of the query.
            n_integers: Number of leading columns that must contain integers. The values of other
                columns are not checked.

        Raises:
            ProfileError: The file is damaged, or a leading column contains a value that is not an
                integer.
        """
        if not self.has(name):
            return []
        query = self._queries.query(name)
        rows = self._database.query_rows(query)
        if any(not isinstance(value, int) for row in rows for value in row[:n_integers]):
            raise ProfileError(
                f"{self.path}: {query.tables} contains a value that is not a whole number, so the "
                f"file is damaged or was edited; {query.maker.again}"
            )
        return rows

    def query_texts(self, name: str, ids: Ints | None = None) -> dict[int, str]:
        """Return the texts returned by a query, keyed by id, or {} if the query cannot run.

        Empty texts are left out.

        Args:
            name: Name of the query.
            ids: Ids of the texts to return, or None for all texts.

        Raises:
            ProfileError: The file is damaged.
        """
        if not self.has(name):
            return {}
        return {
            number: str(text)
            for number, text in self._database.query_rows(
                self._queries.query(name), _make_binds(ids)
            )
            if isinstance(number, int) and text is not None and str(text)
        }

    def query_texts_of_rows(
        self, name: str, ids: Ints, *, read_all: bool
    ) -> tuple[Ints, list[str]]:
        """Return the ids found by a query, and each id's text.

        The result is empty if the query cannot run.

        Args:
            name: Name of the query.
            ids: Ids to look up.
            read_all: Whether the query reads the texts of all rows in the table. If so, the result
                also contains ids that are not in ``ids``. Reading all texts is faster if nearly all
                of them are needed.

        Raises:
            ProfileError: The file is damaged.
        """
        batch = None
        if len(ids) and self.has(name):
            binds = _make_binds(None if read_all else ids)
            batch = self._database.read_batch(self._queries.query(name), binds, len(ids) + 1)
        if batch is None:
            return np.empty(0, np.int64), []
        numbers, texts = batch.columns
        return sqlite.stack_integers([numbers])[0], list(map(str, sqlite.decode_texts(texts)))


def _make_binds(ids: Ints | None) -> Binds:
    return {"ids": None if ids is None else json.dumps(ids.tolist())}


def read_stored_tables(database: sqlite.Database) -> Mapping[str, sqlite.StoredColumns]:
    """Return the column definitions of each table in an open file, keyed by table name.

    Raises:
        ProfileError: The file is damaged or is not an SQLite database.
    """
    stored: dict[str, list[tuple[object, ...]]] = {}
    for row in sqlite.read_stored_columns(database):
        if row[1] and row[4] is not None:
            stored.setdefault(str(row[0]), []).append(row)
    return stored


def group_tables_by_part(tables: Iterable[str], queries: Queries) -> list[dict[str, str]]:
    """Group the tables in a file by the GUID at the end of their names.

    Args:
        tables: Table names in a file.
        queries: Queries for files from this profiler. Tables that no query reads are left out.

    Returns:
        One dictionary per GUID, in ascending order of the GUIDs. Tables without a GUID come first.
        A dictionary maps each table name in queries to the table name in the file.
    """
    names: dict[str, dict[str, str]] = {}
    for table in tables:
        suffix = _GUID.search(table)
        is_guid = suffix and len(suffix[0].replace("_", "")) >= _MIN_GUID_DIGITS
        guid = suffix[0] if suffix and is_guid else ""
        base = table.removesuffix(guid)
        if base in queries.columns_read:
            names.setdefault(guid, {})[base] = table
    return [names[guid] for guid in sorted(names)]
