"""Profiles: NCCL's kernels in each, and the operations that they carry out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bubbleviz.analyses.idle.ranks import IdleOptions, window_extent
from bubbleviz.analyses.nccl.collectives import operations_of_pytorch, sizes_of
from bubbleviz.analyses.nccl.kernels import (
    Kernels,
    family_of,
    kernel_family,
    kernels_of,
    parse_kernel_name,
)
from bubbleviz.analyses.nccl.members import Communicator, KernelOperations
from bubbleviz.conventions.host_activities import default_activities
from bubbleviz.conventions.kinds import Kinds, default_kinds
from bubbleviz.conventions.launching_calls import OPERATION_GLOBS
from bubbleviz.errors import InputError, ProfileError
from bubbleviz.interpret.added_communication import with_added_communication
from bubbleviz.interpret.fleet.run_recordings import Local, refuse_same_content
from bubbleviz.interpret.homeless_ranges import other_commands
from bubbleviz.interpret.linking import link
from bubbleviz.interpret.operation_ranges import (
    ToldOperations,
    sound_collectives,
    told_operations,
    with_told_operations,
)
from bubbleviz.interpret.record import opened_profile, renamed_limitations
from bubbleviz.model.collectives import Collectives, Payloads
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import distinct, groups_of, looked_up
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.pointers import pointer_words
from bubbleviz.model.profile import Profile, Ranges, Source, process_of
from bubbleviz.model.values import frozen
from bubbleviz.model.window import Window
from bubbleviz.progress import Watch, unwatched
from bubbleviz.sources.gzip_files import head_of
from bubbleviz.sources.nccl.formats import EventFileFormat, format_of
from bubbleviz.sources.paths import CompanionFormat, find_profiles, refuse_twins
from bubbleviz.sources.readers import OpenFile

# NVTX operations: the ranges that NCCL opens, and the kernels that carry them out.
#
# An operation is a call of NCCL's interface, that has an NVTX range. Alone it launches its kernel
# itself; inside a group the outermost ``ncclGroupEnd`` launches the kernels of all::
#
#     ncclGroupStart  ncclSend  ncclRecv  ncclGroupEnd
#                                         └─ one kernel: SendRecv, of both


#: Ranges that NCCL's interface opens.
GLOBS = ("nccl[A-Z]*",)
_OPERATION = re.compile(
    r"nccl(AllReduce|AllGather|ReduceScatter|Broadcast|Bcast|Reduce|Send|Recv|All[Tt]oAllv?|Gather|"
    r"Scatter)(?:Config)?"
)
_GROUP_START, _GROUP_END = "ncclGroupStart", "ncclGroupEnd"


def operations_of_ranges(
    ranges: Ranges, kernels: Kernels, range_of_kernel: Ints, payloads: Payloads | None
) -> tuple[KernelOperations, int]:
    """Return the operations that have kernels, and how many have none.

    Args:
        ranges: of NCCL.
        kernels: that ran.
        range_of_kernel: row of the ranges; -1 none.
        payloads: of ranges; None without any.
    """
    names, name = _operation_names(ranges)
    group = _groups(ranges)
    rows = np.flatnonzero(name != NONE)
    rows = rows[np.lexsort((ranges.start_ns[rows], ranges.thread[rows]))]
    inside = np.flatnonzero(range_of_kernel != NONE)
    kernel_group = group[range_of_kernel[inside]]
    operation_families, kernel_families = _families(names, kernels.names)
    first, last = distribute(
        (group[rows], operation_families[name[rows]]),
        (kernel_group, kernel_families[kernels.name[inside]]),
    )
    # A kernel whose name has no operation is distributed by its group alone.
    rest = np.flatnonzero(first == NONE)
    first[rest], last[rest] = distribute((group[rows[rest]],), (kernel_group,))
    with_kernels = first != NONE
    rows = rows[with_kernels]
    first, last = inside[first[with_kernels]], inside[last[with_kernels]]
    payload = _payloads_of(ranges, rows, payloads)
    rank = _ranks(ranges, rows, kernels, first, payloads, payload)
    operations = KernelOperations(
        first=first,
        last=last,
        name=name[rows],
        rank=rank,
        **_payload_columns(payloads, payload),
        **{column: np.full(len(rows), NONE) for column in ("sequence", "count", "datatype")},
        names=names,
        communicators=() if payloads is None else payloads.communicators,
    )
    return operations, int((~with_kernels).sum())


def _operation_names(ranges: Ranges) -> tuple[tuple[str, ...], Ints]:
    """Return the names of operations, and the name of each range; -1 where it is none."""
    matches = [_OPERATION.fullmatch(name) for name in ranges.names]
    names = tuple(dict.fromkeys(match[1] for match in matches if match is not None))
    of_name = np.array([NONE if m is None else names.index(m[1]) for m in matches], np.int64)
    return names, of_name[ranges.name_id] if len(of_name) else np.empty(0, np.int64)


def _families(operations: Sequence[str], kernels: Sequence[str]) -> tuple[Ints, Ints]:
    """Return the number of the family of each operation's name, and of each kernel's."""
    texts = [*map(family_of, operations), *map(kernel_family, kernels)]
    numbers = {family: number for number, family in enumerate(dict.fromkeys(texts))}
    families = np.array([numbers[family] for family in texts], np.int64)
    return families[: len(operations)], families[len(operations) :]


def _payload_columns(payloads: Payloads | None, payload: Ints) -> dict[str, Ints]:
    """Return the columns that payloads give; ``payload`` is the row of each operation, -1 none."""
    columns = ("communicator", "bytes", "peer", "root")
    if payloads is None:
        return {column: np.full(len(payload), NONE, np.int64) for column in columns}
    missing = payload == NONE
    return {c: np.where(missing, NONE, getattr(payloads, c)[payload]) for c in columns}


def _groups(ranges: Ranges) -> Ints:
    """Return the group of each range; each range outside of all has one for itself."""
    kinds = {_GROUP_START: 1, _GROUP_END: -1}
    of_name = np.array([kinds.get(name, 0) for name in ranges.names], np.int64)
    group = np.arange(len(ranges))
    if len(ranges) == 0 or not of_name.any():
        return group
    order = np.lexsort((ranges.start_ns, ranges.thread))
    step = of_name[ranges.name_id[order]]
    thread = ranges.thread[order]
    depth = np.zeros(len(order), np.int64)
    for number in distinct(thread).tolist():
        rows = np.flatnonzero(thread == number)
        total = np.cumsum(step[rows])
        # A capture may begin inside a group.
        depth[rows] = total - np.minimum(np.minimum.accumulate(total), 0)
    before = depth - step
    opens = (step > 0) & (before == 0)
    inside = (depth > 0) | ((step < 0) & (before > 0))
    place = np.maximum.accumulate(np.where(opens, np.arange(len(order)), 0))
    group[order[inside]] = order[place[inside]]
    return group


def distribute(wanted: tuple[Ints, ...], given: tuple[Ints, ...]) -> tuple[Ints, Ints]:
    """Return the first and last given row for each wanted row, of those with the same key.

    The rows of one key are distributed in order: one each, or several, or several to one.
    """
    count = len(wanted[0])
    first, last = np.full(count, NONE, np.int64), np.full(count, NONE, np.int64)
    if count == 0 or len(given[0]) == 0:
        return first, last
    key = groups_of(*(np.concatenate(pair) for pair in zip(wanted, given, strict=True))).of_row
    wanted_key, given_key = key[:count], key[count:]
    size = int(key.max()) + 1
    wanted_count = np.bincount(wanted_key, minlength=size)
    given_count = np.bincount(given_key, minlength=size)
    order = np.argsort(wanted_key, kind="stable")
    begin = np.cumsum(wanted_count) - wanted_count
    place = np.empty(count, np.int64)
    place[order] = np.arange(count) - begin[wanted_key[order]]
    has = np.flatnonzero(given_count[wanted_key] > 0)
    keys = wanted_key[has]
    n, k, j = wanted_count[keys], given_count[keys], place[has]
    sorted_given = np.argsort(given_key, kind="stable")
    offset = (np.cumsum(given_count) - given_count)[keys]
    low = j * k // n
    high = np.maximum(low, (j + 1) * k // n - 1)
    first[has], last[has] = sorted_given[offset + low], sorted_given[offset + high]
    return first, last


def _payloads_of(ranges: Ranges, rows: Ints, payloads: Payloads | None) -> Ints:
    """Return the payload of some ranges; -1 none."""
    if payloads is None:
        return np.full(len(rows), NONE, np.int64)
    keys = payloads.start_ns, payloads.thread
    wanted = ranges.start_ns[rows], ranges.thread[rows]
    return looked_up(keys, np.arange(len(payloads)), wanted)


def _ranks(
    ranges: Ranges,
    rows: Ints,
    kernels: Kernels,
    first: Ints,
    payloads: Payloads | None,
    payload: Ints,
) -> Ints:
    """Return the rank of some operations, from the payload of their communicator's begin."""
    if payloads is None:
        return np.full(len(rows), NONE, np.int64)
    begun = np.flatnonzero((payloads.rank >= 0) & (payloads.communicator >= 0))
    communicator = np.where(payload == NONE, NONE, payloads.communicator[payload])
    device = np.array([number for _, number in kernels.places], np.int64)[kernels.place[first]]
    process = process_of(ranges.thread[rows])
    keys = process_of(payloads.thread[begun]), payloads.communicator[begun]
    with_device = (*keys, payloads.device[begun])
    ranks = np.full(len(rows), NONE, np.int64)
    for key, wanted in (
        (keys, (process, communicator)),
        (with_device, (process, communicator, device)),
    ):
        rank = unique_value(key, payloads.rank[begun], wanted)
        ranks = np.where(rank != NONE, rank, ranks)
    return np.where(communicator == NONE, NONE, ranks)


