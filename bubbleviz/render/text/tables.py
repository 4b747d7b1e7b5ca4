"""Tables and lists of a terminal, as rich prints them.

rich's own table looks at every cell five times to wrap or cut what a terminal has no room for; here
no digit may go: where a terminal is narrow, whole columns give way, and words are shortened.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple
from unicodedata import combining, east_asian_width

from bubbleviz.model import texts
from bubbleviz.model.values import frozen

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, OverflowMethod, RenderableType
    from rich.segment import Segment


# What an output can show, and lines of styled words laid out for it, without loading rich.


#: Sentences are easier to read in lines that are not endless.
_LONGEST_LINE = 100
#: What stands for a sign where the output has ASCII alone, dashes and quotation marks among them.
_ASCII = (
    str.maketrans(
        "\u2026\u00b7\u00d7\u00b5\u2013\u2500\u2212\u2022\u201c\u201d\u2018\u2019",
        "~.xu---*\"\"''",
    )
    | str.maketrans({"≥": ">=", "≤": "<=", "±": "+-"})
    | str.maketrans("▁▂▃▄▅▆▇█", ".:-=+*%#")
)
#: Blanks that no line breaks at: between a number and its unit.
_GLUE = re.compile(r"(?<=\d) (?=(?:%|ms|us)(?:\W|$))|(?<=±) (?=\d)")


@frozen
class Display:
    """What an output can show.

    Attributes:
        width: in columns.
        colour: whether it shows colours.
        unicode: whether it shows more than ASCII, block characters included.
    """

    width: int = 80
    colour: bool = False
    unicode: bool = True

    @property
    def text_width(self) -> int:
        """The width of sentences."""
        return min(self.width, _LONGEST_LINE)

    def shown(self, text: str) -> str:
        """Return a text in characters that the output has."""
        return text if self.unicode else in_ascii(text)


class Span(NamedTuple):
    """A piece of a line in one style, in rich's words: ``bold``, ``#397af2 on #ffffff``."""

    text: str
    style: str = ""


Line = tuple[Span, ...]


def in_ascii(text: str) -> str:
    """Return a text with ASCII for the signs that reports use; others are question marks."""
    return text.translate(_ASCII).encode("ascii", "replace").decode()


