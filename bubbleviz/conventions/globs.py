"""GLOB prefilters: SQLite GLOB patterns that let a query skip most range names."""

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

#: Matches a wildcard of a GLOB. A set without a closing bracket extends to the end of the GLOB.
_WILDCARD = re.compile(r"\*|\?|\[\^?\]?[^\]]*(?:\]|$)")
#: Matches a closed set or any other single character of a GLOB.
_PIECE = re.compile(r"\[\^?\]?[^\]]*\]|.", re.DOTALL)
#: Matches a set that has the same meaning in a DuckDB GLOB.
_PORTABLE_SET = re.compile(r"\[[ \"-,./0-9:-@A-Z_`a-z{-~]+\]|\[(?:0-9|a-z|A-Z)\]")
#: GLOB pieces that occur only if the last set has no closing bracket.
_UNCLOSED = {"[", "[]", "[^]"}
_LETTER_SET = re.compile(r"\[(?!\^)([A-Za-z]+)\]")
_DIGIT = re.compile("[0-9]")
#: Translation table for bytes that maps every ASCII digit to 0.
_FOLD_DIGITS = bytes.maketrans(b"123456789", b"000000000")


@cache
def build_query_parameters(globs: tuple[str, ...]) -> Mapping[str, str | int | None]:
    """Build SQL parameters for a query that selects the names matching any of the GLOBs.

    The query first tests a cheap GLOB. It tests a list of GLOBs only for names that match the cheap
    GLOB.

    - ``anchored`` is a JSON list of the GLOBs that start with a letter or a set of letters. Names
      must first match ``first_letters``, a GLOB for any name that starts with one of these letters.
    - ``floating_first`` and ``floating_second`` are two of the remaining GLOBs, which the query
      tests directly. If there are fewer GLOBs, they are None.
    - ``floating`` is a JSON list of all other GLOBs. Names must first match ``floating_guard``, a
      GLOB that is at least as permissive as every GLOB in ``floating``. ``floating_guard`` is None
      if ``floating`` is empty.
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
    """Choose two GLOBs to test directly, so that one selective guard can cover the remaining ones.

    The pair is chosen so that the literal text shared by all other GLOBs is as long as possible. If
    that text has fewer than two characters for every pair, the two least selective GLOBs are
    chosen. These are the GLOBs whose rarest literal character is most frequent in names.

    Args:
        floating: GLOBs that do not start with a letter or a set of letters.

    Returns:
        The chosen pair, padded with None if there are fewer than two GLOBs, and the remaining
        GLOBs.
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
    """Return a guard: a single GLOB that matches every text that any of the GLOBs matches.

    The guard is ``*text*``, where the text is the longest literal shared by all GLOBs. The guard is
    ``*[set]*`` if that text has fewer than two characters and every GLOB has a literal character.
    The set contains the rarest literal character of each GLOB.
    """
    shared = _find_shared_literal(globs)
    rarest = {_find_rarest_character(glob) for glob in globs}
    if len(shared) > 1 or "" in rarest:
        return f"*{shared}*"
    return f"*[{''.join(sorted(rarest))}]*"


def _find_rarest_character(glob: str) -> str:
    """Return the GLOB's literal character that is rarest in names, or "" if there is none.

    Brackets, ``^`` and ``-`` are ignored. On ties, the smallest character wins.
    """
    text = "".join(_WILDCARD.split(glob))
    return min(
        (c for c in text if c not in "[]^-"), key=lambda c: (_estimate_frequency(c), c), default=""
    )


def _estimate_frequency(character: str) -> int:
    """Estimate how frequently names contain a character: 0 (rare), 1 or 2 (common).

    The result is 2 for lower-case letters, digits, ``_:.,=``, blanks and the empty string, 1 for
    other letters, and 0 for everything else.
    """
    if character in "_:.,= " or character.islower() or character.isdigit() or not character:
        return 2
    return 1 if character.isalpha() else 0


def _find_shared_literal(globs: Sequence[str]) -> str:
    """Return the longest literal text that occurs in all GLOBs, or "" if there is none.

    Every match of every GLOB contains this text. On ties, the alphabetically last text wins.
    """
    first_parts, *other_parts = ([part for part in _WILDCARD.split(glob) if part] for glob in globs)
    literals = {
        part[start:end]
        for part in first_parts
        for start, end in itertools.combinations(range(len(part) + 1), 2)
    }
    shared = (t for t in literals if all(any(t in part for part in parts) for parts in other_parts))
    return max(shared, key=lambda text: (len(text), text), default="")


def _get_first_letters(glob: str) -> str:
    """Return the first letters that a GLOB allows, such as "Ff" for ``[Ff]orward*``.

    The result is "" unless the GLOB starts with an ASCII letter or a set of letters.
    """
    if glob[:1].isascii() and glob[:1].isalpha():
        return glob[0]
    in_set = _LETTER_SET.match(glob)
    return in_set[1] if in_set else ""


def is_glob_match(glob: str, text: str) -> bool:
    """Return whether a text matches an SQLite GLOB."""
    return _build_regex(glob).fullmatch(text) is not None


