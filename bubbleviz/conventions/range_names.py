"""Parses range names into phases, microbatches and other numbers, as defined by conventions."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from bubbleviz.conventions.convention import NUMBER_GROUPS, Convention, NameMatch, Pattern
from bubbleviz.conventions.globs import match_any_glob
from bubbleviz.errors import UsageError
from bubbleviz.model.columns import NONE, Bools, Ints, Table
from bubbleviz.model.phases import RECEIVING, parse_phase_label
from bubbleviz.model.texts import MAX_RANGE_NAME

#: Maximum number of digits in a number. JSON and spreadsheets round longer numbers.
_MAX_DIGITS = 15
#: Maximum number of names in a convention's cache, and maximum length of a cached name.
_MAX_CACHED = 1 << 15
_MAX_CACHED_LENGTH = 256
#: Matches the tail that PyTorch's ``emit_nvtx`` appends to a name.
_EMIT_NVTX_TAIL = re.compile(r", (?:op_id|seq|sizes|input_op_ids) ?= ?.*\Z", re.DOTALL)


@dataclass(frozen=True, eq=False, repr=False)
class NameMeanings(Table):
    """The meanings of distinct range names, one row per name.

    Any number that a name does not contain is -1. ``phase`` is -1 if the range is not an operation.
    It may still mark an iteration. ``convention`` is the index of the convention that matched the
    name, or -1 if none did.
    """

    convention: Ints
    phase: Ints
    microbatch: Ints
    chunk: Ints
    stage: Ints
    sequence: Ints
    iteration: Ints
    rank: Ints
    second_microbatch: Ints
    second_chunk: Ints
    second_stage: Ints
    tokens: Ints
    second_tokens: Ints
    layer: Ints
    post_validation: Bools
    receives: Bools
    part: Bools
    stands_in: Bools
    by_order: Bools
    texts: tuple[str, ...] = field(metadata={"shared": True})

    @property
    def is_understood(self) -> Bools:
        """Mask of the names that have a phase or mark an iteration or rank."""
        return (self.phase >= 0) | (self.iteration >= 0) | (self.rank >= 0) | self.by_order

    @property
    def all_tokens(self) -> Ints:
        """Token count given in each name, or -1 if the name gives no token count.

        For a fused range, the token counts of both microbatches are added.
        """
        return np.where(self.tokens >= 0, self.tokens + np.maximum(self.second_tokens, 0), NONE)


def bare_name(text: str, domain: str = "") -> str:
    """Return a name without its domain prefix and without the tail of PyTorch's ``emit_nvtx``.

    nsys exports store the NVTX domain in a separate column, but some tools prepend the domain to
    the name, as in ``TSL:Thunk``.

    Args:
        text: A range name.
        domain: NVTX domain to remove, without the colon, or "".
    """
    return _EMIT_NVTX_TAIL.sub("", text.removeprefix(f"{domain}:") if domain else text)


def parse_range_names(texts: Sequence[str], *conventions: Convention) -> NameMeanings:
    """Parse range names. For each name, the first convention that matches wins.

    If the name of a fused range has only a second microbatch, the second microbatch and chunk are
    stored as the first ones.

    Raises:
        UsageError: A pattern captured something other than a number in a number group.
    """
    convention, matches = _match_first(texts, conventions)
    rows = np.flatnonzero(convention != NONE)
    columns = np.full((len(NUMBER_GROUPS) + 1, len(texts)), NONE, np.int64)
    columns[0, rows] = [NONE if phase is None else phase for _, phase, _ in matches]
    numbers = np.array([of_match for _, _, of_match in matches], np.int64)
    columns[1:, rows] = numbers.reshape(-1, len(NUMBER_GROUPS)).T
    # If only the second operation of a fused range has numbers, store them as the numbers of the
    # first one.
    second = np.flatnonzero((columns[1] == NONE) & (columns[7] != NONE))
    columns[1:3, second], columns[7:9, second] = columns[7:9, second], NONE
    flag_columns = {}
    for name, flags in _list_flags(matches).items():
        flag_columns[name] = np.zeros(len(texts), bool)
        flag_columns[name][rows] = flags
    return NameMeanings(
        convention=convention,
        phase=columns[0],
        **{name: columns[i] for i, name in enumerate(NUMBER_GROUPS, 1)},
        **flag_columns,
        texts=tuple(texts),
    )


def _match_first(
    texts: Sequence[str], conventions: Sequence[Convention]
) -> tuple[Ints, list[NameMatch]]:
    """Match each name with the first convention that has a pattern for it.

    Args:
        texts: Range names.
        conventions: Conventions in order of precedence.

    Returns:
        convention: For each name, the index of the convention that matched it, or -1 if none did.
        matches: The matches, in the order of ``texts``. Unmatched names have no entry.
    """
    convention = np.full(len(texts), NONE, np.int64)
    matches = []
    for row, text in enumerate(texts):
        for index, candidate in enumerate(conventions):
            match = match_name(text, candidate)
            if match is not None:
                convention[row] = index
                matches.append(match)
                break
    return convention, matches


def _list_flags(matches: Sequence[NameMatch]) -> dict[str, list[bool]]:
    """Return the flag columns of :class:`NameMeanings`, keyed by name, with one value per match.

    If a pattern does not specify ``receives``, the flag is set for phases in ``RECEIVING``.
    """
    flags = {
        name: [getattr(pattern, name) for pattern, _, _ in matches]
        for name in ("post_validation", "part", "stands_in", "by_order")
    }
    flags["receives"] = [
        phase in RECEIVING if pattern.receives is None else pattern.receives
        for pattern, phase, _ in matches
    ]
    return flags


def find_known_names(convention: Convention, texts: Collection[str]) -> list[str]:
    """Return the names that a convention may match, in the given order.

    To save time, no regex is tested. Names in the cache are selected according to the cached
    result. All other names are matched against the GLOBs of the convention. If a name matches no
    GLOB, it is added to the cache as unmatched.
    """
    cache = convention.match_cache
    uncached = [text for text in texts if text not in cache]
    for text, fits in zip(uncached, match_any_glob(convention.globs, uncached), strict=True):
        if not fits:
            _cache_match(convention, text, None)
    missing = object()
    return [text for text in texts if cache.get(text, missing) is not None]


def match_name(text: str, convention: Convention) -> NameMatch | None:
    """Match a name with the patterns of a convention.

    The first pattern that matches the bare name wins. Results are cached in the convention.

    Returns:
        The match, or None if the name matches no pattern, is longer than ``MAX_RANGE_NAME``, or
        contains a number with too many digits.

    Raises:
        UsageError: The pattern captured something other than a number in a number group.
    """
    if text in convention.match_cache:
        return convention.match_cache[text]
    bare = bare_name(text, convention.domain)
    if len(bare) > MAX_RANGE_NAME:
        # No framework writes names this long, and they may have been truncated.
        return None
    matches = ((pattern, pattern.compiled.search(bare)) for pattern in convention.patterns)
    for pattern, match in matches:
        if match is not None:
            return _cache_match(convention, text, _parse_groups(pattern, match.groupdict()))
    return _cache_match(convention, text, None)


def _cache_match(convention: Convention, text: str, match: NameMatch | None) -> NameMatch | None:
    """Cache the match of a name for later profiles, and return the match.

    The cache is cleared when it is full. Very long names are not cached.
    """
    cache = convention.match_cache
    if len(cache) >= _MAX_CACHED:
        cache.clear()
    if len(text) <= _MAX_CACHED_LENGTH:
        cache[text] = match
    return match


def _parse_groups(pattern: Pattern, groups: Mapping[str, str | None]) -> NameMatch | None:
    """Convert the captured groups of a pattern to a phase and numbers.

    Args:
        pattern: The pattern that matched a name.
        groups: Captured text of each named group, or None if the group did not participate in the
            match.

    Returns:
        The match, or None if a number has more than ``_MAX_DIGITS`` digits.

    Raises:
        UsageError: A number group captured something other than ASCII digits, so the pattern is
            wrong.
    """
    label, phase = groups.get("phase"), pattern.phase
    if label is not None:
        phase = pattern.phases[label] if label in pattern.phases else parse_phase_label(label)
    digits = [groups.get(name) for name in NUMBER_GROUPS]
    numbers = [text for text in digits if text is not None]
    if any(len(text) > _MAX_DIGITS for text in numbers):
        return None
    not_a_number = next((text for text in numbers if not (text.isascii() and text.isdigit())), None)
    if not_a_number is not None:
        raise UsageError(
            f"the pattern {pattern.regex!r} captures {not_a_number[:40]!r} as a number; make its "
            "groups match only digits, for example (?P<microbatch>[0-9]+)"
        )
    return pattern, phase, tuple(NONE if text is None else int(text) for text in digits)
