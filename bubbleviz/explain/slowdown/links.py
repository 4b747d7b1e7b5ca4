"""Links: which stages each transfer moves data between."""

from __future__ import annotations

import numpy as np

from bubbleviz.explain.slowdown.work import POINT_TO_POINT, Role, Work
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import groups_of


def link_of(work: Work) -> tuple[Ints, Ints]:
    """Return the stages that each row moves data from and to; -1 where it is no transfer."""
    role = work.role
    sends = np.isin(role, (Role.SEND_F, Role.SEND_B))
    paired = np.flatnonzero(np.isin(role, POINT_TO_POINT) & (work.meeting != NONE))
    pairs = groups_of(work.meeting[paired])
    stages = np.full((2, len(pairs)), NONE, np.int64)
    for end, rows in enumerate((paired[sends[paired]], paired[~sends[paired]])):
        stages[end, pairs.of_row[sends[paired] if end == 0 else ~sends[paired]]] = work.stage[rows]
    ends = np.full((2, len(work)), NONE, np.int64)
    ends[:, paired] = np.where((stages != NONE).all(axis=0), stages, NONE)[:, pairs.of_row]
    return ends[0], ends[1]
