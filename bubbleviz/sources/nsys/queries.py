"""The queries of ``sql/``: found beside the package or in it, with what each one requires.

A query file is one ``SELECT`` that runs as it stands in the sqlite3 shell. Its head says what
it returns, and ``-- requires: TABLE(column, column)`` lines say what it reads.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    if sys.version_info >= (3, 11):
        from importlib.resources.abc import Traversable
    else:
        from importlib.abc import Traversable

_REQUIRES = re.compile(r"^-- requires: (\w+)\(([^)]*)\)$", re.MULTILINE)
_COMMENT = re.compile(r"--.*")
_PARAMETER = re.compile(r":(\w+)")
#: A column of the result carries a comment that says what it is.
_COLUMN = re.compile(r"\bAS (\w+),?  -- ")


@dataclass(frozen=True)
class Query:
    """One file of ``sql/``.

    Attributes:
        name: ``"nsys/kernels"`` for ``sql/nsys/kernels.sql``.
        text: the statement.
        columns: names of what it returns.
        parameters: names of its parameters, in the order in which SQLite numbers them.
        requires: tables it reads, each with the columns it reads.
    """

    name: str
    text: str
    columns: tuple[str, ...]
    parameters: tuple[str, ...]
    requires: Mapping[str, tuple[str, ...]]

    def lacks(self, tables: Mapping[str, frozenset[str]]) -> tuple[str, ...]:
        """Return what ``tables`` (name to columns) lacks: ``TABLE`` or ``TABLE.column``."""
        missing: list[str] = []
        for table, columns in self.requires.items():
            if table not in tables:
                missing.append(table)
            else:
                missing.extend(f"{table}.{c}" for c in columns if c not in tables[table])
        return tuple(missing)


def sql_root() -> Traversable:
    """Return the packaged ``sql`` folder (a wheel has it), else the checkout's."""
    packaged = files("bubbleviz") / "sql"
    return packaged if packaged.is_dir() else Path(__file__).resolve().parents[3] / "sql"


@cache
def query(name: str) -> Query:
    """Return the query of that name.

    Raises:
        FileNotFoundError: there is none, which is a defect of the package.
    """
    text = sql_root().joinpath(*f"{name}.sql".split("/")).read_text(encoding="utf-8")
    requires = {
        table: tuple(c.strip() for c in columns.split(",") if c.strip())
        for table, columns in _REQUIRES.findall(text)
    }
    parameters = dict.fromkeys(_PARAMETER.findall(_COMMENT.sub("", text)))
    return Query(name, text, tuple(_COLUMN.findall(text)), tuple(parameters), requires)
