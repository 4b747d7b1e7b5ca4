"""What the end of a capture cut: work that the host had launched and no device had done.

A host runs ahead of its devices, so that at the end of a capture ranges are closed whose kernels
had not run::

    host     F0 F1 F2 B0 F3 B1 │
    device      F0   F1   F2   B│0        B0 was cut short, F3 and B1 never ran
                                end
"""

from __future__ import annotations

import numpy as np

from bubbleviz.interpret.link import VainCalls
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.operations import RankOperations
from bubbleviz.model.phases import COMPUTE, Phase

#: Codes of ``OperationKeys.cut``: a range was still open, or launched work is not in the capture.
OPEN, UNRECORDED = 1, 2


def mark_unrecorded(operations: RankOperations, vain: VainCalls, owner: Ints) -> RankOperations:
    """Return the operations with ``cut`` set where the capture ended before their work did.

    These are at the end of their rank, without any GPU work though they made calls, and of a
    phase that has work elsewhere on the rank, if it occurs elsewhere. The last one with work was
    cut short if it has fewer kernels, and more calls without work, than each other operation of
    its phase and chunk.

    Args:
        operations: of one profile, in order of (rank, host start), with their spans.
        vain: calls without work in the profile.
        owner: process of each rank.
    """
    compute = np.flatnonzero(np.isin(operations.phase, COMPUTE))
    rank, spanned = operations.rank[compute], operations.has_span[compute] == 1
    last = np.full(len(owner), NONE, np.int64)
    np.maximum.at(last, rank[spanned], np.flatnonzero(spanned))
    tail = (np.arange(len(compute)) > last[rank]) & (last[rank] >= 0)
    in_vain = _calls_in_vain(operations, compute, vain, owner)
    tail &= (in_vain > 0) & ~_always_idle(operations, compute, tail)
    short = last[last >= 0]
    short = short[_cut_short(operations, compute, short, in_vain)]
    cut = operations.cut.copy()
    lost = compute[np.concatenate((np.flatnonzero(tail), short))]
    cut[lost[cut[lost] == 0]] = UNRECORDED
    return operations.changed(cut=cut)


def _calls_in_vain(operations: RankOperations, rows: Ints, vain: VainCalls, owner: Ints) -> Ints:
    """Return how many calls without work in the profile each operation's process made in it."""
    count = np.zeros(len(rows), np.int64)
    for index, own in enumerate(owner.tolist()):
        starts = vain.starts_ns(own)
        at = operations.rank[rows] == index
        since, until = operations.host_start_ns[rows[at]], operations.host_end_ns[rows[at]]
        count[at] = np.searchsorted(starts, until, "right") - np.searchsorted(starts, since)
    return count


def _always_idle(operations: RankOperations, rows: Ints, tail: Bools) -> Bools:
    """Return which operations are of a phase that never has GPU work on their rank before."""
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


def _cut_short(operations: RankOperations, rows: Ints, asked: Ints, vain: Ints) -> Bools:
    """Return which of the asked have less work than each other one of their phase and chunk."""
    kind = groups_of(operations.rank[rows], operations.phase[rows], operations.chunk[rows]).of_row
    kernels = operations.kernels[rows]
    result = np.zeros(len(asked), bool)
    for index, row in enumerate(asked.tolist()):
        others = (kind == kind[row]) & (operations.has_span[rows] == 1)
        others[row] = False
        less = (kernels[others] > kernels[row]) & (vain[others] < vain[row])
        result[index] = others.any() and bool(less.all())
    return result
