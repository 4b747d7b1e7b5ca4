"""Lanes: ranks of one stage and replica, by which parts of tensors they hold."""

from __future__ import annotations

from bubbleviz.explain.slowdown.replay import Work, numbered
from bubbleviz.model.columns import Ints
from bubbleviz.model.grouping import groups_of


def lanes_of(work: Work) -> Ints:
    """Return the place of each row's rank among those of its stage and replica.

    Ranks of one place in different stages or replicas hold matching parts of tensors.
    """
    pairs = groups_of(work.replica, work.stage, work.rank)
    first = pairs.first
    copies = groups_of(work.replica[first], work.stage[first]).of_row
    return numbered(copies)[pairs.of_row]
