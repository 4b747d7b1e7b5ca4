"""Meetings: which rows of a recorded table are one communication.

The groups are those of ``setup_pp_dependency`` and ``label_dp_sync`` in the published
``analyzer/dependency_model.py``: parameters and gradients meet across the replicas of a stage,
embedding gradients across the stages of a replica that have them, the gradient norm across all.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bubbleviz.explain.slowdown.point_to_point import PointToPoint
from bubbleviz.explain.slowdown.replay import Role, Work, numbered
from bubbleviz.model.columns import NONE
from bubbleviz.model.grouping import groups_of
from tests.support.recorded_lanes import lanes_of

_ACROSS_REPLICAS = (Role.PARAMETERS, Role.GRADIENTS, Role.SEPARATE_GRADIENTS)


def with_meetings(work: Work, messages: PointToPoint) -> Work:
    """Return work with the meetings that follow from what its rows are.

    Layer-norm gradients meet inside a stage, of which a table holds one rank: they have none.

    Args:
        work: of all ranks.
        messages: its sends and receives.
    """
    role = work.role
    across_replicas = np.isin(role, _ACROSS_REPLICAS)
    across_stages = role == Role.EMBEDDING
    rows = np.flatnonzero(across_replicas | across_stages | (role == Role.GRADIENT_NORM))
    everywhere = np.full(len(rows), NONE, np.int64)
    within_stage = np.where(across_replicas[rows], work.stage[rows], everywhere)
    within_replica = np.where(across_stages[rows], work.replica[rows], everywhere)
    lane = np.where(role[rows] == Role.GRADIENT_NORM, everywhere, lanes_of(work)[rows])
    number = numbered(groups_of(work.rank_iteration, work.kind).of_row, work.start_ns)[rows]
    groups = groups_of(
        work.iteration[rows], work.kind[rows], within_stage, within_replica, lane, number
    )
    meeting = np.full(len(work), NONE, np.int64)
    meeting[rows] = groups.of_row
    paired = messages.pair != NONE
    meeting[messages.row[paired]] = len(groups) + messages.pair[paired]
    return replace(work, meeting=meeting)