def unique_value(keys: tuple[Ints, ...], values: Ints, wanted: tuple[Ints, ...]) -> Ints:
    """Return the value of each wanted key; -1 where there is none, or several."""
    groups = groups_of(*keys)
    low = np.full(len(groups), np.iinfo(np.int64).max)
    high = np.full(len(groups), NONE, np.int64)
    np.minimum.at(low, groups.of_row, values)
    np.maximum.at(high, groups.of_row, values)
    only = np.where(low == high, high, NONE)
    return looked_up([key[groups.first] for key in keys], only, wanted)


def communicator_sizes(payloads: Payloads | None) -> tuple[tuple[int, int], ...]:
    """Return the number of ranks of each communicator, where payloads hold it."""
    if payloads is None:
        return ()
    known = (payloads.communicator >= 0) & (payloads.ranks > 0)
    pairs = zip(payloads.communicator[known].tolist(), payloads.ranks[known].tolist(), strict=True)
    return tuple({payloads.communicators[number]: ranks for number, ranks in pairs}.items())


#: What records what kernels carry out, by the API of the calls that launch them.
_RECORD_RANGES = {
    "CUDA": "record NVTX ranges, and with --cuda-graph-trace=node where CUDA graphs are used",
    "HIP": "record RCCL's calls with rocprofv3 --rccl-trace beside HIP's",
}


