"""Work: what ran on the ranks of a table, as if each operation were one kernel."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.errors import NothingToAnalyseError
from bubbleviz.interpret.coverage import Coverage
from bubbleviz.interpret.recorded_collectives import ReplicaCollectives, places_by_launch
from bubbleviz.interpret.recording import LocalRank, Recording
from bubbleviz.interpret.spans import ActiveTime, DeviceWork, RankWork, active_time, busy_times
from bubbleviz.interpret.tables.keys import KeyedRows, in_host_order, keyed
from bubbleviz.model import intervals
from bubbleviz.model.coded_texts import CodedTexts
from bubbleviz.model.collectives import CollectiveIntervals, Group
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import Numbering, looked_up, places_in, sorted_rows
from bubbleviz.model.intervals import group_sum
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.operation_table import OperationTable, RowIntervals, ToldPlace
from bubbleviz.model.operations import (
    BusyIntervals,
    HostActivities,
    RankCoverage,
    RankIntervals,
    RankOperations,
    RunningTimes,
)
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import COMMUNICATION, COMPUTE, COUNTED, Phase
from bubbleviz.model.values import frozen
from bubbleviz.sources.tables.operations import number_of_iteration


@frozen
class RanksTimes:
    """When the ranks of a table did what."""

    active: ActiveTime
    running: RunningTimes
    exposed: RankIntervals
    coverage: tuple[RankCoverage, ...]


def of_ranks(times: RowIntervals, rank: Ints, count: int) -> RankIntervals:
    """Return times of rows as disjoint times of their ranks.

    Args:
        times: by row.
        rank: of each row.
        count: how many ranks there are.
    """
    owner = rank[times.row]
    return RankIntervals(*intervals.group_union(owner, count, times.start_ns, times.end_ns))


def busy_of(operations: RankOperations, waits: RowIntervals) -> BusyIntervals:
    """Return when operations kept their GPU busy: spans less their waits.

    Args:
        operations: with their spans.
        waits: of these rows.
    """
    spanned = np.flatnonzero((operations.has_span == 1) & (operations.end_ns > operations.start_ns))
    start_ns, end_ns = operations.start_ns[spanned], operations.end_ns[spanned]
    if len(waits) == 0:
        return BusyIntervals(spanned, start_ns, end_ns)
    low_ns = np.where(operations.has_span == 1, operations.start_ns, 0)
    high_ns = np.where(operations.has_span == 1, operations.end_ns, 0)
    packing = intervals.Packing.of(low_ns, high_ns)
    inside = operations.has_span[waits.row] == 1
    row = waits.row[inside]
    first_ns = np.clip(waits.start_ns[inside], low_ns[row], high_ns[row])
    last_ns = np.clip(waits.end_ns[inside], low_ns[row], high_ns[row])
    holes = intervals.union(packing.place(row, first_ns), packing.place(row, last_ns))
    line = packing.place(spanned, start_ns), packing.place(spanned, end_ns)
    return BusyIntervals(*packing.unpack(intervals.difference(intervals.union(*line), holes)))


def times_of(
    table: OperationTable,
    operations: RankOperations,
    busy: BusyIntervals,
    unattributed: RankIntervals,
    exposed: RankIntervals,
) -> RanksTimes:
    """Return what the ranks did.

    The ranks are laid side by side on one line, where they are worked out like a single one.

    Args:
        table: as read.
        operations: of it, in order of rank.
        busy: of these.
        unattributed: when ranks computed outside operations.
        exposed: when the table tells that only collectives ran.
    """
    count = len(table.places)
    packing = _packing(operations, (unattributed, exposed), count)
    spanned = operations.has_span == 1

    def placed(time_ns: Ints) -> Ints:
        return np.where(spanned, packing.place(operations.rank, time_ns), NONE)

    # Of a table an operation is as good as a kernel.
    on_line = operations.changed(
        start_ns=placed(operations.start_ns),
        end_ns=placed(operations.end_ns),
        kernels=operations.has_span.copy(),
    )
    owner = operations.rank[busy.operation]
    busy = replace(
        busy,
        start_ns=packing.place(owner, busy.start_ns),
        end_ns=packing.place(owner, busy.end_ns),
    )
    loose, given = _placed(unattributed, packing), _placed(exposed, packing)
    ran, collective = _work(on_line, busy, loose, given)
    at, operating = np.flatnonzero(collective), busy_times(on_line, busy, COMPUTE)
    alone = given if "exposed" in table.told else _alone(ran.work, at, operating, loose)
    active, running = active_time(on_line, ran, busy, operating, at)
    rank, start_ns, end_ns = packing.unpack((running.start_ns, running.end_ns))
    return RanksTimes(
        active,
        replace(running, rank=rank, start_ns=start_ns, end_ns=end_ns),
        RankIntervals(*packing.unpack(alone)),
        _coverages(packing.groups(ran.work.start_ns), ran, count),
    )


def _packing(
    operations: RankOperations, times: tuple[RankIntervals, ...], count: int
) -> intervals.Packing:
    """Return the packing of ranks by the extents of what they did."""
    spanned = np.flatnonzero(operations.has_span == 1)
    rank = [operations.rank[spanned], *(each.rank for each in times)]
    start_ns = [operations.start_ns[spanned], *(each.start_ns for each in times)]
    end_ns = [operations.end_ns[spanned], *(each.end_ns for each in times)]
    low_ns, high_ns = intervals.group_extents(
        np.concatenate(rank), count, np.concatenate(start_ns), np.concatenate(end_ns)
    )
    return intervals.Packing.of(low_ns, np.maximum(low_ns, high_ns))


def _placed(times: RankIntervals, packing: intervals.Packing) -> intervals.Intervals:
    return packing.place(times.rank, times.start_ns), packing.place(times.rank, times.end_ns)


def _alone(
    work: DeviceWork, collectives: Ints, operating: intervals.Intervals, loose: intervals.Intervals
) -> intervals.Intervals:
    """Return when only collectives ran.

    Args:
        work: all that ran.
        collectives: its rows that are communication, and not between two ranks.
        operating: when compute operations kept the GPU busy.
        loose: when it computed outside them.
    """
    computed = intervals.union(
        np.concatenate((operating[0], loose[0])), np.concatenate((operating[1], loose[1]))
    )
    together = intervals.union(work.start_ns[collectives], work.end_ns[collectives])
    return intervals.difference(together, computed)


def _work(
    operations: RankOperations,
    busy: BusyIntervals,
    loose: intervals.Intervals,
    collectives: intervals.Intervals,
) -> tuple[RankWork, Bools]:
    """Return what ran, and which of it is communication not between two ranks.

    Args:
        operations: of all ranks, on the line.
        busy: of these.
        loose: when ranks computed outside them.
        collectives: when the table tells that only collectives ran.
    """
    start_ns = np.concatenate((busy.start_ns, loose[0], collectives[0]))
    end_ns = np.concatenate((busy.end_ns, loose[1], collectives[1]))
    owner = np.full(len(start_ns), NONE, np.int64)
    owner[: len(busy)] = busy.operation
    communication = np.zeros(len(start_ns), bool)
    communicates = among(operations.phase, COMMUNICATION)
    communication[: len(busy)] = communicates[busy.operation]
    first = len(busy) + len(loose[0])
    communication[first:] = True
    collective = communication.copy()
    collective[: len(busy)] = operations.phase[busy.operation] == Phase.COLLECTIVE
    of_rank, never = np.zeros(len(start_ns), np.int32), np.zeros(len(start_ns), bool)
    work = DeviceWork(start_ns, end_ns, of_rank, owner.copy(), ~communication, communication, never)
    none = np.empty(0, np.int64)
    rows = np.arange(len(start_ns))
    return RankWork(
        range(1), rows, work, np.full(len(rows), NONE, np.int64), owner, none, none
    ), collective


def _coverages(rank: Ints, ran: RankWork, count: int) -> tuple[RankCoverage, ...]:
    """Return how long ranks computed and communicated, as far as the table tells.

    Args:
        rank: of each row of the work.
        ran: the work.
        count: how many ranks there are.
    """
    work = ran.work
    length_ns = work.end_ns - work.start_ns
    owned = ran.owner != NONE

    def total(rows: Bools) -> list[int]:
        sums: list[int] = intervals.group_sum(rank[rows], count, length_ns[rows]).tolist()
        return sums

    columns = (
        total(work.compute),
        total(work.compute & owned),
        total(work.communication),
        total(work.communication & owned),
    )
    return tuple(
        RankCoverage(
            index,
            gpu_ns=gpu_ns,
            attributed_gpu_ns=own_ns,
            comm_ns=comm_ns,
            attributed_comm_ns=own_comm_ns,
            copy_ns=0,
        )
        for index, (gpu_ns, own_ns, comm_ns, own_comm_ns) in enumerate(zip(*columns, strict=True))
    )


# Collectives of a table: its rows that are one, by kind, group and order.


#: NCCL's names of operations, by their letters alone: ``all-reduce`` is AllReduce.
_KINDS = {
    name.lower(): name
    for name in (
        "AllGather",
        "AllReduce",
        "AllToAll",
        "Broadcast",
        "Gather",
        "Reduce",
        "ReduceScatter",
        "Scatter",
    )
}
_NO_LETTER = re.compile(r"[^a-z]")


def collectives_of(
    table: OperationTable, order: Ints, operations: RankOperations
) -> CollectiveIntervals:
    """Return the collectives of a table, in order of (rank, start).

    Args:
        table: as read.
        order: its rows in order of (rank, host start).
        operations: these, with keys.
    """
    if "collectives" in table.told:
        return _as_told(table, order, operations)
    rows = np.flatnonzero((operations.phase == Phase.COLLECTIVE) & (operations.has_span == 1))
    own = operations.take(rows)
    kind, kinds = _numbered(table.kind.at(order[rows]), _kind)
    group, groups = _numbered(table.group.at(order[rows]), str)
    # A row without a kind does something, and nobody knows what.
    kind = np.where(kind == NONE, len(kinds), kind)
    place = places_by_launch(own.host_start_ns, own.start_ns, own.rank, own.iteration, kind, group)
    nothing = np.full(len(rows), NONE, np.int64)
    collectives = CollectiveIntervals(
        rank=own.rank,
        iteration=own.iteration,
        kind=kind,
        group=group,
        order=place,
        sequence=nothing,
        start_ns=own.start_ns,
        end_ns=own.end_ns,
        late_ns=np.zeros(len(rows), np.int64),
        operation=rows,
        meeting=nothing.copy(),
        kinds=(*kinds, ""),
        groups=tuple(Group(name=name, sole=True) for name in groups),
    )
    return collectives.take(sorted_rows(own.rank, own.start_ns))


def _as_told(table: OperationTable, order: Ints, operations: RankOperations) -> CollectiveIntervals:
    """Return the collectives that cells hold, with the meetings that they tell."""
    told = table.collectives
    row = places_in(order)[told.row]
    rank = operations.rank[row]
    # Iterations go by the names that operations have.
    number = {name: code for code, name in enumerate(table.iterations)}
    code = np.array([*(number.get(name, NONE) for name in told.iterations), NONE], np.int64)
    keys = table.operations.rank[order], table.operations.iteration[order]
    iteration = looked_up(keys, operations.iteration, (rank, code[told.iteration]))
    sizes = np.zeros(len(told.groups) + 1, np.int64)
    sizes[told.group] = told.size
    collectives = CollectiveIntervals(
        rank=rank,
        iteration=np.where(told.iteration == NONE, NONE, iteration),
        kind=np.where(told.kind == NONE, len(told.kinds), told.kind),
        group=told.group.copy(),
        order=told.order.copy(),
        sequence=told.sequence.copy(),
        start_ns=told.start_ns.copy(),
        end_ns=told.end_ns.copy(),
        late_ns=np.zeros(len(told), np.int64),
        operation=np.where(told.owned == 1, row, NONE),
        meeting=told.meeting.copy(),
        kinds=(*told.kinds, ""),
        groups=tuple(
            Group(name=name, size=size)
            for name, size in zip(told.groups, sizes.tolist(), strict=False)
        ),
    )
    return collectives.take(sorted_rows(collectives.rank, collectives.start_ns))


def _kind(text: str) -> str:
    """Return NCCL's name of an operation; one that it does not have as it is written."""
    return _KINDS.get(_NO_LETTER.sub("", text.lower()), text)


