"""Tables and lists of a terminal, as rich prints them.

rich's own table looks at every cell five times to wrap or cut what a terminal has no room for; here
no digit may go: where a terminal is narrow, whole columns give way, and words are shortened.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from bubbleviz.render.text.display import cell_width, in_ascii, shortened, wrapped

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.segment import Segment

#: Between two columns.
_GAP = "  "
#: In front of the first line of an entry of a list, and of its other lines.
_BULLET, _INDENT = "  - ", "    "
#: A command in a sentence, with its path.
_COMMAND = re.compile(r"bubbleviz \w+ (?:'[^']*'|\S+)")
#: Characters that a column of words keeps, and one whose words are wrapped.
_SHORTEST, _SHORTEST_WRAPPED = 12, 24


class Table:
    """Columns under their headers: numbers to the right, columns of words to the left.

    Args:
        headers: of the columns; some are of several lines.
        left: the columns of words.
        wrap: those of words that are wrapped rather than shortened.
        giving_way: the columns that go where there is no room, what matters least first; those
            further to the right go before these, and the first column stays.
    """

    def __init__(
        self,
        *headers: str,
        left: Iterable[str] = (),
        wrap: Iterable[str] = (),
        giving_way: Sequence[str] = (),
    ) -> None:
        self._headers, self._left, self._wrap = headers, frozenset(left), frozenset(wrap)
        others = [h for h in reversed(headers[1:]) if h not in giving_way]
        self._giving_way = (*giving_way, *others)
        self._rows: list[tuple[str, ...]] = []
        self._note, self._rule = "", "─"

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

    def in_ascii(self) -> Table:
        """Return the table in ASCII."""
        table = self._like([in_ascii(header) for header in self._headers])
        table._rows = [tuple(map(in_ascii, row)) for row in self._rows]
        table._note, table._rule = in_ascii(self._note), "-"
        return table

    def fitted(self, width: int) -> Table:
        """Return the table at most so wide: with shorter words, then with fewer columns.

        A line below it says which columns are missing, and the width that shows them. Numbers are
        never cut, so that a table of one column may be wider.
        """
        kept = list(self._headers)
        candidates = [header for header in self._giving_way if header in kept]
        while self._narrowest(kept) > width and candidates:
            kept.remove(candidates.pop(0))
        gone = [" ".join(header.split()) for header in self._headers if header not in kept]
        table = self._of_columns(kept, width)
        if gone:
            shows = f"COLUMNS={self._narrowest(self._headers)} shows"
            missing = f"no room for {', '.join(gone)} in {width} columns"
            table._note = f"{missing}; {shows} {'it' if len(gone) == 1 else 'them'}"
        return table

    def _like(self, headers: Sequence[str]) -> Table:
        """Return an empty table with the kinds of columns of this one, in order of its headers."""
        renamed = dict(zip(self._headers, headers, strict=True))
        return Table(
            *headers,
            left=[renamed[header] for header in self._left if header in renamed],
            wrap=[renamed[header] for header in self._wrap if header in renamed],
            giving_way=[renamed[header] for header in self._giving_way],
        )

    def _widths(self, headers: Sequence[str]) -> dict[str, int]:
        """Return the width of each of these columns with nothing shortened."""
        widths = {}
        for header in headers:
            at = self._headers.index(header)
            cells = (row[at] for row in self._rows if row)
            widths[header] = max(map(cell_width, (*header.split("\n"), *cells)))
        return widths

    def _narrowest(self, headers: Sequence[str]) -> int:
        """Return how wide these columns are with words as short as they may be."""
        widths = self._widths(headers)
        return sum(self._least(h, widths[h]) for h in headers) + len(_GAP) * (len(headers) - 1)

    def _least(self, header: str, width: int) -> int:
        if header not in self._left:
            return width
        least = _SHORTEST_WRAPPED if header in self._wrap else _SHORTEST
        return min(width, max(least, *map(cell_width, header.split("\n"))))

    def _of_columns(self, headers: Sequence[str], width: int) -> Table:
        """Return some columns of the table, words shortened to what is left of a width."""
        widths = self._widths(headers)
        over = sum(widths.values()) + len(_GAP) * (len(headers) - 1) - width
        words = sorted((h for h in headers if h in self._left), key=lambda h: h not in self._wrap)
        for header in words:
            cut = max(min(over, widths[header] - self._least(header, widths[header])), 0)
            widths[header] -= cut
            over -= cut
        table = Table(
            *headers,
            left=self._left & {*headers},
            wrap=self._wrap & {*headers},
            giving_way=[header for header in self._giving_way if header in headers],
        )
        places = [self._headers.index(header) for header in headers]
        for row in self._rows:
            if not row:
                table.add_section()
                continue
            cells = [self._folded(self._headers[at], row[at], widths) for at in places]
            for number in range(max(map(len, cells))):
                table.add_row(*(cell[number] if number < len(cell) else "" for cell in cells))
        return table

    def _folded(self, header: str, cell: str, widths: dict[str, int]) -> list[str]:
        """Return a cell in as many lines as it needs."""
        if header not in self._left or cell_width(cell) <= widths[header]:
            return [cell]
        if header in self._wrap:
            return wrapped(cell, widths[header])
        return [shortened(cell, widths[header])]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        """Yield the lines of the table."""
        from rich.segment import Segment
        from rich.style import Style

        heads = _bottom_aligned([header.split("\n") for header in self._headers])
        lines = [*heads, *filter(None, self._rows)]
        widths = [max(map(cell_width, column)) for column in zip(*lines, strict=True)]
        to_left = [header in self._left for header in self._headers]

        def line(cells: Sequence[str]) -> str:
            padded = []
            for cell, width, left in zip(cells, widths, to_left, strict=False):
                blank = " " * (width - cell_width(cell))
                padded.append(cell + blank if left else blank + cell)
            return _GAP.join(padded).rstrip()

        for head in heads:
            yield Segment(line(head), Style(bold=True))
            yield Segment.line()
        rule = "-" if options.ascii_only else self._rule
        yield Segment(rule * (sum(widths) + len(_GAP) * (len(widths) - 1)))
        yield Segment.line()
        for row in self._rows:
            yield Segment(line(row))
            yield Segment.line()
        for note in wrapped(self._note, max(options.max_width, 20)):
            yield Segment(note, Style(dim=True))
            yield Segment.line()


def _bottom_aligned(columns: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return the lines of headers of several lines, which end on the same line."""
    height = max(map(len, columns))
    filled = ((*[""] * (height - len(column)), *column) for column in columns)
    return list(zip(*filled, strict=True))


