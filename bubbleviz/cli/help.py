"""Help: options and arguments as typer takes them, in panels by what one wants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeAlias

import typer

from bubbleviz.errors import UsageError
from bubbleviz.model.texts import find_nearest_word, to_one_line

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
    settings |= {"show_default": bool(default) and default is not True}
    if complete is not None:
        settings["autocompletion"] = _beginning(complete)
    return typer.Option(default, *names, **settings)


def flag(summary: str, panel: str, *names: str, default: bool = False, **settings: Any) -> Any:
    """Return an option without a value."""
    return option(None, summary, panel, *names, default=default, **settings)


def argument(value: str, summary: str, default: Any = ..., complete: Completion = None) -> Any:
    """Return an argument of a command, as typer takes it; one without a default is required."""
    offered = None if complete is None else _beginning(complete)
    return typer.Argument(default, metavar=value, help=summary, autocompletion=offered)


# ``--details``: which tables are printed in place of the first screen.
#
# Its value may be left out, which typer cannot express: ``-v`` alone stands for ``-v all``.


#: Of every command: the tables that it prints, in their order.
OF_ANALYZE = (
    *("ratios", "time", "ranks", "causes", "communication", "operations", "advice"),
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
            near = find_nearest_word(word, (*known, ALL))
            guess = f"did you mean {near}?" if near else f"give {', '.join((*known, ALL))}"
            raise UsageError(f"--details {to_one_line(word, 60)}: no such table; {guess}")
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
