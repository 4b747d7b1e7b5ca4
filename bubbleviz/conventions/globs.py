"""Prefilters: SQLite GLOB patterns, by which a query leaves out most names before any is read."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import translate
from functools import cache

#: What stands for other characters in a pattern; a set that is not closed ends it.
_WILDCARD = re.compile(r"\*|\?|\[\^?\]?[^\]]*(?:\]|$)")
_PIECE = re.compile(r"\[\^?\]?[^\]]*\]|.", re.DOTALL)
#: Parameters for patterns that can begin with anything.
_FLOATING = tuple(f"floating_{number}" for number in range(1, 4))
#: A set that means the same in a regex.
_PLAIN_SET = re.compile(r"\[[A-Za-z0-9_]+\]|\[(?:0-9|a-z|A-Z)\]")
_SET = re.compile(r"\[(?!\^)([A-Za-z]+)\]")


def binds_of(globs: Sequence[str]) -> Mapping[str, str | int | None]:
    """Return the parameters that pass patterns to queries.

    Patterns that begin with a letter, or a set of letters, stand behind one pattern for all of
    these letters: the first letter of most names is enough to leave them out. The first of the
    others, which are seldom more, stand for themselves: a name is then compared without a subquery.
    """
    letters = {glob: _first_letters(glob) for glob in globs}
    any_letter = "".join(sorted({letter for firsts in letters.values() for letter in firsts}))
    floating = [glob for glob, firsts in letters.items() if not firsts]
    return {
        "first_letters": f"[{any_letter}]*",
        "anchored": json.dumps([glob for glob, firsts in letters.items() if firsts]),
        **dict(itertools.zip_longest(_FLOATING, floating[: len(_FLOATING)])),
        "floating": json.dumps(rest) if (rest := floating[len(_FLOATING) :]) else None,
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
    first_letters = [(glob, _first_letters(glob)) for glob in globs]

    @cache
    def beginning_with(first: str) -> list[tuple[str, re.Pattern[str]]]:
        """Return the patterns that may match a text with that first letter: for most texts, few.

        Each has the longest part of its text: looking for that costs far less than matching.
        """
        return [
            (max(_WILDCARD.split(glob), key=len), _regex(glob))
            for glob, letters in first_letters
            if not letters or first in letters
        ]

    return [
        any(
            literal in text and regex.fullmatch(text) for literal, regex in beginning_with(text[:1])
        )
        for text in texts
    ]


def loose_regex(globs: Sequence[str]) -> str:
    """Return a regex of RE2 that matches every text that any of the SQLite GLOBs matches.

    It also matches some others, and bytes that are not UTF-8: in a table of Arrow it leaves out
    most names before any of them becomes an object of Python.
    """
    return rf"\A(?:{'|'.join(map(_loose_regex, globs))})\z" if globs else r"\z\A\C"


def _loose_regex(glob: str) -> str:
    # One character has up to four bytes.
    parts = []
    for piece in _PIECE.findall(glob):
        if piece == "*":
            parts.append(r"\C*")
        elif piece == "?" or (piece[0] == "[" and not _PLAIN_SET.fullmatch(piece)):
            parts.append(r"\C{1,4}")
        else:
            parts.append(piece if piece[0] == "[" else re.escape(piece))
    return "".join(parts)


@cache
def _regex(glob: str) -> re.Pattern[str]:
    """Return an SQLite GLOB as a regex on the whole text; a set that does not end fits nothing."""
    pieces = _PIECE.findall(glob)
    if {"[", "[]", "[^]"} & {*pieces}:
        return re.compile("(?!)")
    # fnmatch writes "!" where SQLite writes "^"; in front of others both are characters.
    sets = (re.sub(r"^\[\^", "[!", piece.replace("[!", "[\0!")) for piece in pieces)
    return re.compile(translate("".join(sets)))
