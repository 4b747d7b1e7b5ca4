"""Conventions: how a framework writes the names of its ranges, as values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, TypeAlias

from bubbleviz.model.phases import Phase

_GROUP = re.compile(r"\(\?P<(\w+)>")
#: Named groups of a pattern that are numbers.
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
    """One shape of name.

    Attributes:
        glob: SQLite GLOB that matches at least every name that ``regex`` does.
        regex: on the whole name, with named groups.
        phase: the phase of every name that matches; None where a group holds it, or none is meant.
        phases: the phase of each text of the group ``phase`` that is not a phase's own name.
        by_order: whether it marks an iteration, if both passes run inside, numbered by order.
        post_validation: whether it is optimizer work for the iteration before.
        receives: whether communication under this name waits for a peer's data; None to go by the
            phase.
        part: whether it names a part of an operation only: ranges that follow under the same phase
            belong to the same operation, up to another phase.
        stands_in: whether it names operations only where no other name does: one of the same
            operation may be around it.
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
        """The regex, compiled when a name is held against it."""
        return re.compile(self.regex)

    @cached_property
    def groups(self) -> frozenset[str]:
        """The named groups of the regex."""
        return frozenset(_GROUP.findall(self.regex))


#: A pattern that a name matches, the phase that it holds, and its numbers in the order of
#: :data:`NUMBER_GROUPS`, -1 for none.
NameMatch: TypeAlias = tuple[Pattern, Phase | None, tuple[int, ...]]


@dataclass(frozen=True)
class Convention:
    """How one framework names its ranges.

    Attributes:
        name: what ``--convention`` takes.
        patterns: tried in order; the first that matches decides.
        summary: one line.
        source: where the names were read.
        domain: NVTX domain that may stand in front of its names.
        examples: names that it must understand.
        counter_examples: names that it must leave alone.
        communication: more regexes for communication kernels (a user's additions).
        helper_threads: more regexes for threads that never run backward.
        explicit: whether its names are written for bubbleviz, and so come before a framework's.
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
        """The distinct prefilters of its patterns."""
        return tuple(dict.fromkeys(pattern.glob for pattern in self.patterns))

    @cached_property
    def match_cache(self) -> dict[str, NameMatch | None]:
        """What names were found to mean; profiles of one run share most of their names.

        :mod:`bubbleviz.conventions.range_names` fills it.
        """
        return {}

    @cached_property
    def whole_operations(self) -> Convention:
        """The convention without its patterns for parts of operations, and those that stand in."""
        patterns = (p for p in self.patterns if not (p.part or p.stands_in))
        return replace(self, patterns=tuple(patterns))

    @cached_property
    def iterations(self) -> Convention:
        """The convention with only the patterns that name iterations and hold their numbers."""
        patterns = (
            p
            for p in self.patterns
            if "iteration" in p.groups
            and not (p.by_order or p.phase is not None or "phase" in p.groups)
        )
        return replace(self, patterns=tuple(patterns))

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields: what was worked out from them does not travel to other processes."""
        return {part.name: getattr(self, part.name) for part in fields(self)}


def collect_globs(conventions: Sequence[Convention]) -> tuple[str, ...]:
    """Return the distinct prefilters of conventions."""
    return tuple(dict.fromkeys(glob for c in conventions for glob in c.globs))
