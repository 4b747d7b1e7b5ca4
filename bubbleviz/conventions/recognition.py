"""Recognition of the built-in conventions that the range names of a profile follow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.conventions.convention import Convention
from bubbleviz.conventions.convention_file import built_in
from bubbleviz.conventions.range_names import find_known_names, parse_range_names
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import COUNTED

#: Conventions with fewer work ranges than the best one by more than this factor are ignored.
_MAX_WORK_RATIO = 10
#: Maximum number of named parts (such as layers) per forward or backward.
_MAX_PARTS = 100


@dataclass(frozen=True)
class ConventionScore:
    """Number of ranges of a profile that one convention understands.

    Attributes:
        convention: The convention.
        work: Ranges with phase F, B, W, BW or FB.
        complete: Ranges among ``work`` that are complete operations: not parts, and not standing in
            for the names of another convention.
        other: All other ranges it understands: optimizer, communication, iterations.
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
        conventions: The candidates. Ties keep this order.

    Returns:
        The scores, sorted by ``work``, then by ``other``, the largest first.
    """
    scores = []
    for convention in conventions:
        known_names = find_known_names(convention, counts)
        if not known_names:
            # The common case: a profile follows one convention.
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


def recognize_conventions(counts: Mapping[str, int]) -> tuple[Convention, ...]:
    """Return the built-in conventions that a sample of range names follows, the best first.

    The best convention names the most forward and backward ranges. Others are added if they name
    at least a tenth as many. If one convention names complete operations, such as microbatches,
    and another one names their parts, such as layers, the parts are nested inside the operations
    and would take over their kernels. The second convention then loses its patterns for parts.

    Explicit names (written for bubbleviz) replace all other conventions if they name enough work,
    because the framework's ranges around or inside them repeat the same information. Otherwise they
    are added to the others.

    Args:
        counts: Number of ranges per name.
    """
    return select_conventions(score_conventions(counts, tuple(built_in().values())))


def select_conventions(scores: Sequence[ConventionScore]) -> tuple[Convention, ...]:
    """Return the conventions that a sample follows, from their scores, the best first.

    Explicit conventions that name enough work replace all others. Explicit ones that name less are
    added to the others. The result is empty if no convention names work.
    """
    followed = _select_frequent([score for score in scores if score.work > 0])
    explicit = tuple(s.convention for s in scores if s.convention.explicit and s.work + s.other)
    explicit_followed = tuple(c for c in followed if c.explicit)
    return explicit_followed or (followed and (*followed, *explicit))


def _select_frequent(scores: Sequence[ConventionScore]) -> tuple[Convention, ...]:
    """Return the conventions that name enough work, those with complete operations first.

    A convention must name at least a tenth as many work ranges as the best convention with complete
    operations. Conventions without complete operations then lose their patterns for parts, and are
    left out if no pattern remains.

    If every convention with complete operations names less than a hundredth of the work ranges of
    the best convention, all conventions are compared with the best one, in the order of ``scores``,
    and keep their patterns.
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
    """Return groups of conventions to try in order, until one of them finds forward or backward.

    The first group contains the conventions that the sample follows. Then each built-in convention
    is tried on its own, to find ranges too rare for the sample. They are not tried together because
    every prefilter is matched against every name.
    """
    first = (tuple(candidates),) if candidates else ()
    return (*first, *((c,) for c in built_in().values()))


def add_iteration_names(conventions: Sequence[Convention]) -> tuple[Convention, ...]:
    """Return the conventions, plus the iteration patterns of all other built-in conventions."""
    iteration_names = (c.iterations for c in built_in().values() if c not in conventions)
    return (*conventions, *(c for c in iteration_names if c.patterns))
