"""Work that the host launched and whose end the capture cut off, or that was lost.

A host runs ahead of its devices. Ranges may close before the end of a capture though their kernels
run after it::

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

#: Codes of ``Operations.cut``: a range was still open, or launched work is not in the capture.
OPEN, UNRECORDED = 1, 2


def mark_unrecorded(
    operations: Operations, workless: Mapping[int, Sequence[CompactTimes]], process: Ints
) -> Operations:
    """Return the operations with ``cut`` set where the capture ended before their work did.

    These are at the end of their rank, without any GPU work though they made calls, and of a
    phase that has work elsewhere on the rank, if it occurs elsewhere. The last one with work was
    cut short if it has fewer kernels, and more calls without work, than each other operation of
    its phase and chunk.

    Args:
        operations: of one profile, in order of (rank, host start), with their spans.
        workless: when calls without work in the profile began, by process.
        process: of each rank.
    """
    compute = np.flatnonzero(mask_phases(operations.phase, COMPUTE))
    rank, spanned = operations.rank[compute], operations.has_span[compute] == 1
    last = np.full(len(process), NONE, np.int64)
    np.maximum.at(last, rank[spanned], np.flatnonzero(spanned))
    tail = (np.arange(len(compute)) > last[rank]) & (last[rank] >= 0)
    # How many calls without work in the profile each operation's process made in it.
    calls = np.zeros(len(compute), np.int64)
    for number, process_of_rank in enumerate(process.tolist()):
        times = [base + after.astype(np.int64) for base, after in workless.get(process_of_rank, ())]
        # Those of each thread are in order already, block by block.
        starts_ns = np.sort(np.concatenate((np.empty(0, np.int64), *times)), kind="stable")
        at = compute[rank == number]
        until, since = operations.host_end_ns[at], operations.host_start_ns[at]
        made = np.searchsorted(starts_ns, until, "right") - np.searchsorted(starts_ns, since)
        calls[rank == number] = made
    tail &= (calls > 0) & ~_is_always_idle(operations, compute, tail)
    short = last[last >= 0]
    short = short[_find_cut(operations, compute, short, calls)]
    cut = operations.cut.copy()
    lost = compute[np.concatenate((np.flatnonzero(tail), short))]
    cut[lost[cut[lost] == 0]] = UNRECORDED
    return operations.replace_columns(cut=cut)


def _is_always_idle(operations: Operations, rows: Ints, tail: Bools) -> Bools:
    """Tell which operations are of a phase that never has GPU work on their rank before."""
    # A post-validation has the phase of an Optimizer, and often nothing to do.
    stepping = operations.phase[rows] == Phase.OPTIMIZER
    name = np.where(stepping, operations.name_id[rows], NONE)
    kind = group_rows(operations.rank[rows], operations.phase[rows], name)
    before = make_mask(len(kind), kind.of_row[~tail])
    works = make_mask(len(kind), kind.of_row[operations.has_span[rows] == 1])
    idle: Bools = before & ~works
    return idle[kind.of_row]


def _find_cut(operations: Operations, rows: Ints, last: Ints, calls: Ints) -> Bools:
    """Tell which of the last operations have less work than each other of their phase and chunk.

    Args:
        operations: of one profile.
        rows: the compute operations.
        last: places among these of each rank's last one with work.
        calls: of each of ``rows``, how many calls it made that have no work.
    """
    kind = group_rows(operations.rank[rows], operations.phase[rows], operations.chunk[rows]).of_row
    kernels = operations.kernels[rows]
    result = np.zeros(len(last), bool)
    for index, row in enumerate(last.tolist()):
        others = (kind == kind[row]) & (operations.has_span[rows] == 1)
        others[row] = False
        less = (kernels[others] > kernels[row]) & (calls[others] < calls[row])
        result[index] = others.any() and bool(less.all())
    return result


def locate_launches(
    operations: Operations, work: LinkedWork, calls: CallLog, process: Ints
) -> Operations:
    """Return the operations, those without GPU work with the time of a launch that they made.

    Such a launch shows that the GPU work of the operation was lost. An operation that launched
    nothing ran nothing. Launches of other threads count too, because backward may run there.

    Args:
        operations: Operations of one profile.
        work: The linked work of the profile.
        calls: Calls of the profile.
        process: Process of each rank.
    """
    lacking = np.flatnonzero((operations.has_span == 0) & mask_phases(operations.phase, COUNTED))
    if len(lacking) == 0:
        return operations
    linked = find_distinct(work.call[work.call != NONE].astype(np.int64))
    lost = calls.at(subtract_values(calls.named(WORK_CALLS), linked))
    process_of_lost = process_of(lost.thread)
    launched_ns = operations.launched_ns.copy()
    # There are few ranks.
    for rank, rows in list_rows_by_value(operations.rank[lacking]):
        of_rank = lacking[rows]
        starts_ns = np.sort(lost.start_ns[process_of_lost == process[rank]])
        next_launch = np.searchsorted(starts_ns, operations.host_start_ns[of_rank])
        next_ns = np.append(starts_ns, NEVER)[next_launch]
        has_launch = next_ns <= operations.host_end_ns[of_rank]
        launched_ns[of_rank] = np.where(has_launch, next_ns, NONE)
    return operations.replace_columns(launched_ns=launched_ns)
