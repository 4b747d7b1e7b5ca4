"""Reads SQLite exports. The files are opened read-only.

Compiled code decodes large tables directly from the pages of the file. SQLite, which is slower,
reads all other tables. If compiled code cannot decode a page, SQLite reads the rest of the file.
Compiled code and SQLite return the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from threading import local
from typing import Any

import numpy as np

from bubbleviz.errors import EXPORT_AGAIN, ProfileError
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.progress import Watch, unwatched
from bubbleviz.resources import count_cores
from bubbleviz.sources.nsys import export
from bubbleviz.sources.nsys.queries import NAME_OF_CALL, NOTHING, QUERIES, query, table_of
from bubbleviz.sources.sqlite import database as sqlite
from bubbleviz.sources.sqlite.pages import PageQuery, Pages, PageTable, open_pages, unpack_rows
from bubbleviz.sources.sqlite.queries import ABSENT, EVERY_ROW, Binds, PlainColumn, Query

#: Name of the row number in queries. A column with this name would hide the row number.
_ROW_NUMBER = "_rowid_"
#: Number of rows per part. Reading a part takes about 10 ms.
#: Larger parts would need more memory and make threads wait longer.
ROWS = 1 << 17
#: Number of rows per part when names are read.
#: Parts with names are larger, because the selected strings are looked up again for each part.
_NAMED_ROWS = 1 << 18
#: Maximum number of ``StringIds`` pages that one call searches.
#: A call takes about 20 ms, and Ctrl-C has no effect during the call.
_STRING_PAGES = 4096
#: Columns of ``gpu_work/kernels.sql``.
_KERNEL_COLUMNS = (
    PlainColumn("start"),
    PlainColumn("end"),
    PlainColumn("deviceId"),
    PlainColumn("globalPid", NONE),
    PlainColumn("correlationId", NONE),
    PlainColumn("demangledName", NONE),
)
#: Queries that can be answered by decoding pages, along with the table columns they return.
PAGE_QUERIES: Mapping[str, PageQuery] = {
    "gpu_work/kernels": PageQuery(view="views/kernels/current", columns=_KERNEL_COLUMNS),
    "gpu_work/kernels_and_streams": PageQuery(
        view="views/kernels/current", columns=(*_KERNEL_COLUMNS, PlainColumn("streamId", NONE))
    ),
    "calls/all": PageQuery(
        columns=(
            PlainColumn("start"),
            PlainColumn("end"),
            PlainColumn("globalTid", NONE),
            PlainColumn("correlationId", NOTHING),
        ),
    ),
    "calls/at": PageQuery(
        view="views/calls/current",
        columns=(
            PlainColumn("start"),
            PlainColumn("end"),
            PlainColumn("globalTid", NONE),
            PlainColumn("correlationId", NOTHING),
            PlainColumn("nameId", NONE),
            PlainColumn("returnValue", 0),
        ),
    ),
    "ranges/named": PageQuery(
        view="views/ranges/current",
        columns=(
            PlainColumn("start"),
            PlainColumn("end", ABSENT),
            PlainColumn("eventType"),
            PlainColumn("globalTid", NONE),
            PlainColumn("endGlobalTid", NONE),
            PlainColumn("textId", ABSENT),
        ),
        text="text",
        # Columns that filter rows.
        selected=("start", "end", "eventType", "globalTid", "endGlobalTid", "textId"),
    ),
    "strings/matching": PageQuery(
        view="views/strings/current", columns=(PlainColumn("id"),), text="value", key="id"
    ),
}


class DirectReader:
    """Decodes large tables from the pages of an open file.

    A method returns None if it finds an unusual page that it cannot decode. SQLite then reads the
    rest of the file. Several threads may use the reader at the same time.

    Args:
        pages: The open file.
        stored: Column definitions of the file's tables, as returned by ``schema.sql``.
        views: Selected variants of the views that queries read, keyed by view name.
    """

    def __init__(
        self, pages: Pages, stored: sqlite.StoredColumns, views: Mapping[str, Query]
    ) -> None:
        self._tables: dict[str, PageTable] = {}
        self._left_to_sqlite: list[str] = []
        # Name of the table in which an unusual page was found, or "" if none has been found so far.
        self._unusual_table = ""
        variants = {view.name for view in views.values()}
        for name, page_query in PAGE_QUERIES.items():
            rows = [row for row in stored if row[0] == table_of(name)]
            if not rows:
                continue
            readable = not page_query.view or page_query.view in variants
            table = pages.open_table(rows, page_query) if readable else None
            if table is not None:
                self._tables[name] = table
            elif name != "calls/at":  # this query reads only a few rows
                self._left_to_sqlite.append(table_of(name))

    def describe_readers(self) -> str:
        """Name the software that read the file so far, with the reason if SQLite did."""
        if self._unusual_table:
            reason = f"a page of {self._unusual_table} cannot be read directly, or memory ran out"
            return f"compiled reader, then SQLite ({reason})"
        if not self._tables:
            return "SQLite (no large table can be read directly)"
        tables = ", ".join(dict.fromkeys(self._left_to_sqlite))
        left = f", and SQLite ({tables})" if tables else ""
        return f"compiled reader{left}"

    def _leave(self, name: str) -> None:
        """Record that a query's table has an unusual page, so SQLite must read it from now on."""
        self._unusual_table = self._unusual_table or table_of(name)

    def read_columns(self, name: str, first: int, last: int) -> Ints | None:
        """Return a query's int64 columns for a range of row numbers.

        Args:
            name: Name of the query.
            first: Row number at which to start reading.
            last: Last row number to read, inclusive.

        Returns:
            The columns, shape (columns, rows), or None if SQLite must read them.
        """
        return self._read_or_leave(name, lambda table: table.read_rows(first, last))

    def read_selected(self, name: str, rows: Ints) -> Ints | None:
        """Return a query's int64 columns for the given row numbers.

        Args:
            name: Name of the query.
            rows: Row numbers to read, distinct and ascending.

        Returns:
            The columns, shape (columns, rows), or None if SQLite must read them.
        """
        return self._read_or_leave(name, lambda table: table.read_selected(rows))

    def filter_called_names(self, numbers: Sequence[int]) -> Sequence[int] | None:
        """Return those of the given name ids that at least one call uses, in ascending order.

        The result is None if SQLite must search for the names instead.
        """
        if self._unusual_table or "calls/at" not in self._tables:
            return None
        table, used = self._tables["calls/at"], set[int]()
        table = replace(table, integers=table.integers[[NAME_OF_CALL]])
        for piece in table.iter_pieces():
            names = table.read_rows(*piece)
            if names is None:
                return None
            used.update(number for number in numbers if (names == number).any())
        return sorted(used)

    def _read_or_leave(self, name: str, read: Callable[[PageTable], Ints | None]) -> Ints | None:
        """Read a query's table from its pages, or return None if SQLite must read it.

        If a page of the table cannot be decoded, SQLite must read this table and all later tables.

        Args:
            name: Name of the query.
            read: Function that reads the table and returns None if it cannot decode a page.
        """
        if self._unusual_table or name not in self._tables:
            return None
        columns = read(self._tables[name])
        if columns is None:
            self._leave(name)
        return columns

    def read_named(
        self, name: str, selection: export.Selection, stretches: Iterable[tuple[int, int]]
    ) -> export.Named | None:
        """Return the rows selected by a query, or None if SQLite must read them.

        The query determines which criteria of the selection apply:

        - ``ranges/named``: kind and name (text, or registered string);
        - ``ranges/sample``: kind, and the text if there is one;
        - ``ranges/lasting``: kind, thread and time;
        - ``strings/matching``: text.

        For the arguments, see :meth:`Export.read_named`.
        """
        by_time, sampled = name == "ranges/lasting", name == "ranges/sample"
        name = "ranges/named" if by_time or sampled else name
        if self._unusual_table or name not in self._tables:
            return None
        table, column_index = self._tables[name], self._tables[name].places
        options: dict[str, Any] = {}
        if name == "strings/matching":
            stretches = table.iter_pieces(_STRING_PAGES)
        else:
            options = {"kind": column_index["eventType"], "kinds": selection.kinds}
            options |= {
                "id": column_index["textId"],
                "ids": None if sampled else selection.text_ids,
            }
            if not sampled:
                options |= {"start": column_index["start"], "end": column_index["end"]}
        if by_time:
            options |= {"thread": column_index["globalTid"]}
            options |= {"threads": selection.threads, "shortest": selection.shortest_ns}
            options |= {"times": (selection.since_ns, selection.until_ns, selection.bounds)}
        if sampled:
            # Read only the kind and the text id, because other columns may be damaged.
            table = replace(table, integers=table.integers[[2, 5]])
        text = column_index["text" if "text" in column_index else "value"]
        globs = selection.globs
        if by_time or (sampled and not globs):
            globs = ("*",)
        rows = table.read_named(text, globs, stretches, **options)
        if rows is None:
            self._leave(name)
            return None
        return unpack_rows(rows)


