"""Interpretation: one profile's linked kernels become operations of ranks, with device spans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.conventions.convention import Convention
from bubbleviz.conventions.kinds import Kinds
from bubbleviz.conventions.range_names import NameMeanings
from bubbleviz.errors import NothingToAnalyseError
from bubbleviz.interpret.added_communication import with_added_communication
from bubbleviz.interpret.communication_candidates import candidates_of
from bubbleviz.interpret.coverage import measure_coverage
from bubbleviz.interpret.device_work import work_of
from bubbleviz.interpret.keys import keys_of
from bubbleviz.interpret.late_launches import longest, with_host_activities
from bubbleviz.interpret.layers import LayerRanges, layer_times
from bubbleviz.interpret.limitations import limitations_of
from bubbleviz.interpret.linking.linker import link
from bubbleviz.interpret.linking.links import LinkResult
from bubbleviz.interpret.linking.open_ranges import enclosing_ranges
from bubbleviz.interpret.memory import MemoryUse, limitations_of_memory, memory_use
from bubbleviz.interpret.operation_ranges import operation_ranges_of
from bubbleviz.interpret.per_rank import ProfileWork, record_ranks
from bubbleviz.interpret.recorded_collectives import recorded_collectives
from bubbleviz.interpret.recording import LocalRank, Recording
from bubbleviz.interpret.told_operations import named_as_told
from bubbleviz.interpret.truncation import mark_unrecorded
from bubbleviz.model import intervals
from bubbleviz.model.columns import Ints, joined
from bubbleviz.model.grouping import distinct
from bubbleviz.model.operations import RankIntervals, RankOperations
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import COUNTED
from bubbleviz.model.profile import Profile, Ranges, pid_of, process_of
from bubbleviz.model.values import frozen
from bubbleviz.timing import step


@frozen
class LinkedProfile:
    """A profile whose kernels and copies are linked to calls and ranges.

    Attributes:
        profile: of whose work is kept what can be, without correlation ids.
        named: the ranges that the convention names.
        linked: the links to these.
        kinds: lists of what kernels and threads are, the conventions' own among them.
    """

    profile: Profile
    named: Ranges
    linked: LinkResult
    kinds: Kinds


def linked_profile(
    profile: Profile,
    conventions: Sequence[Convention],
    names: NameMeanings,
    kinds: Kinds,
    *,
    cross_thread: bool = True,
) -> LinkedProfile:
    """Return a profile with its work linked.

    Args:
        profile: as read, with at least the ranges that the convention may name.
        conventions: how its ranges are named; the first that knows a name decides.
        names: what they make of ``profile.ranges.names``.
        kinds: lists of what kernels and threads are.
        cross_thread: whether backward kernels may be launched from another thread.

    Raises:
        NothingToAnalyseError: no kernel has times that can be.
    """
    for convention in conventions:
        kinds = kinds.extended(convention.communication, convention.helper_threads)
    profile = with_added_communication(profile, kinds)
    named = profile.ranges.take(names.phase[profile.ranges.name_id] >= 0)
    with step("link kernels to calls and ranges") as rows:
        linked = link(
            profile.activities,
            profile.calls,
            named,
            names.phase[named.name_id],
            profile.threads,
            kinds.helper_threads,
            devices=profile.devices,
            cross_thread=cross_thread,
            launches_known=profile.launches_known,
        )
        rows.count = len(profile.activities)
    if linked.activities.kernels == 0:
        raise NothingToAnalyseError(
            f"{profile.source.path}: the times of all kernels contradict the calls that launched "
            "them, or lie outside the capture; export or record the profile again"
        )
    linked = replace(linked, activities=linked.activities.uncorrelated())
    return LinkedProfile(replace(profile, activities=linked.activities), named, linked, kinds)


def interpret(
    linked: LinkedProfile,
    conventions: Sequence[Convention],
    names: NameMeanings,
    *,
    layers: bool = False,
    memory: bool = False,
) -> Recording:
    """Return the operations of one profile.

    Args:
        linked: the profile.
        conventions: how its ranges are named.
        names: what they make of these names.
        layers: whether ranges of layers are looked at, too.
        memory: whether memory events are.
    """
    with step("attribute kernels") as rows:
        rows.count = len(linked.profile.activities)
        return _recording(linked, conventions, names, layers=layers, memory=memory)


def _recording(
    source: LinkedProfile,
    conventions: Sequence[Convention],
    names: NameMeanings,
    *,
    layers: bool,
    memory: bool,
) -> Recording:
    """Return the operations of a profile whose work is linked."""
    profile, named, linked, kinds = source.profile, source.named, source.linked, source.kinds
    activities, links = named_as_told(profile, linked), linked.links
    phase = names.phase[named.name_id]
    work = work_of(activities, links, named, names, kinds)
    placed, homeless = operation_ranges_of(profile, named, names, work)
    keys, hints = keys_of(named, names, placed)
    all_work = ProfileWork(
        activities=activities,
        work=work,
        links=links if profile.launches_known else links.without_calls(),
        calls=profile.calls,
        ranges=len(named),
        placed=placed,
        receives=enclosing_ranges(np.flatnonzero(work.receive), links, profile.calls, named, phase),
        collectives=recorded_collectives(profile, activities, linked, work.communication, kinds),
    )
    ranks = list(record_ranks(all_work, keys, kinds))
    operations = joined([rank.operations for rank in ranks])
    operations = mark_unrecorded(operations, linked.workless, activities.ranks[:, 0])
    late = longest([rank.late for rank in ranks])
    operations, hosts = with_host_activities(operations, late, linked.long_calls, profile)
    coverage = [of_rank for rank in ranks for of_rank in rank.coverage]
    unattributed = [name for rank in ranks for name in rank.names]
    kernels = slice(0, activities.kernels)
    used = _memory_use(profile, named, operations) if memory else None
    return Recording(
        source=profile.source,
        convention=conventions[0].name,
        conventions=frozenset(
            conventions[i].name for i in names.convention[among(names.phase, COUNTED)].tolist()
        ),
        ranks=_local_ranks(activities.ranks, profile, names),
        operations=operations.lighter(),
        hints=hints.compacted(),
        busy=joined([rank.busy for rank in ranks]),
        active=joined([rank.active for rank in ranks]),
        running=joined([rank.running for rank in ranks]),
        unattributed=joined([rank.unattributed for rank in ranks]),
        exposed=joined([rank.exposed for rank in ranks]),
        overheads=_overheads(profile),
        hosts=hosts,
        replica_collectives=joined([rank.replica_collectives for rank in ranks]),
        collectives=joined([rank.collectives for rank in ranks]),
        coverage=measure_coverage(profile, links, coverage, unattributed, named),
        start_ns=min(int(activities.start_ns[kernels].min()), linked.start_ns),
        end_ns=max(int(activities.end_ns[kernels].max()), linked.end_ns),
        limitations=(
            *linked.limitations(profile.source, profile.limitations),
            *profile.limitations,
            *candidates_of(profile, kinds),
            *homeless,
            *limitations_of(profile, links, operations, placed),
            *(() if used is None else limitations_of_memory(profile.source.path, used)),
        ),
        layers=layer_times(LayerRanges(profile.ranges, named), work, links, placed, keys)
        if layers
        else None,
        memory=used,
    )


def _memory_use(profile: Profile, named: Ranges, operations: RankOperations) -> MemoryUse | None:
    """Return what operations hold; None where no memory events were recorded."""
    events = None if profile.memory is None else profile.memory()
    if events is None:
        return None
    ranges = LayerRanges(profile.ranges, named)
    return memory_use(events, operations, profile.activities.ranks, ranges)


def _overheads(profile: Profile) -> RankIntervals:
    """Return when the profiler held up the process of each rank."""
    process, overheads = profile.activities.ranks[:, 0], profile.overheads
    rank, row = np.nonzero(process[:, None] == overheads.process[None, :])
    return RankIntervals(
        *intervals.group_union(rank, len(process), overheads.start_ns[row], overheads.end_ns[row])
    )


def _local_ranks(ranks: Ints, profile: Profile, names: NameMeanings) -> tuple[LocalRank, ...]:
    """Return the ranks with their devices, and the global ranks that the profile or names give."""
    devices = {(d.pid, d.device_id): d for d in profile.devices}
    named = names.rank[profile.ranges.name_id]
    owner = process_of(profile.ranges.thread)
    given = profile.global_rank if len(ranks) == 1 else None
    local = []
    for process, device in ranks.tolist():
        pid = pid_of(process)
        numbers = distinct(named[(owner == process) & (named >= 0)])
        local.append(
            LocalRank(
                process=process,
                device_id=device,
                device=devices.get((pid, device), devices.get((None, device))),
                global_rank=int(numbers[0]) if len(numbers) == 1 else given,
                place=profile.source.place(device),
                world_size=profile.world_size,
            )
        )
    return tuple(local)
