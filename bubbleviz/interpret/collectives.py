"""Replica collectives: when the kernels ran that synchronise the replicas of a stage.

Of each iteration of a rank this is the first all-reduce, all-gather or reduce-scatter that the
host launched after its last backward: it reduces the gradients of data-parallel replicas, before
those of norms and embeddings are reduced in other groups. What runs inside a forward or a backward
belongs to tensor parallelism, or to buckets that cannot be distinguished from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.conventions.kinds import matching
from bubbleviz.interpret.device_work import RankWork
from bubbleviz.interpret.spans import owned_by
from bubbleviz.model.columns import NONE, Codes, Ints, Table
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.operations import OperationKeys
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import COUNTED, WORK, Phase
from bubbleviz.model.values import frozen


@frozen
class ReplicaCollectives(Table):
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

    def of_iterations(self, iteration: Ints) -> ReplicaCollectives:
        """Return the collectives with other numbers of iterations."""
        return replace(self, iteration=iteration)


def collectives_of(
    keys: OperationKeys, ran: RankWork, launched: Callable[[Ints], Ints], kind: Codes
) -> ReplicaCollectives:
    """Return the collectives of ranks.

    Args:
        keys: of the operations of the ranks.
        ran: all that ran on them.
        launched: gives when the host launched some rows of its work.
        kind: kind of collective of each row of its work; -1 none.
    """
    work = ran.work
    rows = np.flatnonzero(work.communication)
    rows = rows[(kind[rows] >= 0) & ~owned_by(keys, ran.owner[rows], WORK)]
    launched_ns = launched(rows)
    order = np.lexsort((work.start_ns[rows], launched_ns))
    rows = rows[order]
    iteration = _iterations(keys, work.rank[rows], launched_ns[order])
    rows, iteration = rows[iteration >= 0], iteration[iteration >= 0]
    rank = work.rank[rows].astype(np.int64)
    first = groups_of(rank, iteration).first
    rows = rows[first]
    return ReplicaCollectives(
        rank=rank[first],
        iteration=iteration[first],
        kind=kind[rows].astype(np.int64),
        start_ns=work.start_ns[rows],
        end_ns=work.end_ns[rows],
    )


def kinds_of(names: Sequence[str], kinds: Sequence[str]) -> Codes:
    """Return for each name the regular expression that finds a kind of collective in it; -1 none.

    Of several it is the last.
    """
    number_of = np.full(len(names) + 1, NONE, np.int32)
    for number, regex in enumerate(kinds):
        number_of[:-1][matching(names, (regex,))] = number
    # The last place is that of no name (-1).
    return number_of


def _iterations(keys: OperationKeys, rank: Codes, launched_ns: Ints) -> Ints:
    """Return the iteration whose last backward its rank launched just before each time; -1 none.

    That is -1 too where the next iteration has begun, or the backward goes on.
    """
    rows = np.flatnonzero(among(keys.phase, COUNTED) & (keys.iteration >= 0))
    if len(rows) == 0:
        return np.full(len(launched_ns), NONE, np.int64)
    rows = rows[np.argsort(keys.host_start_ns[rows], kind="stable")]
    iteration, owner = keys.iteration[rows], keys.rank[rows]
    at = np.searchsorted(keys.host_start_ns[rows], launched_ns, side="right") - 1
    last = (iteration[1:] != iteration[:-1]) | (owner[1:] != owner[:-1])
    last = np.append(last, True)
    backward = ~among(keys.phase[rows], (Phase.F, Phase.FB))
    return np.where((at >= 0) & (last & backward)[at] & (owner[at] == rank), iteration[at], NONE)
