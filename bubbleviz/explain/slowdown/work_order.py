"""Order of the work of a run: the rows that each row follows, as far as times show it.

Operations run in their order. A collective follows the operation that had ended when it began. The
next operation follows the collective if it was exposed, otherwise the optimizer does::

    compute     ├─ B6 ─┤├─ B7 ─┤                 ├ Optimizer ┤
    collective          ├─ bucket 0 ─┤├ bucket 1 ┤
                 after B6             after B7 and bucket 0
"""

from __future__ import annotations

import numpy as np

from bubbleviz.align.arrivals import NEVER
from bubbleviz.explain.dependencies import Dependencies
from bubbleviz.explain.slowdown.message_order import Pairs, chained, message_order
from bubbleviz.explain.slowdown.messages import CLOCK_NS, Messages
from bubbleviz.explain.slowdown.replayed_run import ReplayedRun
from bubbleviz.explain.slowdown.work import (
    COMPUTING,
    POINT_TO_POINT,
    RECEIVES,
    SENDS,
    Role,
    Work,
    plays,
)
from bubbleviz.model.columns import NONE, Ints, scatter
from bubbleviz.model.grouping import group_rows, sort_rows
from bubbleviz.model.intervals import find_last_before, group_extents, group_sum
from bubbleviz.model.operations import Operations


def run_order(
    work: Work, rows: Ints, messages: Messages, operations: Operations, tokens: Dependencies
) -> Dependencies:
    """Return what each row of a run's work follows.

    Args:
        work: operations, then sends, then receives, then collectives.
        rows: of the operations table, of the first rows of it.
        messages: between operations; those seen are the sends and receives.
        operations: of all ranks.
        tokens: which of these waited for the token of which.
    """
    place = scatter(len(operations), rows, np.arange(len(rows)))
    seen, unseen = messages.take(messages.seen), messages.take(~messages.seen)
    # Sorted once, they stay so for all that asks for their order.
    columns = work.rank_iteration, work.start_ns, work.kind
    computes = sort_rows(*(column[: len(rows)] for column in columns))
    transfers = len(rows) + np.arange(2 * len(seen))
    collective = np.arange(len(rows) + len(transfers), len(work))
    ends = np.concatenate((place[seen.producer], place[seen.consumer]))
    waits, token = place[tokens.after], place[tokens.before]
    known = (waits >= 0) & (token >= 0)
    known &= operations.iteration[tokens.after] == operations.iteration[tokens.before]
    sent_ns = np.full(len(work), NEVER, np.int64)
    sent_ns[transfers] = np.tile(seen.send_start_ns, 2)
    in_time, communicates = [], work.communicates
    receives = plays(work.role, RECEIVES)
    for row, before in message_order(work, transfers, ends, computes):
        # A rank can post receives ahead of the operation before.
        late = work.end_ns[before] > work.start_ns[row] + CLOCK_NS
        ahead = late & communicates[row]
        # One that does so where data is there early does so where it waits, too.
        shows = ~communicates[before] & receives[row]
        early = shows & (sent_ns[row] + CLOCK_NS < work.end_ns[before])
        if 2 * ahead[early].sum() > early.sum():
            ahead |= shows
        in_time.append((row[~ahead], before[~ahead]))
    pairs = [
        chained(work, computes, work.rank_iteration[computes]),
        (place[unseen.consumer], place[unseen.producer]),
        (waits[known], token[known]),
        *in_time,
        queued_transfers(work, Dependencies(transfers[: len(seen)], place[seen.producer])),
        _in_turn(work, computes, collective),
        _in_turn(work, collective, collective),
        _followed(work, computes, collective),
    ]
    row, before = (np.concatenate([pair[side] for pair in pairs]) for side in (0, 1))
    return Dependencies(row, before)


def queued_transfers(work: Work, order: Dependencies) -> Pairs:
    """Return the transfers that were queued behind others, and the one that each then followed.

    Its data was there while the other one, which had been posted first, still waited for its peer::

        RECV_F 5   ├▒▒▒▒▒▒ waits ▒▒▒▒▒▒│▓▓┤
        SEND_F 2          computed        ├▓▓┤

    Args:
        work: of all ranks.
        order: what its sends follow.
    """
    role, transfers = work.role, np.flatnonzero(plays(work.role, POINT_TO_POINT))
    sends = transfers[plays(role[transfers], SENDS)]
    meetings = int(work.meeting.max(initial=NONE)) + 1
    sent_ns, made_ns = np.full(meetings, NEVER), np.full(len(work), NEVER)
    sent_ns[work.meeting[sends]] = work.start_ns[sends]
    made = plays(role[order.after], SENDS) & plays(role[order.before], COMPUTING)
    made_ns[order.after[made]] = work.end_ns[order.before[made]]
    ready_ns = np.where(plays(role, RECEIVES), np.append(sent_ns, NEVER)[work.meeting], made_ns)
    late = (ready_ns != NEVER) & (ready_ns + CLOCK_NS < work.start_ns)
    row, before = _in_turn(work, _waiting(work), transfers[late[transfers]])
    idle_ns = work.start_ns[row] - work.end_ns[before]
    queued = (idle_ns >= 0) & (idle_ns <= CLOCK_NS)
    return row[queued], before[queued]


