"""Tables of operations as recordings: what their rows leave open, and what ran on their ranks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bubbleviz.errors import NothingToAnalyseError
from bubbleviz.interpret import iterations
from bubbleviz.interpret.collectives import number_by_launch
from bubbleviz.interpret.coverage import Coverage, rank_coverages
from bubbleviz.interpret.linking import LinkedWork
from bubbleviz.interpret.merged_runs import refuse_merged_runs
from bubbleviz.interpret.operation_limitations import (
    check_iteration_marks,
    check_operations,
    make_limitations,
)
from bubbleviz.interpret.operation_ranges import NameHints, fuse_backwards
from bubbleviz.interpret.per_rank import Line
from bubbleviz.interpret.recording import LocalRank, Recording, Recordings, join_recordings
from bubbleviz.interpret.spans import (
    active_time,
    busy_intervals,
    busy_times,
    measure_times,
)
from bubbleviz.model import grouping, intervals
from bubbleviz.model.collectives import CollectiveIntervals, Group
from bubbleviz.model.columns import NONE, Bools, Ints, join_tables, scatter
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.numbering import CodedTexts, Numbering
from bubbleviz.model.operation_table import OperationTable
from bubbleviz.model.operations import (
    BusyIntervals,
    HostActivities,
    Operations,
    RankCoverage,
    RankIntervals,
)
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import COMMUNICATION, COMPUTE, COUNTED, WORK, Phase
from bubbleviz.model.profile import DeclaredClock
from bubbleviz.sources.operations.table import number_of_iteration

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


def build_recording(table: OperationTable) -> Recordings:
    """Return the recording of a table.

    Raises:
        NothingToAnalyseError: it holds no forward or backward.
        ProfileError: It holds two runs of the same ranks and iterations.
    """
    if not mask_phases(table.operations.phase, COUNTED).any():
        labels = ", ".join(phase.label for phase in COUNTED)
        raise NothingToAnalyseError(
            f"{table.source.path}: the {table.noun} holds no forward or backward ({labels}), so "
            "there is no bubble to measure; add them"
        )
    told = table.operations
    # The rows in order of (rank, host start).
    order = grouping.sort_rows(told.rank, told.host_start_ns, told.start_ns)
    numbers = np.array([number_of_iteration(name) for name in table.iterations], np.int64)
    operations, hints, unnumbered = _assign_keys(table, order, numbers)
    is_named = np.full(len(operations), "iteration" in table.told)
    refuse_merged_runs(table.source.path, operations, is_named)
    waits = table.waits.replace_columns(
        operation=grouping.invert_permutation(order)[table.waits.operation]
    )
    spanned = operations.has_span == 1
    busy = busy_intervals(
        operations.start_ns, operations.end_ns, spanned, waits, BusyIntervals.make_empty()
    )
    busy_ns = intervals.group_sum(busy.operation, len(order), busy.end_ns - busy.start_ns)
    operations = operations.replace_columns(busy_ns=busy_ns).compact()
    rank, count = told.rank, len(table.places)
    unattributed = _merge_by_rank(table.unattributed, rank, count)
    exposed = _merge_by_rank(table.exposed, rank, count)
    times, coverage = _measure_ranks(table, operations, busy, unattributed, exposed)
    convention = table.noun.split(" ", 1)[0]
    recording = Recording(
        source=table.source,
        convention=convention,
        conventions=frozenset((convention,)),
        ranks=tuple(
            LocalRank(
                process=place.number,
                device_id=0,
                device=None,
                global_rank=place.global_rank,
                place=f"rank {place.number}",
                world_size=place.world_size,
                told=place,
            )
            for place in table.places
        ),
        limitations=_list_limitations(table, operations, unnumbered),
        **_measure_extent(operations, coverage),
    )
    return Recordings.of(
        recording,
        operations=operations,
        hints=hints.compact(),
        busy=busy,
        unattributed=unattributed,
        overheads=_merge_by_rank(table.overheads, rank, count),
        unrecorded=RankIntervals.make_empty(),
        pauses=_merge_by_rank(table.pauses, rank, count),
        hosts=HostActivities.make_empty(),
        collectives=_build_collectives(table, order, operations),
        **times,
    )


def _measure_extent(
    operations: Operations, ranks: Iterable[RankCoverage], span_ns: tuple[int, int] = (0, 0)
) -> dict[str, Any]:
    """Return what a recording holds of all its operations: start, end, and what they explain.

    Args:
        operations: of its ranks.
        ranks: the coverage of each.
        span_ns: start and end where no operation has them.
    """
    kernels, spanned = int(operations.kernels.sum()), operations.has_span == 1
    if spanned.any():
        span_ns = int(operations.start_ns[spanned].min()), int(operations.end_ns[spanned].max())
    # All kernels belong to operations.
    coverage = Coverage(
        kernels=kernels,
        linked_kernels=kernels,
        attributed_kernels=kernels,
        cross_thread_kernels=0,
        ambiguous_kernels=0,
        ranks=tuple(ranks),
        unattributed=(),
    )
    return {"start_ns": span_ns[0], "end_ns": span_ns[1], "coverage": coverage}


def _assign_keys(
    table: OperationTable, order: Ints, numbers: Ints
) -> tuple[Operations, NameHints, Bools]:
    """Return a table's operations with keys, what else it gives, and whose microbatch is counted.

    Args:
        table: as read.
        order: its rows in order of (rank, host start).
        numbers: of the table's iterations; -1 for one that is only told apart.
    """
    operations = table.operations.take(order)
    stage = _find_virtual_stages(table, operations, table.virtual_stage[order])
    rank, chunk = operations.rank, operations.chunk
    if "chunk" not in table.told:
        chunk = _number_chunks(rank, stage)
    none = np.full(len(order), NONE, np.int64)
    phase = fuse_backwards(operations.phase, (rank, chunk, none, operations.microbatch))
    operations = operations.replace_columns(phase=phase, chunk=chunk)
    parts = chunk, operations.sequence, operations.microbatch
    second = operations.second_microbatch, operations.second_chunk
    is_spanned = operations.has_span == 1
    times_ns = (
        np.where(is_spanned, operations.start_ns, operations.host_start_ns),
        np.where(is_spanned, operations.end_ns, operations.host_end_ns),
    )
    timing = iterations.build_host_order(rank, phase, parts, second, none, times_ns)
    constant = iterations.find_constant_names(timing)
    told = "iteration" in table.told
    iteration = (
        _number_iterations(rank, operations.iteration)
        if told
        else iterations.number_iterations(timing, constant)
    )
    counted = mask_phases(phase, (Phase.F, Phase.B, Phase.BW, Phase.R))
    unnumbered = counted & (operations.microbatch < 0)
    if not told:
        unnumbered |= constant & mask_phases(phase, WORK)
    by_order = iterations.number_occurrences((rank, iteration, phase, chunk, operations.sequence))
    microbatch = np.where(unnumbered, by_order, operations.microbatch)
    key = rank, iteration, phase, chunk, operations.sequence, microbatch
    again = iterations.number_occurrences((*key, *second))
    mark = np.append(numbers, NONE)[operations.iteration] if table.paired else none
    operations = operations.replace_columns(
        iteration=iteration,
        microbatch=microbatch,
        occurrence=np.where(operations.occurrence >= 0, operations.occurrence, again),
    )
    return operations, NameHints(stage=stage, iteration=mark), unnumbered


def _number_iterations(rank: Ints, name: Ints) -> Ints:
    """Return each rank's iterations, counted from 0 in the order of their first operations.

    Args:
        rank: of each operation, in order of (rank, host start).
        name: of its iteration; -1 none.
    """
    known = np.flatnonzero(name != NONE)
    place = grouping.group_rows(rank[known], name[known]).order_by_appearance().of_row
    return scatter(len(rank), known, _subtract_rank_minimum(rank[known], place))


def _find_virtual_stages(table: OperationTable, operations: Operations, told: Ints) -> Ints:
    """Return the virtual stage of each operation, as far as the table gives it; -1 unknown.

    A rank's stage is that of its only chunk.
    """
    if "virtual_stage" in table.told:
        return told
    stage = np.array([NONE if p.stage is None else p.stage for p in table.places], np.int64)
    if (operations.chunk > 0).any():
        return np.full(len(operations), NONE, np.int64)
    return stage[operations.rank]


def _number_chunks(rank: Ints, stage: Ints) -> Ints:
    """Return chunks for operations whose table names none: of each rank by its virtual stages.

    What has no stage, as optimizer steps mostly, adds no chunk.
    """
    known = np.flatnonzero(stage != NONE)
    held = grouping.group_rows(rank[known], stage[known])
    chunk = np.zeros(len(rank), np.int64)
    chunk[known] = _subtract_rank_minimum(rank[known], held.of_row)
    return chunk


def _subtract_rank_minimum(rank: Ints, number: Ints) -> Ints:
    """Return by how much each number is more than the lowest of its rank."""
    count = int(rank.max(initial=0)) + 1
    return number - intervals.group_extents(rank, count, number, number)[0][rank]


def _merge_by_rank(times: BusyIntervals, rank: Ints, count: int) -> RankIntervals:
    """Return times of rows as disjoint times of their ranks.

    Args:
        times: by row.
        rank: of each row.
        count: how many ranks there are.
    """
    owner = rank[times.operation]
    return RankIntervals(*intervals.group_union(owner, count, times.start_ns, times.end_ns))


def _measure_ranks(
    table: OperationTable,
    operations: Operations,
    busy: BusyIntervals,
    unattributed: RankIntervals,
    exposed: RankIntervals,
) -> tuple[dict[str, Any], list[RankCoverage]]:
    """Return what the ranks did, as tables of a recording, and for how long.

    Of one table per operation is as good as a kernel. The ranks are laid side by side on one line,
    where they are worked out like a single one.

    Args:
        table: as read.
        operations: of it, in order of rank.
        busy: of these.
        unattributed: when ranks computed outside operations.
        exposed: when the table tells that only collectives ran.
    """
    count, own, spanned = len(table.places), len(busy), operations.has_span == 1
    working = RankIntervals(operations.rank[busy.operation], busy.start_ns, busy.end_ns)
    times = join_tables([working, unattributed, exposed])
    rank = times.rank
    of_spans = (column[spanned] for column in (operations.start_ns, operations.end_ns))
    spans = (operations.rank[spanned], *of_spans)
    line = Line.of(range(count), spans, (rank, times.start_ns, times.end_ns))
    start_ns, end_ns = line.place(rank, times.start_ns), line.place(rank, times.end_ns)
    loose, told = slice(own, own + len(unattributed)), slice(own + len(unattributed), None)
    owner = np.full(len(rank), NONE, np.int64)
    owner[:own] = busy.operation
    phase = np.append(operations.phase, NONE)[owner]
    communication, collective = mask_phases(phase, COMMUNICATION), phase == Phase.COLLECTIVE
    communication[told] = collective[told] = True
    work = LinkedWork.without_launches(
        start_ns=start_ns,
        end_ns=end_ns,
        rank=rank,
        operation=owner,
        compute=~communication,
        communication=communication,
    )
    on_line = operations.replace_columns(
        start_ns=np.where(spanned, line.place(operations.rank, operations.start_ns), NONE),
        end_ns=np.where(spanned, line.place(operations.rank, operations.end_ns), NONE),
        kernels=operations.has_span.copy(),
    )
    busy = BusyIntervals(busy.operation, start_ns[:own], end_ns[:own])
    operating = busy_times(on_line, busy, COMPUTE)
    collecting = intervals.union(start_ns, end_ns, collective)
    alone = start_ns[told], end_ns[told]
    if "exposed" not in table.told:
        computed = intervals.union(
            np.concatenate((operating[0], start_ns[loose])),
            np.concatenate((operating[1], end_ns[loose])),
        )
        alone = intervals.difference(collecting, computed)
    ran_times = measure_times(on_line, work, range(count))
    active, running = active_time(on_line, ran_times, busy, operating, collecting)
    running = replace(running, rank=line.owners(running.start_ns))
    tables = {
        "active": active,
        "running": line.in_time(running, running.rank, "start_ns", "end_ns"),
        "exposed": line.of_ranks(alone),
    }
    return tables, rank_coverages(range(count), ran_times.spent_ns)


def _build_collectives(
    table: OperationTable, order: Ints, operations: Operations
) -> CollectiveIntervals:
    """Return the collectives of a table, in order of (rank, start).

    Args:
        table: as read.
        order: its rows in order of (rank, host start).
        operations: these, with keys.
    """
    if "collectives" in table.told:
        return _convert_cell_collectives(table, order, operations)
    rows = np.flatnonzero((operations.phase == Phase.COLLECTIVE) & (operations.has_span == 1))
    own = operations.take(rows)
    kind, kinds = _number_texts(table.kind.at(order[rows]), _normalize_kind)
    group, groups = _number_texts(table.group.at(order[rows]), str)
    # A row without a kind does something, and nobody knows what.
    kind = np.where(kind == NONE, len(kinds), kind)
    place = number_by_launch(own.host_start_ns, own.start_ns, own.rank, own.iteration, kind, group)
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
        groups=tuple(Group(name=name, has_unique_name=True) for name in groups),
    )
    return collectives.take(grouping.sort_rows(own.rank, own.start_ns))


def _convert_cell_collectives(
    table: OperationTable, order: Ints, operations: Operations
) -> CollectiveIntervals:
    """Return the collectives that cells hold, with the meetings that they tell."""
    told = table.collectives
    row = grouping.invert_permutation(order)[told.row]
    rank = operations.rank[row]
    # Iterations go by the names that operations have.
    number = {name: code for code, name in enumerate(table.iterations)}
    code = np.array([*(number.get(name, NONE) for name in told.iterations), NONE], np.int64)
    keys = table.operations.rank[order], table.operations.iteration[order]
    iteration = grouping.lookup_values(keys, operations.iteration, (rank, code[told.iteration]))
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
        operation=np.where(told.is_owned == 1, row, NONE),
        meeting=told.meeting.copy(),
        kinds=(*told.kinds, ""),
        groups=tuple(
            Group(name=name, size=size)
            for name, size in zip(told.groups, sizes.tolist(), strict=False)
        ),
    )
    return collectives.take(grouping.sort_rows(collectives.rank, collectives.start_ns))


def _normalize_kind(text: str) -> str:
    """Return NCCL's name of an operation; one that it does not have as it is written."""
    return _KINDS.get(_NO_LETTER.sub("", text.lower()), text)


