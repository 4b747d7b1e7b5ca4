"""Lays out document blocks as lines for a terminal or a text file.

Numbers in tables are never truncated. On a narrow terminal, entire columns are dropped, and words
are truncated or wrapped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bubbleviz.model.texts import replace_unprintable
from bubbleviz.render import document as doc
from bubbleviz.render.wrapping import measure_cells, wrap_text

#: Width of text in a file, in characters.
WIDTH = 110
#: Maximum width of sentences on a wide terminal, in columns.
_LONGEST_LINE = 100
#: ASCII replacements for non-ASCII signs such as dashes and quotation marks.
_ASCII_SIGNS = str.maketrans(
    "\u2026\u00b7\u00d7\u00b5\u2013\u2500\u2212\u2022\u201c\u201d\u2018\u2019\u25ba",
    "~.xu---*\"\"''>",
)
_ASCII_BARS = str.maketrans("▁▂▃▄▅▆▇█", ".:-=+*%#")
_ASCII = _ASCII_SIGNS | _ASCII_BARS | str.maketrans({"≥": ">=", "≤": "<=", "±": "+-"})
#: Default width of a terminal, in columns.
_USUAL_WIDTH = 80
#: Minimum number of text columns next to a lead. If there are fewer, continuation lines start below
#: the lead.
_MIN_TEXT_WIDTH = 20
#: Blanks between two table columns.
_GAP = "  "
#: Matches a bubbleviz command and its path within a sentence. The command is kept on one line.
_COMMAND = re.compile(r"bubbleviz \w+ (?:'[^']*'|\S+)")
#: Minimum width of a table column that contains words, without and with wrapping.
_MIN_WIDTH, _MIN_WRAPPED_WIDTH = 12, 24


@dataclass(frozen=True)
class Display:
    """The size of a terminal, and what it can display.

    Attributes:
        width: Width in columns.
        color: Whether the terminal shows colors.
        unicode: Whether the terminal shows Unicode, including block characters, rather than just
            ASCII.
        height: Height in lines.
        has_height: Whether the height is known, rather than assumed.
    """

    width: int = _USUAL_WIDTH
    color: bool = False
    unicode: bool = True
    height: int = 24
    has_height: bool = True

    @property
    def text_width(self) -> int:
        """Maximum width of sentences, in columns: the terminal width, up to 100."""
        return min(self.width, _LONGEST_LINE)

    def translate(self, text: str) -> str:
        """Convert text to ASCII if the terminal shows only ASCII.

        Characters without a replacement become "?". Otherwise the text is returned unchanged.
        """
        if self.unicode:
            return text
        return text.translate(_ASCII).encode("ascii", "replace").decode()


def mask_unprintable(line: doc.Line) -> doc.Line:
    """Return a line with non-printable characters replaced by blanks."""
    return tuple(span._replace(text=replace_unprintable(span.text)) for span in line)


def join_plain_lines(lines: Iterable[doc.Line]) -> str:
    """Join lines into text without styles, control characters or trailing blanks."""
    texts = ("".join(span.text for span in mask_unprintable(line)) for line in lines)
    return "".join(f"{text.rstrip()}\n" for text in texts)


def render_plain_text(
    blocks: Iterable[doc.Block], display: Display | None = None, width: int = WIDTH
) -> str:
    """Render document blocks as text without styles.

    Args:
        blocks: Blocks of the document.
        display: Terminal that the text must fit on, or None for a file. In a file, tables keep all
            columns, and long words are not truncated.
        width: Maximum width of sentences. On a terminal, its width is an additional limit.

    Returns:
        The text, or a single line feed if there is nothing to render.
    """
    return join_plain_lines(render_lines(blocks, display, width)) or "\n"


def render_lines(
    blocks: Iterable[doc.Block], display: Display | None = None, width: int = WIDTH
) -> Iterator[doc.Line]:
    """Yield the blocks of a document as styled lines.

    Args:
        blocks: Blocks of the document.
        display: Terminal that the lines must fit on, or None for a file. In a file, tables keep all
            columns, and long words are not truncated.
        width: Maximum width of sentences. On a terminal, its width is an additional limit.
    """
    for block in blocks:
        if isinstance(block, doc.Sentence):
            yield from _wrap_sentence(block, display, width)
        elif isinstance(block, doc.HangingLines):
            yield from _wrap_hanging_lines(block, display, width)
        elif block.columns:
            if block.title:
                yield from _wrap_sentence(doc.make_heading(block.title), display, width)
            yield from _render_table(block, display, width)
            if block.n_omitted > 0:
                note = f"and {block.n_omitted:,} more{block.hint}"
                yield from _wrap_sentence(doc.Sentence(note), display, width)


def _wrap_sentence(block: doc.Sentence, display: Display | None, width: int) -> Iterator[doc.Line]:
    """Yield the wrapped lines of a sentence. Only the lead gets the lead's style.

    Preformatted lines, and lines that fit and do not contain a tab, are unchanged. In a file, words
    longer than a line are not truncated.

    Args:
        block: The sentence.
        display: The terminal, or None for a file.
        width: Maximum width. On a terminal, its width is an additional limit.
    """
    text, lead = block.lead + block.text, block.lead
    if display is not None:
        text = display.translate(text)
        lead = display.translate(lead)
        width = min(width, display.width)
    n_lead = len(lead)
    for line in text.split("\n"):
        fits = block.is_preformatted or (measure_cells(line) <= width and "\t" not in line)
        indent = " " * (len(line) - len(line.lstrip()))
        wrapped = wrap_text(
            line,
            width - len(indent),
            max_lines=block.max_lines,
            hanging_indent=block.hanging_indent,
            keep_long_words=display is None,
        )
        for part in [line] if fits else [indent + part for part in wrapped]:
            if n_lead:
                before_text = doc.Span(part[:n_lead], block.lead_style)
                yield before_text, doc.Span(part[n_lead:], block.style)
            else:
                yield (doc.Span(part, block.style),)
            n_lead = max(n_lead - len(part), 0)


def _wrap_hanging_lines(
    block: doc.HangingLines, display: Display | None, width: int
) -> Iterator[doc.Line]:
    """Yield the laid-out lines, including their leads.

    On a terminal, and in lists, long lines are wrapped.

    A command (``bubbleviz NAME PATH``) is never broken. Continuation lines start below the text, or
    below the lead if fewer than ``_MIN_TEXT_WIDTH`` columns remain for the text.

    Args:
        block: The lines.
        display: The terminal, or None for a file.
        width: Maximum width in a file.
    """
    width = width if display is None else display.width
    for lead, text in block.lines:
        lines = [text]
        if display is not None:
            lead, text = display.translate(lead), display.translate(text)  # noqa: PLW2901
            if width - measure_cells(lead) < _MIN_TEXT_WIDTH:
                yield from _wrap_sentence(
                    doc.Sentence(lead + text, hanging_indent=4), display, width
                )
                continue
        if display is not None or block.is_list:
            protected = _COMMAND.sub(lambda command: command[0].replace(" ", "\0"), text)
            keep_long_words = display is None or not block.is_list
            text_width = width - measure_cells(lead)
            lines = wrap_text(protected, text_width, keep_long_words=keep_long_words) or [""]
        yield (doc.Span((lead + lines[0]).rstrip()),)
        yield from ((doc.Span((" " * measure_cells(lead) + line).rstrip()),) for line in lines[1:])


def wrap_paragraph(
    text: str,
    display: Display,
    *,
    style: str = "",
    lead: str = "",
    lead_style: str = "bold",
    max_lines: int | None = None,
) -> list[doc.Line]:
    """Wrap text for a terminal. Lines after the first one are indented.

    Args:
        text: The text, on one line.
        display: The terminal.
        style: Style of the text.
        lead: Words before the text, which have a style of their own.
        lead_style: Style of ``lead``.
        max_lines: Maximum number of lines at 80 columns, or None for no limit. A narrower terminal
            gets proportionally more lines, so that it shows about as much text.

    Returns: The lines, or an empty list if text and lead are both empty.
    """
    if not lead and not text:
        return []
    if max_lines is not None and display.width < _USUAL_WIDTH:
        max_lines = -(-max_lines * _USUAL_WIDTH // display.width)
    if lead and text:
        text = f" {text}"
    block = doc.Sentence(text, style, lead, lead_style, max_lines=max_lines, hanging_indent=2)
    return list(_wrap_sentence(block, display, display.text_width))


def flow_entries(entries: Sequence[doc.Line], display: Display, gap: str = "   ") -> list[doc.Line]:
    """Lay out entries from left to right. A new line starts when the next entry does not fit.

    Entries are never split, so an entry wider than the terminal makes a longer line.
    """
    lines: list[list[doc.Span]] = []
    line_width = 0
    for entry in entries:
        width = sum(measure_cells(span.text) for span in entry)
        if lines and line_width + len(gap) + width <= display.width:
            lines[-1] += [doc.Span(gap), *entry]
            line_width += len(gap) + width
        else:
            lines.append(list(entry))
            line_width = width
    return [tuple(line) for line in lines]


def _render_table(table: doc.Table, display: Display | None, width: int) -> Iterator[doc.Line]:
    """Yield the lines of a table: headers, a rule, the rows, and a note that lists dropped columns.

    Args:
        table: The table.
        display: Terminal that the table must fit on, or None for a file, in which all columns are
            kept.
        width: Maximum width of the note in a file.
    """
    headers, note, rows = list(table.columns), "", list(table.rows)
    if display is not None:
        width = display.width
        headers, rows, note = _fit_table(table, width)
    to_display = str if display is None else display.translate

    def join_cells(cells: Sequence[str]) -> str:
        padded = []
        for cell, column_width, header in zip(cells, widths, headers, strict=True):
            padding = " " * (column_width - measure_cells(cell))
            padded.append(cell + padding if header in table.left else padding + cell)
        return _GAP.join(padded).rstrip()

    header_lines = _align_headers([to_display(header) for header in headers])
    cells = [
        tuple(to_display(row.get(header, "")) for header in headers) if row else () for row in rows
    ]
    columns = zip(*header_lines, *filter(None, cells), strict=True)
    widths = [max(map(measure_cells, column)) for column in columns]
    for header_line in header_lines:
        yield (doc.Span(join_cells(header_line), "bold"),)
    yield (doc.Span(to_display("─") * (sum(widths) + len(_GAP) * (len(widths) - 1))),)
    for row in cells:
        yield (doc.Span(join_cells(row) if row else ""),)
    yield from ((doc.Span(part, "dim"),) for part in wrap_text(to_display(note), max(width, 20)))


def _align_headers(headers: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the header lines of a table, each with one text per column.

    Headers are bottom-aligned, so a header with fewer lines starts with empty lines.
    """
    split = [header.split("\n") for header in headers]
    height = max(map(len, split))
    columns = [[""] * (height - len(lines)) + lines for lines in split]
    return list(zip(*columns, strict=True))


