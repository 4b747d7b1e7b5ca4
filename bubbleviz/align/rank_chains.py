"""Chains: the ranks of one pipeline, stage after stage, also where some of them are missing.

From a stage all of whose replicas are there, each chain is continued by the rank of the next stage
that alone fits. Over a missing rank many fit, since nothing shows how long it took; those that are
left take the chains that are left, in the order of their numbers, if they fit::

    stage 4   a ── b ── c ── d
    stage 5   a ── b    .    .      two ranks without a profile
    stage 6   a ── b ── c ── d      a and b follow theirs, c and d are left
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from bubbleviz.align.neighbours import forced
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import distinct

#: Of all ranks at most one of so many may be missing. More than half of each stage must be there:
#: of a stage that times divide in two, one part has half of it or less.
_OF_ALL = 8
#: Stages of so many ranks are replicas if none lacks more than one of so many.
_LARGE, _CLOSE = 64, 8
#: Which ranks of one stage can form a pipeline with which ones of another.
Fits = Callable[[Ints, Ints], Bools]


def lack_many(sizes: Sequence[int]) -> bool:
    """Return whether stages hold too different numbers of ranks to be replicas of which few lack.

    As many are there of at least half of the stages, of two at least, and more of none. Of large
    stages most may lack some, where all are nearly as large.

    Args:
        sizes: how many ranks each stage has.
    """
    most = max(sizes, default=0)
    whole = sum(size == most for size in sizes)
    if whole == len(sizes) > 0:
        return False
    lacking = most * len(sizes) - sum(sizes)
    few = lacking * _OF_ALL <= most * len(sizes) and 2 * min(sizes, default=0) > most
    usual = 2 * whole >= len(sizes) and whole > 1
    close = most >= _LARGE and (most - min(sizes, default=0)) * _CLOSE <= most
    return not (few and (usual or close))


def pipelines_of(stages: Sequence[Ints], fits: Fits, ranks: int) -> Ints | None:
    """Return the pipeline of each rank; -1 for ranks of no stage.

    None where several ranks of a stage can continue one chain, or none can.

    Args:
        stages: the ranks of each stage, in the order of their numbers.
        fits: see there; between stages far apart, the ranks between them are missing.
        ranks: how many there are.
    """
    pipeline = np.full(ranks, NONE, np.int64)
    sizes = [len(own) for own in stages]
    count = max(sizes)
    first = sizes.index(count)
    lacking = min(sizes) < count
    pipeline[stages[first]] = np.arange(count)
    for others in (stages[first + 1 :], stages[:first][::-1]):
        tips, number = stages[first], pipeline[stages[first]]
        away = np.zeros(len(tips), np.int64)
        for own in others:
            away += 1
            whole = len(own) == sizes[first]
            chain = _continued((tips, away), own, fits, whole=whole, lacking=lacking)
            if chain is None:
                return None
            # Nothing shows what these continue, so they are chains of their own.
            new = np.flatnonzero(chain < 0)
            chain[new] = len(tips) + np.arange(len(new))
            number = np.append(number, count + np.arange(len(new)))
            tips, away = np.append(tips, own[new]), np.append(away, np.zeros(len(new), np.int64))
            count += len(new)
            tips[chain], away[chain] = own, 0
            pipeline[own] = number[chain]
    return pipeline


def _continued(
    chains: tuple[Ints, Ints], own: Ints, fits: Fits, *, whole: bool, lacking: bool
) -> Ints | None:
    """Return the chain that each rank of the next stage continues; -1 none that is known.

    None where that of some rank is one of several.

    Args:
        chains: the last rank of each, and how many stages before this one.
        own: the ranks of the stage, by their numbers.
        fits: which ranks can follow which.
        whole: whether as many are there as of any stage.
        lacking: whether some stage has fewer.
    """
    tips, away = chains
    near, gaps = np.flatnonzero(away == 1), np.flatnonzero(away > 1)
    can = fits(tips[near], own) if len(near) else np.zeros((0, len(own)), bool)
    # Over a missing rank, what fits may belong to a chain that ended before.
    row = _near_ones(can, whole=whole, unbroken=len(gaps) == 0)
    if row is None and whole and lacking:
        # Others may be missing than of the stage before.
        row = _near_ones(can, whole=False, unbroken=False)
    if row is None:
        return None
    left = np.flatnonzero(row < 0)
    chain = np.append(near, NONE)[row]
    if len(left) == len(gaps) and _fit_in_order(tips[gaps], away[gaps], own[left], fits):
        chain[left] = gaps
    return chain


def _near_ones(can: Bools, *, whole: bool, unbroken: bool) -> Ints | None:
    """Return the chain near each rank that it continues, -1 none; None where it is one of several.

    Args:
        can: which chains (rows) that reach the stage before, ranks can continue.
        whole: whether each of these goes on.
        unbroken: whether each rank continues one of these.
    """
    row = forced(can, rows_have_one=whole, columns_have_one=unbroken)
    rest = can.copy()
    rest[row[row >= 0]] = False
    if rest[:, row < 0].any() or (whole and np.count_nonzero(row >= 0) < len(can)):
        return None
    return row


def _fit_in_order(tips: Ints, away: Ints, own: Ints, fits: Fits) -> bool:
    """Return whether each rank can follow the tip of its own place, over ranks that are missing."""
    return all(
        bool(fits(tips[away == stages], own[away == stages]).diagonal().all())
        for stages in distinct(away).tolist()
    )