def _number_texts(texts: CodedTexts, name: Callable[[str], str]) -> tuple[Ints, Sequence[str]]:
    """Return the number of each row's name, and the names; -1 for none."""
    numbers: Numbering[str] = Numbering()
    places = numbers.numbers(map(name, texts.texts))
    return np.append(places, NONE)[texts.code], numbers.values


def _list_limitations(
    table: OperationTable, operations: Operations, unnumbered: Bools
) -> tuple[Limitation, ...]:
    """Return the limitations of a table, whose operations are ``unnumbered`` in part."""
    reason = (
        f"a {table.noun} holds none, so gaps between kernels inside operations are unknown, and "
        "so is what hosts did instead of launching"
    )
    if "launched_ns" not in table.told:
        launches = "a column launched_ns" if table.noun.startswith("table") else "launches"
        reason += f"; without {launches}, no idle time is found to be a host's"
    named = operations.rank if "iteration" in table.told else operations.rank[:0]
    return (
        # Of any number of tables once, and so without a path.
        Limitation("kernels", reason),
        *table.notes,
        *make_limitations(
            table.source.path,
            (
                *check_operations(operations, inferred=bool(unnumbered.any()), told=True),
                check_iteration_marks(
                    operations, unnumbered, np.zeros(len(operations), bool), named
                ),
            ),
        ),
    )


