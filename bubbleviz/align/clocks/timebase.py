"""Timebase: one clock for all machines, and its uncertainty.

Profiles arrive on the clocks of their sessions (:mod:`bubbleviz.align.profile_clocks`), which agree
except for the error of NTP. Precedences bound this error from both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from bubbleviz.align.arrivals import NEVER
from bubbleviz.align.clocks import offsets
from bubbleviz.align.clocks.clock_solver import Contradiction, solve_clocks
from bubbleviz.align.clocks.clock_steps import ClockStep, find_clock_steps
from bubbleviz.align.clocks.precedences import (
    find_collective_precedences,
    find_dependencies,
    select_reductions,
)
from bubbleviz.align.join import JoinedRecordings
from bubbleviz.align.profile_clocks import GRAIN_NS, ProfileClock
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.texts import format_count, list_first, make_natural_key

#: Machines that a limitation names; it counts all.
_NAMED = 4


@dataclass(frozen=True)
class Timebase:
    """One clock for all profiles.

    Attributes:
        clocks: Clock of each profile.
        machine: Index of the machine of each rank.
        comparable: Mask of the machines whose times can be compared with those of the reference.
        uncertainty_ns: Uncertainty of the clock of each machine, or -1 if it is not bounded.
        contradicted: Whether the precedences contradict each other.
        limitations: Properties that could not be inferred.
        jump_ns: Maximum error of durations on a single clock in each iteration, because the clock
            was set meanwhile; empty if no clock was set.
    """

    clocks: tuple[ProfileClock, ...]
    machine: Ints
    comparable: Bools
    uncertainty_ns: Ints
    contradicted: bool
    limitations: tuple[Limitation, ...]
    jump_ns: Ints = field(default_factory=lambda: np.empty(0, np.int64))


def timebase(
    joined: JoinedRecordings,
    clocks: Sequence[ProfileClock],
    captures: Sequence[tuple[int, int]],
    method: str,
) -> Timebase:
    """Find the common clock of all profiles.

    Args:
        joined: The recordings on the clocks of their sessions, with stages and iterations.
        clocks: Clock of each profile according to its session.
        captures: First and last time of each profile, on its own clock.
        method: One of :data:`bubbleviz.model.choices.ALIGNMENTS`.
    """
    if any(clock is not None and clock.aligned for clock in joined.told_clocks):
        return _use_told_clocks(joined)
    if method != "causal" or len(joined.machines) == 1:
        return _use_session_clocks(joined, clocks, method)
    bounds: dict[str, list[int]] = {machine: [] for machine in joined.machines}
    for own, machine, capture in zip(clocks, joined.machine_of_profile, captures, strict=True):
        bounds[machine].extend(time + own.offset_ns for time in capture)
    starts_ns = np.array([min(times) for times in bounds.values()], np.int64)
    ends_ns = np.array([max(times) for times in bounds.values()], np.int64)
    extents = starts_ns, ends_ns
    reference = _reference_machine(joined)
    solution = _solve_machines(joined, extents, reference)
    if reference and not _is_constant(solution[1]):
        # Corrections with drift or without bounds cannot be converted to the first machine's clock.
        solution = _solve_machines(joined, extents, 0)
    precedences, corrections, contradiction, dropped = solution
    steps, stepped = find_clock_steps(precedences, len(joined.machines), extents)
    corrections = stepped if steps else corrections
    by_machine = dict(zip(joined.machines, _relate_to_first(corrections), strict=True))
    profiles = zip(clocks, joined.machine_of_profile, strict=True)
    corrected = tuple(clock.corrected(by_machine[machine]) for clock, machine in profiles)
    uncertainties = [correction.uncertainty_ns for correction in corrections]
    found = _make_timebase(joined, corrected, uncertainties)
    notes = []
    if not found.comparable.all() and joined.paired:
        notes.append(_describe_unbounded(joined, found.comparable))
    if dropped:
        notes.append(
            Limitation(
                "collectives between replicas",
                "their kernels do not overlap in time as one collective's do, so they bound no "
                "clock",
            )
        )
    if contradiction is not None:
        notes.append(_describe_contradiction(joined, precedences, contradiction))
    if steps:
        notes.append(_describe_steps(joined, steps))
    return replace(
        found,
        contradicted=contradiction is not None or len(steps) > 0,
        jump_ns=_measure_jumps(len(joined.iteration_names), steps, contradiction),
        limitations=tuple(notes),
    )


def within_machines(joined: JoinedRecordings) -> tuple[Limitation, ...]:
    """Return a limitation if ranks of one machine, which share a clock, contradict each other.

    Only recorded receives count, because spans may begin with kernels that need no input. If the
    user's stages contradict the data, the stages are wrong and not the clock.
    """
    given = any(n.kind is LimitationKind.STAGES_CONTRADICTED for n in joined.limitations)
    if given or not joined.paired or (joined.arrivals.latest_ns == NEVER).all():
        return ()
    pairs = rank_precedences(joined)
    machine = joined.machine_of_rank
    same = machine[pairs.earlier_clock] == machine[pairs.later_clock]
    same &= joined.arrivals.latest_ns[pairs.later_row] != NEVER
    early_ns = np.where(same, pairs.earlier_ns - pairs.later_ns, 0)
    broken = np.flatnonzero(early_ns > GRAIN_NS)
    if not len(broken):
        return ()
    row = int(early_ns.argmax())
    ends = int(pairs.later_row[row]), int(pairs.earlier_row[row])
    stages = " and ".join(str(int(joined.operations.virtual_stage[at])) for at in ends)
    reason = (
        f"{_describe_need(joined, pairs, row)} (virtual stages {stages}), and ran "
        f"{early_ns[row] / 1e3:,.1f} us too early by the clock that both have: times of one of "
        "them are wrong, its work goes on after what it passes on, or stages are other than "
        "inferred (--parallel sets them)"
    )
    return (Limitation("ranks of one host contradict each other", reason, len(broken)),)


def _reference_machine(joined: JoinedRecordings) -> int:
    """Return the index of the machine that serves as reference when clocks are solved.

    The choice does not depend on the order of files. It is the machine of the first stage. Ties are
    broken by the smallest rank number, then by the name of the machine.
    """
    largest = np.iinfo(np.int64).max
    keys = []
    for rank, stage in zip(joined.ranks, joined.stage_of_rank.tolist(), strict=True):
        global_rank = rank.local.global_rank
        number = largest if global_rank is None else global_rank
        keys.append((stage if stage >= 0 else largest, number, make_natural_key(rank.machine)))
    first = min(range(len(keys)), key=lambda rank: keys[rank])
    return joined.machines.index(joined.ranks[first].machine)


def _is_constant(corrections: Sequence[ProfileClock]) -> bool:
    """Return whether all corrections are bounded and have no drift."""
    return all(c.uncertainty_ns is not None and not c.drift_ppm for c in corrections)


def _relate_to_first(
    corrections: Sequence[ProfileClock],
) -> tuple[ProfileClock, ...]:
    """Convert corrections so that the clock of the first machine is the reference.

    Args:
        corrections: Corrections without drift, or any corrections that already refer to the first
            machine.
    """
    first = corrections[0]
    if (first.offset_ns, first.uncertainty_ns) == (0, 0):
        return tuple(corrections)
    related = [ProfileClock(0, 0)]
    for clock in corrections[1:]:
        uncertainty_ns = (clock.uncertainty_ns or 0) + (first.uncertainty_ns or 0)
        related.append(ProfileClock(clock.offset_ns - first.offset_ns, uncertainty_ns))
    return tuple(related)


def rank_precedences(joined: JoinedRecordings) -> offsets.Precedences:
    """Return the data dependencies between all ranks, in which clocks are rank numbers.

    Replicas of a stage that cannot be distinguished are compared on the clock of their machine.
    """
    return _find_dependencies(joined, np.arange(len(joined.ranks)), joined.machine_of_rank)


def _solve_machines(
    joined: JoinedRecordings, extents: tuple[Ints, Ints], reference: int
) -> tuple[offsets.Precedences, tuple[ProfileClock, ...], Contradiction | None, bool]:
    """Solve the clocks of all machines.

    Args:
        joined: The recordings on the clocks of their sessions, with stages and iterations.
        extents: Start and end of each machine's captures.
        reference: Index of the machine whose correction is 0.

    Returns:
        precedences: Precedences that were used.
        corrections: Correction of each machine.
        contradiction: Contradiction between the precedences, or None if there is none.
        is_without_collectives: Whether precedences of collectives were dropped because they
            contradict the others.
    """
    causal = _find_dependencies(joined, joined.machine_of_rank)
    reduced = offsets.join_precedences()
    if joined.paired:
        table = select_reductions(joined.collectives, joined.operations)
        iteration = joined.common_iterations_of(table.rank, table.iteration)
        table = table.replace_columns(iteration=iteration)
        reduced = find_collective_precedences(table, joined.reducing, joined.machine_of_rank)
    both = offsets.join_precedences(causal, reduced)
    found = solve_clocks(both, *extents, reference)
    if found[1] is None or len(reduced) == 0:
        return both, *found, False
    alone = solve_clocks(causal, *extents, reference)
    # A contradiction that exists without collectives is not caused by them.
    return (both, *found, False) if alone[1] is not None else (causal, *alone, True)


def _use_told_clocks(joined: JoinedRecordings) -> Timebase:
    """Return the clocks that a table of operations states. Its times are on one clock already."""
    told: dict[str, int | None] = {}
    for machine, clock in zip(joined.machine_of_profile, joined.told_clocks, strict=True):
        told[machine] = clock.uncertainty_ns if clock is not None and clock.aligned else 0
    clocks = tuple(ProfileClock(0, told[machine]) for machine in joined.machine_of_profile)
    found = _make_timebase(joined, clocks, [told[machine] for machine in joined.machines])
    if found.comparable.all():
        return found
    return replace(found, limitations=(_describe_unbounded(joined, found.comparable),))


def _make_timebase(
    joined: JoinedRecordings,
    clocks: tuple[ProfileClock, ...],
    uncertainty: list[int | None],
) -> Timebase:
    """Return the timebase of clocks, given the uncertainty of each machine (None if unbounded)."""
    uncertainty_ns = [NONE if bound is None else bound for bound in uncertainty]
    return Timebase(
        clocks=clocks,
        machine=joined.machine_of_rank,
        comparable=np.array([bound is not None for bound in uncertainty]),
        uncertainty_ns=np.array(uncertainty_ns, np.int64),
        contradicted=False,
        limitations=(),
    )


def _use_session_clocks(
    joined: JoinedRecordings, clocks: Sequence[ProfileClock], method: str
) -> Timebase:
    """Return the clocks of sessions. Only ``utc`` makes times of different machines comparable."""
    count = len(joined.machines)
    if method == "none":
        # Each machine stays on the clock of its first profile.
        pairs = list(zip(joined.machine_of_profile, clocks, strict=True))
        first = dict(reversed(pairs))
        clocks = [
            ProfileClock(clock.offset_ns - first[machine].offset_ns, clock.uncertainty_ns)
            for machine, clock in pairs
        ]
    found = _make_timebase(joined, tuple(clocks), [0, *[None] * (count - 1)])
    if count == 1:
        return found
    if method == "none":
        reason = (
            f"those of {count} hosts are left as they are (--align none), so ratios that need "
            "a common clock are left out"
        )
        return replace(found, limitations=(Limitation("clocks of several hosts", reason),))
    reason = (
        f"{count} hosts are aligned by UTC, whose error (NTP) is unknown; the ratios stage and "
        "period need no common clock"
    )
    notes = [Limitation("clocks of several hosts", reason)]
    precedences = _find_dependencies(joined, joined.machine_of_rank)
    early = precedences.earlier_ns - precedences.later_ns
    if broken := early.max(initial=0) > GRAIN_NS:
        row = int(early.argmax())
        reason = (
            f"{_describe_need(joined, precedences, row)}, and by UTC it ran "
            f"{early[row] / 1e3:,.1f} us too early; every ratio that needs these clocks is marked "
            "(!), and --align causal finds better ones"
        )
        what = "clocks of several hosts contradict each other"
        notes.append(Limitation(what, reason, kind=LimitationKind.UTC_CONTRADICTED))
    return replace(
        found, comparable=np.ones(count, bool), contradicted=bool(broken), limitations=tuple(notes)
    )


def _find_dependencies(
    joined: JoinedRecordings, clock: Ints, replica_clock: Ints | None = None
) -> offsets.Precedences:
    """Return the precedences of data dependencies, or none if iterations are not paired.

    Args:
        joined: The recordings with stages, pipelines and iterations.
        clock: Clock of each rank.
        replica_clock: Clock of each rank on which replicas of a stage are compared. It is
            ``clock`` if omitted.
    """
    if not joined.paired:
        return offsets.join_precedences()
    return find_dependencies(
        joined.operations.replace_columns(iteration=joined.common_iteration),
        joined.arrivals,
        joined.pipeline,
        clock,
        clock if replica_clock is None else replica_clock,
    )


def _describe_unbounded(joined: JoinedRecordings, known: Bools) -> Limitation:
    """Return a limitation for machines whose clocks are not bounded from both sides."""
    lacking = [machine for machine, ok in zip(joined.machines, known, strict=True) if not ok]
    return Limitation(
        "clocks of several hosts",
        f"no data dependency bounds the clock of {list_first(lacking, _NAMED)} against that of "
        f"{joined.machines[0]}, so ratios that need a common clock are left out; if UTC is right, "
        "use --align utc",
        len(lacking),
    )


def _describe_contradiction(
    joined: JoinedRecordings, precedences: offsets.Precedences, contradiction: Contradiction
) -> Limitation:
    """Return the limitation for a cycle of dependencies that no clocks satisfy."""
    machines = joined.machines
    needs = []
    for row in contradiction.rows:
        before = machines[int(precedences.earlier_clock[row])]
        after = machines[int(precedences.later_clock[row])]
        is_operation = precedences.later_row[row] >= 0
        collective = f"a collective of {after} holds {before}"
        needs.append(_describe_need(joined, precedences, row) if is_operation else collective)
    hosts = dict.fromkeys(
        machines[int(precedences.earlier_clock[row])] for row in contradiction.rows
    )
    return Limitation(
        "clocks of several hosts contradict each other",
        f"{', and '.join(needs)}: no clock offsets of {' and '.join(hosts)} allow this, by "
        f"{contradiction.by_ns / 1e3:,.1f} us; a clock was set during the capture, or the profiles "
        "are not of one run; the offsets with the smallest error are used, and every ratio that "
        "needs them is marked (!)",
    )


def _measure_jumps(
    iterations: int, steps: Sequence[ClockStep], contradiction: Contradiction | None
) -> Ints:
    """Return the maximum jump of clocks in each iteration, or an empty column if none was set."""
    jumps = np.zeros(iterations, np.int64)
    if not steps and contradiction is not None:
        return jumps + 2 * contradiction.by_ns
    for step in steps:
        # The bounds give the size of the jump only approximately.
        at = slice(step.last_before, step.first_after + 1)
        jump_ns = abs(step.by_ns) * 5 // 4 + 2 * int(GRAIN_NS)
        jumps[at] = np.maximum(jumps[at], jump_ns)
    return jumps if steps else np.empty(0, np.int64)


def _describe_steps(joined: JoinedRecordings, steps: Sequence[ClockStep]) -> Limitation:
    """Return the limitation for clocks that were set during the capture."""
    machines = joined.machines
    step = max(steps, key=lambda step: abs(step.by_ns))
    iteration = joined.iteration_names[step.first_after]
    first, second = (machines[number] for number in (step.first, step.second))
    more = (
        f", and {format_count(len(steps) - 1, 'further pair')} of hosts" if len(steps) > 1 else ""
    )
    return Limitation(
        "clocks that were set during the capture",
        f"about iteration {iteration} the clock of {second} jumps by "
        f"{-step.by_ns / 1e3:+,.1f} us against that of {first}{more}; uncertainties cover both "
        "sides of the jump, and every ratio is marked (!), since times on that clock are wrong",
        len(steps),
    )


def _describe_need(joined: JoinedRecordings, precedences: offsets.Precedences, row: int) -> str:
    """Return a clause that names an operation and the operation that it needs."""
    operations, names = joined.operations, []
    for at in (int(precedences.later_row[row]), int(precedences.earlier_row[row])):
        name = operations.names[int(operations.name_id[at])]
        iteration = joined.iteration_names[int(joined.common_iteration[at])]
        host = joined.ranks[int(operations.rank[at])].host
        names.append(f"{name[:60]!r} of iteration {iteration} on {host}")
    return " needs ".join(names)
