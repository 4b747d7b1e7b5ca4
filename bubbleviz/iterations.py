"""Iterations of one rank: which operations belong together, by the host order of their ranges.

Names come first (``iter_{rank}_{n}``, ``ProfilerStep#n``). Without them a rank's iteration ends
at the last Optimizer before a forward that it already holds, or at that forward::

    F0 F1 B0 B1 Optimizer F0 F1 B0 B1 Optimizer
                         │
                         └ F0 is held already: the iteration ended at the Optimizer before it

Frameworks that give every microbatch the same name hold "the same forward" all the time; there
an iteration ends at an Optimizer that a forward follows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bubbleviz.columns import NONE, Bools, Ints, Table


@dataclass(frozen=True)
class HostOrder(Table):
    """Operations in the order of (rank, host start).

    Attributes:
        rank: rank of the profile.
        key: one number for each (chunk, sequence, microbatch).
        mark: number of the iteration that a range names around it; -1 none.
        forward: whether it is (or holds) a forward.
        optimizer: whether it is an Optimizer that ends an iteration.
        post_validation: whether it is optimizer work for the iteration before.
    """

    rank: Ints
    key: Ints
    mark: Ints
    forward: Bools
    optimizer: Bools
    post_validation: Bools


def constant_names(order: HostOrder) -> Bools:
    """Tell for each operation whether its rank gives every microbatch the same name.

    That is so where all forwards have one key, and one of them follows another either directly
    or without an Optimizer between.
    """
    constant = np.zeros(len(order), bool)
    for rank in np.unique(order.rank):
        rows = np.flatnonzero(order.rank == rank)
        forwards = rows[order.forward[rows]]
        if len(forwards) < 2 or len(np.unique(order.key[forwards])) > 1:
            continue
        has_optimizer = bool(order.optimizer[rows].any())
        before = np.cumsum(order.optimizer | order.post_validation)
        segment = before[forwards] if has_optimizer else forwards - np.arange(len(forwards))
        marked = order.mark[forwards]
        repeated = (np.diff(segment) == 0) & (np.diff(marked) == 0)
        constant[rows] = bool(repeated.any())
    return constant


def number_iterations(order: HostOrder, constant: Bools) -> Ints:
    """Return each operation's iteration, counted from 0 in its rank.

    Post-validation belongs to the iteration of the last Optimizer before it; -1 where the
    capture holds none.
    """
    iteration = np.full(len(order), NONE, np.int64)
    for rank in np.unique(order.rank):
        rows = np.flatnonzero(order.rank == rank)
        own = order.take(rows)
        if (own.mark >= 0).any():
            bounds = np.flatnonzero(np.diff(own.mark) != 0) + 1
        elif constant[rows[0]]:
            bounds = _after_optimizers(own)
        else:
            bounds = _at_repetitions(own)
        index = np.searchsorted(bounds, np.arange(len(rows)), side="right")
        late = np.flatnonzero(own.post_validation)
        ends = np.flatnonzero(own.optimizer)
        before = np.searchsorted(ends, late) - 1
        index[late] = np.where(before >= 0, index[ends[before]] if len(ends) else NONE, NONE)
        iteration[rows] = index
    return iteration


def _after_optimizers(own: HostOrder) -> Ints:
    """Return where iterations begin: after the last Optimizer before a forward."""
    forwards, ends = np.flatnonzero(own.forward), np.flatnonzero(own.optimizer)
    last = np.searchsorted(ends, forwards) - 1
    return np.unique(ends[last[last >= 0]]) + 1 if len(ends) else np.empty(0, np.int64)


def _at_repetitions(own: HostOrder) -> Ints:
    """Return where iterations begin, by the rule of the repeated forward.

    ``repeat[i]`` is the first forward from i on whose key some forward from i on already had;
    one step of the loop is one iteration.
    """
    forwards, ends = np.flatnonzero(own.forward), np.flatnonzero(own.optimizer)
    if len(forwards) == 0:
        return np.empty(0, np.int64)
    repeat = _first_repetitions(own.key[forwards])
    bounds = []
    # A capture that begins after the last forward of an iteration: its rest is one of its own.
    leading = ends[ends < forwards[0]]
    if len(leading):
        bounds.append(int(leading[-1]) + 1)
    at = 0
    while repeat[at] < len(forwards):
        row = forwards[repeat[at]]
        between = ends[(ends > forwards[at]) & (ends < row)]
        bound = int(between[-1]) + 1 if len(between) else int(row)
        bounds.append(bound)
        at = int(np.searchsorted(forwards, bound))
    return np.array(bounds, np.int64)


def _first_repetitions(key: Ints) -> Ints:
    """Return for each i the smallest j such that key[j] equals some key[h], i <= h < j."""
    count = len(key)
    order = np.argsort(key, kind="stable")
    following = np.full(count, count, np.int64)
    same = np.diff(key[order]) == 0
    following[order[:-1][same]] = order[1:][same]
    return np.minimum.accumulate(following[::-1])[::-1]


def occurrences(columns: tuple[Ints, ...]) -> Ints:
    """Return for each row how many earlier rows agree with it in every column."""
    if len(columns[0]) == 0:
        return np.empty(0, np.int64)
    _, group = np.unique(np.stack(columns), axis=1, return_inverse=True)
    group = group.reshape(-1)
    order = np.argsort(group, kind="stable")
    grouped = group[order]
    starts = np.flatnonzero(np.concatenate(([True], grouped[1:] != grouped[:-1])))
    sizes = np.diff(np.append(starts, len(grouped)))
    result = np.empty(len(grouped), np.int64)
    result[order] = np.arange(len(grouped)) - np.repeat(starts, sizes)
    return result