def _numbered(texts: CodedTexts, name: Callable[[str], str]) -> tuple[Ints, Sequence[str]]:
    """Return the number of each row's name, and the names; -1 for none."""
    numbers: Numbering[str] = Numbering()
    places = numbers.numbers(map(name, texts.texts))
    return np.append(places, NONE)[texts.code], numbers.values


# Limitations of a table: what it leaves open, or has twice.


#: What no table tells, and what one without launches does not tell either.
_NO_KERNELS = (
    "a {noun} holds none, so gaps between kernels inside operations are unknown, and "
    "so is what hosts did instead of launching"
)
_NO_LAUNCHES = "; without {launches}, no idle time is found to be a host's"


def limitations_of(table: OperationTable, rows: KeyedRows) -> tuple[Limitation, ...]:
    """Return the limitations of a table.

    Args:
        table: as read.
        rows: its operations, with keys.
    """
    path = table.source.path
    reason = _NO_KERNELS.format(noun=table.noun)
    if "launched_ns" not in table.told:
        is_table = table.noun.startswith("table")
        reason += _NO_LAUNCHES.format(launches="a column launched_ns" if is_table else "launches")
    return (
        # Of any number of tables once, and so without a path.
        Limitation("kernels", reason),
        *table.notes,
        *(
            Limitation(what, f"{path}: {reason}", count, kind)
            for what, reason, count, kind in _candidates(rows)
            if count
        ),
    )