@frozen
class NcclProfile:
    """The kernels and operations of NCCL in a profile.

    Attributes:
        source: the profile.
        kernels: that ran.
        operations: that they carry out.
        ranks: number of ranks of each communicator.
        without_kernels: calls whose kernels were not found.
        limitations: what could not be read, and why.
        others: a clause on the commands that tell something of it without communication.
        window_ns: start and end (exclusive) of the window of iterations to analyse; None for none.
    """

    source: Source
    kernels: Kernels
    operations: KernelOperations
    ranks: tuple[tuple[Communicator, int], ...]
    without_kernels: int
    limitations: tuple[Limitation, ...]
    others: str
    window_ns: tuple[int, int] | None = None


def read_nccl_profile(
    path: str,
    jobs: int = 1,
    watch: Watch = unwatched,
    *,
    kinds: Kinds | None = None,
    keep_export: bool = False,
    window: Window | None = None,
) -> NcclProfile:
    """Return NCCL's kernels of a profile, with the operations of its ranges.

    Args:
        path: of the profile.
        jobs: threads that read it.
        watch: receives how much of it has been read.
        kinds: lists of what kernels are, with the user's additions; None without any.
        keep_export: leave an export made of a ``.nsys-rep`` report beside it.
        window: of iterations, to find on the profile's clock.

    Raises:
        ProfileError: it cannot be read.
        InputError: it holds no iteration of the window.
    """
    with opened_profile(path, jobs, watch, keep_export=keep_export) as (file, export):
        profile = _of_file(file, path, window, kinds or default_kinds())
    # A temporary export goes by its report's name.
    return replace(
        profile,
        source=replace(profile.source, path=path),
        limitations=renamed_limitations(profile.limitations, export, path),
    )


def _of_file(file: OpenFile, path: str, window: Window | None, kinds: Kinds) -> NcclProfile:
    profile = file.read((*GLOBS, *OPERATION_GLOBS), partial=True)
    nccl_profile = _nccl_profile(profile, kinds)
    if len(nccl_profile.kernels) == 0:
        others = other_commands(profile, path, file.sample(("*hlo_op=*",)))
        nccl_profile = replace(nccl_profile, others=others)
    if window is None:
        return nccl_profile
    options = IdleOptions(0, None, default_activities(), kinds)
    try:
        window_ns = window_extent(profile, window, options)
    except ProfileError as error:
        # Without this profile's iterations another one's would be taken.
        raise InputError(str(error)) from error
    return replace(nccl_profile, window_ns=window_ns)


