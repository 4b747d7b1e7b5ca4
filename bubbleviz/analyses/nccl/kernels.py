"""NCCL's kernels of a profile, and the operations that they carry out.

An operation is a call of NCCL's interface, that has an NVTX range. Alone it launches its kernel
itself; inside a group the outermost ``ncclGroupEnd`` launches the kernels of all::

    ncclGroupStart  ncclSend  ncclRecv  ncclGroupEnd
                                        └─ one kernel: SendRecv, of both
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from bubbleviz.analyses.nccl.collectives import operations_of_pytorch, sizes_of
from bubbleviz.analyses.nccl.communications import Communicator, KernelOperations
from bubbleviz.interpret.linking.linker import link_by_thread
from bubbleviz.interpret.record import export_of, renamed_limitations
from bubbleviz.model.columns import NONE, Ints, Table
from bubbleviz.model.grouping import groups_of, looked_up
from bubbleviz.model.operations import Limitation
from bubbleviz.model.process_groups import Collectives
from bubbleviz.model.profile import Activities, Profile, Ranges, Source, pid_of, process_of
from bubbleviz.progress import Watch, unwatched
from bubbleviz.sources.nsys.nccl_payloads import Payloads, read_payloads
from bubbleviz.sources.readers import reader_of

#: Ranges that NCCL's interface opens.
GLOBS = ("nccl[A-Z]*",)
_OPERATION = re.compile(
    r"nccl(AllReduce|AllGather|ReduceScatter|Broadcast|Bcast|Reduce|Send|Recv|All[Tt]oAllv?|Gather|"
    r"Scatter)(?:Config)?"
)
_GROUP_START, _GROUP_END = "ncclGroupStart", "ncclGroupEnd"
_KERNEL = re.compile(r"^(?:void )?nccl")
_FAMILY = re.compile(r"nccl\w*?Kernel_?([A-Z][A-Za-z]*)")
#: Operations that kernels named SendRecv carry out.
_PASSING = frozenset(("Send", "Recv", "SendRecv", "AlltoAll", "AllToAll", "Gather", "Scatter"))
_ALGORITHM = re.compile(r"_(TREE|RING|COLLNET_DIRECT|COLLNET_CHAIN|NVLS_TREE|NVLS|PAT)(?=_|\(|$)")
_PROTOCOL = re.compile(r"_(LL128|LL|SIMPLE)(?=_|\(|$)")


def family_of(name: str) -> str:
    """Return the family of an operation's kernels; sends, receives and the like share one."""
    name = {"Bcast": "Broadcast"}.get(name, name)
    return "SendRecv" if name in _PASSING else name


def parse_kernel_name(kernel: str) -> tuple[str, str, str]:
    """Return operation, algorithm and protocol from a kernel's name; "" unknown."""
    family = _FAMILY.search(kernel)
    algorithm, protocol = _ALGORITHM.search(kernel), _PROTOCOL.search(kernel)
    operation = family[1] if family else ""
    return (
        "" if operation == "Generic" else operation,
        algorithm[1] if algorithm else "",
        protocol[1] if protocol else "",
    )


@dataclass(frozen=True)
class Kernels(Table):
    """NCCL's kernels: by (place, start).

    Attributes:
        start_ns: start on the device.
        end_ns: end on the device.
        place: row of ``places``.
        name: row of ``names``.
        names: of kernels.
        places: process id and number of the device.
    """

    start_ns: Ints
    end_ns: Ints
    place: Ints
    name: Ints
    names: tuple[str, ...] = field(metadata={"shared": True})
    places: tuple[tuple[int, int], ...] = field(metadata={"shared": True})


@dataclass(frozen=True)
class NcclProfile:
    """The kernels and operations of NCCL in a profile.

    Attributes:
        source: the profile.
        kernels: that ran.
        operations: that they carry out.
        ranks: number of ranks of each communicator.
        without_kernels: calls whose kernels were not found.
        limitations: what could not be read, and why.
    """

    source: Source
    kernels: Kernels
    operations: KernelOperations
    ranks: tuple[tuple[Communicator, int], ...]
    without_kernels: int
    limitations: tuple[Limitation, ...]


