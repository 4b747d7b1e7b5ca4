"""Profiles: NCCL's kernels in each, and the operations that they carry out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bubbleviz.analyses.idle.ranks import IdleOptions, window_extent
from bubbleviz.analyses.nccl.kernels import (
    Kernels,
    family_of,
    kernel_family,
    kernels_of,
    parse_kernel_name,
)
from bubbleviz.analyses.nccl.members import Communicator, KernelOperations
from bubbleviz.conventions.host_activities import default_activities
from bubbleviz.conventions.kinds import OPERATION_GLOBS, Kinds, default_kinds, operation_of
from bubbleviz.errors import InputError, ProfileError
from bubbleviz.interpret.collectives import (
    sound_collectives,
    told_operations,
    with_told_operations,
)
from bubbleviz.interpret.communication import with_added_communication
from bubbleviz.interpret.fleet.run_recordings import Fleet, refuse_same_content
from bubbleviz.interpret.iterations import occurrences
from bubbleviz.interpret.linking import link
from bubbleviz.interpret.record import opened_profile, other_commands, renamed_limitations
from bubbleviz.model import intervals
from bubbleviz.model.collectives import Collectives, Payloads
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import Numbering, distinct, groups_of, looked_up
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.pointers import pointer_words
from bubbleviz.model.profile import Profile, Ranges, Source, process_of
from bubbleviz.model.values import frozen
from bubbleviz.model.window import Window
from bubbleviz.progress import Watch, unwatched
from bubbleviz.sources.gzip_files import head_of
from bubbleviz.sources.nccl.formats import EventFileFormat, format_of
from bubbleviz.sources.paths import InputFile, find_profiles, refuse_twins

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
    matches = [_OPERATION.fullmatch(name) for name in ranges.names]
    texts = ["" if match is None else match[1] for match in matches]
    numbering = Numbering(filter(None, texts))
    of_name = np.array([numbering.number(text) if text else NONE for text in texts], np.int64)
    name = of_name[ranges.name_id] if len(of_name) else np.empty(0, np.int64)
    names = numbering.values
    group = _groups(ranges)
    rows = np.flatnonzero(name != NONE)
    rows = rows[np.lexsort((ranges.start_ns[rows], ranges.thread[rows]))]
    inside = np.flatnonzero(range_of_kernel != NONE)
    kernel_group = group[range_of_kernel[inside]]
    families = Numbering[str]()
    of_operation = families.numbers(map(family_of, names))
    of_kernel = families.numbers(map(kernel_family, kernels.names))
    first, last = distribute(
        (group[rows], of_operation[name[rows]]), (kernel_group, of_kernel[kernels.name[inside]])
    )
    # A kernel whose name has no operation is distributed by its group alone.
    rest = np.flatnonzero(first == NONE)
    first[rest], last[rest] = distribute((group[rows[rest]],), (kernel_group,))
    found = first != NONE
    rows, first, last = rows[found], inside[first[found]], inside[last[found]]
    none = np.full(len(rows), NONE)
    columns = dict.fromkeys(KernelOperations.column_names(), none)
    communicators: tuple[int, ...] = ()
    if payloads is not None:
        keys = payloads.start_ns, payloads.thread
        wanted = ranges.start_ns[rows], ranges.thread[rows]
        at = looked_up(keys, np.arange(len(payloads)), wanted)
        for column in ("communicator", "bytes", "peer", "root"):
            columns[column] = np.where(at == NONE, NONE, getattr(payloads, column)[at])
        device = np.array([number for _, number in kernels.places], np.int64)[kernels.place[first]]
        process = process_of(ranges.thread[rows])
        columns["rank"] = _ranks(payloads, process, columns["communicator"], device)
        communicators = payloads.communicators
    columns |= {"first": first, "last": last, "name": name[rows]}
    operations = KernelOperations(**columns, names=names, communicators=communicators)
    return operations, int((~found).sum())


def _ranks(payloads: Payloads, process: Ints, communicator: Ints, device: Ints) -> Ints:
    """Return the rank of some operations, from the payload of their communicator's begin."""
    begun = np.flatnonzero((payloads.rank >= 0) & (payloads.communicator >= 0))
    keys = (process_of(payloads.thread), payloads.communicator, payloads.device)
    wanted = (process, communicator, device)
    ranks = np.full(len(process), NONE, np.int64)
    # By process and communicator, then by the device, too: where there is one rank alone.
    for columns in (2, 3):
        key = [column[begun] for column in keys[:columns]]
        groups = groups_of(*key)
        values = payloads.rank[begun]
        low, high = intervals.group_extents(groups.of_row, len(groups), values, values)
        only = np.where(low == high, high, NONE)
        rank = looked_up([column[groups.first] for column in key], only, wanted[:columns])
        ranks = np.where(rank != NONE, rank, ranks)
    return np.where(communicator == NONE, NONE, ranks)


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
    place = occurrences((wanted_key,))
    has = np.flatnonzero(given_count[wanted_key] > 0)
    keys = wanted_key[has]
    n, k, j = wanted_count[keys], given_count[keys], place[has]
    sorted_given = np.argsort(given_key, kind="stable")
    offset = (np.cumsum(given_count) - given_count)[keys]
    low = j * k // n
    high = np.maximum(low, (j + 1) * k // n - 1)
    first[has], last[has] = sorted_given[offset + low], sorted_given[offset + high]
    return first, last


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
        sizes: number of ranks of each communicator.
        without_kernels: calls whose kernels were not found.
        limitations: what could not be read, and why.
        others: a clause on the commands that tell something of it without communication.
        window_ns: start and end (exclusive) of the window of iterations to analyse; None for none.
    """

    source: Source
    kernels: Kernels
    operations: KernelOperations
    sizes: Mapping[Communicator, int]
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
    kinds = kinds or default_kinds()
    with opened_profile(path, jobs, watch, keep_export=keep_export) as (file, export):
        whole = file.read((*GLOBS, *OPERATION_GLOBS), partial=True)
        profile = _nccl_profile(whole, kinds)
        if len(profile.kernels) == 0:
            others = other_commands(whole, path, file.sample(("*hlo_op=*",)))
            profile = replace(profile, others=others)
        if window is not None:
            options = IdleOptions(0, None, default_activities(), kinds)
            try:
                profile = replace(profile, window_ns=window_extent(whole, window, options))
            except ProfileError as error:
                # Without this profile's iterations another one's would be taken.
                raise InputError(str(error)) from error
    # A temporary export goes by its report's name.
    return replace(
        profile,
        source=replace(profile.source, path=path),
        limitations=renamed_limitations(profile.limitations, export, path),
    )


def _nccl_profile(profile: Profile, kinds: Kinds) -> NcclProfile:
    payloads, notes = (None, ()) if profile.payloads is None else profile.payloads()
    if payloads is not None and len(payloads) == 0:
        payloads = None
    profile = with_added_communication(profile, kinds)
    path = profile.source.path
    ranges = profile.ranges
    of_nccl = np.array([not name.startswith("nccl:") for name in ranges.names], bool)
    ranges = ranges.take(of_nccl[ranges.name_id])
    linked = link(profile, ranges)
    kernels, rows = kernels_of(linked.profile.activities, kinds)
    sizes: dict[Communicator, int] = {}
    without = 0
    if profile.collectives is not None:
        collectives = sound_collectives(profile.collectives, linked.sound)
        known = with_told_operations(collectives, *told_operations(collectives, linked))
        operations = operations_of_pytorch(known, kernels, rows)
        sizes = {group: group.size for group in collectives.groups if group.size}
        notes = ()
        bare = int((~np.isin(rows, collectives.kernel) & kernels.of_nccl).sum())
        outside = Limitation(
            "kernels of NCCL without a recorded collective",
            f"{path}: only their names and ranges are known; PyTorch records collectives that it "
            "launches itself, not those in CUDA graphs or in batches other than of sends",
            bare,
        )
    else:
        range_of_kernel = linked.links.range[rows].astype(np.int64)
        operations, without = operations_of_ranges(ranges, kernels, range_of_kernel, payloads)
        if payloads is not None:
            sized = payloads.take((payloads.communicator >= 0) & (payloads.ranks > 0))
            known_as = (payloads.communicators[row] for row in sized.communicator.tolist())
            sizes.update(zip(known_as, sized.ranks.tolist(), strict=True))
        bare = int(((range_of_kernel == NONE) & kernels.of_nccl).sum())
        outside = Limitation(
            "kernels of NCCL outside its ranges",
            f"{path}: only their names are known; {_RECORD_RANGES[profile.source.api]}",
            bare,
        )
    return NcclProfile(
        source=profile.source,
        kernels=kernels,
        operations=operations,
        sizes=sizes,
        without_kernels=without,
        limitations=(
            *profile.limitations,
            *linked.limitations,
            *(notes if len(rows) else ()),
            *([outside] if bare else []),
        ),
        others="",
    )


# Collectives of PyTorch in the terms of NCCL: names, bytes, communicators.


#: How many bytes an element has (``ScalarType`` of c10/core/ScalarType.h).
_SIZES = {
    **dict.fromkeys(("Byte", "Char", "Bool", "QInt8", "QUInt8", "Bits8"), 1),
    **dict.fromkeys(("Float8_e5m2", "Float8_e4m3fn", "Float8_e5m2fnuz", "Float8_e4m3fnuz"), 1),
    **dict.fromkeys(("Float8_e8m0fnu", "Float4_e2m1fn_x2"), 1),
    **dict.fromkeys(("Short", "UInt16", "Half", "BFloat16", "Bits16"), 2),
    **dict.fromkeys(("Int", "UInt32", "Float", "QInt32", "ComplexHalf"), 4),
    **dict.fromkeys(("Long", "UInt64", "Double", "ComplexFloat"), 8),
    "ComplexDouble": 16,
}
#: Operations whose count is of what a rank takes, not of what it hands in.
_TAKING = frozenset(("ReduceScatter", "Scatter", "Recv"))


def operations_of_pytorch(
    collectives: Collectives, kernels: Kernels, rows: Ints
) -> KernelOperations:
    """Return the operations that kernels of NCCL carry out.

    Args:
        collectives: that kernels carry out.
        kernels: of NCCL.
        rows: activity of each.
    """
    names = [parse_kernel_name(name)[0] for name in kernels.names]
    order = np.argsort(rows)
    place = np.searchsorted(rows[order], collectives.kernel)
    of_nccl = np.flatnonzero(np.isin(collectives.kernel, rows))
    collectives, kernel = collectives.take(of_nccl), order[place[of_nccl]]
    operations = groups_of(collectives.operation)
    first, last = np.full(len(operations), len(rows)), np.full(len(operations), NONE)
    np.minimum.at(first, operations.of_row, kernel)
    np.maximum.at(last, operations.of_row, kernel)
    in_time = np.argsort(first, kind="stable")
    first, last = first[in_time], last[in_time]
    collectives = collectives.take(operations.first[in_time])
    texts = [operation_of(name) for name in collectives.names]
    plain = np.array([name == "AlltoAll" for name in texts], bool)
    known = (*dict.fromkeys((*filter(None, texts), "AlltoAllv", *filter(None, names))),)
    number = {name: place for place, name in enumerate(known)}
    of_text = np.array([number.get(name, NONE) for name in texts], np.int64)
    of_kernel = np.array([number.get(name, NONE) for name in names], np.int64)
    name = of_text[collectives.name]
    name = np.where(plain[collectives.name] & (collectives.uneven > 0), number["AlltoAllv"], name)
    counted = _counted(collectives, name, known)
    size = np.array([*(_SIZES.get(text, NONE) for text in collectives.names), NONE], np.int64)[
        collectives.datatype
    ]
    of_bytes = np.where((counted >= 0) & (size > 0), counted * size, NONE)
    name = np.where(name == NONE, of_kernel[kernels.name[first]], name)
    datatypes = len(known)
    return KernelOperations(
        first=first,
        last=last,
        name=np.where(name == NONE, datatypes + collectives.name, name),
        communicator=collectives.group,
        bytes=of_bytes,
        peer=collectives.peer,
        root=collectives.root,
        rank=collectives.rank,
        sequence=collectives.sequence,
        count=counted,
        datatype=np.where(collectives.datatype == NONE, NONE, datatypes + collectives.datatype),
        names=(*known, *collectives.names),
        communicators=collectives.groups,
    )


def _counted(collectives: Collectives, name: Ints, known: tuple[str, ...]) -> Ints:
    """Return the elements of each operation, as NCCL counts them; -1 unknown.

    NCCL counts one rank's part: a share of what goes to all of them.
    """
    taken = np.array([*(text in _TAKING for text in known), False], bool)[name]
    shared = np.array([*(text == "AlltoAll" for text in known), False], bool)[name]
    counted = np.where(taken, collectives.elements_out, collectives.elements_in)
    ranks = np.array([*(group.size for group in collectives.groups), 0], np.int64)[
        collectives.group
    ]
    share = np.where((ranks > 0) & (counted >= 0), counted // np.maximum(ranks, 1), NONE)
    return np.where(name == NONE, NONE, np.where(shared, share, counted))


# Inputs: the event files and profiles that paths stand for.


#: Endings that event files have: a pointer of such a name in a directory may stand for one.
_SUFFIXES = frozenset(("", ".txt", ".log", ".json", ".jsonl", ".jsonlines"))


def find_inputs(paths: Sequence[str]) -> Mapping[InputFile, EventFileFormat[Any] | None]:
    """Return the files that paths stand for, with the format of event files, None of profiles.

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

    files = find_profiles(paths, ("an event file of NCCL", recognises))
    refuse_twins([file.path for file in files], "file")
    # Event files of ranks that recorded alike may be equal; profiles never are.
    refuse_same_content(Fleet(1), [file.path for file in files if not recognises(file.path)])
    return {file: formats[file.path] if recognises(file.path) else None for file in files}