class SqliteExport(export.Export):
    """An SQLite export. Each reader thread opens a separate connection.

    Args:
        database: The file, as opened by the current thread.
        stored: Column definitions of the tables that queries read, as returned by ``schema.sql``.
        jobs: Number of reader threads.
        watch: Progress callback, called with the fraction of the file that has been read.
    """

    any_order = True

    def __init__(
        self, database: sqlite.Database, stored: sqlite.StoredColumns, jobs: int, watch: Watch
    ) -> None:
        columns = sqlite.group_columns_by_table(stored)
        super().__init__(database.path, columns, "an SQLite database", jobs, watch)
        database.create_views(
            {name: f"CREATE TEMP VIEW {name} AS\n{v.text}" for name, v in self.views.items()}
        )
        # The reader for large tables, or the reason why the pages cannot be decoded.
        self.direct: DirectReader | str = ""
        self.opened_files = ExitStack()
        self._of_thread = local()
        self._of_thread.database = self._first = database

    @property
    def database(self) -> sqlite.Database:
        """The file, as opened by the current thread. Each thread opens the file on first use."""
        if not hasattr(self._of_thread, "database"):
            self._of_thread.database = sqlite.Database(self.path, QUERIES, self._first.views)
            self.opened_files.callback(self._of_thread.database.close)
        database: sqlite.Database = self._of_thread.database
        return database

    def describe_readers(self) -> str:
        """Name the software that read the large tables so far, with the reason if SQLite did."""
        direct = self.direct
        return f"SQLite ({direct})" if isinstance(direct, str) else direct.describe_readers()

    def count_max_rows(self) -> int:
        """Return an upper bound on the number of rows in any table."""
        return self._first.max_rows

    def count_rows(self, table: str) -> int:
        """Return the number of rows in a table."""
        return self.database.count_rows(table)

    def query_rows(self, name: str, binds: Binds | None = None) -> list[tuple[object, ...]]:
        """Run a query that returns few rows or text columns, and return its rows."""
        return self.database.query_rows(query(name), binds)

    def _query_columns(self, name: str, binds: Binds) -> Ints:
        return self.database.query_columns(query(name), binds)

    def _read_rows(self, name: str, rows: Ints) -> Ints:
        direct = self.direct
        columns = direct.read_selected(name, rows) if isinstance(direct, DirectReader) else None
        return super()._read_rows(name, rows) if columns is None else columns

    def filter_called_names(self, numbers: Sequence[int]) -> Sequence[int]:
        """Drop the name ids that no call uses, if the file's pages can be decoded.

        Otherwise, SQLite runs the search: all ids are returned if any call has one of the names,
        and no ids otherwise.
        """
        direct = self.direct
        called = direct.filter_called_names(numbers) if isinstance(direct, DirectReader) else None
        return super().filter_called_names(numbers) if called is None else called

    def _iter_parts(
        self, name: str, selection: export.Selection | None
    ) -> Iterator[export.Part[Ints | export.Named]]:
        """Divide a table into parts, and yield a function for each part that reads the part's rows.

        All parts except the last cover the same number of row numbers. A table with sparse row
        numbers is read as a single part, because most smaller parts would be empty.
        """
        first, last = self.find_bounds(export.BOUNDS[name])
        is_sparse = last - first >= self.count_max_rows()
        length = _NAMED_ROWS if selection else ROWS
        if is_sparse:
            length = last - first + 1
        for start in range(first, last + 1, max(length, 1)):
            part = range(start, min(start + length, last + 1))
            yield partial(self._read_part, name, selection, part)

    def _read_part(
        self, name: str, selection: export.Selection | None, part: range
    ) -> tuple[range, Ints | export.Named]:
        if selection is not None:
            return part, self.read_named(name, selection, [(part[0], part[-1])])
        return part, self.read_range(name, part[0], part[-1])

    def read_range(self, name: str, first: int, last: int) -> Ints:
        """Return a query's int64 columns for a range of row numbers, shape (columns, rows).

        Args:
            name: Name of the query.
            first: Row number at which to start reading.
            last: Last row number to read, inclusive.
        """
        columns = None
        if isinstance(self.direct, DirectReader):
            columns = self.direct.read_columns(name, first, last)
        rows, binds = min(last - first + 1, ROWS), {"first": first, "last": last}
        return self.database.query_columns(query(name), binds, rows) if columns is None else columns

    def read_named(
        self,
        name: str,
        selection: export.Selection,
        stretches: Sequence[tuple[int, int]] = (EVERY_ROW,),
    ) -> export.Named:
        """Return the rows selected by a query with their texts, see :meth:`Export.read_named`."""
        if isinstance(self.direct, DirectReader):
            rows = self.direct.read_named(name, selection, stretches)
            if rows is not None:
                return rows
        return export.concatenate_named(
            [self._read_named(name, selection, *rows) for rows in stretches]
        )

    def _read_named(
        self, name: str, selection: export.Selection, first: int, last: int
    ) -> export.Named:
        """Read the selected rows of a query with SQLite.

        A damaged row raises an error in ``ranges/named``. Other queries for ranges only collect
        hints, so they return no rows if any row is damaged.

        Args:
            name: Name of the query.
            selection: Criteria that select the rows.
            first: Row number at which to start reading.
            last: Last row number to read, inclusive.
        """
        binds = export.make_binds(selection, first, last)
        query_ = query(name)
        no_rows = export.combine_named(np.empty((len(query_.columns) - 1, 0), np.int64), ())
        batch = self.database.read_batch(
            query_, {parameter: binds[parameter] for parameter in query_.parameters}
        )
        if batch is None:
            return no_rows
        *numbers, text = batch.columns
        texts = sqlite.decode_texts(text)
        needs_all = name == "ranges/named"
        if needs_all and any(column.null_count for column in numbers):
            raise self._make_null_error()
        text_among_ranges = self._make_value_error(
            f"{export.NVTX} contains text where a number is expected"
        )
        if needs_all and {type(value) for value in texts} - {str, type(None)}:
            raise text_among_ranges
        try:
            values = sqlite.stack_integers(numbers)
        except ValueError as error:
            if not needs_all:
                return no_rows
            raise text_among_ranges from error
        return export.combine_named(values, texts)


