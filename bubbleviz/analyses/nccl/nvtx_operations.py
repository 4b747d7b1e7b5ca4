"""NVTX operations: the ranges that NCCL opens, and the kernels that carry them out.

An operation is a call of NCCL's interface, that has an NVTX range. Alone it launches its kernel
itself; inside a group the outermost ``ncclGroupEnd`` launches the kernels of all::

    ncclGroupStart  ncclSend  ncclRecv  ncclGroupEnd
                                        └─ one kernel: SendRecv, of both
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from bubbleviz.analyses.nccl.communications import KernelOperations
from bubbleviz.analyses.nccl.kernel_names import family_of, kernel_family
from bubbleviz.analyses.nccl.kernels import Kernels
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import distinct, groups_of, looked_up
from bubbleviz.model.nccl_payloads import Payloads
from bubbleviz.model.profile import Ranges, process_of

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
