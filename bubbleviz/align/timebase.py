"""Timebase: one clock for all machines, and how far it can be off.

Profiles come on the clocks of their sessions (:mod:`bubbleviz.align.clocks`), whose UTC is
off by what NTP leaves over. What happened before what bounds that from both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import TypeVar

import numpy as np

from bubbleviz.align.causality import dependencies, overlaps
from bubbleviz.align.clock_steps import ClockStep, clock_steps, corrections_within
from bubbleviz.align.clocks import ProfileClock
from bubbleviz.align.iteration_pairs import paired
from bubbleviz.align.merge import TIMES, JoinedRecordings
from bubbleviz.align.offsets import GRAIN_NS, Contradiction, Precedences, Solution, solve, together
from bubbleviz.align.staging import Staging
from bubbleviz.interpret.collectives import ReplicaCollectives
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.operations import HostActivities, RankIntervals, RunningTimes
from bubbleviz.model.texts import counted, listed
from bubbleviz.model.values import frozen

#: Machines that a limitation names; it counts all.
_NAMED = 4
_COLLECTIVES_DROPPED = Limitation(
    "collectives between replicas",
    "their kernels do not overlap in time as one collective's do, so they bound no clock",
)


@frozen
class Timebase:
    """One clock for all profiles.

    Attributes:
        clocks: of the profiles.
        machine: number of the machine of each rank.
        comparable: of each machine, whether its times can be compared with the reference's.
        uncertainty_ns: of each machine; -1 where nothing bounds it.
        contradicted: whether what happened before what contradicts itself.
        limitations: what could not be inferred.
        jump_ns: by iteration, by how much lengths of time may be off that one clock alone gives, as
            it was set meanwhile; empty where none was.
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
    staging: Staging,
    clocks: Sequence[ProfileClock],
    captures: Sequence[tuple[int, int]],
    method: str,
) -> Timebase:
    """Return the clock of all profiles.

    Args:
        joined: the recordings, on the clocks of their sessions.
        staging: their stages, pipelines and iterations.
        clocks: of the profiles, by their sessions.
        captures: first and last time of each profile, on its own clock.
        method: one of :data:`bubbleviz.model.choices.ALIGNMENTS`.
    """
    if any(clock is not None and clock.aligned for clock in joined.told_clocks):
        return _as_told(joined)
    if method != "causal" or len(joined.machines) == 1:
        return _by_session(joined, staging, clocks, method)
    extents = _extents(joined, clocks, captures)
    precedences, solution, dropped = _solve(joined, staging, extents)
    steps, limit = clock_steps(precedences, len(joined.machines))
    found = corrections_within(limit, precedences, extents) if steps else solution.corrections
    corrections = dict(zip(joined.machines, found, strict=True))
    corrected = tuple(
        clock.corrected(corrections[machine])
        for clock, machine in zip(clocks, joined.machine_of_profile, strict=True)
    )
    uncertainty = [c.uncertainty_ns for c in found]
    known = np.array([u is not None for u in uncertainty])
    notes = []
    if not known.all() and staging.pairing.known:
        notes.append(_unbounded(joined, known))
    if dropped:
        notes.append(_COLLECTIVES_DROPPED)
    if solution.contradiction is not None:
        notes.append(_contradicting(joined, staging, precedences, solution.contradiction))
    if steps:
        notes.append(_stepped(joined, staging, steps))
    return Timebase(
        clocks=corrected,
        machine=joined.machine_of_rank,
        comparable=known,
        uncertainty_ns=np.array([NONE if u is None else u for u in uncertainty], np.int64),
        contradicted=solution.contradiction is not None or len(steps) > 0,
        jump_ns=_jumps(len(staging.pairing.names), steps, solution.contradiction),
        limitations=tuple(notes),
    )


