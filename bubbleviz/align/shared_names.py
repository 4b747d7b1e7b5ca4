"""Shared names: several machines with one hostname, such as containers with a fixed name.

Profiles with the same hostname share a clock. If the data dependencies between two of them
contradict this clock in most iterations, they were recorded on different machines.
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

#: Minimum share of iterations with contradicted dependencies between profiles of two machines.
_MIN_BROKEN_SHARE = 0.5


def separate_machines(
    joined: JoinedRecordings, staging: Staging, precedences: offsets.Precedences
) -> tuple[str, ...] | None:
    """Assign profiles of one hostname to several machines if their clocks contradict each other.

    A profile joins the first machine of its hostname that has a profile with an agreeing clock, and
    none with a contradicting clock. A profile without dependencies on the others gets a separate
    machine.

    Args:
        joined: The recordings, on the clocks of their sessions.
        staging: Their stages, pipelines and iterations.
        precedences: Dependencies between all ranks; their clocks are rank numbers.

    Returns:
        Machine of each profile, or None if no clock is contradicted.
    """
    agreeing, contradicting = _compare_clocks(joined, staging, precedences)
    if not contradicting:
        return None
    contradicted = {joined.machine_of_profile[profile] for profile, _ in contradicting}
    members: dict[str, list[list[int]]] = defaultdict(list)
    machines = list(joined.machine_of_profile)
    for profile, machine in enumerate(joined.machine_of_profile):
        if machine not in contradicted:
            continue
        fitting = [
            number
            for number, others in enumerate(members[machine])
            if any(_pair(profile, other) in agreeing for other in others)
            and not any(_pair(profile, other) in contradicting for other in others)
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


def _pair(profile: int, other: int) -> tuple[int, int]:
    return min(profile, other), max(profile, other)


def _compare_clocks(
    joined: JoinedRecordings, staging: Staging, precedences: offsets.Precedences
) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """Compare the clocks of profiles of one machine by the dependencies between them.

    Returns:
        agreeing: Pairs of profiles without a contradicted dependency.
        contradicting: Pairs with contradicted dependencies in most of their iterations.
    """
    profile = np.array([rank.profile for rank in joined.ranks], np.int64)
    machine = joined.machine_of_rank
    before, after = profile[precedences.before], profile[precedences.after]
    is_same_machine = machine[precedences.before] == machine[precedences.after]
    rows = np.flatnonzero(is_same_machine & (before != after))
    if not len(rows):
        return set(), set()
    early_ns = _early_ns(staging, precedences)[rows]
    low, high = np.minimum(before, after)[rows], np.maximum(before, after)[rows]
    cells = groups_of(low, high, precedences.iteration[rows])
    is_broken = np.zeros(len(cells), bool)
    is_broken[cells.of_row[early_ns > offsets.GRAIN_NS]] = True
    pairs = groups_of(low[cells.first], high[cells.first])
    n_broken = np.bincount(pairs.of_row[is_broken], minlength=len(pairs))
    n_iterations = np.bincount(pairs.of_row, minlength=len(pairs))
    agreeing, contradicting = set(), set()
    for number, row in enumerate(cells.first[pairs.first].tolist()):
        pair = int(low[row]), int(high[row])
        if n_broken[number] == 0:
            agreeing.add(pair)
        elif n_broken[number] >= _MIN_BROKEN_SHARE * n_iterations[number]:
            contradicting.add(pair)
    return agreeing, contradicting


def _early_ns(staging: Staging, precedences: offsets.Precedences) -> Ints:
    """Return how long before its input each operation ran, by the clock of its host.

    An operation without a receive may begin with kernels that need no input, so its end is
    compared instead of its start. Times are negative if the operation ran after its input.
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
        before: Machine of each profile, one per hostname.
        machines: Machine of each profile, as returned by :func:`separate_machines`.
    """
    machines_of_name: dict[str, set[str]] = defaultdict(set)
    for name, machine in zip(before, machines, strict=True):
        machines_of_name[name].add(machine)
    return tuple(
        Limitation(
            "one host name of several machines",
            f"profiles of {name} contradict each other on one clock, so they count as "
            f"{counted(len(names), 'machine')}, such as containers with a fixed host name; data "
            f"dependencies align their clocks, and --same-clock {name} keeps one clock",
            len(names),
            LimitationKind.HOST_NAME_SHARED,
            hosts=(name,),
        )
        for name, names in machines_of_name.items()
        if len(names) > 1
    )
