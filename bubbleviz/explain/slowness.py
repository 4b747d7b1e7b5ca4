"""Measure how slow ranks are compared with peers that do the same work.

Outputs show the columns of :class:`Slowness`. The diagnosis, ``watch`` and the standouts compare
other times with one of the two norms defined here:

- The median of all peers is the norm for display. One slow rank among three or more hardly changes
  the median, so the values of the remaining ranks stay at 1.
- The median of the *other* peers is the norm for the diagnosis, which splits a time into effects.
  With this norm, no rank is compared with itself. However, one slow rank among three makes the
  other two look fast.

::

    times             1.0   1.0   1.3
    of the median     1.0   1.0   1.3
    of the others     0.87  0.87  1.3

If there are only two ranks, each one is compared with the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bubbleviz.count.iterations import Iteration
from bubbleviz.count.rank_iterations import get_rank_column, list_indices
from bubbleviz.count.statistics import compute_median
from bubbleviz.model.columns import NONE, Floats, Ints
from bubbleviz.model.grouping import group_rows, number_within_groups, sort_rows
from bubbleviz.model.operations import Rank


@dataclass(frozen=True, eq=False, repr=False)
class Slowness:
    """Scores and slowdown of each rank, one row per rank.

    The scores are defined as in NVIDIA's resiliency extension (straggler detection, usage guide),
    and are computed over all kernels of F, B, W, BW, R and FB together. Scores range from 0 to 1,
    and 0.5 means twice as slow. The scores of a rank that ran no kernels are NaN.

    Attributes:
        relative_score: Mean kernel time per iteration of the fastest rank on the same stage,
            divided by the same mean for the rank itself.
        individual_score: Kernel time of the rank in its fastest iteration, divided by its kernel
            time in the last averaged iteration in which it ran kernels.
        replay: Function that returns the slowdown S of ranks, keyed by rank index; see
            :func:`compute_rank_slowdowns`.
    """

    relative_score: Floats
    individual_score: Floats
    replay: Callable[[], Mapping[int, float]]

    @cached_property
    def slowdown(self) -> Floats:
        """Slowdown S: how many times longer iterations take because of the rank, or NaN if unknown.

        The iterations are replayed on first access, which takes seconds for a million operations.
        """
        by_rank = self.replay()
        column = np.full(len(self.relative_score), np.nan)
        column[list(by_rank)] = list(by_rank.values())
        return column


def measure_slowness(
    ranks: Sequence[Rank],
    iterations: Sequence[Iteration],
    replay: Callable[[], Mapping[int, float]],
) -> Slowness:
    """Compute the scores of all ranks from their kernel times in the averaged iterations.

    :class:`Slowness` defines the scores.

    Args:
        ranks: The ranks, by index.
        iterations: All iterations; only averaged ones are measured.
        replay: Function that returns the slowdown S of ranks, keyed by rank index.
    """
    kernel_ns = _list_kernel_times(len(ranks), iterations)
    is_known = ~np.isnan(kernel_ns)
    counts, known_ns = is_known.sum(axis=0), np.where(is_known, kernel_ns, 0.0)
    mean_ns = compute_multiples(known_ns.sum(axis=0), counts.astype(np.float64))
    rank = np.flatnonzero(counts)
    peers = group_by_stage([member.stage for member in ranks])
    relative = score_by_fastest(rank, peers[rank], mean_ns[rank], len(ranks))
    if not len(iterations):
        return Slowness(relative, np.full(len(ranks), np.nan), replay)
    last = len(iterations) - 1 - is_known[::-1].argmax(axis=0)
    last_ns = known_ns[last, np.arange(len(ranks))]
    best_ns = np.where(is_known, kernel_ns, np.inf).min(axis=0)
    return Slowness(relative, compute_multiples(best_ns, last_ns), replay)


def _list_kernel_times(n_ranks: int, iterations: Sequence[Iteration]) -> Floats:
    """Return the kernel time of each rank in each averaged iteration, in ns.

    Args:
        n_ranks: Number of ranks.
        iterations: All iterations.

    Returns:
        Times of shape (iterations, ranks). NaN if the iteration is not averaged, or if the rank ran
        no kernels in it.
    """
    kernel_ns = np.full((len(iterations), n_ranks), np.nan)
    for iteration in iterations:
        if iteration.averaged:
            active_ns = get_rank_column(iteration.ranks, "active_ns").astype(np.float64)
            kernel_ns[iteration.index, list_indices(iteration.ranks)] = active_ns
    kernel_ns[kernel_ns <= 0] = np.nan
    return kernel_ns


def score_by_fastest(row: Ints, group: Ints, time_ns: Floats, rows: int) -> Floats:
    """Return the best possible time of each row, divided by its measured time.

    The measured time of a row is the sum of its times. For the best possible time, each time is
    replaced with the shortest time in its group.

    Args:
        row: For each time, the index of the row that it belongs to.
        group: For each time, the number of its group. Times in the same group are for the same
            work.
        time_ns: The times, all positive.
        rows: Number of rows.

    Returns:
        Scores from 0 to 1, shape (rows,). The score of a row without times is NaN.
    """
    groups = group_rows(group)
    fastest_ns = np.full(len(groups), np.inf)
    np.fmin.at(fastest_ns, groups.of_row, time_ns)
    at_best_ns, measured_ns = np.zeros(rows), np.zeros(rows)
    np.add.at(at_best_ns, row, fastest_ns[groups.of_row])
    np.add.at(measured_ns, row, time_ns)
    return compute_multiples(at_best_ns, measured_ns)


def compute_rank_slowdowns(
    ranks: Ints,
    stage: Ints,
    replica: Ints,
    by_stage: Mapping[int, float],
    by_replica: Mapping[int, float],
) -> dict[int, float]:
    """Return the slowdown S of each rank: the smaller S of its stage and its replica.

    S is how many times longer iterations take than ideal ones. This definition for ranks is from
    Lin et al. (arXiv 2505.05713). It needs one replay per stage and one per replica instead of one
    per rank.

    Args:
        ranks: Indices of the ranks.
        stage: Stage of each rank.
        replica: Replica of each rank.
        by_stage: Slowdown S of each stage, keyed by stage.
        by_replica: Slowdown S of each replica, keyed by replica.

    Returns:
        S keyed by rank index. If only one of the two values is known, it is used. A rank is left
        out if both are unknown.
    """
    slowdowns = {}
    for rank, of_stage, of_replica in zip(
        ranks.tolist(), stage.tolist(), replica.tolist(), strict=True
    ):
        slowdown = min(by_stage.get(of_stage, np.inf), by_replica.get(of_replica, np.inf))
        if slowdown < np.inf:
            slowdowns[rank] = slowdown
    return slowdowns


def group_by_stage(stages: Sequence[int | None]) -> Ints:
    """Return the group number of each rank, numbered from 0 in stage order.

    Ranks of the same stage share a group. Ranks whose stage is unknown form one group, the first.
    """
    stage_numbers = np.array([NONE if stage is None else stage for stage in stages], np.int64)
    return group_rows(stage_numbers).of_row


def group_peers(stages: Sequence[int | None]) -> Ints:
    """Return the group number of each rank: one group per stage, or a single group 0 for all ranks.

    All ranks are in a single group if any stage has only one rank. Groups of stages are numbered as
    in :func:`group_by_stage`.
    """
    groups = group_by_stage(stages)
    is_alone = (np.bincount(groups) == 1).any()
    return np.zeros_like(groups) if is_alone else groups


def compute_median_of_peers(group: Ints, values: Floats) -> Floats:
    """For each value, return the median of its group. NaNs are ignored.

    The median is NaN if all values of the group are NaN.

    Args:
        group: Zero-based group number of each value.
        values: One value per rank.
    """
    medians = np.full(len(values), np.nan)
    for number in range(int(group.max(initial=NONE)) + 1):
        members = group == number
        group_values = values[members]
        medians[members] = compute_median(group_values[~np.isnan(group_values)])
    return medians


def compute_median_of_stage(
    stages: Sequence[int | None], values: Floats, *, is_pipeline: bool
) -> Floats:
    """For each rank, return the median of the values of its stage.

    Args:
        stages: Stage of each rank, or None if unknown.
        values: One value per rank; NaNs are ignored.
        is_pipeline: Whether ranks whose stage is unknown may do different work. If true, their
            median is NaN. If false, they are compared with each other.
    """
    medians = compute_median_of_peers(group_by_stage(stages), values)
    is_unknown = np.array([stage is None for stage in stages], bool)
    return np.where(is_unknown & is_pipeline, np.nan, medians)


def measure_excess(group: Ints, values: Floats) -> Floats:
    """Return how much each value exceeds the norm of its group, as a fraction of the norm.

    The norm depends on the size of the group:

    - Three or more: the median of the group.
    - Two: the other value.
    - One: there is no norm, and the result is 0. The result is also 0 if the norm is 0.

    Args:
        group: Zero-based group number of each value.
        values: One value per rank, without NaNs.
    """
    is_pair = np.bincount(group)[group] == 2
    norms = np.where(
        is_pair, compute_median_of_others(group, values), compute_median_of_peers(group, values)
    )
    return np.nan_to_num(compute_multiples(values, norms) - 1.0)


def compute_median_of_others(group: Ints, values: Floats) -> Floats:
    """For each value, return the median of the other values in its group.

    The result is NaN if the group contains no other value::

        sorted      a   b   c   d        median of the values other than b: c
                        ^

    Args:
        group: Zero-based group number of each value.
        values: One value per row.
    """
    count = len(values)
    order = sort_rows(group, values)
    size = np.bincount(group)[group[order]] if count else np.zeros(0, np.int64)
    position = number_within_groups(group[order])
    first = np.arange(count) - position
    sum_of_middle = np.zeros(count)
    for number in ((size - 2) // 2, (size - 1) // 2):
        middle = first + number + (position <= number)
        sum_of_middle += values[order][np.clip(middle, 0, max(count - 1, 0))]
    medians = np.empty(count)
    medians[order] = np.where(size > 1, sum_of_middle / 2, np.nan)
    return medians


def compute_multiples(values: Floats, norms: Floats) -> Floats:
    """Divide values by norms. The result is NaN if a norm is not positive or is NaN."""
    multiples = np.full(len(values), np.nan)
    return np.asarray(np.divide(values, norms, out=multiples, where=norms > 0), np.float64)
