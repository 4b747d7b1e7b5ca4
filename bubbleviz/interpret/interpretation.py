"""Interpretation: one profile's linked kernels become operations of ranks, with device spans."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from bubbleviz.conventions.convention import Convention
from bubbleviz.conventions.kinds import Kinds
from bubbleviz.conventions.range_names import NameMeanings
from bubbleviz.errors import NothingToAnalyseError
from bubbleviz.interpret.collectives import named_as_told, recorded_collectives
from bubbleviz.interpret.communication import (
    candidates_of,
    unknown_kernels_of,
    with_added_communication,
)
from bubbleviz.interpret.coverage import (
    OPEN,
    UNRECORDED,
    locate_launches,
    mark_unrecorded,
    measure_coverage,
)
from bubbleviz.interpret.late_launches import longest, with_host_activities
from bubbleviz.interpret.layers import LayerRanges, layer_times
from bubbleviz.interpret.linking import LinkedProfile, LinkRule, Links, enclosing_ranges, link
from bubbleviz.interpret.memory import limitations_of_memory, memory_use
from bubbleviz.interpret.merged_runs import refuse_merged_runs
from bubbleviz.interpret.operation_ranges import OperationRanges, keys_of, operation_ranges_of
from bubbleviz.interpret.per_rank import record_ranks
from bubbleviz.interpret.recording import LocalRank, Recording, Recordings
from bubbleviz.interpret.spans import classify_work
from bubbleviz.interpret.start_skew import find_recorded_devices
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Bools, Ints, marked
from bubbleviz.model.grouping import distinct, distinct_rows, groups_of, without
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.operations import Operations, RankIntervals
from bubbleviz.model.phase_masks import TRAINING, among, run_kind
from bubbleviz.model.phases import COMPUTE, COUNTED, Phase
from bubbleviz.model.profile import Profile, pid_of, process_of
from bubbleviz.timing import step

# Limitations: what linking and interpretation of one profile could not determine.


#: A subject, a reason, and how often it applies; of none, there is no limitation.
Candidate: TypeAlias = tuple[str, str, int]
#: The limitation of names that give no microbatches.
_INFERRED = "microbatch numbers are inferred"
#: The limitation of names that give neither microbatches nor iterations.
_UNDIVIDED = "iteration boundaries are unknown"
#: The limitation of names that give one microbatch for several, and no iterations.
_UNMARKED = "iterations and stages of ranks"
#: The limitation of forwards and backwards whose kernels are not there.
_WITHOUT_WORK = "forwards and backwards without GPU work"
#: From such a share of them on, ratios are off.
_NOTICEABLE = 0.01
#: What rules of linking left open, by the rule of each kernel.
_UNLINKED = (
    (
        LinkRule.UNLINKED,
        "kernels without their launching call",
        "the call is not in the profile (a capture cut to a window drops some)",
    ),
    (
        LinkRule.AMBIGUOUS,
        "kernels that several threads' backward could own",
        "their thread opens no range, and several others had a backward range open",
    ),
    (
        LinkRule.HELPER_THREAD,
        "kernels of helper threads while backward ran elsewhere",
        "their threads are named as loaders, watchdogs or profilers are",
    ),
)
_KINDS = {
    _WITHOUT_WORK: LimitationKind.OPERATIONS_WITHOUT_WORK,
    _INFERRED: LimitationKind.MICROBATCHES_INFERRED,
    _UNDIVIDED: LimitationKind.ITERATIONS_UNDIVIDED,
    _UNMARKED: LimitationKind.ITERATIONS_UNMARKED,
}


def limitations_of(
    profile: Profile, links: Links, operations: Operations, ranges: OperationRanges
) -> tuple[Limitation, ...]:
    """Return the limitations of one profile.

    Args:
        profile: the profile.
        links: of its kernels, then copies.
        operations: its operations.
        ranges: their ranges.
    """
    rules = links.rule[: profile.activities.kernels]
    unnumbered = marked(len(operations), ranges.operation[ranges.unnumbered])
    in_parts = np.bincount(ranges.operation, minlength=len(operations)) > 1
    named = ranges.rank[ranges.mark >= 0]
    candidates = (
        *(
            (what, reason, int(np.count_nonzero(rules == np.int8(rule))))
            for rule, what, reason in _UNLINKED
        ),
        *candidates_of_operations(operations, inferred=bool(ranges.unnumbered.any())),
        unmarked(operations, unnumbered | (operations.microbatch < 0), in_parts, named),
        (
            _UNDIVIDED,
            "no name gives a microbatch, an iteration or the optimizer step, so the whole capture "
            "of a rank counts as one iteration; name iterations in ranges, or the optimizer with "
            "--convention",
            len(_undivided_ranks(operations, ranges)),
        ),
    )
    return noted(profile.source.path, candidates)


def noted(path: str, candidates: Iterable[Candidate]) -> tuple[Limitation, ...]:
    """Return the limitations of a file, of some that it may have."""
    return tuple(
        Limitation(what, f"{path}: {reason}", count, _KINDS.get(what, LimitationKind.OTHER))
        for what, reason, count in candidates
        if count
    )


def _works_elsewhere(operations: Operations) -> Bools:
    """Tell for each operation whether others of its rank, chunk and phase have GPU work."""
    groups = groups_of(operations.rank, operations.chunk, operations.phase)
    working = marked(len(groups), groups.of_row[operations.has_span == 1])
    return np.asarray(working[groups.of_row], bool)


def _undivided_ranks(operations: Operations, ranges: OperationRanges) -> Ints:
    """Return the ranks with several forwards, and nothing that shows where an iteration ends."""
    forward = among(operations.phase, (Phase.F, Phase.FB))
    unnumbered = marked(len(operations), ranges.operation[ranges.unnumbered])
    rank, forwards = np.unique(operations.rank[forward & unnumbered], return_counts=True)
    divided = (
        operations.rank[forward & ~unnumbered],
        operations.rank[operations.phase == Phase.OPTIMIZER],
        ranges.rank[ranges.mark >= 0],
    )
    return without(rank[forwards > 1], np.concatenate(divided))


def unmarked(operations: Operations, unnumbered: Bools, in_parts: Bools, named: Ints) -> Candidate:
    """Return how many ranks run their only microbatch again, and nothing marks iterations.

    One name stands for many microbatches then, and each forward behind a backward begins an
    iteration. Forwards of several microbatches in a row look like parts of one::

        ranges       F0 F0 F0 B0 F0 B0 B0 B0
        operations   ├─ F0 ─┤ B0 F0 ├─ B0 ─┤

    Args:
        operations: of one file.
        unnumbered: which of them have no microbatch by name.
        in_parts: which of them are several ranges.
        named: ranks of which names tell iterations apart.
    """
    counted = among(operations.phase, COUNTED) & ~unnumbered
    again = operations.rank[counted & (in_parts | (operations.occurrence > 0))]
    if len(again):
        numbers = distinct_rows(operations.rank, operations.microbatch, chosen=counted)
        several = numbers[0, 1:][np.diff(numbers[0]) == 0]
        steps = operations.rank[operations.phase == Phase.OPTIMIZER]
        again = without(again, np.concatenate((several, steps, named)))
    again = again if run_kind(operations.phase) == TRAINING else again[:0]
    return (
        _UNMARKED,
        "all forwards name one microbatch, and neither names nor an optimizer step tell iterations "
        "apart, so each forward behind a backward begins one, and forwards in a row are one; name "
        "iterations in ranges, or record a range Optimizer",
        len(again),
    )


def candidates_of_operations(
    operations: Operations, *, inferred: bool, told: bool = False
) -> Iterator[Candidate]:
    """Yield what operations lack, or have twice.

    Args:
        operations: of one file.
        inferred: whether it gives no microbatches.
        told: whether it is a table of them.
    """
    compute = among(operations.phase, COMPUTE)
    counted = among(operations.phase, COUNTED)
    workless = compute & (operations.has_span == 0) & (operations.cut == 0)
    of_pass = workless & counted & _works_elsewhere(operations)
    if told or of_pass.sum() < _NOTICEABLE * max(counted.sum(), 1):
        of_pass[:] = False
    repeated = counted & (operations.occurrence > 0) & (operations.microbatch >= 0)
    yield (
        _WITHOUT_WORK,
        "others of the same rank have some: their kernels are missing or were left out, so their "
        "time counts as idle; profile again",
        int(of_pass.sum()),
    )
    lacking = "ranges launched nothing that the profile shows"
    yield (
        "operations without any GPU work",
        f"their {'rows have neither start nor end' if told else lacking}, so they have no device "
        "time",
        int((workless & ~of_pass).sum()),
    )
    yield (
        _INFERRED,
        f"the {'table gives' if told else 'names give'} none, so they are counted by order within "
        "an iteration",
        int(inferred),
    )
    yield (
        "operations cut by the end of the capture",
        "the table says so" if told else "their range was still open",
        int((operations.cut > 0 if told else operations.cut == OPEN).sum()),
    )
    yield (
        "operations whose work the end of the capture cut",
        "the host had launched it, and the profile does not contain it",
        0 if told else int((operations.cut == UNRECORDED).sum()),
    )
    yield (
        "repeated operations",
        "the same microbatch, chunk and phase occur again in one iteration",
        int(repeated.sum()),
    )


def linked_profile(
    profile: Profile, names: NameMeanings, kinds: Kinds, *, cross_thread: bool = True
) -> LinkedProfile:
    """Return a profile with its work linked.

    Of its work that keeps what can be, without correlation ids.

    Args:
        profile: as read, with at least the ranges that the convention may name.
        names: what its conventions make of ``profile.ranges.names``.
        kinds: lists of what kernels and threads are, the conventions' own among them.
        cross_thread: whether backward kernels may be launched from another thread.

    Raises:
        NothingToAnalyseError: no kernel has times that can be.
    """
    profile = with_added_communication(profile, kinds)
    named = profile.ranges.take(names.phase[profile.ranges.name_id] >= 0)
    with step("link kernels to calls and ranges") as rows:
        phase = names.phase[named.name_id] if cross_thread else None
        linked = link(profile, named, phase, kinds.helper_threads)
        rows.count = len(profile.activities)
    if linked.profile.activities.kernels == 0:
        raise NothingToAnalyseError(
            f"{profile.source.path}: all kernels contradict their launching calls, or lie outside "
            "the capture; export or record again"
        )
    return linked


def interpret(
    linked: LinkedProfile,
    conventions: Sequence[Convention],
    names: NameMeanings,
    kinds: Kinds,
    *,
    layers: bool = False,
    memory: bool = False,
) -> Recordings:
    """Return the operations of one profile.

    Args:
        linked: the profile.
        conventions: how its ranges are named.
        names: what they make of these names.
        kinds: lists of what kernels and threads are, the conventions' own among them.
        layers: whether ranges of layers are looked at, too.
        memory: whether memory events are.

    Raises:
        ProfileError: The profile holds two runs of the same ranks and iterations.
    """
    with step("attribute kernels") as rows:
        rows.count = len(linked.profile.activities)
        profile, named, links = linked.profile, linked.named, linked.links
        activities = named_as_told(linked)
        phase = names.phase[named.name_id]
        work, receives = classify_work(activities, links, named, names, kinds)
        placed, homeless = operation_ranges_of(profile, named, names, work)
        keys, hints = keys_of(named, names, placed)
        around = enclosing_ranges(receives, links, profile.calls, named, phase)
        collectives = recorded_collectives(linked, activities, work.communication, kinds)
        tables, coverage, unattributed = record_ranks(
            linked, work, placed, around, collectives, keys, kinds
        )
        operations = tables["operations"]
        refuse_merged_runs(profile.source.path, operations, hints.iteration >= 0)
        operations = mark_unrecorded(operations, linked.workless, activities.ranks[:, 0])
        if profile.launches_known:
            processes = activities.ranks[:, 0]
            operations = locate_launches(operations, linked.links, profile.calls, processes)
        else:
            lost = operations.has_span == 0
            launched_ns = np.where(lost, operations.host_start_ns, operations.launched_ns)
            operations = operations.changed(launched_ns=launched_ns)
        late = longest(tables.pop("late"))
        operations, hosts = with_host_activities(operations, late, linked.long_calls, profile)
        tables["operations"] = operations.compacted()
        kernels = slice(0, activities.kernels)
        events = profile.memory() if memory and profile.memory is not None else None
        used = (
            memory_use(events, operations, activities.ranks, LayerRanges(profile.ranges, named))
            if events is not None
            else None
        )
        recording = Recording(
            source=profile.source,
            convention=conventions[0].name,
            conventions=frozenset(
                conventions[i].name for i in names.convention[among(names.phase, COUNTED)].tolist()
            ),
            ranks=_local_ranks(activities.ranks, profile, names),
            coverage=measure_coverage(linked, coverage, unattributed),
            start_ns=min(int(activities.start_ns[kernels].min()), linked.start_ns),
            end_ns=max(int(activities.end_ns[kernels].max()), linked.end_ns),
            limitations=(
                *_limitations_of_work(linked, operations),
                *profile.limitations,
                *candidates_of(profile, kinds),
                *homeless,
                *limitations_of(profile, linked.links, operations, placed),
                *(() if used is None else limitations_of_memory(profile.source.path, used)),
            ),
            unknown_kernels=tuple(unknown_kernels_of(profile, kinds)),
            recorded=find_recorded_devices(linked, activities, kinds),
            layers=layer_times(LayerRanges(profile.ranges, named), work, linked.links, placed, keys)
            if layers
            else None,
            memory=used,
        )
        return Recordings.of(
            recording,
            **tables,
            hints=hints.compacted(),
            overheads=_overheads(profile),
            unrecorded=linked.unrecorded,
            hosts=hosts,
            pauses=RankIntervals.none(),
        )


def _limitations_of_work(linked: LinkedProfile, operations: Operations) -> list[Limitation]:
    """Return the limitations of the work, of which one matters only if operations were delayed.

    Work from before the capture changes no ratio if it ended before the first operation began.
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


