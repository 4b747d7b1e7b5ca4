"""Blocks of a document as lines of a terminal, or of a file of text.

No digit of a table is ever cut: where a terminal is narrow, whole columns give way, and words are
shortened or wrapped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bubbleviz.model.texts import replace_unprintable
from bubbleviz.render import document as doc
from bubbleviz.render.wrapping import cell_width, wrap_text

#: Width of the text where it is not shown on a terminal.
WIDTH = 110
#: Maximum width of sentences on a wide terminal.
_LONGEST_LINE = 100
#: Replacements of signs, including dashes and quotation marks, if the output is ASCII only.
_ASCII_SIGNS = str.maketrans(
    "\u2026\u00b7\u00d7\u00b5\u2013\u2500\u2212\u2022\u201c\u201d\u2018\u2019\u25ba",
    "~.xu---*\"\"''>",
)
_ASCII_BARS = str.maketrans("▁▂▃▄▅▆▇█", ".:-=+*%#")
_ASCII = _ASCII_SIGNS | _ASCII_BARS | str.maketrans({"≥": ">=", "≤": "<=", "±": "+-"})
#: Columns of a usual terminal.
_USUAL_WIDTH = 80
#: Minimum number of columns next to a lead; with fewer, the text continues below the lead.
_LEAST_ROOM = 20
#: Gap between two columns of a table.
_GAP = "  "
#: A command in a sentence, with its path.
_COMMAND = re.compile(r"bubbleviz \w+ (?:'[^']*'|\S+)")
#: Minimum width of a column of words, and of a column whose words are wrapped.
_SHORTEST, _SHORTEST_WRAPPED = 12, 24


@dataclass(frozen=True)
class Display:
    """What an output can show.

    Attributes:
        width: in columns.
        colour: whether it shows colours.
        unicode: whether it shows more than ASCII, block characters included.
        height: in lines.
    """

    width: int = _USUAL_WIDTH
    colour: bool = False
    unicode: bool = True
    height: int = 24

    @property
    def text_width(self) -> int:
        """The width of sentences."""
        return min(self.width, _LONGEST_LINE)

    def shown(self, text: str) -> str:
        """Return a text in characters that the output has; others are question marks."""
        if self.unicode:
            return text
        return text.translate(_ASCII).encode("ascii", "replace").decode()


def printable_line(line: doc.Line) -> doc.Line:
    """Return a line with a blank for each character that does not print."""
    return tuple(span._replace(text=replace_unprintable(span.text)) for span in line)


def plain_lines(lines: Iterable[doc.Line]) -> str:
    """Return lines as text without styles and without control characters."""
    texts = ("".join(span.text for span in printable_line(line)) for line in lines)
    return "".join(f"{text.rstrip()}\n" for text in texts)


def plain_text(
    blocks: Iterable[doc.Block], display: Display | None = None, width: int = WIDTH
) -> str:
    """Return blocks as text without styles.

    Args:
        blocks: of any document.
        display: what it has to fit; None for a file, in which no table and no word is cut.
        width: of sentences of a file.
    """
    return plain_lines(lines_of(blocks, display, width)) or "\n"


def lines_of(
    blocks: Iterable[doc.Block], display: Display | None = None, width: int = WIDTH
) -> Iterator[doc.Line]:
    """Yield blocks as lines of styled words.

    Args:
        blocks: of any document.
        display: what they have to fit; None for a file, in which no table and no word is cut.
        width: of sentences of a file.
    """
    for block in blocks:
        if isinstance(block, doc.Sentence):
            yield from _sentence(block, display, width)
        elif isinstance(block, doc.HangingLines):
            yield from _hanging_lines(block, display, width)
        elif block.columns:
            if block.title:
                yield from _sentence(doc.heading(block.title), display, width)
            yield from _table(block, display, width)
            if block.omitted > 0:
                more = f"and {block.omitted:,} more{block.hint}"
                yield from _sentence(doc.Sentence(more), display, width)


def _sentence(block: doc.Sentence, display: Display | None, width: int) -> Iterator[doc.Line]:
    text = block.lead + block.text
    if display is not None:
        text, width = display.shown(text), min(width, display.width)
    lead = len(block.lead if display is None else display.shown(block.lead))
    for line in text.split("\n"):
        fits = block.whole or (cell_width(line) <= width and "\t" not in line)
        blank = " " * (len(line) - len(line.lstrip()))
        broken = wrap_text(
            line,
            width - len(blank),
            max_lines=block.most,
            hanging_indent=block.hanging,
            keep_long_words=display is None,
        )
        for part in [line] if fits else [blank + part for part in broken]:
            if lead:
                yield doc.Span(part[:lead], block.lead_style), doc.Span(part[lead:], block.style)
            else:
                yield (doc.Span(part, block.style),)
            lead = max(lead - len(part), 0)


def _hanging_lines(
    block: doc.HangingLines, display: Display | None, width: int
) -> Iterator[doc.Line]:
    """Yield lines, in a file those of lists alone wrapped; a command stays on one line."""
    width = width if display is None else display.width
    for lead, text in block.lines:
        lines = [text]
        if display is not None:
            lead, text = display.shown(lead), display.shown(text)  # noqa: PLW2901
            if width - cell_width(lead) < _LEAST_ROOM:
                yield from _sentence(doc.Sentence(lead + text, hanging=4), display, width)
                continue
        if display is not None or block.listed:
            commands = _COMMAND.sub(lambda command: command[0].replace(" ", "\0"), text)
            is_uncut = display is None or not block.listed
            room = width - cell_width(lead)
            lines = wrap_text(commands, room, keep_long_words=is_uncut) or [""]
        yield (doc.Span((lead + lines[0]).rstrip()),)
        yield from ((doc.Span((" " * cell_width(lead) + line).rstrip()),) for line in lines[1:])


def paragraph(
    text: str,
    display: Display,
    *,
    style: str = "",
    lead: str = "",
    lead_style: str = "bold",
    most: int | None = None,
) -> list[doc.Line]:
    """Return a text in lines for a display, its first words in a style of their own.

    Args:
        text: on one line.
        display: where it is shown.
        style: of the text.
        lead: words in front of it.
        lead_style: of these.
        most: Maximum number of lines at 80 columns. A narrower display has as many lines as hold
            the same text, so that it shows every number that a wider one shows.
    """
    if most is not None and display.width < _USUAL_WIDTH:
        most = -(-most * _USUAL_WIDTH // display.width)
    text, hanging = f" {text}" if lead and text else text, 2
    block = doc.Sentence(text, style, lead, lead_style, most=most, hanging=hanging)
    return list(_sentence(block, display, display.text_width)) if lead or text else []


def flowing(entries: Sequence[doc.Line], display: Display, gap: str = "   ") -> list[doc.Line]:
    """Return entries beside each other in as many lines as they need, none of them parted."""
    lines: list[list[doc.Span]] = []
    used = 0
    for entry in entries:
        width = sum(cell_width(span.text) for span in entry)
        if lines and used + len(gap) + width <= display.width:
            lines[-1] += [doc.Span(gap), *entry]
            used += len(gap) + width
        else:
            lines.append(list(entry))
            used = width
    return [tuple(line) for line in lines]


def _table(table: doc.Table, display: Display | None, width: int) -> Iterator[doc.Line]:
    """Yield headers, rows, and a note that says which columns have no room."""
    headers, note, rows = list(table.columns), "", list(table.rows)
    if display is not None:
        width = display.width
        headers, rows, note = _fitted(table, width)
    shown = str if display is None else display.shown

    def line(cells: Sequence[str]) -> str:
        padded = []
        for cell, room, header in zip(cells, widths, headers, strict=True):
            blank = " " * (room - cell_width(cell))
            padded.append(cell + blank if header in table.left else blank + cell)
        return _GAP.join(padded).rstrip()

    heads = _stack_headers([shown(header) for header in headers])
    cells = [tuple(shown(row.get(header, "")) for header in headers) if row else () for row in rows]
    filled = [*heads, *filter(None, cells)]
    widths = [max(map(cell_width, column)) for column in zip(*filled, strict=True)]
    for head in heads:
        yield (doc.Span(line(head), "bold"),)
    yield (doc.Span(shown("─") * (sum(widths) + len(_GAP) * (len(widths) - 1))),)
    for row in cells:
        yield (doc.Span(line(row) if row else ""),)
    yield from ((doc.Span(part, "dim"),) for part in wrap_text(shown(note), max(width, 20)))


def _stack_headers(headers: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the lines of headers; shorter headers start with blank lines."""
    split = [header.split("\n") for header in headers]
    height = max(map(len, split))
    columns = [[""] * (height - len(lines)) + lines for lines in split]
    return list(zip(*columns, strict=True))