def _candidates(rows: KeyedRows) -> Iterator[tuple[str, str, int, LimitationKind]]:
    operations, other = rows.operations, LimitationKind.OTHER
    compute = among(operations.phase, COMPUTE)
    counted = among(operations.phase, COUNTED)
    yield (
        "operations without any GPU work",
        "their rows have no start and no end, so they have no device time",
        int((compute & (operations.has_span == 0) & (operations.cut == 0)).sum()),
        other,
    )
    yield (
        "microbatch numbers are inferred",
        "the table gives none, so they are counted by order within an iteration",
        int(rows.unnumbered.any()),
        LimitationKind.MICROBATCHES_INFERRED,
    )
    yield (
        "operations cut by the end of the capture",
        "the table says so",
        int((operations.cut > 0).sum()),
        other,
    )
    repeated = counted & (operations.occurrence > 0) & (operations.microbatch >= 0)
    yield (
        "repeated operations",
        "the same microbatch, chunk and phase occur again in one iteration",
        int(repeated.sum()),
        other,
    )


# Recording of a table: its operations as those of a profile.


def recording_of(table: OperationTable) -> Recording:
    """Return the recording of a table.

    Raises:
        NothingToAnalyseError: it holds no forward or backward.
    """
    if not among(table.operations.phase, COUNTED).any():
        labels = ", ".join(phase.label for phase in COUNTED)
        raise NothingToAnalyseError(
            f"{table.source.path}: the {table.noun} holds no forward or backward ({labels}), so "
            "there is no bubble to measure; add them"
        )
    order = in_host_order(table)
    numbers = np.array([number_of_iteration(name) for name in table.iterations], np.int64)
    rows = keyed(table, order, numbers)
    busy = busy_of(rows.operations, _reordered(table.waits, order))
    busy_ns = group_sum(busy.operation, len(order), busy.end_ns - busy.start_ns)
    lighter = rows.operations.changed(busy_ns=busy_ns).lighter()
    rows = replace(rows, operations=lighter, hints=rows.hints.compacted())
    return _recording(table, order, rows, busy.sharing_with(lighter))


