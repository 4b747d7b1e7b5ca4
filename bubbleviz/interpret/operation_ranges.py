"""Operation ranges: the ranges that name operations, by rank, and the operations they make up."""

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

#: Processes that a sentence lists; all are counted.
_LISTED = 8


@dataclass(frozen=True, eq=False, repr=False)
class OperationRanges(Table):
    """Ranges on ranks, in order of (rank, host start), each the whole or a part of an operation.

    Attributes:
        range: row of the ranges that name operations.
        rank: rank that its work ran on.
        mark: number of the iteration that a range around it names; -1 none.
        iteration: the rank's iteration, from 0.
        unnumbered: whether its name gives no microbatch, so that its order does.
        operation: number of the operation, in order of (rank, host start).
    """

    range: Ints
    rank: Ints
    mark: Ints
    iteration: Ints
    unnumbered: Bools
    operation: Ints


@dataclass(frozen=True, eq=False, repr=False)
class NameHints(Table):
    """What the names of operations show beyond their keys, one row per operation.

    Attributes:
        stage: Virtual stage, or -1 if the name gives none.
        iteration: Number of the iteration that a range around the operation names, or -1 if there
            is none.
    """

    stage: Ints
    iteration: Ints


def find_operations(
    profile: Profile, named: Ranges, names: NameMeanings, work: LinkedWork
) -> tuple[Operations, NameHints, OperationRanges, tuple[Limitation, ...]]:
    """Find the operations that ranges name, by the ranks that the ranges launched work on.

    Args:
        profile: The profile.
        named: Its ranges that name operations.
        names: Meanings of the names of ranges.
        work: All work of the profile, with these ranges.

    Returns:
        operations: The operations, in order of (rank, host start). Their GPU work is not known yet.
        hints: What their names show beyond that.
        placed: The ranges of these operations, by rank.
        notes: Limitations for ranges without GPU work whose rank is unknown.
    """
    of_range, rank, unplaced = _place_on_ranks(profile, named, work)
    name = names.take(named.name_id[of_range])
    hint = _find_iteration_hints(profile.ranges, names, named, of_range, rank)
    order = iterations.build_host_order(
        rank,
        name.phase,
        key=(name.chunk, name.stage, name.sequence, name.microbatch),
        second=(name.second_microbatch, name.second_chunk),
        mark=hint,
        times_ns=_measure_step_times(named, work, of_range, rank, name.phase),
        post_validation=name.post_validation,
    )
    is_constant = iterations.find_constant_names(order)
    iteration = iterations.number_iterations(order, is_constant)
    is_unnumbered = _find_unnumbered(name, is_constant)
    operation = _group_ranges(order, iteration, is_unnumbered & ~name.part, name.part)
    placed = OperationRanges(of_range, rank, hint, iteration, is_unnumbered, operation)
    operations, hints = _merge_ranges(named, names, placed)
    return operations, hints, placed, _describe_unplaced(profile, named, names, unplaced)


