"""Estimate the relative lengths of microbatches from the times of their operations.

The length of a microbatch is the time that its operations take, divided by the mean over all
microbatches.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bubbleviz.model.columns import NONE, Floats, Ints, scatter
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import WORK, Phase

#: Maximum number of measured iterations.
_MAX_ITERATIONS = 40
#: Minimum variance of the lengths, as a multiple of the variance that is expected by chance.
_MORE_THAN_CHANCE = 2.0
#: Minimum standard deviation of lengths, as a fraction of their mean.
_MIN_SPREAD = 0.01


def measure_lengths(
    operations: Operations, pipeline: Ints, iterations: Sequence[int], microbatches: int
) -> Floats:
    """Return the length of each microbatch as a multiple of the mean length.

    The time of each operation is divided by the mean of its kind (rank, chunk and phase). The
    length of a microbatch is the mean of these quotients over its operations. Random noise in the
    operation times also makes lengths differ. :func:`_shrink_lengths` removes this variance.

    Args:
        operations: Operations of all ranks.
        pipeline: Pipeline of each rank, or -1 if unknown.
        iterations: Indices of the iterations to measure.
        microbatches: Number of microbatches in each iteration.

    Returns:
        Lengths of shape (rows, microbatches), with one row per measured iteration and pipeline. At
        most ``_MAX_ITERATIONS`` iterations are measured. There are no rows if the lengths vary no
        more than expected by chance, or if any microbatch has fewer than two operations.
    """
    no_lengths = np.zeros((0, microbatches))
    sampled_iterations = _sample_iterations(iterations)
    iteration = _number_iterations(operations, sampled_iterations)
    counts = (iteration != NONE) & mask_phases(operations.phase, WORK) & (operations.has_span == 1)
    counts &= (operations.microbatch >= 0) & (operations.microbatch < microbatches)
    rows = np.flatnonzero(counts)
    # Every microbatch needs two operations. This is checked before large arrays are allocated,
    # because a few operations can have huge microbatch numbers.
    if len(rows) < max(2 * microbatches, 1):
        return no_lengths
    used_pipelines = np.flatnonzero(np.bincount(pipeline[operations.rank[rows]] + 1))
    pipeline_of_row = np.searchsorted(used_pipelines, pipeline[operations.rank[rows]] + 1)
    cell = iteration[rows] * len(used_pipelines) + pipeline_of_row
    cell = cell * microbatches + operations.microbatch[rows]
    n_cells = len(sampled_iterations) * len(used_pipelines) * microbatches
    count = np.bincount(cell, minlength=n_cells)
    if count.min() < 2:
        return no_lengths
    lengths = _estimate_lengths(cell, count, _normalize_by_kind(operations, rows))
    return no_lengths if lengths is None else lengths.reshape(-1, microbatches)


def _sample_iterations(iterations: Sequence[int]) -> list[int]:
    """Return at most ``_MAX_ITERATIONS`` of the iterations, evenly spaced from the first one."""
    step = max(1, len(iterations) // _MAX_ITERATIONS)
    return list(iterations[::step][:_MAX_ITERATIONS])


def _estimate_lengths(cell: Ints, count: Ints, relative: Floats) -> Floats | None:
    """Estimate the length of each microbatch, and remove the variance that is due to chance.

    The length is the mean of ``relative`` over the operations of the microbatch.

    Args:
        cell: For each operation, the index of its microbatch in ``count``.
        count: Number of operations of each microbatch, at least 2.
        relative: Time of each operation as a multiple of the mean of its kind.

    Returns:
        Lengths as multiples of the mean length, or None if they vary no more than expected by
        chance.
    """
    length = np.bincount(cell, relative) / count
    residual = float(((relative - length[cell]) ** 2).sum()) / (len(cell) - len(count))
    return _shrink_lengths(length, residual * float((1 / count).mean()))


def _shrink_lengths(length: Floats, chance: float) -> Floats | None:
    """Shrink lengths towards their mean to remove the variance due to chance.

    The deviations from the mean are multiplied by ``sqrt((variance - chance) / variance)``.

    Args:
        length: Measured lengths.
        chance: Variance of the lengths that is expected by chance.

    Returns:
        The shrunk lengths divided by their mean. None if their variance is at most twice
        ``chance``, or if their standard deviation is below 0.01.
    """
    variance, mean = float(length.var()), float(length.mean())
    if variance <= _MORE_THAN_CHANCE * chance or variance < _MIN_SPREAD**2:
        return None
    shrunk = mean + (length - mean) * ((variance - chance) / variance) ** 0.5
    return np.asarray(shrunk / mean, np.float64)


def get_lengths(operations: Operations, iteration: int, microbatches: int) -> tuple[float, ...]:
    """Return the length of each microbatch in one iteration as a multiple of the mean length.

    Here the length of a microbatch is the total busy time of its forwards and backwards on all
    ranks. The variance due to chance is not subtracted.

    Args:
        operations: Operations of all ranks.
        iteration: Index of the iteration.
        microbatches: Number of microbatches in the iteration.

    Returns:
        The lengths. Empty if the microbatch number of an operation is unknown or not below
        ``microbatches``, or if no operation was busy.
    """
    rows = np.flatnonzero((operations.iteration == iteration) & mask_phases(operations.phase, WORK))
    microbatch = operations.microbatch[rows]
    if not microbatches or microbatch.min(initial=0) < 0:
        return ()
    if int(microbatch.max(initial=0)) >= microbatches:
        return ()
    busy_ns = np.bincount(microbatch, operations.busy_ns[rows], microbatches)
    return tuple((busy_ns / busy_ns.mean()).tolist()) if busy_ns.any() else ()


def _number_iterations(operations: Operations, iterations: Sequence[int]) -> Ints:
    """Return the index in ``iterations`` of each operation's iteration, or -1 if it is absent."""
    # The last entry of this lookup table stands for all other iterations.
    number = scatter(max(iterations, default=0) + 2, list(iterations), np.arange(len(iterations)))
    return np.asarray(number[np.minimum(operations.iteration, len(number) - 1)], np.int64)


def _normalize_by_kind(operations: Operations, rows: Ints) -> Floats:
    """Divide the busy time of each operation by the mean of its rank, chunk and phase.

    A mean below 1 ns is replaced with 1 ns.

    Args:
        operations: Operations of all ranks.
        rows: Rows of the operations. Must not be empty.
    """
    rank, chunk, phase = operations.rank[rows], operations.chunk[rows], operations.phase[rows]
    busy_ns = operations.busy_ns[rows]
    kind = (rank * (int(chunk.max()) + 2) + chunk + 1) * len(Phase) + phase
    mean_ns = np.bincount(kind, busy_ns) / np.maximum(np.bincount(kind), 1)
    return np.asarray(busy_ns / np.maximum(mean_ns[kind], 1.0), np.float64)
