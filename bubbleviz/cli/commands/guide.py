"""``bubbleviz guide``: the pages of ``bubbleviz/guides``, in the terminal."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bubbleviz.cli.help import argument
from bubbleviz.cli.private_names import PrivateNames
from bubbleviz.cli.terminal import complain, console, display, pass_on, show
from bubbleviz.errors import UsageError
from bubbleviz.model.texts import suggest_word
from bubbleviz.render.document import Sentence

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


_SUFFIX = ".md"
_FOLDER = Path(__file__).parents[2] / "guides"
#: The guides of commands that have none of their own name.
_OF_COMMANDS = {
    "analyze": "ratios",
    "gate": "compare",
    "inspect": "conventions",
    "schedules": "simulate",
    "view": "outputs",
}


def _names() -> list[str]:
    """Return the names of all guides, in alphabetical order."""
    pages = (page.name for page in _FOLDER.iterdir())
    return sorted(name.removesuffix(_SUFFIX) for name in pages if name.endswith(_SUFFIX))


def _pages() -> Mapping[str, str]:
    """Return the Markdown of every guide by name, in alphabetical order."""
    return {n: (_FOLDER / f"{n}{_SUFFIX}").read_text(encoding="utf-8") for n in _names()}


def guide(
    name: str | None = argument("[NAME]", "Name of a guide; all if not given.", None, _names),
) -> None:
    """Read a guide, or list the guides; plain Markdown when piped."""
    pages = _pages()
    if name in _OF_COMMANDS:
        complain(f"guide {_OF_COMMANDS[name]}; options: bubbleviz {name} --help", 0, PrivateNames())
        name = _OF_COMMANDS[name]
    if name is None:
        show(_titles(pages))
    elif name not in pages:
        all_of_them = f"; there are {', '.join(pages)}"
        raise UsageError(f"{name[:60]!r}: no such guide{suggest_word(name, pages) or all_of_them}")
    elif sys.stdout.isatty():
        from rich.markdown import Markdown

        console(display()).print(Markdown(pages[name]), crop=False, overflow="ellipsis")
    else:
        pass_on(pages[name])


def _titles(pages: Mapping[str, str]) -> Iterator[Sentence]:

    width = max(map(len, pages))
    for name, page in pages.items():
        title = page.partition("\n")[0].removeprefix("# ")
        yield Sentence(f"  {title}", lead=f"{name:<{width}}")
    yield Sentence("\nRead one with: bubbleviz guide NAME")
