"""The console that tables are printed on: no digit of a table is ever cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, RenderableType

#: Width of the text where it is not shown on a terminal.
WIDTH = 110


def plain_text(sections: Iterator[RenderableType]) -> str:
    """Return the sections as text without colours; wider than usual only where a table is."""
    import io

    from rich.console import Console

    out = io.StringIO()
    console = Console(
        file=out,
        width=WIDTH,
        color_system=None,
        force_terminal=False,
        legacy_windows=False,
        emoji=False,
        highlight=False,
        markup=False,
    )
    print_sections(console, sections)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def print_sections(console: Console, sections: Iterator[RenderableType]) -> None:
    """Print on a console; a table that is wider than it is printed whole, for no digit may go.

    Text that says ``no_wrap`` is printed line by line as it is.
    """
    from rich.text import Text

    for section in sections:
        as_it_is = isinstance(section, Text) and bool(section.no_wrap)
        console.print(section, crop=False, soft_wrap=as_it_is)
