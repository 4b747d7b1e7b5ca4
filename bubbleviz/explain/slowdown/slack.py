"""Slack: how much later work can end without a longer iteration, all else as measured.

From the last level of a replay backwards: what follows a row has to start in time, and so have all
members of a collective before the first of them may end no later::

    rank 0   ├─ B7 ─┤· slack ·│▓ all-reduce ▓┤├ Optimizer ┤
    rank 1   ├────── B7 ──────┤▓ all-reduce ▓┤├ Optimizer ┤
"""

from __future__ import annotations

import numpy as np

from bubbleviz.explain.slowdown.replay import Replay
from bubbleviz.explain.slowdown.work import Work
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import found_in
from bubbleviz.model.intervals import group_extents


def slack_of(work: Work, replay: Replay, own_ns: Ints, delay_ns: Ints) -> Ints:
    """Return how much later each row could end without a longer iteration; -1 for not replayed.

    Args:
        work: of all ranks.
        replay: of it.
        own_ns: how long each row takes itself.
        delay_ns: how long each row starts after all that it follows has ended.
    """
    count = len(replay.rows)
    ends_ns = replay.ends_ns(own_ns[:, None], delay_ns)[:count, 0]
    own_ns, delay_ns = own_ns[replay.rows], delay_ns[replay.rows]
    iteration = found_in(replay.iterations, work.iteration[replay.rows])
    closing = ends_ns[replay.closing]
    whole_ns = group_extents(iteration[replay.closing], len(replay.iterations), closing, closing)[1]
    # What ends after its iteration does cannot end later; two more places stand for no row.
    latest_ns = np.append(np.maximum(whole_ns[iteration], ends_ns), (0, 0))
    starts_ns = np.zeros(count, np.int64)
    for level in reversed(replay.levels):
        if len(level.met):
            latest = np.minimum.reduceat(latest_ns[level.met] - own_ns[level.met], level.first)
            starts_ns[level.met] = np.repeat(latest, level.sizes)
        alone = slice(level.start, level.alone)
        starts_ns[alone] = latest_ns[alone] - own_ns[alone]
        ready_ns = starts_ns[level.start : level.stop] - delay_ns[level.start : level.stop]
        for before in level.before:
            np.minimum.at(latest_ns, before, ready_ns)
    slack_ns = np.full(len(work), NONE, np.int64)
    slack_ns[replay.rows] = latest_ns[:count] - ends_ns
    return slack_ns
