"""Conventions: data classes that describe how a framework names its ranges."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, TypeAlias

from bubbleviz.model.phases import Phase

_GROUP = re.compile(r"\(\?P<(\w+)>")
#: Named groups of a pattern whose captures are numbers.
NUMBER_GROUPS = (
    "microbatch",
    "chunk",
    "stage",
    "sequence",
    "iteration",
    "rank",
    "second_microbatch",
    "second_chunk",
    "second_stage",
    "tokens",
    "second_tokens",
)


@dataclass(frozen=True)
class Pattern:
    """One pattern of range names.

    Attributes:
        glob: SQLite GLOB that matches at least every name that ``regex`` matches.
        regex: Regex for the bare name, with named groups.
        phase: Phase of all matching names, or None if the group ``phase`` captures it or if the
            names have no phase.
        phases: Phase of each capture of the group ``phase`` that is not itself a phase label.
        by_order: Whether a matching range that contains both passes is an iteration, numbered in
            order of time.
        post_validation: Whether the range is optimizer work of the previous iteration.
        receives: Whether communication under this name waits for a peer's data, or None if the
            phase implies it.
        part: Whether the name is the name of a part of an operation. Consecutive ranges of one
            phase belong to the same operation.
        stands_in: Whether the range only counts as an operation if no other convention names the
            operation, because a range of that operation may enclose it.
    """

    glob: str
    regex: str
    phase: Phase | None
    phases: Mapping[str, Phase]
    by_order: bool
    post_validation: bool = False
    receives: bool | None = None
    part: bool = False
    stands_in: bool = False

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        """The compiled regex; compiled on first use."""
        return re.compile(self.regex)

    @cached_property
    def groups(self) -> frozenset[str]:
        """Named groups of the regex."""
        return frozenset(_GROUP.findall(self.regex))


#: Match of a name: the pattern, the phase or None, and the numbers in the order of
#: :data:`NUMBER_GROUPS`, -1 if the name has none.
NameMatch: TypeAlias = tuple[Pattern, Phase | None, tuple[int, ...]]


@dataclass(frozen=True)
class Convention:
    """The naming convention of one framework.

    Attributes:
        name: Name for ``--convention``.
        patterns: Patterns, tried in order; the first that matches wins.
        summary: Description in one line.
        source: Reference to the code or document that defines the names.
        domain: NVTX domain that may precede the names.
        examples: Names that the patterns must match.
        counter_examples: Names that the patterns must not match.
        communication: Additional regexes for communication kernels, from a user.
        helper_threads: Additional regexes for threads that never run backward, from a user.
        explicit: Whether the names are written for bubbleviz and thus take precedence over names of
            a framework.
    """

    name: str
    patterns: tuple[Pattern, ...]
    summary: str = ""
    source: str = ""
    domain: str = ""
    examples: tuple[str, ...] = ()
    counter_examples: tuple[str, ...] = ()
    communication: tuple[str, ...] = ()
    helper_threads: tuple[str, ...] = ()
    explicit: bool = False

    @property
    def globs(self) -> tuple[str, ...]:
        """Distinct prefilters of the patterns."""
        return tuple(dict.fromkeys(pattern.glob for pattern in self.patterns))

    @cached_property
    def match_cache(self) -> dict[str, NameMatch | None]:
        """Cached matches of names; profiles of one run share most of their names.

        Filled by :mod:`bubbleviz.conventions.range_names`.
        """
        return {}

    @cached_property
    def whole_operations(self) -> Convention:
        """The convention with only its patterns for complete operations."""
        patterns = (p for p in self.patterns if not (p.part or p.stands_in))
        return replace(self, patterns=tuple(patterns))

    @cached_property
    def iterations(self) -> Convention:
        """The convention with only its patterns that read the number of an iteration."""
        patterns = (
            p
            for p in self.patterns
            if "iteration" in p.groups
            and not (p.by_order or p.phase is not None or "phase" in p.groups)
        )
        return replace(self, patterns=tuple(patterns))

    def __getstate__(self) -> dict[str, Any]:
        """Return the declared fields; cached properties are not pickled."""
        return {part.name: getattr(self, part.name) for part in fields(self)}


def collect_globs(conventions: Sequence[Convention]) -> tuple[str, ...]:
    """Return the distinct prefilters of several conventions."""
    return tuple(dict.fromkeys(glob for c in conventions for glob in c.globs))
