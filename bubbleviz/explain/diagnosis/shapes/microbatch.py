"""Microbatches: one takes longer on every stage, since its sequences are longer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bubbleviz.explain.diagnosis.fault import Fault, FaultKind, median_of, quantile_of
from bubbleviz.explain.diagnosis.rank_paces import Evidence
from bubbleviz.model.columns import Bools, Ints

#: Where more than this share of the microbatches stand out, their lengths vary as a whole, unless
#: half of their numbers at most do so in nearly all iterations.
_MANY, _SOME_NUMBERS, _ALWAYS = 0.2, 0.5, 0.8


def faults(seen: Evidence) -> Iterator[Fault]:
    """Yield the microbatches that are slow on every stage, or all of them where they vary."""
    effects, work = seen.effects, seen.work
    groups, effect = effects.microbatches, effects.microbatch_effect
    size = np.bincount(groups.of_row, minlength=len(groups))
    out = effects.stands_out(effect, size, against=0.0)
    if not out.any():
        return
    first = effects.rows[groups.first]
    slow_ones = np.flatnonzero(out)
    pairs = zip(
        work.iteration[first[slow_ones]].tolist(),
        work.microbatch[first[slow_ones]].tolist(),
        strict=True,
    )
    if out.mean() > _MANY and not _same_numbers(work.microbatch[first], out):
        at = np.flatnonzero(work.microbatch[effects.rows] >= 0)
        of_row = effect[groups.of_row[at]]
        scale = of_row.mean() / of_row
        what, worst = "lengths", quantile_of(effect, 0.95) / quantile_of(effect, 0.05)
    else:
        at = np.flatnonzero(out[groups.of_row])
        scale = 1 / effect[groups.of_row[at]]
        what, worst = "", median_of(effect[slow_ones])
    yield Fault(
        FaultKind.MICROBATCH,
        "microbatches",
        effects.rows[at],
        scale,
        microbatches=tuple(sorted(set(pairs))),
        phases=(("", worst),),
        what=what,
    )


def _same_numbers(number: Ints, out: Bools) -> bool:
    """Return whether a few numbers of microbatches are the slow ones, time and again.

    Args:
        number: of each microbatch of an iteration and replica; -1 for none.
        out: which of these stand out.
    """
    numbered = number >= 0
    all_times = np.bincount(number[numbered])
    times = np.bincount(number[numbered & out], minlength=len(all_times))
    slow_numbers = times > 0
    always = times[slow_numbers] >= _ALWAYS * all_times[slow_numbers]
    return bool(always.all() and slow_numbers.sum() <= _SOME_NUMBERS * (all_times > 0).sum())