def cell_width(text: str) -> int:
    """Return the columns that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(c) else 1 + (east_asian_width(c) in "WF") for c in text)


def plain_lines(lines: Iterable[Line]) -> str:
    """Return lines as text without styles."""
    return "".join("".join(span.text for span in line).rstrip() + "\n" for line in lines)


def fitting(text: str, width: int) -> str:
    """Return a text of at most so many columns, its end left out."""
    if cell_width(text) <= width:
        return text
    kept = text[: max(width - 1, 0)]
    while kept and cell_width(kept) > width - 1:
        kept = kept[:-1]
    return kept.rstrip() + "…"


def shortened(text: str, width: int) -> str:
    """Return a text of at most ``width`` characters; its middle is left out."""
    if len(text) <= width:
        return text
    tail = (width - 1) * 2 // 3
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


def wrapped(
    text: str, width: int, *, most: int | None = None, hanging: int = 0, whole: bool = False
) -> list[str]:
    """Return a text in lines that break between words alone.

    Args:
        text: on one line.
        width: of a line; a longer word is shortened.
        most: lines; the last one ends with an ellipsis where there are more.
        hanging: blanks in front of each line but the first.
        whole: whether a longer word stays as it is.
    """
    lines: list[str] = []
    line = ""
    for glued in _GLUE.sub("\0", text).split():
        word = glued.replace("\0", " ")
        lead = " " * hanging if lines else ""
        piece = word if whole else fitting(word, width - hanging)
        if line and cell_width(line) + 1 + cell_width(piece) > width:
            lines.append(line)
            line = " " * hanging + piece
        else:
            line = f"{line} {piece}" if line else lead + piece
    lines += [line] if line else []
    if most is not None and len(lines) > most:
        rest = f"{lines[most - 1]} …"
        lines[most - 1 :] = [rest if cell_width(rest) <= width else fitting(rest, width)]
    return lines


def paragraph(
    text: str,
    display: Display,
    *,
    style: str = "",
    lead: str = "",
    lead_style: str = "bold",
    most: int | None = None,
) -> list[Line]:
    """Return a text in lines for a display, its first words in a style of their own.

    Args:
        text: on one line.
        display: where it is shown.
        style: of the text.
        lead: words in front of it.
        lead_style: of these.
        most: lines, as in :func:`wrapped`.
    """
    whole = display.shown(f"{lead} {text}" if lead else text)
    lines = [
        display.shown(line) for line in wrapped(whole, display.text_width, most=most, hanging=2)
    ]
    lead = display.shown(lead)
    styled: list[Line] = [(Span(line, style),) for line in lines]
    if lead and lines and lines[0].startswith(lead):
        styled[0] = (Span(lead, lead_style), Span(lines[0][len(lead) :], style))
    return styled


def flowing(entries: Sequence[Line], display: Display, gap: str = "   ") -> list[Line]:
    """Return entries beside each other in as many lines as they need, none of them parted."""
    lines: list[list[Span]] = []
    used = 0
    for entry in entries:
        width = sum(cell_width(span.text) for span in entry)
        if lines and used + len(gap) + width <= display.width:
            lines[-1] += [Span(gap), *entry]
            used += len(gap) + width
        else:
            lines.append(list(entry))
            used = width
    return [tuple(line) for line in lines]


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


# The console that tables are printed on: no digit of a table is ever cut.


#: Width of the text where it is not shown on a terminal.
WIDTH = 110


def plain_text(
    sections: Iterator[RenderableType], display: Display | None = None, width: int = WIDTH
) -> str:
    """Return the sections as text without colours.

    Args:
        sections: of any text.
        display: what it has to fit; None for a file, whose lines are wider where a table is.
        width: of a file.
    """
    import io

    from rich.console import Console

    out = io.StringIO()
    console = Console(
        file=out,
        width=width if display is None else display.width,
        color_system=None,
        force_terminal=False,
        legacy_windows=False,
        emoji=False,
        highlight=False,
        markup=False,
    )
    print_sections(console, sections, display)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def print_sections(
    console: Console, sections: Iterator[RenderableType], display: Display | None = None
) -> None:
    """Print on a console; text that says ``no_wrap`` is printed line by line as it is.

    Args:
        console: of rich.
        sections: of any text.
        display: what they have to fit; None for a file, in which no table and no word is cut.
    """
    from rich.text import Text

    for section in sections:
        shown = section
        if isinstance(shown, (Table, BulletList, HangingLines)) and display is not None:
            shown = shown.fitted(display.width)
            shown = shown if display.unicode else shown.in_ascii()
        elif isinstance(shown, Text) and display is not None:
            shown.plain = display.shown(shown.plain)
        as_it_is = isinstance(shown, Text) and bool(shown.no_wrap)
        overflow: OverflowMethod | None = None if display is None or as_it_is else "ellipsis"
        console.print(shown, crop=False, soft_wrap=as_it_is, overflow=overflow)


# Cells: the numbers and names in tables and lists of a terminal, and what stands around these.


#: So many ranks, hosts, profiles and kinds of operations are listed.
MOST_ROWS = 64


def percent(value: float | None) -> str:
    """Return a ratio as percent, or a dash."""
    return "-" if value is None else texts.percent(value)


def milliseconds(value: float | None) -> str:
    """Return nanoseconds as milliseconds, or a dash."""
    return "-" if value is None else f"{value / 1e6:,.3f}"


def in_percent(value: float | None) -> str:
    """Return a ratio as percent without the sign, for columns whose header has it."""
    return "-" if value is None else f"{100 * value:.2f}"


def titled(title: str, table: Table) -> Iterator[RenderableType]:
    """Yield a table below its title, which is not wrapped to the table's width."""
    from rich.text import Text

    yield Text(f"\n{title}", style="bold")
    yield table


def omitted(count: int, shown: int, hint: str = "") -> Iterator[RenderableType]:
    """Yield the number of rows that a table leaves out, if any.

    Args:
        count: rows that there are.
        shown: rows of the table, at most.
        hint: where to find the others.
    """
    from rich.text import Text

    if count > shown:
        yield Text(f"and {count - shown:,} more{hint}")


def between(interval: tuple[float, float] | None) -> str:
    """Return the ends of an interval in percent; nothing where it is exact or unknown."""
    if interval is None or interval[0] == interval[1]:
        return ""
    from bubbleviz.report.report import distinct_percents

    return " to ".join(distinct_percents(interval, 2, 4))