def _as_told(joined: JoinedRecordings) -> Timebase:
    """Return the clocks as a table of operations tells them that is on one clock already."""
    uncertainty: dict[str, int | None] = {}
    for machine, clock in zip(joined.machine_of_profile, joined.told_clocks, strict=True):
        known = clock is None or not clock.aligned
        uncertainty[machine] = 0 if known or clock is None else clock.uncertainty_ns
    lacking = np.array([uncertainty[machine] is None for machine in joined.machines])
    return Timebase(
        clocks=tuple(ProfileClock(0, uncertainty[m]) for m in joined.machine_of_profile),
        machine=joined.machine_of_rank,
        comparable=~lacking,
        uncertainty_ns=np.array([_or_none(uncertainty[m]) for m in joined.machines], np.int64),
        contradicted=False,
        limitations=(_unbounded(joined, ~lacking),) if lacking.any() else (),
    )


def _or_none(uncertainty_ns: int | None) -> int:
    return NONE if uncertainty_ns is None else uncertainty_ns


def _by_session(
    joined: JoinedRecordings, staging: Staging, clocks: Sequence[ProfileClock], method: str
) -> Timebase:
    """Return the sessions' own clocks; those of other machines are trusted with ``utc``."""
    count = len(joined.machines)
    reference = np.arange(count) == 0
    if method == "none":
        # Each machine stays on the clock of its first profile.
        pairs = list(zip(joined.machine_of_profile, clocks, strict=True))
        first = dict(reversed(pairs))
        clocks = [
            ProfileClock(clock.offset_ns - first[machine].offset_ns, clock.uncertainty_ns)
            for machine, clock in pairs
        ]
    notes = {
        "utc": f"the offsets of {count} hosts are by their own UTC clocks, whose error (NTP) is "
        "not known; the ratios stage and period do not need them",
        "none": f"those of {count} hosts are left as they are (--align none), so ratios that need "
        "a common clock are left out",
    }
    limitations = [Limitation("clocks of several hosts", notes[method])] if count > 1 else []
    broken = _broken(joined, staging) if method == "utc" and count > 1 else None
    if broken is not None:
        limitations.append(broken)
    return Timebase(
        clocks=tuple(clocks),
        machine=joined.machine_of_rank,
        comparable=reference | (method != "none"),
        uncertainty_ns=np.where(reference, 0, NONE).astype(np.int64),
        contradicted=broken is not None,
        limitations=tuple(limitations),
    )


def _broken(joined: JoinedRecordings, staging: Staging) -> Limitation | None:
    """Return a limitation on the data dependency that the sessions' clocks break most."""
    precedences = _causal(joined, staging)
    early = precedences.before_ns - precedences.after_ns
    if early.max(initial=0) <= GRAIN_NS:
        return None
    row = int(early.argmax())
    return Limitation(
        "clocks of several hosts contradict each other",
        f"{_need(joined, staging, precedences, row)}, and by UTC it ran "
        f"{early[row] / 1e3:,.1f} us too early; every ratio that needs these clocks is marked (!), "
        "and --align causal finds better ones",
    )


def _extents(
    joined: JoinedRecordings, clocks: Sequence[ProfileClock], captures: Sequence[tuple[int, int]]
) -> tuple[Ints, Ints]:
    """Return where each machine's captures start and end."""
    bounds: dict[str, list[int]] = {machine: [] for machine in joined.machines}
    for clock, machine, (start, end) in zip(
        clocks, joined.machine_of_profile, captures, strict=True
    ):
        bounds[machine].extend((start + clock.offset_ns, end + clock.offset_ns))
    return (
        np.array([min(times) for times in bounds.values()], np.int64),
        np.array([max(times) for times in bounds.values()], np.int64),
    )


def _solve(
    joined: JoinedRecordings, staging: Staging, extents: tuple[Ints, Ints]
) -> tuple[Precedences, Solution, bool]:
    """Return the precedences, what they allow, and whether those of collectives do not fit."""
    causal = _causal(joined, staging)
    table = joined.replica_collectives
    collectives = replace(table, iteration=paired(staging.pairing, table.rank, table.iteration))
    reduced = overlaps(collectives, staging.reducing, joined.machine_of_rank)
    if not staging.pairing.known:
        reduced = together()
    both = together(causal, reduced)
    solution = solve(both, *extents)
    if solution.contradiction is None or len(reduced) == 0:
        return both, solution, False
    alone = solve(causal, *extents)
    # What contradicts itself without them is not their fault.
    return (both, solution, False) if alone.contradiction is not None else (causal, alone, True)


