"""Defines documents as sequences of blocks (sentences, tables and lists), and formats numbers.

Code that reports results yields blocks, and does not depend on the output medium. Each table row is
a mapping from column header to cell text. Code that makes a cell therefore also names its column,
and simply leaves an optional column out of the rows::

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
missing cells in a row stay blank. The following functions write blocks:

- :func:`bubbleviz.render.text.terminal.render_lines` for a terminal, fitted to its width, and
  :func:`bubbleviz.render.text.terminal.render_plain_text` for a file;
- :func:`bubbleviz.render.markdown.render_markdown` for a pull request or a wiki;
- :func:`bubbleviz.render.html.render_html` for a notebook.

Bars and timelines depend on the width of the terminal, so they are lines of spans, not blocks: see
:mod:`bubbleviz.render.text.terminal_timeline`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple, TypeAlias

from bubbleviz.model import texts


class Span(NamedTuple):
    """A piece of text in one style, such as ``bold`` or ``#397af2 on #ffffff`` (rich syntax)."""

    text: str
    style: str = ""


Line = tuple[Span, ...]


@dataclass(frozen=True)
class Sentence:
    """Text that consists of one or more lines.

    Attributes:
        text: The text. Lines that are too long for the output are wrapped.
        style: Style of the text, in the syntax of :class:`Span`.
        lead: Words before the text, which have a style of their own.
        lead_style: Style of ``lead``.
        is_preformatted: Whether lines are never wrapped, as in text that the user will copy to a
            file.
        max_lines: Maximum number of wrapped lines, or None for no limit. If the text is longer, the
            last line ends with an ellipsis.
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
        title: Title above the table, or "" for no title.
        rows: One mapping per row, from column header to cell text. The first row contains all
            headers, in display order.
        left: Headers of the left-aligned columns, which contain words. Numbers are right-aligned.
        wrap: Headers of the columns whose text is wrapped. In all other columns, long text is
            truncated.
        drop_order: Headers of the columns to drop first if the terminal is too narrow, least
            important first. If that is not enough, the remaining columns are dropped from right to
            left. The first column is kept unless it is listed here.
        min_widths: Minimum widths of columns of words, keyed by header. If there is less room,
            other columns are dropped. Columns that are not listed have a default minimum.
        n_omitted: Number of rows left out of the table. A value of 0 or less means none.
        hint: Text that follows the number of omitted rows and says where to find them.
        headers: Column headers, which may span several lines, or () to use the first row's keys.
    """

    title: str
    rows: Sequence[Mapping[str, str]]
    left: Collection[str] = ()
    wrap: Collection[str] = ()
    drop_order: Sequence[str] = ()
    min_widths: Mapping[str, int] = field(default_factory=dict)
    n_omitted: int = 0
    hint: str = ""
    headers: Sequence[str] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The column headers in display order, or () if there are no headers and no rows."""
        return tuple(self.headers or (self.rows[0] if self.rows else ()))


@dataclass(frozen=True)
class HangingLines:
    """Lines, each starting with a lead such as a bullet.

    Continuation lines are indented so that they start below the text rather than below the lead.

    Attributes:
        lines: (lead, text) pairs, one per line.
        is_list: Whether the lines form a bulleted list. List entries are wrapped even in a file.
    """

    lines: Sequence[tuple[str, str]]
    is_list: bool = False


def make_bullets(entries: Iterable[str]) -> HangingLines:
    """Return a bulleted list."""
    return HangingLines([("  - ", entry) for entry in entries], is_list=True)


def make_heading(text: str) -> Sentence:
    """Return a bold heading preceded by an empty line."""
    return Sentence(f"\n{text}", style="bold")


Block: TypeAlias = "Sentence | Table | HangingLines"


#: Maximum number of rows in tables of ranks, hosts, profiles or operation kinds.
MAX_ROWS = 64


def format_index(number: int | None) -> str:
    """Format an index. None and negative numbers become a dash."""
    return "-" if number is None or number < 0 else str(number)


def truncate_rows(
    rows: Sequence[Mapping[str, str]],
    column: str,
    *,
    max_rows: int = MAX_ROWS,
    joint: str = "and ",
) -> list[Mapping[str, str]]:
    """Return the first ``max_rows`` rows of a table.

    If rows are omitted, an extra row such as "… and 12 more" gives their number.

    Args:
        rows: The rows of the table.
        column: Header of the column that contains the number of omitted rows.
        max_rows: Maximum number of rows, not counting the extra row.
        joint: Text between the ellipsis and the number.
    """
    n_omitted = len(rows) - max_rows
    omitted_row = [{column: f"… {joint}{n_omitted:,} more"}] if n_omitted > 0 else []
    return [*rows[:max_rows], *omitted_row]


def format_ms(value: float | None) -> str:
    """Format nanoseconds as milliseconds with three decimals. None becomes a dash."""
    return "-" if value is None else f"{value / 1e6:,.3f}"


def format_percent_cell(value: float | None) -> str:
    """Format a ratio as a percentage with two decimals but no percent sign. None becomes a dash."""
    return "-" if value is None else f"{100 * value:.2f}"


def format_interval(interval: tuple[float, float] | None) -> str:
    """Format the (lower, upper) bounds of a ratio in percent.

    The result is "" if the bounds are equal or unknown.
    """
    if interval is None or interval[0] == interval[1]:
        return ""

    return " to ".join(texts.format_percent_bounds(interval, 2, 4))


def truncate_middle(text: str, width: int) -> str:
    """Shorten text to ``width`` characters by replacing its middle with an ellipsis.

    Two thirds of the remaining characters come from the end of the text. Text that fits is
    unchanged.
    """
    if len(text) <= width:
        return text
    tail = (width - 1) * 2 // 3
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


def truncate_all(names: Sequence[str], width: int) -> list[str]:
    """Shorten each text to ``width`` characters, so that different texts stay different.

    Texts are shortened in the middle. Texts that would then be equal show their beginning and the
    part from the first difference on instead::

        scale_kernel<float, 128, RowMajor>      scale_…float, 128, …
        scale_kernel<half, 128, RowMajor>       scale_…half, 128, R…

    If even that is equal, a number such as ``#2`` ends the text.
    """
    labels = {name: _show_open_bracket(truncate_middle(name, width), name) for name in names}
    for group in _group_by_label(labels):
        if len(group) > 1:
            labels |= {
                name: _show_open_bracket(label, name)
                for name, label in _truncate_at_difference(group, width).items()
            }
    for group in _group_by_label(labels):
        for name in group[1:]:
            labels[name] = _number_label(labels[name], width, set(labels.values()))
    return [labels[name] for name in names]


def _show_open_bracket(label: str, name: str) -> str:
    """Put the opening angle bracket of a shortened name back, if only the closing one is left.

    The bracket takes two characters from the beginning, as in ``scale…<…RowMajor>``. A label
    without enough characters is unchanged.

    Args:
        label: The name, shortened with an ellipsis.
        name: The complete name.
    """
    lead, ellipsis, tail = label.partition("…")
    is_closed_only = tail.endswith(">") and tail.count(">") > label.count("<")
    if label == name or not is_closed_only or "<" not in name or len(lead) < 3:
        return label
    return f"{lead[:-2]}{ellipsis}<{ellipsis}{tail}"


def _number_label(label: str, width: int, used: Collection[str]) -> str:
    """Return the label with the first number, from 2, that makes it differ from all used labels."""
    endings = (f"#{number}" for number in count(2))
    numbered = (f"{label[: max(width - len(ending), 0)]}{ending}" for ending in endings)
    return next(text for text in numbered if text not in used)


def _group_by_label(labels: Mapping[str, str]) -> list[list[str]]:
    """Return the names that share a label, one list per label."""
    groups: dict[str, list[str]] = {}
    for name, label in labels.items():
        groups.setdefault(label, []).append(name)
    return [*groups.values()]


def _truncate_at_difference(names: Sequence[str], width: int) -> dict[str, str]:
    """Return a short label for each name, which shows the part that differs from the other names.

    Args:
        names: Different names, longer than ``width``.
        width: Maximum number of characters of a label.
    """
    first = _measure_common_prefix(names)
    start = first
    # The label shows the complete word that differs, unless the word is too long.
    while start > max(first - width // 4, 0) and names[0][start - 1].isalnum():
        start -= 1
    labels: dict[str, str] = {}
    for name in names:
        part_width = min(len(name) - start, width - 1 - min(start, width // 3))
        part = name[start:]
        if len(part) > part_width:
            part = f"{part[: max(part_width - 1, 0)]}…"
        lead = name[: max(width - 1 - len(part), 0)]
        labels[name] = f"{lead}…{part}" if len(lead) < start else f"{name[:start]}{part}"
    for group in _group_by_label(labels):
        # Names that still share a label have a longer common prefix.
        if len(group) > 1:
            labels |= _truncate_at_difference(group, width)
    return labels


def _measure_common_prefix(names: Sequence[str]) -> int:
    """Return the number of characters with which all names begin."""
    # All names begin with what the alphabetically first and last names have in common.
    low, high = min(names), max(names)
    differs = (
        index for index, pair in enumerate(zip(low, high, strict=False)) if pair[0] != pair[1]
    )
    return next(differs, len(low))


def truncate_name(name: str, width: int = 40) -> str:
    """Return a name from a profile on one line, shortened in the middle to ``width`` characters."""
    return truncate_middle(texts.to_one_line(name, None), width)
