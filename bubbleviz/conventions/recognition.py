"""Recognizes which built-in naming conventions the range names in a profile follow."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.conventions.convention import Convention
from bubbleviz.conventions.convention_file import built_in
from bubbleviz.conventions.range_names import bare_name, find_known_names, parse_range_names
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import COUNTED

#: A convention is selected if its work range count times this factor reaches the best count.
_MAX_WORK_RATIO = 10
#: Assumed maximum number of named parts, such as layers, in a forward or backward.
_MAX_PARTS = 100


@dataclass(frozen=True)
class ConventionScore:
    """How many of a profile's ranges a convention understands.

    Attributes:
        convention: The convention.
        work: Number of work ranges, which are ranges whose phase is F, B, W, BW or FB.
        complete: Number of work ranges that are complete operations. Their patterns are neither
            ``part`` nor ``stands_in``.
        other: Number of understood ranges that are not work, such as optimizer, communication and
            iteration ranges.
    """

    convention: Convention
    work: int
    complete: int
    other: int


def score_conventions(
    counts: Mapping[str, int], conventions: Sequence[Convention]
) -> tuple[ConventionScore, ...]:
    """Score each convention on a sample of range names.

    Args:
        counts: Number of ranges per name.
        conventions: The conventions to score.

    Returns:
        One score per convention, sorted by ``work`` and then by ``other``, in descending order.
        Ties keep the order of ``conventions``.
    """
    scores = []
    for convention in conventions:
        known_names = find_known_names(convention, counts)
        if not has_evidence(convention, known_names):
            # This is the common case, because most profiles follow a single convention.
            scores.append(ConventionScore(convention, 0, 0, 0))
            continue
        occurrences = np.array([counts[name] for name in known_names], np.int64)
        names = parse_range_names(known_names, convention)
        is_work = mask_phases(names.phase, COUNTED)
        scores.append(
            ConventionScore(
                convention,
                work=int(occurrences[is_work].sum()),
                complete=int(occurrences[is_work & ~names.part & ~names.stands_in].sum()),
                other=int(occurrences[names.is_understood & ~is_work].sum()),
            )
        )
    return tuple(sorted(scores, key=lambda score: (-score.work, -score.other)))


def has_evidence(convention: Convention, names: Collection[str]) -> bool:
    """Return whether any name shows that its profile follows a convention.

    Any name that the convention may match is sufficient, unless the convention lists regexes for
    evidence. In that case, a name must match one of these regexes.

    Args:
        convention: The convention.
        names: Names that the convention may match.
    """
    if not convention.evidence:
        return len(names) > 0
    bare_names = (bare_name(name, convention.domain) for name in names)
    regexes = [re.compile(regex) for regex in convention.evidence]
    return any(regex.search(name) for name in bare_names for regex in regexes)


def recognize_conventions(counts: Mapping[str, int]) -> tuple[Convention, ...]:
    """Return the built-in conventions that a sample of range names follows, best first.

    The best convention is the one that names the most forward and backward ranges. Another
    convention is added if it names at least a tenth as many forward and backward ranges.

    Suppose one convention names complete operations, such as the forward of a microbatch, and
    another convention names parts of operations, such as single layers. The parts are nested inside
    the operations, so they would take the operations' kernels. The second convention therefore
    loses its patterns for parts.

    Explicit conventions (written for bubbleviz) replace all other conventions if they name enough
    forward and backward ranges. The framework's own ranges then only repeat the same information.
    Otherwise, explicit conventions are added at the end.

    Args:
        counts: Number of ranges per name.
    """
    return select_conventions(score_conventions(counts, tuple(built_in().values())))


def select_conventions(scores: Sequence[ConventionScore]) -> tuple[Convention, ...]:
    """Select the conventions that a sample of range names follows, best first.

    Explicit conventions that name enough work ranges replace all other conventions. Otherwise,
    every explicit convention that understands any range is added at the end. The result is empty if
    no convention names work ranges.

    Args:
        scores: Scores of all candidates, as returned by :func:`score_conventions`.
    """
    followed = _select_frequent([score for score in scores if score.work > 0])
    explicit = tuple(s.convention for s in scores if s.convention.explicit and s.work + s.other)
    explicit_followed = tuple(c for c in followed if c.explicit)
    return explicit_followed or (followed and (*followed, *explicit))


def _select_frequent(scores: Sequence[ConventionScore]) -> tuple[Convention, ...]:
    """Select the conventions that name enough work ranges (forwards and backwards).

    A convention is selected if it names at least a tenth as many work ranges as the best
    convention. There are two cases:

    - Usually, the best convention is chosen among those that name complete operations. Conventions
      that name complete operations come first. All other conventions lose their ``part`` and
      ``stands_in`` patterns, and are dropped if no pattern remains.
    - If no convention that names complete operations has even a hundredth of the work ranges of the
      overall best convention, complete operations are too rare to matter. The overall best
      convention is then used, and order and patterns do not change.

    Args:
        scores: Scores of all conventions that name any work ranges, in descending order.
    """
    complete = [score for score in scores if score.complete > 0]
    max_work = max((score.work for score in scores), default=0)
    if not any(_MAX_PARTS * score.work >= max_work for score in complete):
        return tuple(
            score.convention for score in scores if _MAX_WORK_RATIO * score.work >= max_work
        )
    max_work = max(score.work for score in complete)
    frequent = [score for score in scores if _MAX_WORK_RATIO * score.work >= max_work]
    with_operations = (score.convention for score in frequent if score.complete > 0)
    without_parts = (score.convention.whole_operations for score in frequent if score.complete == 0)
    return (*with_operations, *(c for c in without_parts if c.patterns))


def plan_rounds(candidates: Sequence[Convention]) -> tuple[tuple[Convention, ...], ...]:
    """Return groups of conventions to try in order until a group finds forwards or backwards.

    The first group contains all candidates. Every other group is a single built-in convention. It
    may find ranges that are too rare to occur in the sample. Trying conventions one by one is
    cheaper than trying one large group, because every GLOB in a group is matched against every
    name. Conventions that require evidence are left out.

    Args:
        candidates: Conventions that a sample of range names follows. May be empty.
    """
    first = (tuple(candidates),) if candidates else ()
    return (*first, *((c,) for c in built_in().values() if not c.evidence))


def add_iteration_names(conventions: Sequence[Convention]) -> tuple[Convention, ...]:
    """Return the conventions, followed by the iteration patterns of other built-in conventions.

    Built-in conventions without iteration patterns are left out.
    """
    iteration_names = (c.iterations for c in built_in().values() if c not in conventions)
    return (*conventions, *(c for c in iteration_names if c.patterns))
