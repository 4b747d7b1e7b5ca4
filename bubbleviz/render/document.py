"""Documents: sequences of blocks (sentences, tables, lists), and formatted numbers for their cells.

Code that reports something yields blocks and does not depend on the medium. A row of a table is a
mapping from header to cell. So a column is named in the place where its cells are made, and an
optional column is simply left out of the rows::

    yield Sentence("2 devices, idle for 12.30 % of the time", style="bold")
    yield Table(
        "Devices",
        [
            {"device": rank.label, "span ms": format_ms(rank.span_ns)}
            for rank in ranks[:MAX_ROWS]
        ],
        left=("device",),
        n_omitted=len(ranks) - MAX_ROWS,
    )
    yield make_bullets(["an entry", "another one"])

A table without rows is left out unless it has ``headers``. The row ``{}`` is a blank line, and
missing cells of a row stay blank. Blocks are written by

- :func:`bubbleviz.render.text.terminal.render_lines` for a terminal, fitted to its width, and
  :func:`bubbleviz.render.text.terminal.render_plain_text` for a file;
- :func:`bubbleviz.render.markdown.render_markdown` for a pull request or a wiki;
- :func:`bubbleviz.render.html.render_html` for a notebook.

Bars and timelines depend on the width of the terminal, so they are lines of spans, not blocks: see
:mod:`bubbleviz.render.text.terminal_timeline`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from bubbleviz.model import texts


class Span(NamedTuple):
    """Text in one style, for example ``bold`` or ``#397af2 on #ffffff`` (the syntax of rich)."""

    text: str
    style: str = ""


Line = tuple[Span, ...]


@dataclass(frozen=True)
class Sentence:
    """A text of one or more lines.

    Attributes:
        text: The text. Lines that are too long are wrapped.
        style: Style of the text.
        lead: First words, with a separate style.
        lead_style: Style of the first words.
        is_preformatted: Whether lines are never wrapped, for text that is copied to a file.
        max_lines: Maximum number of lines, or None for any number. If there are more, the last line
            ends with an ellipsis.
        hanging_indent: Number of blanks before each continuation line.
    """

    text: str
    style: str = ""
    lead: str = ""
    lead_style: str = "bold"
    is_preformatted: bool = False
    max_lines: int | None = None
    hanging_indent: int = 0


@dataclass(frozen=True)
class Table:
    """A table with right-aligned numbers and left-aligned words.

    Attributes:
        title: Title above the table, or "" for none.
        rows: Cells of each row, keyed by header. The first row has all headers, in order.
        left: Headers of the left-aligned columns of words.
        wrap: Headers of the columns of words that are wrapped. Other words are shortened.
        drop_order: Headers of the columns to drop on a narrow terminal, least important first. The
            remaining columns are dropped from the right; the first column always stays.
        n_omitted: Number of rows that are not listed; 0 or less if all are listed.
        hint: Text after ``n_omitted`` that explains where to find the omitted rows.
        headers: Headers of the columns, possibly of several lines, or () to use the headers of the
            first row.
    """

    title: str
    rows: Sequence[Mapping[str, str]]
    left: Collection[str] = ()
    wrap: Collection[str] = ()
    drop_order: Sequence[str] = ()
    n_omitted: int = 0
    hint: str = ""
    headers: Sequence[str] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The headers, or () if there is nothing to show."""
        return tuple(self.headers or (self.rows[0] if self.rows else ()))


@dataclass(frozen=True)
class HangingLines:
    """Lines with a lead. Wrapped lines continue below the text, not below the lead.

    Attributes:
        lines: Lead and text of each line.
        is_list: Whether the lines are entries of a list, which are wrapped even in a file.
    """

    lines: Sequence[tuple[str, str]]
    is_list: bool = False


def make_bullets(entries: Iterable[str]) -> HangingLines:
    """Return a bulleted list."""
    return HangingLines([("  - ", entry) for entry in entries], is_list=True)


def make_heading(text: str) -> Sentence:
    """Return a bold title, after an empty line."""
    return Sentence(f"\n{text}", style="bold")


Block: TypeAlias = "Sentence | Table | HangingLines"


#: Maximum number of ranks, hosts, profiles and kinds of operations that are listed.
MAX_ROWS = 64


def format_index(number: int | None) -> str:
    """Format an index, with a dash for None and for -1."""
    return "-" if number is None or number < 0 else str(number)


def truncate_rows(
    rows: Sequence[Mapping[str, str]],
    column: str,
    *,
    max_rows: int = MAX_ROWS,
    joint: str = "and ",
) -> list[Mapping[str, str]]:
    """Return the first rows, and one more row with the number of omitted rows, if any are omitted.

    Args:
        rows: The rows.
        column: Column that contains the number of omitted rows.
        max_rows: Maximum number of rows, without the additional one.
        joint: Word before the number.
    """
    n_omitted = len(rows) - max_rows
    omitted_row = [{column: f"… {joint}{n_omitted:,} more"}] if n_omitted > 0 else []
    return [*rows[:max_rows], *omitted_row]


def format_ms(value: float | None) -> str:
    """Format nanoseconds as milliseconds, with a dash for None."""
    return "-" if value is None else f"{value / 1e6:,.3f}"


def format_percent_cell(value: float | None) -> str:
    """Format a ratio as percent without the percent sign, with a dash for None."""
    return "-" if value is None else f"{100 * value:.2f}"


def format_interval(interval: tuple[float, float] | None) -> str:
    """Format the bounds of a ratio in percent, or return "" if it is exact or unknown."""
    if interval is None or interval[0] == interval[1]:
        return ""

    return " to ".join(texts.format_percent_bounds(interval, 2, 4))


def truncate_middle(text: str, width: int) -> str:
    """Shorten a text to ``width`` characters by replacing its middle with an ellipsis."""
    if len(text) <= width:
        return text
    tail = (width - 1) * 2 // 3
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


def truncate_name(name: str, width: int = 40) -> str:
    """Return a recorded name on one line, shortened in the middle to ``width`` characters."""
    return truncate_middle(texts.to_one_line(name, None), width)
