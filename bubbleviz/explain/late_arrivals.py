"""Find the rank that arrives last at each barrier, and the part of its step that makes it late.

A barrier is a collective, which no rank can leave before all of its ranks have entered. The ranks
leave together, work independently, and meet again at the next barrier of the same ranks::

    rank 0   ┤├─ F ─┤├─ B ─┤├─ waits ────┤
    rank 1   ┤├─ F ─┤├───── B ─────┤├────┤     arrives last: B takes longer than on rank 0
    rank 2   ┤├─ F ─┤├─ B ─┤├─ waits ────┤

Only durations on the same rank are compared, so no common clock is needed. The rank that spends the
shortest time in a barrier arrives last. Its *lateness* is the mean time by which the other ranks
wait longer. The lateness is divided into parts of the step: the time that the last rank spent in a
part since the previous barrier, minus the mean time that the other ranks spent in it. The remainder
is :data:`OTHER`, so the parts add up to exactly the lateness.

Sets of ranks may overlap, as with tensor parallelism within data parallelism. A rank that arrives
last because it waited at a barrier of another set is not late itself, so this time is subtracted.
A rank that is late for two sets delays the others only once, so only the set with the largest sum
counts in each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bubbleviz.count.statistics import measure_spread
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Bools, Floats, Ints, Table, make_mask
from bubbleviz.model.grouping import (
    Groups,
    find_distinct,
    find_first_rows,
    group_rows,
    sort_rows,
)

#: Name of the time outside of all named parts.
OTHER = "other"
#: A rank is late if others wait for it for at least this fraction of a step, on average.
MIN_LATE_SHARE = 0.01
#: A rank is usually late if it causes at least this fraction of all lateness.
_MIN_SHARE_OF_LATENESS = 0.5
#: From a single step, chance cannot be judged. A rank or host is named only if others wait for it
#: for at least this fraction of the step.
_MIN_SHARE_OF_SINGLE_STEP = 0.05
#: A host is usually late if its ranks cause at least this fraction of all lateness.
_MIN_SHARE_OF_HOST = 0.75
#: Multiplier and shift of the hash that distinguishes sets of ranks (SplitMix64).
_HASH_FACTOR, _HASH_SHIFT = np.uint64(0x9E3779B97F4A7C15), np.uint64(29)


@dataclass(frozen=True, eq=False, repr=False)
class Visits(Table):
    """Visits of ranks to barriers, one row per barrier and rank, in any order.

    Attributes:
        barrier: Number of the barrier, the same on all ranks.
        rank: Index of the rank.
        step: Index of the step, or -1 if unknown.
        enter_ns: Time at which the rank entered, on any clock of the rank.
        leave_ns: Time at which the rank left, on the same clock.
        begin_ns: Common time, on the same clock, from which lateness is divided into parts if no
            previous barrier of the same ranks is known, or -1 if unknown.
    """

    barrier: Ints
    rank: Ints
    step: Ints
    enter_ns: Ints
    leave_ns: Ints
    begin_ns: Ints


@dataclass(frozen=True, eq=False, repr=False)
class PartTimes(Table):
    """Times at which ranks were in a part of their step, in any order.

    Attributes:
        rank: Index of the rank.
        part: Index into ``names``.
        start_ns: Start, on the clock of the rank's visits.
        end_ns: End, on the same clock.
        names: Names of the parts, without :data:`OTHER`.
    """

    rank: Ints
    part: Ints
    start_ns: Ints
    end_ns: Ints
    names: tuple[str, ...] = field(metadata={"shared": True})


@dataclass(frozen=True, eq=False, repr=False)
class LateArrivals(Table):
    """The last arrival at each barrier with at least two ranks, sorted by (step, time).

    Attributes:
        barrier: Number of the barrier.
        step: Index of the step, or -1 if unknown.
        rank: Rank that arrived last. If several ranks spend the same time in the barrier, the
            lowest rank.
        n_ranks: Number of ranks that met at the barrier.
        rank_set: Number of the set of ranks that met at the barrier.
        late_ns: Mean time by which the other ranks waited longer, minus the time for which the last
            rank itself waited at barriers of other sets.
        part_ns: ``late_ns`` divided into parts, shape (barriers, parts + 1). The last column is
            the remainder. A part is negative if the last rank spent less time in it.
        is_divided: Mask of the barriers whose lateness is divided. For all other barriers, no
            common time before the barrier is known, and ``part_ns`` is 0.
        names: Names of the parts, followed by :data:`OTHER`.
    """

    barrier: Ints
    step: Ints
    rank: Ints
    n_ranks: Ints
    rank_set: Ints
    late_ns: Ints
    part_ns: Ints
    is_divided: Bools
    names: tuple[str, ...] = field(metadata={"shared": True})


@dataclass(frozen=True)
class LateRank:
    """How late one rank arrived at barriers, over all steps.

    Attributes:
        rank: Index of the rank.
        steps: Number of steps in which the rank arrived last at one or more barriers.
        barriers: Number of counted barriers at which it arrived last.
        late_ns: Sum of its lateness.
        parts: (part, time in ns) pairs, longest first. The times add up to the lateness at the
            barriers whose lateness is divided.
    """

    rank: int
    steps: int
    barriers: int
    late_ns: int
    parts: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Lateness:
    """Which ranks arrive last at barriers.

    Attributes:
        arrivals: The last arrival at each barrier.
        ranks: Ranks that arrived last at one or more barriers, largest sum of lateness first.
        n_steps: Number of steps that contain barriers.
        n_ranks: Number of ranks that visit barriers.
        step_ns: Mean length of a step, or 0 if unknown.
        hidden_part: Name of the part in which barriers were not recorded separately from work, or
            "". Time that a rank loses in this part is not visible.
    """

    arrivals: LateArrivals
    ranks: tuple[LateRank, ...]
    n_steps: int
    n_ranks: int
    step_ns: float
    hidden_part: str = ""

    @property
    def main(self) -> LateRank | None:
        """The rank for which others usually wait, or None.

        Others must wait for this rank for at least 1 % of a step on average, and for all other
        ranks together no longer than for this one. The lateness must exceed what chance gives this
        rank if all ranks are equally fast.
        """
        if not self.ranks:
            return None
        first = self.ranks[0]
        if not self._is_noticeable(first, _MIN_SHARE_OF_LATENESS):
            return None
        is_first = self.arrivals.rank == first.rank
        return first if self._is_beyond_chance(is_first, 1) else None

    def find_late_host(self, hosts: Sequence[str]) -> LateHost | None:
        """Return the host whose ranks usually arrive last, or None.

        Its ranks must cause at least three quarters of all lateness, at least 1 % of a step on
        average, and more lateness than chance gives them if all ranks are equally fast. At most
        half of all ranks may be on this host.

        Args:
            hosts: Host of each rank.
        """
        host_of_last = np.array([hosts[rank] for rank in self.arrivals.rank.tolist()], object)
        for host in sorted({hosts[rank.rank] for rank in self.ranks}):
            n_on_host = sum(of_rank == host for of_rank in hosts)
            is_on_host = host_of_last == host
            if 2 * n_on_host > len(hosts) or not self._is_beyond_chance(is_on_host, n_on_host):
                continue
            on_host = self.arrivals.take(is_on_host)
            (together,) = sum_by_rank(on_host.replace_columns(rank=np.zeros_like(on_host.rank)))
            if self._is_noticeable(together, _MIN_SHARE_OF_HOST):
                return LateHost(host, together)
        return None

    def _is_noticeable(self, late: LateRank, min_share: float) -> bool:
        """Return whether lateness is long enough, and a large enough share of all lateness."""
        late_ns = sum(rank.late_ns for rank in self.ranks)
        min_late_ns = MIN_LATE_SHARE * self.step_ns * self.n_steps
        return 0 < min_late_ns <= late.late_ns and late.late_ns >= min_share * late_ns

    def _is_beyond_chance(self, is_last: Bools, n_ranks: int) -> bool:
        """Return whether some ranks cause more lateness than chance gives them.

        If all ranks are equally fast, each rank causes the same lateness on average. The excess is
        compared with the 95 % confidence interval of its mean over the steps (Student's t).

        Args:
            is_last: Mask of the arrivals at which these ranks were last.
            n_ranks: Number of these ranks.
        """
        steps = group_rows(self.arrivals.step)
        late_ns = self.arrivals.late_ns
        total_ns = np.bincount(steps.of_row, late_ns, minlength=len(steps))
        of_ranks_ns = np.bincount(steps.of_row, late_ns * is_last, minlength=len(steps))
        if len(steps) < 2:
            return bool(of_ranks_ns.sum() >= _MIN_SHARE_OF_SINGLE_STEP * self.step_ns)
        excess_ns = of_ranks_ns - total_ns * n_ranks / self.n_ranks
        spread = measure_spread(excess_ns.tolist())
        return (spread.mean or 0.0) > (spread.ci95 or 0.0)


@dataclass(frozen=True)
class LateHost:
    """A host whose ranks usually arrive last.

    Attributes:
        host: Name of the host.
        late: Lateness of its ranks together. ``rank`` is 0.
    """

    host: str
    late: LateRank


def measure_lateness(
    visits: Visits, parts: PartTimes, step_ns: float, is_counted: Bools
) -> Lateness:
    """Measure which ranks arrive last at barriers, and which part of the step makes them late.

    Args:
        visits: Visits of ranks to barriers. Visits outside of the counted steps only help to find
            previous barriers.
        parts: Parts of the ranks' steps.
        step_ns: Mean length of a step, or 0 if unknown.
        is_counted: Mask of the steps whose barriers are counted. Barriers whose step is unknown are
            left out. So are steps with a barrier whose lateness cannot be divided, such as the
            first step, unless this leaves no step.
    """
    arrivals = find_late_arrivals(visits, parts)
    arrivals = arrivals.take(np.append(is_counted, False)[arrivals.step])
    arrivals = _select_divided_steps(arrivals)
    n_steps = len(find_distinct(arrivals.step))
    n_ranks = len(find_distinct(visits.rank))
    return Lateness(arrivals, sum_by_rank(arrivals), n_steps, n_ranks, step_ns)


def _select_divided_steps(arrivals: LateArrivals) -> LateArrivals:
    """Return the arrivals of the steps in which the lateness of every barrier is divided.

    If there are no such steps, all arrivals are returned.
    """
    steps = group_rows(arrivals.step)
    n_undivided = np.bincount(steps.of_row, ~arrivals.is_divided, minlength=len(steps))
    is_complete = n_undivided == 0
    return arrivals.take(is_complete[steps.of_row]) if is_complete.any() else arrivals


def find_late_arrivals(visits: Visits, parts: PartTimes) -> LateArrivals:
    """Find the last arrival at each barrier, and divide its lateness into parts.

    Args:
        visits: Visits of ranks to barriers. Barriers with a single rank are left out.
        parts: Parts of the ranks' steps.
    """
    names = (*parts.names, OTHER)
    visits = visits.take(sort_rows(visits.barrier, visits.rank))
    barriers = group_rows(visits.barrier)
    size = np.bincount(barriers.of_row, minlength=len(barriers))
    visits = visits.take(size[barriers.of_row] > 1)
    barriers = group_rows(visits.barrier)
    n_ranks = np.bincount(barriers.of_row, minlength=len(barriers)).astype(np.int64)

    inside_ns = visits.leave_ns - visits.enter_ns
    last = find_first_rows(barriers.of_row, inside_ns)
    late_ns = np.rint(_average_excess(-inside_ns, barriers, last)).astype(np.int64)
    rank_set = _number_rank_sets(visits.rank, barriers)
    since_ns = _find_common_times(visits, rank_set[barriers.of_row], barriers)
    is_divided = np.bincount(barriers.of_row, since_ns == NONE, minlength=len(barriers)) == 0
    part_ns = np.zeros((len(barriers), len(names)), np.int64)
    spent_ns = _measure_parts(visits, since_ns, parts)
    for part in range(len(parts.names)):
        excess_ns = _average_excess(spent_ns[:, part], barriers, last)
        part_ns[:, part] = np.where(is_divided, np.rint(excess_ns), 0)
    remainder_ns = late_ns - part_ns.sum(axis=1)
    waited_ns = _sum_earlier_waits(visits, since_ns, inside_ns - inside_ns[last][barriers.of_row])
    excess_wait_ns = np.rint(_average_excess(waited_ns, barriers, last)).astype(np.int64)
    inherited_ns = np.clip(np.minimum(excess_wait_ns, remainder_ns), 0, late_ns)
    late_ns -= inherited_ns
    remainder_ns -= inherited_ns
    part_ns[:, -1] = np.where(is_divided, remainder_ns, 0)
    arrivals = LateArrivals(
        barrier=visits.barrier[last],
        step=visits.step[last],
        rank=visits.rank[last],
        n_ranks=n_ranks,
        rank_set=rank_set,
        late_ns=late_ns,
        part_ns=part_ns,
        is_divided=np.asarray(is_divided, bool),
        names=names,
    )
    return arrivals.take(sort_rows(arrivals.step, visits.enter_ns[last]))


def _average_excess(values: Ints, barriers: Groups, last: Ints) -> Floats:
    """Return the value of the last rank minus the mean value of the other ranks, per barrier.

    Args:
        values: One value per visit.
        barriers: Groups of visits to the same barrier, each with at least two rows.
        last: Row of the last rank's visit, per barrier.
    """
    total = intervals.group_sum(barriers.of_row, len(barriers), values)
    n_ranks = np.bincount(barriers.of_row, minlength=len(barriers))
    of_last = values[last]
    mean_of_others = (total - of_last) / np.maximum(n_ranks - 1, 1)
    return np.asarray(of_last - mean_of_others, np.float64)


def _sum_earlier_waits(visits: Visits, since_ns: Ints, wait_ns: Ints) -> Ints:
    """Return for how long each rank waited at barriers that it entered since the previous one.

    Args:
        visits: The visits.
        since_ns: When the rank left the previous barrier of the same ranks, or -1 if unknown.
        wait_ns: For each visit, the time for which the rank waited for the last one.

    Returns:
        One sum per visit, or 0 if ``since_ns`` is unknown.
    """
    order = sort_rows(visits.rank, visits.enter_ns)
    sums_ns = np.append(0, np.cumsum(wait_ns[order]))
    keys = visits.rank[order], visits.enter_ns[order]
    low_ns = np.where(since_ns == NONE, visits.enter_ns, since_ns)
    begin = _count_earlier(*keys, visits.rank, low_ns)
    end = _count_earlier(*keys, visits.rank, visits.enter_ns)
    return np.asarray(sums_ns[np.maximum(end, begin)] - sums_ns[begin], np.int64)


def _count_earlier(rank: Ints, time_ns: Ints, ranks: Ints, times_ns: Ints) -> Ints:
    """Return how many rows come before each (rank, time) pair.

    Args:
        rank: Rank of each row.
        time_ns: Time of each row. The rows are sorted by (rank, time).
        ranks: Ranks of the pairs.
        times_ns: Times of the pairs.
    """
    is_query = np.repeat((True, False), (len(ranks), len(rank)))
    order = sort_rows(np.concatenate((ranks, rank)), np.concatenate((times_ns, time_ns)))
    n_before = np.cumsum(~is_query[order])
    counts = np.empty(len(order), np.int64)
    counts[order] = n_before
    return counts[: len(ranks)]


def _find_common_times(visits: Visits, ranks_met: Ints, barriers: Groups) -> Ints:
    """Return when each rank left the previous barrier of the same ranks.

    A previous barrier must be in the same step or in the one before. If there is none, the result
    is the visit's ``begin_ns``.

    Args:
        visits: Visits, sorted by (barrier, rank).
        ranks_met: Number of the set of ranks of each visit's barrier.
        barriers: Groups of visits to the same barrier.
    """
    order = sort_rows(ranks_met, visits.rank, visits.enter_ns)
    is_same = (ranks_met[order][1:] == ranks_met[order][:-1]) & (
        visits.rank[order][1:] == visits.rank[order][:-1]
    )
    is_near = visits.step[order][1:] - visits.step[order][:-1] <= 1
    previous_ns = np.full(len(visits), NONE, np.int64)
    previous_ns[order[1:]] = np.where(is_same & is_near, visits.leave_ns[order][:-1], NONE)
    is_missing = np.bincount(barriers.of_row, previous_ns == NONE, minlength=len(barriers)) > 0
    return np.where(is_missing[barriers.of_row], visits.begin_ns, previous_ns)


def _number_rank_sets(rank: Ints, barriers: Groups) -> Ints:
    """Number the sets of ranks that meet at barriers, one number per barrier.

    The sets are compared by a 64-bit hash of their ranks.
    """
    mixed = (rank.astype(np.uint64) + np.uint64(1)) * _HASH_FACTOR
    mixed = (mixed ^ (mixed >> _HASH_SHIFT)) * _HASH_FACTOR
    total = np.zeros(len(barriers), np.uint64)
    np.add.at(total, barriers.of_row, mixed)
    return group_rows(total.view(np.int64)).of_row


def _measure_parts(visits: Visits, since_ns: Ints, parts: PartTimes) -> Ints:
    """Measure how long each rank was in each part between the previous barrier and this one.

    Args:
        visits: The visits.
        since_ns: Time from which parts are measured, or -1 if unknown.
        parts: Parts of the ranks' steps.

    Returns:
        Times of shape (visits, parts); 0 if ``since_ns`` is unknown.
    """
    n_parts = len(parts.names)
    n_ranks = int(max(visits.rank.max(initial=NONE), parts.rank.max(initial=NONE))) + 1
    spent_ns = np.zeros((len(visits), n_parts), np.int64)
    if not n_parts or not len(parts) or not len(visits):
        return spent_ns
    sets = intervals.group_union(
        parts.rank * n_parts + parts.part, n_ranks * n_parts, parts.start_ns, parts.end_ns
    )
    cover = intervals.GroupCover(sets, n_ranks * n_parts)
    low_ns = np.where(since_ns == NONE, visits.enter_ns, since_ns)
    high_ns = np.maximum(visits.enter_ns, low_ns)
    for part in range(n_parts):
        spent_ns[:, part] = cover.within(visits.rank * n_parts + part, low_ns, high_ns)
    return spent_ns


def sum_by_rank(arrivals: LateArrivals) -> tuple[LateRank, ...]:
    """Sum lateness by rank, largest sum first. Among equal sums, lower ranks come first.

    In each step, only the set of ranks with the largest sum counts.
    """
    arrivals = _select_largest_sets(arrivals)
    ranks = group_rows(arrivals.rank)
    late_ns = intervals.group_sum(ranks.of_row, len(ranks), arrivals.late_ns)
    part_ns = np.zeros((len(ranks), len(arrivals.names)), np.int64)
    np.add.at(part_ns, ranks.of_row, arrivals.part_ns)
    n_barriers = np.bincount(ranks.of_row, minlength=len(ranks))
    in_steps = group_rows(arrivals.rank, arrivals.step)
    n_steps = np.bincount(ranks.of_row[in_steps.first], minlength=len(ranks))
    return tuple(
        LateRank(
            rank=int(arrivals.rank[ranks.first[index]]),
            steps=int(n_steps[index]),
            barriers=int(n_barriers[index]),
            late_ns=int(late_ns[index]),
            parts=_sort_parts(arrivals.names, part_ns[index].tolist()),
        )
        for index in sort_rows(-late_ns).tolist()
    )


def _select_largest_sets(arrivals: LateArrivals) -> LateArrivals:
    """Return the arrivals at the set of ranks for which each rank is latest, in each step.

    Among sets with equal sums, the set with the lowest number is selected.
    """
    in_sets = group_rows(arrivals.rank, arrivals.step, arrivals.rank_set)
    late_ns = intervals.group_sum(in_sets.of_row, len(in_sets), arrivals.late_ns)
    in_steps = group_rows(arrivals.rank[in_sets.first], arrivals.step[in_sets.first])
    is_selected = make_mask(len(in_sets), find_first_rows(in_steps.of_row, -late_ns))
    return arrivals.take(is_selected[in_sets.of_row])


def _sort_parts(names: Sequence[str], times_ns: Sequence[int]) -> tuple[tuple[str, int], ...]:
    """Return (part, time) pairs, longest first. Among equal times, earlier parts come first."""
    return tuple(sorted(zip(names, times_ns, strict=True), key=lambda part: -part[1]))
