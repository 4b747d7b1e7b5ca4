"""Help: options in groups by what one wants, each on one line; in panels on a terminal.

rich is loaded for help on a terminal alone: no other start pays for it.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from bubbleviz.cli.completion import beginning
from bubbleviz.errors import UsageError
from bubbleviz.model.texts import nearest, one_line
from bubbleviz.model.values import frozen

#: Panels of options, in the order of ``--help``.
OUTPUTS = "Outputs (FILE, or - for standard output)"
TABLES = "Tables"
PICTURES = "Pictures"
SELECTION = "Selection"
SCHEDULE = "Schedule"
MEMORY = "Memory of searched schedules"
COST = "Cost"
LIMITS = "Limits"
LAYERS = "Layers"
TIMES = "Times"
NAMES = "Names"
CLOCKS = "Stages and clocks"
READING = "Reading and cluster"
#: Of options without a panel of their own.
_OTHER = "Options"
_ORDER = (
    *(LIMITS, TIMES, LAYERS, SCHEDULE, MEMORY, COST, TABLES),
    *(OUTPUTS, PICTURES, SELECTION, NAMES, CLOCKS, READING),
)
#: What typer says at length.
_SHORTER = {"--show-completion": "Print that for the current shell."}
#: The widest that help is set, and a terminal that is read with ease, in characters.
_WIDEST = 100
#: Two columns between a term and its meaning; a term wider than this stands on a line of its own.
_GAP, _WIDEST_TERM = 2, 32


def option(
    summary: str,
    panel: str | None,
    *names: str,
    complete: Sequence[str] | Callable[[], list[str]] | None = None,
    **settings: Any,
) -> Any:
    """Return an option of a command, as typer takes it.

    Args:
        summary: what it does, in one line.
        panel: of the help, under which it stands; None for the last one.
        names: such as ``--jobs`` and ``-j``; else those that typer makes of the argument.
        complete: the words that shells offer, or what finds them.
        settings: of :func:`typer.Option`.
    """
    offered = None if complete is None else beginning(complete)
    return typer.Option(
        *names, help=summary, rich_help_panel=panel, autocompletion=offered, **settings
    )


def argument(metavar: str, summary: str, complete: Callable[[], list[str]] | None = None) -> Any:
    """Return an argument of a command, as typer takes it; see :func:`option`."""
    offered = None if complete is None else beginning(complete)
    return typer.Argument(metavar=metavar, help=summary, autocompletion=offered)


@frozen
class HelpSection:
    """A title, and what stands below it: terms, each with what it means."""

    title: str
    rows: tuple[tuple[str, str], ...]


class _Sections:
    """What commands and the group of them share: sections in text and in panels."""

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        """Write how the command is called."""
        formatter.write_usage(ctx.command_path, _usage_of(ctx))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the sections one below the other, all meanings in one column."""
        sections = list(sections_of(self, ctx))
        for section in sections:
            width = _term_width(sections, section)
            with formatter.section(section.title):
                rows = [(f"{term:<{width}}", meaning) for term, meaning in section.rows]
                formatter.write_dl(rows, col_max=width)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the whole help, in panels where a terminal shows it."""
        if sys.stdout.isatty():
            formatter.write(_in_panels(self, ctx))
        else:
            super().format_help(ctx, formatter)  # type: ignore[misc]  # of typer's classes


class HelpCommand(_Sections, TyperCommand):
    """A command whose help is set in sections."""


class HelpGroup(_Sections, TyperGroup):
    """The commands, whose list is set in sections with whole summaries."""


def sections_of(command: Any, ctx: Any) -> Iterator[HelpSection]:
    """Yield the sections of a command's help: arguments, options by panel, and commands."""
    panels: dict[str, list[tuple[str, str]]] = {}
    arguments = []
    for parameter in command.get_params(ctx):
        if getattr(parameter, "hidden", False):
            continue
        if parameter.param_type_name == "argument":
            arguments.append((_argument(parameter), parameter.help or ""))
        else:
            panel = getattr(parameter, "rich_help_panel", None) or _OTHER
            panels.setdefault(panel, []).append((_option(parameter), _meaning(parameter)))
    if arguments:
        yield HelpSection("Arguments", tuple(arguments))
    yield from _commands(command)
    # What every command has stands last: the help, and options without a panel.
    last = panels.pop(_OTHER)
    for panel in sorted(panels, key=_place):
        yield HelpSection(panel, tuple(panels[panel]))
    yield HelpSection(_OTHER, tuple(last))


def _commands(command: Any) -> Iterator[HelpSection]:
    panels: dict[str, list[tuple[str, str]]] = {}
    for name, each in getattr(command, "commands", {}).items():
        if not each.hidden:
            summary = (each.help or "").partition("\n\n")[0]
            panels.setdefault(each.rich_help_panel or "Commands", []).append(
                (name, " ".join(summary.split()))
            )
    for title, rows in panels.items():
        yield HelpSection(title, tuple(rows))


def _place(panel: str) -> int:
    return _ORDER.index(panel) if panel in _ORDER else len(_ORDER)


def _usage_of(ctx: Any) -> str:
    if hasattr(ctx.command, "commands"):
        return "PATH... [OPTIONS] | COMMAND [OPTIONS]"
    arguments = (p for p in ctx.command.get_params(ctx) if p.param_type_name == "argument")
    return " ".join((*map(_argument, arguments), "[OPTIONS]"))