def _waiting(work: Work) -> Ints:
    """Return the sends and receives that waited for their peer."""
    transfers = np.flatnonzero(plays(work.role, POINT_TO_POINT))
    meetings, start_ns = group_rows(work.meeting[transfers]), work.start_ns[transfers]
    met_ns = group_extents(meetings.of_row, len(meetings), start_ns, start_ns)[1]
    return transfers[met_ns[meetings.of_row] > start_ns + CLOCK_NS]


def queued_collectives(run: ReplayedRun, work: Work, rows: Ints) -> tuple[Ints, Ints]:
    """Return for how long collectives inside operations were queued behind transfers, by row.

    Experts exchange tokens in a forward, for which nothing runs while a receive of another one
    waits in front of them, as on a link that both share::

        RECV_F 5        ├▒▒▒▒▒▒▒▒ waits ▒▒▒▒▒▒▒▒│▓▓┤
        F 2         ├ attention ┤    queued        ├ all-to-all ┤├ experts ┤

    Operations lose no more than the time in which no kernel of theirs ran, nor any collective.

    Args:
        run: all ranks.
        work: of it.
        rows: of the operations that are the first rows of the work.
    """
    operations = run.operations
    place = scatter(len(operations) + 1, rows, np.arange(len(rows)))
    inside = run.collectives.take(place[run.collectives.operation] != NONE)
    owner = inside.operation
    inside = inside.take(inside.start_ns < operations.end_ns[owner])
    owner = place[inside.operation]
    held = _waiting(work)
    ended_ns = work.end_ns[held] - CLOCK_NS
    last = find_last_before(work.rank[held], ended_ns, inside.rank, inside.start_ns)
    front = np.append(held, NONE)[last]
    queued = (front != NONE) & (inside.start_ns <= work.end_ns[front] + CLOCK_NS)
    # What an operation receives for itself it waits for, whatever it runs then.
    same = work.microbatch[front] == work.microbatch[owner]
    queued &= ~same | (work.virtual_stage[front] != work.virtual_stage[owner])
    lost_ns = inside.start_ns - np.maximum(work.start_ns[front], work.start_ns[owner])
    of_row = group_sum(owner[queued], len(work), lost_ns[queued])
    gaps_ns = (operations.busy_ns - operations.active_ns)[rows]
    gaps_ns = gaps_ns - group_sum(owner, len(work), inside.end_ns - inside.start_ns)[: len(rows)]
    of_row[: len(rows)] = np.minimum(of_row[: len(rows)], gaps_ns)
    late = np.flatnonzero(of_row > CLOCK_NS)
    return late, of_row[late]


def _in_turn(work: Work, ended: Ints, begun: Ints, *, following: bool = False) -> Pairs:
    """Return rows with the last of some others that had ended when they began, about.

    What each follows began before it, so that none follows itself.

    Args:
        work: of all ranks.
        ended: the rows of which one is looked for.
        begun: those for which it is looked for.
        following: whether instead each of ``ended`` gets the first of ``begun`` after it.
    """
    if not (len(ended) and len(begun)):
        return ended[:0], begun[:0]
    place = work.rank_iteration
    both = np.concatenate((ended, begun))
    begins = np.arange(len(both)) >= len(ended)
    start_ns = work.start_ns[both]
    ended_ns = np.maximum(work.end_ns[both] - CLOCK_NS, start_ns)
    turn = np.where(begins, 1, np.where(ended_ns > start_ns, 0, 2))
    order = sort_rows(place[both], np.where(begins, start_ns, ended_ns), turn, both)
    begins, at = begins[order], np.arange(len(order))
    if following:
        nearest = np.minimum.accumulate(np.where(begins, at, len(order))[::-1])[::-1]
        some = ~begins & (nearest < len(order))
    else:
        nearest = np.maximum.accumulate(np.where(begins, NONE, at))
        some = begins & (nearest != NONE)
    row, other = both[order[some]], both[order[nearest[some]]]
    same = place[row] == place[other]
    return row[same], other[same]


def _followed(work: Work, computes: Ints, collectives: Ints) -> Pairs:
    """Return what follows collectives: the next operation if they were exposed, else the optimizer.

    A collective is exposed if the operation before the next one had ended when it did.
    """
    if not len(collectives):
        return collectives, collectives
    optimizers = computes[work.role[computes] == Role.OPTIMIZER]
    next_row, optimizer, before = np.full((3, len(work) + 1), NONE, np.int64)
    for column, rows in ((next_row, computes), (optimizer, optimizers)):
        row, following = _in_turn(work, collectives, rows, following=True)
        column[row] = following
    after, earlier = chained(work, computes, work.rank_iteration[computes])
    before[after] = earlier
    previous = before[next_row[collectives]]
    exposed = previous == NONE
    exposed |= work.end_ns[previous] <= work.end_ns[collectives] + CLOCK_NS
    follower = np.where(exposed, next_row[collectives], optimizer[collectives])
    some = follower != NONE
    return follower[some], collectives[some]
