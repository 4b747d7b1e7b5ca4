"""Prefilters: SQLite GLOB patterns, by which a query leaves out most names before any is read."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from functools import cache, cached_property

import numpy as np

from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import find_positions

#: What stands for other characters in a pattern; a set that is not closed ends it.
_WILDCARD = re.compile(r"\*|\?|\[\^?\]?[^\]]*(?:\]|$)")
_PIECE = re.compile(r"\[\^?\]?[^\]]*\]|.", re.DOTALL)
#: A set that means the same in a GLOB of DuckDB.
_PORTABLE_SET = re.compile(r"\[[ \"-,./0-9:-@A-Z_`a-z{-~]+\]|\[(?:0-9|a-z|A-Z)\]")
#: Pieces of a pattern whose last set does not end.
_UNCLOSED = {"[", "[]", "[^]"}
_LETTER_SET = re.compile(r"\[(?!\^)([A-Za-z]+)\]")
_DIGIT = re.compile("[0-9]")
#: Every digit as the same one.
_FOLD_DIGITS = bytes.maketrans(b"123456789", b"000000000")


@cache
def build_query_parameters(globs: tuple[str, ...]) -> Mapping[str, str | int | None]:
    """Return the parameters that pass patterns to queries.

    Patterns that begin with a letter, or a set of letters, stand behind one pattern for all of
    these letters: the first letter of most names is enough to leave them out. Of the others two
    stand for themselves, and the rest behind one pattern: for the text that all of them contain,
    or else for characters of which each contains one.
    """
    letters = {glob: _get_first_letters(glob) for glob in globs}
    any_letter = "".join(sorted({letter for firsts in letters.values() for letter in firsts}))
    (first, second), rest = _choose_separate_globs(
        [glob for glob, firsts in letters.items() if not firsts]
    )
    return {
        "first_letters": f"[{any_letter}]*",
        "anchored": json.dumps([glob for glob, firsts in letters.items() if firsts]),
        "floating_first": first,
        "floating_second": second,
        "floating_guard": _build_guard(rest) if rest else None,
        "floating": json.dumps(rest),
    }


def _choose_separate_globs(
    floating: Sequence[str],
) -> tuple[tuple[str | None, str | None], Sequence[str]]:
    """Return two patterns, None where there are less, and the rest, which share a text.

    The two are chosen so that this text is the longest; where there is none, they are those whose
    characters are the most frequent in names.
    """
    if len(floating) <= 2:
        first, second = [*floating, None, None][:2]
        return (first, second), ()
    orders = [
        (pair, [glob for glob in floating if glob not in pair])
        for pair in itertools.combinations(floating, 2)
    ]
    pair, rest = max(orders, key=lambda order: len(_find_shared_literal(order[1])))
    if len(_find_shared_literal(rest)) > 1:
        return pair, rest
    first, second, *remaining = sorted(
        floating, key=lambda glob: -_estimate_frequency(_find_rarest_character(glob))
    )
    return (first, second), remaining


def _build_guard(globs: Sequence[str]) -> str:
    """Return a pattern that lets through at least what any of the patterns does."""
    shared = _find_shared_literal(globs)
    rarest = {_find_rarest_character(glob) for glob in globs}
    if len(shared) > 1 or "" in rarest:
        return f"*{shared}*"
    return f"*[{''.join(sorted(rarest))}]*"


def _find_rarest_character(glob: str) -> str:
    """Return the character of a pattern's text that the fewest names contain; "" without one."""
    text = "".join(_WILDCARD.split(glob))
    return min(
        (c for c in text if c not in "[]^-"), key=lambda c: (_estimate_frequency(c), c), default=""
    )


def _estimate_frequency(character: str) -> int:
    """Return a rank by how many names contain a character: marks, capitals, then what is common."""
    if character in "_:.,= " or character.islower() or character.isdigit() or not character:
        return 2
    return 1 if character.isalpha() else 0


