"""Collectives: what kernels of communication carry out, among whom, and when ranks were in them.

PyTorch's profiler describes the collective of each kernel. NCCL's ranges carry their communicator;
a kernel belongs to the last range that its thread had opened when it launched it::

    thread   ├ ncclAllReduce ┤      ├ ncclAllGather ┤
    calls           ├ launch ┤             ├ launch ┤
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from bubbleviz.conventions.kinds import Kinds, get_nccl_operation, match_any, parse_launch_range
from bubbleviz.interpret.linking import NEVER, LinkedProfile, LinkedWork, ThreadRanges
from bubbleviz.interpret.spans import is_owned_by
from bubbleviz.model import intervals
from bubbleviz.model.collectives import CollectiveIntervals, Collectives, Group
from bubbleviz.model.columns import (
    NONE,
    Bools,
    Codes,
    Ints,
    Table,
    get_flags,
    is_constant,
    join_tables,
    make_constant,
    make_mask,
    scatter,
    widen,
)
from bubbleviz.model.grouping import (
    find_distinct_rows,
    find_positions,
    group_rows,
    number_within_groups,
)
from bubbleviz.model.intervals import find_last_before
from bubbleviz.model.operations import Operations
from bubbleviz.model.payloads import Payloads
from bubbleviz.model.phases import WORK
from bubbleviz.model.profile import Activities

#: Kernels that carry out more than their names say.
_VAGUE = r"^(?:void )?nccl\w*?(?:SendRecv|Generic)"
#: Operations of two ranks; a batch of both is one kernel.
_PASSES = ("Send", "Recv", "SendRecv")
#: A rank reduces in no more buckets than that an iteration.
_FEW = 64


def find_operations_of_kernels(
    collectives: Collectives | None, linked: LinkedProfile
) -> tuple[Ints, tuple[str, ...]]:
    """Return the operation that each kernel of a vague name carries out, as a trace tells it.

    NCCL passes data in kernels named after sends and receives for all-to-alls, too, and AMD's have
    one name for all. What PyTorch's profiler records of a kernel tells more; then the range around
    its launch does::

        range     ├─ nccl:all_to_all ─┤
        call           ├ launch ┤
        kernel                      ├─ ncclDevKernel_SendRecv ─┤     an all-to-all

    Args:
        collectives: that kernels are recorded to carry out, by the rows of ``linked``; None
            without any.
        linked: the profile, whose ranges name operations of NCCL, too.

    Returns:
        Of each activity the row of the names that follow, -1 where nothing tells; and names of
        operations, as NCCL has them.
    """
    profile, activities, ranges = linked.profile, linked.profile.activities, linked.profile.ranges
    vague = np.append(match_any(activities.names, (_VAGUE,)), False)
    rows = np.flatnonzero(get_flags(activities.name_id[: activities.kernels], vague))
    of_record = (
        [] if collectives is None else [get_nccl_operation(name) for name in collectives.names]
    )
    of_range = [parse_launch_range(name) for name in ranges.names]
    names = tuple(dict.fromkeys((*_PASSES, *filter(None, (*of_record, *of_range)))))
    operation = make_constant(NONE, len(activities))
    if len(rows) == 0:
        return operation, names
    number = {"": NONE} | {name: place for place, name in enumerate(names)}
    if profile.launches_known:
        # The innermost range around each launch that names one.
        of_name = np.array([number[name] for name in of_range], np.int64)
        named = np.flatnonzero(of_name[ranges.name_id] != NONE) if len(of_name) else rows[:0]
        launched = rows[linked.work.call[rows] >= 0]
        if len(named) and len(launched):
            launches = linked.work.calls_of(launched, profile.calls)
            around = ThreadRanges(ranges, named).around(launches)
            inside = around != NONE
            told = of_name[ranges.name_id[around[inside]]]
            operation = scatter(len(activities), launched[inside], told)
    if collectives is not None:
        of_name = np.array([number[name] for name in of_record], np.int64)
        recorded = _find_recorded_operations(collectives, of_name, len(activities))
        recorded[~vague[activities.name_id]] = NONE
        operation = np.where(recorded == NONE, operation, recorded)
    return operation, names


def select_collectives(collectives: Collectives, sound: Bools | None) -> Collectives:
    """Return the collectives of the kernels that are kept; all are if None."""
    if sound is None:
        return collectives
    kept = collectives.take(sound[collectives.kernel])
    return replace(kept, kernel=(np.cumsum(sound) - 1)[kept.kernel])


def add_collectives(
    collectives: Collectives, operation: Ints, names: tuple[str, ...]
) -> Collectives:
    """Return collectives, and one of its own for each other kernel whose operation is told."""
    rows = np.flatnonzero(operation != NONE)
    rows = rows[~np.isin(rows, collectives.kernel)]
    unknown = dict.fromkeys(Collectives.column_names(), np.full(len(rows), NONE, np.int64))
    first_number = int(collectives.operation.max(initial=NONE)) + 1
    more = collectives.replace_columns(**unknown).replace_columns(
        kernel=rows,
        operation=first_number + np.arange(len(rows)),
        name=operation[rows] + len(collectives.names),
        is_uneven=np.zeros(len(rows), np.int64),
    )
    return replace(join_tables((collectives, more)), names=(*collectives.names, *names))


def rename_vague_kernels(linked: LinkedProfile) -> Activities:
    """Return the work of a profile, kernels of vague names named ``nccl:`` and the operation."""
    collectives, activities = linked.profile.collectives, linked.profile.activities
    if collectives is not None:
        collectives = select_collectives(collectives, linked.sound)
    operation, told_names = find_operations_of_kernels(collectives, linked)
    # Mostly nothing tells of any.
    if is_constant(operation) or len(rows := np.flatnonzero(operation != NONE)) == 0:
        return activities
    named = operation[rows] + len(activities.names)
    name_id: Codes = widen(activities.name_id.copy(), int(named.max()))
    name_id[rows] = named
    names = (*activities.names, *(f"nccl:{name}" for name in told_names))
    return replace(activities, name_id=name_id, names=names)


def _find_recorded_operations(collectives: Collectives, of_name: Ints, count: int) -> Ints:
    """Return the operation that records give each activity; -1 where there is none.

    A kernel of several operations is a batch of sends and receives, or of one collective.
    """
    numbers = of_name[collectives.name] if len(of_name) else collectives.name[:0]
    kernel = collectives.kernel[: len(numbers)]
    operation = intervals.group_latest(kernel, count, numbers, NONE)
    sends = make_mask(count, kernel[numbers == _PASSES.index("Send")])
    both = sends & (operation == _PASSES.index("Recv"))
    operation[both] = _PASSES.index("SendRecv")
    return operation


@dataclass(frozen=True, eq=False, repr=False)
class RecordedCollectives(Table):
    """What is recorded of kernels, one row per kernel, ascending; -1 unknown.

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


