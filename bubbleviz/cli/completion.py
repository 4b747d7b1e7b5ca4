"""Completion: the words that a shell offers for the value of an option."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files

#: Where typer's scripts for shells say that completions are wanted, and where the typed words are.
_ASKED = "_BUBBLEVIZ_COMPLETE"
_TYPED = ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")


def words_to_complete() -> list[str] | None:
    """Return the words behind the program's name for which a shell wants completions, if it does.

    The last may be half a word.
    """
    if _ASKED not in os.environ:
        return None
    typed = next((os.environ[name] for name in _TYPED if name in os.environ), "")
    try:
        words = shlex.split(typed)
    except ValueError:  # a quote that is not closed yet
        words = typed.split()
    # A command that is being typed may be the beginning of another one.
    return words[1:] if len(words) > 2 or typed[-1:].isspace() else []


def beginning(words: Sequence[str] | Callable[[], list[str]]) -> Callable[[str], list[str]]:
    """Return the completion of a value by words, or by what finds them when a shell asks."""

    def completed(incomplete: str) -> list[str]:
        known = words() if callable(words) else words
        return [word for word in known if word.startswith(incomplete)]

    return completed


def schedule_names() -> list[str]:
    """Return the names of all schedules, and of formulas."""
    from bubbleviz.schedules.ideal import theory_names

    return theory_names()


def convention_names() -> list[str]:
    """Return the names of the built-in conventions."""
    from bubbleviz.conventions.convention_file import built_in

    return sorted(built_in())


def limit_beginnings() -> list[str]:
    """Return the beginning of a limit on each ratio."""
    from bubbleviz.count.ratios import ratio_definitions

    return [f"{ratio.name}=" for ratio in ratio_definitions()]


def statistic_names() -> list[str]:
    """Return the statistics that become a cost."""
    return ["max", "median", "mean", "min", "p50", "p90", "p99"]


# The guides: pages of Markdown in ``bubbleviz/guides``.


_SUFFIX = ".md"


def guide_names() -> list[str]:
    """Return the names of all guides, in alphabetical order."""
    pages = (page.name for page in (files("bubbleviz") / "guides").iterdir())
    return sorted(name.removesuffix(_SUFFIX) for name in pages if name.endswith(_SUFFIX))


def guide_pages() -> Mapping[str, str]:
    """Return the Markdown of every guide by name, in alphabetical order."""
    folder = files("bubbleviz") / "guides"
    return {n: (folder / f"{n}{_SUFFIX}").read_text(encoding="utf-8") for n in guide_names()}
