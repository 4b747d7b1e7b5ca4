"""``bubbleviz guide``: the pages of ``bubbleviz/guides`` in the terminal."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bubbleviz.cli.help import argument
from bubbleviz.cli.private_names import PrivateNames
from bubbleviz.cli.terminal import (
    describe_display,
    make_console,
    print_message,
    show,
    write_content,
)
from bubbleviz.errors import UsageError
from bubbleviz.model.texts import suggest_word
from bubbleviz.render.document import Sentence

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


_SUFFIX = ".md"
_FOLDER = Path(__file__).parents[2] / "guides"
#: Guide names for commands without a guide of the same name, keyed by command.
_OF_COMMANDS = {
    "analyze": "ratios",
    "gate": "compare",
    "inspect": "conventions",
    "schedules": "simulate",
    "view": "outputs",
}


def _list_names() -> list[str]:
    """Return the names of all guides, in alphabetical order."""
    pages = (page.name for page in _FOLDER.iterdir())
    return sorted(name.removesuffix(_SUFFIX) for name in pages if name.endswith(_SUFFIX))


def _read_pages() -> Mapping[str, str]:
    """Return the Markdown of every guide, keyed by name, in alphabetical order."""
    return {n: (_FOLDER / f"{n}{_SUFFIX}").read_text(encoding="utf-8") for n in _list_names()}


def guide(
    name: str | None = argument(
        "[NAME]", "Name of a guide. Without a name, all guides are listed.", None, _list_names
    ),
) -> None:
    """Print a guide, or list all guides. Piped output is plain Markdown."""
    pages = _read_pages()
    if name in _OF_COMMANDS:
        print_message(
            f"showing guide {_OF_COMMANDS[name]}; for the options, run bubbleviz {name} --help",
            0,
            PrivateNames(),
        )
        name = _OF_COMMANDS[name]
    if name is None:
        show(_list_titles(pages))
    elif name not in pages:
        all_names = f"; the guides are {', '.join(pages)}"
        raise UsageError(f"{name[:60]!r}: no such guide{suggest_word(name, pages) or all_names}")
    elif sys.stdout.isatty():
        from rich.markdown import Markdown

        make_console(describe_display()).print(
            Markdown(pages[name]), crop=False, overflow="ellipsis"
        )
    else:
        write_content(pages[name])


def _list_titles(pages: Mapping[str, str]) -> Iterator[Sentence]:
    """Yield the name and title of each guide, and a line that says how to read a guide."""
    width = max(map(len, pages))
    for name, page in pages.items():
        title = page.partition("\n")[0].removeprefix("# ")
        yield Sentence(f"  {title}", lead=f"{name:<{width}}")
    yield Sentence("\nTo read a guide: bubbleviz guide NAME")
