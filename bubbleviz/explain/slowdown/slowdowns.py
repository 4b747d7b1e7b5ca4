"""Slowdowns: how many times longer iterations take than ideal ones, and what makes them so.

In an ideal iteration every kind of work takes equally long: computes the mean of their kind over
all ranks and iterations, transfers the median. What a set of work costs is seen from both ends::

    ideal ──────────┤
    added           ├──┤          the ideal with the set's own times put back
    removed             ├─────┤   the original with ideal times for the set
    original ─────────────────┤

S is the mean length of the replayed iterations over that of ideal ones. S of a group of work is
that of the ideal with the group's own times put back; S of a worker is the smaller of that of its
stage and that of its replica (``explain_slowdown`` and ``AnalyzerResult`` of the published
analyzer, ``analyzer/compute_mw.py`` and ``analyzer/compute_ms.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from bubbleviz.explain.causes.tokens import all_token_waits
from bubbleviz.explain.dependencies import Dependencies
from bubbleviz.explain.slowdown.delays import delays_of, early_starts, measured_ns
from bubbleviz.explain.slowdown.replay import Replay, build_replay
from bubbleviz.explain.slowdown.replayed_run import ReplayedRun
from bubbleviz.explain.slowdown.run_work import work_of_run
from bubbleviz.explain.slowdown.work import Role, Work
from bubbleviz.explain.slowness import rank_slowdowns
from bubbleviz.model.columns import NONE, Bools, Floats, Ints
from bubbleviz.model.grouping import (
    distinct,
    first_of_each,
    found_in,
    groups_of,
    places_in,
    sorted_rows,
)
from bubbleviz.model.intervals import group_extents
from bubbleviz.schedules.timing import count_scenarios_together

#: One worker in so many is among the slowest ones, at least one (3 %).
_SLOWEST_PERCENT = 3


@dataclass(frozen=True, eq=False, repr=False)
class Scenarios:
    """Work, its ideal, and the replay of both.

    Attributes:
        work: of the iterations that are replayed.
        order: what each of its rows follows.
        replay: of it.
        delays_ns: how much later each starts than all that it follows has ended.
        clocks_apart: whether ranks are on several hosts, whose clocks are never quite equal.
    """

    work: Work
    order: Dependencies
    replay: Replay
    delays_ns: Ints
    clocks_apart: bool = False

    @cached_property
    def early_ns(self) -> Ints:
        """How much each row starts before all that it follows has ended, as a negative number."""
        return early_starts(self.work, self.delays_ns)

    @cached_property
    def own_ns(self) -> Ints:
        """How long each row took itself (see :attr:`Work.own_ns`)."""
        return self.bounded_ns if self.clocks_apart else self.work.own_ns

    @cached_property
    def bounded_ns(self) -> Ints:
        """The same, whatever clocks say.

        Of a collective the member that entered last waited least, so none moved data for longer
        than the shortest took. Where members are unknown, those are taken for them that are of its
        kind in the iteration.
        """
        work = self.work
        own_ns = work.own_ns if self.clocks_apart else self.own_ns.copy()
        rows = np.flatnonzero(work.role == Role.COLLECTIVE)
        alike = groups_of(work.meeting[rows], work.iteration[rows], work.kind[rows])
        length_ns = (work.end_ns - work.start_ns)[rows]
        shortest_ns = group_extents(alike.of_row, len(alike), length_ns, length_ns)[0]
        own_ns[rows] = np.minimum(own_ns[rows], shortest_ns[alike.of_row])
        return own_ns

    @cached_property
    def ideal_ns(self) -> Ints:
        """How long each row takes in an ideal iteration."""
        return ideal_times(self.work, self.own_ns)

    @cached_property
    def lengths_ns(self) -> Ints:
        """How long iterations take at their own times and at ideal ones, without launch delays.

        Shape (iterations, 2). Advice on faults does without: they are replayed once asked for.
        """
        times = np.stack((self.own_ns, self.ideal_ns), axis=1)
        return self.replay.lengths_ns(times, self.early_ns)

    @property
    def original(self) -> float:
        """Mean length of the iterations at their own times, in ns, without launch delays."""
        return float(self.lengths_ns[:, 0].mean())

    @property
    def ideal(self) -> float:
        """Mean length of ideal iterations, in ns."""
        return float(self.lengths_ns[:, 1].mean())

    def put_back(self, label: Ints, values: Ints) -> Floats:
        """Return the mean length of ideal iterations with the own times of each group, in ns.

        Args:
            label: group of each row; -1 none.
            values: of the groups, ascending.
        """
        group, own_ns, ideal_ns, early_ns = (
            column[self.replay.rows]
            for column in (found_in(values, label), self.own_ns, self.ideal_ns, self.early_ns)
        )
        means = [np.zeros(0)]
        for times_ns in _put_back_times(group, len(values), own_ns, ideal_ns):
            lengths_ns = self.replay.lengths_ns(times_ns, early_ns, placed=True)
            means.append(lengths_ns.mean(axis=0))
        return np.concatenate(means)

    def removal(self, sets: Iterable[Bools]) -> list[float | None]:
        """Return the share of the slowdown that goes where each set takes ideal times.

        None where there is no slowdown to take a share of.

        Args:
            sets: the rows of each, as masks.
        """
        lost = self.original - self.ideal
        times_ns = [np.where(own, self.ideal_ns, self.own_ns) for own in sets]
        means = self.replay.lengths_ns(np.stack(times_ns, axis=1), self.early_ns).mean(axis=0)
        return [float((self.original - ns) / lost) if lost else None for ns in means]

    def put_back_apart(self, label: Ints, values: Ints) -> Floats:
        """Return what :meth:`put_back` does for groups most of whose work follows no other's.

        Replicas of a pipeline run on their own up to the collectives that they share. So one replay
        of all groups at their own times, and one at ideal times, tell when any work ends that
        follows a single group, and only what follows several is replayed for each::

            replica 0   ├─ F0 ─┤├─ B0 ─┤│▓ all-reduce ▓┤├ Optimizer ┤
            replica 1   ├─ F0 ─┤├─ B0 ─┤│▓ all-reduce ▓┤├ Optimizer ┤
                             apart      │  for each replica

        Args:
            label: group of each row; -1 none.
            values: of the groups, ascending.
        """
        replay, work = self.replay, self.work
        if len(values) == 1 and (label == values).all():
            return np.asarray(self.lengths_ns[:, :1].mean(axis=0), np.float64)
        group = np.where(label == NONE, len(values), found_in(values, label))
        own_ns = np.where(label == NONE, self.ideal_ns, self.own_ns)
        ends_ns = np.empty((len(work), 2), np.int64)
        times_ns = np.stack((own_ns, self.ideal_ns), axis=1)
        ends_ns[replay.rows] = replay.ends_ns(times_ns, self.early_ns)
        mixed = replay.mixed(group)
        # What ends iterations; of what follows a single group, that which is last.
        closing = replay.rows[replay.closing]
        alone = closing[~mixed[closing]]
        cell = groups_of(work.iteration[alone], group[alone]).of_row
        last = (alone[first_of_each(cell, -column)] for column in ends_ns[alone].T)
        closing = distinct(closing[mixed[closing]], *last)
        closing = closing[sorted_rows(work.iteration[closing])]
        pairs = self.order.take(mixed[self.order.after])
        rows = distinct(np.flatnonzero(mixed), pairs.before, closing)
        # What follows a single group is only there with its end.
        part, given = work.take(rows), ~mixed[rows]
        part = replace(part, meeting=np.where(given, NONE, part.meeting))
        after, before, ends = (
            np.searchsorted(rows, column) for column in (pairs.after, pairs.before, closing)
        )
        replay = build_replay(part, Dependencies(after, before))
        ends, begins = places_in(replay.rows)[ends], first_of_each(work.iteration[closing])
        own_ns = np.where(given, ends_ns[rows, 0], self.own_ns[rows])
        ideal_ns = np.where(given, ends_ns[rows, 1], self.ideal_ns[rows])
        early_ns = np.where(given, 0, self.early_ns[rows])
        means = [np.zeros(0)]
        for times_ns in _put_back_times(group[rows], len(values), own_ns, ideal_ns):
            found_ns = replay.ends_ns(times_ns, early_ns)[ends]
            means.append(np.maximum.reduceat(found_ns, begins, axis=0).mean(axis=0))
        return np.concatenate(means)


def _put_back_times(group: Ints, groups: int, own_ns: Ints, ideal_ns: Ints) -> Iterator[Ints]:
    """Yield times of rows, shape (rows, some groups): own ones in a group, ideal ones elsewhere.

    Args:
        group: of each row; any other number is in none.
        groups: how many there are.
        own_ns: how long each row took itself.
        ideal_ns: how long it takes in an ideal iteration.
    """
    step = count_scenarios_together(len(group))
    for first in range(0, groups, step):
        some = min(step, groups - first)
        times_ns = np.repeat(ideal_ns[:, None], some, axis=1)
        rows = np.flatnonzero((group >= first) & (group < first + some))
        times_ns[rows, group[rows] - first] = own_ns[rows]
        yield times_ns


def scenarios_of(
    work: Work, order: Dependencies, *, clocks_apart: bool = False
) -> Scenarios | None:
    """Return the replay of work and of its ideal; None where no iteration can be replayed.

    Args:
        work: of all ranks.
        order: what each of its rows follows.
        clocks_apart: see :class:`Scenarios`.
    """
    replay = build_replay(work, order)
    if not len(replay.iterations):
        return None
    return Scenarios(work, order, replay, delays_of(work, order), clocks_apart)


def scenarios_of_run(run: ReplayedRun) -> Scenarios | None:
    """Return the replay of the averaged iterations of a run; None where that is unknown."""
    if run.reason:
        return None
    work, order = work_of_run(run, all_token_waits(run.operations, run.explained().tokens))
    apart = len({rank.host for rank in run.ranks}) > 1
    return scenarios_of(work, order, clocks_apart=apart)


def ideal_times(work: Work, own_ns: Ints) -> Ints:
    """Return the time that each row takes in an ideal iteration: the mean or median of its kind.

    Args:
        work: of all ranks.
        own_ns: how long each row took itself.
    """
    kinds = groups_of(work.kind)
    size = np.bincount(kinds.of_row, minlength=len(kinds))
    mean_ns = np.bincount(kinds.of_row, own_ns, len(kinds)) / size
    order = sorted_rows(kinds.of_row, own_ns)
    first = np.cumsum(size) - size
    low, high = own_ns[order][first + (size - 1) // 2], own_ns[order][first + size // 2]
    median_ns = low + (high - low) / 2
    moves = work.communicates[kinds.first]
    ideal_ns = np.rint(np.where(moves, median_ns, mean_ns)).astype(np.int64)
    return np.asarray(ideal_ns[kinds.of_row], np.int64)


@dataclass(frozen=True)
class ReplayError:
    """How far replayed iterations are off the measured ones, as shares of their lengths.

    Attributes:
        mean: of the absolute differences, without launch delays.
        maximum: of these.
        mean_with_delays: with each launch delay put back.
        maximum_with_delays: of these.
    """

    mean: float
    maximum: float
    mean_with_delays: float
    maximum_with_delays: float


@dataclass(frozen=True)
class Slowdowns:
    """How many times longer iterations take than ideal ones; 1 is no slowdown.

    Attributes:
        total: S of all work.
        by_phase: of each phase, transfers of a direction or collective.
        by_stage: of each stage.
        by_replica: of each replica of the pipeline.
        by_rank: S of each rank; see :func:`.rank_slowdowns`.
        by_microbatch: of each microbatch.
        by_link: of the transfers between two stages, both directions apart.
        by_iteration: length of each iteration over that of an ideal one.
        worker_share: M_W, the share of the slowdown that goes where the slowest 3 % of the workers
            (at least one) take ideal times; None without any slowdown.
        last_stage_share: M_S, likewise of the last stage.
        original_ns: mean length of the replayed iterations, without launch delays.
        ideal_ns: mean length of ideal ones.
        replay_error: how far the replay is off.
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


