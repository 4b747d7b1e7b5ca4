"""Faults: what made work take longer than its like, and what it would take without."""

from __future__ import annotations

from dataclasses import field
from enum import Enum
from functools import cached_property

import numpy as np

from bubbleviz.explain.slowdown.replay import COMPUTING, Role, Work
from bubbleviz.model.columns import NONE, Bools, Floats, Ints
from bubbleviz.model.grouping import Groups, first_of_each, groups_of, sorted_rows
from bubbleviz.model.intervals import group_sum
from bubbleviz.model.operations import HostActivities
from bubbleviz.model.phases import Phase
from bubbleviz.model.values import frozen

# Host state: which call and which range a host was in while its GPU had run dry.


@frozen
class HostState:
    """Where a launching thread was for half of a time or more.

    Attributes:
        call_id: row of the operations' ``names``: the CUDA call; -1 none.
        range_id: likewise the shortest range; -1 none.
    """

    call_id: int = NONE
    range_id: int = NONE

    @property
    def known(self) -> bool:
        """Whether anything is recorded of it."""
        return self.call_id != NONE or self.range_id != NONE


def beside_operations(hosts: HostActivities, name_id: Ints, phase: Ints) -> HostActivities:
    """Return what hosts did before late collectives and optimizers, and inside operations.

    Args:
        hosts: all that is recorded of them.
        name_id: names of operations, whose own ranges tell nothing more.
        phase: of each row of the operations table.
    """
    other = (hosts.call == 1) | ~np.isin(hosts.name_id, name_id)
    last = (hosts.operation == NONE) | (np.append(phase, NONE)[hosts.operation] == Phase.OPTIMIZER)
    kept = hosts.take(last & other)
    columns = (kept.rank, kept.start_ns, kept.end_ns, kept.call, kept.name_id)
    return kept.take(groups_of(*columns).first)


def host_during(
    hosts: HostActivities, rank: int, start_ns: int, end_ns: int, lost_ns: float
) -> HostState:
    """Return where the host of a rank was in a time of which some was lost.

    Args:
        hosts: what launching threads did.
        rank: whose host.
        start_ns: start of the time.
        end_ns: end of it.
        lost_ns: how much of it was.
    """
    overlap_ns = np.minimum(hosts.end_ns, end_ns) - np.maximum(hosts.start_ns, start_ns)
    during = (hosts.rank == rank) & (overlap_ns > 0)
    return HostState(
        _name(hosts, overlap_ns, during & (hosts.call == 1), lost_ns),
        _name(hosts, overlap_ns, during & (hosts.call == 0), lost_ns),
    )


def _name(hosts: HostActivities, overlap_ns: Ints, chosen: Bools, lost_ns: float) -> int:
    """Return the name that takes half of what was lost, of several the shortest; -1 for none."""
    rows = np.flatnonzero(chosen)
    names = groups_of(hosts.name_id[rows])
    spent_ns = group_sum(names.of_row, len(names), overlap_ns[rows])
    whole_ns = group_sum(names.of_row, len(names), (hosts.end_ns - hosts.start_ns)[rows])
    long = np.flatnonzero(2 * spent_ns >= lost_ns)
    if not len(long):
        return NONE
    return int(hosts.name_id[rows[names.first[long[whole_ns[long].argmin()]]]])


class FaultKind(Enum):
    """The shapes of slowness."""

    RANK = "rank"
    HOST = "host"
    STAGE = "stage"
    MICROBATCH = "microbatch"
    ITERATION = "iteration"
    LINK = "link"
    LAUNCH = "launch"
    LAUNCH_GAPS = "launch-gaps"
    COLLECTIVE = "collective"
    DRIFT = "drift"
    SLOWED = "slowed"
    TOKEN = "token"


def _nothing() -> Ints:
    return np.zeros(0, np.int64)


