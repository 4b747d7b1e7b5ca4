"""Recorded collectives: among whom kernels communicate, as far as a profile tells.

PyTorch's profiler describes the collective of each kernel. NCCL's ranges carry their communicator;
a kernel belongs to the last range that its thread had opened when it launched it::

    thread   ├ ncclAllReduce ┤      ├ ncclAllGather ┤
    calls           ├ launch ┤             ├ launch ┤
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace

import numpy as np

from bubbleviz.conventions.kinds import Kinds, kind_of_collective, matching
from bubbleviz.interpret.linking import NEVER, LinkedProfile, Links
from bubbleviz.interpret.operation_ranges import sound_collectives
from bubbleviz.interpret.spans import RankWork, owned_by
from bubbleviz.model import intervals
from bubbleviz.model.collectives import CollectiveIntervals, Collectives, Group, Payloads
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, Table
from bubbleviz.model.grouping import distinct_rows, found_in, groups_of
from bubbleviz.model.intervals import last_before
from bubbleviz.model.operations import OperationKeys
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import COUNTED, WORK, Phase
from bubbleviz.model.profile import Activities
from bubbleviz.model.values import frozen


@frozen
class RecordedCollectives(Table):
    """What is recorded of kernels, one row a kernel, ascending; -1 unknown.

    Attributes:
        kernel: row of the activities.
        operation: a number that kernels of one operation share.
        group: row of ``groups``.
        sequence: number of the operation in its group.
        groups: communicators and process groups.
    """

    kernel: Ints
    operation: Ints
    group: Ints
    sequence: Ints
    groups: tuple[Group, ...] = field(metadata={"shared": True})


def recorded_collectives(
    linked: LinkedProfile, activities: Activities, communication: Bools, kinds: Kinds
) -> RecordedCollectives:
    """Return what a profile records of the collectives of its kernels.

    Args:
        linked: the profile, whose file is still open.
        activities: its work, named as what it carries out.
        communication: which of the work is communication.
        kinds: lists of what kernels are.
    """
    profile = linked.profile
    if profile.collectives is not None:
        return _of_pytorch(sound_collectives(profile.collectives, linked.sound))
    if profile.payloads is None or not profile.payloads_described:
        return _nothing()
    rows = np.flatnonzero(communication[: activities.kernels])
    passing = matching(activities.names, kinds.point_to_point)
    rows = rows[~passing[activities.name_id[rows]]]
    if len(rows) == 0:
        return _nothing()
    payloads, _ = profile.payloads()
    return _of_nccl(payloads, rows, linked.links)


def _nothing() -> RecordedCollectives:
    none = np.empty(0, np.int64)
    return RecordedCollectives(none, none.copy(), none.copy(), none.copy(), ())


def _of_pytorch(collectives: Collectives) -> RecordedCollectives:
    """Return what PyTorch's profiler records of kernels."""
    known = collectives.take(collectives.group != NONE)
    # A batch of sends and receives is one kernel, and no collective.
    first = groups_of(known.kernel).first
    return RecordedCollectives(
        known.kernel[first],
        known.operation[first],
        known.group[first],
        known.sequence[first],
        collectives.groups,
    )


def _of_nccl(payloads: Payloads, rows: Ints, links: Links) -> RecordedCollectives:
    """Return the communicators of kernels.

    Args:
        payloads: of NCCL's ranges.
        rows: kernels of collectives.
        links: of all work.
    """
    sizes = np.zeros(len(payloads.communicators), np.int64)
    some = payloads.communicator >= 0
    np.maximum.at(sizes, payloads.communicator[some], payloads.ranks[some])
    # Ranges that begin or end a communicator move nothing.
    payloads = payloads.take((payloads.communicator >= 0) & (payloads.bytes >= 0))
    rows = rows[links.call[rows] != NONE]
    thread = links.threads[links.thread[rows]]
    opened = last_before(
        payloads.thread, payloads.start_ns, thread, links.launched_ns[rows], or_at=True
    )
    own = opened != NONE
    rows, opened = rows[own], opened[own]
    groups = tuple(
        Group(name=f"0x{number:016x}", size=size, sole=True)
        for number, size in zip(payloads.communicators, sizes.tolist(), strict=True)
    )
    unknown = np.full(len(rows), NONE, np.int64)
    return RecordedCollectives(rows, unknown, payloads.communicator[opened], unknown.copy(), groups)


# Replica collectives: when the kernels ran that synchronise the replicas of a stage.
#
# Of each iteration of a rank this is the first all-reduce, all-gather or reduce-scatter that the
# host launched after its last backward: it reduces the gradients of data-parallel replicas, before
# those of norms and embeddings are reduced in other groups. What runs inside a forward or a
# backward
# belongs to tensor parallelism, or to buckets that cannot be distinguished from it.


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


# Collective intervals of ranks: their kernels that communicate among more than two ranks.


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
    iteration = _collective_intervals_iterations(keys, rank, owner, launched_ns)
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


def _collective_intervals_iterations(
    keys: OperationKeys, rank: Ints, owner: Ints, launched_ns: Ints
) -> Ints:
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