def _place_on_ranks(profile: Profile, named: Ranges, work: LinkedWork) -> tuple[Ints, Ints, Ints]:
    """Find the ranks that ranges launched work on.

    Args:
        profile: The profile.
        named: Its ranges that name operations.
        work: All work of the profile, with these ranges.

    Returns:
        of_range: Row of the range, one per range and rank, in order of (rank, host start).
        rank: Its rank.
        unplaced: Rows of the ranges whose rank is unknown.
    """
    ranks, kernels = profile.activities.ranks, profile.activities.kernels
    n_ranks = len(ranks)
    kernel_codes = _list_range_rank_codes(work.take(slice(kernels)), n_ranks)
    copy_codes = _list_range_rank_codes(work.take(slice(kernels, None)), n_ranks)
    # A copy to another device makes no operation there.
    copy_codes = copy_codes[~np.isin(copy_codes // n_ranks, kernel_codes // n_ranks)]
    codes = np.concatenate((kernel_codes, copy_codes))
    idle = subtract_values(np.arange(len(named)), codes // n_ranks)
    inferred_rank = _infer_ranks(named, idle, codes, ranks)
    is_placed = inferred_rank >= 0
    codes = np.concatenate((codes, (idle * n_ranks + inferred_rank)[is_placed]))
    of_range, rank = codes // n_ranks, codes % n_ranks
    order = np.lexsort((of_range, named.start_ns[of_range], rank))
    return of_range[order], rank[order], idle[~is_placed]


def _find_unnumbered(name: NameMeanings, is_constant: Bools) -> Bools:
    """Return a mask of the ranges whose names give no microbatch, so that their order gives it.

    A W without a microbatch flushes all pending W, and needs no number.

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
    named: Ranges, work: LinkedWork, of_range: Ints, rank: Ints, phase: Ints
) -> tuple[Ints, Ints]:
    """Return the start and end of each range, measured by compute kernels if these are needed.

    The host may launch the Optimizers of two iterations in immediate succession. Only their kernels
    then show the time between them. A collective in the second Optimizer may wait during that time,
    so only compute kernels count. That time is compared with the time from the first work after an
    Optimizer to the next Optimizer, so the kernels of that work are looked up as well. No kernels
    are looked up unless a rank has two Optimizers without work between them.

    Args:
        named: Ranges that name operations.
        work: Kernels and copies of all ranks.
        of_range: Row of ``named`` of each placed range, in order of (rank, host start).
        rank: Rank of each placed range.
        phase: Phase of each placed range.

    Returns:
        start_ns: Start of the compute kernels of each placed range, or of the range itself if its
            kernels were not looked up or do not exist.
        end_ns: End of the compute kernels, or of the range.
    """
    start_ns, end_ns = named.start_ns[of_range], named.end_ns[of_range]
    rows = np.flatnonzero(mask_phases(phase, (*COUNTED, Phase.OPTIMIZER)))
    is_step = phase[rows] == Phase.OPTIMIZER
    follows_rank = np.append(False, rank[rows[1:]] == rank[rows[:-1]])
    follows_step = follows_rank & np.append(False, is_step[:-1])
    if not (is_step & follows_step).any():
        return start_ns, end_ns
    is_needed = is_step | follows_step | ~follows_rank
    wanted = rows[is_needed]
    # The last row stands for work outside every range.
    is_wanted = make_mask(len(named) + 1, of_range[wanted])
    ran = np.flatnonzero(work.compute & is_wanted[work.range])
    keys = of_range[wanted], rank[wanted]
    owner = lookup_values(keys, wanted, (work.range[ran], work.rank[ran]))
    ran, owner = ran[owner >= 0], owner[owner >= 0]
    first_ns, last_ns = intervals.group_extents(
        owner, len(of_range), work.start_ns[ran], work.end_ns[ran]
    )
    has_kernels = make_mask(len(of_range), owner)
    return np.where(has_kernels, first_ns, start_ns), np.where(has_kernels, last_ns, end_ns)


def _list_range_rank_codes(work: LinkedWork, n_ranks: int) -> Ints:
    """Return the distinct pairs of a range and a rank that its work ran on.

    Each pair is coded as ``range * n_ranks + rank``, in ascending order.
    """
    # Most work belongs to the same range as the previous work.
    rows = find_run_starts(work.range, work.rank)
    codes = find_distinct(work.range[rows].astype(np.int64) * n_ranks + work.rank[rows])
    return codes[codes >= 0]


def _find_iteration_hints(
    ranges: Ranges, names: NameMeanings, named: Ranges, of_range: Ints, rank: Ints
) -> Ints:
    """Return the iteration number of each placed range, taken from the range around it, or -1.

    The range of an iteration may end before its Optimizer, so its number applies until the next
    forward outside every such range (an evaluation between two iterations). A range of an iteration
    that contains no forward only marks where the iteration begins. Only the threads that open
    ranges of a rank mark its iterations. The number in the name of an operation takes precedence.
    """
    name_id = named.name_id[of_range]
    forward = mask_phases(names.phase[name_id], (Phase.F, Phase.FB))
    result = names.iteration[name_id].copy()
    number = np.where(names.phase < 0, names.iteration, NONE)[ranges.name_id]
    ordered = names.by_order[ranges.name_id]
    marks = np.flatnonzero((number >= 0) | ordered)
    marks = marks[np.argsort(ranges.start_ns[marks], kind="stable")]
    for thread in find_distinct(ranges.thread[marks[ordered[marks]]]):
        on_thread = marks[(ranges.thread[marks] == thread) & ordered[marks]]
        inside = named.take(named.thread == thread)
        number[on_thread] = _number_marks(
            ranges.take(on_thread), inside, names.phase[inside.name_id]
        )
    # A range that lacks one of the passes marks nothing, and hides no mark around it.
    marks = marks[number[marks] >= 0]
    for index in find_distinct(rank) if len(marks) else ():
        rows = np.flatnonzero(rank == index)
        threads = find_distinct(named.thread[of_range[rows]])
        of_rank = marks[np.isin(ranges.thread[marks], threads)]
        if len(of_rank):
            start_ns = named.start_ns[of_range[rows]]
            at = np.searchsorted(ranges.start_ns[of_rank], start_ns, side="right") - 1
            rows, at, start_ns = rows[at >= 0], at[at >= 0], start_ns[at >= 0]
            within = start_ns < ranges.end_ns[of_rank[at]]
            lasting = ~np.isin(at, at[within & forward[rows]])
            rows, at = rows[within | lasting], at[within | lasting]
            result[rows] = np.where(result[rows] >= 0, result[rows], number[of_rank[at]])
    return _propagate_hints(result, forward, rank)


def _propagate_hints(mark: Ints, forward: Bools, rank: Ints) -> Ints:
    """Return the marks, each continued until a forward without a mark; rows in host order."""
    row = np.arange(len(mark))
    known = np.maximum.accumulate(np.where(mark >= 0, row, NONE))
    ended = np.maximum.accumulate(np.where(forward & (mark < 0), row, NONE))
    holds = (known > ended) & (rank[np.maximum(known, 0)] == rank)
    return np.where(holds, mark[np.maximum(known, 0)], mark)


def _number_marks(marks: Ranges, inside: Ranges, phase: Ints) -> Ints:
    """Return the numbers of a thread's marks by their order; -1 where not both passes run inside.

    A set-up or an evaluation that only one rank runs would shift its numbers against the others'.
    """
    at = np.searchsorted(marks.start_ns, inside.start_ns, side="right") - 1
    within = (at >= 0) & (inside.start_ns <= marks.end_ns[at])
    forward, backward = np.zeros(len(marks), bool), np.zeros(len(marks), bool)
    forward[at[within & mask_phases(phase, (Phase.F, Phase.FB))]] = True
    backward[at[within & mask_phases(phase, (*BACKWARD, Phase.FB))]] = True
    both = forward & backward
    return np.where(both, np.cumsum(both) - 1, NONE)


def _infer_ranks(named: Ranges, idle: Ints, codes: Ints, ranks: Ints) -> Ints:
    """Return the rank of each range that launched nothing, or -1 if unknown.

    It is the only rank of the process, or else the only rank that other ranges of the thread
    launched work on.

    Args:
        named: Ranges that name operations.
        idle: Rows of the ranges that launched nothing.
        codes: Pairs of the other ranges and their ranks; see :func:`_list_range_rank_codes`.
        ranks: Process and device of each rank.
    """
    count = len(ranks)
    used = find_distinct_rows(named.thread[codes // count], codes % count)
    result = np.full(len(idle), NONE, np.int64)
    for thread in find_distinct(named.thread[idle]).tolist():
        of_process = np.flatnonzero(ranks[:, 0] == thread >> 24)
        of_thread = used[1, used[0] == thread]
        for candidates in (of_process, of_thread):
            if len(candidates) == 1:
                result[named.thread[idle] == thread] = candidates[0]
                break
    return result


def _group_ranges(timing: iterations.HostOrder, iteration: Ints, alone: Bools, part: Bools) -> Ints:
    """Return the operation of each range: equal keys with no other F/B/W between them.

    Ranges that stand ``alone`` are an operation each.

    ::

        ranges       F0   F0   RECV   F0   B0   F0
        operation    ├─── one ──────────┤       another occurrence
    """
    key = group_rows(timing.rank, iteration, timing.phase_key).of_row
    first = np.ones(len(key), bool)
    at = np.flatnonzero(timing.counted)
    first[at[1:]] = (key[at[1:]] != key[at[:-1]]) | alone[at[1:]]
    # Ranges that name parts of operations have no microbatch: a transfer separates these.
    transfers = np.cumsum(timing.transfer)[at]
    first[at[1:]] |= part[at[1:]] & (np.diff(transfers) > 0)
    # Counted ranges carry the number of their group, others how many of these came before.
    group = np.where(timing.counted, np.cumsum(first & timing.counted), np.cumsum(timing.counted))
    row = np.where(alone, np.arange(len(key)), NONE)
    return group_rows(key, timing.counted.astype(np.int64), group, row).order_by_appearance().of_row


def _describe_unplaced(
    profile: Profile, named: Ranges, names: NameMeanings, rows: Ints
) -> tuple[Limitation, ...]:
    """Return why ranges that launched nothing have no rank.

    Their process has several devices, or none. One that names a backward, or several forwards, and
    has no kernel, ran a stage whose GPU work was not recorded: a profile of it cannot be told from
    one without the stage, but for these ranges. One forward may be a helper's, which names what it
    tries or prepares.

    Args:
        profile: with the kernels and copies that make ranks.
        named: its ranges that name operations.
        names: what the names of ranges mean.
        rows: of ``named``, those that have no rank.
    """
    path, process = profile.source.path, process_of(named.thread[rows])
    at_work = find_positions(find_distinct(profile.activities.ranks[:, 0]), process) != NONE
    phase = names.phase[named.name_id[rows]]
    counted = ~at_work & mask_phases(phase, COUNTED)
    numbers, of_row = np.unique(process[counted], return_inverse=True)
    # A forward counts once, and two are enough; a backward is alone.
    passes = np.where(phase[counted] == Phase.F, 1, 2)
    stages = numbers[intervals.group_sum(of_row.reshape(-1), len(numbers), passes) >= 2]
    notes = []
    if len(stages):
        pids = list_first((str(get_pid(number)) for number in stages.tolist()), _LISTED)
        reason = (
            f"{path}: it has forward or backward ranges of "
            f"process{'' if len(stages) == 1 else 'es'} {pids} and none of the kernels, so these "
            f"stages are missing from every number; record {profile.source.api} in all processes "
            "of the run"
        )
        kind = LimitationKind.STAGES_WITHOUT_GPU_WORK
        notes.append(Limitation("stages without GPU work", reason, len(stages), kind))
    for reason, count in (
        ("their process uses several devices", int(at_work.sum())),
        (
            "their process has no GPU work",
            int((~at_work & (find_positions(stages, process) == NONE)).sum()),
        ),
    ):
        if count:
            what = "ranges without GPU work whose device is unknown"
            notes.append(Limitation(what, f"{path}: {reason}", count))
    return tuple(notes)


def _merge_ranges(
    named: Ranges, names: NameMeanings, placed: OperationRanges
) -> tuple[Operations, NameHints]:
    """Return one operation for the ranges with the same ``placed.operation``, and its hints."""
    count = int(placed.operation.max(initial=-1)) + 1
    first = group_rows(placed.operation).first
    of_range, rank = placed.range[first], placed.rank[first]
    name = names.take(named.name_id[of_range])
    host_end_ns = intervals.group_extents(
        placed.operation, count, named.start_ns[placed.range], named.end_ns[placed.range]
    )[1]
    cut = make_mask(count, placed.operation[named.cut[placed.range]]).astype(np.int64)
    iteration = placed.iteration[first]
    counted = placed.unnumbered[first]
    order = iterations.number_occurrences((rank, iteration, name.phase, name.chunk, name.sequence))
    microbatch = np.where(counted, order, name.microbatch)
    phase = fuse_backwards(name.phase, (rank, name.chunk, name.stage, name.microbatch))
    key = (rank, iteration, phase, name.chunk, name.stage, name.sequence, microbatch)
    keys = Operations.make_without_work(
        rank=rank.copy(),
        iteration=iteration,
        phase=phase,
        microbatch=microbatch,
        chunk=np.where(name.chunk >= 0, name.chunk, name.stage),
        sequence=name.sequence.copy(),
        second_microbatch=name.second_microbatch.copy(),
        second_chunk=np.where(name.second_chunk >= 0, name.second_chunk, name.second_stage),
        occurrence=iterations.number_occurrences((*key, name.second_microbatch, name.second_chunk)),
        host_start_ns=named.start_ns[of_range],
        host_end_ns=host_end_ns,
        cut=cut,
        tokens=name.all_tokens,
        prefix=np.full(len(key[0]), NONE),
        name_id=named.name_id[of_range],
        names=named.names,
    )
    return keys, NameHints(stage=name.stage.copy(), iteration=placed.mark[first])


def fuse_backwards(phase: Ints, whole: tuple[Ints, Ints, Ints, Ints]) -> Ints:
    """Return phases, with B made BW where that backward never gets a W on its rank.

    A ``W_clear`` (a W without a microbatch) may settle any backward of its chunk.

    Args:
        phase: of each operation.
        whole: rank, chunk, stage and microbatch of each; -1 where names do not give it.
    """
    phase = phase.copy()
    if len(phase) == 0:
        return phase
    rank, chunk, stage, microbatch = whole
    number = group_rows(*whole).of_row
    of_chunk = group_rows(rank, chunk, stage).of_row
    weights = phase == Phase.W
    clears = weights & (microbatch < 0)
    settled = np.isin(number, number[weights]) | np.isin(of_chunk, of_chunk[clears])
    # A W that names no chunk either may settle any backward of its rank.
    settled |= np.isin(rank, rank[clears & (chunk < 0) & (stage < 0)])
    phase[(phase == Phase.B) & ~settled] = Phase.BW
    return phase
