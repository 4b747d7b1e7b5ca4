"""Waits: how long every microbatch is away from a stage, on the clock of its rank alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bubbleviz.model.columns import NONE, Bools, Ints, Table, constant, joined, marked, scattered
from bubbleviz.model.grouping import groups_of, heads, sorted_rows, stretches
from bubbleviz.model.intervals import Packing, group_extents
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import PASSED_ON, TRANSFERS, Phase

# Arrivals: when the input of an operation was ready, as far as its receives show.
#
# A span may begin with kernels that need no input (recompute, memcpy): then the end of the receive
# shows when the input was ready, and not the start of the span::
#
#     RECV_F3  ├▒▒▒▒▒▒▒▒▒▒──┤             launched before F3, or inside its range
#     F3           ├██ waits ├████████┤
#                           arrival
#
# Transfers find their operation by the order in which the host launched them, for a receive may be
# launched long before the iteration of its operation begins.


#: No time at all.
NEVER = np.iinfo(np.int64).min


@dataclass(frozen=True, eq=False, repr=False)
class Arrivals(Table):
    """One row an operation; only those of F, B and BW have arrivals.

    Attributes:
        exact_ns: end of its own receives: the one of its name, and those inside its ranges;
            ``NEVER`` where none is seen.
        latest_ns: the same, or the latest end of all receives without a microbatch that the host
            launched before it.
        receives: whether any receive is seen on its rank, of its direction.
        receive: row of the receive of its name; -1 none.
        send: row of the send of its name; -1 none.
    """

    exact_ns: Ints
    latest_ns: Ints
    receives: Bools
    receive: Ints
    send: Ints


def arrivals(operations: Operations) -> Arrivals:
    """Return when the inputs of operations were there."""
    count = len(operations)
    exact = np.where(operations.received_ns == NONE, NEVER, operations.received_ns)
    if not among(operations.phase, TRANSFERS).any() and (exact == NEVER).all():
        none, never = constant(NONE, count), constant(NEVER, count)
        return Arrivals(never, never, np.zeros(count, bool), none, none)
    rows = np.flatnonzero(among(operations.phase, PASSED_ON))
    forward = operations.phase[rows] == Phase.F
    receive = _named(operations, (Phase.RECV_F, Phase.RECV_B), -1)
    named = (receive >= 0) & (np.append(operations.has_span, 0)[receive] == 1)
    exact[named] = np.maximum(exact[named], operations.end_ns[receive[named]])
    latest, seen = exact.copy(), np.zeros(count, bool)
    ranks = int(operations.rank.max(initial=NONE)) + 1
    for consumers, phase in ((rows[forward], Phase.RECV_F), (rows[~forward], Phase.RECV_B)):
        unnamed = consumers[~named[consumers]]
        latest[unnamed] = np.maximum(latest[unnamed], _latest(operations, unnamed, phase))
        receives = marked(ranks, operations.rank[among(operations.phase, (phase, Phase.SEND_RECV))])
        receives[operations.rank[consumers[operations.received_ns[consumers] != NONE]]] = True
        seen[consumers] = receives[operations.rank[consumers]]
    return Arrivals(exact, latest, seen, receive, sends(operations))


def sends(operations: Operations) -> Ints:
    """Return the row of the send of the name of each operation; -1 none."""
    return _named(operations, (Phase.SEND_F, Phase.SEND_B), 1)


def _named(operations: Operations, phases: tuple[Phase, Phase], side: int) -> Ints:
    """Return the row of the transfer with the key of each F, B and BW; -1 for none.

    Its phase is the first one for F, and the other for what goes backward. It is the last one that
    was launched before the operation ended on the host (``side`` -1), or the first one after it
    started (1), unless another operation of that key lies between.
    """
    found = np.full(len(operations), NONE, np.int64)
    transfers = np.flatnonzero(among(operations.phase, phases) & (operations.microbatch >= 0))
    if len(transfers) == 0:
        return found
    rows = np.flatnonzero(among(operations.phase, PASSED_ON))
    phase = np.where(operations.phase[rows] == Phase.F, *phases)
    both = np.concatenate((transfers, rows))
    group = groups_of(
        operations.rank[both],
        np.concatenate((operations.phase[transfers], phase)),
        operations.microbatch[both],
        operations.chunk[both],
        operations.sequence[both],
    ).of_row
    host_ns = operations.host_end_ns if side < 0 else operations.host_start_ns
    time_ns = np.concatenate((operations.host_start_ns[transfers], host_ns[rows])) * -side
    is_row = np.arange(len(both)) >= len(transfers)
    # Transfers and operations of one key in the order in which an operation looks for them.
    order = sorted_rows(group, time_ns, is_row)
    key, searches = group[order], is_row[order]
    after = 1 + np.flatnonzero((key[1:] == key[:-1]) & searches[1:] & ~searches[:-1])
    found[both[order[after]]] = both[order[after - 1]]
    return found


def _latest(operations: Operations, waiting: Ints, phase: Phase) -> Ints:
    """Return the latest end of what a rank may have received for each of these operations.

    That is every transfer of no single microbatch, launched before it. ``NEVER`` for none.
    """
    receives = np.flatnonzero(
        ((operations.phase == phase) & (operations.microbatch < 0) & (operations.has_span == 1))
        | ((operations.phase == Phase.SEND_RECV) & (operations.has_span == 1))
    )
    if len(receives) == 0 or len(waiting) == 0:
        return np.full(len(waiting), NEVER)
    rank, waiting_rank = operations.rank[receives], operations.rank[waiting]
    ranks = int(max(rank.max(initial=NONE), waiting_rank.max(initial=NONE))) + 1
    end_ns = operations.end_ns[receives]
    low_ns, high_ns = group_extents(rank, ranks, end_ns, end_ns)
    packing = Packing.of(low_ns, np.maximum(low_ns, high_ns))
    # On a line what another rank received before lies before all that this one did.
    placed_ns = np.concatenate((packing.place(rank, end_ns), np.full(len(waiting), NONE)))
    launched_ns = operations.host_start_ns[np.concatenate((receives, waiting))]
    waits = np.arange(len(placed_ns)) >= len(receives)
    order = sorted_rows(np.concatenate((rank, waiting_rank)), launched_ns, waits)
    latest_ns = np.empty_like(placed_ns)
    latest_ns[order] = np.maximum.accumulate(placed_ns[order])
    latest_ns = latest_ns[len(receives) :]
    some = latest_ns >= packing.offset_ns[waiting_rank]
    return np.where(some, latest_ns - packing.shift_ns[waiting_rank], NEVER)


def inputs_ready(operations: Operations, inputs: Arrivals) -> Ints:
    """Return when the input of each operation was there at the latest, ``NEVER`` where unknown.

    A span that begins after its receive, or on a rank without any, begins when its input is there.

    Args:
        operations: of all ranks.
        inputs: when their inputs were there.
    """
    if (inputs.latest_ns == NEVER).all() and not inputs.receives.any():
        return operations.start_ns
    ready_ns = np.maximum(operations.start_ns, inputs.latest_ns)
    return np.where((inputs.latest_ns != NEVER) | ~inputs.receives, ready_ns, NEVER)


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
    forward = np.flatnonzero(usable & among(operations.phase, (Phase.F, Phase.FB)))
    backward = np.flatnonzero(usable & among(operations.phase, (*_BACKWARD, Phase.FB)))
    both = np.concatenate((forward, backward))
    microbatch, chunk = forward_and_backward(operations, forward, backward)
    key = (
        operations.rank[both],
        chunk,
        microbatch,
        operations.sequence[both],
        operations.iteration[both],
    )
    at_forward, at_backward = _first_pairs(groups_of(*key).of_row, len(forward))
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
        firsts.append(scattered(numbers, rows[::-1], np.arange(len(rows))[::-1]))
    common = (firsts[0] >= 0) & (firsts[1] >= 0)
    return firsts[0][common], firsts[1][common]


def usual_waits(operations: Operations, inputs: Arrivals) -> Waits:
    """Return the median wait of every microbatch of each (rank, chunk).

    Args:
        operations: of all ranks, in order of these.
        inputs: when their inputs were there.
    """
    return joined(
        [
            _medians(waits(operations.take(rows), inputs.take(rows)))
            for rows in stretches(operations.rank)
        ]
    )


def _medians(every: Waits) -> Waits:
    """Return the medians of waits, which are in order of rank, chunk and microbatch."""
    first = heads(every.rank, every.chunk, every.microbatch)
    counts = np.diff(first, append=len(every))
    alike = len(first) > 0 and (counts == counts[0]).all()

    def medians(values: Ints) -> Ints:
        """Return the lower median of each group's values."""
        if alike:
            return np.sort(values.reshape(len(first), -1), axis=1)[:, (counts[0] - 1) // 2]
        order = sorted_rows(np.repeat(first, counts), values)
        return np.asarray(values[order[first + (counts - 1) // 2]], np.int64)

    none = constant(NONE, len(first))
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
    number = groups_of(
        np.concatenate((every.chunk + 1, every.chunk)),
        *(np.concatenate((c, c)) for c in (every.iteration, every.microbatch, every.sequence)),
    ).of_row
    upper, lower = _first_pairs(number, len(every))
    known = every.chunk[upper] >= 0
    return upper[known], lower[known]
