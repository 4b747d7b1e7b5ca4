"""importing MODULES FILE SQL...: import modules, then run queries through SQLite.

The floor of a Python program on small files, where starting takes longer than scanning. MODULES
are joined by commas; what cannot be imported alone is left out.
"""

from __future__ import annotations

import importlib
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing, suppress


def main(modules: str, path: str, *queries: str) -> None:
    """Import, then run every query."""
    for name in modules.split(","):
        with suppress(Exception):
            importlib.import_module(name)
    uri = f"file:{path}?mode=ro"
    if "adbc_driver_sqlite" in sys.modules:
        _run_by_driver(uri, queries)
        return
    with closing(sqlite3.connect(uri, uri=True)) as database:
        for query in queries:
            database.execute(query).fetchall()


def _run_by_driver(uri: str, queries: Sequence[str]) -> None:
    """Run the queries in the SQLite that ADBC's driver brings, which may be a newer one."""
    adbc = importlib.import_module("adbc_driver_manager")
    driver = importlib.import_module("adbc_driver_sqlite")
    arrow = importlib.import_module("arro3.core")
    with driver.connect(uri) as database, adbc.AdbcConnection(database) as connection:
        for query in queries:
            with adbc.AdbcStatement(connection) as statement:
                statement.set_sql_query(query)
                arrow.RecordBatchReader.from_stream(statement.execute_query()[0]).read_all()


if __name__ == "__main__":
    main(*sys.argv[1:])
