"""Parts of a database: the tables of one process, as ``rocprofv3`` writes them.

They carry the process's GUID behind their names (``rocpd_region_<GUID>``), and a file may be the
merge of several processes; numbers of rows are unique within one GUID only. For each part the
tables are put behind views without the GUID, so that no query can join rows of two processes. A
view has those columns alone that queries require: nothing else of a file can be read, such as the
command lines and environments in ``rocpd_info_process``, which hold secrets.

Sources: ``rocpd_tables.sql`` and ``generateRocpd.cpp`` of ROCm/rocm-systems
(``projects/rocprofiler-sdk/source/share/rocprofiler-sdk-rocpd``, ``.../source/lib/output``), and
``merge.py`` of its Python package ``rocpd``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from bubbleviz.errors import SchemaError
from bubbleviz.model.columns import Ints
from bubbleviz.model.values import frozen
from bubbleviz.sources.sqlite.database import Database
from bubbleviz.sources.sqlite.queries import Binds, Queries, Query, Schema, lacking

#: What may stand behind the name of a table: a GUID, whose parts are joined by underscores.
_GUID = re.compile(r"(?:_[0-9A-Fa-f]+)+\Z")
#: How variants of views are named that stand for a table with a column less.
_DEGRADED = "without_"
#: Of a GUID there are so many digits; shorter endings belong to names.
_DIGITS = 16


@frozen
class PartTables:
    """The tables of one part.

    Attributes:
        names: as the file has them, by what queries call them.
        schema: the columns that the file has, by what queries call the table.
        guid: to which rows of the tables belong; "" where all do.
    """

    names: Mapping[str, str]
    schema: Schema
    guid: str = ""


@frozen
class Part:
    """The open tables of one part.

    Attributes:
        queries: for them.
        tables: that it has.
        views: the variant of each view that queries read.
        database: reads them.
    """

    queries: Queries
    tables: PartTables
    views: Mapping[str, Query]
    database: Database

    def has(self, name: str) -> bool:
        """Tell whether the tables hold what a query needs."""
        return self.queries.has(name, self.tables.schema, self.views)

    def lacks(self, name: str) -> tuple[str, ...]:
        """Return which tables and columns of today's files, that a query reads, are missing."""
        lacks: dict[str, None] = {}
        for relation, columns in self.queries.query(name).requires.items():
            lacks.update(dict.fromkeys(self._lacks(relation, columns)))
        return tuple(lacks)

    def _lacks(self, relation: str, columns: tuple[str, ...]) -> tuple[str, ...]:
        """Return what is missing of a table, or of the view that comes nearest to these tables."""
        variants = self.queries.view_variants().get(relation)
        if variants is None:
            return lacking({relation: columns}, self.tables.schema)
        whole = [v for v in variants if not v.name.split("/")[-1].startswith(_DEGRADED)]
        return min((lacking(v.requires, self.tables.schema) for v in whole), key=len)

    def require(self, name: str) -> None:
        """Check that a query can run.

        Raises:
            SchemaError: it cannot; the message names what the file lacks.
        """
        if not self.has(name):
            query = self.queries.query(name)
            raise SchemaError(
                f"{self.database.path}: the file lacks {', '.join(self.lacks(name))}, which "
                f"{query.path} needs; {query.maker.again}"
            )

    def columns(self, name: str) -> Ints:
        """Return the int64 columns of a query, shape (columns, rows).

        Raises:
            SchemaError: the file lacks what the query needs.
            ProfileError: the file is damaged, or holds something else than integers.
        """
        self.require(name)
        return self.database.columns(self.queries.query(name))

    def rows(self, name: str, binds: Binds | None = None) -> list[tuple[object, ...]]:
        """Return the rows of a query that holds texts; none where the file lacks what it needs.

        Raises:
            ProfileError: the file is damaged.
        """
        if not self.has(name):
            return []
        return self.database.rows(self.queries.query(name), binds)

    def texts(self, name: str, ids: Ints | None = None) -> dict[int, str]:
        """Return the texts that a query gives, by number, but for empty ones.

        Args:
            name: of the query.
            ids: the numbers that it is to give; None for all.

        Raises:
            ProfileError: the file is damaged.
        """
        binds = None if ids is None else {"ids": json.dumps(ids.tolist())}
        return {
            number: str(text)
            for number, text in self.rows(name, binds)
            if isinstance(number, int) and text is not None and str(text)
        }


def parts_in(columns: Schema, queries: Queries) -> tuple[PartTables, ...]:
    """Return the tables of each part, in the order of their GUIDs."""
    names: dict[str, dict[str, str]] = {}
    for table in columns:
        base, guid = _base_of(table)
        if base in queries.tables():
            names.setdefault(guid, {})[base] = table
    return tuple(
        PartTables(names[guid], {base: columns[table] for base, table in names[guid].items()})
        for guid in sorted(names)
    )


def _base_of(table: str) -> tuple[str, str]:
    """Return the name of a table without its GUID, and that; "" of one without."""
    found = _GUID.search(table)
    if found is None or len(found[0].replace("_", "")) < _DIGITS:
        return table, ""
    return table[: found.start()], found[0]


@contextmanager
def opened_part(path: str, tables: PartTables, queries: Queries) -> Iterator[Part]:
    """Open the tables of one part.

    Raises:
        ProfileError: the file cannot be opened.
    """
    views = queries.views_of(tables.schema)
    statements = [*_renamed(tables, queries), *_views(views)]
    database = Database(path, queries.maker, statements)
    try:
        yield Part(queries, tables, views, database)
    finally:
        database.close()


def _renamed(tables: PartTables, queries: Queries) -> Iterator[str]:
    """Yield the statements that put a part's tables behind the names that queries have for them."""
    for base, table in tables.names.items():
        wanted = sorted(queries.columns_read()[base] & tables.schema[base])
        columns = ", ".join(f'"{column}"' for column in wanted) or "NULL AS nothing"
        of_guid = ""
        if tables.guid and "guid" in tables.schema[base]:
            of_guid = f" WHERE guid = '{tables.guid.replace(chr(39), chr(39) * 2)}'"
        yield f'CREATE TEMP VIEW {base} AS SELECT {columns} FROM main."{table}"{of_guid}'


def _views(views: Mapping[str, Query]) -> Sequence[str]:
    return [f"CREATE TEMP VIEW {name} AS\n{views[name].text}" for name in views]
