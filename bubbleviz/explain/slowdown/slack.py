"""Compute slack: how much later work could end without making the iteration longer.

Latest end times are propagated backwards from the end of the iteration, as in the critical path
method. The latest end of a row is limited by the latest start of each successor. All members of a
collective must start before any member can finish. So slack is computed by a replay in reverse, in
which the members of a collective wait for each other::

    rank 0   ├─ B7 ─┤· slack ·│▓ all-reduce ▓┤├ Optimizer ┤
    rank 1   ├────── B7 ──────┤▓ all-reduce ▓┤├ Optimizer ┤
"""

from __future__ import annotations

import numpy as np

from bubbleviz.explain.dependencies import Dependencies
from bubbleviz.explain.slowdown.replay import Replay
from bubbleviz.explain.slowdown.work import Work
from bubbleviz.model.columns import Ints, scatter
from bubbleviz.model.grouping import find_positions
from bubbleviz.model.intervals import group_latest
from bubbleviz.schedules.timing import NEVER, build_timing


def compute_slack(
    work: Work, order: Dependencies, replay: Replay, own_ns: Ints, delay_ns: Ints
) -> Ints:
    """Return how much later each row could end without making the iteration longer, in ns.

    The slack is -1 for rows that are not replayed.

    Args:
        work: Work table of all ranks.
        order: Dependencies of the work, as pairs of a row and one of its predecessors.
        replay: Replay of the work, with at least one row.
        own_ns: Duration of each row of the work in ns, without waiting.
        delay_ns: For each row, the time in ns from the end of its last predecessor to its start.
    """
    ends_of_replayed_ns = replay.compute_ends(own_ns[:, None], delay_ns)[:, 0]
    ends_ns = scatter(len(work), replay.rows, ends_of_replayed_ns)
    closing = replay.rows[replay.closing]
    iteration_end_ns = np.maximum.reduceat(ends_ns[closing], replay.first_closing)
    # Rows that end after their iteration have no slack. Times are negated to replay in reverse.
    iteration = find_positions(replay.iterations, work.iteration)
    latest_ns = -np.maximum(iteration_end_ns[iteration], ends_ns)
    backwards = build_timing(order.predecessor, order.successor, work.meeting, work.iteration)
    starts_ns = backwards.compute_ends(
        delay_ns[backwards.rows, None],
        own_ns[backwards.rows],
        earliest=latest_ns[backwards.rows, None],
    )
    needed_ns = scatter(len(work), backwards.rows, starts_ns[:, 0])[order.successor]
    needed_ns = group_latest(order.predecessor, len(work), needed_ns, NEVER)
    slack_ns = -np.maximum(latest_ns, needed_ns) - ends_ns
    return scatter(len(work), replay.rows, slack_ns[replay.rows])
