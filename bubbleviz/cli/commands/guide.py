"""``bubbleviz guide``: the pages of ``bubbleviz/guides``, in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from bubbleviz.cli.completion import guide_names, guide_pages
from bubbleviz.cli.help import argument
from bubbleviz.cli.terminal import pass_on, show
from bubbleviz.errors import UsageError
from bubbleviz.model.texts import suggestion

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.console import RenderableType


def guide(
    name: Annotated[
        str | None, argument("[NAME]", "Name of a guide; all if not given.", complete=guide_names)
    ] = None,
) -> None:
    """Read a guide, or list the guides; plain Markdown when piped."""
    import sys

    pages = guide_pages()
    if name is None:
        show(_list_parts(pages))
    elif name not in pages:
        all_of_them = f"; there are {', '.join(pages)}"
        raise UsageError(f"{name[:60]!r}: no such guide{suggestion(name, pages) or all_of_them}")
    elif sys.stdout.isatty():
        show(_page_parts(pages[name]))
    else:
        pass_on(pages[name])


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
