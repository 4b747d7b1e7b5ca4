"""Faults: reasons why work took longer than equal work, and its times without them.

The shape of slowness shows its cause: one rank, one stage, one microbatch on every stage, and so
on. Each function in ``SHAPES`` finds the faults of one shape in the evidence of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from bubbleviz.explain.diagnosis.effects import Effects, group_medians, quantile_of
from bubbleviz.explain.slowdown.work import COMPUTING, Role, Work, plays
from bubbleviz.explain.slowness import median_of_others
from bubbleviz.explain.stage_layers import best_layout, moves_of, stage_shares
from bubbleviz.model.columns import NONE, Floats, Ints
from bubbleviz.model.grouping import (
    find_distinct,
    find_distinct_rows,
    group_rows,
    list_rows_by_value,
    sort_rows,
)
from bubbleviz.model.intervals import group_sum
from bubbleviz.model.operations import HostActivities
from bubbleviz.model.phases import Phase, parse_phase_label

if TYPE_CHECKING:
    from bubbleviz.schedules.layout.best_layouts import LayoutQuestion

#: Maximum number of ranks that are reported as slow.
_SLOW_RANKS = 8
#: Maximum numbers of ranks that are reported because they pause, and because they launch late.
_PAUSING_RANKS, _LATE_RANKS = 4, 4
#: If more than this fraction of the microbatches is slow, the lengths of all microbatches vary,
#: unless at most half of the microbatch numbers are slow in nearly all iterations.
_MANY, _SOME_NUMBERS, _ALWAYS = 0.2, 0.5, 0.8
#: Minimum transfer time of a slow link, as a multiple of that of other links.
_SLOW_LINK = 1.3
#: Minimum launch gaps that are reported, as a fraction of the computes of a rank.
_LEAST_GAPS = 0.05
#: How many more chunks are in flight: one, or as many as are needed, which may be more than the
#: requests contain.
ONE_MORE, ENOUGH = "one", "enough"
#: Name of the fault that whole layers are on the wrong stages.
WHOLE_LAYERS = "layers"
#: Value of ``what`` if launch gaps and communication cannot be told apart.
COMPUTE_GAPS = "compute"


def _nothing() -> Ints:
    return np.zeros(0, np.int64)


@dataclass(frozen=True)
class Fault:
    """One reason why an iteration takes longer: slow work, or work that starts late.

    Attributes:
        kind: Its shape: ``rank``, ``host``, ``stage``, ``microbatch``, ``iteration``, ``link``,
            ``launch``, ``launch-gaps``, ``collective``, ``drift``, ``slowed``, ``queue`` or
            ``token``.
        name: Stable and unique name in the run, for example ``rank-3``.
        rows: Rows of the work table that it slows down.
        scale: Time of each of these rows without the fault, as a fraction of its measured time.
        ranks: Ranks that it slows down, or empty if it is not limited to certain ranks.
        stage: Stage that it slows down, or None if there are none or several.
        stages: Stages that have too much work; empty for other kinds of faults.
        link: Stages between which data moved, or None for other kinds of faults.
        microbatches: Slow microbatches as (iteration, microbatch), or empty if it is no fault of
            microbatches.
        iterations: Iterations in which it occurs, or empty for all.
        phases: Phases that it slows down, each with its time as a multiple of its norm.
        what: Kind of the collective or work. For launch gaps, ``compute`` if they may be
            communication. For ranks that are slow in some iterations, ``pace`` if all of their
            computes are slow there, else ``pause``. Empty if ``kind`` says it all.
        delayed: Rows of the work table that start late because of it.
        late_ns: Delay of each of these rows.
        collective: Kind of collective that starts late because of it, or "" if operations lose
            more time.
        host: CUDA call and range of the host during its longest delay, as rows of the operations'
            ``names``, or -1 if unknown.
        moves: Moves of layers between stages, or empty if only an even split of work is known.
        bound: Whether the work is not slow compared with equal work. Its saving is then an upper
            bound: it assumes that the work takes no time at all.
    """

    kind: str
    name: str
    rows: Ints = field(default_factory=_nothing)
    scale: Floats = field(default_factory=lambda: np.zeros(0))
    ranks: tuple[int, ...] = ()
    stage: int | None = None
    stages: tuple[int, ...] = ()
    link: tuple[int, int] | None = None
    microbatches: tuple[tuple[int, int], ...] = ()
    iterations: tuple[int, ...] = ()
    phases: tuple[tuple[str, float], ...] = ()
    what: str = ""
    delayed: Ints = field(default_factory=_nothing)
    late_ns: Ints = field(default_factory=_nothing)
    collective: str = ""
    host: tuple[int, int] = (NONE, NONE)
    moves: tuple[str, ...] = ()
    bound: bool = False

    @property
    def family(self) -> str:
        """A name that it shares with the faults that contain it or that it contains."""
        if self.kind == "launch":
            return self.what or "launches"
        return "pauses" if self.kind == "iteration" and self.what else self.name


@dataclass(frozen=True, eq=False, repr=False)
class Evidence:
    """Work and effects of a run, and what is known about its hosts, layers and schedule.

    Attributes:
        work: Work of all ranks in the iterations that count.
        own_ns: Time of each row without waiting; for communication, its transfer time.
        effects: Effects on the times of computes.
        launch_share: Share of the time without a compute kernel in which no kernel ran at all, for
            each row, or None if it is unknown. Communication takes the rest of that time.
        host_of_rank: Number of the host of each rank.
        late_ns: Delay of each row because the host launched it late; 0 for other rows.
        profiler_ns: Delay of each row because the profiler stopped its process; 0 for other rows.
        hosts: Activity of hosts before collectives that they launched late, and inside operations.
        layout: Layers of the stages, or None if they are unknown.
        schedule: Name of the schedule that ran, or None if it is unknown.
    """

    work: Work
    own_ns: Ints
    effects: Effects
    launch_share: Floats | None
    host_of_rank: Ints
    late_ns: Ints
    profiler_ns: Ints
    hosts: HostActivities = field(default_factory=HostActivities.make_empty)
    layout: LayoutQuestion | None = None
    schedule: str | None = None


def slow_ranks(seen: Evidence) -> Iterator[Fault]:
    """Yield ranks all of whose computes are slow, and the hosts and replicas of only such ranks."""
    effects, work = seen.effects, seen.work
    size = np.bincount(effects.cells.of_row, minlength=len(effects.cells))
    copies = np.bincount(effects.copies.of_row)[effects.copies.of_row]
    out = effects.stands_out(effects.rank_effect, size, 1 / np.maximum(copies - 1, 1))
    cell_row = effects.rows[effects.cells.first]
    rank = work.rank[cell_row]

    def fault(kind: str, name: str, ranks: list[int]) -> Fault:
        cells = out & np.isin(rank, ranks)
        at = np.flatnonzero(cells[effects.cells.of_row])
        # Without the fault cells take the times of the others.
        phases = group_rows(work.kind[cell_row[cells]])
        own = np.bincount(phases.of_row, effects.cell_ns[cells])
        others = np.bincount(phases.of_row, (effects.cell_ns / effects.rank_effect)[cells])
        stages = find_distinct(work.stage[effects.rows[at]]).tolist()
        return Fault(
            kind,
            name,
            effects.rows[at],
            effects.usual(at, 1 / effects.rank_effect[effects.cells.of_row[at]]),
            ranks=tuple(ranks),
            stage=stages[0] if len(stages) == 1 else None,
            phases=_phases(seen, work.kind[cell_row[cells]][phases.first], own / others),
        )

    slow = _losing(rank, np.where(out, effects.cell_ns * (1 - 1 / effects.rank_effect) * size, 0.0))
    present = find_distinct(work.rank)
    replica = work.replica[group_rows(work.rank).first]
    for kind, name, place in (
        ("host", "host", seen.host_of_rank[present]),
        ("rank", "replica", replica),
    ):
        # Places of several ranks, not of all, that are slow one and all.
        for number in find_distinct(place[np.isin(present, slow)]).tolist():
            ranks = present[place == number].tolist()
            if number != NONE and 1 < len(ranks) < len(present) and set(ranks) <= set(slow):
                yield fault(kind, f"{name}-{number}", ranks)
                slow = [r for r in slow if r not in ranks]
    for one in slow[:_SLOW_RANKS]:
        yield fault("rank", f"rank-{one}", [one])


def slow_stages(seen: Evidence) -> Iterator[Fault]:
    """Yield the stages that hold more work than others; hosts that hold only such stages.

    A host is repaired, and its work takes the time of the others'. Layers of a stage move to other
    stages, and take their time there: whole ones, where these are known::

        F of stages     10  14  10  22        14  14  14  14
    """
    effects, work = seen.effects, seen.work
    size = np.bincount(effects.stage_of_compute, minlength=len(effects.stage_kind))
    roles = np.array([kind.role for kind in work.kinds], np.int64)[effects.stage_kind]
    out = effects.stands_out(effects.stage_effect, size) & plays(roles, COMPUTING)
    # One that is slower than most may hold less than the mean, which it would get.
    out &= effects.stage_share > 1

    def fault(kind: str, name: str, stages: list[int]) -> Fault:
        slow = out & np.isin(effects.stage_number, stages)
        moves = kind == "stage"
        changed = np.isin(effects.stage_kind, effects.stage_kind[slow]) if moves else slow
        at = np.flatnonzero(changed[effects.stage_of_compute])
        times = effects.stage_share if moves else effects.stage_effect
        # Of a kind that is slow on several stages the worst one tells.
        kinds = group_rows(effects.stage_kind[slow])
        most = np.zeros(len(kinds))
        np.maximum.at(most, kinds.of_row, effects.stage_effect[slow])
        return Fault(
            kind,
            name,
            effects.rows[at],
            effects.usual(at, 1 / times[effects.stage_of_compute[at]]),
            ranks=tuple(find_distinct(work.rank[np.isin(work.stage, stages)]).tolist()),
            stage=stages[0] if moves and len(stages) == 1 else None,
            stages=tuple(stages) if moves else (),
            phases=_phases(seen, effects.stage_kind[slow][kinds.first], most),
        )

    slow = find_distinct(effects.stage_number[out]).tolist()
    if len(slow) > 1:
        host = seen.host_of_rank[work.rank]
        for number in find_distinct(host[np.isin(work.stage, slow)]).tolist():
            # It holds all ranks of several slow stages, and no other rank.
            stages = find_distinct(work.stage[host == number]).tolist()
            alone = len(find_distinct(host[np.isin(work.stage, stages)])) == 1
            if alone and len(stages) > 1 and set(stages) <= set(slow):
                yield fault("host", f"host-{number}", stages)
                slow = [stage for stage in slow if stage not in stages]
    if not slow:
        return
    found = fault("stage", f"stage-{slow[0]}" if len(slow) == 1 else "stages", slow)
    layers = None if seen.layout is None else _whole_layers(seen, found)
    yield found if layers is None else layers


def _whole_layers(seen: Evidence, fault: Fault) -> Fault | None:
    """Return a fault of stages, of which whole layers move; None where it is not known which.

    Where no layout is better, nothing moves.
    """
    question, work = seen.layout, seen.work
    best = None if question is None else best_layout(question, seen.schedule)
    if question is None or best is None:
        return None
    shares = stage_shares(question, best)
    # What is computed again takes what the backward takes that needs it.
    phases = [parse_phase_label(kind.phase) for kind in work.kinds]
    of_kind = np.ones((len(phases), len(best.placement)))
    for kind, phase in enumerate(phases):
        if work.kinds[kind].role in COMPUTING and phase is not None:
            of_kind[kind] = shares.get(phase, shares[Phase.B])
    rows = seen.effects.rows
    at = np.flatnonzero(work.virtual_stage[rows] >= 0)
    share = of_kind[work.kind[rows[at]], work.virtual_stage[rows[at]]]
    at, share = at[share != 1], share[share != 1]
    return replace(
        fault,
        name=WHOLE_LAYERS,
        rows=rows[at],
        scale=seen.effects.usual(at, share),
        moves=moves_of(question, best),
    )


def slow_microbatches(seen: Evidence) -> Iterator[Fault]:
    """Yield the microbatches that are slow on every stage, or all of them where they vary.

    Their tokens move to the other microbatches of the iteration, of any replica::

        microbatches     1  1  3  1        1.5  1.5  1.5  1.5
    """
    effects, work = seen.effects, seen.work
    groups, effect = effects.microbatches, effects.microbatch_effect
    size = np.bincount(groups.of_row, minlength=len(groups))
    out = effects.stands_out(effect, size, against=0.0)
    if not out.any():
        return
    first = effects.rows[groups.first]
    number = work.microbatch[first]
    # Whether a few numbers of microbatches are the slow ones, time and again.
    all_times = np.bincount(number[number >= 0])
    times = np.bincount(number[(number >= 0) & out], minlength=len(all_times))
    slow = times > 0
    same_numbers = (times[slow] >= _ALWAYS * all_times[slow]).all()
    same_numbers &= slow.sum() <= _SOME_NUMBERS * (all_times > 0).sum()
    varying = out.mean() > _MANY and not same_numbers
    iteration = group_rows(work.iteration[first]).of_row
    counted = number >= 0
    mean = np.bincount(iteration, effect * counted) / np.maximum(np.bincount(iteration, counted), 1)
    uneven = counted & (np.bincount(iteration, out) > 0)[iteration]
    at = np.flatnonzero(uneven[groups.of_row])
    of_row = groups.of_row[at]
    worst = quantile_of(effect[out], 0.5)
    if varying:
        worst = quantile_of(effect, 0.95) / quantile_of(effect, 0.05)
    pairs = zip(work.iteration[first[out]].tolist(), number[out].tolist(), strict=True)
    yield Fault(
        "microbatch",
        "microbatches",
        effects.rows[at],
        effects.usual(at, mean[iteration[of_row]] / effect[of_row]),
        microbatches=tuple(sorted(set(pairs))),
        phases=(("", worst),),
        what="lengths" if varying else "",
    )


def slow_iterations(seen: Evidence) -> Iterator[Fault]:
    """Yield the iterations that are slow on all ranks."""
    effects, work = seen.effects, seen.work
    groups, effect = effects.iterations, effects.iteration_effect / effects.trend
    if effects.slowed.any() and effects.slowed.all():
        # From some iteration on all take longer, which is one change, and no slow iterations.
        change = np.exp(effects.jump_change.min())
        effect = effect / np.where(np.arange(len(groups)) >= effects.jump_begin.max(), change, 1.0)
    size = np.bincount(groups.of_row, minlength=len(groups))
    out = effects.stands_out(effect, size, against=0.0)
    if out.any():
        at = np.flatnonzero(out[groups.of_row])
        scale = effects.with_gaps(at, 1 / effect[groups.of_row[at]])
        yield Fault(
            "iteration",
            "iterations",
            effects.rows[at],
            scale,
            iterations=tuple(work.iteration[effects.rows[groups.first[out]]].tolist()),
            phases=(("", quantile_of(effect[out], 0.5)),),
            host=_host_in_longest(seen, effects.rows[at], scale),
        )


def pauses(seen: Evidence) -> Iterator[Fault]:
    """Yield ranks that pause in some operations, then all pauses."""
    effects, work = seen.effects, seen.work
    size = np.bincount(effects.paces.of_row, minlength=len(effects.paces))
    # A rank that has slowed for good does not pause.
    own = effects.pace_ranks.of_row
    since = effects.slowed[own] & (effects.pace_number >= effects.jump_begin[own])
    pace = effects.pace / np.where(since, np.exp(effects.jump_change[own]), 1.0)
    slow_pace = effects.stands_out(pace, size, against=0.0)
    factor = effects.paused * np.where(slow_pace, pace, 1.0)[effects.paces.of_row]
    rank = work.rank[effects.rows]
    ranks = _losing(rank, effects.time_ns * (1 - 1 / factor))
    named = [(f"pauses-{one}", [one]) for one in ranks[:_PAUSING_RANKS]]
    for name, some in (*named, *([("pauses", sorted(ranks))] if len(ranks) > 1 else ())):
        at = np.flatnonzero((factor > 1) & np.isin(rank, some))
        rows, scale = effects.rows[at], effects.with_gaps(at, 1 / factor[at])
        yield Fault(
            "iteration",
            name,
            rows,
            scale,
            ranks=tuple(some),
            iterations=tuple(find_distinct(work.iteration[rows]).tolist()),
            phases=(("", quantile_of(factor[at], 0.5)),),
            what="pace" if slow_pace[effects.paces.of_row[at]].all() else "pause",
            host=_host_in_longest(seen, rows, scale),
        )


def drifts(seen: Evidence) -> Iterator[Fault]:
    """Yield the ranks whose computes take longer and longer, and those that slowed at once."""
    effects, work = seen.effects, seen.work
    own, number = effects.pace_ranks.of_row, effects.pace_number
    first, count = effects.rows[effects.paces.first], np.bincount(own)
    slope, change, slowed = effects.slope, effects.jump_change, effects.slowed
    found = []
    which = effects.drifts
    if which.any():
        risen, most = slope[own] * number, slope * (count - 1)
        found.append(("drift", "drift", which, which[own], risen, most))
    for begin in find_distinct(effects.jump_begin[slowed].astype(np.int64)).tolist():
        which = slowed & (effects.jump_begin == begin)
        since = which[own] & (number >= begin)
        found.append(("slowed", f"slowed-{begin}", which, since, change[own], change))
    for kind, name, which, slow_paces, risen, most in found:
        since = slow_paces & (kind == "slowed")
        at = np.flatnonzero(slow_paces[effects.paces.of_row])
        yield Fault(
            kind,
            name,
            effects.rows[at],
            effects.usual(at, np.exp(-risen[effects.paces.of_row[at]])),
            ranks=tuple(work.rank[first[effects.pace_ranks.first]][which].tolist()),
            iterations=tuple(find_distinct(work.iteration[first[since]]).tolist()),
            phases=(("", float(np.exp(most[which].max()))),),
            what="all" if which.all() else "",
        )


def slow_links(seen: Evidence) -> Iterator[Fault]:
    """Yield links between stages that are slower than others, then all transfers.

    How long data moved shows where the receive was there first; both directions are one link.
    """
    work = seen.work
    sender, receiver = work.link
    rows = np.flatnonzero((sender != NONE) & (seen.own_ns > 0))
    if not len(rows):
        return
    replica = work.replica[rows]
    links = group_rows(sender[rows], receiver[rows], replica)
    length_ns = work.end_ns[rows] - work.start_ns[rows]
    shows = plays(work.role[rows], (Role.RECV_F, Role.RECV_B)) & (length_ns > seen.own_ns[rows])
    moved_ns = seen.own_ns[rows[shows]].astype(np.float64)
    link_ns = group_medians(links.of_row[shows], len(links), moved_ns)
    known = np.flatnonzero(~np.isnan(link_ns))
    norm_ns = np.full(len(links), np.nan)
    norm_ns[known] = median_of_others(np.zeros(len(known), np.int64), link_ns[known])
    ratio = np.nan_to_num(link_ns / norm_ns)
    low, high = np.minimum(sender, receiver)[rows], np.maximum(sender, receiver)[rows]
    slow_rows = np.flatnonzero((ratio > _SLOW_LINK)[links.of_row])
    for pair in find_distinct_rows(low[slow_rows], high[slow_rows]).T.tolist():
        at = slow_rows[(low[slow_rows] == pair[0]) & (high[slow_rows] == pair[1])]
        slow = find_distinct(replica[at]).tolist()
        alone = len(slow) == 1 and len(find_distinct(replica)) > 1
        yield Fault(
            "link",
            f"link-{pair[0]}-{pair[1]}",
            rows[at],
            1 / ratio[links.of_row[at]],
            ranks=tuple(find_distinct(work.rank[rows[at]]).tolist()),
            link=(pair[0], pair[1]),
            phases=(("", float(ratio[links.of_row[at]].max())),),
            what=f"replica {slow[0]}" if alone and slow[0] != NONE else "",
        )
    yield Fault("link", "links", rows, np.zeros(len(rows)), bound=True)


def collectives(seen: Evidence) -> Iterator[Fault]:
    """Yield each kind of collective: data moves in them, once their last member has entered."""
    work = seen.work
    rows = np.flatnonzero((work.role == Role.COLLECTIVE) & (seen.own_ns > 0))
    for kind, at in list_rows_by_value(work.kind[rows]):
        name, none = work.kinds[kind].name, np.zeros(len(at))
        yield Fault("collective", f"collective-{name}", rows[at], none, what=name, bound=True)


def late_launches(seen: Evidence) -> Iterator[Fault]:
    """Yield the ranks whose hosts launch late, then all of them, then the profiler's part.

    Operations start late though their inputs are there; of a collective that one rank launches
    late all other members wait for its last one.
    """
    work = seen.work
    rows, held = np.flatnonzero(seen.late_ns > 0), np.flatnonzero(seen.profiler_ns > 0)
    rank = work.rank[rows]
    ranks = _losing(rank, seen.late_ns[rows].astype(np.float64))
    found = [(f"launch-{one}", rows[rank == one], seen.late_ns) for one in ranks[:_LATE_RANKS]]
    found += [("launches", rows, seen.late_ns)] if len(ranks) > 1 else []
    found += [("profiler", held, seen.profiler_ns)] if len(held) else []
    for name, delayed, late_ns in found:
        lost_ns = late_ns[delayed]
        longest, longest_ns = int(delayed[lost_ns.argmax()]), int(lost_ns.max())
        until_ns = int(work.start_ns[longest])
        in_collectives = 2 * lost_ns[work.communicates[delayed]].sum() > lost_ns.sum()
        collective = work.kinds[work.kind[longest]].phase if in_collectives else ""
        place = int(work.rank[longest]), until_ns - longest_ns, until_ns
        yield Fault(
            "launch",
            name,
            ranks=tuple(find_distinct(work.rank[delayed]).tolist()),
            iterations=tuple(find_distinct(work.iteration[delayed]).tolist()),
            what=name if name == "profiler" else "",
            delayed=delayed,
            late_ns=lost_ns,
            collective=collective,
            host=host_during(seen.hosts, *place, longest_ns),
        )


def launch_gaps(seen: Evidence) -> Iterator[Fault]:
    """Yield the ranks that have more launch gaps than others, then the gaps of all that have some.

    Inside operations no kernel runs, since launches take longer than the kernels do. Time in which
    only communication runs is no launch gap. If the two cannot be told apart, ``what`` of the
    faults is :data:`COMPUTE_GAPS`.
    """
    effects, rank = seen.effects, seen.work.rank[seen.effects.rows]
    gap_ns, length_ns = effects.gap_ns, effects.gap_ns + effects.time_ns
    if seen.launch_share is not None:
        gap_ns = gap_ns * seen.launch_share[effects.rows]
    ranks = group_rows(rank)
    of = ranks.of_row
    share = np.bincount(of, gap_ns) / np.bincount(of, length_ns)
    norm = median_of_others(np.zeros(len(share), np.int64), share)
    norm = np.where(np.isnan(norm), share, norm)
    some, more = share > _LEAST_GAPS, share - norm > _LEAST_GAPS
    # To as much as others have, beside the time of kernels.
    kept = norm * (1 - share) / np.maximum(share * (1 - norm), 1e-9)
    found = [("launch-gaps-of-few", more, kept)] if more.any() else []
    if (some & ~more).any():
        found.append(("launch-gaps", some, np.zeros(len(share))))
    for name, which, left in found:
        at = np.flatnonzero((gap_ns > 0) & which[of])
        yield Fault(
            "launch-gaps",
            name,
            effects.rows[at],
            1 - (1 - left[of[at]]) * gap_ns[at] / length_ns[at],
            ranks=tuple(rank[ranks.first[which]].tolist()),
            phases=(("", float(gap_ns[at].sum() / length_ns[at].sum())),),
            what=COMPUTE_GAPS if seen.launch_share is None else "",
            bound=name == "launch-gaps",
        )


#: Functions that find faults, one per shape.
SHAPES: tuple[Callable[[Evidence], Iterable[Fault]], ...] = (
    slow_ranks,
    slow_stages,
    slow_microbatches,
    slow_iterations,
    pauses,
    drifts,
    slow_links,
    collectives,
    late_launches,
    launch_gaps,
)


def token_fault(what: str, rank: int, depth: int) -> Fault:
    """Return the fault that the first stage waits for tokens: too few chunks are in flight.

    Args:
        what: :data:`ONE_MORE` or :data:`ENOUGH`: how many more there would be without.
        rank: of the first stage that waits.
        depth: how many there are.
    """
    return Fault(
        "token",
        f"token-{what}",
        ranks=(rank,),
        stage=0,
        phases=(("", float(depth)),),
        what=what,
        bound=what == ENOUGH,
    )


def _losing(rank: Ints, lost: Floats) -> list[int]:
    """Return the ranks that lose anything in some rows, those that lose most first."""
    of_rank = np.bincount(rank, lost)
    order = sort_rows(-of_rank)
    return [int(one) for one in order[of_rank[order] > 0]]


def _phases(seen: Evidence, kind: Ints, ratio: Floats) -> tuple[tuple[str, float], ...]:
    """Return the phases that some kinds of work are reported under, with a ratio each."""
    kinds = seen.work.kinds
    return tuple((kinds[k].phase, r) for k, r in zip(kind.tolist(), ratio.tolist(), strict=True))


# Where a host was while its GPU had run dry.


def beside_operations(hosts: HostActivities, name_id: Ints, phase: Ints) -> HostActivities:
    """Return what hosts did before late collectives and optimizers, and inside operations.

    Args:
        hosts: all that is recorded of them.
        name_id: names of operations, whose own ranges tell nothing more.
        phase: of each row of the operations table.
    """
    if not len(hosts):
        return hosts
    other = (hosts.call == 1) | ~np.isin(hosts.name_id, name_id)
    last = (hosts.operation == NONE) | (np.append(phase, NONE)[hosts.operation] == Phase.OPTIMIZER)
    kept = hosts.take(last & other)
    columns = (kept.rank, kept.start_ns, kept.end_ns, kept.call, kept.name_id)
    return kept.take(group_rows(*columns).first)


def host_during(
    hosts: HostActivities, rank: int, start_ns: int, end_ns: int, lost_ns: float
) -> tuple[int, int]:
    """Return the call and the range that took half of what was lost, or more; -1 for none.

    Of several that is the shortest.

    Args:
        hosts: what launching threads did.
        rank: whose host.
        start_ns: start of the time.
        end_ns: end of it.
        lost_ns: how much of it was.
    """
    overlap_ns = np.minimum(hosts.end_ns, end_ns) - np.maximum(hosts.start_ns, start_ns)
    during = (hosts.rank == rank) & (overlap_ns > 0)
    found = [NONE, NONE]
    for place, is_call in enumerate((1, 0)):
        rows = np.flatnonzero(during & (hosts.call == is_call))
        names = group_rows(hosts.name_id[rows])
        spent_ns = group_sum(names.of_row, len(names), overlap_ns[rows])
        whole_ns = group_sum(names.of_row, len(names), (hosts.end_ns - hosts.start_ns)[rows])
        long = np.flatnonzero(2 * spent_ns >= lost_ns)
        if len(long):
            found[place] = int(hosts.name_id[rows[names.first[long[whole_ns[long].argmin()]]]])
    return found[0], found[1]


def _host_in_longest(seen: Evidence, rows: Ints, scale: Floats) -> tuple[int, int]:
    """Return where the host was in the operation that loses most.

    Args:
        seen: the run.
        rows: of the work table.
        scale: what each would take without the fault, as a share of what it took.
    """
    work = seen.work
    lost_ns = (work.end_ns - work.start_ns)[rows] * (1 - scale)
    longest = int(rows[lost_ns.argmax()])
    start_ns, end_ns = int(work.start_ns[longest]), int(work.end_ns[longest])
    return host_during(seen.hosts, int(work.rank[longest]), start_ns, end_ns, float(lost_ns.max()))
