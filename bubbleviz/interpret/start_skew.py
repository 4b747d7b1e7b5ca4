"""Start skew: the time before all processes were recorded, in which collectives only wait.

A profiler may start later on one rank than on others. A collective of the others then waits until
the late rank enters it, which is no fault of the run::

    rank 0   ├──────── all-reduce ────────┤├ kernels ...
    rank 1   not recorded yet         ├────┤├ kernels ...
             ├──── skew ──────────────┤
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.conventions.kinds import Kinds, matching
from bubbleviz.model.columns import flags_of
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.profile import Activities, Source

#: Part of a device's span that a collective takes at least if it waits for a late recording.
_LONG_WAIT = 0.05


@dataclass(frozen=True)
class RecordedDevice:
    """When the recording of a device began, and what it waited in; times on UTC, in ns.

    Attributes:
        begin_ns: Start of the first recorded call or work of its process.
        span_ns: Start of its first work and end of the last.
        wait_ns: Start and end of its longest communication kernel, or an empty interval.
    """

    begin_ns: int
    span_ns: tuple[int, int]
    wait_ns: tuple[int, int]

    def waits_for(self, begin_ns: int) -> bool:
        """Return whether the longest communication waited mostly before a recording began."""
        start_ns, end_ns = self.wait_ns
        length_ns = end_ns - start_ns
        is_long = length_ns > _LONG_WAIT * (self.span_ns[1] - self.span_ns[0])
        return is_long and end_ns >= begin_ns and begin_ns - start_ns > length_ns // 2


def recorded_devices(
    source: Source, activities: Activities, kinds: Kinds, first_call_ns: int
) -> tuple[RecordedDevice, ...]:
    """Return when the devices of a profile were recorded; none if its UTC is unknown.

    Args:
        source: The profile.
        activities: Its kernels, then copies.
        kinds: Kinds of kernels, by name.
        first_call_ns: Start of the first call of the host, or a time after all work.
    """
    if source.session_utc_ns is None:
        return ()
    utc_ns = source.session_utc_ns
    is_communication = np.zeros(len(activities), bool)
    kernels = slice(activities.kernels)
    by_name = matching(activities.names, kinds.communication)
    is_communication[kernels] = flags_of(activities.name_id[kernels], by_name)
    several_processes = len({process for process, _ in activities.ranks.tolist()}) > 1
    devices = []
    for rank in range(len(activities.ranks)):
        rows = np.flatnonzero(activities.rank == rank)
        if len(rows) == 0:
            continue
        first_ns = int(activities.start_ns[rows].min())
        last_ns = int(activities.end_ns[rows].max())
        waits = rows[is_communication[rows]]
        wait_ns = 0, 0
        if len(waits):
            longest = waits[(activities.end_ns[waits] - activities.start_ns[waits]).argmax()]
            wait_ns = int(activities.start_ns[longest]), int(activities.end_ns[longest])
        # Calls of several processes are not told apart here.
        begin_ns = first_ns if several_processes else min(first_ns, first_call_ns)
        devices.append(
            RecordedDevice(
                begin_ns=utc_ns + begin_ns,
                span_ns=(utc_ns + first_ns, utc_ns + last_ns),
                wait_ns=(utc_ns + wait_ns[0], utc_ns + wait_ns[1]),
            )
        )
    return tuple(devices)


def common_start(devices: Sequence[RecordedDevice]) -> int | None:
    """Return when the recording of the last device began that another one waited for.

    Args:
        devices: The devices of all profiles.

    Returns:
        The time on UTC in ns, or None if no collective waited for a recording to begin.
    """
    for begin_ns in sorted({device.begin_ns for device in devices}, reverse=True):
        earlier = [device for device in devices if device.begin_ns < begin_ns]
        if any(device.waits_for(begin_ns) for device in earlier):
            return begin_ns
    return None


def skew_limitation(
    devices: Sequence[RecordedDevice], start_ns: int, consequence: str
) -> Limitation:
    """Return the limitation for the time before all devices were recorded.

    Args:
        devices: The devices of all profiles.
        start_ns: When the recording of the last of them began, on UTC.
        consequence: What that means for the numbers, a clause with a place for milliseconds.
    """
    early = [start_ns - d.span_ns[0] for d in devices if d.span_ns[0] < start_ns]
    skew = f"up to {max(early) / 1e6:,.1f} ms"
    reason = (
        f"a collective waited until the recording of the last device began, so "
        f"{consequence.format(skew)}; start all profilers before the first collective"
    )
    return Limitation("devices recorded before others", reason, len(early))
