"""Causality: which operation of one host cannot have been before which of another.

Inside one pipeline F of a virtual stage needs the F before it, and B the B behind it, of the
same microbatch. With what is seen of the transfer between them::

    rank 0   F ████┤                           F ends before the other F starts,
             SEND  ├──▒▒▒▒─┤                   the send starts before the receive ends
    rank 1   RECV ├▒▒▒▒▒▒▒▒──┤
             F               ├████

A span may begin with kernels that need no input. Then it is the end of the receive that cannot
be before the end of the F that it waits for.
"""

from __future__ import annotations

import numpy as np

from bubbleviz.collectives import Collectives
from bubbleviz.columns import NONE, Bools, Ints
from bubbleviz.grouping import groups_of
from bubbleviz.model import Operations
from bubbleviz.offsets import Precedences, together
from bubbleviz.phases import Phase

_WAITING = (Phase.F, Phase.B, Phase.BW)
#: No time at all.
_NEVER = np.iinfo(np.int64).min
#: Each member of a collective is compared with so many others, which bounds the number of pairs.
_PARTNERS = 16


def dependencies(
    operations: Operations, virtual_stage: Ints, pipeline: Ints, clock: Ints
) -> Precedences:
    """Return what the pipelines' data dependencies say of pairs of clocks.

    Args:
        operations: of all ranks, ``iteration`` counted over all of them.
        virtual_stage: of each operation; -1 unknown.
        pipeline: of each rank; -1 where copies of a stage cannot be told apart.
        clock: of each rank.
    """
    rows = np.flatnonzero(
        np.isin(operations.phase, _WAITING)
        & (operations.has_span == 1)
        & (operations.occurrence == 0)
        & (operations.iteration >= 0)
        & (virtual_stage >= 0)
    )
    # A hop from block to block is one step of a microbatch from virtual stage to virtual stage.
    forward = operations.phase[rows] == Phase.F
    microbatch = groups_of(
        pipeline[operations.rank[rows]],
        operations.iteration[rows],
        operations.microbatch[rows],
        operations.sequence[rows],
        forward.astype(np.int64),
    ).of_row
    stage = np.where(forward, virtual_stage[rows], -virtual_stage[rows])
    blocks = groups_of(microbatch, stage)
    source = _sources(operations.end_ns[rows], clock[operations.rank[rows]], blocks.of_row)
    previous = blocks.of_row - 1
    hops = np.flatnonzero((previous >= 0) & (microbatch[blocks.first[previous]] == microbatch))
    # Of an operation that the end of the capture cut, the receive may not have been recorded.
    hops = hops[(source[previous[hops]] >= 0) & (operations.cut[rows[hops]] == 0)]
    before, after = rows[source[previous[hops]]], rows[hops]
    apart = clock[operations.rank[before]] != clock[operations.rank[after]]
    return _precedences(operations, clock, before[apart], after[apart])


def _sources(end_ns: Ints, clock: Ints, block: Ints) -> Ints:
    """Return for each block the row that ended first, or -1 where it lies on several clocks.

    A block is one operation, unless copies of a stage cannot be told apart: then any of them may
    be the one that the next stage waited for, and the earliest bounds it.
    """
    order = np.lexsort((end_ns, block))
    blocks = int(block.max(initial=-1)) + 1
    source = order[np.searchsorted(block[order], np.arange(blocks))]
    low, high = np.full(blocks, np.iinfo(np.int64).max), np.full(blocks, NONE)
    np.minimum.at(low, block, clock)
    np.maximum.at(high, block, clock)
    return np.where(low == high, source, NONE)


def _precedences(operations: Operations, clock: Ints, before: Ints, after: Ints) -> Precedences:
    """Return what is known of these pairs of an operation and the one that waits for it."""
    received_ns, keyed = _received(operations, after)
    send, sent = _sends(operations, before)
    both = np.flatnonzero(keyed & sent)
    # The input was there when the operation started, or when its receive ended; and a receive
    # never ends before its send starts.
    row = np.concatenate((np.arange(len(before)), both))
    ready_ns = np.maximum(operations.start_ns[after], received_ns)
    return Precedences(
        before=clock[operations.rank[before]][row],
        after=clock[operations.rank[after]][row],
        before_ns=np.concatenate((operations.end_ns[before], operations.start_ns[send[both]])),
        after_ns=np.concatenate((ready_ns, received_ns[both])),
        before_row=before[row],
        after_row=after[row],
    )


