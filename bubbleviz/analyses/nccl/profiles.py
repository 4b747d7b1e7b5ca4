"""Profiles: NCCL's kernels in each, and the operations that they carry out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from bubbleviz.align.profile_clocks import ProfileClock
from bubbleviz.analyses.idle.evidence import IdleOptions, window_extent
from bubbleviz.analyses.nccl import members
from bubbleviz.analyses.nccl.members import Communications, Communicator, Timing, communications
from bubbleviz.conventions import host_activities
from bubbleviz.conventions import kinds as naming
from bubbleviz.errors import InputError, ProfileError
from bubbleviz.interpret import collectives as interpreted
from bubbleviz.interpret import communication, iterations, linking, record
from bubbleviz.interpret.fleet.run_recordings import Fleet, refuse_same_content
from bubbleviz.interpret.start_skew import RecordedDevice, find_recorded_devices
from bubbleviz.model import intervals
from bubbleviz.model.collectives import Collectives, Payloads
from bubbleviz.model.columns import NONE, Ints, Table
from bubbleviz.model.grouping import Numbering, distinct, groups_of, looked_up, numbered_together
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.pointers import pointer_words
from bubbleviz.model.profile import Activities, Profile, Ranges, Source, pid_of, process_of
from bubbleviz.model.texts import matched_part
from bubbleviz.model.window import Window
from bubbleviz.progress import Watch, unwatched
from bubbleviz.sources.gzip_files import head_of
from bubbleviz.sources.nccl.events import OperationKind
from bubbleviz.sources.nccl.formats import format_of
from bubbleviz.sources.paths import InputFile, find_profiles, refuse_twins

_FAMILY = re.compile(r"nccl(?:(?!nccl)\w)*?Kernel_?([A-Z][A-Za-z]*)")
#: Operations that kernels named SendRecv carry out.
_PASSING = frozenset(("Send", "Recv", "SendRecv", "AlltoAll", "AllToAll", "Gather", "Scatter"))
_ALGORITHM = re.compile(r"_(TREE|RING|COLLNET_DIRECT|COLLNET_CHAIN|NVLS_TREE|NVLS|PAT)(?=_|\(|$)")
_PROTOCOL = re.compile(r"_(LL128|LL|SIMPLE)(?=_|\(|$)")


def family_of(name: str) -> str:
    """Return the family of an operation's kernels; sends, receives and the like share one."""
    name = {"Bcast": "Broadcast"}.get(name, name)
    return "SendRecv" if name in _PASSING else name


def parse_kernel_name(kernel: str) -> tuple[str, str, str]:
    """Return operation, algorithm and protocol from a kernel's name; "" unknown.

    The operation of a kernel that is none of NCCL's is its plain name.
    """
    if not naming.is_nccl(kernel):
        return naming.plain_name(kernel), "", ""
    found = (part.search(matched_part(kernel)) for part in (_FAMILY, _ALGORITHM, _PROTOCOL))
    operation, algorithm, protocol = (match[1] if match else "" for match in found)
    return "" if operation == "Generic" else operation, algorithm, protocol


@dataclass(frozen=True, eq=False, repr=False)
class Starts(Table):
    """Where recorded operations or profiled kernels begin on some clock, ascending.

    Attributes:
        start_ns: start of each.
        family: number of what it does; -1 for anything.
        length_ns: how long it lasts; -1 unknown.
    """

    start_ns: Ints
    family: Ints
    length_ns: Ints


