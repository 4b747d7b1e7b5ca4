"""importing MODULES FILE SQL...: import modules, then run queries through SQLite.

The floor of a Python program on small files, where starting takes longer than scanning. MODULES
are joined by commas; what cannot be imported alone is left out.
"""

from __future__ import annotations

import importlib
import sqlite3
import sys
from contextlib import closing, suppress


def main(modules: str, path: str, *queries: str) -> None:
    """Import, then run every query."""
    for name in modules.split(","):
        with suppress(Exception):
            importlib.import_module(name)
    if "apsw" in sys.modules:
        apsw = importlib.import_module("apsw")
        reader = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
    else:
        reader = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    with closing(reader) as database:
        for query in queries:
            database.execute(query).fetchall()


if __name__ == "__main__":
    main(*sys.argv[1:])
