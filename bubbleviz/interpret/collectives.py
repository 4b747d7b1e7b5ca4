"""Collectives: when the kernels ran that hold all copies of a stage together.

Kept is, of each iteration of a rank, the first all-reduce, all-gather or reduce-scatter that the
host launched after its last backward: there the gradients of data-parallel copies are reduced,
before norms and embeddings are, in other groups. What runs inside a forward or a backward belongs
to tensor parallelism, or to buckets that nothing tells apart from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bubbleviz.conventions.kinds import matching
from bubbleviz.interpret.spans import owned_by
from bubbleviz.interpret.work import Work
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, Table
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.operations import OperationKeys
from bubbleviz.model.phases import COUNTED, WORK, Phase


@dataclass(frozen=True)
class Collectives(Table):
    """Kernels of collectives, in order of (rank, iteration): at most one each.

    Attributes:
        rank: rank that it ran on.
        iteration: the rank's iteration, in the order of the host.
        kind: row of the list of collectives in ``kinds.toml``.
        start_ns: start on the device.
        end_ns: end on the device.
    """

    rank: Ints
    iteration: Ints
    kind: Ints
    start_ns: Ints
    end_ns: Ints

    def of_iterations(self, iteration: Ints) -> Collectives:
        """Return the collectives with other numbers of iterations."""
        return replace(self, iteration=iteration)


def collectives_of(
    operations: OperationKeys,
    work: Work,
    owner: Codes,
    launched: Callable[[Ints], Ints],
    kind: Codes,
) -> Collectives:
    """Return the collectives of a profile.

    Args:
        operations: of the profile, with their spans.
        work: kernels, then copies.
        owner: operation of each.
        launched: tells when the host launched some of these.
        kind: of each, what kind of collective it is; -1 none.
    """
    held: Bools = work.communication & (kind >= 0) & ~owned_by(operations, owner, WORK)
    rows = np.flatnonzero(held)
    launched_ns = launched(rows)
    order = np.lexsort((work.start_ns[rows], launched_ns, work.rank[rows]))
    rows, launched_ns = rows[order], launched_ns[order]
    iteration = _iterations(operations, work.rank[rows], launched_ns)
    rows, iteration = rows[iteration >= 0], iteration[iteration >= 0]
    first = groups_of(work.rank[rows].astype(np.int64), iteration).first
    rows = rows[first]
    return Collectives(
        rank=work.rank[rows].astype(np.int64),
        iteration=iteration[first],
        kind=kind[rows].astype(np.int64),
        start_ns=work.start_ns[rows],
        end_ns=work.end_ns[rows],
    )


def kinds_of(names: Sequence[str], kinds: Sequence[str]) -> Codes:
    """Return for each name the regular expression that finds a kind of collective in it; -1 none.

    Of several it is the last.
    """
    found = np.full(len(names) + 1, NONE, np.int32)
    for number, regex in enumerate(kinds):
        found[:-1][matching(names, (regex,))] = number
    # The last place is that of no name (-1).
    return found


def _iterations(operations: OperationKeys, rank: Codes, launched_ns: Ints) -> Ints:
    """Return the iteration whose last backward a rank launched just before; -1 none.

    That is -1 too where the next iteration has begun, or the backward goes on.
    """
    counted = np.flatnonzero(np.isin(operations.phase, COUNTED) & (operations.iteration >= 0))
    found = np.full(len(rank), NONE, np.int64)
    for number in np.unique(rank).tolist():
        own = counted[operations.rank[counted] == number]
        if len(own) == 0:
            continue
        own = own[np.argsort(operations.host_start_ns[own], kind="stable")]
        iteration = operations.iteration[own]
        rows = np.flatnonzero(rank == number)
        at = np.searchsorted(operations.host_start_ns[own], launched_ns[rows], side="right") - 1
        last = np.append(iteration[1:] != iteration[:-1], True)
        backward = ~np.isin(operations.phase[own], (Phase.F, Phase.FB))
        found[rows] = np.where((at >= 0) & (last & backward)[at], iteration[at], NONE)
    return found