def _recording(
    table: OperationTable, order: Ints, rows: KeyedRows, busy: BusyIntervals
) -> Recording:
    """Return the recording of a table.

    Args:
        table: as read.
        order: its rows in order of (rank, host start).
        rows: these, with keys and busy times.
        busy: when they kept their GPU busy.
    """
    operations, rank, count = rows.operations, table.operations.rank, len(table.places)
    unattributed = of_ranks(table.unattributed, rank, count)
    exposed = of_ranks(table.exposed, rank, count)
    times = times_of(table, operations, busy, unattributed, exposed)
    start_ns, end_ns = _extent(operations)
    convention = table.noun.split(" ", 1)[0]
    return Recording(
        source=table.source,
        convention=convention,
        conventions=frozenset((convention,)),
        ranks=tuple(_local_rank(place) for place in table.places),
        operations=operations,
        hints=rows.hints,
        busy=busy,
        active=times.active,
        running=times.running,
        unattributed=unattributed,
        exposed=times.exposed,
        overheads=of_ranks(table.overheads, rank, count),
        hosts=HostActivities.none(),
        replica_collectives=ReplicaCollectives(*(np.empty(0, np.int64) for _ in range(5))),
        collectives=collectives_of(table, order, operations),
        coverage=_coverage(operations.kernels, times.coverage),
        start_ns=start_ns,
        end_ns=end_ns,
        limitations=limitations_of(table, rows),
        pauses=of_ranks(table.pauses, rank, count),
    )


def _extent(operations: RankOperations) -> tuple[int, int]:
    """Return the first start and the last end of operations."""
    spanned = operations.has_span == 1
    if not spanned.any():
        return 0, 0
    return int(operations.start_ns[spanned].min()), int(operations.end_ns[spanned].max())


def _reordered(times: RowIntervals, order: Ints) -> RowIntervals:
    """Return times of rows that stand in another order now."""
    return RowIntervals(places_in(order)[times.row], times.start_ns.copy(), times.end_ns.copy())


def _local_rank(place: ToldPlace) -> LocalRank:
    return LocalRank(
        process=place.number,
        device_id=0,
        device=None,
        global_rank=place.global_rank,
        place=f"rank {place.number}",
        world_size=place.world_size,
        told=place,
    )


def _coverage(kernels: Ints, ranks: tuple[RankCoverage, ...]) -> Coverage:
    """Return counts of kernels, which all belong to operations."""
    count = int(kernels.sum())
    return Coverage(
        kernels=count,
        linked_kernels=count,
        attributed_kernels=count,
        cross_thread_kernels=0,
        ambiguous_kernels=0,
        ranks=ranks,
        unattributed=(),
    )
