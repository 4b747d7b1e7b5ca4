"""The collectives that communication kernels run, along with their communicators and times.

PyTorch's profiler describes the collective of each kernel. The payloads of NCCL's own ranges
contain the communicator. A kernel belongs to the last NCCL range that its thread opened before it
launched the kernel::

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
from bubbleviz.model.profile import Activities, Profile

#: Matches the names of kernels that do not determine the NCCL operation.
_VAGUE = r"^(?:void )?nccl\w*?(?:SendRecv|Generic)"
#: Point-to-point operations. A batch of sends and receives runs as a single kernel.
_POINT_TO_POINT = ("Send", "Recv", "SendRecv")
#: Maximum number of gradient buckets that a rank reduces in one iteration.
_MAX_BUCKETS = 64


def find_operations_of_kernels(
    collectives: Collectives | None, linked: LinkedProfile
) -> tuple[Ints, tuple[str, ...]]:
    """Find the NCCL operation of each kernel whose name does not determine the operation.

    NCCL implements an all-to-all with kernels named after sends and receives, and all kernels of
    AMD's library have the same name. PyTorch's profiler may record the operation of a kernel.
    Otherwise, the operation is taken from the innermost range around the launch whose name contains
    an NCCL operation::

        range     ├─ nccl:all_to_all ─┤
        call           ├ launch ┤
        kernel                      ├─ ncclDevKernel_SendRecv ─┤     an all-to-all

    Args:
        collectives: Recorded collectives, or None if none were recorded. Their column ``kernel``
            contains rows of the activities in ``linked``.
        linked: The profile with its work linked to API calls. Its ranges include the ranges of NCCL
            operations.

    Returns:
        operation: For each activity, an index into ``names``. The value is -1 if the kernel name
            determines the operation, or if the operation is unknown.
        names: NCCL's names of operations, for example ``AllToAll``.
    """
    activities = linked.profile.activities
    is_vague = np.append(match_any(activities.names, (_VAGUE,)), False)
    rows = np.flatnonzero(get_flags(activities.name_id[: activities.kernels], is_vague))
    of_record = (
        [] if collectives is None else [get_nccl_operation(name) for name in collectives.names]
    )
    of_range = [parse_launch_range(name) for name in linked.profile.ranges.names]
    names = tuple(dict.fromkeys((*_POINT_TO_POINT, *filter(None, (*of_record, *of_range)))))
    operation = make_constant(NONE, len(activities))
    if len(rows) == 0:
        return operation, names
    number = {"": NONE} | {name: index for index, name in enumerate(names)}
    if linked.profile.launches_known:
        operation_of_name = np.array([number[name] for name in of_range], np.int64)
        launched, by_range = _find_operations_by_range(linked, rows, operation_of_name)
        if len(launched):
            operation = scatter(len(activities), launched, by_range)
    if collectives is not None:
        operation_of_name = np.array([number[name] for name in of_record], np.int64)
        recorded = _find_recorded_operations(collectives, operation_of_name, len(activities))
        recorded[~is_vague[activities.name_id]] = NONE
        operation = np.where(recorded == NONE, operation, recorded)
    return operation, names


def _find_operations_by_range(
    linked: LinkedProfile, rows: Ints, operation_of_name: Ints
) -> tuple[Ints, Ints]:
    """Find the NCCL operation of each kernel from the ranges around its launch.

    The innermost range whose name contains an NCCL operation is used.

    Args:
        linked: The profile with its work linked to API calls.
        rows: Rows of the kernels.
        operation_of_name: For each range name, the index of the NCCL operation that the name
            contains, or -1 if it contains none.

    Returns:
        launched: Rows of the kernels whose operation was found.
        operation: Operation index for each kernel in ``launched``.
    """
    ranges = linked.profile.ranges
    if len(operation_of_name) == 0:
        return rows[:0], rows[:0]
    with_operation = np.flatnonzero(operation_of_name[ranges.name_id] != NONE)
    launched = rows[linked.work.call[rows] >= 0]
    if len(with_operation) == 0 or len(launched) == 0:
        return rows[:0], rows[:0]
    launches = linked.work.get_calls(launched, linked.profile.calls)
    innermost = ThreadRanges(ranges, with_operation).around(launches)
    has_range = innermost != NONE
    return launched[has_range], operation_of_name[ranges.name_id[innermost[has_range]]]


def select_collectives(collectives: Collectives, is_kept: Bools | None) -> Collectives:
    """Drop the collectives of dropped kernels, and renumber the ``kernel`` column of the rest.

    Args:
        collectives: Collectives of all kernels.
        is_kept: Mask of the activities that are kept, or None if all are kept.
    """
    if is_kept is None:
        return collectives
    selected = collectives.take(is_kept[collectives.kernel])
    return replace(selected, kernel=(np.cumsum(is_kept) - 1)[selected.kernel])


def add_collectives(
    collectives: Collectives, operation: Ints, names: tuple[str, ...]
) -> Collectives:
    """Add a collective for each kernel whose operation is known but not recorded.

    Each added collective gets a new operation number. Its ``is_uneven`` is 0, and its other columns
    are -1 (unknown). The added collectives follow the recorded ones.

    Args:
        collectives: Recorded collectives.
        operation: Index into ``names`` for each activity, or -1 if unknown, as returned by
            :func:`find_operations_of_kernels`.
        names: Names of NCCL operations. They are appended to the names of ``collectives``.
    """
    rows = np.flatnonzero(operation != NONE)
    rows = rows[~np.isin(rows, collectives.kernel)]
    unknown = dict.fromkeys(Collectives.column_names(), np.full(len(rows), NONE, np.int64))
    first_number = int(collectives.operation.max(initial=NONE)) + 1
    added = collectives.replace_columns(**unknown).replace_columns(
        kernel=rows,
        operation=first_number + np.arange(len(rows)),
        name=operation[rows] + len(collectives.names),
        is_uneven=np.zeros(len(rows), np.int64),
    )
    return replace(join_tables((collectives, added)), names=(*collectives.names, *names))


def has_communicators(profile: Profile) -> bool:
    """Return whether a profile records which ranks take part in its communication."""
    collectives = profile.collectives
    if collectives is not None and bool((collectives.group != NONE).any()):
        return True
    if profile.payloads is None:
        return False
    payloads, _ = profile.payloads()
    return bool((payloads.communicator != NONE).any())


def rename_vague_kernels(linked: LinkedProfile) -> Activities:
    """Rename the kernels whose names do not determine their NCCL operation.

    The new name is ``nccl:`` followed by the operation, for example ``nccl:AllToAll``. Kernels
    whose operation :func:`find_operations_of_kernels` cannot find are not renamed. All activities
    of the profile are returned.
    """
    collectives, activities = linked.profile.collectives, linked.profile.activities
    if collectives is not None:
        collectives = select_collectives(collectives, linked.sound)
    operation, operation_names = find_operations_of_kernels(collectives, linked)
    # Most profiles have no kernels to rename.
    if is_constant(operation) or len(rows := np.flatnonzero(operation != NONE)) == 0:
        return activities
    new_name = operation[rows] + len(activities.names)
    name_id: Codes = widen(activities.name_id.copy(), int(new_name.max()))
    name_id[rows] = new_name
    names = (*activities.names, *(f"nccl:{name}" for name in operation_names))
    return replace(activities, name_id=name_id, names=names)


def _find_recorded_operations(
    collectives: Collectives, operation_of_name: Ints, count: int
) -> Ints:
    """Return the index of the recorded NCCL operation of each activity, or -1 if none is recorded.

    A kernel may have several records. If they contain both sends and receives, the operation is
    ``SendRecv``. Otherwise, the largest operation index among them is used.

    Args:
        collectives: Recorded collectives.
        operation_of_name: For each name in ``collectives.names``, the index of the NCCL operation,
            or -1 if unknown.
        count: Number of activities.
    """
    has_names = len(operation_of_name) > 0
    numbers = operation_of_name[collectives.name] if has_names else collectives.name[:0]
    kernel = collectives.kernel[: len(numbers)]
    operation = intervals.group_latest(kernel, count, numbers, NONE)
    sends = make_mask(count, kernel[numbers == _POINT_TO_POINT.index("Send")])
    is_batch = sends & (operation == _POINT_TO_POINT.index("Recv"))
    operation[is_batch] = _POINT_TO_POINT.index("SendRecv")
    return operation


@dataclass(frozen=True, eq=False, repr=False)
class RecordedCollectives(Table):
    """Recorded collective of each kernel. Rows are sorted by kernel, and -1 means unknown.

    Attributes:
        kernel: Row of the kernel in the activities.
        operation: Operation number, shared by all kernels of one collective.
        group: Index into ``groups``.
        sequence: Sequence number of the collective within its group.
        groups: Communicators and process groups.
    """

    kernel: Ints
    operation: Ints
    group: Ints
    sequence: Ints
    groups: tuple[Group, ...] = field(metadata={"shared": True})


def read_recorded_collectives(
    linked: LinkedProfile, activities: Activities, communication: Bools, kinds: Kinds
) -> RecordedCollectives:
    """Read the group, sequence number and operation of each collective kernel.

    If PyTorch recorded collectives in the profile, the records that contain a group are used.
    Otherwise, the group is taken from the payloads of NCCL ranges; see :func:`_match_payloads`.
    The result is empty if the profile has neither.

    Args:
        linked: The profile with its work linked to API calls. Its file must still be open.
        activities: Activities of the profile, with vague kernels renamed.
        communication: Mask of the communication kernels.
        kinds: Name patterns that classify kernels.
    """
    profile = linked.profile
    if profile.collectives is not None:
        recorded = select_collectives(profile.collectives, linked.sound)
        recorded = recorded.take(recorded.group != NONE)
        # Keep one record per kernel: a batch of sends and receives has several records.
        recorded = recorded.take(group_rows(recorded.kernel).first)
        columns = recorded.kernel, recorded.operation, recorded.group, recorded.sequence
        return RecordedCollectives(*columns, recorded.groups)
    nothing = RecordedCollectives.make_empty()
    if profile.payloads is None or not profile.has_payload_schema:
        return nothing
    rows = np.flatnonzero(communication[: activities.kernels])
    is_point_to_point = match_any(activities.names, kinds.point_to_point)
    rows = rows[~is_point_to_point[activities.name_id[rows]]]
    if len(rows) == 0:
        return nothing
    payloads, _ = profile.payloads()
    return _match_payloads(payloads, rows, linked.work)


def _match_payloads(payloads: Payloads, rows: Ints, work: LinkedWork) -> RecordedCollectives:
    """Find the communicator of each kernel in the NCCL range around its launch.

    This is the last NCCL range that the launching thread opened at or before the launch. Kernels
    whose launching call is unknown are left out. Ranges are considered only if their payload
    contains a communicator and a number of bytes.

    Args:
        payloads: Payloads of NCCL ranges.
        rows: Rows of the collective kernels.
        work: All kernels and copies of the profile.

    Returns:
        One row per kernel that has a matching range. The group is the communicator of the range.
        Operation and sequence number are -1 (unknown).
    """
    has_communicator = payloads.communicator >= 0
    sizes = np.zeros(len(payloads.communicators), np.int64)
    np.maximum.at(sizes, payloads.communicator[has_communicator], payloads.ranks[has_communicator])
    # Ranges that create or destroy a communicator transfer no data.
    payloads = payloads.take(has_communicator & (payloads.bytes >= 0))
    rows = rows[work.call[rows] != NONE]
    thread = work.threads[work.thread[rows]]
    last_range = find_last_before(
        payloads.thread, payloads.start_ns, thread, work.launched_ns[rows], or_at=True
    )
    has_range = last_range != NONE
    rows, last_range = rows[has_range], last_range[has_range]
    groups = tuple(
        Group(name=f"0x{number:016x}", size=size, has_unique_name=True)
        for number, size in zip(payloads.communicators, sizes.tolist(), strict=True)
    )
    unknown = np.full(len(rows), NONE, np.int64)
    group = payloads.communicator[last_range]
    return RecordedCollectives(rows, unknown, group, unknown.copy(), groups)


def build_collective_intervals(
    keys: Operations,
    work: LinkedWork,
    rows: Ints,
    launched_ns: Ints,
    exposed: intervals.Intervals,
    kinds: tuple[Ints, tuple[str, ...]],
    recorded: RecordedCollectives,
) -> tuple[CollectiveIntervals, Ints]:
    """Build the table of collectives from the communication kernels of the ranks.

    Kernels of a rank that share a recorded operation are treated as one collective. The column
    ``late_ns`` is 0 at first. :func:`~bubbleviz.interpret.late_launches.find_late_collectives` sets
    it later.

    Args:
        keys: Operations of the ranks.
        work: All kernels and copies of the ranks.
        rows: Rows of the communication kernels between more than two ranks.
        launched_ns: Launch time of each row, or ``NEVER`` if unknown.
        exposed: Start and end of the intervals in which only the kernels in ``rows`` ran.
        kinds: Pair (index, names). ``index[name_id]`` is the kind of a kernel, and ``names[kind]``
            its name. The last entry of ``index`` is for kernels without a name (-1). The last entry
            of ``names`` is "", for kernels without a kind.
        recorded: Recorded collectives of the profile.

    Returns:
        collectives: The collectives that :func:`_select_relevant` keeps, sorted by start.
        first_kernel: Row in ``work`` of each collective's first kernel.
    """
    kind_of_name, kind_names = kinds
    if len(rows) == 0:
        nothing = CollectiveIntervals.make_empty()
        return replace(nothing, kinds=kind_names, groups=recorded.groups), rows
    merged = _merge_kernels(work, rows, launched_ns, recorded)
    rank = work.rank[merged.first_kernel].astype(np.int64)
    owner = work.operation[merged.first_kernel].astype(np.int64)
    kind = kind_of_name[work.name_id[merged.first_kernel]]
    group = np.append(recorded.group, NONE)[merged.record]
    iteration = _find_iterations(keys, rank, owner, merged.launched_ns)
    table = CollectiveIntervals(
        rank=rank,
        iteration=iteration,
        kind=kind,
        group=group,
        order=number_by_launch(merged.launched_ns, merged.start_ns, rank, kind, group, iteration),
        sequence=np.append(recorded.sequence, NONE)[merged.record],
        start_ns=merged.start_ns,
        end_ns=merged.end_ns,
        late_ns=np.zeros(len(rank), np.int64),
        operation=owner,
        meeting=np.full(len(rank), NONE, np.int64),
        kinds=kind_names,
        groups=recorded.groups,
    )
    order = np.flatnonzero(_select_relevant(keys, table, exposed))
    order = order[np.argsort(merged.start_ns[order], kind="stable")]
    return table.take(order), merged.first_kernel[order]


@dataclass(frozen=True, eq=False, repr=False)
class _MergedKernels(Table):
    """Collectives that consist of one or more kernels.

    Attributes:
        first_kernel: Row of the first kernel in ``work``.
        record: Row of the first kernel in the recorded collectives, or -1 if it has no record.
        launched_ns: Launch time of the first kernel, or the start of the collective if unknown.
        start_ns: Earliest start of the kernels.
        end_ns: Latest end of the kernels.
    """

    first_kernel: Ints
    record: Ints
    launched_ns: Ints
    start_ns: Ints
    end_ns: Ints


def _merge_kernels(
    work: LinkedWork, rows: Ints, launched_ns: Ints, recorded: RecordedCollectives
) -> _MergedKernels:
    """Merge kernels into collectives by rank and recorded operation.

    A kernel without a recorded operation becomes a separate collective.

    Args:
        work: All kernels and copies of the ranks.
        rows: Rows of the communication kernels between more than two ranks.
        launched_ns: Launch time of each row, or ``NEVER`` if unknown.
        recorded: Recorded collectives of the profile.
    """
    record = find_positions(recorded.kernel, work.activity[rows])
    operation = np.append(recorded.operation, NONE)[record]
    single = np.where(operation == NONE, np.arange(len(rows)), NONE)
    collective = group_rows(work.rank[rows], operation, single)
    start_ns, end_ns = intervals.group_extents(
        collective.of_row, len(collective), work.start_ns[rows], work.end_ns[rows]
    )
    launched_ns = launched_ns[collective.first]
    return _MergedKernels(
        first_kernel=rows[collective.first],
        record=record[collective.first],
        # A kernel starts soon after its launch, so its start is close enough.
        launched_ns=np.where(launched_ns == NEVER, start_ns, launched_ns),
        start_ns=start_ns,
        end_ns=end_ns,
    )


def _find_iterations(keys: Operations, rank: Ints, owner: Ints, launched_ns: Ints) -> Ints:
    """Return the iteration of each collective, or -1 if it was launched before all iterations.

    If an operation inside an iteration owns the collective, its iteration is used. Otherwise, the
    iteration of the last operation that the rank began at or before the launch is used, by host
    start. Operations outside all iterations are ignored.

    Args:
        keys: Operations of the ranks.
        rank: Rank of each collective.
        owner: Operation that owns each collective, or -1 if none does.
        launched_ns: Launch time of each collective.
    """
    rows = np.flatnonzero(keys.iteration >= 0)
    last = find_last_before(
        keys.rank[rows], keys.host_start_ns[rows], rank, launched_ns, or_at=True
    )
    of_last = np.append(keys.iteration[rows], NONE)[last]
    of_owner = np.append(keys.iteration, NONE)[owner]
    return np.where(of_owner >= 0, of_owner, of_last)


def number_by_launch(launched_ns: Ints, start_ns: Ints, *columns: Ints) -> Ints:
    """Number the rows of each group in order of (launch time, start time), starting at 0.

    Rows whose values are equal in all columns form a group.
    """
    return number_within_groups(group_rows(*columns).of_row, launched_ns, start_ns)


def _select_relevant(
    keys: Operations, table: CollectiveIntervals, exposed: intervals.Intervals
) -> Bools:
    """Return a mask of the collectives to keep.

    Tensor parallelism runs very many collectives inside operations. These collectives are dropped.
    A collective is kept if at least one of the following conditions holds:

    - No operation whose phase is in ``WORK`` owns the collective.
    - On average, the rank runs at most ``_MAX_BUCKETS`` collectives of the same kind and group per
      iteration.
    - Only communication ran during part of the collective.

    Args:
        keys: Operations of the ranks.
        table: All collectives of the ranks, at least one.
        exposed: Start and end of the intervals in which only communication ran.
    """
    is_owned = is_owned_by(keys, table.operation, WORK)
    group = group_rows(table.rank, table.kind, table.group).of_row
    n_iterations = np.bincount(find_distinct_rows(keys.rank, keys.iteration)[0], minlength=1)
    of_rank = np.append(n_iterations, np.zeros(table.rank.max(), np.int64))[table.rank]
    n_collectives = np.bincount(group, minlength=1)[group]
    is_rare = n_collectives <= _MAX_BUCKETS * np.maximum(of_rank, 1)
    is_exposed = intervals.measure_within(exposed, table.start_ns, table.end_ns) > 0
    return np.asarray(~is_owned | is_rare | is_exposed, bool)
