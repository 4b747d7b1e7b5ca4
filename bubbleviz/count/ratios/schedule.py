"""One window of the iteration for all ranks, without the Optimizer."""

from __future__ import annotations

import numpy as np

from bubbleviz.count.ratios import CountedWork, Extents, RatioDefinition, Windows
from bubbleviz.model.columns import Ints


def common_window(extents: Extents, last_ns: Ints) -> Windows:
    """Return one window for all ranks, from the first start to the last end."""
    big = np.iinfo(np.int64).max
    start = np.where(extents.present, extents.first_ns, big).min(axis=1, keepdims=True)
    end = np.where(extents.present, last_ns, -big).max(axis=1, keepdims=True)
    shape = extents.present.shape
    return Windows(
        np.broadcast_to(start, shape),
        np.broadcast_to(end, shape),
        extents.started,
    )


RATIO = RatioDefinition(
    name="schedule",
    summary="single-iteration window",
    definition="1 - sum of the ranks' compute / (ranks x (last end - first start over all ranks))",
    words="share of the ranks' time from an iteration's first F to its last backward, on "
    "any rank, in which they run none of its F, B and W",
    windows=lambda extents: common_window(extents, extents.last_ns),
    work=CountedWork.ITERATION,
    common_clock=True,
    across_ranks=True,
    order=1,
    forward_words="share of the ranks' time from the first chunk's start to the last one's end, "
    "on any rank, in which they run none",
)