def _find_shared_literal(globs: Sequence[str]) -> str:
    """Return the longest text that every name contains which any of the patterns matches."""
    first_parts, *other_parts = ([part for part in _WILDCARD.split(glob) if part] for glob in globs)
    literals = {
        part[start:end]
        for part in first_parts
        for start, end in itertools.combinations(range(len(part) + 1), 2)
    }
    shared = (t for t in literals if all(any(t in part for part in parts) for parts in other_parts))
    return max(shared, key=lambda text: (len(text), text), default="")


def _get_first_letters(glob: str) -> str:
    """Return the letters that a pattern can begin with; none where it can begin with anything."""
    if glob[:1].isascii() and glob[:1].isalpha():
        return glob[0]
    in_set = _LETTER_SET.match(glob)
    return in_set[1] if in_set else ""


def is_glob_match(glob: str, text: str) -> bool:
    """Return whether a text matches an SQLite GLOB."""
    return _build_regex(glob).fullmatch(text) is not None


def match_any_glob(globs: Sequence[str], texts: Iterable[str]) -> list[bool]:
    """Return for each text whether any of the SQLite GLOBs matches it."""
    # Looking for the longest part of a pattern costs far less than matching, and in all texts at
    # once least: most patterns fit none of them.
    texts = list(texts)
    joined_texts = "\n".join(texts)
    longest_parts = {glob: max(_WILDCARD.split(glob), key=len) for glob in globs}
    candidates = [
        (glob, part, _get_first_letters(glob))
        for glob, part in longest_parts.items()
        if part in joined_texts
    ]

    if not candidates:
        return [False] * len(texts)

    @cache
    def get_candidates(first_letter: str) -> list[tuple[str, re.Pattern[str]]]:
        """Return the patterns that may match a text with that first letter: for most texts, few."""
        return [
            (part, _build_regex(glob))
            for glob, part, letters in candidates
            if not letters or first_letter in letters
        ]

    return [
        any(part in text and regex.fullmatch(text) for part, regex in get_candidates(text[:1]))
        for text in texts
    ]


