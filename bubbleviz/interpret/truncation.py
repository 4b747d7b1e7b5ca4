"""What the end of a capture cut: work that the host had launched and no device had done.

A host runs ahead of its devices, so that at the end of a capture ranges are closed whose kernels
had not run::

    host     F0 F1 F2 B0 F3 B1 │
    device      F0   F1   F2   B│0        B0 was cut short, F3 and B1 never ran
                                end
"""

from __future__ import annotations

import numpy as np

from bubbleviz.interpret.linking.links import WorklessCalls
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.operations import RankOperations
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import COMPUTE, Phase

#: Codes of ``OperationKeys.cut``: a range was still open, or launched work is not in the capture.
OPEN, UNRECORDED = 1, 2


def mark_unrecorded(
    operations: RankOperations, workless: WorklessCalls, process: Ints
) -> RankOperations:
    """Return the operations with ``cut`` set where the capture ended before their work did.

    These are at the end of their rank, without any GPU work though they made calls, and of a
    phase that has work elsewhere on the rank, if it occurs elsewhere. The last one with work was
    cut short if it has fewer kernels, and more calls without work, than each other operation of
    its phase and chunk.

    Args:
        operations: of one profile, in order of (rank, host start), with their spans.
        workless: calls without work in the profile.
        process: of each rank.
    """
    compute = np.flatnonzero(among(operations.phase, COMPUTE))
    rank, spanned = operations.rank[compute], operations.has_span[compute] == 1
    last = np.full(len(process), NONE, np.int64)
    np.maximum.at(last, rank[spanned], np.flatnonzero(spanned))
    tail = (np.arange(len(compute)) > last[rank]) & (last[rank] >= 0)
    calls = _workless_calls(operations, compute, workless, process)
    tail &= (calls > 0) & ~_always_idle(operations, compute, tail)
    short = last[last >= 0]
    short = short[_cut_short(operations, compute, short, calls)]
    cut = operations.cut.copy()
    lost = compute[np.concatenate((np.flatnonzero(tail), short))]
    cut[lost[cut[lost] == 0]] = UNRECORDED
    return operations.changed(cut=cut)


def _workless_calls(
    operations: RankOperations, rows: Ints, workless: WorklessCalls, process: Ints
) -> Ints:
    """Return how many calls without work in the profile each operation's process made in it."""
    count = np.zeros(len(rows), np.int64)
    for rank, process_of_rank in enumerate(process.tolist()):
        starts_ns = workless.starts_ns(process_of_rank)
        at = operations.rank[rows] == rank
        since, until = operations.host_start_ns[rows[at]], operations.host_end_ns[rows[at]]
        count[at] = np.searchsorted(starts_ns, until, "right") - np.searchsorted(starts_ns, since)
    return count


def _always_idle(operations: RankOperations, rows: Ints, tail: Bools) -> Bools:
    """Tell which operations are of a phase that never has GPU work on their rank before."""
    # A post-validation has the phase of an Optimizer, and often nothing to do.
    stepping = operations.phase[rows] == Phase.OPTIMIZER
    name = np.where(stepping, operations.name_id[rows], NONE)
    kind = groups_of(operations.rank[rows], operations.phase[rows], name)
    before = np.zeros(len(kind), bool)
    before[kind.of_row[~tail]] = True
    works = np.zeros(len(kind), bool)
    works[kind.of_row[operations.has_span[rows] == 1]] = True
    idle: Bools = before & ~works
    return idle[kind.of_row]


def _cut_short(operations: RankOperations, rows: Ints, last: Ints, calls: Ints) -> Bools:
    """Tell which of the last operations have less work than each other of their phase and chunk.

    Args:
        operations: of one profile.
        rows: the compute operations.
        last: places among these of each rank's last one with work.
        calls: of each of ``rows``, how many calls it made that have no work.
    """
    kind = groups_of(operations.rank[rows], operations.phase[rows], operations.chunk[rows]).of_row
    kernels = operations.kernels[rows]
    result = np.zeros(len(last), bool)
    for index, row in enumerate(last.tolist()):
        others = (kind == kind[row]) & (operations.has_span[rows] == 1)
        others[row] = False
        less = (kernels[others] > kernels[row]) & (calls[others] < calls[row])
        result[index] = others.any() and bool(less.all())
    return result
