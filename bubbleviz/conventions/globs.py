"""Prefilters: SQLite GLOB patterns, by which a query leaves out most names before any is read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

_SET = re.compile(r"\[(?!\^)([A-Za-z]+)\]")


def binds_of(globs: Sequence[str]) -> Mapping[str, str | int | None]:
    """Return the parameters that pass patterns to queries.

    Patterns that begin with a letter, or a set of letters, stand behind one pattern for all of
    these letters: the first letter of most names is enough to leave them out.
    """
    letters = {glob: _first_letters(glob) for glob in globs}
    any_letter = "".join(sorted({letter for firsts in letters.values() for letter in firsts}))
    floating = [glob for glob, firsts in letters.items() if not firsts]
    return {
        "first_letters": f"[{any_letter}]*",
        "anchored": json.dumps([glob for glob, firsts in letters.items() if firsts]),
        "floating_first": floating[0] if floating else None,
        "floating_more": len(floating) > 1,
        "floating": json.dumps(floating[1:]),
    }


def _first_letters(glob: str) -> str:
    """Return the letters that a pattern can begin with; none where it can begin with anything."""
    if glob[:1].isascii() and glob[:1].isalpha():
        return glob[0]
    in_set = _SET.match(glob)
    return in_set[1] if in_set else ""


def lets_through(glob: str, text: str) -> bool:
    """Return whether a text matches an SQLite GLOB."""
    return _regex(glob).fullmatch(text) is not None


def fitting(globs: Sequence[str], texts: Iterable[str]) -> list[bool]:
    """Return for each text whether any of the SQLite GLOBs matches it."""
    regexes = [_regex(glob) for glob in globs]
    return [any(regex.fullmatch(text) for regex in regexes) for text in texts]


@cache
def _regex(glob: str) -> re.Pattern[str]:
    """Return an SQLite GLOB as a regex on the whole text."""
    regex = []
    for piece in re.findall(r"\[\^?\]?[^\]]*\]|.", glob, re.DOTALL):
        negated = piece.startswith("[^")
        body = re.sub(r"([\\\[\]^&~|])", r"\\\1", piece[2 if negated else 1 : -1])
        if piece in {"*", "?"}:
            regex.append(".*" if piece == "*" else ".")
        elif piece[0] != "[":
            regex.append(re.escape(piece))
        else:
            # A set that is empty or not closed matches nothing.
            regex.append(f"[{'^' * negated}{body}]" if body else "(?!)")
    try:
        return re.compile("".join(regex), re.DOTALL)
    except re.error:
        # A range in reverse ([z-a]) matches nothing.
        return re.compile("(?!)")
