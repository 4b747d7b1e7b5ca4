"""Order numbers: chunks and microbatches of measured orders, counted from 0 as in a plan."""

from __future__ import annotations

import numpy as np

from bubbleviz.explain.recognition.order_codes import BACKWARD, FORWARD, MOST_MICROBATCHES
from bubbleviz.model.columns import Bools, Ints
from bubbleviz.model.grouping import groups_of, places_in
from bubbleviz.model.intervals import group_extents

#: Microbatch numbers with one gap in this many, or more, are not consecutive.
_GAPS = 3


def combined_microbatch(microbatch: Ints, sequence: Ints) -> Ints:
    """Return one number for each (microbatch, part of the sequence); -1 where it is unknown."""
    parts = int(sequence.max(initial=0)) + 1
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


def microbatches_from_zero(
    iteration: Ints, cell: Ints, chunk: Ints, kind: Ints, number: Ints, known: Bools
) -> Ints:
    """Return microbatches that count from 0 in each iteration; 0 where they are unknown.

    Args:
        iteration: of each operation.
        cell: number of its (iteration, rank), ascending.
        chunk: counted from 0 within the cell.
        kind: of the operation.
        number: microbatch as the report numbers it.
        known: whether that is known.
    """
    if not known.any():
        return np.zeros(len(number), np.int64)
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
    same_numbers = (
        len(low) > 0
        and bool((low == low[0]).all() and (high == high[0]).all())
        and bool((forwards == high - low + 1).all())
        and bool((number[known] >= low[0]).all() and (number[known] <= high[0]).all())
    )
    if same_numbers:
        return np.where(known, number - low[0], 0)
    return _ranked(iteration, group, number, known)


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
