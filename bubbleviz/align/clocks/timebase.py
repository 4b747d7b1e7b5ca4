"""Timebase: a common clock for all machines, and its uncertainty.

The times of each profile are on the clock of its profiling session
(:mod:`bubbleviz.align.profile_clocks`). The clocks of different machines agree to within the error
of NTP. Pairs of events whose order is known (precedences) bound this error from both sides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

#: Maximum number of machines that a limitation lists by name. Any others are only counted.
_MAX_NAMES = 4


@dataclass(frozen=True)
class Timebase:
    """A common clock for all profiles.

    Attributes:
        clocks: Clock correction of each profile.
        machine: Machine index of each rank, shape (ranks,).
        comparable: Mask of the machines whose times can be compared with the reference machine.
        uncertainty_ns: Uncertainty of each machine's clock, or -1 if it is not bounded.
        contradicted: Whether the known event orders contradict the clocks or each other.
        limitations: Properties of the clocks that could not be inferred.
        jump_ns: For each iteration, the maximum error in a duration measured with a single clock,
            caused by clocks that were set during the capture. Empty if there is no sign that a
            clock was set.
    """

    clocks: tuple[ProfileClock, ...]
    machine: Ints
    comparable: Bools
    uncertainty_ns: Ints
    contradicted: bool
    limitations: tuple[Limitation, ...]
    jump_ns: Ints = field(default_factory=lambda: np.empty(0, np.int64))


def build_timebase(
    recordings: JoinedRecordings,
    clocks: Sequence[ProfileClock],
    captures: Sequence[tuple[int, int]],
    method: str,
) -> Timebase:
    """Find the common clock of all profiles.

    The first method that applies is used:

    1. If any table of operations declares an aligned clock, the declared clocks are used.
    2. If there is a single machine, or the method is not ``causal``, the clocks of the profiling
       sessions are used.
    3. Otherwise, the offsets of the machines' clocks are computed from data dependencies and from
       collectives between replicas. If any clock was set during the capture, this solution is
       replaced by constant corrections that are valid both before and after the steps.

    Args:
        recordings: The recordings, with stages and iterations. Times are on the clocks in
            ``clocks``.
        clocks: For each profile, the clock derived from its session start.
        captures: First and last time in each profile, on its uncorrected clock.
        method: Alignment method, one of :data:`bubbleviz.model.choices.ALIGNMENTS`.
    """
    if any(clock is not None and clock.aligned for clock in recordings.declared_clocks):
        return _use_declared_clocks(recordings)
    if method != "causal" or len(recordings.machines) == 1:
        return _use_session_clocks(recordings, clocks, method)
    extents = _find_extents(recordings, clocks, captures)
    solution = _solve_convertible(recordings, extents)
    steps, stepped = find_clock_steps(solution.precedences, len(recordings.machines), extents)
    corrections = stepped if steps else solution.corrections
    corrected = _correct_clocks(recordings, clocks, corrections)
    uncertainties = [correction.uncertainty_ns for correction in corrections]
    aligned = _make_timebase(recordings, corrected, uncertainties)
    return replace(
        aligned,
        contradicted=solution.contradiction is not None or len(steps) > 0,
        jump_ns=_measure_jumps(len(recordings.iteration_names), steps, solution.contradiction),
        limitations=tuple(_list_limitations(recordings, aligned.comparable, solution, steps)),
    )


def _find_extents(
    recordings: JoinedRecordings,
    clocks: Sequence[ProfileClock],
    captures: Sequence[tuple[int, int]],
) -> tuple[Ints, Ints]:
    """Return the times at which each machine's captures start and end, on session clocks.

    Args:
        recordings: The recordings, with the machine of each profile.
        clocks: For each profile, the clock derived from its session start.
        captures: First and last time in each profile, on its uncorrected clock.

    Returns:
        starts_ns: Start of each machine's first capture, shape (machines,).
        ends_ns: End of each machine's last capture, shape (machines,).
    """
    bounds: dict[str, list[int]] = {machine: [] for machine in recordings.machines}
    for session_clock, machine, capture in zip(
        clocks, recordings.machine_of_profile, captures, strict=True
    ):
        bounds[machine].extend(time + session_clock.offset_ns for time in capture)
    starts_ns = np.array([min(times) for times in bounds.values()], np.int64)
    ends_ns = np.array([max(times) for times in bounds.values()], np.int64)
    return starts_ns, ends_ns


@dataclass(frozen=True)
class _Solution:
    """The clocks of all machines, computed from precedences (pairs of events whose order is known).

    Attributes:
        precedences: The precedences from which the clocks were computed.
        corrections: Clock correction of each machine.
        contradiction: Contradiction between the precedences, or None if there is none.
        is_without_collectives: Whether the precedences of collectives were dropped because they
            contradict the data dependencies.
    """

    precedences: offsets.Precedences
    corrections: tuple[ProfileClock, ...]
    contradiction: Contradiction | None
    is_without_collectives: bool


def _list_limitations(
    recordings: JoinedRecordings,
    is_bounded: Bools,
    solution: _Solution,
    steps: Sequence[ClockStep],
) -> Iterator[Limitation]:
    """Yield limitations for clocks that were computed from precedences.

    A limitation is yielded in each of the following cases, in this order:

    - Iterations are paired, but a machine's clock is not bounded.
    - Collectives were left out.
    - The precedences contradict each other.
    - A clock was set during the capture.

    Args:
        recordings: The recordings, with stages and iterations.
        is_bounded: Mask of the machines whose clock is bounded.
        solution: Clocks of all machines.
        steps: Steps of the clocks that were set during the capture.
    """
    if not is_bounded.all() and recordings.paired:
        yield _describe_unbounded(recordings, is_bounded)
    if solution.is_without_collectives:
        yield Limitation(
            "collectives between replicas",
            "their kernels do not overlap as the kernels of a single collective would, so they are "
            "not used to align clocks",
        )
    if solution.contradiction is not None:
        yield _describe_contradiction(recordings, solution.precedences, solution.contradiction)
    if steps:
        yield _describe_steps(recordings, steps)


def check_machines(recordings: JoinedRecordings) -> tuple[Limitation, ...]:
    """Return a limitation if ranks on one machine, which share a clock, contradict each other.

    Two operations contradict each other if one of them ran more than ``GRAIN_NS`` before the other
    one had produced its input (:func:`_measure_early_runs`). The result is empty if iterations are
    not paired. The result is also empty if the user's stages contradict the data, because then the
    stages are wrong, not the clock.
    """
    has_wrong_stages = any(
        n.kind is LimitationKind.STAGES_CONTRADICTED for n in recordings.limitations
    )
    if has_wrong_stages or not recordings.paired:
        return ()
    pairs = find_rank_precedences(recordings)
    early_ns = _measure_early_runs(recordings, pairs)
    broken = np.flatnonzero(early_ns > GRAIN_NS)
    if not len(broken):
        return ()
    row = int(early_ns.argmax())
    rows_of_pair = int(pairs.later_row[row]), int(pairs.earlier_row[row])
    stages = " and ".join(str(int(recordings.operations.virtual_stage[at])) for at in rows_of_pair)
    reason = (
        f"{_describe_need(recordings, pairs, row)} (virtual stages {stages}), but on their shared "
        f"clock it ran {early_ns[row] / 1e3:,.1f} us before that result was ready. Either a "
        "recorded time is wrong, an operation passes on its result before it ends, or the inferred "
        "stages are wrong. To set the stages, pass --parallel"
    )
    return (Limitation("ranks on one host contradict each other", reason, len(broken)),)


def _measure_early_runs(recordings: JoinedRecordings, pairs: offsets.Precedences) -> Ints:
    """Return by how much operations ran before their input was produced on a shared clock, in ns.

    The span of an operation without a recorded receive may begin with kernels that need no input.
    So the time of such an operation is 0 unless the operation even ended before its input was
    produced. If rows of a table are early, a receive from another iteration may be matched with
    them. A receive with another iteration number is therefore ignored if it ended before its
    operation started.

    Args:
        recordings: The recordings, with stages and paired iterations.
        pairs: Data dependencies between ranks.

    Returns:
        One time per row of ``pairs``. 0 or negative if the operation was not early, and 0 if its
        input comes from another machine.
    """
    operations, arrivals = recordings.operations, recordings.arrivals
    machine, consumer = recordings.machine_of_rank, pairs.later_row
    is_same_machine = machine[pairs.earlier_clock] == machine[pairs.later_clock]
    has_arrival = arrivals.latest_ns[consumer] != NEVER
    ended_early = operations.end_ns[consumer] < pairs.earlier_ns - GRAIN_NS
    iteration = np.append(recordings.named_iteration, NONE)
    receive_iteration = iteration[arrivals.receive[consumer]]
    is_mismatched = (receive_iteration >= 0) & (receive_iteration != iteration[consumer])
    is_mismatched &= pairs.later_ns < operations.start_ns[consumer]
    is_checked = is_same_machine & (has_arrival | ended_early) & ~is_mismatched
    return np.where(is_checked, pairs.earlier_ns - pairs.later_ns, 0)


def _solve_convertible(recordings: JoinedRecordings, extents: tuple[Ints, Ints]) -> _Solution:
    """Solve the clocks of all machines so that the corrections suit the first machine's clock.

    The reference is the machine chosen by :func:`_choose_reference`. If the corrections have drift
    or no bounds, they cannot be converted to the first machine's clock. The first machine is then
    the reference.

    Args:
        recordings: The recordings, with stages and iterations. Times are on the clocks of the
            profiling sessions.
        extents: Start of each machine's first capture, and end of its last one.
    """
    reference = _choose_reference(recordings)
    solution = _solve_machines(recordings, extents, reference)
    if reference and not _is_constant(solution.corrections):
        return _solve_machines(recordings, extents, 0)
    return solution


def _correct_clocks(
    recordings: JoinedRecordings,
    clocks: Sequence[ProfileClock],
    corrections: Sequence[ProfileClock],
) -> tuple[ProfileClock, ...]:
    """Return the clock of each profile, corrected to the clock of the first machine.

    Args:
        recordings: The recordings, with the machine of each profile.
        clocks: For each profile, the clock derived from its session start.
        corrections: Clock correction of each machine.
    """
    by_machine = dict(zip(recordings.machines, _convert_to_first(corrections), strict=True))
    profiles = zip(clocks, recordings.machine_of_profile, strict=True)
    return tuple(clock.compose(by_machine[machine]) for clock, machine in profiles)


def _choose_reference(recordings: JoinedRecordings) -> int:
    """Return the index of the machine whose clock serves as the reference for all other clocks.

    The reference is the machine of the rank with the smallest stage. Ties are broken by the
    smallest global rank, then by the name of the machine. Unknown stages and global ranks come
    last. The choice does not depend on the order of files.
    """
    largest = np.iinfo(np.int64).max
    keys = []
    for rank, stage in zip(recordings.ranks, recordings.stage_of_rank.tolist(), strict=True):
        global_rank = rank.local.global_rank
        number = largest if global_rank is None else global_rank
        keys.append((stage if stage >= 0 else largest, number, make_natural_key(rank.machine)))
    first = min(range(len(keys)), key=lambda rank: keys[rank])
    return recordings.machines.index(recordings.ranks[first].machine)


def _is_constant(corrections: Sequence[ProfileClock]) -> bool:
    """Return whether all corrections are bounded and have no drift."""
    return all(c.uncertainty_ns is not None and not c.drift_ppm for c in corrections)


def _convert_to_first(
    corrections: Sequence[ProfileClock],
) -> tuple[ProfileClock, ...]:
    """Convert corrections so that the clock of the first machine is the reference.

    The offset of the first machine is subtracted from all offsets, and its uncertainty is added to
    the uncertainties of all other machines. If the first machine's offset and uncertainty are both
    0, the corrections are returned unchanged.

    Args:
        corrections: Correction of each machine. If the first machine is not yet the reference, all
            corrections must be bounded and have no drift.
    """
    first = corrections[0]
    if (first.offset_ns, first.uncertainty_ns) == (0, 0):
        return tuple(corrections)
    related = [ProfileClock(0, 0)]
    for clock in corrections[1:]:
        uncertainty_ns = (clock.uncertainty_ns or 0) + (first.uncertainty_ns or 0)
        related.append(ProfileClock(clock.offset_ns - first.offset_ns, uncertainty_ns))
    return tuple(related)


def find_rank_precedences(recordings: JoinedRecordings) -> offsets.Precedences:
    """Return the data dependencies between all ranks as precedences.

    The clock columns contain rank numbers. If replicas of a stage cannot be distinguished, the
    clock of their machine determines which replica ends first. The result is empty if iterations
    are not paired.
    """
    return _find_dependencies(
        recordings, np.arange(len(recordings.ranks)), recordings.machine_of_rank
    )


def _solve_machines(
    recordings: JoinedRecordings, extents: tuple[Ints, Ints], reference: int
) -> _Solution:
    """Solve the clocks of all machines from data dependencies and collectives between replicas.

    If data dependencies and collectives taken together contain a contradiction, but the data
    dependencies on their own do not, the collectives are left out.

    Args:
        recordings: The recordings, with stages and iterations. Times are on the clocks of the
            profiling sessions.
        extents: Start of each machine's first capture, and end of its last one.
        reference: Index of the machine whose correction is 0.
    """
    causal = _find_dependencies(recordings, recordings.machine_of_rank)
    reduced = offsets.join_precedences()
    if recordings.paired:
        reductions = select_reductions(recordings.collectives, recordings.operations)
        iteration = recordings.get_common_iterations(reductions.rank, reductions.iteration)
        reductions = reductions.replace_columns(iteration=iteration)
        reduced = find_collective_precedences(
            reductions, recordings.reducing, recordings.machine_of_rank
        )
    precedences = offsets.join_precedences(causal, reduced)
    solution = solve_clocks(precedences, *extents, reference)
    if solution[1] is None or len(reduced) == 0:
        return _Solution(precedences, *solution, is_without_collectives=False)
    without_collectives = solve_clocks(causal, *extents, reference)
    # A contradiction among the data dependencies themselves is not caused by collectives.
    if without_collectives[1] is not None:
        return _Solution(precedences, *solution, is_without_collectives=False)
    return _Solution(causal, *without_collectives, is_without_collectives=True)


def _use_declared_clocks(recordings: JoinedRecordings) -> Timebase:
    """Return the timebase for tables of operations that declare aligned clocks.

    All times are used unchanged. A machine's uncertainty is the one declared by its last profile,
    or 0 if that profile declares no aligned clock.
    """
    uncertainty_of: dict[str, int | None] = {}
    for machine, clock in zip(
        recordings.machine_of_profile, recordings.declared_clocks, strict=True
    ):
        uncertainty_of[machine] = clock.uncertainty_ns if clock is not None and clock.aligned else 0
    clocks = tuple(
        ProfileClock(0, uncertainty_of[machine]) for machine in recordings.machine_of_profile
    )
    aligned = _make_timebase(
        recordings, clocks, [uncertainty_of[machine] for machine in recordings.machines]
    )
    if aligned.comparable.all():
        return aligned
    return replace(aligned, limitations=(_describe_unbounded(recordings, aligned.comparable),))


def _make_timebase(
    recordings: JoinedRecordings,
    clocks: tuple[ProfileClock, ...],
    uncertainty: list[int | None],
) -> Timebase:
    """Return a timebase without limitations or contradictions.

    Args:
        recordings: The recordings, which include each rank's machine.
        clocks: Clock correction of each profile.
        uncertainty: Uncertainty of each machine, or None if it is unbounded. Only bounded machines
            are comparable.
    """
    uncertainty_ns = [NONE if bound is None else bound for bound in uncertainty]
    return Timebase(
        clocks=clocks,
        machine=recordings.machine_of_rank,
        comparable=np.array([bound is not None for bound in uncertainty]),
        uncertainty_ns=np.array(uncertainty_ns, np.int64),
        contradicted=False,
        limitations=(),
    )


def _use_session_clocks(
    recordings: JoinedRecordings, clocks: Sequence[ProfileClock], method: str
) -> Timebase:
    """Return the timebase that uses the profiling sessions' clocks.

    If there is a single machine, its clock is exact. With several machines, the result depends on
    the method:

    - ``none`` keeps each machine on the clock of its first profile. Only the first machine is
      comparable.
    - Any other method, such as ``utc``, makes the times of all machines comparable, but with an
      unknown error. The clocks are contradicted if an operation ran more than ``GRAIN_NS`` before
      its input existed, by UTC.

    Args:
        recordings: The recordings, with stages and iterations.
        clocks: For each profile, the clock derived from its session start.
        method: Alignment method.
    """
    count = len(recordings.machines)
    if method == "none":
        # Each machine stays on the clock of its first profile.
        pairs = list(zip(recordings.machine_of_profile, clocks, strict=True))
        first = dict(reversed(pairs))
        clocks = [
            ProfileClock(clock.offset_ns - first[machine].offset_ns, clock.uncertainty_ns)
            for machine, clock in pairs
        ]
    aligned = _make_timebase(recordings, tuple(clocks), [0, *[None] * (count - 1)])
    if count == 1:
        return aligned
    if method == "none":
        reason = (
            f"the clocks of {count} hosts are not aligned (--align none), so ratios that need a "
            "common clock are left out"
        )
        return replace(aligned, limitations=(Limitation("clocks of several hosts", reason),))
    reason = (
        f"the clocks of {count} hosts are aligned by UTC, whose error depends on NTP and is "
        "unknown. The ratios stage and period are not affected, because they need no common clock"
    )
    notes = [Limitation("clocks of several hosts", reason)]
    precedences = _find_dependencies(recordings, recordings.machine_of_rank)
    early = precedences.earlier_ns - precedences.later_ns
    if broken := early.max(initial=0) > GRAIN_NS:
        row = int(early.argmax())
        reason = (
            f"{_describe_need(recordings, precedences, row)}, but according to UTC it ran "
            f"{early[row] / 1e3:,.1f} us before that result was ready. Every ratio that needs "
            "these clocks is marked (!). To align the clocks by data dependencies instead, pass "
            "--align causal"
        )
        title = "clocks of several hosts contradict each other"
        notes.append(Limitation(title, reason, kind=LimitationKind.UTC_CONTRADICTED))
    return replace(
        aligned,
        comparable=np.ones(count, bool),
        contradicted=bool(broken),
        limitations=tuple(notes),
    )


def _find_dependencies(
    recordings: JoinedRecordings, clock: Ints, replica_clock: Ints | None = None
) -> offsets.Precedences:
    """Return the precedences of data dependencies, or no precedences if iterations are not paired.

    Args:
        recordings: The recordings, with stages, pipelines and iterations.
        clock: Index of each rank's clock, shape (ranks,).
        replica_clock: Index of the clock used to find which of a stage's replicas ends first.
            Defaults to ``clock``.
    """
    if not recordings.paired:
        return offsets.join_precedences()
    return find_dependencies(
        recordings.operations.replace_columns(iteration=recordings.common_iteration),
        recordings.arrivals,
        recordings.pipeline,
        clock,
        clock if replica_clock is None else replica_clock,
    )


def _describe_unbounded(recordings: JoinedRecordings, is_bounded: Bools) -> Limitation:
    """Return a limitation that lists the machines whose clocks are not bounded from both sides.

    Args:
        recordings: The recordings of all machines.
        is_bounded: Mask of the machines whose clock is bounded.
    """
    unbounded = [
        machine for machine, ok in zip(recordings.machines, is_bounded, strict=True) if not ok
    ]
    return Limitation(
        "clocks of several hosts",
        f"no data dependency links the clock of {list_first(unbounded, _MAX_NAMES)} to the clock "
        f"of {recordings.machines[0]}, so ratios that need a common clock are left out. If the UTC "
        "clocks are right, pass --align utc",
        len(unbounded),
    )


def _describe_contradiction(
    recordings: JoinedRecordings, precedences: offsets.Precedences, contradiction: Contradiction
) -> Limitation:
    """Return the limitation for a cycle of dependencies that no clocks can satisfy.

    Args:
        recordings: The recordings, with stages and iterations.
        precedences: Precedences in which the contradiction was found.
        contradiction: The cycle. Each precedence in it becomes a clause in the message.
    """
    machines = recordings.machines
    clauses = []
    for row in contradiction.rows:
        earlier_machine = machines[int(precedences.earlier_clock[row])]
        later_machine = machines[int(precedences.later_clock[row])]
        is_operation = precedences.later_row[row] >= 0
        collective = f"a collective on {later_machine} waits for {earlier_machine}"
        clauses.append(_describe_need(recordings, precedences, row) if is_operation else collective)
    return Limitation(
        "clocks of several hosts contradict each other",
        f"{', and '.join(clauses)}. No clock offsets satisfy this; the error is at least "
        f"{contradiction.by_ns / 1e3:,.1f} us. Either a clock was set during the capture or the "
        "profiles are from different runs. The offsets with the smallest error are used, and every "
        "ratio that needs them is marked (!)",
    )


def _measure_jumps(
    iterations: int, steps: Sequence[ClockStep], contradiction: Contradiction | None
) -> Ints:
    """Return the largest jump of any clock during each iteration, in ns.

    The size of a step is only known approximately, so its jump is 1.25 times this size (rounded
    down) plus twice ``GRAIN_NS``. A step affects all iterations from ``last_before`` to
    ``first_after``. If several steps affect an iteration, the largest jump is used.

    Without steps, a contradiction causes a jump of ``2 * contradiction.by_ns`` in every iteration.
    If there are neither steps nor a contradiction, the result is empty.

    Args:
        iterations: Number of common iterations.
        steps: Steps of the clocks that were set during the capture.
        contradiction: Contradiction between the precedences, or None if there is none.
    """
    jumps = np.zeros(iterations, np.int64)
    if not steps and contradiction is not None:
        return jumps + 2 * contradiction.by_ns
    for step in steps:
        # The bounds show only the approximate size of the jump.
        affected = slice(step.last_before, step.first_after + 1)
        jump_ns = abs(step.by_ns) * 5 // 4 + 2 * int(GRAIN_NS)
        jumps[affected] = np.maximum(jumps[affected], jump_ns)
    return jumps if steps else np.empty(0, np.int64)


def _describe_steps(recordings: JoinedRecordings, steps: Sequence[ClockStep]) -> Limitation:
    """Return the limitation for clocks that were set during the capture.

    Only the step with the largest absolute size is described. Any others are only counted.
    """
    machines = recordings.machines
    step = max(steps, key=lambda step: abs(step.by_ns))
    iteration = recordings.iteration_names[step.first_after]
    first, second = (machines[number] for number in (step.first, step.second))
    further = (
        f" (similar jumps affect {format_count(len(steps) - 1, 'other pair')} of hosts)"
        if len(steps) > 1
        else ""
    )
    return Limitation(
        "clocks set during the capture",
        f"near iteration {iteration}, the clock of {second} jumps by "
        f"{-step.by_ns / 1e3:+,.1f} us relative to the clock of {first}{further}. Times on that "
        "clock are wrong, so every ratio is marked (!). Clock uncertainties include the size of "
        "the jump",
        len(steps),
    )


def _describe_need(recordings: JoinedRecordings, precedences: offsets.Precedences, row: int) -> str:
    """Return the clause "A needs the result of B" for a precedence. B is the earlier operation.

    Each operation is described by its name, iteration and host.

    Args:
        recordings: The recordings, with stages and iterations.
        precedences: Precedences between operations.
        row: Row of the precedence to describe.
    """
    operations, names = recordings.operations, []
    for operation in (int(precedences.later_row[row]), int(precedences.earlier_row[row])):
        name = operations.names[int(operations.name_id[operation])]
        iteration = recordings.iteration_names[int(recordings.common_iteration[operation])]
        host = recordings.ranks[int(operations.rank[operation])].host
        names.append(f"{name[:60]!r} (iteration {iteration}, {host})")
    return " needs the result of ".join(names)
