"""Iterations of one rank: which operations belong together, by the host order of their ranges.

Names come first (``iter_{rank}_{n}``, ``ProfilerStep#n``). Without them, an iteration of a rank
ends at the last Optimizer before a forward that the iteration already contains, or at that
forward::

    F0 F1 B0 B1 Optimizer F0 F1 B0 B1 Optimizer
                         │
                         └ F0 occurs again: the iteration ended at the Optimizer before it

An Optimizer that follows another one may be an iteration without other work: see
``_find_idle_steps``.

A capture that begins inside an iteration repeats forwards from its first one on: see
``_find_bounds``.
Frameworks that give every microbatch the same name repeat the same forward all the time. There, an
iteration ends at an Optimizer that is followed by a forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.model.columns import NONE, Bools, Ints, Table
from bubbleviz.model.grouping import find_distinct, group_rows, number_within_groups
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import COUNTED, TRANSFERS, Phase

#: Minimum gap between two Optimizers of different iterations, as a fraction of the time that a rank
#: usually works before an Optimizer.
_IDLE_STEP = 0.5
#: Sentinel that is larger than the number of ranges of any Optimizer.
_MANY = 1 << 31


@dataclass(frozen=True, eq=False, repr=False)
class HostOrder(Table):
    """Ranges of operations in the order of (rank, host start).

    Attributes:
        rank: rank of the profile.
        microbatch: microbatch number.
        key: one number for each (chunk, sequence, microbatch).
        phase_key: the same with the phase.
        mark: number of the iteration that a range names around it; -1 none.
        forward: whether it is (or holds) a forward.
        counted: whether it is F, B, W, BW or FB.
        transfer: whether it is communication between two ranks.
        optimizer: whether it is an Optimizer that ends an iteration.
        post_validation: whether it is optimizer work for the iteration before.
        start_ns: Start of its compute kernels, or of the range if these are unknown.
        end_ns: End of its compute kernels, or of the range if these are unknown.
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
    """Return the input of the search for iterations; rows in order of (rank, host start).

    Args:
        rank: rank of the profile.
        phase: what each range does.
        key: what else distinguishes operations: chunk, sequence and, last, microbatch.
        second: what distinguishes those of two names.
        mark: number of the iteration that a range names around it; -1 none.
        times_ns: Start and end of the compute kernels of each range, or of the range if these are
            unknown.
        post_validation: whether it is optimizer work for the iteration before; None for none.
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
    """Tell for each range whether its rank gives every microbatch the same number.

    That is so where all forwards name one microbatch and an iteration has several of one chunk,
    by the ranges that name iterations, or else by Optimizers.
    """
    constant = np.zeros(len(order), bool)
    for rank in find_distinct(order.rank):
        rows = np.flatnonzero(order.rank == rank)
        ranges = order.take(rows)
        marked = bool((ranges.mark >= 0).any())
        named = find_distinct(ranges.microbatch[ranges.forward])
        divided = marked or bool(ranges.optimizer.any()) or named.tolist() == [NONE]
        if not divided or len(named) != 1:
            continue
        iteration = (
            ranges.mark
            if marked
            else _count_bounds(_find_bounds_after_optimizers(ranges), len(ranges))
        )
        forward = ranges.forward & (ranges.mark >= 0) if marked else ranges.forward
        constant[rows] = bool(number_occurrences((iteration[forward], ranges.key[forward])).any())
    return constant


def _count_bounds(bounds: Ints, count: int) -> Ints:
    """Return for each of ``count`` places how many bounds lie at or before it."""
    return np.searchsorted(bounds, np.arange(count), side="right")


def _find_continuations(ranges: HostOrder) -> Bools:
    """Tell for each range of a rank whether it is a further part of the operation before it.

    That is: it has the key of the last F, B or W before it, and no Optimizer lies between.
    """
    result = np.zeros(len(ranges), bool)
    at = np.flatnonzero(ranges.counted)
    steps = np.cumsum(ranges.optimizer)[at]
    same = ranges.phase_key[at][1:] == ranges.phase_key[at][:-1]
    result[at[1:]] = same & (np.diff(steps) == 0)
    return result


def number_iterations(order: HostOrder, constant: Bools) -> Ints:
    """Return each operation's iteration, counted from 0 in its rank.

    Post-validation belongs to the iteration of the last Optimizer before it; -1 where the
    capture holds none.
    """
    iteration = np.full(len(order), NONE, np.int64)
    ranks, parts = find_distinct(order.rank), _count_step_ranges(order)
    for rank, n_parts in zip(ranks.tolist(), parts.tolist(), strict=True):
        rows = np.flatnonzero(order.rank == rank)
        ranges = order.take(rows)
        index = _number_by_marks(ranges, constant=bool(constant[rows[0]]), n_parts=n_parts)
        late = np.flatnonzero(ranges.post_validation)
        ends = np.flatnonzero(ranges.optimizer)
        before = np.searchsorted(ends, late) - 1
        index[late] = np.where(before >= 0, index[ends[before]] if len(ends) else NONE, NONE)
        iteration[rows] = index
    return iteration


def _number_by_marks(ranges: HostOrder, *, constant: bool, n_parts: int) -> Ints:
    """Return a rank's iterations: as ranges name them, and by repetition where none does.

    What no range names stands between the named ones, as an evaluation does::

        marks    0 0 0 0   - - - -   1 1 1 1
        ranges   F0 F1 B0 B1 F0 F1 F0 F1 F0 F1 B0 B1
        gives    0  0  0  0  1  1  2  2  3  3  3  3
    """
    marked = ranges.mark >= 0
    row = np.arange(len(ranges))
    last = np.maximum.accumulate(np.where(marked, row, NONE))
    number = np.where(last >= 0, ranges.mark[np.maximum(last, 0)], NONE)
    place = np.zeros(len(ranges), np.int64)
    for start in find_distinct(last[~marked]).tolist():
        rows = np.flatnonzero(~marked & (last == start))
        loose = ranges.take(rows)
        bounds = _find_bounds_after_optimizers(loose) if constant else _find_bounds(loose)
        place[rows] = _count_bounds(bounds, len(rows)) + 1
    return group_rows(number, place, np.cumsum(_find_idle_steps(ranges, n_parts))).of_row


def _count_step_ranges(order: HostOrder) -> Ints:
    """Return the number of ranges that make up one Optimizer of each rank, or -1 if unknown.

    It is the smallest number of consecutive Optimizer ranges at the end of an iteration, over all
    ranks with the same total number of them. These ranks step together, and one of them may idle in
    every other iteration::

        rank 0   F0 B0 Optimizer   F0 B0 Optimizer   F0 B0 Optimizer   F0 B0 Optimizer
        rank 1   F0 B0 Optimizer         Optimizer   F0 B0 Optimizer         Optimizer

    It is unknown if an Optimizer runs between backwards.

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
    """Return the half-open ranges (first, stop) of consecutive Optimizers."""
    first = np.flatnonzero(is_step & ~np.append(False, is_step[:-1]))
    last = np.flatnonzero(is_step & ~np.append(is_step[1:], False))
    return first, last + 1


