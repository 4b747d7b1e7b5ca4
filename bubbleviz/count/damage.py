"""Damage: find the iterations that are affected by lost work or by work with invalid times.

Damage outside the averaged iterations does not change any average.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.align.run import Run
from bubbleviz.count.count import Counts
from bubbleviz.interpret.recording import Recording
from bubbleviz.model.columns import NONE, Bools, Ints, make_mask
from bubbleviz.model.intervals import group_extents
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import COUNTED
from bubbleviz.model.run_kinds import EVALUATION

#: Share of unknown time in an averaged iteration at which a ratio becomes uncertain.
_NOTICEABLE = 0.01
#: Minimum number of iterations in a suggested window, as a share of the averaged iterations.
_MIN_WINDOW_SHARE = 1 / 3
_LEFT_OUT = "; iterations in which ranks may have had nothing to run are left out"
_ELSEWHERE = "; the averaged iterations are not affected"


def locate_damage(
    recordings: Sequence[Recording], run: Run, counts: Counts
) -> tuple[tuple[Limitation, ...], ...]:
    """Update the recordings' limitations according to where the damage is.

    - If all damage reported by a limitation is outside the averaged iterations, the limitation no
      longer restricts the ratios.
    - If averaged iterations are damaged, the limitation suggests the longest window of complete,
      undamaged iterations, provided that the window is long enough.
    - If no iteration is averaged, the limitations are left unchanged.

    Args:
        recordings: One recording per profile, in the order of the run.
        run: The run, merged from these recordings.
        counts: The run's iterations, along with their ratios.

    Returns:
        Limitations of each recording.
    """
    averaged = np.array([i.averaged for i in counts.iterations], bool)
    if not averaged.any():
        return tuple(recording.limitations for recording in recordings)
    located = []
    for profile, recording in enumerate(recordings):
        notes = []
        for note in _explain_idle_ranks(recording, profile, run, counts):
            updated = _update_kind(note, profile, run, averaged)
            notes.append((updated, _find_damaged_iterations(note, profile, run, counts)))
        located.append(notes)
    masks = [mask for notes in located for _, mask in notes if mask is not None]
    window = _choose_undamaged_window(np.logical_or.reduce(masks), counts) if masks else ""

    def add_consequence(note: Limitation, mask: Bools | None, profile: int) -> Limitation:
        is_without_work = note.kind is LimitationKind.OPERATIONS_WITHOUT_WORK
        if is_without_work and _has_possibly_idle_rank(profile, run, counts):
            return replace(note, reason=f"{note.reason}{_LEFT_OUT}")
        return _add_place(note, mask, averaged, window)

    return tuple(
        tuple(add_consequence(note, mask, profile) for note, mask in notes)
        for profile, notes in enumerate(located)
    )


def _update_kind(note: Limitation, profile: int, run: Run, averaged: Bools) -> Limitation:
    """Set the kind of a limitation to ``noticeable_kind`` if it affects any averaged iteration.

    Even a few losses may distort an iteration's ratio if they are all in that iteration. An
    iteration is affected if ``unknown_ns`` accounts for at least ``_NOTICEABLE`` of the total time
    of the profile's ranks in the iteration. A limitation without ``noticeable_kind`` or
    ``unknown_ns`` is returned unchanged.

    Args:
        note: A limitation of any kind.
        profile: Index of the profile to which the limitation belongs.
        run: The run, merged from all its recordings.
        averaged: Mask of the averaged iterations.
    """
    if note.noticeable_kind is None or note.unknown_ns is None:
        return note
    began_ns, ended_ns = (run.clocks[profile].convert(times) for times in note.unknown_ns)
    ranks = run.rank_of_local[profile]
    start_ns, end_ns = _measure_iteration_times(run, ranks)
    is_present = averaged & (end_ns > start_ns)
    start_ns, end_ns = start_ns[is_present], end_ns[is_present]
    unknown_ns = _sum_lengths_before(end_ns, began_ns, ended_ns) - _sum_lengths_before(
        start_ns, began_ns, ended_ns
    )
    is_noticeable = unknown_ns >= _NOTICEABLE * len(ranks) * (end_ns - start_ns)
    return replace(note, kind=note.noticeable_kind) if is_noticeable.any() else note


def _sum_lengths_before(times_ns: Ints, start_ns: Ints, end_ns: Ints) -> Ints:
    """Return the total interval time that lies before each time, summed over all intervals.

    Args:
        times_ns: Times at which the intervals are cut.
        start_ns: Start of each interval. There must be at least one.
        end_ns: End of each interval.

    Returns:
        Total length before each time, with the shape of ``times_ns``. Where ``n`` intervals
        overlap, the overlap counts ``n`` times.
    """
    # Sums of timestamps since the epoch would not fit into 64 bits.
    base_ns = start_ns.min()
    start_ns, end_ns = np.sort(start_ns - base_ns), np.sort(end_ns - base_ns)
    times_ns = np.maximum(times_ns - base_ns, 0)

    def sum_since(bounds_ns: Ints) -> Ints:
        n_before = np.searchsorted(bounds_ns, times_ns)
        sums_ns = np.append(0, np.cumsum(bounds_ns))
        return np.asarray(n_before * times_ns - sums_ns[n_before], np.int64)

    return sum_since(start_ns) - sum_since(end_ns)


def _add_place(
    note: Limitation, is_damaged: Bools | None, averaged: Bools, window: str
) -> Limitation:
    """Add the location of the damage to a limitation's reason.

    - If no averaged iteration is damaged, this is added to the reason, and the kind becomes
      ``COSTS``, which does not restrict the ratios.
    - If any averaged iteration is damaged and ``window`` is not "", the reason suggests ``window``.
    - If ``is_damaged`` is None, the limitation is returned unchanged.

    Args:
        note: A limitation of any kind.
        is_damaged: Mask of the iterations that are damaged according to the limitation, or None if
            unknown.
        averaged: Mask of the averaged iterations.
        window: Undamaged window to suggest, or "" if there is none.
    """
    if is_damaged is None:
        return note
    if not (is_damaged & averaged).any():
        return replace(note, reason=f"{note.reason}{_ELSEWHERE}", kind=LimitationKind.COSTS)
    if not window:
        return note
    reason = f"{note.reason}; to exclude the damaged iterations, pass --window {window}"
    return replace(note, reason=reason, window=window)


def _find_damaged_iterations(
    note: Limitation, profile: int, run: Run, counts: Counts
) -> Bools | None:
    """Return a mask of the iterations that are damaged according to a limitation, or None.

    The mask is determined by the first rule that applies:

    1. If the limitation reports operations without GPU work: the iterations that contain such
       operations.
    2. If it has ``times_ns``: the iterations that contain any of these times.
    3. If it has ``unknown_ns``: the iterations that overlap any of these intervals.

    Otherwise, the damage is unknown, and the result is None.

    Args:
        note: A limitation of any kind.
        profile: Index of the profile to which the limitation belongs.
        run: The run, merged from all its recordings.
        counts: The run's iterations, along with their ratios.
    """
    if note.kind is LimitationKind.OPERATIONS_WITHOUT_WORK:
        rows = _find_operations_without_work(profile, run, counts)
        return make_mask(len(run.iteration_names), run.operations.iteration[rows])
    # A kernel belongs to the iteration that launched it, even if it runs during the next one.
    if note.times_ns is not None:
        damage_ns = note.times_ns, note.times_ns
    elif note.unknown_ns is not None:
        damage_ns = note.unknown_ns
    else:
        return None
    began_ns, ended_ns = (np.sort(run.clocks[profile].convert(times)) for times in damage_ns)
    start_ns, end_ns = _measure_iteration_times(run, run.rank_of_local[profile])
    n_ended_before = np.searchsorted(ended_ns, start_ns)
    n_began = np.searchsorted(began_ns, end_ns, side="right")
    return np.asarray(n_began > n_ended_before, bool)


def _mask_work(run: Run) -> Bools:
    """Return a mask of the ranks that ran an F, B, W, BW or FB, shape (iterations, ranks)."""
    operations = run.operations
    is_work = mask_phases(operations.phase, COUNTED) & (operations.has_span == 1)
    rows = np.flatnonzero(is_work & (operations.iteration >= 0))
    works = np.zeros((len(run.iteration_names), len(run.ranks)), bool)
    works[operations.iteration[rows], operations.rank[rows]] = True
    return works


def _find_operations_without_work(profile: int, run: Run, counts: Counts) -> Ints:
    """Return the rows of a profile's forwards and backwards that have no GPU work.

    The following are left out: operations that the capture cut off, operations outside all
    iterations, and operations of ranks that had nothing to run in the iteration.

    Args:
        profile: Index of the profile.
        run: The run, merged from all its recordings.
        counts: The run's iterations, along with their ratios.
    """
    operations = run.operations
    is_lacking = mask_phases(operations.phase, COUNTED) & (operations.has_span == 0)
    is_lacking &= (operations.cut == 0) & (operations.iteration >= 0)
    is_lacking &= np.isin(operations.rank, run.rank_of_local[profile])
    rows = np.flatnonzero(is_lacking)
    # Ranks that take part in an iteration without running work had nothing to run.
    is_idle = counts.extents.present & ~_mask_work(run)
    return rows[~is_idle[operations.iteration[rows], operations.rank[rows]]]


def _explain_idle_ranks(
    recording: Recording, profile: int, run: Run, counts: Counts
) -> Iterator[Limitation]:
    """Yield a recording's limitations, adding an explanation if ranks simply had nothing to run.

    Operations without GPU work are reported by a limitation. If all of them are on ranks that had
    nothing to run in the iteration, an explanation replaces the limitation's reason, and the
    limitation no longer restricts the ratios. All other limitations are unchanged.

    Args:
        recording: The recording of one profile.
        profile: Index of the profile.
        run: The run, merged from all its recordings.
        counts: The run's iterations, along with their ratios.
    """
    for note in recording.limitations:
        is_of_work = note.kind is LimitationKind.OPERATIONS_WITHOUT_WORK
        if is_of_work and len(_find_operations_without_work(profile, run, counts)) == 0:
            reason = (
                f"{recording.source.path}: their ranks launched nothing in any forward or backward "
                "of the iteration, so the ranks count as idle"
            )
            yield replace(note, reason=reason, kind=LimitationKind.OTHER)
        else:
            yield note


def _has_possibly_idle_rank(profile: int, run: Run, counts: Counts) -> bool:
    """Return whether a rank may have had nothing to run in an iteration that is not averaged.

    Such a rank has forwards or backwards in the iteration, but none of them has GPU work. The rank
    works in both an earlier and a later iteration, so the capture did not cut it off.

    Args:
        profile: Index of the profile with the rank.
        run: The run, merged from all its recordings.
        counts: The run's iterations, along with their ratios.
    """
    rows = _find_operations_without_work(profile, run, counts)
    works = _mask_work(run)
    has_worked = np.logical_or.accumulate(works, axis=0)
    will_work = np.logical_or.accumulate(works[::-1], axis=0)[::-1]
    may_idle = ~works & has_worked & will_work
    is_left_out = np.array([not i.averaged for i in counts.iterations], bool)
    iteration = run.operations.iteration[rows]
    return bool((may_idle[iteration, run.operations.rank[rows]] & is_left_out[iteration]).any())


def _measure_iteration_times(run: Run, ranks: Ints) -> tuple[Ints, Ints]:
    """Return when each iteration starts and ends on the hosts and GPUs of some ranks.

    An iteration starts with the first host start of its operations. An iteration ends with the last
    end of its operations, or with the start of the next iteration if that is later, because the
    ratio ``period`` includes work between iterations. For an iteration without operations on these
    ranks, the end is before the start.

    Args:
        run: The run, merged from all its recordings.
        ranks: Indices of the ranks whose operations are used.
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


