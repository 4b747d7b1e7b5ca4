"""Queries and views of ``sql/nsys``."""

from __future__ import annotations

from bubbleviz.errors import EXPORT_AGAIN
from bubbleviz.sources.sqlite.queries import Maker, Queries

NSYS = Maker("nsys", "nsys", "export of nsys", EXPORT_AGAIN)
QUERIES = Queries(NSYS)

columns_read = QUERIES.columns_read
query = QUERIES.query
tables = QUERIES.tables
tables_read = QUERIES.tables_read
view_variants = QUERIES.view_variants
views_of = QUERIES.views_of