def read_kernels(
    path: str, jobs: int = 1, watch: Watch = unwatched, *, keep_export: bool = False
) -> NcclProfile:
    """Return NCCL's kernels of a profile, with the operations of its ranges.

    Raises:
        ProfileError: it cannot be read.
    """
    with export_of(path, keep=keep_export) as export:
        profile = _of_export(export, jobs, watch)
    # A temporary export goes by its report's name.
    return replace(
        profile,
        source=replace(profile.source, path=path),
        limitations=renamed_limitations(profile.limitations, export, path),
    )


def _of_export(path: str, jobs: int, watch: Watch) -> NcclProfile:
    reader = reader_of(path)
    with reader.open_file(path, jobs, watch) as file:
        nccl_profile = partial(_nccl_profile, file.read(GLOBS, partial=True))
        # Payloads are a matter of nsys; other profiles have none.
        if reader.name == "nsys":
            payloads, notes = read_payloads(path)
            return nccl_profile(payloads if len(payloads) else None, notes)
        return nccl_profile(None, ())


def _nccl_profile(
    profile: Profile, payloads: Payloads | None, notes: tuple[Limitation, ...]
) -> NcclProfile:
    if profile.collectives is not None:
        return _of_pytorch(profile, profile.collectives, *_kernels_of(profile.activities))
    ranges = profile.ranges
    linked = link_by_thread(profile, ranges)
    kernels, rows = _kernels_of(linked.activities)
    range_of_kernel = linked.links.range[rows].astype(np.int64)
    operations, without = _operations(ranges, kernels, range_of_kernel, payloads)
    bare = int((range_of_kernel == NONE).sum())
    outside = Limitation(
        "kernels of NCCL outside its ranges",
        f"{profile.source.path}: only their names are known; record NVTX ranges, and "
        "with --cuda-graph-trace=node where CUDA graphs are used",
        bare,
    )
    implausible = tuple(linked.times.limitations(profile.source.path))
    return NcclProfile(
        source=profile.source,
        kernels=kernels,
        operations=operations,
        ranks=_sizes(payloads),
        without_kernels=without,
        limitations=(
            *(notes if len(rows) else ()),
            *([outside] if bare else []),
            *implausible,
        ),
    )


def _kernels_of(activities: Activities) -> tuple[Kernels, Ints]:
    """Return the kernels of NCCL by place and time, and their rows of the activities."""
    of_nccl = np.array([bool(_KERNEL.search(name)) for name in activities.names], bool)
    rows = np.flatnonzero(of_nccl[activities.name_id[: activities.kernels]])
    rows = rows[np.lexsort((activities.start_ns[rows], activities.rank[rows]))]
    used, name = np.unique(activities.name_id[rows], return_inverse=True)
    kernels = Kernels(
        start_ns=activities.start_ns[rows],
        end_ns=activities.end_ns[rows],
        place=activities.rank[rows].astype(np.int64),
        name=name.reshape(-1).astype(np.int64),
        names=tuple(activities.names[number] for number in used.tolist()),
        places=tuple((pid_of(process), device) for process, device in activities.ranks.tolist()),
    )
    return kernels, rows


def _of_pytorch(
    profile: Profile, collectives: Collectives, kernels: Kernels, rows: Ints
) -> NcclProfile:
    """Return the profile of a PyTorch trace; ``rows`` are the kernels' activities."""
    names = tuple(parse_kernel_name(name)[0] for name in kernels.names)
    operations = operations_of_pytorch(collectives, rows, kernels.name, names)
    bare = int((~np.isin(rows, collectives.kernel)).sum())
    reason = (
        f"{profile.source.path}: only their names are known; PyTorch records collectives that it "
        "launches itself, not those in CUDA graphs or in batches other than of sends"
    )
    note = Limitation("kernels of NCCL without a recorded collective", reason, bare)
    return NcclProfile(
        source=profile.source,
        kernels=kernels,
        operations=operations,
        ranks=sizes_of(collectives),
        without_kernels=0,
        limitations=(note,) if bare else (),
    )


