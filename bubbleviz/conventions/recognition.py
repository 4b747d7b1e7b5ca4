"""Recognition: the built-in conventions that the range names of a profile follow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.conventions.convention import Convention
from bubbleviz.conventions.convention_file import built_in
from bubbleviz.conventions.range_names import find_known_names, parse_range_names
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import COUNTED

#: A convention that names work this many times less often than another one does not count.
_MAX_WORK_RATIO = 10
#: An operation has fewer named parts (layers of a stage, forward or backward) than this.
_MAX_PARTS = 100


@dataclass(frozen=True)
class ConventionScore:
    """How many ranges of a profile one convention understands.

    Attributes:
        convention: the convention.
        work: ranges that it names F, B, W, BW or FB.
        complete: Ranges among ``work`` that name a complete operation.
        other: other ranges that it names: Optimizer, communication, iterations.
    """

    convention: Convention
    work: int
    complete: int
    other: int


def score_conventions(
    counts: Mapping[str, int], conventions: Sequence[Convention]
) -> tuple[ConventionScore, ...]:
    """Return the score of each convention, the best first.

    Args:
        counts: how often each name occurs.
        conventions: the candidates; of equal ones the first stays first.
    """
    scores = []
    for convention in conventions:
        known_names = find_known_names(convention, counts)
        if not known_names:
            # Mostly it is all but one.
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
    """Return the built-in conventions that a sample of names follows, the best first.

    The best names most forward and backward ranges; others join that name at least a tenth as
    many. Where one convention names whole operations, such as microbatches, and another names
    their parts (layers), the parts lie inside: the innermost range would take the kernels of the
    operation, so the other convention keeps only the rest of its patterns.

    Explicit names (written for bubbleviz) stand alone where they name enough work: a framework's
    names around or inside them repeat the same. Where they name little or no work, they join.

    Args:
        counts: how often each name occurs.
    """
    return select_conventions(score_conventions(counts, tuple(built_in().values())))


def select_conventions(scores: Sequence[ConventionScore]) -> tuple[Convention, ...]:
    """Return the conventions that a sample of names follows, by their scores, the best first."""
    followed = _select_frequent([score for score in scores if score.work > 0])
    explicit = tuple(s.convention for s in scores if s.convention.explicit and s.work + s.other)
    explicit_followed = tuple(c for c in followed if c.explicit)
    return explicit_followed or (followed and (*followed, *explicit))


def _select_frequent(scores: Sequence[ConventionScore]) -> tuple[Convention, ...]:
    """Return the conventions that name enough work, the best first."""
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
    """Return the conventions to try together, round by round, until one names forward or backward.

    Those that a sample follows come first; then every built-in one alone, for ranges too rare for
    a sample, since every prefilter costs a look at every name.
    """
    first = (tuple(candidates),) if candidates else ()
    return (*first, *((c,) for c in built_in().values()))


def add_iteration_names(conventions: Sequence[Convention]) -> tuple[Convention, ...]:
    """Return the conventions, and every other built-in one cut to its names of iterations."""
    iteration_names = (c.iterations for c in built_in().values() if c not in conventions)
    return (*conventions, *(c for c in iteration_names if c.patterns))