def read_recorded_collectives(
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
        known = select_collectives(profile.collectives, linked.sound)
        known = known.take(known.group != NONE)
        # A batch of sends and receives is one kernel, and no collective.
        known = known.take(group_rows(known.kernel).first)
        columns = known.kernel, known.operation, known.group, known.sequence
        return RecordedCollectives(*columns, known.groups)
    nothing = RecordedCollectives.make_empty()
    if profile.payloads is None or not profile.has_payload_schema:
        return nothing
    rows = np.flatnonzero(communication[: activities.kernels])
    passing = match_any(activities.names, kinds.point_to_point)
    rows = rows[~passing[activities.name_id[rows]]]
    if len(rows) == 0:
        return nothing
    payloads, _ = profile.payloads()
    return _match_payloads(payloads, rows, linked.work)


def _match_payloads(payloads: Payloads, rows: Ints, work: LinkedWork) -> RecordedCollectives:
    """Return the communicators of kernels.

    Args:
        payloads: Payloads of NCCL's ranges.
        rows: Rows of the kernels of collectives.
        work: All work of the profile.
    """
    sizes = np.zeros(len(payloads.communicators), np.int64)
    some = payloads.communicator >= 0
    np.maximum.at(sizes, payloads.communicator[some], payloads.ranks[some])
    # Ranges that begin or end a communicator move nothing.
    payloads = payloads.take((payloads.communicator >= 0) & (payloads.bytes >= 0))
    rows = rows[work.call[rows] != NONE]
    thread = work.threads[work.thread[rows]]
    opened = find_last_before(
        payloads.thread, payloads.start_ns, thread, work.launched_ns[rows], or_at=True
    )
    own = opened != NONE
    rows, opened = rows[own], opened[own]
    groups = tuple(
        Group(name=f"0x{number:016x}", size=size, has_unique_name=True)
        for number, size in zip(payloads.communicators, sizes.tolist(), strict=True)
    )
    unknown = np.full(len(rows), NONE, np.int64)
    return RecordedCollectives(rows, unknown, payloads.communicator[opened], unknown.copy(), groups)


def build_collective_intervals(
    keys: Operations,
    work: LinkedWork,
    rows: Ints,
    launched_ns: Ints,
    exposed: intervals.Intervals,
    kinds: tuple[Ints, tuple[str, ...]],
    recorded: RecordedCollectives,
) -> tuple[CollectiveIntervals, Ints]:
    """Return the collectives of ranks that are kept, in order of time, and their first kernels.

    These are rows of the ranks' work; how late each was launched is not worked out yet.

    Args:
        keys: of the ranks' operations.
        work: All work of the ranks.
        rows: of this work that are communication, and not between two ranks.
        launched_ns: when the host launched these; the end of time where that is unknown.
        exposed: when only they ran.
        kinds: what kernels do by the rows of their names, and names of that; the last one, ""
            for what has none, is that of no name (-1), too.
        recorded: what the profile records of kernels.
    """
    kind_of_name, texts = kinds
    if len(rows) == 0:
        nothing = replace(CollectiveIntervals.make_empty(), kinds=texts, groups=recorded.groups)
        return nothing, rows
    # Kernels are an operation each where nothing else is recorded.
    at = find_positions(recorded.kernel, work.activity[rows])
    operation = np.append(recorded.operation, NONE)[at]
    alone = np.where(operation == NONE, np.arange(len(rows)), NONE)
    whole = group_rows(work.rank[rows], operation, alone)
    start_ns, end_ns = intervals.group_extents(
        whole.of_row, len(whole), work.start_ns[rows], work.end_ns[rows]
    )
    rows, launched_ns, at = rows[whole.first], launched_ns[whole.first], at[whole.first]
    owner = work.operation[rows].astype(np.int64)
    group = np.append(recorded.group, NONE)[at]
    kind = kind_of_name[work.name_id[rows]]
    # A kernel starts after its launch, so that its start stands for it well enough.
    launched_ns = np.where(launched_ns == NEVER, start_ns, launched_ns)
    rank = work.rank[rows].astype(np.int64)
    iteration = _find_iterations(keys, rank, owner, launched_ns)
    table = CollectiveIntervals(
        rank=rank,
        iteration=iteration,
        kind=kind,
        group=group,
        order=number_by_launch(launched_ns, start_ns, rank, kind, group, iteration),
        sequence=np.append(recorded.sequence, NONE)[at],
        start_ns=start_ns,
        end_ns=end_ns,
        late_ns=np.zeros(len(rows), np.int64),
        operation=owner,
        meeting=np.full(len(rows), NONE, np.int64),
        kinds=texts,
        groups=recorded.groups,
    )
    order = np.flatnonzero(_select_relevant(keys, table, exposed))
    order = order[np.argsort(start_ns[order], kind="stable")]
    return table.take(order), rows[order]


def _find_iterations(keys: Operations, rank: Ints, owner: Ints, launched_ns: Ints) -> Ints:
    """Return the iteration of collectives: their operation's, or that of the one launched before.

    Before the first operation of a capture it is unknown.
    """
    rows = np.flatnonzero(keys.iteration >= 0)
    at = find_last_before(keys.rank[rows], keys.host_start_ns[rows], rank, launched_ns, or_at=True)
    before = np.append(keys.iteration[rows], NONE)[at]
    owned = np.append(keys.iteration, NONE)[owner]
    return np.where(owned >= 0, owned, before)


def number_by_launch(launched_ns: Ints, start_ns: Ints, *columns: Ints) -> Ints:
    """Return the place of each row among those that agree in some columns, by their launch."""
    return number_within_groups(group_rows(*columns).of_row, launched_ns, start_ns)


def _select_relevant(
    keys: Operations, table: CollectiveIntervals, exposed: intervals.Intervals
) -> Bools:
    """Return which collectives are kept; see :class:`CollectiveIntervals`."""
    owned = is_owned_by(keys, table.operation, WORK)
    alike = group_rows(table.rank, table.kind, table.group).of_row
    iterations = np.bincount(find_distinct_rows(keys.rank, keys.iteration)[0], minlength=1)
    of_rank = np.append(iterations, np.zeros(table.rank.max(), np.int64))[table.rank]
    few = np.bincount(alike, minlength=1)[alike] <= _FEW * np.maximum(of_rank, 1)
    idle = intervals.measure_within(exposed, table.start_ns, table.end_ns) > 0
    return np.asarray(~owned | few | idle, bool)
