"""Interpretation: one profile's linked kernels become operations of ranks, with device spans."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bubbleviz.conventions.convention import Convention
from bubbleviz.conventions.kinds import Kinds
from bubbleviz.conventions.range_names import NameMeanings
from bubbleviz.errors import NothingToAnalyseError
from bubbleviz.interpret.capture_end import locate_launches, mark_unrecorded
from bubbleviz.interpret.collectives import read_recorded_collectives, rename_vague_kernels
from bubbleviz.interpret.communication import (
    add_communication,
    check_communication,
    find_unknown_kernels,
)
from bubbleviz.interpret.coverage import measure_coverage
from bubbleviz.interpret.late_launches import add_host_activities, select_longest
from bubbleviz.interpret.layers import LayerRanges, measure_layers
from bubbleviz.interpret.linking import LinkedProfile, find_enclosing_ranges, link
from bubbleviz.interpret.memory import MemoryUse, list_memory_limitations, measure_memory
from bubbleviz.interpret.merged_runs import refuse_merged_runs
from bubbleviz.interpret.operation_limitations import list_limitations
from bubbleviz.interpret.operation_ranges import find_operations
from bubbleviz.interpret.per_rank import record_ranks
from bubbleviz.interpret.recording import LocalRank, Recording, Recordings
from bubbleviz.interpret.spans import classify_work
from bubbleviz.interpret.start_skew import find_recorded_devices
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import find_distinct
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.operations import Operations, RankIntervals
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import COUNTED
from bubbleviz.model.profile import Profile, get_pid, process_of
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
    """Turn the kernels of a profile into operations of its ranks, and return them as one recording.

    Kernels are linked to ranges, ranges are merged into operations, and the work of the operations
    is measured rank by rank.

    Args:
        profile: The profile, with at least the ranges that the conventions may name.
        conventions: Conventions that name its ranges.
        names: Meanings of ``profile.ranges.names`` in these conventions.
        kinds: Kinds of kernels and threads, including those of the conventions.
        cross_thread: Whether backward kernels may be launched from another thread.
        layers: Whether the kernels of layers are measured.
        memory: Whether memory events are read.

    Raises:
        NothingToAnalyseError: No kernel has possible times.
        ProfileError: The profile contains two runs of the same ranks and iterations.
    """
    linked = _link_work(profile, names, kinds, cross_thread=cross_thread)
    profile, named_ranges = linked.profile, linked.named_ranges
    with time_step("attribute kernels") as rows:
        rows.count = len(profile.activities)
        activities = rename_vague_kernels(linked)
        work, receives = classify_work(linked.work, activities, named_ranges, names, kinds)
        keys, hints, placed_ranges, homeless = find_operations(profile, named_ranges, names, work)
        phase = names.phase[named_ranges.name_id]
        around = find_enclosing_ranges(receives, work, profile.calls, named_ranges, phase)
        collectives = read_recorded_collectives(linked, activities, work.communication, kinds)
        tables, coverage, unattributed = record_ranks(
            linked, work, placed_ranges, around, collectives, keys, kinds
        )
        refuse_merged_runs(profile.source.path, tables["operations"], hints.iteration >= 0)
        operations = _mark_cut_operations(linked, tables["operations"])
        late_launches = select_longest(tables.pop("late"))
        operations, hosts = add_host_activities(
            operations, late_launches, linked.long_calls, profile
        )
        tables["operations"] = operations.compact()
        used = _measure_memory(linked, operations) if memory else None
        spent = None
        if layers:
            spent = measure_layers(
                LayerRanges(profile.ranges, named_ranges), work, placed_ranges, keys
            )
        start_ns, end_ns = _measure_extent(linked)
        notes = (
            *_list_work_limitations(linked, operations),
            *profile.limitations,
            *check_communication(profile, kinds),
            *homeless,
            *list_limitations(profile, work, operations, placed_ranges),
            *(() if used is None else list_memory_limitations(profile.source.path, used)),
        )
        recording = Recording(
            source=profile.source,
            convention=conventions[0].name,
            conventions=_name_conventions(conventions, names),
            ranks=_list_ranks(activities.ranks, profile, names),
            coverage=measure_coverage(linked, coverage, unattributed),
            start_ns=start_ns,
            end_ns=end_ns,
            limitations=notes,
            unknown_kernels=tuple(find_unknown_kernels(profile, kinds)),
            recorded=find_recorded_devices(linked, activities, kinds),
            layers=spent,
            memory=used,
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
        kinds: Kinds of kernels and threads.
        cross_thread: Whether backward kernels may be launched from another thread.

    Raises:
        NothingToAnalyseError: No kernel has possible times.
    """
    profile = add_communication(profile, kinds)
    named_ranges = profile.ranges.take(names.phase[profile.ranges.name_id] >= 0)
    with time_step("link kernels to calls and ranges") as rows:
        phase = names.phase[named_ranges.name_id] if cross_thread else None
        linked = link(profile, named_ranges, phase, kinds.helper_threads)
        rows.count = len(profile.activities)
    if linked.profile.activities.kernels == 0:
        raise NothingToAnalyseError(
            f"{profile.source.path}: all kernels start before their launching calls or are outside "
            "the capture; export or record again"
        )
    return linked


