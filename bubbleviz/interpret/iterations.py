"""Division of each rank's operations into iterations, based on the host order of ranges.

If range names identify iterations (``iter_{rank}_{n}``, ``ProfilerStep#n``), those names are used.
Otherwise, an iteration of a rank ends before a forward repeats. It ends after the last Optimizer
before the repeated forward. If there is no Optimizer, it ends just before the repeated forward::

    F0 F1 B0 B1 Optimizer F0 F1 B0 B1 Optimizer
                         │
                         └ F0 occurs again: the iteration ended at the Optimizer before it

There are three exceptions:

- Two consecutive Optimizers may belong to two iterations if the rank had no other work in the
  second iteration; see ``_find_idle_steps``.
- If the capture starts inside an iteration, the first forward in the capture is not the first
  forward of its iteration; see ``_find_bounds``.
- Some frameworks give every microbatch the same name, so the same forward appears to repeat
  constantly. An iteration then ends after an Optimizer that is followed by a forward; see
  :func:`find_constant_names`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.model.columns import NONE, Bools, Ints, Table
from bubbleviz.model.grouping import find_distinct, group_rows, number_within_groups
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import COUNTED, TRANSFERS, Phase

#: Two Optimizers belong to different iterations if the gap between them exceeds this fraction of
#: the time that a rank usually works before an Optimizer.
_IDLE_STEP = 0.5
#: Sentinel that is larger than the number of ranges in any Optimizer.
_MANY = 1 << 31


@dataclass(frozen=True, eq=False, repr=False)
class HostOrder(Table):
    """Ranges of operations, sorted by (rank, host start).

    Attributes:
        rank: Index of the rank in its profile.
        microbatch: Microbatch number, or -1 if the name contains none.
        key: Id of the microbatch key. Ranges with the same chunk, sequence and microbatch (and
            stage, if names contain stages) have the same id.
        phase_key: Id of the operation key, which also distinguishes the phase, the second
            microbatch and the second chunk.
        mark: Iteration number found in the names, or -1 if there is none.
        forward: Mask of the ranges that are or contain a forward (F or FB).
        counted: Mask of the F, B, W, BW and FB ranges.
        transfer: Mask of the ranges for communication between two ranks.
        optimizer: Mask of the Optimizers, without post-validation.
        post_validation: Mask of the ranges that do optimizer work for the previous iteration.
        start_ns: Start of the range's compute kernels, or of the range itself if unknown.
        end_ns: End of the range's compute kernels, or of the range itself if unknown.
    """

    rank: Ints
    microbatch: Ints
    key: Ints
    phase_key: Ints
    mark: Ints
    forward: Bools
    counted: Bools
    transfer: Bools
    optimizer: Bools
    post_validation: Bools
    start_ns: Ints
    end_ns: Ints


def build_host_order(
    rank: Ints,
    phase: Ints,
    key: Sequence[Ints],
    second: Sequence[Ints],
    mark: Ints,
    times_ns: tuple[Ints, Ints],
    post_validation: Bools | None = None,
) -> HostOrder:
    """Build the table of ranges that the functions of this module divide into iterations.

    All columns must be sorted by (rank, host start).

    Args:
        rank: Rank index of each range.
        phase: Phase of each range.
        key: Further columns that distinguish operations, such as chunk and sequence. The last
            column must be the microbatch.
        second: Columns that distinguish the second operation of fused ranges.
        mark: Iteration number found in the names for each range, or -1 if there is none.
        times_ns: Start and end of each range's compute kernels, or of the range itself if unknown.
        post_validation: Mask of the ranges that do optimizer work for the previous iteration, or
            None if there are none.
    """
    validates = np.zeros(len(rank), bool) if post_validation is None else post_validation
    number = group_rows(*key).of_row
    return HostOrder(
        rank=rank.copy(),
        microbatch=key[-1].copy(),
        key=number,
        phase_key=group_rows(number, phase, *second).of_row,
        mark=mark.copy(),
        forward=mask_phases(phase, (Phase.F, Phase.FB)),
        counted=mask_phases(phase, COUNTED),
        transfer=mask_phases(phase, TRANSFERS),
        optimizer=(phase == Phase.OPTIMIZER) & ~validates,
        post_validation=validates.copy(),
        start_ns=times_ns[0].copy(),
        end_ns=times_ns[1].copy(),
    )


def find_constant_names(order: HostOrder) -> Bools:
    """Return a mask of the ranges on ranks where every microbatch has the same name.

    The ranges of a rank are in the mask if both of the following conditions hold:

    - All its forwards have the same microbatch number, or none of them has one.
    - An iteration contains several forwards with the same key (``HostOrder.key``).

    The iterations for this test come from marks (iteration numbers in names). On a rank without
    marks, an iteration ends at an Optimizer that is followed by a forward. A rank with neither is a
    single iteration, and is in the mask only if its forwards have no microbatch numbers.
    """
    is_constant = np.zeros(len(order), bool)
    for rank in find_distinct(order.rank):
        rows = np.flatnonzero(order.rank == rank)
        ranges = order.take(rows)
        has_marks = bool((ranges.mark >= 0).any())
        microbatches = find_distinct(ranges.microbatch[ranges.forward])
        is_divided = has_marks or bool(ranges.optimizer.any()) or microbatches.tolist() == [NONE]
        if not is_divided or len(microbatches) != 1:
            continue
        if has_marks:
            iteration = ranges.mark
            forward = ranges.forward & (ranges.mark >= 0)
        else:
            iteration = _count_bounds(_find_bounds_after_optimizers(ranges), len(ranges))
            forward = ranges.forward
        earlier = number_occurrences((iteration[forward], ranges.key[forward]))
        is_constant[rows] = bool(earlier.any())
    return is_constant


def _count_bounds(bounds: Ints, count: int) -> Ints:
    """Return the segment of each of ``count`` rows.

    This is the number of bounds that are not greater than the row. Rows before the first bound are
    in segment 0.

    Args:
        bounds: First rows of segments, in ascending order.
        count: Number of rows.
    """
    return np.searchsorted(bounds, np.arange(count), side="right")


def _find_continuations(ranges: HostOrder) -> Bools:
    """Return a mask of the counted ranges that continue the operation before them.

    Counted ranges are F, B, W, BW and FB. A counted range continues an operation if the previous
    counted range has the same ``phase_key`` and there is no Optimizer between them.

    Args:
        ranges: Ranges of one rank.
    """
    is_continuation = np.zeros(len(ranges), bool)
    rows = np.flatnonzero(ranges.counted)
    n_steps = np.cumsum(ranges.optimizer)[rows]
    is_same_key = ranges.phase_key[rows][1:] == ranges.phase_key[rows][:-1]
    is_continuation[rows[1:]] = is_same_key & (np.diff(n_steps) == 0)
    return is_continuation


def number_iterations(order: HostOrder, is_constant: Bools) -> Ints:
    """Number each rank's iterations, starting at 0, as described at the top of this module.

    Optimizer work for the previous iteration (post-validation) belongs to the iteration of the last
    Optimizer before it.

    Args:
        order: Ranges of all ranks.
        is_constant: Mask of the ranges on ranks where every microbatch has the same name; see
            :func:`find_constant_names`.

    Returns:
        Iteration of each range. The value is -1 for post-validation that has no Optimizer before
        it.
    """
    iteration = np.full(len(order), NONE, np.int64)
    ranks, parts = find_distinct(order.rank), _count_step_ranges(order)
    for rank, n_parts in zip(ranks.tolist(), parts.tolist(), strict=True):
        rows = np.flatnonzero(order.rank == rank)
        ranges = order.take(rows)
        of_rank = _number_by_marks(ranges, is_constant=bool(is_constant[rows[0]]), n_parts=n_parts)
        steps = np.flatnonzero(ranges.optimizer)
        validations = np.flatnonzero(ranges.post_validation)
        last_step = np.append(steps, NONE)[np.searchsorted(steps, validations) - 1]
        of_rank[validations] = np.where(last_step == NONE, NONE, of_rank[last_step])
        iteration[rows] = of_rank
    return iteration


def _number_by_marks(ranges: HostOrder, *, is_constant: bool, n_parts: int) -> Ints:
    """Number the iterations of a rank by their marks, and by repetition outside of marks.

    A mark is an iteration number found in a name. Ranges without a mark, for example an evaluation,
    are separate iterations between the marked ones::

        marks       0  0  0  0  -  -  -  -  1  1  1  1
        ranges      F0 F1 B0 B1 F0 F1 F0 F1 F0 F1 B0 B1
        iteration   0  0  0  0  1  1  2  2  3  3  3  3

    Args:
        ranges: Ranges of one rank.
        is_constant: Whether every microbatch of the rank has the same name.
        n_parts: Number of ranges that make up an Optimizer, or -1 if unknown.

    Returns:
        Zero-based iteration number of each range.
    """
    is_marked = ranges.mark >= 0
    last_marked = np.maximum.accumulate(np.where(is_marked, np.arange(len(ranges)), NONE))
    number = np.append(ranges.mark, NONE)[last_marked]
    segment = np.zeros(len(ranges), np.int64)
    for marked_row in find_distinct(last_marked[~is_marked]).tolist():
        rows = np.flatnonzero(~is_marked & (last_marked == marked_row))
        unmarked = ranges.take(rows)
        bounds = _find_bounds_after_optimizers(unmarked) if is_constant else _find_bounds(unmarked)
        segment[rows] = _count_bounds(bounds, len(rows)) + 1
    n_idle_steps: Ints = np.cumsum(_find_idle_steps(ranges, n_parts))
    return group_rows(number, segment, n_idle_steps).of_row


def _count_step_ranges(order: HostOrder) -> Ints:
    """Return the number of ranges that make up one Optimizer of each rank, or -1 if unknown.

    This is the smallest number of Optimizer ranges at the end of any iteration. If a rank is idle
    in every other iteration, two Optimizers always follow each other, and its smallest number is
    too large. Ranks with the same total number of Optimizer ranges run their Optimizers together,
    so the smallest number on any of these ranks is used::

        rank 0   F0 B0 Optimizer   F0 B0 Optimizer   F0 B0 Optimizer   F0 B0 Optimizer
        rank 1   F0 B0 Optimizer         Optimizer   F0 B0 Optimizer         Optimizer

    The number is unknown for a rank if an Optimizer is directly followed by something other than a
    forward. If no two Optimizer ranges are consecutive, the number is unknown for all ranks.

    Args:
        order: Ranges of all ranks.

    Returns:
        Number of ranges for each distinct rank, in ascending order of ranks.
    """
    ranks = find_distinct(order.rank)
    is_step = order.optimizer[order.counted | order.optimizer]
    if not (is_step[1:] & is_step[:-1]).any():
        return np.full(len(ranks), NONE)
    fewest, n_steps = [], []
    for rank in ranks:
        ranges = order.take(np.flatnonzero(order.rank == rank))
        ranges = ranges.take(ranges.counted | ranges.optimizer)
        first, stop = _find_step_runs(ranges.optimizer)
        is_at_end = ranges.forward[stop[stop < len(ranges)]].all()
        # The capture may begin between the parts of an Optimizer.
        count = (stop - first)[first > 0] if is_at_end else stop[:0]
        fewest.append(int(count.min(initial=_MANY)))
        n_steps.append(int(np.count_nonzero(ranges.optimizer)))
    group = group_rows(np.array(n_steps, np.int64)).of_row
    parts = np.full(len(fewest), _MANY)
    np.minimum.at(parts, group, np.array(fewest, np.int64))
    parts = parts[group]
    return np.where((parts < _MANY) & (np.array(fewest) < _MANY), parts, NONE)


def _find_step_runs(is_step: Bools) -> tuple[Ints, Ints]:
    """Return the first row and the stop row of each run of consecutive Optimizers."""
    first = np.flatnonzero(is_step & ~np.append(False, is_step[:-1]))
    last = np.flatnonzero(is_step & ~np.append(is_step[1:], False))
    return first, last + 1


def _find_idle_steps(ranges: HostOrder, n_parts: int) -> Bools:
    """Return a mask of the Optimizers that start an iteration in which the rank has no other work.

    A stage without work in an iteration still runs its Optimizer. This Optimizer directly follows
    the Optimizer of the previous iteration::

        ranges    F0 B0 Optimizer   F0 B0 Optimizer Optimizer   F0 B0 Optimizer
                                                    └ idle

    A single Optimizer may also consist of several ranges. There are two ways to determine whether
    consecutive ranges are one Optimizer or several. If every iteration with work ends with a
    multiple of ``n_parts`` Optimizer ranges, the ranges are counted. Otherwise, the time between
    the ranges decides.

    Args:
        ranges: Ranges of one rank.
        n_parts: Number of ranges that make up an Optimizer, or -1 if unknown.
    """
    is_idle = np.zeros(len(ranges), bool)
    rows = np.flatnonzero(ranges.counted | ranges.optimizer)
    is_step = ranges.optimizer[rows]
    follows_step = np.append(False, is_step[:-1])
    if not (is_step & follows_step).any() or not ranges.forward.any():
        return is_idle
    first, stop = _find_step_runs(is_step)
    count = (stop - first)[first > 0]
    if n_parts > 0 and len(count) and not (count % n_parts).any():
        is_idle[rows] = _find_idle_steps_by_count(is_step, n_parts)
    else:
        is_idle[rows] = _find_idle_steps_by_time(ranges.take(rows))
    return is_idle


def _find_idle_steps_by_count(is_step: Bools, n_parts: int) -> Bools:
    """Return a mask of the Optimizers that start an idle iteration, by counting their ranges.

    In a run of consecutive Optimizer ranges, every ``n_parts``-th range starts an Optimizer. The
    first Optimizer of the run ends the iteration before it. Each later one starts an idle
    iteration. If the capture starts with Optimizer ranges, they are counted backwards from the
    first work, because the capture may have cut off the first Optimizer.

    Args:
        is_step: Mask of the Optimizers among the forwards, backwards and Optimizers of a rank.
            There is at least one forward or backward.
        n_parts: Number of ranges that make up an Optimizer.
    """
    first, stop = _find_step_runs(is_step)
    row = np.arange(len(is_step))
    run = np.searchsorted(first, row, side="right") - 1
    # Ranges before the first work are counted backwards from that work.
    offset = np.where(first[run] == 0, row - stop[run], row - first[run])
    is_first_part = is_step & (offset % n_parts == 0)
    # The first Optimizer of a run belongs to the work before it, or to an iteration that was cut.
    return np.asarray(is_first_part & (row != first[run]), bool)


def _find_idle_steps_by_time(ranges: HostOrder) -> Bools:
    """Return a mask of the Optimizers that start an idle iteration, by the time before them.

    A stage without work in an iteration waits for the other stages before it runs its Optimizer.
    The ranges of a single Optimizer follow each other closely::

        ranges    F0 B0 Optimizer                 Optimizer   F0 B0 Optimizer Optimizer
                                  └─ as long as ─┘└ idle            two parts ┘
                                     F0 and B0

    A gap is long if it exceeds ``_IDLE_STEP`` times the median time from the start of the work to
    the Optimizer. An Optimizer that follows another Optimizer after a long gap starts an idle
    iteration. However, if every iteration contains such a gap, the gaps are within iterations, and
    no iteration is idle.

    Args:
        ranges: Forwards, backwards and Optimizers of one rank.
    """
    is_idle = np.zeros(len(ranges), bool)
    is_step = ranges.optimizer
    follows_step = np.append(False, is_step[:-1])
    first_work = np.flatnonzero(~is_step & np.append(True, is_step[:-1]))
    first_step = np.flatnonzero(is_step & ~follows_step)
    first_step = first_step[first_step > first_work[0]]
    if len(first_step) < 2:
        return is_idle
    work_ns = ranges.start_ns[first_step] - ranges.start_ns[first_work[: len(first_step)]]
    gap_ns = np.append(0, ranges.start_ns[1:] - ranges.end_ns[:-1])
    is_late = is_step & follows_step & (gap_ns > _IDLE_STEP * np.median(work_ns))
    iteration = np.searchsorted(first_step, np.flatnonzero(is_late), side="right")
    if len(find_distinct(iteration[iteration > 0])) < len(first_step):
        is_idle[is_late] = True
    return is_idle


def _find_bounds_after_optimizers(ranges: HostOrder) -> Ints:
    """Return the first rows of iterations that start after an Optimizer.

    Each forward marks one iteration start: the row after the last Optimizer before the forward.
    The rows are distinct and ascending.

    Args:
        ranges: Ranges of one rank.
    """
    forwards, steps = np.flatnonzero(ranges.forward), np.flatnonzero(ranges.optimizer)
    last_step = np.searchsorted(steps, forwards) - 1
    return find_distinct(steps[last_step[last_step >= 0]]) + 1 if len(steps) else steps


def _find_bounds(ranges: HostOrder) -> Ints:
    """Return the first rows of iterations, at repeated forwards or at the first microbatch.

    If the capture starts inside an iteration and there is no Optimizer, the first repeated forward
    is not the start of an iteration. Therefore, two rules are tried:

    - Repeated: an iteration starts at a repeated forward.
    - First: an iteration starts at the forward with the smallest microbatch number. If several
      chunks have such a forward, each of them is tried.

    ::

        ranges       F2 B2 F3 B3 F0 F1 B0 F2 B1 F3 B2 B3 F0 F1 B0 ...
        repeated     ├─────────────────┤├───────────────────┤├───
        first        ├─────────┤├─────────────────────┤├─────────

    The result with the fewest misplaced operations wins. Ties are broken in favor of the result
    with the most complete iterations; see :func:`_count_flaws`. If the results are still tied, the
    second rule wins. The second rule is not tried if only one chunk has a forward with the smallest
    microbatch number, and if this forward is the first counted range.

    Args:
        ranges: Ranges of one rank.
    """
    forwards = np.flatnonzero(ranges.forward & ~_find_continuations(ranges))
    if len(forwards) == 0:
        return forwards
    repeated = _find_bounds_by_repetition(ranges, forwards)
    first_work = int(np.flatnonzero(ranges.counted)[0])
    key, microbatch = ranges.key[forwards], ranges.microbatch[forwards]
    first_keys = find_distinct(key[microbatch == microbatch.min()])
    has_one_chunk = first_keys[0] == first_keys[-1]
    if first_work == forwards[0] and key[0] == first_keys[0] and has_one_chunk:
        return repeated
    steps = np.flatnonzero(ranges.optimizer)
    # An Optimizer before all work belongs to a separate iteration.
    first_row = min([first_work, *steps[:1].tolist()])
    candidates = []
    for first_key in first_keys.tolist():
        bounds = _find_bounds_at_forwards(forwards, forwards[key == first_key], steps)
        candidates.append(bounds[bounds > first_row])
    return min(*candidates, repeated, key=lambda bounds: _count_flaws(ranges, forwards, bounds))


def _find_bounds_at_forwards(forwards: Ints, first: Ints, steps: Ints) -> Ints:
    """Return the first rows of iterations whose first forwards are given.

    If there are Optimizers between the first forward and the forward before it, the iteration
    starts after the last of those Optimizers. Otherwise, it starts at its first forward.

    Args:
        forwards: Rows of all forwards of a rank.
        first: Row of the first forward in each iteration.
        steps: Rows of the Optimizers.
    """
    previous_forward = np.append(NONE, forwards)[np.searchsorted(forwards, first)]
    last_step = np.append(NONE, steps)[np.searchsorted(steps, first)]
    return np.where(last_step > previous_forward, last_step + 1, first)


def _count_flaws(ranges: HostOrder, forwards: Ints, bounds: Ints) -> tuple[int, int]:
    """Rate a division into iterations. Smaller ratings are better.

    An operation is misplaced if it is a backward in a different iteration than its forward, or a
    forward whose key already occurred in the same iteration.

    Args:
        ranges: Ranges of one rank.
        forwards: Rows of the forwards that do not continue another one.
        bounds: First rows of iterations.

    Returns:
        n_misplaced: Number of misplaced operations.
        minus_complete: Negated number of complete iterations. An iteration is complete if it has as
            many forwards as there are distinct forward keys.
    """
    segment = _count_bounds(bounds, len(ranges))
    rows = np.flatnonzero(ranges.counted)
    rows = rows[np.argsort(ranges.key[rows], kind="stable")]
    is_forward = ranges.forward[rows]
    # Rows with the same key are consecutive, so the last forward before a backward has its key.
    last_forward = np.maximum.accumulate(np.where(is_forward, np.arange(len(rows)), 0))
    forward = rows[last_forward]
    is_same_key = ranges.key[forward] == ranges.key[rows]
    has_forward = ~is_forward & ranges.forward[forward] & is_same_key
    n_misplaced = np.count_nonzero(has_forward & (segment[forward] != segment[rows]))
    key, segment_of_forward = ranges.key[forwards], segment[forwards]
    n_misplaced += np.count_nonzero(number_occurrences((segment_of_forward, key)))
    is_complete = np.bincount(segment_of_forward) == len(find_distinct(key))
    return int(n_misplaced), -int(np.count_nonzero(is_complete))


def _find_bounds_by_repetition(ranges: HostOrder, forwards: Ints) -> Ints:
    """Return the first rows of iterations that end before a forward repeats.

    An iteration ends before the first forward that repeats one of its forwards. The next iteration
    starts

    - after the last Optimizer between the first forward of the iteration and the repeated forward;
    - at the repeated forward if there is no Optimizer between them.

    If any Optimizers precede the first forward, an iteration also starts after the last of them.

    Args:
        ranges: Ranges of one rank.
        forwards: Rows of the forwards that do not continue another one.
    """
    steps = np.flatnonzero(ranges.optimizer)
    repetition = _find_first_repetitions(ranges.key[forwards])
    bounds = []
    # If the capture starts after the last forward of an iteration, the rest of that iteration is a
    # separate one.
    leading = steps[steps < forwards[0]]
    if len(leading):
        bounds.append(int(leading[-1]) + 1)
    first = 0
    while repetition[first] < len(forwards):
        repeated = forwards[repetition[first]]
        between = steps[(steps > forwards[first]) & (steps < repeated)]
        bound = int(between[-1]) + 1 if len(between) else int(repeated)
        bounds.append(bound)
        first = int(np.searchsorted(forwards, bound))
    return np.array(bounds, np.int64)


def _find_first_repetitions(key: Ints) -> Ints:
    """Return for each start index where a key first repeats, or ``len(key)`` if none does.

    For start index i, this is the smallest j for which ``key[j]`` occurs in ``key[i:j]``. For
    example, the keys 0, 1, 1, 0 give 2, 2, 4, 4.
    """
    count = len(key)
    order = np.argsort(key, kind="stable")
    following = np.full(count, count, np.int64)
    is_same = np.diff(key[order]) == 0
    following[order[:-1][is_same]] = order[1:][is_same]
    return np.minimum.accumulate(following[::-1])[::-1]


def number_occurrences(columns: tuple[Ints, ...]) -> Ints:
    """Return for each row the number of earlier rows with equal values in every column."""
    return number_within_groups(group_rows(*columns).of_row)
