"""The reference: the parameters of every command, and every public name in the Python API."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import typer

import bubbleviz
from bubbleviz.cli.app import make_application

#: Matches an option in text.
_OPTION = re.compile(r"(?<![\w`-])--?[a-z][\w-]*(?![\w`])")
#: Titles of the first columns of tables that do not list options.
_HEADS = {"Arguments": "argument"}


def write(docs: Path) -> list[str]:
    """Write the pages for all commands and for the Python API, and return the command names."""
    folder = docs / "reference"
    folder.mkdir(parents=True, exist_ok=True)
    group: Any = typer.main.get_command(make_application())
    commands = {name: one for name, one in group.commands.items() if not one.hidden}
    rows = []
    for name, command in commands.items():
        (folder / f"{name}.md").write_text("\n".join(_format_page(name, command)), encoding="utf-8")
        summary = command.help.strip().partition("\n")[0]
        rows.append(f"| [`bubbleviz {name}`]({name}.md) | {summary} |")
    index = ("# Commands", "", "| command | what it does |", "|---|---|", *rows, "")
    (folder / "index.md").write_text("\n".join(index), encoding="utf-8")
    (folder / "python.md").write_text("\n".join(_format_python_page()), encoding="utf-8")
    return list(commands)


def _format_page(name: str, command: Any) -> Iterator[str]:
    """Yield the lines of a command's page."""
    context = typer.Context(command, info_name=f"bubbleviz {name}")
    pieces = [piece for piece in command.collect_usage_pieces(context) if piece]
    yield from (f"# bubbleviz {name}", "", _format_text(command.help.strip().replace("\b", "")), "")
    yield f"    bubbleviz {name} {' '.join(pieces)}"
    yield from (
        "",
        (command.epilog or "").replace("\\*", "*").replace("Example: ", "Example:\n\n    "),
    )
    panels = [
        (getattr(parameter, "rich_help_panel", None) or _format_panel(parameter), parameter)
        for parameter in command.params
    ]
    order = list(dict.fromkeys(panel for panel, _ in panels))
    for panel, group in groupby(sorted(panels, key=lambda e: order.index(e[0])), lambda e: e[0]):
        yield from (
            "",
            f"## {panel}",
            "",
            f"| {_HEADS.get(panel, 'option')} | meaning |",
            "|---|---|",
        )
        yield from (
            f"| {_format_names(parameter, context)} | {_format_cell(parameter.help or '')} |"
            for _, parameter in group
        )
    yield ""


def _format_panel(parameter: Any) -> str:
    return "Arguments" if parameter.param_type_name == "argument" else "Options"


def _format_names(parameter: Any, context: Any) -> str:
    """Return a parameter's names and its metavar."""
    if parameter.param_type_name == "argument":
        return f"`{parameter.make_metavar(context)}`"
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    metavar = "" if parameter.is_flag else f" `{parameter.make_metavar(context)}`"
    return names + metavar


def _format_cell(text: str) -> str:
    """Return text in a form that is valid in a table cell."""
    return _format_text(" ".join(text.split()).replace("|", "\\|"))


def _format_text(text: str) -> str:
    """Return help text as Markdown, with options as code."""
    return _OPTION.sub(r"`\g<0>`", html.escape(text, quote=False))


def _format_python_page() -> Iterator[str]:
    """Yield the lines of the page about the Python API."""
    yield from (
        "# Python",
        "",
        "Everything below is in `bubbleviz`, whichever module defines it.",
        "",
    )
    public = [name for name in bubbleviz.__all__ if not name.startswith("__")]
    # Functions come first, because programs start by calling them.
    for name in sorted(public, key=lambda name: (not name.islower(), name)):
        home = getattr(bubbleviz, name).__module__
        yield from (f"::: {home}.{name}", "    options:", f"      heading: bubbleviz.{name}", "")
