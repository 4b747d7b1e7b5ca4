"""Alignment: the stages, matching iterations and common clock of recordings.

These depend on each other. Stages, iterations and clocks are inferred from times on the clocks of
sessions, which the ranks of a machine share::

    recordings ─ join ─ stages and iterations ─ clocks of all machines

If the clocks then show that one hostname stands for several machines, the recordings are aligned
again with separate machines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bubbleviz.align.clocks.shared_names import (
    contradiction_limitations,
    separate_machines,
    shared_name_limitations,
)
from bubbleviz.align.clocks.timebase import Timebase, rank_precedences, timebase, within_machines
from bubbleviz.align.join import JoinedRecordings, as_stream, join
from bubbleviz.align.profile_clocks import (
    ProfileClock,
    as_much_as_most,
    machines_of,
    refuse_unrelated,
    session_clocks,
    untimed,
)
from bubbleviz.align.ranks import places_of
from bubbleviz.align.refusals import refuse_other_runs
from bubbleviz.align.stages.pipelines import Parallel
from bubbleviz.align.stages.staging import stage
from bubbleviz.errors import UsageError
from bubbleviz.interpret.recording import Recordings
from bubbleviz.model.columns import Ints
from bubbleviz.model.limitations import Limitation, LimitationKind


@dataclass(frozen=True)
class RunHints:
    """Statements of the user about a run.

    Attributes:
        order: Ranks in pipeline order, by the numbers that they have without this order; empty to
            infer it from the data.
        parallel: Sizes of the run, or None to infer the replicas of stages.
        same_clock: Groups of hostnames that share one clock.
        method: One of :data:`bubbleviz.model.choices.ALIGNMENTS`, or None for causal clocks of
            captures that are not far apart in UTC.
    """

    order: Sequence[int] = ()
    parallel: Parallel | None = None
    same_clock: Sequence[Sequence[str]] = ()
    method: str | None = None


@dataclass(frozen=True)
class Alignment:
    """Stages, matching iterations and clocks, under an assumption about the machines.

    Attributes:
        machines: Assumed machine of each profile.
        hosts: Name of the host of each profile.
        captures: First and last time of each profile on its own clock.
        sessions: Clock of each profile according to its session.
        joined: The recordings on these clocks, with stages, pipelines and iterations.
        place: Index of each rank in the report.
        time: Common clock of all profiles.
        early: Limitations for ranks of one machine that contradict each other.
        limitations: All limitations of the alignment.
    """

    machines: tuple[str, ...]
    hosts: tuple[str, ...]
    captures: tuple[tuple[int, int], ...]
    sessions: tuple[ProfileClock, ...]
    joined: JoinedRecordings
    place: Ints
    time: Timebase
    early: tuple[Limitation, ...]
    limitations: tuple[Limitation, ...] = ()


def align_recordings(parts: Recordings, hints: RunHints) -> Alignment:
    """Find the stages, matching iterations and clocks of recordings.

    Args:
        parts: One recording per clock of a profile.
        hints: Statements of the user about the run.

    Raises:
        MismatchError: The profiles are not from a single run.
        UsageError: ``hints.order`` does not name every rank once.
    """
    sources = [recording.source for recording in parts.recordings]
    machines = machines_of(sources, hints.same_clock)
    notes: tuple[Limitation, ...] = ()
    if hints.method != "causal":
        notes = _refuse_unrelated(parts, machines)
    alignment = _align(parts, machines, hints)
    if hints.method in (None, "causal"):
        alignment, shared = _separate_contradicting(alignment, parts, hints)
        notes = (*notes, *shared)
    if hints.method == "utc":
        notes = (*notes, *untimed(sources, alignment.machines))
    limitations = (
        *notes,
        *alignment.time.limitations,
        *alignment.early,
        *alignment.joined.limitations,
    )
    return replace(alignment, limitations=limitations)


def _captures(parts: Recordings) -> tuple[tuple[int, int], ...]:
    """Return the first and last time of each profile on its own clock."""
    return tuple((recording.start_ns, recording.end_ns) for recording in parts.recordings)


def _refuse_unrelated(parts: Recordings, machines: Sequence[str]) -> tuple[Limitation, ...]:
    """Refuse captures that lie far apart in UTC, and return limitations for wrong clocks.

    Args:
        parts: One recording per clock of a profile.
        machines: Machine of each profile.

    Raises:
        MismatchError: The captures are not from a single run.
    """
    recordings = parts.recordings
    sources = [recording.source for recording in recordings]
    numbers = [rank.global_rank for recording in recordings for rank in recording.ranks]
    is_numbered = None not in numbers and len(set(numbers)) == len(numbers)
    n_ranks = np.array([len(recording.ranks) for recording in recordings], np.int64)
    fitting = as_much_as_most(n_ranks, parts.lengths("operations"))
    sessions = session_clocks(sources, machines)
    return refuse_unrelated(sources, _captures(parts), sessions, fitting, numbered=is_numbered)


def _align(parts: Recordings, machines: tuple[str, ...], hints: RunHints) -> Alignment:
    """Find the stages and clocks of recordings, given the machine of each profile.

    Args:
        parts: One recording per clock of a profile.
        machines: Machine of each profile.
        hints: Statements of the user about the run.

    Raises:
        MismatchError: The profiles are not from a single run.
        UsageError: ``hints.order`` does not name every rank once.
    """
    sources = [recording.source for recording in parts.recordings]
    sessions = session_clocks(sources, machines)
    joined = join(parts, machines, sessions)
    refuse_other_runs(parts.recordings, machines, joined)
    joined, place = _stage_in_order(as_stream(joined), hints)
    captures = _captures(parts)
    return Alignment(
        machines=machines,
        hosts=tuple(source.host for source in sources),
        captures=captures,
        sessions=sessions,
        joined=joined,
        place=place,
        time=timebase(joined, sessions, captures, hints.method or "causal"),
        early=within_machines(joined),
    )


def _stage_in_order(joined: JoinedRecordings, hints: RunHints) -> tuple[JoinedRecordings, Ints]:
    """Find stages, pipelines and iterations, and the index of each rank in the report.

    Raises:
        UsageError: ``hints.order`` does not name every rank once.
    """
    staged = stage(joined, parallel=hints.parallel)
    place = places_of(staged)
    if not hints.order:
        return staged, place
    # The order names ranks by the indices that they would have without it.
    if sorted(hints.order) != list(range(len(place))):
        raise UsageError(
            f"--order must name each of the ranks 0 to {len(place) - 1} once, by the numbers "
            "that the table gives them without it"
        )
    order = np.argsort(place)[np.array(hints.order)].tolist()
    staged = stage(joined, order, hints.parallel)
    return staged, places_of(staged)


def _separate_contradicting(
    alignment: Alignment, parts: Recordings, hints: RunHints
) -> tuple[Alignment, tuple[Limitation, ...]]:
    """Assign profiles of one hostname to several machines if their clocks contradict each other.

    The machines do not change if iterations cannot be matched on separate clocks, or if the
    contradiction remains there, because then stages or times of operations are wrong. The
    contradiction restricts the ratio in both cases.

    Args:
        alignment: Alignment with one machine per hostname.
        parts: One recording per clock of a profile.
        hints: Statements of the user about the run.

    Returns:
        alignment: The alignment, or a new one if machines were separated.
        notes: Limitations for hostnames that stand for several machines, or may do so.
    """
    joined = alignment.joined
    given_hosts = {host for group in hints.same_clock for host in group}
    is_given = any(recording.source.host in given_hosts for recording in parts.recordings)
    is_given |= any(clock is not None and clock.aligned for clock in joined.told_clocks)
    shares_machine = len(alignment.machines) > len(set(alignment.machines))
    if is_given or not shares_machine or not joined.paired:
        return alignment, ()
    machines = separate_machines(joined, rank_precedences(joined))
    if machines is None:
        return alignment, ()
    renamed = _rename_hosts(parts, alignment.machines, machines)
    separated = _align(renamed, machines, hints)
    is_matched = separated.joined.paired
    if is_matched and not separated.time.contradicted and not separated.early:
        return separated, shared_name_limitations(alignment.machines, machines)
    kind = LimitationKind.RANKS_CONTRADICTED
    if alignment.early:
        early = tuple(replace(note, kind=kind) for note in alignment.early)
        return replace(alignment, early=early), ()
    return alignment, contradiction_limitations(alignment.machines, machines)


def _rename_hosts(parts: Recordings, before: Sequence[str], machines: Sequence[str]) -> Recordings:
    """Return recordings whose hosts have the names of the machines that share their hostname.

    Args:
        parts: One recording per clock of a profile.
        before: Machine of each profile, one per hostname.
        machines: Machine of each profile, several per hostname.
    """
    recordings = list(parts.recordings)
    for profile, (hostname, machine) in enumerate(zip(before, machines, strict=True)):
        if machine != hostname:
            source = replace(recordings[profile].source, host=machine)
            recordings[profile] = replace(recordings[profile], source=source)
    return replace(parts, recordings=tuple(recordings))
