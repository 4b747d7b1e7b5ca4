"""``bubbleviz guide``: the pages of ``bubbleviz/guides``, in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bubbleviz.cli.terminal import pass_on, show
from bubbleviz.errors import UsageError
from bubbleviz.model.texts import nearest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.console import RenderableType


def guide(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Name of a guide; all if not given.")
    ] = None,
) -> None:
    """Read a guide in the terminal, or list the guides; plain Markdown when piped."""
    import sys

    pages = _pages()
    if name is None:
        show(_list_parts(pages))
    elif name not in pages:
        raise UsageError(f"{name[:60]!r}: no such guide{_suggestion(name, pages)}")
    elif sys.stdout.isatty():
        show(_page_parts(pages[name]))
    else:
        pass_on(pages[name])


def _pages() -> Mapping[str, str]:
    """Return the Markdown of every guide by name, in alphabetical order."""
    from importlib.resources import files

    pages = (files("bubbleviz") / "guides").iterdir()
    return {
        page.name.removesuffix(".md"): page.read_text(encoding="utf-8")
        for page in sorted(pages, key=lambda page: page.name)
        if page.name.endswith(".md")
    }


def _suggestion(name: str, pages: Mapping[str, str]) -> str:
    near = nearest(name, pages)
    return f"; did you mean {near}?" if near else f"; there are {', '.join(pages)}"


def _list_parts(pages: Mapping[str, str]) -> Iterator[RenderableType]:
    from rich.text import Text

    width = max(map(len, pages))
    for name, page in pages.items():
        title = page.partition("\n")[0].removeprefix("# ")
        yield Text.assemble((f"{name:<{width}}", "bold"), f"  {title}")
    yield Text("\nRead one with: bubbleviz guide NAME")


def _page_parts(page: str) -> Iterator[RenderableType]:
    from rich.markdown import Markdown

    yield Markdown(page)