@frozen
class Fault:
    """One reason why work took longer than its like.

    Attributes:
        kind: its shape.
        name: stable and unique in a run, for example ``rank-3``.
        rows: of the work table that it slows.
        scale: what each would take without it, as a share of what it took; shape of ``rows``.
        ranks: that it slows; empty where it is bound to none.
        stage: that it slows; None for none.
        link: stages that data moved between; None for none.
        microbatches: that are slow, as pairs of iteration and microbatch; empty for none.
        iterations: in which it shows; empty for all.
        phases: that it slows, and how many times as long as their norm each takes.
        what: the kind of collective, or of work; empty where the kind of the fault tells.
        delayed: rows that start late for it.
        late_ns: how much later; shape of ``delayed``.
        collective: kind of collective that starts late for it; empty where operations lose more.
        host: where a host was at its longest.
        bound: whether nothing is slow against its like: without the fault work takes no time at
            all, which is more than can be had.
    """

    kind: FaultKind
    name: str
    rows: Ints = field(default_factory=_nothing)
    scale: Floats = field(default_factory=lambda: np.zeros(0))
    ranks: tuple[int, ...] = ()
    stage: int | None = None
    link: tuple[int, int] | None = None
    microbatches: tuple[tuple[int, int], ...] = ()
    iterations: tuple[int, ...] = ()
    phases: tuple[tuple[str, float], ...] = ()
    what: str = ""
    delayed: Ints = field(default_factory=_nothing)
    late_ns: Ints = field(default_factory=_nothing)
    collective: str = ""
    host: HostState = field(default_factory=HostState)
    bound: bool = False

    @property
    def family(self) -> str:
        """What it shares with faults of which it is a part, or which are parts of it."""
        if self.kind is FaultKind.LAUNCH:
            return self.what or "launches"
        return "pauses" if self.kind is FaultKind.ITERATION and self.what else self.name


# Medians of groups, and of the other members of each member's group.


