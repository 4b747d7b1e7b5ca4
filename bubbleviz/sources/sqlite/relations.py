"""Relations: the tables and views of an SQLite file, which tell whose it is, and their columns."""

from __future__ import annotations

from bubbleviz.errors import ProfileError
from bubbleviz.sources.sqlite.catalogue import Catalogue, opened_catalogue
from bubbleviz.sources.sqlite.pages import check_pages
from bubbleviz.sources.sqlite.queries import Maker, Queries, Schema

#: Any profiler.
_ANY = Maker("the profiler", "sqlite", "profile of any profiler", "copy it again")
SQLITE_QUERIES = Queries(_ANY)


def relations_in(path: str) -> frozenset[str]:
    """Return the names of tables and views; none of a file that is damaged or describes too much.

    What cannot be read here is left to the reader of the file to refuse.
    """
    try:
        check_pages(path, _ANY)
        with opened_catalogue(path, _ANY) as catalogue:
            rows = catalogue.rows(SQLITE_QUERIES.query("relations"))
    except (ProfileError, OSError):
        return frozenset()
    return frozenset(str(name) for (name,) in rows)


def columns_of_tables(catalogue: Catalogue) -> Schema:
    """Return the columns of each table of an open file, by its name there.

    Raises:
        ProfileError: the file is damaged.
    """
    columns: dict[str, set[str]] = {}
    for table, column in catalogue.rows(SQLITE_QUERIES.query("columns")):
        columns.setdefault(str(table), set()).add(str(column))
    return {table: frozenset(names) for table, names in columns.items()}
