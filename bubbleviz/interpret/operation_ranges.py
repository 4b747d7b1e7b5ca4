"""Conversion of the named ranges in a profile to operations of each rank.

The name of a range gives the phase and microbatch of an operation. The name does not show on which
rank the operation ran, in which iteration, or whether two ranges with the same name belong to one
operation. :func:`find_operations` determines this in five steps::

    ranges          │ iteration 7                            │
                    │ F0      F0      B0      Optimizer      │ F0      B0
    work            │ GPU 0   GPU 0   GPU 0   GPU 0          │ none    GPU 0

    1 rank            0       0       0       0                0       0
    2 hint            7       7       7       7                -1      -1
    3 iteration       0       0       0       0                1       1
    4 operation       0       0       1       2                3       4
    5 merged        F0 from the first start to the last end, B0, Optimizer, F0, B0

1. A range belongs to each rank on which the range launched kernels or copies. A range that launched
   nothing belongs to the only rank of its process or thread; see ``_place_on_ranks``.
2. A range that marks an iteration passes the iteration number on to the ranges inside it. The
   ranges after the mark get the number too, until the next forward; see ``_find_iteration_hints``.
3. Iterations are numbered by these hints. Without hints, they are numbered by repeated forwards and
   by Optimizers; see :mod:`bubbleviz.interpret.iterations`.
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
    """Ranges assigned to ranks, sorted by (rank, host start).

    Each range is an operation or a part of one.

    Attributes:
        range: Row of the range in the table of ranges whose names denote operations.
        rank: Rank on which the range launched work.
        mark: Iteration number given by the range name or by an iteration mark, or -1 if there is
            none.
        iteration: Zero-based iteration index of the range on its rank.
        unnumbered: Whether the microbatch must be inferred from the order of the ranges, because
            the name contains none or all names on the rank contain the same one.
        operation: Operation index, ascending in order of (rank, host start).
    """

    range: Ints
    rank: Ints
    mark: Ints
    iteration: Ints
    unnumbered: Bools
    operation: Ints


@dataclass(frozen=True, eq=False, repr=False)
class NameHints(Table):
    """Stages and iteration numbers found in range names, one row per operation.

    Attributes:
        stage: Virtual stage, or -1 if the name contains none.
        iteration: Iteration number given by the operation's name or by an iteration mark, or -1 if
            there is none.
    """

    stage: Ints
    iteration: Ints


@dataclass(frozen=True)
class NamedOperations:
    """The operations that the range names of a profile denote.

    Attributes:
        keys: The operations, sorted by (rank, host start). The columns for GPU work are not filled
            yet.
        hints: Stages and iteration numbers in the operation names, one row per operation.
        ranges: The ranges that form the operations, sorted by (rank, host start).
        limitations: Limitations that report ranges without GPU work whose rank is unknown.
    """

    keys: Operations
    hints: NameHints
    ranges: OperationRanges
    limitations: tuple[Limitation, ...]


def find_operations(
    profile: Profile, named_ranges: Ranges, names: NameMeanings, work: LinkedWork
) -> NamedOperations:
    """Turn named ranges into operations.

    A range becomes part of an operation on each rank on which it launched work. The five steps are
    described at the top of this module.

    Args:
        profile: The profile.
        named_ranges: Ranges of the profile whose names denote operations.
        names: Meanings of the range names, indexed by name id.
        work: All kernels and copies of the profile, linked to ``named_ranges``.
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
    """Assign an iteration and an operation to each range that has a rank (steps 2 to 4).

    Args:
        profile: The profile.
        named_ranges: Ranges of the profile whose names denote operations.
        names: Meanings of the range names, indexed by name id.
        work: All kernels and copies of the profile, linked to ``named_ranges``.
        of_range: Row in ``named_ranges`` of each placed range, sorted by (rank, host start). A
            range that launched work on two ranks is placed twice.
        rank: Rank of each placed range.
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
    is_unnumbered = _mask_unnumbered_ranges(name, rank, is_constant)
    operation = _group_ranges(
        order, iteration, is_unnumbered & ~name.part, name.part, _rank_layers(name)
    )
    return OperationRanges(of_range, rank, hint, iteration, is_unnumbered, operation)


def _place_on_ranks(
    profile: Profile, named_ranges: Ranges, work: LinkedWork
) -> tuple[Ints, Ints, Ints]:
    """Find the ranks on which ranges launched work (step 1).

    A range is placed on each rank on which it launched kernels. If it launched none, the ranks of
    its copies are used. If it launched nothing, :func:`_infer_ranks` determines the rank.

    Args:
        profile: The profile.
        named_ranges: Ranges of the profile whose names denote operations.
        work: All kernels and copies of the profile, linked to ``named_ranges``.

    Returns:
        of_range: For each pair of a range and a rank, the row in ``named_ranges``. Pairs are sorted
            by (rank, host start, row).
        rank: For each pair, the rank.
        unplaced: Rows of the ranges whose rank is unknown, in ascending order.
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


