"""Order numbers: chunks and microbatches of measured orders, counted from 0 as in a plan."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bubbleviz.explain.recognition.order_codes import BACKWARD, FORWARD, MOST_MICROBATCHES
from bubbleviz.model.columns import Bools, Ints
from bubbleviz.model.grouping import groups_of, places_in
from bubbleviz.model.intervals import group_extents
from bubbleviz.model.values import frozen

#: Microbatch numbers with one gap in this many, or more, are not consecutive.
_GAPS = 3


def combined_microbatch(microbatch: Ints, sequence: Ints, parts: int) -> Ints:
    """Return one number for each (microbatch, part of the sequence); -1 where it is unknown.

    Args:
        microbatch: of each operation.
        sequence: its part of the sequence; -1 none.
        parts: how many there are.
    """
    return np.where(microbatch >= 0, microbatch * parts + np.maximum(sequence, 0), -1)


def chunks_in_turn(cell: Ints, chunk: Ints) -> Ints:
    """Return chunks numbered in the order in which each cell comes to them."""
    if not len(chunk) or (chunk == chunk[0]).all():
        return np.zeros(len(chunk), np.int64)
    groups = groups_of(cell, chunk)
    order = np.argsort(groups.first)
    first_of_cell = np.flatnonzero(np.diff(cell[groups.first[order]], prepend=-1))
    turn = places_in(order)
    base = np.zeros(len(groups), np.int64)
    base[first_of_cell] = first_of_cell
    return (turn - np.maximum.accumulate(base)[turn])[groups.of_row]


@frozen
class Numbers:
    """The microbatches of an iteration.

    Attributes:
        low: the first.
        high: the last.
        alike: whether every rank's chunk that goes back has all between, and no other has others.
        back: whether any goes back.
    """

    low: int
    high: int
    alike: bool
    back: bool


def first_of_all(every: Sequence[Numbers]) -> int | None:
    """Return the first microbatch of all iterations where all are alike; None where not.

    Args:
        every: of each iteration with known microbatches.
    """
    alike = {(own.low, own.high) for own in every if own.back}
    if len(alike) != 1 or not all(own.alike for own in every if own.back):
        return None
    ((low, high),) = alike
    return low if all(low <= own.low and own.high <= high for own in every) else None


def microbatches_from_zero(
    cell: Ints,
    chunk: Ints,
    kind: Ints,
    number: Ints,
    known: Bools,
    *,
    start: int | None = None,
    ranked: bool = False,
) -> tuple[Ints, Numbers | None]:
    """Return microbatches of one iteration that count from 0, and which they are.

    Those that are unknown are 0; where all are, the last is None.

    Args:
        cell: number of the rank of each operation, ascending.
        chunk: counted from 0 within the cell.
        kind: of the operation.
        number: microbatch as the report numbers it.
        known: whether that is known.
        start: the first one; None for the least, if all are alike, else to number them by rank.
        ranked: whether they are numbered by rank in any case.
    """
    if not known.any():
        return np.zeros(len(number), np.int64), None
    chunks = int(chunk.max()) + 1
    group, count = cell * chunks + chunk, (int(cell[-1]) + 1) * chunks
    if count > 4 * len(number):
        groups = groups_of(cell, chunk)
        group, count = groups.of_row, len(groups)
    forward, backward = known & (kind == FORWARD), known & (kind == BACKWARD)
    low_f, high_f = _extents(group[forward], count, number[forward])
    low_b, high_b = _extents(group[backward], count, number[backward])
    worked = (high_f >= 0) & (high_b >= 0)
    # The last rank of PyTorch's single-stage 1F1B numbers its forwards 1 to m and its backwards 0
    # to m-1: as many forwards as backwards are moved to where the backwards begin.
    ahead = np.where(worked & (high_f - low_f == high_b - low_b), low_f - low_b, 0)
    number = np.where(forward, number - ahead[group], number)
    forwards = np.bincount(group[forward], minlength=count)[worked]
    low, high = low_b[worked], high_b[worked]
    least, most = int(number[known].min()), int(number[known].max())
    alike = len(low) > 0 and bool((low == least).all() and (high == most).all())
    alike = alike and bool((forwards == high - low + 1).all())
    numbers = Numbers(least, most, alike, len(low) > 0)
    if start is None and not ranked and alike:
        start = least
    if start is not None:
        return np.where(known, number - start, 0), numbers
    return _ranked(np.zeros(len(number), np.int64), group, number, known), numbers


def _extents(group: Ints, count: int, number: Ints) -> tuple[Ints, Ints]:
    """Return the smallest and the largest number of each group; (largest possible, -1) for none."""
    low, high = np.full(count, MOST_MICROBATCHES, np.int64), np.full(count, -1, np.int64)
    np.minimum.at(low, group, number)
    np.maximum.at(high, group, number)
    return low, high


def _ranked(iteration: Ints, group: Ints, number: Ints, known: Bools) -> Ints:
    """Return each number's rank among those of its iteration; a few missing numbers keep theirs.

    Where the chunks of an iteration do not share their numbers (the two directions of a pipeline
    that is fed from both ends), it is the rank among those of its rank's chunk.
    """
    result = np.zeros(len(number), np.int64)
    rows = np.flatnonzero(known)
    iterations = groups_of(iteration[rows]).of_row
    of_iteration = groups_of(iteration[rows], number[rows])
    of_group = groups_of(group[rows], number[rows])
    in_iteration = _ranks_within(iteration[rows], of_iteration.first)[of_iteration.of_row]
    in_group = _ranks_within(group[rows], of_group.first)[of_group.of_row]
    sizes = np.bincount(iterations[of_iteration.first])
    # Where chunks usually have as many numbers as the iteration, one numbering holds for all.
    group_of_pair = np.unique(group[rows][of_group.first], return_inverse=True)[1]
    counts = np.bincount(group_of_pair)
    iteration_of_group = np.zeros(len(counts), np.int64)
    iteration_of_group[group_of_pair] = iterations[of_group.first]
    usual = np.array([int(np.median(counts[iteration_of_group == n])) for n in range(len(sizes))])
    shared = (sizes == usual)[iterations]
    low, high = group_extents(iterations, len(sizes), number[rows], number[rows])
    consecutive = _GAPS * (high - low + 1 - sizes) <= sizes
    in_iteration = np.where(consecutive[iterations], number[rows] - low[iterations], in_iteration)
    result[rows] = np.where(shared, in_iteration, in_group)
    return result


def _ranks_within(column: Ints, first: Ints) -> Ints:
    """Return the rank of each group among those that share a value of its leading column."""
    leading = column[first]
    start = np.flatnonzero(np.diff(leading, prepend=leading[:1] - 1))
    base = np.zeros(len(leading), np.int64)
    base[start] = start
    return np.arange(len(leading)) - np.maximum.accumulate(base)
