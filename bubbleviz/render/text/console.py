"""The console that tables are printed on: no digit of a table is ever cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, OverflowMethod, RenderableType

    from bubbleviz.render.text.display import Display

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

    from bubbleviz.render.text.tables import BulletList, HangingLines, Table

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
