"""Recognition: the built-in conventions that the range names of a profile follow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.conventions.convention import Convention
from bubbleviz.conventions.convention_file import built_in
from bubbleviz.conventions.range_names import named_by, understand
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import COUNTED

#: A convention that names work this many times less often than another one does not count.
_RARE = 10
#: An operation has fewer named parts (layers of a stage, forward or backward) than this.
_PARTS = 100


@dataclass(frozen=True)
class ConventionScore:
    """How many ranges of a profile one convention understands.

    Attributes:
        convention: the convention.
        work: ranges that it names F, B, W, BW or FB.
        whole: those of them that are not parts of an operation, nor stand in for names of others.
        other: other ranges that it names: Optimizer, communication, iterations.
    """

    convention: Convention
    work: int
    whole: int
    other: int


def scores_of(
    counts: Mapping[str, int], conventions: Sequence[Convention]
) -> tuple[ConventionScore, ...]:
    """Return the score of each convention, the best first.

    Args:
        counts: how often each name occurs.
        conventions: the candidates; of equal ones the first stays first.
    """
    scores = []
    for convention in conventions:
        counted = named_by(convention, counts)
        if not counted:
            # Mostly it is all but one.
            scores.append(ConventionScore(convention, 0, 0, 0))
            continue
        occurrences = np.array([counts[name] for name in counted], np.int64)
        names = understand(counted, convention)
        work = among(names.phase, COUNTED)
        scores.append(
            ConventionScore(
                convention,
                work=int(occurrences[work].sum()),
                whole=int(occurrences[work & ~names.part & ~names.stands_in].sum()),
                other=int(occurrences[names.understood & ~work].sum()),
            )
        )
    return tuple(sorted(scores, key=lambda score: (-score.work, -score.other)))


def recognise(counts: Mapping[str, int]) -> tuple[Convention, ...]:
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
    return recognised(scores_of(counts, tuple(built_in().values())))


def recognised(scores: Sequence[ConventionScore]) -> tuple[Convention, ...]:
    """Return the conventions that a sample of names follows, by their scores, the best first."""
    followed = _followed([score for score in scores if score.work > 0])
    explicit = tuple(s.convention for s in scores if s.convention.explicit and s.work + s.other)
    alone = tuple(c for c in followed if c.explicit)
    return alone or (followed and (*followed, *explicit))


def _followed(scores: Sequence[ConventionScore]) -> tuple[Convention, ...]:
    """Return the conventions that name enough work, the best first."""
    whole = [score for score in scores if score.whole > 0]
    most = max((score.work for score in scores), default=0)
    if not any(_PARTS * score.work >= most for score in whole):
        return tuple(score.convention for score in scores if _RARE * score.work >= most)
    most = max(score.work for score in whole)
    frequent = [score for score in scores if _RARE * score.work >= most]
    chosen = (score.convention for score in frequent if score.whole > 0)
    rest = (score.convention.whole_operations for score in frequent if score.whole == 0)
    return (*chosen, *(c for c in rest if c.patterns))


def rounds(candidates: Sequence[Convention]) -> tuple[tuple[Convention, ...], ...]:
    """Return the conventions to try together, round by round, until one names forward or backward.

    Those that a sample follows come first; then every built-in one alone, for ranges too rare for
    a sample, since every prefilter costs a look at every name.
    """
    first = (tuple(candidates),) if candidates else ()
    return (*first, *((c,) for c in built_in().values()))


def with_iterations(conventions: Sequence[Convention]) -> tuple[Convention, ...]:
    """Return the conventions, and every other built-in one cut to its names of iterations."""
    others = (c.iterations for c in built_in().values() if c not in conventions)
    return (*conventions, *(c for c in others if c.patterns))
