"""Tables and lists of a terminal, as rich prints them.

rich's own table looks at every cell five times to wrap or cut what a terminal has no room for; here
no digit may go, so that a column is as wide as its widest cell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import Console, ConsoleOptions
    from rich.segment import Segment

#: Between two columns.
_GAP = "  "
#: In front of the first line of an entry of a list, and of its other lines.
_BULLET, _INDENT = "  - ", "    "


class Table:
    """Columns under their headers: numbers to the right, columns of words to the left."""

    def __init__(self, *headers: str, left: Iterable[str] = ()) -> None:
        self._headers, self._left = headers, frozenset(left)
        self._rows: list[tuple[str, ...]] = []

    @property
    def headers(self) -> tuple[str, ...]:
        """The headers of the columns; some are of several lines."""
        return self._headers

    @property
    def rows(self) -> tuple[tuple[str, ...], ...]:
        """The rows of cells; a row without any is a blank line."""
        return tuple(self._rows)

    def add_row(self, *cells: str) -> None:
        """Add a row, a cell for each column from the left; the others stay blank."""
        self._rows.append((*cells, *[""] * (len(self._headers) - len(cells))))

    def add_section(self) -> None:
        """Set apart the rows that follow."""
        self._rows.append(())

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        """Yield the lines of the table."""
        from rich.cells import cell_len
        from rich.segment import Segment
        from rich.style import Style

        heads = _bottom_aligned([header.split("\n") for header in self._headers])
        lines = [*heads, *filter(None, self._rows)]
        widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
        to_left = [header in self._left for header in self._headers]

        def line(cells: Sequence[str]) -> str:
            padded = []
            for cell, width, left in zip(cells, widths, to_left, strict=False):
                blank = " " * (width - cell_len(cell))
                padded.append(cell + blank if left else blank + cell)
            return _GAP.join(padded).rstrip()

        for head in heads:
            yield Segment(line(head), Style(bold=True))
            yield Segment.line()
        rule = "-" if options.ascii_only else "─"
        yield Segment(rule * (sum(widths) + len(_GAP) * (len(widths) - 1)))
        yield Segment.line()
        for row in self._rows:
            yield Segment(line(row))
            yield Segment.line()


def _bottom_aligned(columns: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return the lines of headers of several lines, which end on the same line."""
    height = max(map(len, columns))
    filled = ((*[""] * (height - len(column)), *column) for column in columns)
    return list(zip(*filled, strict=True))


class BulletList:
    """Entries with a bullet each, folded where they are wider than the console."""

    def __init__(self, entries: Iterable[str]) -> None:
        self._entries = tuple(entries)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        """Yield the lines of the list."""
        from rich.segment import Segment
        from rich.text import Text

        width = max(options.max_width - len(_INDENT), 1)
        for entry in self._entries:
            lead = _BULLET
            for line in Text(entry).wrap(console, width, overflow="fold"):
                yield Segment(lead + line.plain.rstrip())
                yield Segment.line()
                lead = _INDENT
