"""CSV: a table of operations as delimited text, with or without gzip."""

from __future__ import annotations

from bubbleviz.sources.readers import Reader, table_opened_by


def _columns(head: bytes) -> list[str]:
    """Return the names of columns in the first line; none where it is no such line."""
    line = head.split(b"\n", 1)[0]
    if not any(delimiter in line for delimiter in (b",", b";", b"\t")) or line[:1] in b"{[<":
        return []
    from bubbleviz.sources.tables.files import header_in

    return header_in(head)


def _recognises(head: bytes) -> bool:
    """Tell whether the first line names the columns that operations need."""
    columns = _columns(head)
    if not columns:
        return False
    from bubbleviz.sources.tables.cells import lacking

    return not lacking(columns)


def _is_possible(head: bytes) -> bool:
    """Tell whether the first lines are those of any table: as many cells in each."""
    columns = _columns(head)
    if len(columns) < 2 or not all(columns):
        return False
    from bubbleviz.sources.tables.files import header_in

    lines = head.split(b"\n", 2)
    return len(lines) < 2 or not lines[1].strip() or len(header_in(lines[1])) == len(columns)


READER = Reader(
    name="csv",
    suffixes=(),
    recognises=_recognises,
    open_file=table_opened_by("csv", "read_delimited"),
    decoded_whole=True,
    is_possible=_is_possible,
    operations="a table of operations",
    table_suffixes=(".csv", ".csv.gz", ".tsv", ".tsv.gz"),
)
