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

import numpy as np

from bubbleviz.model.columns import NONE, Bools, Ints, Table
from bubbleviz.model.grouping import distinct, groups_of
from bubbleviz.model.values import frozen


@frozen
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
    by the ranges that name iterations, or else by Optimizers.
    """
    constant = np.zeros(len(order), bool)
    for rank in distinct(order.rank):
        rows = np.flatnonzero(order.rank == rank)
        ranges = order.take(rows)
        marked = bool((ranges.mark >= 0).any())
        named = distinct(ranges.microbatch[ranges.forward])
        divided = marked or bool(ranges.optimizer.any()) or named.tolist() == [NONE]
        if not divided or len(named) != 1:
            continue
        iteration = ranges.mark if marked else _segments(_after_optimizers(ranges), len(ranges))
        forward = ranges.forward & (ranges.mark >= 0) if marked else ranges.forward
        constant[rows] = bool(occurrences((iteration[forward], ranges.key[forward])).any())
    return constant


def _segments(bounds: Ints, count: int) -> Ints:
    """Return for each of ``count`` places how many bounds lie at or before it."""
    return np.searchsorted(bounds, np.arange(count), side="right")


def _continues(ranges: HostOrder) -> Bools:
    """Tell for each range of a rank whether it is a further part of the operation before it.

    That is: it has the key of the last F, B or W before it, and no Optimizer lies between.
    """
    result = np.zeros(len(ranges), bool)
    at = np.flatnonzero(ranges.counted)
    steps = np.cumsum(ranges.optimizer)[at]
    same = ranges.whole_key[at][1:] == ranges.whole_key[at][:-1]
    result[at[1:]] = same & (np.diff(steps) == 0)
    return result


def number_iterations(order: HostOrder, constant: Bools) -> Ints:
    """Return each operation's iteration, counted from 0 in its rank.

    Post-validation belongs to the iteration of the last Optimizer before it; -1 where the
    capture holds none.
    """
    iteration = np.full(len(order), NONE, np.int64)
    for rank in distinct(order.rank):
        rows = np.flatnonzero(order.rank == rank)
        ranges = order.take(rows)
        index = _by_marks(ranges, bool(constant[rows[0]]))
        late = np.flatnonzero(ranges.post_validation)
        ends = np.flatnonzero(ranges.optimizer)
        before = np.searchsorted(ends, late) - 1
        index[late] = np.where(before >= 0, index[ends[before]] if len(ends) else NONE, NONE)
        iteration[rows] = index
    return iteration


def _by_marks(ranges: HostOrder, constant: bool) -> Ints:
    """Return a rank's iterations: as ranges name them, and by repetition where none does.

    What no range names stands between the named ones, as an evaluation does::

        marks    0 0 0 0   - - - -   1 1 1 1
        ranges   F0 F1 B0 B1 F0 F1 F0 F1 F0 F1 B0 B1
        gives    0  0  0  0  1  1  2  2  3  3  3  3
    """
    marked = ranges.mark >= 0
    row = np.arange(len(ranges))
    last = np.maximum.accumulate(np.where(marked, row, NONE))
    number = np.where(last >= 0, ranges.mark[np.maximum(last, 0)], NONE)
    place = np.zeros(len(ranges), np.int64)
    for start in distinct(last[~marked]).tolist():
        rows = np.flatnonzero(~marked & (last == start))
        loose = ranges.take(rows)
        bounds = _after_optimizers(loose) if constant else _at_repetitions(loose)
        place[rows] = _segments(bounds, len(rows)) + 1
    return groups_of(number, place).of_row


def _after_optimizers(ranges: HostOrder) -> Ints:
    """Return where iterations begin: after the last Optimizer before a forward."""
    forwards, ends = np.flatnonzero(ranges.forward), np.flatnonzero(ranges.optimizer)
    last = np.searchsorted(ends, forwards) - 1
    return distinct(ends[last[last >= 0]]) + 1 if len(ends) else np.empty(0, np.int64)


def _at_repetitions(ranges: HostOrder) -> Ints:
    """Return where iterations begin, by the rule of the repeated forward.

    ``repeat[i]`` is the first forward from i on whose key some forward from i on already had;
    one step of the loop is one iteration.
    """
    forwards = np.flatnonzero(ranges.forward & ~_continues(ranges))
    ends = np.flatnonzero(ranges.optimizer)
    if len(forwards) == 0:
        return np.empty(0, np.int64)
    repeat = _first_repetitions(ranges.key[forwards])
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
