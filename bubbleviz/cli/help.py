"""Help: options in groups by what one wants, each on one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeAlias

import typer
from typer.core import TyperCommand, TyperGroup

from bubbleviz.errors import UsageError
from bubbleviz.model.texts import nearest, one_line

#: Panels of options in the order of ``--help``, each with its title; what every command has, the
#: help and options without a panel, stands last.
_TITLES = {
    panel: panel
    for panel in (
        *("Limits", "Times", "Layers", "Schedule", "Memory", "Cost", "Tables", "Outputs"),
        *("Pictures", "Selection", "Names", "Clocks", "Reading", "Options"),
    )
} | {
    "Memory": "Memory of searched schedules",
    "Outputs": "Outputs (FILE, or - for standard output)",
    "Clocks": "Stages and clocks",
    "Reading": "Reading and cluster",
}
#: What typer says at length.
_SHORTER = {"--show-completion": "Print that for the current shell."}
#: A term wider than this stands on a line of its own.
_WIDEST_TERM = 32

Completion: TypeAlias = "Sequence[str] | Callable[[], list[str]] | None"


def _beginning(words: Sequence[str] | Callable[[], list[str]]) -> Callable[[str], list[str]]:
    """Return the completion of a value by words, or by what finds them when a shell asks."""

    def completed(incomplete: str) -> list[str]:
        known = words() if callable(words) else words
        return [word for word in known if word.startswith(incomplete)]

    return completed


def option(
    value: str | None,
    summary: str,
    panel: str,
    *names: str,
    default: Any = None,
    complete: Completion = None,
    **settings: Any,
) -> Any:
    """Return an option of a command, the default of its parameter, as typer takes it.

    Args:
        value: what its value is called; None for a flag.
        summary: what it does, in one line.
        panel: of the help, under which it stands.
        names: such as ``--jobs`` and ``-j``; else those that typer makes of the parameter.
        default: the value where it is not given.
        complete: the words that shells offer, or what finds them.
        settings: of :func:`typer.Option`.
    """
    settings |= {"metavar": value, "help": summary, "rich_help_panel": panel}
    if complete is not None:
        settings["autocompletion"] = _beginning(complete)
    return typer.Option(default, *names, **settings)


def flag(summary: str, panel: str, *names: str, default: bool = False, **settings: Any) -> Any:
    """Return an option without a value; one without names can be negated."""
    return option(None, summary, panel, *names, default=default, **settings)


def argument(value: str, summary: str, default: Any = ..., complete: Completion = None) -> Any:
    """Return an argument of a command, as typer takes it; one without a default is required."""
    offered = None if complete is None else _beginning(complete)
    return typer.Argument(default, metavar=value, help=summary, autocompletion=offered)


class _Sections:
    """What commands and the group of them share: sections."""

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        """Write how the command is called."""
        formatter.write_usage(ctx.command_path, _usage_of(ctx))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the sections one below the other, all meanings in one column."""
        for title, rows, width in sections_of(self, ctx):
            with formatter.section(title):
                formatter.write_dl([(f"{t:<{width}}", meaning) for t, meaning in rows], width)


class HelpCommand(_Sections, TyperCommand):
    """A command whose help is set in sections."""


class HelpGroup(_Sections, TyperGroup):
    """The commands, whose list is set in sections with whole summaries."""


def sections_of(command: Any, ctx: Any) -> Iterator[tuple[str, list[tuple[str, str]], int]]:
    """Yield the sections of a command's help: arguments, commands, and options by panel.

    Each is a title, terms with what they mean, and the width of the terms: of options as in all
    sections of options.
    """
    arguments: dict[str, list[tuple[str, str]]] = {}
    panels: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.get_params(ctx):
        if getattr(parameter, "hidden", False):
            continue
        if parameter.param_type_name == "argument":
            row = (_argument(parameter), parameter.help or "")
            arguments.setdefault("Arguments", []).append(row)
        else:
            panel = getattr(parameter, "rich_help_panel", None) or "Options"
            panels.setdefault(panel, []).append((_option(parameter), _meaning(parameter)))
    for name, each in getattr(command, "commands", {}).items():
        if not each.hidden:
            summary = " ".join((each.help or "").partition("\n\n")[0].split())
            arguments.setdefault(each.rich_help_panel, []).append((name, summary))
    options = {_TITLES[panel]: panels[panel] for panel in sorted(panels, key=[*_TITLES].index)}
    for sections in (arguments, options):
        widest = max((len(term) for rows in sections.values() for term, _ in rows), default=0)
        for title, rows in sections.items():
            yield title, rows, min(widest, _WIDEST_TERM)


def _usage_of(ctx: Any) -> str:
    if hasattr(ctx.command, "commands"):
        return "PATH... [OPTIONS] | COMMAND [OPTIONS]"
    arguments = (p for p in ctx.command.get_params(ctx) if p.param_type_name == "argument")
    return " ".join((*map(_argument, arguments), "[OPTIONS]"))


def _argument(parameter: Any) -> str:
    """Return an argument as it is written: in brackets where it may be left out."""
    name = parameter.metavar
    return name if parameter.required or name.startswith("[") else f"[{name}]"


def _option(parameter: Any) -> str:
    """Return the names of an option, those that change what is done without it, and its value."""
    negated = parameter.secondary_opts and parameter.default is True
    names = sorted(parameter.secondary_opts if negated else parameter.opts, key=len)
    term = ", ".join(names)
    return term if parameter.is_flag else f"{term} {parameter.metavar}"


def _meaning(parameter: Any) -> str:
    """Return what an option does, and the value that it has where it is not given."""
    default, meaning = parameter.default, parameter.help or ""
    if isinstance(default, (bool, list, tuple)) or not default:
        return _SHORTER.get(parameter.opts[0], meaning)
    return f"{meaning} [{f'{default:g}' if isinstance(default, float) else default}]"


# ``--details``: which tables are printed in place of the first screen.
#
# Its value may be left out, which typer cannot express: ``-v`` alone stands for ``-v all``.


#: Of every command: the tables that it prints, in their order.
OF_ANALYZE = (
    *("ratios", "ranks", "causes", "communication", "operations", "advice"),
    *("slowdown", "clocks", "coverage"),
)
ALL = "all"
_NAMES = ("--details", "-v")
#: What paths of profiles have, and no table's name.
_OF_PATHS = frozenset("/\\.*?-")

ANALYSIS_DETAILS = option(
    *("[TABLE,...]", "Print these tables, all if none is named.", "Tables", *_NAMES),
    complete=(*OF_ANALYZE, ALL),
)
ALL_DETAILS = option(f"[{ALL}]", "Print all tables instead of the first screen.", "Tables", *_NAMES)


def tables_of(values: Sequence[str] | None, known: Sequence[str] = ()) -> tuple[str, ...]:
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
    spelled: list[str] = []
    for word, behind in zip_longest(arguments, arguments[1:]):
        spelled.append(word)
        if word in _NAMES and "--" not in spelled and (behind is None or not _is_value(behind)):
            spelled.append(ALL)
    return spelled


def _is_value(word: str) -> bool:
    """Return whether a word behind ``-v`` names tables, rightly or not, rather than a profile."""
    if {*word.split(",")} & {*OF_ANALYZE, ALL}:
        return True
    return bool(word) and not _OF_PATHS & {*word} and "=" not in word and not Path(word).exists()