def _mask_unnumbered_ranges(name: NameMeanings, rank: Ints, is_constant: Bools) -> Bools:
    """Return a mask of the ranges whose microbatch must be inferred from their order.

    These are F, B, BW and R ranges whose names contain no microbatch. On ranks whose names give
    every microbatch the same number, ranges of all phases in ``WORK`` are included. The exception
    is a W without a microbatch, which completes all pending W and needs no number, unless there is
    one such W for each B without a microbatch.

    Args:
        name: Meanings of the range names, one row per range.
        rank: Rank of each range.
        is_constant: Mask of the ranges on ranks where every microbatch has the same name.
    """
    has_none = name.microbatch < 0
    is_paired = _mask_paired_weights(name, rank)
    flushes_weights = (name.phase == Phase.W) & has_none & ~is_paired
    is_counted = mask_phases(name.phase, (Phase.F, Phase.B, Phase.BW, Phase.R))
    is_ambiguous = is_constant & mask_phases(name.phase, WORK) & ~flushes_weights
    lacks_microbatch: Bools = is_ambiguous | (is_counted & has_none) | is_paired
    return lacks_microbatch


def _mask_paired_weights(name: NameMeanings, rank: Ints) -> Bools:
    """Return a mask of the W without a microbatch that belong to a B without a microbatch.

    On each rank, a stage must have as many such W as such B.

    Args:
        name: Meanings of the range names, one row per range.
        rank: Rank of each range.
    """
    is_weight, is_input = (
        (name.phase == phase) & (name.microbatch < 0) for phase in (Phase.W, Phase.B)
    )
    if not (is_weight.any() and is_input.any()):
        return np.zeros(len(name), bool)
    stages = group_rows(rank, name.chunk, name.stage)
    n_weights, n_inputs = (
        np.bincount(stages.of_row[mask], minlength=len(stages)) for mask in (is_weight, is_input)
    )
    is_paired: Bools = is_weight & (n_weights == n_inputs)[stages.of_row]
    return is_paired


def _measure_step_times(
    named_ranges: Ranges, work: LinkedWork, of_range: Ints, rank: Ints, phase: Ints
) -> tuple[Ints, Ints]:
    """Return the start and end of each range, taken from its compute kernels where necessary.

    The host may launch the Optimizers of two iterations in quick succession. Only the kernels then
    show how much time passed between the Optimizers. Collectives are ignored, because a collective
    in the second Optimizer may wait during that time. To save time, kernels are looked up only for
    the ranges that :func:`_select_rows_to_measure` selects.

    Args:
        named_ranges: Ranges whose names denote operations.
        work: Kernels and copies of all ranks.
        of_range: Row in ``named_ranges`` of each placed range, sorted by (rank, host start).
        rank: Rank of each placed range.
        phase: Phase of each placed range.

    Returns:
        start_ns: Start of the first compute kernel in each placed range, in ns. Without kernels, or
            if they were not looked up, this is the host start of the range.
        end_ns: End of the last compute kernel, or the host end of the range in the same cases.
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
    """Return the rows of the ranges whose kernels are needed to tell consecutive Optimizers apart.

    Only F, B, W, BW, FB and Optimizer ranges are considered. If no rank has two consecutive
    Optimizers, the result is empty. Otherwise, it contains every Optimizer, the first range of each
    rank, and the first range after each Optimizer, in ascending order.

    Args:
        rank: Rank of each placed range, sorted by (rank, host start).
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
    """Return a code for each distinct pair of a range and a rank on which the range launched work.

    The code is ``range * n_ranks + rank``. The codes are sorted. Work outside all ranges is
    ignored.
    """
    # Most work belongs to the same range as the previous work.
    rows = find_run_starts(work.range, work.rank)
    codes = find_distinct(work.range[rows].astype(np.int64) * n_ranks + work.rank[rows])
    return codes[codes >= 0]