def _fit_table(table: doc.Table, width: int) -> tuple[list[str], list[Mapping[str, str]], str]:
    """Fit a table to a width by dropping columns, and by truncating or wrapping words.

    First, columns that contain words are narrowed. If the table is too wide even when all of them
    are at their minimum width, columns are dropped. Numbers are never truncated, so even a table
    with a single column can be too wide.

    Returns:
        headers: Headers of the remaining columns.
        rows: Cells of each output line, keyed by header. A row with wrapped words becomes several
            lines.
        note: Text that lists the dropped columns, or "" if all columns remain.
    """
    headers = table.columns
    widths = {}
    for header in headers:
        cells = (row.get(header, "") for row in table.rows)
        widths[header] = max(map(measure_cells, (*header.split("\n"), *cells)))
    min_widths = _list_min_widths(table, widths)
    remaining = _drop_columns(table, min_widths, width)
    dropped = [" ".join(header.split()) for header in headers if header not in remaining]
    note = _describe_dropped(dropped, width, _sum_widths(min_widths, headers))
    excess = _sum_widths(widths, remaining) - width
    words = [header for header in remaining if header in table.left]
    # Columns with wrapped text are narrowed first, because this does not lose any text.
    for header in sorted(words, key=lambda header: header not in table.wrap):
        cut = max(min(excess, widths[header] - min_widths[header]), 0)
        widths[header] -= cut
        excess -= cut
    shown_rows = _truncate_words(table, remaining, widths)
    rows = [line for row in shown_rows for line in _split_row(table, row, remaining, widths)]
    return remaining, rows, note


