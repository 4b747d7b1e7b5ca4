"""Turning the kernels of one profile into operations with times on the device."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bubbleviz.conventions.convention import Convention
from bubbleviz.conventions.kinds import Kinds
from bubbleviz.conventions.range_names import NameMeanings
from bubbleviz.errors import NothingToAnalyzeError
from bubbleviz.interpret.capture_end import locate_launches, mark_unrecorded
from bubbleviz.interpret.collectives import read_recorded_collectives, rename_vague_kernels
from bubbleviz.interpret.communication import (
    add_communication,
    check_communication,
    find_unknown_kernels,
)
from bubbleviz.interpret.coverage import measure_coverage
from bubbleviz.interpret.late_launches import LateLaunches, add_host_activities, select_longest
from bubbleviz.interpret.layers import LayerRanges, LayerTimes, measure_layers
from bubbleviz.interpret.linking import LinkedProfile, LinkedWork, find_enclosing_ranges, link
from bubbleviz.interpret.listed_gpus import list_gpus
from bubbleviz.interpret.memory import MemoryUse, list_memory_limitations, measure_memory
from bubbleviz.interpret.merged_runs import refuse_merged_runs
from bubbleviz.interpret.operation_limitations import list_limitations
from bubbleviz.interpret.operation_ranges import NamedOperations, find_operations
from bubbleviz.interpret.per_rank import RankResults, record_ranks
from bubbleviz.interpret.recording import LocalRank, Recording, Recordings
from bubbleviz.interpret.spans import classify_work
from bubbleviz.interpret.start_skew import find_recorded_devices
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import find_distinct
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.operations import HostActivities, Operations, RankIntervals
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import COUNTED
from bubbleviz.model.profile import Activities, Profile, get_pid, process_of
from bubbleviz.timing import time_step


def interpret(
    profile: Profile,
    conventions: Sequence[Convention],
    names: NameMeanings,
    kinds: Kinds,
    *,
    cross_thread: bool = True,
    layers: bool = False,
    memory: bool = False,
) -> Recordings:
    """Turn the kernels of a profile into operations of its ranks.

    This takes three steps: kernels are linked to ranges, ranges are merged into operations, and the
    kernels of the operations are measured rank by rank. The result contains a single recording.

    Args:
        profile: The profile, with at least the ranges whose names the conventions may match.
        conventions: Conventions for the range names. The first one names the recording.
        names: Meanings of ``profile.ranges.names`` in these conventions.
        kinds: Name patterns that classify kernels and threads, including the conventions' patterns.
        cross_thread: Whether backward kernels may be launched from a thread without ranges, such as
            PyTorch's autograd thread.
        layers: Whether to measure the kernels of each layer.
        memory: Whether to read memory events.

    Raises:
        NothingToAnalyzeError: The times of all kernels are invalid.
        ProfileError: The profile contains two runs of the same ranks and iterations.
    """
    linked = _link_work(profile, names, kinds, cross_thread=cross_thread)
    profile = linked.profile
    with time_step("attribute kernels") as rows:
        rows.count = len(profile.activities)
        attributed = _attribute_work(linked, names, kinds)
        hints, tables = attributed.named.hints, attributed.ranks.tables
        refuse_merged_runs(profile.source.path, tables["operations"], hints.iteration >= 0)
        operations, hosts = _complete_operations(linked, tables["operations"], tables.pop("late"))
        tables["operations"] = operations.compact()
        used = _measure_memory(linked, operations) if memory else None
        start_ns, end_ns = _measure_extent(linked)
        recording = Recording(
            source=profile.source,
            convention=conventions[0].name,
            conventions=_name_conventions(conventions, names),
            ranks=_list_ranks(attributed.activities.ranks, profile, names),
            coverage=measure_coverage(
                linked, attributed.ranks.coverage, attributed.ranks.unattributed
            ),
            start_ns=start_ns,
            end_ns=end_ns,
            limitations=_collect_limitations(linked, attributed, operations, kinds, used),
            unknown_kernels=tuple(find_unknown_kernels(profile, kinds)),
            recorded=find_recorded_devices(linked, attributed.activities, kinds),
            layers=_measure_layers(linked, attributed) if layers else None,
            memory=used,
            listed_gpus=list_gpus(profile),
        )
        return Recordings.of(
            recording,
            **tables,
            hints=hints.compact(),
            overheads=_find_overheads(profile),
            unrecorded=linked.unrecorded,
            hosts=hosts,
            pauses=RankIntervals.make_empty(),
        )


def _link_work(
    profile: Profile, names: NameMeanings, kinds: Kinds, *, cross_thread: bool
) -> LinkedProfile:
    """Link the work of a profile to the calls and ranges that launched it.

    Args:
        profile: The profile.
        names: Meanings of ``profile.ranges.names``.
        kinds: Name patterns that classify kernels and threads.
        cross_thread: Whether backward kernels may be launched from a thread without ranges.

    Raises:
        NothingToAnalyzeError: The times of all kernels are invalid.
    """
    profile = add_communication(profile, kinds)
    named_ranges = profile.ranges.take(names.phase[profile.ranges.name_id] >= 0)
    with time_step("link kernels to calls and ranges") as rows:
        phase = names.phase[named_ranges.name_id] if cross_thread else None
        linked = link(profile, named_ranges, phase, kinds.helper_threads)
        rows.count = len(profile.activities)
    if linked.profile.activities.kernels == 0:
        raise NothingToAnalyzeError(
            f"{profile.source.path}: all kernels start before their launching calls or are outside "
            "the capture; export the profile again, or record a new one"
        )
    return linked


@dataclass(frozen=True)
class _AttributedWork:
    """A profile's kernels and copies, the operations that own them, and per-rank measurements.

    Attributes:
        activities: Kernels and copies of the profile. Kernels with vague names are renamed after
            the collectives that they run.
        work: The same kernels and copies, linked to ranges and classified.
        named: Operations that the range names denote.
        ranks: Measurements of all ranks.
    """

    activities: Activities
    work: LinkedWork
    named: NamedOperations
    ranks: RankResults


def _attribute_work(linked: LinkedProfile, names: NameMeanings, kinds: Kinds) -> _AttributedWork:
    """Attribute the work of a profile to operations, and measure the operations rank by rank.

    Args:
        linked: The profile with its work linked to API calls and ranges.
        names: Meanings of the profile's range names, indexed by name id.
        kinds: Name patterns that classify kernels and threads.
    """
    named_ranges = linked.named_ranges
    activities = rename_vague_kernels(linked)
    work, receives = classify_work(linked.work, activities, named_ranges, names, kinds)
    named = find_operations(linked.profile, named_ranges, names, work)
    phase = names.phase[named_ranges.name_id]
    around = find_enclosing_ranges(receives, work, linked.profile.calls, named_ranges, phase)
    collectives = read_recorded_collectives(linked, activities, work.communication, kinds)
    ranks = record_ranks(linked, work, named.ranges, around, collectives, named.keys, kinds)
    return _AttributedWork(activities, work, named, ranks)


def _complete_operations(
    linked: LinkedProfile, operations: Operations, late: LateLaunches
) -> tuple[Operations, HostActivities]:
    """Mark cut operations, fill in their launch times, and find what delayed late launches.

    This combines :func:`_mark_cut_operations` and
    :func:`~bubbleviz.interpret.late_launches.add_host_activities`. Only the late launches that
    :func:`~bubbleviz.interpret.late_launches.select_longest` keeps are examined.

    Args:
        linked: The profile with its work linked to API calls and ranges. Its file must still be
            open.
        operations: Operations of the profile, with their spans.
        late: Delays before late launches of the profile.

    Returns:
        operations: The operations with the columns ``cut`` and ``launched_ns`` filled in. The names
            of the host activities are appended to ``operations.names``.
        hosts: For each examined delay, the API calls and ranges of the launching thread with the
            longest overlap.
    """
    return add_host_activities(
        _mark_cut_operations(linked, operations),
        select_longest(late),
        linked.long_calls,
        linked.profile,
    )


def _measure_layers(linked: LinkedProfile, attributed: _AttributedWork) -> LayerTimes:
    """Measure how long the kernels of each layer ran in the operations of a profile."""
    return measure_layers(
        LayerRanges(linked.profile.ranges, linked.named_ranges),
        attributed.work,
        attributed.named.ranges,
        attributed.named.keys,
    )


def _collect_limitations(
    linked: LinkedProfile,
    attributed: _AttributedWork,
    operations: Operations,
    kinds: Kinds,
    memory: MemoryUse | None,
) -> tuple[Limitation, ...]:
    """Collect all limitations of a profile.

    Args:
        linked: The profile with its work linked to API calls and ranges.
        attributed: Kernels and copies of the profile, with the operations that own them.
        operations: Operations of the profile, with their spans.
        kinds: Name patterns that classify kernels and threads.
        memory: Memory that the operations use, or None if it was not measured.
    """
    profile, named = linked.profile, attributed.named
    return (
        *_list_work_limitations(linked, operations),
        *profile.limitations,
        *check_communication(profile, kinds),
        *named.limitations,
        *list_limitations(profile, attributed.work, operations, named.ranges),
        *(() if memory is None else list_memory_limitations(profile.source.path, memory)),
    )


def _mark_cut_operations(linked: LinkedProfile, operations: Operations) -> Operations:
    """Mark operations whose work is missing at the end of the capture, and find their launch times.

    - The column ``cut`` is set by :func:`~bubbleviz.interpret.capture_end.mark_unrecorded`.
    - The launch times of F, B, W, BW and FB operations without GPU work are set by
      :func:`~bubbleviz.interpret.capture_end.locate_launches`. If the profile records no launches,
      the host start is used as the launch time of every operation without GPU work.

    Args:
        linked: The profile with its work linked to API calls and ranges.
        operations: Operations of the profile, with their spans.
    """
    profile = linked.profile
    process = profile.activities.ranks[:, 0]
    operations = mark_unrecorded(operations, linked.workless, process)
    if profile.launches_known:
        return locate_launches(operations, linked.work, profile.calls, process)
    launched_ns = np.where(
        operations.has_span == 0, operations.host_start_ns, operations.launched_ns
    )
    return operations.replace_columns(launched_ns=launched_ns)


def _measure_memory(linked: LinkedProfile, operations: Operations) -> MemoryUse | None:
    """Return the memory that operations allocate, or None if the profile records no memory."""
    profile = linked.profile
    events = None if profile.memory is None else profile.memory()
    if events is None:
        return None
    layers = LayerRanges(profile.ranges, linked.named_ranges)
    return measure_memory(events, operations, profile.activities.ranks, layers)


def _measure_extent(linked: LinkedProfile) -> tuple[int, int]:
    """Return the earliest start and the latest end of all kernels and API calls, in ns."""
    activities = linked.profile.activities
    kernels = slice(activities.kernels)
    start_ns = min(int(activities.start_ns[kernels].min()), linked.start_ns)
    end_ns = max(int(activities.end_ns[kernels].max()), linked.end_ns)
    return start_ns, end_ns


def _name_conventions(conventions: Sequence[Convention], names: NameMeanings) -> frozenset[str]:
    """Return the names of the conventions that matched an F, B, W, BW or FB range."""
    used = names.convention[mask_phases(names.phase, COUNTED)].tolist()
    return frozenset(conventions[index].name for index in used)


def _list_work_limitations(linked: LinkedProfile, operations: Operations) -> list[Limitation]:
    """Return the limitations that were found while linking kernels and copies.

    If all work launched before the capture ended before the first operation started, that work
    cannot change any ratio. Each ``WORK_BEFORE_CAPTURE`` limitation then becomes ``OTHER``.
    """
    starts_ns = operations.start_ns[operations.has_span == 1]
    first_ns = int(starts_ns.min(initial=np.iinfo(np.int64).max))
    if (linked.unrecorded.end_ns > first_ns).any():
        return list(linked.limitations)
    before_capture = LimitationKind.WORK_BEFORE_CAPTURE
    return [
        replace(note, kind=LimitationKind.OTHER) if note.kind is before_capture else note
        for note in linked.limitations
    ]


def _find_overheads(profile: Profile) -> RankIntervals:
    """Return the intervals in which the profiler stopped the process of each rank.

    Overlapping intervals of a process are merged. The intervals apply to all ranks of the process.
    """
    process, overheads = profile.activities.ranks[:, 0], profile.overheads
    rank, row = np.nonzero(process[:, None] == overheads.process[None, :])
    return RankIntervals(
        *intervals.group_union(rank, len(process), overheads.start_ns[row], overheads.end_ns[row])
    )


#: Matches ranks in file names and process labels, for example ``1.5-TP-0-DP-1-PP-0.trace.json.gz``
#: and ``TP00-PP01`` (both SGLang), ``pp1_dp0`` and ``rank3``.
_RANKS = re.compile(r"(?<![a-z])(rank|tp|dp|pp)[-_]?([0-9]{1,6})(?![0-9])")


def _list_ranks(ranks: Ints, profile: Profile, names: NameMeanings) -> tuple[LocalRank, ...]:
    """Return the ranks of a profile with their devices and global ranks.

    The global rank can come from three sources. :func:`_choose_global_rank` chooses among them:

    1. The ranks in the range names of the process.
    2. The rank that the profile declares, if the profile has a single rank.
    3. The label of the process, if the process has a single device. Without a label, the file name
       is used if the profile has a single rank.
    """
    devices = {(d.pid, d.device_id): d for d in profile.devices}
    rank_in_range = names.rank[profile.ranges.name_id]
    owner = process_of(profile.ranges.thread)
    file_name = Path(profile.source.path).name if len(ranks) == 1 else ""
    n_devices = Counter(ranks[:, 0].tolist())
    local = []
    for process, device in ranks.tolist():
        pid = get_pid(process)
        label = profile.process_labels.get(process, "") if n_devices[process] == 1 else ""
        in_name = {word: int(n) for word, n in _RANKS.findall((label or file_name).lower())}
        replica = in_name.get("tp", 0) + (in_name.get("dp", 0) << 20)
        local.append(
            LocalRank(
                process=process,
                device_id=device,
                device=devices.get((pid, device), devices.get((None, device))),
                global_rank=_choose_global_rank(
                    rank_in_range[(owner == process) & (rank_in_range >= 0)],
                    profile.global_rank if len(ranks) == 1 else None,
                    in_name.get("rank"),
                ),
                stage_in_file_name=(in_name.get("pp", NONE), replica),
                device_label=profile.place(process, device),
                world_size=profile.world_size,
            )
        )
    return tuple(local)


def _choose_global_rank(in_ranges: Ints, declared: int | None, in_name: int | None) -> int | None:
    """Return the global rank of a rank, or None if unknown.

    If the range names contain exactly one distinct rank, the result is that rank. Otherwise, it is
    ``declared``, or ``in_name`` if ``declared`` is None.

    Args:
        in_ranges: Ranks in the range names of the process, with repetitions.
        declared: Rank that the profile declares, or None if it declares none.
        in_name: Rank in the process label or in the file name, or None if there is none.
    """
    numbers = find_distinct(in_ranges)
    if len(numbers) == 1:
        return int(numbers[0])
    return in_name if declared is None else declared
