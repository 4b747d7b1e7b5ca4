"""Findings: faults by what iterations save without them, as a replay of all of them proves.

Faults are not added up: without one of two ranks that are equally slow an iteration is as long as
with it. So each is removed alone, and pairs are where they save clearly more than their parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from bubbleviz.explain.diagnosis.faults import SHAPES, Evidence, Fault
from bubbleviz.explain.slowdown.replay import Replay, Role, Work, scenarios_at_once
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.intervals import group_extents
from bubbleviz.model.values import frozen

#: A saving of less than this share of an iteration is none.
_LEAST = 0.001
#: Pairs of so many faults are tried; one counts that saves this many times what its parts do
#: together, and this much more of an iteration than the better part.
_PAIRED, _MORE_THAN_PARTS, _MORE = 6, 1.2, 0.02
#: The same where one of them is no fault, but a bound.
_MORE_THAN_PARTS_AND_BOUND, _MORE_WITH_BOUND = 1.5, 0.05
#: Of two faults of these kinds one is part of the other.
_NESTED = ("link", "iteration", "launch")


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
    seen: Evidence, replay: Replay, early_ns: Ints, eased: Sequence[tuple[Fault, Replay]] = ()
) -> Diagnosis:
    """Return what makes iterations long.

    Args:
        seen: the run.
        replay: of its work.
        early_ns: how much each row starts after all that it follows, whatever else changes.
        eased: faults that make work follow other work, each with the replay without that.
    """
    delays_ns = early_ns + seen.late_ns + seen.profiler_ns

    def lengths_without(scenarios: Sequence[Sequence[Fault]], replay: Replay = replay) -> Ints:
        """Return how long iterations take without some faults, shape (iterations, scenarios)."""
        lengths = [np.zeros((len(replay.iterations), 0), np.int64)]
        step = scenarios_at_once(len(seen.work))
        for low in range(0, len(scenarios), step):
            some = scenarios[low : low + step]
            own_ns = np.repeat(seen.own_ns[:, None], len(some), axis=1)
            delay_ns = np.repeat(delays_ns[:, None], len(some), axis=1)
            for number, faults in enumerate(some):
                for fault in faults:
                    own_ns[fault.rows, number] = np.rint(own_ns[fault.rows, number] * fault.scale)
                    delay_ns[fault.delayed, number] -= fault.late_ns
            lengths.append(replay.lengths_ns(own_ns, delay_ns))
        return np.concatenate(lengths, axis=1)

    base_ns = lengths_without([()])[:, 0]
    length_ns = float(base_ns.mean())

    def finding(faults: tuple[Fault, ...], without_ns: Ints) -> Finding:
        saved_ns = base_ns - without_ns
        mean_ns = float(saved_ns.mean())
        saved_iterations = int((saved_ns > _LEAST * base_ns).sum())
        return Finding(faults, mean_ns, mean_ns / max(length_ns, 1.0), saved_iterations)

    faults = [(fault,) for shape in SHAPES for fault in shape(seen)]
    alone = list(map(finding, faults, lengths_without(faults).T))
    alone += [finding((fault,), lengths_without([()], free)[:, 0]) for fault, free in eased]
    ranked = sorted(alone, key=lambda f: -f.saving_ns)
    tried = [f.faults[0] for f in ranked[:_PAIRED] if f.faults[0].kind != "token"]
    pairs = [
        (one, other)
        for one, other in combinations(tried, 2)
        if one.kind != other.kind or one.kind not in _NESTED
    ]
    saved = {f.faults[0].name: f.saving_ns for f in alone}
    together = []
    for found in map(finding, pairs, lengths_without(pairs).T):
        parts = [saved[fault.name] for fault in found.faults]
        bound = any(fault.bound for fault in found.faults)
        times = _MORE_THAN_PARTS_AND_BOUND if bound else _MORE_THAN_PARTS
        more_ns = (_MORE_WITH_BOUND if bound else _MORE) * length_ns
        if found.saving_ns > times * sum(parts) and found.saving_ns - max(parts) > more_ns:
            together.append(found)
    findings = [f for f in (*together, *ranked) if f.saving_ratio >= _LEAST]
    findings.sort(key=lambda f: -f.saving_ns)
    return Diagnosis(tuple(findings), len(base_ns), length_ns)


def diagnosed_times(work: Work) -> Ints:
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