def _fitted(table: doc.Table, width: int) -> tuple[list[str], list[Mapping[str, str]], str]:
    """Return headers and rows at most so wide, words shortened first, and a note on what is gone.

    Numbers are never cut, so that a table of one column may be wider.
    """
    headers = table.columns
    widths = {}
    for header in headers:
        cells = (row.get(header, "") for row in table.rows)
        widths[header] = max(map(cell_width, (*header.split("\n"), *cells)))
    least = dict(widths)
    for header in table.left:
        if header in widths:
            shortest = _SHORTEST_WRAPPED if header in table.wrap else _SHORTEST
            shortest = max(shortest, *map(cell_width, header.split("\n")))
            least[header] = min(widths[header], shortest)

    def total(widths: Mapping[str, int], headers: Sequence[str]) -> int:
        return sum(widths[header] for header in headers) + len(_GAP) * (len(headers) - 1)

    others = [header for header in reversed(headers[1:]) if header not in table.giving_way]
    kept = list(headers)
    for header in (*table.giving_way, *others):
        if total(least, kept) > width and header in kept:
            kept.remove(header)
    note = ""
    if gone := [" ".join(header.split()) for header in headers if header not in kept]:
        them = "it" if len(gone) == 1 else "them"
        shows = f"COLUMNS={total(least, headers)} shows {them}"
        note = f"no room for {', '.join(gone)} in {width} columns; {shows}"
    over = total(widths, kept) - width
    # What can be wrapped is narrowed first.
    for header in sorted((h for h in kept if h in table.left), key=lambda h: h not in table.wrap):
        cut = max(min(over, widths[header] - least[header]), 0)
        widths[header] -= cut
        over -= cut
    return kept, [each for row in table.rows for each in _folded(table, row, kept, widths)], note


def _folded(
    table: doc.Table, row: Mapping[str, str], headers: Sequence[str], widths: Mapping[str, int]
) -> Iterator[Mapping[str, str]]:
    """Yield a row in as many lines as its words need; a blank one stays one."""
    cells = {}
    for header in headers if row else ():
        cell, room = row.get(header, ""), widths[header]
        if header not in table.left or cell_width(cell) <= room:
            cells[header] = [cell]
        else:
            cells[header] = (
                wrap_text(cell, room) if header in table.wrap else [doc.shortened(cell, room)]
            )
    for number in range(max(map(len, cells.values()), default=1)):
        yield {header: lines[number] for header, lines in cells.items() if number < len(lines)}