def _sizes(payloads: Payloads | None) -> tuple[tuple[int, int], ...]:
    if payloads is None:
        return ()
    known = (payloads.communicator >= 0) & (payloads.ranks > 0)
    pairs = zip(payloads.communicator[known].tolist(), payloads.ranks[known].tolist(), strict=True)
    return tuple({payloads.communicators[number]: ranks for number, ranks in pairs}.items())


def _operations(
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
    names = tuple(dict.fromkeys(match[1] for match in matches if match is not None))
    of_name = np.array([NONE if m is None else names.index(m[1]) for m in matches], np.int64)
    name = of_name[ranges.name_id] if len(of_name) else np.empty(0, np.int64)
    group = _groups(ranges)
    rows = np.flatnonzero(name != NONE)
    rows = rows[np.lexsort((ranges.start_ns[rows], ranges.thread[rows]))]
    families = tuple(
        dict.fromkeys(
            [*map(family_of, names), *(family_of(parse_kernel_name(n)[0]) for n in kernels.names)]
        )
    )
    of_operation = np.array([families.index(family_of(n)) for n in names], np.int64)
    of_kernel = np.array(
        [families.index(family_of(parse_kernel_name(n)[0])) for n in kernels.names], np.int64
    )
    inside = np.flatnonzero(range_of_kernel != NONE)
    family = of_operation[name[rows]]
    first, last = _shared_out(
        (group[rows], family), (group[range_of_kernel[inside]], of_kernel[kernels.name[inside]])
    )
    # A kernel whose name has no operation is shared out by its group alone.
    rest = np.flatnonzero(first == NONE)
    first[rest], last[rest] = _shared_out((group[rows[rest]],), (group[range_of_kernel[inside]],))
    with_kernels = first != NONE
    rows = rows[with_kernels]
    first, last = inside[first[with_kernels]], inside[last[with_kernels]]
    payload = _payloads_of(ranges, rows, payloads)
    rank = _ranks(ranges, rows, kernels, first, payloads, payload)
    columns = {
        column: getattr(payloads, column)[payload] if payloads is not None else payload
        for column in ("communicator", "bytes", "peer", "root")
    }
    missing = payload == NONE
    columns = {key: np.where(missing, NONE, column) for key, column in columns.items()}
    communicators = () if payloads is None else payloads.communicators
    operations = KernelOperations(
        first=first,
        last=last,
        name=name[rows],
        rank=rank,
        **columns,
        **{column: np.full(len(rows), NONE) for column in ("sequence", "count", "datatype")},
        names=names,
        communicators=communicators,
    )
    return operations, int((~with_kernels).sum())


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
    for number in np.unique(thread).tolist():
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


def _shared_out(wanted: tuple[Ints, ...], given: tuple[Ints, ...]) -> tuple[Ints, Ints]:
    """Return the first and last given row for each wanted row, of those with the same key.

    The rows of one key are shared out in order: one each, or several, or several to one.
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
        rank = _the_one(key, payloads.rank[begun], wanted)
        ranks = np.where(rank != NONE, rank, ranks)
    return np.where(communicator == NONE, NONE, ranks)


def _the_one(keys: tuple[Ints, ...], values: Ints, wanted: tuple[Ints, ...]) -> Ints:
    """Return the value of each wanted key; -1 where there is none, or several."""
    groups = groups_of(*keys)
    low = np.full(len(groups), np.iinfo(np.int64).max)
    high = np.full(len(groups), NONE, np.int64)
    np.minimum.at(low, groups.of_row, values)
    np.maximum.at(high, groups.of_row, values)
    only = np.where(low == high, high, NONE)
    return looked_up([key[groups.first] for key in keys], only, wanted)
