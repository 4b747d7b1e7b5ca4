"""Operation ranges: the ranges that name operations, by rank, and the operations they make up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bubbleviz.conventions.range_names import NameMeanings
from bubbleviz.interpret import iterations
from bubbleviz.interpret.spans import DeviceWork
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Bools, Ints, Table, marked
from bubbleviz.model.grouping import (
    distinct,
    distinct_rows,
    found_in,
    groups_of,
    heads,
    looked_up,
    without,
)
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import BACKWARD, COUNTED, WORK, Phase
from bubbleviz.model.profile import Profile, Ranges, pid_of, process_of
from bubbleviz.model.texts import listed

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


def operation_ranges_of(
    profile: Profile, named: Ranges, names: NameMeanings, work: DeviceWork
) -> tuple[OperationRanges, tuple[Limitation, ...]]:
    """Place the ranges on the ranks they launched on, and group them into operations."""
    ranks = profile.activities.ranks
    count = len(ranks)
    kernels = profile.activities.kernels
    ran = _ran_on(work.take(slice(kernels)), count)
    copied = _ran_on(work.take(slice(kernels, None)), count)
    # A copy to another device makes no operation there.
    copied = copied[~np.isin(copied // count, ran // count)]
    placed = np.concatenate((ran, copied))
    idle = without(np.arange(len(named)), placed // count)
    home = _home_ranks(named, idle, placed, ranks)
    placed = np.concatenate((placed, (idle * count + home)[home >= 0]))
    of_range, rank = placed // count, placed % count
    order = np.lexsort((of_range, named.start_ns[of_range], rank))
    of_range, rank = of_range[order], rank[order]
    name = names.take(named.name_id[of_range])
    mark = _marks(profile.ranges, names, named, of_range, rank)
    key = name.chunk, name.stage, name.sequence, name.microbatch
    second = name.second_microbatch, name.second_chunk
    times_ns = _measure_step_times(named, work, of_range, rank, name.phase)
    validates = name.post_validation
    timing = iterations.host_order(rank, name.phase, key, second, mark, times_ns, validates)
    constant = iterations.constant_names(timing)
    iteration = iterations.number_iterations(timing, constant)
    counted = among(name.phase, (Phase.F, Phase.B, Phase.BW, Phase.R))
    # A W without a microbatch settles what is owed; of others the number is their order.
    clears = (name.phase == Phase.W) & (name.microbatch < 0)
    unnumbered = (constant & among(name.phase, WORK) & ~clears) | (counted & (name.microbatch < 0))
    operation = _grouped(timing, iteration, unnumbered & ~name.part, name.part)
    placed_ranges = OperationRanges(of_range, rank, mark, iteration, unnumbered, operation)
    return placed_ranges, _without_rank(profile, named, names, idle[home < 0])


def _measure_step_times(
    named: Ranges, work: DeviceWork, of_range: Ints, rank: Ints, phase: Ints
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
    rows = np.flatnonzero(among(phase, (*COUNTED, Phase.OPTIMIZER)))
    is_step = phase[rows] == Phase.OPTIMIZER
    follows_rank = np.append(False, rank[rows[1:]] == rank[rows[:-1]])
    follows_step = follows_rank & np.append(False, is_step[:-1])
    if not (is_step & follows_step).any():
        return start_ns, end_ns
    is_needed = is_step | follows_step | ~follows_rank
    wanted = rows[is_needed]
    # The last row stands for work outside every range.
    is_wanted = marked(len(named) + 1, of_range[wanted])
    ran = np.flatnonzero(work.compute & is_wanted[work.range])
    keys = of_range[wanted], rank[wanted]
    owner = looked_up(keys, wanted, (work.range[ran], work.rank[ran]))
    ran, owner = ran[owner >= 0], owner[owner >= 0]
    first_ns, last_ns = intervals.group_extents(
        owner, len(of_range), work.start_ns[ran], work.end_ns[ran]
    )
    has_kernels = marked(len(of_range), owner)
    return np.where(has_kernels, first_ns, start_ns), np.where(has_kernels, last_ns, end_ns)


def _ran_on(work: DeviceWork, ranks: int) -> Ints:
    """Return which ranges work ran in on which ranks, as range x ranks + rank, ascending."""
    # Most work is of the range of the work before.
    rows = heads(work.range, work.rank)
    ran = distinct(work.range[rows].astype(np.int64) * ranks + work.rank[rows])
    return ran[ran >= 0]


def _marks(ranges: Ranges, names: NameMeanings, named: Ranges, of_range: Ints, rank: Ints) -> Ints:
    """Return for each placed range the number of the iteration that a range names; -1 none.

    An iteration's range may end before its Optimizer, so it holds on until a forward begins that
    no iteration's range holds (an evaluation between two iterations). One that holds no forward
    only marks where an iteration begins. Marks of a rank are those of the threads that open its
    ranges; the number in an operation's name takes precedence over a range around it.
    """
    name_id = named.name_id[of_range]
    forward = among(names.phase[name_id], (Phase.F, Phase.FB))
    result = names.iteration[name_id].copy()
    number = np.where(names.phase < 0, names.iteration, NONE)[ranges.name_id]
    ordered = names.by_order[ranges.name_id]
    marks = np.flatnonzero((number >= 0) | ordered)
    marks = marks[np.argsort(ranges.start_ns[marks], kind="stable")]
    for thread in distinct(ranges.thread[marks[ordered[marks]]]):
        on_thread = marks[(ranges.thread[marks] == thread) & ordered[marks]]
        inside = named.take(named.thread == thread)
        number[on_thread] = _by_order(ranges.take(on_thread), inside, names.phase[inside.name_id])
    # A range that lacks one of the passes marks nothing, and hides no mark around it.
    marks = marks[number[marks] >= 0]
    for index in distinct(rank) if len(marks) else ():
        rows = np.flatnonzero(rank == index)
        threads = distinct(named.thread[of_range[rows]])
        of_rank = marks[np.isin(ranges.thread[marks], threads)]
        if len(of_rank):
            start_ns = named.start_ns[of_range[rows]]
            at = np.searchsorted(ranges.start_ns[of_rank], start_ns, side="right") - 1
            rows, at, start_ns = rows[at >= 0], at[at >= 0], start_ns[at >= 0]
            within = start_ns < ranges.end_ns[of_rank[at]]
            lasting = ~np.isin(at, at[within & forward[rows]])
            rows, at = rows[within | lasting], at[within | lasting]
            result[rows] = np.where(result[rows] >= 0, result[rows], number[of_rank[at]])
    return _continued(result, forward, rank)


def _continued(mark: Ints, forward: Bools, rank: Ints) -> Ints:
    """Return the marks, each continued until a forward without a mark; rows in host order."""
    row = np.arange(len(mark))
    known = np.maximum.accumulate(np.where(mark >= 0, row, NONE))
    ended = np.maximum.accumulate(np.where(forward & (mark < 0), row, NONE))
    holds = (known > ended) & (rank[np.maximum(known, 0)] == rank)
    return np.where(holds, mark[np.maximum(known, 0)], mark)


def _by_order(marks: Ranges, inside: Ranges, phase: Ints) -> Ints:
    """Return the numbers of a thread's marks by their order; -1 where not both passes run inside.

    A set-up or an evaluation that only one rank runs would shift its numbers against the others'.
    """
    at = np.searchsorted(marks.start_ns, inside.start_ns, side="right") - 1
    within = (at >= 0) & (inside.start_ns <= marks.end_ns[at])
    forward, backward = np.zeros(len(marks), bool), np.zeros(len(marks), bool)
    forward[at[within & among(phase, (Phase.F, Phase.FB))]] = True
    backward[at[within & among(phase, (*BACKWARD, Phase.FB))]] = True
    both = forward & backward
    return np.where(both, np.cumsum(both) - 1, NONE)


def _home_ranks(named: Ranges, idle: Ints, placed: Ints, ranks: Ints) -> Ints:
    """Return the rank of ranges that launched nothing: the only one of their process.

    Else the only one that their thread's other ranges ran on; else -1.
    """
    count = len(ranks)
    used = distinct_rows(named.thread[placed // count], placed % count)
    result = np.full(len(idle), NONE, np.int64)
    for thread in distinct(named.thread[idle]).tolist():
        of_process = np.flatnonzero(ranks[:, 0] == thread >> 24)
        of_thread = used[1, used[0] == thread]
        for candidates in (of_process, of_thread):
            if len(candidates) == 1:
                result[named.thread[idle] == thread] = candidates[0]
                break
    return result


def _grouped(timing: iterations.HostOrder, iteration: Ints, alone: Bools, part: Bools) -> Ints:
    """Return the operation of each range: equal keys with no other F/B/W between them.

    Ranges that stand ``alone`` are an operation each.

    ::

        ranges       F0   F0   RECV   F0   B0   F0
        operation    ├─── one ──────────┤       another occurrence
    """
    key = groups_of(timing.rank, iteration, timing.whole_key).of_row
    first = np.ones(len(key), bool)
    at = np.flatnonzero(timing.counted)
    first[at[1:]] = (key[at[1:]] != key[at[:-1]]) | alone[at[1:]]
    # Ranges that name parts of operations have no microbatch: a transfer separates these.
    transfers = np.cumsum(timing.transfer)[at]
    first[at[1:]] |= part[at[1:]] & (np.diff(transfers) > 0)
    # Counted ranges carry the number of their group, others how many of these came before.
    group = np.where(timing.counted, np.cumsum(first & timing.counted), np.cumsum(timing.counted))
    row = np.where(alone, np.arange(len(key)), NONE)
    return groups_of(key, timing.counted.astype(np.int64), group, row).as_they_come().of_row


def _without_rank(
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
    at_work = found_in(distinct(profile.activities.ranks[:, 0]), process) != NONE
    phase = names.phase[named.name_id[rows]]
    counted = ~at_work & among(phase, COUNTED)
    numbers, of_row = np.unique(process[counted], return_inverse=True)
    # A forward counts once, and two are enough; a backward is alone.
    passes = np.where(phase[counted] == Phase.F, 1, 2)
    stages = numbers[intervals.group_sum(of_row.reshape(-1), len(numbers), passes) >= 2]
    notes = []
    if len(stages):
        pids = listed((str(pid_of(number)) for number in stages.tolist()), _LISTED)
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
            int((~at_work & (found_in(stages, process) == NONE)).sum()),
        ),
    ):
        if count:
            what = "ranges without GPU work whose device is unknown"
            notes.append(Limitation(what, f"{path}: {reason}", count))
    return tuple(notes)


@dataclass(frozen=True, eq=False, repr=False)
class NameHints(Table):
    """What the names of operations give beyond their keys; -1 nothing.

    Attributes:
        stage: virtual stage.
        iteration: number of the iteration that a range around it names.
    """

    stage: Ints
    iteration: Ints


def keys_of(
    named: Ranges, names: NameMeanings, placed: OperationRanges
) -> tuple[Operations, NameHints]:
    """Return the keys of operations, in order of (rank, host start), and what else names give."""
    count = int(placed.operation.max(initial=-1)) + 1
    first = groups_of(placed.operation).first
    of_range, rank = placed.range[first], placed.rank[first]
    name = names.take(named.name_id[of_range])
    host_end_ns = intervals.group_extents(
        placed.operation, count, named.start_ns[placed.range], named.end_ns[placed.range]
    )[1]
    cut = marked(count, placed.operation[named.cut[placed.range]]).astype(np.int64)
    iteration = placed.iteration[first]
    counted = placed.unnumbered[first]
    order = iterations.occurrences((rank, iteration, name.phase, name.chunk, name.sequence))
    microbatch = np.where(counted, order, name.microbatch)
    phase = fused_backward(name.phase, (rank, name.chunk, name.stage, name.microbatch))
    key = (rank, iteration, phase, name.chunk, name.stage, name.sequence, microbatch)
    keys = Operations.without_work(
        rank=rank.copy(),
        iteration=iteration,
        phase=phase,
        microbatch=microbatch,
        chunk=np.where(name.chunk >= 0, name.chunk, name.stage),
        sequence=name.sequence.copy(),
        second_microbatch=name.second_microbatch.copy(),
        second_chunk=np.where(name.second_chunk >= 0, name.second_chunk, name.second_stage),
        occurrence=iterations.occurrences((*key, name.second_microbatch, name.second_chunk)),
        host_start_ns=named.start_ns[of_range],
        host_end_ns=host_end_ns,
        cut=cut,
        tokens=name.all_tokens,
        prefix=np.full(len(key[0]), NONE),
        name_id=named.name_id[of_range],
        names=named.names,
    )
    return keys, NameHints(stage=name.stage.copy(), iteration=placed.mark[first])


def fused_backward(phase: Ints, whole: tuple[Ints, Ints, Ints, Ints]) -> Ints:
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
    number = groups_of(*whole).of_row
    of_chunk = groups_of(rank, chunk, stage).of_row
    weights = phase == Phase.W
    clears = weights & (microbatch < 0)
    settled = np.isin(number, number[weights]) | np.isin(of_chunk, of_chunk[clears])
    # A W that names no chunk either may settle any backward of its rank.
    settled |= np.isin(rank, rank[clears & (chunk < 0) & (stage < 0)])
    phase[(phase == Phase.B) & ~settled] = Phase.BW
    return phase
