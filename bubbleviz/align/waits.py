"""Waits: the time that every microbatch is away from a stage, on the clock of its rank."""

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


def forward_and_backward(
    operations: Operations, forward: Ints, backward: Ints
) -> tuple[Ints, Ints]:
    """Return (microbatch, chunk) that the rows run forward, then those that they run backward.

    An FB is the forward of its first microbatch and the backward of its second.
    """
    microbatch, chunk = operations.microbatch[backward], operations.chunk[backward]
    both = np.flatnonzero(operations.phase[backward] == Phase.FB)
    if len(both):
        microbatch[both] = operations.second_microbatch[backward[both]]
        chunk[both] = operations.second_chunk[backward[both]]
    return (
        np.concatenate((operations.microbatch[forward], microbatch)),
        np.concatenate((operations.chunk[forward], chunk)),
    )


@dataclass(frozen=True, eq=False, repr=False)
class Waits(Table):
    """How long a microbatch is away from a (rank, chunk).

    Attributes:
        rank: the rank.
        chunk: model chunk, as named.
        microbatch: the microbatch.
        sequence: sequence split; -1 none.
        iteration: the rank's own iteration; -1 where it is a median over these (and splits).
        left_ns: end of its F; -1 for a median.
        waited_ns: from then until its gradient is there, else to the start of its B.
        forward_ns: how long its F keeps the rank busy; -1 for a median.
        worked_ns: how long its F and B do.
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


def waits(operations: Operations, inputs: Arrivals) -> Waits:
    """Return the waits of all first occurrences with a device span.

    Args:
        operations: of all ranks.
        inputs: when their inputs were there; else that is taken for the start of a span.
    """
    usable = (operations.has_span == 1) & (operations.occurrence == 0)
    forward = np.flatnonzero(usable & mask_phases(operations.phase, (Phase.F, Phase.FB)))
    backward = np.flatnonzero(usable & mask_phases(operations.phase, (*_BACKWARD, Phase.FB)))
    both = np.concatenate((forward, backward))
    microbatch, chunk = forward_and_backward(operations, forward, backward)
    key = (
        operations.rank[both],
        chunk,
        microbatch,
        operations.sequence[both],
        operations.iteration[both],
    )
    at_forward, at_backward = _first_pairs(group_rows(*key).of_row, len(forward))
    forward, backward = forward[at_forward], backward[at_backward]
    # Kernels of a span before its input arrives are neither waiting nor work on it.
    ready_ns = np.maximum(operations.start_ns, inputs.exact_ns)
    forward_ns, _ = _worked(operations, ready_ns, forward)
    backward_ns, returned_ns = _worked(operations, ready_ns, backward)
    rank, chunk, microbatch, sequence, iteration = (column[at_forward] for column in key)
    return Waits(
        rank=rank,
        chunk=chunk,
        microbatch=microbatch,
        sequence=sequence,
        iteration=iteration,
        left_ns=operations.end_ns[forward],
        waited_ns=returned_ns - operations.end_ns[forward],
        forward_ns=forward_ns,
        worked_ns=forward_ns + backward_ns,
    )


def _worked(operations: Operations, ready_ns: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """Return how long operations keep their rank busy once their input is there, and when it is.

    Of an operation that overlaps a forward and a backward, half is one of them.
    """
    ready_ns = ready_ns[rows]
    busy_ns = np.clip(operations.end_ns[rows] - ready_ns, 0, operations.busy_ns[rows])
    busy_ns[operations.phase[rows] == Phase.FB] //= 2
    return busy_ns, ready_ns


def _first_pairs(number: Ints, count: int) -> tuple[Ints, Ints]:
    """Return the first row of each number among the first rows, and among the others.

    Args:
        number: of each row.
        count: of the first rows.
    """
    numbers = int(number.max(initial=NONE)) + 1
    firsts = []
    for rows in (number[:count], number[count:]):
        # Of rows with one number the last that is written stays: the first.
        firsts.append(scatter(numbers, rows[::-1], np.arange(len(rows))[::-1]))
    common = (firsts[0] >= 0) & (firsts[1] >= 0)
    return firsts[0][common], firsts[1][common]


def usual_waits(operations: Operations, inputs: Arrivals) -> Waits:
    """Return the median wait of every microbatch of each (rank, chunk).

    Args:
        operations: of all ranks, in order of these.
        inputs: when their inputs were there.
    """
    return join_tables(
        [
            _medians(waits(operations.take(rows), inputs.take(rows)))
            for rows in split_by_owner(operations.rank)
        ]
    )


def _medians(every: Waits) -> Waits:
    """Return the medians of waits, which are in order of rank, chunk and microbatch."""
    first = find_run_starts(every.rank, every.chunk, every.microbatch)
    counts = np.diff(first, append=len(every))
    alike = len(first) > 0 and (counts == counts[0]).all()

    def medians(values: Ints) -> Ints:
        """Return the lower median of each group's values."""
        if alike:
            by_group = np.sort(values.reshape(len(first), -1), axis=1)
            return by_group[:, (counts[0] - 1) // 2]
        order = sort_rows(np.repeat(first, counts), values)
        return np.asarray(values[order[first + (counts - 1) // 2]], np.int64)

    none = make_constant(NONE, len(first))
    return Waits(
        rank=every.rank[first],
        chunk=every.chunk[first],
        microbatch=every.microbatch[first],
        sequence=none,
        iteration=none,
        left_ns=none,
        waited_ns=medians(every.waited_ns),
        forward_ns=none,
        worked_ns=medians(every.worked_ns),
    )


def held_waits(every: Waits) -> tuple[Ints, Ints]:
    """Return rows of waits, and those that they hold: of the same microbatch one stage on.

    That is, of the same sequence split and iteration, too; ``chunk`` is the virtual stage.
    """
    names = every.iteration, every.microbatch, every.sequence
    twice = [np.concatenate((column, column)) for column in names]
    number = group_rows(np.concatenate((every.chunk + 1, every.chunk)), *twice).of_row
    upper, lower = _first_pairs(number, len(every))
    known = every.chunk[upper] >= 0
    return upper[known], lower[known]