@dataclass(frozen=True, eq=False, repr=False)
class Kernels(Table):
    """Kernels of NCCL, and added ones: by (place, start).

    Attributes:
        start_ns: start on the device, or on the report's clock.
        end_ns: end there.
        place: row of ``places``.
        name: row of ``names``.
        family: row of ``families``: what it does; -1 anything.
        names: of kernels.
        families: as :func:`family_of` has them.
        places: process id, number of the device, and name of the host.
    """

    start_ns: Ints
    end_ns: Ints
    place: Ints
    name: Ints
    family: Ints
    names: tuple[str, ...] = field(default=(), metadata={"shared": True})
    families: tuple[str, ...] = field(default=(), metadata={"shared": True})
    places: tuple[tuple[int, int, str], ...] = field(default=(), metadata={"shared": True})

    def starts(self, place: int) -> Starts:
        """Return the kernels of a place."""
        own = self.take(self.place == place)
        return Starts(own.start_ns, own.family, own.end_ns - own.start_ns)


def kernels_of(activities: Activities, kinds: naming.Kinds, host: str) -> tuple[Kernels, Ints]:
    """Return the kernels of NCCL by place and time, and their rows of the activities.

    Args:
        activities: kernels, then copies.
        kinds: lists of what kernels are; what a user added to them counts as well.
        host: on which they were recorded.
    """
    listed = naming.matching(activities.names, kinds.added_communication)
    listed |= np.array([naming.is_nccl(name) for name in activities.names], bool)
    rows = np.flatnonzero(listed[activities.name_id[: activities.kernels]])
    rows = rows[np.lexsort((activities.start_ns[rows], activities.rank[rows]))]
    used, name = np.unique(activities.name_id[rows], return_inverse=True)
    names = tuple(activities.names[number] for number in used.tolist())
    families = Numbering[str]()
    texts = (family_of(parse_kernel_name(kernel)[0]) for kernel in names)
    family = np.array([families.number(text) if text else NONE for text in texts], np.int64)
    kernels = Kernels(
        start_ns=activities.start_ns[rows],
        end_ns=activities.end_ns[rows],
        place=activities.rank[rows].astype(np.int64),
        name=name.reshape(-1).astype(np.int64),
        family=family[name.reshape(-1)],
        names=names,
        families=families.values,
        places=tuple((pid_of(process), gpu, host) for process, gpu in activities.ranks.tolist()),
    )
    return kernels, rows


def pooled(tables: Sequence[Kernels], clocks: Sequence[ProfileClock]) -> Kernels:
    """Return the kernels of all profiles on the clock of the report.

    Args:
        tables: Kernels of each profile.
        clocks: Clock of each profile.
    """
    places: list[tuple[int, int, str]] = []
    moved = [Kernels.none()]
    for table, clock in zip(tables, clocks, strict=True):
        moved.append(
            replace(
                table,
                start_ns=clock.convert(table.start_ns),
                end_ns=clock.convert(table.end_ns),
                place=table.place + len(places),
            )
        )
        places += table.places
    every = numbered_together(moved, names=("name",), families=("family",))
    return replace(every, places=tuple(places))


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


def _operations(
    kernels: Kernels,
    first: Ints,
    last: Ints,
    columns: Mapping[str, Ints],
    names: Sequence[str],
    communicators: tuple[Communicator, ...] = (),
) -> Communications:
    """Return the operations of a profile, on its clock, then kernels that carry out none.

    Args:
        kernels: that ran.
        first: of each operation its first kernel.
        last: its last kernel.
        columns: of the operations: ``name``, and what else is known of them.
        names: of operations and datatypes.
        communicators: of the operations.
    """
    carries = np.zeros(len(kernels), bool)
    carries[first] = carries[last] = True
    bare = np.flatnonzero(~carries)
    none = np.full(len(bare), NONE)
    fields = [parse_kernel_name(name) for name in kernels.names]
    numbers = Numbering[str]()
    of_names = np.append(numbers.numbers(names), NONE)
    # The name of a kernel's operation is "unknown" where it has none, other fields are empty.
    of_kernel = numbers.numbers(operation or "unknown" for operation, _, _ in fields)
    algorithm, protocol = (
        np.array([numbers.number(f[part]) if f[part] else NONE for f in fields], np.int64)
        for part in (1, 2)
    )
    every = {name: np.append(column, none) for name, column in columns.items()}
    every["name"] = np.append(of_names[columns["name"]], of_kernel[kernels.name[bare]])
    if "datatype" in columns:
        every["datatype"] = np.append(of_names[columns["datatype"]], none)
    first, last = np.append(first, bare), np.append(last, bare)
    pids = np.array([pid for pid, *_ in kernels.places], np.int64)
    every |= {
        "pid": pids[kernels.place[first]],
        "algorithm": algorithm[kernels.name[first]],
        "protocol": protocol[kernels.name[first]],
        "duration_ns": kernels.end_ns[last] - kernels.start_ns[first],
        "kernel": first,
        "gpu": kernels.place[first],
    }
    codes = {"kind": int(OperationKind.KERNEL), "timing": int(Timing.KERNEL)}
    return communications(len(first), {**every, **codes}, numbers.values, communicators)


