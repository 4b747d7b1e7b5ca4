"""Receiving kernels: kernels with unknown names that count as compute but wait for their input.

A receive begins before the input of its operation exists, and ends once the input exists. Compute
kernels that need no input may also begin before the input exists, but then some of them also end
before it exists::

    rank 0   F1 █████████ F2 █████████
    rank 1   F1 ▒▒▒▒▒▒▒▒▒▒████ F2 ▒▒▒▒▒████
                          └ F1 of rank 0 ends, and so does the receive
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.align.arrivals import NEVER
from bubbleviz.align.clocks.offsets import Precedences
from bubbleviz.align.clocks.timebase import build_timebase, find_rank_precedences
from bubbleviz.align.join import JoinedRecordings, apply_clocks
from bubbleviz.align.profile_clocks import GRAIN_NS, ProfileClock, subtract_sessions
from bubbleviz.align.waiting_kernels import (
    convert_kernels,
    describe_waiting,
    group_kernels_by_name,
)
from bubbleviz.interpret.recording import Recording, UnknownKernels
from bubbleviz.model.columns import Ints
from bubbleviz.model.intervals import group_latest
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.operations import Operations

#: Minimum number of receives on a rank, and minimum fraction of early kernels that must be
#: receives. An early kernel begins before the input of its operation exists.
_MIN_RECEIVES, _MIN_RECEIVING = 3, 0.95
#: Minimum share of kernel time that must pass before inputs exist, for the kernels with one name on
#: a rank.
_MIN_WAITED = 0.5
#: Maximum time by which a receive may end before its input exists, as a fraction of its duration.
_EARLY_END_SHARE = 0.02
#: Maximum number of kernel names that are checked.
_MAX_NAMES = 8


def find_receiving_kernels(
    recordings: Sequence[Recording],
    sessions: Sequence[ProfileClock],
    joined_recordings: JoinedRecordings,
) -> Iterator[Limitation]:
    """Yield a limitation for each kernel name that counts as compute but waits for an input.

    Only inputs from ranks on the same machine are considered, because these ranks share a clock.
    Nothing is yielded if iterations are not paired.

    Args:
        recordings: All recordings of a run.
        sessions: For each recording, the clock derived from its session start.
        joined_recordings: The recordings, with stages and iterations. Times are on the clocks in
            ``sessions``.
    """
    kernels_of_name = _list_shared_names(recordings, sessions, joined_recordings.rank_of_recorded)
    if not kernels_of_name or not joined_recordings.paired:
        return
    precedences = find_rank_precedences(joined_recordings)
    machine = joined_recordings.machine_of_rank
    earlier, later = precedences.earlier_clock, precedences.later_clock
    precedences = precedences.take(machine[earlier] == machine[later])
    ready_ns = _find_ready_times(joined_recordings, precedences)
    for name, of_ranks in kernels_of_name.items():
        if _are_receiving(of_ranks, joined_recordings.operations, ready_ns):
            behavior = "starts before the input of its operation is ready and ends once it is"
            yield describe_waiting(name, of_ranks, behavior, "bubbles are too small")


def find_contradicting_kernels(
    recordings: Sequence[Recording],
    captures: Sequence[tuple[int, int]],
    sessions: Sequence[ProfileClock],
    joined_recordings: JoinedRecordings,
) -> Iterator[Limitation]:
    """Yield a limitation for each kernel name whose waiting would explain contradicting clocks.

    An operation that begins with a waiting kernel begins before its input exists, which makes the
    clocks appear to contradict each other. A kernel name is reported if both of the following
    conditions hold:

    - The clocks no longer contradict each other if each operation that begins with a kernel of this
      name is assumed to begin only when the kernel ends.
    - On the resulting clocks, kernels with this name wait for inputs on at least two ranks.

    Args:
        recordings: All recordings of a run.
        captures: First and last time in each profile, on its uncorrected clock.
        sessions: For each recording, the clock derived from its session start.
        joined_recordings: The recordings, with stages and iterations. Times are on the clocks in
            ``sessions``.
    """
    for name, of_ranks in _list_shared_names(
        recordings, sessions, joined_recordings.rank_of_recorded
    ).items():
        start_ns = _move_starts(of_ranks, joined_recordings.operations)
        shortened = replace(
            joined_recordings,
            operations=joined_recordings.operations.replace_columns(start_ns=start_ns),
        )
        time = build_timebase(shortened, sessions, captures, "causal")
        if time.contradicted:
            continue
        corrections = subtract_sessions(time.clocks, sessions)
        aligned = apply_clocks(joined_recordings, corrections)
        ready_ns = _find_ready_times(aligned, find_rank_precedences(aligned))
        on_report = _list_shared_names(recordings, time.clocks, joined_recordings.rank_of_recorded)[
            name
        ]
        if _are_receiving(on_report, aligned.operations, ready_ns):
            behavior = "would explain the contradicting clocks if it waits for other ranks"
            yield describe_waiting(name, of_ranks, behavior, "bubbles may be too small")


def _list_shared_names(
    recordings: Sequence[Recording], clocks: Sequence[ProfileClock], rank_of_recorded: Ints
) -> dict[str, list[UnknownKernels]]:
    """Return the kernels with unknown names that run on several ranks, keyed by name.

    Each value has one element per rank and capture. Only the ``_MAX_NAMES`` names with the most
    kernel time over all ranks are returned, sorted in descending order of this time.

    Args:
        recordings: All recordings of a run.
        clocks: For each recording, the clock to which its times are converted.
        rank_of_recorded: For each rank of each recording, its index in the joined recordings.
    """
    by_name = group_kernels_by_name(convert_kernels(recordings, clocks, rank_of_recorded))
    total_ns = {
        name: sum(of_rank.total_ns for of_rank in of_ranks)
        for name, of_ranks in by_name.items()
        if len({kernels.rank for kernels in of_ranks}) > 1
    }
    longest = sorted(total_ns, key=lambda name: -total_ns[name])[:_MAX_NAMES]
    return {name: by_name[name] for name in longest}


def _find_ready_times(recordings: JoinedRecordings, precedences: Precedences) -> Ints:
    """Return the time from which all inputs of each operation exist, or ``NEVER`` if unknown.

    The inputs exist once all operations that produce them have ended (the latest ``earlier_ns`` of
    the operation's precedences). The time is unknown for operations without precedences, and for
    operations whose input arrived with a recorded receive.

    Args:
        recordings: The recordings, with stages, pipelines and iterations.
        precedences: Data dependencies between ranks on one clock.
    """
    rows = precedences.later_row
    is_used = recordings.arrivals.latest_ns[rows] == NEVER
    before_ns = precedences.earlier_ns[is_used]
    return group_latest(rows[is_used], len(recordings.operations), before_ns, NEVER)


def _move_starts(of_ranks: Sequence[UnknownKernels], operations: Operations) -> Ints:
    """Return the starts of all operations, delayed for operations that begin with a given kernel.

    If an operation and one of the kernels start at exactly the same time, the start of the
    operation is moved to the end of the kernel, but not beyond the end of the operation. All other
    starts are unchanged.

    Args:
        of_ranks: Kernels that all have the same name, one element per rank.
        operations: Operations of all ranks, on the same clock, sorted by rank.
    """
    start_ns = operations.start_ns.copy()
    for kernels in of_ranks:
        rows = _find_rows_of_rank(operations, kernels.rank)
        rows = rows[operations.has_span[rows] == 1]
        kernel = np.searchsorted(kernels.start_ns, operations.start_ns[rows])
        kernel = np.minimum(kernel, len(kernels.start_ns) - 1)
        begins_with = kernels.start_ns[kernel] == operations.start_ns[rows]
        rows, kernel = rows[begins_with], kernel[begins_with]
        start_ns[rows] = np.minimum(kernels.end_ns[kernel], operations.end_ns[rows])
    return start_ns


def _find_rows_of_rank(operations: Operations, rank: int) -> Ints:
    """Return the rows of a rank's operations. The table must be sorted by rank."""
    first, end = np.searchsorted(operations.rank, (rank, rank + 1))
    return np.arange(first, end)


def _are_receiving(
    of_ranks: Sequence[UnknownKernels], operations: Operations, ready_ns: Ints
) -> bool:
    """Return whether kernels with a given name wait for inputs on at least two ranks."""
    return sum(_is_receiving(of_rank, operations, ready_ns) for of_rank in of_ranks) > 1


def _is_receiving(kernels: UnknownKernels, operations: Operations, ready_ns: Ints) -> bool:
    """Return whether a rank's kernels with a given name wait for the inputs of their operations.

    A kernel belongs to the operation that contains its middle. The deadline of a kernel is the time
    at which the input of its operation exists, minus a tolerance of ``_EARLY_END_SHARE`` of the
    kernel's duration, or of ``GRAIN_NS`` if that is larger. A kernel is early if it begins before
    its deadline. An early kernel waits if it ends at or after its deadline. The result is True if
    all of the following conditions hold:

    - At least ``_MIN_RECEIVES`` kernels wait.
    - At least ``_MIN_RECEIVING`` of the early kernels wait.
    - Waiting accounts for at least ``_MIN_WAITED`` of the total duration of all kernels. A wait
      lasts from the kernel's start until its input exists.

    Args:
        kernels: The kernels, with ranks numbered across all recordings.
        operations: Operations of all ranks, on the same clock, sorted by rank.
        ready_ns: Time from which the input of each operation exists, or ``NEVER`` if unknown.
    """
    rows = _find_rows_of_rank(operations, kernels.rank)
    rows = rows[ready_ns[rows] != NEVER]
    rows = rows[np.argsort(operations.start_ns[rows], kind="stable")]
    if not len(rows):
        return False
    middle_ns = (kernels.start_ns + kernels.end_ns) // 2
    row = rows[np.maximum(np.searchsorted(operations.start_ns[rows], middle_ns, "right") - 1, 0)]
    is_inside = (operations.start_ns[row] <= middle_ns) & (middle_ns < operations.end_ns[row])
    length_ns = kernels.end_ns - kernels.start_ns
    tolerance_ns = np.maximum(_EARLY_END_SHARE * length_ns, GRAIN_NS)
    earliest_ns = ready_ns[row] - tolerance_ns
    is_early = is_inside & (kernels.start_ns < earliest_ns)
    is_waiting = is_early & (kernels.end_ns >= earliest_ns)
    waited_ns = int((ready_ns[row] - kernels.start_ns)[is_waiting].sum())
    n_waiting, n_early = int(is_waiting.sum()), int(is_early.sum())
    return (
        n_waiting >= _MIN_RECEIVES
        and n_waiting >= _MIN_RECEIVING * n_early
        and waited_ns >= _MIN_WAITED * int(length_ns.sum())
    )
