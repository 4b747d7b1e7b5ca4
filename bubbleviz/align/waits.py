"""Waits: how long every microbatch is away from a stage, on the clock of its rank alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from bubbleviz.align.merge import JoinedRecordings
from bubbleviz.interpret.iterations import occurrences
from bubbleviz.interpret.spans import ActiveTime
from bubbleviz.model.columns import NONE, Bools, Ints, Table, constant
from bubbleviz.model.grouping import distinct, groups_of, looked_up, sorted_rows
from bubbleviz.model.intervals import Packing, group_extents, group_sum
from bubbleviz.model.operations import RankOperations
from bubbleviz.model.phase_masks import INFERENCE, among, run_kind
from bubbleviz.model.phases import PASSED_ON, TRANSFERS, Phase
from bubbleviz.model.values import frozen

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
#: The columns that arrivals are found by.
_SHOWING = (
    *("rank", "phase", "microbatch", "chunk", "sequence", "has_span", "received_ns"),
    *("start_ns", "end_ns", "host_start_ns", "host_end_ns"),
)


@frozen
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


def arrivals(operations: RankOperations) -> Arrivals:
    """Return when the inputs of operations were there."""
    count = len(operations)
    exact = np.where(operations.received_ns == NONE, NEVER, operations.received_ns)
    if not among(operations.phase, TRANSFERS).any() and (exact == NEVER).all():
        none, never = constant(NONE, count), constant(NEVER, count)
        return Arrivals(never, never, np.zeros(count, bool), none, none)
    rows = np.flatnonzero(among(operations.phase, PASSED_ON))
    forward = operations.phase[rows] == Phase.F
    receive, send = np.full(count, NONE, np.int64), np.full(count, NONE, np.int64)
    receive[rows] = _named(operations, rows, np.where(forward, Phase.RECV_F, Phase.RECV_B), -1)
    send[rows] = _named(operations, rows, np.where(forward, Phase.SEND_F, Phase.SEND_B), 1)
    named = (receive >= 0) & (np.append(operations.has_span, 0)[receive] == 1)
    exact[named] = np.maximum(exact[named], operations.end_ns[receive[named]])
    latest, seen = exact.copy(), np.zeros(count, bool)
    ranks = int(operations.rank.max(initial=NONE)) + 1
    for consumers, phase in ((rows[forward], Phase.RECV_F), (rows[~forward], Phase.RECV_B)):
        unnamed = consumers[~named[consumers]]
        latest[unnamed] = np.maximum(latest[unnamed], _latest(operations, unnamed, phase))
        receives = np.zeros(ranks, bool)
        receives[operations.rank[among(operations.phase, (phase, Phase.SEND_RECV))]] = True
        receives[operations.rank[consumers[operations.received_ns[consumers] != NONE]]] = True
        seen[consumers] = receives[operations.rank[consumers]]
    return Arrivals(exact, latest, seen, receive, send)


class KnownArrivals:
    """Arrivals that are found once for all operations that agree in what shows them."""

    def __init__(self) -> None:
        self._found: list[tuple[tuple[Ints, ...], Arrivals]] = []

    def of(self, operations: RankOperations) -> Arrivals:
        """Return when the inputs of operations were there."""
        columns = tuple(getattr(operations, name) for name in _SHOWING)
        for known, found in self._found:
            if all(one is other for one, other in zip(known, columns, strict=True)):
                return found
        self._found.append((columns, arrivals(operations)))
        return self._found[-1][1]


def _named(operations: RankOperations, rows: Ints, phase: Ints, side: int) -> Ints:
    """Return the row of the transfer of that phase with the key of each row; -1 for none.

    It is the last one that was launched before the operation ended on the host (``side`` -1), or
    the first one after it started (1), unless another operation of that key lies between.
    """
    transfers = np.flatnonzero(among(operations.phase, phase) & (operations.microbatch >= 0))
    if len(transfers) == 0:
        return np.full(len(rows), NONE, np.int64)
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
    transfer = np.full(len(both), NONE, np.int64)
    if len(order) > 1:
        next_to = (group[order][1:] == group[order][:-1]) & is_row[order][1:]
        next_to &= ~is_row[order][:-1]
        transfer[order[1:][next_to]] = both[order[:-1][next_to]]
    return transfer[len(transfers) :]


def _latest(operations: RankOperations, waiting: Ints, phase: Phase) -> Ints:
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


def inputs_ready(operations: RankOperations, inputs: Arrivals) -> Ints:
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
    operations: RankOperations, forward: Ints, backward: Ints
) -> tuple[Ints, Ints]:
    """Return (microbatch, chunk) that the rows run forward, then those that they run backward.

    An FB is the forward of its first microbatch and the backward of its second.
    """
    both = operations.phase[backward] == Phase.FB
    microbatch = np.where(
        both, operations.second_microbatch[backward], operations.microbatch[backward]
    )
    chunk = np.where(both, operations.second_chunk[backward], operations.chunk[backward])
    return (
        np.concatenate((operations.microbatch[forward], microbatch)),
        np.concatenate((operations.chunk[forward], chunk)),
    )


@frozen
class Waits(Table):
    """How long a microbatch is away from a (rank, chunk).

    Attributes:
        rank: the rank.
        chunk: model chunk, as named.
        microbatch: the microbatch.
        sequence: sequence split; -1 none.
        iteration: the rank's own iteration; -1 where it is a median over these (and splits).
        waited_ns: from the end of its F until its gradient is there, else to the start of its B.
        worked_ns: how long these two keep the rank busy.
    """

    rank: Ints
    chunk: Ints
    microbatch: Ints
    sequence: Ints
    iteration: Ints
    waited_ns: Ints
    worked_ns: Ints


@frozen
class Passages(Table):
    """When a microbatch leaves a (rank, chunk) and when it is back.

    Attributes:
        rank: the rank.
        chunk: model chunk, as named.
        microbatch: the microbatch.
        sequence: sequence split; -1 none.
        iteration: the rank's own iteration.
        left_ns: end of its F.
        returned_ns: when its gradient is there, else start of its B.
        forward_ns: how long its F keeps the rank busy.
        backward_ns: how long its B does.
    """

    rank: Ints
    chunk: Ints
    microbatch: Ints
    sequence: Ints
    iteration: Ints
    left_ns: Ints
    returned_ns: Ints
    forward_ns: Ints
    backward_ns: Ints


def waits(operations: RankOperations, inputs: Arrivals, *, doubtful: bool = False) -> Waits:
    """Return the waits of all first occurrences with a device span; see :func:`passages`."""
    every = passages(operations, inputs, doubtful=doubtful)
    return Waits(
        rank=every.rank,
        chunk=every.chunk,
        microbatch=every.microbatch,
        sequence=every.sequence,
        iteration=every.iteration,
        waited_ns=every.returned_ns - every.left_ns,
        worked_ns=every.forward_ns + every.backward_ns,
    )


def passages(operations: RankOperations, inputs: Arrivals, *, doubtful: bool = False) -> Passages:
    """Return the passages of all first occurrences with a device span.

    Args:
        operations: of all ranks.
        inputs: when their inputs were there.
        doubtful: whether to take the start of a span for the arrival of its input where a receive
            that may be its own ends later.
    """
    usable = (operations.has_span == 1) & (operations.occurrence == 0)
    if not doubtful:
        # Where a receive that may be its own, or another one's, ends after its start, the arrival
        # is unknown.
        usable &= (inputs.latest_ns <= inputs.exact_ns) | (inputs.latest_ns <= operations.start_ns)
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
    forward_ns, _ = _worked(operations, inputs, forward)
    backward_ns, returned_ns = _worked(operations, inputs, backward)
    rank, chunk, microbatch, sequence, iteration = (column[at_forward] for column in key)
    return Passages(
        rank=rank,
        chunk=chunk,
        microbatch=microbatch,
        sequence=sequence,
        iteration=iteration,
        left_ns=operations.end_ns[forward],
        returned_ns=returned_ns,
        forward_ns=forward_ns,
        backward_ns=backward_ns,
    )


def _worked(operations: RankOperations, inputs: Arrivals, rows: Ints) -> tuple[Ints, Ints]:
    """Return how long operations keep their rank busy once their input is there, and when it is.

    Of an operation that overlaps a forward and a backward, half is one of them.
    """
    ready_ns = np.maximum(operations.start_ns[rows], inputs.exact_ns[rows])
    busy_ns = np.clip(operations.end_ns[rows] - ready_ns, 0, operations.busy_ns[rows])
    return busy_ns // np.where(operations.phase[rows] == Phase.FB, 2, 1), ready_ns


def _first_pairs(number: Ints, count: int) -> tuple[Ints, Ints]:
    """Return the first row of each number among the first rows, and among the others.

    Args:
        number: of each row.
        count: of the first rows.
    """
    numbers = int(number.max(initial=NONE)) + 1
    firsts = []
    for rows in (number[:count], number[count:]):
        first = np.full(numbers, NONE, np.int64)
        # Of rows with one number the last that is written stays: the first.
        first[rows[::-1]] = np.arange(len(rows))[::-1]
        firsts.append(first)
    common = (firsts[0] >= 0) & (firsts[1] >= 0)
    return firsts[0][common], firsts[1][common]


def usual_waits(operations: RankOperations, inputs: Arrivals, *, doubtful: bool = False) -> Waits:
    """Return the median wait of every microbatch of each (rank, chunk), as :func:`waits` do."""
    every = waits(operations, inputs, doubtful=doubtful)
    groups = groups_of(every.rank, every.chunk, every.microbatch)
    none = np.full(len(groups), NONE, np.int64)
    return Waits(
        rank=every.rank[groups.first],
        chunk=every.chunk[groups.first],
        microbatch=every.microbatch[groups.first],
        sequence=none,
        iteration=none.copy(),
        waited_ns=_medians(groups.of_row, every.waited_ns, len(groups)),
        worked_ns=_medians(groups.of_row, every.worked_ns, len(groups)),
    )


def waits_of_neighbours(every: Waits) -> Iterator[tuple[int, Waits, Waits]]:
    """Yield (virtual stage, its waits, those of the next one) for each but the last.

    Args:
        every: waits of which ``chunk`` is the virtual stage; -1 unknown.
    """
    for stage in range(int(every.chunk.max(initial=0))):
        yield stage, every.take(every.chunk == stage), every.take(every.chunk == stage + 1)


def _medians(group: Ints, values: Ints, groups: int) -> Ints:
    """Return the lower median of each group's values."""
    order = sorted_rows(group, values)
    counts = np.bincount(group, minlength=groups)
    first = np.concatenate(([0], np.cumsum(counts)[:-1])).astype(np.int64)
    return values[order][first + (counts - 1) // 2] if len(values) else values


def following(upper: Waits, lower: Waits) -> tuple[Ints, Ints]:
    """Return rows of waits, ``chunk`` a virtual stage, and those of the next one that they hold.

    That is, of the same microbatch, sequence split and iteration.
    """
    number = groups_of(
        np.concatenate((upper.chunk + 1, lower.chunk)),
        *(
            np.concatenate((getattr(upper, name), getattr(lower, name)))
            for name in ("iteration", "microbatch", "sequence")
        ),
    ).of_row
    return _first_pairs(number, len(upper))


# Streams: a run that only goes forward, chunk after chunk, is one window and no iterations.
#
# Serving frameworks mark each step of their scheduler, and a step is one chunk: the next one enters
# the pipeline while this one is still in it. A window from the first start to the last end of one
# chunk would be nearly all bubble, whatever the pipeline does::
#
#     steps    ├── 7 ──┤├── 8 ──┤├── 9 ──┤
#     stage 0  ███ F7 ██ ███ F8 ██ ███ F9 ██
#     stage 1           ███ F7 ██ ███ F8 ██ ███ F9 ██
#     becomes  ├──────────── one window ───────────┤    with microbatches 7, 8, 9
#
# Marks that hold several chunks (the batches of an evaluation) stay iterations.


def as_stream(joined: JoinedRecordings) -> JoinedRecordings:
    """Return recordings of single chunks that follow each other as recordings of one window.

    Chunks are numbered by the marks around them, else in their order. Any other run is returned
    as it is.
    """
    operations = joined.operations
    if run_kind(operations.phase) != INFERENCE or not _chunk_by_chunk(operations):
        return joined
    forward = operations.phase == Phase.F
    named = joined.named_iteration
    marked = bool((named[forward] >= 0).all())
    number = _chunk_numbers(operations, named if marked else operations.iteration)
    inside = operations.iteration >= 0
    iteration = np.where(inside, 0, NONE)
    collectives, replicas = joined.collectives, joined.replica_collectives
    return replace(
        joined,
        operations=operations.changed(
            iteration=iteration,
            microbatch=np.where(inside & (number >= 0), number, operations.microbatch),
        ),
        active=_together(joined),
        collectives=collectives.changed(iteration=np.minimum(collectives.iteration, 0)),
        # They tell training steps apart.
        replica_collectives=replicas.take(np.empty(0, np.int64)),
        named_iteration=np.full(len(named), NONE, np.int64),
    )


def _chunk_by_chunk(operations: RankOperations) -> bool:
    """Return whether each of several iterations of each rank holds one forward of each chunk."""
    rows = np.flatnonzero((operations.phase == Phase.F) & (operations.iteration >= 0))
    keys = tuple(
        getattr(operations, name)[rows] for name in ("rank", "iteration", "chunk", "sequence")
    )
    several = len(distinct(operations.iteration[rows])) > 1
    return several and not occurrences(keys).any()


def _chunk_numbers(operations: RankOperations, of_forward: Ints) -> Ints:
    """Return the number of the chunk that each operation is of; -1 where its step holds none."""
    rows = np.flatnonzero((operations.phase == Phase.F) & (operations.iteration >= 0))
    keys = operations.rank, operations.iteration
    return looked_up((keys[0][rows], keys[1][rows]), of_forward[rows], keys)


def _together(joined: JoinedRecordings) -> ActiveTime:
    """Return how long kernels ran in the window of each rank."""
    active, running, operations = joined.active, joined.running, joined.operations
    ranks = len(joined.ranks)
    work = np.flatnonzero((operations.phase == Phase.F) & (operations.has_span == 1))
    first, last = group_extents(
        operations.rank[work], ranks, operations.start_ns[work], operations.end_ns[work]
    )
    within = running.start_ns >= first[running.rank]
    within &= running.end_ns <= last[running.rank]
    inside = active.iteration >= 0
    present = distinct(active.rank[inside])

    def total(name: str) -> Ints:
        return group_sum(active.rank[inside], ranks, getattr(active, name)[inside])[present]

    kernel_ns = group_sum(running.rank[within], ranks, running.running_ns[within])
    return ActiveTime(
        rank=present,
        iteration=np.zeros(len(present), np.int64),
        active_ns=total("active_ns"),
        kernel_ns=kernel_ns[present],
        gap_ns=total("gap_ns"),
        collective_gap_ns=total("collective_gap_ns"),
    )