def operations_of_ranges(
    ranges: Ranges, kernels: Kernels, range_of_kernel: Ints, payloads: Payloads | None
) -> tuple[Communications, int]:
    """Return the operations that have kernels, and how many have none.

    Args:
        ranges: of NCCL.
        kernels: that ran.
        range_of_kernel: row of the ranges; -1 none.
        payloads: of ranges.
    """
    matches = [_OPERATION.fullmatch(name) for name in ranges.names]
    names = Numbering(match[1] for match in matches if match)
    of_name = np.array([names.number(m[1]) if m else NONE for m in matches], np.int64)
    name = of_name[ranges.name_id]
    group = _groups(ranges)
    rows = np.flatnonzero(name != NONE)
    rows = rows[np.lexsort((ranges.start_ns[rows], ranges.thread[rows]))]
    inside = np.flatnonzero(range_of_kernel != NONE)
    kernel_group = group[range_of_kernel[inside]]
    families = Numbering(kernels.families)
    of_operation = families.numbers(map(family_of, names.values))
    first, last = distribute(
        (group[rows], of_operation[name[rows]]), (kernel_group, kernels.family[inside])
    )
    # A kernel whose name has no operation is distributed by its group alone.
    rest = np.flatnonzero(first == NONE)
    first[rest], last[rest] = distribute((group[rows[rest]],), (kernel_group,))
    found = first != NONE
    rows, first, last = rows[found], inside[first[found]], inside[last[found]]
    columns = {"name": name[rows]}
    communicators: tuple[int, ...] = ()
    if payloads is not None:
        keys = payloads.start_ns, payloads.thread
        wanted = ranges.start_ns[rows], ranges.thread[rows]
        at = looked_up(keys, np.arange(len(payloads)), wanted)
        for column in ("communicator", "bytes", "peer", "root"):
            columns[column] = np.where(at == NONE, NONE, getattr(payloads, column)[at])
        device = np.array([gpu for _, gpu, _ in kernels.places], np.int64)[kernels.place[first]]
        process = process_of(ranges.thread[rows])
        columns["rank"] = _ranks(payloads, process, columns["communicator"], device)
        communicators = payloads.communicators
    operations = _operations(kernels, first, last, columns, names.values, communicators)
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
    place = iterations.occurrences((wanted_key,))
    has = np.flatnonzero(given_count[wanted_key] > 0)
    keys = wanted_key[has]
    n, k, j = wanted_count[keys], given_count[keys], place[has]
    sorted_given = np.argsort(given_key, kind="stable")
    offset = (np.cumsum(given_count) - given_count)[keys]
    low = j * k // n
    high = np.maximum(low, (j + 1) * k // n - 1)
    first[has], last[has] = sorted_given[offset + low], sorted_given[offset + high]
    return first, last


_OF_XLA = "XLA tells no more; give NCCL's event files, too, or a profile of nsys"
#: What records what kernels carry out, by the format, else by the API of the launching calls.
_RECORD_RANGES = {
    "xplane": _OF_XLA,
    "xla-trace": _OF_XLA,
    "CUDA": "record NVTX ranges, and with --cuda-graph-trace=node where CUDA graphs are used",
    "HIP": "record RCCL's calls with rocprofv3 --rccl-trace beside HIP's",
}


@dataclass(frozen=True)
class NcclProfile:
    """The kernels and operations of NCCL in a profile.

    Attributes:
        source: the profile.
        kernels: that ran.
        operations: that they carry out; their kernels and places are rows of ``kernels``.
        sizes: number of ranks of each communicator.
        limitations: what could not be read, and why.
        others: a clause on the commands that tell something of it without communication.
        window_ns: start and end (exclusive) of the window of iterations to analyse; None for none.
        recorded: When the recording of each device began.
    """

    source: Source
    kernels: Kernels
    operations: Communications
    sizes: Mapping[Communicator, int]
    limitations: tuple[Limitation, ...]
    others: str
    window_ns: tuple[int, int] | None = None
    recorded: tuple[RecordedDevice, ...] = ()


def read_profile(
    path: str,
    jobs: int = 1,
    watch: Watch = unwatched,
    *,
    kinds: naming.Kinds,
    keep_export: bool = False,
    window: Window | None = None,
) -> NcclProfile:
    """Return NCCL's kernels of a profile, with the operations of its ranges.

    Args:
        path: of the profile.
        jobs: threads that read it.
        watch: receives how much of it has been read.
        kinds: lists of what kernels are, with the user's additions.
        keep_export: leave an export made of a ``.nsys-rep`` report beside it.
        window: of iterations, to find on the profile's clock.

    Raises:
        ProfileError: it cannot be read.
        InputError: it holds no iteration of the window.
    """
    with record.opened_profile(path, jobs, watch, keep_export=keep_export) as (file, export):
        whole = file.read((*GLOBS, *naming.OPERATION_GLOBS), partial=True)
        profile = _nccl_profile(whole, kinds)
        if len(profile.kernels) == 0:
            others = record.other_commands(whole, path, file.sample(("*hlo_op=*",)))
            profile = replace(profile, others=others)
        if window is not None:
            options = IdleOptions(0, None, host_activities.default_activities(), kinds)
            try:
                profile = replace(profile, window_ns=window_extent(whole, window, options))
            except ProfileError as error:
                # Without this profile's iterations another one's would be taken.
                raise InputError(str(error)) from error
    # A temporary export goes by its report's name.
    return replace(
        profile,
        source=replace(profile.source, path=path),
        limitations=record.renamed_limitations(profile.limitations, export, path),
    )


def _nccl_profile(profile: Profile, kinds: naming.Kinds) -> NcclProfile:
    payloads, notes = (None, ()) if profile.payloads is None else profile.payloads()
    if payloads is not None and len(payloads) == 0:
        payloads = None
    profile = communication.with_added_communication(profile, kinds)
    path = profile.source.path
    ranges = profile.ranges
    own = np.array([not name.startswith("nccl:") for name in ranges.names], bool)
    ranges = ranges.take(own[ranges.name_id])
    linked = linking.link(profile, ranges)
    activities = linked.profile.activities
    kernels, rows = kernels_of(activities, kinds, profile.source.host)
    of_nccl = np.array([naming.is_nccl(name) for name in kernels.names], bool)[kernels.name]
    sizes: dict[Communicator, int] = {}
    without = 0
    if profile.collectives is not None:
        collectives = interpreted.sound_collectives(profile.collectives, linked.sound)
        known = interpreted.with_told_operations(
            collectives, *interpreted.told_operations(collectives, linked)
        )
        operations = operations_of_pytorch(known, kernels, rows)
        sizes = {group: group.size for group in collectives.groups if group.size}
        notes = ()
        bare = int((~np.isin(rows, collectives.kernel) & of_nccl).sum())
        where = "without a recorded collective"
        why = (
            "PyTorch records collectives that it launches itself, not those in CUDA graphs or in "
            "batches other than of sends"
        )
    else:
        range_of_kernel = linked.links.range[rows].astype(np.int64)
        operations, without = operations_of_ranges(ranges, kernels, range_of_kernel, payloads)
        if payloads is not None:
            sized = payloads.take((payloads.communicator >= 0) & (payloads.ranks > 0))
            known_as = (payloads.communicators[row] for row in sized.communicator.tolist())
            sizes.update(zip(known_as, sized.ranks.tolist(), strict=True))
        bare = int(((range_of_kernel == NONE) & of_nccl).sum())
        source, where = profile.source, "outside its ranges"
        why = _RECORD_RANGES.get(source.format) or _RECORD_RANGES[source.api]
    unknown = (
        Limitation(f"kernels of NCCL {where}", f"{path}: only their names are known; {why}", bare),
        Limitation(
            "calls of NCCL without kernels",
            f"{path}: in CUDA graphs, or outside the capture",
            without,
        ),
    )
    return NcclProfile(
        source=profile.source,
        kernels=kernels,
        operations=operations,
        sizes=sizes,
        limitations=(
            *profile.limitations,
            *linked.limitations,
            *(notes if len(rows) else ()),
            *(note for note in unknown if note.count),
        ),
        others="",
        recorded=find_recorded_devices(linked, activities, kinds),
    )


# Collectives of PyTorch in the terms of NCCL: names, bytes, communicators.


#: Operations whose count is of what a rank takes, not of what it hands in.
_TAKING = frozenset(("ReduceScatter", "Scatter", "Recv"))


def operations_of_pytorch(collectives: Collectives, kernels: Kernels, rows: Ints) -> Communications:
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
    texts = [naming.operation_of(name) for name in collectives.names]
    plain = np.array([name == "AlltoAll" for name in texts], bool)
    known = (*dict.fromkeys((*filter(None, texts), "AlltoAllv", *filter(None, names))),)
    number = {name: place for place, name in enumerate(known)}
    of_text = np.array([number.get(name, NONE) for name in texts], np.int64)
    of_kernel = np.array([number.get(name, NONE) for name in names], np.int64)
    name = of_text[collectives.name]
    name = np.where(plain[collectives.name] & (collectives.uneven > 0), number["AlltoAllv"], name)
    counted = _counted(collectives, name, known)
    size = np.array(
        [*(members.SIZES.get(text, NONE) for text in collectives.names), NONE], np.int64
    )[collectives.datatype]
    of_bytes = np.where((counted >= 0) & (size > 0), counted * size, NONE)
    name = np.where(name == NONE, of_kernel[kernels.name[first]], name)
    datatypes = len(known)
    columns = {
        "name": np.where(name == NONE, datatypes + collectives.name, name),
        "communicator": collectives.group,
        "bytes": of_bytes,
        "peer": collectives.peer,
        "root": collectives.root,
        "rank": collectives.rank,
        "sequence": collectives.sequence,
        "count": counted,
        "datatype": np.where(collectives.datatype == NONE, NONE, datatypes + collectives.datatype),
    }
    texts = [*known, *collectives.names]
    return _operations(kernels, first, last, columns, texts, collectives.groups)


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


def find_inputs(paths: Sequence[str]) -> Mapping[InputFile, str]:
    """Return the files that paths stand for, with the format of event files, "" of profiles.

    Raises:
        InputError: a path that does not exist, or leads to neither.
        MismatchError: a file is named twice.
        ProfileError: a file cannot be read.
    """
    if not paths:
        raise InputError("no file given; name event files of NCCL, profiles, or both")
    formats: dict[str, str] = {}
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
                formats[path] = ""
        return formats[path] != "" or path in pointers

    files = find_profiles(paths, ("an event file of NCCL", recognises))
    refuse_twins([file.path for file in files], "file")
    # Event files of ranks that recorded alike may be equal; profiles never are.
    refuse_same_content(Fleet(1), [file.path for file in files if not recognises(file.path)])
    return {file: formats[file.path] if recognises(file.path) else "" for file in files}
