"""Operation ranges: the operations that the named ranges of a profile make up, on each rank.

The name of a range gives the phase and microbatch of an operation. It does not show on which rank
the operation ran, in which iteration, or whether two ranges with the same name are one operation.
:func:`find_operations` determines this in five steps::

    ranges          │ iteration 7                            │
                    │ F0      F0      B0      Optimizer      │ F0      B0
    work            │ GPU 0   GPU 0   GPU 0   GPU 0          │ none    GPU 0

    1 rank            0       0       0       0                0       0
    2 hint            7       7       7       7                -1      -1
    3 iteration       0       0       0       0                1       1
    4 operation       0       0       1       2                3       4
    5 merged        F0 from the first start to the last end, B0, Optimizer, F0, B0

1. A range belongs to each rank that its work ran on. A range without work belongs to the only rank
   of its process or thread; see ``_place_on_ranks``.
2. The range of an iteration gives its number to the ranges inside it, and to those after it until
   the next forward; see ``_find_iteration_hints``.
3. Iterations are numbered by these hints, and by repeated forwards and Optimizers where there are
   none; see :mod:`bubbleviz.interpret.iterations`.
4. Consecutive forwards or backwards with the same key are parts of one operation; see
   ``_group_ranges``.
5. The parts of an operation are merged; see ``_merge_ranges``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bubbleviz.conventions.range_names import NameMeanings
from bubbleviz.interpret import iterations
from bubbleviz.interpret.linking import LinkedWork
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Bools, Ints, Table, make_mask
from bubbleviz.model.grouping import (
    find_distinct,
    find_distinct_rows,
    find_positions,
    find_run_starts,
    group_rows,
    lookup_values,
    subtract_values,
)
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import BACKWARD, COUNTED, WORK, Phase
from bubbleviz.model.profile import Profile, Ranges, get_pid, process_of
from bubbleviz.model.texts import list_first

#: Maximum number of processes that a message lists.
_MAX_LISTED = 8


@dataclass(frozen=True, eq=False, repr=False)
class OperationRanges(Table):
    """Ranges on ranks, in order of (rank, host start). Each is an operation or a part of one.

    Attributes:
        range: Row of the ranges that name operations.
        rank: Rank that its work ran on.
        mark: Iteration number in the name of a range around it, or -1 if there is none.
        iteration: Iteration of the rank, from 0.
        unnumbered: Whether its order determines its microbatch, because its name contains none or
            all names on the rank contain the same one.
        operation: Number of the operation, in order of (rank, host start).
    """

    range: Ints
    rank: Ints
    mark: Ints
    iteration: Ints
    unnumbered: Bools
    operation: Ints


@dataclass(frozen=True, eq=False, repr=False)
class NameHints(Table):
    """Stages and iteration numbers in the names of operations, one row per operation.

    Attributes:
        stage: Virtual stage, or -1 if the name gives none.
        iteration: Number of the iteration that a range around the operation names, or -1 if there
            is none.
    """

    stage: Ints
    iteration: Ints


@dataclass(frozen=True)
class NamedOperations:
    """The operations that the ranges of a profile name.

    Attributes:
        keys: The operations, in order of (rank, host start). Their GPU work is not known yet.
        hints: Stages and iteration numbers in their names.
        ranges: The ranges of these operations, by rank.
        limitations: Limitations for ranges without GPU work whose rank is unknown.
    """

    keys: Operations
    hints: NameHints
    ranges: OperationRanges
    limitations: tuple[Limitation, ...]


def find_operations(
    profile: Profile, named_ranges: Ranges, names: NameMeanings, work: LinkedWork
) -> NamedOperations:
    """Find the operations that ranges name, on the ranks that the ranges launched work on.

    The steps are described at the top of this module.

    Args:
        profile: The profile.
        named_ranges: Its ranges that name operations.
        names: Meanings of the names of ranges.
        work: All work of the profile, linked to these ranges.
    """
    of_range, rank, unplaced = _place_on_ranks(profile, named_ranges, work)
    placed_ranges = _number_operations(profile, named_ranges, names, work, of_range, rank)
    keys, hints = _merge_ranges(named_ranges, names, placed_ranges)
    return NamedOperations(
        keys=keys,
        hints=hints,
        ranges=placed_ranges,
        limitations=_describe_unplaced_ranges(profile, named_ranges, names, unplaced),
    )


def _number_operations(
    profile: Profile,
    named_ranges: Ranges,
    names: NameMeanings,
    work: LinkedWork,
    of_range: Ints,
    rank: Ints,
) -> OperationRanges:
    """Number the iterations of ranges, and the operations that they are parts of (steps 2 to 4).

    Args:
        profile: The profile.
        named_ranges: Its ranges that name operations.
        names: Meanings of the names of ranges.
        work: All work of the profile, linked to these ranges.
        of_range: Row of ``named_ranges``, one per range and rank, in order of (rank, host start).
        rank: Rank of each entry of ``of_range``.
    """
    name = names.take(named_ranges.name_id[of_range])
    hint = _find_iteration_hints(profile.ranges, names, named_ranges, of_range, rank)
    order = iterations.build_host_order(
        rank,
        name.phase,
        key=(name.chunk, name.stage, name.sequence, name.microbatch),
        second=(name.second_microbatch, name.second_chunk),
        mark=hint,
        times_ns=_measure_step_times(named_ranges, work, of_range, rank, name.phase),
        post_validation=name.post_validation,
    )
    is_constant = iterations.find_constant_names(order)
    iteration = iterations.number_iterations(order, is_constant)
    is_unnumbered = _mask_unnumbered_ranges(name, is_constant)
    operation = _group_ranges(order, iteration, is_unnumbered & ~name.part, name.part)
    return OperationRanges(of_range, rank, hint, iteration, is_unnumbered, operation)


def _place_on_ranks(
    profile: Profile, named_ranges: Ranges, work: LinkedWork
) -> tuple[Ints, Ints, Ints]:
    """Find the ranks that ranges launched work on (step 1).

    A range that launched kernels on one device and a copy to another belongs only to the rank of
    the kernels.

    Args:
        profile: The profile.
        named_ranges: Its ranges that name operations.
        work: All work of the profile, linked to these ranges.

    Returns:
        of_range: Row of the range, one per range and rank, in order of (rank, host start).
        rank: Rank of each entry of ``of_range``.
        unplaced: Rows of the ranges whose rank is unknown.
    """
    ranks, n_kernels = profile.activities.ranks, profile.activities.kernels
    n_ranks = len(ranks)
    kernel_codes = _list_range_rank_codes(work.take(slice(n_kernels)), n_ranks)
    copy_codes = _list_range_rank_codes(work.take(slice(n_kernels, None)), n_ranks)
    copy_codes = copy_codes[~np.isin(copy_codes // n_ranks, kernel_codes // n_ranks)]
    codes = np.concatenate((kernel_codes, copy_codes))
    idle = subtract_values(np.arange(len(named_ranges)), codes // n_ranks)
    inferred_rank = _infer_ranks(named_ranges, idle, codes, ranks)
    is_placed = inferred_rank >= 0
    codes = np.concatenate((codes, (idle * n_ranks + inferred_rank)[is_placed]))
    of_range, rank = codes // n_ranks, codes % n_ranks
    order = np.lexsort((of_range, named_ranges.start_ns[of_range], rank))
    return of_range[order], rank[order], idle[~is_placed]


def _mask_unnumbered_ranges(name: NameMeanings, is_constant: Bools) -> Bools:
    """Return a mask of the ranges whose microbatch is determined by their order.

    Their names contain no microbatch, or the same microbatch for all operations of the rank. A W
    without a microbatch completes all pending W, and needs no number.

    Args:
        name: Meaning of the name of each range.
        is_constant: Mask of the ranges of ranks that give every microbatch the same number.
    """
    has_none = name.microbatch < 0
    flushes_weights = (name.phase == Phase.W) & has_none
    is_counted = mask_phases(name.phase, (Phase.F, Phase.B, Phase.BW, Phase.R))
    is_ambiguous = is_constant & mask_phases(name.phase, WORK) & ~flushes_weights
    lacks_microbatch: Bools = is_ambiguous | (is_counted & has_none)
    return lacks_microbatch


def _measure_step_times(
    named_ranges: Ranges, work: LinkedWork, of_range: Ints, rank: Ints, phase: Ints
) -> tuple[Ints, Ints]:
    """Return the start and end of each range, measured by compute kernels if these are needed.

    The host may launch the Optimizers of two iterations in immediate succession. Only their kernels
    then show the time between them. A collective in the second Optimizer may wait during that time,
    so only compute kernels count.

    Args:
        named_ranges: Ranges that name operations.
        work: Kernels and copies of all ranks.
        of_range: Row of ``named_ranges`` of each placed range, in order of (rank, host start).
        rank: Rank of each placed range.
        phase: Phase of each placed range.

    Returns:
        start_ns: Start of the compute kernels of each placed range, or of the range itself if its
            kernels were not looked up or do not exist.
        end_ns: End of the compute kernels, or of the range.
    """
    start_ns, end_ns = named_ranges.start_ns[of_range], named_ranges.end_ns[of_range]
    rows = _select_rows_to_measure(rank, phase)
    if len(rows) == 0:
        return start_ns, end_ns
    # The last entry is for work outside every range (-1).
    is_measured = make_mask(len(named_ranges) + 1, of_range[rows])
    kernels = np.flatnonzero(work.compute & is_measured[work.range])
    keys = of_range[rows], rank[rows]
    owner = lookup_values(keys, rows, (work.range[kernels], work.rank[kernels]))
    kernels, owner = kernels[owner >= 0], owner[owner >= 0]
    first_ns, last_ns = intervals.group_extents(
        owner, len(of_range), work.start_ns[kernels], work.end_ns[kernels]
    )
    has_kernels = make_mask(len(of_range), owner)
    return np.where(has_kernels, first_ns, start_ns), np.where(has_kernels, last_ns, end_ns)


def _select_rows_to_measure(rank: Ints, phase: Ints) -> Ints:
    """Return the rows of the ranges whose kernels must be looked up to divide the Optimizers.

    These are all Optimizers, and the first work of a rank and after each Optimizer. They are needed
    only if a rank has two Optimizers without work between them; otherwise no row is returned.

    Args:
        rank: Rank of each placed range, in order of (rank, host start).
        phase: Phase of each placed range.
    """
    rows = np.flatnonzero(mask_phases(phase, (*COUNTED, Phase.OPTIMIZER)))
    is_step = phase[rows] == Phase.OPTIMIZER
    is_same_rank = np.append(False, rank[rows[1:]] == rank[rows[:-1]])
    follows_step = is_same_rank & np.append(False, is_step[:-1])
    if not (is_step & follows_step).any():
        return rows[:0]
    is_needed = is_step | follows_step | ~is_same_rank
    return np.asarray(rows[is_needed], np.int64)


def _list_range_rank_codes(work: LinkedWork, n_ranks: int) -> Ints:
    """Return the distinct pairs of a range and a rank that its work ran on.

    Each pair is coded as ``range * n_ranks + rank``, in ascending order.
    """
    # Most work belongs to the same range as the previous work.
    rows = find_run_starts(work.range, work.rank)
    codes = find_distinct(work.range[rows].astype(np.int64) * n_ranks + work.rank[rows])
    return codes[codes >= 0]


def _find_iteration_hints(
    ranges: Ranges, names: NameMeanings, named_ranges: Ranges, of_range: Ints, rank: Ints
) -> Ints:
    """Return the iteration number of each placed range, or -1 if no name contains it (step 2).

    The number comes from the name of the operation, or else from the range of an iteration
    (a mark). Only marks on the threads that open ranges of a rank count for the rank. The range of
    an iteration may end before its Optimizer, so its number also applies to the ranges after it,
    until the next forward outside every mark, for example of an evaluation.

    Args:
        ranges: All ranges of the profile.
        names: Meaning of each range name.
        named_ranges: Ranges that name operations.
        of_range: Row of ``named_ranges`` of each placed range, in order of (rank, host start).
        rank: Rank of each placed range.
    """
    name_id = named_ranges.name_id[of_range]
    is_forward = mask_phases(names.phase[name_id], (Phase.F, Phase.FB))
    hint = names.iteration[name_id].copy()
    marks, number = _find_marks(ranges, names, named_ranges)
    for index in find_distinct(rank) if len(marks) else ():
        rows = np.flatnonzero(rank == index)
        threads = find_distinct(named_ranges.thread[of_range[rows]])
        of_rank = np.flatnonzero(np.isin(marks.thread, threads))
        if len(of_rank):
            start_ns = named_ranges.start_ns[of_range[rows]]
            mark = _match_marks(marks.take(of_rank), start_ns, is_forward[rows])
            number_of_mark = np.append(number[of_rank], NONE)[mark]
            hint[rows] = np.where(hint[rows] >= 0, hint[rows], number_of_mark)
    return _propagate_hints(hint, is_forward, rank)


def _find_marks(ranges: Ranges, names: NameMeanings, named_ranges: Ranges) -> tuple[Ranges, Ints]:
    """Find the ranges that mark iterations, sorted by start, with their iteration numbers.

    The number is in the name of a mark. Marks without a number in their names are numbered in order
    on each thread if they contain a forward and a backward. All others are left out, so that they
    do not hide a mark around them.

    Args:
        ranges: All ranges of the profile.
        names: Meaning of each range name.
        named_ranges: Ranges that name operations, which show what the marks contain.

    Returns:
        marks: The marks, sorted by start.
        number: Iteration number of each mark.
    """
    number = np.where(names.phase < 0, names.iteration, NONE)[ranges.name_id]
    is_by_order = names.by_order[ranges.name_id]
    rows = np.flatnonzero((number >= 0) | is_by_order)
    rows = rows[np.argsort(ranges.start_ns[rows], kind="stable")]
    marks, number, is_by_order = ranges.take(rows), number[rows], is_by_order[rows]
    for thread in find_distinct(marks.thread[is_by_order]):
        on_thread = np.flatnonzero((marks.thread == thread) & is_by_order)
        operations = named_ranges.take(named_ranges.thread == thread)
        phase = names.phase[operations.name_id]
        number[on_thread] = _number_marks(marks.take(on_thread), operations, phase)
    # A range without both passes marks nothing, and does not hide a mark around it.
    has_number = number >= 0
    return marks.take(has_number), number[has_number]


def _match_marks(marks: Ranges, start_ns: Ints, is_forward: Bools) -> Ints:
    """Return the index of the mark that applies to each operation range of a rank, or -1.

    This is the last mark that started before the range, if it is still open. A mark without a
    forward inside only shows where the iteration starts, so it applies until the next mark.

    Args:
        marks: Marks of iterations on the threads of the rank, in order of start.
        start_ns: Start of each operation range.
        is_forward: Mask of the ranges that are forwards.
    """
    last = np.searchsorted(marks.start_ns, start_ns, side="right") - 1
    is_inside = (last >= 0) & (start_ns < np.append(marks.end_ns, NONE)[last])
    has_forward = make_mask(len(marks), last[is_inside & is_forward])
    # Index -1 is a range before all marks.
    applies = is_inside | ~np.append(has_forward, True)[last]
    return np.where(applies, last, NONE)


def _propagate_hints(hint: Ints, is_forward: Bools, rank: Ints) -> Ints:
    """Give each range without a hint the last hint of its rank, until a forward without a hint.

    Args:
        hint: Iteration number of each range, or -1, in order of (rank, host start).
        is_forward: Mask of the forwards.
        rank: Rank of each range.
    """
    row = np.arange(len(hint))
    last_hint = np.maximum.accumulate(np.where(hint >= 0, row, NONE))
    last_without = np.maximum.accumulate(np.where(is_forward & (hint < 0), row, NONE))
    source = np.maximum(last_hint, 0)
    applies = (last_hint > last_without) & (rank[source] == rank)
    return np.where(applies, hint[source], hint)


def _number_marks(marks: Ranges, operations: Ranges, phase: Ints) -> Ints:
    """Number the marks of a thread in order, without those that lack a forward or a backward.

    A set-up or an evaluation that only one rank runs would otherwise make its numbers differ from
    the numbers of the other ranks. An operation range belongs to the last mark that started before
    it, if that mark is still open.

    Args:
        marks: Marks whose names contain no number, in order of start; at least one.
        operations: Operation ranges of the thread.
        phase: Phase of each operation range.

    Returns:
        Number of each mark, or -1 if it lacks one of the passes.
    """
    last = np.searchsorted(marks.start_ns, operations.start_ns, side="right") - 1
    is_inside = (last >= 0) & (operations.start_ns <= marks.end_ns[last])
    is_forward = mask_phases(phase, (Phase.F, Phase.FB))
    is_backward = mask_phases(phase, (*BACKWARD, Phase.FB))
    has_forward = make_mask(len(marks), last[is_inside & is_forward])
    has_backward = make_mask(len(marks), last[is_inside & is_backward])
    is_training = has_forward & has_backward
    return np.where(is_training, np.cumsum(is_training) - 1, NONE)


def _infer_ranks(named_ranges: Ranges, idle: Ints, codes: Ints, ranks: Ints) -> Ints:
    """Return the rank of each range that launched nothing, or -1 if unknown.

    It is the only rank of the process, or else the only rank that other ranges of the thread
    launched work on.

    Args:
        named_ranges: Ranges that name operations.
        idle: Rows of the ranges that launched nothing.
        codes: Code of each pair of a range that launched work and the rank of this work; see
            :func:`_list_range_rank_codes`.
        ranks: Process and device of each rank.
    """
    n_ranks = len(ranks)
    threads_of_ranks = find_distinct_rows(named_ranges.thread[codes // n_ranks], codes % n_ranks)
    inferred = np.full(len(idle), NONE, np.int64)
    idle_thread = named_ranges.thread[idle]
    for thread in find_distinct(idle_thread).tolist():
        of_process = np.flatnonzero(ranks[:, 0] == thread >> 24)
        of_thread = threads_of_ranks[1, threads_of_ranks[0] == thread]
        for candidates in (of_process, of_thread):
            if len(candidates) == 1:
                inferred[idle_thread == thread] = candidates[0]
                break
    return inferred


def _group_ranges(
    order: iterations.HostOrder, iteration: Ints, is_single: Bools, is_part: Bools
) -> Ints:
    """Return the operation of each range: equal keys with no other F/B/W between them (step 4).

    ::

        ranges       F0   F0   RECV   F0   B0   F0
        operation    0    0    1      0    2    3

    Args:
        order: Ranges of all ranks.
        iteration: Iteration of each range.
        is_single: Mask of the ranges that are an operation each.
        is_part: Mask of the ranges whose names are of parts of operations. They have no
            microbatch, so a transfer between them separates two operations.

    Returns:
        Number of the operation of each range, in order of the first ranges.
    """
    key = group_rows(order.rank, iteration, order.phase_key).of_row
    counted = np.flatnonzero(order.counted)
    starts = np.ones(len(counted), bool)
    is_new_key = key[counted[1:]] != key[counted[:-1]]
    n_transfers = np.cumsum(order.transfer)[counted]
    after_transfer = is_part[counted[1:]] & (np.diff(n_transfers) > 0)
    starts[1:] = is_new_key | is_single[counted[1:]] | after_transfer
    # Runs of counted ranges get a number. Other ranges are separated by the counted ones.
    run: Ints = np.cumsum(order.counted)
    run[counted] = np.cumsum(starts)
    single_row = np.where(is_single, np.arange(len(key)), NONE)
    is_counted = order.counted.astype(np.int64)
    return group_rows(key, is_counted, run, single_row).order_by_appearance().of_row


def _describe_unplaced_ranges(
    profile: Profile, named_ranges: Ranges, names: NameMeanings, rows: Ints
) -> tuple[Limitation, ...]:
    """Return limitations for ranges that launched nothing and whose rank is unknown.

    Their process uses several devices or none. If it uses none but names passes, it ran a stage
    whose GPU work was not recorded; its ranges are reported only as a missing stage.

    Args:
        profile: The profile, with the kernels and copies that ranks are made of.
        named_ranges: Its ranges that name operations.
        names: Meanings of the names of ranges.
        rows: Rows of ``named_ranges`` without a rank.
    """
    path, process = profile.source.path, process_of(named_ranges.thread[rows])
    has_work = find_positions(find_distinct(profile.activities.ranks[:, 0]), process) != NONE
    phase = names.phase[named_ranges.name_id[rows]]
    stages = _find_unrecorded_stages(process[~has_work], phase[~has_work])
    notes = []
    if len(stages):
        pids = list_first((str(get_pid(number)) for number in stages.tolist()), _MAX_LISTED)
        reason = (
            f"{path}: it has forward or backward ranges of "
            f"process{'' if len(stages) == 1 else 'es'} {pids} and none of the kernels, so these "
            f"stages are missing from every number; record {profile.source.api} in all processes "
            "of the run"
        )
        kind = LimitationKind.STAGES_WITHOUT_GPU_WORK
        notes.append(Limitation("stages without GPU work", reason, len(stages), kind))
    is_explained = find_positions(stages, process) != NONE
    what = "ranges without GPU work whose device is unknown"
    for reason, count in (
        ("their process uses several devices", int(has_work.sum())),
        ("their process has no GPU work", int((~has_work & ~is_explained).sum())),
    ):
        if count:
            notes.append(Limitation(what, f"{path}: {reason}", count))
    return tuple(notes)


def _find_unrecorded_stages(process: Ints, phase: Ints) -> Ints:
    """Return the processes that ran a stage although no GPU work of them was recorded.

    Such a process names a backward or several forwards. A single forward may belong to a helper,
    which names what it tries or prepares.

    Args:
        process: Process of each range without GPU work in its process.
        phase: Phase of each of these ranges.

    Returns:
        The processes, in ascending order.
    """
    is_counted = mask_phases(phase, COUNTED)
    processes, of_row = np.unique(process[is_counted], return_inverse=True)
    # A forward counts once, and a backward twice. Two points are enough.
    points = np.where(phase[is_counted] == Phase.F, 1, 2)
    total = intervals.group_sum(of_row.reshape(-1), len(processes), points)
    return processes[total >= 2]


def _merge_ranges(
    named_ranges: Ranges, names: NameMeanings, placed_ranges: OperationRanges
) -> tuple[Operations, NameHints]:
    """Merge the ranges of each operation (step 5).

    An operation lasts from the start of its first range to the last end. It has the name of its
    first range, and is cut if any of its ranges is. An unnumbered operation gets as microbatch the
    number of earlier operations with the same rank, iteration, phase, chunk and sequence.

    Args:
        named_ranges: Ranges that name operations.
        names: Meanings of the names of ranges.
        placed_ranges: The ranges by rank, with the number of their operation.

    Returns:
        operations: The operations, in the order of their numbers.
        hints: Stages and iteration numbers in their names.
    """
    count = int(placed_ranges.operation.max(initial=-1)) + 1
    first = placed_ranges.take(group_rows(placed_ranges.operation).first)
    name = names.take(named_ranges.name_id[first.range])
    _, host_end_ns = intervals.group_extents(
        placed_ranges.operation,
        count,
        named_ranges.start_ns[placed_ranges.range],
        named_ranges.end_ns[placed_ranges.range],
    )
    is_cut = make_mask(count, placed_ranges.operation[named_ranges.cut[placed_ranges.range]])
    by_order = iterations.number_occurrences(
        (first.rank, first.iteration, name.phase, name.chunk, name.sequence)
    )
    microbatch = np.where(first.unnumbered, by_order, name.microbatch)
    phase = fuse_backwards(name.phase, (first.rank, name.chunk, name.stage, name.microbatch))
    key = (first.rank, first.iteration, phase, name.chunk, name.stage, name.sequence, microbatch)
    operations = Operations.make_without_work(
        rank=first.rank.copy(),
        iteration=first.iteration,
        phase=phase,
        microbatch=microbatch,
        chunk=np.where(name.chunk >= 0, name.chunk, name.stage),
        sequence=name.sequence.copy(),
        second_microbatch=name.second_microbatch.copy(),
        second_chunk=np.where(name.second_chunk >= 0, name.second_chunk, name.second_stage),
        occurrence=iterations.number_occurrences((*key, name.second_microbatch, name.second_chunk)),
        host_start_ns=named_ranges.start_ns[first.range],
        host_end_ns=host_end_ns,
        cut=is_cut.astype(np.int64),
        tokens=name.all_tokens,
        prefix=np.full(len(first), NONE),
        name_id=named_ranges.name_id[first.range],
        names=named_ranges.names,
    )
    return operations, NameHints(stage=name.stage.copy(), iteration=first.mark)


def fuse_backwards(phase: Ints, key: tuple[Ints, Ints, Ints, Ints]) -> Ints:
    """Return the phases with each B that never gets a W on its rank replaced by a fused BW.

    A W without a microbatch completes all backwards of its chunk, and a W without a chunk all
    backwards of its rank.

    Args:
        phase: Phase of each operation.
        key: Rank, chunk, stage and microbatch of each operation, or -1 if its name does not contain
            them.
    """
    phase = phase.copy()
    if len(phase) == 0:
        return phase
    rank, chunk, stage, microbatch = key
    number = group_rows(*key).of_row
    of_chunk = group_rows(rank, chunk, stage).of_row
    is_weight = phase == Phase.W
    flushes_chunk = is_weight & (microbatch < 0)
    flushes_rank = flushes_chunk & (chunk < 0) & (stage < 0)
    has_weight = np.isin(number, number[is_weight])
    has_weight |= np.isin(of_chunk, of_chunk[flushes_chunk])
    has_weight |= np.isin(rank, rank[flushes_rank])
    phase[(phase == Phase.B) & ~has_weight] = Phase.BW
    return phase
