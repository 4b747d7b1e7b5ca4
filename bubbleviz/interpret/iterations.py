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

from bubbleviz.model.columns import NONE, Bools, Ints, Table
from bubbleviz.model.grouping import groups_of


@dataclass(frozen=True)
class HostOrder(Table):
    """Ranges of operations in the order of (rank, host start).

    Attributes:
        rank: rank of the profile.
        microbatch: microbatch number.
        key: one number for each (chunk, sequence, microbatch).
        whole_key: the same with the phase.
        mark: number of the iteration that a range names around it; -1 none.
        forward: whether it is (or holds) a forward.
        counted: whether it is F, B, W, BW or FB.
        transfer: whether it is communication between two ranks.
        optimizer: whether it is an Optimizer that ends an iteration.
        post_validation: whether it is optimizer work for the iteration before.
    """

    rank: Ints
    microbatch: Ints
    key: Ints
    whole_key: Ints
    mark: Ints
    forward: Bools
    counted: Bools
    transfer: Bools
    optimizer: Bools
    post_validation: Bools


def constant_names(order: HostOrder) -> Bools:
    """Tell for each range whether its rank gives every microbatch the same number.

    That is so where all forwards name one microbatch and an iteration has several of one chunk,
    as ranges that name iterations tell, or else Optimizers.
    """
    constant = np.zeros(len(order), bool)
    for rank in np.unique(order.rank):
        rows = np.flatnonzero(order.rank == rank)
        own = order.take(rows)
        marked = bool((own.mark >= 0).any())
        forward = np.unique(own.microbatch[own.forward])
        told = marked or bool(own.optimizer.any()) or forward.tolist() == [NONE]
        if not told or len(forward) != 1:
            continue
        iteration = own.mark if marked else _segments(_after_optimizers(own), len(own))
        one = own.forward & (own.mark >= 0) if marked else own.forward
        constant[rows] = bool(occurrences((iteration[one], own.key[one])).any())
    return constant


def _segments(bounds: Ints, count: int) -> Ints:
    """Return for each of ``count`` places how many bounds lie at or before it."""
    return np.searchsorted(bounds, np.arange(count), side="right")


def _continues(own: HostOrder) -> Bools:
    """Tell for each range of a rank whether it is a further part of the operation before it.

    That is: it has the key of the last F, B or W before it, and no Optimizer lies between.
    """
    result = np.zeros(len(own), bool)
    at = np.flatnonzero(own.counted)
    steps = np.cumsum(own.optimizer)[at]
    same = own.whole_key[at][1:] == own.whole_key[at][:-1]
    result[at[1:]] = same & (np.diff(steps) == 0)
    return result


def number_iterations(order: HostOrder, constant: Bools) -> Ints:
    """Return each operation's iteration, counted from 0 in its rank.

    Post-validation belongs to the iteration of the last Optimizer before it; -1 where the
    capture holds none.
    """
    iteration = np.full(len(order), NONE, np.int64)
    for rank in np.unique(order.rank):
        rows = np.flatnonzero(order.rank == rank)
        own = order.take(rows)
        index = _by_marks(own, bool(constant[rows[0]]))
        late = np.flatnonzero(own.post_validation)
        ends = np.flatnonzero(own.optimizer)
        before = np.searchsorted(ends, late) - 1
        index[late] = np.where(before >= 0, index[ends[before]] if len(ends) else NONE, NONE)
        iteration[rows] = index
    return iteration


def _by_marks(own: HostOrder, constant: bool) -> Ints:
    """Return a rank's iterations: as ranges name them, and by repetition where none does.

    What no range names stands between the named ones, as an evaluation does::

        marks    0 0 0 0   - - - -   1 1 1 1
        ranges   F0 F1 B0 B1 F0 F1 F0 F1 F0 F1 B0 B1
        gives    0  0  0  0  1  1  2  2  3  3  3  3
    """
    marked = own.mark >= 0
    row = np.arange(len(own))
    last = np.maximum.accumulate(np.where(marked, row, NONE))
    number = np.where(last >= 0, own.mark[np.maximum(last, 0)], NONE)
    place = np.zeros(len(own), np.int64)
    for start in np.unique(last[~marked]).tolist():
        rows = np.flatnonzero(~marked & (last == start))
        loose = own.take(rows)
        bounds = _after_optimizers(loose) if constant else _at_repetitions(loose)
        place[rows] = _segments(bounds, len(rows)) + 1
    return groups_of(number, place).of_row


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
    forwards = np.flatnonzero(own.forward & ~_continues(own))
    ends = np.flatnonzero(own.optimizer)
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
    group = groups_of(*columns).of_row
    order = np.argsort(group, kind="stable")
    grouped = group[order]
    starts = np.flatnonzero(np.concatenate(([True], grouped[1:] != grouped[:-1])))
    sizes = np.diff(np.append(starts, len(grouped)))
    result = np.empty(len(grouped), np.int64)
    result[order] = np.arange(len(grouped)) - np.repeat(starts, sizes)
    return result