def _truncate_words(
    table: doc.Table, headers: Sequence[str], widths: Mapping[str, int]
) -> list[Mapping[str, str]]:
    """Return the rows with words shortened to the width of their column, unless they are wrapped.

    Different words in a column stay different. Numbers are never shortened.

    Args:
        table: The table.
        headers: Headers of the printed columns.
        widths: Width of each column, keyed by header.
    """
    rows = [dict(row) for row in table.rows]
    for header in (header for header in headers if header in set(table.left) - set(table.wrap)):
        cells = [row[header] for row in rows if header in row]
        is_long = [measure_cells(cell) > widths[header] for cell in cells]
        if not any(is_long):
            continue
        shortened = dict(zip(cells, doc.truncate_all(cells, widths[header]), strict=True))
        for row in rows:
            if header in row:
                row[header] = shortened[row[header]]
    return [*rows]


def _describe_dropped(dropped: Sequence[str], width: int, full_width: int) -> str:
    """Return a note that names the dropped columns of a table, or "" if there are none.

    Args:
        dropped: Headers of the dropped columns.
        width: Width of the terminal, in columns.
        full_width: Minimum width of a terminal on which all columns fit.
    """
    if not dropped:
        return ""
    hint = f"COLUMNS={full_width} shows {'it' if len(dropped) == 1 else 'them'}"
    return f"no room for {', '.join(dropped)} in {width} columns; {hint}"