def _received(operations: Operations, waiting: Ints) -> tuple[Ints, Bools]:
    """Return when the input of these operations was there at the latest, as receives tell.

    That is the end of the receive of its name (the second value tells where there is one) and of
    those inside its ranges; where receives do not say what they receive, the latest end of all
    that the host launched before it. ``_NEVER`` where no receive is seen.
    """
    inside = operations.received_ns[waiting]
    found = np.where(inside == NONE, _NEVER, inside)
    forward = operations.phase[waiting] == Phase.F
    at, keyed = _transfers(operations, waiting, np.where(forward, Phase.RECV_F, Phase.RECV_B))
    found[keyed] = np.maximum(found[keyed], operations.end_ns[at[keyed]])
    for own, phase in ((forward, Phase.RECV_F), (~forward, Phase.RECV_B)):
        rows = np.flatnonzero(own & ~keyed)
        latest_ns = _latest_receive(operations, waiting[rows], phase)
        found[rows] = np.maximum(found[rows], latest_ns)
    return found, keyed


def _latest_receive(operations: Operations, waiting: Ints, phase: Phase) -> Ints:
    """Return the latest end of what a rank may have received for each of these operations.

    That is every transfer of no single microbatch, launched before it. ``_NEVER`` for none.
    """
    receives = np.flatnonzero(
        ((operations.phase == phase) & (operations.microbatch < 0) & (operations.has_span == 1))
        | ((operations.phase == Phase.SEND_RECV) & (operations.has_span == 1))
    )
    found = np.full(len(waiting), _NEVER)
    for rank in np.unique(operations.rank[receives]).tolist():
        own = receives[operations.rank[receives] == rank]
        own = own[np.argsort(operations.host_start_ns[own], kind="stable")]
        latest_ns = np.maximum.accumulate(operations.end_ns[own])
        rows = np.flatnonzero(operations.rank[waiting] == rank)
        launched = np.searchsorted(
            operations.host_start_ns[own], operations.host_start_ns[waiting[rows]], side="right"
        )
        found[rows] = np.where(launched > 0, latest_ns[launched - 1], _NEVER)
    return found


def _sends(operations: Operations, sources: Ints) -> tuple[Ints, Bools]:
    """Return the row of the send of each operation's name, and whether there is one."""
    forward = operations.phase[sources] == Phase.F
    return _transfers(operations, sources, np.where(forward, Phase.SEND_F, Phase.SEND_B))


def _transfers(operations: Operations, rows: Ints, phase: Ints) -> tuple[Ints, Bools]:
    """Return the transfer of that phase with the key of each row, and whether there is one."""
    transfers = np.flatnonzero(
        np.isin(operations.phase, phase)
        & (operations.has_span == 1)
        & (operations.occurrence == 0)
        & (operations.microbatch >= 0)
    )
    both = np.concatenate((transfers, rows))
    number = groups_of(
        operations.rank[both],
        operations.iteration[both],
        np.concatenate((operations.phase[transfers], phase)),
        operations.microbatch[both],
        operations.chunk[both],
        operations.sequence[both],
    ).of_row
    at = np.full(int(number.max(initial=-1)) + 1, NONE, np.int64)
    at[number[: len(transfers)]] = transfers
    wanted = at[number[len(transfers) :]]
    return wanted, wanted >= 0


def overlaps(collectives: Collectives, group: Ints, clock: Ints) -> Precedences:
    """Return what collectives over the copies of a stage say of pairs of clocks.

    All members must have entered before any can leave (all-reduce, all-gather, reduce-scatter),
    so each one's kernel starts before each other one's ends.

    Args:
        collectives: outside of forward and backward, ``iteration`` counted over all ranks.
        group: of each rank, those that reduce together; -1 for none.
        clock: of each rank.
    """
    rows = np.flatnonzero((group[collectives.rank] >= 0) & (collectives.iteration >= 0))
    event = groups_of(
        group[collectives.rank[rows]],
        collectives.iteration[rows],
        collectives.kind[rows],
        collectives.count[rows],
        collectives.place[rows],
    ).of_row
    order = np.argsort(event, kind="stable")
    rows, event = rows[order], event[order]
    members = int(np.bincount(event, minlength=1).max())
    parts = []
    # Every member with the next one, then with the next but one, and so on.
    for step in range(1, min(members, _PARTNERS + 1)):
        same = np.flatnonzero(event[:-step] == event[step:])
        one, other = rows[same], rows[same + step]
        apart = clock[collectives.rank[one]] != clock[collectives.rank[other]]
        before = np.concatenate((one[apart], other[apart]))
        after = np.concatenate((other[apart], one[apart]))
        none = np.full(len(before), NONE, np.int64)
        parts.append(
            Precedences(
                before=clock[collectives.rank[before]],
                after=clock[collectives.rank[after]],
                before_ns=collectives.start_ns[before],
                after_ns=collectives.end_ns[after],
                before_row=none,
                after_row=none.copy(),
            )
        )
    return together(*parts)
