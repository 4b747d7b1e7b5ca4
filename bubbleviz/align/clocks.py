"""Clocks: how each profile's times are moved onto the report's clock, the first profile's own.

nsys counts a profile's times from the start of its session and notes the host's UTC clock at
that instant (``TARGET_INFO_SESSION_START_TIME.utcEpochNs``), and in newer exports the host's
steady clock (``systemClockNs``), which NTP does not move.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from bubbleviz.align.join import JoinedRecordings
from bubbleviz.align.offsets import ProfileClock
from bubbleviz.align.waits import forward_and_backward
from bubbleviz.errors import MismatchError, UsageError
from bubbleviz.interpret.recording import Recording
from bubbleviz.model.columns import Bools, Ints, marked
from bubbleviz.model.grouping import (
    distinct_rows,
    first_of_each,
    groups_of,
    sorted_rows,
    stretches,
)
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import Phase
from bubbleviz.model.profile import Source, pid_of
from bubbleviz.model.texts import listed

#: UTC clocks are set by less than that; machines are switched on at more different times.
REBOOT_NS = 10_000_000_000
#: Captures of one run overlap; what lies further apart in UTC is another run.
APART_NS = 60_000_000_000
#: Clocks that nobody set are wrong by less than that, and those of fewer than one in so many; where
#: ranks have no numbers of one run, in more.
_WRONG_NS = 3_600_000_000_000
_FEW, _FEWER = 4, 8
#: Hosts that a limitation names; it counts all.
_NAMED = 4


def machines_of(
    sources: Sequence[Source], same_clock: Sequence[Sequence[str]] = ()
) -> tuple[str, ...]:
    """Return for each profile a name of the machine whose clock it has.

    A profile has a clock of its own where it does not record when its session started, or on which
    host: files of several nodes may have one name. Nor does it share one where another machine has
    the same hostname, as its UTC and its steady clock show, when that was not switched on at the
    same time, or its id; ``same_clock`` overrules that.

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
    first: dict[str, Source] = {}
    machines = []
    for source in sources:
        clock = source.host if source.clock is None else source.clock.name
        name = machine.get(source.host, clock)
        share = _are_timed if source.host in machine else _may_share
        if name in first and not share(source, first[name]):
            name = f"{name} ({source.path})"
        first.setdefault(name, source)
        machines.append(name)
    return tuple(machines)


def _are_timed(source: Source, other: Source) -> bool:
    """Return whether the time between the starts of two sessions is known."""
    return any(_step_ns(source, other, steady) is not None for steady in (True, False))


def _may_share(source: Source, other: Source) -> bool:
    """Return whether two profiles of one hostname can be of one machine."""
    if source.clock is None and not (source.host_known and other.host_known):
        return False
    ids = source.machine, other.machine
    if None not in ids and ids[0] != ids[1]:
        return False
    return _boots_apart_ns(source, other) < REBOOT_NS and _are_timed(source, other)


def _boots_apart_ns(source: Source, other: Source) -> int:
    """Return how far apart two profiles' machines were switched on; 0 where that is not known."""
    booted = [
        profile.session_utc_ns - profile.session_clock_ns
        for profile in (source, other)
        if profile.session_utc_ns is not None and profile.session_clock_ns is not None
    ]
    return abs(booted[0] - booted[1]) if len(booted) == 2 else 0


def session_clocks(sources: Sequence[Source], machines: Sequence[str]) -> tuple[ProfileClock, ...]:
    """Return the clock of each profile by when its session started; the first one's is 0.

    Profiles of one machine share its clock. Across machines it is their UTC clocks, whose error
    is not known.

    Args:
        sources: the profiles.
        machines: the machine of each.
    """
    clocks: list[ProfileClock] = []
    anchors: dict[str, int] = {}
    for index, (source, machine) in enumerate(zip(sources, machines, strict=True)):
        at = anchors.setdefault(machine, index)
        # Machines that are said to share a clock need not have been switched on together.
        together = _boots_apart_ns(source, sources[at]) < REBOOT_NS
        steps = [_step_ns(source, sources[at], steady) for steady in (True, False)[not together :]]
        step = next((step for step in steps if step is not None), None)
        if at < index and step is not None:
            clocks.append(ProfileClock(clocks[at].offset_ns + step, clocks[at].uncertainty_ns))
        else:
            step = _step_ns(source, sources[0], steady=False)
            clocks.append(ProfileClock(step or 0, None if index else 0))
    return tuple(clocks)


def _step_ns(source: Source, other: Source, steady: bool) -> int | None:
    """Return how long after another one a session started, by one of its clocks; None unknown."""
    name = "session_clock_ns" if steady else "session_utc_ns"
    times = getattr(source, name), getattr(other, name)
    return None if None in times else times[0] - times[1]


