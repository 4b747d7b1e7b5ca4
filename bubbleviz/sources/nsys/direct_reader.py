"""Direct reader: bulk columns decoded from the pages of an export, without SQLite.

It takes a file only if everything about it is plain, and gives None at the first page that is not:
then SQLite reads the rest, which is slower, and the reference. What both give is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bubbleviz.model.columns import NONE, Ints
from bubbleviz.sources.nsys.export import Named, Selection
from bubbleviz.sources.nsys.queries import table_of
from bubbleviz.sources.sqlite.database import StoredColumns
from bubbleviz.sources.sqlite.pages import PageQuery, Pages, PageTable, unpacked
from bubbleviz.sources.sqlite.queries import ABSENT, PlainColumn, Query

#: Which column of calls/at.sql is the name.
NAME_OF_CALL = 4
#: Pages of strings that are looked through at once, in some 20 ms, so that Ctrl-C is soon heard.
_STRING_PAGES = 4096
#: Stands for a NULL correlation id in calls/all.sql and calls/at.sql: the call launched nothing.
_NO_CORRELATION = -(1 << 40)
#: Columns of gpu_work/kernels.sql.
_KERNEL_COLUMNS = (
    PlainColumn("start"),
    PlainColumn("end"),
    PlainColumn("deviceId"),
    PlainColumn("globalPid", NONE),
    PlainColumn("correlationId", NONE),
    PlainColumn("demangledName", NONE),
)
#: Queries that are answered from pages, with the columns of the table that they return.
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
            PlainColumn("correlationId", _NO_CORRELATION),
        ),
    ),
    "calls/at": PageQuery(
        view="views/calls/current",
        columns=(
            PlainColumn("start"),
            PlainColumn("end"),
            PlainColumn("globalTid", NONE),
            PlainColumn("correlationId", _NO_CORRELATION),
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
        # Rows are selected by the stored values of these columns.
        selected=("start", "end", "eventType", "globalTid", "endGlobalTid", "textId"),
    ),
    "strings/matching": PageQuery(
        view="views/strings/current", columns=(PlainColumn("id"),), text="value", key="id"
    ),
}


class DirectReader:
    """Reads an open file until something about it is not plain; then gives None for ever.

    Threads may use it at the same time.

    Args:
        pages: the open file.
        stored: its columns, rows of schema.sql.
        views: the variant of each view that queries read.
    """

    def __init__(self, pages: Pages, stored: StoredColumns, views: Mapping[str, Query]) -> None:
        self._tables: dict[str, PageTable] = {}
        # Tables that are not read directly.
        self._left: list[str] = []
        self._odd = ""
        variants = {view.name for view in views.values()}
        for name, query in PAGE_QUERIES.items():
            rows = [row for row in stored if row[0] == table_of(name)]
            if not rows:
                continue
            readable = not query.view or query.view in variants
            table = pages.table(rows, query) if readable else None
            if table is not None:
                self._tables[name] = table
            elif name != "calls/at":  # of few rows
                self._left.append(table_of(name))

    def account(self) -> str:
        """Return what reads the file, as far as is known, and why where that is SQLite."""
        if self._odd:
            reason = f"a page of {self._odd} cannot be read directly, or memory was short"
            return f"compiled reader, then SQLite ({reason})"
        if not self._tables:
            return "SQLite (no large table of the file can be read directly)"
        left = f", and SQLite ({', '.join(self._left)})" if self._left else ""
        return f"compiled reader{left}"

    def _leave(self, query: str) -> None:
        """Leave the file to SQLite, as the table of a query is not plain."""
        self._odd = self._odd or table_of(query)

    def columns(self, query: str, first: int, last: int) -> Ints | None:
        """Return the int64 columns of a query in some rows, shape (columns, rows)."""
        return self._read(query, lambda table: table.rows(first, last))

    def chosen(self, query: str, rows: Ints) -> Ints | None:
        """Return the same for rows one by one (distinct, ascending)."""
        return self._read(query, lambda table: table.chosen(rows))

    def names_of_calls(self, numbers: Sequence[int]) -> Sequence[int] | None:
        """Return which of some numbers of names any call has."""
        if self._odd or "calls/at" not in self._tables:
            return None
        table, found = self._tables["calls/at"], set[int]()
        table = replace(table, integers=table.integers[[NAME_OF_CALL]])
        for piece in table.pieces():
            if (names := table.rows(*piece)) is None:
                return None
            found.update(number for number in numbers if (names == number).any())
        return sorted(found)

    def _read(self, query: str, read: Callable[[PageTable], Ints | None]) -> Ints | None:
        if self._odd or query not in self._tables:
            return None
        columns = read(self._tables[query])
        if columns is None:
            self._leave(query)
        return columns

    def named(
        self, query: str, selection: Selection, stretches: Iterable[tuple[int, int]]
    ) -> Named | None:
        """Return the selected rows among those of some numbers, as an ``Export`` does."""
        by_time, sampled = query == "ranges/lasting", query == "ranges/sample"
        query = "ranges/named" if by_time or sampled else query
        if self._odd or query not in self._tables:
            return None
        table, place = self._tables[query], self._tables[query].places
        options: dict[str, Any] = {}
        if query == "strings/matching":
            stretches = table.pieces(_STRING_PAGES)
        else:
            options = {"kind": place["eventType"], "kinds": selection.kinds}
            options |= {"id": place["textId"], "ids": None if sampled else selection.text_ids}
            if not sampled:
                options |= {"start": place["start"], "end": place["end"]}
        if by_time:
            options |= {"thread": place["globalTid"]}
            options |= {"threads": selection.threads, "shortest": selection.shortest_ns}
            options |= {"times": (selection.since_ns, selection.until_ns, selection.bounds)}
        if sampled:
            # Kind and number of the text; other columns may be damaged.
            table = replace(table, integers=table.integers[[2, 5]])
        text = place["text" if "text" in place else "value"]
        globs = ("*",) if by_time or sampled else selection.globs
        rows = table.named(text, globs, stretches, **options)
        if rows is None:
            self._leave(query)
            return None
        return unpacked(rows)