@contextmanager
def open_export(path: str, jobs: int = 1, watch: Watch = unwatched) -> Iterator[SqliteExport]:
    """Open an SQLite export read-only. The export is closed on exit.

    Large tables are decoded from the pages of the file if possible, see :class:`DirectReader`.

    Args:
        path: Path to the file.
        jobs: Maximum number of reader threads.
        watch: Progress callback, called with the fraction of the file that has been read.

    Raises:
        ProfileError: The file is damaged, is not an SQLite database, or is still being written.
            Also raised if a column hides a table's row numbers, or if a table is a view or a
            virtual table, which could return endless rows.
    """
    with sqlite.open_database(path, QUERIES) as database:
        stored = sqlite.read_stored_columns(database, QUERIES.columns_read)
        for relation, root_page, _, _, column, *_ in stored:
            problem = "" if root_page else "is a view or a virtual table"
            if root_page and str(column).lower() == _ROW_NUMBER:
                problem = f"has a column named {_ROW_NUMBER}"
            if problem:
                raise ProfileError(
                    f"{path}: {relation} {problem}, which nsys never writes; {EXPORT_AGAIN}"
                )
        columns = [row for row in stored if row[4] is not None]
        # The main thread also reads while it waits, so that all cores are used.
        threads = max(1, min(jobs, count_cores() - 1))
        export = SqliteExport(database, columns, threads, watch)
        with export.opened_files, open_pages(path) as pages:
            export.direct = (
                pages if isinstance(pages, str) else DirectReader(pages, columns, export.views)
            )
            yield export