def slowdowns_of(scenarios: Scenarios) -> Slowdowns | None:
    """Return the slowdowns of work; None where it takes no time.

    Args:
        scenarios: its replay.
    """
    if not scenarios.ideal:
        return None
    work, iterations = scenarios.work, scenarios.replay.iterations
    names = [kind.phase for kind in work.kinds]
    phases = sorted(set(names))
    links = work.link
    pairs = groups_of(*links)
    ends = [column[pairs.first].tolist() for column in links]
    by = _put_back(
        scenarios,
        {
            "phase": np.array([phases.index(name) for name in names], np.int64)[work.kind],
            "stage": work.stage,
            "replica": work.replica,
            "microbatch": work.microbatch,
            "link": np.where(links[0] == NONE, NONE, pairs.of_row),
        },
    )
    workers = work.take(groups_of(work.rank).first)
    by_rank = rank_slowdowns(
        workers.rank, workers.stage, workers.replica, by["stage"], by["replica"]
    )
    # The slowest, of equal ones the first; at least one.
    slowest = sorted(by_rank, key=lambda rank: (-by_rank[rank], rank))
    slowest = slowest[: -(-len(by_rank) * _SLOWEST_PERCENT // 100)]
    worker_share, last_stage_share = scenarios.removal(
        (np.isin(work.rank, np.array(slowest, np.int64)), work.stage == work.stage.max())
    )
    own_ns, ideal_ns = scenarios.lengths_ns.T
    ratios = own_ns / np.maximum(ideal_ns, 1)
    times_ns = scenarios.own_ns[:, None], scenarios.delays_ns
    delayed_ns = scenarios.replay.lengths_ns(*times_ns)[:, 0]
    whole_ns = np.maximum(measured_ns(work, iterations), 1)
    missed = [np.abs(lengths_ns - whole_ns) / whole_ns for lengths_ns in (own_ns, delayed_ns)]
    return Slowdowns(
        total=scenarios.original / scenarios.ideal,
        by_phase={phases[number]: s for number, s in by["phase"].items()},
        by_stage=by["stage"],
        by_replica=by["replica"],
        by_rank=by_rank,
        by_microbatch=by["microbatch"],
        by_link={(ends[0][n], ends[1][n]): s for n, s in by["link"].items()},
        by_iteration=dict(zip(iterations.tolist(), ratios.tolist(), strict=True)),
        worker_share=worker_share,
        last_stage_share=last_stage_share,
        original_ns=scenarios.original,
        ideal_ns=scenarios.ideal,
        replay_error=ReplayError(*(float(f()) for m in missed for f in (m.mean, m.max))),
    )


def _put_back(scenarios: Scenarios, labels: Mapping[str, Ints]) -> dict[str, dict[int, float]]:
    """Return S of each group by its label; -1 is in none."""
    by = {}
    for name, label in labels.items():
        values = distinct(label[label != NONE])
        # Replicas meet in collectives alone.
        put_back = scenarios.put_back_apart if name == "replica" else scenarios.put_back
        means = put_back(label, values) / scenarios.ideal
        by[name] = dict(zip(values.tolist(), means.tolist(), strict=True))
    return by
