"""A document: blocks in the order in which they are read, and what writes them for each medium.

Whoever shows something yields blocks and knows no medium. A row of a table is a mapping from
header to cell, so that a column is named where its cells are made, and one that is not always
there is simply left out of the rows::

    yield Sentence("2 devices, idle for 12.30 % of the time", style="bold")
    yield Table(
        "Devices",
        [
            {"device": rank.label, "span ms": milliseconds(rank.span_ns)}
            for rank in ranks[:MOST_ROWS]
        ],
        left=("device",),
        omitted=len(ranks) - MOST_ROWS,
    )
    yield bullets(["an entry", "another one"])

A table without rows is left out, unless it names its ``headers``; ``{}`` is a blank line, and
cells that a row lacks stay blank. These blocks are written by

- :func:`bubbleviz.render.text.terminal.lines_of` for a terminal, fitted to its width, and
  :func:`bubbleviz.render.text.terminal.plain_text` for a file;
- :func:`bubbleviz.render.markdown.markdown` for a pull request or a wiki;
- :func:`html` for a notebook.

What is drawn to scale for the width of a terminal (bars, timelines) is lines of styled words from
the start: :mod:`bubbleviz.render.text.terminal_timeline`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple, TypeAlias
from unicodedata import combining, east_asian_width

from bubbleviz.model import texts


class Span(NamedTuple):
    """A piece of a line in one style, in rich's words: ``bold``, ``#397af2 on #ffffff``."""

    text: str
    style: str = ""


Line = tuple[Span, ...]


@dataclass(frozen=True)
class Sentence:
    """A text of one line or more.

    Attributes:
        text: lines that are wrapped where they have no room.
        style: of the text, in rich's words.
        lead: the words in front of it, if they have a style of their own.
        lead_style: this style.
        whole: whether lines are never wrapped: of a file that a reader saves.
        most: lines; the last one ends with an ellipsis where there are more. None for all.
        hanging: blanks in front of lines that go on.
    """

    text: str
    style: str = ""
    lead: str = ""
    lead_style: str = "bold"
    whole: bool = False
    most: int | None = None
    hanging: int = 0


@dataclass(frozen=True)
class Table:
    """Columns under their headers: numbers to the right, columns of words to the left.

    Attributes:
        title: above it; empty for none.
        rows: cells by header; the first row has all headers, in order.
        left: the columns of words.
        wrap: those of words that are wrapped rather than shortened.
        giving_way: the columns that go where there is no room, what matters least first; then the
            others go from the right, and the first one stays.
        omitted: how many more rows there are; below 1 for none.
        hint: where to find these, behind their number.
        headers: of the columns; some are of several lines. Empty for those of the first row.
    """

    title: str
    rows: Sequence[Mapping[str, str]]
    left: Collection[str] = ()
    wrap: Collection[str] = ()
    giving_way: Sequence[str] = ()
    omitted: int = 0
    hint: str = ""
    headers: Sequence[str] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The headers; none where there is nothing to show."""
        return tuple(self.headers or (self.rows[0] if self.rows else ()))


@dataclass(frozen=True)
class HangingLines:
    """Lines, each with its lead; where they are wrapped, they go on below their text.

    Attributes:
        lines: lead and text of each.
        listed: whether they are entries of a list, which are wrapped in a file, too.
    """

    lines: Sequence[tuple[str, str]]
    listed: bool = False


def bullets(entries: Iterable[str]) -> HangingLines:
    """Return entries of a list, with a bullet each."""
    return HangingLines([("  - ", entry) for entry in entries], listed=True)


def heading(text: str) -> Sentence:
    """Return a title, below an empty line."""
    return Sentence(f"\n{text}", style="bold")


Block: TypeAlias = "Sentence | Table | HangingLines"


# Cells: numbers and names in tables and sentences.


#: So many ranks, hosts, profiles and kinds of operations are listed.
MOST_ROWS = 64


def numbered(number: int | None) -> str:
    """Return a number of 0 and up, or a dash."""
    return "-" if number is None or number < 0 else str(number)


def first_rows(
    rows: Sequence[Mapping[str, str]], column: str, *, most: int = MOST_ROWS, joint: str = "and "
) -> list[Mapping[str, str]]:
    """Return the first rows, and one that counts the others in a column, if there are any."""
    more = [{column: f"… {joint}{len(rows) - most:,} more"}] if len(rows) > most else []
    return [*rows[:most], *more]


def milliseconds(value: float | None) -> str:
    """Return nanoseconds as milliseconds, or a dash."""
    return "-" if value is None else f"{value / 1e6:,.3f}"


def in_percent(value: float | None) -> str:
    """Return a ratio as percent without the sign, for columns whose header has it."""
    return "-" if value is None else f"{100 * value:.2f}"


def between(interval: tuple[float, float] | None) -> str:
    """Return the ends of an interval in percent; nothing where it is exact or unknown."""
    if interval is None or interval[0] == interval[1]:
        return ""

    return " to ".join(texts.percent_bounds(interval, 2, 4))


def round_step(least: float, steps: Sequence[float] = (1, 2, 5, 10)) -> float:
    """Return the smallest step of an axis that is no less: some times a power of ten."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(times * power for times in steps if times * power >= least * (1 - 1e-9))


