"""Collective intervals of ranks: their kernels that communicate among more than two ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.conventions.kinds import kind_of_collective
from bubbleviz.interpret.device_work import RankWork
from bubbleviz.interpret.linking.links import NEVER
from bubbleviz.interpret.recorded_collectives import RecordedCollectives
from bubbleviz.interpret.spans import owned_by
from bubbleviz.model import intervals
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import NONE, Bools, Codes, Ints
from bubbleviz.model.grouping import distinct_rows, found_in, groups_of
from bubbleviz.model.operations import OperationKeys
from bubbleviz.model.phases import WORK
from bubbleviz.model.values import frozen

#: A rank reduces in no more buckets than that an iteration.
_FEW = 64


@frozen
class CollectiveNames:
    """What kernels of collectives do, by their names.

    Attributes:
        names: of kernels.
        kinds: names of collectives, and the regexes that find them.
    """

    names: Sequence[str]
    kinds: Sequence[tuple[str, str]]

    @property
    def texts(self) -> tuple[str, ...]:
        """The names of kinds; the last one is that of what has none."""
        return (*(name for name, _ in self.kinds), "")

    def kind(self, name_id: Codes) -> Ints:
        """Return the row of ``texts`` of kernels by the rows of their names; -1 for no name."""
        used, of_row = np.unique(name_id, return_inverse=True)
        kinds = [
            NONE if name < 0 else kind_of_collective(self.names[name], self.kinds)
            for name in used.tolist()
        ]
        kind = np.array(kinds, np.int64)
        return np.where(kind < 0, len(self.kinds), kind)[of_row.reshape(-1)]


def collective_intervals(
    keys: OperationKeys,
    ran: RankWork,
    rows: Ints,
    launched_ns: Ints,
    exposed: intervals.Intervals,
    kernels: CollectiveNames,
    recorded: RecordedCollectives,
) -> tuple[CollectiveIntervals, Ints]:
    """Return the collectives of ranks that are kept, in order of time, and their first kernels.

    These are rows of the ranks' work; how late each was launched is not worked out yet.

    Args:
        keys: of the ranks' operations.
        ran: all that ran on them, side by side.
        rows: of this work that are communication, and not between two ranks.
        launched_ns: when the host launched these; the end of time where that is unknown.
        exposed: when only they ran.
        kernels: names of kernels.
        recorded: what the profile records of kernels.
    """
    if len(rows) == 0:
        nothing = replace(CollectiveIntervals.none(), kinds=kernels.texts, groups=recorded.groups)
        return nothing, rows
    work = ran.work
    whole = _whole(ran.rows[rows], work.rank[rows], recorded)
    first = whole.first
    start_ns, end_ns = intervals.group_extents(
        whole.of_row, len(whole.first), work.start_ns[rows], work.end_ns[rows]
    )
    rows, launched_ns, at = rows[first], launched_ns[first], whole.recorded[first]
    owner = ran.owner[rows].astype(np.int64)
    group = np.append(recorded.group, NONE)[at]
    kind = kernels.kind(ran.name_id[rows])
    # A kernel starts after its launch, so that its start stands for it well enough.
    launched_ns = np.where(launched_ns == NEVER, start_ns, launched_ns)
    rank = work.rank[rows].astype(np.int64)
    iteration = _iterations(keys, rank, owner, launched_ns)
    table = CollectiveIntervals(
        rank=rank,
        iteration=iteration,
        kind=kind,
        group=group,
        order=places_by_launch(launched_ns, start_ns, rank, kind, group, iteration),
        sequence=np.append(recorded.sequence, NONE)[at],
        start_ns=start_ns,
        end_ns=end_ns,
        late_ns=np.zeros(len(rows), np.int64),
        operation=owner,
        meeting=np.full(len(rows), NONE, np.int64),
        kinds=kernels.texts,
        groups=recorded.groups,
    )
    kept = _kept(keys, table, exposed)
    order = np.flatnonzero(kept)
    order = order[np.argsort(start_ns[order], kind="stable")]
    return table.take(order), rows[order]


@frozen
class _Whole:
    """Kernels, and the operations that they are pieces of.

    Attributes:
        recorded: row of what is recorded of each kernel; -1 none.
        of_row: number of each kernel's operation.
        first: the first kernel of each.
    """

    recorded: Ints
    of_row: Ints
    first: Ints


def _whole(kernels: Codes, rank: Codes, recorded: RecordedCollectives) -> _Whole:
    """Return the operations of some kernels: one each where nothing else is recorded."""
    at = found_in(recorded.kernel, kernels)
    operation = np.append(recorded.operation, NONE)[at]
    alone = np.where(operation == NONE, np.arange(len(kernels)), NONE)
    groups = groups_of(rank, operation, alone)
    return _Whole(at, groups.of_row, groups.first)


def _iterations(keys: OperationKeys, rank: Ints, owner: Ints, launched_ns: Ints) -> Ints:
    """Return the iteration of collectives: their operation's, or that of the one launched before.

    Before the first operation of a capture it is unknown.
    """
    rows = np.flatnonzero(keys.iteration >= 0)
    rows = rows[np.argsort(keys.host_start_ns[rows], kind="stable")]
    at = np.searchsorted(keys.host_start_ns[rows], launched_ns, side="right") - 1
    same = (at >= 0) & (np.append(keys.rank[rows], NONE)[at] == rank)
    before = np.where(same, np.append(keys.iteration[rows], NONE)[at], NONE)
    owned = np.append(keys.iteration, NONE)[owner]
    return np.where(owned >= 0, owned, before)


def places_by_launch(launched_ns: Ints, start_ns: Ints, *columns: Ints) -> Ints:
    """Return the place of each row among those that agree in some columns, by their launch."""
    key = groups_of(*columns).of_row
    order = np.lexsort((start_ns, launched_ns, key))
    of_key = key[order]
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order)) - np.searchsorted(of_key, of_key)
    return place


def _kept(keys: OperationKeys, table: CollectiveIntervals, exposed: intervals.Intervals) -> Bools:
    """Return which collectives are kept; see :class:`CollectiveIntervals`."""
    owned = owned_by(keys, table.operation, WORK)
    alike = groups_of(table.rank, table.kind, table.group).of_row
    iterations = np.bincount(distinct_rows(keys.rank, keys.iteration)[0], minlength=1)
    of_rank = np.append(iterations, np.zeros(table.rank.max(), np.int64))[table.rank]
    few = np.bincount(alike, minlength=1)[alike] <= _FEW * np.maximum(of_rank, 1)
    idle = intervals.measure_within(exposed, table.start_ns, table.end_ns) > 0
    return np.asarray(~owned | few | idle, bool)
