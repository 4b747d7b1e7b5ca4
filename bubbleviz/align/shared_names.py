"""Shared names: one hostname of several machines, as containers with a fixed name have it.

Profiles of one hostname share a clock. If the data dependencies between two of them contradict
that clock again and again, they were recorded on two machines.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from bubbleviz.align import offsets
from bubbleviz.align.merge import JoinedRecordings
from bubbleviz.align.staging import Staging
from bubbleviz.align.waits import NEVER
from bubbleviz.model.columns import Ints
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.texts import counted

#: Part of the iterations of two profiles in which dependencies are broken if clocks are apart.
_SYSTEMATIC = 0.5


def separate_machines(
    joined: JoinedRecordings, staging: Staging, precedences: offsets.Precedences
) -> tuple[str, ...] | None:
    """Return the machine of each profile, with profiles apart whose clocks contradict each other.

    A profile joins the first machine of its hostname with which dependencies agree, and none
    disagree. One that no dependency connects with the others gets a machine of its own.

    Args:
        joined: The recordings, on the clocks of their sessions.
        staging: Their stages, pipelines and iterations.
        precedences: Dependencies between all ranks; clocks are numbers of ranks.

    Returns:
        A machine per profile, or None if no clock is contradicted.
    """
    agreeing, apart = _profile_pairs(joined, staging, precedences)
    if not apart:
        return None
    contradicted = {joined.machine_of_profile[one] for one, _ in apart}
    members: dict[str, list[list[int]]] = defaultdict(list)
    machines = list(joined.machine_of_profile)
    for profile, machine in enumerate(joined.machine_of_profile):
        if machine not in contradicted:
            continue
        fitting = [
            number
            for number, others in enumerate(members[machine])
            if any(_pair(profile, other) in agreeing for other in others)
            and not any(_pair(profile, other) in apart for other in others)
        ]
        if fitting:
            number = fitting[0]
            members[machine][number].append(profile)
        else:
            number = len(members[machine])
            members[machine].append([profile])
        if number:
            machines[profile] = f"{machine} (machine {number + 1})"
    return tuple(machines)


def _pair(one: int, other: int) -> tuple[int, int]:
    return min(one, other), max(one, other)


def _profile_pairs(
    joined: JoinedRecordings, staging: Staging, precedences: offsets.Precedences
) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """Return the pairs of profiles of one machine whose clocks agree, and those that are apart."""
    profile = np.array([rank.profile for rank in joined.ranks], np.int64)
    machine = joined.machine_of_rank
    before, after = profile[precedences.before], profile[precedences.after]
    same = machine[precedences.before] == machine[precedences.after]
    rows = np.flatnonzero(same & (before != after))
    if not len(rows):
        return set(), set()
    early_ns = _early_ns(staging, precedences)[rows]
    one, other = np.minimum(before, after)[rows], np.maximum(before, after)[rows]
    cells = groups_of(one, other, precedences.iteration[rows])
    is_broken = np.zeros(len(cells), bool)
    is_broken[cells.of_row[early_ns > offsets.GRAIN_NS]] = True
    pairs = groups_of(one[cells.first], other[cells.first])
    n_broken = np.bincount(pairs.of_row[is_broken], minlength=len(pairs))
    n_iterations = np.bincount(pairs.of_row, minlength=len(pairs))
    agreeing, apart = set(), set()
    for number, row in enumerate(cells.first[pairs.first].tolist()):
        pair = int(one[row]), int(other[row])
        if n_broken[number] == 0:
            agreeing.add(pair)
        elif n_broken[number] >= _SYSTEMATIC * n_iterations[number]:
            apart.add(pair)
    return agreeing, apart


def _early_ns(staging: Staging, precedences: offsets.Precedences) -> Ints:
    """Return how long before its input each operation ran, by the clock of its host.

    An operation without a receive may begin with kernels that need no input, so only its end
    counts.
    """
    received = staging.arrivals.latest_ns[precedences.after_row] != NEVER
    end_ns = staging.operations.end_ns[precedences.after_row]
    after_ns = np.where(received, precedences.after_ns, end_ns)
    return np.asarray(precedences.before_ns - after_ns, np.int64)


def shared_name_limitations(
    before: Sequence[str], machines: Sequence[str]
) -> tuple[Limitation, ...]:
    """Return a limitation for each hostname that stands for several machines.

    Args:
        before: Machine of each profile by its hostname.
        machines: Machine of each profile, with contradicting ones apart.
    """
    of_name: dict[str, set[str]] = defaultdict(set)
    for name, machine in zip(before, machines, strict=True):
        of_name[name].add(machine)
    return tuple(
        Limitation(
            "one host name of several machines",
            f"profiles of {name} contradict each other on one clock, so they are taken for "
            f"{counted(len(found), 'machine')}, as of containers with a fixed name, whose clocks "
            f"follow from data dependencies; --same-clock {name} keeps one clock",
            len(found),
            LimitationKind.HOST_NAME_SHARED,
            hosts=(name,),
        )
        for name, found in of_name.items()
        if len(found) > 1
    )
