"""Interpret: one profile's linked kernels become operations of ranks, with their device spans.

After this stage no kernel is kept: what remains of a profile is small, its operations, their
busy intervals, the compute that no operation explains, and counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.conventions.convention import Convention
from bubbleviz.conventions.kinds import Kinds
from bubbleviz.conventions.range_names import NameMeanings
from bubbleviz.interpret.collectives import Collectives
from bubbleviz.interpret.coverage import Coverage, measure_coverage
from bubbleviz.interpret.host import with_hosts
from bubbleviz.interpret.iterations import occurrences
from bubbleviz.interpret.linking.linker import link
from bubbleviz.interpret.linking.links import LinkResult, LinkRule, Links
from bubbleviz.interpret.linking.open_ranges import enclosing_ranges
from bubbleviz.interpret.operation_ranges import Parts, parts_of
from bubbleviz.interpret.per_rank import Linkage, on_ranks
from bubbleviz.interpret.spans import ActiveTime
from bubbleviz.interpret.truncation import OPEN, UNRECORDED, mark_unrecorded
from bubbleviz.interpret.work import work_of
from bubbleviz.model import intervals
from bubbleviz.model.columns import Ints, Table, joined
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.operations import (
    BusyIntervals,
    HostActivities,
    Limitation,
    OperationKeys,
    RankIntervals,
    RankOperations,
)
from bubbleviz.model.phases import COMPUTE, COUNTED, Phase
from bubbleviz.model.profile import (
    Device,
    Profile,
    Ranges,
    Source,
    impossible_times,
    pid_of,
    process_of,
)
from bubbleviz.timing import step

#: What a limitation is about where names tell no microbatches.
INFERRED = "microbatch numbers are inferred"


@dataclass(frozen=True)
class LocalRank:
    """A (process, device) of one profile."""

    process: int
    device_id: int
    device: Device | None
    global_rank: int | None


@dataclass(frozen=True)
class Said(Table):
    """What the names say of operations beyond their key; -1 nothing.

    Attributes:
        stage: virtual stage.
        iteration: number of the iteration that a range around it names.
    """

    stage: Ints
    iteration: Ints


@dataclass(frozen=True)
class Recording:
    """One profile, interpreted; times are the profile's own.

    ``operations.rank`` counts the profile's ranks and ``operations.iteration`` each rank's own
    iterations from 0; both get their final numbers when profiles are put together.

    Attributes:
        convention: the naming that leads.
        namings: those that name forward or backward.
        exposed: when only communication ran that is not between two ranks.
        hosts: what launching threads did before late launches.
        overheads: when the profiler held a rank's process up.
    """

    source: Source
    convention: str
    namings: frozenset[str]
    ranks: tuple[LocalRank, ...]
    operations: RankOperations
    said: Said
    busy: BusyIntervals
    active: ActiveTime
    unattributed: RankIntervals
    exposed: RankIntervals
    overheads: RankIntervals
    hosts: HostActivities
    collectives: Collectives
    coverage: Coverage
    start_ns: int
    end_ns: int
    limitations: tuple[Limitation, ...]


def interpret(
    profile: Profile,
    conventions: Sequence[Convention],
    names: NameMeanings,
    kinds: Kinds,
    *,
    cross_thread: bool = True,
) -> Recording:
    """Return the operations of one profile.

    Args:
        profile: as read, with at least the ranges that the convention may name.
        conventions: how its ranges are named; the first that knows a name decides.
        names: what they understand of ``profile.ranges.names``.
        kinds: lists of what kernels and threads are.
        cross_thread: whether backward kernels may be launched from another thread.
    """
    for convention in conventions:
        kinds = kinds.extended(convention.communication, convention.helper_threads)
    named = profile.ranges.take(names.phase[profile.ranges.name_id] >= 0)
    phase = names.phase[named.name_id]
    with step("link kernels to calls and ranges") as rows:
        linked = link(
            profile.activities,
            profile.calls,
            named,
            phase,
            profile.threads,
            kinds.helper_threads,
            cross_thread=cross_thread,
        )
        rows.count = len(profile.activities)
    with step("lay work on operations") as rows:
        rows.count = len(profile.activities)
        return _recording(profile, conventions, names, kinds, named, linked)


def _recording(
    profile: Profile,
    conventions: Sequence[Convention],
    names: NameMeanings,
    kinds: Kinds,
    named: Ranges,
    linked: LinkResult,
) -> Recording:
    """Return the operations of a profile whose kernels are linked to ``named`` ranges."""
    links, ranks, phase = linked.links, profile.activities.ranks, names.phase[named.name_id]
    work = work_of(profile.activities, links, named, names, kinds)
    parts, homeless = parts_of(profile, named, names, work, ranks)
    planned, said = operations_of(named, names, parts)
    inside = enclosing_ranges(np.flatnonzero(work.receive), links, profile.calls, named, phase)
    told = links if profile.launches_known else links.without_calls()
    linkage = Linkage(profile.activities, work, told, parts, inside, profile.calls, len(named))
    found = list(on_ranks(linkage, planned, kinds))
    operations = joined([one.operations for one in found])
    operations = mark_unrecorded(operations, linked.workless, ranks[:, 0])
    late = joined([one.late for one in found])
    operations, hosts = with_hosts(operations, late, linked.long_calls, profile)
    loose = [name for one in found for name in one.loose]
    kernels = slice(0, profile.activities.kernels)
    return Recording(
        source=profile.source,
        convention=conventions[0].name,
        namings=frozenset(
            conventions[i].name for i in names.convention[np.isin(names.phase, COUNTED)].tolist()
        ),
        ranks=_named_ranks(ranks, profile, names),
        operations=operations,
        said=said,
        busy=joined([one.busy for one in found]),
        active=joined([one.active for one in found]),
        unattributed=joined([one.unattributed for one in found]),
        exposed=joined([one.exposed for one in found]),
        overheads=_overheads(profile),
        hosts=hosts,
        collectives=joined([one.collectives for one in found]),
        coverage=measure_coverage(profile, links, [one.coverage for one in found], loose, named),
        start_ns=min(int(profile.activities.start_ns[kernels].min()), linked.start_ns),
        end_ns=max(int(profile.activities.end_ns[kernels].max()), linked.end_ns),
        limitations=(
            *profile.limitations,
            *impossible_times(profile.source.path, {"CUDA API calls": linked.impossible}),
            *homeless,
            *_notes(profile, links, operations, parts),
        ),
    )


def _overheads(profile: Profile) -> RankIntervals:
    """Return when the profiler held the process of each rank up."""
    ranks, held = profile.activities.ranks[:, 0], profile.overheads
    rank, row = np.nonzero(ranks[:, None] == held.process[None, :])
    return RankIntervals(
        *intervals.group_union(rank, len(ranks), held.start_ns[row], held.end_ns[row])
    )


def _named_ranks(ranks: Ints, profile: Profile, names: NameMeanings) -> tuple[LocalRank, ...]:
    """Return the ranks with what the export and the range names tell of them."""
    devices = {(d.pid, d.device_id): d for d in profile.devices}
    said = names.rank[profile.ranges.name_id]
    owner = process_of(profile.ranges.thread)
    told = profile.global_rank if len(ranks) == 1 else None
    found = []
    for process, device in ranks.tolist():
        pid = pid_of(process)
        numbers = np.unique(said[(owner == process) & (said >= 0)])
        found.append(
            LocalRank(
                process=process,
                device_id=device,
                device=devices.get((pid, device), devices.get((None, device))),
                global_rank=int(numbers[0]) if len(numbers) == 1 else told,
            )
        )
    return tuple(found)


def _notes(
    profile: Profile, links: Links, operations: RankOperations, parts: Parts
) -> tuple[Limitation, ...]:
    """Return what this profile could not tell."""
    kernels = links.rule[: profile.activities.kernels]
    path = profile.source.path
    compute = np.isin(operations.phase, COMPUTE)
    candidates = (
        (
            "kernels without their launching call",
            "the call is not in the profile (a capture cut to a window drops some)",
            int((kernels == LinkRule.UNLINKED).sum()),
        ),
        (
            "kernels that several threads' backward could own",
            "their thread opens no range, and several others had a backward range open",
            int((kernels == LinkRule.AMBIGUOUS).sum()),
        ),
        (
            "kernels of helper threads while backward ran elsewhere",
            "their threads are named as loaders, watchdogs or profilers are",
            int((kernels == LinkRule.HELPER_THREAD).sum()),
        ),
        (
            "operations without any GPU work",
            "their ranges launched nothing that the profile shows, so they have no device time",
            int((compute & (operations.has_span == 0) & (operations.cut == 0)).sum()),
        ),
        (
            INFERRED,
            "the names give none, so they are counted by order within an iteration",
            int(parts.unnumbered.any()),
        ),
        (
            "operations cut by the end of the capture",
            "their range was still open",
            int((operations.cut == OPEN).sum()),
        ),
        (
            "operations whose work the end of the capture cut",
            "the host had launched it, and the GPU had not done it",
            int((operations.cut == UNRECORDED).sum()),
        ),
        (
            "repeated operations",
            "the same microbatch, chunk and phase occur again in one iteration",
            int(
                (
                    np.isin(operations.phase, COUNTED)
                    & (operations.occurrence > 0)
                    & (operations.microbatch >= 0)
                ).sum()
            ),
        ),
    )
    return tuple(Limitation(w, f"{path}: {b}", n) for w, b, n in candidates if n)


def operations_of(named: Ranges, names: NameMeanings, parts: Parts) -> tuple[OperationKeys, Said]:
    """Return the keys of operations, in order of (rank, host start), and what else names give."""
    count = int(parts.operation.max(initial=-1)) + 1
    first = np.unique(parts.operation, return_index=True)[1]
    of_range, rank = parts.range[first], parts.rank[first]
    name = names.take(named.name_id[of_range])
    host_end_ns = intervals.group_extents(
        parts.operation, count, named.start_ns[parts.range], named.end_ns[parts.range]
    )[1]
    cut = np.zeros(count, np.int64)
    np.maximum.at(cut, parts.operation, named.cut[parts.range].astype(np.int64))
    iteration = parts.iteration[first]
    counted = parts.unnumbered[first]
    place = occurrences((rank, iteration, name.phase, name.chunk, name.sequence))
    microbatch = np.where(counted, place, name.microbatch)
    phase = _fused_backward(rank, name)
    key = (rank, iteration, phase, name.chunk, name.stage, name.sequence, microbatch)
    keys = OperationKeys(
        rank=rank.copy(),
        iteration=iteration,
        phase=phase,
        microbatch=microbatch,
        chunk=np.where(name.chunk >= 0, name.chunk, name.stage),
        sequence=name.sequence.copy(),
        second_microbatch=name.second_microbatch.copy(),
        second_chunk=np.where(name.second_chunk >= 0, name.second_chunk, name.second_stage),
        occurrence=occurrences((*key, name.second_microbatch, name.second_chunk)),
        host_start_ns=named.start_ns[of_range],
        host_end_ns=host_end_ns,
        cut=cut,
        name_id=named.name_id[of_range],
        names=named.names,
    )
    return keys, Said(stage=name.stage.copy(), iteration=parts.mark[first])


def _fused_backward(rank: Ints, names: NameMeanings) -> Ints:
    """Return the phases, with B made BW where that backward never gets a W on its rank.

    A ``W_clear`` (a W without a microbatch) may settle any backward of its chunk.
    """
    phase = names.phase.copy()
    if len(phase) == 0:
        return phase
    whole = (rank, names.chunk, names.stage, names.microbatch)
    number = groups_of(*whole).of_row
    chunk = groups_of(*whole[:3]).of_row
    weights = phase == Phase.W
    clears = weights & (names.microbatch < 0)
    settled = np.isin(number, number[weights]) | np.isin(chunk, chunk[clears])
    # A W that names no chunk either may settle any backward of its rank.
    settled |= np.isin(rank, rank[clears & (names.chunk < 0) & (names.stage < 0)])
    phase[(phase == Phase.B) & ~settled] = Phase.BW
    return phase