def untimed(sources: Sequence[Source], machines: Sequence[str]) -> tuple[Limitation, ...]:
    """Return a limitation for each profile whose start in UTC is not known, of several machines.

    Where UTC puts hosts on one clock, such a profile's times can only be taken as they are.

    Args:
        sources: the profiles.
        machines: the machine of each.
    """
    lacking = [source for source in sources if source.session_utc_ns is None]
    return tuple(
        Limitation(
            "clock of a profile",
            f"{source.path} does not record when its session started; "
            "its times are taken as they are",
        )
        for source in (lacking if len(set(machines)) > 1 else ())
    )


def as_much_as_most(ranks: Ints, operations: Ints) -> Bools:
    """Return whether each profile holds as many ranks and operations as most do.

    Of several numbers that are equally frequent each is that of most; none does where all differ.

    Args:
        ranks: how many each profile holds.
        operations: likewise.
    """
    alike = groups_of(ranks, operations).of_row
    often = np.bincount(alike, minlength=1)[alike]
    return np.asarray((often == often.max(initial=0)) & (often > 1), bool)


def refuse_unrelated(
    sources: Sequence[Source],
    captures: Sequence[tuple[int, int]],
    clocks: Sequence[ProfileClock],
    fitting: Bools,
    *,
    numbered: bool = False,
) -> tuple[Limitation, ...]:
    """Refuse captures that lie more than a minute apart in UTC.

    Where most captures lie together, and all else shows that the others are of the same run, their
    clocks are wrong: what is returned says so.

    Args:
        sources: the profiles.
        captures: first and last time of each on its own clock.
        clocks: of the profiles, by their sessions.
        fitting: of each, whether it holds :func:`as_much_as_most`.
        numbered: whether every rank has a number of its own.

    Raises:
        MismatchError: two captures do.
    """
    known = np.array([i for i, source in enumerate(sources) if source.session_utc_ns is not None])
    starts, ends = (
        np.array([captures[i][side] + clocks[i].offset_ns for i in known.tolist()], np.int64)
        for side in (0, 1)
    )
    order = sorted_rows(starts, ends)
    number, starts, ends = known[order].tolist(), starts[order], ends[order]
    # A long capture can hold shorter ones, so that the latest end so far counts.
    latest = np.maximum.accumulate(ends)
    gaps = np.flatnonzero(starts[1:] - latest[:-1] > APART_NS)
    if len(gaps) == 0:
        return ()
    group = np.searchsorted(gaps, np.arange(len(order)))
    most = np.bincount(group).argmax()
    wrong = [i for i, own in zip(number, group.tolist(), strict=True) if own != most]
    span_ns = int(starts[-1] - starts[0])
    elsewhere = {sources[i].host for i in number if i not in wrong}
    same_run = numbered or all(fitting[i] and sources[i].host not in elsewhere for i in wrong)
    few = len(wrong) * (_FEW if numbered else _FEWER) <= len(number)
    if not (same_run and few) or span_ns > _WRONG_NS:
        at = int(gaps[0])
        before = number[int(np.flatnonzero(ends[: at + 1] == latest[at])[-1])]
        gap_ns = int(starts[at + 1] - latest[at])
        raise MismatchError(
            f"{sources[before].path} and {sources[number[at + 1]].path}: captured "
            f"{gap_ns / 1e9:.0f} s "
            "apart by their clocks, so they are not one run; give the profiles of one run"
        )
    hosts = list(dict.fromkeys(sources[i].host for i in sorted(wrong)))
    why = "the ranks are those of one run" if numbered else "they hold as much as these"
    return (
        Limitation(
            "clocks that are minutes off",
            f"{listed(hosts, _NAMED)} recorded up to {span_ns / 1e9:,.0f} s away from the others "
            f"by UTC, though {why}; set the clock (NTP)",
            len(hosts),
        ),
    )


# Refusals: profiles that are of no single run.


def refuse_other_runs(
    recordings: Sequence[Recording], machines: Sequence[str], joined: JoinedRecordings
) -> None:
    """Refuse recordings that are of no one run.

    Args:
        recordings: one a profile.
        machines: on which each was made.
        joined: all of them.

    Raises:
        MismatchError: they differ in what one run has in common, or hold a process twice.
    """
    # An export that lost names of ranges is not held to what these tell.
    lost = LimitationKind.RANGE_NAMES_LOST
    named = [all(note.kind is not lost for note in r.limitations) for r in recordings]
    _refuse_other_shapes(recordings, np.array(named), joined)
    _refuse_other_namings([r for r, kept in zip(recordings, named, strict=True) if kept])
    _refuse_twice(recordings, machines)


