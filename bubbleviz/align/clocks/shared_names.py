"""Shared names: several machines that share a hostname, such as containers with a fixed name.

Profiles with the same hostname are assumed to share a clock. If the data dependencies between two
profiles contradict this clock in at least half of the iterations, the profiles were recorded on
different machines.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.align.arrivals import NEVER
from bubbleviz.align.clocks import offsets
from bubbleviz.align.join import JoinedRecordings
from bubbleviz.align.profile_clocks import GRAIN_NS
from bubbleviz.interpret.recording import Recordings
from bubbleviz.model.columns import Bools, Ints, make_mask
from bubbleviz.model.grouping import group_rows
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.texts import format_count

#: Two profiles are from different machines if dependencies between them are contradicted in at
#: least this fraction of iterations.
_MIN_BROKEN_SHARE = 0.5


def separate_machines(
    recordings: JoinedRecordings, precedences: offsets.Precedences
) -> tuple[str, ...] | None:
    """Assign profiles of one hostname to several machines if their clocks contradict each other.

    Only hostnames with contradicting clocks are divided. Profiles whose clocks agree are assigned
    to one machine, unless that machine would then contain two profiles with contradicting clocks. A
    profile without dependencies on other profiles with the same hostname gets a separate machine.

    Args:
        recordings: The recordings, with stages and iterations. Times are on the clocks of the
            profiling sessions.
        precedences: Dependencies between all ranks. The clock columns contain rank numbers.

    Returns:
        Machine name of each profile, or None if no clocks contradict each other. The first machine
        of a hostname keeps its name. For the n-th machine, " (machine n)" is appended.
    """
    agreeing, contradicting = _compare_clocks(recordings, precedences)
    if not contradicting:
        return None
    contradicted = {recordings.machine_of_profile[profile] for profile, _ in contradicting}
    group_of_profile = _group_profiles(len(recordings.machine_of_profile), agreeing, contradicting)
    groups_of_machine: dict[str, list[int]] = defaultdict(list)
    machines = list(recordings.machine_of_profile)
    first_captures = recordings.find_first_captures()
    for profile, machine in enumerate(recordings.machine_of_profile):
        if machine not in contradicted:
            continue
        groups = groups_of_machine[machine]
        group = group_of_profile[first_captures[profile]]
        if group not in groups:
            groups.append(group)
        if number := groups.index(group):
            machines[profile] = f"{machine} (machine {number + 1})"
    return tuple(machines)


def _group_profiles(
    n_profiles: int, agreeing: set[tuple[int, int]], contradicting: set[tuple[int, int]]
) -> list[int]:
    """Group profiles with agreeing clocks so that no two profiles in a group contradict each other.

    The algorithm is greedy. The agreeing pairs are processed in ascending order, and the groups of
    the two profiles are joined unless this would put a contradicting pair into one group.

    Args:
        n_profiles: Number of profiles.
        agreeing: Pairs of profiles with agreeing clocks.
        contradicting: Pairs of profiles with contradicting clocks.

    Returns:
        Group of each profile, identified by the smallest profile index in the group.
    """
    group_of_profile = list(range(n_profiles))
    members = [{profile} for profile in range(n_profiles)]
    opponents: list[set[int]] = [set() for _ in range(n_profiles)]
    for profile, other in contradicting:
        opponents[profile].add(other)
        opponents[other].add(profile)
    for pair in sorted(agreeing):
        first, second = sorted(group_of_profile[profile] for profile in pair)
        if first == second or opponents[first] & members[second]:
            continue
        members[first] |= members[second]
        opponents[first] |= opponents[second]
        for profile in members[second]:
            group_of_profile[profile] = first
    return group_of_profile


def _compare_clocks(
    recordings: JoinedRecordings, precedences: offsets.Precedences
) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """Find profiles of one machine whose clocks agree with or contradict each other.

    A dependency between two profiles is contradicted if an operation ran more than ``GRAIN_NS``
    before its input existed (:func:`_measure_earliness`). A pair of profiles is a tuple with the
    smaller index first.

    Args:
        recordings: The recordings, with stages and iterations.
        precedences: Dependencies between all ranks. The clock columns contain rank numbers.

    Returns:
        agreeing: Pairs of profiles with no contradicted dependencies.
        contradicting: Pairs of profiles with a contradicted dependency in at least
            ``_MIN_BROKEN_SHARE`` of the iterations in which they have dependencies. Pairs that
            neither agree nor contradict are in neither set.
    """
    profile = np.array([rank.profile for rank in recordings.ranks], np.int64)
    machine = recordings.machine_of_rank
    earlier_profile = profile[precedences.earlier_clock]
    later_profile = profile[precedences.later_clock]
    is_same_machine = machine[precedences.earlier_clock] == machine[precedences.later_clock]
    rows = np.flatnonzero(is_same_machine & (earlier_profile != later_profile))
    if not len(rows):
        return set(), set()
    early_ns = _measure_earliness(recordings, precedences)[rows]
    low = np.minimum(earlier_profile, later_profile)[rows]
    high = np.maximum(earlier_profile, later_profile)[rows]
    counts = _count_broken(low, high, precedences.iteration[rows], early_ns > GRAIN_NS)
    agreeing = {pair for pair, (n_broken, _) in counts.items() if n_broken == 0}
    contradicting = {
        pair
        for pair, (n_broken, n_iterations) in counts.items()
        if pair not in agreeing and n_broken >= _MIN_BROKEN_SHARE * n_iterations
    }
    return agreeing, contradicting


def _count_broken(
    low: Ints, high: Ints, iteration: Ints, is_broken: Bools
) -> dict[tuple[int, int], tuple[int, int]]:
    """Count the iterations in which two profiles contradict their common clock.

    Args:
        low: Smaller profile index of each dependency.
        high: Larger profile index of each dependency.
        iteration: Iteration to which each dependency belongs.
        is_broken: Mask of the contradicted dependencies.

    Returns:
        For each pair of profiles, the number of iterations with a contradicted dependency and the
        number with at least one dependency.
    """
    cells = group_rows(low, high, iteration)
    is_broken_cell = make_mask(len(cells), cells.of_row[is_broken])
    pairs = group_rows(low[cells.first], high[cells.first])
    n_broken = np.bincount(pairs.of_row[is_broken_cell], minlength=len(pairs)).tolist()
    n_iterations = np.bincount(pairs.of_row, minlength=len(pairs)).tolist()
    row = cells.first[pairs.first]
    profiles = zip(low[row].tolist(), high[row].tolist(), strict=True)
    return dict(zip(profiles, zip(n_broken, n_iterations, strict=True), strict=True))


def _measure_earliness(recordings: JoinedRecordings, precedences: offsets.Precedences) -> Ints:
    """Return the number of ns by which each precedence's later event is too early.

    The result is the time of the earlier event minus the time of the later event, as if both were
    on one clock. A negative value means that the order of the events is correct. An operation
    without a recorded receive may begin with kernels that need no input, so its end is used as the
    later event.
    """
    received = recordings.arrivals.latest_ns[precedences.later_row] != NEVER
    end_ns = recordings.operations.end_ns[precedences.later_row]
    after_ns = np.where(received, precedences.later_ns, end_ns)
    return np.asarray(precedences.earlier_ns - after_ns, np.int64)


def rename_hosts(
    parts: Recordings, hostnames: Sequence[str], machines: Sequence[str]
) -> Recordings:
    """Return the recordings, with the new machine name as host where the machine has changed.

    Args:
        parts: The recordings, one per clock of a profile.
        hostnames: Machine name of each profile before hostnames were split into machines.
        machines: New machine name of each profile, as returned by :func:`separate_machines`.
    """
    recordings = list(parts.recordings)
    for profile, (hostname, machine) in enumerate(zip(hostnames, machines, strict=True)):
        if machine != hostname:
            source = replace(recordings[profile].source, host=machine)
            recordings[profile] = replace(recordings[profile], source=source)
    return replace(parts, recordings=tuple(recordings))


def list_shared_names(hostnames: Sequence[str], machines: Sequence[str]) -> tuple[Limitation, ...]:
    """Return a limitation for each hostname that is shared by several machines.

    Args:
        hostnames: Machine name of each profile before hostnames were split into machines.
        machines: Machine name of each profile, as returned by :func:`separate_machines`.
    """
    return tuple(
        Limitation(
            "several machines with the same host name",
            f"the profiles of {name} contradict each other if they share one clock, so they are "
            f"treated as {format_count(len(names), 'machine')}, such as containers with the same "
            "host name. Their clocks are aligned by data dependencies. To treat them as one "
            f"machine, pass --same-clock {name}",
            len(names),
            LimitationKind.HOST_NAME_SHARED,
            hosts=(name,),
        )
        for name, names in _find_shared_names(hostnames, machines).items()
    )


def list_contradicting_hosts(
    hostnames: Sequence[str], machines: Sequence[str]
) -> tuple[Limitation, ...]:
    """Return a limitation for each hostname whose profiles contradict each other.

    The contradiction remains even if the hostname is divided into several machines.

    Args:
        hostnames: Machine name of each profile before hostnames were split into machines.
        machines: Machine name of each profile, as returned by :func:`separate_machines`.
    """
    return tuple(
        Limitation(
            "ranks on one host contradict each other",
            f"on the shared clock of {name}, operations ran before their input was ready, and "
            "separate clocks would not explain this. Either some times or the inferred stages are "
            "wrong. To set the stages, pass --parallel",
            len(names),
            LimitationKind.RANKS_CONTRADICTED,
            hosts=(name,),
        )
        for name, names in _find_shared_names(hostnames, machines).items()
    )


def _find_shared_names(hostnames: Sequence[str], machines: Sequence[str]) -> dict[str, set[str]]:
    """Return the machine names for each hostname that is shared by several machines.

    Args:
        hostnames: Machine name of each profile before hostnames were split into machines.
        machines: Machine name of each profile, as returned by :func:`separate_machines`.
    """
    machines_of_name: dict[str, set[str]] = defaultdict(set)
    for name, machine in zip(hostnames, machines, strict=True):
        machines_of_name[name].add(machine)
    return {name: names for name, names in machines_of_name.items() if len(names) > 1}