def _find_iteration_hints(
    ranges: Ranges, names: NameMeanings, named_ranges: Ranges, of_range: Ints, rank: Ints
) -> Ints:
    """Return each placed range's iteration number according to the range names, or -1 (step 2).

    - If the name of the range itself contains a number, that number is used.
    - Otherwise, the number comes from a mark, which is a range around it that names an iteration.
      Only marks on threads that open ranges of the rank are used.
    - A mark may end before the Optimizer of its iteration. Therefore, its number also applies to
      the ranges after it, until the next forward that lies outside all marks, for example in an
      evaluation.

    Args:
        ranges: All ranges of the profile.
        names: Meanings of the range names, indexed by name id.
        named_ranges: Ranges whose names denote operations.
        of_range: Row in ``named_ranges`` of each placed range, sorted by (rank, host start).
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
    """Find the ranges that mark iterations, and their iteration numbers.

    The number is usually part of the name. Marks whose names contain no number are numbered on each
    thread, starting at 0; see :func:`_number_marks`. A mark that gets no number is left out,
    because it would otherwise hide the mark that encloses it.

    Args:
        ranges: All ranges of the profile.
        names: Meanings of the range names, indexed by name id.
        named_ranges: Ranges whose names denote operations. They show what the marks contain.

    Returns:
        marks: The marks, sorted by start.
        number: Iteration number of each mark, at least 0.
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
    # A range without both passes marks nothing, and does not hide the mark that encloses it.
    has_number = number >= 0
    return marks.take(has_number), number[has_number]


def _match_marks(marks: Ranges, start_ns: Ints, is_forward: Bools) -> Ints:
    """Return the index of the mark that applies to each operation range of a rank, or -1 if none.

    The candidate is the last mark that starts at or before the start of the range. It applies in
    two cases:

    - It is still open when the range starts (its end is later).
    - It contains no forward. Such a mark only shows where the iteration starts, so it applies until
      the next mark starts.

    Args:
        marks: Iteration marks on the threads of the rank, sorted by start.
        start_ns: Start of each operation range.
        is_forward: Mask of the ranges that are or contain a forward.
    """
    last = np.searchsorted(marks.start_ns, start_ns, side="right") - 1
    is_inside = (last >= 0) & (start_ns < np.append(marks.end_ns, NONE)[last])
    has_forward = make_mask(len(marks), last[is_inside & is_forward])
    # Index -1 is a range before all marks.
    applies = is_inside | ~np.append(has_forward, True)[last]
    return np.where(applies, last, NONE)


def _propagate_hints(hint: Ints, is_forward: Bools, rank: Ints) -> Ints:
    """Fill missing hints with the last hint before them on the same rank.

    A forward without a hint is not filled, and neither are the ranges after it until the next hint.

    Args:
        hint: Iteration number of each range, or -1 if unknown, sorted by (rank, host start).
        is_forward: Mask of the ranges that are or contain a forward.
        rank: Rank of each range.
    """
    row = np.arange(len(hint))
    last_hint = np.maximum.accumulate(np.where(hint >= 0, row, NONE))
    last_without = np.maximum.accumulate(np.where(is_forward & (hint < 0), row, NONE))
    source = np.maximum(last_hint, 0)
    applies = (last_hint > last_without) & (rank[source] == rank)
    return np.where(applies, hint[source], hint)