def _find_idle_steps(ranges: HostOrder, n_parts: int) -> Bools:
    """Return a mask of the Optimizers that start an iteration without other work of the rank.

    A stage without work in an iteration still runs its Optimizer. That Optimizer then directly
    follows the Optimizer of the previous iteration::

        ranges    F0 B0 Optimizer   F0 B0 Optimizer Optimizer   F0 B0 Optimizer
                                                    └ idle

    A single Optimizer may also consist of several ranges. Their number is used if every iteration
    with work ends with a multiple of it. Otherwise the time between Optimizers decides.

    Args:
        ranges: The ranges of one rank.
        n_parts: Number of ranges of an Optimizer, or -1 if it is unknown.

    Returns:
        Mask of the Optimizers that begin an idle iteration.
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

    Args:
        is_step: Mask of the Optimizers of a rank. The other ranges are forwards and backwards, at
            least one.
        n_parts: Number of ranges of an Optimizer.
    """
    first, stop = _find_step_runs(is_step)
    row = np.arange(len(is_step))
    run = np.searchsorted(first, row, side="right") - 1
    # Ranges before the first work are counted backwards from that work.
    offset = np.where(first[run] == 0, row - stop[run], row - first[run])
    begins = is_step & (offset % n_parts == 0)
    # The first Optimizer of a run belongs to the work before it, or to an iteration that was cut.
    return np.asarray(begins & (row != first[run]), bool)


