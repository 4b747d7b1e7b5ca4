"""Histories: all ranks' iteration times as arrays, to compare rank pairs at many shifts at once.

The number of columns in every array is the largest number of iterations on any rank. Shorter rows
are padded with NaN. Under *shift* s, iteration i of the first rank is paired with iteration i - s
of the second::

    first rank     0    1    2    3
    shift 0        0    1    2    3      iterations of the second rank
    shift 1             0    1    2
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bubbleviz.align.arrivals import NEVER
from bubbleviz.model import grouping
from bubbleviz.model.columns import NONE, Bools, Floats, Ints, Table
from bubbleviz.model.intervals import group_extents, group_sum
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import CHAINED, Phase

#: Maximum number of events that are compared per iteration, sampled evenly from all events.
_MAX_EVENTS = 64
#: Maximum number of array elements computed at once.
_MAX_CELLS = 1 << 19


@dataclass(frozen=True, eq=False, repr=False)
class PassedOn(Table):
    """Forwards and backwards of all ranks that pass a microbatch on to another rank.

    A row is an event that repeats in every iteration: a combination of rank, chunk, microbatch and
    direction. Rows are sorted by rank.
    """

    rank: Ints
    chunk: Ints
    microbatch: Ints
    is_backward: Ints
    virtual_stage: Ints


@dataclass(frozen=True)
class Histories:
    """Iteration times of all ranks.

    Attributes:
        start_ns: Start of each iteration, shape (ranks, iterations).
        optimizer_ns: Start of the Optimizer in each iteration, shape (ranks, iterations). NaN if
            the iteration has no Optimizer.
        shapes: Code that represents the F and B counts in each iteration, shape (ranks,
            iterations). NaN for a rank's first and last iterations, which the capture may have cut.
        length_ns: Mean iteration duration of each rank, shape (ranks,).
        recorded_ns: For each rank, the times of the first and the last kernel or call in its
            profile.
        passed_on: The events: F and B operations whose times are compared between ranks.
        ready_ns: Time at which the input of each event was available, shape (len(passed_on) + 1,
            iterations). The last row is NaN so that row -1 means no event.
        end_ns: End of each event, same shape as ``ready_ns``.
    """

    start_ns: Floats
    optimizer_ns: Floats
    shapes: Floats
    length_ns: Floats
    recorded_ns: tuple[Ints, Ints]
    passed_on: PassedOn
    ready_ns: Floats
    end_ns: Floats

    @property
    def counts(self) -> Ints:
        """Number of iterations on each rank."""
        return np.asarray(np.count_nonzero(~np.isnan(self.start_ns), axis=1), np.int64)


def build_histories(
    operations: Operations, ready_ns: Ints, recorded_ns: tuple[Ints, Ints]
) -> Histories:
    """Build the iteration times for all ranks.

    Only operations with a device span that belong to an iteration are used. The events are chosen
    by :func:`_select_events`. If an iteration contains no span, its start is the start of the next
    iteration that contains one.

    Args:
        operations: Operations of all ranks, with their virtual stages.
        ready_ns: Time at which the input of each operation was available, or ``NEVER`` if unknown.
        recorded_ns: For each rank, the times of the first and the last kernel or call in its
            profile.
    """
    spanned = np.flatnonzero((operations.has_span == 1) & (operations.iteration >= 0))
    shape = len(recorded_ns[0]), int(operations.iteration[spanned].max(initial=NONE)) + 1
    # An iteration without any span gets the start of the next iteration with a span.
    start_ns = _find_first_starts(operations, spanned, shape)
    start_ns = np.minimum.accumulate(start_ns[:, ::-1], axis=1)[:, ::-1]
    is_optimizer = operations.phase[spanned] == Phase.OPTIMIZER
    optimizer_ns = _find_first_starts(operations, spanned[is_optimizer], shape)
    first_ns, last_ns = group_extents(
        operations.rank[spanned], shape[0], operations.start_ns[spanned], operations.end_ns[spanned]
    )
    counts = np.count_nonzero(np.isfinite(start_ns), axis=1)
    rows = _select_events(operations, spanned)
    passed_on, ready, end = _collect_events(operations, rows, ready_ns, shape[1])
    return Histories(
        start_ns=np.where(np.isinf(start_ns), np.nan, start_ns),
        optimizer_ns=np.where(np.isinf(optimizer_ns), np.nan, optimizer_ns),
        shapes=_encode_shapes(operations, rows, counts, shape),
        length_ns=(last_ns - first_ns) / np.maximum(counts, 1),
        recorded_ns=recorded_ns,
        passed_on=passed_on,
        ready_ns=ready,
        end_ns=end,
    )


def _select_events(operations: Operations, rows: Ints) -> Ints:
    """Select the complete, unrepeated F, B and BW operations whose virtual stage is known.

    Args:
        operations: Operations of all ranks, with their virtual stages.
        rows: Rows to select from.
    """
    passes_on = mask_phases(operations.phase[rows], CHAINED) & (operations.occurrence[rows] == 0)
    is_complete = (operations.cut[rows] == 0) & (operations.virtual_stage[rows] >= 0)
    return np.asarray(rows[passes_on & is_complete], np.int64)


def _find_first_starts(operations: Operations, rows: Ints, shape: tuple[int, int]) -> Floats:
    """Return the earliest start of the given rows for each rank and iteration.

    The result has the given shape (ranks, iterations). The start is infinite if the iteration
    contains none of the rows.
    """
    cell = operations.rank[rows] * shape[1] + operations.iteration[rows]
    starts_ns = operations.start_ns[rows]
    first_ns, last_ns = group_extents(cell, shape[0] * shape[1], starts_ns, starts_ns)
    return np.where(first_ns > last_ns, np.inf, first_ns).reshape(shape)


def _encode_shapes(
    operations: Operations, rows: Ints, counts: Ints, shape: tuple[int, int]
) -> Floats:
    """Encode the forward and backward counts in each iteration as a single number.

    Args:
        operations: Operations of all ranks.
        rows: Rows of the F and B operations to count.
        counts: Number of iterations on each rank.
        shape: Number of ranks and maximum number of iterations.

    Returns:
        Code of each iteration on each rank, shape (ranks, iterations). Iterations with equal
        forward and backward counts have the same code. The code is NaN for a rank's first and last
        iterations, which the capture may have cut, and after the last iteration.
    """
    cell = operations.rank[rows] * shape[1] + operations.iteration[rows]
    is_backward = (operations.phase[rows] != Phase.F).astype(np.int64)
    codes = group_sum(cell, shape[0] * shape[1], 1 + (is_backward << 20)).reshape(shape)
    iteration = np.arange(shape[1])
    is_edge = (iteration == 0) | (iteration >= counts[:, None] - 1)
    return np.where(is_edge, np.nan, codes)


def _collect_events(
    operations: Operations, rows: Ints, ready_ns: Ints, n_iterations: int
) -> tuple[PassedOn, Floats, Floats]:
    """Arrange the times of forwards and backwards by event and iteration.

    An event is a combination of rank, chunk, microbatch and direction that repeats in every
    iteration. If an event occurs several times in an iteration, the times of its last row are used.

    Args:
        operations: Operations of all ranks.
        rows: Rows of the F and B operations.
        ready_ns: Time at which the input of each operation was available, or ``NEVER`` if unknown.
        n_iterations: Number of iterations.

    Returns:
        passed_on: The events, sorted by rank.
        ready: Time at which the input of each event was available, shape
            (events + 1, iterations). NaN if unknown. The last row is NaN.
        end: End of each event, with the same shape as ``ready``. Its last row is also NaN.
    """
    iteration = operations.iteration[rows]
    is_backward = (operations.phase[rows] != Phase.F).astype(np.int64)
    events = grouping.group_rows(
        operations.rank[rows], operations.chunk[rows], operations.microbatch[rows], is_backward
    )
    ready, end = np.full((2, len(events) + 1, n_iterations), np.nan)
    has_ready = ready_ns[rows] != NEVER
    ready[events.of_row[has_ready], iteration[has_ready]] = ready_ns[rows[has_ready]]
    end[events.of_row, iteration] = operations.end_ns[rows]
    first = rows[events.first]
    passed_on = PassedOn(
        rank=operations.rank[first],
        chunk=operations.chunk[first],
        microbatch=operations.microbatch[first],
        is_backward=is_backward[events.first],
        virtual_stage=operations.virtual_stage[first],
    )
    return passed_on, ready, end


@dataclass(frozen=True)
class CommonEvents:
    """Events in which one rank of a pair waits for the other, shape (pairs, iterations, events).

    Rank a is the first rank of a pair, and rank b is the second. In each event, the leading rank
    passes a microbatch to the waiting rank. The leading rank ends its operation before the input of
    the waiting rank is available, which bounds the difference between the two clocks.

    Attributes:
        a_ns: Time of the event on rank a: the end of its operation if rank a leads, or else the
            time at which its input was available. NaN if unknown.
        b_ns: Time of the event on rank b, defined in the same way. Includes the correction given to
            :func:`list_batches`.
        a_end_ns: End of the operation on rank a.
        b_end_ns: End of the operation on rank b.
        a_leads: Mask of the events in which rank b waits for rank a, shape (pairs, events).
    """

    a_ns: Floats
    b_ns: Floats
    a_end_ns: Floats
    b_end_ns: Floats
    a_leads: Bools

    def take(self, pairs: Ints) -> CommonEvents:
        """Return the events of the given pairs."""
        return CommonEvents(*(column[pairs] for column in vars(self).values()))

    def bounds(self, shifts: Ints) -> tuple[Floats, Floats]:
        """Return the lower and upper bounds on rank b's clock correction in each iteration.

        Both bounds have shape (pairs, shifts, iterations). A bound is infinite if no event
        determines it.
        """
        return self._compute_bounds(self.a_ns, self.b_ns, shifts)

    def compute_loose_bounds(self, shifts: Ints) -> tuple[Floats, Floats]:
        """Return the tightest bounds on b's correction over all iterations, using only end times.

        Bounds from end times are valid even if a span begins with kernels that need no input. The
        lower and the upper bound both have shape (pairs, shifts). A bound is infinite if no event
        determines it.
        """
        lower, upper = self._compute_bounds(self.a_end_ns, self.b_end_ns, shifts)
        return lower.max(axis=2, initial=-np.inf), upper.min(axis=2, initial=np.inf)

    def _compute_bounds(self, a_ns: Floats, b_ns: Floats, shifts: Ints) -> tuple[Floats, Floats]:
        """Return the tightest lower and upper bounds from all events in each iteration.

        ``a_ns - b_ns`` is a lower bound in events in which rank a leads, and an upper bound in all
        other events. Both bounds have shape (pairs, shifts, iterations). A bound is infinite if no
        event determines it. Shifts are processed in batches to limit memory use.

        Args:
            a_ns: Time of each event on rank a, shape (pairs, iterations, events).
            b_ns: Time of each event on rank b, same shape as ``a_ns``.
            shifts: Candidate shifts, shape (shifts,).
        """
        shape = len(a_ns), len(shifts), a_ns.shape[1]
        lower, upper = np.full(shape, -np.inf), np.full(shape, np.inf)
        a_leads = self.a_leads[:, None, None]
        batch_size = max(1, _MAX_CELLS // max(a_ns.size, 1))
        for first in range(0, len(shifts), batch_size):
            batch = slice(first, first + batch_size)
            difference_ns = a_ns[:, None] - shift_values(b_ns, shifts[batch])
            is_known = ~np.isnan(difference_ns)
            lower_ns = np.where(is_known & a_leads, difference_ns, -np.inf)
            upper_ns = np.where(is_known & ~a_leads, difference_ns, np.inf)
            lower[:, batch] = lower_ns.max(axis=3, initial=-np.inf)
            upper[:, batch] = upper_ns.min(axis=3, initial=np.inf)
        return lower, upper


def shift_values(values: Floats, shifts: Ints) -> Floats:
    """Shift values along the iteration axis by each of several shifts.

    Args:
        values: One value per iteration, shape (pairs, iterations, ...).
        shifts: Numbers of iterations to shift by. Positive shifts move values to later iterations.

    Returns:
        Shifted values, shape (pairs, shifts, iterations, ...). For shift s, entry i is value i - s,
        or NaN if that value does not exist.
    """
    n_iterations = values.shape[1]
    source = np.arange(n_iterations) - shifts[:, None]
    exists = (source >= 0) & (source < n_iterations)
    exists = exists.reshape(*exists.shape, *[1] * (values.ndim - 2))
    return np.where(exists, values[:, np.clip(source, 0, n_iterations - 1)], np.nan)


def list_batches(
    histories: Histories, first: Ints, second: Ints, by_ns: Ints, is_replica: Bools
) -> Iterator[tuple[Ints, CommonEvents | None]]:
    """Yield the rank pairs in batches that fit in memory, along with their common events.

    A batch contains either only replica pairs or only pairs that pass microbatches to each other.
    Batches of replicas come last.

    Args:
        histories: Iteration times of all ranks.
        first: First rank in each pair.
        second: Second rank in each pair.
        by_ns: For each pair, the correction in ns to add to the second rank's clock.
        is_replica: Mask of the replica pairs.

    Yields:
        pairs: Indices of the pairs in the batch.
        events: Common events of these pairs, or None if they are replicas.
    """
    n_iterations = histories.start_ns.shape[1]
    ranks = np.arange(len(histories.start_ns) + 1)
    event_start = np.searchsorted(histories.passed_on.rank, ranks)
    max_events = int(np.diff(event_start).max(initial=0))
    for replicas in (False, True):
        pairs = np.flatnonzero(is_replica == replicas)
        n_columns = 4 * n_iterations if replicas else 4 * n_iterations + max_events
        batch_size = max(1, _MAX_CELLS // max(n_iterations * n_columns, 1))
        for low in range(0, len(pairs), batch_size):
            batch = pairs[low : low + batch_size]
            if replicas:
                yield batch, None
            else:
                a, b = first[batch], second[batch]
                yield batch, _find_common_events(histories, event_start, a, b, by_ns[batch])


def _find_common_events(
    histories: Histories, event_start: Ints, first: Ints, second: Ints, by_ns: Ints
) -> CommonEvents:
    """Find each rank pair's common events, which have the same chunk, microbatch and direction.

    In forwards, the rank on the smaller virtual stage leads. In backwards, the rank on the larger
    virtual stage leads.

    Args:
        histories: Iteration times of all ranks.
        event_start: Row of the first event of each rank in ``histories.passed_on``, followed by the
            number of events.
        first: First rank in each pair.
        second: Second rank in each pair.
        by_ns: For each pair, the correction in ns to add to the second rank's clock.
    """
    table = histories.passed_on
    rows = _choose_events(table, event_start, first, second)
    virtual_stage = np.append(table.virtual_stage, NONE)[rows]
    is_forward = np.append(table.is_backward, 0)[rows[0]] == 0
    a_leads = is_forward == (virtual_stage[0] < virtual_stage[1])
    a_ready, b_ready = histories.ready_ns[rows].swapaxes(2, 3)
    a_end, b_end = histories.end_ns[rows].swapaxes(2, 3)
    b_ready, b_end = b_ready + by_ns[:, None, None], b_end + by_ns[:, None, None]
    a_ns = np.where(a_leads[:, None], a_end, a_ready)
    b_ns = np.where(a_leads[:, None], b_ready, b_end)
    return CommonEvents(a_ns, b_ns, a_end, b_end, a_leads)


def _choose_events(table: PassedOn, event_start: Ints, first: Ints, second: Ints) -> Ints:
    """Choose up to ``_MAX_EVENTS`` common events for each pair, sampled evenly.

    Args:
        table: Events of all ranks.
        event_start: Row of the first event of each rank in ``table``, followed by the number of
            events.
        first: First rank in each pair.
        second: Second rank in each pair.

    Returns:
        Row in ``table`` of each event on the first and the second rank, shape (2, pairs, events).
        Pairs with fewer events are padded with ``len(table)``.
    """
    pair, a_row, b_row = _match_events(table, event_start, first, second)
    n_common = np.bincount(pair, minlength=len(first))
    n_sampled = np.minimum(n_common, _MAX_EVENTS)
    owner, column = grouping.expand_ranges(np.zeros_like(n_sampled), n_sampled)
    first_common = (np.cumsum(n_common) - n_common)[owner]
    sampled = first_common + column * n_common[owner] // np.maximum(n_sampled, 1)[owner]
    rows = np.full((2, len(first), int(n_sampled.max(initial=0))), len(table), np.int64)
    rows[:, owner, column] = a_row[sampled], b_row[sampled]
    return rows


def _match_events(
    table: PassedOn, event_start: Ints, first: Ints, second: Ints
) -> tuple[Ints, Ints, Ints]:
    """Match the events of the two ranks in each pair by chunk, microbatch and direction.

    Args:
        table: Events of all ranks.
        event_start: Row of the first event of each rank in the table, followed by the number of
            events.
        first: First rank in each pair.
        second: Second rank in each pair.

    Returns:
        pair: Index of the rank pair of each match, in ascending order.
        a_row: Row in ``table`` of the event on the first rank.
        b_row: Row in ``table`` of the event on the second rank.
    """
    pair, a_row = grouping.expand_ranges(event_start[first], event_start[first + 1])
    keys = table.rank, table.chunk, table.microbatch, table.is_backward
    keys_of_b = second[pair], *(column[a_row] for column in keys[1:])
    b_row = grouping.lookup_values(keys, np.arange(len(table)), keys_of_b)
    common = np.flatnonzero(b_row >= 0)
    return pair[common], a_row[common], b_row[common]
