"""End of the capture: operations whose kernels were cut off or lost.

The host runs ahead of its devices. A range may close before the end of the capture although its
kernels run only after the end::

    host     F0 F1 F2 B0 F3 B1 │
    device      F0   F1   F2   B│0        B0 was cut short, F3 and B1 never ran
                                end
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from bubbleviz.conventions.kinds import WORK_CALLS
from bubbleviz.interpret.linking import NEVER, CompactTimes, LinkedWork
from bubbleviz.model.columns import NONE, Bools, Ints, make_mask
from bubbleviz.model.grouping import find_distinct, group_rows, list_rows_by_value, subtract_values
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import COMPUTE, COUNTED, Phase
from bubbleviz.model.profile import CallLog, process_of

#: Codes in ``Operations.cut``. ``OPEN``: a range was still open at the end of the capture.
#: ``UNRECORDED``: kernels that the operation launched are not in the capture.
OPEN, UNRECORDED = 1, 2


def mark_unrecorded(
    operations: Operations, workless: Mapping[int, Sequence[CompactTimes]], process: Ints
) -> Operations:
    """Mark the operations whose GPU work is missing because the capture ended too early.

    Such an operation made API calls that launched no recorded GPU work ("calls without work"). On
    each rank, ``cut`` is set to ``UNRECORDED`` for two kinds of compute operations, unless it is
    already set:

    - Operations after the last one with GPU work, if at least one call without work was made during
      their host range. Operations that never have GPU work are not marked; see
      :func:`_is_always_idle`.
    - The last operation with GPU work, if it has fewer kernels, and more calls without work, than
      every other operation of its phase and chunk; see :func:`_find_cut_operations`.

    Args:
        operations: Operations of one profile, sorted by (rank, host start), with their spans.
        workless: Start times of the calls without work, keyed by process.
        process: Process that owns each rank, shape (ranks,).

    Returns:
        A copy of the operations with a new column ``cut``.
    """
    compute = np.flatnonzero(mask_phases(operations.phase, COMPUTE))
    rank, has_span = operations.rank[compute], operations.has_span[compute] == 1
    last = np.full(len(process), NONE, np.int64)
    np.maximum.at(last, rank[has_span], np.flatnonzero(has_span))
    n_calls = _count_workless_calls(operations, compute, workless, process)
    is_tail = (np.arange(len(compute)) > last[rank]) & (last[rank] >= 0)
    is_unrecorded = is_tail & (n_calls > 0) & ~_is_always_idle(operations, compute, is_tail)
    last = last[last >= 0]
    is_unrecorded[last[_find_cut_operations(operations, compute, last, n_calls)]] = True
    cut = operations.cut.copy()
    rows = compute[is_unrecorded]
    cut[rows[cut[rows] == 0]] = UNRECORDED
    return operations.replace_columns(cut=cut)


def _count_workless_calls(
    operations: Operations,
    rows: Ints,
    workless: Mapping[int, Sequence[CompactTimes]],
    process: Ints,
) -> Ints:
    """Count the calls during each operation that launched no recorded GPU work.

    Calls of the process that owns the operation's rank count if they start between the operation's
    host start and host end, both inclusive.

    Args:
        operations: Operations of one profile.
        rows: Rows of the operations to count for.
        workless: Start times of the calls without recorded GPU work, keyed by process.
        process: Process that owns each rank, shape (ranks,).

    Returns:
        Number of calls for each of ``rows``.
    """
    n_calls = np.zeros(len(rows), np.int64)
    for rank, process_of_rank in enumerate(process.tolist()):
        times = [
            base + offset.astype(np.int64) for base, offset in workless.get(process_of_rank, ())
        ]
        # A stable sort is fast because the calls of each block are already sorted.
        starts_ns = np.sort(np.concatenate((np.empty(0, np.int64), *times)), kind="stable")
        is_of_rank = operations.rank[rows] == rank
        of_rank = rows[is_of_rank]
        high = np.searchsorted(starts_ns, operations.host_end_ns[of_rank], side="right")
        low = np.searchsorted(starts_ns, operations.host_start_ns[of_rank])
        n_calls[is_of_rank] = high - low
    return n_calls


def _is_always_idle(operations: Operations, rows: Ints, is_tail: Bools) -> Bools:
    """Return a mask of the operations that have no GPU work because their kind never has any.

    The kind of an operation is its (rank, phase). For optimizers, it is (rank, phase, name). If a
    kind occurs only after the last operation with GPU work, its work may have been lost, so its
    operations are not in the mask. The mask has the shape of ``rows``.

    Args:
        operations: Operations of one profile.
        rows: Rows of the compute operations.
        is_tail: Mask of ``rows`` that selects the operations after the last operation with GPU work
            on the same rank.
    """
    # Post-validation has the phase of an Optimizer, but often nothing to do.
    is_optimizer = operations.phase[rows] == Phase.OPTIMIZER
    name = np.where(is_optimizer, operations.name_id[rows], NONE)
    kinds = group_rows(operations.rank[rows], operations.phase[rows], name)
    occurs_earlier = make_mask(len(kinds), kinds.of_row[~is_tail])
    has_work = make_mask(len(kinds), kinds.of_row[operations.has_span[rows] == 1])
    return np.asarray((occurs_earlier & ~has_work)[kinds.of_row], bool)


def _find_cut_operations(operations: Operations, rows: Ints, last: Ints, n_calls: Ints) -> Bools:
    """Return a mask of the last operations that lost kernels, judging by similar operations.

    The kind of an operation is its (rank, phase, chunk). The last operation is compared with every
    other operation of its kind that has GPU work. It lost kernels if it has fewer kernels, and more
    calls without work, than all of these operations. The result is False if there is no other
    operation to compare with.

    Args:
        operations: Operations of one profile.
        rows: Rows of the compute operations.
        last: For each rank that has GPU work, the index in ``rows`` of its last operation with GPU
            work.
        n_calls: Number of calls during each operation in ``rows`` that launched no recorded work.

    Returns:
        Mask with the shape of ``last``.
    """
    kinds = group_rows(operations.rank[rows], operations.phase[rows], operations.chunk[rows])
    kind, n_kernels = kinds.of_row, operations.kernels[rows]
    is_cut = np.zeros(len(last), bool)
    for number, index in enumerate(last.tolist()):
        is_other = (kind == kind[index]) & (operations.has_span[rows] == 1)
        is_other[index] = False
        has_more_kernels = n_kernels[is_other] > n_kernels[index]
        has_fewer_calls = n_calls[is_other] < n_calls[index]
        is_cut[number] = is_other.any() and bool((has_more_kernels & has_fewer_calls).all())
    return is_cut


def locate_launches(
    operations: Operations, work: LinkedWork, calls: CallLog, process: Ints
) -> Operations:
    """Determine which operations without GPU work launched work that was not recorded.

    Only F, B, W, BW and FB operations without GPU work are examined. ``launched_ns`` is set to the
    start of the first launching call (``WORK_CALLS``) in the operation's host range that has no
    recorded work. If there is no such call, the operation launched nothing, and ``launched_ns`` is
    set to -1. All threads of the process are searched, because the backward pass may run on another
    thread.

    Args:
        operations: Operations of one profile.
        work: Kernels and copies of the profile, linked to their launching calls.
        calls: All API calls of the profile.
        process: Process that owns each rank, shape (ranks,).

    Returns:
        The operations with a new column ``launched_ns``.
    """
    without_work = np.flatnonzero(
        (operations.has_span == 0) & mask_phases(operations.phase, COUNTED)
    )
    if len(without_work) == 0:
        return operations
    linked = find_distinct(work.call[work.call != NONE].astype(np.int64))
    unlinked = calls.at(subtract_values(calls.named(WORK_CALLS), linked))
    process_of_call = process_of(unlinked.thread)
    launched_ns = operations.launched_ns.copy()
    for rank, indices in list_rows_by_value(operations.rank[without_work]):
        rows = without_work[indices]
        starts_ns = np.sort(unlinked.start_ns[process_of_call == process[rank]])
        next_launch = np.searchsorted(starts_ns, operations.host_start_ns[rows])
        next_ns = np.append(starts_ns, NEVER)[next_launch]
        has_launch = next_ns <= operations.host_end_ns[rows]
        launched_ns[rows] = np.where(has_launch, next_ns, NONE)
    return operations.replace_columns(launched_ns=launched_ns)