def _mark_cut_operations(linked: LinkedProfile, operations: Operations) -> Operations:
    """Set ``cut`` of operations whose work the end of the capture cut, and missing launch times.

    Forwards and backwards without GPU work get the time of their first launch. If launches are not
    recorded, every operation without GPU work gets its host start as launch time.

    Args:
        linked: The profile, linked to its calls.
        operations: Its operations, with their spans.
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
    """Return the start of the first kernel or call and the end of the last one."""
    activities = linked.profile.activities
    kernels = slice(activities.kernels)
    start_ns = min(int(activities.start_ns[kernels].min()), linked.start_ns)
    end_ns = max(int(activities.end_ns[kernels].max()), linked.end_ns)
    return start_ns, end_ns


def _name_conventions(conventions: Sequence[Convention], names: NameMeanings) -> frozenset[str]:
    """Return the names of the conventions that name forward or backward operations."""
    used = names.convention[mask_phases(names.phase, COUNTED)].tolist()
    return frozenset(conventions[index].name for index in used)


def _list_work_limitations(linked: LinkedProfile, operations: Operations) -> list[Limitation]:
    """Return the limitations of the work of a profile.

    Work from before the capture matters only if it may have delayed operations. It changes no ratio
    if it ended before the first operation began.
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
    """Return the intervals in which the profiler delayed the process of each rank.

    The intervals of a process are merged, and apply to all its ranks.
    """
    process, overheads = profile.activities.ranks[:, 0], profile.overheads
    rank, row = np.nonzero(process[:, None] == overheads.process[None, :])
    return RankIntervals(
        *intervals.group_union(rank, len(process), overheads.start_ns[row], overheads.end_ns[row])
    )


#: Ranks in names of files and labels of processes: ``1.5-TP-0-DP-1-PP-0.trace.json.gz`` and
#: ``TP00-PP01`` of SGLang, ``pp1_dp0``, ``rank3``.
_RANKS = re.compile(r"(?<![a-z])(rank|tp|dp|pp)[-_]?([0-9]{1,6})(?![0-9])")


def _list_ranks(ranks: Ints, profile: Profile, names: NameMeanings) -> tuple[LocalRank, ...]:
    """Return the ranks with their devices, and the global ranks that the profile or names give.

    The global rank is the only rank that the ranges of the process name. Otherwise, it is the rank
    that the profile declares, if it has a single rank, or else the rank in the label of a process
    with a single device or in the file name of a profile with a single rank.
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
        declared_rank = profile.global_rank if len(ranks) == 1 else None
        declared_rank = in_name.get("rank") if declared_rank is None else declared_rank
        replica = in_name.get("tp", 0) + (in_name.get("dp", 0) << 20)
        numbers = find_distinct(rank_in_range[(owner == process) & (rank_in_range >= 0)])
        local.append(
            LocalRank(
                process=process,
                device_id=device,
                device=devices.get((pid, device), devices.get((None, device))),
                global_rank=int(numbers[0]) if len(numbers) == 1 else declared_rank,
                stage_in_file_name=(in_name.get("pp", NONE), replica),
                device_label=profile.place(process, device),
                world_size=profile.world_size,
            )
        )
    return tuple(local)
