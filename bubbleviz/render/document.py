"""A document: blocks in the order in which they are read, and the text of numbers in their cells.

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
- :func:`bubbleviz.render.html.html` for a notebook.

What is drawn to scale for the width of a terminal (bars, timelines) is lines of styled words from
the start: :mod:`bubbleviz.render.text.terminal_timeline`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

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


#: Maximum number of ranks, hosts, profiles and kinds of operations that are listed.
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

    return " to ".join(texts.format_percent_bounds(interval, 2, 4))


def shortened(text: str, width: int) -> str:
    """Return a text of at most ``width`` characters; its middle is left out."""
    if len(text) <= width:
        return text
    tail = (width - 1) * 2 // 3
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


def short_name(name: str, width: int = 40) -> str:
    """Return a recorded name on one line of at most ``width`` characters."""
    return shortened(texts.to_one_line(name, None), width)
