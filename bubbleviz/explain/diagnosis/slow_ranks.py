"""Explain slow ranks with as few slow hosts, replicas and ranks as possible.

A cell is the work of one kind and virtual stage on one rank. Copies are cells that do the same work
on different ranks. The time of a cell is modeled as a product, in which most factors are 1::

    time = norm of the copies x factor of the host x factor of the replica x factor of the rank

The factors are found by greedy forward selection. In each round, a host or replica is a candidate
if at least three quarters of its ranks are slower than their copies. The candidate that best
explains the times is selected, and the times of its ranks are divided by its factor. So a second
host or replica that was hidden by the first one becomes visible in the next round. Ranks that are
still slow at the end are slow for separate reasons::

    stage 0, F      replica 0  15   replica 1  15   replica 2  10   replica 3  13
    host 0 x 1.5    replica 0  10   replica 1  10   replica 2  10   replica 3  13
    replica 3 x 1.3 replica 0  10   replica 1  10   replica 2  10   replica 3  10

The norm of the copies is their lower median, because a fault makes work slower and never faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from bubbleviz.explain.diagnosis.effects import (
    MIN_CHANGED_EFFECT,
    Effects,
    mask_changed_cells,
    order_by_loss,
)
from bubbleviz.explain.slowdown.work import group_medians
from bubbleviz.explain.slowness import compute_median_of_others
from bubbleviz.model.columns import Bools, Floats, Ints
from bubbleviz.model.grouping import find_distinct, group_rows, sort_rows

#: Maximum number of slow groups (hosts and replicas) and of single slow ranks to report.
_MAX_GROUPS, _MAX_RANKS = 4, 8
#: Maximum number of candidate hosts, and of candidate replicas, in a round.
_MAX_CANDIDATES = 16
#: Quantiles of the cell ratios that are tried as the factor of a candidate.
_QUANTILES = (0.0, 0.49, 0.51, 1.0)
#: Minimum fraction of slow ranks in a slow host or replica. A rank can look fast because one of its
#: copies is even slower.
_MIN_SLOW_RANKS = 0.75
#: Minimum gain of a common factor, as a fraction of the gain with a separate factor for each cell.
_MIN_GAIN = 0.5
#: Weight of the deviation of a cell that is faster than its norm. Slower cells have weight 1.
_FAST_WEIGHT = 2.0


@dataclass(frozen=True, eq=False, repr=False)
class SlowRanks:
    """Ranks that are slow for a common reason.

    Attributes:
        kind: ``host`` if a host is slow. ``rank`` if a replica or a single rank is slow.
        name: Identifier that is unique in the run, such as ``host-0``, ``replica-3`` or ``rank-6``.
        ranks: Indices of the slow ranks, ascending.
        factor: Time of each cell as a multiple of its time without the fault. 1 for cells that the
            fault does not slow down.
    """

    kind: str
    name: str
    ranks: tuple[int, ...]
    factor: Floats


@dataclass(frozen=True, eq=False, repr=False)
class _Candidate:
    """A host or replica whose ranks are slow.

    Attributes:
        kind: ``host`` for a host, or ``rank`` for a replica.
        name: Identifier that is unique in the run, such as ``host-0`` or ``replica-3``.
        is_member: Mask of the cells that are on ranks of the host or replica.
    """

    kind: str
    name: str
    is_member: Bools


@dataclass(frozen=True, eq=False, repr=False)
class _Comparison:
    """How each cell compares with its copies, one row per cell.

    Attributes:
        effect: Time of the cell divided by the median of its other copies, or NaN if it has none.
        is_slow: Whether ``effect`` is significant (:meth:`.Effects.is_significant`). On a rank that
            drifts or has slowed, it must also be greater than 1.05.
        lost_ns: Time that the cell loses over all iterations, or 0 if it is not slow.
    """

    effect: Floats
    is_slow: Bools
    lost_ns: Floats


def explain_slow_ranks(
    effects: Effects, host_of_rank: Ints
) -> tuple[tuple[SlowRanks, ...], Floats]:
    """Find the hosts, replicas and ranks that explain why cells of a run are slow.

    In each round, the host or replica with the largest gain (:func:`_measure_gain`) is selected.
    There are at most 4 rounds, and they end when no candidate has a positive gain. A host or
    replica that is selected twice gets the product of both factors. Then at most 8 single ranks
    follow (:func:`_list_single_ranks`).

    Args:
        effects: Effects on compute operation times, with the time of each cell.
        host_of_rank: Host number of each rank.

    Returns:
        slow_ranks: The slow hosts and replicas in the order in which they were selected, followed
            by the slow ranks.
        cell_ns: Time of each cell in ns, divided by the factors of the slow hosts and replicas.
    """
    cell_ns = effects.cell_ns.copy()
    selected: dict[str, SlowRanks] = {}
    for _ in range(_MAX_GROUPS):
        comparison = _compare_cells(effects, cell_ns)
        candidates = list(_list_candidates(effects, host_of_rank, comparison))
        if not candidates:
            break
        factors = [
            _fit_factor(effects, cell_ns, candidate.is_member, comparison.is_slow)
            for candidate in candidates
        ]
        gains = [
            _measure_gain(effects, cell_ns, candidate.is_member, factor)
            for candidate, factor in zip(candidates, factors, strict=True)
        ]
        best = int(np.argmax(gains))
        if gains[best] <= 0.0:
            break
        cell_ns = cell_ns / factors[best]
        slow_group = _make_slow_group(effects, candidates[best], factors[best])
        name = slow_group.name
        if name in selected:
            # Another kind of work turned out to be slow only after the first factor had been
            # divided out.
            slow_group = replace(slow_group, factor=slow_group.factor * selected[name].factor)
        selected[name] = slow_group
    return (*selected.values(), *_list_single_ranks(effects, cell_ns)), cell_ns


def _compare_cells(effects: Effects, cell_ns: Floats) -> _Comparison:
    """Compare the time of each cell with the median of its other copies.

    Args:
        effects: Effects on compute operation times.
        cell_ns: Time of each cell.
    """
    n_times = np.bincount(effects.computes.cells.of_row, minlength=len(cell_ns))
    norm_ns = compute_median_of_others(effects.copies.of_row, cell_ns)
    effect = cell_ns / norm_ns
    n_copies = np.bincount(effects.copies.of_row)[effects.copies.of_row]
    norm_variance = 1 / np.maximum(n_copies - 1, 1)
    is_slow = effects.is_significant(effect, n_times, norm_variance)
    is_remainder = mask_changed_cells(effects) & ~(effect > MIN_CHANGED_EFFECT)
    is_slow = np.asarray(is_slow & ~is_remainder, bool)
    lost_ns = np.where(is_slow, (cell_ns - norm_ns) * n_times, 0.0)
    return _Comparison(effect, is_slow, lost_ns)


def _list_candidates(
    effects: Effects, host_of_rank: Ints, comparison: _Comparison
) -> Iterator[_Candidate]:
    """Yield the hosts whose ranks are slow, then the replicas whose ranks are slow.

    Hosts and replicas are sorted by the time that they lose, largest first, and at most 16 of each
    are yielded (:func:`_select_slow_groups`).

    Args:
        effects: Effects on compute operation times.
        host_of_rank: Host number of each rank.
        comparison: How each cell compares with its copies.
    """
    rank_of_cell = effects.computes.rank_of_cell
    host_of_cell = host_of_rank[rank_of_cell]
    for host in _select_slow_groups(host_of_cell, rank_of_cell, comparison):
        yield _Candidate("host", f"host-{host}", host_of_cell == host)
    replica_of_cell = effects.computes.replica_of_cell
    for replica in _select_slow_groups(replica_of_cell, rank_of_cell, comparison):
        yield _Candidate("rank", f"replica-{replica}", replica_of_cell == replica)


def _select_slow_groups(number: Ints, rank_of_cell: Ints, comparison: _Comparison) -> list[int]:
    """Return the numbers of the slow groups, at most 16, sorted by loss, largest first.

    A group is slow if at least three quarters of its ranks are slow. A rank is slow if at least one
    of its cells is slow. A group is left out if it has only one rank, or all ranks of the run.

    Args:
        number: Host or replica of each cell, or -1 if unknown.
        rank_of_cell: Rank of each cell.
        comparison: How each cell compares with its copies.
    """
    ranks = group_rows(rank_of_cell)
    is_slow_rank = np.bincount(ranks.of_row, comparison.is_slow, minlength=len(ranks)) > 0
    lost_of_rank_ns = np.bincount(ranks.of_row, comparison.lost_ns, minlength=len(ranks))
    groups = group_rows(number[ranks.first])
    size = np.bincount(groups.of_row, minlength=len(groups))
    n_slow = np.bincount(groups.of_row, is_slow_rank, minlength=len(groups))
    lost_of_group_ns = np.bincount(groups.of_row, lost_of_rank_ns, minlength=len(groups))
    number_of_group = number[ranks.first][groups.first]
    is_slow_group = (size > 1) & (size < len(ranks)) & (number_of_group >= 0)
    is_slow_group &= n_slow >= _MIN_SLOW_RANKS * size
    by_loss = sort_rows(-lost_of_group_ns)
    selected = by_loss[is_slow_group[by_loss]][:_MAX_CANDIDATES]
    return [int(of_group) for of_group in number_of_group[selected]]


def _fit_factor(effects: Effects, cell_ns: Floats, is_member: Bools, is_slow: Bools) -> Floats:
    """Return the factor of each cell, assuming that the member cells are slow for a common reason.

    Member cells with the same kind of work have the same factor. To find it, each cell is divided
    by the norm of its copies that are not members (:func:`_compare_with_others`). Several quantiles
    of these ratios are tried (``_QUANTILES``), raised to at least 1. The quantile with the smallest
    misfit (:func:`_measure_misfit`) is the factor.

    The factor is 1 in three cases:

    - The cell is not a member.
    - Fewer than half of the member cells with the same kind of work are slow.
    - No rank outside the group does any of the same work as the members of this kind.

    Args:
        effects: Effects on compute operation times.
        cell_ns: Time of each cell.
        is_member: Mask of the member cells.
        is_slow: Mask of the slow cells.
    """
    kind = effects.computes.kind_of_cell
    n_kinds = int(kind.max(initial=-1)) + 1
    factors = _list_factors(effects, cell_ns, is_member, is_slow)
    misfits = np.empty((len(_QUANTILES), n_kinds))
    for number, factor_of_kind in enumerate(factors):
        factor = np.where(is_member, factor_of_kind[kind], 1.0)
        misfit = _measure_misfit(effects, cell_ns / factor)
        misfits[number] = np.bincount(kind, misfit, minlength=n_kinds)
    best = factors[misfits.argmin(axis=0), np.arange(n_kinds)]
    return np.where(is_member, best[kind], 1.0)


def _list_factors(effects: Effects, cell_ns: Floats, is_member: Bools, is_slow: Bools) -> Floats:
    """Return the factors to try for each kind of work, shape (quantiles, kinds).

    Args:
        effects: Effects on compute operation times.
        cell_ns: Time of each cell.
        is_member: Mask of the member cells.
        is_slow: Mask of the slow cells.
    """
    kind_of_cell = effects.computes.kind_of_cell
    n_kinds = int(kind_of_cell.max(initial=-1)) + 1
    kind, ratio = (
        column[is_member]
        for column in (kind_of_cell, _compare_with_others(effects, cell_ns, is_member))
    )
    n_members = np.bincount(kind, minlength=n_kinds)
    n_slow = np.bincount(kind, is_slow[is_member], minlength=n_kinds)
    factors = np.ones((len(_QUANTILES), n_kinds))
    for slowed in np.flatnonzero((n_members > 0) & (2 * n_slow >= n_members)).tolist():
        ratios = np.sort(ratio[~np.isnan(ratio) & (kind == slowed)])
        if len(ratios):
            positions = np.rint(np.array(_QUANTILES) * (len(ratios) - 1)).astype(np.int64)
            factors[:, slowed] = np.maximum(ratios[positions], 1.0)
    return factors


def _measure_gain(effects: Effects, cell_ns: Floats, is_member: Bools, factor: Floats) -> float:
    """Return by how much a common factor of the member cells reduces the misfit of all cells.

    If each member cell had a separate factor, the gain would be larger. If the gain of the common
    factor is less than half of that, the members are not slow for a common reason, and 0 is
    returned.

    Args:
        effects: Effects on compute operation times.
        cell_ns: Time of each cell.
        is_member: Mask of the member cells.
        factor: Factor of each cell if the members are slow for a common reason.
    """
    ratio = _compare_with_others(effects, cell_ns, is_member)
    is_scaled = is_member & ~np.isnan(ratio)
    own_factor = np.where(is_scaled, np.maximum(ratio, 1.0), factor)
    misfit, with_common, with_own = (
        float(_measure_misfit(effects, cell_ns / divisor).sum())
        for divisor in (1.0, factor, own_factor)
    )
    gain = misfit - with_common
    return gain if gain >= _MIN_GAIN * (misfit - with_own) else 0.0


def _compare_with_others(effects: Effects, cell_ns: Floats, is_member: Bools) -> Floats:
    """Divide the time of each cell by the lower median of its copies that are not members.

    The result is NaN if all copies of the cell are members.
    """
    copies = effects.copies
    others_ns = group_medians(copies.of_row[~is_member], len(copies), cell_ns[~is_member])
    return np.asarray(cell_ns / others_ns[copies.of_row], np.float64)


def _measure_misfit(effects: Effects, cell_ns: Floats) -> Floats:
    """Return how much each cell differs from its norm, which is the lower median of its copies.

    The misfit is ``abs(log(cell / norm))``. The misfit counts twice for cells that are faster than
    their norm, because faults never make work faster.
    """
    copies = effects.copies
    norm_ns = group_medians(copies.of_row, len(copies), cell_ns)
    deviation = np.log(cell_ns / norm_ns[copies.of_row])
    return np.asarray(np.where(deviation < 0, -_FAST_WEIGHT * deviation, deviation), np.float64)


def _make_slow_group(effects: Effects, candidate: _Candidate, factor: Floats) -> SlowRanks:
    """Build the slow ranks of a candidate.

    Args:
        effects: Effects on compute operation times.
        candidate: The host or replica.
        factor: Factor of each cell.
    """
    ranks = find_distinct(effects.computes.rank_of_cell[candidate.is_member]).tolist()
    return SlowRanks(candidate.kind, candidate.name, tuple(ranks), factor)


def _list_single_ranks(effects: Effects, cell_ns: Floats) -> Iterator[SlowRanks]:
    """Yield the ranks that have slow cells, sorted by the time that they lose, largest first.

    At most 8 ranks are yielded. The factor of a slow cell is its time divided by the median of its
    other copies.

    Args:
        effects: Effects on compute operation times.
        cell_ns: Time of each cell, divided by the factors of slow hosts and replicas.
    """
    rank_of_cell = effects.computes.rank_of_cell
    comparison = _compare_cells(effects, cell_ns)
    for rank in order_by_loss(rank_of_cell, comparison.lost_ns)[:_MAX_RANKS]:
        is_slow = comparison.is_slow & (rank_of_cell == rank)
        factor = np.where(is_slow, comparison.effect, 1.0)
        yield SlowRanks("rank", f"rank-{rank}", (rank,), factor)