class NameShapes:
    """Names that differ in their digits alone, looked at once: of deep ranges nearly all do.

    Args:
        names: distinct ones.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        folded = (
            "\n".join(names).encode("utf-8", "surrogatepass").translate(_FOLD_DIGITS).split(b"\n")
        )
        if len(folded) != len(names):  # lines inside names, or no name
            folded = [name.encode("utf-8", "surrogatepass") for name in names]
        shapes = dict.fromkeys(folded)
        self._shapes = [shape.decode("utf-8", "surrogatepass") for shape in shapes]
        shapes = dict(zip(shapes, range(len(shapes)), strict=True))
        self._shape_of_name = np.fromiter(map(shapes.__getitem__, folded), np.int64, len(folded))

    def match_globs(self, globs: Sequence[str]) -> Bools:
        """Return for each name whether any of the SQLite GLOBs matches it."""
        # A set of all digits fits each; a pattern with other ones must see those of the names.
        digit_globs = [glob for glob in globs if _DIGIT.search(glob.replace("[0-9]", ""))]
        shape_globs = [glob for glob in globs if glob not in digit_globs]
        is_match: Bools = np.array(match_any_glob(shape_globs, self._shapes), bool)[
            self._shape_of_name
        ]
        is_match |= np.array(match_any_glob(digit_globs, self._names), bool)
        return is_match

    def get_texts(self, name_ids: Ints) -> list[str]:
        """Return the names of some numbers."""
        return [self._names[number] for number in name_ids.tolist()]


@dataclass
class PackedNames:
    """Names that stay bytes until they are wanted, as of deep ranges few ever are.

    Attributes:
        count: how many numbers are given.
        packed: the number of the first, where each begins and the last ends, and the names, of
            plain ASCII.
        others: numbers (ascending), and the names of these.
    """

    n_ids: int = 0
    packed: list[tuple[int, Ints, bytes]] = field(default_factory=list)
    unpacked: list[tuple[Ints, Sequence[str]]] = field(default_factory=list)

    def add(
        self,
        lengths: Ints,
        packed: bytes,
        unpacked_rows: Ints,
        unpacked: Sequence[str],
        requested_rows: Ints,
    ) -> Ints:
        """Add rows, and return the numbers of wanted ones, -1 for those without a name.

        Args:
            lengths: of packed names; below 1 for rows without one.
            packed: these, one behind another.
            unpacked_rows: with other names (ascending).
            unpacked: these.
            requested_rows: rows; -1 is none.
        """
        first_id, self.n_ids = self.n_ids, self.n_ids + len(lengths)
        self.unpacked.append((first_id + unpacked_rows, unpacked))
        if packed:
            offsets = np.append(0, np.maximum(lengths, 0)).cumsum()
            self.packed.append((first_id, offsets, packed))
        has_name = np.append(lengths > 0, False)
        has_name[unpacked_rows] = True
        return np.where(has_name[requested_rows], first_id + requested_rows, NONE)

    def match_globs(self, globs: Sequence[str]) -> Bools:
        """Return for each number whether any of the SQLite GLOBs matches its name."""
        is_match = np.zeros(self.n_ids, bool)
        for first_id, offsets, packed in self.packed:
            n_rows = len(offsets) - 1
            texts = (packed[at:to].decode() for at, to in itertools.pairwise(offsets.tolist()))
            is_match[first_id : first_id + n_rows] = match_any_glob(globs, texts)
        unpacked_ids, unpacked_names = self._unpacked_shapes
        # Of a number that stands there twice, as it should not, the first name counts.
        is_match[unpacked_ids[::-1]] = unpacked_names.match_globs(globs)[::-1]
        return is_match

    def get_texts(self, name_ids: Ints) -> list[str]:
        """Return the names of some numbers (ascending)."""
        unpacked_ids, unpacked_names = self._unpacked_shapes
        unpacked_index = find_positions(unpacked_ids, name_ids)
        is_unpacked = unpacked_index != NONE
        texts = dict(
            zip(
                name_ids[is_unpacked].tolist(),
                unpacked_names.get_texts(unpacked_index[is_unpacked]),
                strict=True,
            )
        )
        for first_id, offsets, packed in self.packed:
            packed_ids = name_ids[
                ~is_unpacked & (name_ids >= first_id) & (name_ids < first_id + len(offsets) - 1)
            ]
            bounds = zip(
                offsets[packed_ids - first_id].tolist(),
                offsets[packed_ids - first_id + 1].tolist(),
                strict=True,
            )
            decoded = (packed[at:to].decode() for at, to in bounds)
            texts.update(zip(packed_ids.tolist(), decoded, strict=True))
        return [texts[number] for number in name_ids.tolist()]

    @cached_property
    def _unpacked_shapes(self) -> tuple[Ints, NameShapes]:
        numbers = np.concatenate(
            [np.empty(0, np.int64), *(numbers for numbers, _ in self.unpacked)]
        )
        return numbers, NameShapes([name for _, names in self.unpacked for name in names])


def convert_to_duckdb(glob: str) -> str | None:
    """Return a GLOB of DuckDB that matches every text that an SQLite GLOB matches.

    The two differ in sets of characters, escapes, and what a character outside of ASCII is, so
    that it may match other texts as well.

    Returns:
        The pattern, or None if the SQLite GLOB matches nothing, as it has a set that does not end.
    """
    pieces = _PIECE.findall(glob)
    if _UNCLOSED & {*pieces}:
        return None
    return "".join(map(_convert_piece, pieces))


def _convert_piece(piece: str) -> str:
    """Return a piece as DuckDB reads it, or a pattern of one byte or more."""
    is_set = piece[0] == "["
    is_same = _PORTABLE_SET.fullmatch(piece) if is_set else piece not in ("?", "\\")
    return piece if is_same else "?*"


@cache
def _build_regex(glob: str) -> re.Pattern[str]:
    """Return an SQLite GLOB as a regex on the whole text; a set that does not end fits nothing."""
    pieces = _PIECE.findall(glob)
    if _UNCLOSED & {*pieces}:
        return re.compile("(?!)")
    # fnmatch writes "!" where SQLite writes "^"; in front of others both are characters.
    sets = (re.sub(r"^\[\^", "[!", piece.replace("[!", "[\0!")) for piece in pieces)
    return re.compile(translate("".join(sets)))