def _argument(parameter: Any) -> str:
    """Return an argument as it is written: in brackets where it may be left out."""
    name = parameter.metavar or parameter.name.upper()
    name += "..." if parameter.nargs != 1 and not name.endswith("...") else ""
    return name if parameter.required or name.startswith("[") else f"[{name}]"


def _option(parameter: Any) -> str:
    """Return the names of an option, those that change what is done without it, and its value."""
    negated = parameter.secondary_opts and parameter.default is True
    names = sorted(parameter.secondary_opts if negated else parameter.opts, key=len)
    term = ", ".join(names)
    return term if parameter.is_flag else f"{term} {parameter.metavar or 'VALUE'}"


def _meaning(parameter: Any) -> str:
    """Return what an option does, and the value that it has where it is not given."""
    if parameter.opts[0] in _SHORTER:
        return _SHORTER[parameter.opts[0]]
    default = parameter.default
    given = default is not None and not isinstance(default, (bool, list, tuple)) and default
    shown = f"{default:g}" if isinstance(default, float) else str(default)
    return f"{parameter.help or ''} [{shown}]" if given else parameter.help or ""


def _term_width(sections: list[HelpSection], one: HelpSection) -> int:
    """Return the width of the terms of a section: of options as in all sections of options."""
    same = [each for each in sections if _lists_options(each) == _lists_options(one)]
    widths = [len(term) for section in same for term, _ in section.rows]
    return min(max(widths, default=0), _WIDEST_TERM)


def _lists_options(section: HelpSection) -> bool:
    return section.rows[0][0].startswith("-")


def _in_panels(command: Any, ctx: Any) -> str:
    """Return the help as a terminal shows it."""
    import io
    from inspect import cleandoc

    from rich.console import Console
    from rich.padding import Padding
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    width = min(shutil.get_terminal_size((80, 24)).columns, _WIDEST)
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, highlight=False)
    usage = Text.assemble(("Usage: ", "bold"), f"{ctx.command_path} {_usage_of(ctx)}")
    paragraphs = [" ".join(p.split()) for p in cleandoc(command.help or "").split("\n\n")]
    console.print(usage)
    console.print(Padding(Text("\n\n".join(paragraphs)), 1))
    sections = list(sections_of(command, ctx))
    for section in sections:
        terms = _term_width(sections, section)
        table = Table.grid(padding=(0, _GAP, 0, 0))
        table.add_column(width=terms, no_wrap=True, style="cyan")
        table.add_column()
        for term, meaning in section.rows:
            table.add_row(Text(term), Text(meaning))
        panel = Panel(table, title=Text(section.title), title_align="left", border_style="dim")
        console.print(panel)
    if command.epilog:
        console.print(Padding(Text(command.epilog), (0, 1)))
    return out.getvalue().rstrip("\n")


# ``--details``: which tables are printed in place of the first screen.
#
# Its value may be left out, which typer cannot express: ``-v`` alone stands for ``-v all``.


#: Of every command: the tables that it prints, in their order.
OF_ANALYZE = (
    *("ratios", "ranks", "causes", "communication", "operations", "advice"),
    *("slowdown", "clocks", "coverage"),
)
ALL = "all"
_OPTIONS = frozenset({"-v", "--details"})
_WORDS = frozenset({*OF_ANALYZE, ALL})
#: What paths of profiles have, and no table's name.
_OF_PATHS = frozenset("/\\.*?-")

AnalysisDetails = Annotated[
    list[str] | None,
    option(
        "Print these tables, all if none is named.",
        TABLES,
        "--details",
        "-v",
        metavar="[TABLE,...]",
        complete=(*OF_ANALYZE, ALL),
    ),
]
AllDetails = Annotated[
    list[str] | None,
    option(
        "Print all tables instead of the first screen.",
        TABLES,
        "--details",
        "-v",
        metavar=f"[{ALL}]",
    ),
]


def details(values: Sequence[str] | None, known: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the tables to print, in their order; empty for the first screen.

    Args:
        values: of the option, each with commas; None where it was not given.
        known: the tables of the command; ``all`` stands for all.

    Raises:
        UsageError: a command has no such table.
    """
    named = [word.strip() for value in values or () for word in value.split(",")]
    for word in named:
        if word not in {*known, ALL}:
            near = nearest(word, (*known, ALL))
            guess = f"did you mean {near}?" if near else f"give {', '.join((*known, ALL))}"
            raise UsageError(f"--details {one_line(word, 60)}: no such table; {guess}")
    if ALL in named:
        return (*known, ALL)
    return tuple(name for name in known if name in named)


def spelled_out(arguments: Sequence[str]) -> list[str]:
    """Return a command line in which ``-v`` without a value has one: ``all``."""
    return list(_spelled_out(arguments))


def _spelled_out(arguments: Sequence[str]) -> Iterator[str]:
    options = True
    for word, behind in zip_longest(arguments, arguments[1:]):
        options = options and word != "--"
        yield word
        if options and word in _OPTIONS and (behind is None or not _is_value(behind)):
            yield ALL


def _is_value(word: str) -> bool:
    """Return whether a word behind ``-v`` names tables, rightly or not, rather than a profile."""
    if {*word.split(",")} & _WORDS:
        return True
    return bool(word) and not _OF_PATHS & {*word} and "=" not in word and not Path(word).exists()
