"""Cells: the numbers and names in tables and lists of a terminal, and what stands around these."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubbleviz.model import texts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from bubbleviz.render.text.tables import Table

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
