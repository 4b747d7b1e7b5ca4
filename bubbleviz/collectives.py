"""Collectives: when the kernels ran that hold all copies of a stage together.

Kept are all-reduces, all-gathers and reduce-scatters outside of forward and backward: the
gradients of data-parallel copies, reduced before the Optimizer. Those inside a forward or a
backward belong to tensor parallelism, whose copies share a host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bubbleviz.columns import NONE, Bools, Ints, Table
from bubbleviz.grouping import groups_of
from bubbleviz.iterations import occurrences
from bubbleviz.kinds import matching
from bubbleviz.model import Operations
from bubbleviz.phases import COUNTED, WORK
from bubbleviz.spans import owned_by
from bubbleviz.work import Work


@dataclass(frozen=True)
class Collectives(Table):
    """Kernels of collectives, in order of (rank, start).

    Attributes:
        rank: rank that it ran on.
        iteration: the rank's iteration, that of the last forward or backward that began before.
        kind: row of the list of collectives in ``kinds.toml``.
        place: 0, 1, .. of its kind in that iteration.
        count: how many of its kind that iteration has.
        start_ns: start on the device.
        end_ns: end on the device.
    """

    rank: Ints
    iteration: Ints
    kind: Ints
    place: Ints
    count: Ints
    start_ns: Ints
    end_ns: Ints

    def of_iterations(self, iteration: Ints) -> Collectives:
        """Return the collectives with other numbers of iterations."""
        return replace(self, iteration=iteration)


def collectives_of(
    operations: Operations,
    work: Work,
    owner: Ints,
    kernel_name: Ints,
    names: Sequence[str],
    kinds: Sequence[str],
) -> Collectives:
    """Return the collectives of a profile.

    Args:
        operations: of the profile, with their spans.
        work: kernels, then copies.
        owner: operation of each.
        kernel_name: row of ``names`` of each kernel.
        names: demangled names of kernels.
        kinds: a regular expression for each kind of collective.
    """
    kind_of_name = np.full(len(names) + 1, NONE, np.int64)
    for number, regex in enumerate(kinds):
        kind_of_name[:-1][matching(names, (regex,))] = number
    kind = np.full(len(work), NONE, np.int64)
    kind[: len(kernel_name)] = kind_of_name[kernel_name]
    held: Bools = work.communication & (kind >= 0) & ~owned_by(operations, owner, WORK)
    rows = np.flatnonzero(held)
    rows = rows[np.lexsort((work.start_ns[rows], work.rank[rows]))]
    iteration = _iterations(operations, work.rank[rows], work.start_ns[rows])
    of_kind = work.rank[rows], iteration, kind[rows]
    group = groups_of(*of_kind).of_row
    return Collectives(
        rank=work.rank[rows],
        iteration=iteration,
        kind=kind[rows],
        place=occurrences(of_kind),
        count=np.bincount(group, minlength=1)[group],
        start_ns=work.start_ns[rows],
        end_ns=work.end_ns[rows],
    )


def _iterations(operations: Operations, rank: Ints, start_ns: Ints) -> Ints:
    """Return the iteration of the last forward or backward that began before; -1 none."""
    begun = np.flatnonzero(np.isin(operations.phase, COUNTED) & (operations.has_span == 1))
    found = np.full(len(rank), NONE, np.int64)
    for number in np.unique(rank).tolist():
        own = begun[operations.rank[begun] == number]
        own = own[np.argsort(operations.start_ns[own], kind="stable")]
        rows = np.flatnonzero(rank == number)
        at = np.searchsorted(operations.start_ns[own], start_ns[rows], side="right") - 1
        found[rows] = np.where(at >= 0, operations.iteration[own][at], NONE) if len(own) else NONE
    return found