def _refuse_other_shapes(
    recordings: Sequence[Recording], named: Bools, joined: JoinedRecordings
) -> None:
    """Raise MismatchError where profiles ran other numbers of microbatches or chunks.

    Counted are a rank's iterations in which every forward has its backward.

    Args:
        recordings: one a profile.
        named: which of them hold all names.
        joined: all of them.
    """
    rank, forwards, chunks = _whole_iterations(joined.operations, sure=False)
    if (forwards == forwards[:1]).all() and (chunks == chunks[:1]).all():
        # Those that are whole for sure are some of these.
        return
    rank, forwards, chunks = _whole_iterations(joined.operations)
    profile = np.array([rank.profile for rank in joined.ranks], np.int64)[rank]
    kept = named[profile]
    profile, forwards, chunks = profile[kept], forwards[kept], chunks[kept]
    for number, what in (
        (forwards // np.maximum(chunks, 1), "microbatches per iteration"),
        (chunks, "model chunks per rank"),
    ):
        groups = groups_of(profile, number)
        often = np.bincount(groups.of_row, minlength=len(groups))
        owner, value = profile[groups.first], number[groups.first]
        # The most frequent number of each profile, of several the smallest.
        usual = first_of_each(owner, -often, value)
        first: dict[int, str] = {}
        for place, count in zip(owner[usual].tolist(), value[usual].tolist(), strict=True):
            first.setdefault(count, recordings[place].source.path)
        if len(first) > 1:
            (count, path), (another, second), *_ = first.items()
            raise MismatchError(
                f"{path} and {second}: {count} and {another} {what}, so they are not one run, "
                "or a range is missing in one; give the profiles of one run, each as a whole"
            )


def _refuse_other_namings(recordings: Sequence[Recording]) -> None:
    """Raise MismatchError where two profiles share no convention of forward or backward.

    Which one leads may differ: ranks name their layers, or their transfers, more or less often.
    """
    differing = {(r.convention, r.conventions): r for r in recordings}
    for first, second in combinations(differing.values(), 2):
        if first.convention != second.convention and not first.conventions & second.conventions:
            raise MismatchError(
                f"{first.source.path} and {second.source.path}: {first.convention} and "
                f"{second.convention} as their naming convention, so they are not one run; give "
                "the profiles of one run"
            )


def _refuse_twice(recordings: Sequence[Recording], machines: Sequence[str]) -> None:
    """Raise MismatchError where two profiles hold one process of a machine, or one told rank.

    A process is captured twice (``--capture-range-end=repeat``), or they are two runs.
    """
    paths: dict[tuple[str | int, ...], str] = {}
    why = (
        "process {} of the same host, so they are two captures or two runs; analyze each by "
        "itself, or, if two containers have this host name, record again with a name for each",
        "rank {}; give all rows of a rank in one table, or each rank a number of its own",
    )
    for recording, machine in zip(recordings, machines, strict=True):
        source = recording.source
        # Containers of one machine count their processes each for itself.
        held: dict[tuple[str | int, ...], None] = {
            **{(machine, source.host, pid_of(rank.process)): None for rank in recording.ranks},
            **{(rank.told.number,): None for rank in recording.ranks if rank.told is not None},
        }
        for key in held:
            path, told = paths.setdefault(key, source.path), len(key) == 1
            if path != source.path and (told or source.host_known):
                words = why[told].format(key[-1])
                raise MismatchError(f"{path} and {source.path}: both hold {words}")


def _whole_iterations(operations: Operations, *, sure: bool = True) -> tuple[Ints, Ints, Ints]:
    """Return rank, forwards and chunks of the (rank, iteration) that a capture did not cut.

    These begin with microbatch 0, every forward has its backward there, and vice versa, and an
    Optimizer or another iteration follows.

    Args:
        operations: of all ranks, in order of these.
        sure: whether backwards are looked at; else there may be more.
    """
    parts = (_whole_in(operations.take(rows), sure) for rows in stretches(operations.rank))
    rank, forwards, chunks = (np.concatenate(column) for column in zip(*parts, strict=True))
    return rank, forwards, chunks


def _whole_in(operations: Operations, sure: bool) -> tuple[Ints, Ints, Ints]:
    """Return :func:`_whole_iterations` of a stretch of ranks."""
    first = (operations.occurrence == 0) & (operations.iteration >= 0)
    iterations = int(operations.iteration.max(initial=0)) + 1
    cell = operations.rank * iterations + operations.iteration
    cells = int(cell.max(initial=0)) + 1
    forward = np.flatnonzero(first & among(operations.phase, (Phase.F, Phase.FB)))
    cut = np.zeros(cells, bool)
    if sure:
        backward = np.flatnonzero(first & among(operations.phase, (Phase.B, Phase.BW, Phase.FB)))
        both = np.concatenate((forward, backward))
        microbatch, chunk = forward_and_backward(operations, forward, backward)
        passes = groups_of(cell[both], microbatch, chunk, operations.sequence[both])
        ran = np.zeros((2, len(passes)), bool)
        ran[0, passes.of_row[: len(forward)]] = ran[1, passes.of_row[len(forward) :]] = True
        cut[cell[both[passes.first[ran[0] != ran[1]]]]] = True
    begins = marked(cells, cell[forward[operations.microbatch[forward] == 0]])
    pairs = distinct_rows(cell[forward], operations.chunk[forward])
    followed = marked(cells + 1, cell[first & (operations.phase == Phase.OPTIMIZER)])
    later = cell[forward[operations.iteration[forward] > 0]] - 1
    followed[later] = True
    whole = begins & ~cut & followed[:cells]
    return (
        np.flatnonzero(whole) // iterations,
        np.bincount(cell[forward], minlength=cells)[whole],
        np.bincount(pairs[0], minlength=cells)[whole],
    )
