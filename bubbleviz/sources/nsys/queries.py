"""Queries and views of ``sql/nsys``, and which columns of tables they give as they are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from bubbleviz.errors import EXPORT_AGAIN
from bubbleviz.sources.sqlite.queries import Queries, Query

QUERIES = Queries("nsys", "nsys", "export of nsys", EXPORT_AGAIN)

query = QUERIES.query
table_of = QUERIES.table_of

#: Stands for NULL where NULL means something; no value of a file may be equal to it.
ABSENT = -(1 << 63)
#: How SQL writes that, for which it has no literal.
_LEAST = f"{ABSENT + 1} - 1"
#: What a query or a view selects, and the column's name.
_SELECTED = re.compile(r"^(?:SELECT)? +(.+) AS (\w+),?  -- ", re.MULTILINE)
_COLUMN = re.compile(r'\w+\."?(\w+)"?')
#: The second argument of COALESCE and of NULLIF.
_ARGUMENT = re.compile(r", (-?\d+(?: - 1)?)\)")


@dataclass(frozen=True)
class PlainColumn:
    """A column of a table, as a query gives it.

    Attributes:
        name: in the table of nsys; "" where the variant of a view gives NULL for it.
        missing: stands for NULL; None where NULL stays, or is damage.
        nothing: values that the view reads as NULL.
    """

    name: str
    missing: int | None = None
    nothing: tuple[int, ...] = ()


@cache
def _selected(text: str) -> Mapping[str, PlainColumn]:
    """Return the columns that a statement gives, each a column of what it reads or a constant."""
    columns = {}
    for expression, name in _SELECTED.findall(text):
        column = _COLUMN.search(expression)
        given = [expression] if column is None else _ARGUMENT.findall(expression)
        numbers = [ABSENT if n == _LEAST else int(n) for n in given if n != "NULL"]
        of_view = "NULLIF" in expression
        columns[name] = PlainColumn(
            column[1] if column else "",
            numbers[0] if numbers and not of_view else None,
            tuple(numbers) if of_view else (),
        )
    return columns


def plain_columns(name: str, views: Mapping[str, Query]) -> tuple[str, tuple[PlainColumn, ...]]:
    """Return the table of nsys behind a query that only filters it, and the columns that it gives.

    Args:
        name: of the query.
        views: the variant of each view that queries read.
    """
    relation = next(iter(query(name).requires))
    columns = tuple(_selected(query(name).text).values())
    if relation not in QUERIES.view_variants:
        return relation, columns
    view = views[relation]
    behind = _selected(view.text)
    resolved = (
        PlainColumn(behind[c.name].name, c.missing, behind[c.name].nothing) if c.name else c
        for c in columns
    )
    return next(iter(view.requires)), tuple(resolved)