def _nccl_profile(profile: Profile, kinds: Kinds) -> NcclProfile:
    payloads, notes = (None, ()) if profile.payloads is None else profile.payloads()
    if payloads is not None and len(payloads) == 0:
        payloads = None
    profile = with_added_communication(profile, kinds)
    ranges = profile.ranges
    of_nccl = np.array([not name.startswith("nccl:") for name in ranges.names], bool)
    ranges = ranges.take(of_nccl[ranges.name_id])
    linked = link(profile, ranges)
    lost = (*profile.limitations, *linked.limitations)
    if profile.collectives is not None:
        collectives = sound_collectives(profile.collectives, linked.sound)
        told = told_operations(collectives, linked)
        found = kernels_of(linked.profile.activities, kinds)
        return _of_pytorch(profile, collectives, told, lost, *found)
    kernels, rows = kernels_of(linked.profile.activities, kinds)
    range_of_kernel = linked.links.range[rows].astype(np.int64)
    operations, without = operations_of_ranges(ranges, kernels, range_of_kernel, payloads)
    bare = int(((range_of_kernel == NONE) & kernels.of_nccl).sum())
    outside = Limitation(
        "kernels of NCCL outside its ranges",
        f"{profile.source.path}: only their names are known; {_RECORD_RANGES[profile.source.api]}",
        bare,
    )
    return NcclProfile(
        source=profile.source,
        kernels=kernels,
        operations=operations,
        ranks=communicator_sizes(payloads),
        without_kernels=without,
        limitations=(
            *lost,
            *(notes if len(rows) else ()),
            *([outside] if bare else []),
        ),
        others="",
    )


def _of_pytorch(
    profile: Profile,
    collectives: Collectives,
    told: ToldOperations,
    lost: Sequence[Limitation],
    kernels: Kernels,
    rows: Ints,
) -> NcclProfile:
    """Return the profile of a PyTorch trace.

    Args:
        profile: as read.
        collectives: that its kernels carry out.
        told: what ranges tell of the operations of others.
        lost: what could not be read of it.
        kernels: those of NCCL.
        rows: their activities.
    """
    names = tuple(parse_kernel_name(name)[0] for name in kernels.names)
    known = with_told_operations(collectives, told)
    operations = operations_of_pytorch(known, rows, kernels.name, names)
    bare = int((~np.isin(rows, collectives.kernel) & kernels.of_nccl).sum())
    reason = (
        f"{profile.source.path}: only their names and ranges are known; PyTorch records "
        "collectives that it launches itself, not those in CUDA graphs or in batches "
        "other than of sends"
    )
    note = Limitation("kernels of NCCL without a recorded collective", reason, bare)
    return NcclProfile(
        source=profile.source,
        kernels=kernels,
        operations=operations,
        ranks=sizes_of(collectives),
        without_kernels=0,
        limitations=(*lost, *([note] if bare else [])),
        others="",
    )


# Inputs: the event files and profiles that paths stand for.


#: Endings that event files have: a pointer of such a name in a directory may stand for one.
_SUFFIXES = frozenset(("", ".txt", ".log", ".json", ".jsonl", ".jsonlines"))


@frozen
class Input:
    """A file to read, ``named`` or not, and the format of its NCCL events; None of a profile."""

    path: str
    named: bool
    format: EventFileFormat[Any] | None


def find_inputs(paths: Sequence[str]) -> tuple[Input, ...]:
    """Return the event files and profiles that paths stand for.

    Raises:
        InputError: a path that does not exist, or leads to neither.
        MismatchError: a file is named twice.
        ProfileError: a file cannot be read.
    """
    if not paths:
        raise InputError("no file given; name event files of NCCL, profiles, or both")
    formats: dict[str, EventFileFormat[Any] | None] = {}
    pointers: set[str] = set()

    def recognises(path: str) -> bool:
        if path not in formats:
            try:
                head = head_of(path)
                formats[path] = format_of(head)
                if Path(path).suffix in _SUFFIXES and pointer_words(head) is not None:
                    pointers.add(path)
            except ProfileError:
                # As a profile, it is refused, or left out of a directory, for the same reason.
                formats[path] = None
        return formats[path] is not None or path in pointers

    files = find_profiles(paths, CompanionFormat("an event file of NCCL", recognises))
    refuse_twins([file.path for file in files], "file")
    # Event files of ranks that recorded alike may be equal; profiles never are.
    refuse_same_content(Local(1), [file.path for file in files if not recognises(file.path)])
    return tuple(
        Input(file.path, file.named, formats[file.path] if recognises(file.path) else None)
        for file in files
    )
