"""Profile clocks: each profile's machine, and its clock according to the profiling session.

nsys measures the times in a profile relative to the start of its session. It records the host's UTC
clock at that instant (``TARGET_INFO_SESSION_START_TIME.utcEpochNs``) and, in newer exports, also
the host's steady clock (``systemClockNs``), which NTP does not change. The first profile's clock is
the report's clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.errors import MismatchError, UsageError
from bubbleviz.model.columns import Bools, Floats, Ints
from bubbleviz.model.grouping import (
    group_rows,
    sort_rows,
)
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.profile import Source
from bubbleviz.model.texts import list_first

#: Maximum relative drift between two clocks. Each of the two may drift by half of this relative to
#: their mean.
DRIFT = 50e-6
#: Resolution of clocks in ns. Two bounds that miss each other by less than this are consistent.
GRAIN_NS = 5_000.0
#: Maximum difference between the boot times of two profiles of one machine. Corrections to UTC
#: clocks are smaller than this, and two machines rarely boot this close together.
_MAX_BOOT_DIFFERENCE_NS = 10_000_000_000
#: Maximum gap in UTC between two captures of the same run.
MAX_GAP_NS = 60_000_000_000
#: Maximum error of an unsynchronized clock for which the profiles are still accepted as one run.
_MAX_WRONG_NS = 3_600_000_000_000
#: At most 1 / ``_MAX_WRONG_DIVISOR`` of the profiles may have an unsynchronized clock. If ranks
#: have no unique numbers, the limit is 1 / ``_MAX_UNNUMBERED_WRONG_DIVISOR``.
_MAX_WRONG_DIVISOR, _MAX_UNNUMBERED_WRONG_DIVISOR = 4, 8
#: Maximum number of hosts that a limitation lists by name. Any others are only counted.
_MAX_NAMES = 4


def correct_times(
    times_ns: Ints, offset_ns: Ints | int, drift_ppm: Floats | float, t0_ns: Ints | int
) -> Ints:
    """Return ``t + offset_ns + round((t - t0_ns) * drift_ppm * 1e-6)`` for each time t.

    Args:
        times_ns: Times on one or several clocks.
        offset_ns: Offset to add, either one value or one per time.
        drift_ppm: Drift in parts per million, either one value or one per time.
        t0_ns: Time at which the drift term is 0, either one value or one per time.
    """
    corrected_ns = times_ns + offset_ns
    if np.any(drift_ppm):
        drifted_ns = np.rint((times_ns - t0_ns) * drift_ppm * 1e-6)
        corrected_ns += drifted_ns.astype(np.int64)
    return corrected_ns


@dataclass(frozen=True)
class ProfileClock:
    """Correction for times on a clock, as described in :func:`correct_times`.

    A correction either converts a profile's times to the report's clock, or corrects times that
    have already been converted.

    Attributes:
        offset_ns: Offset to add to the times.
        uncertainty_ns: Maximum error at any time in the capture, or None if it is not bounded.
        drift_ppm: Drift of the clock in parts per million.
        t0_ns: Time at which the drift term is 0.
    """

    offset_ns: int
    uncertainty_ns: int | None
    drift_ppm: float = 0.0
    t0_ns: int = 0

    def convert(self, times_ns: Ints) -> Ints:
        """Return the corrected times."""
        return correct_times(times_ns, self.offset_ns, self.drift_ppm, self.t0_ns)

    def compose(self, correction: ProfileClock) -> ProfileClock:
        """Return a clock that applies this clock's correction and then a second correction.

        The first correction must have no drift. The result has the uncertainty of ``correction``,
        and also its drift, rounded to a millionth of a ppm.

        Args:
            correction: Correction to apply to times that this clock has already corrected.
        """
        return ProfileClock(
            self.offset_ns + correction.offset_ns,
            correction.uncertainty_ns,
            # Round the drift to a millionth of a ppm so that the printed drift is exact.
            round(correction.drift_ppm, 6),
            correction.t0_ns - self.offset_ns if correction.drift_ppm else 0,
        )

    def relative_to(self, session: ProfileClock) -> ProfileClock:
        """Return the correction that converts times on the clock ``session`` to this clock.

        Args:
            session: Clock of the same profile, without drift.
        """
        return ProfileClock(
            self.offset_ns - session.offset_ns,
            self.uncertainty_ns,
            self.drift_ppm,
            self.t0_ns + session.offset_ns,
        )


def subtract_sessions(
    clocks: Sequence[ProfileClock], sessions: Sequence[ProfileClock]
) -> tuple[ProfileClock, ...]:
    """Return, for each profile, the correction that converts session times to its final clock.

    Args:
        clocks: Final clock of each profile.
        sessions: For each profile, the clock derived from its session start, without drift.
    """
    pairs = zip(clocks, sessions, strict=True)
    return tuple(clock.relative_to(session) for clock, session in pairs)


def find_machines(
    sources: Sequence[Source], same_clock: Sequence[Sequence[str]] = ()
) -> tuple[str, ...]:
    """Find the machine whose clock each profile uses.

    A profile is compared with the first profile that has the same hostname or declares the same
    clock. The two profiles share a machine, except in the following cases:

    - Either profile does not record its host, and the profile declares no clock. Files from several
      nodes may have the same name.
    - The machine ids of the profiles differ.
    - The UTC and steady clocks show that the machines were booted at different times.
    - The time between the two session starts is unknown.

    For the hosts in ``same_clock``, only the last case applies.

    Args:
        sources: Descriptions of the profile files, one per profile.
        same_clock: Groups of hostnames that share one clock (containers on one machine).

    Returns:
        Machine name of each profile: the first hostname of its group in ``same_clock``, or else the
        name of the clock that it declares, or else its hostname. If the profile cannot share a
        machine with the first profile of this name, its path is appended.

    Raises:
        UsageError: A group contains a host that no profile has.
    """
    hosts = {source.host for source in sources}
    for host in (host for group in same_clock for host in group):
        if host not in hosts:
            raise UsageError(
                f"--same-clock: no profile is from host {host!r}; the hosts are "
                + ", ".join(sorted(hosts))
            )
    machine = {host: group[0] for group in same_clock for host in group}
    first: dict[str, Source] = {}
    machines = []
    for source in sources:
        clock = source.host if source.clock is None else source.clock.name
        name = machine.get(source.host, clock)
        can_share = has_known_offset if source.host in machine else _can_share
        if name in first and not can_share(source, first[name]):
            name = f"{name} ({source.path})"
        first.setdefault(name, source)
        machines.append(name)
    return tuple(machines)


def has_known_offset(source: Source, other: Source) -> bool:
    """Return whether the steady clocks or UTC give the time between two session starts."""
    return any(
        _measure_session_offset(source, other, steady) is not None for steady in (True, False)
    )


def _can_share(source: Source, other: Source) -> bool:
    """Return whether two profiles with one hostname or declared clock can be from one machine.

    All of the following conditions must hold:

    - The time between the session starts is known.
    - The hosts of both profiles are known, or ``source`` declares a clock.
    - The machine ids are equal, or at least one of them is unknown.
    - The boot times differ by less than ``_MAX_BOOT_DIFFERENCE_NS``, or at least one of them is
      unknown.
    """
    if source.clock is None and not (source.host_known and other.host_known):
        return False
    ids = source.machine, other.machine
    if None not in ids and ids[0] != ids[1]:
        return False
    return _measure_boot_difference(source, other) < _MAX_BOOT_DIFFERENCE_NS and has_known_offset(
        source, other
    )


def _measure_boot_difference(source: Source, other: Source) -> int:
    """Return the absolute difference in ns between the boot times of two profiles' machines.

    A boot time is the UTC time of the session start minus its steady clock reading. The difference
    is 0 if either profile does not record both times.
    """
    booted = [
        profile.session_utc_ns - profile.session_clock_ns
        for profile in (source, other)
        if profile.session_utc_ns is not None and profile.session_clock_ns is not None
    ]
    return abs(booted[0] - booted[1]) if len(booted) == 2 else 0


def build_session_clocks(
    sources: Sequence[Source], machines: Sequence[str]
) -> tuple[ProfileClock, ...]:
    """Return a correction for each profile that converts its times to the first profile's clock.

    The corrections are computed from the session starts:

    - A profile is compared with the first profile from its machine by their steady clocks. UTC is
      used instead if either profile lacks a steady clock, or if their boot times differ by
      ``_MAX_BOOT_DIFFERENCE_NS`` or more. Both profiles get the same uncertainty.
    - The first profile from every machine is compared with the very first profile by UTC. Its
      uncertainty is unbounded (None), except for the very first profile. The same applies to a
      profile that cannot be compared with the first profile from its machine.

    If UTC is needed but unknown, the times are used unchanged.

    Args:
        sources: Descriptions of the profile files, one per profile.
        machines: Machine name of each profile.
    """
    clocks: list[ProfileClock] = []
    anchors: dict[str, int] = {}
    for index, (source, machine) in enumerate(zip(sources, machines, strict=True)):
        anchor = anchors.setdefault(machine, index)
        # Machines that share a clock according to the user may have booted at different times.
        has_same_boot = _measure_boot_difference(source, sources[anchor]) < _MAX_BOOT_DIFFERENCE_NS
        steps = [
            _measure_session_offset(source, sources[anchor], steady)
            for steady in (True, False)[not has_same_boot :]
        ]
        step = next((step for step in steps if step is not None), None)
        if anchor < index and step is not None:
            clocks.append(
                ProfileClock(clocks[anchor].offset_ns + step, clocks[anchor].uncertainty_ns)
            )
        else:
            step = _measure_session_offset(source, sources[0], steady=False)
            clocks.append(ProfileClock(step or 0, None if index else 0))
    return tuple(clocks)


def _measure_session_offset(source: Source, other: Source, steady: bool) -> int | None:
    """Return the session start of ``source`` minus that of ``other``, in ns.

    The result is None if either profile does not record the clock.

    Args:
        source: Profile to compare.
        other: Profile to compare it with.
        steady: Whether to compare the steady clocks instead of UTC.
    """
    name = "session_clock_ns" if steady else "session_utc_ns"
    times = getattr(source, name), getattr(other, name)
    return None if None in times else times[0] - times[1]


def list_untimed_profiles(
    sources: Sequence[Source], machines: Sequence[str]
) -> tuple[Limitation, ...]:
    """Return a limitation for each profile that does not record the UTC time of its session start.

    Several machines are aligned by UTC, so the times of such a profile are used unchanged. If there
    is a single machine, UTC is not needed, and the result is empty.

    Args:
        sources: Descriptions of the profile files, one per profile.
        machines: Machine name of each profile.
    """
    untimed_sources = [source for source in sources if source.session_utc_ns is None]
    return tuple(
        Limitation(
            "clock of a profile",
            f"{source.path} does not record when its session started, so its times are used "
            "unchanged",
        )
        for source in (untimed_sources if len(set(machines)) > 1 else ())
    )


def mask_typical_sizes(ranks: Ints, operations: Ints) -> Bools:
    """Return a mask of the profiles with the most frequent size, a pair (ranks, operations).

    If several sizes are tied, the mask includes the profiles of all tied sizes. If all profiles
    differ in size, the mask is False everywhere.

    Args:
        ranks: Number of ranks in each profile.
        operations: Number of operations in each profile.
    """
    size_class = group_rows(ranks, operations).of_row
    frequency = np.bincount(size_class, minlength=1)[size_class]
    return np.asarray((frequency == frequency.max(initial=0)) & (frequency > 1), bool)


def refuse_unrelated(
    sources: Sequence[Source],
    captures: Sequence[tuple[int, int]],
    clocks: Sequence[ProfileClock],
    is_typical: Bools,
    *,
    is_numbered: bool = False,
) -> tuple[Limitation, ...]:
    """Refuse captures that are more than a minute apart in UTC, unless a few clocks are wrong.

    Gaps of more than a minute divide the captures into groups. The largest group (the earliest one
    if tied) is assumed to have correct clocks. The other captures are outliers. Outliers are
    accepted if all of the following conditions hold:

    - At most 1 / ``_MAX_WRONG_DIVISOR`` of the captures are outliers. If not all ranks have unique
      numbers, the limit is 1 / ``_MAX_UNNUMBERED_WRONG_DIVISOR``.
    - All captures start within an hour.
    - Either all ranks have unique numbers, or every outlier has a typical size and a host that no
      capture in the largest group has.

    The returned limitation then reports that the UTC clocks of the outliers are wrong. If there is
    no gap, the result is an empty tuple. Profiles without UTC are ignored.

    Args:
        sources: Descriptions of the profile files, one per profile.
        captures: First and last time in each profile, on its uncorrected clock.
        clocks: For each profile, the clock derived from its session start.
        is_typical: Mask of the profiles with typical sizes (:func:`mask_typical_sizes`).
        is_numbered: Whether every rank has a unique number.

    Raises:
        MismatchError: The captures are not from a single run.
    """
    profile, starts_ns, ends_ns = _sort_captures(sources, captures, clocks)
    # A long capture can contain shorter captures. The gap is therefore measured from the latest end
    # of all earlier captures.
    latest_ns = np.maximum.accumulate(ends_ns)
    gaps = np.flatnonzero(starts_ns[1:] - latest_ns[:-1] > MAX_GAP_NS)
    if len(gaps) == 0:
        return ()
    wrong = [profile[index] for index in _find_outliers(len(profile), gaps)]
    span_ns = int(starts_ns[-1] - starts_ns[0])
    divisor = _MAX_WRONG_DIVISOR if is_numbered else _MAX_UNNUMBERED_WRONG_DIVISOR
    is_minority = len(wrong) * divisor <= len(profile)
    is_one_run = is_numbered or _are_typical(sources, profile, wrong, is_typical)
    if not (is_one_run and is_minority) or span_ns > _MAX_WRONG_NS:
        in_order = [sources[i] for i in profile]
        raise MismatchError(_describe_gap(in_order, starts_ns, ends_ns, int(gaps[0])))
    hosts = list(dict.fromkeys(sources[i].host for i in sorted(wrong)))
    return (_describe_wrong_clocks(hosts, span_ns, is_numbered=is_numbered),)


def _find_outliers(n_captures: int, gaps: Ints) -> list[int]:
    """Return the captures outside the largest group. At ties, the earliest group is the largest.

    Args:
        n_captures: Number of captures.
        gaps: Captures that are followed by a gap, ascending. Each gap separates two groups.
    """
    group = np.searchsorted(gaps, np.arange(n_captures))
    is_outlier = group != np.bincount(group).argmax()
    return np.flatnonzero(is_outlier).tolist()


def _describe_wrong_clocks(hosts: Sequence[str], span_ns: int, *, is_numbered: bool) -> Limitation:
    """Return the limitation for hosts whose UTC clocks are wrong.

    Args:
        hosts: Names of these hosts.
        span_ns: Time from the first start of a capture to the last one.
        is_numbered: Whether every rank has a unique number.
    """
    reason = "rank numbers" if is_numbered else "the sizes of the profiles"
    return Limitation(
        "clocks that are minutes off",
        f"according to UTC, {list_first(hosts, _MAX_NAMES)} recorded up to "
        f"{span_ns / 1e9:,.0f} s before or after the other hosts, but {reason} suggest that "
        "all profiles are from one run. Synchronize the clocks with NTP",
        len(hosts),
    )


def _sort_captures(
    sources: Sequence[Source],
    captures: Sequence[tuple[int, int]],
    clocks: Sequence[ProfileClock],
) -> tuple[list[int], Ints, Ints]:
    """Sort the captures whose UTC time is known by start, and then by end.

    Args:
        sources: Descriptions of the profile files, one per profile.
        captures: First and last time in each profile, on its uncorrected clock.
        clocks: For each profile, the clock derived from its session start.

    Returns:
        profile: Index of each capture's profile.
        starts_ns: Start of each capture, converted with its clock.
        ends_ns: End of each capture, converted with its clock.
    """
    has_utc = np.array([i for i, source in enumerate(sources) if source.session_utc_ns is not None])
    starts_ns, ends_ns = (
        np.array([captures[i][side] + clocks[i].offset_ns for i in has_utc.tolist()], np.int64)
        for side in (0, 1)
    )
    order = sort_rows(starts_ns, ends_ns)
    return has_utc[order].tolist(), starts_ns[order], ends_ns[order]


def _are_typical(
    sources: Sequence[Source], profile: Sequence[int], wrong: Sequence[int], is_typical: Bools
) -> bool:
    """Return whether each wrong profile has a typical size, and a host that no other profile has.

    Args:
        sources: Descriptions of the profile files, one per profile.
        profile: Indices of the profiles whose UTC time is known.
        wrong: Indices of the profiles to check, a subset of ``profile``. The hosts of ``wrong`` are
            compared with the hosts of the other profiles in ``profile``.
        is_typical: Mask of the profiles with typical sizes (:func:`mask_typical_sizes`).
    """
    other_hosts = {sources[i].host for i in profile if i not in wrong}
    return all(is_typical[i] and sources[i].host not in other_hosts for i in wrong)


def _describe_gap(sources: Sequence[Source], starts_ns: Ints, ends_ns: Ints, gap: int) -> str:
    """Return the error message for two captures that are too far apart to belong to one run.

    Args:
        sources: Descriptions of the profile files, sorted by the start times of their captures.
        starts_ns: Start of each capture.
        ends_ns: End of each capture.
        gap: Index of the last capture that starts before the gap.
    """
    latest_ns = ends_ns[: gap + 1].max()
    last = int(np.flatnonzero(ends_ns[: gap + 1] == latest_ns)[-1])
    gap_ns = int(starts_ns[gap + 1] - latest_ns)
    return (
        f"{sources[last].path} and {sources[gap + 1].path}: according to their clocks, they were "
        f"captured {gap_ns / 1e9:.0f} s apart, so they are not from one run; pass only profiles of "
        "one run"
    )