def group_medians(group: Ints, groups: int, values: Floats) -> Floats:
    """Return the lower median of each group; NaN for one without values.

    Args:
        group: of each value, from 0.
        groups: number of groups.
        values: one a row.
    """
    order = sorted_rows(group, values)
    size = np.bincount(group, minlength=groups)
    first = np.cumsum(size) - size
    medians = np.full(groups, np.nan)
    some = size > 0
    medians[some] = values[order][(first + (size - 1) // 2)[some]]
    return medians


def median_of(values: Floats) -> float:
    """Return the lower median of some values; ``np.median`` would load ``numpy.ma``."""
    return quantile_of(values, 0.5)


def quantile_of(values: Floats, share: float) -> float:
    """Return the value that a share of the others lies below."""
    return float(np.sort(values)[int(share * (len(values) - 1))])


def others_medians(group: Ints, values: Floats) -> Floats:
    """Return for each value the median of the others of its group; NaN without any.

    ::

        sorted      a   b   c   d        the others of b are a, c, d: their median is c
                        ^
    """
    count = len(values)
    order = sorted_rows(group, values)
    size = np.bincount(group)[group[order]] if count else np.zeros(0, np.int64)
    ordered = group[order]
    new = np.append(True, ordered[1:] != ordered[:-1])[:count]
    first = np.maximum.accumulate(np.where(new, np.arange(count), 0))
    place = np.arange(count) - first
    at_rank = values[order]

    def other(number: Ints) -> Floats:
        """Return the value of that number among the others of each value."""
        taken = first + number + (place <= number)
        return np.asarray(at_rank[np.clip(taken, 0, max(count - 1, 0))], np.float64)

    medians = np.empty(count)
    both = other((size - 2) // 2) + other((size - 1) // 2)
    medians[order] = np.where(size > 1, both / 2, np.nan)
    return medians


# Trends: whether something grows over the iterations of a run, steadily or at once.


#: A trend makes this change of a logarithm from the first iteration to the last.
_CHANGE = 0.03
#: It needs so many iterations, and explains this share of the variance: of so many, of one more,
#: of any more. Chance does so about once in a hundred times (F test of a line).
_LEAST_ITERATIONS, _EXPLAINED = 6, np.array((0.84, 0.77, 0.7))
#: A jump needs so many iterations, has so many on either side, makes this change of a logarithm,
#: and is so many times as large as what is left: of several places the best is chosen, which
#: chance makes large.
_LEAST_AROUND, _BESIDE, _JUMP, _TIMES = 8, 2, 0.05, 8.0
#: A smaller sum of squares is what sums are rounded by.
_ROUNDED = 1e-18


def lines(group: Ints, x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Return slope and explained share of the variance of a line through each group's points.

    Args:
        group: of each point, from 0.
        x: of the points.
        y: likewise.
    """
    count = np.maximum(np.bincount(group), 1)
    mean_x, mean_y = np.bincount(group, x) / count, np.bincount(group, y) / count
    dx, dy = x - mean_x[group], y - mean_y[group]
    xx, xy, yy = (np.bincount(group, v) for v in (dx * dx, dx * dy, dy * dy))
    slope = np.divide(xy, xx, out=np.zeros(len(count)), where=xx > 0)
    explained = np.divide(xy * xy, xx * yy, out=np.zeros(len(count)), where=xx * yy > 0)
    return slope, explained


def rises(count: Ints | int, slope: Floats, explained: Floats) -> Bools:
    """Tell which lines rise enough, and steadily.

    Args:
        count: number of points of each.
        slope: of each, a logarithm by point.
        explained: share of the variance.
    """
    change = slope * (np.asarray(count) - 1)
    beyond = np.asarray(count) - _LEAST_ITERATIONS
    enough = (beyond >= 0) & (explained >= _EXPLAINED[np.clip(beyond, 0, len(_EXPLAINED) - 1)])
    return np.asarray(enough & (change >= _CHANGE), bool)


@frozen
class Jumps:
    """Where each group's points jump, by which they are explained best.

    Attributes:
        begin: where the first point behind the jump is.
        change: of the mean.
        explained: share of the variance.
        stands_out: whether the jump is up, and more than chance.
    """

    begin: Floats
    change: Floats
    explained: Floats
    stands_out: Bools


def jumps(group: Ints, x: Floats, y: Floats) -> Jumps:
    """Return the best jump of each group's points.

    ::

        y              • • •      change
            • • • •               from the mean before to the mean behind
                     begin

    Args:
        group: of each point, from 0; each has some.
        x: of the points.
        y: likewise.
    """
    order = sorted_rows(group, x)
    of, value = group[order], y[order]
    count = np.bincount(of)
    first = np.cumsum(count) - count
    before = np.arange(len(of)) - first[of]
    behind = count[of] - before
    sums = np.cumsum(value) - value
    total = np.bincount(of, value)
    left = (sums - sums[first][of]) / np.maximum(before, 1)
    right = (total[of] - (sums - sums[first][of])) / behind
    change = right - left
    possible = (before >= _BESIDE) & (behind >= _BESIDE)
    between = np.where(possible, before * behind / count[of] * change**2, 0.0)
    best = first_of_each(of, -between)
    variance = np.bincount(of, (value - (total / count)[of]) ** 2)
    left_over = np.sqrt(np.maximum(variance - between[best], 0.0) / np.maximum(count - 2, 1))
    enough = (count >= _LEAST_AROUND) & possible[best]
    return Jumps(
        begin=x[order][best],
        change=change[best],
        explained=np.divide(
            between[best], variance, out=np.zeros(len(best)), where=variance > _ROUNDED
        ),
        stands_out=enough & (change[best] >= _JUMP) & (change[best] >= _TIMES * left_over),
    )


# Effects: how many times as long as its norm each compute took, split by what shares it.
#
# Hardware slows all that a rank computes, an uneven partition all that a stage does, a long
# sequence
# one microbatch on every stage, a pause one rank for some operations. So the time of a compute is a
# product, whose factors are medians of ratios, found one after the other::
#
#     time = norm of the kind  x  stage  x  rank  x  iteration  x  microbatch  x  pace  x  rest
#                                 over      over     of all        on every      of a rank in
#                                 stages    copies   ranks         stage         an iteration
#
# Nothing is held against itself: the norm of a rank is the median of the others that do the same
# work, that of a stage the median of the other stages.


#: An effect of less is not worth a sentence; nor is one of less than so many standard errors.
_LEAST, _SURE = 0.02, 4.0
_TIMED = (*COMPUTING, Role.OPTIMIZER, Role.AFTER_COMPUTE)


@frozen(eq=False, shown=False)
class Effects:
    """Factors of the computes of a run; columns have one row a compute.

    Attributes:
        work: of all ranks.
        rows: of the work table that compute.
        time_ns: how long each took.
    """

    work: Work
    rows: Ints
    time_ns: Floats

    @cached_property
    def cells(self) -> Groups:
        """Computes of one kind, virtual stage and rank."""
        work, rows = self.work, self.rows
        return groups_of(work.kind[rows], work.virtual_stage[rows], work.rank[rows])

    @cached_property
    def cell_ns(self) -> Floats:
        """The median time of each cell."""
        return group_medians(self.cells.of_row, len(self.cells), self.time_ns)

    @cached_property
    def copies(self) -> Groups:
        """Cells of one kind and virtual stage: copies that do the same work; one row a cell."""
        first = self.rows[self.cells.first]
        work = self.work
        return groups_of(work.kind[first], work.virtual_stage[first], work.stage[first])

    @cached_property
    def rank_effect(self) -> Floats:
        """Time of each cell over that of its other copies; NaN where there is no other."""
        return self.cell_ns / others_medians(self.copies.of_row, self.cell_ns)

    @cached_property
    def stages(self) -> Groups:
        """Kinds on stages; one row a group of copies."""
        first = self.rows[self.cells.first[self.copies.first]]
        return groups_of(self.work.kind[first], self.work.stage[first])

    @cached_property
    def stage_ns(self) -> Floats:
        """Time of one microbatch of each kind on each stage, all its chunks together.

        Of copies the lower median counts: a slow one makes no slow stage.
        """
        copy_ns = group_medians(self.copies.of_row, len(self.copies), self.cell_ns)
        return np.bincount(self.stages.of_row, copy_ns, len(self.stages)).astype(np.float64)

    @cached_property
    def stage_kind(self) -> Ints:
        """The kind of work of each row of ``stage_ns``."""
        return self.work.kind[self._of_stages]

    @cached_property
    def stage_number(self) -> Ints:
        """The stage of each row of ``stage_ns``."""
        return self.work.stage[self._of_stages]

    @cached_property
    def _of_stages(self) -> Ints:
        return self.rows[self.cells.first[self.copies.first[self.stages.first]]]

    @cached_property
    def stage_effect(self) -> Floats:
        """Time of each kind on each stage over that on the other stages; NaN without others."""
        return self.stage_ns / others_medians(groups_of(self.stage_kind).of_row, self.stage_ns)

    @cached_property
    def stage_of_compute(self) -> Ints:
        """The row of ``stage_ns`` of each compute."""
        return self.stages.of_row[self.copies.of_row[self.cells.of_row]]

    @cached_property
    def _beyond_rank(self) -> Floats:
        """Time of each compute over the median of its cell."""
        return self.time_ns / np.maximum(self.cell_ns[self.cells.of_row], 1)

    @cached_property
    def iterations(self) -> Groups:
        """Computes of one iteration."""
        return groups_of(self.work.iteration[self.rows])

    @cached_property
    def iteration_effect(self) -> Floats:
        """How much longer computes of all ranks take in each iteration than in the others."""
        return group_medians(self.iterations.of_row, len(self.iterations), self._beyond_rank)

    @cached_property
    def trend(self) -> Floats:
        """The part of each iteration's effect that grows steadily over the run; 1 for none."""
        number = np.arange(len(self.iterations), dtype=np.float64)
        series = np.log(self.iteration_effect)
        slope, explained = lines(np.zeros(len(series), np.int64), number, series)
        if not rises(len(series), slope, explained).any():
            return np.ones(len(series))
        grown: Floats = np.exp(slope[0] * (number - number.mean()))
        return grown

    @cached_property
    def _beyond_iteration(self) -> Floats:
        return self._beyond_rank / self.iteration_effect[self.iterations.of_row]

    @cached_property
    def microbatches(self) -> Groups:
        """Computes of one microbatch in one iteration and replica."""
        work, rows = self.work, self.rows
        return groups_of(work.iteration[rows], work.replica[rows], work.microbatch[rows])

    @cached_property
    def microbatch_effect(self) -> Floats:
        """How much longer each microbatch takes, on every stage; 1 where one stage alone tells."""
        first, of_row = self.rows[self.microbatches.first], self.microbatches.of_row
        numbered = self.work.microbatch[first] != NONE
        places = groups_of(of_row, self.work.stage[self.rows]).first
        stages = np.bincount(of_row[places], minlength=len(self.microbatches))
        effect = group_medians(of_row, len(self.microbatches), self._beyond_iteration)
        return np.where(numbered & (stages > 1), effect, 1.0)

    @cached_property
    def _beyond_microbatch(self) -> Floats:
        return self._beyond_iteration / self.microbatch_effect[self.microbatches.of_row]

    @cached_property
    def paces(self) -> Groups:
        """Computes of one rank in one iteration."""
        return groups_of(self.work.rank[self.rows], self.work.iteration[self.rows])

    @cached_property
    def pace(self) -> Floats:
        """How much longer each rank takes in each iteration, beyond what all ranks share."""
        return group_medians(self.paces.of_row, len(self.paces), self._beyond_microbatch)

    @cached_property
    def rest(self) -> Floats:
        """What is left of each compute's time, as a multiple of what all factors explain."""
        return self._beyond_microbatch / self.pace[self.paces.of_row]

    @cached_property
    def noise(self) -> float:
        """The spread of what is left, as a standard deviation of logarithms."""
        left = np.abs(np.log(self.rest))
        return 1.4826 * median_of(left) if len(left) else 0.0

    def stands_out(self, effect: Floats, of: Ints, against: Floats | float = 1.0) -> Bools:
        """Tell which effects are larger than chance and small differences of like hardware.

        A median of n times is off by 1.25 deviations / sqrt(n), and so is what it is held against.

        Args:
            effect: the factors; NaN stands for none.
            of: how many times each is the median of.
            against: how many times as uncertain what they are held against is.
        """
        error = 1.25 * self.noise * np.sqrt((1 + against) / np.maximum(of, 1))
        return np.nan_to_num(np.log(effect)) > np.maximum(_LEAST, _SURE * error)


def effects_of(work: Work) -> Effects:
    """Return the effects of a run.

    Args:
        work: of all ranks, in the iterations that count.
    """
    time_ns = work.end_ns - work.start_ns
    rows = np.flatnonzero(np.isin(work.role, _TIMED) & (time_ns > 0))
    return Effects(work, rows, time_ns[rows].astype(np.float64))