def shortened(text: str, width: int) -> str:
    """Return a text of at most ``width`` characters; its middle is left out."""
    if len(text) <= width:
        return text
    tail = (width - 1) * 2 // 3
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


def short_name(name: str, width: int = 40) -> str:
    """Return a recorded name on one line of at most ``width`` characters."""
    return shortened(texts.one_line(name, None), width)


# Texts in a width: of columns of a terminal, or of letters on a page.


#: Blanks that no line breaks at: between a number and its unit.
_GLUE = re.compile(r"(?<=\d) (?=(?:%|ms|us)(?:\W|$))|(?<=±) (?=\d)")


def cell_width(text: str) -> int:
    """Return the columns that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(c) else 1 + (east_asian_width(c) in "WF") for c in text)


def fitting(text: str, width: float, measure: Callable[[str], float] = cell_width) -> str:
    """Return a text of at most so many columns, or of another measure, its end left out."""
    if measure(text) <= width:
        return text
    while text and measure(text + "…") > width:
        text = text[:-1]
    return f"{text.rstrip()}…" if text else ""


def wrapped(
    text: str,
    width: float,
    *,
    most: int | None = None,
    hanging: int = 0,
    whole: bool = False,
    measure: Callable[[str], float] = cell_width,
) -> list[str]:
    """Return a text in lines that break between words alone.

    Args:
        text: on one line.
        width: of a line; a longer word is shortened.
        most: lines; the last one ends with an ellipsis where there are more, after a whole word.
        hanging: blanks in front of each line but the first.
        whole: whether a longer word stays as it is.
        measure: of a text: columns, or a width on a page.
    """
    lines: list[str] = []
    line = ""
    for glued in filter(None, re.split("[ \t\n]+", _GLUE.sub("\0", text))):
        word = glued.replace("\0", " ")
        lead = " " * hanging if lines else ""
        piece = word if whole else fitting(word, width - hanging, measure)
        if line and measure(f"{line} {piece}") > width:
            lines.append(line)
            line = " " * hanging + piece
        else:
            line = f"{line} {piece}" if line else lead + piece
    lines += [line] if line else []
    if most is not None and len(lines) > most:
        # Half a number would be another number.
        kept = lines[most - 1]
        while measure(f"{kept} …") > width and " " in kept.strip():
            kept = kept.rpartition(" ")[0]
        last = f"{kept} …"
        if measure(last) > width and any(letter.isdigit() for letter in kept):
            last = "…"
        lines[most - 1 :] = [fitting(last, width, measure)]
    return lines


# HTML: the elements of a notebook.


#: Characters of a text, and of one in a cell that may be cut.
_LONGEST, _CUT = 800, 20


def html(blocks: Iterable[Block]) -> str:
    """Return blocks as elements of a fragment of HTML that is well-formed XML, too."""
    return "".join(element for block in blocks for element in _elements(block))


def _elements(block: Block) -> Iterator[str]:
    if isinstance(block, Sentence):
        lead = f"<b>{_escaped(block.lead)}</b>" if block.lead else ""
        text = _escaped(block.text)
        yield f"<p>{lead}{f'<b>{text}</b>' if block.style == 'bold' else text}</p>"
    elif isinstance(block, HangingLines):
        entries = (f"<li>{_escaped(entry)}</li>" for _, entry in block.lines)
        yield f"<ul>{''.join(entries)}</ul>"
    elif block.rows:

        def cell(tag: str, column: str, text: str) -> str:
            look = ' class="bubbleviz-words"' if column in block.left else ""
            if column in block.left and len(text) > _CUT:
                # Style sheets cut what takes the room of numbers.
                look += f' title="{_escaped(text)}"'
            return f"<{tag}{look}>{_escaped(text)}</{tag}>"

        heads = (cell("th", column, column) for column in block.columns)
        yield f"<div><table><caption>{_escaped(block.title)}</caption>"
        yield f"<thead><tr>{''.join(heads)}</tr></thead><tbody>"
        for row in filter(None, block.rows):
            cells = (cell("td", column, row.get(column, "")) for column in block.columns)
            yield f"<tr>{''.join(cells)}</tr>"
        yield "</tbody></table></div>"


def _escaped(text: str) -> str:
    """Return a text escaped, on one line, and without invisible characters."""
    return escape(texts.one_line(text, _LONGEST))
