"""Clocks: how each profile's times are moved onto the report's clock, the first profile's own.

nsys counts a profile's times from the start of its session and notes the host's UTC clock at
that instant (``TARGET_INFO_SESSION_START_TIME.utcEpochNs``), and in newer exports the host's
steady clock (``systemClockNs``), which NTP does not move.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from bubbleviz.errors import MismatchError, UsageError
from bubbleviz.model import Limitation
from bubbleviz.profile import Source

#: Captures of one run overlap; what lies further apart in UTC is another run.
APART_NS = 60_000_000_000


@dataclass(frozen=True)
class Clock:
    """A profile's clock against the report's: t becomes t + offset_ns.

    ``uncertainty_ns`` None: nothing but the host's own UTC clock speaks for the offset.
    """

    offset_ns: int
    uncertainty_ns: int | None


def machines_of(
    sources: Sequence[Source], same_clock: Sequence[Sequence[str]] = ()
) -> tuple[str, ...]:
    """Return for each profile a name of the machine whose clock it has.

    Args:
        sources: the profiles.
        same_clock: groups of hostnames that share one clock (containers of one machine).

    Raises:
        UsageError: a group names a host that no profile has.
    """
    hosts = {source.host for source in sources}
    for host in (host for group in same_clock for host in group):
        if host not in hosts:
            raise UsageError(
                f"--same-clock: no profile is of host {host!r}; the hosts are "
                + ", ".join(sorted(hosts))
            )
    machine = {host: group[0] for group in same_clock for host in group}
    return tuple(machine.get(source.host, source.host) for source in sources)


def align(
    sources: Sequence[Source], machines: Sequence[str]
) -> tuple[tuple[Clock, ...], tuple[Limitation, ...]]:
    """Return the clock of each profile and what could not be told about it.

    Args:
        sources: the profiles.
        machines: the machine of each.
    """
    clocks: list[Clock] = []
    limitations: list[Limitation] = []
    for index, source in enumerate(sources):
        anchor = machines.index(machines[index])
        clock = _against(source, sources[anchor], clocks[anchor] if anchor < index else None)
        if clock is None:
            clock = _by_utc(source, sources[0]) if index else Clock(0, 0)
        clocks.append(clock)
        if None in (source.session_utc_ns, sources[0].session_utc_ns):
            limitations.append(
                Limitation(
                    "clock of a profile",
                    f"{source.path} (or the first profile) does not say when its session started; "
                    "its times are taken as they are",
                )
            )
    if len(set(machines)) > 1:
        limitations.append(
            Limitation(
                "clocks of several hosts",
                f"the offsets of {len(set(machines))} hosts are by their own UTC clocks, whose "
                "error (NTP) is not known; the ratios stage and period do not need them",
            )
        )
    return tuple(clocks), tuple(limitations) if len(sources) > 1 else ()


def _against(source: Source, anchor: Source, clock: Clock | None) -> Clock | None:
    """Return the clock of a profile by another one of its host; None where that says nothing."""
    if clock is None:
        return None
    if source.session_clock_ns is not None and anchor.session_clock_ns is not None:
        step = source.session_clock_ns - anchor.session_clock_ns
    elif source.session_utc_ns is not None and anchor.session_utc_ns is not None:
        step = source.session_utc_ns - anchor.session_utc_ns
    else:
        return None
    return Clock(clock.offset_ns + step, clock.uncertainty_ns)


def _by_utc(source: Source, reference: Source) -> Clock:
    if source.session_utc_ns is None or reference.session_utc_ns is None:
        return Clock(0, None)
    return Clock(source.session_utc_ns - reference.session_utc_ns, None)


def refuse_unrelated(
    sources: Sequence[Source], captures: Sequence[tuple[int, int]], clocks: Sequence[Clock]
) -> None:
    """Raise MismatchError where captures lie more than a minute apart in UTC.

    Args:
        sources: the profiles.
        captures: first and last time of each on its own clock.
        clocks: as aligned.
    """
    moved = sorted(
        (start + clock.offset_ns, end + clock.offset_ns, source.path)
        for source, (start, end), clock in zip(sources, captures, clocks, strict=True)
        if source.session_utc_ns is not None
    )
    for (_, end, before), (start, _, after) in pairwise(moved):
        if start - end > APART_NS:
            raise MismatchError(
                f"{before} and {after}: captured {(start - end) / 1e9:.0f} s apart by their "
                "clocks, so they are no single run; give the profiles of one run"
            )
