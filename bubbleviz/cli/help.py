"""Functions that define options and arguments for typer, and the option ``--details``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeAlias

import typer

from bubbleviz.errors import UsageError
from bubbleviz.model.texts import find_nearest_word, to_one_line

Completion: TypeAlias = "Sequence[str] | Callable[[], list[str]] | None"


def _make_completer(words: Sequence[str] | Callable[[], list[str]]) -> Callable[[str], list[str]]:
    """Return a function that shells call to complete a partial value.

    Args:
        words: All possible values, or a function that returns them. The function is called only
            when a shell requests completions.
    """

    def complete(incomplete: str) -> list[str]:
        candidates = words() if callable(words) else words
        return [word for word in candidates if word.startswith(incomplete)]

    return complete


def option(
    value: str | None,
    summary: str,
    panel: str,
    *names: str,
    default: Any = None,
    complete: Completion = None,
    **settings: Any,
) -> Any:
    """Define an option of a command. The result is used as the default value of a parameter.

    Args:
        value: Placeholder for the value in ``--help``, for example "FILE", or None for a flag.
        summary: Description for ``--help``, on one line.
        panel: Title of the help panel in which the option is listed.
        names: Names of the option, such as ``--jobs`` and ``-j``. By default, typer derives the
            name from the parameter.
        default: Value that is used if the option is not given.
        complete: Values that shells offer as completions, or a function that returns such values.
        settings: Other arguments for :func:`typer.Option`.
    """
    settings |= {"metavar": value, "help": summary, "rich_help_panel": panel}
    settings |= {"show_default": bool(default) and default is not True}
    if complete is not None:
        settings["autocompletion"] = _make_completer(complete)
    return typer.Option(default, *names, **settings)


def flag(summary: str, panel: str, *names: str, default: bool = False, **settings: Any) -> Any:
    """Define an option that takes no value. The arguments are described in :func:`option`."""
    return option(None, summary, panel, *names, default=default, **settings)


def argument(value: str, summary: str, default: Any = ..., complete: Completion = None) -> Any:
    """Define a positional argument of a command. An argument without a default is required.

    Args:
        value: Placeholder for the value in ``--help``.
        summary: Description for ``--help``.
        default: Value that is used if the argument is not given.
        complete: Values that shells offer as completions, or a function that returns such values.
    """
    completer = None if complete is None else _make_completer(complete)
    return typer.Argument(default, metavar=value, help=summary, autocompletion=completer)


#: Names of the tables that ``analyze`` prints, in output order.
ANALYZE_TABLES = (
    "ratios",
    "time",
    "ranks",
    "causes",
    "communication",
    "operations",
    "advice",
    "slowdown",
    "clocks",
    "coverage",
)
#: Value of ``--details`` that selects all tables.
ALL = "all"
#: Names of the option that prints tables instead of the first screen. Typer does not support
#: options with an optional value. Therefore :func:`insert_default_values` turns ``-v`` into ``-v
#: all``.
_NAMES = ("--details", "-v")
#: Characters that occur in paths but not in table names.
_PATH_CHARACTERS = frozenset("/\\.*?-")

ANALYSIS_DETAILS = option(
    "[TABLE,...]",
    "Print these tables (by default all) instead of the first screen.",
    "Tables",
    *_NAMES,
    complete=(*ANALYZE_TABLES, ALL),
)
ALL_DETAILS = option(f"[{ALL}]", "Print all tables instead of the first screen.", "Tables", *_NAMES)


def select_tables(values: Sequence[str] | None, all_tables: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the names of the tables that the option ``--details`` selects.

    Args:
        values: Values of the option, each a comma-separated list of table names, or None if the
            option is not given. ``all`` selects all tables.
        all_tables: Names of all of the command's tables, in output order.

    Returns:
        Names of the selected tables in output order, or () if the option is not given. For ``all``,
        the result is ``(*all_tables, "all")``.

    Raises:
        UsageError: The command has no table with this name.
    """
    words = [word.strip() for value in values or () for word in value.split(",") if word.strip()]
    for word in words:
        if word not in {*all_tables, ALL}:
            nearest = find_nearest_word(word, (*all_tables, ALL))
            guess = (
                f"did you mean {nearest}?" if nearest else f"use {', '.join((*all_tables, ALL))}"
            )
            raise UsageError(f"-v {to_one_line(word, 60)}: no such table; {guess}")
    if ALL in words:
        return (*all_tables, ALL)
    return tuple(name for name in all_tables if name in words)


def insert_default_values(arguments: Sequence[str]) -> list[str]:
    """Insert the value ``all`` after each ``-v`` or ``--details`` that has no value.

    The word after the option is its value if it looks like a list of tables, and not like the path
    of a profile; see :func:`_is_value`. Words after ``--`` are unchanged.
    """
    completed: list[str] = []
    for word, next_word in zip_longest(arguments, arguments[1:]):
        completed.append(word)
        has_value = next_word is not None and _is_value(next_word)
        if word in _NAMES and "--" not in completed and not has_value:
            completed.append(ALL)
    return completed


def _is_value(word: str) -> bool:
    """Return whether the word after ``-v`` is meant as a list of tables, and not as a path.

    A word is a list of tables if it contains the name of a table. Any other word is a list of
    tables unless it looks like a path or is an existing path. Therefore, a misspelled table name is
    still recognized as a list of tables.
    """
    if {*word.split(",")} & {*ANALYZE_TABLES, ALL}:
        return True
    is_path = bool(_PATH_CHARACTERS & {*word}) or "=" in word or Path(word).exists()
    return bool(word) and not is_path