def _find_idle_steps_by_time(ranges: HostOrder) -> Bools:
    """Return a mask of the Optimizers that start an idle iteration, by the time before them.

    A stage without work in an iteration waits for the other stages before it runs its Optimizer.
    The ranges of a single Optimizer follow each other closely::

        ranges    F0 B0 Optimizer                 Optimizer   F0 B0 Optimizer Optimizer
                                  └─ as long as ─┘└ idle            two parts ┘
                                     F0 and B0

    If such a gap is between two Optimizers in every iteration, both belong to the same iteration
    and none is idle.

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
    """Return where iterations begin: after the last Optimizer before a forward."""
    forwards, ends = np.flatnonzero(ranges.forward), np.flatnonzero(ranges.optimizer)
    last = np.searchsorted(ends, forwards) - 1
    return find_distinct(ends[last[last >= 0]]) + 1 if len(ends) else np.empty(0, np.int64)


def _find_bounds(ranges: HostOrder) -> Ints:
    """Return where iterations begin: at repeated forwards, or at an F of the first microbatch.

    A capture that begins inside an iteration without an Optimizer repeats forwards from its own
    first on. Of both ways, that counts which misplaces fewer operations, then that which leaves
    more whole iterations; in a tie the first microbatch begins one::

        ranges       F2 B2 F3 B3 F0 F1 B0 F2 B1 F3 B2 B3 F0 F1 B0 ...
        repeated     ├─────────────────┤├───────────────────┤├───
        first        ├─────────┤├─────────────────────┤├─────────
    """
    forwards = np.flatnonzero(ranges.forward & ~_find_continuations(ranges))
    if len(forwards) == 0:
        return forwards
    repeated, at = _find_bounds_by_repetition(ranges, forwards), np.flatnonzero(ranges.counted)
    key, number = ranges.key[forwards], ranges.microbatch[forwards]
    starts = find_distinct(key[number == number.min()])
    if at[0] == forwards[0] and key[0] == starts[0] == starts[-1]:
        return repeated
    before, ends = np.append(NONE, forwards), np.flatnonzero(ranges.optimizer)
    # An Optimizer before all work belongs to a separate iteration.
    first_row = min([int(at[0]), *ends[:1].tolist()])
    found = []
    for start in starts.tolist():  # one for each chunk
        first = forwards[key == start]
        # After an Optimizer behind the forward before.
        last = np.append(NONE, ends)[np.searchsorted(ends, first)]
        begin = np.where(last > before[np.searchsorted(forwards, first)], last + 1, first)
        found.append(begin[begin > first_row])
    return min(*found, repeated, key=lambda bounds: _count_flaws(ranges, forwards, bounds))


def _count_flaws(ranges: HostOrder, forwards: Ints, bounds: Ints) -> tuple[int, int]:
    """Return how many operations bounds misplace, and minus how many iterations are whole.

    Misplaced are a backward apart from its forward, and a forward behind another one of its key.
    """
    segment = _count_bounds(bounds, len(ranges))
    rows = np.flatnonzero(ranges.counted)
    rows = rows[np.argsort(ranges.key[rows], kind="stable")]
    last = np.maximum.accumulate(np.where(ranges.forward[rows], np.arange(len(rows)), 0))
    of = rows[last]
    paired = ~ranges.forward[rows] & ranges.forward[of] & (ranges.key[of] == ranges.key[rows])
    wrong = np.count_nonzero(paired & (segment[of] != segment[rows]))
    held, key = segment[forwards], ranges.key[forwards]
    wrong += np.count_nonzero(number_occurrences((held, key)))
    whole = np.bincount(held) == len(find_distinct(key))
    return int(wrong), -int(np.count_nonzero(whole))


def _find_bounds_by_repetition(ranges: HostOrder, forwards: Ints) -> Ints:
    """Return where iterations begin, by the rule of the repeated forward.

    ``repeat[i]`` is the first forward from i on whose key some forward from i on already had;
    one step of the loop is one iteration.
    """
    ends = np.flatnonzero(ranges.optimizer)
    repeat = _find_first_repetitions(ranges.key[forwards])
    bounds = []
    # A capture that begins after the last forward of an iteration: its rest is one of its own.
    leading = ends[ends < forwards[0]]
    if len(leading):
        bounds.append(int(leading[-1]) + 1)
    at = 0
    while repeat[at] < len(forwards):
        row = forwards[repeat[at]]
        between = ends[(ends > forwards[at]) & (ends < row)]
        bound = int(between[-1]) + 1 if len(between) else int(row)
        bounds.append(bound)
        at = int(np.searchsorted(forwards, bound))
    return np.array(bounds, np.int64)


def _find_first_repetitions(key: Ints) -> Ints:
    """Return for each i the smallest j such that key[j] equals some key[h], i <= h < j."""
    count = len(key)
    order = np.argsort(key, kind="stable")
    following = np.full(count, count, np.int64)
    same = np.diff(key[order]) == 0
    following[order[:-1][same]] = order[1:][same]
    return np.minimum.accumulate(following[::-1])[::-1]


def number_occurrences(columns: tuple[Ints, ...]) -> Ints:
    """Return for each row how many earlier rows agree with it in every column."""
    return number_within_groups(group_rows(*columns).of_row)
