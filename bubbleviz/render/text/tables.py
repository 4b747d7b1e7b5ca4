"""Tables that are filled row by row, until all are written as blocks of a document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bubbleviz.render.document import (
    MOST_ROWS,
    Bullets,
    Heading,
    Sentence,
    Span,
    between,
    in_percent,
    milliseconds,
    percent,
    shortened,
)
from bubbleviz.render.document import HangingLines as _HangingLines
from bubbleviz.render.document import Table as TableBlock
from bubbleviz.render.text.terminal import WIDTH, Display, cell_width, plain_lines, wrapped
from bubbleviz.render.text.terminal import plain_text as _plain_text

if TYPE_CHECKING:
    from bubbleviz.render.document import Block

__all__ = [
    "MOST_ROWS",
    "WIDTH",
    "BulletList",
    "Display",
    "HangingLines",
    "Span",
    "Table",
    "between",
    "cell_width",
    "in_percent",
    "milliseconds",
    "omitted",
    "percent",
    "plain_lines",
    "plain_text",
    "shortened",
    "titled",
    "wrapped",
]


class Table:
    """A table of :mod:`bubbleviz.render.document` that is filled row by row."""

    def __init__(
        self,
        *headers: str,
        left: Iterable[str] = (),
        wrap: Iterable[str] = (),
        giving_way: Sequence[str] = (),
    ) -> None:
        self.headers = headers
        self._kinds = (tuple(left), tuple(wrap), giving_way)
        self._rows: list[Mapping[str, str]] = []

    @property
    def rows(self) -> tuple[tuple[str, ...], ...]:
        """The rows of cells; a row without any is a blank line."""
        return tuple(
            tuple(row.get(h, "") for h in self.headers) if row else () for row in self._rows
        )

    def add_row(self, *cells: str) -> None:
        """Add a row, a cell for each column from the left; the others stay blank."""
        self._rows.append(dict(zip(self.headers, cells, strict=False)))

    def add_section(self) -> None:
        """Set apart the rows that follow."""
        self._rows.append({})

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        """Be one of rich's sections to type checkers."""
        raise NotImplementedError

    @property
    def block(self) -> TableBlock:
        """The table as a block of a document."""
        return TableBlock("", self._rows, *self._kinds, headers=self.headers)


def BulletList(entries: Iterable[str]) -> Any:  # noqa: N802
    """Return a list of entries."""
    return Bullets(tuple(entries))


def HangingLines(lines: Iterable[tuple[str, str]]) -> Any:  # noqa: N802
    """Return lines with their leads."""
    return _HangingLines(tuple(lines))


def titled(title: str, table: Table) -> Iterator[Any]:
    """Yield a table below its title."""
    yield Heading(title)
    yield table


def omitted(count: int, shown: int, hint: str = "") -> Iterator[Any]:
    """Yield the number of rows that a table leaves out, if any."""
    if count > shown:
        yield Sentence(f"and {count - shown:,} more{hint}")


def as_blocks(sections: Iterable[Any]) -> Iterator[Block]:
    """Yield sections, among them rich's texts, as blocks of a document."""
    for section in sections:
        if isinstance(section, Table):
            yield section.block
        elif hasattr(section, "plain"):
            yield Sentence(section.plain, str(section.style), whole=bool(section.no_wrap))
        else:
            yield section


def plain_text(sections: Iterable[Any], display: Display | None = None, width: int = WIDTH) -> str:
    """Return sections as text without styles."""
    return _plain_text(as_blocks(sections), display, width)