class BulletList:
    """Entries with a bullet each, wrapped between words where they are wider than the console."""

    def __init__(self, entries: Iterable[str], *, whole: bool = True) -> None:
        self._entries, self._whole = tuple(entries), whole

    def in_ascii(self) -> BulletList:
        """Return the list in ASCII."""
        return BulletList(map(in_ascii, self._entries), whole=self._whole)

    def fitted(self, _width: int) -> BulletList:
        """Return the list with words shortened that are wider than a line."""
        return BulletList(self._entries, whole=False)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        """Yield the lines of the list."""
        from rich.segment import Segment

        width = max(options.max_width - len(_INDENT), 1)
        for entry in self._entries:
            lead = _BULLET
            for line in wrapped(entry, width, whole=self._whole) or [""]:
                yield Segment(lead + line)
                yield Segment.line()
                lead = _INDENT


class HangingLines:
    """Lines, each with its lead; where they are wrapped, they go on below their text.

    Args:
        lines: lead and text of each.
        width: to wrap to, between words; None for lines that stay whole.
    """

    def __init__(self, lines: Iterable[tuple[str, str]], width: int | None = None) -> None:
        self._lines, self._width = tuple(lines), width

    def in_ascii(self) -> HangingLines:
        """Return the lines in ASCII."""
        return HangingLines(((in_ascii(a), in_ascii(b)) for a, b in self._lines), self._width)

    def fitted(self, width: int) -> HangingLines:
        """Return the lines wrapped to a width; a command stays on one line, to be copied."""
        return HangingLines(self._lines, width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        """Yield the lines."""
        from rich.segment import Segment

        for lead, text in self._lines:
            before = lead
            for line in self._wrapped(text, cell_width(lead)):
                yield Segment((before + line).rstrip())
                yield Segment.line()
                before = " " * cell_width(lead)

    def _wrapped(self, text: str, indent: int) -> list[str]:
        if self._width is None:
            return [text]
        whole = _COMMAND.sub(lambda command: command[0].replace(" ", "\0"), text)
        return wrapped(whole, max(self._width - indent, 20), whole=True) or [""]
