"""Clocks: those of profiles, then those of event files, and which of them tick together."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bubbleviz.align.bounds.clocks import machines_of, session_clocks
from bubbleviz.analyses.nccl.alignment import EventTimes
from bubbleviz.analyses.nccl.communications import Alignment, RecordingClock
from bubbleviz.analyses.nccl.profiles import NcclProfile
from bubbleviz.model.columns import NONE
from bubbleviz.model.values import frozen


@frozen
class ProfileClocks:
    """The clocks of profiles; columns of one length, in the order of the profiles.

    Attributes:
        clocks: themselves.
        offsets_ns: what to add to the times of each.
        machines: number of the machine that each was recorded on.
    """

    clocks: tuple[RecordingClock, ...]
    offsets_ns: tuple[int, ...]
    machines: tuple[int, ...]


def profile_clocks(profiles: Sequence[NcclProfile]) -> ProfileClocks:
    """Return the clocks of profiles; the first profile's is the report's."""
    sources = [profile.source for profile in profiles]
    machines = machines_of(sources)
    offsets_ns = [session.offset_ns for session in session_clocks(sources, machines)]
    clocks: list[RecordingClock] = []
    for source, machine in zip(sources, machines, strict=True):
        first = sources[machines.index(machine)]
        timed = None not in (first.session_utc_ns, sources[0].session_utc_ns)
        if machine == machines[0]:
            aligned_by = Alignment.REFERENCE
        else:
            aligned_by = Alignment.UTC if timed else Alignment.UNALIGNED
        clocks.append(RecordingClock(Path(source.path).name, aligned_by))
    numbers = {machine: number for number, machine in enumerate(dict.fromkeys(machines))}
    return ProfileClocks(
        clocks=tuple(clocks),
        offsets_ns=tuple(offsets_ns),
        machines=tuple(numbers[machine] for machine in machines),
    )


def clocks_and_bases(
    times: EventTimes, of_profiles: ProfileClocks, profiles: Sequence[NcclProfile]
) -> tuple[tuple[RecordingClock, ...], list[int]]:
    """Return the clocks of profiles, then of event files, and the clock that each one ticks with.

    The first profile's host is 0; without a profile an anchored clock is, or else the first file's.
    """
    ends = np.cumsum([len(profile.kernels) for profile in profiles])
    machines = of_profiles.machines
    bases = list(machines)
    free = itertools.count(max(machines, default=0) + 1)
    clocks = list(of_profiles.clocks)
    anchored = any(clock.aligned_by is Alignment.ANCHOR for clock in times.clocks)
    for number, clock in enumerate(times.clocks):
        kernels = times.kernel[(times.clock == number) & (times.kernel != NONE)]
        if clock.aligned_by is Alignment.ANCHOR:
            bases.append(0)
        elif len(kernels):
            bases.append(machines[int(np.searchsorted(ends, kernels[0], side="right"))])
        elif not clocks and not anchored:
            clock = replace(clock, aligned_by=Alignment.REFERENCE)  # noqa: PLW2901 - as it is kept
            bases.append(0)
        else:
            bases.append(next(free))
        clocks.append(clock)
    return tuple(clocks), bases