def split_by_clock(read: Recordings) -> Recordings:
    """Return what was read of one table as a recording a clock, where it holds several clocks."""
    (recording,) = read.recordings
    clocks = [rank.told.clock if rank.told else None for rank in recording.ranks]
    distinct = list(dict.fromkeys(clocks))
    if distinct == [None]:
        return read
    number = np.array([distinct.index(clock) for clock in clocks], np.int64)
    return join_recordings(
        [
            _select_clock(read, np.flatnonzero(number == place), clock, first=place == 0)
            for place, clock in enumerate(distinct)
        ]
    )


def _select_clock(
    read: Recordings, ranks: Ints, clock: DeclaredClock | None, *, first: bool
) -> Recordings:
    """Return what a recording holds of some ranks, which share a clock.

    Args:
        read: the recording.
        ranks: of it.
        clock: of these.
        first: whether it is the first, which has the limitations of all.
    """
    (recording,) = read.recordings
    place = scatter(len(recording.ranks), ranks, np.arange(len(ranks)))

    def of_ranks(name: str) -> Any:
        """Return the rows of these ranks, which have other numbers now."""
        table = getattr(read, name)
        some = table.take(place[table.rank] != NONE)
        return replace(some, rank=place[some.rank])

    rows = np.flatnonzero(place[read.operations.rank] != NONE)
    row = scatter(len(read.operations), rows, np.arange(len(rows)))
    own, collectives = of_ranks("operations"), of_ranks("collectives")
    busy = read.busy.take(row[read.busy.operation] != NONE)
    source, told = recording.source, recording.coverage.ranks
    coverage = [replace(r, rank=int(place[r.rank])) for r in told if place[r.rank] != NONE]
    part = replace(
        recording,
        source=source if clock is None else replace(source, host=clock.name, clock=clock),
        ranks=tuple(recording.ranks[rank] for rank in ranks.tolist()),
        limitations=recording.limitations if first else (),
        **_measure_extent(own, coverage, (recording.start_ns, recording.end_ns)),
    )
    of_rank = ("active", "running", "unattributed", "exposed", "overheads", "unrecorded", "pauses")
    return Recordings.of(
        part,
        operations=own,
        hints=read.hints.take(rows),
        busy=replace(busy, operation=row[busy.operation]),
        hosts=read.hosts,
        collectives=collectives.replace_columns(
            operation=np.append(row, NONE)[collectives.operation]
        ),
        **{name: of_ranks(name) for name in of_rank},
    )
