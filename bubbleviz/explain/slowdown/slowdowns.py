"""Measure how many times longer iterations take than ideal ones, and which work is the cause.

In an ideal iteration, all work of the same kind takes equally long. Communication takes the median
of its kind over all ranks and iterations, and all other work takes the mean. The cost of a set of
work is measured in two ways::

    ideal ──────────┤
    added           ├──┤          ideal times, but measured times for the set
    removed             ├─────┤   measured times, but ideal times for the set
    original ─────────────────┤

The slowdown S is the mean length of the iterations when replayed with the measured durations,
divided by the mean length of ideal iterations. For the slowdown S of a group of work, only the
group keeps its measured durations, and all other work has ideal durations. S of a worker (a rank)
is the minimum of S of its stage and S of its replica. The published analyzer contains these
definitions in ``explain_slowdown``, ``AnalyzerResult``, ``analyzer/compute_mw.py`` and
``analyzer/compute_ms.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from bubbleviz.explain.causes.tokens import list_token_waits
from bubbleviz.explain.dependencies import Dependencies
from bubbleviz.explain.slowdown.delays import keep_early_starts, measure_delays, measure_iterations
from bubbleviz.explain.slowdown.replay import Replay, build_replay
from bubbleviz.explain.slowdown.replayed_run import ReplayedRun
from bubbleviz.explain.slowdown.run_work import build_work_of_run
from bubbleviz.explain.slowdown.work import Role, Work
from bubbleviz.explain.slowness import compute_rank_slowdowns
from bubbleviz.model.columns import NONE, Bools, Floats, Ints
from bubbleviz.model.grouping import (
    find_distinct,
    find_first_rows,
    find_positions,
    group_rows,
    invert_permutation,
    sort_rows,
)
from bubbleviz.model.intervals import group_extents
from bubbleviz.schedules.timing import count_scenarios_together

#: Percentage of workers that are treated as the slowest, rounded up (at least one worker).
_SLOWEST_PERCENT = 3


@dataclass(frozen=True, eq=False, repr=False)
class Scenarios:
    """Work and its replay at measured and at ideal times.

    Attributes:
        work: Work of the replayed iterations.
        order: Dependencies of the work, as pairs of a row and one of its predecessors.
        replay: Replay of the work.
        delays_ns: For each row, the time from the end of its last predecessor to its start.
        clocks_apart: Whether ranks are on several hosts, whose clocks always differ slightly.
    """

    work: Work
    order: Dependencies
    replay: Replay
    delays_ns: Ints
    clocks_apart: bool = False

    @cached_property
    def early_ns(self) -> Ints:
        """Delays in ns of compute operations that start before their last predecessor ends.

        These delays are negative. The delay of all other rows is 0; see :func:`.keep_early_starts`.
        """
        return keep_early_starts(self.work, self.delays_ns)

    @cached_property
    def own_ns(self) -> Ints:
        """Time of each row in ns without waiting.

        This is :attr:`bounded_ns` if ``clocks_apart``, else :attr:`Work.own_ns`.
        """
        return self.bounded_ns if self.clocks_apart else self.work.own_ns

    @cached_property
    def bounded_ns(self) -> Ints:
        """Time of each row in ns without waiting; collectives are limited by their shortest member.

        A row of a collective takes at most as long as the shortest member of the same collective.
        This bound does not depend on clocks: the member that entered last waited least, so the
        transfer took no longer than the duration of that member. If the members are unknown, all
        collectives of the same kind in the iteration are treated as members.
        """
        work = self.work
        own_ns = work.own_ns if self.clocks_apart else self.own_ns.copy()
        rows = np.flatnonzero(work.role == Role.COLLECTIVE)
        members = group_rows(work.meeting[rows], work.iteration[rows], work.kind[rows])
        length_ns = (work.end_ns - work.start_ns)[rows]
        shortest_ns, _ = group_extents(members.of_row, len(members), length_ns, length_ns)
        own_ns[rows] = np.minimum(own_ns[rows], shortest_ns[members.of_row])
        return own_ns

    @cached_property
    def ideal_ns(self) -> Ints:
        """Time of each row in an ideal iteration, in ns."""
        return compute_ideal_times(self.work, self.own_ns)

    @cached_property
    def lengths_ns(self) -> Ints:
        """Iteration lengths in ns, shape (iterations, 2): at measured times, and at ideal times.

        Launch delays are left out. The replay runs only on first access, because advice on faults
        does not need it.
        """
        times = np.stack((self.own_ns, self.ideal_ns), axis=1)
        return self.replay.lengths_ns(times, self.early_ns)

    @property
    def original(self) -> float:
        """Mean length of the iterations at measured times, in ns, without launch delays."""
        return float(self.lengths_ns[:, 0].mean())

    @property
    def ideal(self) -> float:
        """Mean length of ideal iterations, in ns."""
        return float(self.lengths_ns[:, 1].mean())

    def measure_groups(self, label: Ints, values: Ints) -> Floats:
        """Measure how long ideal iterations become if one group keeps its measured durations.

        Args:
            label: Label of each row's group, such as its stage, or -1 if the row is in no group.
            values: The distinct labels of the groups, ascending.

        Returns:
            Mean length of the iterations in ns for each group, in the order of ``values``.
        """
        group, own_ns, ideal_ns, early_ns = (
            column[self.replay.rows]
            for column in (find_positions(values, label), self.own_ns, self.ideal_ns, self.early_ns)
        )
        means = [np.zeros(0)]
        for times_ns in _list_scenario_times(group, len(values), own_ns, ideal_ns):
            lengths_ns = self.replay.lengths_ns(times_ns, early_ns, in_replay_order=True)
            means.append(lengths_ns.mean(axis=0))
        return np.concatenate(means)

    def measure_removal(self, sets: Iterable[Bools]) -> list[float | None]:
        """Return the fraction of the slowdown that disappears if a set of rows takes ideal times.

        The fraction is ``(original - length with the set) / (original - ideal)``. All rows outside
        the set keep their measured durations.

        Args:
            sets: One mask of rows per set.

        Returns:
            One fraction per set, or None for all sets if the slowdown is 0.
        """
        slowdown_ns = self.original - self.ideal
        times_ns = [np.where(is_in_set, self.ideal_ns, self.own_ns) for is_in_set in sets]
        means = self.replay.lengths_ns(np.stack(times_ns, axis=1), self.early_ns).mean(axis=0)
        return [float((self.original - ns) / slowdown_ns) if slowdown_ns else None for ns in means]

    def measure_independent_groups(self, label: Ints, values: Ints) -> Floats:
        """Compute the same as :meth:`measure_groups`, but faster if groups rarely interact.

        Replicas of a pipeline do not depend on each other before the collectives that they share.
        So most rows depend on a single group. Their ends are found by two replays of all groups
        together: one at measured times, and one at ideal times. Only the rows that depend on
        several groups are replayed once per group::

            replica 0   ├─ F0 ─┤├─ B0 ─┤│▓ all-reduce ▓┤├ Optimizer ┤
            replica 1   ├─ F0 ─┤├─ B0 ─┤│▓ all-reduce ▓┤├ Optimizer ┤
                        replayed once   │  replayed for each replica

        Args:
            label: Label of each row's group, such as its stage, or -1 if the row is in no group.
            values: The distinct labels of the groups, ascending.

        Returns:
            Mean length of the iterations in ns for each group, in the order of ``values``.
        """
        if len(values) == 1 and (label == values).all():
            return np.asarray(self.lengths_ns[:, :1].mean(axis=0), np.float64)
        group = np.where(label == NONE, len(values), find_positions(values, label))
        ends_ns = self._compute_ends(np.where(label == NONE, self.ideal_ns, self.own_ns))
        return self._measure_mixed_rows(group, len(values), self.replay.mask_mixed(group), ends_ns)

    def _measure_mixed_rows(
        self, group: Ints, n_groups: int, is_mixed: Bools, ends_ns: Ints
    ) -> Floats:
        """Replay the rows that depend on several groups ("mixed" rows) once per group.

        In each replay, the rows of one group keep their measured durations, and all other rows have
        ideal durations.

        Args:
            group: Group number of each row. A row whose number is not in ``[0, n_groups)`` belongs
                to no group.
            n_groups: Number of groups.
            is_mixed: Mask of the mixed rows.
            ends_ns: Known ends of the other rows, shape (rows, 2). Column 0 is the end if the row's
                group has measured times, and column 1 is the end in ideal iterations. Ends of mixed
                rows are not read.

        Returns:
            Mean length of the iterations in ns for each group.
        """
        closing = self._find_closing_rows(group, is_mixed, ends_ns)
        rows, replay = self._build_mixed_replay(is_mixed, closing)
        has_known_end = ~is_mixed[rows]
        own_ns = np.where(has_known_end, ends_ns[rows, 0], self.own_ns[rows])
        ideal_ns = np.where(has_known_end, ends_ns[rows, 1], self.ideal_ns[rows])
        early_ns = np.where(has_known_end, 0, self.early_ns[rows])
        end_positions = invert_permutation(replay.rows)[np.searchsorted(rows, closing)]
        first_of_iteration = find_first_rows(self.work.iteration[closing])
        means = [np.zeros(0)]
        for times_ns in _list_scenario_times(group[rows], n_groups, own_ns, ideal_ns):
            closing_ns = replay.compute_ends(times_ns, early_ns)[end_positions]
            means.append(np.maximum.reduceat(closing_ns, first_of_iteration, axis=0).mean(axis=0))
        return np.concatenate(means)

    def _compute_ends(self, own_ns: Ints) -> Ints:
        """Replay all rows with the given times and with ideal times, and return their ends in ns.

        Args:
            own_ns: Time of each row.

        Returns:
            Ends of shape (rows, 2): with the given times, and in ideal iterations. Rows that are
            not replayed have arbitrary ends.
        """
        ends_ns = np.empty((len(self.work), 2), np.int64)
        times_ns = np.stack((own_ns, self.ideal_ns), axis=1)
        ends_ns[self.replay.rows] = self.replay.compute_ends(times_ns, self.early_ns)
        return ends_ns

    def _find_closing_rows(self, group: Ints, is_mixed: Bools, ends_ns: Ints) -> Ints:
        """Return the rows that can be the last to end in an iteration, sorted by iteration.

        The ends of mixed rows, which depend on several groups, are still unknown, so all mixed
        closing rows are returned. The ends of all other closing rows are known, so only the last
        one is returned for each group, iteration and replay.

        Args:
            group: Group number of each row.
            is_mixed: Mask of the rows that depend on several groups.
            ends_ns: End of each row in each replay, shape (rows, replays).
        """
        iteration = self.work.iteration
        closing = self.replay.rows[self.replay.closing]
        single = closing[~is_mixed[closing]]
        cell = group_rows(iteration[single], group[single]).of_row
        last = (single[find_first_rows(cell, -column)] for column in ends_ns[single].T)
        closing = find_distinct(closing[is_mixed[closing]], *last)
        return closing[sort_rows(iteration[closing])]

    def _build_mixed_replay(self, is_mixed: Bools, closing: Ints) -> tuple[Ints, Replay]:
        """Build a replay of only the rows that depend on several groups ("mixed" rows).

        The replay also contains the direct predecessors of mixed rows, and ``closing``. Rows that
        are not mixed have no predecessors in the replay, because their ends are already known.

        Args:
            is_mixed: Mask of the mixed rows.
            closing: Rows that can be the last to end in an iteration.

        Returns:
            rows: Rows of ``work`` in the replay, ascending.
            replay: The replay, whose rows are indices in ``rows``.
        """
        pairs = self.order.take(is_mixed[self.order.successor])
        rows = find_distinct(np.flatnonzero(is_mixed), pairs.predecessor, closing)
        part = self.work.take(rows)
        part = replace(part, meeting=np.where(is_mixed[rows], part.meeting, NONE))
        successor = np.searchsorted(rows, pairs.successor)
        predecessor = np.searchsorted(rows, pairs.predecessor)
        return rows, build_replay(part, Dependencies(successor, predecessor))


def _list_scenario_times(group: Ints, groups: int, own_ns: Ints, ideal_ns: Ints) -> Iterator[Ints]:
    """Yield the times of all rows in each group's scenario, several scenarios at a time.

    In the scenario of a group, its rows keep their measured durations, and all other rows have
    ideal durations.

    Args:
        group: Group number of each row. A row whose number is not in ``[0, groups)`` belongs to no
            group.
        groups: Number of groups.
        own_ns: Measured time of each row.
        ideal_ns: Ideal time of each row.

    Yields:
        Times in ns, shape (rows, groups in the batch).
    """
    step = count_scenarios_together(len(group))
    for first in range(0, groups, step):
        n_groups = min(step, groups - first)
        times_ns = np.repeat(ideal_ns[:, None], n_groups, axis=1)
        rows = np.flatnonzero((group >= first) & (group < first + n_groups))
        times_ns[rows, group[rows] - first] = own_ns[rows]
        yield times_ns


def build_scenarios(
    work: Work, order: Dependencies, *, clocks_apart: bool = False
) -> Scenarios | None:
    """Build the scenarios of a work table, or return None if no iteration can be replayed.

    Args:
        work: Work table of all ranks.
        order: Dependencies of the work, as pairs of a row and one of its predecessors.
        clocks_apart: Whether ranks are on several hosts.
    """
    replay = build_replay(work, order)
    if not len(replay.iterations):
        return None
    return Scenarios(work, order, replay, measure_delays(work, order), clocks_apart)


def build_scenarios_of_run(run: ReplayedRun) -> Scenarios | None:
    """Build the scenarios of the averaged iterations, or return None if none can be replayed."""
    if run.reason:
        return None
    work, order = build_work_of_run(run, list_token_waits(run.operations, run.explained().tokens))
    has_several_hosts = len({rank.host for rank in run.ranks}) > 1
    return build_scenarios(work, order, clocks_apart=has_several_hosts)


def compute_ideal_times(work: Work, own_ns: Ints) -> Ints:
    """Return the time of each row in an ideal iteration, in ns.

    Communication takes the median time of its kind, and all other work takes the mean time of its
    kind. The times are rounded to integers.

    Args:
        work: Work table of all ranks.
        own_ns: Measured time of each row without waiting.
    """
    kinds = group_rows(work.kind)
    size = np.bincount(kinds.of_row, minlength=len(kinds))
    mean_ns = np.bincount(kinds.of_row, own_ns, len(kinds)) / size
    order = sort_rows(kinds.of_row, own_ns)
    first = np.cumsum(size) - size
    low, high = own_ns[order][first + (size - 1) // 2], own_ns[order][first + size // 2]
    median_ns = low + (high - low) / 2
    moves = work.communicates[kinds.first]
    ideal_ns = np.rint(np.where(moves, median_ns, mean_ns)).astype(np.int64)
    return np.asarray(ideal_ns[kinds.of_row], np.int64)


@dataclass(frozen=True)
class ReplayError:
    """Differences between replayed and measured iterations, relative to the measured lengths.

    Attributes:
        mean: Mean absolute difference without launch delays.
        maximum: Maximum absolute difference without launch delays.
        mean_with_delays: Mean absolute difference with launch delays.
        maximum_with_delays: Maximum absolute difference with launch delays.
    """

    mean: float
    maximum: float
    mean_with_delays: float
    maximum_with_delays: float


@dataclass(frozen=True)
class Slowdowns:
    """Slowdowns S: how many times longer iterations take than ideal ones. 1 means no slowdown.

    Attributes:
        total: Slowdown S of all work.
        by_phase: Slowdown S of each phase, transfer direction, and kind of collective, keyed by
            printed name.
        by_stage: Slowdown S of each stage's work.
        by_replica: Slowdown S of each pipeline replica's work.
        by_rank: Slowdown S of each rank; see :func:`.compute_rank_slowdowns`. Outputs show it as a
            column of :class:`.Slowness`.
        by_microbatch: Slowdown S of each microbatch's work.
        by_link: Slowdown S of the transfers between two stages, keyed by (source stage, destination
            stage).
        by_iteration: Slowdown S of each iteration: its length when replayed with the measured
            durations, divided by its ideal length.
        worker_share: The metric M_W: the fraction of the slowdown that disappears if the slowest
            3 % of the workers (at least one) take ideal times. None if there is no slowdown.
        last_stage_share: The metric M_S: the fraction of the slowdown that disappears if the last
            stage takes ideal times. None if there is no slowdown.
        original_ns: Mean length in ns of the iterations replayed at measured times, without launch
            delays.
        ideal_ns: Mean length of ideal iterations in ns.
        replay_error: Differences between the replayed and the measured iterations.
    """

    total: float
    by_phase: Mapping[str, float]
    by_stage: Mapping[int, float]
    by_replica: Mapping[int, float]
    by_rank: Mapping[int, float]
    by_microbatch: Mapping[int, float]
    by_link: Mapping[tuple[int, int], float]
    by_iteration: Mapping[int, float]
    worker_share: float | None
    last_stage_share: float | None
    original_ns: float
    ideal_ns: float
    replay_error: ReplayError


def measure_slowdowns(scenarios: Scenarios) -> Slowdowns | None:
    """Measure the slowdowns of all work, and of each phase, stage, replica, microbatch and link.

    The result is None if ideal iterations take no time.
    """
    if not scenarios.ideal:
        return None
    work = scenarios.work
    names = [kind.phase for kind in work.kinds]
    phases = sorted(set(names))
    link, stages_of_link = _number_links(work)
    slowdowns_by = _measure_group_slowdowns(
        scenarios,
        {
            "phase": np.array([phases.index(name) for name in names], np.int64)[work.kind],
            "stage": work.stage,
            "replica": work.replica,
            "microbatch": work.microbatch,
            "link": link,
        },
    )
    workers = work.take(group_rows(work.rank).first)
    by_rank = compute_rank_slowdowns(
        workers.rank, workers.stage, workers.replica, slowdowns_by["stage"], slowdowns_by["replica"]
    )
    is_slowest = np.isin(work.rank, _find_slowest_ranks(by_rank))
    is_last_stage = work.stage == work.stage.max()
    worker_share, last_stage_share = scenarios.measure_removal((is_slowest, is_last_stage))
    return Slowdowns(
        total=scenarios.original / scenarios.ideal,
        by_phase={phases[number]: s for number, s in slowdowns_by["phase"].items()},
        by_stage=slowdowns_by["stage"],
        by_replica=slowdowns_by["replica"],
        by_rank=by_rank,
        by_microbatch=slowdowns_by["microbatch"],
        by_link={stages_of_link[number]: s for number, s in slowdowns_by["link"].items()},
        by_iteration=_measure_iteration_slowdowns(scenarios),
        worker_share=worker_share,
        last_stage_share=last_stage_share,
        original_ns=scenarios.original,
        ideal_ns=scenarios.ideal,
        replay_error=_measure_replay_error(scenarios),
    )


def _number_links(work: Work) -> tuple[Ints, list[tuple[int, int]]]:
    """Assign a number to each link. A link is a pair of a source and a destination stage.

    Returns:
        link: Number of the link of each row, or -1 if the row is not a transfer.
        stages: (source, destination) of each link, indexed by link number. If some rows are not
            transfers, the first entry is (-1, -1) and belongs to no link.
    """
    source, destination = work.link
    links = group_rows(source, destination)
    stages = zip(source[links.first].tolist(), destination[links.first].tolist(), strict=True)
    return np.where(source == NONE, NONE, links.of_row), list(stages)


def _measure_iteration_slowdowns(scenarios: Scenarios) -> dict[int, float]:
    """Return the slowdown S of each iteration, keyed by its index."""
    own_ns, ideal_ns = scenarios.lengths_ns.T
    slowdowns = own_ns / np.maximum(ideal_ns, 1)
    return dict(zip(scenarios.replay.iterations.tolist(), slowdowns.tolist(), strict=True))


def _measure_replay_error(scenarios: Scenarios) -> ReplayError:
    """Measure the relative differences between replayed and measured iteration lengths.

    The iterations are replayed at measured times, once without and once with launch delays.
    """
    replay = scenarios.replay
    without_delays_ns = scenarios.lengths_ns[:, 0]
    with_delays_ns = replay.lengths_ns(scenarios.own_ns[:, None], scenarios.delays_ns)[:, 0]
    length_ns = np.maximum(measure_iterations(scenarios.work, replay.iterations), 1)
    error = np.abs(without_delays_ns - length_ns) / length_ns
    error_with_delays = np.abs(with_delays_ns - length_ns) / length_ns
    return ReplayError(
        float(error.mean()),
        float(error.max()),
        float(error_with_delays.mean()),
        float(error_with_delays.max()),
    )


def _find_slowest_ranks(by_rank: Mapping[int, float]) -> Ints:
    """Return the 3 % of the ranks with the largest S, rounded up (at least one rank).

    The lower rank wins ties.
    """
    ranks = sorted(by_rank, key=lambda rank: (-by_rank[rank], rank))
    n_slowest = -(-len(by_rank) * _SLOWEST_PERCENT // 100)
    return np.array(ranks[:n_slowest], np.int64)


def _measure_group_slowdowns(
    scenarios: Scenarios, labels: Mapping[str, Ints]
) -> dict[str, dict[int, float]]:
    """Return the slowdown S of each group, keyed by grouping and then by the label of the group.

    S is the mean iteration length when only this group keeps its measured durations, divided by the
    mean length of ideal iterations.

    Args:
        scenarios: The work of the run and its replay.
        labels: For each grouping, such as ``stage``, the label of each row's group. The label is -1
            if the row is in no group.
    """
    slowdowns_by = {}
    for name, label in labels.items():
        values = find_distinct(label[label != NONE])
        # Replicas wait for each other only in collectives.
        measure = (
            scenarios.measure_independent_groups if name == "replica" else scenarios.measure_groups
        )
        means = measure(label, values) / scenarios.ideal
        slowdowns_by[name] = dict(zip(values.tolist(), means.tolist(), strict=True))
    return slowdowns_by
