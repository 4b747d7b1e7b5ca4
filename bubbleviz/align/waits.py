"""Waits: how long each microbatch is away from a stage, measured with its rank's clock.

A microbatch leaves a stage when its F ends, passes all later stages, and is back when its gradient
arrives, which is the input of its B. Waits of consecutive stages therefore nest::

    stage 0   F├────────────── wait ──────────────┤B
    stage 1        F├───────── wait ─────────┤B
    stage 2             F├──── wait ────┤B

A wait is the difference between two times on one rank, so the ranks' clocks need not agree.

1. Collect the forwards and the backwards (``get_pass_keys``). A fused operation is collected as
   both.
2. Match each forward with the backward of the same rank, chunk, microbatch, sequence split and
   iteration (``_match_first_rows``). Passes without a counterpart are left out.
3. The wait lasts from the end of the forward to the arrival of the gradient, or to the start of
   the backward if the arrival is unknown (``measure_waits``).
4. The median over the iterations is the typical wait (``measure_median_waits``).
5. Waits of the same microbatch on consecutive virtual stages are paired
   (``pair_consecutive_stages``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bubbleviz.align.arrivals import Arrivals
from bubbleviz.model.columns import NONE, Ints, Table, join_tables, make_constant, scatter
from bubbleviz.model.grouping import find_run_starts, group_rows, sort_rows, split_by_owner
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import Phase

_BACKWARD = (Phase.B, Phase.BW)


def get_pass_keys(operations: Operations, forward: Ints, backward: Ints) -> tuple[Ints, Ints]:
    """Return the microbatches and chunks of forwards and backwards.

    Each of the two arrays contains the values of all forwards, then the values of all backwards. An
    FB (a fused forward and backward) is the forward of its first microbatch and the backward of its
    second microbatch.

    Args:
        operations: Operations of all ranks.
        forward: Rows that run a forward.
        backward: Rows that run a backward.
    """
    microbatch, chunk = operations.microbatch[backward], operations.chunk[backward]
    fused = np.flatnonzero(operations.phase[backward] == Phase.FB)
    if len(fused):
        microbatch[fused] = operations.second_microbatch[backward[fused]]
        chunk[fused] = operations.second_chunk[backward[fused]]
    return (
        np.concatenate((operations.microbatch[forward], microbatch)),
        np.concatenate((operations.chunk[forward], chunk)),
    )


@dataclass(frozen=True, eq=False, repr=False)
class Waits(Table):
    """How long microbatches are away from a (rank, chunk), with one row per pair of F and B.

    Attributes:
        rank: Index of the rank.
        chunk: Model chunk, as numbered in operation names.
        microbatch: Microbatch number.
        sequence: Sequence split, or -1 if there is none.
        iteration: Iteration, or -1 if the row is a median over iterations and sequence splits.
        left_ns: End of the F, or -1 for a median.
        waited_ns: Time from the end of the F until the gradient arrives, or until the B starts if
            the arrival is unknown.
        forward_ns: How long the F keeps the rank busy, or -1 for a median.
        worked_ns: How long the F and the B keep the rank busy.
    """

    rank: Ints
    chunk: Ints
    microbatch: Ints
    sequence: Ints
    iteration: Ints
    left_ns: Ints
    waited_ns: Ints
    forward_ns: Ints
    worked_ns: Ints


def measure_waits(operations: Operations, inputs: Arrivals) -> Waits:
    """Measure how long each microbatch is away from each (rank, chunk) between its F and its B.

    The wait lasts from the end of the F to the arrival of the gradient, or to the start of the B if
    the arrival is unknown. Only the first occurrence of an operation in an iteration is used, and
    only if it has a device span. A BW is treated as a B, and an FB as the F of its first microbatch
    and the B of its second one. Passes without a counterpart are left out.

    Args:
        operations: Operations of all ranks.
        inputs: Arrival times of all operations' inputs.

    Returns:
        Waits, sorted by rank, chunk, microbatch, sequence and iteration.
    """
    forward, backward = _match_passes(operations)
    # Kernels that run before their operation's input arrives are not counted as work.
    ready_ns = np.maximum(operations.start_ns, inputs.exact_ns)
    forward_ns = _measure_work(operations, ready_ns, forward)
    backward_ns = _measure_work(operations, ready_ns, backward)
    return Waits(
        rank=operations.rank[forward],
        chunk=operations.chunk[forward],
        microbatch=operations.microbatch[forward],
        sequence=operations.sequence[forward],
        iteration=operations.iteration[forward],
        left_ns=operations.end_ns[forward],
        waited_ns=ready_ns[backward] - operations.end_ns[forward],
        forward_ns=forward_ns,
        worked_ns=forward_ns + backward_ns,
    )


def _match_passes(operations: Operations) -> tuple[Ints, Ints]:
    """Match each microbatch's forward and backward on each (rank, chunk) and iteration.

    Repeated operations and operations without a device span are left out. An FB is matched as a
    forward and as a backward (:func:`get_pass_keys`).

    Args:
        operations: Operations of all ranks.

    Returns:
        forward: Row of each forward that has a backward, sorted by rank, chunk, microbatch,
            sequence and iteration.
        backward: Row of the backward that matches each forward.
    """
    is_usable = (operations.has_span == 1) & (operations.occurrence == 0)
    is_forward = mask_phases(operations.phase, (Phase.F, Phase.FB))
    is_backward = mask_phases(operations.phase, (*_BACKWARD, Phase.FB))
    forward = np.flatnonzero(is_usable & is_forward)
    backward = np.flatnonzero(is_usable & is_backward)
    rows = np.concatenate((forward, backward))
    microbatch, chunk = get_pass_keys(operations, forward, backward)
    key = group_rows(
        operations.rank[rows],
        chunk,
        microbatch,
        operations.sequence[rows],
        operations.iteration[rows],
    ).of_row
    forward_index, backward_index = _match_first_rows(key, len(forward))
    return forward[forward_index], backward[backward_index]


def _measure_work(operations: Operations, ready_ns: Ints, rows: Ints) -> Ints:
    """Return how long, in ns, operations keep their rank busy after their input has arrived.

    The result is ``min(busy_ns, end_ns - ready_ns)``, or 0 if that is negative. For an FB, which
    overlaps a forward and a backward, half of this time is returned.

    Args:
        operations: Operations of all ranks.
        ready_ns: Time at which the input of each operation arrived.
        rows: Rows of the operations to measure.
    """
    available_ns = operations.end_ns[rows] - ready_ns[rows]
    busy_ns: Ints = np.clip(available_ns, 0, operations.busy_ns[rows])
    busy_ns[operations.phase[rows] == Phase.FB] //= 2
    return busy_ns


def _match_first_rows(key: Ints, n_first: int) -> tuple[Ints, Ints]:
    """Match each key of one list with the same key of another list.

    If a key repeats within a list, its first occurrence is matched. Keys in only one of the lists
    are left out.

    Args:
        key: The two lists, concatenated. Keys are never negative.
        n_first: Length of the first list.

    Returns:
        first: For each key in both lists, in ascending order of keys, the index of its first
            occurrence in the first list.
        second: For each key in both lists, in the same order, the zero-based index of its first
            occurrence in the second list.
    """
    n_keys = int(key.max(initial=NONE)) + 1
    # Writing the rows in reverse order leaves the first row of each key.
    first, second = (
        scatter(n_keys, keys[::-1], np.arange(len(keys))[::-1])
        for keys in (key[:n_first], key[n_first:])
    )
    is_common = (first >= 0) & (second >= 0)
    return first[is_common], second[is_common]


def measure_median_waits(operations: Operations, inputs: Arrivals) -> Waits:
    """Measure the typical wait of each microbatch on each (rank, chunk).

    The typical wait is the median over iterations and sequence splits (:func:`_reduce_to_medians`).

    Args:
        operations: Operations of all ranks, sorted by rank.
        inputs: Arrival times of all operations' inputs.
    """
    parts = [
        _reduce_to_medians(measure_waits(operations.take(rows), inputs.take(rows)))
        for rows in split_by_owner(operations.rank)
    ]
    return join_tables(parts)


def _reduce_to_medians(waits: Waits) -> Waits:
    """Return the lower median wait of each (rank, chunk, microbatch).

    The medians of ``waited_ns`` and ``worked_ns`` are computed separately. The columns
    ``sequence``, ``iteration``, ``left_ns`` and ``forward_ns`` are -1.

    Args:
        waits: Waits, sorted by rank, chunk and microbatch.
    """
    first = find_run_starts(waits.rank, waits.chunk, waits.microbatch)
    counts = np.diff(first, append=len(waits))
    has_equal_counts = len(first) > 0 and (counts == counts[0]).all()

    def compute_medians(values: Ints) -> Ints:
        """Return the lower median in each group of rows."""
        if has_equal_counts:
            by_group = np.sort(values.reshape(len(first), -1), axis=1)
            return by_group[:, (counts[0] - 1) // 2]
        order = sort_rows(np.repeat(first, counts), values)
        return np.asarray(values[order[first + (counts - 1) // 2]], np.int64)

    unset = make_constant(NONE, len(first))
    return Waits(
        rank=waits.rank[first],
        chunk=waits.chunk[first],
        microbatch=waits.microbatch[first],
        sequence=unset,
        iteration=unset,
        left_ns=unset,
        waited_ns=compute_medians(waits.waited_ns),
        forward_ns=unset,
        worked_ns=compute_medians(waits.worked_ns),
    )


def pair_consecutive_stages(waits: Waits) -> tuple[Ints, Ints]:
    """Pair the waits of each microbatch on a virtual stage and on the next virtual stage.

    The two waits in a pair have the same microbatch, iteration and sequence split. If several ranks
    run a microbatch on the same virtual stage, the first row of that stage is paired.

    Args:
        waits: Waits whose ``chunk`` column contains virtual stages. Negative stages are ignored.

    Returns:
        upper: Row of the wait on the earlier stage.
        lower: Row of the wait on the next stage. If the stages are correct, the lower wait lies
            within the upper wait.
    """
    columns = waits.iteration, waits.microbatch, waits.sequence
    doubled = [np.concatenate((column, column)) for column in columns]
    # The first half contains each row's next stage, and the second half each row's own stage.
    stage = np.concatenate((waits.chunk + 1, waits.chunk))
    upper, lower = _match_first_rows(group_rows(stage, *doubled).of_row, len(waits))
    is_staged = waits.chunk[upper] >= 0
    return upper[is_staged], lower[is_staged]
