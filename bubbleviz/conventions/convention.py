"""Data classes for naming conventions, which describe how a framework names its NVTX ranges."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, TypeAlias

from bubbleviz.model.phases import Phase

_GROUP = re.compile(r"\(\?P<(\w+)>")
#: Names of the regex groups that capture numbers.
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
    "layer",
)


@dataclass(frozen=True)
class Pattern:
    """A pattern that matches range names, and the meaning of the matching names.

    Attributes:
        glob: SQLite GLOB used as a prefilter. The GLOB must match every name that ``regex``
            matches, and may match other names too.
        regex: Regex for the bare name, with named groups.
        phase: Phase of all matching names, or None if the regex group ``phase`` captures the phase
            or the names have no phase.
        phases: Maps each text captured by the group ``phase`` to a phase, for example ``"fwd"`` to
            F. Any other captured text must be a phase label, such as ``F``.
        by_order: Whether a matching range that contains both a forward and a backward is an
            iteration. Such iterations are numbered in chronological order.
        post_validation: Whether the range is optimizer work that belongs to the previous iteration.
        receives: Whether communication with this name waits for data from a peer. If None, the
            phase decides.
        part: Whether a matching range is only one part of an operation, such as one layer of a
            forward. Consecutive ranges of the same phase are joined into one operation. A number in
            the group ``layer`` shows where the next operation starts.
        stands_in: Whether a matching range counts as an operation only if no other convention names
            complete operations. If another convention does, the range may be nested inside a range
            of that convention.
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
        """The compiled regex, which is compiled on first use."""
        return re.compile(self.regex)

    @cached_property
    def groups(self) -> frozenset[str]:
        """Names of the regex groups."""
        return frozenset(_GROUP.findall(self.regex))


#: The result of matching a range name: the pattern, the phase or None, and the numbers in the name.
#: There is one number per group in :data:`NUMBER_GROUPS`, which is -1 if the name lacks the number.
NameMatch: TypeAlias = tuple[Pattern, Phase | None, tuple[int, ...]]


@dataclass(frozen=True)
class Convention:
    """The naming convention of one framework.

    Attributes:
        name: Name of the convention, as passed to ``--convention``.
        patterns: Patterns, tried in order. The first pattern that matches wins.
        summary: One-line description of the convention.
        source: Reference to the code or document that defines the names.
        domain: NVTX domain that some tools prepend to names, such as ``TSL``, or "".
        examples: Names that the patterns must match.
        counter_examples: Names that the patterns must not match.
        communication: User-supplied regexes for additional communication kernels.
        helper_threads: User-supplied regexes for additional threads that never launch backward
            passes.
        explicit: Whether the names were written for bubbleviz. Explicit names take precedence over
            the names of a framework.
        evidence: Regexes for names that only this framework uses. If there are any, the convention
            is recognized only in profiles that contain such a name, because other names of the
            framework are ambiguous.
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
    evidence: tuple[str, ...] = ()

    @property
    def globs(self) -> tuple[str, ...]:
        """The GLOBs of all patterns, without duplicates, in pattern order."""
        return tuple(dict.fromkeys(pattern.glob for pattern in self.patterns))

    @cached_property
    def match_cache(self) -> dict[str, NameMatch | None]:
        """Cache that maps names to their matches, or to None if no pattern matches.

        :mod:`bubbleviz.conventions.range_names` fills the cache. Caching is worthwhile because the
        profiles of a run share most of their names.
        """
        return {}

    @cached_property
    def whole_operations(self) -> Convention:
        """A copy of the convention without its ``part`` and ``stands_in`` patterns."""
        patterns = (p for p in self.patterns if not (p.part or p.stands_in))
        return replace(self, patterns=tuple(patterns))

    @cached_property
    def iterations(self) -> Convention:
        """A copy of the convention that contains only the patterns that read iteration numbers.

        A pattern is kept if all conditions are met:

        - Its regex has the group ``iteration``.
        - It has neither a fixed phase nor the group ``phase``.
        - It does not number iterations in chronological order.
        """
        patterns = (
            p
            for p in self.patterns
            if "iteration" in p.groups
            and not (p.by_order or p.phase is not None or "phase" in p.groups)
        )
        return replace(self, patterns=tuple(patterns))

    def __getstate__(self) -> dict[str, Any]:
        """Return only the declared fields, so that cached properties are not pickled."""
        return {part.name: getattr(self, part.name) for part in fields(self)}


def collect_globs(conventions: Sequence[Convention]) -> tuple[str, ...]:
    """Return the GLOBs of all conventions without duplicates, in order of first occurrence."""
    return tuple(dict.fromkeys(glob for c in conventions for glob in c.globs))
