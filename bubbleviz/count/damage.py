"""Damage inside the averaged iterations: lost or impossible work elsewhere changes no average."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.align.offsets import ProfileClock
from bubbleviz.align.run import Run
from bubbleviz.count.count import Counts
from bubbleviz.interpret.recording import Recording
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.intervals import group_extents
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.phase_masks import EVALUATION, among
from bubbleviz.model.phases import COUNTED

#: Minimum part of an averaged iteration that makes its ratio wrong if it is unknown.
_NOTICEABLE = 0.01
#: Part of the averaged iterations that an undamaged window must hold to be suggested.
_WORTH_A_WINDOW = 1 / 3
_ELSEWHERE = "; none of it lies in the averaged iterations, so no average is wrong"


def locate_damage(
    recordings: Sequence[Recording], run: Run, counts: Counts
) -> tuple[tuple[Limitation, ...], ...]:
    """Return the limitations of each recording, with damage outside the averaged iterations.

    Damage whose times are known, and that lies in none of the averaged iterations, no longer
    restricts the ratios. If it lies in few of them, the limitation suggests the longest window of
    complete iterations without any damage.

    Args:
        recordings: One per profile, in the order of the run.
        run: The recordings, merged.
        counts: Ratios of the run's iterations.
    """
    averaged = np.array([i.averaged for i in counts.iterations], bool)
    located = [
        [
            (_weighed(note, profile, run, averaged), _damaged_iterations(note, profile, run))
            for note in recording.limitations
        ]
        for profile, recording in enumerate(recordings)
    ]
    if not averaged.any():
        return tuple(recording.limitations for recording in recordings)
    masks = [mask for notes in located for _, mask in notes if mask is not None]
    window = _undamaged_window(np.logical_or.reduce(masks), counts) if masks else ""
    return tuple(
        tuple(_with_place(note, mask, averaged, window) for note, mask in notes)
        for notes in located
    )


def _weighed(note: Limitation, profile: int, run: Run, averaged: Bools) -> Limitation:
    """Return a limitation with the kind that follows from its time in the averaged iterations.

    Few losses may make an iteration wrong if they all lie in it.
    """
    if note.noticeable_kind is None or note.unknown_ns is None:
        return note
    began_ns, ended_ns = (_aligned(times, run.clocks[profile]) for times in note.unknown_ns)
    ranks = run.rank_of_local[profile]
    start_ns, end_ns = _iteration_times(run, ranks)
    is_present = averaged & (end_ns > start_ns)
    start_ns, end_ns = start_ns[is_present], end_ns[is_present]
    unknown_ns = _time_until(end_ns, began_ns, ended_ns) - _time_until(start_ns, began_ns, ended_ns)
    is_noticeable = unknown_ns >= _NOTICEABLE * len(ranks) * (end_ns - start_ns)
    return replace(note, kind=note.noticeable_kind) if is_noticeable.any() else note


def _time_until(times_ns: Ints, start_ns: Ints, end_ns: Ints) -> Ints:
    """Return how much time all of some intervals take together until each of some times.

    Args:
        times_ns: The times.
        start_ns: Start of each interval, at least one.
        end_ns: End of each interval.
    """
    # Sums of whole timestamps would not fit 64 bits.
    base_ns = start_ns.min()
    start_ns, end_ns = np.sort(start_ns - base_ns), np.sort(end_ns - base_ns)
    times_ns = np.maximum(times_ns - base_ns, 0)
    sums = [
        np.searchsorted(bounds_ns, times_ns) * times_ns
        - np.append(0, np.cumsum(bounds_ns))[np.searchsorted(bounds_ns, times_ns)]
        for bounds_ns in (start_ns, end_ns)
    ]
    return np.asarray(sums[0] - sums[1], np.int64)


def _with_place(
    note: Limitation, is_damaged: Bools | None, averaged: Bools, window: str
) -> Limitation:
    """Return a limitation that says whether its damage lies in the averaged iterations."""
    if is_damaged is None:
        return note
    if not (is_damaged & averaged).any():
        return replace(note, reason=f"{note.reason}{_ELSEWHERE}", kind=LimitationKind.COSTS)
    if not window:
        return note
    reason = f"{note.reason}; --window {window} leaves out the iterations with damage"
    return replace(note, reason=reason, window=window)


def _damaged_iterations(note: Limitation, profile: int, run: Run) -> Bools | None:
    """Return the iterations in which the damage of a profile lies, or None if that is unknown."""
    if note.kind is LimitationKind.OPERATIONS_WITHOUT_WORK:
        operations = run.operations
        is_lacking = among(operations.phase, COUNTED) & (operations.has_span == 0)
        is_lacking &= (operations.cut == 0) & (operations.iteration >= 0)
        is_lacking &= np.isin(operations.rank, run.rank_of_local[profile])
        mask = np.zeros(len(run.iteration_names), bool)
        mask[operations.iteration[is_lacking]] = True
        return mask
    # What was launched in an iteration belongs to it, even if it runs while the next one begins.
    if note.times_ns is not None:
        damage_ns = note.times_ns, note.times_ns
    elif note.unknown_ns is not None:
        damage_ns = note.unknown_ns
    else:
        return None
    began_ns, ended_ns = (np.sort(_aligned(times, run.clocks[profile])) for times in damage_ns)
    start_ns, end_ns = _iteration_times(run, run.rank_of_local[profile])
    n_ended_before = np.searchsorted(ended_ns, start_ns)
    n_began = np.searchsorted(began_ns, end_ns, side="right")
    return np.asarray(n_began > n_ended_before, bool)


def _aligned(times_ns: Ints, clock: ProfileClock) -> Ints:
    """Return times of a profile on the clock of the run."""
    drift_ns = np.rint((times_ns - clock.t0_ns) * clock.drift_ppm * 1e-6).astype(np.int64)
    return np.asarray(times_ns + clock.offset_ns + drift_ns, np.int64)


def _iteration_times(run: Run, ranks: Ints) -> tuple[Ints, Ints]:
    """Return when each iteration begins and ends on the host and the GPU of any of some ranks.

    An iteration lasts until the next one begins: work between two iterations counts in ``period``.
    An iteration without operations on these ranks ends before it begins.
    """
    operations, count = run.operations, len(run.iteration_names)
    rows = np.flatnonzero(np.isin(operations.rank, ranks) & (operations.iteration >= 0))
    iteration = operations.iteration[rows]
    host_start_ns = operations.host_start_ns[rows]
    begin_ns = np.where(host_start_ns == NONE, operations.start_ns[rows], host_start_ns)
    finish_ns = np.maximum(operations.host_end_ns[rows], operations.end_ns[rows])
    start_ns, end_ns = group_extents(iteration, count, begin_ns, finish_ns)
    next_ns = np.append(start_ns[1:], NONE)
    has_next = np.append((start_ns <= end_ns)[1:], False) & (start_ns <= end_ns)
    return start_ns, np.where(has_next, np.maximum(end_ns, next_ns), end_ns)


def _undamaged_window(is_damaged: Bools, counts: Counts) -> str:
    """Return the longest window of complete iterations without damage, or "" if it is too short.

    Iterations go by the numbers that ``--window`` takes. Of several windows the first is returned.
    """
    usable = [
        i.complete and i.kind != EVALUATION and i.name.isdecimal() and not is_damaged[i.index]
        for i in counts.iterations
    ]
    runs = list(_runs(usable))
    n_averaged = sum(i.averaged for i in counts.iterations)
    first, stop = max(runs, key=lambda run: run[1] - run[0], default=(0, 0))
    if stop - first < max(1, _WORTH_A_WINDOW * n_averaged):
        return ""
    names = [counts.iterations[first].name, counts.iterations[stop - 1].name]
    return f"iteration:{names[0]}" if names[0] == names[1] else f"iteration:{'-'.join(names)}"


def _runs(flags: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """Yield the half-open ranges of consecutive true flags."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False])).astype(np.int64)))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