def _choose_undamaged_window(is_damaged: Bools, counts: Counts) -> str:
    """Return the longest window of complete iterations without damage, as text for ``--window``.

    An example is ``iteration:3-7``. If several windows are tied for longest, the first one is
    returned. A window must not contain evaluations or iterations whose name is not a number,
    because ``--window`` takes numbers. The result is "" if there is no window, or if the longest
    one has fewer iterations than ``_MIN_WINDOW_SHARE`` times the number of averaged iterations.

    Args:
        is_damaged: Mask of the damaged iterations.
        counts: The run's iterations, along with their ratios.
    """
    usable = [
        i.complete and i.kind != EVALUATION and i.name.isdecimal() and not is_damaged[i.index]
        for i in counts.iterations
    ]
    ranges = list(_find_true_ranges(usable))
    n_averaged = sum(i.averaged for i in counts.iterations)
    first, stop = max(ranges, key=lambda bounds: bounds[1] - bounds[0], default=(0, 0))
    if stop - first < max(1, _MIN_WINDOW_SHARE * n_averaged):
        return ""
    names = [counts.iterations[first].name, counts.iterations[stop - 1].name]
    return f"iteration:{names[0]}" if names[0] == names[1] else f"iteration:{'-'.join(names)}"


def _find_true_ranges(flags: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """Yield the half-open ranges (first, stop) of consecutive True flags, in ascending order."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False])).astype(np.int64)))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