def _overheads(profile: Profile) -> RankIntervals:
    """Return when the profiler held up the process of each rank."""
    process, overheads = profile.activities.ranks[:, 0], profile.overheads
    rank, row = np.nonzero(process[:, None] == overheads.process[None, :])
    return RankIntervals(
        *intervals.group_union(rank, len(process), overheads.start_ns[row], overheads.end_ns[row])
    )


#: Ranks in names of files and labels of processes: ``1.5-TP-0-DP-1-PP-0.trace.json.gz`` and
#: ``TP00-PP01`` of SGLang, ``pp1_dp0``, ``rank3``.
_RANKS = re.compile(r"(?<![a-z])(rank|tp|dp|pp)[-_]?([0-9]{1,6})(?![0-9])")


def _local_ranks(ranks: Ints, profile: Profile, names: NameMeanings) -> tuple[LocalRank, ...]:
    """Return the ranks with their devices, and the global ranks that the profile or names give."""
    devices = {(d.pid, d.device_id): d for d in profile.devices}
    named = names.rank[profile.ranges.name_id]
    owner = process_of(profile.ranges.thread)
    file_name = Path(profile.source.path).name if len(ranks) == 1 else ""
    n_devices = Counter(ranks[:, 0].tolist())
    local = []
    for process, device in ranks.tolist():
        pid = pid_of(process)
        label = profile.process_labels.get(process, "") if n_devices[process] == 1 else ""
        in_name = {word: int(n) for word, n in _RANKS.findall((label or file_name).lower())}
        given = profile.global_rank if len(ranks) == 1 else None
        given = in_name.get("rank") if given is None else given
        replica = in_name.get("tp", 0) + (in_name.get("dp", 0) << 20)
        numbers = distinct(named[(owner == process) & (named >= 0)])
        local.append(
            LocalRank(
                process=process,
                device_id=device,
                device=devices.get((pid, device), devices.get((None, device))),
                global_rank=int(numbers[0]) if len(numbers) == 1 else given,
                named=(in_name.get("pp", NONE), replica),
                place=profile.place(process, device),
                world_size=profile.world_size,
            )
        )
    return tuple(local)
