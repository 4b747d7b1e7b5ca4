"""Reads operations from NCCL's NVTX ranges, and finds the kernels that carry them out.

An operation is an NCCL API call that opens an NVTX range. Outside of groups, each call launches its
own kernel. Inside a group, the outermost ``ncclGroupEnd`` launches the kernels of all calls::

    ncclGroupStart  ncclSend  ncclRecv  ncclGroupEnd
                                        └─ one kernel for both: SendRecv
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from bubbleviz.analyses.nccl.communications import Communications
from bubbleviz.analyses.nccl.kernels import Kernels, get_family, list_operations
from bubbleviz.interpret import iterations
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import find_distinct, group_rows, lookup_values
from bubbleviz.model.numbering import Numbering
from bubbleviz.model.payloads import Payloads
from bubbleviz.model.profile import Ranges, process_of

#: Name patterns of the ranges that NCCL's API opens.
GLOBS = ("nccl[A-Z]*",)
_OPERATION = re.compile(
    r"nccl(AllReduce|AllGather|ReduceScatter|Broadcast|Bcast|Reduce|Send|Recv|All[Tt]oAllv?|Gather|"
    r"Scatter)(?:Config)?"
)
_GROUP_START, _GROUP_END = "ncclGroupStart", "ncclGroupEnd"


def collect_range_operations(
    ranges: Ranges, kernels: Kernels, range_of_kernel: Ints, payloads: Payloads | None
) -> tuple[Communications, int]:
    """Collect the operations named by NCCL's ranges, and match them with kernels.

    The operations of a group are matched in order with the kernels of the same group and family. If
    a group contains no kernel of an operation's family, the operation is matched with all kernels
    of the group.

    Args:
        ranges: Ranges opened by NCCL.
        kernels: Communication kernels in the profile.
        range_of_kernel: Row of the range that launched each kernel, or -1 if there is none.
        payloads: Payloads of the ranges, or None if no payloads were recorded.

    Returns:
        operations: Operations that have a kernel, followed by kernels that have no operation.
        n_without: Number of operations that have no kernel.
    """
    matches = [_OPERATION.fullmatch(name) for name in ranges.names]
    names = Numbering(match[1] for match in matches if match)
    name_of_text = np.array([names.number(m[1]) if m else NONE for m in matches], np.int64)
    name = name_of_text[ranges.name_id]
    rows = np.flatnonzero(name != NONE)
    rows = rows[np.lexsort((ranges.start_ns[rows], ranges.thread[rows]))]
    first, last = _match_kernels(ranges, kernels, range_of_kernel, rows, name[rows], names)
    has_kernel = first != NONE
    rows, first, last = rows[has_kernel], first[has_kernel], last[has_kernel]
    columns = {"name": name[rows]}
    communicators: tuple[int, ...] = ()
    if payloads is not None:
        communicators = payloads.communicators
        columns |= _lookup_payloads(payloads, ranges, kernels, rows, first)
    operations = list_operations(kernels, first, last, columns, names.values, communicators)
    return operations, int((~has_kernel).sum())


def _match_kernels(
    ranges: Ranges,
    kernels: Kernels,
    range_of_kernel: Ints,
    rows: Ints,
    name: Ints,
    names: Numbering[str],
) -> tuple[Ints, Ints]:
    """Return the rows of each operation's first and last kernel, or -1 if it has none.

    Args:
        ranges: Ranges opened by NCCL.
        kernels: Communication kernels.
        range_of_kernel: Row of the range that launched each kernel, or -1 if there is none.
        rows: Rows of the ranges of the operations.
        name: For each operation, the index of its name in ``names``.
        names: Operation names.
    """
    group = _number_groups(ranges)
    launched = np.flatnonzero(range_of_kernel != NONE)
    kernel_group = group[range_of_kernel[launched]]
    families = Numbering(kernels.families)
    family_of_name = families.numbers(map(get_family, names.values))
    first, last = distribute(
        (group[rows], family_of_name[name]), (kernel_group, kernels.family[launched])
    )
    # A kernel's name may contain no operation, so the family is ignored for unmatched operations.
    unmatched = np.flatnonzero(first == NONE)
    first[unmatched], last[unmatched] = distribute((group[rows[unmatched]],), (kernel_group,))
    launched = np.append(launched, NONE)
    return launched[first], launched[last]


def _lookup_payloads(
    payloads: Payloads, ranges: Ranges, kernels: Kernels, rows: Ints, kernel: Ints
) -> dict[str, Ints]:
    """Look up the operations' communicator, bytes, peer, root and rank in the range payloads.

    The columns are -1 for operations without a payload. The rank comes from :func:`_find_ranks`.

    Args:
        payloads: Payloads of the ranges.
        ranges: Ranges opened by NCCL.
        kernels: Communication kernels.
        rows: Rows of the ranges of the operations.
        kernel: Row of the first kernel of each operation.
    """
    payload = lookup_values(
        (payloads.start_ns, payloads.thread),
        np.arange(len(payloads)),
        (ranges.start_ns[rows], ranges.thread[rows]),
    )
    columns = {
        column: np.where(payload == NONE, NONE, getattr(payloads, column)[payload])
        for column in ("communicator", "bytes", "peer", "root")
    }
    device = np.array([gpu for _, gpu, _ in kernels.places], np.int64)[kernels.gpu_index[kernel]]
    process = process_of(ranges.thread[rows])
    columns["rank"] = _find_ranks(payloads, process, columns["communicator"], device)
    return columns


def _find_ranks(payloads: Payloads, process: Ints, communicator: Ints, device: Ints) -> Ints:
    """Return each operation's rank in its communicator, based on payloads that contain a rank.

    The rank is looked up by (process, communicator, device). If the payloads contain no unique rank
    for this key, the rank is looked up by (process, communicator).

    Args:
        payloads: Payloads recorded with NCCL's ranges.
        process: Process of each operation.
        communicator: Communicator of each operation, or -1 if unknown.
        device: Device of each operation.

    Returns:
        The rank, or -1 if unknown or ambiguous.
    """
    with_rank = np.flatnonzero((payloads.rank >= 0) & (payloads.communicator >= 0))
    payload_keys = (process_of(payloads.thread), payloads.communicator, payloads.device)
    operation_keys = (process, communicator, device)
    ranks = np.full(len(process), NONE, np.int64)
    payload_rank = payloads.rank[with_rank]
    for n_columns in (2, 3):
        key = [column[with_rank] for column in payload_keys[:n_columns]]
        rank = _lookup_unique(key, payload_rank, operation_keys[:n_columns])
        ranks = np.where(rank != NONE, rank, ranks)
    return np.where(communicator == NONE, NONE, ranks)


def _lookup_unique(keys: Sequence[Ints], values: Ints, queries: Sequence[Ints]) -> Ints:
    """Look up values by keys that consist of several columns.

    Args:
        keys: Key columns. A key may occur more than once.
        values: Value of each key, which must not be negative.
        queries: Key columns of the keys to look up.

    Returns:
        The value for each query, or -1 if its key does not occur or occurs with different values.
    """
    groups = group_rows(*keys)
    low, high = intervals.group_extents(groups.of_row, len(groups), values, values)
    unique_value = np.where(low == high, high, NONE)
    return lookup_values([column[groups.first] for column in keys], unique_value, queries)


def _number_groups(ranges: Ranges) -> Ints:
    """Return, for each range, the row of the outermost ``ncclGroupStart`` around it.

    For a range outside of all groups, the row of the range is returned.
    """
    change_of_name = {_GROUP_START: 1, _GROUP_END: -1}
    changes = np.array([change_of_name.get(name, 0) for name in ranges.names], np.int64)
    group = np.arange(len(ranges))
    if len(ranges) == 0 or not changes.any():
        return group
    order = np.lexsort((ranges.start_ns, ranges.thread))
    change = changes[ranges.name_id[order]]
    depth = _measure_depth(change, ranges.thread[order])
    depth_before = depth - change
    is_outermost_start = (change > 0) & (depth_before == 0)
    is_grouped = (depth > 0) | ((change < 0) & (depth_before > 0))
    position = np.where(is_outermost_start, np.arange(len(order)), 0)
    group_start = np.maximum.accumulate(position)
    group[order[is_grouped]] = order[group_start[is_grouped]]
    return group


def _measure_depth(change: Ints, thread: Ints) -> Ints:
    """Return the number of groups that are open on the thread after each range.

    If a capture starts inside a group, group ends that have no start are ignored.

    Args:
        change: Number of groups that each range opens, negative if it closes a group. The ranges of
            a thread are in chronological order.
        thread: Thread of each range.
    """
    depth = np.zeros(len(change), np.int64)
    for number in find_distinct(thread).tolist():
        rows = np.flatnonzero(thread == number)
        total = np.cumsum(change[rows])
        depth[rows] = total - np.minimum(np.minimum.accumulate(total), 0)
    return depth


def distribute(operations: tuple[Ints, ...], kernels: tuple[Ints, ...]) -> tuple[Ints, Ints]:
    """Divide each key's k kernels evenly among its n operations, in order.

    Operation j (zero-based) gets the kernels from floor(j k / n) to floor((j + 1) k / n) - 1. If
    this range is empty, the operation gets kernel floor(j k / n), which it shares with other
    operations.

    Args:
        operations: Key columns of the operations.
        kernels: Key columns of the kernels.

    Returns:
        The rows of the first and last kernel of each operation, or -1 if no kernel has its key.
    """
    first, last = np.full((2, len(operations[0])), NONE, np.int64)
    if len(operations[0]) == 0 or len(kernels[0]) == 0:
        return first, last
    operation_key, kernel_key = _number_keys(operations, kernels)
    n_keys = 1 + max(int(operation_key.max()), int(kernel_key.max()))
    kernel_count = np.bincount(kernel_key, minlength=n_keys)
    operation_count = np.bincount(operation_key, minlength=n_keys)
    has_kernel = np.flatnonzero(kernel_count[operation_key] > 0)
    matched_key = operation_key[has_kernel]
    position = iterations.number_occurrences((operation_key,))[has_kernel]
    low, high = _divide_evenly(position, kernel_count[matched_key], operation_count[matched_key])
    sorted_kernels = np.argsort(kernel_key, kind="stable")
    offset = (np.cumsum(kernel_count) - kernel_count)[matched_key]
    first[has_kernel] = sorted_kernels[offset + low]
    last[has_kernel] = sorted_kernels[offset + high]
    return first, last


def _number_keys(operations: tuple[Ints, ...], kernels: tuple[Ints, ...]) -> tuple[Ints, Ints]:
    """Number the distinct keys, and return the key of each operation and of each kernel.

    Args:
        operations: Key columns of the operations.
        kernels: Key columns of the kernels.
    """
    columns = (np.concatenate(pair) for pair in zip(operations, kernels, strict=True))
    key = group_rows(*columns).of_row
    n_operations = len(operations[0])
    return key[:n_operations], key[n_operations:]


def _divide_evenly(position: Ints, n_kernels: Ints, n_operations: Ints) -> tuple[Ints, Ints]:
    """Return the positions of each operation's first and last kernel; see :func:`distribute`.

    Args:
        position: Zero-based position of each operation among the operations with its key.
        n_kernels: Number of kernels with the same key as each operation.
        n_operations: Number of operations with the same key as each operation.
    """
    low = position * n_kernels // n_operations
    high = np.maximum(low, (position + 1) * n_kernels // n_operations - 1)
    return low, high
