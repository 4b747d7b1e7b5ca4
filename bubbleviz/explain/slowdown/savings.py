"""Savings: what iterations win where some slow work takes as long as the same work of others.

Where an ideal iteration has one norm for all, here nothing is held against itself: ranks against
ranks that hold the same virtual stage, stages against the other stages, microbatches, iterations
and links against the others of their kind. Work keeps its ups and downs, only its level changes::

    rank 0, F of stage 2   ▂▃▂▂▃   mean 20     ->   ▂▃▂▂▃  as 10 to 20
    rank 4, F of stage 2   ▁▁▂▁▁   mean 10
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import numpy as np

from bubbleviz.explain.slowdown.links import link_of
from bubbleviz.explain.slowdown.scenarios import Floats, Scenarios
from bubbleviz.explain.slowdown.work import Role, Work
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import Groups, groups_of
from bubbleviz.model.values import frozen

#: So many candidates of each kind are replayed, those that take longest against others.
_TRIED = 5


class Slow(Enum):
    """What can be slow; the value is its stable name."""

    RANK = "rank"
    STAGE = "stage"
    MICROBATCH = "microbatch"
    ITERATION = "iteration"
    LINK = "link"


@frozen
class Change:
    """Slow work that becomes as fast as others'.

    Attributes:
        slow: what is slow.
        members: its numbers: ranks (several of one host, for example), stages, microbatches,
            iterations; of a link the stages that data moves from and to.
    """

    slow: Slow
    members: tuple[int, ...]


@frozen
class Saving:
    """What some changes win together.

    Attributes:
        changes: what becomes as fast as others'.
        saving_ns: how much shorter the mean iteration is, launch delays left out.
        share: of the mean iteration.
    """

    changes: tuple[Change, ...]
    saving_ns: float
    share: float


def savings_of(scenarios: Scenarios) -> tuple[Saving, ...]:
    """Return what each candidate wins alone, what wins most first.

    Args:
        scenarios: the replay of all iterations.
    """
    changes = [change for slow in Slow for change in candidates(scenarios, slow)]
    savings = saved(scenarios, [(change,) for change in changes])
    return tuple(sorted(savings, key=lambda saving: -saving.saving_ns))


def saved(scenarios: Scenarios, together: Sequence[Sequence[Change]]) -> tuple[Saving, ...]:
    """Return what changes win, those of each sequence together.

    Args:
        scenarios: the replay of all iterations.
        together: changes that are made at once, by scenario.
    """
    lengths = scenarios.replayed(changed_ns(scenarios, changes) for changes in together)
    whole = scenarios.original
    return tuple(
        Saving(tuple(changes), whole - length, (whole - length) / whole if whole else 0.0)
        for changes, length in zip(together, lengths.tolist(), strict=True)
    )


def candidates(scenarios: Scenarios, slow: Slow) -> tuple[Change, ...]:
    """Return what takes longer than others do for the same work, what takes most first.

    Args:
        scenarios: the replay of all iterations.
        slow: of which kind.
    """
    work = scenarios.work
    label, same = _compared(work, slow)
    rows = np.flatnonzero(label.of_row != NONE)
    if not len(rows):
        return ()
    cells = groups_of(label.of_row[rows], same[rows])
    own_ns = scenarios.own_ns[rows]
    sums = np.bincount(cells.of_row, own_ns)
    counts = np.bincount(cells.of_row)
    of_cell = same[rows[cells.first]]
    others = np.bincount(of_cell, sums)[of_cell] - sums
    other_counts = np.bincount(of_cell, counts)[of_cell] - counts
    excess = np.where(other_counts > 0, sums - counts * others / np.maximum(other_counts, 1), 0.0)
    by_label = np.bincount(label.of_row[rows[cells.first]], np.maximum(excess, 0))
    order = np.argsort(-by_label, kind="stable")[:_TRIED]
    keys = _keys(work, slow)
    return tuple(
        Change(slow, tuple(int(column[label.first[n]]) for column in keys))
        for n in order.tolist()
        if by_label[n] > 0
    )


def changed_ns(scenarios: Scenarios, changes: Sequence[Change]) -> Ints:
    """Return how long each row takes once some work is as fast as others'; none gets slower.

    Args:
        scenarios: the replay of all iterations.
        changes: one after the other.
    """
    own_ns = scenarios.own_ns
    for change in changes:
        label, same = _compared(scenarios.work, change.slow)
        chosen = (label.of_row != NONE) & _chosen(scenarios.work, change)
        others = (label.of_row != NONE) & ~chosen
        own_ns = np.where(chosen, np.rint(own_ns * _factors(own_ns, same, chosen, others)), own_ns)
        own_ns = own_ns.astype(np.int64)
    return own_ns


def _factors(own_ns: Ints, same: Ints, chosen: Bools, others: Bools) -> Floats:
    """Return by how much chosen rows get shorter to be as long as others on average; at most 1.

    Of what nobody else does there is no norm.
    """
    count = int(same.max(initial=NONE)) + 1
    chosen_ns, others_ns = (np.bincount(same[r], own_ns[r], count) for r in (chosen, others))
    number, of_others = (np.bincount(same[rows], minlength=count) for rows in (chosen, others))
    known = (chosen_ns > 0) & (of_others > 0)
    factor = np.ones(count)
    factor[known] = (others_ns * number)[known] / (of_others * chosen_ns)[known]
    return np.asarray(np.minimum(factor, 1)[same], np.float64)


def _compared(work: Work, slow: Slow) -> tuple[Groups, Ints]:
    """Return groups of rows that can be slow (-1: none), and a number for the same work."""
    keys = _keys(work, slow)
    groups = groups_of(*keys)
    computes = ~work.communicates & (work.role != Role.AFTER_COMPUTE)
    counts = (keys[0] != NONE) & (work.communicates if slow is Slow.LINK else computes)
    # An optimizer is of no virtual stage, but longer where its rank holds more.
    stage = np.where(work.virtual_stage == NONE, work.stage, work.virtual_stage)
    if slow in {Slow.STAGE, Slow.LINK}:
        stage = np.full(len(work), NONE, np.int64)
    same = groups_of(work.kind, stage).of_row
    return Groups(np.where(counts, groups.of_row, NONE), groups.first), same


def _keys(work: Work, slow: Slow) -> tuple[Ints, ...]:
    """Return the columns that name what is slow."""
    if slow is Slow.LINK:
        return link_of(work)
    column: Ints = getattr(work, slow.value)
    return (column,)


def _chosen(work: Work, change: Change) -> Bools:
    keys = _keys(work, change.slow)
    if change.slow is Slow.LINK:
        return np.asarray((keys[0] == change.members[0]) & (keys[1] == change.members[1]), bool)
    return np.asarray(np.isin(keys[0], change.members), bool)