def _number_marks(marks: Ranges, operations: Ranges, phase: Ints) -> Ints:
    """Number a thread's marks, starting at 0, and skip marks without both a forward and a backward.

    The skipped marks denote, for example, setup or evaluation on a single rank. If they were
    numbered, the iteration numbers of that rank would differ from those of other ranks. An
    operation range is inside the last mark that starts at or before its own start, unless this mark
    ended earlier.

    Args:
        marks: Marks whose names contain no number, sorted by start. Must not be empty.
        operations: Operation ranges of the thread.
        phase: Phase of each operation range.

    Returns:
        Number of each mark, or -1 if the mark contains no forward or no backward.
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

    If the process of the range has a single rank, the result is that rank. Otherwise, if all ranges
    of the same thread launched their work on a single rank, the result is that rank.

    Args:
        named_ranges: Ranges whose names denote operations.
        idle: Rows of the ranges that launched nothing.
        codes: Pairs of a range and a rank on which it launched work, as ``range * n_ranks + rank``.
        ranks: Process and device of each rank, shape (n_ranks, 2).
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


def _rank_layers(name: NameMeanings) -> Ints:
    """Return the position of each part's layer in its pass, or -1 if the name has no layer.

    Forwards run layers in ascending order, and backwards in descending order. Only the order of the
    positions within a pass matters.
    """
    largest = int(name.layer.max(initial=0))
    is_backward = mask_phases(name.phase, BACKWARD)
    return np.where(is_backward & (name.layer >= 0), largest - name.layer, name.layer)


def _group_ranges(
    order: iterations.HostOrder,
    iteration: Ints,
    is_single: Bools,
    is_part: Bools,
    layer_position: Ints,
) -> Ints:
    """Join consecutive ranges with equal keys into operations (step 4).

    ::

        ranges       F0   F0   RECV   F0   B0   F0
        operation    0    0    1      0    2    3

    The key of a range is its rank, iteration and ``order.phase_key``. A range is counted if it is
    an F, B, W, BW or FB:

    - A counted range joins the operation of the previous counted range if their keys are equal.
      Uncounted ranges between them do not matter.
    - An uncounted range joins an earlier uncounted range with an equal key if there is no counted
      range between them.
    - A range in ``is_single`` never shares its operation with another range.
    - A counted range in ``is_part`` starts a new operation if there is a transfer between it and
      the previous counted range, or if its layer precedes the layer of the previous counted range.

    Args:
        order: Ranges of all ranks, sorted by (rank, host start).
        iteration: Iteration of each range.
        is_single: Mask of the ranges that are complete operations.
        is_part: Mask of the ranges whose names denote only a part of an operation. These names
            contain no microbatch, so only a transfer or the layer shows where the next operation
            starts.
        layer_position: Position of each range's layer in its pass, or -1 if the name has no layer.

    Returns:
        Operation index of each range. Operations are numbered in order of their first ranges,
        starting at 0.
    """
    key = group_rows(order.rank, iteration, order.phase_key).of_row
    counted = np.flatnonzero(order.counted)
    starts = np.ones(len(counted), bool)
    is_new_key = key[counted[1:]] != key[counted[:-1]]
    n_transfers = np.cumsum(order.transfer)[counted]
    after_transfer = is_part[counted[1:]] & (np.diff(n_transfers) > 0)
    later, earlier = layer_position[counted[1:]], layer_position[counted[:-1]]
    is_earlier_layer = is_part[counted[1:]] & (later >= 0) & (later < earlier)
    starts[1:] = is_new_key | is_single[counted[1:]] | after_transfer | is_earlier_layer
    # Counted ranges of one operation share a run number. Every counted range starts a new run of
    # uncounted ranges.
    run: Ints = np.cumsum(order.counted)
    run[counted] = np.cumsum(starts)
    single_row = np.where(is_single, np.arange(len(key)), NONE)
    is_counted = order.counted.astype(np.int64)
    return group_rows(key, is_counted, run, single_row).order_by_appearance().of_row


def _describe_unplaced_ranges(
    profile: Profile, named_ranges: Ranges, names: NameMeanings, rows: Ints
) -> tuple[Limitation, ...]:
    """Return limitations for ranges that launched nothing and whose rank is unknown.

    There are up to three limitations, which count:

    - Processes that ran a stage although no GPU work was recorded for them (see
      :func:`_find_unrecorded_stages`).
    - Ranges whose process uses several devices.
    - Ranges whose process has no GPU work and ran no stage.

    Args:
        profile: The profile. Its kernels and copies show which devices a process uses.
        named_ranges: Ranges of the profile whose names denote operations.
        names: Meanings of the range names, indexed by name id.
        rows: Rows of ``named_ranges`` whose rank is unknown.
    """
    path, process = profile.source.path, process_of(named_ranges.thread[rows])
    has_work = find_positions(find_distinct(profile.activities.ranks[:, 0]), process) != NONE
    phase = names.phase[named_ranges.name_id[rows]]
    stages = _find_unrecorded_stages(process[~has_work], phase[~has_work])
    notes = []
    if len(stages):
        pids = list_first((str(get_pid(number)) for number in stages.tolist()), _MAX_LISTED)
        reason = (
            f"{path}: the profile contains forward or backward ranges but no kernels of "
            f"process{'' if len(stages) == 1 else 'es'} {pids}, so these stages are missing from "
            f"all results; record {profile.source.api} in all processes of the run"
        )
        kind = LimitationKind.STAGES_WITHOUT_GPU_WORK
        notes.append(Limitation("stages without GPU work", reason, len(stages), kind))
    is_explained = find_positions(stages, process) != NONE
    what = "ranges without GPU work whose device is unknown"
    for reason, count in (
        ("the process of these ranges uses several devices", int(has_work.sum())),
        ("the process of these ranges has no GPU work", int((~has_work & ~is_explained).sum())),
    ):
        if count:
            notes.append(Limitation(what, f"{path}: {reason}", count))
    return tuple(notes)


def _find_unrecorded_stages(process: Ints, phase: Ints) -> Ints:
    """Return the processes that ran a stage although none of their GPU work was recorded.

    A process ran a stage if it has a range of phase B, W, BW or FB, or at least two ranges of phase
    F. A single F is not enough, because helper processes may also name a single forward.

    Args:
        process: Process of each range. Only processes without GPU work are passed.
        phase: Phase of each range.

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
    """Merge the ranges of each operation into one row (step 5).

    - An operation lasts from the host start of its first range to the latest host end of its
      ranges. It has the name of its first range. It is cut if any of its ranges is cut.
    - If the first range is unnumbered, the microbatch is the number of earlier operations with the
      same rank, iteration, phase, chunk, stage and sequence.
    - A B that never gets a W becomes a BW; see :func:`fuse_backwards`.
    - If a name contains a virtual stage but no chunk, the stage is used as the chunk.

    Args:
        named_ranges: Ranges whose names denote operations.
        names: Meanings of the range names, indexed by name id.
        placed_ranges: The ranges assigned to ranks, with the index of their operation.

    Returns:
        operations: The operations, sorted by index.
        hints: Stages and iteration numbers in the names, one row per operation.
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
        (first.rank, first.iteration, name.phase, name.chunk, name.stage, name.sequence)
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
    """Return a copy of the phases in which each B without a matching W is replaced by BW.

    - A W matches every B with the same rank, chunk, stage and microbatch.
    - A W without a microbatch matches every B with the same rank, chunk and stage.
    - A W that has no microbatch, chunk or stage matches every B of its rank.

    The order and the iteration of the operations do not matter.

    Args:
        phase: Phase of each operation.
        key: Rank, chunk, stage and microbatch of each operation. Values that the name of the
            operation does not contain are -1.
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