def _causal(joined: JoinedRecordings, staging: Staging) -> Precedences:
    """Return the precedences of data dependencies; none where iterations are not paired."""
    if not staging.pairing.known:
        return together()
    return dependencies(
        staging.operations.changed(iteration=staging.pairing.iteration),
        staging.arrivals.of(staging.operations),
        staging.virtual_stage,
        staging.pipeline,
        joined.machine_of_rank,
    )


def _unbounded(joined: JoinedRecordings, known: Bools) -> Limitation:
    """Return a limitation on machines whose clocks nothing bounds from both sides."""
    lacking = [machine for machine, ok in zip(joined.machines, known, strict=True) if not ok]
    return Limitation(
        "clocks of several hosts",
        f"no data dependency bounds the clock of {listed(lacking, _NAMED)} against that of "
        f"{joined.machines[0]} from both sides, so ratios that need a common clock are left out; "
        "if their UTC can be trusted, --align utc does",
        len(lacking),
    )


def _contradicting(
    joined: JoinedRecordings,
    staging: Staging,
    precedences: Precedences,
    contradiction: Contradiction,
) -> Limitation:
    """Return a limitation on a circle of dependencies that no clocks satisfy."""
    needs = [
        _need(joined, staging, precedences, row)
        if precedences.after_row[row] >= 0
        else f"a collective of {joined.machines[int(precedences.after[row])]} holds "
        f"{joined.machines[int(precedences.before[row])]}"
        for row in contradiction.rows
    ]
    hosts = dict.fromkeys(
        joined.machines[int(precedences.before[row])] for row in contradiction.rows
    )
    return Limitation(
        "clocks of several hosts contradict each other",
        f"{', and '.join(needs)}: no clocks of {' and '.join(hosts)} allow this, it misses by "
        f"{contradiction.by_ns / 1e3:,.1f} us; a clock was set during the capture, or the "
        "profiles are not of one run; the clocks are those that break least, and every ratio that "
        "needs them is marked (!)",
    )


