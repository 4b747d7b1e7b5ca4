"""Details: which tables a command prints in place of its first screen."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

from bubbleviz.errors import UsageError
from bubbleviz.model.texts import nearest, one_line

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
