"""Provides the queries and views in ``sql/nsys``."""

from __future__ import annotations

from bubbleviz.errors import EXPORT_AGAIN
from bubbleviz.sources.sqlite.queries import Queries

QUERIES = Queries("nsys", "nsys", "export of nsys", EXPORT_AGAIN)

query = QUERIES.query
table_of = QUERIES.find_table

#: Index of the name id column in the result of ``calls/at.sql``.
NAME_OF_CALL = 4
#: Value that queries return for a correlation id or wait start that is NULL.
NOTHING = -(1 << 40)