def _jumps(
    iterations: int, steps: Sequence[ClockStep], contradiction: Contradiction | None
) -> Ints:
    """Return by how much clocks may have jumped in each iteration; empty if none did."""
    jumps = np.zeros(iterations, np.int64)
    if not steps and contradiction is not None:
        return jumps + 2 * contradiction.by_ns
    for step in steps:
        # Bounds tell about by how much.
        at = slice(step.before, step.behind + 1)
        jumps[at] = np.maximum(jumps[at], abs(step.by_ns) * 5 // 4 + 2 * int(GRAIN_NS))
    return jumps if steps else np.empty(0, np.int64)


def _stepped(joined: JoinedRecordings, staging: Staging, steps: Sequence[ClockStep]) -> Limitation:
    """Return a limitation on clocks that were set during the capture."""
    step = max(steps, key=lambda step: abs(step.by_ns))
    first, second = (joined.machines[number] for number in (step.first, step.second))
    more = f", and {counted(len(steps) - 1, 'further pair')} of hosts" if len(steps) > 1 else ""
    return Limitation(
        "clocks that were set during the capture",
        f"about iteration {staging.pairing.names[step.behind]} the clock of {second} jumps by "
        f"{-step.by_ns / 1e3:+,.1f} us against that of {first}{more}; uncertainties cover both "
        "sides of that, and every ratio is marked (!), as times taken on such a clock alone are "
        "wrong, too",
        len(steps),
    )


def _need(joined: JoinedRecordings, staging: Staging, precedences: Precedences, row: int) -> str:
    """Return which operation needs which."""
    after, before = int(precedences.after_row[row]), int(precedences.before_row[row])
    consumer, producer = (_operation_label(joined, staging, row) for row in (after, before))
    return f"{consumer} needs {producer}"


def _operation_label(joined: JoinedRecordings, staging: Staging, row: int) -> str:
    """Return the words that name an operation in a sentence."""
    operations = staging.operations
    name = operations.names[int(operations.name_id[row])]
    iteration = staging.pairing.names[int(staging.pairing.iteration[row])]
    return (
        f"{name[:60]!r} of iteration {iteration} on {joined.ranks[int(operations.rank[row])].host}"
    )


# Moved times: joined recordings on other clocks, row by row, rather than joined once more.


IntervalsT = TypeVar(
    "IntervalsT",
    RankIntervals,
    RunningTimes,
    ReplicaCollectives,
    HostActivities,
    CollectiveIntervals,
)


def on_clocks(
    joined: JoinedRecordings, before: Sequence[ProfileClock], after: Sequence[ProfileClock]
) -> JoinedRecordings:
    """Return recordings that were joined on some clocks as they are on others.

    Args:
        joined: the recordings.
        before: the clocks of the profiles, none of which drifts.
        after: what they are to be.
    """
    moves = _Moves(joined, before, after)
    operations, busy = joined.operations, joined.busy
    rank, spanned = operations.rank, operations.has_span == 1
    columns = {}
    for name in TIMES:
        column = getattr(operations, name)
        known = spanned if name in ("start_ns", "end_ns") else column != NONE
        always = name.startswith("host") or bool(known.all())
        columns[name] = moves.of(rank, column, None if always else known)
    if busy.start_ns is operations.start_ns and busy.end_ns is operations.end_ns:
        busy = replace(busy, start_ns=columns["start_ns"], end_ns=columns["end_ns"])
    else:
        owner = rank[busy.operation]
        busy = replace(
            busy, start_ns=moves.of(owner, busy.start_ns), end_ns=moves.of(owner, busy.end_ns)
        )
    every = np.arange(len(joined.ranks))
    return replace(
        joined,
        recorded_start_ns=moves.of(every, joined.recorded_start_ns),
        recorded_end_ns=moves.of(every, joined.recorded_end_ns),
        operations=operations.changed(**columns),
        busy=busy,
        unattributed=moves.intervals(joined.unattributed),
        exposed=moves.intervals(joined.exposed),
        overheads=moves.intervals(joined.overheads),
        pauses=moves.intervals(joined.pauses),
        hosts=moves.intervals(joined.hosts),
        running=moves.intervals(joined.running),
        replica_collectives=moves.intervals(joined.replica_collectives),
        collectives=moves.intervals(joined.collectives),
    )


class _Moves:
    """By what times of each rank are moved; arguments as of :func:`on_clocks`."""

    def __init__(
        self,
        joined: JoinedRecordings,
        before: Sequence[ProfileClock],
        after: Sequence[ProfileClock],
    ) -> None:
        profile = np.array([rank.profile for rank in joined.ranks], np.int64)
        self._before_ns = np.array([clock.offset_ns for clock in before], np.int64)[profile]
        self._after_ns = np.array([clock.offset_ns for clock in after], np.int64)[profile]
        self._drift_ppm = np.array([clock.drift_ppm for clock in after])[profile]
        self._t0_ns = np.array([clock.t0_ns for clock in after], np.int64)[profile]
        self._done: dict[int, tuple[Ints, Ints]] = {}

    def of(self, rank: Ints, times_ns: Ints, known: Bools | None = None) -> Ints:
        """Return times of some ranks on the clocks after; where they are not known, none."""
        if id(times_ns) not in self._done:
            # Where a column is two things, it stays one. It is kept, so that its id stays its own.
            self._done[id(times_ns)] = times_ns, self._moved(rank, times_ns, known)
        return self._done[id(times_ns)][1]

    def _moved(self, rank: Ints, times_ns: Ints, known: Bools | None) -> Ints:
        if known is not None and not known.any():
            return times_ns
        moved = times_ns + (self._after_ns - self._before_ns)[rank]
        if self._drift_ppm.any():
            own_ns = times_ns - self._before_ns[rank]
            drifted = (own_ns - self._t0_ns[rank]) * self._drift_ppm[rank] * 1e-6
            moved += np.rint(drifted).astype(np.int64)
        return moved if known is None else np.where(known, moved, NONE)

    def intervals(self, table: IntervalsT) -> IntervalsT:
        """Return intervals of ranks on the clocks after."""
        if len(table) == 0:
            return table
        return replace(
            table,
            start_ns=self.of(table.rank, table.start_ns),
            end_ns=self.of(table.rank, table.end_ns),
        )
