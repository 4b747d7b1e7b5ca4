"""Collectives: when the kernels ran that hold all copies of a stage together.

Kept is, of each iteration of a rank, the first all-reduce, all-gather or reduce-scatter that the
host launched after its last backward: there the gradients of data-parallel copies are reduced,
before norms and embeddings are, in other groups. What runs inside a forward or a backward belongs
to tensor parallelism, or to buckets that nothing tells apart from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bubbleviz.columns import NONE, Bools, Ints, Table
from bubbleviz.grouping import groups_of
from bubbleviz.kinds import matching
from bubbleviz.model import Operations
from bubbleviz.phases import COUNTED, WORK, Phase
from bubbleviz.profile import Kernels
from bubbleviz.spans import owned_by
from bubbleviz.work import Work


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
    operations: Operations,
    work: Work,
    owner: Ints,
    launched_ns: Ints,
    kernels: Kernels,
    kinds: Sequence[str],
) -> Collectives:
    """Return the collectives of a profile.

    Args:
        operations: of the profile, with their spans.
        work: kernels, then copies.
        owner: operation of each.
        launched_ns: when the host launched each.
        kernels: the first of ``work``, with their names.
        kinds: a regular expression for each kind of collective.
    """
    kind_of_name = np.full(len(kernels.names), NONE, np.int64)
    for number, regex in enumerate(kinds):
        kind_of_name[matching(kernels.names, (regex,))] = number
    kind = np.full(len(work), NONE, np.int64)
    kind[: len(kernels)] = kind_of_name[kernels.name_id]
    held: Bools = work.communication & (kind >= 0) & ~owned_by(operations, owner, WORK)
    rows = np.flatnonzero(held)
    rows = rows[np.lexsort((work.start_ns[rows], launched_ns[rows], work.rank[rows]))]
    iteration = _iterations(operations, work.rank[rows], launched_ns[rows])
    rows, iteration = rows[iteration >= 0], iteration[iteration >= 0]
    first = groups_of(work.rank[rows], iteration).first
    rows = rows[first]
    return Collectives(
        rank=work.rank[rows],
        iteration=iteration[first],
        kind=kind[rows],
        start_ns=work.start_ns[rows],
        end_ns=work.end_ns[rows],
    )


def _iterations(operations: Operations, rank: Ints, launched_ns: Ints) -> Ints:
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
