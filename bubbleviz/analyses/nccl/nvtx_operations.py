"""Operations of NVTX: the ranges that NCCL opens, and the kernels that carry them out.

An operation is a call of NCCL's interface that has an NVTX range. Outside of groups it launches its
kernel itself. Inside a group the outermost ``ncclGroupEnd`` launches the kernels of all of them::

    ncclGroupStart  ncclSend  ncclRecv  ncclGroupEnd
                                        └─ one kernel: SendRecv, of both
"""

from __future__ import annotations

import re

import numpy as np

from bubbleviz.analyses.nccl.communications import Communications
from bubbleviz.analyses.nccl.kernels import Kernels, family_of, list_operations
from bubbleviz.interpret import iterations
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import find_distinct, group_rows, lookup_values
from bubbleviz.model.numbering import Numbering
from bubbleviz.model.payloads import Payloads
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
        at = lookup_values(keys, np.arange(len(payloads)), wanted)
        for column in ("communicator", "bytes", "peer", "root"):
            columns[column] = np.where(at == NONE, NONE, getattr(payloads, column)[at])
        device = np.array([gpu for _, gpu, _ in kernels.places], np.int64)[kernels.place[first]]
        process = process_of(ranges.thread[rows])
        columns["rank"] = _ranks(payloads, process, columns["communicator"], device)
        communicators = payloads.communicators
    operations = list_operations(kernels, first, last, columns, names.values, communicators)
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
        groups = group_rows(*key)
        values = payloads.rank[begun]
        low, high = intervals.group_extents(groups.of_row, len(groups), values, values)
        only = np.where(low == high, high, NONE)
        rank = lookup_values([column[groups.first] for column in key], only, wanted[:columns])
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
    for number in find_distinct(thread).tolist():
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
    key = group_rows(*(np.concatenate(pair) for pair in zip(wanted, given, strict=True))).of_row
    wanted_key, given_key = key[:count], key[count:]
    size = int(key.max()) + 1
    wanted_count = np.bincount(wanted_key, minlength=size)
    given_count = np.bincount(given_key, minlength=size)
    place = iterations.number_occurrences((wanted_key,))
    has = np.flatnonzero(given_count[wanted_key] > 0)
    keys = wanted_key[has]
    n, k, j = wanted_count[keys], given_count[keys], place[has]
    sorted_given = np.argsort(given_key, kind="stable")
    offset = (np.cumsum(given_count) - given_count)[keys]
    low = j * k // n
    high = np.maximum(low, (j + 1) * k // n - 1)
    first[has], last[has] = sorted_given[offset + low], sorted_given[offset + high]
    return first, last
