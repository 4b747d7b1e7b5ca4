"""Findings: faults by what iterations save without them, as a replay of all of them proves.

Faults are not added up: without one of two ranks that are equally slow an iteration is as long as
with it. So each is removed alone, and pairs are where they save clearly more than their parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from bubbleviz.explain.diagnosis.fault import Fault, FaultKind, effects_of
from bubbleviz.explain.diagnosis.rank_paces import Evidence
from bubbleviz.explain.diagnosis.shapes import (
    collective,
    drift,
    iteration,
    launch,
    launch_gap,
    link,
    microbatch,
    rank,
    stage,
)
from bubbleviz.explain.slowdown.replay import Replay, Role, Work, scenarios_at_once
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.intervals import group_extents
from bubbleviz.model.operations import HostActivities
from bubbleviz.model.values import frozen

#: A saving of less than this share of an iteration is none.
_LEAST = 0.001
#: Pairs of so many faults are tried; one counts that saves this many times what its parts do
#: together, and this much more of an iteration than the better part.
_PAIRED, _MORE_THAN_PARTS, _MORE = 6, 1.2, 0.02
#: The same where one of them is no fault, but a bound.
_MORE_THAN_PARTS_AND_BOUND, _MORE_WITH_BOUND = 1.5, 0.05


@frozen
class Finding:
    """Faults, and what iterations save without them.

    Attributes:
        faults: one, or several that save more together than apart.
        saving_ns: mean over the iterations.
        saving_ratio: the same as a share of their mean length.
        saved_iterations: number of iterations that save anything to speak of.
    """

    faults: tuple[Fault, ...]
    saving_ns: float
    saving_ratio: float
    saved_iterations: int


@frozen
class Diagnosis:
    """Why iterations are long.

    Attributes:
        findings: those that save anything, the largest saving first.
        iterations: how many were replayed.
        length_ns: their mean length.
    """

    findings: tuple[Finding, ...]
    iterations: int
    length_ns: float


def diagnose(
    work: Work,
    replay: Replay,
    delay_ns: Ints,
    *,
    host_of_rank: Ints | None = None,
    late_ns: Ints | None = None,
    profiler_ns: Ints | None = None,
    eased: Sequence[tuple[Fault, Replay]] = (),
    gap_ns: Ints | None = None,
    hosts: HostActivities | None = None,
) -> Diagnosis:
    """Return what makes iterations long.

    Args:
        work: of all ranks, in the iterations that count.
        replay: of it.
        delay_ns: how much each row starts after all that it follows, whatever else changes.
        host_of_rank: number of the host of each rank; None where hosts are unknown.
        late_ns: how late each row started since its host had not launched it; None for unknown.
        profiler_ns: likewise since the profiler held its process up.
        eased: faults that make work follow other work, each with the replay without that.
        gap_ns: how long no kernel ran inside each row; None for unknown.
        hosts: see :class:`Evidence`; None for unknown.
    """
    if not len(replay.iterations):
        return Diagnosis((), 0, 0.0)
    none, never = np.zeros(0, np.int64), np.zeros(len(work), np.int64)
    seen = Evidence(
        work,
        _own_times(work),
        effects_of(work),
        none if host_of_rank is None else host_of_rank,
        never if late_ns is None else late_ns,
        never if profiler_ns is None else profiler_ns,
        never if gap_ns is None else gap_ns,
        HostActivities.none() if hosts is None else hosts,
    )
    trial = _Trial(replay, seen.own_ns, delay_ns + seen.late_ns + seen.profiler_ns)
    base_ns = trial.lengths_ns([()])[0]
    faults = _faults(seen)
    alone = trial.findings(base_ns, [(fault,) for fault in faults])
    alone += [
        _finding((fault,), base_ns, base_ns - replace(trial, replay=free).lengths_ns([()])[0])
        for fault, free in eased
    ]
    ranked = sorted(alone, key=lambda f: -f.saving_ns)
    tried = [f.faults[0] for f in ranked[:_PAIRED] if f.faults[0].kind is not FaultKind.TOKEN]
    pairs = [pair for pair in combinations(tried, 2) if not _overlap(*pair)]
    saved = {f.faults[0].name: f.saving_ns for f in alone}
    together = [
        finding
        for finding in trial.findings(base_ns, pairs)
        if _counts(finding, [saved[f.name] for f in finding.faults], float(base_ns.mean()))
    ]
    findings = [f for f in (*together, *ranked) if f.saving_ratio >= _LEAST]
    findings.sort(key=lambda f: -f.saving_ns)
    return Diagnosis(tuple(findings), len(base_ns), float(base_ns.mean()))


def _own_times(work: Work) -> Ints:
    """Return how long each row took itself, without waiting.

    Of a collective the member that entered last waited least, so none moved data for longer than
    the shortest took, whatever their clocks say. Where members are unknown, those are taken for
    them that are of its kind in the iteration.
    """
    own_ns = work.own_ns
    rows = np.flatnonzero(work.role >= Role.PARAMETERS)
    if len(rows):
        unknown = work.meeting[rows] == NONE
        by_meeting = np.where(unknown, NONE, work.meeting[rows])
        alike = groups_of(by_meeting, work.iteration[rows], work.kind[rows])
        length_ns = (work.end_ns - work.start_ns)[rows]
        shortest_ns = group_extents(alike.of_row, len(alike), length_ns, length_ns)[0]
        own_ns[rows] = np.minimum(own_ns[rows], shortest_ns[alike.of_row])
    return own_ns


def _faults(seen: Evidence) -> list[Fault]:
    shapes = (rank, stage, microbatch, iteration, drift, link, collective, launch, launch_gap)
    return [fault for shape in shapes for fault in shape.faults(seen)]


def _overlap(first: Fault, second: Fault) -> bool:
    """Return whether one of two faults is part of the other."""
    return first.kind is second.kind and first.kind in (
        FaultKind.LINK,
        FaultKind.ITERATION,
        FaultKind.LAUNCH,
    )


def _counts(together: Finding, parts: Sequence[float], length_ns: float) -> bool:
    """Return whether faults together save clearly more than apart."""
    more_ns = together.saving_ns - max(parts)
    bound = any(fault.bound for fault in together.faults)
    times = _MORE_THAN_PARTS_AND_BOUND if bound else _MORE_THAN_PARTS
    more = _MORE_WITH_BOUND if bound else _MORE
    return together.saving_ns > times * sum(parts) and more_ns > more * length_ns


@frozen(eq=False, shown=False)
class _Trial:
    """Iterations that are replayed without some faults."""

    replay: Replay
    own_ns: Ints
    delay_ns: Ints

    def lengths_ns(self, scenarios: Sequence[Sequence[Fault]]) -> Ints:
        """Return how long iterations take without the faults of each scenario.

        Returns:
            Shape (scenarios, iterations).
        """
        step = scenarios_at_once(len(self.own_ns))
        parts = [
            self._replayed(scenarios[low : low + step]) for low in range(0, len(scenarios), step)
        ]
        return (
            np.concatenate(parts) if parts else np.zeros((0, len(self.replay.iterations)), np.int64)
        )

    def _replayed(self, scenarios: Sequence[Sequence[Fault]]) -> Ints:
        own_ns = np.repeat(self.own_ns[:, None], len(scenarios), axis=1)
        delay_ns = np.repeat(self.delay_ns[:, None], len(scenarios), axis=1)
        for number, faults in enumerate(scenarios):
            for fault in faults:
                own_ns[fault.rows, number] = np.rint(own_ns[fault.rows, number] * fault.scale)
                delay_ns[fault.delayed, number] -= fault.late_ns
        return self.replay.lengths_ns(own_ns, delay_ns).T

    def findings(self, base_ns: Ints, scenarios: Iterable[Sequence[Fault]]) -> list[Finding]:
        """Return what each scenario saves."""
        listed = [tuple(faults) for faults in scenarios]
        lengths = self.lengths_ns(listed)
        return [
            _finding(faults, base_ns, base_ns - row)
            for faults, row in zip(listed, lengths, strict=True)
        ]


def _finding(faults: tuple[Fault, ...], base_ns: Ints, saved_ns: Ints) -> Finding:
    mean_ns: float = float(saved_ns.mean())
    return Finding(
        faults,
        mean_ns,
        mean_ns / max(float(base_ns.mean()), 1.0),
        int((saved_ns > _LEAST * base_ns).sum()),
    )