def _list_min_widths(table: doc.Table, widths: Mapping[str, int]) -> dict[str, int]:
    """Return the minimum width of each column, keyed by header.

    Only columns that contain words can be narrower than their content. Their minimum width is given
    by ``table.min_widths``. Otherwise it is ``_MIN_WIDTH``, or ``_MIN_WRAPPED_WIDTH`` if the words
    are wrapped. It is never less than the header's width.

    Args:
        table: The table.
        widths: Content width of each column, keyed by header.
    """
    min_widths = dict(widths)
    for header in table.left:
        if header in widths:
            default = _MIN_WRAPPED_WIDTH if header in table.wrap else _MIN_WIDTH
            min_width = table.min_widths.get(header, default)
            min_width = max(min_width, *map(measure_cells, header.split("\n")))
            min_widths[header] = min(widths[header], min_width)
    return min_widths


def _drop_columns(table: doc.Table, min_widths: Mapping[str, int], width: int) -> list[str]:
    """Drop columns until the table fits, and return the headers of the remaining columns.

    The columns in ``table.drop_order`` are dropped first, in that order, followed by all other
    columns from the right. The first column is dropped only if ``table.drop_order`` contains it.

    Args:
        table: The table.
        min_widths: Minimum width of each column, keyed by header.
        width: Width of the terminal.
    """
    remaining = list(table.columns)
    from_right = [h for h in reversed(table.columns[1:]) if h not in table.drop_order]
    for header in (*table.drop_order, *from_right):
        if _sum_widths(min_widths, remaining) > width and header in remaining:
            remaining.remove(header)
    return remaining


def _sum_widths(widths: Mapping[str, int], headers: Sequence[str]) -> int:
    """Return the total width of the given columns, including the gaps between columns."""
    return sum(widths[header] for header in headers) + len(_GAP) * (len(headers) - 1)


def _split_row(
    table: doc.Table, row: Mapping[str, str], headers: Sequence[str], widths: Mapping[str, int]
) -> Iterator[Mapping[str, str]]:
    """Yield the output lines of a table row. Each line is a mapping from header to cell text.

    Text that is too wide is wrapped if its column is in ``table.wrap``. A blank row yields one
    empty mapping.

    Args:
        table: The table.
        row: Cells of the row, keyed by header, shortened by :func:`_truncate_words`. A blank row is
            empty.
        headers: Headers of the printed columns.
        widths: Width of each column, keyed by header.
    """
    lines_of_cell = {}
    for header in headers if row else ():
        cell, width = row.get(header, ""), widths[header]
        is_wrapped = header in table.wrap and measure_cells(cell) > width
        lines_of_cell[header] = wrap_text(cell, width) if is_wrapped else [cell]
    for index in range(max(map(len, lines_of_cell.values()), default=1)):
        yield {
            header: lines[index] for header, lines in lines_of_cell.items() if index < len(lines)
        }