def match_any_glob(globs: Sequence[str], texts: Iterable[str]) -> list[bool]:
    """Return, for each text, whether it matches at least one of the SQLite GLOBs."""
    # Searching for a GLOB's longest literal is much cheaper than matching the whole GLOB.
    # A single search through the joined texts rules out most GLOBs.
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
        """Return the candidate GLOBs that can match a text starting with this letter.

        Each entry consists of a GLOB's longest literal and its regex.
        """
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
    """Matches names against GLOBs. Names that differ only in their digits are matched just once.

    Names that differ only in their digits share a *shape*. Deeply nested ranges have many names but
    few shapes, so matching shapes is much faster than matching names.

    Args:
        names: Distinct names.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        folded = (
            "\n".join(names).encode("utf-8", "surrogatepass").translate(_FOLD_DIGITS).split(b"\n")
        )
        if len(folded) != len(names):  # a name contains a newline, or there are no names
            folded = [name.encode("utf-8", "surrogatepass") for name in names]
        shapes = dict.fromkeys(folded)
        self._shapes = [shape.decode("utf-8", "surrogatepass") for shape in shapes]
        shapes = dict(zip(shapes, range(len(shapes)), strict=True))
        self._shape_of_name = np.fromiter(map(shapes.__getitem__, folded), np.int64, len(folded))

    def match_globs(self, globs: Sequence[str]) -> Bools:
        """Return a mask of the names that match at least one of the SQLite GLOBs."""
        # GLOBs that contain literal digits must be matched against the names, not their shapes.
        digit_globs = [glob for glob in globs if _DIGIT.search(glob.replace("[0-9]", ""))]
        shape_globs = [glob for glob in globs if glob not in digit_globs]
        is_match: Bools = np.array(match_any_glob(shape_globs, self._shapes), bool)[
            self._shape_of_name
        ]
        is_match |= np.array(match_any_glob(digit_globs, self._names), bool)
        return is_match

    def get_texts(self, name_ids: Ints) -> list[str]:
        """Return the names at these indices."""
        return [self._names[number] for number in name_ids.tolist()]


@dataclass
class PackedNames:
    """Range names, stored as encoded bytes because few of them are ever needed as text.

    Every added row gets the next id, whether or not it has a name.

    Attributes:
        n_ids: Number of ids assigned so far.
        packed: Batches of ASCII names. Each batch is a tuple (id of the first row, byte offsets of
            the names, concatenated names). There is one offset per row, plus the end of the last
            name.
        unpacked: Batches of names stored as text. Each batch is a tuple (ids in ascending order,
            names).
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
        """Add a batch of names, and return the ids of the requested rows.

        Args:
            lengths: Length of the packed name of each row in bytes, or less than 1 if the row has
                no packed name.
            packed: The concatenated packed names.
            unpacked_rows: Rows whose names are passed as text, in ascending order.
            unpacked: Names of the rows in ``unpacked_rows``.
            requested_rows: Rows of this batch whose ids are returned. An entry of -1 stands for no
                row.

        Returns:
            One id per requested row, or -1 if the requested row is -1 or has no name.
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
        """Return a mask of the ids whose names match at least one of the SQLite GLOBs."""
        is_match = np.zeros(self.n_ids, bool)
        for first_id, offsets, packed in self.packed:
            n_rows = len(offsets) - 1
            texts = (packed[at:to].decode() for at, to in itertools.pairwise(offsets.tolist()))
            is_match[first_id : first_id + n_rows] = match_any_glob(globs, texts)
        unpacked_ids, unpacked_names = self._unpacked_shapes
        # An id should occur only once. If it occurs twice, the first name is used.
        is_match[unpacked_ids[::-1]] = unpacked_names.match_globs(globs)[::-1]
        return is_match

    def get_texts(self, name_ids: Ints) -> list[str]:
        """Return the names with these ids.

        Every id must have a name.
        """
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
        """Ids and names of all unpacked batches, concatenated."""
        numbers = np.concatenate(
            [np.empty(0, np.int64), *(numbers for numbers, _ in self.unpacked)]
        )
        return numbers, NameShapes([name for _, names in self.unpacked for name in names])


def convert_to_duckdb(glob: str) -> str | None:
    """Convert an SQLite GLOB to a DuckDB GLOB that matches at least the same texts.

    The DuckDB GLOB may match more texts, because the two dialects differ in their sets, escapes and
    treatment of non-ASCII characters.

    Returns:
        The DuckDB GLOB. None if a set in the SQLite GLOB has no closing bracket, because such a
        GLOB matches nothing.
    """
    pieces = _PIECE.findall(glob)
    if _UNCLOSED & {*pieces}:
        return None
    return "".join(map(_convert_piece, pieces))


def _convert_piece(piece: str) -> str:
    """Return a set or character of a GLOB unchanged if DuckDB treats it the same, else ``?*``."""
    is_set = piece[0] == "["
    is_same = _PORTABLE_SET.fullmatch(piece) if is_set else piece not in ("?", "\\")
    return piece if is_same else "?*"


@cache
def _build_regex(glob: str) -> re.Pattern[str]:
    """Compile an SQLite GLOB to a regex, to be used with ``fullmatch``.

    If a set has no closing bracket, the regex matches nothing.
    """
    pieces = _PIECE.findall(glob)
    if _UNCLOSED & {*pieces}:
        return re.compile("(?!)")
    # fnmatch negates a set with "!", SQLite with "^". The null character prevents fnmatch from
    # treating a literal "!" in SQLite's set as a negation.
    sets = (re.sub(r"^\[\^", "[!", piece.replace("[!", "[\0!")) for piece in pieces)
    return re.compile(translate("".join(sets)))
