"""Databases of ROCm's profilers: their queries, and the tables of one process, a part of a file.

``rocprofv3`` puts the process's GUID behind the names of tables (``rocpd_region_<GUID>``), and a
file may be the merge of several processes; numbers of rows are unique within one GUID only. For
each part the tables are put behind views without the GUID, so that no query can join rows of two
processes. A view has those columns alone that queries require: nothing else of a file can be read,
such as the command lines and environments in ``rocpd_info_process``, which hold secrets.

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

from bubbleviz.errors import ProfileError, SchemaError
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.sources.sqlite import database as sqlite
from bubbleviz.sources.sqlite.pages import PackedRows, PageQuery, Pages, PageTable
from bubbleviz.sources.sqlite.queries import Binds, PlainColumn, Queries, find_missing

#: What to do where something was not recorded.
RECORD_WITH_ROCPROF = (
    "profile again with: rocprofv3 --hip-trace --kernel-trace --memory-copy-trace --marker-trace "
    "--output-format rocpd"
)
RECORD_WITH_RPD = "record it again with: runTracer.sh"

ROCPD = Queries(
    "rocprofv3", "rocpd", "profile of rocprofv3", f"copy it again, or {RECORD_WITH_ROCPROF}"
)
RPD = Queries(
    "the tracer", "rpd", "trace of rocmProfileData", f"copy it again, or {RECORD_WITH_RPD}"
)

#: What may stand behind the name of a table: a GUID, whose parts are joined by underscores.
_GUID = re.compile(r"(?:_[0-9A-Fa-f]+)+\Z")
#: How variants of views are named that stand for a table with a column less.
_DEGRADED_VARIANT = "without_"
#: Queries of rocpd files that are answered from pages, with the columns of the table that they
#: return.
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
#: Columns of texts. All other columns contain whole numbers.
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
#: Of a GUID there are so many digits; shorter endings belong to names.
_MIN_GUID_DIGITS = 16


def _select_column(column: str, declared_type: str) -> str:
    """Return an SQL expression that selects a column and converts its values to whole numbers.

    Tools that copy a file may store whole numbers as texts or floats. SQLite converts them itself
    if the declared type of the column is an integer type.

    Args:
        column: Name of the column.
        declared_type: Declared type of the column, or "" if it has none.
    """
    if column in _TEXT_COLUMNS or "INT" in declared_type.upper():
        return f'"{column}"'
    number = f'CAST("{column}" AS INTEGER)'
    is_number = f"TYPEOF(\"{column}\") IN ('text', 'real') AND {number} = \"{column}\""
    return f'CASE WHEN {is_number} THEN {number} ELSE "{column}" END AS "{column}"'


class Part:
    """The tables of one part of a file, which no other part of it is read beside.

    Args:
        database: the open file.
        queries: of its maker.
        names: of the tables in the file, by what queries call them.
        stored: the columns of each table, by its name in the file.
        guid: to which rows of the tables belong; "" where all do.
        rows: between which rows these lie, by the table's name in the file; None for all.
        pages: of the file, where it is plain.
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
        self._stored = {base: stored[table] for base, table in names.items()}
        self._pages = None if guid else pages
        self.schema = {
            base: sqlite.group_columns_by_table(columns)[names[base]]
            for base, columns in self._stored.items()
        }
        self._views = queries.select_views(self.schema)
        # The one view that differs between parts of the same tables.
        quoted = guid.replace("'", "''")
        ends = {base: (rows or {}).get(table, (1, 0)) for base, table in names.items()}
        told = "".join(
            f", {low} AS {base}_first, {high} AS {base}_last" for base, (low, high) in ends.items()
        )
        statements = {"part": f"CREATE TEMP VIEW part AS SELECT '{quoted}' AS guid{told}"}
        for base, table in names.items():
            wanted = sorted(queries.columns_read[base] & self.schema[base])
            types = {str(row[4]): str(row[5]) for row in self._stored[base]}
            selected = (_select_column(column, types[column]) for column in wanted)
            given = ", ".join(selected) or 'NULL AS "nothing"'
            of_guid = guid and "guid" in self.schema[base]
            where = " WHERE guid = (SELECT guid FROM part)" if of_guid else ""
            if of_guid and table in (rows or {}):
                first, last = (f"(SELECT {base}_{end} FROM part)" for end in ("first", "last"))
                where += f" AND rowid BETWEEN {first} AND {last}"
            # The name that queries have for the table.
            statements[base] = (
                f'CREATE TEMP VIEW {base} AS SELECT {given} FROM main."{table}"{where}'
            )
        for name, view in self._views.items():
            statements[name] = f"CREATE TEMP VIEW {name} AS\n{view.text}"
        database.create_views(statements)

    def has(self, name: str) -> bool:
        """Tell whether the tables hold what a query needs."""
        return self._queries.has(name, self.schema, self._views)

    def find_missing(self, name: str) -> tuple[str, ...]:
        """Return which tables and columns of today's files, that a query reads, are missing.

        Of a view, those of the variant that comes nearest to these tables.
        """
        lacks: dict[str, None] = {}
        for relation, columns in self._queries.query(name).requires.items():
            variants = self._queries.view_variants.get(relation)
            whole = [
                v for v in variants or () if not v.name.split("/")[-1].startswith(_DEGRADED_VARIANT)
            ]
            needs = [v.requires for v in whole] if variants else [{relation: columns}]
            nearest = min((find_missing(requires, self.schema) for requires in needs), key=len)
            lacks.update(dict.fromkeys(nearest))
        return tuple(lacks)

    def query_columns(self, name: str, *, table: str = "") -> Ints:
        """Return the int64 columns of a query, shape (columns, rows).

        Args:
            name: of the query.
            table: without which there are no rows; "" for one without which the file is refused.

        Raises:
            SchemaError: the file lacks what the query needs.
            ProfileError: the file is damaged, or holds something else than integers.
        """
        query = self._queries.query(name)
        if table and table not in self.schema:
            return np.empty((len(query.columns), 0), np.int64)
        if not self.has(name):
            raise SchemaError(
                f"{self.path}: the file lacks {', '.join(self.find_missing(name))}, which an "
                f"analysis needs; {query.maker.again}"
            )
        stored = self._page_table(name)
        columns = None if stored is None else stored.read_columns()
        return self._database.query_columns(query) if columns is None else columns

    def read_events(self) -> PackedRows:
        """Return the columns of events with the lengths of their plain texts, and these texts.

        A text is plain if the pages of the file contain it exactly as it is read. The length of
        other texts is -1.

        Raises:
            ProfileError: The file is damaged, because its rows are not sorted by their numbers.
        """
        table = self._page_table("calls/events")
        packed = None
        if table is not None:
            packed = table.read_named(table.places["extdata"], (), before='{"message":')
        if packed is None:
            columns = self.query_columns("calls/events")
            packed = np.pad(columns, ((0, 1), (0, 0)), constant_values=NONE), b""
        number = packed[0][0]
        if (number[1:] < number[:-1]).any():
            raise ProfileError(
                f"{self.path}: its rows are not in the order of their numbers, so the file is "
                f"damaged; {self._queries.again}"
            )
        return packed

    def _page_table(self, name: str) -> PageTable | None:
        """Return the table whose pages answer a query; None where SQLite must."""
        query = PAGE_QUERIES.get(name)
        if self._pages is None or query is None:
            return None
        view = next((view for view in self._views.values() if view.name == query.view), None)
        if view is None:
            return None
        table = next(iter(view.requires))
        return self._pages.open_table(self._stored[table], query)

    def query_rows(self, name: str, whole: int = 0) -> list[tuple[Any, ...]]:
        """Return the rows of a query that holds texts; none where the file lacks what it needs.

        Args:
            name: of the query.
            whole: so many first columns are whole numbers.

        Raises:
            ProfileError: the file is damaged.
        """
        if not self.has(name):
            return []
        query = self._queries.query(name)
        rows = self._database.query_rows(query)
        if any(not isinstance(value, int) for row in rows for value in row[:whole]):
            raise ProfileError(
                f"{self.path}: {query.tables} contains something other than a whole number, so "
                f"the file is damaged or was edited; {query.maker.again}"
            )
        return rows

    def query_texts(self, name: str, ids: Ints | None = None) -> dict[int, str]:
        """Return the texts that a query gives, by number, but for empty ones.

        Args:
            name: of the query.
            ids: the numbers that it is to give; None for all.

        Raises:
            ProfileError: the file is damaged.
        """
        if not self.has(name):
            return {}
        return {
            number: str(text)
            for number, text in self._database.query_rows(self._queries.query(name), _binds(ids))
            if isinstance(number, int) and text is not None and str(text)
        }

    def query_texts_of_rows(self, name: str, ids: Ints, *, every: bool) -> tuple[Ints, list[str]]:
        """Return the numbers that a query gives, and the text of each; none where it cannot run.

        Args:
            name: of the query.
            ids: the numbers that are wanted.
            every: whether it may give all, as these are nearly all that there are.

        Raises:
            ProfileError: the file is damaged.
        """
        batch = None
        if len(ids) and self.has(name):
            binds = _binds(None if every else ids)
            batch = self._database.read_batch(self._queries.query(name), binds, len(ids) + 1)
        if batch is None:
            return np.empty(0, np.int64), []
        numbers, texts = batch.columns
        return sqlite.stack_integers([numbers])[0], list(map(str, sqlite.decode_texts(texts)))


def _binds(ids: Ints | None) -> Binds:
    return {"ids": None if ids is None else json.dumps(ids.tolist())}


def read_stored_tables(database: sqlite.Database) -> Mapping[str, sqlite.StoredColumns]:
    """Return the columns of each table of an open file, by its name there.

    Raises:
        ProfileError: it is damaged, or no SQLite file.
    """
    stored: dict[str, list[tuple[object, ...]]] = {}
    for row in sqlite.read_stored_columns(database):
        if row[1] and row[4] is not None:
            stored.setdefault(str(row[0]), []).append(row)
    return stored


def group_tables_by_part(tables: Iterable[str], queries: Queries) -> list[dict[str, str]]:
    """Return the names of each part's tables, by what queries call them, in the order of GUIDs."""
    names: dict[str, dict[str, str]] = {}
    for table in tables:
        found = _GUID.search(table)
        guid = found[0] if found and len(found[0].replace("_", "")) >= _MIN_GUID_DIGITS else ""
        base = table.removesuffix(guid)
        if base in queries.columns_read:
            names.setdefault(guid, {})[base] = table
    return [names[guid] for guid in sorted(names)]
