"""Recordings of operation tables: files that list operations instead of kernels and ranges.

Values that are missing from the rows of a table (iteration, microbatch, chunk) are derived from the
order of the rows, in the same way as for a profile.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bubbleviz.errors import NothingToAnalyzeError
from bubbleviz.interpret import iterations
from bubbleviz.interpret.collectives import number_by_launch
from bubbleviz.interpret.coverage import Coverage, make_rank_coverages
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
    find_busy_intervals,
    measure_active_time,
    measure_times,
    merge_busy_times,
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
from bubbleviz.sources.operations.table import parse_iteration_number

#: NCCL's collective names, keyed by their lowercase letters. The text ``all-reduce`` thus matches
#: ``AllReduce``.
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
    """Build a recording from a table of operations.

    All ranks are in one recording, even if they use several clocks; see :func:`split_by_clock`.

    Args:
        table: The table. Its rows may be in any order.

    Returns:
        The recording. Its operations are sorted by (rank, host start, start).

    Raises:
        NothingToAnalyzeError: The table contains no forward or backward.
        ProfileError: The table contains two runs of the same ranks and iterations.
    """
    _refuse_without_passes(table)
    order = grouping.sort_rows(
        table.operations.rank, table.operations.host_start_ns, table.operations.start_ns
    )
    operations, hints, is_unnumbered = _assign_keys(table, order)
    has_name = np.full(len(operations), "iteration" in table.told)
    refuse_merged_runs(table.source.path, operations, has_name)
    operations, busy = _measure_busy_times(table, order, operations)
    unattributed = _merge_by_rank(table, table.unattributed)
    exposed = _merge_by_rank(table, table.exposed)
    times, coverage = _measure_ranks(table, operations, busy, unattributed, exposed)
    convention = table.noun.split(" ", 1)[0]
    recording = Recording(
        source=table.source,
        convention=convention,
        conventions=frozenset((convention,)),
        ranks=_list_ranks(table),
        limitations=_list_limitations(table, operations, is_unnumbered),
        **_measure_extent(operations, coverage),
    )
    return Recordings.of(
        recording,
        operations=operations,
        hints=hints.compact(),
        busy=busy,
        unattributed=unattributed,
        overheads=_merge_by_rank(table, table.overheads),
        unrecorded=RankIntervals.make_empty(),
        pauses=_merge_by_rank(table, table.pauses),
        hosts=HostActivities.make_empty(),
        collectives=_build_collectives(table, order, operations),
        **times,
    )


def _refuse_without_passes(table: OperationTable) -> None:
    """Raise an error if a table contains no forward or backward.

    Raises:
        NothingToAnalyzeError: The table contains no forward or backward.
    """
    if not mask_phases(table.operations.phase, COUNTED).any():
        labels = ", ".join(phase.label for phase in COUNTED)
        raise NothingToAnalyzeError(
            f"{table.source.path}: the {table.noun} contains no forward or backward ({labels}), so "
            "there is no bubble to measure; add rows for these operations"
        )


def _list_ranks(table: OperationTable) -> tuple[LocalRank, ...]:
    """Return the ranks of a table. Each rank is represented by a process with a single device."""
    return tuple(
        LocalRank(
            process=place.number,
            device_id=0,
            device=None,
            global_rank=place.global_rank,
            device_label=f"rank {place.number}",
            world_size=place.world_size,
            declared=place,
        )
        for place in table.places
    )


def _measure_busy_times(
    table: OperationTable, order: Ints, operations: Operations
) -> tuple[Operations, BusyIntervals]:
    """Measure when each operation kept its GPU busy, which is its span without waits for receives.

    Args:
        table: The table.
        order: Rows of the table, sorted by (rank, host start).
        operations: Operations of the table, in this order.

    Returns:
        operations: The operations with ``busy_ns`` set.
        busy: Intervals in which each operation kept its GPU busy.
    """
    waits = table.waits.replace_columns(
        operation=grouping.invert_permutation(order)[table.waits.operation]
    )
    has_span = operations.has_span == 1
    busy = find_busy_intervals(
        operations.start_ns, operations.end_ns, has_span, waits, BusyIntervals.make_empty()
    )
    busy_ns = intervals.group_sum(busy.operation, len(order), busy.end_ns - busy.start_ns)
    return operations.replace_columns(busy_ns=busy_ns).compact(), busy


def _measure_extent(
    operations: Operations, coverages: Iterable[RankCoverage], span_ns: tuple[int, int] = (0, 0)
) -> dict[str, Any]:
    """Return the fields ``start_ns``, ``end_ns`` and ``coverage`` of a recording.

    Args:
        operations: Operations of the recording.
        coverages: Coverage of each rank.
        span_ns: Start and end to use if no operation has device times.
    """
    kernels, has_span = int(operations.kernels.sum()), operations.has_span == 1
    if has_span.any():
        span_ns = int(operations.start_ns[has_span].min()), int(operations.end_ns[has_span].max())
    # All kernels of a table belong to operations.
    coverage = Coverage(
        kernels=kernels,
        linked_kernels=kernels,
        attributed_kernels=kernels,
        cross_thread_kernels=0,
        ambiguous_kernels=0,
        ranks=tuple(coverages),
        unattributed=(),
    )
    return {"start_ns": span_ns[0], "end_ns": span_ns[1], "coverage": coverage}


def _assign_keys(table: OperationTable, order: Ints) -> tuple[Operations, NameHints, Bools]:
    """Fill in the iteration, phase, chunk, microbatch and occurrence of each operation.

    Values in the table take precedence. Missing values are derived as follows:

    - Chunks are numbered by virtual stage.
    - Iterations and occurrences are numbered by repetition.
    - Microbatches are numbered by order.
    - A B without a W becomes a BW.

    Args:
        table: The table.
        order: Rows of the table, sorted by (rank, host start).

    Returns:
        operations: Operations of the table, in this order.
        hints: Virtual stages and iteration numbers in the table.
        is_unnumbered: Mask of the operations whose microbatch is numbered by order; see
            :func:`_count_iterations`.
    """
    operations = table.operations.take(order)
    stage = _find_virtual_stages(table, operations, table.virtual_stage[order])
    chunk = operations.chunk
    if "chunk" not in table.told:
        chunk = _number_chunks(operations.rank, stage)
    no_stage = np.full(len(order), NONE, np.int64)
    phase = fuse_backwards(
        operations.phase, (operations.rank, chunk, no_stage, operations.microbatch)
    )
    operations = operations.replace_columns(phase=phase, chunk=chunk)
    hints = NameHints(stage=stage, iteration=_list_iteration_hints(table, operations.iteration))
    iteration, is_unnumbered = _count_iterations(table, operations)
    operations = operations.replace_columns(iteration=iteration)
    return _number_by_order(operations, is_unnumbered), hints, is_unnumbered


def _list_iteration_hints(table: OperationTable, iteration: Ints) -> Ints:
    """Return the number in the iteration name of each operation, or -1 if there is none.

    If iterations with the same name on different ranks are not the same iteration (``table.paired``
    is false), all results are -1.

    Args:
        table: The table.
        iteration: Index in ``table.iterations`` of each operation's iteration, or -1 if the
            iteration has no name.
    """
    if not table.paired:
        return np.full(len(iteration), NONE, np.int64)
    # The last entry is for operations without a name (-1).
    numbers = np.array([*map(parse_iteration_number, table.iterations), NONE], np.int64)
    return numbers[iteration]


def _number_by_order(operations: Operations, is_unnumbered: Bools) -> Operations:
    """Fill in missing microbatches and occurrences from the order of operations.

    - The microbatch is the number of earlier operations with the same rank, iteration, phase, chunk
      and sequence.
    - The occurrence is the number of earlier operations that also have the same microbatch, second
      microbatch and second chunk. Occurrences that the table contains are kept.

    Args:
        operations: Operations sorted by (rank, host start), with iteration, phase and chunk.
        is_unnumbered: Mask of the operations whose microbatch is numbered by order.
    """
    key = (
        operations.rank,
        operations.iteration,
        operations.phase,
        operations.chunk,
        operations.sequence,
    )
    by_order = iterations.number_occurrences(key)
    microbatch = np.where(is_unnumbered, by_order, operations.microbatch)
    occurrence = iterations.number_occurrences(
        (*key, microbatch, operations.second_microbatch, operations.second_chunk)
    )
    has_occurrence = operations.occurrence >= 0
    return operations.replace_columns(
        microbatch=microbatch,
        occurrence=np.where(has_occurrence, operations.occurrence, occurrence),
    )


def _count_iterations(table: OperationTable, operations: Operations) -> tuple[Ints, Bools]:
    """Number each rank's iterations, starting at 0.

    If the table names iterations, the names are used. Otherwise, the iterations are found by the
    repetition of forwards; see :mod:`bubbleviz.interpret.iterations`.

    Args:
        table: The table.
        operations: Operations of the table, sorted by (rank, host start).

    Returns:
        iteration: Iteration of each operation, or -1 if it belongs to none.
        is_unnumbered: Mask of the operations whose microbatch must be numbered by order. These are
            F, B, BW and R operations without a microbatch, and operations on ranks where all
            microbatches have the same number.
    """
    rank, phase = operations.rank, operations.phase
    has_number = operations.microbatch >= 0
    is_unnumbered = mask_phases(phase, (Phase.F, Phase.B, Phase.BW, Phase.R)) & ~has_number
    if "iteration" in table.told:
        return _number_iterations(rank, operations.iteration), is_unnumbered
    has_span = operations.has_span == 1
    timing = iterations.build_host_order(
        rank,
        phase,
        key=(operations.chunk, operations.sequence, operations.microbatch),
        second=(operations.second_microbatch, operations.second_chunk),
        mark=np.full(len(operations), NONE, np.int64),
        times_ns=(
            np.where(has_span, operations.start_ns, operations.host_start_ns),
            np.where(has_span, operations.end_ns, operations.host_end_ns),
        ),
    )
    is_constant = iterations.find_constant_names(timing)
    iteration = iterations.number_iterations(timing, is_constant)
    return iteration, is_unnumbered | (is_constant & mask_phases(phase, WORK))


def _number_iterations(rank: Ints, name: Ints) -> Ints:
    """Number each rank's named iterations, starting at 0, in the order of their first operations.

    Args:
        rank: Rank of each operation, sorted by (rank, host start).
        name: Index of each operation's iteration name, or -1 if the iteration has no name.

    Returns:
        Iteration of each operation, or -1 if its iteration has no name.
    """
    rows = np.flatnonzero(name != NONE)
    group = grouping.group_rows(rank[rows], name[rows]).order_by_appearance().of_row
    return scatter(len(rank), rows, _subtract_rank_minimum(rank[rows], group))


def _find_virtual_stages(
    table: OperationTable, operations: Operations, stage_in_table: Ints
) -> Ints:
    """Return the virtual stage of each operation, or -1 if unknown.

    If the table has a column of virtual stages, it is used. Otherwise, if no operation has a chunk
    above 0, each rank has a single chunk, and the virtual stage is the stage of the rank. In all
    other cases, all virtual stages are unknown.

    Args:
        table: The table.
        operations: Operations of the table, sorted by (rank, host start).
        stage_in_table: Virtual stage of each operation in the table.
    """
    if "virtual_stage" in table.told:
        return stage_in_table
    stage = np.array([NONE if p.stage is None else p.stage for p in table.places], np.int64)
    if (operations.chunk > 0).any():
        return np.full(len(operations), NONE, np.int64)
    return stage[operations.rank]


def _number_chunks(rank: Ints, stage: Ints) -> Ints:
    """Return the chunk of each operation, which is the index of its virtual stage on its rank.

    The distinct virtual stages of each rank are numbered in ascending order, starting at 0.
    Operations without a virtual stage, such as most optimizer steps, get chunk 0.

    Args:
        rank: Rank of each operation.
        stage: Virtual stage of each operation, or -1 if unknown.
    """
    rows = np.flatnonzero(stage != NONE)
    rank_stage = grouping.group_rows(rank[rows], stage[rows])
    chunk = np.zeros(len(rank), np.int64)
    chunk[rows] = _subtract_rank_minimum(rank[rows], rank_stage.of_row)
    return chunk


def _subtract_rank_minimum(rank: Ints, number: Ints) -> Ints:
    """Subtract from each number the smallest number that occurs on the same rank."""
    n_ranks = int(rank.max(initial=0)) + 1
    smallest, _ = intervals.group_extents(rank, n_ranks, number, number)
    return number - smallest[rank]


def _merge_by_rank(table: OperationTable, times: BusyIntervals) -> RankIntervals:
    """Merge the intervals that belong to rows of a table into disjoint intervals per rank.

    Args:
        table: The table.
        times: The intervals, each with its row in the table.
    """
    rank, n_ranks = table.operations.rank[times.operation], len(table.places)
    return RankIntervals(*intervals.group_union(rank, n_ranks, times.start_ns, times.end_ns))


def _measure_ranks(
    table: OperationTable,
    operations: Operations,
    busy: BusyIntervals,
    unattributed: RankIntervals,
    exposed: RankIntervals,
) -> tuple[dict[str, Any], list[RankCoverage]]:
    """Measure when each rank ran work, when it computed, and when it ran only communication.

    Each interval of work is treated as a kernel. The times of the ranks are shifted onto one time
    axis, so that all ranks are measured at once.

    Args:
        table: The table.
        operations: Operations of the table, sorted by rank.
        busy: Intervals in which operations kept their GPU busy.
        unattributed: Intervals in which ranks computed outside operations.
        exposed: Intervals in which only collectives ran, according to the table. If the table does
            not contain them, they are computed from the collectives.

    Returns:
        tables: The tables ``active``, ``running`` and ``exposed`` of a recording, keyed by name.
        coverage: Coverage of each rank.
    """
    ranks = range(len(table.places))
    line, times = _place_times(ranks, operations, busy, unattributed, exposed)
    on_line = _place_operations(line, operations)
    busy = BusyIntervals(busy.operation, *times.select(times.busy))
    operating = merge_busy_times(on_line, busy, COMPUTE)
    collecting = _find_collective_times(operations, busy, times)
    exposed_on_line = times.select(times.exposed)
    if "exposed" not in table.told:
        exposed_on_line = _measure_exposure(times, operating, collecting)
    work_times = measure_times(on_line, _make_work(operations, busy, times), ranks)
    active, running = measure_active_time(on_line, work_times, busy, operating, collecting)
    running = replace(running, rank=line.find_ranks(running.start_ns))
    tables = {
        "active": active,
        "running": line.convert_columns(running, running.rank, "start_ns", "end_ns"),
        "exposed": line.convert_intervals(exposed_on_line),
    }
    return tables, make_rank_coverages(ranks, work_times.spent_ns)


@dataclass(frozen=True)
class _TimesOnLine:
    """Intervals in which ranks ran work, on one time axis.

    Attributes:
        rank: Rank of each interval.
        start_ns: Position on the axis at which each interval starts.
        end_ns: Position on the axis at which each interval ends.
        busy: Slice that selects the intervals in which operations kept their GPU busy.
        unattributed: Slice that selects the intervals in which ranks computed outside operations.
        exposed: Slice that selects the intervals in which only collectives ran, according to the
            table.
    """

    rank: Ints
    start_ns: Ints
    end_ns: Ints
    busy: slice
    unattributed: slice
    exposed: slice

    def select(self, rows: slice) -> intervals.Intervals:
        """Return the starts and the ends of the selected intervals."""
        return self.start_ns[rows], self.end_ns[rows]


def _place_times(
    ranks: range,
    operations: Operations,
    busy: BusyIntervals,
    unattributed: RankIntervals,
    exposed: RankIntervals,
) -> tuple[Line, _TimesOnLine]:
    """Shift the times of ranks onto one time axis.

    Args:
        ranks: Indices of all ranks.
        operations: Operations of the ranks. The axis has room for their spans.
        busy: Intervals in which operations kept their GPU busy.
        unattributed: Intervals in which ranks computed outside operations.
        exposed: Intervals in which only collectives ran, according to the table.

    Returns:
        line: The time axis.
        times: The intervals on this axis.
    """
    of_busy = RankIntervals(operations.rank[busy.operation], busy.start_ns, busy.end_ns)
    times = join_tables([of_busy, unattributed, exposed])
    spanned = operations.take(operations.has_span == 1)
    spans = spanned.rank, spanned.start_ns, spanned.end_ns
    line = Line.of(ranks, spans, (times.rank, times.start_ns, times.end_ns))
    first_exposed = len(busy) + len(unattributed)
    return line, _TimesOnLine(
        rank=times.rank,
        start_ns=line.place(times.rank, times.start_ns),
        end_ns=line.place(times.rank, times.end_ns),
        busy=slice(0, len(busy)),
        unattributed=slice(len(busy), first_exposed),
        exposed=slice(first_exposed, None),
    )


def _place_operations(line: Line, operations: Operations) -> Operations:
    """Shift the operation spans onto a time axis, and count each span as one kernel."""
    has_span = operations.has_span == 1
    return operations.replace_columns(
        start_ns=np.where(has_span, line.place(operations.rank, operations.start_ns), NONE),
        end_ns=np.where(has_span, line.place(operations.rank, operations.end_ns), NONE),
        kernels=operations.has_span.copy(),
    )


def _find_collective_times(
    operations: Operations, busy: BusyIntervals, times: _TimesOnLine
) -> intervals.Intervals:
    """Return when collectives ran: the union of their busy intervals and the exposed intervals.

    Args:
        operations: Operations of the table.
        busy: Intervals in which operations kept their GPU busy.
        times: All intervals on the time axis.
    """
    is_collective = np.zeros(len(times.rank), bool)
    is_collective[times.busy] = operations.phase[busy.operation] == Phase.COLLECTIVE
    is_collective[times.exposed] = True
    return intervals.union(times.start_ns, times.end_ns, is_collective)


def _measure_exposure(
    times: _TimesOnLine, operating: intervals.Intervals, collecting: intervals.Intervals
) -> intervals.Intervals:
    """Return when collectives but no compute ran.

    This is ``collecting`` without ``operating`` and without the unattributed intervals.

    Args:
        times: All intervals on the time axis.
        operating: Intervals in which any compute operation kept the GPU busy.
        collecting: Intervals in which collectives ran.
    """
    starts_and_ends = zip(operating, times.select(times.unattributed), strict=True)
    start_ns, end_ns = map(np.concatenate, starts_and_ends)
    return intervals.difference(collecting, intervals.union(start_ns, end_ns))


def _make_work(operations: Operations, busy: BusyIntervals, times: _TimesOnLine) -> LinkedWork:
    """Turn each interval in which a rank ran work into a kernel.

    Kernels of communication operations and of exposed intervals are communication. All other
    kernels are compute. Only the kernels of busy intervals belong to an operation.

    Args:
        operations: Operations of the table.
        busy: Intervals in which operations kept their GPU busy.
        times: All intervals on the time axis.
    """
    owner = np.full(len(times.rank), NONE, np.int64)
    owner[times.busy] = busy.operation
    is_communication = np.append(mask_phases(operations.phase, COMMUNICATION), False)[owner]
    is_communication[times.exposed] = True
    return LinkedWork.make_without_launches(
        start_ns=times.start_ns,
        end_ns=times.end_ns,
        rank=times.rank,
        operation=owner,
        compute=~is_communication,
        communication=is_communication,
    )


def _build_collectives(
    table: OperationTable, order: Ints, operations: Operations
) -> CollectiveIntervals:
    """Build the collectives of a table, sorted by (rank, start).

    If the table has a column of collectives, its cells are used. Otherwise, the rows whose phase is
    ``COLLECTIVE`` and that have device times are used.

    Args:
        table: The table.
        order: Rows of the table, sorted by (rank, host start).
        operations: Operations of the table, in this order, with their iterations.
    """
    if "collectives" in table.told:
        return _convert_cell_collectives(table, order, operations)
    rows = np.flatnonzero((operations.phase == Phase.COLLECTIVE) & (operations.has_span == 1))
    collective = operations.take(rows)
    rank, iteration = collective.rank, collective.iteration
    kind, kinds = _number_texts(table.kind.at(order[rows]), _normalize_kind)
    group, groups = _number_texts(table.group.at(order[rows]), str)
    # Rows without a kind get the last kind, "".
    kind = np.where(kind == NONE, len(kinds), kind)
    number = number_by_launch(
        collective.host_start_ns, collective.start_ns, rank, iteration, kind, group
    )
    unknown = np.full(len(rows), NONE, np.int64)
    collectives = CollectiveIntervals(
        rank=rank,
        iteration=iteration,
        kind=kind,
        group=group,
        order=number,
        sequence=unknown,
        start_ns=collective.start_ns,
        end_ns=collective.end_ns,
        late_ns=np.zeros(len(rows), np.int64),
        operation=rows,
        meeting=unknown.copy(),
        kinds=(*kinds, ""),
        groups=tuple(Group(name=name, has_unique_name=True) for name in groups),
    )
    return collectives.take(grouping.sort_rows(rank, collective.start_ns))


def _convert_cell_collectives(
    table: OperationTable, order: Ints, operations: Operations
) -> CollectiveIntervals:
    """Convert the collectives in cells of a table, including their meetings.

    Args:
        table: The table.
        order: Rows of the table, sorted by (rank, host start).
        operations: Operations of the table, in this order, with their iterations.

    Returns:
        The collectives, sorted by (rank, start).
    """
    cells = table.collectives
    row = grouping.invert_permutation(order)[cells.row]
    rank = operations.rank[row]
    # The cells and the operations have separate lists of iteration names.
    index_of_name = {name: index for index, name in enumerate(table.iterations)}
    name = np.array([*(index_of_name.get(n, NONE) for n in cells.iterations), NONE], np.int64)
    keys = table.operations.rank[order], table.operations.iteration[order]
    iteration = grouping.lookup_values(keys, operations.iteration, (rank, name[cells.iteration]))
    sizes = np.zeros(len(cells.groups) + 1, np.int64)
    sizes[cells.group] = cells.size
    groups = zip(cells.groups, sizes.tolist(), strict=False)
    collectives = CollectiveIntervals(
        rank=rank,
        iteration=np.where(cells.iteration == NONE, NONE, iteration),
        kind=np.where(cells.kind == NONE, len(cells.kinds), cells.kind),
        group=cells.group.copy(),
        order=cells.order.copy(),
        sequence=cells.sequence.copy(),
        start_ns=cells.start_ns.copy(),
        end_ns=cells.end_ns.copy(),
        late_ns=np.zeros(len(cells), np.int64),
        operation=np.where(cells.is_owned == 1, row, NONE),
        meeting=cells.meeting.copy(),
        kinds=(*cells.kinds, ""),
        groups=tuple(Group(name=name, size=size) for name, size in groups),
    )
    return collectives.take(grouping.sort_rows(collectives.rank, collectives.start_ns))


def _normalize_kind(text: str) -> str:
    """Return NCCL's name for a collective, for example ``AllReduce`` for ``all-reduce``.

    Case and all characters other than letters are ignored. Unknown names are returned unchanged.
    """
    return _KINDS.get(_NO_LETTER.sub("", text.lower()), text)


def _number_texts(texts: CodedTexts, normalize: Callable[[str], str]) -> tuple[Ints, Sequence[str]]:
    """Normalize the text of each row, and number the distinct results.

    Args:
        texts: Text of each row. Rows may have no text.
        normalize: Function that returns the name to use for a text.

    Returns:
        number: Index into ``names`` for each row, or -1 if the row has no text.
        names: The distinct names.
    """
    numbering: Numbering[str] = Numbering()
    numbers = numbering.numbers(map(normalize, texts.texts))
    return np.append(numbers, NONE)[texts.code], numbering.values


def _list_limitations(
    table: OperationTable, operations: Operations, is_unnumbered: Bools
) -> tuple[Limitation, ...]:
    """Return the limitations of a table of operations.

    The first one lists what no table can show, such as gaps between kernels inside operations. The
    rest are the notes of the table, and problems found by
    :func:`~bubbleviz.interpret.operation_limitations.check_operations` and
    :func:`~bubbleviz.interpret.operation_limitations.check_iteration_marks`.

    Args:
        table: The table.
        operations: Operations of the table.
        is_unnumbered: Mask of the operations whose microbatch was numbered by order.
    """
    reason = (
        f"a {table.noun} contains no kernels, so gaps between kernels inside operations and host "
        "activities before late launches are unknown"
    )
    if "launched_ns" not in table.told:
        launches = "a column launched_ns" if table.noun.startswith("table") else "launches"
        reason += f"; without {launches}, no idle time is attributed to the host"
    ranks_with_names = operations.rank if "iteration" in table.told else operations.rank[:0]
    in_parts = np.zeros(len(operations), bool)
    return (
        # Without the path, the limitation is reported only once for any number of tables.
        Limitation("gaps between kernels", reason),
        *table.notes,
        *make_limitations(
            table.source.path,
            (
                *check_operations(operations, inferred=bool(is_unnumbered.any()), is_table=True),
                check_iteration_marks(operations, is_unnumbered, in_parts, ranks_with_names),
            ),
        ),
    )


def split_by_clock(recordings: Recordings) -> Recordings:
    """Split the recording of a table into one recording per clock.

    Args:
        recordings: The recording of one table.

    Returns:
        The given recording if the table names no clock. Otherwise, one recording per clock, in the
        order of each clock's first rank.
    """
    (recording,) = recordings.recordings
    clocks = [rank.declared.clock if rank.declared else None for rank in recording.ranks]
    distinct = list(dict.fromkeys(clocks))
    if distinct == [None]:
        return recordings
    number = np.array([distinct.index(clock) for clock in clocks], np.int64)
    return join_recordings(
        [
            _select_clock(recordings, np.flatnonzero(number == index), clock, is_first=index == 0)
            for index, clock in enumerate(distinct)
        ]
    )


def _select_clock(
    recordings: Recordings, ranks: Ints, clock: DeclaredClock | None, *, is_first: bool
) -> Recordings:
    """Select the ranks of a recording that share a clock, and renumber ranks and operations.

    Args:
        recordings: The recording of one table.
        ranks: Indices of the ranks to select, in ascending order.
        clock: Clock of the selected ranks, or None for the clock that all tables share.
        is_first: Whether this is the first clock of the table. Only the first recording keeps the
            limitations of the table.
    """
    (recording,) = recordings.recordings
    new_rank = scatter(len(recording.ranks), ranks, np.arange(len(ranks)))
    rows = np.flatnonzero(new_rank[recordings.operations.rank] != NONE)
    new_row = scatter(len(recordings.operations) + 1, rows, np.arange(len(rows)))

    def of_ranks(name: str) -> Any:
        """Return the rows of the selected ranks in one table, with their new rank numbers."""
        table = getattr(recordings, name)
        selected = table.take(new_rank[table.rank] != NONE)
        return replace(selected, rank=new_rank[selected.rank])

    operations, collectives = of_ranks("operations"), of_ranks("collectives")
    busy = recordings.busy.take(new_row[recordings.busy.operation] != NONE)
    source = recording.source
    coverage = [
        replace(of_rank, rank=int(new_rank[of_rank.rank]))
        for of_rank in recording.coverage.ranks
        if new_rank[of_rank.rank] != NONE
    ]
    part = replace(
        recording,
        source=source if clock is None else replace(source, host=clock.name, clock=clock),
        ranks=tuple(recording.ranks[rank] for rank in ranks.tolist()),
        limitations=recording.limitations if is_first else (),
        **_measure_extent(operations, coverage, (recording.start_ns, recording.end_ns)),
    )
    of_rank = ("active", "running", "unattributed", "exposed", "overheads", "unrecorded", "pauses")
    return Recordings.of(
        part,
        operations=operations,
        hints=recordings.hints.take(rows),
        busy=replace(busy, operation=new_row[busy.operation]),
        hosts=recordings.hosts,
        collectives=collectives.replace_columns(operation=new_row[collectives.operation]),
        **{name: of_ranks(name) for name in of_rank},
    )
